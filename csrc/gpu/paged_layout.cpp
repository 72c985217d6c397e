// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/paged_layout.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "base/units.h"

namespace kvstore::gpu {
namespace {

// So that one launch can number all its units in 31 bits (move_plan.h).
constexpr uint64_t kBlockBytesMax = 64 * kMiB;
constexpr uint64_t kPlanesMax = 2048;

unsigned long long ull(uint64_t value) { return value; }

Status invalid(std::string message) { return Status(Code::kInvalid, "paged cache: " + std::move(message)); }

struct Dimension {
  const char* name;
  uint64_t stride_bytes;
  uint64_t count;
};

// Innermost first. Dimensions of one element have no stride to speak of and are left out.
struct Dimensions {
  std::array<Dimension, 3> items = {};
  size_t count = 0;

  explicit Dimensions(const PagedLayout& layout) {
    const std::array<Dimension, 3> all = {{{"head", layout.head_stride_bytes, layout.heads},
                                           {"token", layout.token_stride_bytes, layout.block_tokens},
                                           {"block", layout.block_stride_bytes, layout.cache_blocks}}};
    for (const Dimension& dimension : all) {
      if (dimension.count == 1) continue;
      size_t place = count++;
      for (; place > 0 && items[place - 1].stride_bytes > dimension.stride_bytes; --place) {
        items[place] = items[place - 1];
      }
      items[place] = dimension;
    }
  }
};

// Whether a set of runs and the same set moved by `distance` have a byte in common. The strides are nested, so at each
// level only the two neighbouring multiples of the stride can bring the copies together.
bool meet(int64_t distance, const Dimensions& dimensions, size_t level, uint64_t run_bytes) {
  if (level == 0) return distance > -static_cast<int64_t>(run_bytes) && distance < static_cast<int64_t>(run_bytes);
  const Dimension& outer = dimensions.items[level - 1];
  const int64_t stride = static_cast<int64_t>(outer.stride_bytes);
  int64_t steps = distance / stride;
  if (distance % stride < 0) --steps;  // rounds down
  for (const int64_t step : {steps, steps + 1}) {
    if (step <= -static_cast<int64_t>(outer.count) || step >= static_cast<int64_t>(outer.count)) continue;
    if (meet(distance - step * stride, dimensions, level - 1, run_bytes)) return true;
  }
  return false;
}

Status check_counts(const PagedLayout& layout) {
  if (layout.layers == 0 || layout.cache_blocks == 0 || layout.block_tokens == 0 || layout.heads == 0 ||
      layout.head_bytes == 0) {
    return invalid(format_text("%u layers, %u cache blocks, %u tokens a block, %u heads of %u bytes: none may be 0",
                               layout.layers, layout.cache_blocks, layout.block_tokens, layout.heads,
                               layout.head_bytes));
  }
  if (layout.kv_count != 1 && layout.kv_count != 2) {
    return invalid(format_text("kv_count is %u: give 2 (keys and values) or 1 (MLA)", layout.kv_count));
  }
  if (layout.plane_count() > kPlanesMax) {
    return invalid(format_text("%u layers: at most %llu", layout.layers, ull(kPlanesMax / layout.kv_count)));
  }
  if (layout.planes.size() != layout.plane_count()) {
    return invalid(format_text("%zu plane addresses for %u layers of %u: give %llu", layout.planes.size(),
                               layout.layers, layout.kv_count, ull(layout.plane_count())));
  }
  if (layout.token_bytes() > kBlockBytesMax || layout.block_bytes() > kBlockBytesMax) {
    return invalid(format_text("a cache block has %u tokens of %llu bytes a layer: at most %llu bytes together",
                               layout.block_tokens, ull(layout.token_bytes()), ull(kBlockBytesMax)));
  }
  return {};
}

Status check_alignment(const PagedLayout& layout) {
  const auto check = [](const char* what, uint64_t value) -> Status {
    if (value % kUnitBytes == 0) return {};
    return invalid(format_text("%s is %llu, not a multiple of %llu bytes: use the copies of the host path for it", what,
                               ull(value), ull(kUnitBytes)));
  };
  KVS_TRY(check("head_bytes", layout.head_bytes));
  if (layout.heads > 1) KVS_TRY(check("head stride", layout.head_stride_bytes));
  if (layout.block_tokens > 1) KVS_TRY(check("token stride", layout.token_stride_bytes));
  if (layout.cache_blocks > 1) KVS_TRY(check("block stride", layout.block_stride_bytes));
  for (size_t i = 0; i < layout.planes.size(); ++i) {
    const uint64_t layer = i / layout.kv_count, kv = i % layout.kv_count;
    KVS_TRY(check(format_text("address of layer %llu, kv %llu", ull(layer), ull(kv)).c_str(), layout.planes[i]));
  }
  return {};
}

// Every stride reaches over all that the smaller ones span, so runs of one plane never overlap.
Status check_nesting(const PagedLayout& layout, const Dimensions& dimensions) {
  uint64_t span_bytes = layout.head_bytes;
  for (size_t i = 0; i < dimensions.count; ++i) {
    const Dimension& dimension = dimensions.items[i];
    if (dimension.stride_bytes < span_bytes) {
      return invalid(format_text("%s stride %llu is less than the %llu bytes that it steps over: they would overlap",
                                 dimension.name, ull(dimension.stride_bytes), ull(span_bytes)));
    }
    uint64_t reach = 0;
    if (__builtin_mul_overflow(dimension.stride_bytes, dimension.count - 1, &reach) ||
        __builtin_add_overflow(reach, span_bytes, &span_bytes) || span_bytes > uint64_t{1} << 62) {
      return invalid(format_text("%llu steps of the %s stride %llu leave the address space", ull(dimension.count - 1),
                                 dimension.name, ull(dimension.stride_bytes)));
    }
  }
  return {};
}

Status check_planes(const PagedLayout& layout, const Dimensions& dimensions) {
  const uint64_t span_bytes = layout.plane_span_bytes();
  std::vector<size_t> order(layout.planes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return layout.planes[a] < layout.planes[b]; });
  for (size_t i = 0; i < order.size(); ++i) {
    const uint64_t address = layout.planes[order[i]];
    uint64_t end = 0;
    if (address == 0 || __builtin_add_overflow(address, span_bytes, &end)) {
      return invalid(format_text("layer %llu, kv %llu at address 0x%llx and %llu bytes on: no such memory",
                                 ull(order[i] / layout.kv_count), ull(order[i] % layout.kv_count), ull(address),
                                 ull(span_bytes)));
    }
    for (size_t j = i + 1; j < order.size() && layout.planes[order[j]] < end; ++j) {
      const uint64_t distance = layout.planes[order[j]] - address;
      if (!meet(static_cast<int64_t>(distance), dimensions, dimensions.count, layout.head_bytes)) continue;
      return invalid(format_text("layer %llu, kv %llu and layer %llu, kv %llu overlap: they are %llu bytes apart",
                                 ull(order[i] / layout.kv_count), ull(order[i] % layout.kv_count),
                                 ull(order[j] / layout.kv_count), ull(order[j] % layout.kv_count), ull(distance)));
    }
  }
  return {};
}

// A layout whose tokens and heads lie dense in each cache block; the planes and the block stride are the caller's.
PagedLayout dense(const CacheShape& shape, uint32_t kv_count) {
  PagedLayout layout;
  layout.layers = shape.layers;
  layout.kv_count = kv_count;
  layout.cache_blocks = shape.cache_blocks;
  layout.block_tokens = shape.block_tokens;
  layout.heads = shape.heads;
  layout.head_bytes = shape.head_bytes;
  layout.head_stride_bytes = shape.heads_first ? uint64_t{shape.block_tokens} * shape.head_bytes : shape.head_bytes;
  layout.token_stride_bytes = shape.heads_first ? shape.head_bytes : layout.token_bytes();
  return layout;
}

Status check_tensors(std::span<const DeviceSpan> tensors, uint64_t expected_count, uint64_t expected_bytes) {
  if (tensors.size() != expected_count) {
    return invalid(format_text("%zu tensors: this layout has %llu", tensors.size(), ull(expected_count)));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    uint64_t end = 0;
    if (__builtin_add_overflow(tensors[i].address, tensors[i].bytes, &end)) {
      return invalid(format_text("tensor %zu: %llu bytes at address 0x%llx leave the address space", i,
                                 ull(tensors[i].bytes), ull(tensors[i].address)));
    }
    if (tensors[i].bytes >= expected_bytes) continue;
    return invalid(
        format_text("tensor %zu has %llu bytes: the layout takes %llu", i, ull(tensors[i].bytes), ull(expected_bytes)));
  }
  return {};
}

// `parts` cache-block-sized parts a tensor, `part_step` from one to the next, in the order of the planes.
Result<PagedLayout> with_planes(PagedLayout layout, std::span<const DeviceSpan> tensors, uint64_t parts,
                                uint64_t part_step) {
  for (const DeviceSpan& tensor : tensors) {
    for (uint64_t part = 0; part < parts; ++part) layout.planes.push_back(tensor.address + part * part_step);
  }
  KVS_TRY(layout.validate());
  return layout;
}

// Before anything is multiplied: what the products below are made of is small enough for 64 bits.
Status check_shape(const CacheShape& shape, uint32_t kv_count) {
  PagedLayout layout = dense(shape, kv_count);
  if (layout.plane_count() <= kPlanesMax) layout.planes.resize(layout.plane_count());
  return check_counts(layout);
}

}  // namespace

uint64_t PagedLayout::run_bytes() const {
  if (heads > 1 && head_stride_bytes != head_bytes) return head_bytes;
  if (block_tokens > 1 && token_stride_bytes != token_bytes()) return token_bytes();
  return block_bytes();
}

uint64_t PagedLayout::plane_span_bytes() const {
  return (cache_blocks - uint64_t{1}) * block_stride_bytes + (block_tokens - uint64_t{1}) * token_stride_bytes +
         (heads - uint64_t{1}) * head_stride_bytes + head_bytes;
}

Status PagedLayout::validate() const {
  KVS_TRY(check_counts(*this));
  KVS_TRY(check_alignment(*this));
  const Dimensions dimensions(*this);
  KVS_TRY(check_nesting(*this, dimensions));
  return check_planes(*this, dimensions);
}

Result<PagedLayout> layer_first(const CacheShape& shape, std::span<const DeviceSpan> tensors) {
  KVS_TRY(check_shape(shape, 2));
  PagedLayout layout = dense(shape, 2);
  layout.block_stride_bytes = layout.block_bytes();
  KVS_TRY(check_tensors(tensors, layout.plane_count(), shape.cache_blocks * layout.block_bytes()));
  return with_planes(std::move(layout), tensors, 1, 0);
}

Result<PagedLayout> two_major(const CacheShape& shape, std::span<const DeviceSpan> tensors) {
  KVS_TRY(check_shape(shape, 2));
  PagedLayout layout = dense(shape, 2);
  layout.block_stride_bytes = layout.block_bytes();
  const uint64_t half_bytes = shape.cache_blocks * layout.block_bytes();
  KVS_TRY(check_tensors(tensors, shape.layers, 2 * half_bytes));
  return with_planes(std::move(layout), tensors, 2, half_bytes);
}

Result<PagedLayout> block_first(const CacheShape& shape, std::span<const DeviceSpan> tensors) {
  KVS_TRY(check_shape(shape, 2));
  PagedLayout layout = dense(shape, 2);
  const uint64_t part_bytes = layout.block_bytes();
  layout.block_stride_bytes = 2 * part_bytes;
  KVS_TRY(check_tensors(tensors, shape.layers, shape.cache_blocks * layout.block_stride_bytes));
  return with_planes(std::move(layout), tensors, 2, part_bytes);
}

Result<PagedLayout> cross_layer(const CacheShape& shape, const DeviceSpan& tensor) {
  KVS_TRY(check_shape(shape, 2));
  PagedLayout layout = dense(shape, 2);
  const uint64_t part_bytes = layout.block_bytes();
  layout.block_stride_bytes = layout.plane_count() * part_bytes;
  uint64_t tensor_bytes = 0;
  if (__builtin_mul_overflow(layout.block_stride_bytes, uint64_t{shape.cache_blocks}, &tensor_bytes)) {
    return invalid(format_text("%u cache blocks of %llu bytes leave the address space", shape.cache_blocks,
                               ull(layout.block_stride_bytes)));
  }
  KVS_TRY(check_tensors({&tensor, 1}, 1, tensor_bytes));
  const uint64_t parts = layout.plane_count();
  return with_planes(std::move(layout), {&tensor, 1}, parts, part_bytes);
}

Result<PagedLayout> mla(const CacheShape& shape, std::span<const DeviceSpan> tensors) {
  KVS_TRY(check_shape(shape, 1));
  if (shape.heads != 1) return invalid(format_text("MLA has one latent a token, not %u heads", shape.heads));
  PagedLayout layout = dense(shape, 1);
  layout.block_stride_bytes = layout.block_bytes();
  KVS_TRY(check_tensors(tensors, shape.layers, shape.cache_blocks * layout.block_bytes()));
  return with_planes(std::move(layout), tensors, 1, 0);
}

}  // namespace kvstore::gpu
