// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Catalog: what is where. The block index, the region table, puts in flight and pins, under one mutex with
// short critical sections. Does no I/O: engines move payload, keepers move metadata, both report here.
//
// Guarantees kept here:
//   I3  a region with pins is never handed out again; a retiring region takes no new reader
//   I6  a failed write seals its region; a failed flush or descriptor write also loses what is pending there
//   I7  space is reused by whole regions, first emptied last; a region of unknown outcome is not reclaimed
//   I8  an entry appears only when its payload write has completed
// Thread-safe. Completions of jobs are made outside the mutex.

#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "format/superblock.h"
#include "store/counters.h"
#include "store/evictions.h"
#include "store/index.h"
#include "store/region.h"
#include "store/spaces.h"

namespace kvstore::store {

struct FingerprintHash {
  size_t operator()(const Fingerprint& fingerprint) const { return static_cast<size_t>(fingerprint.low); }
};

enum class Allocation : uint8_t {
  kGranted,
  kWait,     // a region is being opened or reclaimed; the engine is woken then
  kBusy,     // nothing can be reclaimed: every region is pinned, quarantined or failed
  kRefused,  // the store takes no writes now; put_refusal() says why
};

struct OpenPlan {
  uint32_t region = 0;
  uint64_t extent_bytes = 0;
  uint32_t slot_count = 0;
  Generation generation;  // of the life that begins
};

class Catalog {
 public:
  struct DeviceShape {
    format::Geometry geometry;
    format::Uuid store_uuid{};
  };
  Catalog(const StoreOptions& options, std::vector<DeviceShape> devices, uint64_t epoch, uint64_t blocks_max,
          SpaceRegistry& spaces, Counters& counters, EvictionHub& evictions, Clock& clock);

  // Told when keepers have work (device) and when waiting puts may go on. Set before threads start.
  std::function<void(uint16_t device)> wake_keeper;
  std::function<void(uint16_t device)> space_changed;

  // ---- reads ----
  // Resolves each item in place: a hit gets its place, sizes and checksum and pins its region; a miss is phase
  // kFinished. Touches tail first, so that of one chain the head is the youngest.
  void begin_reads(std::span<Item> items, Verify verify);
  void end_read(const Item& item);
  // The payload did not verify twice: removes the entry if it is still there. True when another copy took its
  // place (I12) and the read may be tried again.
  bool drop_corrupt(const Item& item);
  void mark_verified(const Item& item);
  // A read failed with an I/O error: the next put of the key writes a fresh copy instead of finding it present.
  void mark_suspect(const Item& item);

  // ---- index only ----
  struct Key {
    Fingerprint fingerprint;
  };
  void lookup(std::span<const Key> keys, bool pin, std::span<int64_t> payload_bytes);
  uint64_t match_prefix(std::span<const Key> keys, bool pin);
  void unpin(std::span<const Key> keys);
  void touch(std::span<const Key> keys);
  void expire_pins();
  std::optional<IndexEntry> peek(const Fingerprint& fingerprint);

  // ---- puts ----
  // Items that are present or join a put in flight are completed or attached here (phase kFinished).
  void begin_puts(std::span<Item> items);
  // A place for an item's extent on `device`. kGranted counts a write in flight.
  Allocation allocate(Item& item, uint16_t device);
  // Payload written and hashed.
  void finish_put(Item& item);
  // `device_failed`: a write failed, its region is sealed (I6).
  void fail_put(Item& item, bool allocated, bool device_failed, Code code, int io_errno, const std::string& text);
  // A payload or metadata write into the region is past the time-out, and has completed after all.
  void write_outcome_unknown(uint32_t region);
  void write_outcome_known(uint32_t region);

  // ---- deletes ----
  ItemResult erase(const Fingerprint& fingerprint, const Eviction& eviction);
  bool drop_at(const Fingerprint& fingerprint, uint32_t region, SlotIndex slot, uint64_t generation);

  // ---- keeper of one device ----
  std::vector<CommitWork> take_commits(uint16_t device);
  void commit_done(CommitWork work, const Status& status, bool flush_failed);
  // Shared mode: the lease ran out on the way. The work goes on with the next round, when the lease is fresh again.
  void commit_interrupted(CommitWork work);
  bool wants_region(uint16_t device);  // somebody waits for one to be opened
  std::optional<OpenPlan> next_open(uint16_t device);
  void open_done(const OpenPlan& plan, const Status& status);
  std::optional<uint32_t> next_seal(uint16_t device);
  void seal_done(uint32_t region, const Status& status);
  std::optional<uint32_t> next_victim(uint16_t device);
  struct EvictedBlock {
    Fingerprint fingerprint;
    SlotIndex slot;
  };
  // Which of the blocks were live here, and now are misses.
  std::vector<bool> evict(uint32_t region, std::span<const EvictedBlock> blocks);
  // Those in slots that are marked dead, when their descriptors do not name them. Walks the whole index.
  void evict_dead_by_walking(uint32_t region);
  // Nothing lives there any more. Not ok: its header could not be written to say so; it is tried again later.
  void reclaimed(uint32_t region, const Status& status);
  std::optional<uint32_t> next_bitmap(uint16_t device, format::DeadBitmap& copy);
  void bitmap_done(uint32_t region, const Status& status);
  // Dead bits that next_bitmap() does not hand out: flush() must not promise those deletes.
  Status bitmaps_left_alone(uint16_t device);
  // Every open region of the device is sealed (close).
  void seal_all(uint16_t device);
  uint64_t oldest_pending_ns(uint16_t device);  // when something first waited for a commit; UINT64_MAX: nothing
  bool commit_is_due(uint16_t device);          // 31 pending, or somebody waits
  // The claim on the device was read back and is ours. Puts wait while that is older than one and a half heartbeats:
  // a contender that saw no sign of us for two may by then own the device.
  // `asked_ns`: when the reading began that found the claim unchanged; what came of it since is not known.
  void confirmed(uint16_t device, uint64_t asked_ns);
  // Whether nobody can own the device but us: a contender waits for longer than a claim stays fresh.
  bool claim_is_fresh(uint16_t device);
  uint64_t confirmed_ns(uint16_t device);
  // A payload did not verify: another owner may be writing. The keeper reads the claim back at once.
  void doubt_ownership(uint16_t device);
  bool take_ownership_doubt(uint16_t device);

  // ---- shared mode (catalog_sharing.cpp); any thread ----
  bool shared() const { return options_.shared.on(); }
  // A lookup did not find a key: the others may have put it a moment ago. Called without the mutex: it takes others.
  std::function<void()> missed;
  // Another epoch from now on: the opener joined anew (S6).
  void set_epoch(uint64_t epoch) { epoch_.store(epoch); }
  // Regions are shared out among so many: how many each keeps open and ready.
  void set_openers(uint32_t openers);
  // Puts are refused, and durable ones that wait are told so, until resume(): the lease is not renewed (S3).
  void suspend(const Status& why);
  void resume();
  // Why a put is refused now: for good (writable()), or while suspended.
  Status put_refusal();
  uint32_t regions_wanted(uint16_t device);  // more than are ready to be opened
  // Ours from now on; `spent` is the generation its next life follows. False: what lived there is not gone yet, or a
  // write of ours is still under way there.
  bool grant(uint32_t number, Generation spent);
  // Not ours any more: nothing of it is written, what was not committed is lost (I6).
  void lose(uint32_t number);
  Status may_write(uint32_t number);  // kStale: it was lost, and not granted again (S1)
  std::optional<uint32_t> propose_victim(uint16_t device);
  void set_held_by_peer(uint32_t number, bool held);
  void set_retired_below(uint32_t number, Generation below);  // nothing of lower lives is learnt
  // Lives below this generation are gone. True when one was there: its entries and readers are to go, then reclaimed().
  bool retire(uint32_t number, Generation below);
  RegionState state_of(uint32_t number);
  bool has_readers(uint32_t number);
  // The life that another opener began, or ended: `header` is from the device. False: an earlier one is not gone yet,
  // or this one is gone already.
  bool learn_life(uint32_t number, const format::RegionHeader& header, uint32_t dictionary_blocks);
  // Blocks of that life. How many were not known.
  uint64_t learn(uint32_t number, Generation generation, std::span<const IndexBuilder::Candidate> blocks);
  // Deleted by another opener: nothing in these slots is learnt any more. False: of another life, or all known
  // already, as the opener's own deletes are that it hears of again: no block is in the index that is to go.
  bool mark_deleted(uint32_t number, Generation generation, const format::DeadBitmap& slots);
  std::vector<uint32_t> take_sealed();
  std::vector<uint32_t> take_released();
  void release_ready();  // closing: what was granted and not opened is given back, and nothing is wanted any more
  bool any_write_unknown();
  std::vector<std::pair<uint32_t, Generation>> take_conflicts();
  struct DeletedSlots {
    uint32_t region = 0;
    Generation generation;
    format::DeadBitmap slots;
  };
  std::vector<DeletedSlots> take_deleted();
  void deleted_again(uint32_t number);  // it was not told: with the next round
  void tell_deletes_again();            // all that are known, in whosever regions
  void deletes_told();                  // what was taken is in the engine, or was given back by deleted_again()
  bool deletes_wait();
  // One bit per region, in order of their numbers: read since the last call. Empty: none.
  std::vector<uint8_t> take_hits();
  void touch_regions(std::span<const uint8_t> hits);
  Generation generation_of(uint32_t number);

  // ---- recovery (single-threaded, before the store is handed out) ----
  Index& index() { return index_; }
  Region& region(uint32_t number) { return regions_[number]; }
  uint32_t region_number(uint16_t device, RegionId id) const { return first_region_[device] + id.value; }
  uint32_t region_count() const { return static_cast<uint32_t>(regions_.size()); }
  const DeviceShape& shape(uint16_t device) const { return devices_[device]; }
  void recovered(std::vector<IndexBuilder::Candidate> superseded, uint64_t live_bytes);

  // ---- state ----
  // An invariant broke (base/assert.h). Any thread, with the mutex or without: only sets a flag that every call reads.
  void broken(const char* condition, const char* file, int line) noexcept;
  void set_read_only(const std::string& why);
  void set_offline(Code code, const std::string& why);
  Status writable();
  Status usable();
  // Blocks lost since the last call (I6).
  uint64_t take_lost();
  uint64_t epoch() const { return epoch_.load(std::memory_order_relaxed); }
  // A copy of a region's plain fields, for listings.
  Region snapshot(uint32_t number);
  bool pin_region(uint32_t number, Generation generation);
  void unpin_region(uint32_t number);
  std::vector<std::pair<std::string, double>> numbers();

 private:
  struct PendingPut {
    std::vector<DurableWaiter> joined;
    std::vector<bool> joined_durable;
  };
  struct Pin {
    uint32_t count = 0;
    uint32_t region = 0;
    uint64_t expires_ns = 0;
    std::list<Fingerprint>::iterator by_expiry;
  };
  // A region that could be reclaimed when it was found.
  struct Victim {
    uint32_t region = 0;
    bool empty = false;
    uint64_t last_use_tick = 0;
  };
  struct DeviceState {
    std::deque<uint32_t> free;     // first emptied, last reused (I7)
    std::vector<uint32_t> open;    // numbers of open regions
    std::vector<uint64_t> wanted;  // extent sizes somebody waits for
    uint32_t open_max = 1;
    uint64_t first_pending_ns = UINT64_MAX;
    uint32_t pending = 0;
    bool commit_wanted = false;
    bool reclaiming = false;
    uint64_t confirmed_ns = 0;
    bool ownership_doubted = false;
    uint32_t free_target = 1;            // regions kept ready
    std::deque<uint32_t> bitmaps_dirty;  // every region whose bitmap_queued is set
    std::vector<Victim> victims;         // found ahead; the next one last
  };
  using Completions = std::vector<std::pair<DurableWaiter, std::string>>;

  uint64_t tick() { return ++tick_; }
  // A block of the region was of use. What is written there counts in every order, and sets the tick itself.
  void used_locked(uint32_t number) {
    if (options_.reclaim_order == ReclaimOrder::kLeastRecentlyUsed) regions_[number].last_use_tick = tick();
  }
  void take_broken_locked();
  void fill_grant_locked(Item& item, const IndexEntry& entry, Verify verify);
  IndexEntry* find_readable_locked(const Fingerprint& fingerprint);
  IndexEntry* find_at_locked(const Fingerprint& fingerprint, const Place& place);
  bool pin_key_locked(const Fingerprint& fingerprint, const IndexEntry& entry);
  void release_pin_locked(std::unordered_map<Fingerprint, Pin, FingerprintHash>::iterator pin);
  enum class Forget : uint8_t {
    kEvicted,
    kDeleted,
    kBad,  // lost, corrupt or unreadable: as deleted; in a shared pool others may find it good, and keep it
  };
  void forget_entry_locked(IndexEntry* entry, Forget why);
  void mark_dead_locked(Region& region, SlotIndex slot);
  void queue_bitmap_locked(Region& region);
  void delete_copy_locked(const IndexEntry& copy);
  void delete_other_copies_locked(const Fingerprint& fingerprint);  // than the one in the index
  void keep_for_others_locked(const IndexEntry& copy);
  bool revive_superseded_locked(const Fingerprint& fingerprint);
  bool claim_is_fresh_locked(const DeviceState& state) const;
  uint64_t fresh_ns() const;
  void set_targets_locked(uint32_t openers);
  bool is_there_locked(const Region& region, Generation generation) const;
  uint64_t learn_locked(Region& region, std::span<const IndexBuilder::Candidate> blocks);
  bool has_entries(uint32_t number);
  uint32_t serving_locked(const DeviceState& state) const;  // open regions that still take puts
  Region* open_region_for_locked(const DeviceState& state, uint64_t extent_bytes);
  bool reclaim_possible_locked(uint16_t device) const;
  bool is_victim_locked(const Region& region, uint64_t now_ns) const;
  std::optional<uint32_t> pop_victim_locked(DeviceState& state);
  void find_victims(uint16_t device);
  void walk_evict(uint32_t number, const std::function<bool(const IndexEntry&)>& goes);
  void refuse_waiters_locked(std::vector<DurableWaiter>& waiters, Completions& completions);
  void lose_pending_locked(uint32_t number, std::vector<PendingDescriptor> lost, std::vector<DurableWaiter> waiters,
                           const Status& why, Completions& completions, std::vector<Eviction>& evictions);
  void poison_locked(uint32_t number, const Status& why, Completions& completions, std::vector<Eviction>& evictions);
  bool answer_put_locked(const Item& item, const std::string& why, Completions& completions);
  void note_failure_locked(const Status& why);
  void wake_keepers(const std::vector<bool>& wanted);  // by device; without the mutex
  void settle(Completions completions, std::vector<Eviction> evictions);
  Eviction eviction_of(const format::Descriptor& descriptor, SpaceId space, const std::string& salt,
                       EvictionReason reason) const;

  const StoreOptions& options_;
  const std::vector<DeviceShape> devices_;
  std::atomic<uint64_t> epoch_;
  SpaceRegistry& spaces_;
  Counters& counters_;
  EvictionHub& evictions_;
  Clock& clock_;

  std::mutex mutex_;
  Index index_;
  std::vector<Region> regions_;
  std::vector<uint32_t> first_region_;  // of each device
  std::vector<DeviceState> device_states_;
  std::unordered_map<Fingerprint, PendingPut, FingerprintHash> pending_puts_;
  std::unordered_map<Fingerprint, Pin, FingerprintHash> pins_;
  std::list<Fingerprint> pins_by_expiry_;  // keys of pins_, next to expire first: every lease is equally long
  std::unordered_multimap<Fingerprint, IndexBuilder::Candidate, FingerprintHash> superseded_;
  // Shared mode: copies that are bad or lost to us. Others may have them, and lose them when the key is deleted here.
  std::unordered_multimap<Fingerprint, IndexEntry, FingerprintHash> copies_of_others_;
  uint64_t tick_ = 0;
  uint64_t write_count_ = 0;  // low 40 bits of write_seq
  uint64_t live_bytes_ = 0;
  uint64_t lost_ = 0;
  uint32_t failures_ = 0;
  Status write_refusal_;            // ok while writable
  Status refusal_;                  // ok while usable at all
  Status suspension_;               // shared mode: ok while the lease is renewed
  std::vector<uint32_t> sealed_;    // shared mode: to be told to the engine
  std::vector<uint32_t> spent_;     // their header could not be written; given back when that write is over
  std::vector<uint32_t> unsealed_;  // likewise, of what holds blocks
  std::vector<std::pair<uint32_t, Generation>> conflicts_;
  std::vector<uint32_t> deleted_in_;  // regions with deletes that the engine was not told of
  bool deletes_under_way_ = false;    // taken, and not told yet
  uint64_t hits_told_tick_ = 0;
  bool wants_nothing_ = false;            // closing
  std::atomic<bool> broken_once_{false};  // somebody writes broken_text_
  std::string broken_text_;               // complete once broken_ is set
  std::atomic<bool> broken_{false};
};

}  // namespace kvstore::store
