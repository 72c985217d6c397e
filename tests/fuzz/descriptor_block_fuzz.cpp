// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "format/descriptor.h"

#include "fuzz_input.h"

namespace kvstore::fuzz {
namespace {

constexpr uint64_t kExtentBytes = 12 * kKiB;
constexpr uint32_t kSlotCount = 85;
constexpr uint32_t kDictionarySize = 2;

void require_usable(const format::Descriptor& descriptor) {
  require(descriptor.slot < kSlotCount, "the slot is in the region");
  require(descriptor.payload_bytes <= kExtentBytes, "the payload is in its extent");
  require(descriptor.key_bytes > 0 && descriptor.key_bytes <= format::kStoredKeyBytes, "the key is in its field");
  require(descriptor.meta_bytes <= format::kMetaBytes, "the meta is in its field");
  require(descriptor.space_index < kDictionarySize, "the space is in the dictionary");
  require(descriptor.salt_index < kDictionarySize || descriptor.salt_index == format::kNoSalt,
          "the salt is in the dictionary");
  const std::string_view key(reinterpret_cast<const char*>(descriptor.key), descriptor.key_bytes);
  require(format::parent_hint(key) != 0, "a key has a hint");
}

}  // namespace

void fuzz_descriptor_block(const uint8_t* data, size_t bytes) {
  Input input(data, bytes);
  const uint8_t choices = input.take_byte();
  AlignedBuffer page = input.take_block(kPageBytes);
  const auto kind = (choices & 2) != 0 ? format::BlockKind::kTail : format::BlockKind::kDescriptors;
  if ((choices & 1) != 0) seal_block(span_of(page), kind, 3);
  const auto block = format::decode_descriptor_block(span_of(page), {kStore, kRegion, kind, 3});
  if (!block.ok()) return;
  require(block.value().descriptors.size() <= format::kDescriptorsPerBlock, "descriptors are bounded");
  for (const format::Descriptor& descriptor : block.value().descriptors) {
    if (format::is_plausible(descriptor, kExtentBytes, kSlotCount, kDictionarySize)) require_usable(descriptor);
  }
}

}  // namespace kvstore::fuzz

#ifndef KVSTORE_FUZZ_REPLAY
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  kvstore::fuzz::fuzz_descriptor_block(data, bytes);
  return 0;
}
#endif
