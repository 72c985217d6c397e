// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "cluster/agent.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/mutation.h"

namespace kvstore::cluster {

namespace {

std::string hex_text(uint64_t number) { return format_text("%016llx", static_cast<unsigned long long>(number)); }

}  // namespace

Agent::Agent(const AgentOptions& options, Setup setup, StoreSide& store, Clock& clock, Random& random)
    : options_(options),
      setup_(std::move(setup)),
      store_(store),
      clock_(clock),
      random_(random),
      began_ns_(clock.monotonic_ns()) {
  nonce_ = hex_text(random_.next());
}

// ---- requests --------------------------------------------------------------------------------------------------

// The kinds of requests fail one by one: a service whose disk is full renews leases and does nothing else.
void Agent::note(Request kind, uint64_t asked_ns, const Status& outcome) {
  Failing& failing = failing_[static_cast<size_t>(kind)];
  if (outcome.ok()) {
    failing = {};
    return;
  }
  trouble_ = outcome;
  failing.since_ns = failing.since_ns.value_or(asked_ns);
  failing.why = outcome;
}

// For a whole lease time, in which it was tried again and again.
Status Agent::what_fails() const {
  const uint64_t now_ns = clock_.monotonic_ns();
  for (const Failing& failing : failing_) {
    if (failing.since_ns && now_ns - *failing.since_ns > options_.lease_ns) return failing.why;
  }
  return {};
}

void Agent::tell_trouble() {
  const bool overdue = clock_.monotonic_ns() - confirmed_ns_ > options_.lease_ns;
  if (overdue && !std::exchange(told_unconfirmed_, true)) {
    // Where the engine failed no request, none was made in time.
    const std::string why = trouble_.ok() ? "this process was paused, or got no processor" : trouble_.message();
    store_.unconfirmed(Status(Code::kBusy, "the lease of this opener is not renewed: " + why));
  }
  const Status failing = what_fails();
  const bool told = std::exchange(told_failing_, !failing.ok());
  if (!failing.ok() && !told) {
    store_.unconfirmed(Status(Code::kBusy, "the metadata engine does nothing but renew leases: " + failing.message()));
  } else if (failing.ok() && told && former_.empty() && !told_unconfirmed_) {
    store_.confirmed(confirmed_ns_, true);
  }
}

std::string Agent::next_stamp() { return nonce_ + "." + std::to_string(++stamps_); }

Result<TxnOutcome> Agent::txn(std::vector<Compare> compares, std::vector<Operation> operations) {
  ++counters_.requests;
  for (Compare& compare : compares) compare.key = full(compare.key);
  for (Operation& operation : operations) operation.key = full(operation.key);
  last_txn_ns_ = clock_.monotonic_ns();
  Result<TxnOutcome> outcome = setup_.engine->txn(compares, operations);
  answered_ = outcome.ok();
  note(Request::kTxn, last_txn_ns_, outcome.status());
  if (!outcome.ok()) {
    ++counters_.request_errors;
    in_doubt_ = true;
  } else if (!outcome.value().applied) {
    ++counters_.contended;
    // The watch tells what became of it. If it does not, something is wrong with the watch.
    next_resync_ns_ = std::min(next_resync_ns_, clock_.monotonic_ns() + options_.lease_ns / kJudgingsPerLease);
  }
  return outcome;
}

Agent::Outcome Agent::change_region(const RegionKey& region, const RegionRecord& wanted) {
  RegionRecord record = wanted;
  record.stamp = next_stamp();
  const auto found = regions_.find(region);
  std::optional<std::string> old;
  if (found != regions_.end()) old = found->second.value;
  // Of this incarnation of the state, and as who we are: a failover may have given our epoch to another opener.
  std::vector<Compare> compares = {{std::string(kFormatKey), format_}, {live_key(epoch_), nonce_}};
  // S1: the whole old value, which no other moment of this key has.
  if (KVS_RULE(S1_records_change_by_comparing)) compares.push_back({region_key(region), old});
  const std::string value = encode(record);
  std::vector<Operation> operations = {{region_key(region), value, kNoLease, false}};
  const bool reused = record.hold == Hold::kOwned && found != regions_.end() && dead_values_.contains(region);
  if (reused && found->second.record.hold == Hold::kRetiring)
    operations.push_back({dead_key(region), "", kNoLease, true});
  const auto outcome = txn(std::move(compares), std::move(operations));
  if (!outcome.ok()) return Outcome::kUnknown;
  if (!outcome.value().applied) return Outcome::kContended;
  apply_region(region, {full(region_key(region)), value, outcome.value().revision, kNoLease}, false, false);
  return Outcome::kApplied;
}

// ---- becoming an opener ----------------------------------------------------------------------------------------

Status Agent::join() {
  if (joined_) return {};
  const uint64_t now_ns = clock_.monotonic_ns();
  if (now_ns < next_join_ns_) return Status(Code::kBusy, "joining: " + trouble_.message());
  next_join_ns_ = now_ns + options_.lease_ns / kTriesPerLease;
  KVS_TRY(resync());
  if (wiped_) {
    KVS_TRY(rebuild());
    KVS_TRY(resync());
  }
  if (wiped_) return Status(Code::kBusy, "the metadata engine's state is being rebuilt");
  KVS_TRY(become_opener());
  // Once more: what was reused before our live key was there did not wait for us.
  KVS_TRY(resync());
  if (!joined_) return trouble_;
  settled_at_ns_ = clock_.monotonic_ns() + (granted_.empty() ? 0 : setup_.engine->forgets_ns());
  take_over_own();
  return {};
}

Status Agent::become_opener() {
  const uint64_t asked_ns = clock_.monotonic_ns();
  ++counters_.requests;
  KVS_ASSIGN(const LeaseId lease, setup_.engine->grant(options_.lease_ns));
  uint64_t epoch = std::max(setup_.epoch_floor, epoch_known_ ? decode_number(epoch_value_).value_or(0) : 0);
  for (const uint64_t earlier : former_) epoch = std::max(epoch, earlier);
  ++epoch;
  std::optional<std::string> old;
  if (epoch_known_) old = epoch_value_;
  const std::string number = std::to_string(epoch);
  const auto outcome = txn({{std::string(kFormatKey), format_}, {std::string(kEpochKey), old}},
                           {{std::string(kEpochKey), number, kNoLease, false},
                            {opener_key(epoch), encode(setup_.identity), kNoLease, false},
                            {live_key(epoch), nonce_, lease, false},
                            {read_key(epoch), "0", lease, false}});  // holds up every reuse until we say more
  if (!outcome.ok() || !outcome.value().applied) {
    ++counters_.requests;
    (void)setup_.engine->revoke(lease);  // else it ends by itself
    if (!outcome.ok()) return outcome.status();
    // Soon again, and not all of them at the same moment.
    next_join_ns_ = asked_ns + random_.next() % (options_.lease_ns / kTriesPerLease);
    return Status(Code::kBusy, "another opener joined at the same time");
  }
  lease_ = lease;
  epoch_ = epoch;
  joined_ = true;
  joined_revision_ = outcome.value().revision;
  in_doubt_ = false;
  confirmed_ns_ = asked_ns;
  next_renewal_ns_ = asked_ns + options_.lease_ns / kRenewalsPerLease;
  OpenerEntry& mine = openers_[epoch];
  mine = {encode(setup_.identity), setup_.identity, true, true, false, 0};
  store_.joined(epoch);
  if (std::exchange(was_wiped_, false)) store_.state_was_rebuilt();
  store_.openers_changed(live_openers());
  return {};
}

// S6: regions of an earlier epoch of ours that nobody touched stay ours. Only then may anything be written.
void Agent::take_over_own() {
  std::set<RegionKey> held = granted_;
  for (const auto& [region, taken] : taken_) held.insert(region);
  bool goes_on = true;
  for (const RegionKey& region : held) {
    const auto found = regions_.find(region);
    const bool mine = found != regions_.end() && is_mine(region, found->second.record);
    if (!mine) {
      taken_.erase(region);
      if (granted_.erase(region) == 0) continue;
      ++counters_.regions_lost;
      store_.lost(region);
      continue;
    }
    if (found->second.record.epoch == epoch_) continue;
    RegionRecord record = found->second.record;
    record.epoch = epoch_;
    if (!goes_on || !KVS_RULE(S6_what_nobody_took_is_taken_over)) continue;
    (void)change_region(region, record);
    goes_on = may_go_on();
  }
  const auto left = [&](const RegionKey& region) {
    const auto found = regions_.find(region);
    return found != regions_.end() && found->second.record.epoch != epoch_;
  };
  if (!goes_on || std::any_of(granted_.begin(), granted_.end(), left)) return;  // the next turn tries again
  // S2: a failover may forget what was just taken over.
  if (clock_.monotonic_ns() < settled_at_ns_) return;
  if (std::exchange(settled_at_ns_, 0) != 0 && !granted_.empty() && setup_.engine->forgets_ns() != 0) {
    next_resync_ns_ = 0;
    return;
  }
  // Nothing is written under these epochs any more: what they still own, unknown to us, is free for all.
  for (const uint64_t earlier : former_) {
    const auto found = openers_.find(earlier);
    if (found == openers_.end() || !found->second.known || found->second.live || found->second.opener.gone) continue;
    Opener opener = found->second.opener;
    opener.gone = true;
    (void)txn({{opener_key(earlier), found->second.value}}, {{opener_key(earlier), encode(opener), kNoLease, false}});
  }
  if (clock_.monotonic_ns() - confirmed_ns_ > options_.lease_ns / 2) return;  // S3: of no use to the store
  told_unconfirmed_ = false;
  store_.confirmed(confirmed_ns_, !told_failing_);
}

void Agent::depose() {
  joined_ = false;
  lease_ = kNoLease;
  former_.insert(epoch_);
  next_join_ns_ = 0;
  note_break();  // nobody listens until it has joined again
  ++counters_.rejoins;
}

// ---- one round -------------------------------------------------------------------------------------------------

bool Agent::turn(uint64_t wait_ns) {
  tell_trouble();
  if (!joined_) return join().ok();
  keep_lease();
  if (!joined_) return true;
  bool worked = follow_changes(wait_ns);
  if (!joined_) return true;
  if (!hears_) return worked;  // and what it knows is old
  if (next_resync_ns_ != 0 && std::exchange(may_have_forgotten_, false)) store_.state_was_rebuilt();
  if (told_unconfirmed_ || settled_at_ns_ != 0 || !former_.empty()) take_over_own();
  std::erase_if(former_, [this](uint64_t epoch) {
    const auto found = openers_.find(epoch);
    return found == openers_.end() || found->second.opener.gone || !found->second.known;
  });
  worked |= report_sealed();
  worked |= report_deletes();
  worked |= grant_settled();
  worked |= reuse_drained();
  worked |= publish_read();
  worked |= take_regions();
  if (clock_.monotonic_ns() >= next_judging_ns_) judge_openers();
  if (clock_.monotonic_ns() >= next_hits_ns_) exchange_hits();
  ask_again();
  return worked;
}

// Puts that are refused because transactions fail need none: whether they work again is asked for, by one that says
// nothing to anybody.
void Agent::ask_again() {
  if (!failing_[static_cast<size_t>(Request::kTxn)].since_ns) return;
  if (clock_.monotonic_ns() - last_txn_ns_ < options_.lease_ns / kTriesPerLease) return;
  (void)txn({{live_key(epoch_), nonce_}}, {{hits_key(epoch_), "", lease_, false}});
}

void Agent::keep_lease() {
  const uint64_t asked_ns = clock_.monotonic_ns();
  if (asked_ns < next_renewal_ns_) return;
  ++counters_.requests;
  ++counters_.renewals;
  const Status renewed = setup_.engine->renew(lease_);
  if (renewed.ok()) {
    confirmed_ns_ = asked_ns;  // from before the call: the engine may have counted from then
    next_renewal_ns_ = asked_ns + options_.lease_ns / kRenewalsPerLease;
    if (former_.empty() && !told_unconfirmed_) store_.confirmed(asked_ns, !told_failing_);
    return;
  }
  trouble_ = renewed;
  if (renewed.code() == Code::kNotFound) return depose();
  ++counters_.request_errors;
  next_renewal_ns_ = asked_ns + options_.lease_ns / kTriesPerLease;
}

// Whether who does the same for many regions does it for one more in this turn: only while the lease needs nothing and
// the engine answers. The rest is for the next turn, which begins with the lease.
bool Agent::may_go_on() const { return answered_ && clock_.monotonic_ns() < next_renewal_ns_; }

Status Agent::catch_up() {
  if (!joined_) return Status(Code::kBusy, "the lease of this opener has ended: " + trouble_.message());
  // Asked for by callers, as often as they like: an engine that is away is asked no more often for it.
  if (watch_ == nullptr && clock_.monotonic_ns() < next_resync_ns_) {
    return Status(Code::kBusy, "the metadata engine is away: " + trouble_.message());
  }
  hears_ = resync().ok();
  if (!hears_) return trouble_;
  return wiped_ ? Status(Code::kBusy, "the metadata engine's state is being rebuilt") : Status();
}

bool Agent::follow_changes(uint64_t wait_ns) {
  if (clock_.monotonic_ns() >= next_resync_ns_) {
    hears_ = resync().ok();
    return hears_;
  }
  if (watch_ == nullptr) return false;
  const uint64_t asked_ns = clock_.monotonic_ns();
  Result<std::vector<Change>> changes = watch_->poll(wait_ns);
  if (changes.status().code() == Code::kStale) {
    next_resync_ns_ = 0;
    may_have_forgotten_ = true;
    return true;
  }
  hears_ = changes.ok();
  note(Request::kWatch, asked_ns, changes.status());
  if (!changes.ok()) {
    ++counters_.request_errors;
    note_break();
    next_resync_ns_ = std::min(next_resync_ns_, clock_.monotonic_ns() + options_.lease_ns / kTriesPerLease);
    return false;
  }
  for (const Change& change : changes.value()) {
    apply(change.item, change.erased);
  }
  return !changes.value().empty();
}

// ---- leaving ---------------------------------------------------------------------------------------------------

Status Agent::leave(bool all_ended) {
  if (!joined_) return {};
  for (bool worked = true; worked && joined_;) {
    worked = report_sealed();
    worked |= report_deletes();
    keep_lease();
  }
  if (!joined_) return {};
  bool all = to_seal_.empty() && to_free_.empty() && conflicts_.empty();
  for (const auto& [region, taken] : std::map<RegionKey, Taken>(taken_)) {
    RegionRecord record = regions_.at(region).record;
    record.hold = Hold::kFree;
    all = change_region(region, record) == Outcome::kApplied && all;
  }
  // What a transaction without an answer took is seen by who comes after us: it is to find us then.
  all = all && granted_.empty() && !in_doubt_;
  Status outcome;
  if (all_ended) {
    Opener gone = setup_.identity;
    gone.gone = true;
    // As who we are: a failover may have given the epoch to another opener.
    const auto last = txn({{live_key(epoch_), nonce_}, {opener_key(epoch_), encode(setup_.identity)}},
                          {{opener_key(epoch_), encode(gone), kNoLease, all}});
    outcome = last.status();
  }
  ++counters_.requests;
  const Status revoked = setup_.engine->revoke(lease_);
  if (outcome.ok()) outcome = revoked;
  joined_ = false;
  lease_ = kNoLease;
  return outcome;
}

}  // namespace kvstore::cluster
