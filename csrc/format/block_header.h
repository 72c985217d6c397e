// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// BlockHeader: the first 128 bytes of every metadata block of a region (H, dictionary, bitmap, T, D). It says
// what the block is, whose it is and of which life of the region, and carries the checksum of the whole block.
//
// Guarantees: read_block_header accepts a block only when magic, checksum, kind, number, region, store uuid
// match; a block that was misdirected, torn, of another store or of another region is "absent", never used.
// The generation is left to the caller: recovery needs to see the lower and higher ones (I2, I12).

#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/checksum.h"
#include "base/status.h"
#include "base/units.h"

namespace kvstore::format {

using Uuid = std::array<uint8_t, 16>;

enum class BlockKind : uint8_t { kHeader = 1, kDictionary = 2, kBitmap = 3, kTail = 4, kDescriptors = 5 };

inline constexpr uint64_t kBlockMagic = 0x314b4c4253564bULL;  // "KVSBLK1" little endian, high byte 0

struct BlockHeader {
  Checksum128 checksum;  // of everything behind it in the block
  uint64_t magic = 0;
  Uuid store_uuid{};
  uint32_t region = 0;
  uint32_t number = 0;  // of dictionary or D block; in T: which D it will become; H, bitmap: pair copy
  uint64_t generation = 0;
  uint64_t sequence = 0;  // of this block within the pair or stream; the higher of a pair is the newer
  uint64_t owner_epoch = 0;
  uint32_t count = 0;        // descriptors, strings, bits set
  uint32_t block_bytes = 0;  // whole block, header included
  BlockKind kind{};
  uint8_t reserved[47]{};
};
static_assert(sizeof(BlockHeader) == 128);
static_assert(std::is_trivially_copyable_v<BlockHeader>);
static_assert(offsetof(BlockHeader, magic) == 16);
static_assert(offsetof(BlockHeader, store_uuid) == 24);
static_assert(offsetof(BlockHeader, region) == 40);
static_assert(offsetof(BlockHeader, generation) == 48);
static_assert(offsetof(BlockHeader, count) == 72);
static_assert(offsetof(BlockHeader, kind) == 80);
static_assert(std::endian::native == std::endian::little, "the format is little endian and structs are copied whole");

// Copies the header to the start of `block` and fills magic, block_bytes (block.size()) and checksum. Everything
// behind the header must be in place.
void write_block_header(const BlockHeader& header, std::span<uint8_t> block);

struct ExpectedBlock {
  const Uuid& store_uuid;
  RegionId region;
  BlockKind kind;
  uint32_t number;  // ignored for tails
  bool any_number = false;
};

// kNotFound: never written by this store (all zero, no magic, or a whole block of an earlier store);
// kCorrupt: damaged or misplaced (message says what).
// `block` is what was read, whole: its size must be the block's own.
Result<BlockHeader> read_block_header(std::span<const uint8_t> block, const ExpectedBlock& expected);

}  // namespace kvstore::format
