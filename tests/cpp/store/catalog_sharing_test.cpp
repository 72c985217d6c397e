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

}  // namespace
}  // namespace kvstore::store
