// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// StoreCore: the parts of an open store, in the order in which they are built and torn down.
// store_open.cpp builds it, store.cpp submits batches to it, store_listing.cpp reads it back, store_close.cpp ends it.

#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/catalog.h"
#include "store/engine.h"
#include "store/inline_reader.h"
#include "store/keeper.h"
#include "store/memory_map.h"
#include "store/memory_mover.h"
#include "store/prefetch_cache.h"
#include "store/recovery.h"
#include "store/shared_pool.h"
#include "store/store.h"

namespace kvstore::store {

class StoreCore {
 public:
  StoreOptions options;
  Clock* clock = nullptr;
  Random* random = nullptr;
  uint64_t fork_generation = 0;
  std::vector<std::unique_ptr<device::Device>> devices;
  std::vector<format::Superblock> superblocks;
  std::vector<uint64_t> confirmed_ns;  // when the claim on each device was last read back, until keepers do it
  SpaceRegistry spaces;
  Counters counters;
  EvictionHub evictions;
  RecoveryReport recovery;
  std::unique_ptr<Catalog> catalog;
  std::unique_ptr<PrefetchCache> prefetched;
  std::unique_ptr<InlineReaders> inline_readers;
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<std::unique_ptr<Keeper>> keepers;  // empty when read_only
  std::unique_ptr<SharedPool> shared;            // null in owner mode

  // Jobs submitted and not complete: keeps them alive, bounds them, and names them at close.
  std::mutex jobs_mutex;
  std::unordered_map<uint64_t, JobRef> jobs;
  uint64_t next_job_id = 1;
  uint64_t next_device = 0;  // round robin of puts
  bool closing = false;
  std::atomic<bool> open{false};
  bool leaked = false;  // close() gave up: what the kernel or a caller may still touch is never freed (I11)

  std::mutex listing_mutex;
  std::vector<std::vector<std::unique_ptr<device::BlockingIo>>> listing_ios;  // by device

  std::mutex memory_mutex;
  MemoryMap memory;  // what callers registered
  std::unordered_map<void*, AlignedBuffer> allocations;
  std::unordered_map<void*, uint64_t> registrations;
  // The engines' staging, for memory that only a mover reaches; asked for with the first job that has one.
  bool staging_pins_asked = false;
  std::string staging_pin_refusal;
  std::string staging_far;  // why it is not on the mover's NUMA node, when it could be known
  std::vector<std::unique_ptr<PinnedMemory>> staging_pins;

  Engine& engine_of(uint16_t device) { return *engines[device % engines.size()]; }
  // In a child of the process that opened the store: its threads are not there, its mutexes may be copied locked.
  bool forked() const;
  // kClosed in a forked child or after close.
  Status check_open() const;

  // Around every call that reaches engines, keepers or devices: close() tears them down only when no call is inside.
  class Call {
   public:
    explicit Call(const StoreCore& core) : core_(core) {
      // seq_cst: either close() sees this caller, or this caller sees that the store is closed.
      core_.callers.fetch_add(1);
      status_ = core_.check_open();
    }
    ~Call() { core_.callers.fetch_sub(1); }
    Call(const Call&) = delete;
    const Status& status() const { return status_; }

   private:
    const StoreCore& core_;
    Status status_;
  };
  mutable std::atomic<uint32_t> callers{0};
  std::atomic<bool> torn_down{false};  // engines, keepers and devices are gone, or are about to be
  Result<std::unique_ptr<device::BlockingIo>> make_io(uint16_t device);
  // While the store is being opened, which may take longer than a claim stays fresh: reads it back when it is not.
  Status still_ours(uint16_t device);
  // For the listing calls, which come many at a time: one io for each thread that is in such a call.
  Result<std::unique_ptr<device::BlockingIo>> take_listing_io(uint16_t device);
  void give_back_listing_io(uint16_t device, std::unique_ptr<device::BlockingIo> io);
  void job_finished(BatchJob& job);
  void prefetch_done(const Item& item, bool read);
  Status set_memory(const MemoryMap& map);
  void pin_staging(MemoryMover& mover);
};

}  // namespace kvstore::store
