// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Several openers of one shared pool on one simulated disk, one engine in memory and one virtual clock, each driven by
// hand: what is not stepped is paused. Judges every answer and every write:
//   bytes     a get returns the bytes of its key, or misses
//   writers   of a life of a region one opener writes headers, descriptors and payload, and nobody else; and nobody
//             begins to write to a life when another opener has begun a later one
//   durable   what was acknowledged as durable, for a test to ask for
// A write is judged when it is issued: one that lands late, from a killed or a paused opener, was its owner's to make.
// With interleave(), others take their turns between any two requests of an opener to the engine and to the device.
// Payload is computed from the key, so that any byte that is not the block's own is seen.

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cluster/memory_engine.h"
#include "device/sim.h"
#include "store/sim_harness.h"
#include "store/store.h"

namespace kvstore::store {

struct OpenersSetup {
  uint64_t seed = 1;
  uint32_t openers = 3;
  uint32_t regions = 32;
  cluster::MemoryFaults faults{};
  uint64_t forgets_ns = 0;  // what a failover may forget
  bool drift = false;       // clocks of openers run up to a tenth fast or slow
  uint64_t latency_ns = 0;  // of the disk
  bool early = false;       // what is in flight there may have moved in part
  uint64_t orphan_quarantine_ns = 3'600'000'000'000;
};

class ManyOpeners {
 public:
  static constexpr uint64_t kLeaseNs = 10'000'000'000;
  static constexpr uint64_t kBlockBytes = 60'000;
  static constexpr uint64_t kRegionBytes = 256 * kKiB;
  static constexpr uint32_t kBlocksPerRegion = 4;

  explicit ManyOpeners(const OpenersSetup& setup = {});  // formats, and makes the pool a shared one
  ~ManyOpeners();

  // ---- life ----
  Status open(uint32_t opener);
  Status close(uint32_t opener);
  // As SIGKILL: nothing of it runs any more. What it had in the device may still land.
  void kill(uint32_t opener);
  bool is_open(uint32_t opener) const { return openers_[opener].store != nullptr; }
  Store& store(uint32_t opener) { return *openers_[opener].store; }
  void cut(uint32_t opener, bool cut);                           // a partition between it and the metadata engine
  void refuse_txns(bool refuse) { txns_are_refused_ = refuse; }  // of all: leases are renewed, and nothing else is done
  void pause(uint32_t opener, bool paused);  // runs only when it is called, and when who waits would wait for it
  bool is_paused(uint32_t opener) const { return paused_.contains(opener); }

  // ---- time ----
  bool step(uint32_t opener);
  // In one of so many requests (0: in none) others run before it goes out; in one of so many of those for longer than
  // a lease, as if the opener had been stopped between a decision and its deed.
  void interleave(uint32_t one_in, uint32_t long_one_in);
  // Time passes, and the openers given (or all) are stepped meanwhile.
  void run(uint64_t duration_ns);
  void run_only(const std::set<uint32_t>& openers, uint64_t duration_ns);
  void pass(uint64_t duration_ns) { clock_.sleep_ns(duration_ns); }  // nobody is stepped
  uint64_t now_ns() { return clock_.monotonic_ns(); }

  // ---- work; drives the opener until it has answered ----
  ItemResult put(uint32_t opener, int number, bool durable = false);
  ItemResult get(uint32_t opener, int number);
  bool contains(uint32_t opener, int number);
  ItemResult erase(uint32_t opener, int number);
  void pin(uint32_t opener, int number, bool pinned);
  Status flush(uint32_t opener);
  Status refresh(uint32_t opener);
  double number(uint32_t opener, const std::string& name);

  // Submitted and left alone: finished by later steps, or never. At most one at a time.
  void begin_put(uint32_t opener, int number, bool durable);
  void settle_puts(uint32_t opener);
  size_t pending(uint32_t opener) const { return openers_[opener].pending.size(); }
  std::vector<int> pending_numbers(uint32_t opener) const;

  cluster::MemoryCluster& cluster() { return *cluster_; }
  device::SimDisk& disk() { return *disk_; }
  SeededRandom& random() { return random_; }
  const std::set<int>& durable() const { return durable_; }
  const std::set<int>& failed_puts() const { return failed_puts_; }  // of which something may be there all the same
  bool any_reclaimed() const { return reclaimed_; }                  // or an opener tried to
  uint64_t opening(uint32_t opener) const { return openers_[opener].opening; }
  const std::vector<std::string>& violations() const { return violations_; }
  std::string all_violations() const;
  std::string describe();  // the engine's keys, and each region that was used: its writers, and what its headers say
  void violation(const std::string& text) { violations_.push_back(text); }
  // Of (region, generation): the openings that wrote it.
  const std::map<std::pair<uint32_t, uint64_t>, std::set<uint64_t>>& lives() const { return writers_; }
  // As if both headers of a life that nobody here knows of had just landed.
  void poke_headers(uint32_t region, Generation generation);

  // For a test: as a request goes out to the device.
  std::function<void(const device::IoRequest&)> on_request;

  StoreOptions store_options;  // of the openings to come; what makes them openers of this pool is added
  const format::Geometry& geometry() const { return superblock_.geometry; }

 private:
  friend class WatchedQueue;
  friend class WatchedEngine;
  class Turn;
  struct Pending {
    int number = 0;
    bool durable = false;
    std::unique_ptr<Buffers> buffers;
    JobRef job;
  };
  struct Opener {
    std::unique_ptr<Clock> clock;
    SeededRandom random{0};
    std::unique_ptr<cluster::MemoryEngine> engine;
    std::unique_ptr<cluster::MetadataEngine> watched_engine;
    std::unique_ptr<Store> store;
    std::shared_ptr<bool> dead;  // of this opening: its device answers nothing any more
    uint64_t process_id = 0;
    uint64_t opening = 0;
    SpaceId space;
    std::vector<Pending> pending;
  };

  void others_run(uint64_t opening);
  void issued(const device::IoRequest& request, uint64_t opening);
  uint64_t generation_on_device(uint32_t region);
  void judge(uint64_t opening, uint32_t region, uint64_t generation, const char* what);
  JobRef finish(uint32_t opener, JobRef job);
  JobRef submit_put(uint32_t opener, int number, bool durable, Buffers& buffers, Status& status);
  void note_put(const Pending& put);

  const OpenersSetup setup_;
  SeededRandom random_;
  ManualClock clock_;
  std::unique_ptr<device::SimDisk> disk_;
  std::shared_ptr<cluster::MemoryCluster> cluster_;
  format::Superblock superblock_;
  std::vector<Opener> openers_;
  std::set<uint64_t> processes_;  // that live
  uint64_t next_process_ = 100;
  uint64_t next_opening_ = 1;
  std::set<uint32_t> paused_;
  std::set<uint32_t> in_turn_;  // inside a call: not to be entered again
  uint32_t interleave_one_in_ = 0;
  uint32_t interleave_long_one_in_ = 0;
  std::map<std::pair<uint32_t, uint64_t>, std::set<uint64_t>> writers_;  // of (region, generation): openings
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> lives_;              // of (opening, region): its last generation
  bool reclaimed_ = false;
  bool txns_are_refused_ = false;
  std::set<int> durable_;
  std::set<int> deleted_;  // ever
  std::set<int> failed_puts_;
  std::vector<std::string> violations_;
};

}  // namespace kvstore::store
