// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// S7: the state of an engine that lost it, made anew from the headers on the devices by whoever holds the rebuild key.

#include <algorithm>
#include <set>
#include <utility>

#include "base/mutation.h"
#include "cluster/agent.h"

namespace kvstore::cluster {

namespace {

constexpr size_t kOperationsMax = 100;        // etcd takes 128 in a transaction
constexpr uint32_t kRegionsPerScan = 4096;    // a fraction of a second even on a slow device
constexpr uint64_t kEpochsSkippedMax = 1024;  // epochs may have been given that no header bears
constexpr uint64_t kGenerationsSkippedMax = 65536;

}  // namespace

bool Agent::is_valid_format(std::string_view value) const { return value.starts_with(format_prefix()); }

std::string Agent::format_prefix() const { return "1 " + std::to_string(setup_.epoch_floor) + " "; }

// S7: no life begins below it. It follows the prefix in `format`.
uint64_t Agent::generation_floor() const {
  if (!is_valid_format(format_)) return 0;
  const std::string_view rest = std::string_view(format_).substr(format_prefix().size());
  return decode_number(rest.substr(0, rest.find(' '))).value_or(0);
}

// The shortcuts of a pool's first opener are for what it finds, not for a state that is lost later.
bool Agent::nobody_was_here() const {
  const bool young = clock_.monotonic_ns() - began_ns_ < options_.lease_ns / 2;  // nobody else has rebuilt it by then
  return options_.first_ever && ((epoch_ == 0 && young) || !KVS_RULE(S7_only_the_first_to_join_need_not_wait));
}

// ---- rebuilding ------------------------------------------------------------------------------------------------

Status Agent::rebuild() {
  const uint64_t now_ns = clock_.monotonic_ns();
  const bool first_ever = nobody_was_here();
  if (rebuild_lease_ != kNoLease) (void)keep_rebuild_lease();
  if (rebuild_lease_ == kNoLease) {
    ++counters_.requests;
    KVS_ASSIGN(rebuild_lease_, setup_.engine->grant(options_.lease_ns));
    rebuild_value_ = next_stamp();
    std::optional<std::string> old_format;
    if (!void_format_.empty()) old_format = void_format_;
    std::vector<Compare> compares = {{std::string(kFormatKey), old_format}};
    // Who made the pool a shared one need not wait, nor for one that came a moment later and knows nothing of that.
    if (!first_ever) compares.push_back({std::string(kRebuildKey), std::nullopt});
    const auto outcome = txn(std::move(compares), {{std::string(kRebuildKey), rebuild_value_, rebuild_lease_, false}});
    if (!outcome.ok() || !outcome.value().applied) {
      ++counters_.requests;
      (void)setup_.engine->revoke(std::exchange(rebuild_lease_, kNoLease));
      if (!outcome.ok()) return outcome.status();
      return Status(Code::kBusy, "another opener rebuilds the metadata engine's state");
    }
    rebuild_since_ns_ = now_ns;
    next_rebuild_renewal_ns_ = now_ns + options_.lease_ns / kRenewalsPerLease;
  }
  // S7: whoever could renew its lease until a moment ago has stopped writing when that time is over.
  const bool waited = now_ns - rebuild_since_ns_ >= options_.lease_ns || first_ever;
  if (!waited && KVS_RULE(S7_a_rebuild_waits_for_a_lease_time)) {
    return Status(Code::kBusy, "the metadata engine's state is gone; it is rebuilt when a lease time has passed");
  }
  const Status written = write_rebuilt(first_ever);
  ++counters_.requests;
  (void)setup_.engine->revoke(std::exchange(rebuild_lease_, kNoLease));
  if (written.ok()) ++counters_.rebuilds;
  return written;
}

// A large pool takes longer than a lease. kBusy: it has ended, and somebody else may be at it.
Status Agent::keep_rebuild_lease() {
  const uint64_t now_ns = clock_.monotonic_ns();
  if (now_ns < next_rebuild_renewal_ns_) return {};
  ++counters_.requests;
  const Status renewed = setup_.engine->renew(rebuild_lease_);
  next_rebuild_renewal_ns_ = now_ns + options_.lease_ns / (renewed.ok() ? kRenewalsPerLease : kTriesPerLease);
  if (renewed.code() != Code::kNotFound) return {};  // where there was no answer, the transactions tell
  rebuild_lease_ = kNoLease;
  return Status(Code::kBusy, "the lease of the rebuild has ended; begin again");
}

Result<std::vector<HeaderFacts>> Agent::scan_all_headers() {
  std::vector<HeaderFacts> all;
  for (uint16_t device = 0; device < setup_.region_counts.size(); ++device) {
    const uint32_t regions = setup_.region_counts[device];
    for (uint32_t first = 0; first < regions; first += kRegionsPerScan) {
      KVS_TRY(keep_rebuild_lease());
      const uint32_t count = std::min(kRegionsPerScan, regions - first);
      KVS_ASSIGN(const std::vector<HeaderFacts> some, store_.scan_headers({device, first}, count));
      all.insert(all.end(), some.begin(), some.end());
    }
  }
  return all;
}

Status Agent::write_rebuilt(bool first_ever) {
  KVS_ASSIGN(const std::vector<HeaderFacts> headers, scan_all_headers());
  uint64_t epoch = std::max(setup_.epoch_floor, epoch_);
  std::set<uint64_t> owners;
  uint64_t floor = 0;
  std::vector<Operation> operations;
  for (const HeaderFacts& facts : headers) {
    epoch = std::max(epoch, facts.epoch);
    if (facts.generation.value == 0) continue;
    RegionRecord record{facts.hold, facts.generation, facts.epoch, std::string(kRebuiltStamp) + "." + next_stamp()};
    floor = std::max(floor, facts.generation.value);
    operations.push_back({region_key(facts.region), encode(record), kNoLease, false});
    if (facts.hold == Hold::kOwned) owners.insert(facts.epoch);
  }
  // Nobody knows them any more, but they themselves: quarantined (S5) until they join anew.
  Opener unknown;
  unknown.lost_seconds = std::max<uint64_t>(clock_.wall_seconds(), 1);
  for (const uint64_t owner : owners) operations.push_back({opener_key(owner), encode(unknown), kNoLease, false});
  operations.push_back({std::string(kEpochKey),
                        std::to_string(epoch + (first_ever ? 0 : random_.next() % kEpochsSkippedMax)), kNoLease,
                        false});
  std::set<std::string> written;
  for (const Operation& operation : operations) written.insert(operation.key);
  for (const std::string& key : void_keys_) {
    if (!written.contains(key)) operations.push_back({key, "", kNoLease, true});
  }
  // The engine was ahead of the headers: one of then must not pass for one of a life that begins now. At random, or two
  // rebuilds would come to the same.
  floor += 1 + random_.next() % kGenerationsSkippedMax;
  if (first_ever || !KVS_RULE(S7_lives_begin_above_a_floor)) floor = 0;
  // Last: it says that all is there.
  operations.push_back(
      {std::string(kFormatKey), format_prefix() + std::to_string(floor) + " " + next_stamp(), kNoLease, false});
  for (size_t first = 0; first < operations.size(); first += kOperationsMax) {
    KVS_TRY(keep_rebuild_lease());
    const size_t end = std::min(operations.size(), first + kOperationsMax);
    const auto outcome =
        txn({{std::string(kRebuildKey), rebuild_value_}}, {operations.begin() + static_cast<std::ptrdiff_t>(first),
                                                           operations.begin() + static_cast<std::ptrdiff_t>(end)});
    KVS_TRY(outcome.status());
    if (!outcome.value().applied) return Status(Code::kBusy, "the rebuild lock was lost; begin again");
  }
  format_.clear();
  return {};
}

}  // namespace kvstore::cluster
