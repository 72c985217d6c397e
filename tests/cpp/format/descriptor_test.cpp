// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: descriptors come back as written or not at all, and none that does not fit its region is believed.
// Method: round trips of every count, flips, and one implausible field at a time.

#include "format/descriptor.h"

#include <gtest/gtest.h>

#include <cstring>

#include "format/samples.h"

namespace kvstore::format {
namespace {

bool equal(const Descriptor& a, const Descriptor& b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

TEST(DescriptorBlock, RoundTripOfEveryCount) {
  for (uint8_t count = 0; count <= kDescriptorsPerBlock; ++count) {
    const std::vector<Descriptor> written = samples::descriptors(count);
    samples::Pages page;
    encode_descriptor_block(BlockKind::kTail, samples::identity(), written, page);
    const DescriptorBlock block = decode_descriptor_block(page, samples::expected(BlockKind::kTail)).value();
    EXPECT_EQ(block.header.number, 3u);
    ASSERT_EQ(block.descriptors.size(), count);
    for (size_t i = 0; i < count; ++i) EXPECT_TRUE(equal(block.descriptors[i], written[i]));
  }
}

TEST(DescriptorBlock, AFullTailBecomesTheDescriptorBlockOfItsNumber) {
  const std::vector<Descriptor> written = samples::descriptors(kDescriptorsPerBlock);
  samples::Pages page;
  encode_descriptor_block(BlockKind::kDescriptors, samples::identity(), written, page);
  EXPECT_TRUE(decode_descriptor_block(page, samples::expected(BlockKind::kDescriptors)).ok());
  EXPECT_EQ(decode_descriptor_block(page, samples::expected(BlockKind::kTail)).status().code(), Code::kCorrupt);
}

TEST(DescriptorBlock, AnImpossibleCountIsCorruptThoughTheChecksumHolds) {
  samples::Pages page;
  BlockHeader header = samples::identity();
  header.kind = BlockKind::kTail;
  for (const uint32_t count : {32u, 1000u, UINT32_MAX}) {
    header.count = count;
    write_block_header(header, page);
    EXPECT_EQ(decode_descriptor_block(page, samples::expected(BlockKind::kTail)).status().code(), Code::kCorrupt);
  }
}

TEST(DescriptorBlock, AnyFlippedByteIsRejected) {
  samples::Pages page;
  encode_descriptor_block(BlockKind::kTail, samples::identity(), samples::descriptors(30), page);
  samples::for_each_byte_flip(page, [&](size_t byte) {
    EXPECT_FALSE(decode_descriptor_block(page, samples::expected(BlockKind::kTail)).ok()) << byte;
  });
}

TEST(Descriptor, IsPlausibleOnlyWhereEveryFieldFitsItsRegion) {
  const auto plausible_after = [](auto&& change) {
    Descriptor d = samples::descriptor(5);
    change(d);
    return is_plausible(d, 8192, 10, 2);
  };
  EXPECT_TRUE(plausible_after([](Descriptor&) {}));
  EXPECT_TRUE(plausible_after([](Descriptor& d) { d.salt_index = kNoSalt; }));
  EXPECT_TRUE(plausible_after([](Descriptor& d) { d.payload_bytes = 8192; }));
  EXPECT_TRUE(plausible_after([](Descriptor& d) { d.slot = 9; }));
  EXPECT_FALSE(plausible_after([](Descriptor& d) { d.flags = 0; }));
  EXPECT_FALSE(plausible_after([](Descriptor& d) { d.flags |= 0x8000; }));
  EXPECT_FALSE(plausible_after([](Descriptor& d) { d.key_bytes = 0; }));
  EXPECT_FALSE(plausible_after([](Descriptor& d) { d.key_bytes = 49; }));
  EXPECT_FALSE(plausible_after([](Descriptor& d) { d.flags |= kDescriptorKeyIsDigest; }));
  EXPECT_FALSE(plausible_after([](Descriptor& d) { d.meta_bytes = 29; }));
  EXPECT_FALSE(plausible_after([](Descriptor& d) { d.slot = 10; }));
  EXPECT_FALSE(plausible_after([](Descriptor& d) { d.space_index = 2; }));
  EXPECT_FALSE(plausible_after([](Descriptor& d) { d.salt_index = 2; }));
  EXPECT_FALSE(plausible_after([](Descriptor& d) { d.payload_bytes = 8193; }));
  EXPECT_FALSE(plausible_after([](Descriptor& d) { d.payload_bytes = UINT32_MAX; }));
  EXPECT_FALSE(plausible_after([](Descriptor& d) {  // the page nodes no longer fit
    d.payload_bytes = 8192;
    d.flags |= kDescriptorPageHashes;
  }));
}

TEST(Descriptor, PageNodesFollowThePayloadOnTheirOwnPages) {
  EXPECT_EQ(extent_bytes_needed(0, false), 0u);
  EXPECT_EQ(extent_bytes_needed(1, false), 4096u);
  EXPECT_EQ(extent_bytes_needed(4096, true), 8192u);
  EXPECT_EQ(extent_bytes_needed(512 * 4096, true), 513u * 4096);
  EXPECT_EQ(extent_bytes_needed(512 * 4096 + 1, true), 515u * 4096);
  EXPECT_EQ(extent_bytes_needed(UINT32_MAX, false), uint64_t{1} << 32);
}

TEST(StoredKey, AKeyUpTo48BytesIsStoredAsItIs) {
  const std::string key(48, 'k');
  const StoredKey stored = make_stored_key(key);
  EXPECT_EQ(stored.view(), key);
  EXPECT_FALSE(stored.is_digest);
}

TEST(StoredKey, ALongerKeyIsStoredAsItsDigestAndSaysSo) {
  const StoredKey stored = make_stored_key(std::string(49, 'k'));
  EXPECT_TRUE(stored.is_digest);
  EXPECT_EQ(stored.size, 48);
  EXPECT_NE(stored.view(), make_stored_key(std::string(50, 'k')).view());
}

TEST(StoredKey, TheParentHintOfAStoredKeyIsThatOfTheKey) {
  EXPECT_EQ(parent_hint(""), 0u);
  EXPECT_NE(parent_hint("a"), 0u);
  EXPECT_NE(parent_hint("a"), parent_hint("b"));
  const std::string long_key(200, 'k');
  EXPECT_EQ(parent_hint(long_key), parent_hint(make_stored_key(long_key).view()));
}

}  // namespace
}  // namespace kvstore::format
