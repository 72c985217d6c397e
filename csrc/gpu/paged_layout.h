// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Where an engine's paged KV cache lies in device memory, by addresses and byte strides, so that no kernel has to
// know an engine's names for its layouts. A *cache block* is what engines call a block or page of their cache:
// `block_tokens` tokens of every layer, under one id. A *plane* is one (layer, kv) of all cache blocks.
//
//   address of (layer, kv, cache block, token, head) =
//       planes[layer * kv_count + kv] + block * block_stride + token * token_stride + head * head_stride
//
// Guarantees of validate(): nothing wraps around, no two of these runs of head_bytes overlap, and every address is a
// multiple of 16 bytes. Extents hold [layer][kv][token][head] without gaps, whatever the cache's order is.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace kvstore::gpu {

// Kernels load and store this much at once.
inline constexpr uint64_t kUnitBytes = 16;

struct DeviceSpan {
  uint64_t address = 0;
  uint64_t bytes = 0;
};

// What an engine says of its cache.
struct CacheShape {
  uint32_t layers = 0;
  uint32_t cache_blocks = 0;
  uint32_t block_tokens = 0;
  uint32_t heads = 0;        // KV heads on this device
  uint32_t head_bytes = 0;   // one head of one token: head size times bytes per element
  bool heads_first = false;  // [head][token] within a cache block ("HND") instead of [token][head] ("NHD")
};

struct PagedLayout {
  uint32_t layers = 0;
  uint32_t kv_count = 0;  // 2: keys and values; 1: one latent (MLA)
  uint32_t cache_blocks = 0;
  uint32_t block_tokens = 0;
  uint32_t heads = 0;
  uint32_t head_bytes = 0;
  uint64_t block_stride_bytes = 0;
  uint64_t token_stride_bytes = 0;
  uint64_t head_stride_bytes = 0;
  std::vector<uint64_t> planes;  // layers * kv_count addresses

  uint64_t token_bytes() const { return uint64_t{heads} * head_bytes; }  // of one plane
  uint64_t block_bytes() const { return token_bytes() * block_tokens; }  // of one plane
  uint64_t plane_count() const { return uint64_t{layers} * kv_count; }
  uint64_t extent_bytes(uint64_t tokens) const { return plane_count() * tokens * token_bytes(); }
  // The longest run that is contiguous both in an extent and in the cache: a head, a token, or a cache block.
  uint64_t run_bytes() const;
  // From a plane's address to the end of its last run.
  uint64_t plane_span_bytes() const;

  Status validate() const;
};

// Each checks that what it describes ends within the tensors it is given, and validates.
// [block][token][head] for K and for V of each layer: tensors K0, V0, K1, V1, …
Result<PagedLayout> layer_first(const CacheShape& shape, std::span<const DeviceSpan> tensors);
// [kv][block][token][head]: one tensor a layer.
Result<PagedLayout> two_major(const CacheShape& shape, std::span<const DeviceSpan> tensors);
// [block][kv][token][head]: one tensor a layer.
Result<PagedLayout> block_first(const CacheShape& shape, std::span<const DeviceSpan> tensors);
// [block][layer][kv][token][head]: one tensor for all layers.
Result<PagedLayout> cross_layer(const CacheShape& shape, const DeviceSpan& tensor);
// [block][token][latent]: one tensor a layer, `heads` = 1.
Result<PagedLayout> mla(const CacheShape& shape, std::span<const DeviceSpan> tensors);

}  // namespace kvstore::gpu
