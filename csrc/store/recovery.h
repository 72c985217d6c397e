// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Recovery: builds the catalog from the device, the same way after a clean close and after a crash. Reads the used
// part of the metadata area in sequence at full queue depth, several regions at a time, on a few threads.
//
// Guarantees (I12): of a region's header pair the highest generation wins; blocks of a lower one are ignored (I2). Open
// regions are sealed, never continued. Dead slots drop first; of duplicates the highest write_seq wins and the others
// are kept as alternates. Both headers unreadable: the region is quarantined and its generation is the highest seen in
// any of its blocks.

#pragma once

#include <functional>
#include <memory>
#include <span>

#include "device/blocking_io.h"
#include "format/superblock.h"
#include "store/catalog.h"

namespace kvstore::store {

struct RecoveryReport {
  uint64_t blocks = 0;
  uint64_t bytes_read = 0;
  uint64_t blocks_skipped = 0;  // metadata blocks that were damaged
  uint64_t copies_damaged = 0;  // of header, bitmap and tail pairs, where the other was whole or none had been written
  uint32_t regions_open_found = 0;
  uint32_t regions_quarantined = 0;
  uint64_t duplicates = 0;
  uint64_t refused = 0;  // found no room in the index
  uint32_t superblock_copies_damaged = 0;
  double seconds = 0;
};

using MakeIo = std::function<Result<std::unique_ptr<device::BlockingIo>>()>;

// What the headers of one device say, before any descriptor is read: enough to size the index.
struct HeaderScan {
  uint64_t descriptors_max = 0;   // at most this many blocks
  uint64_t extent_bytes_sum = 0;  // over regions in use, to guess the blocks a full device holds
  uint32_t regions_used = 0;
  std::vector<format::RegionHeader> headers;  // of the regions asked for; generation 0: never used
  std::vector<uint64_t> header_sequences;
  std::vector<uint32_t> header_copies;  // the copy to write next (I4)
  std::vector<bool> unreadable;
  std::vector<bool> in_doubt;  // a copy of the pair could not be read: it may be the one that counts
  uint64_t copies_damaged = 0;
};
Result<HeaderScan> scan_headers(device::BlockingIo& io, const format::Superblock& superblock);
Result<HeaderScan> scan_headers(device::BlockingIo& io, const format::Superblock& superblock,
                                std::span<const RegionId> regions);

// Asked before each write: a large device takes longer to read than a claim stays fresh.
using StillOurs = std::function<Status()>;

// Fills the catalog's regions of `device` and the index. `threads` workers, each with an io of its own.
Status recover_device(Catalog& catalog, SpaceRegistry& spaces, uint16_t device, const format::Superblock& superblock,
                      HeaderScan scan, IndexBuilder& builder, const MakeIo& make_io, uint32_t threads, bool read_only,
                      const StillOurs& still_ours, Clock& clock, RecoveryReport& report);

// Shared mode: of regions that the metadata engine says hold nothing (any more), the headers' states are not believed.
void ignore_lives(HeaderScan& scan, const std::function<bool(const format::RegionHeader&)>& is_over);

// After every device: live counts, region ages, free lists.
void finish_recovery(Catalog& catalog, IndexBuilder& builder, RecoveryReport& report);

}  // namespace kvstore::store
