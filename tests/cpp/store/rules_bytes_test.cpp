// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a hit returns exactly what was put. Rules I5 (the checksum is in the index and every read is checked), I8
// (visible only after written) and I9 (short completions, -EAGAIN and -EIO are retried or errors, never success).
// Method: a simulated device that rots, loses, misdirects, stops short and refuses, one fault at a time.

#include <gtest/gtest.h>

#include <cerrno>

#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

Name key(const std::string& text, uint32_t space = 0) { return {text, "", space}; }

SimSetup large_regions() {
  SimSetup setup;
  setup.regions = 8;
  setup.region_bytes = 8 * kMiB;
  setup.min_block_bytes = 64 * kKiB;
  return setup;
}

class Bytes : public ::testing::Test {
 protected:
  void SetUp() override { make({}); }
  void make(const StoreOptions& options) {
    SimSetup setup = large_regions();
    setup.store = options;
    sim_ = std::make_unique<SimStore>(setup);
    ASSERT_TRUE(sim().open().ok());
  }
  SimStore& sim() { return *sim_; }

  // Payload of a block on the device, as a range for rules.
  std::pair<uint64_t, uint64_t> extent(const Name& name) {
    const BlockInfo info = sim().describe(name);
    return {info.offset_bytes, info.offset_bytes + info.payload_bytes};
  }
  void add_rule(SimFault fault, IoOp op, const Name& name, uint64_t times, uint64_t value = 0) {
    const auto [first, last] = extent(name);
    sim().disk().add_rule(rule_of(fault, op, first, last, times, 0, value));
  }

  std::unique_ptr<SimStore> sim_;
};

// ---- what is right ---------------------------------------------------------------------------------------------

TEST_F(Bytes, EverySizeAndLayoutComesBackAsItWasPut) {
  const uint64_t sizes[] = {1,        4095, 4096,     4097,     12'345,    64 * kKiB + 1,
                            kMiB - 1, kMiB, kMiB + 1, 2 * kMiB, 3'670'016, 3 * kMiB + 4095};
  const Layout layouts[] = {{1, 0}, {1, 64}, {1, 512}, {2, 0}, {3, 4095}, {64, 0}, {64, 1}};
  int number = 0;
  for (const uint64_t bytes : sizes) {
    for (const bool page_hashes : {false, true}) {
      for (const Layout& put_layout : layouts) {
        const Name name = key("block " + std::to_string(number), static_cast<uint32_t>(number % 3));
        ++number;
        SCOPED_TRACE(name.key + ": " + std::to_string(bytes) + " bytes, " + std::to_string(put_layout.segments) +
                     " segments at " + std::to_string(put_layout.misaligned_bytes));
        ASSERT_TRUE(sim().put(name, bytes, {.page_hashes = page_hashes, .layout = put_layout}).succeeded());
        for (const Layout& get_layout : layouts) ASSERT_TRUE(sim().get(name, get_layout).succeeded());
      }
    }
  }
}

TEST_F(Bytes, ABufferLongerThanTheBlockIsLeftAloneBehindIt) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{4095}, uint64_t{5000}, kMiB + 1}) {
    for (const Layout& layout : {Layout{1, 0}, Layout{1, 8}, Layout{4, 0}, Layout{5, 100}}) {
      const Name name = key(std::to_string(bytes));
      sim().put(name, bytes);
      Buffers buffers(2 * kMiB, layout);
      const GetItem item{sim().space(0), {}, name.key, buffers.segments(), buffers.segment_count(), 0, kWholeBlock};
      const ItemResult result = sim().store().get_one(item);
      EXPECT_EQ(result.status, ItemStatus::kHit);
      EXPECT_EQ(result.bytes, bytes);
      EXPECT_TRUE(buffers.holds(name, 1, 0, bytes));
      EXPECT_TRUE(buffers.untouched_from(bytes)) << bytes << " bytes in " << layout.segments << " segments";
    }
  }
}

TEST_F(Bytes, PartsAreReadAndVerifiedWithAndWithoutPageHashes) {
  const uint64_t bytes = 3 * kMiB + 777;
  for (const bool page_hashes : {true, false}) {
    const Name name = key(page_hashes ? "hashed" : "plain");
    sim().put(name, bytes, {.page_hashes = page_hashes});
    const std::pair<uint64_t, uint64_t> parts[] = {
        {0, 1},         {0, 4096},  {1, 4096},         {kMiB - 1, 2}, {kMiB, kMiB},       {4095, kMiB},
        {bytes - 1, 1}, {0, bytes}, {2 * kMiB + 5, 0}, {bytes, 0},    {bytes - 778, 778}, {100, bytes - 100}};
    for (const auto& [offset, length] : parts) {
      for (const Layout& layout : {Layout{1, 0}, Layout{3, 64}}) {
        EXPECT_TRUE(sim().get_part(name, offset, length, layout).succeeded()) << offset << " + " << length;
      }
    }
    EXPECT_EQ(sim().get_part(name, bytes, 1).code, Code::kInvalid);
    EXPECT_EQ(sim().get_part(name, 1, bytes).code, Code::kInvalid);
    EXPECT_EQ(sim().get_part(name, UINT64_MAX - 4, 8).code, Code::kInvalid);
  }
}

// With page hashes a small part costs its pages and the table, not the block.
TEST_F(Bytes, APartOfAHashedBlockReadsNotTheWhole) {
  sim().put(key("a"), 7 * kMiB, {.page_hashes = true});
  const double before = sim().number("bytes_read_payload");
  sim().get_part(key("a"), 3 * kMiB + 10, 100);
  EXPECT_LE(sim().number("bytes_read_payload") - before, 7 * kMiB / 512 + 3 * kPageBytes);
}

TEST_F(Bytes, KeysOfOtherSpacesSaltsAndLengthsNeverMatch) {
  const std::string long_key(1024, 'k');
  sim().put({"key", "", 0}, 5'000);
  sim().put({"key", "salt", 0}, 6'000);
  sim().put({"key", "", 1}, 7'000);
  sim().put({long_key, "", 0}, 8'000);
  sim().put({std::string(48, 'k'), "", 0}, 9'000);
  sim().judge_all();
  for (const Name& other :
       {Name{"key", "salt", 1}, Name{"key", "sal", 0}, Name{"ke", "y", 0}, Name{"tkey", "sal", 0},
        Name{std::string(1023, 'k'), "", 0}, Name{std::string(49, 'k'), "", 0}, Name{long_key, "", 2}}) {
    EXPECT_EQ(sim().get(other).status, ItemStatus::kMiss) << other.text();
  }
}

// ---- I5 --------------------------------------------------------------------------------------------------------

TEST_F(Bytes, I5_RottenPayloadIsAMissOnEveryByteOfInterest) {
  const uint64_t bytes = 2 * kMiB + 5'000;
  int number = 0;
  for (const bool page_hashes : {false, true}) {
    for (const uint64_t byte : {uint64_t{0}, kMiB - 1, kMiB, bytes - 1}) {
      const Name name = key(std::to_string(number++));
      sim().put(name, bytes, {.page_hashes = page_hashes});
      sim().put(key("neighbour"), bytes);
      sim().corrupt_payload(name, byte);
      sim().allow_misses(true);
      EXPECT_EQ(sim().get(name).status, ItemStatus::kMiss);
      sim().allow_misses(false);
      EXPECT_FALSE(sim().contains(name)) << "removed, so that a put writes it anew";
      EXPECT_EQ(sim().number("checksum_misses"), number);
      EXPECT_EQ(sim().number("checksum_mismatches"), 2 * number) << "read twice";
      EXPECT_TRUE(sim().get(key("neighbour")).succeeded());
      EXPECT_EQ(sim().put(name, bytes).status, ItemStatus::kStored);
      EXPECT_TRUE(sim().get(name).succeeded());
    }
  }
}

TEST_F(Bytes, I5_RottenPartsAreMissesAndSoundPartsAreNot) {
  const uint64_t bytes = 2 * kMiB;
  sim().put(key("a"), bytes, {.page_hashes = true});
  sim().corrupt_payload(key("a"), kMiB + 10'000);
  EXPECT_TRUE(sim().get_part(key("a"), 0, kMiB).succeeded()) << "the rot lies elsewhere";
  sim().allow_misses(true);
  EXPECT_EQ(sim().get_part(key("a"), kMiB + 9'000, 2'000).status, ItemStatus::kMiss);
  EXPECT_FALSE(sim().contains(key("a")));
}

TEST_F(Bytes, I5_ARottenTableOfPageHashesIsAMiss) {
  const uint64_t bytes = 2 * kMiB;
  sim().put(key("a"), bytes, {.page_hashes = true});
  sim().corrupt_payload(key("a"), bytes + 3);  // the table follows the payload
  EXPECT_TRUE(sim().get(key("a")).succeeded()) << "the whole block is verified against the root";
  sim().allow_misses(true);
  EXPECT_EQ(sim().get_part(key("a"), 5'000, 10).status, ItemStatus::kMiss);
}

TEST_F(Bytes, I5_AFlippedBitOnTheWayHealsAtTheSecondRead) {
  sim().put(key("a"), 100'000);
  add_rule(SimFault::kBitRot, IoOp::kRead, key("a"), 1, 99'000);
  EXPECT_TRUE(sim().get(key("a")).succeeded());
  EXPECT_EQ(sim().number("checksum_mismatches"), 1);
  EXPECT_EQ(sim().number("checksum_misses"), 0);
  add_rule(SimFault::kBitRot, IoOp::kRead, key("a"), 2, 99'000);
  sim().allow_misses(true);
  EXPECT_EQ(sim().get(key("a")).status, ItemStatus::kMiss);
  EXPECT_EQ(sim().number("checksum_misses"), 1);
}

TEST_F(Bytes, I5_AMisdirectedReadIsNeverAHitOfAnotherBlock) {
  sim().put(key("a"), 100'000);
  sim().put(key("b"), 100'000);
  add_rule(SimFault::kMisdirected, IoOp::kRead, key("a"), 1, extent(key("b")).first);
  EXPECT_TRUE(sim().get(key("a")).succeeded()) << "the second read finds it";
  add_rule(SimFault::kMisdirected, IoOp::kRead, key("a"), kForEver, extent(key("b")).first);
  sim().allow_misses(true);
  EXPECT_EQ(sim().get(key("a")).status, ItemStatus::kMiss);
}

// The same bytes under another key, salt or space do not verify: the root binds them to their identity.
TEST_F(Bytes, I5_TheBytesOfAnotherIdentityAreAMiss) {
  const Name names[] = {{"a", "", 0}, {"b", "", 0}, {"a", "salt", 0}, {"a", "tlas", 0}, {"a", "", 1}};
  for (const Name& name : names) {
    Buffers buffers(50'000, {});
    buffers.fill({"common", "", 0}, 1);  // equal bytes for all
    PutItem item;
    item.space = sim().space(name.space);
    item.salt = name.salt;
    item.key = name.key;
    item.segments = buffers.segments();
    item.segment_count = 1;
    auto job = sim().store().put({&item, 1}, {}, nullptr).value();
    ASSERT_TRUE(sim().run_until([&] { return job->done(); }));
    ASSERT_EQ(job->result(0).status, ItemStatus::kStored);
  }
  std::vector<BlockInfo> infos;
  for (const Name& name : names) infos.push_back(sim().describe(name));
  for (size_t i = 0; i < infos.size(); ++i) {
    for (size_t j = i + 1; j < infos.size(); ++j) EXPECT_FALSE(infos[i].checksum == infos[j].checksum) << i << " " << j;
  }
}

TEST_F(Bytes, I5_ALostOrMisdirectedWriteIsAMiss) {
  const auto& geometry = sim().geometry();
  sim().put(key("victim"), 100'000);
  for (const SimFault fault : {SimFault::kLost, SimFault::kMisdirected}) {
    const Name name = key(fault == SimFault::kLost ? "lost" : "misdirected");
    // Misdirected into a region that is not in use.
    const uint64_t elsewhere = geometry.region_offset(RegionId{geometry.region_count - 1});
    sim().disk().add_rule(
        rule_of(fault, IoOp::kWrite, geometry.data_offset, geometry.device_bytes - kPageBytes, 1, 0, elsewhere));
    ASSERT_EQ(sim().put(name, 100'000, {.durable = true}).status, ItemStatus::kStored);
    sim().allow_misses(true);
    EXPECT_EQ(sim().get(name).status, ItemStatus::kMiss);
    sim().allow_misses(false);
    EXPECT_TRUE(sim().get(key("victim")).succeeded());
  }
}

// A misdirected write that lands on another block makes that one a miss too, not a hit of foreign bytes.
TEST_F(Bytes, I5_AMisdirectedWriteOverABlockIsAMissOfBoth) {
  sim().put(key("victim"), 100'000);
  const auto& geometry = sim().geometry();
  sim().disk().add_rule(rule_of(SimFault::kMisdirected, IoOp::kWrite, geometry.data_offset,
                                geometry.device_bytes - kPageBytes, 1, 0, extent(key("victim")).first));
  ASSERT_EQ(sim().put(key("stray"), 100'000).status, ItemStatus::kStored);
  sim().allow_misses(true);
  EXPECT_EQ(sim().get(key("victim")).status, ItemStatus::kMiss);
  EXPECT_EQ(sim().get(key("stray")).status, ItemStatus::kMiss);
}

TEST_F(Bytes, I5_AStaleReadHealsAtTheSecondReadOrIsAMiss) {
  sim().disk().keep_previous();
  // Twice over the whole device, so that what was there before is a block too.
  for (int i = 0; i < 130; ++i) sim().put(key("old " + std::to_string(i)), kMiB);
  sim().put(key("a"), kMiB);
  add_rule(SimFault::kStale, IoOp::kRead, key("a"), 1);
  EXPECT_TRUE(sim().get(key("a")).succeeded());
  EXPECT_EQ(sim().number("checksum_mismatches"), 1);
  add_rule(SimFault::kStale, IoOp::kRead, key("a"), kForEver);
  sim().allow_misses(true);
  EXPECT_EQ(sim().get(key("a")).status, ItemStatus::kMiss);
}

// A write that was reported as failed lands when its extent has long been another block's.
TEST_F(Bytes, I5_AGhostWriteIntoAReusedExtentIsAMissOfThatBlockAlone) {
  StoreOptions options;
  options.quarantine_ns = 1'000'000;
  make(options);
  const auto& geometry = sim().geometry();
  sim().disk().add_rule(rule_of(SimFault::kGhost, IoOp::kWrite, geometry.data_offset,
                                geometry.device_bytes - kPageBytes, 1, 0, ETIMEDOUT));
  EXPECT_EQ(sim().put(key("ghost"), kMiB).status, ItemStatus::kError);
  ASSERT_EQ(sim().disk().ghost_count(), 1u);
  for (int i = 0; i < 130; ++i) sim().put(key("later " + std::to_string(i)), kMiB);
  (void)sim().disk().take_hits();
  sim().disk().land_ghosts();
  const uint64_t landed_at = sim().disk().take_hits().at(0).offset_bytes;
  uint64_t misses = 0;
  for (int i = 0; i < 130; ++i) {
    const Name name = key("later " + std::to_string(i));
    if (!sim().is_live(name)) continue;
    const bool was_hit = extent(name).first == landed_at;
    sim().allow_misses(was_hit);
    EXPECT_EQ(sim().get(name).status, was_hit ? ItemStatus::kMiss : ItemStatus::kHit) << name.key;
    misses += was_hit;
  }
  EXPECT_EQ(misses, 1u) << "the extent was reused";
}

TEST_F(Bytes, I5_ALatentErrorIsAnErrorOfItsBlockAndTheNextPutWritesAFreshCopy) {
  sim().put(key("a"), 100'000, {.durable = true});
  sim().put(key("b"), 100'000, {.durable = true});
  add_rule(SimFault::kLatent, IoOp::kRead, key("a"), 1, 50'000);
  sim().allow_misses(true);
  EXPECT_EQ(sim().get(key("a")).status, ItemStatus::kError);
  EXPECT_EQ(sim().get(key("a")).status, ItemStatus::kError);
  sim().allow_misses(false);
  EXPECT_TRUE(sim().get(key("b")).succeeded());
  EXPECT_EQ(sim().put(key("a"), 100'000, {.durable = true}).status, ItemStatus::kStored);
  EXPECT_TRUE(sim().get(key("a")).succeeded());
}

TEST_F(Bytes, I5_StaleContentOfAnEarlierLifeIsAMiss) {
  sim().put(key("a"), 100'000, {.durable = true});
  const auto [first, last] = extent(key("a"));
  std::vector<uint8_t> old(last - first);
  sim().disk().peek(first, old.data(), old.size());
  // Another version of the same key in the same place, as a drive that lost a whole rewrite would show.
  sim().erase(key("a"));
  sim().put(key("a"), 100'000, {.durable = true, .version = 2});
  sim().disk().poke(extent(key("a")).first, old.data(), old.size());
  sim().allow_misses(true);
  EXPECT_EQ(sim().get(key("a")).status, ItemStatus::kMiss);
}

// The block was deleted and put again elsewhere while the read that fails was under way: the new one stays.
TEST_F(Bytes, I5_AFailedReadRemovesTheEntryOnlyWhereItRead) {
  sim().put(key("a"), 100'000);
  sim().corrupt_payload(key("a"));
  add_rule(SimFault::kStuck, IoOp::kRead, key("a"), 1);
  sim().allow_misses(true);
  auto get = sim().start_get({key("a")});
  sim().run_idle();
  EXPECT_EQ(sim().erase(key("a")).status, ItemStatus::kDeleted);
  ASSERT_EQ(sim().put(key("a"), 100'000).status, ItemStatus::kStored);
  sim().disk().release_stuck();
  EXPECT_EQ(sim().finish(get)[0].status, ItemStatus::kMiss);
  sim().allow_misses(false);
  EXPECT_TRUE(sim().get(key("a")).succeeded());
}

TEST_F(Bytes, I5_ACorruptBlockIsToldToListeners) {
  sim().put(key("a", 1), 100'000);
  sim().take_evictions();
  auto feed = sim().store().subscribe_evictions(10);
  sim().corrupt_payload(key("a", 1));
  sim().allow_misses(true);
  sim().get(key("a", 1));
  const auto evictions = feed->drain(10);
  ASSERT_EQ(evictions.size(), 1u);
  EXPECT_EQ(evictions[0].reason, EvictionReason::kCorrupt);
  EXPECT_EQ(evictions[0].key, "a");
  EXPECT_EQ(evictions[0].space, SimStore::space_json(1));
  EXPECT_EQ(evictions[0].payload_bytes, 100'000u);
}

TEST_F(Bytes, I5_FirstReadVerifiesOncePerOpeningAndNeverTrustsAFreshPut) {
  make({.verify = Verify::kFirstRead});
  const auto rotten_hit = [&](const Name& name) {
    Buffers buffers(100'000, {});
    const GetItem item{sim().space(0), {}, name.key, buffers.segments(), 1, 0, kWholeBlock};
    return sim().store().get_one(item).status == ItemStatus::kHit && !buffers.holds(name, 1, 0, 100'000);
  };
  // A fresh put does not count as a read.
  sim().put(key("a"), 100'000, {.durable = true});
  sim().corrupt_payload(key("a"));
  EXPECT_FALSE(rotten_hit(key("a")));
  // After one verified read the next is believed: this is what the mode is for.
  sim().put(key("b"), 100'000, {.durable = true});
  EXPECT_TRUE(sim().get(key("b")).succeeded());
  sim().corrupt_payload(key("b"));
  EXPECT_TRUE(rotten_hit(key("b")));
  // Opening forgets it.
  sim().allow_misses(true);
  ASSERT_TRUE(sim().close().ok());
  ASSERT_TRUE(sim().open().ok());
  EXPECT_FALSE(rotten_hit(key("b")));
}

TEST_F(Bytes, I5_OnlyAlwaysIsAllowedOnAFabric) {
  SimSetup setup = large_regions();
  setup.device.is_fabric = true;
  setup.store.verify = Verify::kFirstRead;
  SimStore fabric(setup);
  EXPECT_EQ(fabric.open().code(), Code::kInvalid);
  fabric.setup().store.verify = Verify::kAlways;
  EXPECT_TRUE(fabric.open().ok());
}

// ---- I8 --------------------------------------------------------------------------------------------------------

TEST_F(Bytes, I8_NoHitBeforeTheLastPieceOfThePayloadIsWritten) {
  const uint64_t bytes = 3 * kMiB;
  sim().put(key("first"), bytes);  // opens a region
  const uint64_t next = extent(key("first")).first + bytes;
  sim().disk().add_rule(rule_of(SimFault::kStuck, IoOp::kWrite, next + kMiB, next + kMiB + 1));
  auto put = sim().start_put({{key("a"), bytes}});
  sim().run_idle();
  EXPECT_FALSE(put.job->done());
  EXPECT_FALSE(sim().contains(key("a")));
  EXPECT_EQ(sim().get(key("a")).status, ItemStatus::kMiss);
  sim().disk().release_stuck();
  EXPECT_EQ(sim().finish(put)[0].status, ItemStatus::kStored);
  EXPECT_TRUE(sim().get(key("a")).succeeded());
}

TEST_F(Bytes, I8_AFailedPutIsNeverVisibleNorWhatJoinedIt) {
  const uint64_t bytes = 3 * kMiB;
  sim().put(key("first"), bytes);
  const uint64_t next = extent(key("first")).first + bytes;
  sim().disk().add_rule(rule_of(SimFault::kError, IoOp::kWrite, next + 2 * kMiB, next + 2 * kMiB + 1));
  auto put = sim().start_put({{key("a"), bytes}, {key("a"), bytes}});
  auto joined = sim().start_put({{key("a"), bytes}});
  const auto results = sim().finish(put);
  for (const ItemResult& result : {results[0], results[1], sim().finish(joined)[0]}) {
    EXPECT_EQ(result.status, ItemStatus::kError);
    EXPECT_EQ(result.code, Code::kIo);
    EXPECT_EQ(result.io_errno, EIO);
  }
  EXPECT_FALSE(sim().contains(key("a")));
  sim().flush();
  sim().crash(true);
  sim().reopen_and_judge();
  EXPECT_FALSE(sim().contains(key("a")));
}

// ---- I9 --------------------------------------------------------------------------------------------------------

TEST_F(Bytes, I9_ShortTransfersAreContinuedWhereTheyStopped) {
  const uint64_t bytes = kMiB + 300'000;
  int number = 0;
  for (const uint64_t moved : {uint64_t{512}, uint64_t{4096}, uint64_t{4608}, uint64_t{100'352}, kMiB - 512}) {
    for (const Layout& layout : {Layout{1, 0}, Layout{3, 0}, Layout{2, 64}}) {
      const Name name = key(std::to_string(number++));
      const auto& geometry = sim().geometry();
      sim().disk().add_rule(rule_of(SimFault::kShort, IoOp::kWrite, geometry.data_offset,
                                    geometry.device_bytes - kPageBytes, 3, 0, moved));
      ASSERT_EQ(sim().put(name, bytes, {.layout = layout}).status, ItemStatus::kStored);
      sim().disk().clear_rules();
      add_rule(SimFault::kShort, IoOp::kRead, name, 3, moved);
      EXPECT_TRUE(sim().get(name, layout).succeeded());
      sim().disk().clear_rules();
    }
  }
  EXPECT_GT(sim().number("io_retries"), 0);
}

TEST_F(Bytes, I9_AReadThatNeverMovesIsAnErrorNotAHit) {
  sim().put(key("a"), 100'000);
  add_rule(SimFault::kShort, IoOp::kRead, key("a"), kForEver, 0);
  sim().allow_misses(true);
  EXPECT_EQ(sim().get(key("a")).status, ItemStatus::kError);
  sim().disk().clear_rules();
  sim().allow_misses(false);
  EXPECT_TRUE(sim().get(key("a")).succeeded());
}

TEST_F(Bytes, I9_EagainIsRetriedAFewTimesAndThenAnError) {
  const auto& geometry = sim().geometry();
  const auto payload_rule = [&](IoOp op, uint64_t times) {
    sim().disk().clear_rules();
    sim().disk().add_rule(
        rule_of(SimFault::kAgain, op, geometry.data_offset, geometry.device_bytes - kPageBytes, times));
  };
  payload_rule(IoOp::kWrite, 10);
  ASSERT_EQ(sim().put(key("a"), 100'000).status, ItemStatus::kStored);
  payload_rule(IoOp::kRead, 10);
  EXPECT_TRUE(sim().get(key("a")).succeeded());
  payload_rule(IoOp::kRead, kForEver);
  sim().allow_misses(true);
  const ItemResult read = sim().get(key("a"));
  EXPECT_EQ(read.status, ItemStatus::kError);
  EXPECT_EQ(read.io_errno, EAGAIN);
  payload_rule(IoOp::kWrite, kForEver);
  const ItemResult written = sim().put(key("b"), 100'000);
  EXPECT_EQ(written.status, ItemStatus::kError);
  EXPECT_FALSE(sim().contains(key("b")));
}

TEST_F(Bytes, I9_EioOnceIsReadAgainAndForEverIsAnError) {
  sim().put(key("a"), 2 * kMiB);
  add_rule(SimFault::kError, IoOp::kRead, key("a"), 1);
  EXPECT_TRUE(sim().get(key("a")).succeeded());
  add_rule(SimFault::kError, IoOp::kRead, key("a"), kForEver);
  sim().allow_misses(true);
  auto pending = sim().start_get({key("a")});
  const ItemResult result = sim().finish(pending)[0];
  EXPECT_EQ(result.status, ItemStatus::kError);
  EXPECT_EQ(result.code, Code::kIo);
  EXPECT_EQ(result.io_errno, EIO);
  EXPECT_NE(pending.job->error_text(0).find("offset"), std::string::npos) << pending.job->error_text(0);
  EXPECT_TRUE(sim().contains(key("a"))) << "it may be readable again";
}

TEST_F(Bytes, I9_MetadataWritesAreContinuedToo) {
  const auto& geometry = sim().geometry();
  const auto add = [&](SimFault fault, uint64_t times, uint64_t skip, uint64_t value) {
    sim().disk().add_rule(
        rule_of(fault, IoOp::kWrite, format::kMetadataOffset, geometry.data_offset, times, skip, value));
  };
  for (uint64_t skip = 0; skip < 6; ++skip) {
    add(SimFault::kShort, 2, skip, 1024);
    add(SimFault::kAgain, 3, skip, 0);
    sim().put(key("a" + std::to_string(skip)), 100'000, {.durable = true});
    sim().erase(key("a" + std::to_string(skip)));
    sim().put(key("b" + std::to_string(skip)), 500'000, {.durable = true});
    sim().flush();
    sim().disk().clear_rules();
    sim().crash(false);
    sim().reopen_and_judge();
  }
  EXPECT_EQ(sim().number("write_failures"), 0);
}

}  // namespace
}  // namespace kvstore::store
