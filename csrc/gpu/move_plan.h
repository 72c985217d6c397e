// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What a transfer between extents and a paged cache moves, checked once, and cut into launches.
//
// Guarantees of make_plan(): every cache block is within the cache, none is written twice, every extent is as long as
// its tokens say, aligned to 16 bytes, and outside the cache. So a kernel checks nothing.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "gpu/kernels/arguments.h"
#include "gpu/paged_layout.h"

namespace kvstore::gpu {

enum class Direction : uint8_t { kScatter, kGather };  // extent to cache, cache to extent

// Leaves out these tokens of an extent: the engine has them already.
inline constexpr int64_t kNoCacheBlock = -1;

struct ExtentMove {
  DeviceSpan extent;  // device memory, or mapped pinned host memory
  uint32_t tokens = 0;
  std::span<const int64_t> cache_blocks;  // one for each block_tokens tokens, the last may be partial
};

struct LayerRange {
  uint32_t first = 0;
  uint32_t count = UINT32_MAX;  // at most; the default is all
};

struct MovePlan {
  struct Group {  // extents of equally many tokens
    uint64_t extent_tokens;
    size_t first_move;
    size_t move_count;
  };
  std::vector<Move> moves;
  std::vector<Group> groups;
  LayerRange layers;
  uint64_t bytes = 0;  // that will be moved
};

// Keeps the memory of `plan` from one transfer to the next.
Status make_plan(const PagedLayout& layout, Direction direction, std::span<const ExtentMove> extents, LayerRange layers,
                 MovePlan& plan);

// The launches that a plan takes, one after the other, in the same arguments. Stops at the first that is not ok.
Status for_each_launch(const PagedLayout& layout, const MovePlan& plan,
                       const std::function<Status(const MoveArguments&)>& launch);

// Each contiguous run, for copies without a kernel. Stops at the first that is not ok.
struct CopyRun {
  uint64_t extent_address;
  uint64_t cache_address;
  uint64_t bytes;
};
Status for_each_run(const PagedLayout& layout, const MovePlan& plan, const std::function<Status(const CopyRun&)>& copy);

// Of a divisor from 1 to 2^30 - 1; exact for numbers below 2^31.
Divider make_divider(uint32_t divisor);

}  // namespace kvstore::gpu
