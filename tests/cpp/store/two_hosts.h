// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Two hosts that share one simulated disk, and the schedule that says whose device operation comes next.
//
// Each host runs its script on a thread of its own, but only one runs at a time: it goes on until it sleeps, ends, or
// comes to an operation at which the schedule breaks it off. There it gives way, or is paused, which is what a stopped
// virtual machine or a network that holds a write back looks like. Time is virtual and passes only while all sleep.
// The same schedule gives the same run, operation by operation.

#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/sim_harness.h"

namespace kvstore::store {

inline constexpr uint64_t kHeartbeatNs = 1'000'000'000;

// Before the operation of this number (over both hosts) its host is broken off.
struct Break {
  uint64_t operation = 0;
  uint64_t pause_ns = 0;  // 0: gives way to the other, no more
};
using Schedule = std::vector<Break>;
std::string text_of(const Schedule& schedule);

class Turns final : public Clock {
 public:
  explicit Turns(Schedule schedule) : schedule_(std::move(schedule)) {}
  // Runs both to their end, `first` first. Until then and after it, everything goes through at once and is not counted.
  void run(const std::function<void()>& script0, const std::function<void()>& script1, uint32_t first);
  uint64_t operations() const { return operations_; }

  // ---- for the host whose turn it is ----
  void before_operation();
  uint64_t monotonic_ns() override { return now_ns_; }
  uint64_t wall_seconds() override { return 1'700'000'000 + now_ns_ / kHeartbeatNs; }
  void sleep_ns(uint64_t duration_ns) override;

 private:
  struct State {
    uint64_t wakes_ns = 0;
    bool ended = false;
    std::condition_variable turn_came;
  };
  void give_way(std::unique_lock<std::mutex>& lock, bool prefer_other);

  const Schedule schedule_;
  std::mutex mutex_;
  State states_[2];
  uint32_t host_ = 0;
  bool running_ = false;
  uint64_t operations_ = 0;
  uint64_t now_ns_ = kHeartbeatNs;
};

// Watches every write of both hosts: one that was deposed writes nothing but what it was broken off at.
class TwoHosts {
 public:
  TwoHosts(Schedule schedule, uint32_t regions);
  ~TwoHosts();

  Turns& turns() { return turns_; }
  // ---- scripts: of the host whose turn it is, or of a third one when none runs ----
  Status open(uint32_t host);
  Status close(uint32_t host);
  bool is_open(uint32_t host) const { return hosts_[host].store != nullptr; }
  // Names are numbers; what a block holds tells who put it.
  ItemResult put(uint32_t host, int number, bool durable);
  ItemResult get(uint32_t host, int number);
  void idle(uint32_t host, uint64_t duration_ns);
  Status flush(uint32_t host);
  void power_cut();  // drops the stores too

  // ---- judging ----
  void expect_one_owner();
  void expect_everything_durable_of(uint32_t host, uint32_t reader);
  // A host that does not wait for another may write on until its next heartbeat when both open a closed store at once.
  uint64_t late_writes() const { return late_writes_; }
  const std::vector<std::string>& violations() const { return violations_; }

 private:
  friend class GatedQueue;
  struct Host {
    std::unique_ptr<Store> store;
    SpaceId space;
    SeededRandom random{1};
    bool closing = false;
    uint64_t deposed_at = UINT64_MAX;     // number of the operation after which another one has opened
    std::map<uint32_t, uint64_t> opened;  // region -> generation that it opened
    std::set<int> durable;
  };
  struct Issued {
    uint32_t host;
    uint64_t operation;
  };
  void issued(const device::IoRequest* request, uint32_t host) { issued_[request] = {host, turns_.operations()}; }
  void observe(const device::IoRequest& request);
  void violation(const std::string& text);
  JobRef finish(uint32_t host, JobRef job);

  Turns turns_;
  std::unique_ptr<device::SimDisk> disk_;
  format::Superblock superblock_;
  Host hosts_[3];
  std::map<const device::IoRequest*, Issued> issued_;
  std::map<std::pair<uint32_t, uint64_t>, std::set<uint32_t>> writers_;  // of a region's generation
  uint64_t late_writes_ = 0;
  std::vector<std::string> violations_;
};

}  // namespace kvstore::store
