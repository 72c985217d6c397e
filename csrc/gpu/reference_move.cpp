// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "gpu/reference.h"

namespace kvstore::gpu {
namespace {

Status no_memory(uint64_t address, uint64_t bytes) {
  return Status(Code::kInvalid,
                format_text("no device memory of %llu bytes at 0x%llx", static_cast<unsigned long long>(bytes),
                            static_cast<unsigned long long>(address)));
}

Status copy_run(uint64_t extent, uint64_t cache, uint64_t bytes, Direction direction, const AddressMap& map) {
  uint8_t* extent_bytes = map(extent, bytes);
  if (extent_bytes == nullptr) return no_memory(extent, bytes);
  uint8_t* cache_bytes = map(cache, bytes);
  if (cache_bytes == nullptr) return no_memory(cache, bytes);
  if (direction == Direction::kScatter) {
    std::memcpy(cache_bytes, extent_bytes, bytes);
  } else {
    std::memcpy(extent_bytes, cache_bytes, bytes);
  }
  return {};
}

}  // namespace

Status reference_move(const MoveArguments& arguments, Direction direction, const AddressMap& map) {
  const uint64_t run_bytes = arguments.units_a_run.divisor * kUnitBytes;
  const uint64_t token_bytes = arguments.units_a_token.divisor * kUnitBytes;
  for (uint32_t plane = 0; plane < arguments.plane_count; ++plane) {
    for (uint32_t i = 0; i < arguments.move_count; ++i) {
      const Move& move = arguments.moves[i];
      const uint64_t extent = move.extent_address + (arguments.first_plane + plane) * arguments.extent_plane_bytes;
      const uint64_t block = arguments.planes[plane] + move.cache_block * arguments.block_stride_bytes;
      const uint64_t move_bytes = move.units * kUnitBytes;
      for (uint64_t done = 0; done < move_bytes; done += run_bytes) {
        const uint64_t cache = block + done / token_bytes * arguments.token_stride_bytes +
                               done % token_bytes / run_bytes * arguments.run_stride_bytes;
        KVS_TRY(copy_run(extent + done, cache, std::min(run_bytes, move_bytes - done), direction, map));
      }
    }
  }
  return {};
}

}  // namespace kvstore::gpu
