// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "format/bitmap.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvstore::format {

uint32_t DeadBitmap::count() const {
  uint32_t bits = 0;
  for (const uint64_t word : words_) bits += static_cast<uint32_t>(std::popcount(word));
  return bits;
}

void encode_bitmap(const DeadBitmap& bitmap, const BlockHeader& identity, std::span<uint8_t> copy) {
  std::memset(copy.data(), 0, copy.size());
  const std::span<uint8_t> body = copy.subspan(sizeof(BlockHeader));
  const std::span<const uint64_t> words = bitmap.words();
  if (!words.empty()) std::memcpy(body.data(), words.data(), std::min(words.size_bytes(), body.size()));
  BlockHeader header = identity;
  header.kind = BlockKind::kBitmap;
  header.count = bitmap.count();
  write_block_header(header, copy);
}

Result<DecodedBitmap> decode_bitmap(std::span<const uint8_t> copy, const ExpectedBlock& expected, uint32_t slot_count) {
  KVS_ASSIGN(const BlockHeader header, read_block_header(copy, expected));
  const std::span<const uint8_t> body = copy.subspan(sizeof(BlockHeader));
  if (ceil_div(slot_count, 64) * sizeof(uint64_t) > body.size()) {
    return Status(Code::kInvalid, format_text("region %u: a bitmap of %zu bytes has no room for %u slots",
                                              header.region, copy.size(), slot_count));
  }
  DeadBitmap bitmap(slot_count);
  const std::span<uint64_t> words = bitmap.words();
  if (!words.empty()) std::memcpy(words.data(), body.data(), words.size_bytes());
  const uint32_t bits_in_last = slot_count % 64;
  const bool stray = bits_in_last != 0 && words.back() >> bits_in_last != 0;
  if (stray || bitmap.count() != header.count) {
    return Status(Code::kCorrupt,
                  format_text("region %u: the bitmap has %u bits set%s, its header says %u", header.region,
                              bitmap.count(), stray ? ", some past the last slot" : "", header.count));
  }
  return DecodedBitmap{header, std::move(bitmap)};
}

}  // namespace kvstore::format
