// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/move_plan.h"

#include <algorithm>
#include <string>

#include "base/units.h"

namespace kvstore::gpu {
namespace {

constexpr uint64_t kLaunchUnitsMax = (uint64_t{1} << 31) - 1;

unsigned long long ull(uint64_t value) { return value; }

Status invalid(size_t extent, std::string message) {
  return Status(Code::kInvalid, format_text("extent %zu of the transfer: ", extent) + message);
}

Status check_extent(const PagedLayout& layout, size_t index, const ExtentMove& move) {
  const uint64_t blocks = ceil_div(move.tokens, layout.block_tokens);
  if (move.tokens == 0) return invalid(index, "it has no tokens");
  if (move.cache_blocks.size() != blocks) {
    return invalid(index, format_text("%zu cache blocks for %u tokens: give %llu, of %u tokens each",
                                      move.cache_blocks.size(), move.tokens, ull(blocks), layout.block_tokens));
  }
  const uint64_t expected_bytes = layout.extent_bytes(move.tokens);
  if (move.extent.bytes != expected_bytes) {
    return invalid(index, format_text("%llu bytes, but %u tokens of %u layers take %llu", ull(move.extent.bytes),
                                      move.tokens, layout.layers, ull(expected_bytes)));
  }
  uint64_t end = 0;
  if (move.extent.address == 0 || move.extent.address % kUnitBytes != 0 ||
      __builtin_add_overflow(move.extent.address, move.extent.bytes, &end)) {
    return invalid(index, format_text("address 0x%llx: give memory that is aligned to %llu bytes",
                                      ull(move.extent.address), ull(kUnitBytes)));
  }
  const uint64_t span_bytes = layout.plane_span_bytes();
  for (const uint64_t plane : layout.planes) {
    if (move.extent.address >= plane + span_bytes || end <= plane) continue;
    return invalid(index,
                   format_text("0x%llx lies within the paged cache at 0x%llx", ull(move.extent.address), ull(plane)));
  }
  return {};
}

// The cache blocks of one scatter: of two writers the last would win, which is a race between threads.
Status check_written_once(const MovePlan& plan) {
  std::vector<uint32_t> blocks;
  blocks.reserve(plan.moves.size());
  for (const Move& move : plan.moves) blocks.push_back(move.cache_block);
  std::sort(blocks.begin(), blocks.end());
  const auto twice = std::adjacent_find(blocks.begin(), blocks.end());
  if (twice == blocks.end()) return {};
  return Status(Code::kInvalid, format_text("cache block %u is written twice by one transfer", *twice));
}

uint32_t units(uint64_t bytes) { return static_cast<uint32_t>(bytes / kUnitBytes); }

}  // namespace

Divider make_divider(uint32_t divisor) {
  uint32_t log2 = 0;
  while ((uint64_t{1} << log2) < divisor) ++log2;
  const uint64_t power = uint64_t{1} << (31 + log2);
  return {divisor, static_cast<uint32_t>(ceil_div(power, divisor)), 31 + log2};
}

Status make_plan(const PagedLayout& layout, Direction direction, std::span<const ExtentMove> extents, LayerRange layers,
                 MovePlan& plan) {
  plan.moves.clear();
  plan.groups.clear();
  plan.bytes = 0;
  if (layers.first >= layout.layers || layers.count == 0) {
    return Status(Code::kInvalid, format_text("layers from %u on, %u of them: the cache has layers 0 to %u",
                                              layers.first, layers.count, layout.layers - 1));
  }
  plan.layers = {layers.first, std::min(layers.count, layout.layers - layers.first)};
  for (size_t i = 0; i < extents.size(); ++i) {
    const ExtentMove& extent = extents[i];
    KVS_TRY(check_extent(layout, i, extent));
    if (plan.groups.empty() || plan.groups.back().extent_tokens != extent.tokens) {
      plan.groups.push_back({extent.tokens, plan.moves.size(), 0});
    }
    for (size_t j = 0; j < extent.cache_blocks.size(); ++j) {
      const int64_t block = extent.cache_blocks[j];
      if (block == kNoCacheBlock) continue;
      if (block < 0 || block >= static_cast<int64_t>(layout.cache_blocks)) {
        return invalid(i, format_text("cache block %lld: the cache has 0 to %u", static_cast<long long>(block),
                                      layout.cache_blocks - 1));
      }
      const uint64_t first_token = j * layout.block_tokens;
      const uint32_t tokens =
          static_cast<uint32_t>(std::min<uint64_t>(layout.block_tokens, extent.tokens - first_token));
      plan.moves.push_back({extent.extent.address + first_token * layout.token_bytes(), static_cast<uint32_t>(block),
                            units(tokens * layout.token_bytes())});
      ++plan.groups.back().move_count;
      plan.bytes += uint64_t{plan.layers.count} * layout.kv_count * tokens * layout.token_bytes();
    }
  }
  if (direction == Direction::kScatter) KVS_TRY(check_written_once(plan));
  return {};
}

Status for_each_launch(const PagedLayout& layout, const MovePlan& plan,
                       const std::function<Status(const MoveArguments&)>& launch) {
  MoveArguments arguments = {};
  arguments.block_stride_bytes = layout.block_stride_bytes;
  arguments.token_stride_bytes = layout.token_stride_bytes;
  arguments.run_stride_bytes = layout.head_stride_bytes;
  // What is contiguous is one run to the kernel: the longer, the fewer places it has to compute.
  const uint64_t run_bytes = layout.run_bytes();
  arguments.units_a_run = make_divider(units(run_bytes));
  arguments.units_a_token = make_divider(units(std::max(run_bytes, layout.token_bytes())));
  arguments.units_a_block = make_divider(units(layout.block_bytes()));
  const uint64_t block_units = layout.block_bytes() / kUnitBytes;
  const uint32_t end_plane = (plan.layers.first + plan.layers.count) * layout.kv_count;
  for (const MovePlan::Group& group : plan.groups) {
    arguments.extent_plane_bytes = group.extent_tokens * layout.token_bytes();
    uint32_t plane_count = 0;
    for (uint32_t plane = plan.layers.first * layout.kv_count; plane < end_plane; plane += plane_count) {
      plane_count = static_cast<uint32_t>(
          std::min({uint64_t{end_plane - plane}, uint64_t{kLaunchPlanes}, kLaunchUnitsMax / block_units}));
      std::copy_n(layout.planes.begin() + plane, plane_count, arguments.planes);
      arguments.first_plane = plane;
      arguments.plane_count = plane_count;
      const uint64_t moves_max = std::min<uint64_t>(kLaunchMoves, kLaunchUnitsMax / (block_units * plane_count));
      uint64_t move_count = 0;
      for (uint64_t done = 0; done < group.move_count; done += move_count) {
        move_count = std::min(group.move_count - done, moves_max);
        const auto first = plan.moves.begin() + static_cast<std::ptrdiff_t>(group.first_move + done);
        std::copy_n(first, move_count, arguments.moves);
        arguments.move_count = static_cast<uint32_t>(move_count);
        arguments.moves_a_plane = make_divider(arguments.move_count);
        arguments.total_units = static_cast<uint32_t>(move_count * plane_count * block_units);
        KVS_TRY(launch(arguments));
      }
    }
  }
  return {};
}

Status for_each_run(const PagedLayout& layout, const MovePlan& plan,
                    const std::function<Status(const CopyRun&)>& copy) {
  const uint64_t run_bytes = layout.run_bytes();
  const uint32_t first_plane = plan.layers.first * layout.kv_count;
  const uint32_t end_plane = first_plane + plan.layers.count * layout.kv_count;
  for (const MovePlan::Group& group : plan.groups) {
    const uint64_t extent_plane_bytes = group.extent_tokens * layout.token_bytes();
    for (uint32_t plane = first_plane; plane < end_plane; ++plane) {
      for (size_t i = 0; i < group.move_count; ++i) {
        const Move& move = plan.moves[group.first_move + i];
        const uint64_t extent = move.extent_address + plane * extent_plane_bytes;
        const uint64_t cache = layout.planes[plane] + move.cache_block * layout.block_stride_bytes;
        const uint64_t move_bytes = move.units * kUnitBytes;
        for (uint64_t done = 0; done < move_bytes; done += run_bytes) {
          const uint64_t token = done / layout.token_bytes();
          const uint64_t head = done % layout.token_bytes() / layout.head_bytes;
          KVS_TRY(copy({extent + done, cache + token * layout.token_stride_bytes + head * layout.head_stride_bytes,
                        std::min(run_bytes, move_bytes - done)}));
        }
      }
    }
  }
  return {};
}

}  // namespace kvstore::gpu
