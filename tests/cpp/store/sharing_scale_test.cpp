// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What a shared pool costs as openers are added: requests to the metadata engine, reads of metadata, keys. Prints what
// it measured; docs/sharing.md has the formulas, and the bounds here are theirs.

#include <gtest/gtest.h>

#include <cstdio>

#include "store/many_openers.h"

namespace kvstore::store {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

class SharingScale : public testing::TestWithParam<uint32_t> {};

TEST_P(SharingScale, CostsAreThoseOfTheFormulas) {
  const uint32_t count = GetParam();
  OpenersSetup setup;
  setup.openers = count;
  setup.regions = 16 * count;
  ManyOpeners openers(setup);
  for (uint32_t i = 0; i < count; ++i) ASSERT_TRUE(openers.open(i).ok()) << i;
  // Full once, then over and over: each put of an opener's turn.
  int number = 0;
  const auto put_regions = [&](uint32_t regions) {
    for (uint32_t i = 0; i < regions * ManyOpeners::kBlocksPerRegion; ++i, ++number) {
      ASSERT_EQ(openers.put(static_cast<uint32_t>(number) % count, number).status, ItemStatus::kStored) << number;
    }
  };
  put_regions(setup.regions);
  const auto sum = [&](const char* name) {
    double total = 0;
    for (uint32_t i = 0; i < count; ++i) total += openers.number(i, name);
    return total;
  };
  const double requests_before = sum("engine_requests");
  const double retired_before = sum("regions_retired");
  const double reads_before = sum("peer_reads");
  const uint64_t began_ns = openers.now_ns();
  put_regions(setup.regions / 2);
  openers.run(kSecondNs);
  const double seconds = static_cast<double>(openers.now_ns() - began_ns) / 1e9;
  const double requests = sum("engine_requests") - requests_before;
  const double retired = sum("regions_retired") - retired_before;
  const double reads = sum("peer_reads") - reads_before;
  const double lease_seconds = static_cast<double>(ManyOpeners::kLeaseNs) / 1e9;
  const double formula = retired * (3 + count) + count * seconds * (5 / lease_seconds + 0.1);
  std::printf(
      "%u openers: %.0f regions reused in %.1f s, %.0f engine requests (formula %.0f), %.0f metadata reads a second "
      "and opener, %zu keys\n",
      count, retired, seconds, requests, formula, reads / seconds / count, openers.cluster().keys());
  EXPECT_GT(retired, setup.regions / 4);
  EXPECT_LE(requests, 1.25 * formula + 20 * count);
  EXPECT_LE(openers.cluster().keys(), setup.regions + 4 * count + 3);
  EXPECT_LE(reads / count, StoreOptions().shared.refresh_reads_per_s * (seconds + 1));  // one second's may be saved up
  EXPECT_EQ(openers.all_violations(), "");
}

INSTANTIATE_TEST_SUITE_P(Openers, SharingScale, testing::Values(2, 8, 64));

}  // namespace
}  // namespace kvstore::store
