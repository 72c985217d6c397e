// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a metadata block is used only where it was written, for the store and region it was written for.
// Method: write one block, then read it as every other place would; damage each byte.

#include "format/block_header.h"

#include <gtest/gtest.h>

#include "format/samples.h"

namespace kvstore::format {
namespace {

samples::Pages written(BlockKind kind, size_t bytes = kPageBytes) {
  samples::Pages block(bytes);
  BlockHeader header = samples::identity();
  header.kind = kind;
  header.count = 9;
  block[bytes - 1] = 0x5a;
  write_block_header(header, block);
  return block;
}

TEST(BlockHeader, RoundTrip) {
  samples::Pages block = written(BlockKind::kDescriptors, 3 * kPageBytes);
  const BlockHeader header = read_block_header(block, samples::expected(BlockKind::kDescriptors)).value();
  const BlockHeader written_header = samples::identity();
  EXPECT_EQ(header.magic, kBlockMagic);
  EXPECT_EQ(header.store_uuid, written_header.store_uuid);
  EXPECT_EQ(header.region, written_header.region);
  EXPECT_EQ(header.number, written_header.number);
  EXPECT_EQ(header.generation, written_header.generation);
  EXPECT_EQ(header.sequence, written_header.sequence);
  EXPECT_EQ(header.owner_epoch, written_header.owner_epoch);
  EXPECT_EQ(header.count, 9u);
  EXPECT_EQ(header.block_bytes, 3 * kPageBytes);
  EXPECT_EQ(header.kind, BlockKind::kDescriptors);
}

TEST(BlockHeader, NeverWrittenIsNotFound) {
  samples::Pages zero;
  EXPECT_EQ(read_block_header(zero, samples::expected(BlockKind::kHeader)).status().code(), Code::kNotFound);
  samples::Pages noise;
  for (size_t i = 0; i < kPageBytes; ++i) noise[i] = static_cast<uint8_t>(i * 7);
  EXPECT_EQ(read_block_header(noise, samples::expected(BlockKind::kHeader)).status().code(), Code::kNotFound);
}

TEST(BlockHeader, AMisplacedBlockIsCorrupt) {
  samples::Pages block = written(BlockKind::kDescriptors);
  const Uuid store = samples::uuid(0x20);
  const auto code = [&](const ExpectedBlock& expected) { return read_block_header(block, expected).status().code(); };
  EXPECT_EQ(code({store, RegionId(8), BlockKind::kDescriptors, 3}), Code::kCorrupt);
  EXPECT_EQ(code({store, RegionId(7), BlockKind::kTail, 3}), Code::kCorrupt);
  EXPECT_EQ(code({store, RegionId(7), BlockKind::kDescriptors, 4}), Code::kCorrupt);
  EXPECT_EQ(code({store, RegionId(7), BlockKind::kDescriptors, 4, true}), Code::kOk);
}

TEST(BlockHeader, ABlockOfAnEarlierStoreIsNotFoundUnlessItIsDamaged) {
  samples::Pages block = written(BlockKind::kHeader);
  const Uuid store = samples::uuid(0x21);
  const ExpectedBlock expected{store, RegionId(7), BlockKind::kHeader, 3};
  EXPECT_EQ(read_block_header(block, expected).status().code(), Code::kNotFound);
  block[200] = 1;
  EXPECT_EQ(read_block_header(block, expected).status().code(), Code::kCorrupt);
}

TEST(BlockHeader, ATailMayBearAnyNumber) {
  samples::Pages block = written(BlockKind::kTail);
  EXPECT_TRUE(read_block_header(block, samples::expected(BlockKind::kTail, 99)).ok());
}

TEST(BlockHeader, AnotherSizeThanWrittenIsCorrupt) {
  samples::Pages block = written(BlockKind::kBitmap, 2 * kPageBytes);
  const auto expected = samples::expected(BlockKind::kBitmap);
  EXPECT_EQ(read_block_header(block.bytes().first(kPageBytes), expected).status().code(), Code::kCorrupt);
  EXPECT_EQ(read_block_header(block.bytes().first(100), expected).status().code(), Code::kCorrupt);
  EXPECT_EQ(read_block_header({}, expected).status().code(), Code::kCorrupt);
}

TEST(BlockHeader, AnyFlippedByteIsRejected) {
  samples::Pages block = written(BlockKind::kDescriptors);
  samples::for_each_byte_flip(block, [&](size_t byte) {
    EXPECT_FALSE(read_block_header(block, samples::expected(BlockKind::kDescriptors)).ok()) << byte;
  });
}

}  // namespace
}  // namespace kvstore::format
