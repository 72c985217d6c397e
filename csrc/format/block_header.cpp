// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "format/block_header.h"

#include <cstring>
#include <string>

#include "base/mutation.h"

namespace kvstore::format {
namespace {

// The checksum covers everything behind itself, the unused end of the block too.
Checksum128 checksum_of(std::span<const uint8_t> block) {
  const std::span<const uint8_t> covered = block.subspan(sizeof(Checksum128));
  return metadata_checksum(covered.data(), covered.size());
}

const char* kind_name(BlockKind kind) {
  switch (kind) {
    case BlockKind::kHeader: return "header";
    case BlockKind::kDictionary: return "dictionary";
    case BlockKind::kBitmap: return "bitmap";
    case BlockKind::kTail: return "tail";
    case BlockKind::kDescriptors: return "descriptor";
  }
  return "unknown";
}

Status corrupt(const ExpectedBlock& expected, const std::string& why) {
  return Status(
      Code::kCorrupt,
      format_text("region %u, %s block %u: ", expected.region.value, kind_name(expected.kind), expected.number) + why);
}

}  // namespace

void write_block_header(const BlockHeader& header, std::span<uint8_t> block) {
  BlockHeader filled = header;
  filled.magic = kBlockMagic;
  filled.block_bytes = static_cast<uint32_t>(block.size());
  std::memcpy(block.data(), &filled, sizeof(filled));
  filled.checksum = checksum_of(block);
  std::memcpy(block.data(), &filled.checksum, sizeof(filled.checksum));
}

Result<BlockHeader> read_block_header(std::span<const uint8_t> block, const ExpectedBlock& expected) {
  if (block.size() < sizeof(BlockHeader)) return corrupt(expected, format_text("only %zu bytes", block.size()));
  BlockHeader header;
  std::memcpy(&header, block.data(), sizeof(header));
  if (header.magic != kBlockMagic) {
    return Status(Code::kNotFound, format_text("region %u: no %s block %u", expected.region.value,
                                               kind_name(expected.kind), expected.number));
  }
  if (header.checksum != checksum_of(block) && KVS_RULE(I4_a_torn_copy_is_invalid)) {
    return corrupt(expected, "checksum mismatch");
  }
  if (header.store_uuid != expected.store_uuid) {
    // Whole, and of a store that was here before the last format: as good as never written. (A damaged block may be
    // ours, whatever uuid it shows, and a region must not restart its generations over one; I2.)
    return Status(Code::kNotFound, format_text("region %u: %s block %u is of an earlier store", expected.region.value,
                                               kind_name(expected.kind), expected.number));
  }
  if (header.region != expected.region.value) return corrupt(expected, format_text("of region %u", header.region));
  if (header.kind != expected.kind) {
    return corrupt(expected, format_text("is of kind %u", static_cast<unsigned>(header.kind)));
  }
  const bool numbered = !expected.any_number && expected.kind != BlockKind::kTail;
  if (numbered && header.number != expected.number) {
    return corrupt(expected, format_text("is number %u", header.number));
  }
  if (header.block_bytes != block.size()) {
    return corrupt(expected, format_text("says %u bytes, has %zu", header.block_bytes, block.size()));
  }
  return header;
}

}  // namespace kvstore::format
