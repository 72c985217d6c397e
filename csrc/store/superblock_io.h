// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Reading, updating and repairing the superblock copies of one device, and the owner's claim on it.
//
// Guarantees: an update counts only when >= 3 copies were written durably and read back equal; otherwise it is an
// error and the store must not be written. Copies are updated one after the other, so that a crash at any point
// leaves >= 2 copies of the old or of the new sequence.

#pragma once

#include <array>

#include "base/clock.h"
#include "base/status.h"
#include "device/blocking_io.h"
#include "format/superblock.h"

namespace kvstore::store {

// The answers of open are kept apart: kNotFound (no store here), kForeign, kCorrupt, kBusy (try again),
// kUnsupported. Does not write.
Result<format::Quorum> read_superblock(device::BlockingIo& io, uint16_t device_index, uint64_t device_bytes);

// Writes `superblock` with sequence + 1 (stored into it) to all copies, verifies, and fails unless >= 3 hold it.
Status update_superblock(device::BlockingIo& io, uint16_t device_index, format::Superblock& superblock);

// Claims the device for this opening: raises the epoch and stores the record before any other write. After an
// unclean close by another host: writes the record, waits two heartbeat periods, re-reads, and wins only if unchanged.
struct ClaimOptions {
  format::Uuid host{};
  format::Uuid nonce{};
  uint64_t heartbeat_ns = 1'000'000'000;
};
Result<format::Superblock> claim_device(device::BlockingIo& io, uint16_t device_index, format::Superblock superblock,
                                        const ClaimOptions& options, Clock& clock);

// Re-reads the record. kFenced when a higher epoch or another nonce of the same epoch is there; kIo when unreadable.
Status confirm_ownership(device::BlockingIo& io, uint16_t device_index, uint64_t device_bytes,
                         const format::OwnerRecord& mine);

}  // namespace kvstore::store
