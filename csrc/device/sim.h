// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// SimDisk and SimDevice: an in-memory device, deterministic from its seed, with faults. A SimDisk is the
// medium and survives "crashes"; SimDevices are openers of it. Completion happens only inside poll(), in an
// order that the seed decides, so a single-threaded run replays exactly.
//
// Fault model: a request in flight may have moved any of its sectors already (`early`); it is executed when it is
// reported, so requests overtake each other as the seed decides. Writes that no flush covered (and were not `durable`)
// are kept apart, per 512-byte sector; a power cut keeps, drops or tears each sector on its own. Scripted faults hit
// the n-th matching operation.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "device/device.h"

namespace kvstore::device {

enum class SimFault : uint8_t {
  kNone,
  kError,            // -EIO (or `value` as -errno), nothing moved
  kErrorAfterWrite,  // the bytes land, then -EIO is reported
  kShort,            // `value` bytes moved (rounded to 512), result says so
  kAgain,            // -EAGAIN, nothing moved
  kAgainAfterPart,   // `value` bytes moved (rounded to 512), then -EAGAIN
  kStuck,            // does not complete until release_stuck(); then normally (`value` != 0: with -value)
  kLost,             // write: reported done, nothing changed
  kMisdirected,      // write lands, read comes from, offset `value`
  kBitRot,           // read: one flipped bit at byte `value` of the request; the medium is unchanged
  kRot,              // one flipped bit at byte `value` of the request on the medium, before a read, after a write
  kStale,            // read: what each sector held before its last write, as far as keep_previous() saw it
  kLatent,           // the sector at byte `value` of the request: -EIO for every read until it is written again
  kGhost,            // write: -EIO (or `value` as -errno), nothing moved; it lands at land_ghosts()
  kFlushFails,       // flush reports -EIO, and unflushed sectors are dropped (fsyncgate)
};

struct SimRule {
  SimFault fault = SimFault::kNone;
  std::optional<IoOp> op;   // only this operation
  uint64_t first_byte = 0;  // only requests that overlap [first_byte, last_byte)
  uint64_t last_byte = UINT64_MAX;
  uint64_t skip = 0;   // matching requests let through first
  uint64_t times = 1;  // then this many are hit
  uint64_t value = 0;
};

// A rule that hit, or a ghost that landed.
struct SimHit {
  SimFault fault = SimFault::kNone;
  IoOp op = IoOp::kRead;
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
  uint64_t other_offset_bytes = 0;  // misdirected: where it went or came from; else offset_bytes
  uint64_t tick = 0;                // SimDisk::ticks() of the request
};

class SimDisk {
 public:
  SimDisk(uint64_t size_bytes, uint64_t seed);
  ~SimDisk();

  // Writes and flushes executed so far; the crash loop stops at the n-th. Reads count once set_count_reads(true).
  uint64_t operations() const;
  void set_count_reads(bool count_reads);
  // After `operations` more operations every further request (and all in flight) fails with -ENODEV, as if the
  // process had died. Writes in flight land not at all, in part, or whole, as they would in the kernel.
  void stop_after(uint64_t operations);
  bool stopped() const;
  // Drops, keeps or tears what was not flushed, forgets stops, stuck requests and openers: queues that exist now
  // answer -ENODEV for ever. cache_survives: all is kept (process kill).
  void power_cut(bool cache_survives);

  // Rules are tried in the order added when a request is submitted; the first that hits decides.
  void add_rule(SimRule rule);
  void clear_rules();
  // Lets stuck requests complete, now and those of queues destroyed since: their writes then land late, as ghost
  // writes do, and their reads in the buffers they named (I11: nobody may have given those back).
  void release_stuck();
  uint64_t stuck_count() const;
  // Writes reported as failed (kGhost) land now. A kill does not stop them; a power cut does.
  void land_ghosts();
  uint64_t ghost_count() const;
  // For kStale; costs as much memory again as is written.
  void keep_previous();
  // What hit since the last call, in order.
  std::vector<SimHit> take_hits();
  // Requests executed so far, reads too, and ghosts landed.
  uint64_t ticks() const;

  // Direct access to the medium, for corruption in tests: what a read would return now.
  void peek(uint64_t offset_bytes, void* data, uint64_t bytes) const;
  void poke(uint64_t offset_bytes, const void* data, uint64_t bytes);  // durable at once
  uint64_t size_bytes() const;
  void resize(uint64_t size_bytes);

  // Observer of every completed operation, for oracles and order checks. Called inside poll(), right after the
  // operation; it may call this SimDisk, not the queue.
  using Observer = std::function<void(const IoRequest& request)>;
  void set_observer(Observer observer);

  struct Impl;
  Impl* impl() { return impl_.get(); }

 private:
  std::unique_ptr<Impl> impl_;
};

struct SimDeviceOptions {
  std::string path = "sim:0";
  bool volatile_cache = true;
  bool is_fabric = false;
  bool reorder = true;      // completions in seeded random order, else first in first out
  bool early = false;       // sectors of what is in flight move before it is reported, also of what is stuck
  uint64_t latency_ns = 0;  // of each request, on `clock`; poll() that waits advances a ManualClock
  uint32_t logical_block_bytes = 512;
  uint32_t dma_alignment_bytes = 512;
};

// A device over `disk`, which must outlive it. Thread-safe between queues (one mutex per disk).
std::unique_ptr<Device> make_sim_device(SimDisk& disk, const SimDeviceOptions& options, Clock& clock);

}  // namespace kvstore::device
