// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Device code: moves tokens between extents and a paged cache, 16 bytes a thread and access. A warp moves 4 KiB of an
// extent at a time, consecutive threads consecutive units, so that both sides are read and written in whole sectors.
// No shared memory, no exchange between threads. Compiled by nvcc, and by the tests as plain C++.

#pragma once

#include "gpu/kernels/arguments.h"

namespace kvstore {
namespace gpu {

__device__ __forceinline__ uint32_t divide(uint32_t number, const Divider& by) {
  return static_cast<uint32_t>(static_cast<uint64_t>(number) * by.magic >> by.shift);
}

struct UnitPlace {
  uint64_t extent_address;
  uint64_t cache_address;
  uint32_t units_left;  // of the move, from this unit on; 0 past its last token
  uint32_t run_left;    // of the run, from this unit on
};

__device__ __forceinline__ UnitPlace place_of(const MoveArguments& arguments, uint32_t unit) {
  const uint32_t block = divide(unit, arguments.units_a_block);
  const uint32_t in_block = unit - block * arguments.units_a_block.divisor;
  const uint32_t plane = divide(block, arguments.moves_a_plane);
  const Move& move = arguments.moves[block - plane * arguments.moves_a_plane.divisor];
  const uint32_t token = divide(in_block, arguments.units_a_token);
  const uint32_t in_token = in_block - token * arguments.units_a_token.divisor;
  const uint32_t run = divide(in_token, arguments.units_a_run);
  const uint32_t in_run = in_token - run * arguments.units_a_run.divisor;
  UnitPlace place;
  place.extent_address = move.extent_address + (arguments.first_plane + plane) * arguments.extent_plane_bytes +
                         static_cast<uint64_t>(in_block) * 16;
  place.cache_address = arguments.planes[plane] + move.cache_block * arguments.block_stride_bytes +
                        token * arguments.token_stride_bytes + run * arguments.run_stride_bytes +
                        static_cast<uint64_t>(in_run) * 16;
  place.units_left = in_block < move.units ? move.units - in_block : 0;
  place.run_left = arguments.units_a_run.divisor - in_run;
  return place;
}

// An extent is read once, so it need not stay in any cache; of the engine's cache, L2 keeps what it will.
template <bool kToCache>
__device__ __forceinline__ uint4 load_unit(uint64_t address) {
  const uint4* unit = reinterpret_cast<const uint4*>(address);
  return kToCache ? __ldcs(unit) : __ldcg(unit);
}

__device__ __forceinline__ void store_unit(uint64_t address, const uint4& unit) {
  __stcg(reinterpret_cast<uint4*>(address), unit);
}

// A chunk within one run: one place for all of it.
template <bool kToCache>
__device__ __forceinline__ void move_whole_chunk(const UnitPlace& start, uint32_t lane) {
  const uint64_t source = (kToCache ? start.extent_address : start.cache_address) + lane * 16;
  const uint64_t target = (kToCache ? start.cache_address : start.extent_address) + lane * 16;
  uint4 units[kMoveUnroll];
  KVS_UNROLL
  for (uint32_t i = 0; i < kMoveUnroll; ++i) units[i] = load_unit<kToCache>(source + i * (32 * 16));
  KVS_UNROLL
  for (uint32_t i = 0; i < kMoveUnroll; ++i) store_unit(target + i * (32 * 16), units[i]);
}

// A chunk of short runs, or with the end of something in it: a place for each unit.
template <bool kToCache>
__device__ __forceinline__ void move_mixed_chunk(const MoveArguments& arguments, uint32_t first, uint32_t lane) {
  uint4 units[kMoveUnroll];
  uint64_t targets[kMoveUnroll];
  KVS_UNROLL
  for (uint32_t i = 0; i < kMoveUnroll; ++i) {
    const uint32_t unit = first + i * 32 + lane;
    targets[i] = 0;
    if (unit >= arguments.total_units) continue;
    const UnitPlace place = place_of(arguments, unit);
    if (place.units_left == 0) continue;
    targets[i] = kToCache ? place.cache_address : place.extent_address;
    units[i] = load_unit<kToCache>(kToCache ? place.extent_address : place.cache_address);
  }
  KVS_UNROLL
  for (uint32_t i = 0; i < kMoveUnroll; ++i) {
    if (targets[i] != 0) store_unit(targets[i], units[i]);
  }
}

// Every thread has kMoveUnroll loads under way before its first store: a transfer is limited by the bytes in flight.
template <bool kToCache>
__device__ __forceinline__ void move_units(const MoveArguments& arguments) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const uint32_t warps = gridDim.x * blockDim.x / 32;
  for (uint64_t first = static_cast<uint64_t>(warp) * kChunkUnits; first < arguments.total_units;
       first += static_cast<uint64_t>(warps) * kChunkUnits) {
    // The same for all threads of the warp, which so take the same branch.
    const UnitPlace start = place_of(arguments, static_cast<uint32_t>(first));
    if (start.run_left >= kChunkUnits && start.units_left >= kChunkUnits) {
      move_whole_chunk<kToCache>(start, lane);
    } else {
      move_mixed_chunk<kToCache>(arguments, static_cast<uint32_t>(first), lane);
    }
  }
}

}  // namespace gpu
}  // namespace kvstore
