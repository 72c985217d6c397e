// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Dead bitmap: one bit per slot of a region, set by delete and by superseded copies. Kept as a pair of
// copies of Geometry::bitmap_bytes() each; besides the header the only thing written to a sealed region. No I/O.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/block_header.h"

namespace kvstore::format {

class DeadBitmap {
 public:
  DeadBitmap() = default;
  explicit DeadBitmap(uint32_t slot_count) : words_((slot_count + 63) / 64), slot_count_(slot_count) {}
  bool empty() const { return words_.empty(); }
  bool test(SlotIndex slot) const {
    return slot.value < slot_count_ && (words_[slot.value / 64] >> (slot.value % 64) & 1) != 0;
  }
  void set(SlotIndex slot) {
    if (slot.value < slot_count_) words_[slot.value / 64] |= uint64_t{1} << (slot.value % 64);
  }
  uint32_t count() const;
  uint32_t slot_count() const { return slot_count_; }
  std::span<const uint64_t> words() const { return words_; }
  std::span<uint64_t> words() { return words_; }

 private:
  std::vector<uint64_t> words_;
  uint32_t slot_count_ = 0;
};

// `copy` is Geometry::bitmap_bytes() long. identity.number is the pair copy, identity.sequence the pair's.
void encode_bitmap(const DeadBitmap& bitmap, const BlockHeader& identity, std::span<uint8_t> copy);

struct DecodedBitmap {
  BlockHeader header;
  DeadBitmap bitmap;
};
Result<DecodedBitmap> decode_bitmap(std::span<const uint8_t> copy, const ExpectedBlock& expected, uint32_t slot_count);

}  // namespace kvstore::format
