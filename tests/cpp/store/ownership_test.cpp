// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: an owner that is not the owner any more notices and stops, before it opens a region and within a heartbeat; one
// that cannot tell lets puts wait, and not for ever; who opens last after an unclean close wins.
// Method: two stores on one simulated disk, and a manual clock.

#include <gtest/gtest.h>

#include <cerrno>

#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

Name key(const std::string& text, uint32_t space = 0) { return {text, "", space}; }

class Ownership : public ::testing::Test {
 protected:
  void SetUp() override {
    SimSetup setup;
    setup.regions = 10;
    setup.region_bytes = kMiB;
    sim_ = std::make_unique<SimStore>(setup);
    ASSERT_TRUE(sim().open().ok());
  }
  SimStore& sim() { return *sim_; }
  // Another host opens the same device: nothing on this one could stop it.
  Result<std::unique_ptr<Store>> open_elsewhere(uint8_t host, bool read_only = false) {
    StoreOptions options = sim().options();
    options.host.fill(host);
    options.read_only = read_only;
    std::vector<std::unique_ptr<device::Device>> devices;
    devices.push_back(sim().make_device(0));
    return Store::open_devices(std::move(devices), options);
  }
  // Superblock copies cannot be read.
  void blind(uint64_t times = kForEver) {
    for (const uint64_t offset : sim().geometry().superblock_offsets()) {
      sim().disk().add_rule(rule_of(SimFault::kError, IoOp::kRead, offset, offset + kPageBytes, times));
    }
  }

  std::unique_ptr<SimStore> sim_;
};

TEST_F(Ownership, AnOwnerThatWasReplacedGoesOfflineWithinAHeartbeat) {
  sim().put(key("mine"), 10'000, {.durable = true});
  auto other = open_elsewhere(9);
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  sim().advance_ns(1'100'000'000);
  sim().run_idle();
  const ItemResult refused = sim().put(key("late"), 10'000);
  EXPECT_EQ(refused.status, ItemStatus::kError);
  EXPECT_EQ(refused.code, Code::kFenced);
  EXPECT_EQ(sim().store().flush(1'000'000'000).code(), Code::kFenced);
  sim().allow_misses(true);
  EXPECT_EQ(sim().get(key("mine")).status, ItemStatus::kMiss) << "what it knows may be reused by the other";
  const Name mine = key("mine");
  const KeyRef ref = sim().ref(mine);
  EXPECT_EQ(sim().store().erase({&ref, 1}).value()[0].code, Code::kFenced);
  EXPECT_FALSE(sim().contains(key("mine")));
}

TEST_F(Ownership, AReplacedOwnerNoticesBeforeItOpensARegion) {
  auto other = open_elsewhere(9);
  ASSERT_TRUE(other.ok());
  // No heartbeat has passed: the region that this put needs is what tells.
  const ItemResult refused = sim().put(key("a"), 10'000);
  EXPECT_EQ(refused.code, Code::kFenced);
  uint64_t writes = 0;
  sim().disk().set_observer([&](const device::IoRequest& request) { writes += request.op == IoOp::kWrite; });
  EXPECT_EQ(sim().put(key("b"), 10'000).code, Code::kFenced);
  sim().disk().set_observer(nullptr);
  EXPECT_EQ(writes, 0u);
}

TEST_F(Ownership, AReplacedOwnerDoesNotMarkTheStoreCleanWhenItCloses) {
  auto other = open_elsewhere(9);
  ASSERT_TRUE(other.ok());
  sim().advance_ns(1'100'000'000);
  sim().run_idle();
  EXPECT_EQ(sim().close().code(), Code::kFenced);
  EXPECT_TRUE(other.value()->is_open());
  EXPECT_TRUE(other.value()->flush(1'000'000'000).ok()) << "the owner is not disturbed";
  EXPECT_TRUE(other.value()->close(1'000'000'000).ok());
}

// The owner was suspended for as long as a contender waits. What it had not committed by then is lost, and told so: a
// descriptor written now could land in a region that has begun another life.
TEST_F(Ownership, AReplacedOwnerWakesUpAndCommitsNothing) {
  for (const bool by_close : {false, true}) {
    SetUp();
    sim().put(key("first"), 10'000, {.durable = true});
    sim().put(key("waits"), 10'000);
    auto other = open_elsewhere(9);  // two heartbeats pass
    ASSERT_TRUE(other.ok());
    uint64_t writes = 0;
    sim().disk().set_observer([&](const device::IoRequest& request) { writes += request.op != IoOp::kRead; });
    if (by_close) {
      EXPECT_FALSE(sim().close().ok());
    } else {
      sim().run_idle();
      EXPECT_EQ(sim().store().flush(1'000'000'000).code(), Code::kDurabilityLost);
      EXPECT_EQ(sim().number("blocks_lost"), 1);
    }
    sim().disk().set_observer(nullptr);
    EXPECT_EQ(writes, 0u);
    EXPECT_TRUE(other.value()->close(1'000'000'000).ok());
  }
}

TEST_F(Ownership, TheStoreWasFormattedUnderItsOwner) {
  sim().put(key("mine"), 10'000, {.durable = true});
  const std::vector<uint8_t> zeros(kPageBytes);
  for (const uint64_t offset : sim().geometry().superblock_offsets())
    sim().disk().poke(offset, zeros.data(), zeros.size());
  sim().advance_ns(1'100'000'000);
  sim().run_idle();
  EXPECT_EQ(sim().put(key("late"), 10'000).code, Code::kFenced);
}

TEST_F(Ownership, ALaterEpochOfTheSameHostFencesToo) {
  auto again = open_elsewhere(7);
  ASSERT_TRUE(again.ok());
  sim().advance_ns(1'100'000'000);
  sim().run_idle();
  EXPECT_EQ(sim().put(key("late"), 10'000).code, Code::kFenced);
}

TEST_F(Ownership, EveryOpeningRaisesTheEpochAndWriteSequencesFollow) {
  uint64_t last_epoch = 0, last_sequence = 0;
  for (int opening = 0; opening < 4; ++opening) {
    const Name name = key(std::to_string(opening));
    sim().put(name, 10'000, {.durable = true});
    const auto epoch = static_cast<uint64_t>(sim().number("epoch"));
    const uint64_t sequence = sim().describe(name).write_seq;
    EXPECT_GT(epoch, last_epoch);
    EXPECT_GT(sequence, last_sequence);
    EXPECT_EQ(sequence >> 40, epoch);
    last_epoch = epoch;
    last_sequence = sequence;
    if (opening % 2 == 0) {
      sim().crash(true);
    } else {
      ASSERT_TRUE(sim().close().ok());
    }
    sim().reopen_and_judge();
  }
}

// ---- a claim that cannot be read back --------------------------------------------------------------------------

TEST_F(Ownership, PutsWaitWhileTheClaimIsNotConfirmedAndGoOnWhenItIs) {
  sim().put(key("before"), 10'000);
  blind();
  sim().advance_ns(1'600'000'000);  // past one and a half heartbeats
  auto put = sim().start_put({{key("waits"), 10'000}});
  for (int i = 0; i < 50; ++i) sim().store().step();
  EXPECT_FALSE(put.job->done()) << "a contender may own the device by now";
  EXPECT_TRUE(sim().get(key("before")).succeeded()) << "reads go on: they are verified";
  sim().disk().clear_rules();
  EXPECT_EQ(sim().finish(put)[0].status, ItemStatus::kStored);
}

TEST_F(Ownership, AClaimUnreadableForLongMakesTheStoreReadOnly) {
  sim().put(key("before"), 10'000);
  blind();
  auto put = sim().start_put({{key("waits"), 300'000}});
  EXPECT_TRUE(sim().run_until([&] { return put.job->done(); }, 60'000'000'000)) << "not for ever";
  EXPECT_EQ(put.job->result(0).status, ItemStatus::kError);
  EXPECT_TRUE(sim().get(key("before")).succeeded());
  EXPECT_EQ(sim().number("write_failures"), 0) << "no region is to blame";
}

TEST_F(Ownership, OneUnreadableMomentCostsNothing) {
  sim().put(key("before"), 10'000);
  blind(1);
  sim().advance_ns(1'100'000'000);
  sim().run_idle();
  sim().advance_ns(1'100'000'000);
  sim().run_idle();
  EXPECT_EQ(sim().put(key("after"), 300'000, {.durable = true}).status, ItemStatus::kStored);
}

TEST_F(Ownership, ALongPauseIsNoticedAndTheClaimReadBackFirst) {
  sim().put(key("before"), 10'000);
  sim().advance_ns(3'600'000'000'000);  // the host was suspended
  const double checks = sim().number("ownership_checks");
  EXPECT_EQ(sim().put(key("after"), 10'000).status, ItemStatus::kStored);
  EXPECT_GT(sim().number("ownership_checks"), checks);
  EXPECT_GE(sim().number("heartbeats_late"), 1);
}

TEST_F(Ownership, APutThatWasBegunBeforeAPauseDoesNotGoOnAfterIt) {
  SimSetup setup;
  setup.regions = 5;
  setup.region_bytes = 64 * kMiB;
  setup.store.window_bytes = kMiB;  // sixteen pieces in flight
  sim_ = std::make_unique<SimStore>(setup);
  ASSERT_TRUE(sim().open().ok());
  uint64_t payload_writes = 0;
  sim().disk().set_observer([&](const device::IoRequest& request) {
    payload_writes += request.op == IoOp::kWrite && request.offset_bytes >= sim().geometry().data_offset ? 1 : 0;
  });
  auto put = sim().start_put({{key("long"), 60 * kMiB}});
  while (payload_writes == 0) sim().store().step();
  auto other = open_elsewhere(9);  // takes two heartbeats
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  payload_writes = 0;
  EXPECT_EQ(sim().finish(put)[0].code, Code::kFenced);
  EXPECT_LE(payload_writes, 16u) << "what was in flight";
  sim().disk().set_observer(nullptr);
}

TEST_F(Ownership, DescriptorsThatWaitAreNotWrittenAfterAPauseByAnOwnerThatWasReplaced) {
  sim().put(key("waits"), 10'000);
  auto other = open_elsewhere(9);
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  uint64_t writes = 0;
  sim().disk().set_observer([&](const device::IoRequest& request) { writes += request.op == IoOp::kWrite ? 1 : 0; });
  EXPECT_EQ(sim().store().flush(1'000'000'000).code(), Code::kDurabilityLost);
  sim().disk().set_observer(nullptr);
  EXPECT_EQ(writes, 0u) << "the region may have been given another life";
  EXPECT_EQ(sim().close().code(), Code::kFenced);
}

// ---- opening against an owner ----------------------------------------------------------------------------------

TEST_F(Ownership, AfterAnUncleanCloseByAnotherHostTheContenderWaitsTwoHeartbeats) {
  sim().put(key("mine"), 10'000, {.durable = true});
  sim().crash(true);
  const uint64_t start_ns = sim().clock().monotonic_ns();
  auto other = open_elsewhere(9);
  ASSERT_TRUE(other.ok());
  EXPECT_GE(sim().clock().monotonic_ns() - start_ns, 2'000'000'000u);
  EXPECT_TRUE(other.value()->close(1'000'000'000).ok());
  const uint64_t clean_ns = sim().clock().monotonic_ns();
  auto again = open_elsewhere(5);
  ASSERT_TRUE(again.ok());
  EXPECT_LT(sim().clock().monotonic_ns() - clean_ns, 1'000'000'000u) << "closed cleanly: nobody to wait for";
}

TEST_F(Ownership, AReadOnlyOpenerClaimsNothingAndDisturbsNobody) {
  sim().put(key("mine"), 10'000, {.durable = true});
  const uint64_t operations = sim().disk().operations();
  auto reader = open_elsewhere(9, true);
  ASSERT_TRUE(reader.ok()) << reader.status().to_string();
  EXPECT_EQ(sim().disk().operations(), operations) << "not a write, not a flush";
  const SpaceId space = reader.value()->register_space(SimStore::space_json(0)).value();
  Buffers buffers(10'000, {});
  const GetItem get{space, {}, "mine", buffers.segments(), 1, 0, kWholeBlock};
  EXPECT_EQ(reader.value()->get_one(get).status, ItemStatus::kHit);
  EXPECT_TRUE(buffers.holds(key("mine"), 1, 0, 10'000));
  PutItem put;
  put.space = space;
  put.key = "other";
  put.segments = buffers.segments();
  put.segment_count = 1;
  auto job = reader.value()->put({&put, 1}, {}, nullptr).value();
  while (!job->done()) reader.value()->step();
  EXPECT_EQ(job->result(0).status, ItemStatus::kError);
  const KeyRef ref{space, {}, "mine"};
  EXPECT_EQ(reader.value()->erase({&ref, 1}).value()[0].status, ItemStatus::kError);
  EXPECT_EQ(reader.value()->describe({&ref, 1}).value()[0].payload_bytes, 10'000u);
  EXPECT_TRUE(reader.value()->flush(1'000'000'000).ok());
  EXPECT_TRUE(reader.value()->close(1'000'000'000).ok());
  EXPECT_EQ(sim().disk().operations(), operations);
  EXPECT_EQ(sim().put(key("after"), 10'000, {.durable = true}).status, ItemStatus::kStored);
}

// The owner goes on filling and reclaiming: a reader's picture grows old, and old is a miss, not wrong bytes.
TEST_F(Ownership, AReadersOldPictureGivesMissesNotWrongBytes) {
  std::vector<Name> names;
  for (int i = 0; i < 20; ++i) {
    names.push_back(key(std::to_string(i)));
    sim().put(names.back(), 200'000, {.durable = true});
  }
  auto reader = open_elsewhere(9, true);
  ASSERT_TRUE(reader.ok());
  for (int i = 0; i < 60; ++i) sim().put(key("new " + std::to_string(i)), 200'000);
  const SpaceId space = reader.value()->register_space(SimStore::space_json(0)).value();
  int misses = 0;
  for (const Name& name : names) {
    Buffers buffers(200'000, {});
    const GetItem get{space, {}, name.key, buffers.segments(), 1, 0, kWholeBlock};
    const ItemResult result = reader.value()->get_one(get);
    EXPECT_TRUE(result.status != ItemStatus::kHit || buffers.holds(name, 1, 0, 200'000));
    misses += result.status == ItemStatus::kMiss ? 1 : 0;
  }
  EXPECT_GT(misses, 10);
}

}  // namespace
}  // namespace kvstore::store
