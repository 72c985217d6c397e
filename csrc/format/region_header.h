// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// RegionHeader: a region's life in one 4 KiB block, kept as the pair H0/H1. The generation in it is durable in
// both copies before the first payload byte of that life (I2). No I/O.

#pragma once

#include <cstdint>
#include <span>

#include "format/block_header.h"
#include "format/geometry.h"

namespace kvstore::format {

enum class RegionState : uint8_t { kFree = 0, kOpen = 1, kSealed = 2, kRetiring = 3, kQuarantined = 4 };
const char* region_state_name(RegionState state);

enum class ChecksumKind : uint8_t { kXxh3Tree = 1 };

struct RegionHeader {
  RegionId region;
  Generation generation;
  uint64_t sequence = 0;  // of the header pair, +1 per write
  RegionState state = RegionState::kFree;
  Epoch owner_epoch;
  Uuid owner_host{};
  uint64_t extent_bytes = 0;
  uint32_t slot_count = 0;
  uint32_t descriptor_bytes = 128;
  ChecksumKind checksum_kind = ChecksumKind::kXxh3Tree;
  uint8_t cipher_kind = 0;     // reserved
  uint64_t cipher_key_id = 0;  // reserved
  uint32_t placement_id = 0;   // reserved for FDP
  uint64_t opened_seconds = 0;
  uint64_t sealed_seconds = 0;
  uint64_t min_write_seq = 0;
  uint64_t max_write_seq = 0;
  uint32_t descriptor_count = 0;  // when sealed: how many there are, so that open reads just those
  uint32_t dictionary_count = 0;  // when sealed: dictionary blocks in use

  bool operator==(const RegionHeader&) const = default;
};

void encode_region_header(const RegionHeader& header, const Uuid& store_uuid, uint32_t copy, std::span<uint8_t> page);

// kNotFound, kCorrupt as read_block_header; also kCorrupt when a field is outside `geometry` (hostile bytes).
Result<RegionHeader> decode_region_header(std::span<const uint8_t> page, const Uuid& store_uuid,
                                          const Geometry& geometry, RegionId region, uint32_t copy);

}  // namespace kvstore::format
