// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// One filled-in value of every on-disk struct, every field different, for round trips, golden bytes and flips.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "format/bitmap.h"
#include "format/block_header.h"
#include "format/descriptor.h"
#include "format/dictionary.h"
#include "format/geometry.h"
#include "format/region_header.h"
#include "format/superblock.h"

namespace kvstore::format::samples {

// Memory aligned as direct I/O buffers are, of any number of pages.
class Pages {
 public:
  explicit Pages(size_t bytes = kPageBytes) : words_(bytes / sizeof(uint64_t)) {}
  std::span<uint8_t> bytes() { return {reinterpret_cast<uint8_t*>(words_.data()), words_.size() * sizeof(uint64_t)}; }
  operator std::span<uint8_t>() { return bytes(); }
  operator std::span<const uint8_t>() { return bytes(); }
  uint8_t& operator[](size_t i) { return bytes()[i]; }

 private:
  std::vector<uint64_t> words_;
};

inline Uuid uuid(uint8_t first) {
  Uuid value;
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<uint8_t>(first + i);
  return value;
}

// Given, not chosen: golden bytes must not move with what choose_geometry aims at.
inline Geometry geometry() {
  Geometry value;
  value.device_bytes = 64 * kMiB;
  value.region_bytes = kMiB;
  value.min_block_bytes = 4 * kKiB;
  value.region_count = 28;
  value.dictionary_blocks = 9;
  value.entry_bytes = 24 * kPageBytes;
  value.data_offset = 35 * kMiB;
  return value;
}

inline Superblock superblock() {
  Superblock value;
  value.compat_flags = 0x0102030405060708;
  value.ro_compat_flags = 0x1112131415161718;
  value.store_uuid = uuid(0x20);
  value.pool_uuid = uuid(0x30);
  value.member_index = 1;
  value.members = {uuid(0x40), uuid(0x20), uuid(0x50)};
  value.nguid = "0123456789abcdef0123456789abcdef";
  value.eui64 = "002538b971b3c4d5";
  value.serial = "S64GNE0R123456";
  value.logical_block_bytes = 512;
  value.geometry = geometry();
  for (size_t i = 0; i < value.fingerprint_secret.size(); ++i) {
    value.fingerprint_secret[i] = static_cast<uint8_t>(0x60 + i);
  }
  value.formatted_seconds = 1'700'000'001;
  value.owner = {0x7172737475767778, uuid(0x80), uuid(0x90)};
  value.opened_seconds = 1'700'000'002;
  value.clean = false;
  value.shared_mode = true;
  value.sequence = 0xa1a2a3a4a5a6a7a8;
  return value;
}

inline BlockHeader identity() {
  BlockHeader value;
  value.store_uuid = uuid(0x20);
  value.region = 7;
  value.number = 3;
  value.generation = 0x1112131415161718;
  value.sequence = 0x2122232425262728;
  value.owner_epoch = 0x3132333435363738;
  return value;
}

inline ExpectedBlock expected(BlockKind kind, uint32_t number = 3) {
  static const Uuid store = uuid(0x20);
  return {store, RegionId(7), kind, number};
}

inline RegionHeader region_header() {
  RegionHeader value;
  value.region = RegionId(7);
  value.generation = Generation(0x1112131415161718);
  value.sequence = 0x2122232425262728;
  value.state = RegionState::kSealed;
  value.owner_epoch = Epoch(0x3132333435363738);
  value.owner_host = uuid(0x40);
  value.extent_bytes = 12 * kKiB;
  value.slot_count = 85;
  value.cipher_key_id = 0x5152535455565758;
  value.placement_id = 0x61626364;
  value.opened_seconds = 1'700'000'003;
  value.sealed_seconds = 1'700'000'004;
  value.min_write_seq = 0x7172737475767778;
  value.max_write_seq = 0x8182838485868788;
  value.descriptor_count = 83;
  value.dictionary_count = 5;
  return value;
}

inline Descriptor descriptor(uint8_t seed) {
  Descriptor value;
  value.checksum = {0x0101010101010101u * seed, 0x0202020202020202u + seed};
  const StoredKey key = make_stored_key("key-" + std::to_string(seed));
  std::memcpy(value.key, key.bytes, sizeof(value.key));
  value.key_bytes = key.size;
  value.write_seq = (uint64_t{5} << 40) | seed;
  value.parent = parent_hint("key-0");
  value.payload_bytes = 8000u + seed;
  value.slot = seed;
  value.depth = 100u + seed;
  value.space_index = 0;
  value.salt_index = 1;
  value.flags = kDescriptorValid;
  value.meta_bytes = 3;
  value.meta[0] = 'm';
  value.meta[1] = seed;
  value.meta[2] = 0xff;
  return value;
}

inline std::vector<Descriptor> descriptors(uint8_t count) {
  std::vector<Descriptor> values;
  for (uint8_t i = 0; i < count; ++i) values.push_back(descriptor(i));
  return values;
}

inline DeadBitmap bitmap() {
  DeadBitmap value(200);
  for (const uint32_t slot : {0u, 63u, 64u, 199u}) value.set(SlotIndex(slot));
  return value;
}

// Calls `flipped` with each way of damaging one byte of `block`: low bit, high bit, all bits.
inline void for_each_byte_flip(std::span<uint8_t> block, const std::function<void(size_t byte)>& flipped) {
  for (size_t i = 0; i < block.size(); ++i) {
    for (const uint8_t mask : {uint8_t{0x01}, uint8_t{0x80}, uint8_t{0xff}}) {
      block[i] = static_cast<uint8_t>(block[i] ^ mask);
      flipped(i);
      block[i] = static_cast<uint8_t>(block[i] ^ mask);
    }
  }
}

}  // namespace kvstore::format::samples
