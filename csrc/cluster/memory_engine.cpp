// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "cluster/memory_engine.h"

#include <algorithm>

#include "base/units.h"

namespace kvstore::cluster {

namespace {

constexpr uint64_t kRememberedNs = 10'000'000'000;
constexpr uint64_t kPollStepNs = 1'000'000;

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

class MemoryWatch final : public Watch {
 public:
  MemoryWatch(std::shared_ptr<MemoryCluster> cluster, std::shared_ptr<std::atomic<bool>> cut, Clock& clock,
              std::string_view prefix, Revision after)
      : cluster_(std::move(cluster)),
        cut_(std::move(cut)),
        clock_(clock),
        prefix_(prefix),
        after_(after),
        failovers_(cluster_->failovers()) {}

  Result<std::vector<Change>> poll(uint64_t timeout_ns) override {
    const uint64_t began_ns = clock_.monotonic_ns();
    while (true) {
      if (cut_->load()) return Status(Code::kTimeout, "the metadata engine does not answer: the client is cut off");
      // Revisions begin again below what was seen, and may have passed it since: what they stand for is not what it
      // was.
      if (cluster_->failovers() != failovers_) return Status(Code::kStale, "the metadata engine failed over");
      KVS_ASSIGN(std::vector<Change> changes, cluster_->changes(prefix_, after_));
      const uint64_t waited_ns = clock_.monotonic_ns() - began_ns;
      if (!changes.empty() || waited_ns >= timeout_ns) return changes;
      clock_.sleep_ns(std::min(kPollStepNs, timeout_ns - waited_ns));
    }
  }

 private:
  const std::shared_ptr<MemoryCluster> cluster_;
  const std::shared_ptr<std::atomic<bool>> cut_;
  Clock& clock_;
  const std::string prefix_;
  Revision after_;
  const uint64_t failovers_;
};

}  // namespace

uint64_t DriftingClock::monotonic_ns() {
  const auto elapsed_ns = static_cast<double>(base_.monotonic_ns() - began_ns_);
  return began_ns_ + ahead_ns_ + static_cast<uint64_t>(elapsed_ns * rate_);
}

void DriftingClock::sleep_ns(uint64_t duration_ns) {
  // Rounded up: who sleeps until a moment again and again must get there.
  base_.sleep_ns(static_cast<uint64_t>(static_cast<double>(duration_ns) / rate_) + (duration_ns == 0 ? 0 : 1));
}

// ---- the service -----------------------------------------------------------------------------------------------

// Every request finds the leases that are over ended.
void MemoryCluster::begin_locked() {
  ++requests_;
  const uint64_t now_ns = clock_.monotonic_ns();
  std::vector<LeaseId> over;
  for (const auto& [id, lease] : state_.leases) {
    if (lease.ends_ns <= now_ns) over.push_back(id);
  }
  if (over.empty()) return;
  std::sort(over.begin(), over.end());  // not in the order of a hash table: runs must replay
  remember_locked();
  for (const LeaseId id : over) end_lease_locked(id);
}

void MemoryCluster::remember_locked() {
  const uint64_t now_ns = clock_.monotonic_ns();
  while (past_.size() > 1 && past_[1].at_ns + kRememberedNs < now_ns) past_.pop_front();
  past_.push_back({now_ns, state_});
}

void MemoryCluster::apply_locked(std::span<const Operation> operations) {
  const Revision revision = ++state_.revision;
  for (const Operation& operation : operations) {
    if (operation.erase && state_.items.erase(operation.key) == 0) continue;
    Change change{{operation.key, operation.value, revision, operation.lease}, operation.erase};
    if (operation.erase) {
      change.item.value.clear();
      change.item.lease = kNoLease;
    } else {
      state_.items[operation.key] = change.item;
    }
    log_.push_back(std::move(change));
  }
  while (log_.size() > kChangesMax) {
    // Whole transactions go, or a watch could see half of one.
    log_from_ = log_.front().item.modified;
    while (!log_.empty() && log_.front().item.modified == log_from_) log_.pop_front();
  }
}

void MemoryCluster::end_lease_locked(LeaseId lease) {
  if (state_.leases.erase(lease) == 0) return;
  std::vector<Operation> operations;
  for (const auto& [key, item] : state_.items) {
    if (item.lease == lease) operations.push_back({.key = key, .value = {}, .erase = true});
  }
  if (!operations.empty()) apply_locked(operations);
}

Result<TxnOutcome> MemoryCluster::txn(std::span<const Compare> compares, std::span<const Operation> operations) {
  if (compares.size() > kTxnMax || operations.size() > kTxnMax) {
    return Status(Code::kInvalid, format_text("a transaction of %zu compares and %zu operations: %zu are allowed",
                                              compares.size(), operations.size(), kTxnMax));
  }
  std::lock_guard lock(mutex_);
  begin_locked();
  for (const Operation& operation : operations) {
    if (operation.lease != kNoLease && !state_.leases.contains(operation.lease)) {
      return Status(Code::kNotFound,
                    format_text("lease %llu of %s has ended", static_cast<unsigned long long>(operation.lease),
                                operation.key.c_str()));
    }
  }
  for (const Compare& compare : compares) {
    const auto found = state_.items.find(compare.key);
    const bool there = found != state_.items.end();
    if (there != compare.value.has_value() || (there && found->second.value != *compare.value)) {
      return TxnOutcome{false, state_.revision};
    }
  }
  const bool changes = std::any_of(operations.begin(), operations.end(), [this](const Operation& operation) {
    return !operation.erase || state_.items.contains(operation.key);
  });
  if (changes) {
    remember_locked();
    apply_locked(operations);
  }
  return TxnOutcome{true, state_.revision};
}

Snapshot MemoryCluster::range(std::string_view prefix) {
  std::lock_guard lock(mutex_);
  begin_locked();
  Snapshot snapshot;
  snapshot.revision = state_.revision;
  for (auto item = state_.items.lower_bound(prefix); item != state_.items.end(); ++item) {
    if (!starts_with(item->first, prefix)) break;
    snapshot.items.push_back(item->second);
  }
  return snapshot;
}

Result<std::vector<Change>> MemoryCluster::changes(std::string_view prefix, Revision& after) {
  std::lock_guard lock(mutex_);
  begin_locked();
  if (after < log_from_ || after > state_.revision) {
    return Status(
        Code::kStale,
        format_text("changes after revision %llu are not kept: %llu to %llu are; make a range and a watch anew",
                    static_cast<unsigned long long>(after), static_cast<unsigned long long>(log_from_),
                    static_cast<unsigned long long>(state_.revision)));
  }
  std::vector<Change> changes;
  for (const Change& change : log_) {
    if (change.item.modified > after && starts_with(change.item.key, prefix)) changes.push_back(change);
  }
  after = state_.revision;
  return changes;
}

LeaseId MemoryCluster::grant(uint64_t ttl_ns) {
  std::lock_guard lock(mutex_);
  begin_locked();
  remember_locked();
  state_.leases[++state_.last_lease] = {ttl_ns, clock_.monotonic_ns() + ttl_ns};
  return state_.last_lease;
}

Status MemoryCluster::renew(LeaseId lease) {
  std::lock_guard lock(mutex_);
  begin_locked();
  const auto found = state_.leases.find(lease);
  if (found == state_.leases.end()) {
    return Status(Code::kNotFound, format_text("lease %llu has ended", static_cast<unsigned long long>(lease)));
  }
  remember_locked();
  found->second.ends_ns = clock_.monotonic_ns() + found->second.ttl_ns;
  return {};
}

void MemoryCluster::revoke(LeaseId lease) {
  std::lock_guard lock(mutex_);
  begin_locked();
  remember_locked();
  end_lease_locked(lease);
}

void MemoryCluster::failover(uint64_t forgotten_ns) {
  std::lock_guard lock(mutex_);
  const uint64_t now_ns = clock_.monotonic_ns();
  const LeaseId last_lease = state_.last_lease;
  while (!past_.empty() && past_.back().at_ns + forgotten_ns > now_ns) {
    state_ = std::move(past_.back().state);
    past_.pop_back();
  }
  state_.last_lease = last_lease;  // no id twice: a client would renew another's lease for its own
  ++failovers_;
  std::erase_if(log_, [this](const Change& change) { return change.item.modified > state_.revision; });
}

void MemoryCluster::wipe() {
  std::lock_guard lock(mutex_);
  const LeaseId last_lease = state_.last_lease;
  state_ = {};
  state_.last_lease = last_lease;
  past_.clear();
  log_.clear();
  log_from_ = 0;
  ++failovers_;
}

uint64_t MemoryCluster::failovers() {
  std::lock_guard lock(mutex_);
  return failovers_;
}

uint64_t MemoryCluster::requests() {
  std::lock_guard lock(mutex_);
  return requests_;
}

size_t MemoryCluster::keys() {
  std::lock_guard lock(mutex_);
  return state_.items.size();
}

// ---- a client --------------------------------------------------------------------------------------------------

MemoryEngine::MemoryEngine(std::shared_ptr<MemoryCluster> cluster, Clock& clock, Random& random,
                           const MemoryFaults& faults)
    : cluster_(std::move(cluster)), clock_(clock), random_(random), faults_(faults) {}

bool MemoryEngine::happens(double probability) {
  return probability > 0 && static_cast<double>(random_.next() >> 11) * 0x1p-53 < probability;
}

void MemoryEngine::dawdle() {
  if (happens(faults_.slow)) clock_.sleep_ns(random_.next() % (faults_.slow_ns_max + 1));
}

Status MemoryEngine::request() {
  dawdle();
  if (cut_->load() || happens(faults_.request_lost)) return Status(Code::kTimeout, "the engine did not answer");
  return {};
}

Status MemoryEngine::reply() {
  dawdle();
  if (happens(faults_.reply_lost)) return Status(Code::kTimeout, "the engine did not answer");
  return {};
}

Result<TxnOutcome> MemoryEngine::txn(std::span<const Compare> compares, std::span<const Operation> operations) {
  KVS_TRY(request());
  Result<TxnOutcome> outcome = cluster_->txn(compares, operations);
  KVS_TRY(reply());
  return outcome;
}

Result<Snapshot> MemoryEngine::range(std::string_view prefix) {
  KVS_TRY(request());
  Snapshot snapshot = cluster_->range(prefix);
  KVS_TRY(reply());
  return snapshot;
}

Result<std::unique_ptr<Watch>> MemoryEngine::watch(std::string_view prefix, Revision after) {
  KVS_TRY(request());
  return std::unique_ptr<Watch>(new MemoryWatch(cluster_, cut_, clock_, prefix, after));
}

Result<LeaseId> MemoryEngine::grant(uint64_t ttl_ns) {
  KVS_TRY(request());
  const LeaseId lease = cluster_->grant(ttl_ns);
  KVS_TRY(reply());
  return lease;
}

Status MemoryEngine::renew(LeaseId lease) {
  KVS_TRY(request());
  Status status = cluster_->renew(lease);
  KVS_TRY(reply());
  return status;
}

Status MemoryEngine::revoke(LeaseId lease) {
  KVS_TRY(request());
  cluster_->revoke(lease);
  return reply();
}

}  // namespace kvstore::cluster
