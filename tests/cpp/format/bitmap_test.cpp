// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a deleted slot stays deleted, and damage never deletes or undeletes another one.
// Method: round trips at word and page borders, flips, hand-made bodies with a right checksum.

#include "format/bitmap.h"

#include <gtest/gtest.h>

#include "format/samples.h"

namespace kvstore::format {
namespace {

const ExpectedBlock kExpected = samples::expected(BlockKind::kBitmap);

TEST(DeadBitmap, RoundTripAtEveryBorder) {
  for (const uint32_t slots : {1u, 63u, 64u, 65u, 200u, 31744u, 31745u, 100000u}) {
    DeadBitmap bitmap(slots);
    bitmap.set(SlotIndex(0));
    bitmap.set(SlotIndex(slots - 1));
    bitmap.set(SlotIndex(slots / 2));
    samples::Pages copy(align_up(sizeof(BlockHeader) + ceil_div(slots, 64) * 8, kPageBytes));
    encode_bitmap(bitmap, samples::identity(), copy);
    const DecodedBitmap decoded = decode_bitmap(copy, kExpected, slots).value();
    EXPECT_EQ(decoded.header.sequence, samples::identity().sequence);
    for (uint32_t i = 0; i < slots; ++i) {
      ASSERT_EQ(decoded.bitmap.test(SlotIndex(i)), bitmap.test(SlotIndex(i))) << i << " of " << slots;
    }
  }
}

TEST(DeadBitmap, SlotsOutsideAreNeitherSetNorDead) {
  DeadBitmap bitmap(10);
  bitmap.set(SlotIndex(10));
  bitmap.set(SlotIndex(UINT32_MAX));
  EXPECT_EQ(bitmap.count(), 0u);
  EXPECT_FALSE(bitmap.test(SlotIndex(10)));
}

TEST(DeadBitmap, BitsPastTheLastSlotOrAWrongCountAreCorrupt) {
  samples::Pages copy;
  encode_bitmap(samples::bitmap(), samples::identity(), copy);
  EXPECT_TRUE(decode_bitmap(copy, kExpected, 200).ok());
  EXPECT_EQ(decode_bitmap(copy, kExpected, 199).status().code(), Code::kCorrupt);
  EXPECT_EQ(decode_bitmap(copy, kExpected, 64).status().code(), Code::kCorrupt);
}

TEST(DeadBitmap, MoreSlotsThanTheCopyHasRoomForIsRefused) {
  samples::Pages copy;
  encode_bitmap(samples::bitmap(), samples::identity(), copy);
  EXPECT_EQ(decode_bitmap(copy, kExpected, 31745).status().code(), Code::kInvalid);
  EXPECT_EQ(decode_bitmap(copy, kExpected, UINT32_MAX).status().code(), Code::kInvalid);
}

TEST(DeadBitmap, AnyFlippedByteIsRejected) {
  samples::Pages copy;
  encode_bitmap(samples::bitmap(), samples::identity(), copy);
  samples::for_each_byte_flip(copy,
                              [&](size_t byte) { EXPECT_FALSE(decode_bitmap(copy, kExpected, 200).ok()) << byte; });
}

}  // namespace
}  // namespace kvstore::format
