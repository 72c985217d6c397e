// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu_kernels/random_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/units.h"

namespace kvstore::gpu {
namespace {

constexpr uint64_t kGuardBytes = 64;

template <typename Item>
void shuffle(std::vector<Item>& items, SeededRandom& random) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.below(i)]);
}

}  // namespace

Arena::Arena(uint64_t bytes, SeededRandom& random) : units_(ceil_div(bytes, sizeof(Unit)) + 2) {
  random.fill(units_.data(), units_.size() * sizeof(Unit));
}

std::vector<uint8_t> Arena::copy() const {
  std::vector<uint8_t> bytes(units_.size() * sizeof(Unit));
  std::memcpy(bytes.data(), units_.data(), bytes.size());
  return bytes;
}

bool Arena::holds(const std::vector<uint8_t>& expected) const {
  const std::vector<uint8_t> found = copy();
  const auto [there, here] = std::mismatch(found.begin(), found.end(), expected.begin());
  if (there == found.end()) return true;
  ADD_FAILURE() << "byte " << there - found.begin() << " of the arena is " << int{*there} << ", not " << int{*here};
  return false;
}

RandomTransfer::RandomTransfer(uint64_t seed) : random(seed) {
  const uint64_t cache_end = make_layout();
  const uint64_t end = make_extents(cache_end);
  arena.emplace_back(end + kGuardBytes, random);
  for (uint64_t& plane : layout.planes) plane += arena[0].address();
  for (Extent& extent : extents) extent.address += arena[0].address();
  layers.first = static_cast<uint32_t>(random.below(layout.layers));
  if (random.below(2) == 0) layers = {};
}

// The four dimensions nested in a random order, with random padding between them.
uint64_t RandomTransfer::make_layout() {
  layout.layers = static_cast<uint32_t>(1 + random.below(4));
  layout.kv_count = static_cast<uint32_t>(1 + random.below(2));
  layout.cache_blocks = static_cast<uint32_t>(1 + random.below(9));
  layout.block_tokens = static_cast<uint32_t>(1 + random.below(9));
  layout.heads = static_cast<uint32_t>(1 + random.below(4));
  layout.head_bytes = static_cast<uint32_t>(kUnitBytes * (1 + random.below(9)));
  if (random.below(3) == 0) {  // runs that are longer than what a warp moves at a time
    layout.layers = 1 + layout.layers % 2;
    layout.cache_blocks = 1 + layout.cache_blocks % 3;
    layout.block_tokens = 1 + layout.block_tokens % 4;
    layout.head_bytes = static_cast<uint32_t>(kUnitBytes * (1 + random.below(700)));
  }
  uint64_t plane_stride = 0;
  std::vector<std::pair<uint64_t*, uint64_t>> dimensions = {{&layout.head_stride_bytes, layout.heads},
                                                            {&layout.token_stride_bytes, layout.block_tokens},
                                                            {&layout.block_stride_bytes, layout.cache_blocks},
                                                            {&plane_stride, layout.plane_count()}};
  if (random.below(3) > 0) shuffle(dimensions, random);
  uint64_t span_bytes = layout.head_bytes;
  const bool padded = random.below(2) == 0;
  for (const auto& [stride, count] : dimensions) {
    *stride = span_bytes + (padded ? kUnitBytes * random.below(3) : 0);
    span_bytes += *stride * (count - 1);
  }
  for (uint64_t i = 0; i < layout.plane_count(); ++i) layout.planes.push_back(kGuardBytes + i * plane_stride);
  shuffle(layout.planes, random);
  return kGuardBytes + span_bytes;
}

uint64_t RandomTransfer::make_extents(uint64_t end) {
  std::vector<int64_t> blocks(layout.cache_blocks);
  std::iota(blocks.begin(), blocks.end(), int64_t{0});
  shuffle(blocks, random);
  while (!blocks.empty()) {
    const uint64_t count = 1 + random.below(std::min<uint64_t>(blocks.size(), 4));
    Extent extent;
    extent.tokens = static_cast<uint32_t>((count - 1) * layout.block_tokens + 1 + random.below(layout.block_tokens));
    for (uint64_t i = 0; i < count; ++i) {
      extent.cache_blocks.push_back(random.below(5) == 0 ? kNoCacheBlock : blocks.back());
      blocks.pop_back();
    }
    extent.address = align_up(end + kGuardBytes, kUnitBytes);
    end = extent.address + layout.extent_bytes(extent.tokens);
    extents.push_back(std::move(extent));
  }
  return end;
}

std::vector<uint8_t> RandomTransfer::expected(Direction direction) const {
  std::vector<uint8_t> bytes = arena[0].copy();
  const std::vector<uint8_t> before = bytes;
  for (const Extent& extent : extents) {
    uint64_t in_extent = arena[0].offset(extent.address);
    for (uint64_t plane = 0; plane < layout.planes.size(); ++plane) {
      for (uint64_t token = 0; token < extent.tokens; ++token) {
        for (uint64_t head = 0; head < layout.heads; ++head) {
          for (uint64_t byte = 0; byte < layout.head_bytes; ++byte, ++in_extent) {
            const int64_t block = extent.cache_blocks[token / layout.block_tokens];
            if (block == kNoCacheBlock || plane / layout.kv_count < layers.first) continue;
            const uint64_t in_cache =
                arena[0].offset(layout.planes[plane]) + static_cast<uint64_t>(block) * layout.block_stride_bytes +
                token % layout.block_tokens * layout.token_stride_bytes + head * layout.head_stride_bytes + byte;
            if (direction == Direction::kScatter) {
              bytes[in_cache] = before[in_extent];
            } else {
              bytes[in_extent] = before[in_cache];
            }
          }
        }
      }
    }
  }
  return bytes;
}

std::vector<ExtentMove> RandomTransfer::extent_moves() const {
  std::vector<ExtentMove> moves;
  for (const Extent& extent : extents) {
    moves.push_back({{extent.address, layout.extent_bytes(extent.tokens)}, extent.tokens, extent.cache_blocks});
  }
  return moves;
}

MovePlan RandomTransfer::plan(Direction direction) const {
  MovePlan plan;
  // The arena lies around both; real extents are allocations of their own.
  const Status status = make_plan(layout, direction, extent_moves(), layers, plan);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return plan;
}

}  // namespace kvstore::gpu
