// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Dictionary: the strings that a region's descriptors refer to by index: the canonical JSON of each space and
// each salt with blocks in this region. Packed length-prefixed (u8 kind, u16 length, bytes) into 4 KiB blocks, in order
// of first use, each block durable before the first descriptor that uses it (I10). A region explains itself: full
// keys can be listed with no other file. A string never crosses a block. No I/O.
//
// A block is written once, with what one commit staged, and never rewritten, so a torn write loses only strings
// that no descriptor uses yet. The price is partly empty blocks; a full dictionary seals the region.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/block_header.h"

namespace kvstore::format {

enum class DictionaryKind : uint8_t { kSpace = 1, kSalt = 2 };

struct DictionaryEntry {
  DictionaryKind kind;
  std::string text;
  bool operator==(const DictionaryEntry&) const = default;
};

inline constexpr uint32_t kDictionaryTextBytesMax = kPageBytes - sizeof(BlockHeader) - 3;

// Stages strings with add() and packs the staged ones into the next blocks with take_blocks(). Index of a string =
// order of add(), across blocks.
class DictionaryWriter {
 public:
  explicit DictionaryWriter(uint32_t blocks_max) : blocks_max_(blocks_max) {}

  // Index of the string, added if need be; nullopt: full (seal the region). A text over kDictionaryTextBytesMax
  // never fits: check it at the door.
  std::optional<uint16_t> add(DictionaryKind kind, std::string_view text);

  bool has_staged() const { return !staged_.empty(); }

  struct EncodedBlock {
    uint32_t number;
    std::vector<uint8_t> page;  // 4096 bytes
  };
  // Encodes and forgets what is staged. `identity` gives uuid, region, generation, epoch.
  std::vector<EncodedBlock> take_blocks(const BlockHeader& identity);

  uint32_t blocks_used() const { return blocks_used_; }

  uint32_t size() const;

 private:
  uint32_t blocks_max_;
  uint32_t blocks_used_ = 0;
  uint32_t size_ = 0;
  uint32_t staged_blocks_ = 0;  // that the staged strings will fill
  uint32_t staged_bytes_ = 0;   // of the last of them
  std::vector<DictionaryEntry> staged_;
  std::unordered_map<std::string, uint16_t> known_;  // kind byte + text -> index
};

// Appends the entries of one block, all or none. kNotFound and kCorrupt as read_block_header, kStale for another
// generation, kCorrupt on bytes that do not parse, whatever they are.
Status decode_dictionary_block(std::span<const uint8_t> page, const ExpectedBlock& expected, uint64_t generation,
                               std::vector<DictionaryEntry>& entries);

}  // namespace kvstore::format
