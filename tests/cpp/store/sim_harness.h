// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// A store on simulated disks, driven by step() on one thread and a manual clock, with an oracle beside it.
//
// The oracle knows what was put, what was acknowledged and how, and what was deleted. It judges every answer:
//   while open    a block that is live must hit with its exact bytes, one that is not must miss
//   after a crash acknowledged as durable: must hit; acknowledged or pending: its bytes or a miss;
//                 deleted and flushed: must miss; never other bytes, never a key that was not put
// Faults of the medium excuse the blocks whose own bytes they touched, and no others (damage_watch.h).
// Evictions the store tells of turn "must hit" into "may". Payload is computed from name and version, so that any
// byte that is not the block's own is seen.

#pragma once

#include <gtest/gtest.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "base/clock.h"
#include "device/sim.h"
#include "format/superblock.h"
#include "store/damage_watch.h"
#include "store/store.h"

namespace kvstore::store {

// ---- blocks ----------------------------------------------------------------------------------------------------

// A block's whole identity. `space` counts into SimStore's spaces.
struct Name {
  std::string key;
  std::string salt;
  uint32_t space = 0;
  auto operator<=>(const Name&) const = default;
  std::string text() const { return "space " + std::to_string(space) + " salt '" + salt + "' key '" + key + "'"; }
};

// Bytes [offset, offset + bytes) of the payload of a block's version.
void fill_payload(const Name& name, uint32_t version, uint64_t offset, uint8_t* target, uint64_t bytes);
bool is_payload(const Name& name, uint32_t version, uint64_t offset, const uint8_t* data, uint64_t bytes);

// How a buffer lies in memory.
struct Layout {
  uint32_t segments = 1;
  uint32_t misaligned_bytes = 0;  // address % 4096 of each segment
};

// Segments with guard bytes before and after each, so that a write outside is seen.
class Buffers {
 public:
  Buffers(uint64_t bytes, const Layout& layout);
  void fill(const Name& name, uint32_t version);
  bool holds(const Name& name, uint32_t version, uint64_t offset, uint64_t bytes) const;
  // Whether bytes [first, end) are as the constructor left them, and the guards too.
  bool untouched_from(uint64_t first) const;
  bool guards_intact() const;
  const iovec* segments() const { return segments_.data(); }
  uint32_t segment_count() const { return static_cast<uint32_t>(segments_.size()); }
  uint64_t bytes() const { return bytes_; }

 private:
  std::vector<AlignedBuffer> memory_;
  std::vector<iovec> segments_;
  uint64_t bytes_;
};

// ---- the store -------------------------------------------------------------------------------------------------

struct SimSetup {
  uint64_t seed = 1;
  uint32_t devices = 1;
  uint32_t regions = 12;  // of each device
  uint64_t region_bytes = kMiB;
  uint64_t min_block_bytes = 16 * kKiB;
  device::SimDeviceOptions device;
  StoreOptions store;  // clock, random, threaded and host are the harness's
};

struct PutHow {
  bool durable = false;
  bool page_hashes = false;
  uint32_t version = 1;
  Layout layout{};
  std::string parent{};
  uint32_t depth = 0;
  std::string meta{};
};

// What a run came to.
struct SimTotals {
  uint64_t hits_verified = 0;
  uint64_t misses = 0;
  uint64_t wrong_bytes = 0;
  uint64_t lost_durable = 0;
  uint64_t reopened = 0;
  uint64_t crashes = 0;
};

// KVS_STRIDE=n: tests that take all of many cases take every n-th. For sanitizers, under which a case costs fifteen
// times as much.
uint64_t case_stride();

class SimStore {
 public:
  static constexpr uint32_t kSpaces = 3;

  explicit SimStore(const SimSetup& setup = {});  // formats, does not open
  ~SimStore();

  // ---- life ----
  Status open();
  bool is_open() const { return store_ != nullptr; }
  Store& store() { return *store_; }
  Status close(uint64_t timeout_ns = 10'000'000'000);
  // Power is cut (or the process killed: the cache survives), what was open is gone.
  void crash(bool cache_survives);
  // Opens again and judges every block; what was found is the truth from then on.
  void reopen_and_judge();
  // The device has stopped at its operation: nothing more can come of this opening.
  bool stopped() const;

  // ---- batches, run to completion and judged ----
  ItemResult put(const Name& name, uint64_t bytes, const PutHow& how = {});
  std::vector<ItemResult> put_all(const std::vector<std::pair<Name, uint64_t>>& blocks, const PutHow& how = {});
  ItemResult get(const Name& name, const Layout& layout = {});
  ItemResult get_part(const Name& name, uint64_t offset, uint64_t bytes, const Layout& layout = {});
  std::vector<ItemResult> get_all(const std::vector<Name>& names, const Layout& layout = {});
  ItemResult erase(const Name& name);
  void flush();  // must succeed unless the device has stopped
  Status try_flush();
  // Every block ever put is read and judged, and so is the listing.
  void judge_all();
  bool contains(const Name& name);       // by lookup(): counts as a use
  bool is_live(const Name& name) const;  // by the oracle: no use
  uint64_t live_bytes(const Name& name) const;
  bool was_put(const Name& name) const { return records_.contains(name); }

  // ---- the same in halves ----
  struct Pending {
    JobRef job;
    std::vector<std::unique_ptr<Buffers>> buffers;
    std::vector<Name> names;
    std::vector<uint32_t> versions;
    bool durable = false;
    struct Expected {
      std::optional<uint32_t> live;
      std::multiset<uint32_t> in_flight;  // versions of puts not judged yet: visible or not
      bool may_miss = false;
      uint64_t changes = 0;
    };
    std::vector<Expected> expected;  // of gets, as of submission
    std::vector<std::pair<uint64_t, uint64_t>> parts;
  };
  Pending start_put(const std::vector<std::pair<Name, uint64_t>>& blocks, const PutHow& how = {},
                    const SubmitOptions& options = {});
  Pending start_get(const std::vector<Name>& names, const Layout& layout = {}, const SubmitOptions& options = {});
  // Steps until the job is done; false: it hangs (a failure is recorded).
  bool run(const Pending& pending) {
    return run_until([&] { return pending.job->done(); });
  }
  std::vector<ItemResult> finish(Pending& pending);  // runs, judges

  bool run_until(const std::function<bool()>& done, uint64_t virtual_limit_ns = 1'000'000'000'000);
  void run_idle();  // until nothing is left to do now; time stands still
  void advance_ns(uint64_t duration_ns) { clock_.advance_ns(duration_ns); }

  // ---- parts ----
  KeyRef ref(const Name& name) const { return {spaces_[name.space], name.salt, name.key}; }
  SpaceId space(uint32_t number) const { return spaces_[number]; }
  static std::string space_json(uint32_t number);
  device::SimDisk& disk(uint32_t number = 0) { return *disks_[number]; }
  const format::Geometry& geometry(uint32_t number = 0) const { return formatted_[number].geometry; }
  const format::Superblock& formatted(uint32_t number = 0) const { return formatted_[number]; }
  ManualClock& clock() { return clock_; }
  SeededRandom& random() { return random_; }
  SimSetup& setup() { return setup_; }
  double number(const std::string& name) const;
  std::unique_ptr<device::Device> make_device(uint32_t number);
  StoreOptions options() const;

  BlockInfo describe(const Name& name);  // payload_bytes == 0: a miss
  // Flips bits of a byte of the block's payload on the medium.
  void corrupt_payload(const Name& name, uint64_t byte = 0);

  // ---- the oracle ----
  // Faults that lose or corrupt: a miss of anything is right from now on. Wrong bytes never are.
  void allow_misses(bool allowed) { misses_allowed_ = allowed; }
  // Faults of the medium are to come: a miss of the blocks they touch is right. Takes the disks' observers.
  void watch_damage();
  FaultCounts faults();
  // Faults that lose metadata writes: a dead bit that was flushed may be gone, and the block back.
  void expect_metadata_to_rot() { metadata_rots_ = true; }
  // Takes what the eviction feed says; returns it too.
  std::vector<Eviction> take_evictions();
  void expect_gone(const Name& name);  // the caller knows that it is a miss now, whatever was acknowledged
  bool has_put_in_flight(const Name& name) const;
  uint64_t known_blocks() const { return records_.size(); }
  std::string context;  // printed with each violation
  SimTotals totals;

 private:
  struct Record {
    std::map<uint32_t, uint64_t> bytes;  // of each version put
    std::set<uint32_t> possible;         // versions that may be on the device
    std::optional<uint32_t> live;        // what a get must hit now
    bool durable = false;                // `live` must be there after a crash
    bool erased = false;                 // deleted since the last flush
    std::multiset<uint32_t> in_flight;   // versions of puts submitted and not judged
    uint64_t changes = 0;                // stores and evictions
    bool uncertain = false;              // evicted while a put was in flight: `live` may be a miss
  };

  void note_put(const Pending& pending, uint32_t item, const ItemResult& result);
  Pending::Expected expectation(const Name& name) const;
  void judge_get(const Pending& pending, uint32_t item, const ItemResult& result);
  void judge_listing();
  bool was_hit(const Name& name) const;  // by a fault of the medium
  void violation(const std::string& text) const;
  void drop_store();

  SimSetup setup_;
  ManualClock clock_;
  SeededRandom random_;
  std::vector<std::unique_ptr<device::SimDisk>> disks_;
  std::vector<format::Superblock> formatted_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<EvictionFeed> feed_;
  std::vector<SpaceId> spaces_;
  std::map<Name, Record> records_;
  bool misses_allowed_ = false;
  bool metadata_rots_ = false;
  std::vector<std::unique_ptr<DamageWatch>> watches_;  // per disk; none: no faults of the medium
};

// A device size that holds `regions` regions.
uint64_t device_bytes_for(uint32_t regions, uint64_t region_bytes, uint64_t min_block_bytes);

device::SimRule rule_of(device::SimFault fault, std::optional<device::IoOp> op, uint64_t first_byte = 0,
                        uint64_t last_byte = UINT64_MAX, uint64_t times = 1, uint64_t skip = 0, uint64_t value = 0);
inline constexpr uint64_t kForEver = UINT64_MAX;

}  // namespace kvstore::store
