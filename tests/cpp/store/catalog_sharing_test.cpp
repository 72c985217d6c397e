// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what comes too late to the catalog of an opener of a shared pool changes nothing.
// Method: a catalog alone, told what a follower would tell it, in the order of two threads that race.

#include <gtest/gtest.h>

#include "cluster/memory_engine.h"
#include "store/catalog.h"

namespace kvstore::store {
namespace {

class SharedCatalog : public ::testing::Test {
 protected:
  SharedCatalog() {
    options_.shared.engine = &engine_;
    const format::Geometry geometry =
        format::choose_geometry({.device_bytes = 64 * kMiB, .region_bytes = 256 * kKiB}).value();
    catalog_ = std::make_unique<Catalog>(options_, std::vector<Catalog::DeviceShape>{{geometry, {}}}, 1, 1000, spaces_,
                                         counters_, evictions_, clock_);
    catalog_->wake_keeper = [](uint16_t) {};
    catalog_->space_changed = [](uint16_t) {};
    catalog_->confirmed(0, clock_.monotonic_ns());
  }
  // What a keeper is to do about the region once a put waits for one.
  std::optional<OpenPlan> begin_opening(uint32_t number, Generation spent) {
    if (!catalog_->grant(number, spent)) return std::nullopt;
    Item item;
    item.payload_bytes = 60'000;
    EXPECT_EQ(catalog_->allocate(item, 0), Allocation::kWait);
    return catalog_->next_open(0);
  }
  static format::RegionHeader open_header(Generation generation) {
    format::RegionHeader header;
    header.generation = generation;
    header.state = RegionState::kOpen;
    header.extent_bytes = 64 * kKiB;
    header.slot_count = 4;
    return header;
  }
  static IndexBuilder::Candidate block(Generation generation) {
    IndexBuilder::Candidate candidate{};
    candidate.entry.fingerprint = {1, 2};
    candidate.entry.payload_bytes = 1;
    candidate.entry.generation_low = static_cast<uint32_t>(generation.value);
    return candidate;
  }

  ManualClock clock_;
  SeededRandom random_{1};
  cluster::MemoryEngine engine_{std::make_shared<cluster::MemoryCluster>(clock_), clock_, random_};
  StoreOptions options_;
  SpaceRegistry spaces_;
  Counters counters_;
  EvictionHub evictions_;
  std::unique_ptr<Catalog> catalog_;
};

TEST_F(SharedCatalog, S4_WhatWasReadOfALifeIsNotLearntOnceItIsRetired) {
  const Generation life{5};
  const IndexBuilder::Candidate found = block(life);
  ASSERT_TRUE(catalog_->learn_life(0, open_header(life), 1));
  ASSERT_TRUE(catalog_->retire(0, Generation{6}));  // while its descriptors were being read
  EXPECT_EQ(catalog_->learn(0, life, {&found, 1}), 0u);
  EXPECT_FALSE(catalog_->peek(found.entry.fingerprint).has_value());
}

// An engine that was rebuilt, or failed over, may say less than what was heard before.
TEST_F(SharedCatalog, WhatTheEngineSaysLastOfALifeCounts) {
  const Generation life{5};
  const IndexBuilder::Candidate found = block(life);
  catalog_->set_retired_below(0, Generation{100});
  EXPECT_FALSE(catalog_->learn_life(0, open_header(life), 1));
  catalog_->set_retired_below(0, life);
  EXPECT_TRUE(catalog_->learn_life(0, open_header(life), 1));
  EXPECT_EQ(catalog_->learn(0, life, {&found, 1}), 1u);
}

// Who is told of a miss takes mutexes of its own, under which the catalog is called elsewhere.
TEST_F(SharedCatalog, AMissIsToldWithoutTheMutex) {
  int told = 0;
  catalog_->missed = [&] {
    ++told;
    (void)catalog_->state_of(0);  // would hang
  };
  const Catalog::Key key{{1, 2}};
  int64_t bytes = 0;
  catalog_->lookup({&key, 1}, false, {&bytes, 1});
  EXPECT_EQ(catalog_->match_prefix({&key, 1}, false), 0u);
  Item item;
  item.fingerprint = key.fingerprint;
  catalog_->begin_reads({&item, 1}, Verify::kAlways);
  EXPECT_EQ(told, 3);
}

// The agent loses the region while the keeper waits for its headers.
TEST_F(SharedCatalog, S1_ARegionThatIsLostWhileItIsBeingOpenedIsNeverWritten) {
  const std::optional<OpenPlan> plan = begin_opening(0, Generation{5});
  ASSERT_TRUE(plan.has_value());
  EXPECT_TRUE(catalog_->may_write(0).ok());
  catalog_->lose(0);
  EXPECT_FALSE(catalog_->may_write(0).ok());
  EXPECT_TRUE(catalog_->retire(0, Generation{7})) << "its keeper has not ended what it began";
  catalog_->open_done(*plan, {});
  EXPECT_EQ(catalog_->state_of(0), RegionState::kFree);
  EXPECT_FALSE(catalog_->retire(0, Generation{7}));
  EXPECT_TRUE(catalog_->learn_life(0, open_header(Generation{7}), 1)) << "it is another's to fill";
}

TEST_F(SharedCatalog, WhatTheWritesOfALostRegionEndedWithIsNotToldToTheEngine) {
  for (const Code code : {Code::kStale, Code::kTimeout, Code::kIo}) {
    const auto number = static_cast<uint32_t>(code);
    const std::optional<OpenPlan> plan = begin_opening(number, Generation{5});
    ASSERT_TRUE(plan.has_value());
    catalog_->lose(number);
    catalog_->open_done(*plan, Status(code, "broken off"));
    EXPECT_EQ(catalog_->state_of(number), RegionState::kFree);
  }
  EXPECT_TRUE(catalog_->take_conflicts().empty());
  clock_.sleep_ns(options_.quarantine_ns + 1);
  EXPECT_TRUE(catalog_->take_released().empty());
}

// A header of ours may bear the generation that the life granted now is to have.
TEST_F(SharedCatalog, ALifeThatWasBegunAndLostIsNotBegunAgainWhenItIsGrantedAgain) {
  const std::optional<OpenPlan> plan = begin_opening(0, Generation{5});
  ASSERT_TRUE(plan.has_value());
  catalog_->lose(0);
  catalog_->open_done(*plan, {});
  EXPECT_FALSE(begin_opening(0, Generation{5}).has_value());
  EXPECT_EQ(catalog_->take_released(), std::vector<uint32_t>{0});
  const std::optional<OpenPlan> next = begin_opening(0, plan->generation);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->generation, Generation{7});
}

TEST_F(SharedCatalog, WhatIsGrantedWhileThePoolIsClosedIsGivenBack) {
  ASSERT_TRUE(catalog_->grant(0, Generation{5}));
  catalog_->release_ready();
  ASSERT_TRUE(catalog_->grant(1, Generation{5}));  // it had settled a moment later
  EXPECT_EQ(catalog_->take_released(), (std::vector<uint32_t>{0, 1}));
}

TEST_F(SharedCatalog, I7_ARegionIsNotGrantedWhileAWriteOfOursMayStillLandThere) {
  const std::optional<OpenPlan> plan = begin_opening(0, Generation{5});
  ASSERT_TRUE(plan.has_value());
  catalog_->lose(0);
  catalog_->open_done(*plan, Status(Code::kTimeout, "stuck"));
  catalog_->write_outcome_unknown(0);
  EXPECT_FALSE(catalog_->grant(0, Generation{9}));
  catalog_->write_outcome_known(0);
  EXPECT_TRUE(catalog_->grant(0, Generation{9}));
}

TEST_F(SharedCatalog, ASealThatFailedBeforeTheRegionWasLostIsNotToldOfItsNextLife) {
  const std::optional<OpenPlan> plan = begin_opening(0, Generation{5});
  ASSERT_TRUE(plan.has_value());
  catalog_->open_done(*plan, {});
  catalog_->seal_done(0, Status(Code::kIo, "torn"));
  catalog_->lose(0);
  ASSERT_TRUE(catalog_->retire(0, Generation{9}));
  catalog_->reclaimed(0, {});
  ASSERT_TRUE(catalog_->grant(0, Generation{9}));
  clock_.sleep_ns(options_.quarantine_ns + 1);
  EXPECT_TRUE(catalog_->take_sealed().empty());
}

// Another's it was, and free; the follower, busy reading, hears and finds so when it is ours already.
TEST_F(SharedCatalog, S1_WhatAFollowerIsLateWithDoesNotTakeAGrantedRegionAway) {
  ASSERT_TRUE(catalog_->grant(0, Generation{7}));
  catalog_->set_held_by_peer(0, true);
  catalog_->set_retired_below(0, Generation{5});
  EXPECT_FALSE(catalog_->learn_life(0, open_header(Generation{5}), 1));
  catalog_->set_held_by_peer(0, false);
  EXPECT_TRUE(catalog_->may_write(0).ok());
  EXPECT_EQ(catalog_->state_of(0), RegionState::kFree);
  EXPECT_EQ(catalog_->generation_of(0), Generation{7});
  catalog_->lose(0);
  EXPECT_TRUE(catalog_->learn_life(0, open_header(Generation{9}), 1));
}

// Its header may have landed in part; it was lost, and another filled it, before that was given back.
TEST_F(SharedCatalog, ARegionThatAnotherFilledIsNotGivenBackAsEmpty) {
  const std::optional<OpenPlan> plan = begin_opening(0, Generation{5});
  ASSERT_TRUE(plan.has_value());
  catalog_->open_done(*plan, Status(Code::kIo, "torn"));
  catalog_->lose(0);
  const Generation life{7};
  const IndexBuilder::Candidate found = block(life);
  ASSERT_TRUE(catalog_->learn_life(0, open_header(life), 1));
  ASSERT_EQ(catalog_->learn(0, life, {&found, 1}), 1u);
  clock_.sleep_ns(options_.quarantine_ns + 1);
  EXPECT_TRUE(catalog_->take_released().empty());
  EXPECT_TRUE(catalog_->peek(found.entry.fingerprint).has_value());
}

TEST_F(SharedCatalog, ARefusalSaysWhyInTheAgentsWords) {
  catalog_->suspend(Status(Code::kBusy, "the lease of this opener is not renewed: no answer"));
  const Status refusal = catalog_->put_refusal();
  EXPECT_EQ(refusal.code(), Code::kBusy);
  EXPECT_EQ(refusal.message(), "no puts for the moment: the lease of this opener is not renewed: no answer");
}

}  // namespace
}  // namespace kvstore::store
