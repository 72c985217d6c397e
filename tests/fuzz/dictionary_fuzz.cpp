// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "format/dictionary.h"

#include <vector>

#include "fuzz_input.h"

namespace kvstore::fuzz {

void fuzz_dictionary(const uint8_t* data, size_t bytes) {
  Input input(data, bytes);
  const uint8_t choices = input.take_byte();
  AlignedBuffer page = input.take_block(kPageBytes);
  if ((choices & 1) != 0) seal_block(span_of(page), format::BlockKind::kDictionary, 0);
  format::BlockHeader header;
  std::memcpy(&header, page.data(), sizeof(header));
  const format::ExpectedBlock expected{kStore, kRegion, format::BlockKind::kDictionary, 0};
  std::vector<format::DictionaryEntry> entries;
  if (!format::decode_dictionary_block(span_of(page), expected, header.generation, entries).ok()) {
    require(entries.empty(), "a block that does not parse adds nothing");
    return;
  }
  require(entries.size() == header.count, "it holds as many strings as it says");
  size_t packed_bytes = 0;
  for (const format::DictionaryEntry& entry : entries) packed_bytes += 3 + entry.text.size();
  require(packed_bytes <= kPageBytes - sizeof(format::BlockHeader), "the strings come from the block");
}

}  // namespace kvstore::fuzz

#ifndef KVSTORE_FUZZ_REPLAY
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  kvstore::fuzz::fuzz_dictionary(data, bytes);
  return 0;
}
#endif
