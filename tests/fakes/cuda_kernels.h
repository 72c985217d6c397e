// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of csrc/gpu/kernels as the fake driver runs them: by the CPU references, on whatever memory a map gives.
//
// As strict as a GPU: an address that nobody has, or that is no multiple of 16 bytes, is the error that ends a context.
// Page nodes are hashed by xxHash itself, so that they do not agree with the core's only because they are the core's.

#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "gpu/reference.h"

namespace fake_kernels {

inline constexpr int kIllegalAddress = 700;
inline constexpr int kMisalignedAddress = 716;

inline int move(const kvstore::gpu::MoveArguments& arguments, kvstore::gpu::Direction direction,
                const kvstore::gpu::AddressMap& map) {
  bool is_misaligned = false;
  const auto aligned_map = [&](uint64_t address, uint64_t bytes) -> uint8_t* {
    is_misaligned = is_misaligned || address % kvstore::gpu::kUnitBytes != 0;
    return is_misaligned ? nullptr : map(address, bytes);
  };
  if (kvstore::gpu::reference_move(arguments, direction, aligned_map).ok()) return 0;
  return is_misaligned ? kMisalignedAddress : kIllegalAddress;
}

inline int hash(const kvstore::gpu::PageNodesArguments& arguments, const kvstore::gpu::AddressMap& map) {
  constexpr uint64_t kPage = 4096;
  for (uint32_t i = 0; i < arguments.run_count; ++i) {
    const kvstore::gpu::PageRun& run = arguments.runs[i];
    if (run.address % kvstore::gpu::kUnitBytes != 0 || run.nodes_address % sizeof(uint64_t) != 0) {
      return kMisalignedAddress;
    }
    const uint64_t pages = (run.bytes + kPage - 1) / kPage;
    const uint8_t* const payload = map(run.address, run.bytes);
    uint8_t* const nodes = map(run.nodes_address, pages * sizeof(uint64_t));
    if (payload == nullptr || nodes == nullptr) return kIllegalAddress;
    for (uint64_t page = 0; page < pages; ++page) {
      uint8_t padded[kPage] = {};
      std::memcpy(padded, payload + page * kPage, std::min(kPage, run.bytes - page * kPage));
      const uint64_t node = XXH3_64bits(padded, kPage);
      std::memcpy(nodes + page * sizeof(node), &node, sizeof(node));
    }
  }
  return 0;
}

// The code that ends the context, or 0; -1: no kernel of that name.
inline int run(const char* name, void** arguments, const kvstore::gpu::AddressMap& map) {
  using kvstore::gpu::Direction;
  if (std::strcmp(name, "kvstore_scatter_extent") == 0) {
    return move(*static_cast<kvstore::gpu::MoveArguments*>(arguments[0]), Direction::kScatter, map);
  }
  if (std::strcmp(name, "kvstore_gather_extent") == 0) {
    return move(*static_cast<kvstore::gpu::MoveArguments*>(arguments[0]), Direction::kGather, map);
  }
  if (std::strcmp(name, "kvstore_page_nodes") == 0) {
    return hash(*static_cast<kvstore::gpu::PageNodesArguments*>(arguments[0]), map);
  }
  return -1;
}

}  // namespace fake_kernels
