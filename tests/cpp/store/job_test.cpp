// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the results of a job are there for as many items as it has, at a cost that does not grow with their number.
// Method: a batch put to a simulated store and canceled before its first piece.

#include "store/job.h"

#include <gtest/gtest.h>

#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

TEST(Job, TheReasonsOfALargeCanceledBatchAreReadInNoTime) {
  constexpr uint32_t kItems = 200'000;
  SimStore sim;
  ASSERT_TRUE(sim.open().ok());
  const SpaceId space = sim.store().register_space(SimStore::space_json(0)).value();
  std::vector<std::string> keys(kItems);
  std::vector<PutItem> items(kItems);
  uint8_t byte = 1;
  const iovec segment{&byte, 1};
  for (uint32_t i = 0; i < kItems; ++i) {
    keys[i] = std::to_string(i);
    items[i].space = space;
    items[i].key = keys[i];
    items[i].segments = &segment;
    items[i].segment_count = 1;
  }
  JobRef job = sim.store().put(items, {}, nullptr).value();
  job->cancel();
  while (!job->done()) sim.store().step();
  const uint64_t start_ns = system_clock().monotonic_ns();
  for (uint32_t i = 0; i < kItems; ++i) ASSERT_EQ(job->error_text(i), "canceled by the caller");
  // One look-up after another through all of them would be ten seconds.
  EXPECT_LT(system_clock().monotonic_ns() - start_ns, 2'000'000'000u);
}

}  // namespace
}  // namespace kvstore::store
