// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The engine in memory, for tests: MemoryCluster is the service, MemoryEngine one client of it. What real services do
// to their clients can be done here, from a seed:
//
//   request lost        nothing happened, the client is told kTimeout
//   reply lost          it happened, the client is told kTimeout
//   slow                request and reply each take a while of the client's clock
//   failover            the service forgets what it acknowledged in the last second, leases and revisions with it
//   drift               the service has a clock of its own: give MemoryCluster a DriftingClock
//
// A paused client is one that its test does not run. Thread-safe when the clocks are.

#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/clock.h"
#include "cluster/metadata_engine.h"

namespace kvstore::cluster {

// Runs fast or slow against another clock, and may be wrong by a constant.
class DriftingClock final : public Clock {
 public:
  DriftingClock(Clock& base, double rate, uint64_t ahead_ns)
      : base_(base), rate_(rate), began_ns_(base.monotonic_ns()), ahead_ns_(ahead_ns) {}
  uint64_t monotonic_ns() override;
  uint64_t wall_seconds() override { return base_.wall_seconds(); }
  void sleep_ns(uint64_t duration_ns) override;

 private:
  Clock& base_;
  const double rate_;
  const uint64_t began_ns_;
  const uint64_t ahead_ns_;
};

class MemoryCluster {
 public:
  // Keeps this many changes for watches.
  static constexpr size_t kChangesMax = 10'000;

  explicit MemoryCluster(Clock& clock, uint64_t forgets_ns = 0) : clock_(clock), forgets_ns_(forgets_ns) {}

  Result<TxnOutcome> txn(std::span<const Compare> compares, std::span<const Operation> operations);
  Snapshot range(std::string_view prefix);
  // Changes of keys with this prefix after `after`; `after` becomes the revision they lead to.
  Result<std::vector<Change>> changes(std::string_view prefix, Revision& after);
  LeaseId grant(uint64_t ttl_ns);
  Status renew(LeaseId lease);
  void revoke(LeaseId lease);

  // What its clients are told, and may believe: the longest that failover() forgets.
  uint64_t forgets_ns() const { return forgets_ns_; }
  // Forgets every change and every grant, renewal and revocation of the last `forgotten_ns`.
  void failover(uint64_t forgotten_ns);
  // All is gone, as of an engine that was set up anew.
  void wipe();
  uint64_t failovers();
  uint64_t requests();  // served since it was made, of all kinds
  size_t keys();

 private:
  struct Lease {
    uint64_t ttl_ns = 0;
    uint64_t ends_ns = 0;
  };
  struct State {
    std::map<std::string, KeyValue, std::less<>> items;
    std::unordered_map<LeaseId, Lease> leases;
    Revision revision = 0;
    LeaseId last_lease = 0;
  };
  struct Moment {
    uint64_t at_ns;
    State state;
  };

  void begin_locked();
  void remember_locked();
  void apply_locked(std::span<const Operation> operations);
  void end_lease_locked(LeaseId lease);

  Clock& clock_;
  const uint64_t forgets_ns_;
  std::mutex mutex_;
  State state_;
  std::deque<Change> log_;
  Revision log_from_ = 0;  // changes after this revision are in the log
  std::deque<Moment> past_;
  uint64_t failovers_ = 0;
  uint64_t requests_ = 0;
};

struct MemoryFaults {
  double request_lost = 0;  // probability, each
  double reply_lost = 0;
  double slow = 0;
  uint64_t slow_ns_max = 0;
};

class MemoryEngine final : public MetadataEngine {
 public:
  // `clock` and `random` are the client's, and must outlive it.
  MemoryEngine(std::shared_ptr<MemoryCluster> cluster, Clock& clock, Random& random, const MemoryFaults& faults = {});

  Result<TxnOutcome> txn(std::span<const Compare> compares, std::span<const Operation> operations) override;
  Result<Snapshot> range(std::string_view prefix) override;
  Result<std::unique_ptr<Watch>> watch(std::string_view prefix, Revision after) override;
  Result<LeaseId> grant(uint64_t ttl_ns) override;
  Status renew(LeaseId lease) override;
  Status revoke(LeaseId lease) override;
  uint64_t forgets_ns() const override { return cluster_->forgets_ns(); }

  // A partition: from now on nothing gets through, until it is over.
  void set_cut(bool cut) { cut_->store(cut); }

 private:
  Status request();
  Status reply();
  bool happens(double probability);
  void dawdle();

  std::shared_ptr<MemoryCluster> cluster_;
  Clock& clock_;
  Random& random_;
  const MemoryFaults faults_;
  const std::shared_ptr<std::atomic<bool>> cut_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace kvstore::cluster
