// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Agent: speaks for one opener of a shared pool with the metadata engine (docs/sharing.md, rules S1..S7). It joins,
// renews, takes regions ahead of need, reports what was sealed, retires and reuses, and tells the store what the others
// do. It does no device I/O and knows nothing of blocks.
//
// Guarantees: a region is granted to the store only while the engine says that it is this opener's (S1, S2); the store
// is told the moment of the last request that renewed the lease, never a later one (S3); a generation is bumped before
// anything of a region is given up, and used only when every live opener has let go (S4).
//
// One thread at a time. Calls wait for the engine, at most as long as its own time limit.
// agent.cpp has its rounds and its lease, agent_state.cpp what it knows, agent_regions.cpp what it does with regions,
// agent_rebuild.cpp what happens when the engine knows nothing.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cluster/metadata_engine.h"
#include "cluster/records.h"

namespace kvstore::cluster {

// What the engine says of a region, for the store.
struct RegionView {
  Hold hold = Hold::kFree;
  Generation generation;
  bool recorded = false;  // false: there is no record, the header on the device tells
  bool mine = false;
  bool owner_lives = false;
  bool owner_gone = false;  // for certain: what is owned may be reclaimed like what is sealed (S5)
};

// What a header on the device says, for a rebuild (S7).
struct HeaderFacts {
  RegionKey region;
  Hold hold = Hold::kFree;  // kOwned: open, or not readable
  Generation generation;
  uint64_t epoch = 0;
};

// The store as its agent sees it. Called on the agent's thread only.
class StoreSide {
 public:
  virtual ~StoreSide() = default;

  // ---- told ----
  virtual void joined(uint64_t epoch) = 0;
  virtual void openers_changed(uint32_t live) = 0;
  // The lease was renewed by a request that began then: writing is allowed for half the lease time from then on (S3).
  // `puts_go_on`: nothing else that puts need fails, either.
  virtual void confirmed(uint64_t asked_ns, bool puts_go_on) = 0;
  // For a whole lease time the lease was not renewed, or nothing else was got from the engine; why. Puts are not to
  // wait for it until they go on.
  virtual void unconfirmed(const Status& why) = 0;
  virtual void region_changed(const RegionKey& region, const RegionView& view) = 0;
  virtual void deleted(const RegionKey& region, const DeadSlots& dead) = 0;
  // Ours to write; `spent` is the generation that its next life follows.
  virtual void granted(const RegionKey& region, Generation spent) = 0;
  // Granted once, and another's, or nobody's, since.
  virtual void lost(const RegionKey& region) = 0;
  // The engine had lost its state, or the last of it: what was told of deletes is to be told again.
  virtual void state_was_rebuilt() = 0;
  virtual void regions_read_by_others(std::span<const uint8_t> hits) = 0;

  // ---- asked ----
  virtual uint32_t regions_wanted(uint16_t device) = 0;  // more than were granted
  virtual Generation header_generation(const RegionKey& region) = 0;
  virtual std::optional<RegionKey> victim(uint16_t device) = 0;  // to be retired, used longest ago
  virtual bool holds_nothing(const RegionKey& region) = 0;
  virtual std::vector<RegionKey> take_sealed() = 0;
  virtual std::vector<RegionKey> take_released() = 0;  // granted, of no use; no write of ours can reach it any more
  // Granted, but the device bears a generation that the engine did not know of.
  virtual std::vector<std::pair<RegionKey, Generation>> take_conflicts() = 0;
  virtual std::vector<std::pair<RegionKey, DeadSlots>> take_deletes() = 0;
  virtual void deletes_done(const std::vector<RegionKey>& untold) = 0;  // those are to be taken again
  virtual bool drained_all() = 0;                                       // of every region that was told of
  virtual bool drained(const RegionKey& region) = 0;  // no entry and no reader left of a retiring region
  virtual std::vector<uint8_t> take_hits() = 0;       // bits by region, device after device; empty: none
  // Of so many regions of a device, from one on.
  virtual Result<std::vector<HeaderFacts>> scan_headers(const RegionKey& first, uint32_t count) = 0;
};

struct AgentOptions {
  uint64_t lease_ns = 10'000'000'000;
  uint64_t orphan_quarantine_ns = 3'600'000'000'000;
  uint64_t hits_interval_ns = 10'000'000'000;
  // No opener can have been here before this one: it need not wait for one to stop when it finds no state (S7).
  bool first_ever = false;
};

struct AgentCounters {
  uint64_t requests = 0;
  uint64_t request_errors = 0;
  uint64_t renewals = 0;
  uint64_t takes = 0;
  uint64_t retires = 0;
  uint64_t contended = 0;  // transactions that found another value
  uint64_t rejoins = 0;
  uint64_t resyncs = 0;
  uint64_t rebuilds = 0;
  uint64_t regions_lost = 0;
};

class Agent {
 public:
  struct Setup {
    MetadataEngine* engine = nullptr;
    std::string prefix;
    std::vector<uint32_t> region_counts;  // by device
    // Of the superblock, which owner mode raises: ours is higher, and a state made for another one is void.
    uint64_t epoch_floor = 0;
    Opener identity;
    std::function<bool(const Opener&)> is_gone;  // proof that a process is not there any more (S5)
  };
  Agent(const AgentOptions& options, Setup setup, StoreSide& store, Clock& clock, Random& random);

  // Before recovery: loads the engine's state (rebuilding it where there is none) and becomes an opener. kBusy: not
  // yet, try again.
  Status join();
  // After recovery: the regions that hold nothing.
  void recovered(const std::vector<RegionKey>& empty);
  // One round of all that is due; waits at most so long for a change. True when anything was done.
  bool turn(uint64_t wait_ns);
  // The store has been told all that was in the engine before the call.
  Status catch_up();
  // Gives everything back and stops being an opener. `all_ended`: no write of ours is on its way any more.
  Status leave(bool all_ended);

  RegionView view(const RegionKey& region) const;
  uint64_t epoch() const { return epoch_; }
  bool joined() const { return joined_; }
  uint32_t live_openers() const;
  const AgentCounters& counters() const { return counters_; }
  size_t keys_known() const { return regions_.size() + 3 * openers_.size(); }

 private:
  static constexpr uint64_t kRenewalsPerLease = 5;
  static constexpr uint64_t kTriesPerLease = 20;  // of what failed
  static constexpr uint64_t kJudgingsPerLease = 4;
  static constexpr std::string_view kRebuiltStamp = "rebuilt";
  struct Entry {
    std::string value;
    RegionRecord record;
    Revision modified = 0;
    bool witnessed = false;  // the engine showed it, and with it all that went before; else only our transaction did
  };
  struct OpenerEntry {
    std::string value;
    Opener opener;
    bool known = false;  // its opener/ key was seen
    bool live = false;
    bool gone = false;  // judged so
    Revision read = 0;
  };

  // Requests besides renewals, told apart because an engine can fail one kind and do the others.
  enum class Request : uint8_t { kTxn, kRange, kWatch };
  struct Failing {
    std::optional<uint64_t> since_ns;  // absent: the last one was answered
    Status why;
  };
  void note(Request kind, uint64_t asked_ns, const Status& outcome);
  Status what_fails() const;
  void tell_trouble();

  // Engine calls, counted.
  Result<TxnOutcome> txn(std::vector<Compare> compares, std::vector<Operation> operations);
  // A transaction on one region's record.
  enum class Outcome : uint8_t { kApplied, kContended, kUnknown };
  Outcome change_region(const RegionKey& region, const RegionRecord& wanted);
  std::string full(std::string_view key) const { return setup_.prefix + std::string(key); }
  std::string next_stamp();

  Result<Snapshot> range(const std::string& prefix);
  Result<Snapshot> range_and_watch();
  Status resync();
  void note_void(const std::vector<KeyValue>& items, const KeyValue* format);
  void apply(const KeyValue& item, bool erased);
  void apply_region(const RegionKey& region, const KeyValue& item, bool erased, bool witnessed);
  void apply_live(uint64_t epoch, bool live);
  bool is_mine(const RegionKey& region, const RegionRecord& record) const;
  RegionView view_of(const RegionKey& region, const Entry* entry) const;
  void note_break();
  void tell(const RegionKey& region);
  void tell_regions_of(uint64_t epoch);

  Status rebuild();
  Status keep_rebuild_lease();
  Result<std::vector<HeaderFacts>> scan_all_headers();
  Status write_rebuilt(bool first_ever);
  bool nobody_was_here() const;
  Status become_opener();
  void take_over_own();
  void depose();
  void keep_lease();
  bool may_go_on() const;
  void ask_again();
  std::string format_prefix() const;
  bool is_valid_format(std::string_view value) const;
  uint64_t generation_floor() const;
  bool follow_changes(uint64_t wait_ns);
  bool report_sealed();
  bool report_deletes();
  bool take_regions();
  bool take_one(uint16_t device);
  std::optional<RegionKey> next_to_retire(uint16_t device);
  bool grant_settled();
  Result<bool> is_settled(const RegionKey& region, const Entry& entry, Revision retired);
  bool reuse_drained();
  bool publish_read();
  void judge_openers();
  void exchange_hits();
  uint32_t under_way(uint16_t device) const;

  const AgentOptions options_;
  const Setup setup_;
  StoreSide& store_;
  Clock& clock_;
  Random& random_;
  AgentCounters counters_;

  const uint64_t began_ns_;
  std::string nonce_;
  uint64_t stamps_ = 0;
  bool recovered_ = false;
  bool joined_ = false;
  bool wiped_ = false;
  bool was_wiped_ = false;  // while we were an opener
  uint64_t epoch_ = 0;
  std::set<uint64_t> former_;  // epochs this opening had before
  LeaseId lease_ = kNoLease;
  Revision joined_revision_ = 0;
  uint64_t confirmed_ns_ = 0;
  bool told_unconfirmed_ = false;
  uint64_t next_renewal_ns_ = 0;
  uint64_t next_join_ns_ = 0;
  uint64_t settled_at_ns_ = 0;  // after joining: when a failover can no longer forget it
  uint64_t next_resync_ns_ = 0;
  uint64_t next_judging_ns_ = 0;
  uint64_t next_hits_ns_ = 0;
  std::map<uint64_t, Revision> hits_told_;  // of the value of each epoch that the store was told
  Status trouble_;                          // of the last request that failed
  std::array<Failing, 3> failing_;
  bool told_failing_ = false;
  uint64_t last_txn_ns_ = 0;
  bool in_doubt_ = false;  // a transaction of this epoch was not answered
  bool answered_ = false;  // the last one was

  std::unique_ptr<Watch> watch_;
  bool may_have_forgotten_ = false;  // the watch broke, as after a failover
  bool tells_all_read_ = false;      // since then: also where nothing retires
  uint64_t last_end_ns_ = 0;         // when another's live key was last seen to be gone, or may have gone unseen
  bool hears_ = false;               // the engine answered when it was asked last what had changed
  std::string format_;
  std::string epoch_value_;
  bool epoch_known_ = false;
  std::map<RegionKey, Entry> regions_;
  std::map<uint64_t, OpenerEntry> openers_;
  std::map<RegionKey, std::string> dead_values_;
  std::set<RegionKey> free_;
  std::set<RegionKey> retiring_;
  std::set<RegionKey> orphans_;  // nobody writes them: their owner is gone for certain, or there is nothing in them
  struct Taken {
    uint64_t since_ns = 0;
    Revision retired = 0;       // of the record that all had to pass before it was reused; 0: it held nothing
    uint64_t next_look_ns = 0;  // whether it has settled (S2)
  };
  std::map<RegionKey, Taken> taken_;  // ours, not granted yet
  std::set<RegionKey> granted_;
  std::vector<RegionKey> to_seal_;
  std::vector<RegionKey> to_free_;
  std::vector<std::pair<RegionKey, Generation>> conflicts_;

  std::vector<std::string> void_keys_;  // of a state that is void: a rebuild erases them
  std::string void_format_;
  LeaseId rebuild_lease_ = kNoLease;
  std::string rebuild_value_;
  uint64_t rebuild_since_ns_ = 0;
  uint64_t next_rebuild_renewal_ns_ = 0;
};

}  // namespace kvstore::cluster
