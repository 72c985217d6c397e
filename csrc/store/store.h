// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Store: one pool of devices, opened by one owner. Submit a batch, learn of its completion from a
// CompletionQueue's eventfd (or wait on the Job), read per-item results.
//
// Guarantees: a hit is right or it is a miss (I5, I8); what was acknowledged as durable is there after any crash
// (I1, I10, I12); every queue, buffer and wait is bounded. Thread-safe, but for close(), which waits for or
// refuses other callers. In a forked child every call returns kClosed and nothing hangs.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "format/superblock.h"
#include "store/job.h"
#include "store/tickets.h"
#include "store/types.h"

namespace kvstore::store {

class StoreCore;

class Store {
 public:
  // Opens every device of one pool. Takes the owner's claim unless read_only.
  static Result<std::unique_ptr<Store>> open(const std::vector<std::string>& paths, const StoreOptions& options);
  static Result<std::unique_ptr<Store>> open_devices(std::vector<std::unique_ptr<device::Device>> devices,
                                                     const StoreOptions& options);
  ~Store();  // as close(0), swallowing nothing: what could not be released is leaked and logged

  // ---- spaces ----
  // Same JSON, same id. The caller canonicalises (sorted keys, no white space). <= 3,900 bytes.
  Result<SpaceId> register_space(std::string_view canonical_json);

  // ---- batches: never block on I/O ----
  // The returned job is complete when done(); `queue` (may be null) is told then. kBusy: jobs_max reached.
  // kInvalid: nothing of the batch was taken. Per-item trouble is in the results.
  Result<JobRef> put(std::span<const PutItem> items, const SubmitOptions& options,
                     std::shared_ptr<CompletionQueue> queue);
  Result<JobRef> get(std::span<const GetItem> items, const SubmitOptions& options,
                     std::shared_ptr<CompletionQueue> queue);
  // Reads blocks into the staging cache so that a later get is served from memory. Results: kHit: staged or
  // being staged; kMiss; kError/kBusy: refused (no room, cannot make the deadline).
  Result<JobRef> prefetch(std::span<const KeyRef> keys, const SubmitOptions& options,
                          std::shared_ptr<CompletionQueue> queue);

  // One block on the caller's own thread: no hand-over when the engine is idle. Blocks for the I/O. `error_text` gets
  // what Job::error_text() would say.
  ItemResult get_one(const GetItem& item, std::string* error_text = nullptr);

  // ---- index only: no I/O ----
  // payload_bytes of each key, or -1. With `pin`, every hit is pinned (counted) until unpin or the lease ends:
  // its region is not reclaimed and delete skips it (with pins_max taken a hit that cannot be pinned is told as a
  // miss). A hit touches its region, tail first.
  void lookup(std::span<const KeyRef> keys, bool pin, std::span<int64_t> payload_bytes);
  // Length of the leading run of hits; pins just those.
  uint64_t match_prefix(std::span<const KeyRef> keys, bool pin);
  void unpin(std::span<const KeyRef> keys);
  // Marks for last use without reading.
  void touch(std::span<const KeyRef> keys);

  // Deletes what is there and not pinned; results kDeleted, kMiss, kError/kBusy (pinned). Durable after flush().
  Result<std::vector<ItemResult>> erase(std::span<const KeyRef> keys);

  // Waits until every put reported stored before the call has its descriptor on the device, and every delete its bit.
  // kDurabilityLost once after blocks were lost, with the count (I6). `interrupted`: see tickets.h.
  Status flush(uint64_t timeout_ns, const Interrupted& interrupted = {});
  // Shared mode: returns when all that other openers had on the device before the call is known here. kTimeout ends the
  // wait only. In owner mode there is nobody else: ok.
  Status refresh(uint64_t timeout_ns, const Interrupted& interrupted = {});

  // ---- listing ----
  // Live blocks, read from the device region by region; `visit` may be called from this thread only. Consistent per
  // region.
  using VisitBlock = std::function<bool(const std::string& space_json, const BlockInfo& info)>;
  Status list_blocks(const VisitBlock& visit);
  // The same in steps, so that the caller may do other things in between: cursor 0 starts; UINT64_MAX: nothing is left.
  Status list_some_blocks(uint64_t& cursor, const VisitBlock& visit);
  // Descriptors of given keys; entry.payload_bytes == 0: a miss. Reads metadata.
  Result<std::vector<BlockInfo>> describe(std::span<const KeyRef> keys);
  // Reads and verifies one listed block. kOk, kCorrupt, kStale (moved since), kIo.
  Status verify_block(const BlockInfo& info, const std::string& space_json);
  // Marks a block dead (check --repair).
  Status drop_block(const BlockInfo& info, const std::string& space_json);

  // ---- memory ----
  // Page-aligned memory for zero copy, registered with the rings where memlock allows. Owned by the store.
  Result<void*> allocate(uint64_t bytes);
  Status release(void* memory);
  // The caller's arena: page-aligned, stays mapped until unregister or close. Unregistered means slower, never wrong;
  // Status kUnsupported says that and why.
  Status register_memory(void* base, uint64_t bytes);
  Status unregister_memory(void* base);

  // Before anything is held that this may wait for: pins staging for a mover, unless a job has done so, and shows it
  // the devices. An error: the mover cannot do what it was asked for.
  Status prepare_mover(MemoryMover& mover);

  // ---- events ----
  // Evicted and lost blocks, in order, at most `limit` undelivered; more are counted and the feed says overflowed.
  std::unique_ptr<class EvictionFeed> subscribe_evictions(uint32_t limit);

  // ---- life ----
  // Completes what is submitted, commits, marks clean. kTimeout: requests are outstanding (named); their buffers are
  // leaked on purpose (I11) and the store is closed all the same.
  Status close(uint64_t timeout_ns);
  bool is_open() const;

  // Numbers and texts, name -> value; names are stable, documented in docs/metrics.md.
  std::vector<std::pair<std::string, double>> numbers() const;
  std::vector<std::pair<std::string, std::string>> texts() const;
  std::string write_refusal() const;  // why nothing is written any more; empty while it is
  std::vector<format::Superblock> superblocks() const;
  std::vector<device::DeviceInfo> devices() const;

  // One turn of engine and keeper for threaded == false. True when something was done.
  bool step();

 private:
  explicit Store(std::unique_ptr<StoreCore> core);
  std::unique_ptr<StoreCore> core_;
};

class EvictionFeed {
 public:
  virtual ~EvictionFeed() = default;
  virtual int event_fd() const = 0;  // readable while there is something to drain
  virtual std::vector<Eviction> drain(uint32_t limit) = 0;
  virtual bool take_overflowed() = 0;  // true once after events were dropped: list again
};

}  // namespace kvstore::store
