// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "format/superblock.h"

#include <array>
#include <string>

#include "base/checksum.h"
#include "fuzz_input.h"

namespace kvstore::fuzz {
namespace {

using format::kSuperblockCopies;

void put_right(std::span<uint8_t> page, uint32_t copy) {
  std::memcpy(page.data() + 16, &copy, sizeof(copy));
  std::memcpy(page.data() + 24, &format::kSuperblockMagic, sizeof(format::kSuperblockMagic));
  const std::span<uint8_t> covered = page.subspan(format::kSuperblockChecksumFrom);
  const Checksum128 checksum = metadata_checksum(covered.data(), covered.size());
  std::memcpy(page.data(), &checksum, sizeof(checksum));
}

void require_usable(const format::Superblock& superblock) {
  const bool known =
      superblock.version <= format::kFormatVersion && (superblock.incompat_flags & ~format::kIncompatKnown) == 0;
  if (!known) return;  // nothing but the preamble was read
  const format::Geometry& geometry = superblock.geometry;
  require(format::validate(geometry).ok(), "the geometry is valid");
  const RegionId last(geometry.region_count - 1);
  const uint64_t last_copy = geometry.superblock_offsets()[3];
  require(geometry.region_offset(last) + geometry.region_bytes <= last_copy, "regions end before the last copy");
  require(geometry.descriptor_block_offset(last, geometry.descriptor_blocks()) <= geometry.data_offset,
          "entries end before the data");
  require(superblock.members.at(superblock.member_index) == superblock.store_uuid, "the member list names this store");
  AlignedBuffer page(kPageBytes);
  format::encode_superblock(superblock, 2, span_of(page));
  format::Superblock again;
  std::string why;
  require(format::decode_superblock(span_of(page), 2, again, why) == format::CopyState::kValid, "it decodes again");
  require(again == superblock, "it decodes to itself");
}

}  // namespace

void fuzz_superblock(const uint8_t* data, size_t bytes) {
  Input input(data, bytes);
  const uint8_t choices = input.take_byte();
  std::array<AlignedBuffer, kSuperblockCopies> pages;
  std::array<format::CopyRead, kSuperblockCopies> copies;
  for (uint32_t i = 0; i < kSuperblockCopies; ++i) {
    // Bits 4..7: this copy is the one before it again. So that quorums come about.
    const bool repeats = i > 0 && (choices >> (4 + i) & 1) != 0;
    pages[i] = repeats ? AlignedBuffer(kPageBytes) : input.take_block(kPageBytes);
    if (repeats) std::memcpy(pages[i].data(), pages[i - 1].data(), kPageBytes);
    if ((choices & 1) != 0) put_right(span_of(pages[i]), i);
    copies[i].readable = (choices & 2) == 0 || i != 1;
    copies[i].page = span_of(pages[i]);
    format::Superblock superblock;
    std::string why;
    const format::CopyState state = format::decode_superblock(copies[i].page, i, superblock, why);
    if (state == format::CopyState::kValid) require_usable(superblock);
  }
  const format::Quorum quorum = format::choose_superblock(copies);
  if (quorum.verdict == format::QuorumVerdict::kOk) require_usable(quorum.superblock);
}

}  // namespace kvstore::fuzz

#ifndef KVSTORE_FUZZ_REPLAY
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  kvstore::fuzz::fuzz_superblock(data, bytes);
  return 0;
}
#endif
