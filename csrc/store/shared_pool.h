// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// SharedPool: what an opener in shared mode has besides engines and keepers: its agent, on a thread of its own, and a
// follower for each device. It translates between them: the agent speaks of records in the metadata engine, the catalog
// of regions, the follower of what is on the device.

#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cluster/agent.h"
#include "store/catalog.h"
#include "store/follower.h"
#include "store/own_thread.h"
#include "store/recovery.h"
#include "store/tickets.h"

namespace kvstore::store {

class SharedPool final : public cluster::StoreSide {
 public:
  struct Setup {
    std::vector<format::Superblock> superblocks;
    std::function<Result<std::unique_ptr<device::BlockingIo>>(uint16_t device)> make_io;
    bool first_ever = false;
  };
  SharedPool(const StoreOptions& options, Setup setup, Clock& clock, Random& random);
  ~SharedPool() override;

  // Before recovery: becomes an opener. kBusy names what it waited for until until_ns.
  Status join(uint64_t until_ns);
  // Whether a life that the device shows is over, by the engine's word.
  bool is_over(uint16_t device, const format::RegionHeader& header) const;
  uint64_t epoch() const { return agent_.epoch(); }

  // After recovery: from here on the catalog is told, and followed.
  Status start(Catalog& catalog, SpaceRegistry& spaces, Counters& counters, EvictionHub& evictions);
  // A lookup missed. Any thread.
  void missed();
  // Any thread: what the others had on the devices before the call is known (follower.h).
  Status refresh(uint64_t timeout_ns, const Interrupted& interrupted);
  // Any thread: deletes are in the engine.
  Status flush(uint64_t timeout_ns, const Interrupted& interrupted);
  bool turn();
  // Ends the threads; then, the keepers having sealed, gives everything back. `all_ended`: no write is on its way. The
  // destructor does both where nobody did.
  void stop(uint64_t until_ns);
  Status leave(bool all_ended);
  std::vector<std::pair<std::string, double>> numbers() const;

  // ---- cluster::StoreSide, on the agent's thread ----
  void joined(uint64_t epoch) override;
  void openers_changed(uint32_t live) override;
  void confirmed(uint64_t asked_ns, bool puts_go_on) override;
  void unconfirmed(const Status& why) override;
  void region_changed(const cluster::RegionKey& region, const cluster::RegionView& view) override;
  void deleted(const cluster::RegionKey& region, const cluster::DeadSlots& dead) override;
  void granted(const cluster::RegionKey& region, Generation spent) override;
  void lost(const cluster::RegionKey& region) override;
  void state_was_rebuilt() override;
  void regions_read_by_others(std::span<const uint8_t> hits) override;
  uint32_t regions_wanted(uint16_t device) override;
  Generation header_generation(const cluster::RegionKey& region) override;
  std::optional<cluster::RegionKey> victim(uint16_t device) override;
  bool holds_nothing(const cluster::RegionKey& region) override;
  std::vector<cluster::RegionKey> take_sealed() override;
  std::vector<cluster::RegionKey> take_released() override;
  std::vector<std::pair<cluster::RegionKey, Generation>> take_conflicts() override;
  std::vector<std::pair<cluster::RegionKey, cluster::DeadSlots>> take_deletes() override;
  void deletes_done(const std::vector<cluster::RegionKey>& untold) override;
  bool drained_all() override;
  bool drained(const cluster::RegionKey& region) override;
  std::vector<uint8_t> take_hits() override;
  Result<std::vector<cluster::HeaderFacts>> scan_headers(const cluster::RegionKey& first, uint32_t count) override;

 private:
  void run();
  void publish_counters();
  Status catch_up(uint64_t timeout_ns, const Interrupted& interrupted);
  uint32_t number_of(const cluster::RegionKey& region) const;
  cluster::RegionKey key_of(uint32_t number) const;
  std::vector<cluster::RegionKey> keys_of(const std::vector<uint32_t>& numbers) const;

  const StoreOptions& options_;
  const Setup setup_;
  Clock& clock_;
  cluster::Agent agent_;
  Catalog* catalog_ = nullptr;  // null until start()
  std::vector<std::unique_ptr<Follower>> followers_;
  std::vector<std::pair<cluster::RegionKey, Generation>> ungranted_;              // what lived there is not gone yet
  std::vector<std::pair<cluster::RegionKey, cluster::DeadSlots>> early_deletes_;  // told before start()
  bool leaving_ = false;
  uint64_t watch_ns_ = 0;  // how long the agent's turn waits for a change
  uint64_t last_worked_ns_ = 0;
  uint64_t confirmed_at_ns_ = 0;  // before start()

  OwnThread thread_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  bool running_ = false;
  Tickets flushes_;
  Tickets catch_ups_;
  cluster::AgentCounters counters_;  // as of the last turn
  uint32_t live_openers_ = 0;
  size_t engine_keys_ = 0;
};

}  // namespace kvstore::store
