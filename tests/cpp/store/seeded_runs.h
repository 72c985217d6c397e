// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What tests that run one seed after another have in common: which seeds, for how long, and how a failing one is run
// again. From the environment:
//
//   KVS_SEED          this one only              KVS_FIRST_SEED, KVS_SEEDS   so many from there on
//   KVS_SECONDS       for so long                KVS_PROGRESS                names each on standard error
//   KVS_GO_ON         also after one that fails

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "base/clock.h"

namespace kvstore::store {

uint64_t from_environment(const char* name, uint64_t otherwise);

// Runs `run` for each seed until one fails, and prints how to replay that one with `replay` (a command, before the
// seed). Returns the first seed.
uint64_t run_seeds(uint64_t seeds_default, const std::string& replay, const std::function<void(uint64_t seed)>& run);

// An index, as often as its weight says.
uint32_t draw_weighted(SeededRandom& random, std::span<const uint32_t> weights);

// "KVS_SUMMARY {"first_seed": …, "name": value, …", without the end: scripts/lib reads it.
std::string summary_text(uint64_t first_seed, std::span<const std::pair<const char*, uint64_t>> numbers);

}  // namespace kvstore::store
