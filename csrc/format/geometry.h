// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Geometry: where everything is on one device. Chosen at format, fixed for the life of the store, kept in
// the superblock; every other offset in the code is computed here.
//
//   0, 8 MiB, 24 MiB, end - 4 KiB   superblock copies; nothing else touches those blocks
//   32 MiB                          metadata area: one entry of entry_bytes per region
//   data_offset                     region 0 | region 1 | ...   payload only, region_bytes each
//
//   entry:  H0 | H1 | dictionary blocks | bitmap pair | tail pair T0 T1 | descriptor blocks D0 D1 ...
//
// See docs/on_disk_format.md. No I/O.

#pragma once

#include <array>
#include <cstdint>

#include "base/status.h"
#include "base/units.h"

namespace kvstore::format {

inline constexpr uint64_t kMetadataOffset = 32 * kMiB;
inline constexpr uint32_t kSuperblockCopies = 4;
inline constexpr uint64_t kDefaultMinBlockBytes = 256 * kKiB;

// Bounds of what is accepted, from a caller or from a device.
inline constexpr uint64_t kDeviceBytesMax = uint64_t{1} << 60;
inline constexpr uint64_t kRegionBytesMin = 64 * kKiB;
inline constexpr uint64_t kRegionBytesMax = 1024 * kGiB;
inline constexpr uint64_t kBlockBytesMax = 4 * kGiB - kPageBytes;  // payload_bytes is 32 bits wide
inline constexpr uint32_t kRegionsMax = 1u << 24;
inline constexpr uint32_t kSlotsMax = 1u << 24;

// Where the superblock copies of a device of this size are; a size that is no multiple of 4 KiB is rounded down.
std::array<uint64_t, kSuperblockCopies> superblock_offsets(uint64_t device_bytes);

struct Geometry {
  uint64_t device_bytes = 0;
  uint64_t region_bytes = 0;     // multiple of 4 KiB, power of two when chosen by us
  uint64_t min_block_bytes = 0;  // smallest extent a region is sized for: bounds slots and so entry_bytes
  uint32_t region_count = 0;
  uint32_t dictionary_blocks = 0;  // 4 KiB each
  uint64_t entry_bytes = 0;
  uint64_t data_offset = 0;  // 1 MiB aligned

  bool operator==(const Geometry&) const = default;

  uint32_t slots_max() const { return static_cast<uint32_t>(region_bytes / min_block_bytes); }
  uint32_t descriptor_blocks() const;  // D blocks an entry has room for
  uint64_t bitmap_bytes() const;       // of one copy, block header included, multiple of 4 KiB

  std::array<uint64_t, kSuperblockCopies> superblock_offsets() const;
  uint64_t entry_offset(RegionId region) const { return kMetadataOffset + region.value * entry_bytes; }
  uint64_t header_offset(RegionId region, uint32_t copy) const { return entry_offset(region) + copy * kPageBytes; }
  uint64_t dictionary_offset(RegionId region, uint32_t block) const;
  uint64_t bitmap_offset(RegionId region, uint32_t copy) const;
  uint64_t tail_offset(RegionId region, uint32_t copy) const;
  uint64_t descriptor_block_offset(RegionId region, uint32_t block) const;
  uint64_t region_offset(RegionId region) const { return data_offset + region.value * region_bytes; }
  uint64_t extent_offset(RegionId region, uint64_t extent_bytes, SlotIndex slot) const {
    return region_offset(region) + slot.value * extent_bytes;
  }
  uint64_t memory_bytes() const;  // bytes past data_offset that regions cover
};

struct GeometryOptions {
  uint64_t device_bytes = 0;
  uint64_t region_bytes = 0;  // 0: chosen: at least 64 regions, 8-16 blocks of block_bytes each, 64 MiB..16 GiB
  uint64_t block_bytes = 0;   // of the layout the user tells of; 0: unknown
  uint64_t min_block_bytes = kDefaultMinBlockBytes;  // lowered to block_bytes where that is smaller
};

// Errors: kInvalid with the field, its value and the allowed range (device too small for one region, region
// smaller than a block, ...). Explicit region_bytes may be as small as 64 KiB (tests); chosen ones are below 64 MiB
// only where eight of 64 MiB do not fit.
Result<Geometry> choose_geometry(const GeometryOptions& options);

// Re-checks a geometry read from a device: every offset in range, no overlap, no overflow on hostile values.
Status validate(const Geometry& geometry);

}  // namespace kvstore::format
