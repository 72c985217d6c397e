// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a region header is read back whole, or not at all; fields that the geometry does not allow are refused
// even where the checksum holds (a hostile or buggy writer).
// Method: round trip, flips, and one impossible field at a time, encoded with a right checksum.

#include "format/region_header.h"

#include <gtest/gtest.h>

#include "format/samples.h"

namespace kvstore::format {
namespace {

const Uuid kStore = samples::uuid(0x20);

Result<RegionHeader> round_trip(const RegionHeader& header) {
  samples::Pages page;
  encode_region_header(header, kStore, 1, page);
  return decode_region_header(page, kStore, samples::geometry(), header.region, 1);
}

TEST(RegionHeader, RoundTrip) { EXPECT_EQ(round_trip(samples::region_header()).value(), samples::region_header()); }

TEST(RegionHeader, AFreeRegionNeedsNoExtents) {
  RegionHeader header;
  header.region = RegionId(2);
  header.generation = Generation(4);
  EXPECT_EQ(round_trip(header).value(), header);
  header.state = RegionState::kQuarantined;
  EXPECT_EQ(round_trip(header).value(), header);
}

TEST(RegionHeader, ImpossibleFieldsAreCorruptThoughTheChecksumHolds) {
  const auto code_after = [](auto&& change) {
    RegionHeader header = samples::region_header();
    change(header);
    return round_trip(header).status().code();
  };
  EXPECT_EQ(code_after([](RegionHeader& h) { h.state = static_cast<RegionState>(5); }), Code::kCorrupt);
  EXPECT_EQ(code_after([](RegionHeader& h) { h.extent_bytes = 0; }), Code::kCorrupt);
  EXPECT_EQ(code_after([](RegionHeader& h) { h.extent_bytes = 4097; }), Code::kCorrupt);
  EXPECT_EQ(code_after([](RegionHeader& h) { h.extent_bytes = UINT64_MAX - 4095; }), Code::kCorrupt);
  EXPECT_EQ(code_after([](RegionHeader& h) { h.slot_count = 86; }), Code::kCorrupt);  // 86 * 12 KiB > 1 MiB
  EXPECT_EQ(code_after([](RegionHeader& h) { h.slot_count = 0; }), Code::kCorrupt);
  EXPECT_EQ(code_after([](RegionHeader& h) { h.slot_count = UINT32_MAX; }), Code::kCorrupt);
  EXPECT_EQ(code_after([](RegionHeader& h) { h.descriptor_bytes = 64; }), Code::kCorrupt);
  EXPECT_EQ(code_after([](RegionHeader& h) { h.checksum_kind = static_cast<ChecksumKind>(2); }), Code::kCorrupt);
  EXPECT_EQ(code_after([](RegionHeader& h) { h.cipher_kind = 1; }), Code::kCorrupt);
  EXPECT_EQ(code_after([](RegionHeader& h) { h.descriptor_count = 86; }), Code::kCorrupt);
  EXPECT_EQ(code_after([](RegionHeader& h) { h.dictionary_count = 257; }), Code::kCorrupt);
  EXPECT_EQ(code_after([](RegionHeader& h) {
              h.state = RegionState::kOpen;
              h.extent_bytes = 0;
              h.slot_count = 0;
              h.descriptor_count = 0;
            }),
            Code::kCorrupt);
}

// I2: the next life would begin with a generation that an earlier one had.
TEST(RegionHeader, AGenerationThatCouldWrapIsCorrupt) {
  RegionHeader header = samples::region_header();
  header.generation = Generation(UINT64_MAX);
  EXPECT_EQ(round_trip(header).status().code(), Code::kCorrupt);
}

TEST(RegionHeader, TheOtherCopyOfThePairIsNotMistakenForThisOne) {
  samples::Pages page;
  encode_region_header(samples::region_header(), kStore, 1, page);
  EXPECT_EQ(decode_region_header(page, kStore, samples::geometry(), RegionId(7), 0).status().code(), Code::kCorrupt);
  EXPECT_EQ(decode_region_header(page, kStore, samples::geometry(), RegionId(6), 1).status().code(), Code::kCorrupt);
}

TEST(RegionHeader, AnyFlippedByteIsRejected) {
  samples::Pages page;
  encode_region_header(samples::region_header(), kStore, 1, page);
  samples::for_each_byte_flip(page, [&](size_t byte) {
    EXPECT_FALSE(decode_region_header(page, kStore, samples::geometry(), RegionId(7), 1).ok()) << byte;
  });
}

}  // namespace
}  // namespace kvstore::format
