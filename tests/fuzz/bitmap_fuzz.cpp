// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "format/bitmap.h"

#include "fuzz_input.h"

namespace kvstore::fuzz {

void fuzz_bitmap(const uint8_t* data, size_t bytes) {
  Input input(data, bytes);
  const uint8_t choices = input.take_byte();
  const uint32_t slot_count = input.take_byte() | uint32_t{input.take_byte()} << 8 | uint32_t{input.take_byte()} << 16;
  AlignedBuffer copy = input.take_block((choices & 2) != 0 ? 2 * kPageBytes : kPageBytes);
  if ((choices & 1) != 0) seal_block(span_of(copy), format::BlockKind::kBitmap, 1);
  const format::ExpectedBlock expected{kStore, kRegion, format::BlockKind::kBitmap, 1};
  const auto decoded = format::decode_bitmap(span_of(copy), expected, slot_count);
  if (!decoded.ok()) return;
  const format::DeadBitmap& bitmap = decoded.value().bitmap;
  require(bitmap.slot_count() == slot_count, "it has the slots that were asked for");
  require(bitmap.count() == decoded.value().header.count, "its header counts its bits");
  require(bitmap.count() <= slot_count, "no bit is past the last slot");
  AlignedBuffer again(copy.size());
  format::encode_bitmap(bitmap, decoded.value().header, span_of(again));
  const auto decoded_again = format::decode_bitmap(span_of(again), expected, slot_count);
  require(decoded_again.ok(), "it decodes again");
  for (uint32_t i = 0; i < slot_count; ++i) {
    require(decoded_again.value().bitmap.test(SlotIndex(i)) == bitmap.test(SlotIndex(i)), "it decodes to itself");
  }
}

}  // namespace kvstore::fuzz

#ifndef KVSTORE_FUZZ_REPLAY
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  kvstore::fuzz::fuzz_bitmap(data, bytes);
  return 0;
}
#endif
