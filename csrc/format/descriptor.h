// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Descriptor: the 128-byte record of one extent, and the blocks that pack 31 of them behind a block header.
// Descriptor blocks are write-once (D) but for the one partial block, kept in the tail pair (T0/T1) until it is
// full. The checksum of the payload lives here, never beside the payload (I5). No I/O.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/checksum.h"
#include "format/block_header.h"

namespace kvstore::format {

inline constexpr uint32_t kStoredKeyBytes = 48;
inline constexpr uint32_t kMetaBytes = 28;
inline constexpr uint32_t kKeyBytesMax = 1024;
inline constexpr uint16_t kNoSalt = 0xffff;

enum DescriptorFlags : uint16_t {
  kDescriptorValid = 1,
  kDescriptorKeyIsDigest = 2,  // the key was longer than 48 bytes: BLAKE2b-384 of it, listed as such
  kDescriptorPageHashes = 4,   // page nodes follow the payload, 8 bytes a page, covered by the root
};

struct Descriptor {
  Checksum128 checksum;            // 0   root of the payload's tree
  uint8_t key[kStoredKeyBytes]{};  // 16  zero padded
  uint64_t write_seq = 0;          // 64  epoch << 40 | n
  uint64_t parent = 0;             // 72  first 8 bytes of the parent's stored-key digest; 0: none. A hint
  uint32_t payload_bytes = 0;      // 80
  uint32_t slot = 0;               // 84
  uint32_t depth = 0;              // 88
  uint16_t space_index = 0;        // 92  into the region's dictionary
  uint16_t salt_index = kNoSalt;   // 94
  uint16_t flags = 0;              // 96
  uint8_t key_bytes = 0;           // 98
  uint8_t meta_bytes = 0;          // 99
  uint8_t meta[kMetaBytes]{};      // 100 the adapter's own
};
static_assert(sizeof(Descriptor) == 128);
static_assert(offsetof(Descriptor, key) == 16);
static_assert(offsetof(Descriptor, write_seq) == 64);
static_assert(offsetof(Descriptor, payload_bytes) == 80);
static_assert(offsetof(Descriptor, flags) == 96);
static_assert(offsetof(Descriptor, meta) == 100);

inline constexpr uint32_t kDescriptorsPerBlock = (kPageBytes - sizeof(BlockHeader)) / sizeof(Descriptor);
static_assert(kDescriptorsPerBlock == 31);

// A key as it is stored: itself up to 48 bytes, else its BLAKE2b-384 digest.
struct StoredKey {
  uint8_t bytes[kStoredKeyBytes]{};
  uint8_t size = 0;
  bool is_digest = false;
  std::string_view view() const { return {reinterpret_cast<const char*>(bytes), size}; }
};
StoredKey make_stored_key(std::string_view key);    // key: 1..kKeyBytesMax bytes
uint64_t parent_hint(std::string_view parent_key);  // 0 for an empty key

struct DescriptorBlock {
  BlockHeader header;
  std::span<const Descriptor> descriptors;  // into the page
};

// kind: kTail or kDescriptors; `number` is the D block's index in both cases. page: 4096 bytes, 8-aligned.
void encode_descriptor_block(BlockKind kind, const BlockHeader& identity, std::span<const Descriptor> descriptors,
                             std::span<uint8_t> page);

// As read_block_header; kCorrupt also for a count over 31. The span points into `page`.
Result<DescriptorBlock> decode_descriptor_block(std::span<const uint8_t> page, const ExpectedBlock& expected);

// Whether a descriptor is usable in a region of this shape: valid flag, slot < slot_count, payload fits its
// extent (with page hashes where flagged), indexes and lengths in range. Never trusts a byte.
bool is_plausible(const Descriptor& descriptor, uint64_t extent_bytes, uint32_t slot_count, uint32_t dictionary_size);

// Bytes of an extent that a payload needs: whole pages, page nodes included where asked for.
uint64_t extent_bytes_needed(uint64_t payload_bytes, bool page_hashes);

}  // namespace kvstore::format
