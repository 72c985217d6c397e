// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "cluster/agent.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/mutation.h"

namespace kvstore::cluster {

namespace {

constexpr uint64_t kRenewalsPerLease = 5;
constexpr uint64_t kTriesPerLease = 20;   // of what failed
constexpr uint64_t kLeasesPerResync = 6;  // a change that a watch lost would else be missed for ever
constexpr uint64_t kJudgingsPerLease = 4;
constexpr size_t kOperationsMax = 100;  // etcd takes 128 in a transaction
constexpr uint32_t kTakesPerTurn = 4;
constexpr uint64_t kEpochsSkippedMax = 1024;  // by a rebuild: epochs may have been given that no header bears
constexpr uint64_t kGenerationsSkippedMax = 65536;
constexpr std::string_view kRebuiltStamp = "rebuilt";

std::string hex_text(uint64_t number) { return format_text("%016llx", static_cast<unsigned long long>(number)); }

}  // namespace

Agent::Agent(const AgentOptions& options, Setup setup, StoreSide& store, Clock& clock, Random& random)
    : options_(options), setup_(std::move(setup)), store_(store), clock_(clock), random_(random) {
  nonce_ = hex_text(random_.next());
}

// ---- requests --------------------------------------------------------------------------------------------------

std::string Agent::next_stamp() { return nonce_ + "." + std::to_string(++stamps_); }

Result<TxnOutcome> Agent::txn(std::vector<Compare> compares, std::vector<Operation> operations) {
  ++counters_.requests;
  for (Compare& compare : compares) compare.key = full(compare.key);
  for (Operation& operation : operations) operation.key = full(operation.key);
  Result<TxnOutcome> outcome = setup_.engine->txn(compares, operations);
  if (!outcome.ok()) {
    ++counters_.request_errors;
    trouble_ = outcome.status();
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

// ---- the engine's state, as last seen --------------------------------------------------------------------------

// The state, and a watch for every change after it. Read again once the watch is there: a failover between the two
// would be noticed by nobody.
Result<Snapshot> Agent::range_and_watch() {
  counters_.requests += 3;
  watch_.reset();
  KVS_ASSIGN(const Snapshot before, setup_.engine->range(setup_.prefix));
  KVS_ASSIGN(watch_, setup_.engine->watch(setup_.prefix, before.revision));
  Result<Snapshot> snapshot = setup_.engine->range(setup_.prefix);
  if (snapshot.ok() && snapshot.value().revision < before.revision) {
    watch_.reset();
    return Status(Code::kBusy, "the metadata engine failed over");
  }
  return snapshot;
}

Status Agent::resync() {
  ++counters_.resyncs;
  // Not sooner again when it fails: who cannot be asked is not to be asked without pause.
  next_resync_ns_ = clock_.monotonic_ns() + options_.lease_ns / kTriesPerLease;
  Result<Snapshot> snapshot = range_and_watch();
  if (!snapshot.ok()) {
    ++counters_.request_errors;
    trouble_ = snapshot.status();
    // A watch of a state that was not taken over has a gap before it. Not sooner again: who cannot be asked is not
    // to be asked without pause.
    watch_.reset();
    next_resync_ns_ = clock_.monotonic_ns() + options_.lease_ns / kTriesPerLease;
    return trouble_;
  }
  const std::string format_key = full(kFormatKey);
  const std::vector<KeyValue>& items = snapshot.value().items;
  void_format_.clear();
  void_keys_.clear();
  wiped_ = true;
  for (const KeyValue& item : items) {
    if (item.key == format_key) void_format_ = item.value;
    if (item.key == format_key && is_valid_format(item.value)) wiped_ = false;
    const std::string_view key = std::string_view(item.key).substr(setup_.prefix.size());
    if (parse_region_key(key, "r/") || parse_region_key(key, "dead/") || parse_epoch_key(key, "opener/")) {
      void_keys_.emplace_back(key);
    }
  }
  // Of a state that is not there nothing is to be learnt: what is known is kept until it was rebuilt (S7).
  was_wiped_ |= wiped_ && epoch_ != 0;
  if (wiped_) return {};
  std::map<RegionKey, Entry> before = std::exchange(regions_, {});
  std::map<uint64_t, OpenerEntry> openers_before = std::exchange(openers_, {});
  dead_values_.clear();
  epoch_known_ = false;
  // What is absent now was erased, and what is there is as it is, whatever its revision: after a failover they restart.
  for (auto& [epoch, entry] : openers_before) {
    if (entry.gone) openers_[epoch].gone = true;
  }
  for (const auto& [region, entry] : before) {
    const std::string key = full(region_key(region));
    const auto same =
        std::lower_bound(items.begin(), items.end(), key,
                         [](const KeyValue& item, const std::string& wanted) { return item.key < wanted; });
    const bool unchanged = same != items.end() && same->key == key && same->value == entry.value;
    if (unchanged) {
      regions_[region] = entry;
      regions_[region].modified = same->modified;
      regions_[region].witnessed = true;
    } else if (same == items.end() || same->key != key) {
      apply_region(region, {key, "", snapshot.value().revision, kNoLease}, true, true);
    }
  }
  for (const KeyValue& item : items) apply(item, false);
  std::erase_if(openers_, [](const auto& one) { return !one.second.known && !one.second.live; });
  for (const auto& [epoch, entry] : openers_before) {
    const auto found = openers_.find(epoch);
    if (entry.live && (found == openers_.end() || !found->second.live)) tell_regions_of(epoch);
  }
  store_.openers_changed(live_openers());
  next_resync_ns_ = clock_.monotonic_ns() + kLeasesPerResync * options_.lease_ns;
  // Forgotten by a failover, or ended without our knowing.
  if (joined_ && (!openers_.contains(epoch_) || !openers_[epoch_].live)) depose();
  return {};
}

void Agent::apply(const KeyValue& item, bool erased) {
  std::string_view key = item.key;
  if (!key.starts_with(setup_.prefix)) return;
  key.remove_prefix(setup_.prefix.size());
  if (const auto region = parse_region_key(key, "r/")) {
    apply_region(*region, item, erased, true);
  } else if (const auto deleted = parse_region_key(key, "dead/")) {
    dead_values_.erase(*deleted);
    if (erased) return;
    dead_values_[*deleted] = item.value;
    if (const auto dead = decode_dead_slots(item.value)) store_.deleted(*deleted, *dead);
  } else if (const auto live = parse_epoch_key(key, "live/")) {
    apply_live(*live, !erased);
    // A failover forgot that the epoch was given to us, and gave it to another.
    if (joined_ && *live == epoch_ && !erased && item.value != nonce_) depose();
  } else if (const auto opener = parse_epoch_key(key, "opener/")) {
    OpenerEntry& entry = openers_[*opener];
    entry.known = !erased;
    entry.value = item.value;
    if (const auto decoded = decode_opener(item.value)) entry.opener = *decoded;
    if (erased && !entry.live) openers_.erase(*opener);
  } else if (const auto read = parse_epoch_key(key, "read/")) {
    if (!erased) openers_[*read].read = decode_number(item.value).value_or(0);
  } else if (const auto hits = parse_epoch_key(key, "hits/")) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(item.value.data());
    if (!erased && *hits != epoch_) store_.regions_read_by_others({bytes, item.value.size()});
  } else if (key == kEpochKey) {
    epoch_value_ = item.value;
    epoch_known_ = !erased;
  } else if (key == kFormatKey) {
    if (!erased && (item.value == format_ || format_.empty())) {
      format_ = item.value;
      return;
    }
    // Wiped, or another incarnation of the state: what is known of it is void.
    next_resync_ns_ = 0;
    if (!erased) format_ = item.value;
    if (joined_) depose();
  }
}

void Agent::apply_region(const RegionKey& region, const KeyValue& item, bool erased, bool witnessed) {
  if (region.device >= setup_.region_counts.size() || region.region >= setup_.region_counts[region.device]) return;
  const auto found = regions_.find(region);
  if (!erased && found != regions_.end() && found->second.value == item.value) {
    found->second.modified = item.modified;
    found->second.witnessed |= witnessed;
    return;
  }
  if (found != regions_.end() && found->second.modified > item.modified) return;  // overtaken by our own transaction
  Entry entry;
  entry.value = item.value;
  entry.modified = item.modified;
  entry.witnessed = witnessed;
  // What cannot be read is somebody's, and stays untouched.
  const auto decoded = decode_region_record(item.value);
  entry.record = decoded.value_or(RegionRecord{.hold = Hold::kOwned, .generation = {}, .epoch = 0, .stamp = "?"});
  const bool by_us = !erased && entry.record.stamp.starts_with(nonce_);
  const bool mine = !erased && is_mine(region, entry.record);
  const bool is_reuse = found != regions_.end() && found->second.record.hold == Hold::kRetiring;
  const Revision retired = is_reuse ? found->second.modified : 0;
  erased ? (void)regions_.erase(region) : (void)(regions_[region] = entry);
  // Absent, after a rebuild: the device bears no life of it.
  const bool is_unused = erased && recovered_;
  const bool is_free = is_unused || (!erased && entry.record.hold == Hold::kFree);
  is_free ? (void)free_.insert(region) : (void)free_.erase(region);
  const bool is_retiring = !erased && entry.record.hold == Hold::kRetiring;
  is_retiring ? (void)retiring_.insert(region) : (void)retiring_.erase(region);
  orphans_.erase(region);
  // Ours, and a life that the store has begun: that it was sealed, a failover forgot. It is never begun again.
  const bool begun = mine && store_.header_generation(region) >= entry.record.generation;
  if (begun && !granted_.contains(region)) to_seal_.push_back(region);
  if (mine && !begun && !granted_.contains(region)) taken_.emplace(region, Taken{clock_.monotonic_ns(), retired, 0});
  if (!mine) {
    taken_.erase(region);
    const bool was_granted = granted_.erase(region) != 0;
    std::erase(to_seal_, region);
    std::erase(to_free_, region);
    if (was_granted && !by_us) {
      ++counters_.regions_lost;
      store_.lost(region);
    }
  }
  tell(region);
}

void Agent::apply_live(uint64_t epoch, bool live) {
  OpenerEntry& entry = openers_[epoch];
  if (std::exchange(entry.live, live) == live) return;
  if (!live && epoch == epoch_ && joined_) depose();
  if (!live && !entry.known) openers_.erase(epoch);
  next_judging_ns_ = 0;
  store_.openers_changed(live_openers());
  tell_regions_of(epoch);
}

// Written by this opening, or found on the device by whoever rebuilt the state and in our hands all the time.
bool Agent::is_mine(const RegionKey& region, const RegionRecord& record) const {
  if (record.hold != Hold::kOwned) return false;
  if (record.stamp.starts_with(nonce_)) return true;
  return record.stamp.starts_with(kRebuiltStamp) && granted_.contains(region) &&
         store_.header_generation(region) == record.generation;
}

RegionView Agent::view_of(const RegionKey& region, const Entry* entry) const {
  RegionView view;
  if (entry == nullptr) return view;
  view.recorded = true;
  view.hold = entry->record.hold;
  view.generation = entry->record.generation;
  view.mine = is_mine(region, entry->record);
  const auto owner = openers_.find(entry->record.epoch);
  view.owner_lives = owner != openers_.end() && owner->second.live;
  view.owner_gone = owner != openers_.end() && owner->second.gone && !view.owner_lives;
  return view;
}

RegionView Agent::view(const RegionKey& region) const {
  const auto found = regions_.find(region);
  return view_of(region, found == regions_.end() ? nullptr : &found->second);
}

void Agent::tell(const RegionKey& region) { store_.region_changed(region, view(region)); }

void Agent::tell_regions_of(uint64_t epoch) {
  for (const auto& [region, entry] : regions_) {
    if (entry.record.epoch == epoch) tell(region);
  }
}

uint32_t Agent::live_openers() const {
  return static_cast<uint32_t>(
      std::count_if(openers_.begin(), openers_.end(), [](const auto& one) { return one.second.live; }));
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
    if (KVS_RULE(S6_what_nobody_took_is_taken_over)) (void)change_region(region, record);
  }
  const auto left = [&](const RegionKey& region) {
    const auto found = regions_.find(region);
    return found != regions_.end() && found->second.record.epoch != epoch_;
  };
  if (std::any_of(granted_.begin(), granted_.end(), left)) return;  // the next turn tries again
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
  store_.confirmed(confirmed_ns_);
}

void Agent::depose() {
  joined_ = false;
  lease_ = kNoLease;
  former_.insert(epoch_);
  next_join_ns_ = 0;
  ++counters_.rejoins;
}

bool Agent::is_valid_format(std::string_view value) const { return value.starts_with(format_prefix()); }

std::string Agent::format_prefix() const { return "1 " + std::to_string(setup_.epoch_floor) + " "; }

// S7: no life begins below it. It follows the prefix in `format`.
uint64_t Agent::generation_floor() const {
  if (!is_valid_format(format_)) return 0;
  const std::string_view rest = std::string_view(format_).substr(format_prefix().size());
  return decode_number(rest.substr(0, rest.find(' '))).value_or(0);
}

// ---- rebuilding ------------------------------------------------------------------------------------------------

Status Agent::rebuild() {
  const uint64_t now_ns = clock_.monotonic_ns();
  if (rebuild_lease_ != kNoLease) {
    ++counters_.requests;
    if (const Status renewed = setup_.engine->renew(rebuild_lease_); renewed.code() == Code::kNotFound) {
      rebuild_lease_ = kNoLease;
    }
  }
  if (rebuild_lease_ == kNoLease) {
    ++counters_.requests;
    KVS_ASSIGN(rebuild_lease_, setup_.engine->grant(options_.lease_ns));
    rebuild_value_ = next_stamp();
    std::optional<std::string> old_format;
    if (!void_format_.empty()) old_format = void_format_;
    const auto outcome = txn({{std::string(kRebuildKey), std::nullopt}, {std::string(kFormatKey), old_format}},
                             {{std::string(kRebuildKey), rebuild_value_, rebuild_lease_, false}});
    if (!outcome.ok() || !outcome.value().applied) {
      ++counters_.requests;
      (void)setup_.engine->revoke(std::exchange(rebuild_lease_, kNoLease));
      if (!outcome.ok()) return outcome.status();
      return Status(Code::kBusy, "another opener rebuilds the metadata engine's state");
    }
    rebuild_since_ns_ = now_ns;
  }
  // S7: whoever could renew its lease until a moment ago has stopped writing when that time is over.
  const bool waited = now_ns - rebuild_since_ns_ >= options_.lease_ns || options_.first_ever;
  if (!waited && KVS_RULE(S7_a_rebuild_waits_for_a_lease_time)) {
    return Status(Code::kBusy, "the metadata engine's state is gone; it is rebuilt when a lease time has passed");
  }
  const Status written = write_rebuilt();
  ++counters_.requests;
  (void)setup_.engine->revoke(std::exchange(rebuild_lease_, kNoLease));
  if (written.ok()) ++counters_.rebuilds;
  return written;
}

Status Agent::write_rebuilt() {
  KVS_ASSIGN(const std::vector<HeaderFacts> headers, store_.scan_headers());
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
                        std::to_string(epoch + (options_.first_ever ? 0 : random_.next() % kEpochsSkippedMax)),
                        kNoLease, false});
  std::set<std::string> written;
  for (const Operation& operation : operations) written.insert(operation.key);
  for (const std::string& key : void_keys_) {
    if (!written.contains(key)) operations.push_back({key, "", kNoLease, true});
  }
  // The engine was ahead of the headers: one of then must not pass for one of a life that begins now. At random, or two
  // rebuilds would come to the same.
  floor += 1 + random_.next() % kGenerationsSkippedMax;
  if (options_.first_ever || !KVS_RULE(S7_lives_begin_above_a_floor)) floor = 0;
  // Last: it says that all is there.
  operations.push_back(
      {std::string(kFormatKey), format_prefix() + std::to_string(floor) + " " + next_stamp(), kNoLease, false});
  for (size_t first = 0; first < operations.size(); first += kOperationsMax) {
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

// ---- one round -------------------------------------------------------------------------------------------------

bool Agent::turn(uint64_t wait_ns) {
  const uint64_t now_ns = clock_.monotonic_ns();
  const bool overdue = now_ns - confirmed_ns_ > options_.lease_ns;
  if (overdue && !std::exchange(told_unconfirmed_, true)) store_.unconfirmed(trouble_);
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
  return worked;
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
    if (former_.empty() && !told_unconfirmed_) store_.confirmed(asked_ns);
    return;
  }
  trouble_ = renewed;
  if (renewed.code() == Code::kNotFound) return depose();
  ++counters_.request_errors;
  next_renewal_ns_ = asked_ns + options_.lease_ns / kTriesPerLease;
}

Status Agent::catch_up() {
  if (!joined_) return Status(Code::kBusy, "the lease of this opener has ended: " + trouble_.message());
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
  Result<std::vector<Change>> changes = watch_->poll(wait_ns);
  if (changes.status().code() == Code::kStale) {
    next_resync_ns_ = 0;
    may_have_forgotten_ = true;
    return true;
  }
  hears_ = changes.ok();
  if (!changes.ok()) {
    ++counters_.request_errors;
    trouble_ = changes.status();
    next_resync_ns_ = std::min(next_resync_ns_, clock_.monotonic_ns() + options_.lease_ns / kTriesPerLease);
    return false;
  }
  for (const Change& change : changes.value()) {
    apply(change.item, change.erased);
  }
  return !changes.value().empty();
}

// ---- regions ---------------------------------------------------------------------------------------------------

void Agent::recovered(const std::vector<RegionKey>& empty) {
  recovered_ = true;
  for (const RegionKey& region : empty) {
    if (!regions_.contains(region)) free_.insert(region);
  }
}

uint32_t Agent::under_way(uint16_t device) const {
  uint32_t count = 0;
  for (const auto& [region, taken] : taken_) count += region.device == device ? 1 : 0;
  for (const RegionKey& region : retiring_) {
    count += region.device == device && regions_.at(region).record.epoch == epoch_ ? 1 : 0;
  }
  return count;
}

bool Agent::take_regions() {
  bool worked = false;
  for (uint16_t device = 0; device < setup_.region_counts.size(); ++device) {
    const uint32_t wanted = store_.regions_wanted(device);
    const uint32_t coming = under_way(device);
    for (uint32_t i = coming; i < wanted && i - coming < kTakesPerTurn; ++i) {
      if (!take_one(device)) break;
      worked = true;
    }
  }
  return worked;
}

// An empty region, or else one that is emptied for it: not ours yet then.
bool Agent::take_one(uint16_t device) {
  // Openers begin at different places, or they would all want the same one.
  const uint32_t count = setup_.region_counts[device];
  const RegionKey from{device, static_cast<uint32_t>(epoch_ * 2654435761u % count)};
  auto found = free_.lower_bound(from);
  if (found == free_.end() || found->device != device) found = free_.lower_bound(RegionKey{device, 0});
  const bool is_free = found != free_.end() && found->device == device;
  const std::optional<RegionKey> region = is_free ? std::optional<RegionKey>(*found) : next_to_retire(device);
  if (!region) return false;
  const auto known = regions_.find(*region);
  const Generation recorded = known == regions_.end() ? Generation{} : known->second.record.generation;
  RegionRecord record;
  record.hold = is_free ? Hold::kOwned : Hold::kRetiring;
  const Generation spent = std::max(recorded, store_.header_generation(*region));
  record.generation = Generation{std::max(spent.value + 1, generation_floor())};
  record.epoch = epoch_;
  if (is_free) free_.erase(*region);
  const Outcome outcome = change_region(*region, record);
  // Whoever got ahead of us takes it out again, by a record that is still to be seen.
  if (is_free && outcome != Outcome::kApplied && !taken_.contains(*region)) free_.insert(*region);
  if (outcome != Outcome::kApplied) return false;
  is_free ? ++counters_.takes : ++counters_.retires;
  return true;
}

std::optional<RegionKey> Agent::next_to_retire(uint16_t device) {
  // What an opener took ahead of need and never used; what it did use is a victim like any other.
  for (const RegionKey& region : orphans_) {
    if (region.device == device && store_.holds_nothing(region)) return region;
  }
  return store_.victim(device);
}

// S2: no failover can take it back any more, and none has brought an opener back that had not let go (S4).
Result<bool> Agent::is_settled(const RegionKey& region, const Entry& entry, Revision retired) {
  ++counters_.requests;
  const std::string key = full(region_key(region));
  KVS_ASSIGN(const Snapshot record, setup_.engine->range(key));
  const auto same = std::find_if(record.items.begin(), record.items.end(),
                                 [&](const KeyValue& item) { return item.key == key && item.value == entry.value; });
  if (same == record.items.end()) {
    next_resync_ns_ = 0;
    return false;
  }
  if (retired == 0) return true;
  counters_.requests += 2;
  KVS_ASSIGN(const Snapshot live, setup_.engine->range(full("live/")));
  KVS_ASSIGN(const Snapshot read, setup_.engine->range(full("read/")));
  std::map<std::string, Revision> passed;
  for (const KeyValue& item : read.items) {
    passed[item.key.substr(full("read/").size())] = decode_number(item.value).value_or(0);
  }
  return std::all_of(live.items.begin(), live.items.end(),
                     [&](const KeyValue& item) { return passed[item.key.substr(full("live/").size())] >= retired; });
}

bool Agent::grant_settled() {
  const uint64_t forgets_ns = setup_.engine->forgets_ns();
  const uint64_t now_ns = clock_.monotonic_ns();
  bool worked = false;
  for (auto next = taken_.begin(); next != taken_.end();) {
    const RegionKey region = next->first;
    Taken& taken = next->second;
    ++next;
    const Entry entry = regions_.at(region);
    if (entry.record.epoch != epoch_) continue;
    if (forgets_ns != 0 && KVS_RULE(S2_a_take_settles)) {
      if (now_ns - taken.since_ns <= forgets_ns || now_ns < taken.next_look_ns) continue;
      taken.next_look_ns = now_ns + options_.lease_ns / kTriesPerLease;
      const Result<bool> settled = is_settled(region, entry, taken.retired);
      if (!settled.ok() || !settled.value()) continue;
    }
    taken_.erase(region);
    granted_.insert(region);
    store_.granted(region, Generation{entry.record.generation.value - 1});
    worked = true;
  }
  return worked;
}

bool Agent::report_sealed() {
  for (const RegionKey& region : store_.take_sealed()) to_seal_.push_back(region);
  for (const RegionKey& region : store_.take_released()) to_free_.push_back(region);
  for (const auto& conflict : store_.take_conflicts()) conflicts_.push_back(conflict);
  if (to_seal_.empty() && to_free_.empty() && conflicts_.empty()) return false;
  const auto change = [this](const RegionKey& region, Hold hold, Generation at_least) {
    const auto found = regions_.find(region);
    if (found == regions_.end() || !is_mine(region, found->second.record)) return true;  // lost meanwhile
    RegionRecord record = found->second.record;
    record.hold = hold;
    record.generation = std::max(record.generation, at_least);
    record.epoch = epoch_;
    return change_region(region, record) == Outcome::kApplied;
  };
  bool worked = false;
  // Each list is taken whole: a change that is applied takes its region out of the lists.
  for (const RegionKey& region : std::exchange(to_seal_, {})) {
    const bool done = change(region, Hold::kSealed, {});
    worked |= done;
    if (!done) to_seal_.push_back(region);
  }
  for (const RegionKey& region : std::exchange(to_free_, {})) {
    const bool done = change(region, Hold::kFree, {});
    worked |= done;
    if (!done) to_free_.push_back(region);
  }
  for (const auto& [region, generation] : std::exchange(conflicts_, {})) {
    const bool done = change(region, Hold::kSealed, generation);
    worked |= done;
    if (!done) conflicts_.emplace_back(region, generation);
  }
  return worked;
}

bool Agent::report_deletes() {
  const auto deletes = store_.take_deletes();
  if (deletes.empty()) return false;
  bool all = true;
  for (const auto& [region, dead] : deletes) {
    DeadSlots merged = dead;
    const auto known = dead_values_.find(region);
    std::optional<std::string> old;
    if (known != dead_values_.end()) {
      old = known->second;
      const auto decoded = decode_dead_slots(known->second);
      if (decoded && decoded->generation > dead.generation) continue;  // of an earlier life
      if (decoded && decoded->generation == dead.generation) {
        const uint32_t slots = std::max(decoded->slots.slot_count(), merged.slots.slot_count());
        format::DeadBitmap both(slots);
        for (uint32_t slot = 0; slot < slots; ++slot) {
          if (decoded->slots.test(SlotIndex{slot}) || dead.slots.test(SlotIndex{slot})) both.set(SlotIndex{slot});
        }
        merged.slots = std::move(both);
      }
    }
    const std::string value = encode(merged);
    if (old == value) continue;
    const auto outcome = txn({{std::string(kFormatKey), format_}, {live_key(epoch_), nonce_}, {dead_key(region), old}},
                             {{dead_key(region), value, kNoLease, false}});
    const bool applied = outcome.ok() && outcome.value().applied;
    if (applied) dead_values_[region] = value;
    all = all && applied;
  }
  store_.deletes_done(all);
  return all;
}

// S4: every opener that lives has seen that the region retires, and has no entry and no reader of it any more.
bool Agent::reuse_drained() {
  const std::vector<RegionKey> retiring(retiring_.begin(), retiring_.end());
  bool worked = false;
  for (const RegionKey& region : retiring) {
    const Entry entry = regions_.at(region);
    RegionRecord record = entry.record;
    if (record.epoch != epoch_) {
      // Begun by one that is not there any more: anew, with a revision that all have to pass again.
      const auto owner = openers_.find(record.epoch);
      if (owner != openers_.end() && owner->second.live) continue;
      record.epoch = epoch_;
      worked |= change_region(region, record) == Outcome::kApplied;
      continue;
    }
    if (!entry.witnessed && KVS_RULE(S4_who_lives_is_known_up_to_then)) continue;
    const bool passed = std::all_of(openers_.begin(), openers_.end(), [&](const auto& one) {
      return !one.second.live || one.second.read >= entry.modified;
    });
    if (!passed && KVS_RULE(S4_every_reader_has_let_go)) continue;
    record.hold = Hold::kOwned;
    worked |= change_region(region, record) == Outcome::kApplied;
  }
  return worked;
}

bool Agent::publish_read() {
  Revision held = UINT64_MAX;  // the first that we have not let go
  for (const RegionKey& region : retiring_) {
    const Entry& entry = regions_.at(region);
    if (!entry.witnessed || !store_.drained(region)) held = std::min(held, entry.modified);
  }
  // A revision says something only of the history that it was seen in: the transaction compares what was seen there.
  // Our own live key, from when we joined; or the last record that was let go, which a failover may have forgotten
  // since.
  Revision passed = joined_revision_ < held && store_.drained_all() ? joined_revision_ : 0;
  std::vector<Compare> compares = {{live_key(epoch_), nonce_}};
  for (const RegionKey& region : retiring_) {
    const Entry& entry = regions_.at(region);
    if (entry.modified >= held || entry.modified <= passed) continue;
    passed = entry.modified;
    compares.resize(1);
    compares.push_back({region_key(region), entry.value});
  }
  if (passed == 0 || openers_[epoch_].read >= passed) return false;
  const auto outcome = txn(std::move(compares), {{read_key(epoch_), std::to_string(passed), lease_, false}});
  if (!outcome.ok() && outcome.status().code() == Code::kNotFound) depose();
  if (!outcome.ok() || !outcome.value().applied) return false;
  openers_[epoch_].read = passed;
  return true;
}

// ---- the others ------------------------------------------------------------------------------------------------

void Agent::judge_openers() {
  next_judging_ns_ = clock_.monotonic_ns() + options_.lease_ns / kJudgingsPerLease;
  const uint64_t now_seconds = clock_.wall_seconds();
  std::set<uint64_t> owners;
  for (const auto& [region, entry] : regions_) {
    if (entry.record.hold == Hold::kOwned || entry.record.hold == Hold::kRetiring) owners.insert(entry.record.epoch);
  }
  orphans_.clear();
  // Of an owner that nobody knows it is only known since when: quarantined from now on (S5), or it would own for ever.
  for (const uint64_t epoch : owners) {
    const auto found = openers_.find(epoch);
    const bool known = found != openers_.end() && (found->second.known || found->second.live);
    if (known || epoch == epoch_ || former_.contains(epoch)) continue;
    Opener unknown;
    unknown.lost_seconds = std::max<uint64_t>(now_seconds, 1);
    (void)txn({{std::string(kFormatKey), format_}, {opener_key(epoch), std::nullopt}},
              {{opener_key(epoch), encode(unknown), kNoLease, false}});
  }
  std::vector<uint64_t> epochs;
  for (const auto& [epoch, entry] : openers_) epochs.push_back(epoch);
  for (const uint64_t epoch : epochs) {
    OpenerEntry& entry = openers_[epoch];
    if (entry.live || epoch == epoch_ || former_.contains(epoch) || !entry.known) continue;
    const uint64_t lost_seconds = entry.opener.lost_seconds;
    const bool waited = lost_seconds != 0 && now_seconds >= lost_seconds &&
                        now_seconds - lost_seconds >= options_.orphan_quarantine_ns / 1'000'000'000;
    // S5: a lease that ended proves nothing, the opener may only be slow.
    const bool gone =
        entry.opener.gone || setup_.is_gone(entry.opener) || waited || !KVS_RULE(S5_an_orphan_waits_for_proof);
    if (gone && !owners.contains(epoch)) {
      (void)txn({{opener_key(epoch), entry.value}}, {{opener_key(epoch), "", kNoLease, true}});
    } else if (gone) {
      const bool known = std::exchange(entry.gone, true);
      if (!known) tell_regions_of(epoch);
      for (const auto& [region, record] : regions_) {
        if (record.record.epoch == epoch && record.record.hold == Hold::kOwned) orphans_.insert(region);
      }
    } else if (!gone && lost_seconds == 0) {
      Opener lost = entry.opener;
      lost.lost_seconds = std::max<uint64_t>(now_seconds, 1);
      (void)txn({{opener_key(epoch), entry.value}}, {{opener_key(epoch), encode(lost), kNoLease, false}});
    }
  }
}

void Agent::exchange_hits() {
  next_hits_ns_ = clock_.monotonic_ns() + options_.hits_interval_ns;
  const std::vector<uint8_t> hits = store_.take_hits();
  if (hits.empty()) return;
  (void)txn({}, {{hits_key(epoch_), std::string(hits.begin(), hits.end()), lease_, false}});
}

// ---- leaving ---------------------------------------------------------------------------------------------------

Status Agent::leave(bool all_ended) {
  if (!joined_) return {};
  report_sealed();
  report_deletes();
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
