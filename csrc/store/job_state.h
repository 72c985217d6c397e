// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// BatchJob and its Items: what the engine keeps of a submitted batch. One allocation for the items, one for the
// segment lists; nothing else is allocated per block below 8 MiB.

#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "format/descriptor.h"
#include "store/index.h"
#include "store/job.h"

namespace kvstore::store {

class BatchJob;
class StoreCore;

// Where an extent is. Valid while its region is pinned.
struct Place {
  uint16_t device = 0;
  uint32_t region = 0;  // number in the pool's region table
  RegionId region_id;   // on its device
  SlotIndex slot;
  Generation generation;
  uint64_t offset_bytes = 0;  // of the payload on the device
};

enum class ItemPhase : uint8_t {
  kWaiting,   // not begun
  kRunning,   // pieces in flight or to come
  kFinished,  // result set
};

// What the pieces of an item move now. A block with page hashes ends with a table of its page nodes, which a put
// writes last and a read of a part reads first.
enum class ItemStage : uint8_t { kReadTable, kPayload, kWriteTable };

// One block of a batch. Written by the submitter until it is handed to an engine, then by that engine only.
struct Item {
  BatchJob* job = nullptr;
  uint32_t number = 0;  // in the job
  ItemPhase phase = ItemPhase::kWaiting;
  bool durable = false;
  bool page_hashes = false;
  bool verify = true;
  bool reread = false;         // the second and last attempt of a read that did not verify
  bool allocated = false;      // puts: has an extent, counted as a write in flight
  bool queued = false;         // engine: in its list of items with pieces to submit
  bool retired = false;        // engine: result given, pieces of it still in the kernel (staging only)
  bool staged = false;         // every piece through staging
  bool device_failed = false;  // a write of it failed
  static constexpr size_t kNoDeadline = SIZE_MAX;
  size_t deadline_place = kNoDeadline;  // engine: in its list of items with a deadline
  uint8_t meta_bytes = 0;
  uint16_t space_index = 0;  // in its region's dictionary
  uint16_t salt_index = format::kNoSalt;
  SpaceId space;
  const SpaceDigest* space_digest = nullptr;
  format::StoredKey key;
  std::string salt;
  Fingerprint fingerprint;
  uint64_t parent = 0;
  uint32_t depth = 0;
  uint8_t meta[format::kMetaBytes] = {};

  // The caller's memory.
  const iovec* segments = nullptr;
  uint32_t segment_count = 0;
  uint64_t segment_bytes = 0;
  MemoryMover* mover = nullptr;  // the job's, when only it reaches this memory
  uint32_t memory_place = 0;
  bool went_direct = false;     // pieces of it were read by the mover itself, in this attempt
  bool by_staging = false;      // from now on all of it goes through staging
  AlignedBuffer prefetched;     // all of the block, verified: it is read from here
  Status direct_failure;        // of the attempt before, until a read through staging fails as well
  bool pages_in_place = false;  // every segment is aligned for DMA and whole pages (the last may be short)

  // The extent, and the part of the payload that is wanted.
  Place place;
  uint64_t payload_bytes = 0;
  uint64_t wanted_offset = 0;
  uint64_t wanted_bytes = 0;
  Checksum128 checksum;

  // Progress.
  ItemStage stage = ItemStage::kPayload;
  uint64_t next_byte = 0;  // of the next piece of this stage
  uint64_t end_byte = 0;   // of this stage
  uint32_t pieces_in_flight = 0;
  uint32_t pieces_moving = 0;  // of those, on their way into the caller's memory
  Code failure = Code::kOk;    // first failure of a piece
  int failure_errno = 0;
  std::string failure_text;
  std::vector<uint64_t> nodes;  // piece nodes, by position
  std::vector<uint64_t> pages;  // page nodes, when page hashes are stored or read
};

class BatchJob final : public Job {
 public:
  BatchJob(StoreCore& core, JobKind kind, uint64_t id, const SubmitOptions& options, uint32_t items,
           std::shared_ptr<CompletionQueue> queue);
  ~BatchJob() override;

  void cancel() override { end(Status(Code::kCanceled, "canceled by the caller")); }
  void cancel_item(uint32_t item) override;
  // As cancel(), with a reason.
  void end(const Status& why);
  // Gives the items to the engines; with a mover, once it is ready.
  void hand_over();

  std::vector<Item>& items() { return items_; }
  std::vector<iovec>& segments() { return segments_; }
  const SubmitOptions& options() const { return options_; }
  uint64_t deadline_at_ns() const { return deadline_at_ns_; }
  uint64_t submitted_at_ns() const { return submitted_at_ns_; }
  uint32_t items_left() const { return items_left_.load(std::memory_order_acquire); }

  // Sets one item's result. The last one completes the job. Any thread, once per item.
  void complete_item(uint32_t item, const ItemResult& result, std::string error_text = {});
  void complete_item(const Item& item, const ItemResult& result, std::string error_text = {}) {
    complete_item(item.number, result, std::move(error_text));
  }
  void fail_item(uint32_t item, Code code, std::string error_text, int io_errno = 0);

 private:
  void hand_over_now();
  void mover_is_ready();
  bool end_waiting(int64_t item_or_all, const Status& why);
  void abandoned_by_store() override;

  StoreCore& core_;
  SubmitOptions options_;
  uint64_t submitted_at_ns_ = 0;
  uint64_t deadline_at_ns_ = UINT64_MAX;
  std::vector<Item> items_;
  std::vector<iovec> segments_;
  std::atomic<uint32_t> items_left_;
  std::mutex errors_mutex_;
  std::mutex hand_over_mutex_;
  bool waits_for_mover_ = false;  // not handed over yet
};

}  // namespace kvstore::store
