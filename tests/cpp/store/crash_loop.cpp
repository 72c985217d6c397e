// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/crash_loop.h"

namespace kvstore::store {

namespace {

constexpr uint64_t kOperationsMax = 20'000;

enum class How : uint8_t { kCacheKept, kCacheLost, kRecoveryToo };

// Opens and stops again, at an operation of recovery that differs from one n to the next.
uint64_t cut_recoveries(SimStore& sim, uint64_t stop_after) {
  uint64_t cut = 0;
  for (uint64_t round = 0; round <= stop_after % 3; ++round) {
    sim.disk().stop_after(1 + (stop_after * 5 + round * 3) % 17);
    if (sim.open().ok()) sim.run_idle();
    cut += sim.stopped();
    sim.crash((stop_after + round) % 2 == 0);
  }
  return cut;
}

// True when the scenario ended before the stop.
bool crash_once(const SimSetup& setup, const Scenario& scenario, uint64_t stop_after, How how, uint64_t& cut) {
  const bool cache_survives = how == How::kCacheKept;
  SimStore sim(setup);
  sim.context =
      "stopped after operation " + std::to_string(stop_after) + (cache_survives ? ", cache kept" : ", cache lost");
  sim.disk().stop_after(stop_after);
  scenario(sim);
  const bool finished = !sim.stopped();
  sim.crash(cache_survives);
  if (how == How::kRecoveryToo) {
    sim.context += ", and recovery too";
    cut += cut_recoveries(sim, stop_after);
  }
  sim.reopen_and_judge();
  if (!sim.is_open()) return finished;

  if (cache_survives) {
    // What the dying process left in the cache was found, so it is vouched for: also when the power goes now.
    sim.context += ", then the power";
    sim.crash(false);
    sim.reopen_and_judge();
    if (!sim.is_open()) return finished;
  }

  // What recovery left must bear further use.
  sim.context += ", second life";
  sim.put_all({{{"second life 1", "", 0}, 20'000}, {{"second life 2", "salt", 1}, 1}});
  sim.put({"second life 3", "", 0}, 5'000, {.durable = true});
  sim.judge_all();
  const Status closed = sim.close();
  if (!closed.ok()) ADD_FAILURE() << sim.context << ": close: " << closed.to_string();
  sim.context += ", third";
  sim.reopen_and_judge();
  if (!sim.is_open()) return finished;
  EXPECT_EQ(sim.number("recovery_regions_open_found"), 0)
      << sim.context << ": sealed at the second opening, or by close";
  EXPECT_EQ(sim.number("recovery_regions_quarantined"), 0) << sim.context;
  return finished;
}

}  // namespace

CrashLoopResult crash_at_every_operation(const SimSetup& setup, const Scenario& scenario) {
  CrashLoopResult result;
  for (uint64_t n = 1; n < kOperationsMax; n += case_stride()) {
    SimSetup seeded = setup;
    seeded.seed = setup.seed * 100'000 + n;
    const bool finished = crash_once(seeded, scenario, n, How::kCacheKept, result.recoveries_cut);
    crash_once(seeded, scenario, n, How::kCacheLost, result.recoveries_cut);
    crash_once(seeded, scenario, n, How::kRecoveryToo, result.recoveries_cut);
    result.operations = n;
    ++result.stops;
    if (finished || ::testing::Test::HasFailure()) return result;
  }
  ADD_FAILURE() << "the scenario never ends";
  return result;
}

}  // namespace kvstore::store
