// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "format/region_header.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "base/mutation.h"
#include "format/descriptor.h"

namespace kvstore::format {
namespace {

constexpr uint64_t kGenerationMax = uint64_t{1} << 62;

// What follows the block header. Region, generation, sequence and owner epoch are in the block header.
struct RegionHeaderDisk {
  uint64_t extent_bytes;
  uint64_t cipher_key_id;
  uint64_t opened_seconds;
  uint64_t sealed_seconds;
  uint64_t min_write_seq;
  uint64_t max_write_seq;
  Uuid owner_host;
  uint32_t slot_count;
  uint32_t descriptor_bytes;
  uint32_t placement_id;
  uint32_t descriptor_count;
  uint32_t dictionary_count;
  uint8_t state;
  uint8_t checksum_kind;
  uint8_t cipher_kind;
  uint8_t reserved;
};
static_assert(std::is_trivially_copyable_v<RegionHeaderDisk>);
static_assert(sizeof(RegionHeaderDisk) == 88);
static_assert(offsetof(RegionHeaderDisk, owner_host) == 48);
static_assert(offsetof(RegionHeaderDisk, slot_count) == 64);
static_assert(offsetof(RegionHeaderDisk, state) == 84);

// The first reason not to trust the fields; empty: none. The block checksum already holds, so this stops what a
// hostile or buggy writer made, not rot.
std::string doubt(const RegionHeaderDisk& disk, const Geometry& geometry) {
  if (disk.state > static_cast<uint8_t>(RegionState::kQuarantined)) return format_text("state %u", disk.state);
  if (disk.descriptor_bytes != sizeof(Descriptor)) return format_text("descriptor_bytes %u", disk.descriptor_bytes);
  if (disk.checksum_kind != static_cast<uint8_t>(ChecksumKind::kXxh3Tree)) {
    return format_text("checksum kind %u", disk.checksum_kind);
  }
  if (disk.cipher_kind != 0) return format_text("cipher kind %u", disk.cipher_kind);
  const auto state = static_cast<RegionState>(disk.state);
  const bool may_be_empty = state == RegionState::kFree || state == RegionState::kQuarantined;
  const bool empty = disk.slot_count == 0 && disk.extent_bytes == 0;
  if (!(empty && may_be_empty)) {
    if (disk.extent_bytes == 0 || !is_aligned(disk.extent_bytes, kPageBytes)) {
      return format_text("extent_bytes %llu", static_cast<unsigned long long>(disk.extent_bytes));
    }
    if (disk.slot_count == 0 || disk.slot_count > geometry.slots_max() ||
        disk.slot_count > geometry.region_bytes / disk.extent_bytes) {
      return format_text("slot_count %u", disk.slot_count);
    }
  }
  if (disk.descriptor_count > disk.slot_count) return format_text("descriptor_count %u", disk.descriptor_count);
  if (disk.dictionary_count > geometry.dictionary_blocks) {
    return format_text("dictionary_count %u", disk.dictionary_count);
  }
  return "";
}

}  // namespace

const char* region_state_name(RegionState state) {
  switch (state) {
    case RegionState::kFree: return "free";
    case RegionState::kOpen: return "open";
    case RegionState::kSealed: return "sealed";
    case RegionState::kRetiring: return "retiring";
    case RegionState::kQuarantined: return "quarantined";
  }
  return "unknown";
}

void encode_region_header(const RegionHeader& header, const Uuid& store_uuid, uint32_t copy, std::span<uint8_t> page) {
  RegionHeaderDisk disk{};
  disk.extent_bytes = header.extent_bytes;
  disk.cipher_key_id = header.cipher_key_id;
  disk.opened_seconds = header.opened_seconds;
  disk.sealed_seconds = header.sealed_seconds;
  disk.min_write_seq = header.min_write_seq;
  disk.max_write_seq = header.max_write_seq;
  disk.owner_host = header.owner_host;
  disk.slot_count = header.slot_count;
  disk.descriptor_bytes = header.descriptor_bytes;
  disk.placement_id = header.placement_id;
  disk.descriptor_count = header.descriptor_count;
  disk.dictionary_count = header.dictionary_count;
  disk.state = static_cast<uint8_t>(header.state);
  disk.checksum_kind = static_cast<uint8_t>(header.checksum_kind);
  disk.cipher_kind = header.cipher_kind;

  BlockHeader block;
  block.store_uuid = store_uuid;
  block.region = header.region.value;
  block.number = copy;
  block.generation = header.generation.value;
  block.sequence = header.sequence;
  block.owner_epoch = header.owner_epoch.value;
  block.kind = BlockKind::kHeader;
  std::memset(page.data(), 0, page.size());
  std::memcpy(page.data() + sizeof(BlockHeader), &disk, sizeof(disk));
  write_block_header(block, page);
}

Result<RegionHeader> decode_region_header(std::span<const uint8_t> page, const Uuid& store_uuid,
                                          const Geometry& geometry, RegionId region, uint32_t copy) {
  if (page.size() != kPageBytes) {
    return Status(Code::kInvalid, format_text("a region header is 4096 bytes; given %zu", page.size()));
  }
  KVS_ASSIGN(const BlockHeader block, read_block_header(page, {store_uuid, region, BlockKind::kHeader, copy}));
  RegionHeaderDisk disk;
  std::memcpy(&disk, page.data() + sizeof(BlockHeader), sizeof(disk));
  if (block.generation > kGenerationMax && KVS_RULE(I2_generations_cannot_wrap)) {
    // I2: a generation that could wrap would bring an earlier life back.
    return Status(Code::kCorrupt, format_text("region %u, header copy %u: impossible generation", region.value, copy));
  }
  if (const std::string why = doubt(disk, geometry); !why.empty()) {
    return Status(Code::kCorrupt, format_text("region %u, header copy %u: impossible ", region.value, copy) + why);
  }
  RegionHeader header;
  header.region = region;
  header.generation = Generation(block.generation);
  header.sequence = block.sequence;
  header.state = static_cast<RegionState>(disk.state);
  header.owner_epoch = Epoch(block.owner_epoch);
  header.owner_host = disk.owner_host;
  header.extent_bytes = disk.extent_bytes;
  header.slot_count = disk.slot_count;
  header.descriptor_bytes = disk.descriptor_bytes;
  header.checksum_kind = static_cast<ChecksumKind>(disk.checksum_kind);
  header.cipher_kind = disk.cipher_kind;
  header.cipher_key_id = disk.cipher_key_id;
  header.placement_id = disk.placement_id;
  header.opened_seconds = disk.opened_seconds;
  header.sealed_seconds = disk.sealed_seconds;
  header.min_write_seq = disk.min_write_seq;
  header.max_write_seq = disk.max_write_seq;
  header.descriptor_count = disk.descriptor_count;
  header.dictionary_count = disk.dictionary_count;
  return header;
}

}  // namespace kvstore::format
