// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What an agent knows of the engine's state: read whole, then followed change by change; and what it tells the store of
// it. A change is applied once, and never undone by an older one.

#include <algorithm>
#include <utility>

#include "base/mutation.h"
#include "cluster/agent.h"

namespace kvstore::cluster {

namespace {

constexpr uint64_t kLeasesPerResync = 6;  // a change that a watch lost would else be missed for ever

}  // namespace

// ---- the engine's state, as last seen --------------------------------------------------------------------------

Result<Snapshot> Agent::range(const std::string& prefix) {
  const uint64_t asked_ns = clock_.monotonic_ns();
  Result<Snapshot> snapshot = setup_.engine->range(prefix);
  note(Request::kRange, asked_ns, snapshot.status());
  // Asked for until it is answered, or nobody would know that it works again.
  if (!snapshot.ok()) next_resync_ns_ = std::min(next_resync_ns_, asked_ns + options_.lease_ns / kTriesPerLease);
  return snapshot;
}

// The state, and a watch for every change after it. Read again once the watch is there: a failover between the two
// would be noticed by nobody.
Result<Snapshot> Agent::range_and_watch() {
  counters_.requests += 3;
  watch_.reset();
  KVS_ASSIGN(const Snapshot before, range(setup_.prefix));
  const uint64_t asked_ns = clock_.monotonic_ns();
  Result<std::unique_ptr<Watch>> watch = setup_.engine->watch(setup_.prefix, before.revision);
  note(Request::kWatch, asked_ns, watch.status());
  KVS_ASSIGN(watch_, std::move(watch));
  Result<Snapshot> snapshot = range(setup_.prefix);
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
    watch_.reset();  // of a state that was not taken over: it has a gap before it
    note_break();
    next_resync_ns_ = clock_.monotonic_ns() + options_.lease_ns / kTriesPerLease;  // counted from its end
    return trouble_;
  }
  const std::vector<KeyValue>& items = snapshot.value().items;
  const auto find = [&items](const std::string& key) -> const KeyValue* {
    const auto found =
        std::lower_bound(items.begin(), items.end(), key,
                         [](const KeyValue& item, const std::string& wanted) { return item.key < wanted; });
    return found != items.end() && found->key == key ? &*found : nullptr;
  };
  const KeyValue* const format = find(full(kFormatKey));
  wiped_ = format == nullptr || !is_valid_format(format->value);
  // Of a state that is not there nothing is to be learnt: what is known is kept until it was rebuilt (S7).
  was_wiped_ |= wiped_ && epoch_ != 0;
  if (wiped_) {
    note_void(items, format);
    return {};
  }
  if (may_have_forgotten_) last_end_ns_ = clock_.monotonic_ns();
  tells_all_read_ |= may_have_forgotten_;
  std::map<uint64_t, OpenerEntry> openers_before = std::exchange(openers_, {});
  dead_values_.clear();
  epoch_known_ = false;
  for (const auto& [epoch, entry] : openers_before) {
    if (entry.gone) openers_[epoch].gone = true;
  }
  // What is absent now was erased, and what is there is as it is, whatever its revision: after a failover they restart.
  std::vector<RegionKey> absent;
  for (auto& [region, entry] : regions_) {
    const KeyValue* const now = find(full(region_key(region)));
    if (now == nullptr) absent.push_back(region);
    // As what it retired (S4) it goes on counting when its successor is seen here first.
    const bool counts = now != nullptr && KVS_RULE(S4_also_for_a_reuse_that_is_seen_late);
    entry.modified = counts ? std::min(entry.modified, now->modified) : 0;
  }
  for (const RegionKey& region : absent) {
    apply_region(region, {full(region_key(region)), "", snapshot.value().revision, kNoLease}, true, true);
  }
  std::erase_if(hits_told_, [&](const auto& told) { return find(full(hits_key(told.first))) == nullptr; });
  for (const KeyValue& item : items) apply(item, false);
  std::erase_if(openers_, [](const auto& one) { return !one.second.known && !one.second.live; });
  for (const auto& [epoch, entry] : openers_before) {
    const auto found = openers_.find(epoch);
    if (!entry.live || (found != openers_.end() && found->second.live)) continue;
    last_end_ns_ = clock_.monotonic_ns();
    tell_regions_of(epoch);
  }
  store_.openers_changed(live_openers());
  next_resync_ns_ = clock_.monotonic_ns() + kLeasesPerResync * options_.lease_ns;
  // Forgotten by a failover, or ended without our knowing.
  if (joined_ && (!openers_.contains(epoch_) || !openers_[epoch_].live)) depose();
  return {};
}

// What a rebuild has to compare and to erase.
void Agent::note_void(const std::vector<KeyValue>& items, const KeyValue* format) {
  void_format_ = format == nullptr ? std::string() : format->value;
  void_keys_.clear();
  for (const KeyValue& item : items) {
    const std::string_view key = std::string_view(item.key).substr(setup_.prefix.size());
    if (parse_region_key(key, "r/") || parse_region_key(key, "dead/") || parse_epoch_key(key, "opener/")) {
      void_keys_.emplace_back(key);
    }
  }
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
    // Once: what was read long ago is not read again with every resync.
    if (erased) hits_told_.erase(*hits);
    if (erased || *hits == epoch_ || std::exchange(hits_told_[*hits], item.modified) == item.modified) return;
    store_.regions_read_by_others({bytes, item.value.size()});
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
  if (!live) last_end_ns_ = clock_.monotonic_ns();
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

// What happened from here on until the next resync is not heard of, nor whether it was forgotten.
void Agent::note_break() { may_have_forgotten_ |= setup_.engine->forgets_ns() != 0; }

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

}  // namespace kvstore::cluster
