// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The life of a region's record: taken or retired, settled, granted, sealed, retired by everybody, reused; and whose it
// is when its opener is not there any more (S1, S2, S4, S5).

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "base/mutation.h"
#include "cluster/agent.h"

namespace kvstore::cluster {

namespace {

constexpr uint32_t kTakesPerTurn = 4;

}  // namespace

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
      if (!may_go_on()) return worked;
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
  // What was taken ahead of need and never used; what was used is a victim like any other.
  for (const RegionKey& region : orphans_) {
    if (region.device == device && store_.holds_nothing(region)) return region;
  }
  return store_.victim(device);
}

// S2: no failover can take it back any more, and none has brought an opener back that had not let go (S4).
Result<bool> Agent::is_settled(const RegionKey& region, const Entry& entry, Revision retired) {
  ++counters_.requests;
  const std::string key = full(region_key(region));
  KVS_ASSIGN(const Snapshot record, range(key));
  const auto same = std::find_if(record.items.begin(), record.items.end(),
                                 [&](const KeyValue& item) { return item.key == key && item.value == entry.value; });
  if (same == record.items.end()) {
    next_resync_ns_ = 0;
    return false;
  }
  if (retired == 0 || !KVS_RULE(S4_the_condition_is_looked_at_again)) return true;
  // Whose live key went away that lately may have it back by another failover, and not know that it was ever gone.
  const bool ended_lately = clock_.monotonic_ns() - last_end_ns_ <= setup_.engine->forgets_ns();
  if (ended_lately && KVS_RULE(S4_an_end_settles_too)) return false;
  counters_.requests += 2;
  KVS_ASSIGN(const Snapshot live, range(full("live/")));
  KVS_ASSIGN(const Snapshot read, range(full("read/")));
  std::map<std::string, Revision> passed;
  for (const KeyValue& item : read.items) {
    passed[item.key.substr(full("read/").size())] = decode_number(item.value).value_or(0);
  }
  std::set<std::string> living;
  for (const KeyValue& item : live.items) living.insert(item.key.substr(full("live/").size()));
  const bool all_passed =
      std::all_of(living.begin(), living.end(), [&](const std::string& epoch) { return passed[epoch] >= retired; });
  // Or it has ended, which is still to be heard of.
  const bool all_there = std::all_of(openers_.begin(), openers_.end(), [&](const auto& one) {
    return !one.second.live || living.contains(std::to_string(one.first));
  });
  return all_passed && all_there;
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
      if (worked && !may_go_on()) break;
      const Result<bool> settled = is_settled(region, entry, taken.retired);
      if (!settled.ok()) break;
      if (!settled.value()) continue;
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
  bool goes_on = true;
  const auto is_done = [&](const RegionKey& region, Hold hold, Generation at_least) {
    if (!goes_on) return false;
    const bool done = change(region, hold, at_least);
    worked |= done;
    goes_on = may_go_on();
    return done;
  };
  // Each list is taken whole: a change that is applied takes its region out of the lists.
  for (const RegionKey& region : std::exchange(to_seal_, {})) {
    if (!is_done(region, Hold::kSealed, {})) to_seal_.push_back(region);
  }
  for (const RegionKey& region : std::exchange(to_free_, {})) {
    if (!is_done(region, Hold::kFree, {})) to_free_.push_back(region);
  }
  for (const auto& [region, generation] : std::exchange(conflicts_, {})) {
    if (!is_done(region, Hold::kSealed, generation)) conflicts_.emplace_back(region, generation);
  }
  return worked;
}

bool Agent::report_deletes() {
  const auto deletes = store_.take_deletes();
  if (deletes.empty()) return false;
  bool worked = false;
  bool goes_on = true;
  std::vector<RegionKey> untold;
  for (const auto& [region, dead] : deletes) {
    if (!goes_on) {
      untold.push_back(region);
      continue;
    }
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
    if (!applied) untold.push_back(region);
    worked |= applied;
    goes_on = may_go_on();
  }
  store_.deletes_done(untold);
  return worked;
}

// S4: every opener that lives has seen that the region retires, and has no entry and no reader of it any more.
bool Agent::reuse_drained() {
  const std::vector<RegionKey> retiring(retiring_.begin(), retiring_.end());
  bool worked = false;
  bool goes_on = true;
  for (const RegionKey& region : retiring) {
    if (!goes_on) break;
    const Entry entry = regions_.at(region);
    RegionRecord record = entry.record;
    if (record.epoch != epoch_) {
      // Begun by one that is not there any more: anew, with a revision that all have to pass again.
      const auto owner = openers_.find(record.epoch);
      if (owner != openers_.end() && owner->second.live) continue;
      record.epoch = epoch_;
      worked |= change_region(region, record) == Outcome::kApplied;
      goes_on = may_go_on();
      continue;
    }
    if (!entry.witnessed && KVS_RULE(S4_who_lives_is_known_up_to_then)) continue;
    const bool passed = std::all_of(openers_.begin(), openers_.end(), [&](const auto& one) {
      return !one.second.live || one.second.read >= entry.modified;
    });
    if (!passed && KVS_RULE(S4_every_reader_has_let_go)) continue;
    record.hold = Hold::kOwned;
    worked |= change_region(region, record) == Outcome::kApplied;
    goes_on = may_go_on();
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
  // After a failover what was retired may have been reused without us; who did it sees that, and waits for us.
  const bool tells_all = tells_all_read_ && held == UINT64_MAX && store_.drained_all();
  for (const auto& [region, entry] : regions_) {
    if (!tells_all) break;
    if (!entry.witnessed || entry.modified <= passed) continue;
    passed = entry.modified;
    compares.resize(1);
    compares.push_back({region_key(region), entry.value});
  }
  if (passed == 0 || openers_[epoch_].read >= passed) {
    tells_all_read_ &= !tells_all;
    return false;
  }
  const auto outcome = txn(std::move(compares), {{read_key(epoch_), std::to_string(passed), lease_, false}});
  if (!outcome.ok() && outcome.status().code() == Code::kNotFound) depose();
  if (!outcome.ok() || !outcome.value().applied) return false;
  openers_[epoch_].read = passed;
  if (tells_all) tells_all_read_ = false;
  return true;
}

// ---- the others ------------------------------------------------------------------------------------------------

void Agent::judge_openers() {
  next_judging_ns_ = clock_.monotonic_ns() + options_.lease_ns / kJudgingsPerLease;
  bool goes_on = true;
  const auto change = [&](std::vector<Compare> compares, Operation operation) {
    if (!goes_on) return;
    (void)txn(std::move(compares), {std::move(operation)});
    goes_on = may_go_on();
    if (!goes_on) next_judging_ns_ = clock_.monotonic_ns() + options_.lease_ns / kTriesPerLease;
  };
  const uint64_t now_seconds = clock_.wall_seconds();
  std::set<uint64_t> owners;
  std::map<uint64_t, RegionKey> writers;  // one region of each
  for (const auto& [region, entry] : regions_) {
    if (entry.record.hold == Hold::kOwned || entry.record.hold == Hold::kRetiring) owners.insert(entry.record.epoch);
    if (entry.record.hold == Hold::kOwned) writers.emplace(entry.record.epoch, region);
  }
  orphans_.clear();
  // Sealed, says the engine, and nothing is there: its headers could not be written. No victim to the store, nor free.
  std::set<uint16_t> with_free;  // devices that have no need of them
  for (const RegionKey& region : free_) with_free.insert(region.device);
  for (const auto& [region, entry] : regions_) {
    if (with_free.contains(region.device)) continue;
    if (entry.record.hold == Hold::kSealed && store_.holds_nothing(region)) orphans_.insert(region);
  }
  // Of an owner that nobody knows it is only known since when: quarantined from now on (S5), or it would own for ever.
  // Not of who only retired something: nobody writes there, and who left in peace has no record.
  for (const auto& [epoch, region] : writers) {
    const auto found = openers_.find(epoch);
    const bool known = found != openers_.end() && (found->second.known || found->second.live);
    if (known || epoch == epoch_ || former_.contains(epoch)) continue;
    Opener unknown;
    unknown.lost_seconds = std::max<uint64_t>(now_seconds, 1);
    change({{std::string(kFormatKey), format_},
            {opener_key(epoch), std::nullopt},
            {region_key(region), regions_.at(region).value}},
           {opener_key(epoch), encode(unknown), kNoLease, false});
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
    Opener nobody = entry.opener;
    nobody.lost_seconds = 0;
    const bool unknown = nobody == Opener{};  // of whom there is no proof to wait for, only its regions to keep
    if ((gone || unknown) && !owners.contains(epoch)) {
      change({{opener_key(epoch), entry.value}}, {opener_key(epoch), "", kNoLease, true});
    } else if (gone) {
      const bool known = std::exchange(entry.gone, true);
      if (!known) tell_regions_of(epoch);
      for (const auto& [region, record] : regions_) {
        if (record.record.epoch == epoch && record.record.hold == Hold::kOwned) orphans_.insert(region);
      }
    } else if (!gone && lost_seconds == 0) {
      Opener lost = entry.opener;
      lost.lost_seconds = std::max<uint64_t>(now_seconds, 1);
      change({{opener_key(epoch), entry.value}}, {opener_key(epoch), encode(lost), kNoLease, false});
    }
  }
}

void Agent::exchange_hits() {
  next_hits_ns_ = clock_.monotonic_ns() + options_.hits_interval_ns;
  const std::vector<uint8_t> hits = store_.take_hits();
  if (hits.empty()) return;
  (void)txn({{live_key(epoch_), nonce_}}, {{hits_key(epoch_), std::string(hits.begin(), hits.end()), lease_, false}});
}

}  // namespace kvstore::cluster
