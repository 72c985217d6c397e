// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "format/geometry.h"

#include <algorithm>
#include <bit>
#include <string>

#include "format/block_header.h"
#include "format/descriptor.h"

namespace kvstore::format {
namespace {

constexpr uint64_t kDataAlignmentBytes = kMiB;
constexpr uint64_t kEntryBytesMax = kGiB;
constexpr uint32_t kDictionaryBlocksMin = 4;
constexpr uint32_t kDictionaryBlocksMax = 256;

// What choose_geometry aims at when it picks region_bytes (design, "Regions").
constexpr uint64_t kChosenRegionBytesMin = 64 * kMiB;
constexpr uint64_t kChosenRegionBytesMax = 16 * kGiB;
constexpr uint64_t kChosenRegionBytesTiny = kMiB;           // a device too small for eight regions of 64 MiB
constexpr uint64_t kChosenRegionBytesUnknown = 256 * kMiB;  // nothing said about the blocks
constexpr uint64_t kChosenRegionsMin = 64;
constexpr uint64_t kChosenRegionsMax = 131072;  // open reads 8 KiB of headers a region: 1 GiB of them at most
constexpr uint64_t kChosenBlocksPerRegion = 8;  // 8-16 after rounding up to a power of two

constexpr uint64_t pages(uint64_t count) { return count * kPageBytes; }

uint64_t bitmap_bytes_of(uint64_t slots) {
  return align_up(sizeof(BlockHeader) + ceil_div(slots, 64) * sizeof(uint64_t), kPageBytes);
}

uint64_t descriptor_blocks_of(uint64_t slots) { return ceil_div(slots, kDescriptorsPerBlock); }

uint64_t entry_bytes_of(uint64_t slots, uint64_t dictionary_blocks) {
  return pages(2 + dictionary_blocks + 2 + descriptor_blocks_of(slots)) + 2 * bitmap_bytes_of(slots);
}

Status invalid(const char* field, uint64_t value, const std::string& allowed) {
  return Status(Code::kInvalid, format_text("%s is %llu: ", field, static_cast<unsigned long long>(value)) + allowed);
}

// First byte of the last superblock copy: where regions must end.
uint64_t last_copy_offset(uint64_t device_bytes) { return device_bytes - kPageBytes; }

uint64_t regions_that_fit(uint64_t device_bytes, uint64_t region_bytes, uint64_t entry_bytes) {
  const uint64_t end = last_copy_offset(device_bytes);
  if (end <= kMetadataOffset) return 0;
  uint64_t count = (end - kMetadataOffset) / (region_bytes + entry_bytes);
  // Aligning data_offset costs at most 1 MiB, a bounded number of the smallest regions.
  while (count > 0 &&
         align_up(kMetadataOffset + count * entry_bytes, kDataAlignmentBytes) + count * region_bytes > end) {
    --count;
  }
  return count;
}

uint64_t choose_region_bytes(uint64_t device_bytes, uint64_t block_bytes, uint64_t min_block_bytes) {
  const uint64_t usable = device_bytes - kMetadataOffset;
  const uint64_t one_block = std::bit_ceil(std::max(block_bytes, min_block_bytes));
  uint64_t wanted = block_bytes == 0 ? kChosenRegionBytesUnknown : std::bit_ceil(kChosenBlocksPerRegion * block_bytes);
  wanted = std::clamp(wanted, kChosenRegionBytesMin, kChosenRegionBytesMax);
  const uint64_t for_few_regions = std::bit_ceil(ceil_div(usable, kChosenRegionsMax));
  wanted = std::min(std::max(wanted, for_few_regions), kChosenRegionBytesMax);
  // Reclaim works on whole regions: with few of them a large part of the cache goes at once.
  const uint64_t for_many_regions = std::bit_floor(std::max<uint64_t>(usable / (kChosenRegionsMin + 1), 1));
  wanted = std::min(wanted, std::max(for_many_regions, kChosenRegionBytesMin));
  const uint64_t for_eight_regions = std::bit_floor(std::max<uint64_t>(usable / 9, 1));
  wanted = std::min(wanted, std::max(for_eight_regions, kChosenRegionBytesTiny));
  return std::max(wanted, one_block);
}

}  // namespace

uint32_t Geometry::descriptor_blocks() const { return static_cast<uint32_t>(descriptor_blocks_of(slots_max())); }

uint64_t Geometry::bitmap_bytes() const { return bitmap_bytes_of(slots_max()); }

std::array<uint64_t, kSuperblockCopies> Geometry::superblock_offsets() const {
  return format::superblock_offsets(device_bytes);
}

uint64_t Geometry::dictionary_offset(RegionId region, uint32_t block) const {
  return entry_offset(region) + pages(2 + uint64_t{block});
}

uint64_t Geometry::bitmap_offset(RegionId region, uint32_t copy) const {
  return entry_offset(region) + pages(2 + uint64_t{dictionary_blocks}) + copy * bitmap_bytes();
}

uint64_t Geometry::tail_offset(RegionId region, uint32_t copy) const { return bitmap_offset(region, 2) + pages(copy); }

uint64_t Geometry::descriptor_block_offset(RegionId region, uint32_t block) const {
  return tail_offset(region, 2) + pages(block);
}

uint64_t Geometry::memory_bytes() const { return region_count * region_bytes; }

std::array<uint64_t, kSuperblockCopies> superblock_offsets(uint64_t device_bytes) {
  return {0, 8 * kMiB, 24 * kMiB, last_copy_offset(align_down(device_bytes, kPageBytes))};
}

Result<Geometry> choose_geometry(const GeometryOptions& options) {
  Geometry geometry;
  geometry.device_bytes = align_down(options.device_bytes, kPageBytes);
  geometry.min_block_bytes = options.min_block_bytes;
  if (geometry.device_bytes <= kMetadataOffset + kMiB || geometry.device_bytes > kDeviceBytesMax) {
    return invalid("device_bytes", options.device_bytes, "a store needs more than 33 MiB and at most 2^60 bytes");
  }
  if (options.block_bytes > kBlockBytesMax) {
    return invalid("block_bytes", options.block_bytes, "allowed are 0 (unknown) to 4 GiB - 4 KiB");
  }
  if (!is_aligned(options.min_block_bytes, kPageBytes) || options.min_block_bytes == 0) {
    return invalid("min_block_bytes", options.min_block_bytes, "allowed are multiples of 4 KiB up to region_bytes");
  }
  // A region has room for region_bytes / min_block_bytes descriptors: smaller blocks would leave it partly empty.
  if (options.block_bytes != 0) {
    geometry.min_block_bytes =
        std::min(geometry.min_block_bytes, std::max(align_down(options.block_bytes, kPageBytes), kPageBytes));
  }
  geometry.region_bytes = options.region_bytes != 0 ? options.region_bytes
                                                    : choose_region_bytes(geometry.device_bytes, options.block_bytes,
                                                                          geometry.min_block_bytes);
  if (!is_aligned(geometry.region_bytes, kPageBytes) || geometry.region_bytes < kRegionBytesMin ||
      geometry.region_bytes > kRegionBytesMax) {
    return invalid("region_bytes", geometry.region_bytes, "allowed are multiples of 4 KiB from 64 KiB to 1 TiB");
  }
  if (geometry.region_bytes < std::max(geometry.min_block_bytes, options.block_bytes)) {
    return invalid("region_bytes", geometry.region_bytes,
                   format_text("smaller than one block (block_bytes %llu, min_block_bytes %llu)",
                               static_cast<unsigned long long>(options.block_bytes),
                               static_cast<unsigned long long>(geometry.min_block_bytes)));
  }
  const uint64_t slots = geometry.region_bytes / geometry.min_block_bytes;
  if (slots > kSlotsMax) {
    return invalid("min_block_bytes", geometry.min_block_bytes,
                   format_text("a region of %llu bytes would have more than %u blocks",
                               static_cast<unsigned long long>(geometry.region_bytes), kSlotsMax));
  }
  geometry.dictionary_blocks = static_cast<uint32_t>(
      std::clamp<uint64_t>(descriptor_blocks_of(slots), kDictionaryBlocksMin, kDictionaryBlocksMax));
  geometry.entry_bytes = entry_bytes_of(slots, geometry.dictionary_blocks);
  const uint64_t count = regions_that_fit(geometry.device_bytes, geometry.region_bytes, geometry.entry_bytes);
  if (count == 0) {
    return invalid("device_bytes", options.device_bytes,
                   format_text("too small for 32 MiB, one region of %llu bytes and its %llu bytes of metadata",
                               static_cast<unsigned long long>(geometry.region_bytes),
                               static_cast<unsigned long long>(geometry.entry_bytes)));
  }
  if (count > kRegionsMax) {
    return invalid("region_bytes", geometry.region_bytes,
                   format_text("the device would have %llu regions, allowed are %u: use larger ones",
                               static_cast<unsigned long long>(count), kRegionsMax));
  }
  geometry.region_count = static_cast<uint32_t>(count);
  geometry.data_offset = align_up(kMetadataOffset + count * geometry.entry_bytes, kDataAlignmentBytes);
  KVS_TRY(validate(geometry));
  return geometry;
}

// Bounds come first, so that no product or sum below can wrap for any bytes: sizes are at most 2^60, entries at
// most 2^30, slots at most 2^24, and counts are compared by division.
Status validate(const Geometry& geometry) {
  const Geometry& g = geometry;
  if (!is_aligned(g.device_bytes, kPageBytes) || g.device_bytes <= kMetadataOffset + kMiB ||
      g.device_bytes > kDeviceBytesMax) {
    return invalid("device_bytes", g.device_bytes, "not a multiple of 4 KiB from 33 MiB to 2^60");
  }
  if (!is_aligned(g.region_bytes, kPageBytes) || g.region_bytes < kRegionBytesMin || g.region_bytes > kRegionBytesMax) {
    return invalid("region_bytes", g.region_bytes, "not a multiple of 4 KiB from 64 KiB to 1 TiB");
  }
  if (!is_aligned(g.min_block_bytes, kPageBytes) || g.min_block_bytes == 0 || g.min_block_bytes > g.region_bytes) {
    return invalid("min_block_bytes", g.min_block_bytes, "not a multiple of 4 KiB up to region_bytes");
  }
  const uint64_t slots = g.region_bytes / g.min_block_bytes;
  if (slots > kSlotsMax) return invalid("min_block_bytes", g.min_block_bytes, "too many blocks in a region");
  if (g.dictionary_blocks == 0 || g.dictionary_blocks > kDictionaryBlocksMax) {
    return invalid("dictionary_blocks", g.dictionary_blocks, "allowed are 1 to 256");
  }
  if (!is_aligned(g.entry_bytes, kPageBytes) || g.entry_bytes > kEntryBytesMax ||
      g.entry_bytes < entry_bytes_of(slots, g.dictionary_blocks)) {
    return invalid("entry_bytes", g.entry_bytes, "too small, above 1 GiB, or not a multiple of 4 KiB");
  }
  if (g.region_count == 0 || g.region_count > kRegionsMax) {
    return invalid("region_count", g.region_count, format_text("allowed are 1 to %u", kRegionsMax));
  }
  const uint64_t end = last_copy_offset(g.device_bytes);
  if (!is_aligned(g.data_offset, kDataAlignmentBytes) || g.data_offset >= end || g.data_offset < kMetadataOffset ||
      (g.data_offset - kMetadataOffset) / g.entry_bytes < g.region_count) {
    return invalid("data_offset", g.data_offset, "not 1 MiB aligned, overlaps the metadata area, or past the end");
  }
  if ((end - g.data_offset) / g.region_bytes < g.region_count) {
    return invalid("region_count", g.region_count, "the last region would reach into the last superblock copy");
  }
  return Status();
}

}  // namespace kvstore::format
