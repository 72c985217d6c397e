// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The crash loop: any scripted scenario, stopped at its n-th device operation for every n, once with and once without
// what the device's cache held, and once more with recovery stopped in its turn, up to three times over; opened again,
// judged, used, closed cleanly, opened and judged once more.

#pragma once

#include <functional>

#include "store/sim_harness.h"

namespace kvstore::store {

// Runs on a formatted, closed store. After the stop every answer is an error: a scenario goes on or returns, as it
// likes (SimStore::stopped() tells).
using Scenario = std::function<void(SimStore&)>;

struct CrashLoopResult {
  uint64_t operations = 0;      // of the scenario
  uint64_t stops = 0;           // at how many of them it was stopped: all, but for KVS_STRIDE
  uint64_t recoveries_cut = 0;  // openings that did not live to their end
};
CrashLoopResult crash_at_every_operation(const SimSetup& setup, const Scenario& scenario);

}  // namespace kvstore::store
