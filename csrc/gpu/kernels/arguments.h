// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What a launch hands to a kernel, whole, by value: the driver copies it when it is called. So a launch needs no table
// in device memory, nothing has to live until the kernel has run, and every thread reads it from the constant bank.
// 4 KiB is what a launch may carry on every driver and every GPU.
//
// Shared by the kernels (nvcc), the launcher and the references; plain data, no C++ library.

#pragma once

#include <stdint.h>

namespace kvstore {
namespace gpu {

constexpr uint32_t kLaunchPlanes = 160;  // 80 layers of keys and values in one launch
constexpr uint32_t kLaunchMoves = 156;
constexpr uint32_t kLaunchRuns = 126;
constexpr uint32_t kLaunchArgumentBytes = 4096;

constexpr uint32_t kMoveThreads = 512;              // one such block of threads per multiprocessor
constexpr uint32_t kMoveUnroll = 8;                 // 16-byte accesses of a thread under way at once
constexpr uint32_t kChunkUnits = 32 * kMoveUnroll;  // 4 KiB of an extent: what a warp moves at a time
constexpr uint32_t kPageThreadsMin = 128;           // where there are few pages
constexpr uint32_t kPageThreadsMax = 1024;          // one such block of threads per multiprocessor
constexpr uint32_t kThreadsAPage = 4;

// Division by a number below 2^30 of numbers below 2^31, by one multiplication: a GPU has no division instruction, and
// four divisions for 16 bytes would take longer than moving them.
// magic = ceil(2^(31 + s) / d) with 2^s >= d: it is less than 1 too large, so n * magic / 2^(31 + s) exceeds n / d by
// less than n / 2^(31 + s) <= 1 / d, which never reaches the next whole number.
struct Divider {
  uint32_t divisor;
  uint32_t magic;
  uint32_t shift;
};

// The tokens of one cache block.
struct Move {
  uint64_t extent_address;  // of its first token in layer 0, kv 0
  uint32_t cache_block;
  uint32_t units;  // of each plane; fewer than units_a_block when the tokens are the last, partial ones of an extent
};

// Units of 16 bytes are numbered as they lie in extents: plane by plane, in each plane move by move, in each move token
// by token. A run is what is contiguous in the cache too: a head, a token or a whole cache block; if it is longer than
// a head, there is one run a token, and if longer than a token, a token is as long as the cache block.
struct MoveArguments {
  uint64_t planes[kLaunchPlanes];  // addresses of cache block 0
  Move moves[kLaunchMoves];
  uint64_t block_stride_bytes;
  uint64_t token_stride_bytes;
  uint64_t run_stride_bytes;    // from one run of a token to the next
  uint64_t extent_plane_bytes;  // from one plane of an extent to the next
  uint32_t first_plane;         // planes[0] is this plane of the extent
  uint32_t plane_count;
  uint32_t move_count;
  uint32_t total_units;  // plane_count * move_count * units_a_block; below 2^31
  Divider units_a_run;
  Divider units_a_token;
  Divider units_a_block;
  Divider moves_a_plane;
};

// Contiguous payload to be hashed; its page nodes are written one after the other.
struct PageRun {
  uint64_t address;
  uint64_t bytes;
  uint64_t nodes_address;
  uint32_t first_page;  // pages of the runs before it
  uint32_t unused;
};

struct PageNodesArguments {
  PageRun runs[kLaunchRuns];
  uint32_t run_count;
  uint32_t page_count;
};

static_assert(sizeof(MoveArguments) <= kLaunchArgumentBytes, "more than a launch may carry");
static_assert(sizeof(PageNodesArguments) <= kLaunchArgumentBytes, "more than a launch may carry");

}  // namespace gpu
}  // namespace kvstore
