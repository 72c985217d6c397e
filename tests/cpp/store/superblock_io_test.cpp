// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever happens to single copies or during an update, the superblock read back is the old or the updated
// one; the answers of open stay apart; and of two claimants one wins, the other learns it.
// Method: a simulated device, with faults at chosen copies and a crash at every operation. Two hosts are played by
// one thread: a clock whose sleep runs the other host.

#include "store/superblock_io.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <utility>

#include "store/one_sim_device.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimDisk;
using device::SimFault;
using format::OwnerRecord;
using format::Superblock;

constexpr uint64_t kDeviceBytes = 64 * kMiB;
const std::array<uint64_t, 4> kOffsets = format::superblock_offsets(kDeviceBytes);

Superblock first_superblock() {
  format::GeometryOptions options;
  options.device_bytes = kDeviceBytes;
  options.region_bytes = kMiB;
  Superblock superblock;
  superblock.geometry = format::choose_geometry(options).value();
  superblock.store_uuid = uuid_of(1);
  superblock.pool_uuid = uuid_of(2);
  superblock.members = {superblock.store_uuid};
  superblock.logical_block_bytes = 512;
  return superblock;
}

class SuperblockIo : public ::testing::Test {
 protected:
  void SetUp() override {
    disk_ = std::make_unique<SimDisk>(kDeviceBytes, 7);
    restart();
  }

  void restart() {
    sim_.reset();
    sim_ = std::make_unique<OneSimDevice>(*disk_, clock_);
  }

  void write_store() {
    stored_ = first_superblock();
    ASSERT_TRUE(update_superblock(io(), 0, stored_).ok());
  }

  device::BlockingIo& io() { return *sim_->io; }
  Code read_code() { return read_superblock(io(), 0, kDeviceBytes).status().code(); }
  Superblock read() { return read_superblock(io(), 0, kDeviceBytes).value().superblock; }

  void damage(uint32_t copy) {
    const uint8_t noise = 0x5a;
    disk_->poke(kOffsets[copy] + 300, &noise, 1);
  }

  ManualClock clock_;
  std::unique_ptr<SimDisk> disk_;
  std::unique_ptr<OneSimDevice> sim_;
  Superblock stored_;
};

// ---- reading ------------------------------------------------------------------------------------------

TEST_F(SuperblockIo, ReadsBackWhatWasWritten) {
  write_store();
  EXPECT_EQ(stored_.sequence, 1u);
  const format::Quorum quorum = read_superblock(io(), 0, kDeviceBytes).value();
  EXPECT_EQ(quorum.superblock, stored_);
  EXPECT_EQ(quorum.repair, (std::array<bool, 4>{}));
}

TEST_F(SuperblockIo, ABlankDeviceHasNoStore) { EXPECT_EQ(read_code(), Code::kNotFound); }

TEST_F(SuperblockIo, AFileSystemIsSaidToBeForeign) {
  const uint8_t ext_magic[] = {0x53, 0xef};
  disk_->poke(1080, ext_magic, 2);
  EXPECT_EQ(read_code(), Code::kForeign);
}

TEST_F(SuperblockIo, TwoAgreeingCopiesAreEnoughAndTheOthersAreToBeRepaired) {
  write_store();
  damage(1);
  damage(3);
  const format::Quorum quorum = read_superblock(io(), 0, kDeviceBytes).value();
  EXPECT_EQ(quorum.superblock, stored_);
  EXPECT_EQ(quorum.repair, (std::array<bool, 4>{false, true, false, true}));
}

TEST_F(SuperblockIo, ThreeDamagedCopiesAreCorruptNotMissing) {
  write_store();
  for (const uint32_t copy : {0u, 1u, 3u}) damage(copy);
  EXPECT_EQ(read_code(), Code::kCorrupt);
}

TEST_F(SuperblockIo, UnreadableCopiesMeanTryAgainNotMissing) {
  write_store();
  for (const uint32_t copy : {0u, 1u, 3u}) disk_->add_rule(rule_at(SimFault::kError, IoOp::kRead, kOffsets[copy]));
  EXPECT_EQ(read_code(), Code::kBusy);
  EXPECT_EQ(read(), stored_);  // and again
}

TEST_F(SuperblockIo, ALaterVersionIsUnsupported) {
  Superblock later = first_superblock();
  later.incompat_flags |= uint64_t{1} << 40;
  ASSERT_TRUE(update_superblock(io(), 0, later).ok());
  EXPECT_EQ(read_code(), Code::kUnsupported);
}

TEST_F(SuperblockIo, ADeviceTooSmallForItsCopiesHasNoStore) {
  EXPECT_EQ(read_superblock(io(), 0, kMiB).status().code(), Code::kNotFound);
  EXPECT_EQ(read_superblock(io(), 0, 100).status().code(), Code::kNotFound);
  EXPECT_EQ(read_superblock(io(), 0, 0).status().code(), Code::kNotFound);
}

TEST_F(SuperblockIo, AReadThatGoesElsewhereIsNotBelieved) {
  write_store();
  for (const uint32_t copy : {0u, 1u, 2u}) {
    device::SimRule rule = rule_at(SimFault::kMisdirected, IoOp::kRead, kOffsets[copy], kEveryTime);
    rule.value = kOffsets[3];
    disk_->add_rule(rule);
  }
  EXPECT_EQ(read_code(), Code::kCorrupt);
}

// ---- updating -----------------------------------------------------------------------------------------

TEST_F(SuperblockIo, OneCopyThatCannotBeWrittenIsTolerated) {
  write_store();
  for (const uint64_t offset : kOffsets) {
    disk_->clear_rules();
    disk_->add_rule(rule_at(SimFault::kError, IoOp::kWrite, offset, kEveryTime));
    ASSERT_TRUE(update_superblock(io(), 0, stored_).ok());
    EXPECT_EQ(read(), stored_);
  }
}

TEST_F(SuperblockIo, TwoCopiesThatCannotBeWrittenFailTheUpdateAndLeaveTheOldOne) {
  write_store();
  const Superblock before = stored_;
  for (const uint32_t copy : {1u, 2u}) {
    disk_->add_rule(rule_at(SimFault::kError, IoOp::kWrite, kOffsets[copy], kEveryTime));
  }
  const Status status = update_superblock(io(), 0, stored_);
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_EQ(status.io_errno(), EIO);
  EXPECT_EQ(read(), before);
}

TEST_F(SuperblockIo, AFailedUpdateNeverLendsItsSequenceToAnother) {
  write_store();
  for (const uint32_t copy : {2u, 3u}) disk_->add_rule(rule_at(SimFault::kError, IoOp::kWrite, kOffsets[copy]));
  EXPECT_FALSE(update_superblock(io(), 0, stored_).ok());
  EXPECT_EQ(stored_.sequence, 2u);
  ASSERT_TRUE(update_superblock(io(), 0, stored_).ok());
  EXPECT_EQ(stored_.sequence, 3u);
}

TEST_F(SuperblockIo, WritesThatAreReportedButLostAreNoticedByReadingBack) {
  write_store();
  disk_->add_rule(rule_at(SimFault::kLost, IoOp::kWrite, kOffsets[0]));
  EXPECT_TRUE(update_superblock(io(), 0, stored_).ok());
  for (const uint32_t copy : {1u, 2u}) disk_->add_rule(rule_at(SimFault::kLost, IoOp::kWrite, kOffsets[copy]));
  EXPECT_EQ(update_superblock(io(), 0, stored_).code(), Code::kIo);
}

TEST_F(SuperblockIo, ACopyThatIsStuckEndsTheWaitAndCostsThatCopyOnly) {
  write_store();
  disk_->add_rule(rule_at(SimFault::kStuck, IoOp::kWrite, kOffsets[1]));
  EXPECT_TRUE(update_superblock(io(), 0, stored_).ok());
  EXPECT_EQ(read(), stored_);
  disk_->release_stuck();  // else its memory is given up on purpose, which a leak checker reports
  EXPECT_EQ(read(), stored_);
}

// Crashes an update after each number of operations, in each of the given ways, and reopens.
void crash_everywhere(bool cache_survives, std::optional<uint32_t> bad_copy, uint32_t seeds) {
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    ManualClock clock;
    SimDisk disk(kDeviceBytes, seed);
    auto sim = std::make_unique<OneSimDevice>(disk, clock);
    Superblock stored = first_superblock();
    ASSERT_TRUE(update_superblock(*sim->io, 0, stored).ok());
    for (uint64_t operations = 0;; ++operations) {
      ASSERT_LT(operations, 100u);
      disk.clear_rules();
      if (bad_copy) {
        disk.add_rule(rule_at(SimFault::kError, IoOp::kWrite, kOffsets[*bad_copy], kEveryTime));
        disk.add_rule(rule_at(SimFault::kError, IoOp::kRead, kOffsets[*bad_copy], kEveryTime));
      }
      const Superblock before = stored;
      Superblock after = stored;
      after.owner.epoch += 1;
      after.clean = !after.clean;
      disk.stop_after(operations);
      const bool updated = update_superblock(*sim->io, 0, after).ok();
      disk.power_cut(cache_survives);
      sim = std::make_unique<OneSimDevice>(disk, clock);
      const auto found = read_superblock(*sim->io, 0, kDeviceBytes);
      ASSERT_TRUE(found.ok()) << found.status().to_string() << " seed " << seed << " after " << operations;
      stored = found.value().superblock;
      ASSERT_TRUE(stored == before || stored == after) << "seed " << seed << " after " << operations;
      if (updated) {
        ASSERT_EQ(stored, after);
        break;
      }
    }
  }
}

TEST_F(SuperblockIo, KilledAtAnyOperationOfAnUpdateTheOldOrTheUpdatedIsFound) { crash_everywhere(true, {}, 4); }

TEST_F(SuperblockIo, APowerCutAtAnyOperationOfAnUpdateLeavesTheOldOrTheUpdated) { crash_everywhere(false, {}, 20); }

TEST_F(SuperblockIo, OneBadCopyDoesNotCostTheQuorumWhenThePowerIsCut) {
  for (uint32_t copy = 0; copy < 4; ++copy) crash_everywhere(false, copy, 10);
}

// A process that dies soon after it starts and is started again, as a supervisor would.
TEST_F(SuperblockIo, UpdatesCutShortOneAfterTheOtherNeverCostTheQuorum) {
  for (uint64_t cuts = 0; cuts < 5 * 5 * 5 * 5; ++cuts) {
    SimDisk disk(kDeviceBytes, cuts);
    auto sim = std::make_unique<OneSimDevice>(disk, clock_);
    Superblock stored = first_superblock();
    ASSERT_TRUE(update_superblock(*sim->io, 0, stored).ok());
    for (uint64_t left = cuts, update = 0; update < 4; ++update, left /= 5) {
      Superblock after = stored;
      after.owner.epoch += 1;
      disk.stop_after(left % 5);
      (void)update_superblock(*sim->io, 0, after);
      disk.power_cut(update % 2 == 0);
      sim = std::make_unique<OneSimDevice>(disk, clock_);
      const auto found = read_superblock(*sim->io, 0, kDeviceBytes);
      ASSERT_TRUE(found.ok()) << found.status().to_string() << " cuts " << cuts << " update " << update;
      ASSERT_TRUE(found.value().superblock == stored || found.value().superblock == after);
      stored = found.value().superblock;
    }
  }
}

// ---- ownership ----------------------------------------------------------------------------------------

class CountingClock final : public Clock {
 public:
  uint64_t monotonic_ns() override { return now_ns_; }
  uint64_t wall_seconds() override { return 1'800'000'000; }
  void sleep_ns(uint64_t duration_ns) override {
    now_ns_ += duration_ns;
    slept_ns += duration_ns;
    if (during_sleep) std::exchange(during_sleep, nullptr)();
  }
  uint64_t slept_ns = 0;
  std::function<void()> during_sleep;  // what another host does meanwhile; once

 private:
  uint64_t now_ns_ = 0;
};

constexpr uint64_t kHeartbeatNs = 1'000'000'000;

ClaimOptions host(uint8_t id, uint8_t nonce) {
  ClaimOptions options;
  options.host = uuid_of(id);
  options.nonce = uuid_of(nonce);
  options.heartbeat_ns = kHeartbeatNs;
  return options;
}

TEST_F(SuperblockIo, AReadThatHangsDuringAClaimCostsThatCopyOnly) {
  write_store();
  disk_->add_rule(rule_at(SimFault::kStuck, IoOp::kRead, kOffsets[1], kEveryTime));
  const Result<Superblock> claimed = claim_device(io(), 0, stored_, host(0xa, 1), clock_);
  ASSERT_TRUE(claimed.ok()) << claimed.status().to_string();
  EXPECT_TRUE(confirm_ownership(io(), 0, stored_.geometry.device_bytes, claimed.value().owner).ok());
}

TEST_F(SuperblockIo, AClaimRaisesTheEpochAndMarksTheStoreUnclean) {
  write_store();
  CountingClock clock;
  const Superblock claimed = claim_device(io(), 0, stored_, host(0xa, 1), clock).value();
  EXPECT_EQ(claimed.owner, (OwnerRecord{1, uuid_of(0xa), uuid_of(1)}));
  EXPECT_FALSE(claimed.clean);
  EXPECT_EQ(claimed.opened_seconds, clock.wall_seconds());
  EXPECT_EQ(read(), claimed);
  EXPECT_EQ(clock.slept_ns, 0u);
}

TEST_F(SuperblockIo, AClaimThatCannotBeWrittenFails) {
  write_store();
  for (const uint32_t copy : {1u, 2u}) {
    disk_->add_rule(rule_at(SimFault::kError, IoOp::kWrite, kOffsets[copy], kEveryTime));
  }
  EXPECT_EQ(claim_device(io(), 0, stored_, host(0xa, 1), clock_).status().code(), Code::kIo);
}

TEST_F(SuperblockIo, AClaimRepairsWhatWasDamaged) {
  write_store();
  damage(0);
  damage(2);
  ASSERT_TRUE(claim_device(io(), 0, read(), host(0xa, 1), clock_).ok());
  EXPECT_EQ(read_superblock(io(), 0, kDeviceBytes).value().repair, (std::array<bool, 4>{}));
}

TEST_F(SuperblockIo, AfterAnUncleanCloseTheSameHostNeedNotWait) {
  write_store();
  CountingClock clock;
  ASSERT_TRUE(claim_device(io(), 0, stored_, host(0xa, 1), clock).ok());
  const Superblock again = claim_device(io(), 0, read(), host(0xa, 2), clock).value();
  EXPECT_EQ(again.owner.epoch, 2u);
  EXPECT_EQ(clock.slept_ns, 0u);
}

TEST_F(SuperblockIo, AfterAnUncleanCloseByAnotherHostAnUnchangedRecordWinsAfterTwoHeartbeats) {
  write_store();
  CountingClock clock;
  ASSERT_TRUE(claim_device(io(), 0, stored_, host(0xa, 1), clock).ok());
  const Superblock claimed = claim_device(io(), 0, read(), host(0xb, 2), clock).value();
  EXPECT_EQ(claimed.owner, (OwnerRecord{2, uuid_of(0xb), uuid_of(2)}));
  EXPECT_EQ(clock.slept_ns, 2 * kHeartbeatNs);
}

TEST_F(SuperblockIo, OfTwoContendersTheOneWhoseRecordStaysWins) {
  write_store();
  CountingClock clock;
  ASSERT_TRUE(claim_device(io(), 0, stored_, host(0xa, 1), clock).ok());
  const Superblock abandoned = read();

  // B claims; while it waits C, which had read the same superblock, claims as well.
  OneSimDevice other(*disk_, clock);
  Result<Superblock> c_claimed = Status(Code::kFailed, "C did not run");
  clock.during_sleep = [&] { c_claimed = claim_device(*other.io, 0, abandoned, host(0xc, 3), clock); };
  const Result<Superblock> b_claimed = claim_device(io(), 0, abandoned, host(0xb, 2), clock);

  ASSERT_TRUE(c_claimed.ok()) << c_claimed.status().to_string();
  EXPECT_EQ(b_claimed.status().code(), Code::kFenced);
  EXPECT_EQ(read().owner, c_claimed.value().owner);
  EXPECT_EQ(confirm_ownership(*other.io, 0, kDeviceBytes, c_claimed.value().owner).code(), Code::kOk);
}

TEST_F(SuperblockIo, ALivingOwnerOfAnotherHostLearnsOfAClaimWithinItsWait) {
  write_store();
  CountingClock clock;
  const Superblock a_claimed = claim_device(io(), 0, stored_, host(0xa, 1), clock).value();
  OneSimDevice other(*disk_, clock);
  Status seen_by_a;
  clock.during_sleep = [&] { seen_by_a = confirm_ownership(io(), 0, kDeviceBytes, a_claimed.owner); };
  ASSERT_TRUE(claim_device(*other.io, 0, read(), host(0xb, 2), clock).ok());
  EXPECT_EQ(seen_by_a.code(), Code::kFenced);
}

TEST_F(SuperblockIo, TwoHostsThatLeftTwoCopiesEachDoNotMakeTheStoreCorrupt) {
  write_store();
  Superblock by_a = stored_, by_b = stored_;
  by_a.owner = {1, uuid_of(0xa), uuid_of(1)};
  by_b.owner = {1, uuid_of(0xb), uuid_of(2)};
  ++by_a.sequence;
  ++by_b.sequence;
  for (uint32_t copy = 0; copy < 4; ++copy) {
    std::array<uint8_t, kPageBytes> page;
    format::encode_superblock(copy < 2 ? by_a : by_b, copy, page);
    disk_->poke(kOffsets[copy], page.data(), page.size());
  }
  EXPECT_EQ(read(), by_b);
  EXPECT_EQ(confirm_ownership(io(), 0, kDeviceBytes, by_a.owner).code(), Code::kFenced);
}

TEST_F(SuperblockIo, AStoreWithUnknownReadOnlyFlagsIsNotClaimed) {
  write_store();
  stored_.ro_compat_flags = 1;
  EXPECT_EQ(claim_device(io(), 0, stored_, host(0xa, 1), clock_).status().code(), Code::kUnsupported);
  EXPECT_EQ(disk_->operations(), 4u);  // the four writes of write_store
}

TEST_F(SuperblockIo, OwnershipIsLostToAHigherEpochAnotherNonceOrAFormat) {
  write_store();
  const OwnerRecord mine = claim_device(io(), 0, stored_, host(0xa, 1), clock_).value().owner;
  const auto code = [&](const OwnerRecord& record) { return confirm_ownership(io(), 0, kDeviceBytes, record).code(); };
  EXPECT_EQ(code(mine), Code::kOk);
  EXPECT_EQ(code({mine.epoch, mine.host, uuid_of(9)}), Code::kFenced);
  EXPECT_EQ(code({mine.epoch - 1, mine.host, mine.nonce}), Code::kFenced);
  EXPECT_EQ(code({mine.epoch + 1, mine.host, mine.nonce}), Code::kFenced);
  const std::array<uint8_t, kPageBytes> zeros{};
  for (const uint64_t offset : kOffsets) disk_->poke(offset, zeros.data(), zeros.size());
  EXPECT_EQ(code(mine), Code::kFenced);
}

TEST_F(SuperblockIo, OwnershipThatCannotBeReadIsAnIoErrorNotALoss) {
  write_store();
  const OwnerRecord mine = claim_device(io(), 0, stored_, host(0xa, 1), clock_).value().owner;
  for (const uint64_t offset : kOffsets) disk_->add_rule(rule_at(SimFault::kError, IoOp::kRead, offset));
  EXPECT_EQ(confirm_ownership(io(), 0, kDeviceBytes, mine).code(), Code::kIo);
  EXPECT_EQ(confirm_ownership(io(), 0, kDeviceBytes, mine).code(), Code::kOk);
}

// ---- the right device ---------------------------------------------------------------------------------

TEST_F(SuperblockIo, AnotherDeviceOrAnotherSizeIsRefused) {
  Superblock superblock = first_superblock();
  superblock.nguid = "aa";
  superblock.serial = std::string(40, 's');
  device::DeviceInfo info;
  info.size_bytes = kDeviceBytes + 512;  // rounded down
  info.identity = {"aa", "", std::string(60, 's')};
  EXPECT_TRUE(check_device(superblock, info).ok());
  info.identity.nguid = "ab";
  EXPECT_EQ(check_device(superblock, info).code(), Code::kOtherStore);
  info.identity.nguid = "";  // an older kernel does not tell
  EXPECT_TRUE(check_device(superblock, info).ok());
  info.size_bytes = kDeviceBytes + kMiB;
  EXPECT_EQ(check_device(superblock, info).code(), Code::kInvalid);
  info.size_bytes = kDeviceBytes - kPageBytes;
  EXPECT_EQ(check_device(superblock, info).code(), Code::kInvalid);
  info.size_bytes = kDeviceBytes;
  info.logical_block_bytes = 8192;
  EXPECT_EQ(check_device(superblock, info).code(), Code::kInvalid) << "its pages cannot be written singly";
}

}  // namespace
}  // namespace kvstore::store
