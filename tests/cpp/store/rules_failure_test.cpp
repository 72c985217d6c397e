// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: rule I6. A failed write seals its region; a failed flush seals every region written since the last good one;
// what was reported written but is not committed there becomes a miss, listeners are told, and the next flush() says
// how many, once; after N failures the store takes no writes but still reads.
// Method: a simulated device that fails chosen writes and flushes; every state is judged again after a power cut.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

Name key(const std::string& text, uint32_t space = 0) { return {text, "", space}; }

class Failures : public ::testing::Test {
 protected:
  void SetUp() override {
    SimSetup setup;
    setup.regions = 16;
    setup.region_bytes = kMiB;
    setup.min_block_bytes = 16 * kKiB;
    sim_ = std::make_unique<SimStore>(setup);
    ASSERT_TRUE(sim().open().ok());
    feed_ = sim().store().subscribe_evictions(1000);
  }
  SimStore& sim() { return *sim_; }

  void fail_payload_writes(uint64_t times, SimFault fault = SimFault::kError) {
    const auto& geometry = sim().geometry();
    sim().disk().add_rule(
        rule_of(fault, IoOp::kWrite, geometry.data_offset, geometry.device_bytes - kPageBytes, times));
  }
  void fail_flushes(uint64_t times) {
    sim().disk().add_rule(rule_of(SimFault::kFlushFails, IoOp::kFlush, 0, kForEver, times));
  }
  std::vector<std::string> lost_keys() {
    std::vector<std::string> keys;
    for (const Eviction& eviction : feed_->drain(1000)) {
      if (eviction.reason == EvictionReason::kLost) keys.push_back(eviction.key);
    }
    std::sort(keys.begin(), keys.end());
    return keys;
  }
  void crash_and_judge() {
    feed_.reset();
    sim().disk().clear_rules();
    sim().crash(false);
    sim().reopen_and_judge();
  }

  std::unique_ptr<SimStore> sim_;
  std::unique_ptr<EvictionFeed> feed_;
};

TEST_F(Failures, I6_AFailedWriteSealsItsRegionAndNothingElse) {
  sim().put(key("before"), 20'000);
  const uint32_t region = sim().describe(key("before")).region;
  fail_payload_writes(1);
  const ItemResult failed = sim().put(key("failed"), 20'000);
  EXPECT_EQ(failed.status, ItemStatus::kError);
  EXPECT_EQ(failed.code, Code::kIo);
  EXPECT_EQ(failed.io_errno, EIO);
  ASSERT_EQ(sim().put(key("after"), 20'000).status, ItemStatus::kStored);
  EXPECT_NE(sim().describe(key("after")).region, region) << "no more puts into a region that refused one";
  EXPECT_TRUE(sim().get(key("before")).succeeded());
  EXPECT_FALSE(sim().contains(key("failed")));
  EXPECT_TRUE(lost_keys().empty());
  sim().flush();
  EXPECT_EQ(sim().number("write_failures"), 1);
  crash_and_judge();
  EXPECT_TRUE(sim().contains(key("before")));
}

// The bytes landed, the answer was an error: the put failed all the same, and stays failed.
TEST_F(Failures, I6_AWriteThatLandedButSaidErrorIsAFailedPut) {
  fail_payload_writes(1, SimFault::kErrorAfterWrite);
  EXPECT_EQ(sim().put(key("a"), 20'000, {.durable = true}).status, ItemStatus::kError);
  EXPECT_FALSE(sim().contains(key("a")));
  EXPECT_EQ(sim().put(key("a"), 20'000, {.durable = true}).status, ItemStatus::kStored);
  crash_and_judge();
}

TEST_F(Failures, I6_AFailedFlushLosesWhatWasNotCommittedAndSaysSoOnce) {
  sim().put_all({{key("safe 1"), 20'000}, {key("safe 2", 1), 20'000}}, {.durable = true});
  // Two regions are open: of two extent sizes.
  sim().put_all({{key("lost 1"), 20'000}, {key("lost 2"), 20'000}, {key("lost 3", 1), 100'000}});
  EXPECT_TRUE(sim().get(key("lost 1")).succeeded());
  fail_flushes(1);
  const Status status = sim().try_flush();
  EXPECT_EQ(status.code(), Code::kDurabilityLost);
  EXPECT_NE(status.message().find("3 blocks"), std::string::npos) << status.message();
  EXPECT_EQ(lost_keys(), (std::vector<std::string>{"lost 1", "lost 2", "lost 3"}));
  for (const Name& name : {key("lost 1"), key("lost 2"), key("lost 3", 1)})
    EXPECT_EQ(sim().get(name).status, ItemStatus::kMiss);
  for (const Name& name : {key("safe 1"), key("safe 2", 1)}) EXPECT_TRUE(sim().get(name).succeeded());
  EXPECT_TRUE(sim().try_flush().ok()) << "once";
  EXPECT_EQ(sim().number("blocks_lost"), 3);
  // The caller puts them again, into other regions.
  sim().put_all({{key("lost 1"), 20'000}, {key("lost 3", 1), 100'000}}, {.durable = true});
  crash_and_judge();
  EXPECT_TRUE(sim().contains(key("safe 1")));
  EXPECT_TRUE(sim().contains(key("lost 1")));
}

// A flush fails while the payload of another put is on its way: that one must not be acknowledged out of the region.
TEST_F(Failures, I6_AFailedFlushAlsoLosesWhatWasBeingWrittenThen) {
  sim().put(key("first"), 20'000);
  const BlockInfo first = sim().describe(key("first"));
  const uint64_t next = first.offset_bytes + first.extent_bytes;
  sim().put(key("pending"), 20'000);
  sim().disk().add_rule(
      rule_of(SimFault::kStuck, IoOp::kWrite, next + first.extent_bytes, next + first.extent_bytes + 1));
  auto in_flight = sim().start_put({{key("in flight"), 20'000}});
  sim().run_idle();
  fail_flushes(1);
  EXPECT_EQ(sim().try_flush().code(), Code::kDurabilityLost);
  sim().disk().release_stuck();
  EXPECT_EQ(sim().finish(in_flight)[0].status, ItemStatus::kError);
  EXPECT_FALSE(sim().contains(key("in flight")));
  EXPECT_EQ(sim().put(key("in flight"), 20'000, {.durable = true}).status, ItemStatus::kStored);
  crash_and_judge();
}

// What else was written since the last good flush may be what the device dropped.
TEST_F(Failures, I6_AFailedFlushSealsAlsoTheRegionsWithNothingToCommit) {
  sim().put(key("small"), 20'000, {.durable = true});
  sim().put(key("large"), 200'000, {.durable = true});
  const uint32_t large = sim().describe(key("large")).region;
  ASSERT_NE(sim().describe(key("small")).region, large);
  sim().put(key("lost"), 20'000);
  fail_flushes(1);
  EXPECT_EQ(sim().try_flush().code(), Code::kDurabilityLost);
  sim().put(key("next"), 200'000);
  EXPECT_NE(sim().describe(key("next")).region, large);
  crash_and_judge();
}

TEST_F(Failures, I6_AFailedCommitSealsItsRegion) {
  sim().put(key("safe"), 20'000, {.durable = true});
  const RegionId region{sim().describe(key("safe")).region};
  sim().put(key("lost"), 20'000);
  const auto& geometry = sim().geometry();
  sim().disk().add_rule(rule_of(SimFault::kError, IoOp::kWrite, geometry.tail_offset(region, 0),
                                geometry.tail_offset(region, 1) + kPageBytes));
  EXPECT_EQ(sim().try_flush().code(), Code::kDurabilityLost);
  EXPECT_EQ(sim().put(key("next"), 20'000).status, ItemStatus::kStored);
  EXPECT_NE(sim().describe(key("next")).region, region.value);
  crash_and_judge();
}

// Nobody waits for the put any more, but the device has shown that it cannot write there.
TEST_F(Failures, I6_AWriteThatFailsAfterItsPutWasCanceledSealsItsRegion) {
  sim().put(key("first"), 20'000);
  const BlockInfo first = sim().describe(key("first"));
  const uint64_t next = first.offset_bytes + first.extent_bytes;
  sim().disk().add_rule(rule_of(SimFault::kStuck, IoOp::kWrite, next, next + 1, 1, 0, EIO));
  auto put = sim().start_put({{key("canceled"), 20'000}});
  sim().run_idle();
  put.job->cancel();
  sim().run_idle();
  sim().disk().release_stuck();
  EXPECT_EQ(sim().finish(put)[0].code, Code::kCanceled);
  sim().put(key("next"), 20'000);
  EXPECT_NE(sim().describe(key("next")).region, first.region);
  EXPECT_EQ(sim().number("write_failures"), 1);
}

TEST_F(Failures, I6_ADurablePutWhoseFlushFailsIsAnErrorForAllWhoWait) {
  fail_flushes(1);
  auto put = sim().start_put({{key("a"), 20'000}, {key("a"), 20'000}}, {.durable = true});
  auto joined = sim().start_put({{key("a"), 20'000}}, {.durable = true});
  const auto results = sim().finish(put);
  for (const ItemResult& result : {results[0], results[1], sim().finish(joined)[0]}) {
    EXPECT_EQ(result.status, ItemStatus::kError);
    EXPECT_EQ(result.code, Code::kIo);
  }
  EXPECT_FALSE(sim().contains(key("a")));
  crash_and_judge();
}

// Descriptors, dictionary and tail, each at its first and second write.
TEST_F(Failures, I6_AFailedMetadataWriteLosesTheRegionsPendingBlocksOnly) {
  int number = 0;
  for (const SimFault fault : {SimFault::kError, SimFault::kErrorAfterWrite}) {
    for (uint64_t skip = 0; skip < 3; ++skip) {
      const std::string n = std::to_string(number++);
      sim().put(key("safe " + n), 20'000, {.durable = true});
      const RegionId region{sim().describe(key("safe " + n)).region};
      sim().put(key("other size " + n), 200'000);
      sim().put_all({{key("lost " + n, 2), 20'000}, {key("lost too " + n), 20'000}});
      const auto& geometry = sim().geometry();
      const uint64_t entry = geometry.entry_offset(region);
      const double lost_before = sim().number("blocks_lost");
      // The dictionary comes first (a space this region does not know), then the tail.
      sim().disk().add_rule(rule_of(fault, IoOp::kWrite, entry, entry + geometry.entry_bytes, 1, skip));
      const Status status = sim().try_flush();
      if (skip < 2 && sim().describe(key("safe " + n)).region == region.value &&
          sim().number("blocks_lost") > lost_before) {
        EXPECT_EQ(status.code(), Code::kDurabilityLost) << n;
        EXPECT_NE(status.message().find("2 blocks"), std::string::npos) << status.message();
        EXPECT_FALSE(sim().contains(key("lost " + n, 2)));
        EXPECT_EQ(lost_keys().size(), 2u);
      }
      EXPECT_TRUE(sim().contains(key("other size " + n))) << n;
      EXPECT_TRUE(sim().get(key("safe " + n)).succeeded());
      sim().disk().clear_rules();
      sim().put_all({{key("lost " + n, 2), 20'000}}, {.durable = true});
      EXPECT_TRUE(sim().try_flush().ok());
    }
  }
  EXPECT_GE(sim().number("blocks_lost"), 4);
  crash_and_judge();
}

// What was lost was told so; deleting the copy put since must not bring the lost one back after a crash.
TEST_F(Failures, I6_ALostBlockDoesNotComeBackWhenItsSuccessorWasDeleted) {
  sim().put(key("safe"), 20'000, {.durable = true});
  const RegionId region{sim().describe(key("safe")).region};
  sim().put(key("a"), 20'000);
  const auto& geometry = sim().geometry();
  // The tail lands and says error: the descriptor of "a" is on the device.
  sim().disk().add_rule(rule_of(SimFault::kErrorAfterWrite, IoOp::kWrite, geometry.tail_offset(region, 0),
                                geometry.tail_offset(region, 1) + kPageBytes));
  ASSERT_EQ(sim().try_flush().code(), Code::kDurabilityLost);
  sim().put(key("a"), 20'000, {.durable = true, .version = 2});
  ASSERT_EQ(sim().erase(key("a")).status, ItemStatus::kDeleted);
  sim().flush();
  crash_and_judge();
  EXPECT_FALSE(sim().contains(key("a")));
}

TEST_F(Failures, I6_AFailedOpenOfARegionTakesAnother) {
  const auto& geometry = sim().geometry();
  const uint64_t header = geometry.header_offset(RegionId{0}, 0);
  sim().disk().add_rule(rule_of(SimFault::kError, IoOp::kWrite, header, header + 2 * kPageBytes, 1));
  ASSERT_EQ(sim().put(key("a"), 20'000, {.durable = true}).status, ItemStatus::kStored);
  EXPECT_NE(sim().describe(key("a")).region, 0u);
  crash_and_judge();
}

// Acknowledged and lost: noticed by reading back, or the generation could be given to another life (I2).
TEST_F(Failures, I2_AHeaderWriteThatIsLostTakesAnotherRegion) {
  for (uint64_t skip = 0; skip < 2; ++skip) {
    const auto& geometry = sim().geometry();
    const uint64_t end = format::kMetadataOffset + geometry.region_count * geometry.entry_bytes;
    uint64_t lost_at = 0;
    sim().disk().add_rule(rule_of(SimFault::kLost, IoOp::kWrite, format::kMetadataOffset, end, 1, skip));
    const uint64_t bytes = 20'000 + skip * 50'000;  // of another extent size: in a region of its own
    const Name name = key("a" + std::to_string(skip));
    ASSERT_EQ(sim().put(name, bytes, {.durable = true}).status, ItemStatus::kStored);
    for (const device::SimHit& hit : sim().disk().take_hits()) lost_at = hit.offset_bytes;
    const RegionId region{sim().describe(name).region};
    EXPECT_FALSE(lost_at >= geometry.entry_offset(region) && lost_at < geometry.entry_offset(region) + 2 * kPageBytes);
    EXPECT_NE(lost_at, 0u);
  }
  EXPECT_EQ(sim().number("write_errors"), 2);
  crash_and_judge();
}

TEST_F(Failures, I6_AFailedSealLosesNothing) {
  for (uint64_t skip = 0; skip < 2; ++skip) {
    const std::string n = std::to_string(skip);
    sim().put(key("a" + n), 20'000, {.durable = true});
    const RegionId region{sim().describe(key("a" + n)).region};
    const uint64_t entry = sim().geometry().entry_offset(region);
    fail_payload_writes(1);  // seals it
    sim().disk().add_rule(
        rule_of(SimFault::kError, IoOp::kWrite, entry, entry + sim().geometry().entry_bytes, 1, skip));
    sim().put(key("b" + n), 20'000);
    sim().run_idle();
    EXPECT_TRUE(sim().get(key("a" + n)).succeeded());
    sim().disk().clear_rules();
  }
  crash_and_judge();
  EXPECT_TRUE(sim().contains(key("a0")));
  EXPECT_TRUE(sim().contains(key("a1")));
}

TEST_F(Failures, I6_AFailedBitmapWriteIsNotAFlushedDelete) {
  sim().put(key("a"), 20'000, {.durable = true});
  const RegionId region{sim().describe(key("a")).region};
  sim().erase(key("a"));
  const auto& geometry = sim().geometry();
  sim().disk().add_rule(
      rule_of(SimFault::kError, IoOp::kWrite, geometry.bitmap_offset(region, 0), geometry.tail_offset(region, 0)));
  EXPECT_EQ(sim().try_flush().code(), Code::kIo);
  EXPECT_TRUE(sim().try_flush().ok()) << "tried again";
  crash_and_judge();
  EXPECT_FALSE(sim().contains(key("a")));
}

TEST_F(Failures, I6_AfterNFailuresReadOnlyAndReadsGoOn) {
  SimSetup setup = sim().setup();
  feed_.reset();
  setup.store.failures_max = 3;
  sim_ = std::make_unique<SimStore>(setup);
  ASSERT_TRUE(sim().open().ok());
  sim().put(key("kept"), 20'000, {.durable = true});
  fail_payload_writes(kForEver);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(sim().put(key(std::to_string(i)), 20'000).code, Code::kIo);
  sim().disk().clear_rules();
  const ItemResult refused = sim().put(key("refused"), 20'000);
  EXPECT_EQ(refused.status, ItemStatus::kError);
  EXPECT_TRUE(sim().get(key("kept")).succeeded());
  const Name kept_name = key("kept");  // a KeyRef is a view
  const KeyRef kept = sim().ref(kept_name);
  EXPECT_EQ(sim().store().erase({&kept, 1}).value()[0].status, ItemStatus::kError);
  bool told = false;
  for (const auto& [name, text] : sim().store().texts())
    told = told || (name == "write_refusal" && text.find("3 failed") != std::string::npos);
  EXPECT_TRUE(told);
  crash_and_judge();
  EXPECT_TRUE(sim().contains(key("kept")));
  EXPECT_EQ(sim().put(key("again"), 20'000).status, ItemStatus::kStored);
}

// Its payload is on the device, but the descriptor may not be written any more.
TEST_F(Failures, I6_APutThatEndsAfterTheStoreBecameReadOnlyFails) {
  SimSetup setup = sim().setup();
  feed_.reset();
  setup.store.failures_max = 1;
  sim_ = std::make_unique<SimStore>(setup);
  ASSERT_TRUE(sim().open().ok());
  sim().put(key("first"), 20'000, {.durable = true});
  const BlockInfo first = sim().describe(key("first"));
  const uint64_t next = first.offset_bytes + first.extent_bytes;
  sim().disk().add_rule(rule_of(SimFault::kStuck, IoOp::kWrite, next, next + 1));
  auto late = sim().start_put({{key("late"), 20'000}});
  sim().run_idle();
  fail_payload_writes(1);
  EXPECT_EQ(sim().put(key("failed"), 20'000).code, Code::kIo);
  sim().disk().release_stuck();
  EXPECT_EQ(sim().finish(late)[0].status, ItemStatus::kError);
  EXPECT_FALSE(sim().contains(key("late")));
  crash_and_judge();
}

TEST_F(Failures, I6_CloseSaysWhatWasLost) {
  sim().put(key("a"), 20'000);
  fail_flushes(1);
  feed_.reset();
  const Status status = sim().close();
  EXPECT_EQ(status.code(), Code::kDurabilityLost) << status.to_string();
  sim().disk().clear_rules();
  sim().reopen_and_judge();
}

}  // namespace
}  // namespace kvstore::store
