// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: rules I1, I2, I4 and I10 (the order of device operations) and I7's order of reuse hold in every run.
// Method: an observer of each completed operation (order_checker.h) over scripts that fill, delete, reclaim, crash and
// reopen; and copies of pairs destroyed on the medium, to see that the other copy was enough.

#include "store/order_checker.h"

#include <gtest/gtest.h>

#include "format/region_header.h"
#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

Name key(const std::string& text, uint32_t space = 0, const std::string& salt = "") { return {text, salt, space}; }

SimSetup small_regions() {
  SimSetup setup;
  setup.regions = 16;
  setup.region_bytes = 256 * kKiB;
  setup.min_block_bytes = 4 * kKiB;
  return setup;
}

// Fills the pool about three times, with everything that writes metadata in between.
void live(SimStore& sim, const std::string& life) {
  for (int i = 0; i < 60; ++i) {
    const std::string n = life + std::to_string(i);
    sim.put_all(
        {{key("a" + n, i % 3), 3'000 + i * 700u}, {key("b" + n, 0, "salt " + n), 64 * kKiB + 1}, {key("c" + n), 4'096}},
        {.durable = i % 3 == 0, .page_hashes = i % 2 == 0});
    if (i % 7 == 3) {
      sim.erase(key("c" + n));
      sim.erase(key("a" + life + std::to_string(i - 2), (i - 2) % 3));
    }
    if (i % 9 == 5) sim.flush();
    if (i % 4 == 1) sim.advance_ns(60'000'000);
    sim.get_all({key("a" + n, i % 3), key("b" + n, 0, "salt " + n)});
  }
}

void watch_two_lives(const SimSetup& setup) {
  SimStore sim(setup);
  OrderChecker checker(sim.disk(), sim.formatted(), setup.device.volatile_cache);
  ASSERT_TRUE(sim.open().ok());
  live(sim, "first ");
  sim.crash(false);
  sim.reopen_and_judge();
  live(sim, "second ");
  EXPECT_TRUE(sim.close().ok());
  EXPECT_GT(checker.descriptors_seen(), 300u);
  EXPECT_GT(checker.payload_writes_seen(), 300u);
  EXPECT_GT(checker.pair_writes_seen(), 100u);
}

TEST(OrderRules, I1_I2_I4_I10_HoldWithAVolatileCache) { watch_two_lives(small_regions()); }

TEST(OrderRules, I1_I2_I4_I10_HoldWithSlowReorderedCompletions) {
  SimSetup setup = small_regions();
  setup.seed = 5;
  setup.device.latency_ns = 200'000;
  watch_two_lives(setup);
}

TEST(OrderRules, I2_I4_I10_HoldWithWriteThrough) {
  SimSetup setup = small_regions();
  setup.device.volatile_cache = false;
  watch_two_lives(setup);
}

// Regions of 64 slots: two full descriptor blocks, and a tail of two.
TEST(OrderRules, I1_I4_HoldAcrossFullDescriptorBlocks) {
  SimStore sim(small_regions());
  OrderChecker checker(sim.disk(), sim.formatted(), true);
  ASSERT_TRUE(sim.open().ok());
  for (int i = 0; i < 20; ++i) {
    std::vector<std::pair<Name, uint64_t>> blocks;
    for (int j = 0; j < 10; ++j) blocks.emplace_back(key(std::to_string(i) + "-" + std::to_string(j)), 4'000);
    sim.put_all(blocks, {.durable = i % 2 == 0});
  }
  sim.crash(false);
  sim.reopen_and_judge();
  EXPECT_TRUE(sim.close().ok());
  EXPECT_GT(checker.descriptors_seen(), 200u);
}

// ---- I1 --------------------------------------------------------------------------------------------------------

TEST(OrderRules, I1_AWriteThroughDeviceIsNotFlushedForAPut) {
  SimSetup setup = small_regions();
  setup.device.volatile_cache = false;
  SimStore sim(setup);
  ASSERT_TRUE(sim.open().ok());
  sim.put(key("a"), 10'000, {.durable = true});
  EXPECT_EQ(sim.number("flushes"), 0);
}

TEST(OrderRules, I1_FlushesAreSharedByABatch) {
  SimStore sim(small_regions());
  ASSERT_TRUE(sim.open().ok());
  std::vector<std::pair<Name, uint64_t>> blocks;
  for (int i = 0; i < 20; ++i) blocks.emplace_back(key(std::to_string(i)), 4'000);
  sim.put_all(blocks, {.durable = true});
  EXPECT_LE(sim.number("flushes"), 10);  // those that complete while one is in flight join the next
}

// ---- I2 --------------------------------------------------------------------------------------------------------

// The second header copy is stuck: until it is durable no payload may go into that region.
TEST(OrderRules, I2_NoPayloadWhileAHeaderCopyIsOutstanding) {
  for (uint32_t copy = 0; copy < 2; ++copy) {
    SimStore sim(small_regions());
    ASSERT_TRUE(sim.open().ok());
    const auto& geometry = sim.geometry();
    for (uint32_t region = 0; region < geometry.region_count; ++region) {
      const uint64_t header = geometry.header_offset(RegionId{region}, copy);
      sim.disk().add_rule(rule_of(SimFault::kStuck, IoOp::kWrite, header, header + 1, kForEver));
    }
    uint64_t payload_writes = 0;
    sim.disk().set_observer([&](const device::IoRequest& request) {
      payload_writes += request.op == IoOp::kWrite && request.offset_bytes >= geometry.data_offset &&
                        request.offset_bytes + kPageBytes < geometry.device_bytes;
    });
    auto pending = sim.start_put({{key("a"), 10'000}});
    for (int i = 0; i < 50; ++i) sim.store().step();
    EXPECT_EQ(payload_writes, 0u) << "copy " << copy;
    sim.disk().clear_rules();
    sim.disk().release_stuck();
    sim.run(pending);
    sim.disk().set_observer(nullptr);
  }
}

// A header write that failed may have landed: its generation is spent.
TEST(OrderRules, I2_AGenerationOfAFailedOpenIsNeverUsedAgain) {
  SimStore sim(small_regions());
  ASSERT_TRUE(sim.open().ok());
  const auto& geometry = sim.geometry();
  const uint64_t second_copy = geometry.header_offset(RegionId{0}, 0);
  // Which copy is written second is the store's choice: fail one, let the other land.
  sim.disk().add_rule(rule_of(SimFault::kError, IoOp::kWrite, second_copy, second_copy + 1));
  sim.put(key("a"), 10'000, {.durable = true});
  EXPECT_NE(sim.describe(key("a")).region, 0u);
  sim.advance_ns(120'000'000'000);  // past the quarantine
  // Fill until region 0 is in use.
  for (int i = 0; i < 200; ++i) {
    const Name name = key("fill " + std::to_string(i));
    ASSERT_TRUE(sim.put(name, 100'000).succeeded());
    const BlockInfo info = sim.describe(name);
    if (info.region != 0 || info.payload_bytes == 0) continue;
    EXPECT_GE(info.generation, 2u);
    return;
  }
  FAIL() << "region 0 is never used again";
}

// ---- I4 --------------------------------------------------------------------------------------------------------

uint64_t newer_copy(SimStore& sim, uint64_t first, uint64_t second) {
  format::BlockHeader headers[2];
  sim.disk().peek(first, &headers[0], sizeof headers[0]);
  sim.disk().peek(second, &headers[1], sizeof headers[1]);
  return headers[0].sequence > headers[1].sequence ? first : second;
}

void destroy(SimStore& sim, uint64_t offset) {
  const std::vector<uint8_t> noise(kPageBytes, 0xee);
  sim.disk().poke(offset, noise.data(), noise.size());
}

// A torn write of the newest tail copy must cost the last commit only.
TEST(OrderRules, I4_ATornTailCopyCostsTheLastCommitOnly) {
  SimStore sim(small_regions());
  ASSERT_TRUE(sim.open().ok());
  for (int i = 0; i < 5; ++i) sim.put(key(std::to_string(i)), 4'000, {.durable = true});
  const RegionId region{sim.describe(key("0")).region};
  sim.crash(true);
  destroy(sim, newer_copy(sim, sim.geometry().tail_offset(region, 0), sim.geometry().tail_offset(region, 1)));
  sim.expect_gone(key("4"));
  sim.reopen_and_judge();
  EXPECT_TRUE(sim.contains(key("3")));
}

TEST(OrderRules, I4_ATornHeaderCopyLeavesTheRegionReadable) {
  for (const bool clean : {true, false}) {
    SimStore sim(small_regions());
    ASSERT_TRUE(sim.open().ok());
    for (int i = 0; i < 5; ++i) sim.put(key(std::to_string(i)), 4'000, {.durable = true});
    const RegionId region{sim.describe(key("0")).region};
    if (clean) {
      ASSERT_TRUE(sim.close().ok());
    } else {
      sim.crash(true);
    }
    destroy(sim, newer_copy(sim, sim.geometry().header_offset(region, 0), sim.geometry().header_offset(region, 1)));
    sim.reopen_and_judge();
    EXPECT_TRUE(sim.contains(key("4")));
  }
}

TEST(OrderRules, I4_ATornBitmapCopyCostsTheLastDeletesOnly) {
  SimStore sim(small_regions());
  ASSERT_TRUE(sim.open().ok());
  for (int i = 0; i < 3; ++i) sim.put(key(std::to_string(i)), 4'000, {.durable = true});
  const RegionId region{sim.describe(key("0")).region};
  sim.erase(key("0"));
  sim.flush();
  sim.allow_misses(true);  // the next delete is flushed and then taken back by the rot
  sim.erase(key("1"));
  ASSERT_TRUE(sim.store().flush(1'000'000'000).ok());
  sim.crash(true);
  destroy(sim, newer_copy(sim, sim.geometry().bitmap_offset(region, 0), sim.geometry().bitmap_offset(region, 1)));
  sim.reopen_and_judge();
  EXPECT_FALSE(sim.contains(key("0")));
  EXPECT_TRUE(sim.contains(key("2")));
}

TEST(OrderRules, I4_BitmapsAreWrittenInTurnsAlsoAfterAnOpening) {
  SimStore sim(small_regions());
  OrderChecker checker(sim.disk(), sim.formatted(), true);
  ASSERT_TRUE(sim.open().ok());
  for (int i = 0; i < 7; ++i) sim.put(key(std::to_string(i)), 4'000, {.durable = true});
  for (int i = 0; i < 6; ++i) {
    // An odd number of writes, so that the newest copy is the first of the pair.
    if (i == 3) {
      sim.crash(false);
      sim.reopen_and_judge();
    }
    sim.erase(key(std::to_string(i)));
    sim.flush();
  }
  sim.crash(false);
  sim.reopen_and_judge();
  EXPECT_EQ(sim.number("blocks"), 1);
}

// A write that failed may have left half a copy: the retry goes over that one, never over the one that is whole.
TEST(OrderRules, I4_AfterAFailedBitmapWriteTheGoodCopyIsSpared) {
  SimStore sim(small_regions());
  ASSERT_TRUE(sim.open().ok());
  for (int i = 0; i < 3; ++i) sim.put(key(std::to_string(i)), 4'000, {.durable = true});
  const RegionId region{sim.describe(key("0")).region};
  const auto& geometry = sim.geometry();
  sim.erase(key("0"));
  sim.flush();
  const uint64_t bitmaps = geometry.bitmap_offset(region, 0);
  sim.disk().add_rule(rule_of(SimFault::kError, IoOp::kWrite, bitmaps, geometry.tail_offset(region, 0)));
  sim.allow_misses(true);  // of the delete that is flushed next, and then taken back by the crash
  sim.erase(key("1"));
  EXPECT_EQ(sim.store().flush(1'000'000'000).code(), Code::kIo);
  uint64_t retried_at = 0;
  sim.disk().set_observer([&](const device::IoRequest& request) {
    if (request.op == IoOp::kWrite) retried_at = request.offset_bytes;
  });
  ASSERT_TRUE(sim.store().flush(1'000'000'000).ok());
  sim.disk().set_observer(nullptr);
  ASSERT_GE(retried_at, bitmaps);
  sim.crash(true);
  destroy(sim, retried_at);  // the power failed during the retry
  sim.reopen_and_judge();
  EXPECT_FALSE(sim.contains(key("0"))) << "flushed before anything failed";
  EXPECT_TRUE(sim.contains(key("2")));
}

// ---- I7: order of reuse ----------------------------------------------------------------------------------------

TEST(OrderRules, I7_ARegionJustEmptiedIsTheLastToBeReused) {
  SimSetup setup = small_regions();
  setup.store.free_regions_target = 8;
  SimStore sim(setup);
  ASSERT_TRUE(sim.open().ok());
  std::vector<uint32_t> order;
  for (int i = 0; i < 200; ++i) {
    const Name name = key(std::to_string(i));
    sim.put(name, 120'000);
    const BlockInfo info = sim.describe(name);
    if (order.empty() || order.back() != info.region) order.push_back(info.region);
  }
  const uint32_t count = sim.geometry().region_count;
  for (size_t i = 0; i + count < order.size(); ++i) {
    // Every region is used once before one is used again.
    const std::set<uint32_t> round(order.begin() + static_cast<std::ptrdiff_t>(i),
                                   order.begin() + static_cast<std::ptrdiff_t>(i + count));
    EXPECT_EQ(round.size(), count) << "from opening " << i;
  }
  EXPECT_GT(order.size(), 3 * count);
}

}  // namespace
}  // namespace kvstore::store
