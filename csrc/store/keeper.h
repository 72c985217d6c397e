// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Keeper: keeps one device's metadata. Commits descriptors, opens and seals regions, reclaims the one used longest
// ago, writes dead bitmaps, and confirms once a heartbeat that the device is still ours. Plain sequential code over
// blocking I/O on a thread of its own, so that no put or get ever waits for it but those that asked to be durable.
//
// The order of every step is the crash safety of the store:
//   commit   flush (I1) -> dictionary blocks (I10) -> full D blocks -> tail copy (I4), all durable
//   open     confirm ownership -> header copy -> other copy (I2), then payload may be written
//   seal     last partial block into its D place -> header copy
//   reclaim  read back who lived there -> misses -> header says free -> free, last in the queue (I7). Only a region
//            without readers is chosen, and it takes no new ones (I3)
// A crash between any two steps leaves what was acknowledged as durable readable. In shared mode a keeper commits,
// opens and seals what the agent was granted, after a look at the headers (S1), and nothing else.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "device/blocking_io.h"
#include "format/superblock.h"
#include "store/catalog.h"
#include "store/device_worker.h"
#include "store/tickets.h"

namespace kvstore::store {

class Keeper : public DeviceWorker {
 public:
  struct Setup {
    uint16_t device_number = 0;
    device::Device* device = nullptr;
    format::Superblock superblock;  // as claimed
    std::function<Result<std::unique_ptr<device::BlockingIo>>()> make_io;
  };
  Keeper(const StoreOptions& options, Setup setup, Catalog& catalog, SpaceRegistry& spaces, Counters& counters,
         EvictionHub& evictions, Clock& clock);
  ~Keeper();

  Status start();
  void wake();

  // Any thread: commits all that is pending now, and dead bits; returns when done. kTimeout ends the wait only. Not ok
  // otherwise: dead bits are not on the device, so that a deleted block may come back. Lost blocks are the catalog's.
  Status flush(uint64_t timeout_ns, const Interrupted& interrupted);
  // Commits, seals every open region and marks the superblock clean. After the engines have stopped.
  // kTimeout: the device did not answer by until_ns (at least a second is given). Shared mode: what is to be committed
  // waits for a lease that is not renewed just now, a lease time at most; `pass_time` lets the agent see to it.
  Status close(uint64_t until_ns, const std::function<void()>& pass_time);

  // One round of everything that is due. True when anything was done.
  bool turn();

 private:
  void broken(const char* condition, const char* file, int line) noexcept { catalog_.broken(condition, file, line); }
  void run();
  // `last`: nothing comes after it. Else what the end of a lease interrupts is kept for the next one (S3).
  bool commit(bool last = false);
  Status write_region(CommitWork& work);
  Status write_descriptors(Region& region, CommitWork& work);
  bool open_regions();
  bool seal_regions();
  Status write_seal(Region& region);
  bool reclaim_one();
  bool write_bitmaps(Status& outcome);
  void hold_if_unknown(uint32_t region, const Status& status);
  bool release_held();
  void heartbeat();
  Status confirm();
  bool awaits_renewal();
  // Before each write, and before a write is vouched for: after a pause the device may be another owner's.
  Status still_ours();
  // Shared mode: the lease is not renewed, nothing was written, and all can go on when it is.
  bool interrupted(const Status& status) const { return catalog_.shared() && status.code() == Code::kBusy; }
  Status flush_device();
  Status write_header(Region& region, const format::RegionHeader& header);
  Status look_at_headers(Region& region, Generation next);
  Status check_headers(RegionId region, Generation generation);
  Status write_page(const Region& region, uint64_t offset_bytes, bool durable);
  format::BlockHeader identity(const Region& region) const;
  uint64_t next_wait_ns();

  const StoreOptions& options_;
  Setup setup_;
  Catalog& catalog_;
  SpaceRegistry& spaces_;
  Counters& counters_;
  EvictionHub& evictions_;
  const format::Geometry geometry_;

  AlignedBuffer page_;
  std::vector<uint32_t> held_;  // regions with a metadata write of unknown outcome (I7)
  bool woken_ = false;
  Tickets flushes_;
  Status flush_outcome_;  // of the last one finished
  uint64_t next_heartbeat_ns_ = 0;
  bool claim_in_doubt_ = false;  // not fresh, and could not be read back
};

}  // namespace kvstore::store
