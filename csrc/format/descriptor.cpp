// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "format/descriptor.h"

#include <algorithm>
#include <type_traits>

#include "base/digest.h"
#include "base/units.h"

namespace kvstore::format {
namespace {

static_assert(std::is_trivially_copyable_v<Descriptor>);
static_assert(alignof(Descriptor) == 8);

constexpr uint16_t kFlagsKnown = kDescriptorValid | kDescriptorKeyIsDigest | kDescriptorPageHashes;

}  // namespace

StoredKey make_stored_key(std::string_view key) {
  StoredKey stored;
  if (key.size() <= kStoredKeyBytes) {
    std::copy(key.begin(), key.end(), stored.bytes);
    stored.size = static_cast<uint8_t>(key.size());
  } else {
    blake2b(key, stored.bytes);
    stored.size = kStoredKeyBytes;
    stored.is_digest = true;
  }
  return stored;
}

uint64_t parent_hint(std::string_view parent_key) {
  if (parent_key.empty()) return 0;
  // Of the stored key, so that recovery can compute it from a descriptor alone.
  const auto digest = blake2b<8>(make_stored_key(parent_key).view());
  uint64_t hint = 0;
  std::memcpy(&hint, digest.data(), sizeof(hint));
  return hint == 0 ? 1 : hint;
}

void encode_descriptor_block(BlockKind kind, const BlockHeader& identity, std::span<const Descriptor> descriptors,
                             std::span<uint8_t> page) {
  const size_t count = std::min<size_t>(descriptors.size(), kDescriptorsPerBlock);
  std::memset(page.data(), 0, page.size());
  if (count != 0) std::memcpy(page.data() + sizeof(BlockHeader), descriptors.data(), count * sizeof(Descriptor));
  BlockHeader header = identity;
  header.kind = kind;
  header.count = static_cast<uint32_t>(count);
  write_block_header(header, page);
}

Result<DescriptorBlock> decode_descriptor_block(std::span<const uint8_t> page, const ExpectedBlock& expected) {
  if (page.size() != kPageBytes || !is_aligned(page.data(), alignof(Descriptor))) {
    return Status(Code::kInvalid, format_text("a descriptor block is 4096 bytes, 8-aligned; given %zu", page.size()));
  }
  KVS_ASSIGN(const BlockHeader header, read_block_header(page, expected));
  if (header.count > kDescriptorsPerBlock) {
    return Status(Code::kCorrupt, format_text("region %u, descriptor block %u: count %u, at most %u fit", header.region,
                                              header.number, header.count, kDescriptorsPerBlock));
  }
  const auto* first = reinterpret_cast<const Descriptor*>(page.data() + sizeof(BlockHeader));
  return DescriptorBlock{header, {first, header.count}};
}

bool is_plausible(const Descriptor& descriptor, uint64_t extent_bytes, uint32_t slot_count, uint32_t dictionary_size) {
  const Descriptor& d = descriptor;
  // A flag that this build does not know may change what the payload is.
  if ((d.flags & kDescriptorValid) == 0 || (d.flags & ~kFlagsKnown) != 0) return false;
  if (d.key_bytes == 0 || d.key_bytes > kStoredKeyBytes) return false;
  if ((d.flags & kDescriptorKeyIsDigest) != 0 && d.key_bytes != kStoredKeyBytes) return false;
  if (d.meta_bytes > kMetaBytes) return false;
  if (d.slot >= slot_count) return false;
  if (d.space_index >= dictionary_size) return false;
  if (d.salt_index != kNoSalt && d.salt_index >= dictionary_size) return false;
  return extent_bytes_needed(d.payload_bytes, (d.flags & kDescriptorPageHashes) != 0) <= extent_bytes;
}

uint64_t extent_bytes_needed(uint64_t payload_bytes, bool page_hashes) {
  const uint64_t page_count = ceil_div(payload_bytes, kPageBytes);
  const uint64_t node_bytes = page_hashes ? align_up(page_count * sizeof(uint64_t), kPageBytes) : 0;
  return page_count * kPageBytes + node_bytes;
}

}  // namespace kvstore::format
