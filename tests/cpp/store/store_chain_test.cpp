// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: blocks form chains. match_prefix counts the leading run of hits; pins hold what they hit until they are undone
// or their lease ends; a use touches the tail first, so that heads outlive tails when regions are reclaimed. Method: an
// open store on a simulated disk and a manual clock.

#include <gtest/gtest.h>

#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

Name key(const std::string& text, uint32_t space = 0) { return {text, "", space}; }

class Chains : public ::testing::Test {
 protected:
  void SetUp() override { make(12); }
  void make(uint32_t regions, uint64_t region_bytes = kMiB) {
    SimSetup setup;
    setup.regions = regions;
    setup.region_bytes = region_bytes;
    sim_ = std::make_unique<SimStore>(setup);
    ASSERT_TRUE(sim().open().ok());
  }
  SimStore& sim() { return *sim_; }
  std::vector<KeyRef> refs(const std::vector<Name>& names) {
    std::vector<KeyRef> made;
    for (const Name& name : names) made.push_back(sim().ref(name));
    return made;
  }
  std::vector<Name> put_chain(const std::string& prefix, int length, uint64_t bytes) {
    std::vector<Name> names;
    for (int i = 0; i < length; ++i) {
      names.push_back(key(prefix + std::to_string(i)));
      EXPECT_TRUE(sim().put(names.back(), bytes).succeeded());
    }
    return names;
  }

  std::unique_ptr<SimStore> sim_;
};

// ---- match_prefix and lookup -----------------------------------------------------------------------------------

TEST_F(Chains, MatchPrefixCountsTheLeadingRunOnly) {
  const auto names = put_chain("a", 6, 10'000);
  EXPECT_EQ(sim().store().match_prefix(refs(names), false), 6u);
  sim().erase(names[3]);
  EXPECT_EQ(sim().store().match_prefix(refs(names), false), 3u);
  sim().erase(names[0]);
  EXPECT_EQ(sim().store().match_prefix(refs(names), false), 0u);
}

TEST_F(Chains, LookupTellsSizesAndMinusOne) {
  sim().put(key("a"), 10'000);
  sim().put(key("c"), 1);
  const std::vector<Name> names{key("a"), key("b"), key("c"), key("a", 1)};
  const auto wanted = refs(names);
  std::vector<int64_t> bytes(wanted.size());
  sim().store().lookup(wanted, false, bytes);
  EXPECT_EQ(bytes, (std::vector<int64_t>{10'000, -1, 1, -1}));
}

TEST_F(Chains, MatchPrefixPinsTheRunAndNothingBehindIt) {
  const auto names = put_chain("a", 4, 10'000);
  sim().erase(names[2]);
  EXPECT_EQ(sim().store().match_prefix(refs(names), true), 2u);
  EXPECT_EQ(sim().number("pins"), 2);
  EXPECT_EQ(sim().erase(names[1]).code, Code::kBusy);
  EXPECT_EQ(sim().erase(names[3]).status, ItemStatus::kDeleted);
}

// ---- pins ------------------------------------------------------------------------------------------------------

TEST_F(Chains, PinsAreCountedAndUnpinningTooOftenIsHarmless) {
  const auto names = put_chain("a", 1, 10'000);
  const auto one = refs(names);
  for (int i = 0; i < 3; ++i) sim().store().match_prefix(one, true);
  for (int i = 0; i < 2; ++i) sim().store().unpin(one);
  EXPECT_EQ(sim().erase(names[0]).code, Code::kBusy) << "pinned three times, unpinned twice";
  sim().store().unpin(one);
  EXPECT_EQ(sim().number("pins"), 0);
  for (int i = 0; i < 5; ++i) sim().store().unpin(one);
  EXPECT_EQ(sim().number("regions_pinned"), 0);
  sim().store().match_prefix(one, true);
  EXPECT_EQ(sim().erase(names[0]).code, Code::kBusy) << "the count did not go below zero";
  sim().store().unpin(one);
  EXPECT_EQ(sim().erase(names[0]).status, ItemStatus::kDeleted);
}

TEST_F(Chains, APinEndsWithItsLease) {
  const auto names = put_chain("a", 2, 10'000);
  sim().store().match_prefix(refs(names), true);
  sim().advance_ns(299'000'000'000);
  sim().run_idle();
  EXPECT_EQ(sim().number("pins"), 2);
  sim().advance_ns(2'000'000'000);
  sim().run_idle();
  EXPECT_EQ(sim().number("pins"), 0);
  EXPECT_EQ(sim().number("regions_pinned"), 0);
  EXPECT_EQ(sim().number("pins_expired"), 2);
  sim().store().unpin(refs(names));  // late, and harmless
  EXPECT_EQ(sim().erase(names[0]).status, ItemStatus::kDeleted);
}

TEST_F(Chains, PinningAgainRenewsTheLease) {
  const auto names = put_chain("a", 1, 10'000);
  for (int i = 0; i < 5; ++i) {
    sim().store().match_prefix(refs(names), true);
    sim().advance_ns(200'000'000'000);
    sim().run_idle();
    ASSERT_EQ(sim().number("pins"), 1) << i;
  }
  sim().advance_ns(301'000'000'000);
  sim().run_idle();
  EXPECT_EQ(sim().number("pins"), 0);
}

TEST_F(Chains, LeasesDoNotBoundReadsInFlight) {
  sim().put(key("a"), 10'000);
  const BlockInfo info = sim().describe(key("a"));
  sim().disk().add_rule(
      rule_of(device::SimFault::kStuck, device::IoOp::kRead, info.offset_bytes, info.offset_bytes + 1));
  auto get = sim().start_get({key("a")});
  sim().run_idle();
  sim().advance_ns(1'000'000'000'000);
  sim().run_idle();
  EXPECT_EQ(sim().number("regions_pinned"), 1) << "the device still has the buffer";
  sim().disk().release_stuck();
  EXPECT_TRUE(sim().finish(get)[0].succeeded());
}

TEST_F(Chains, PinsAreBounded) {
  SimSetup setup = sim().setup();
  setup.store.pins_max = 3;
  sim_ = std::make_unique<SimStore>(setup);
  ASSERT_TRUE(sim().open().ok());
  const auto names = put_chain("a", 6, 10'000);
  EXPECT_EQ(sim().store().match_prefix(refs(names), true), 3u) << "what it says is there is held";
  EXPECT_EQ(sim().number("pins"), 3);
  EXPECT_EQ(sim().erase(names[0]).code, Code::kBusy) << "the head is what is pinned";
}

// Pinning and unpinning for a long time takes no memory.
TEST_F(Chains, PinsLeaveNothingBehind) {
  const auto names = put_chain("a", 2, 10'000);
  const auto both = refs(names);
  for (int i = 0; i < 200'000; ++i) {
    sim().store().match_prefix(both, true);
    sim().store().unpin(both);
  }
  EXPECT_EQ(sim().number("pins"), 0);
  sim().advance_ns(400'000'000'000);
  sim().run_idle();
  EXPECT_EQ(sim().number("pins_expired"), 0);
}

// ---- what reclaim takes ----------------------------------------------------------------------------------------

TEST_F(Chains, TheRegionUsedLongestAgoGoesFirst) {
  make(10);
  const auto names = put_chain("a", 8, 600'000);  // a region each
  sim().get(names[0]);
  sim().get(names[2]);
  for (int i = 0; i < 5; ++i) sim().put(key("new " + std::to_string(i)), 600'000);
  EXPECT_TRUE(sim().is_live(names[0]));
  EXPECT_TRUE(sim().is_live(names[2]));
  EXPECT_FALSE(sim().is_live(names[1])) << "used longer ago than those";
  EXPECT_FALSE(sim().is_live(names[3]));
}

// One use of a whole chain: its blocks lie in different regions, and the tail goes before the head.
TEST_F(Chains, AUseTouchesTheTailFirstSoThatTheHeadSurvives) {
  enum class Use { kGet, kPrefix, kLookup, kTouch, kPrefetch };
  for (const Use use : {Use::kGet, Use::kPrefix, Use::kLookup, Use::kTouch, Use::kPrefetch}) {
    make(10);
    const auto names = put_chain("a", 8, 600'000);
    const auto chain = refs(names);
    switch (use) {
      case Use::kGet: sim().get_all(names); break;
      case Use::kPrefix: sim().store().match_prefix(chain, false); break;
      case Use::kLookup: {
        std::vector<int64_t> bytes(chain.size());
        sim().store().lookup(chain, false, bytes);
        break;
      }
      case Use::kTouch: sim().store().touch(chain); break;
      case Use::kPrefetch: {
        auto job = sim().store().prefetch(chain, {}, nullptr).value();
        sim().run_until([&] { return job->done(); });
        break;
      }
    }
    for (int i = 0; i < 4; ++i) sim().put(key("new " + std::to_string(i)), 600'000);
    size_t run = 0;
    while (run < names.size() && sim().is_live(names[run])) ++run;
    size_t live = 0;
    for (const Name& name : names) live += sim().is_live(name) ? 1 : 0;
    EXPECT_GT(run, 0u) << "use " << static_cast<int>(use);
    EXPECT_LT(run, names.size()) << "something had to go";
    EXPECT_EQ(run, live) << "what is left is a head, without holes; use " << static_cast<int>(use);
  }
}

}  // namespace
}  // namespace kvstore::store
