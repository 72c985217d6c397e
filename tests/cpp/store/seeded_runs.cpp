// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/seeded_runs.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>

namespace kvstore::store {

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

uint64_t run_seeds(uint64_t seeds_default, const std::string& replay, const std::function<void(uint64_t seed)>& run) {
  using SteadyClock = std::chrono::steady_clock;
  const uint64_t only = from_environment("KVS_SEED", 0);
  const uint64_t first = only != 0 ? only : from_environment("KVS_FIRST_SEED", 1);
  const uint64_t seconds = only != 0 ? 0 : from_environment("KVS_SECONDS", 0);
  const uint64_t count =
      only != 0 ? 1 : from_environment("KVS_SEEDS", seconds != 0 ? UINT64_MAX - first : seeds_default);
  const auto end = SteadyClock::now() + std::chrono::seconds(seconds);
  const bool goes_on = std::getenv("KVS_GO_ON") != nullptr;
  for (uint64_t seed = first; seed < first + count && (goes_on || !testing::Test::HasFailure()); ++seed) {
    if (seconds != 0 && SteadyClock::now() >= end) break;
    if (std::getenv("KVS_PROGRESS") != nullptr)
      std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed));
    run(seed);
    if (testing::Test::HasFailure() && !goes_on)
      std::printf("replay it: %s %llu\n", replay.c_str(), static_cast<unsigned long long>(seed));
  }
  return first;
}

uint32_t draw_weighted(SeededRandom& random, std::span<const uint32_t> weights) {
  uint64_t drawn = random.below(std::accumulate(weights.begin(), weights.end(), uint64_t{0}));
  for (uint32_t index = 0; index < weights.size(); ++index) {
    if (drawn < weights[index]) return index;
    drawn -= weights[index];
  }
  return 0;
}

std::string summary_text(uint64_t first_seed, std::span<const std::pair<const char*, uint64_t>> numbers) {
  std::string text = "KVS_SUMMARY {\"first_seed\": " + std::to_string(first_seed);
  for (const auto& [name, value] : numbers) text += std::string(", \"") + name + "\": " + std::to_string(value);
  return text;
}

}  // namespace kvstore::store
