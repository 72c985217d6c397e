// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what is taken is given back, whatever went wrong: staging buffers, pins, job slots, puts in flight, pieces.
// Method: thousands of mixed operations while every twentieth device request fails in some way, then a look at the
// numbers when all is quiet.

#include <gtest/gtest.h>

#include <cerrno>

#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

TEST(Resources, NothingIsLeftOutAfterFiveThousandOperationsWithFaults) {
  SimSetup setup;
  setup.regions = 16;
  setup.region_bytes = kMiB;
  setup.min_block_bytes = 16 * kKiB;
  setup.store.failures_max = 1'000'000;
  setup.store.io_timeout_ns = 1'000'000'000;
  setup.store.quarantine_ns = 1'000'000'000;
  SimStore sim(setup);
  ASSERT_TRUE(sim.open().ok());
  SeededRandom random(42);
  sim.allow_misses(true);
  std::vector<SimStore::Pending> pending;
  std::vector<JobRef> prefetches;
  std::vector<Name> pinned;
  const auto name = [&] {
    return Name{"key " + std::to_string(random.below(300)), random.below(3) == 0 ? "salt" : "", 0};
  };
  const auto add_faults = [&] {
    sim.disk().clear_rules();
    sim.disk().release_stuck();
    // Of the next 400 requests of a kind about twenty are hit.
    for (int i = 0; i < 20; ++i) {
      const SimFault faults[] = {SimFault::kError,           SimFault::kShort, SimFault::kAgain,
                                 SimFault::kErrorAfterWrite, SimFault::kStuck, SimFault::kBitRot};
      const SimFault fault = faults[random.below(6)];
      const IoOp op = fault == SimFault::kBitRot || random.below(2) == 0 ? IoOp::kRead : IoOp::kWrite;
      sim.disk().add_rule(rule_of(fault, op, format::kMetadataOffset, sim.geometry().device_bytes - kPageBytes, 1,
                                  random.below(400), fault == SimFault::kStuck ? 0 : 512 * random.below(8)));
    }
  };
  for (int i = 0; i < 5'000; ++i) {
    if (i % 100 == 0) add_faults();
    switch (random.below(9)) {
      case 0:
      case 1: {
        std::vector<std::pair<Name, uint64_t>> blocks;
        for (uint64_t j = 0; j <= random.below(5); ++j) {
          const Name one = name();
          blocks.emplace_back(one, 1 + one.key.size() * 8'000 % 90'000);
        }
        pending.push_back(sim.start_put(blocks, {.durable = random.below(4) == 0,
                                                 .page_hashes = random.below(3) == 0,
                                                 .layout = {1, static_cast<uint32_t>(random.below(2) * 64)}}));
        break;
      }
      case 2:
      case 3: {
        std::vector<Name> names;
        for (uint64_t j = 0; j <= random.below(8); ++j) names.push_back(name());
        pending.push_back(sim.start_get(names, {1, static_cast<uint32_t>(random.below(2) * 64)},
                                        {.deadline_ns = random.below(4) == 0 ? 1'000'000 : uint64_t{0}}));
        break;
      }
      case 4: {
        std::vector<Name> names = {name(), name(), name()};
        std::vector<KeyRef> refs;
        for (const Name& one : names) refs.push_back(sim.ref(one));
        prefetches.push_back(sim.store().prefetch(refs, {}, nullptr).value());
        break;
      }
      case 5: {
        const Name one = name();
        if (!sim.has_put_in_flight(one) && sim.was_put(one)) sim.erase(one);
        break;
      }
      case 6: {
        pinned.push_back(name());
        const KeyRef ref = sim.ref(pinned.back());
        sim.store().match_prefix({&ref, 1}, true);
        break;
      }
      case 7: {
        if (!pending.empty()) pending[random.below(pending.size())].job->cancel();
        break;
      }
      case 8: sim.advance_ns(random.below(30'000'000)); break;
    }
    for (uint64_t step = 0; step < random.below(5); ++step) sim.store().step();
    for (size_t j = 0; j < pending.size();) {
      if (!pending[j].job->done()) {
        ++j;
        continue;
      }
      SimStore::Pending done = std::move(pending[j]);
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(j));
      sim.finish(done);
    }
    while (pinned.size() > 3) {
      const KeyRef ref = sim.ref(pinned.front());
      sim.store().unpin({&ref, 1});
      pinned.erase(pinned.begin());
    }
    if (pending.size() > 50) {
      sim.disk().release_stuck();
      sim.run_until([&] { return pending.front().job->done(); });
    }
  }
  sim.disk().clear_rules();
  sim.disk().release_stuck();
  for (auto& one : pending) sim.finish(one);
  for (JobRef& job : prefetches) sim.run_until([&] { return job->done(); });
  sim.advance_ns(400'000'000'000);  // leases, quarantines and time-outs are over
  sim.run_idle();
  for (const char* resource :
       {"staging_buffers_out", "pins", "regions_pinned", "jobs_in_flight", "puts_in_flight", "pieces_in_flight"}) {
    EXPECT_EQ(sim.number(resource), 0) << resource;
  }
  EXPECT_EQ(sim.number("regions_free") + sim.number("regions_open") + sim.number("regions_sealed") +
                sim.number("regions_quarantined"),
            sim.number("regions"));
  EXPECT_GT(sim.number("io_retries") + sim.number("read_errors") + sim.number("write_errors"), 50);
  (void)sim.try_flush();  // tells of what the faults have lost
  // And it still works.
  sim.allow_misses(false);
  EXPECT_EQ(sim.put({"after", "", 0}, 50'000, {.durable = true}).status, ItemStatus::kStored);
  EXPECT_TRUE(sim.get({"after", "", 0}).succeeded());
  EXPECT_TRUE(sim.close().ok());
}

}  // namespace
}  // namespace kvstore::store
