// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: rules I3 (no reuse of a region that a reader or an unfinished I/O holds) and I7 (a region with a write of
// unknown outcome is quarantined until the outcome is known and, on fabrics, a while longer).
// Method: reads and writes stuck in the simulated device while the pool is filled several times over; an observer
// that forbids writes into the region that is held.

#include <gtest/gtest.h>

#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

Name key(const std::string& text, uint32_t space = 0) { return {text, "", space}; }

SimSetup small_pool() {
  SimSetup setup;
  setup.regions = 10;
  setup.region_bytes = 512 * kKiB;
  setup.min_block_bytes = 64 * kKiB;
  return setup;
}

class Space : public ::testing::Test {
 protected:
  void SetUp() override { make(small_pool()); }
  void make(const SimSetup& setup) {
    sim_ = std::make_unique<SimStore>(setup);
    ASSERT_TRUE(sim().open().ok());
  }
  SimStore& sim() { return *sim_; }

  // Three times the capacity. Returns how many puts succeeded.
  int fill(const std::string& prefix) {
    const int count = static_cast<int>(3 * sim().geometry().memory_bytes() / (120 * kKiB));
    int stored = 0;
    for (int i = 0; i < count; ++i) stored += sim().put(key(prefix + std::to_string(i)), 120 * kKiB).succeeded();
    EXPECT_GT(stored, 0);
    return stored == count ? count : -stored;
  }
  // From now on any write to the region's payload, or to its metadata if that is included, is a failure.
  void forbid_writes(RegionId region, bool metadata_too) {
    const auto geometry = sim().geometry();
    sim().disk().set_observer([geometry, region, metadata_too](const device::IoRequest& request) {
      if (request.op != IoOp::kWrite) return;
      const uint64_t payload = geometry.region_offset(region);
      const uint64_t entry = geometry.entry_offset(region);
      const uint64_t at = request.offset_bytes;
      EXPECT_FALSE(at >= payload && at < payload + geometry.region_bytes) << "payload of a region that is held";
      const bool in_entry = at >= entry && at < entry + geometry.entry_bytes;
      EXPECT_FALSE(metadata_too && in_entry) << "metadata of a region that is held";
    });
  }
  void allow_writes() { sim().disk().set_observer(nullptr); }

  std::unique_ptr<SimStore> sim_;
};

// ---- I3 --------------------------------------------------------------------------------------------------------

TEST_F(Space, I3_ARegionWithAReadInFlightIsNotReused) {
  sim().put(key("held"), 120 * kKiB, {.durable = true});
  const BlockInfo info = sim().describe(key("held"));
  for (int i = 0; i < 3; ++i) sim().put(key("fellow " + std::to_string(i)), 120 * kKiB);  // the region is full
  sim().run_idle();
  sim().disk().add_rule(rule_of(SimFault::kStuck, IoOp::kRead, info.offset_bytes, info.offset_bytes + 1));
  auto get = sim().start_get({key("held")});
  sim().run_idle();
  ASSERT_FALSE(get.job->done());
  sim().advance_ns(100'000'000);
  sim().run_idle();
  forbid_writes(RegionId{info.region}, true);
  EXPECT_GT(fill("x"), 0) << "the other regions are enough";
  allow_writes();
  EXPECT_TRUE(sim().contains(key("held"))) << "not even evicted";
  sim().disk().release_stuck();
  EXPECT_TRUE(sim().finish(get)[0].succeeded());
  EXPECT_GT(fill("y"), 0);
  EXPECT_FALSE(sim().contains(key("held"))) << "reclaimed once nobody holds it";
}

TEST_F(Space, I3_APinnedBlocksRegionIsNotReused) {
  sim().put(key("held"), 120 * kKiB, {.durable = true});
  const Name held_name = key("held");  // a KeyRef is a view
  const KeyRef held = sim().ref(held_name);
  EXPECT_EQ(sim().store().match_prefix({&held, 1}, true), 1u);
  EXPECT_GT(fill("x"), 0);
  EXPECT_TRUE(sim().get(key("held")).succeeded());
  sim().store().unpin({&held, 1});
  EXPECT_GT(fill("y"), 0);
  EXPECT_FALSE(sim().contains(key("held")));
}

TEST_F(Space, I3_ARegionIsNotReusedWhileItsPutIsInFlight) {
  sim().put(key("first"), 120 * kKiB);
  const BlockInfo first = sim().describe(key("first"));
  const uint64_t next = first.offset_bytes + first.extent_bytes;
  sim().disk().add_rule(rule_of(SimFault::kStuck, IoOp::kWrite, next, next + 1));
  auto put = sim().start_put({{key("held"), 120 * kKiB}});
  sim().run_idle();
  EXPECT_NE(fill("x"), 0);
  sim().disk().release_stuck();
  EXPECT_EQ(sim().finish(put)[0].status, ItemStatus::kStored);
  EXPECT_TRUE(sim().get(key("held")).succeeded());
}

// A lookup comes while the keeper reads back whose blocks the victim holds.
TEST_F(Space, I3_ARegionThatIsBeingEmptiedTakesNoReader) {
  const Name oldest = key("oldest");
  sim().put(oldest, 120 * kKiB, {.durable = true});
  const RegionId region{sim().describe(oldest).region};
  const KeyRef ref = sim().ref(oldest);
  uint64_t reads_of_its_entry = 0;
  sim().disk().set_observer([&](const device::IoRequest& request) {
    const uint64_t entry = sim().geometry().entry_offset(region);
    if (request.op != IoOp::kRead || request.offset_bytes < entry) return;
    if (request.offset_bytes >= entry + sim().geometry().entry_bytes) return;
    ++reads_of_its_entry;
    int64_t bytes = 0;
    sim().store().lookup({&ref, 1}, true, {&bytes, 1});
    EXPECT_LT(bytes, 0) << "pinned in a region that is being emptied";
  });
  EXPECT_GT(fill("x"), 0);
  allow_writes();
  EXPECT_GT(reads_of_its_entry, 0u);
}

// Readers keep coming while regions are reclaimed under them: a hit is right, always.
TEST_F(Space, I3_ReadsUnderConstantReclaimAreRightOrMisses) {
  SimSetup setup = small_pool();
  setup.device.latency_ns = 3'000'000;
  make(setup);
  std::vector<SimStore::Pending> gets;
  for (int i = 0; i < 300; ++i) {
    auto put = sim().start_put({{key(std::to_string(i)), 120 * kKiB}});
    std::vector<Name> wanted;
    for (int back : {1, 7, 20, 33, 38}) {
      if (i >= back) wanted.push_back(key(std::to_string(i - back)));
    }
    if (!wanted.empty()) gets.push_back(sim().start_get(wanted));
    EXPECT_EQ(sim().finish(put)[0].status, ItemStatus::kStored);
    if (gets.size() > 4) {
      sim().finish(gets.front());
      gets.erase(gets.begin());
    }
  }
  for (auto& get : gets) sim().finish(get);
}

// ---- Busy is an answer, and only when there is nothing to reclaim -----------------------------------------------

TEST_F(Space, APutIsBusyOnlyWhileEveryRegionIsPinned) {
  std::vector<KeyRef> pinned;
  std::vector<Name> names;
  for (int i = 0; i < 200; ++i) names.push_back(key(std::to_string(i)));
  ItemResult result;
  for (const Name& name : names) {
    result = sim().put(name, 120 * kKiB);
    if (!result.succeeded()) break;
    const KeyRef ref = sim().ref(name);
    sim().store().match_prefix({&ref, 1}, true);
    pinned.push_back(ref);
  }
  EXPECT_EQ(result.status, ItemStatus::kError);
  EXPECT_EQ(result.code, Code::kBusy);
  EXPECT_GT(pinned.size(), 30u);
  sim().store().unpin({pinned.data(), 4});
  EXPECT_EQ(sim().put(key("again"), 120 * kKiB).status, ItemStatus::kStored);
}

TEST_F(Space, APutWaitsForARegionWhoseWritesHaveNotEnded) {
  // Every region but the open one is pinned, and in that one a write is under way.
  Name last;
  KeyRef pinned;
  for (int i = 0; i < 400 && sim().number("regions_free") != 0; ++i) {
    last = key(std::to_string(i));
    ASSERT_EQ(sim().put(last, 120 * kKiB).status, ItemStatus::kStored);
    pinned = sim().ref(last);
    sim().store().match_prefix({&pinned, 1}, true);
  }
  sim().store().unpin({&pinned, 1});  // the first in the last region
  ASSERT_EQ(sim().number("regions_free"), 0);
  sim().disk().add_rule(rule_of(SimFault::kStuck, IoOp::kWrite, sim().geometry().data_offset, UINT64_MAX));
  auto under_way = sim().start_put({{key("under way"), 120 * kKiB}});
  sim().run_idle();
  auto wide = sim().start_put({{key("wide"), 200 * kKiB}});
  sim().run_idle();
  EXPECT_FALSE(wide.job->done());
  sim().disk().release_stuck();
  EXPECT_EQ(sim().finish(under_way)[0].status, ItemStatus::kStored);
  EXPECT_EQ(sim().finish(wide)[0].status, ItemStatus::kStored);
}

// The victim a waiting put counted on is pinned before it is reclaimed: the put is told, it does not wait for ever.
TEST_F(Space, AWaitingPutIsToldWhenTheLastVictimIsPinned) {
  std::vector<KeyRef> refs;
  std::vector<std::string> keys;
  for (int i = 0; i < 60; ++i) keys.push_back(std::to_string(i));
  for (const std::string& text : keys) {
    if (sim().number("regions_free") == 0 && sim().number("blocks") > 30) break;
    sim().put(key(text), 120 * kKiB);
  }
  for (const std::string& text : keys) {
    if (sim().contains(key(text))) refs.push_back({sim().space(0), {}, text});
  }
  sim().put(key("fill a"), 120 * kKiB);
  auto put = sim().start_put({{key("late 1"), 120 * kKiB},
                              {key("late 2"), 120 * kKiB},
                              {key("late 3"), 120 * kKiB},
                              {key("late 4"), 120 * kKiB},
                              {key("late 5"), 120 * kKiB}});
  std::vector<int64_t> bytes(refs.size());
  sim().store().lookup(refs, true, bytes);
  EXPECT_TRUE(sim().run_until([&] { return put.job->done(); }, 20'000'000'000)) << "well before the leases end";
  sim().finish(put);
  sim().store().unpin(refs);
}

// ---- I7 --------------------------------------------------------------------------------------------------------

class Quarantine : public Space {
 protected:
  // A put whose payload write is stuck past the time-out, in a region that holds another block.
  SimStore::Pending get_stuck() {
    EXPECT_EQ(sim().put(key("fellow"), 120 * kKiB, {.durable = true}).status, ItemStatus::kStored);
    fellow_ = sim().describe(key("fellow"));
    const uint64_t next = fellow_.offset_bytes + fellow_.extent_bytes;
    sim().disk().add_rule(rule_of(SimFault::kStuck, IoOp::kWrite, next, next + 1));
    auto put = sim().start_put({{key("stuck"), 120 * kKiB}});
    sim().run_idle();
    sim().advance_ns(40'000'000'000);
    sim().run_idle();
    EXPECT_EQ(sim().number("io_stuck"), 1);
    EXPECT_FALSE(put.job->done()) << "I11: the buffer is still the device's";
    return put;
  }
  BlockInfo fellow_;
};

TEST_F(Quarantine, I7_ARegionWithAWriteOfUnknownOutcomeIsReadableAndLeftAlone) {
  auto put = get_stuck();
  EXPECT_TRUE(sim().get(key("fellow")).succeeded());
  forbid_writes(RegionId{fellow_.region}, true);
  EXPECT_GT(fill("x"), 0);
  EXPECT_TRUE(sim().get(key("fellow")).succeeded()) << "readable, not reclaimed";
  // A delete there is done in memory, but no promise is made about the device.
  EXPECT_EQ(sim().erase(key("fellow")).status, ItemStatus::kDeleted);
  EXPECT_EQ(sim().try_flush().code(), Code::kBusy);
  allow_writes();
  sim().disk().release_stuck();
  sim().finish(put);
  sim().flush();
  sim().crash(true);
  sim().reopen_and_judge();
  EXPECT_FALSE(sim().contains(key("fellow")));
}

TEST_F(Quarantine, I5_WhatWasVerifiedOnceIsVerifiedAgainBesideAnUnknownOutcome) {
  SimSetup setup = small_pool();
  setup.store.verify = Verify::kFirstRead;
  make(setup);
  auto put = get_stuck();
  EXPECT_TRUE(sim().get(key("fellow")).succeeded());
  sim().corrupt_payload(key("fellow"));  // as the late write would, landing elsewhere
  sim().allow_misses(true);
  EXPECT_EQ(sim().get(key("fellow")).status, ItemStatus::kMiss);
  sim().disk().release_stuck();
  sim().finish(put);
}

TEST_F(Quarantine, I7_ReusedOnlyAfterTheOutcomeAndTheQuarantineTimeOnAFabric) {
  SimSetup setup = small_pool();
  setup.device.is_fabric = true;
  make(setup);
  auto put = get_stuck();
  sim().disk().release_stuck();
  EXPECT_EQ(sim().finish(put)[0].status, ItemStatus::kStored);
  sim().run_idle();
  const auto geometry = sim().geometry();
  const uint64_t payload = geometry.region_offset(RegionId{fellow_.region});
  sim().disk().set_observer([&](const device::IoRequest& request) {
    EXPECT_FALSE(request.op == IoOp::kWrite && request.offset_bytes >= payload &&
                 request.offset_bytes < payload + geometry.region_bytes)
        << "within the quarantine time";
  });
  EXPECT_GT(fill("x"), 0);
  allow_writes();
  EXPECT_TRUE(sim().contains(key("fellow")));
  sim().advance_ns(61'000'000'000);
  EXPECT_GT(fill("y"), 0);
  EXPECT_FALSE(sim().contains(key("fellow")));
}

// The stuck write ends in an error: the put fails, and nothing was ever retried into its extent.
TEST_F(Quarantine, I6_ATimedOutWriteIsNeverRetriedIntoTheSameExtent) {
  EXPECT_EQ(sim().put(key("fellow"), 120 * kKiB, {.durable = true}).status, ItemStatus::kStored);
  const BlockInfo fellow = sim().describe(key("fellow"));
  const uint64_t next = fellow.offset_bytes + fellow.extent_bytes;
  sim().disk().add_rule(rule_of(SimFault::kStuck, IoOp::kWrite, next, next + 1, 1, 0, EAGAIN));
  auto put = sim().start_put({{key("stuck"), 120 * kKiB}});
  sim().run_idle();
  sim().advance_ns(40'000'000'000);
  sim().run_idle();
  uint64_t writes = 0;
  sim().disk().set_observer([&](const device::IoRequest& request) {
    writes += request.op == IoOp::kWrite && request.offset_bytes == next && request.result >= 0;
  });
  sim().disk().release_stuck();
  EXPECT_EQ(sim().finish(put)[0].status, ItemStatus::kError) << "EAGAIN after the time-out is no reason to write again";
  EXPECT_EQ(sim().put(key("stuck"), 120 * kKiB).status, ItemStatus::kStored);
  allow_writes();
  EXPECT_EQ(writes, 0u);
  EXPECT_NE(sim().describe(key("stuck")).offset_bytes, next);
}

// A metadata write is stuck: until it is known the region's metadata is not written again, or the late write would
// undo what came after it.
TEST_F(Quarantine, I7_AStuckBitmapWriteCannotUndoALaterDelete) {
  sim().put_all({{key("a"), 120 * kKiB}, {key("b"), 120 * kKiB}}, {.durable = true});
  const RegionId region{sim().describe(key("a")).region};
  const auto& geometry = sim().geometry();
  sim().disk().add_rule(
      rule_of(SimFault::kStuck, IoOp::kWrite, geometry.bitmap_offset(region, 0), geometry.tail_offset(region, 0)));
  sim().erase(key("a"));
  EXPECT_FALSE(sim().try_flush().ok());
  sim().erase(key("b"));
  const bool second_flush_ok = sim().try_flush().ok();
  sim().disk().release_stuck();  // the first bitmap lands now, as a ghost
  sim().run_idle();
  if (!second_flush_ok) sim().flush();
  sim().crash(true);
  sim().reopen_and_judge();
  EXPECT_FALSE(sim().contains(key("a")));
  EXPECT_FALSE(sim().contains(key("b")));
}

// The seal must wait too, although no payload is outstanding.
TEST_F(Quarantine, I7_AStuckBitmapWriteHoldsUpTheSealOfItsRegion) {
  sim().put_all({{key("a"), 120 * kKiB}, {key("b"), 120 * kKiB}}, {.durable = true});
  const RegionId region{sim().describe(key("a")).region};
  const auto& geometry = sim().geometry();
  sim().disk().add_rule(
      rule_of(SimFault::kStuck, IoOp::kWrite, geometry.bitmap_offset(region, 0), geometry.tail_offset(region, 0)));
  sim().erase(key("a"));
  EXPECT_FALSE(sim().try_flush().ok());
  uint64_t headers = 0;
  sim().disk().set_observer([&](const device::IoRequest& request) {
    headers += request.op == IoOp::kWrite && (request.offset_bytes == geometry.header_offset(region, 0) ||
                                              request.offset_bytes == geometry.header_offset(region, 1));
  });
  sim().put(key("c"), 120 * kKiB, {.durable = true});
  EXPECT_EQ(headers, 0u);
  sim().disk().release_stuck();
  sim().put(key("d"), 120 * kKiB, {.durable = true});
  EXPECT_EQ(headers, 1u) << "sealed once the outcome is known";
  allow_writes();
}

}  // namespace
}  // namespace kvstore::store
