// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: how blocks of many sizes share a few regions: an open region per extent size, rare sizes with the next larger
// class at an eighth of waste, a bounded number open, the least used sealed early; a full dictionary or index is no
// error; a pool filled several times over goes on without one.
// Method: an open store on a simulated disk; where each block went is asked of the store.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

Name key(const std::string& text, uint32_t space = 0, const std::string& salt = "") { return {text, salt, space}; }

class Regions : public ::testing::Test {
 protected:
  void make(uint32_t regions, uint64_t region_bytes = kMiB, uint64_t min_block_bytes = 16 * kKiB,
            const StoreOptions& options = {}) {
    SimSetup setup;
    setup.regions = regions;
    setup.region_bytes = region_bytes;
    setup.min_block_bytes = min_block_bytes;
    setup.store = options;
    sim_ = std::make_unique<SimStore>(setup);
    ASSERT_TRUE(sim().open().ok());
  }
  SimStore& sim() { return *sim_; }
  BlockInfo put(const Name& name, uint64_t bytes) {
    EXPECT_EQ(sim().put(name, bytes).status, ItemStatus::kStored) << name.text();
    return sim().describe(name);
  }

  std::unique_ptr<SimStore> sim_;
};

// ---- extents ---------------------------------------------------------------------------------------------------

TEST_F(Regions, BlocksOfOneSizeFillOneRegionSlotBySlot) {
  make(40);
  uint32_t region = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    const BlockInfo info = put(key(std::to_string(i)), 128 * kKiB);
    if (i == 0) region = info.region;
    EXPECT_EQ(info.region, region);
    EXPECT_EQ(info.slot, i);
    EXPECT_EQ(info.extent_bytes, 128 * kKiB);
    EXPECT_EQ(info.offset_bytes, sim().geometry().region_offset(RegionId{region}) + i * 128 * kKiB);
  }
  EXPECT_NE(put(key("next"), 128 * kKiB).region, region) << "full";
}

TEST_F(Regions, AnExtentIsWholePagesAndThePageHashesWithThem) {
  make(40);
  EXPECT_EQ(put(key("a"), 1).extent_bytes, 4 * kKiB);
  EXPECT_EQ(put(key("b"), 100'001).extent_bytes, 102'400u);
  sim().put(key("c"), 200'000, {.page_hashes = true});
  EXPECT_EQ(sim().describe(key("c")).extent_bytes, 200'704u + 4'096u);
}

TEST_F(Regions, EachExtentSizeHasARegionOfItsOwn) {
  make(64);
  std::map<uint64_t, uint32_t> region_of;
  for (const uint64_t bytes : {16 * kKiB, 64 * kKiB, 256 * kKiB, 32 * kKiB}) {
    region_of[bytes] = put(key("first " + std::to_string(bytes)), bytes).region;
  }
  for (const auto& [bytes, region] : region_of) {
    EXPECT_EQ(put(key("second " + std::to_string(bytes)), bytes).region, region) << bytes;
  }
  std::set<uint32_t> distinct;
  for (const auto& [bytes, region] : region_of) distinct.insert(region);
  EXPECT_EQ(distinct.size(), 4u);
}

TEST_F(Regions, ARareSizeSharesALargerExtentIfItWastesAnEighthAtMost) {
  make(64);
  const BlockInfo large = put(key("large"), 128 * kKiB);
  EXPECT_EQ(put(key("7/8"), 112 * kKiB).region, large.region);
  EXPECT_EQ(put(key("just under"), 112 * kKiB + 1).region, large.region);
  EXPECT_NE(put(key("too small"), 112 * kKiB - 4096).region, large.region);
  EXPECT_NE(put(key("larger"), 132 * kKiB).region, large.region);
  sim().judge_all();
}

TEST_F(Regions, TheClosestFittingRegionIsTaken) {
  make(64);
  const BlockInfo a = put(key("a"), 128 * kKiB), b = put(key("b"), 136 * kKiB);
  ASSERT_NE(a.region, b.region);
  EXPECT_EQ(put(key("c"), 124 * kKiB).region, a.region);
  EXPECT_EQ(put(key("d"), 132 * kKiB).region, b.region);
}

TEST_F(Regions, NoMoreAreOpenThanAllowedAndTheLeastUsedIsSealedEarly) {
  make(16);  // two at a time
  const BlockInfo a = put(key("a"), 16 * kKiB);
  const BlockInfo b = put(key("b"), 64 * kKiB);
  put(key("a2"), 16 * kKiB);
  const BlockInfo c = put(key("c"), 256 * kKiB);
  EXPECT_LE(sim().number("regions_open"), 2);
  EXPECT_EQ(put(key("a3"), 16 * kKiB).region, a.region) << "used later than b: still open";
  EXPECT_NE(put(key("b2"), 64 * kKiB).region, b.region) << "sealed to make room for c";
  EXPECT_NE(c.region, a.region);
  sim().judge_all();
}

TEST_F(Regions, ManySizesInAFewRegionsGoOnWithoutAnError) {
  make(8);  // one takes puts at a time; others may wait for their last commit before they are sealed
  for (int i = 0; i < 200; ++i) {
    const uint64_t bytes = 4'096 + static_cast<uint64_t>(i * 7919 % 60) * 16'000;
    ASSERT_TRUE(sim().put(key(std::to_string(i)), bytes).succeeded()) << i;
    ASSERT_LE(sim().number("regions_open"), 3);
  }
  sim().judge_all();
}

// ---- dictionaries ----------------------------------------------------------------------------------------------

// A hundred thousand users must not need a hundred thousand regions, nor fit into one.
TEST_F(Regions, AFullDictionarySealsTheRegionAndPutsGoOn) {
  make(30, kMiB, 4 * kKiB);  // 256 slots; a dictionary of nine pages
  std::set<uint32_t> regions;
  const std::string filler(300, 'x');
  for (int i = 0; i < 400; ++i) {
    const Name name = key("k", 0, "user " + std::to_string(i) + filler);
    ASSERT_EQ(sim().put(name, 1'000).status, ItemStatus::kStored) << i;
  }
  for (int i = 0; i < 400; ++i) {
    regions.insert(sim().describe(key("k", 0, "user " + std::to_string(i) + filler)).region);
  }
  EXPECT_GT(regions.size(), 3u) << "nine pages hold about 115 such salts";
  sim().judge_all();
  sim().crash(false);
  sim().reopen_and_judge();
  EXPECT_EQ(sim().number("blocks"), 400);
}

TEST_F(Regions, SaltsOfKnownUsersTakeNoMoreRoom) {
  make(30, kMiB, 4 * kKiB);
  const std::string filler(300, 'x');
  for (int i = 0; i < 250; ++i)
    sim().put(key(std::to_string(i), i % 3, "user " + std::to_string(i % 5) + filler), 1'000);
  sim().flush();
  EXPECT_EQ(sim().number("region_opens"), 1);
}

TEST_F(Regions, TheLongestSpaceAndSaltFit) {
  make(30);
  const std::string json(3'900, 'j'), salt(1'024, 's');
  const SpaceId space = sim().store().register_space(json).value();
  Buffers buffers(5'000, {});
  PutItem put;
  put.space = space;
  put.salt = salt;
  put.key = "k";
  put.segments = buffers.segments();
  put.segment_count = 1;
  auto job = sim().store().put({&put, 1}, {.durable = true}, nullptr).value();
  ASSERT_TRUE(sim().run_until([&] { return job->done(); }));
  EXPECT_EQ(job->result(0).status, ItemStatus::kStored);
}

// ---- full ------------------------------------------------------------------------------------------------------

TEST_F(Regions, ThreeTimesTheCapacityGoesInWithoutAnErrorAndTheNewestIsThere) {
  make(12);
  sim().allow_misses(false);
  const uint64_t capacity = sim().geometry().memory_bytes();
  int count = 0;
  for (uint64_t put_bytes = 0; put_bytes < 3 * capacity; put_bytes += 60'000, ++count) {
    ASSERT_EQ(sim().put(key(std::to_string(count)), 60'000).status, ItemStatus::kStored) << count;
  }
  EXPECT_EQ(sim().number("puts_failed") + sim().number("puts_busy"), 0);
  EXPECT_GT(sim().number("regions_reclaimed"), 20);
  EXPECT_TRUE(sim().get(key(std::to_string(count - 1))).succeeded());
  EXPECT_FALSE(sim().is_live(key("0")));
  EXPECT_GT(sim().number("live_bytes"), static_cast<double>(capacity) * 6 / 10);
  sim().judge_all();
  sim().crash(false);
  sim().reopen_and_judge();
}

TEST_F(Regions, FreeRegionsAreKeptReady) {
  make(32, kMiB, 16 * kKiB, {.free_regions_target = 3});
  for (int i = 0; i < 900; ++i) {
    sim().put(key(std::to_string(i)), 60'000);
    if (i % 50 == 0) sim().advance_ns(60'000'000);
  }
  sim().advance_ns(60'000'000);
  sim().run_idle();
  EXPECT_GE(sim().number("regions_free"), 3);
}

TEST_F(Regions, AFullIndexIsReclaimedLikeAFullDevice) {
  make(40, kMiB, 4 * kKiB, {.index_blocks_max = 1'000});
  for (int i = 0; i < 3'000; ++i) {
    ASSERT_EQ(sim().put(key(std::to_string(i)), 1'000).status, ItemStatus::kStored) << i;
  }
  EXPECT_LE(sim().number("blocks"), 1'000);
  EXPECT_GT(sim().number("regions_reclaimed"), 3);
  EXPECT_GT(sim().number("regions_free"), 20) << "the device is far from full";
  sim().judge_all();
}

TEST_F(Regions, AFullPoolOfTheSmallestBlocksLeavesNoMoreRegionsEmptyThanItKeepsReady) {
  make(64, kMiB, 16 * kKiB);
  const auto fill = [&](int first) {
    for (int i = first; i < first + 5'000; ++i) {
      ASSERT_EQ(sim().put(key(std::to_string(i)), 16 * kKiB).status, ItemStatus::kStored) << i;
    }
    EXPECT_LE(sim().number("regions_free"), 2);
    EXPECT_GE(sim().number("blocks"), 61 * 64);
  };
  fill(0);
  sim().crash(false);
  sim().reopen_and_judge();
  fill(5'000);
}

TEST_F(Regions, ARegionWithoutALiveBlockGoesFirst) {
  make(12);
  std::vector<Name> names;
  for (int i = 0; i < 8; ++i) {
    names.push_back(key(std::to_string(i)));
    put(names.back(), 700'000);
  }
  sim().erase(names[6]);
  for (int i = 0; i < 5; ++i) put(key("new " + std::to_string(i)), 700'000);
  size_t live = 0;
  for (const Name& name : names) live += sim().is_live(name) ? 1 : 0;
  EXPECT_GE(live, 5u);
}

TEST_F(Regions, OfAManyRegionPoolARegionFoundAsVictimAndReadSinceIsSpared) {
  make(256);  // victims are found several at a time
  std::vector<Name> names;
  while (sim().number("regions_reclaimed") < 1) {
    names.push_back(key(std::to_string(names.size())));
    put(names.back(), 700'000);
  }
  size_t oldest = 0;
  while (!sim().is_live(names[oldest])) ++oldest;
  EXPECT_EQ(sim().get(names[oldest]).status, ItemStatus::kHit);
  for (int i = 0; i < 8; ++i) put(key("new " + std::to_string(i)), 700'000);
  EXPECT_TRUE(sim().is_live(names[oldest]));
  EXPECT_FALSE(sim().is_live(names[oldest + 1]));
}

TEST_F(Regions, UsesDecideWhatGoesFirstOrAreIgnoredAsTheOrderOfReclaimSays) {
  for (const auto order : {ReclaimOrder::kLeastRecentlyUsed, ReclaimOrder::kFirstFilled}) {
    make(12, kMiB, 16 * kKiB, {.reclaim_order = order});
    int count = 0;
    while (sim().number("regions_reclaimed") < 1) put(key(std::to_string(count++)), 700'000);
    int oldest = 0;
    while (!sim().is_live(key(std::to_string(oldest)))) ++oldest;
    const Name used = key(std::to_string(oldest));
    EXPECT_EQ(sim().get(used).status, ItemStatus::kHit);
    EXPECT_EQ(sim().put(used, 700'000).status, ItemStatus::kPresent);
    for (int i = 0; i < 3; ++i) put(key("new " + std::to_string(i)), 700'000);
    EXPECT_EQ(sim().is_live(used), order == ReclaimOrder::kLeastRecentlyUsed);
    EXPECT_FALSE(sim().is_live(key(std::to_string(oldest + 1))));
  }
}

// ---- what the numbers say --------------------------------------------------------------------------------------

TEST_F(Regions, LiveAndOccupiedBytesAreTold) {
  make(20);
  EXPECT_EQ(sim().number("live_bytes"), 0);
  EXPECT_EQ(sim().number("occupied_bytes"), 0);
  EXPECT_EQ(sim().number("capacity_bytes"), static_cast<double>(sim().geometry().memory_bytes()));
  put(key("a"), 100'000);
  put(key("b"), 100'000);
  EXPECT_EQ(sim().number("live_bytes"), 200'000);
  EXPECT_EQ(sim().number("occupied_bytes"), kMiB);
  sim().erase(key("a"));
  EXPECT_EQ(sim().number("live_bytes"), 100'000);
  EXPECT_EQ(sim().number("blocks"), 1);
  sim().crash(false);
  sim().reopen_and_judge();
  EXPECT_EQ(sim().number("occupied_bytes"), kMiB);
}

}  // namespace
}  // namespace kvstore::store
