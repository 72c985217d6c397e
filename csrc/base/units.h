// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Sizes, alignment and the small types that keep a region id from being used as a slot.

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace kvstore {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

// Every on-device structure, extent and direct I/O is aligned to this; it is also the checksum's page.
inline constexpr uint64_t kPageBytes = 4096;
// The largest device I/O of a job, and the span of one inner node of the checksum tree.
inline constexpr uint64_t kPieceBytes = kMiB;

constexpr uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}
constexpr uint64_t align_down(uint64_t value, uint64_t alignment) { return value / alignment * alignment; }
constexpr bool is_aligned(uint64_t value, uint64_t alignment) { return value % alignment == 0; }
constexpr uint64_t ceil_div(uint64_t value, uint64_t divisor) { return (value + divisor - 1) / divisor; }
inline bool is_aligned(const void* pointer, uint64_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}

// A number that does not mix with other numbers.
template <typename Tag, typename Number>
struct Strong {
  Number value = 0;
  constexpr Strong() = default;
  constexpr explicit Strong(Number number) : value(number) {}
  constexpr auto operator<=>(const Strong&) const = default;
};

using RegionId = Strong<struct RegionIdTag, uint32_t>;      // index of a region on its device
using SlotIndex = Strong<struct SlotIndexTag, uint32_t>;    // index of an extent in its region
using Generation = Strong<struct GenerationTag, uint64_t>;  // of a region, +1 per reuse, never restarts
using Epoch = Strong<struct EpochTag, uint64_t>;            // of an opener of the store

}  // namespace kvstore
