// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever geometry is chosen or read, nothing on the device overlaps, and hostile numbers are refused.
// Method: choose over a grid of devices and sizes and check every area against every other; damage each field.

#include "format/geometry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "format/descriptor.h"
#include "format/samples.h"

namespace kvstore::format {
namespace {

using Area = std::pair<uint64_t, uint64_t>;  // first byte, one past the last

void add_entry(const Geometry& g, RegionId region, std::vector<Area>& areas) {
  const auto add = [&](uint64_t offset, uint64_t bytes) { areas.push_back({offset, offset + bytes}); };
  for (uint32_t copy = 0; copy < 2; ++copy) {
    add(g.header_offset(region, copy), kPageBytes);
    add(g.bitmap_offset(region, copy), g.bitmap_bytes());
    add(g.tail_offset(region, copy), kPageBytes);
  }
  for (uint32_t i = 0; i < g.dictionary_blocks; ++i) add(g.dictionary_offset(region, i), kPageBytes);
  for (uint32_t i = 0; i < g.descriptor_blocks(); ++i) add(g.descriptor_block_offset(region, i), kPageBytes);
  add(g.region_offset(region), g.region_bytes);
}

void expect_no_overlap(const Geometry& g) {
  std::vector<Area> areas;
  for (const uint64_t offset : g.superblock_offsets()) areas.push_back({offset, offset + kPageBytes});
  add_entry(g, RegionId(0), areas);
  if (g.region_count > 2) add_entry(g, RegionId(1), areas);
  if (g.region_count > 1) add_entry(g, RegionId(g.region_count - 1), areas);
  std::sort(areas.begin(), areas.end());
  for (size_t i = 0; i < areas.size(); ++i) {
    ASSERT_EQ(areas[i].first % kPageBytes, 0u);
    ASSERT_LE(areas[i].second, g.device_bytes);
    if (i > 0) {
      ASSERT_LE(areas[i - 1].second, areas[i].first);
    }
  }
}

Geometry chosen(uint64_t device_bytes, uint64_t block_bytes, uint64_t region_bytes = 0) {
  GeometryOptions options;
  options.device_bytes = device_bytes;
  options.block_bytes = block_bytes;
  options.region_bytes = region_bytes;
  return choose_geometry(options).value();
}

TEST(Geometry, AreasNeverOverlapNorReachTheLastSuperblockCopy) {
  const uint64_t devices[] = {40 * kMiB,           64 * kMiB,   64 * kMiB + kPageBytes, kGiB + 512,
                              10 * kGiB + 7 * 512, 1000 * kGiB, 7680ull * 1000000000,   200 * 1024 * kGiB};
  const uint64_t regions[] = {0, 64 * kKiB, 68 * kKiB, kMiB, 3 * kMiB, kGiB};
  const uint64_t blocks[] = {0, 4 * kKiB, 100 * kKiB, kMiB, 192 * kMiB};
  int accepted = 0;
  for (const uint64_t device_bytes : devices) {
    for (const uint64_t region_bytes : regions) {
      for (const uint64_t block_bytes : blocks) {
        GeometryOptions options;
        options.device_bytes = device_bytes;
        options.region_bytes = region_bytes;
        options.block_bytes = block_bytes;
        if (region_bytes != 0 && region_bytes < options.min_block_bytes) options.min_block_bytes = 4 * kKiB;
        const Result<Geometry> geometry = choose_geometry(options);
        if (!geometry.ok()) {
          EXPECT_EQ(geometry.status().code(), Code::kInvalid);
          continue;
        }
        ++accepted;
        SCOPED_TRACE(format_text("device %llu region %llu block %llu", static_cast<unsigned long long>(device_bytes),
                                 static_cast<unsigned long long>(region_bytes),
                                 static_cast<unsigned long long>(block_bytes)));
        EXPECT_TRUE(validate(geometry.value()).ok());
        expect_no_overlap(geometry.value());
      }
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST(Geometry, AsManyRegionsAsFit) {
  for (const uint64_t region_bytes : {64 * kKiB, kMiB, 64 * kMiB}) {
    GeometryOptions options;
    options.device_bytes = 1000 * kMiB;
    options.region_bytes = region_bytes;
    options.min_block_bytes = 4 * kKiB;
    Geometry g = choose_geometry(options).value();
    ++g.region_count;
    g.data_offset = align_up(kMetadataOffset + g.region_count * g.entry_bytes, kMiB);
    EXPECT_FALSE(validate(g).ok()) << region_bytes;
  }
}

TEST(Geometry, ARegionHoldsEightToSixteenBlocksWhereTheDeviceIsLargeEnough) {
  for (const uint64_t block_bytes : {8 * kMiB, 9 * kMiB, 40 * kMiB, 64 * kMiB, 192 * kMiB}) {
    const Geometry g = chosen(2000 * kGiB, block_bytes);
    EXPECT_GE(g.region_bytes / block_bytes, 8u) << block_bytes;
    EXPECT_LE(g.region_bytes / block_bytes, 16u) << block_bytes;
    EXPECT_GE(g.region_count, 64u);
  }
  EXPECT_EQ(chosen(2000 * kGiB, kMiB).region_bytes, 64 * kMiB);
  EXPECT_EQ(chosen(200'000 * kGiB, 4 * kGiB - kPageBytes).region_bytes, 16 * kGiB);
}

TEST(Geometry, ASmallDeviceGetsSmallerRegionsRatherThanFewerThanSixtyFour) {
  const Geometry g = chosen(20 * kGiB, 192 * kMiB);
  EXPECT_EQ(g.region_bytes, 256 * kMiB);
  EXPECT_GE(g.region_count, 64u);
  EXPECT_EQ(chosen(64 * kMiB, 0).region_bytes, 2 * kMiB);
  EXPECT_GE(chosen(64 * kMiB, 0).region_count, 8u);
}

TEST(Geometry, ARegionIsNeverSmallerThanABlock) { EXPECT_EQ(chosen(kGiB, 192 * kMiB).region_bytes, 256 * kMiB); }

TEST(Geometry, AVeryLargeDeviceHasABoundedNumberOfHeadersToRead) {
  EXPECT_LE(chosen(100'000 * kGiB, kMiB).region_count, 131072u);
}

TEST(Geometry, BlocksSmallerThanTheDefaultMinimumStillFillARegion) {
  const Geometry g = chosen(kGiB, 64 * kKiB);
  EXPECT_EQ(g.min_block_bytes, 64 * kKiB);
  EXPECT_EQ(g.slots_max(), g.region_bytes / (64 * kKiB));
}

TEST(Geometry, EveryExtentOfARegionHasADescriptor) {
  const Geometry g = samples::geometry();
  EXPECT_EQ(g.slots_max(), 256u);
  EXPECT_GE(g.descriptor_blocks() * kDescriptorsPerBlock, g.slots_max());
  EXPECT_GE((g.bitmap_bytes() - sizeof(BlockHeader)) * 8, g.slots_max());
}

TEST(Geometry, AnUnusableRequestIsRefusedAndNamesItsField) {
  const auto message = [](uint64_t device, uint64_t region, uint64_t block, uint64_t min_block) {
    GeometryOptions options{device, region, block, min_block};
    const Result<Geometry> geometry = choose_geometry(options);
    EXPECT_FALSE(geometry.ok());
    EXPECT_EQ(geometry.status().code(), Code::kInvalid);
    return geometry.status().message();
  };
  EXPECT_NE(message(0, 0, 0, 4096).find("device_bytes"), std::string::npos);
  EXPECT_NE(message(4095, 0, 0, 4096).find("device_bytes"), std::string::npos);
  EXPECT_NE(message(33 * kMiB, 0, 0, 4096).find("device_bytes"), std::string::npos);
  EXPECT_NE(message(UINT64_MAX, 0, 0, 4096).find("device_bytes"), std::string::npos);
  EXPECT_NE(message(64 * kMiB, 64 * kMiB, 0, 4096).find("device_bytes"), std::string::npos);
  EXPECT_NE(message(kGiB, 32 * kKiB, 0, 4096).find("region_bytes"), std::string::npos);
  EXPECT_NE(message(kGiB, kMiB + 1, 0, 4096).find("region_bytes"), std::string::npos);
  EXPECT_NE(message(kGiB, UINT64_MAX - 4095, 0, 4096).find("region_bytes"), std::string::npos);
  EXPECT_NE(message(kGiB, kMiB, 2 * kMiB, 4096).find("region_bytes"), std::string::npos);
  EXPECT_NE(message(kGiB, 64 * kKiB, 0, kDefaultMinBlockBytes).find("min_block_bytes"), std::string::npos);
  EXPECT_NE(message(kGiB, kMiB, 0, 0).find("min_block_bytes"), std::string::npos);
  EXPECT_NE(message(kGiB, kMiB, 0, 5000).find("min_block_bytes"), std::string::npos);
  EXPECT_NE(message(kGiB, 0, UINT64_MAX, 4096).find("block_bytes"), std::string::npos);
}

TEST(Geometry, HostileNumbersAreRefusedInEveryField) {
  const Geometry good = samples::geometry();
  ASSERT_TRUE(validate(good).ok());
  const uint64_t hostile[] = {
      0, 1, 4095, UINT32_MAX, (uint64_t{1} << 32) + 512, uint64_t{1} << 61, UINT64_MAX - 4095, UINT64_MAX};
  uint64_t Geometry::* const wide[] = {&Geometry::device_bytes, &Geometry::region_bytes, &Geometry::min_block_bytes,
                                       &Geometry::entry_bytes, &Geometry::data_offset};
  uint32_t Geometry::* const narrow[] = {&Geometry::region_count, &Geometry::dictionary_blocks};
  for (const uint64_t value : hostile) {
    for (const auto field : wide) {
      Geometry bad = good;
      bad.*field = value;
      EXPECT_FALSE(validate(bad).ok()) << value;
    }
    for (const auto field : narrow) {
      Geometry bad = good;
      bad.*field = value > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(value == 1 ? 0 : value);
      EXPECT_FALSE(validate(bad).ok()) << value;
    }
  }
  Geometry wraps = good;  // region_count * entry_bytes and region_count * region_bytes both pass 2^64
  wraps.region_count = UINT32_MAX;
  wraps.entry_bytes = uint64_t{1} << 40;
  wraps.region_bytes = uint64_t{1} << 40;
  EXPECT_FALSE(validate(wraps).ok());
}

}  // namespace
}  // namespace kvstore::format
