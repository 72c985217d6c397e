// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: an index that a descriptor bears always means the string it was given for (I10), and bytes that do not
// parse add nothing. Method: write in several commits, read back; fill up; flips; hand-made bodies.

#include "format/dictionary.h"

#include <gtest/gtest.h>

#include <cstring>

#include "format/samples.h"

namespace kvstore::format {
namespace {

constexpr uint64_t kGeneration = 0x1112131415161718;

Status decode(std::span<const uint8_t> page, uint32_t number, std::vector<DictionaryEntry>& entries) {
  return decode_dictionary_block(page, samples::expected(BlockKind::kDictionary, number), kGeneration, entries);
}

samples::Pages block_with_body(uint32_t count, std::span<const uint8_t> body) {
  samples::Pages page;
  BlockHeader header = samples::identity();
  header.kind = BlockKind::kDictionary;
  header.count = count;
  std::memcpy(page.bytes().data() + sizeof(BlockHeader), body.data(), body.size());
  write_block_header(header, page);
  return page;
}

TEST(Dictionary, IndexesHoldAcrossCommits) {
  DictionaryWriter writer(16);
  std::vector<DictionaryEntry> written, read;
  for (int commit = 0; commit < 4; ++commit) {
    for (int i = 0; i < 3; ++i) {
      const std::string text(1500, static_cast<char>('a' + commit * 3 + i));
      const auto kind = i == 0 ? DictionaryKind::kSpace : DictionaryKind::kSalt;
      EXPECT_EQ(writer.add(kind, text), written.size());
      written.push_back({kind, text});
    }
    EXPECT_TRUE(writer.has_staged());
    for (const auto& block : writer.take_blocks(samples::identity())) {
      EXPECT_EQ(block.page.size(), kPageBytes);
      ASSERT_TRUE(decode(block.page, block.number, read).ok());
    }
    EXPECT_FALSE(writer.has_staged());
  }
  EXPECT_EQ(read, written);
  EXPECT_EQ(writer.size(), written.size());
  EXPECT_EQ(writer.blocks_used(), 8u);
}

TEST(Dictionary, AKnownStringKeepsItsIndexAndASpaceIsNotASalt) {
  DictionaryWriter writer(4);
  EXPECT_EQ(writer.add(DictionaryKind::kSpace, "x"), 0);
  EXPECT_EQ(writer.add(DictionaryKind::kSalt, "x"), 1);
  EXPECT_EQ(writer.add(DictionaryKind::kSalt, ""), 2);
  EXPECT_EQ(writer.add(DictionaryKind::kSpace, "x"), 0);
  EXPECT_EQ(writer.take_blocks(samples::identity()).size(), 1u);
  EXPECT_EQ(writer.add(DictionaryKind::kSpace, "x"), 0);
  EXPECT_FALSE(writer.has_staged());
}

TEST(Dictionary, TheLongestTextFillsABlockExactly) {
  DictionaryWriter writer(1);
  EXPECT_EQ(writer.add(DictionaryKind::kSalt, std::string(kDictionaryTextBytesMax + 1, 's')), std::nullopt);
  const std::string longest(kDictionaryTextBytesMax, 's');
  EXPECT_EQ(writer.add(DictionaryKind::kSalt, longest), 0);
  EXPECT_EQ(writer.add(DictionaryKind::kSalt, ""), std::nullopt);
  std::vector<DictionaryEntry> read;
  const auto blocks = writer.take_blocks(samples::identity());
  ASSERT_EQ(blocks.size(), 1u);
  ASSERT_TRUE(decode(blocks[0].page, 0, read).ok());
  EXPECT_EQ(read[0].text, longest);
}

TEST(Dictionary, AFullOneRefusesWhatIsUnknownAndStillFindsWhatIsKnown) {
  DictionaryWriter writer(4);
  uint32_t added = 0;
  while (writer.add(DictionaryKind::kSalt, "salt-" + std::to_string(added))) {
    if (++added % 100 == 0) writer.take_blocks(samples::identity());
  }
  EXPECT_GT(added, 399u);
  EXPECT_EQ(writer.add(DictionaryKind::kSalt, "salt-7"), 7);
  writer.take_blocks(samples::identity());
  EXPECT_LE(writer.blocks_used(), 4u);
  EXPECT_EQ(writer.size(), added);
}

TEST(Dictionary, TheIndexThatMeansNoSaltIsNeverGivenOut) {
  DictionaryWriter writer(100000);
  uint32_t added = 0;
  while (writer.add(DictionaryKind::kSalt, std::to_string(added))) ++added;
  EXPECT_EQ(added, uint32_t{kNoSalt});
}

TEST(Dictionary, AnotherLifeOfTheRegionIsStale) {
  DictionaryWriter writer(1);
  writer.add(DictionaryKind::kSpace, "{}");
  const auto blocks = writer.take_blocks(samples::identity());
  std::vector<DictionaryEntry> read;
  const auto expected = samples::expected(BlockKind::kDictionary, 0);
  EXPECT_EQ(decode_dictionary_block(blocks[0].page, expected, kGeneration + 1, read).code(), Code::kStale);
  EXPECT_TRUE(read.empty());
}

TEST(Dictionary, ABodyThatDoesNotParseIsCorruptAndAddsNothing) {
  std::vector<DictionaryEntry> read;
  const uint8_t bad_kind[] = {1, 1, 0, 'a', 3, 1, 0, 'b'};
  EXPECT_EQ(decode(block_with_body(2, bad_kind), 3, read).code(), Code::kCorrupt);
  const uint8_t past_the_end[] = {1, 1, 0, 'a', 2, 0xff, 0xff, 'b'};
  EXPECT_EQ(decode(block_with_body(2, past_the_end), 3, read).code(), Code::kCorrupt);
  const uint8_t fewer_than_counted[] = {1, 1, 0, 'a'};
  EXPECT_EQ(decode(block_with_body(2, fewer_than_counted), 3, read).code(), Code::kCorrupt);
  EXPECT_EQ(decode(block_with_body(UINT32_MAX, fewer_than_counted), 3, read).code(), Code::kCorrupt);
  EXPECT_TRUE(read.empty());
}

TEST(Dictionary, AnyFlippedByteIsRejected) {
  DictionaryWriter writer(1);
  writer.add(DictionaryKind::kSpace, R"({"engine":"vllm"})");
  auto blocks = writer.take_blocks(samples::identity());
  std::vector<DictionaryEntry> read;
  samples::for_each_byte_flip(blocks[0].page,
                              [&](size_t byte) { EXPECT_FALSE(decode(blocks[0].page, 0, read).ok()) << byte; });
  EXPECT_TRUE(read.empty());
}

}  // namespace
}  // namespace kvstore::format
