// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: kernels, references and plain copies move exactly the bytes that a transfer names, and no other.
// Method: random shapes and strides against a loop over every byte (random_cache.h); the whole arena is compared.
// The kernels are the text that nvcc compiles, run on the CPU.

#include <gtest/gtest.h>

#include <cstring>

#include "gpu/reference.h"
#include "gpu_kernels/cuda_on_cpu.h"
#include "gpu_kernels/random_cache.h"

#include "gpu/kernels/move_kernel.h"

namespace kvstore::gpu {
namespace {

constexpr uint64_t kSeeds = 150;

class Moves : public testing::TestWithParam<Direction> {};

INSTANTIATE_TEST_SUITE_P(BothWays, Moves, testing::Values(Direction::kScatter, Direction::kGather),
                         [](const auto& way) { return way.param == Direction::kScatter ? "scatter" : "gather"; });

void kernel_to_cache(const MoveArguments arguments) { move_units<true>(arguments); }
void kernel_to_extent(const MoveArguments arguments) { move_units<false>(arguments); }

TEST_P(Moves, TheReferenceMovesEveryByteItShouldAndNoOther) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    RandomTransfer transfer(seed);
    const std::vector<uint8_t> expected = transfer.expected(GetParam());
    const MovePlan plan = transfer.plan(GetParam());
    ASSERT_TRUE(for_each_launch(transfer.layout, plan, [&](const MoveArguments& arguments) {
                  return reference_move(arguments, GetParam(), same_address);
                }).ok());
    ASSERT_TRUE(transfer.arena[0].holds(expected)) << "seed " << seed;
  }
}

// Whether a chunk of a launch has one place for all of it.
bool has_a_whole_chunk(const MoveArguments& arguments) {
  for (uint32_t unit = 0; unit < arguments.total_units; unit += kChunkUnits) {
    const UnitPlace place = place_of(arguments, unit);
    if (place.run_left >= kChunkUnits && place.units_left >= kChunkUnits) return true;
  }
  return false;
}

TEST_P(Moves, TheKernelMovesEveryByteItShouldAndNoOther) {
  int with_whole_chunks = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    RandomTransfer transfer(seed);
    const std::vector<uint8_t> expected = transfer.expected(GetParam());
    const MovePlan plan = transfer.plan(GetParam());
    // Fewer threads than units, and more: both ends of the loop over tiles.
    const uint32_t blocks = static_cast<uint32_t>(1 + transfer.random.below(3));
    const uint32_t threads = static_cast<uint32_t>(32 * (1 + transfer.random.below(3)));
    ASSERT_TRUE(for_each_launch(transfer.layout, plan, [&](const MoveArguments& arguments) -> Status {
                  with_whole_chunks += has_a_whole_chunk(arguments) ? 1 : 0;
                  run_grid(GetParam() == Direction::kScatter ? kernel_to_cache : kernel_to_extent, arguments, blocks,
                           threads);
                  return {};
                }).ok());
    ASSERT_TRUE(transfer.arena[0].holds(expected)) << "seed " << seed;
  }
  EXPECT_GT(with_whole_chunks, 10);
  EXPECT_LT(with_whole_chunks, 100);
}

TEST_P(Moves, TheRunsCoverEveryByteOnce) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    RandomTransfer transfer(seed);
    const std::vector<uint8_t> expected = transfer.expected(GetParam());
    const MovePlan plan = transfer.plan(GetParam());
    uint64_t moved_bytes = 0;
    ASSERT_TRUE(for_each_run(transfer.layout, plan, [&](const CopyRun& run) -> Status {
                  const bool scatter = GetParam() == Direction::kScatter;
                  const uint64_t target = scatter ? run.cache_address : run.extent_address;
                  const uint64_t source = scatter ? run.extent_address : run.cache_address;
                  std::memcpy(transfer.arena[0].at(target), transfer.arena[0].at(source), run.bytes);
                  moved_bytes += run.bytes;
                  return {};
                }).ok());
    ASSERT_TRUE(transfer.arena[0].holds(expected)) << "seed " << seed;
    ASSERT_EQ(moved_bytes, plan.bytes);
  }
}

TEST(MovePlan, CutsWhatIsMoreThanALaunchCarries) {
  SeededRandom random(7);
  PagedLayout layout;
  layout.layers = 90;
  layout.kv_count = 2;
  layout.cache_blocks = 200;
  layout.block_tokens = layout.heads = 1;
  layout.head_bytes = kUnitBytes;
  layout.block_stride_bytes = kUnitBytes;
  Arena arena(2 * layout.plane_count() * layout.cache_blocks * kUnitBytes, random);
  for (uint64_t i = 0; i < layout.plane_count(); ++i) {
    layout.planes.push_back(arena.address() + i * layout.cache_blocks * kUnitBytes);
  }
  ASSERT_TRUE(layout.validate().ok());
  std::vector<int64_t> blocks;
  for (int64_t i = 0; i < 200; ++i) blocks.push_back(199 - i);
  const uint64_t extent = arena.address() + layout.plane_count() * layout.cache_blocks * kUnitBytes;
  const ExtentMove move = {{extent, layout.extent_bytes(200)}, 200, blocks};
  MovePlan plan;
  ASSERT_TRUE(make_plan(layout, Direction::kScatter, {&move, 1}, {}, plan).ok());
  int launches = 0;
  ASSERT_TRUE(for_each_launch(layout, plan, [&](const MoveArguments& arguments) -> Status {
                EXPECT_LE(arguments.move_count, kLaunchMoves);
                EXPECT_LE(arguments.plane_count, kLaunchPlanes);
                run_grid(kernel_to_cache, arguments, 2, 64);
                ++launches;
                return {};
              }).ok());
  EXPECT_EQ(launches, 4);  // 180 planes by 160, 200 cache blocks by 156
  for (uint64_t plane = 0; plane < 180; ++plane) {
    for (uint64_t block = 0; block < 200; ++block) {
      ASSERT_EQ(std::memcmp(arena.at(layout.planes[plane] + block * kUnitBytes),
                            arena.at(extent + (plane * 200 + 199 - block) * kUnitBytes), kUnitBytes),
                0)
          << "plane " << plane << " block " << block;
    }
  }
}

TEST(Divider, IsExactBelowTwoToThe31) {
  SeededRandom random(3);
  const auto check = [](uint32_t divisor, uint32_t number) {
    const Divider by = make_divider(divisor);
    ASSERT_EQ(divide(number, by), number / divisor) << number << " / " << divisor;
  };
  for (uint32_t divisor = 1; divisor < 3000; ++divisor) {
    for (const uint32_t number : {0u, 1u, divisor - 1, divisor, 0x7fffffffu, 0x7fffffffu / divisor * divisor,
                                  0x7fffffffu / divisor * divisor - 1}) {
      check(divisor, number);
    }
  }
  for (int i = 0; i < 100'000; ++i) {
    const uint32_t divisor = static_cast<uint32_t>(1 + random.below((1u << (1 + random.below(30))) - 1));
    const uint32_t multiple = static_cast<uint32_t>(random.below(0x7fffffffu / divisor + 1)) * divisor;
    check(divisor, multiple);
    if (multiple > 0) check(divisor, multiple - 1);
  }
}

}  // namespace
}  // namespace kvstore::gpu
