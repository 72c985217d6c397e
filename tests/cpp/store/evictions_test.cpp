// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: every block that becomes a miss is told, once, by name and reason, to every subscriber; one that does not drain
// learns that it missed some, and nobody else suffers.
// Method: a small pool filled over its capacity; feeds of several sizes beside each other.

#include "store/evictions.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <map>
#include <set>

#include "format/descriptor.h"
#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

Name key(const std::string& text, uint32_t space = 0, const std::string& salt = "") { return {text, salt, space}; }

bool readable(int fd) {
  pollfd poll_fd{fd, POLLIN, 0};
  return poll(&poll_fd, 1, 0) == 1;
}

class Evictions : public ::testing::Test {
 protected:
  void SetUp() override {
    SimSetup setup;
    setup.regions = 10;
    setup.region_bytes = 512 * kKiB;
    setup.min_block_bytes = 16 * kKiB;
    sim_ = std::make_unique<SimStore>(setup);
    ASSERT_TRUE(sim().open().ok());
  }
  SimStore& sim() { return *sim_; }
  void fill(int count) {
    for (int i = 0; i < count; ++i) sim().put(key(std::to_string(i), i % 3, "salt " + std::to_string(i % 4)), 60'000);
  }
  std::unique_ptr<SimStore> sim_;
};

TEST_F(Evictions, EveryReclaimedBlockIsToldOnceByItsWholeName) {
  auto feed = sim().store().subscribe_evictions(10'000);
  EXPECT_FALSE(readable(feed->event_fd()));
  fill(300);
  EXPECT_TRUE(readable(feed->event_fd()));
  std::set<std::string> told;
  std::vector<Eviction> evictions = feed->drain(7);
  EXPECT_EQ(evictions.size(), 7u);
  EXPECT_TRUE(readable(feed->event_fd())) << "there is more";
  for (const Eviction& eviction : feed->drain(10'000)) evictions.push_back(eviction);
  EXPECT_FALSE(readable(feed->event_fd()));
  for (const Eviction& eviction : evictions) {
    EXPECT_EQ(eviction.reason, EvictionReason::kReclaimed);
    EXPECT_EQ(eviction.payload_bytes, 60'000u);
    EXPECT_FALSE(eviction.key_is_digest);
    const int number = std::stoi(eviction.key);
    EXPECT_EQ(eviction.space, SimStore::space_json(static_cast<uint32_t>(number % 3)));
    EXPECT_EQ(eviction.salt, "salt " + std::to_string(number % 4));
    EXPECT_TRUE(told.insert(eviction.key).second) << "twice: " << eviction.key;
    EXPECT_FALSE(sim().contains(key(eviction.key, static_cast<uint32_t>(number % 3), eviction.salt)));
  }
  EXPECT_EQ(told.size(), sim().number("blocks_evicted"));
  EXPECT_EQ(told.size() + static_cast<size_t>(sim().number("blocks")), 300u);
  EXPECT_FALSE(feed->take_overflowed());
}

TEST_F(Evictions, DeletesAreToldAndLongKeysByTheirDigest) {
  auto feed = sim().store().subscribe_evictions(10);
  const Name long_name{std::string(200, 'k'), "s", 1};
  sim().put(long_name, 5'000);
  sim().erase(long_name);
  sim().erase(long_name);
  const auto evictions = feed->drain(10);
  ASSERT_EQ(evictions.size(), 1u);
  EXPECT_EQ(evictions[0].reason, EvictionReason::kDeleted);
  EXPECT_TRUE(evictions[0].key_is_digest);
  EXPECT_EQ(evictions[0].key, format::make_stored_key(long_name.key).view());
}

TEST_F(Evictions, AFeedThatIsNotDrainedSaysSoOnceAndHoldsUpNobody) {
  auto slow = sim().store().subscribe_evictions(5);
  auto fast = sim().store().subscribe_evictions(10'000);
  fill(300);
  EXPECT_EQ(slow->drain(1'000).size(), 5u);
  EXPECT_TRUE(slow->take_overflowed());
  EXPECT_FALSE(slow->take_overflowed()) << "once";
  EXPECT_EQ(fast->drain(10'000).size(), static_cast<size_t>(sim().number("blocks_evicted")));
  EXPECT_FALSE(fast->take_overflowed());
  sim().put(key("x"), 5'000);
  sim().erase(key("x"));
  EXPECT_EQ(slow->drain(10).size(), 1u) << "it goes on";
}

TEST_F(Evictions, AFeedHearsNothingOfBeforeAndAfter) {
  sim().put(key("before"), 5'000);
  sim().erase(key("before"));
  auto feed = sim().store().subscribe_evictions(10);
  auto other = sim().store().subscribe_evictions(10);
  EXPECT_TRUE(feed->drain(10).empty());
  other.reset();
  sim().put(key("x"), 5'000);
  sim().erase(key("x"));
  EXPECT_EQ(feed->drain(10).size(), 1u);
}

// Descriptors of the victim cannot be read back: who lived there is not known, and that is told.
TEST_F(Evictions, WhatCannotBeNamedIsAnOverflow) {
  fill(20);
  auto feed = sim().store().subscribe_evictions(10'000);
  const auto& geometry = sim().geometry();
  sim().disk().add_rule(
      rule_of(SimFault::kError, IoOp::kRead, format::kMetadataOffset, geometry.data_offset, kForEver));
  for (int i = 0; i < 100; ++i) sim().put(key("more " + std::to_string(i)), 60'000);
  EXPECT_TRUE(feed->drain(10'000).empty());
  EXPECT_TRUE(feed->take_overflowed());
  EXPECT_TRUE(readable(feed->event_fd()) || !feed->take_overflowed());
  sim().disk().clear_rules();
  sim().take_evictions();
  size_t found = 0;
  for (int i = 0; i < 20; ++i)
    found += sim().contains(key(std::to_string(i), i % 3, "salt " + std::to_string(i % 4))) ? 1 : 0;
  EXPECT_LT(found, 20u) << "reclaimed all the same";
  sim().judge_all();
}

TEST_F(Evictions, AFeedOutlivesItsStore) {
  auto feed = sim().store().subscribe_evictions(10);
  sim().put(key("x"), 5'000);
  sim().erase(key("x"));
  sim_.reset();
  EXPECT_EQ(feed->drain(10).size(), 1u);
}

}  // namespace
}  // namespace kvstore::store
