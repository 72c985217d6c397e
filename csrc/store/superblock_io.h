// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Reading, updating and repairing the superblock copies of one device, and the owner's claim on it.
//
// Guarantees: an update counts only when >= 3 copies were written durably and read back equal; otherwise it is an
// error and the store must not be written. Copies are updated one after the other, those first that do not hold what
// open would choose, so that a crash at any point, also of one update after another, leaves >= 2 copies of the old or
// of the new sequence. One copy may be bad for good.

#pragma once

#include <array>
#include <functional>

#include "base/clock.h"
#include "base/status.h"
#include "device/blocking_io.h"
#include "device/device.h"
#include "format/superblock.h"

namespace kvstore::store {

// Reads the copies that lie on the device and judges them; what could not be read is an unreadable copy.
format::Quorum read_quorum(device::BlockingIo& io, uint16_t device_index, uint64_t device_bytes);

// The answers of open are kept apart: kNotFound (no store here), kForeign, kCorrupt, kBusy (try again),
// kUnsupported. Does not write. The Quorum is always kOk.
Result<format::Quorum> read_superblock(device::BlockingIo& io, uint16_t device_index, uint64_t device_bytes);

// The identity as the superblock keeps it: cut to its fields, unprintable characters replaced.
device::DeviceIdentity storable_identity(const device::DeviceIdentity& identity);

// Whether this is the device that was formatted: kOtherStore when its identity differs (a copy of the store, or a path
// that now leads elsewhere), kInvalid when it was resized, or reads and writes in larger units.
Status check_device(const format::Superblock& superblock, const device::DeviceInfo& info);

// Writes `superblock` with sequence + 1 (stored into it, even on failure: a sequence is never used for two contents)
// to all copies, verifies, and fails unless >= 3 hold it. Gives up once three are out of reach, and before a copy for
// which `may_write` says no: a host that was stopped between two copies must not go on over another's claim.
using MayWriteCopy = std::function<Status(uint32_t copy)>;
Status update_superblock(device::BlockingIo& io, uint16_t device_index, format::Superblock& superblock,
                         const MayWriteCopy& may_write = {});

// Claims the device for this opening: raises the epoch and stores the record before any other write. After an
// unclean close by another host, or when another claim is seen at the same time: writes the record, waits two heartbeat
// periods, re-reads, and wins only if unchanged. Of two that claim a closed store at once at most one does not wait.
// kFenced: somebody else won. kUnsupported: a ro_compat flag forbids this build to write, or epochs are used up.
struct ClaimOptions {
  format::Uuid host{};
  format::Uuid nonce{};
  uint64_t heartbeat_ns = 1'000'000'000;
  uint64_t above_epoch = 0;  // the claim's is higher than this one, too
};

// How long a claim that was read back is good for, and how long a contender waits. The first must be the shorter: who
// has not looked for that long does not write, and so has stopped when the other begins.
constexpr uint64_t claim_fresh_ns(uint64_t heartbeat_ns) { return heartbeat_ns + heartbeat_ns / 2; }
constexpr uint64_t contender_wait_ns(uint64_t heartbeat_ns) { return 2 * heartbeat_ns; }
static_assert(claim_fresh_ns(1'000'000'000) < contender_wait_ns(1'000'000'000));

inline constexpr uint64_t kEpochMax = (uint64_t{1} << 24) - 1;  // write_seq is epoch << 40 | n
Result<format::Superblock> claim_device(device::BlockingIo& io, uint16_t device_index, format::Superblock superblock,
                                        const ClaimOptions& options, Clock& clock);

// Re-reads the record. kFenced when it is not ours any more (a higher epoch, another nonce, or no store at all: it was
// formatted); kIo when the copies that could be read do not tell; kCorrupt, kUnsupported as read_superblock.
Status confirm_ownership(device::BlockingIo& io, uint16_t device_index, uint64_t device_bytes,
                         const format::OwnerRecord& mine);

}  // namespace kvstore::store
