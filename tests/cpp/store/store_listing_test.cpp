// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what the store says of itself is what is in it: every live block once, with its whole name, where it is and
// whether it is right; blocks that are not are dropped, and only those.
// Method: listings against the oracle, before and after crashes; payloads rotted on the medium.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "format/descriptor.h"
#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

Name key(const std::string& text, uint32_t space = 0, const std::string& salt = "") { return {text, salt, space}; }

class Listing : public ::testing::Test {
 protected:
  void SetUp() override {
    SimSetup setup;
    setup.regions = 12;
    setup.region_bytes = 4 * kMiB;
    setup.min_block_bytes = 64 * kKiB;
    setup.devices = 2;
    sim_ = std::make_unique<SimStore>(setup);
    ASSERT_TRUE(sim().open().ok());
  }
  SimStore& sim() { return *sim_; }
  std::vector<std::pair<std::string, BlockInfo>> list() {
    std::vector<std::pair<std::string, BlockInfo>> all;
    EXPECT_TRUE(sim()
                    .store()
                    .list_blocks([&](const std::string& space, const BlockInfo& info) {
                      all.emplace_back(space, info);
                      return true;
                    })
                    .ok());
    return all;
  }
  std::unique_ptr<SimStore> sim_;
};

TEST_F(Listing, EveryLiveBlockIsListedOnceBeforeAndAfterACrash) {
  for (int i = 0; i < 70; ++i) sim().put(key(std::to_string(i), i % 3, i % 2 == 0 ? "s" : ""), 60'000 + i);
  sim().put(key(std::string(300, 'k')), 5'000);
  for (int i = 0; i < 70; i += 7) sim().erase(key(std::to_string(i), i % 3, i % 2 == 0 ? "s" : ""));
  EXPECT_EQ(list().size(), 61u) << "also what was not committed when it was asked";
  sim().judge_all();
  sim().crash(false);
  sim().reopen_and_judge();
  const auto after = list();
  EXPECT_EQ(after.size(), 61u);
  size_t digests = 0;
  for (const auto& [space, info] : after) {
    digests += info.key_is_digest ? 1 : 0;
    EXPECT_EQ(info.key_is_digest, info.key.size() == format::kStoredKeyBytes);
  }
  EXPECT_EQ(digests, 1u);
}

TEST_F(Listing, AListingInStepsGivesTheSameAndMayStop) {
  for (int i = 0; i < 40; ++i) sim().put(key(std::to_string(i)), 150'000);
  std::set<std::string> keys;
  uint64_t cursor = 0;
  int steps = 0;
  while (cursor != UINT64_MAX) {
    ++steps;
    ASSERT_TRUE(sim()
                    .store()
                    .list_some_blocks(
                        cursor, [&](const std::string&, const BlockInfo& info) { return keys.insert(info.key).second; })
                    .ok());
    sim().put(key("between " + std::to_string(steps)), 5'000);  // the caller may do other things meanwhile
  }
  EXPECT_GT(steps, 1);
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(keys.contains(std::to_string(i)));
  int visited = 0;
  EXPECT_TRUE(sim().store().list_blocks([&](const std::string&, const BlockInfo&) { return ++visited < 3; }).ok());
  EXPECT_EQ(visited, 3);
}

TEST_F(Listing, DescribeTellsMissesAndPlaces) {
  sim().put(key("a", 1, "s"), 100'000);
  const Name a = key("a", 1, "s"), b = key("b");
  const KeyRef refs[] = {sim().ref(a), sim().ref(b), {sim().space(0), {}, ""}};
  const auto infos = sim().store().describe(refs).value();
  ASSERT_EQ(infos.size(), 3u);
  EXPECT_EQ(infos[0].payload_bytes, 100'000u);
  EXPECT_EQ(infos[0].generation, 1u);
  std::vector<uint8_t> bytes(100'000);
  sim().disk(infos[0].device).peek(infos[0].offset_bytes, bytes.data(), bytes.size());
  EXPECT_TRUE(is_payload(key("a", 1, "s"), 1, 0, bytes.data(), bytes.size()));
  EXPECT_EQ(infos[1].payload_bytes, 0u);
  EXPECT_EQ(infos[2].payload_bytes, 0u);
}

TEST_F(Listing, VerifyReadsTheWholeBlock) {
  const uint64_t bytes = 2 * kMiB + 77;
  sim().put(key("good"), bytes);
  sim().put(key("bad"), bytes, {.page_hashes = true});
  sim().corrupt_payload(key("bad"), bytes - 1);
  const std::string space = SimStore::space_json(0);
  EXPECT_TRUE(sim().store().verify_block(sim().describe(key("good")), space).ok());
  const Status bad = sim().store().verify_block(sim().describe(key("bad")), space);
  EXPECT_EQ(bad.code(), Code::kCorrupt);
  EXPECT_NE(bad.message().find("offset"), std::string::npos) << bad.message();
  EXPECT_TRUE(sim().contains(key("bad"))) << "verify changes nothing";
  EXPECT_EQ(sim().store().verify_block(sim().describe(key("good")), SimStore::space_json(1)).code(), Code::kCorrupt)
      << "the bytes are bound to their space";
}

TEST_F(Listing, VerifyOfAReadErrorIsAnErrorAndOfAMovedBlockStale) {
  sim().put(key("a"), 200'000);
  const BlockInfo info = sim().describe(key("a"));
  sim().disk(info.device).add_rule(rule_of(SimFault::kError, IoOp::kRead, info.offset_bytes, info.offset_bytes + 1, 1));
  EXPECT_EQ(sim().store().verify_block(info, SimStore::space_json(0)).code(), Code::kIo);
  for (int i = 0; i < 800 && sim().is_live(key("a")); ++i) sim().put(key("fill " + std::to_string(i)), 2 * kMiB);
  EXPECT_EQ(sim().store().verify_block(info, SimStore::space_json(0)).code(), Code::kStale);
}

TEST_F(Listing, VerifyOfABlockThatWentMeanwhileIsStaleThoughItsBytesAreStillThere) {
  sim().put(key("a"), 200'000);
  sim().put(key("b"), 200'000);
  const BlockInfo deleted = sim().describe(key("a"));
  const BlockInfo dropped = sim().describe(key("b"));
  sim().erase(key("a"));
  EXPECT_TRUE(sim().store().drop_block(dropped, SimStore::space_json(0)).ok());
  for (const BlockInfo& info : {deleted, dropped}) {
    EXPECT_EQ(sim().store().verify_block(info, SimStore::space_json(0)).code(), Code::kStale);
  }
  sim().put(key("a"), 200'000);
  EXPECT_EQ(sim().store().verify_block(deleted, SimStore::space_json(0)).code(), Code::kStale);
  EXPECT_TRUE(sim().store().verify_block(sim().describe(key("a")), SimStore::space_json(0)).ok());
}

TEST_F(Listing, ABlockThatNoListingGaveIsRefused) {
  sim().put(key("a"), 200'000);
  const BlockInfo good = sim().describe(key("a"));
  const auto refused = [&](auto change) {
    BlockInfo info = good;
    change(info);
    EXPECT_EQ(sim().store().verify_block(info, SimStore::space_json(0)).code(), Code::kInvalid);
    EXPECT_EQ(sim().store().drop_block(info, SimStore::space_json(0)).code(), Code::kInvalid);
  };
  refused([](BlockInfo& info) { info.region = 4'000'000; });
  refused([](BlockInfo& info) { info.device = 2; });
  refused([](BlockInfo& info) { info.offset_bytes = 0; });
  refused([](BlockInfo& info) { info.offset_bytes += 8; });
  refused([](BlockInfo& info) { info.offset_bytes = UINT64_MAX - 4'095; });
  refused([](BlockInfo& info) { info.payload_bytes = UINT64_MAX - 100; });
  refused([](BlockInfo& info) { info.payload_bytes = 0; });
  EXPECT_TRUE(sim().store().verify_block(good, SimStore::space_json(0)).ok());
}

TEST_F(Listing, DropMakesJustThatBlockAMissForGood) {
  sim().put(key("bad"), 200'000, {.durable = true});
  sim().put(key("fellow"), 200'000, {.durable = true});
  const BlockInfo info = sim().describe(key("bad"));
  EXPECT_TRUE(sim().store().drop_block(info, SimStore::space_json(0)).ok());
  sim().expect_gone(key("bad"));
  EXPECT_EQ(sim().get(key("bad")).status, ItemStatus::kMiss);
  EXPECT_EQ(sim().store().drop_block(info, SimStore::space_json(0)).code(), Code::kStale);
  sim().flush();
  sim().crash(false);
  sim().reopen_and_judge();
  EXPECT_FALSE(sim().contains(key("bad")));
  EXPECT_TRUE(sim().contains(key("fellow")));
}

TEST_F(Listing, DropSparesABlockPutAnewMeanwhile) {
  sim().put(key("a"), 200'000, {.durable = true});
  const BlockInfo info = sim().describe(key("a"));
  sim().erase(key("a"));
  sim().put(key("a"), 200'000, {.durable = true});
  EXPECT_EQ(sim().store().drop_block(info, SimStore::space_json(0)).code(), Code::kStale);
  EXPECT_TRUE(sim().get(key("a")).succeeded());
}

}  // namespace
}  // namespace kvstore::store
