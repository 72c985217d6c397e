// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The plain types that cross the store's surface: options, batch items, results, block listings, events.

#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/status.h"
#include "base/units.h"
#include "cluster/metadata_engine.h"
#include "cluster/records.h"
#include "format/block_header.h"
#include "store/memory_mover.h"

namespace kvstore::store {

// When a read's payload is checked against the checksum in the index (I5).
enum class Verify : uint8_t {
  kAlways,     // the default, and the only mode on fabrics
  kFirstRead,  // once per block per opening; one local opener only
  kOff,        // benchmarks; stats() says so
};

// Shared mode: many openers of one pool (docs/sharing.md). Without an engine: owner mode.
struct SharedOptions {
  cluster::MetadataEngine* engine = nullptr;  // outlives the store
  uint64_t lease_ns = 10'000'000'000;         // writing stops at half of it without a renewal (S3)
  uint64_t orphan_quarantine_ns = 3'600'000'000'000;
  uint64_t hits_interval_ns = 10'000'000'000;    // how often openers tell each other what was read
  uint64_t refresh_interval_ns = 100'000'000;    // the others' open regions are looked at this often, and after a miss
  uint64_t refresh_gap_ns = 1'000'000;           // but not sooner than this after the last look
  uint32_t refresh_reads_per_s = 2000;           // of one device
  std::optional<cluster::Opener> identity = {};  // for tests; else this process
  std::function<bool(const cluster::Opener&)> is_gone = {};
  bool on() const { return engine != nullptr; }
};

// Which region is given up first (I7). What is open, pinned or quarantined never is; one without a live block goes
// before all others.
enum class ReclaimOrder : uint8_t {
  kLeastRecentlyUsed,  // that was read, matched, touched or written longest ago
  kFirstFilled,        // that was written longest ago: uses do not count, a drive is overwritten in the order of writes
};

struct StoreOptions {
  std::string device_kind = "auto";  // "auto" | "uring" | "threads"
  bool read_only = false;            // claims nothing, writes nothing, may look at a store in use
  Verify verify = Verify::kAlways;
  uint64_t wait_ns = 0;                  // for a living holder of the device
  uint64_t window_bytes = 32 * kMiB;     // in flight per device (at least 16 pieces)
  uint32_t engine_threads = 0;           // 0: min(4, devices)
  uint64_t staging_bytes = 64 * kMiB;    // bounce memory for unaligned buffers, per engine thread
  uint64_t prefetch_bytes = 256 * kMiB;  // staging cache of prefetch; 0 turns prefetch off
  uint64_t index_blocks_max = 0;         // 0: from the geometry and the blocks found
  uint32_t jobs_max = 4096;              // submitted and not complete; more is kBusy
  uint32_t pins_max = 1u << 20;
  uint64_t pin_lease_ns = 300'000'000'000;   // lookup pins nobody unpinned end then
  uint64_t commit_interval_ns = 50'000'000;  // a put's descriptor is on the device within this
  uint64_t io_timeout_ns = 30'000'000'000;   // a device request older than this is stuck (I7, I11)
  uint64_t quarantine_ns = 60'000'000'000;   // fabrics: of a region with a write of unknown outcome (I7)
  uint64_t heartbeat_ns = 1'000'000'000;     // the owner re-reads its claim
  uint32_t failures_max = 8;                 // failed writes until read-only (I6)
  ReclaimOrder reclaim_order = ReclaimOrder::kLeastRecentlyUsed;
  uint32_t free_regions_target = 2;  // background reclaim keeps this many ready, per device
  format::Uuid host{};               // zero: from /etc/machine-id
  bool threaded = true;              // false: callers drive the engine in wait(), for simulation
  SharedOptions shared = {};
  std::optional<bool> becomes_shared = {};  // owner mode: the mode that the pool is in when this opening is closed
  // Owner mode: what openers deleted while the pool was shared, which nobody wrote into bitmaps then. It is written
  // now; what is in the index stays there for this opening.
  std::vector<std::pair<cluster::RegionKey, cluster::DeadSlots>> deleted_before = {};
  Clock* clock = nullptr;    // null: system
  Random* random = nullptr;  // null: system
};

// A registered space: keys of one space never match those of another. Cheap to copy, valid for the store's life.
struct SpaceId {
  uint32_t value = 0;
  bool operator==(const SpaceId&) const = default;
};

inline constexpr uint64_t kWholeBlock = std::numeric_limits<uint64_t>::max();
inline constexpr uint32_t kSegmentsMax = 512;

// Views and segments must stay valid until the job is complete; the text views until submit() returns.
struct PutItem {
  SpaceId space;
  std::string_view salt;
  std::string_view key;             // 1..1024 bytes
  const iovec* segments = nullptr;  // in order, one block; total 1 byte .. what a region can hold, < 4 GiB
  uint32_t segment_count = 0;
  std::string_view parent;  // key of the block before this one in its chain, or empty
  uint32_t depth = 0;
  std::string_view meta;     // <= 28 bytes
  bool page_hashes = false;  // store page nodes so that parts can be read and verified alone
  // >= 0: the segments are in memory that only SubmitOptions::mover reaches, known to it by this number.
  int32_t memory_place = -1;
};

struct GetItem {
  SpaceId space;
  std::string_view salt;
  std::string_view key;
  const iovec* segments = nullptr;  // capacity for the bytes asked for; longer is left untouched
  uint32_t segment_count = 0;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = kWholeBlock;
  int32_t memory_place = -1;  // as of PutItem
};

struct KeyRef {
  SpaceId space;
  std::string_view salt;
  std::string_view key;
};

enum class ItemStatus : uint8_t { kPending, kHit, kMiss, kStored, kPresent, kDeleted, kError };

struct ItemResult {
  ItemStatus status = ItemStatus::kPending;
  Code code = Code::kOk;  // when kError
  int io_errno = 0;
  uint64_t bytes = 0;  // moved (hit, stored) or the block's payload_bytes (present)
  bool succeeded() const {
    return status != ItemStatus::kPending && status != ItemStatus::kMiss && status != ItemStatus::kError;
  }
};

struct SubmitOptions {
  bool durable = false;      // puts: complete only when the descriptor is on the device
  int32_t priority = 0;      // higher first among waiting jobs of the same kind
  uint64_t deadline_ns = 0;  // loads; relative, 0: none. Cannot make it: refused at once (kTimeout per item)
  uint64_t tag = 0;          // the caller's
  // For items with a memory_place: reaches their memory. One per job.
  std::shared_ptr<MemoryMover> mover = {};
};

// What a listing tells of one block (dump, keys, replay to LMCache's listeners).
struct BlockInfo {
  uint32_t space_number = 0;  // into BlockListing::spaces
  std::string salt;
  std::string key;  // as stored: raw, or the digest of a long one
  bool key_is_digest = false;
  uint64_t payload_bytes = 0;
  uint64_t extent_bytes = 0;
  uint64_t write_seq = 0;
  uint64_t parent = 0;
  uint32_t depth = 0;
  std::string meta;
  uint16_t device = 0;
  uint32_t region = 0;
  uint32_t slot = 0;
  uint64_t generation = 0;
  uint64_t offset_bytes = 0;  // of the payload on the device
  Checksum128 checksum;
  bool page_hashes = false;
};

enum class EvictionReason : uint8_t { kReclaimed, kDeleted, kCorrupt, kLost };

// One block that became a miss. Told after the fact, in order, through a bounded feed.
struct Eviction {
  std::string space;  // canonical JSON
  std::string salt;
  std::string key;  // as stored
  bool key_is_digest = false;
  uint64_t payload_bytes = 0;
  EvictionReason reason = EvictionReason::kReclaimed;
};

}  // namespace kvstore::store
