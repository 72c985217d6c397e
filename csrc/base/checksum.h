// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The payload checksum: a tree, so that pieces hash in any order, on several cores, and on a GPU.
//
//   page node   XXH3-64 of each 4 KiB page, the last one zero-padded
//   piece node  XXH3-64 of the little-endian page nodes of each 1 MiB
//   root        XXH3-128 of (space digest 32 | salt length u32 | salt | key length u32 | key |
//                            payload_bytes u64 | piece nodes)
//
// Guarantees: equal on every CPU; the root binds the bytes to their identity, so a block read for another
// key, space or salt never verifies (I5). Not a defence against somebody who writes to the device.

#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/units.h"

namespace kvstore {

struct Checksum128 {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Checksum128&) const = default;
};

using SpaceDigest = std::array<uint8_t, 32>;  // BLAKE2b-256 of the space's canonical JSON

// What the root binds a payload to. The views must outlive the call only.
struct BlockIdentity {
  const SpaceDigest& space;
  std::string_view salt;
  std::string_view key;  // the stored 48-byte-or-shorter key, see format/descriptor.h
};

// XXH3-64 of one page of `bytes` (<= 4096) bytes; a short page is zero-padded to 4096 first.
uint64_t page_node(const void* page, size_t bytes);

// Appends nothing, allocates nothing: writes ceil(bytes / 4096) page nodes of a contiguous run.
void page_nodes(const void* data, size_t bytes, uint64_t* nodes);

// Piece node of up to 256 page nodes.
uint64_t piece_node_of_pages(std::span<const uint64_t> nodes);

// Piece node of up to 1 MiB of contiguous payload.
uint64_t piece_node(const void* data, size_t bytes);

Checksum128 root_checksum(const BlockIdentity& identity, uint64_t payload_bytes, std::span<const uint64_t> piece_nodes);

// Whole-block convenience: contiguous payload in memory.
Checksum128 block_checksum(const BlockIdentity& identity, const void* data, uint64_t payload_bytes);

// XXH3-128 of metadata blocks (superblock, headers, descriptor blocks).
Checksum128 metadata_checksum(const void* data, size_t bytes);

// Name of the instruction set the hash was dispatched to ("avx2", "avx512", "sse2", "scalar").
const char* checksum_engine();

}  // namespace kvstore
