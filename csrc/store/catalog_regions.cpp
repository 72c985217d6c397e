// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The life of a region as the catalog sees it:
//
//   free -> (opening) -> open -> sealed -> retiring -> free        first emptied, last reused (I7)
//                          \-> quarantined: a header or payload write of unknown outcome
//
// The keeper of the device drives the transitions and does the I/O that each needs; see keeper.h.

#include <algorithm>

#include "base/assert.h"
#include "base/mutation.h"
#include "store/catalog.h"
#include "store/superblock_io.h"

namespace kvstore::store {

namespace {

// A rare size shares the region of a larger class if it wastes at most an eighth of each extent.
constexpr uint64_t kSharingWasteDivisor = 8;

}  // namespace

// ---- places for puts -------------------------------------------------------------------------------------------

uint32_t Catalog::serving_locked(const DeviceState& state) const {
  return static_cast<uint32_t>(std::count_if(state.open.begin(), state.open.end(),
                                             [&](uint32_t number) { return !regions_[number].open->seal_wanted; }));
}

// The open region for an extent of this size: of equal size, or one that wastes at most an eighth; when no further one
// may be opened any larger one, since sealing a region half full to open another would waste far more than an extent.
Region* Catalog::open_region_for_locked(const DeviceState& state, uint64_t extent_bytes) {
  const bool any_waste = serving_locked(state) >= state.open_max;
  Region* best = nullptr;
  for (uint32_t number : state.open) {
    Region& region = regions_[number];
    const bool room = region.state == RegionState::kOpen && !region.open->seal_wanted &&
                      region.open->slots_given < region.slot_count && region.extent_bytes >= extent_bytes;
    if (!room) continue;
    const bool little_waste = region.extent_bytes - extent_bytes <= region.extent_bytes / kSharingWasteDivisor;
    if ((little_waste || any_waste) && (best == nullptr || region.extent_bytes < best->extent_bytes)) best = &region;
  }
  return best;
}

bool Catalog::is_victim_locked(const Region& region, uint64_t now_ns) const {
  const bool filled = region.state == RegionState::kSealed || region.state == RegionState::kQuarantined;
  const bool held = region.pins != 0 && KVS_RULE(I3_a_region_with_readers_is_no_victim);
  const bool unknown = region.unknown_writes != 0 || region.quarantined_until_ns > now_ns;
  if (region.writer != Writer::kNobody || region.open) return false;
  return filled && !region.opening && !held && !(unknown && KVS_RULE(I7_quarantined_is_no_victim));
}

bool Catalog::reclaim_possible_locked(uint16_t device) const {
  const DeviceState& state = device_states_[device];
  if (!state.free.empty() || state.reclaiming) return true;
  const uint32_t first = first_region_[device];
  const uint64_t now_ns = clock_.monotonic_ns();
  for (uint32_t number = first; number < first + devices_[device].geometry.region_count; ++number) {
    const Region& region = regions_[number];
    if (region.opening || region.state == RegionState::kRetiring || is_victim_locked(region, now_ns)) return true;
    // Shared mode: nobody's, or about to be ours.
    if (region.state == RegionState::kFree && region.writer != Writer::kAnother) return true;
    // A victim soon.
    if (region.state == RegionState::kOpen && region.open->seal_wanted && region.unknown_writes == 0) return true;
  }
  return false;
}

Allocation Catalog::allocate(Item& item, uint16_t device) {
  const uint64_t extent_bytes = format::extent_bytes_needed(item.payload_bytes, item.page_hashes);
  bool wake = false;
  Allocation outcome = Allocation::kWait;
  {
    std::lock_guard lock(mutex_);
    DeviceState& state = device_states_[device];
    if (!write_refusal_.ok() || !suspension_.ok()) return Allocation::kRefused;
    // Not confirmed lately: the keeper reads the claim back, calls confirmed(), and puts go on.
    const bool stale = !claim_is_fresh_locked(state);
    Region* const best = open_region_for_locked(state, extent_bytes);
    if (best != nullptr && !stale) {
      OpenRegion& open = *best->open;
      const auto space = open.dictionary.add(format::DictionaryKind::kSpace, spaces_.find(item.space)->json);
      const auto salt = item.salt.empty() ? std::optional<uint16_t>(format::kNoSalt)
                                          : open.dictionary.add(format::DictionaryKind::kSalt, item.salt);
      if (space && salt) {
        item.space_index = *space;
        item.salt_index = *salt;
        item.place = {device,           static_cast<uint32_t>(best - regions_.data()),
                      best->id,         SlotIndex{open.slots_given},
                      best->generation, 0};
        KVS_ASSERT(open.slots_given < best->slot_count);
        item.place.offset_bytes =
            devices_[device].geometry.extent_offset(best->id, best->extent_bytes, item.place.slot);
        ++open.writes_in_flight;
        open.last_put_tick = tick();
        open.slots_given += KVS_RULE(I7_a_slot_is_given_once) ? 1 : 0;
        if (open.slots_given == best->slot_count) open.seal_wanted = true;
        return Allocation::kGranted;
      }
      open.seal_wanted = true;  // the dictionary is full
      wake = true;
    }
    if (!stale && std::find(state.wanted.begin(), state.wanted.end(), extent_bytes) == state.wanted.end()) {
      state.wanted.push_back(extent_bytes);
      wake = true;
    }
    wake = wake || stale;
    if (!stale && best == nullptr && !reclaim_possible_locked(device)) {
      // Open regions of other sizes can still be sealed, when their writes have ended, and reclaimed.
      const bool sealable = std::any_of(state.open.begin(), state.open.end(), [&](uint32_t number) {
        return regions_[number].pins == 0 && regions_[number].unknown_writes == 0;
      });
      if (!sealable) {
        std::erase(state.wanted, extent_bytes);
        outcome = Allocation::kBusy;
      }
    }
  }
  if (wake) wake_keeper(device);
  return outcome;
}

// ---- opening ---------------------------------------------------------------------------------------------------

bool Catalog::wants_region(uint16_t device) {
  std::lock_guard lock(mutex_);
  return !device_states_[device].wanted.empty();
}

std::optional<OpenPlan> Catalog::next_open(uint16_t device) {
  std::lock_guard lock(mutex_);
  DeviceState& state = device_states_[device];
  if (!write_refusal_.ok()) return std::nullopt;
  while (!state.wanted.empty()) {
    const uint64_t extent_bytes = state.wanted.front();
    const bool served = open_region_for_locked(state, extent_bytes) != nullptr;
    if (served) {
      state.wanted.erase(state.wanted.begin());
      continue;
    }
    // Full regions that wait for their last commit to be sealed must not pile up, nor hold up who waits for space.
    if (state.open.size() >= state.open_max) state.commit_wanted = true;
    const uint32_t serving = serving_locked(state);
    if (serving >= state.open_max || state.free.empty()) {
      // The least recently used open region makes room: by its place among the open ones, or by becoming a victim.
      Region* oldest = nullptr;
      for (uint32_t number : state.open) {
        Region& region = regions_[number];
        if (region.open->seal_wanted) continue;
        if (oldest == nullptr || region.open->last_put_tick < oldest->open->last_put_tick) oldest = &region;
      }
      const uint64_t now_ns = clock_.monotonic_ns();
      const bool others_can_go =
          state.reclaiming || std::any_of(regions_.begin(), regions_.end(), [&](const Region& region) {
            const bool goes = is_victim_locked(region, now_ns) || region.state == RegionState::kRetiring;
            return region.device == device && goes;
          });
      if (oldest != nullptr && (serving >= state.open_max || !others_can_go)) {
        oldest->open->seal_wanted = true;
      }
      if (state.free.empty()) return std::nullopt;
      if (serving > state.open_max) return std::nullopt;
    }
    OpenPlan plan;
    plan.region = state.free.front();
    state.free.pop_front();
    // I3, I7: only an empty, unpinned region is given a new life.
    KVS_ASSERT(regions_[plan.region].pins == 0 && regions_[plan.region].live == 0);
    KVS_ASSERT(regions_[plan.region].state == RegionState::kFree && !regions_[plan.region].open);
    KVS_ASSERT(!shared() || regions_[plan.region].writer == Writer::kThisOpener);  // S1
    state.wanted.erase(state.wanted.begin());
    Region& region = regions_[plan.region];
    region.opening = true;
    plan.extent_bytes = extent_bytes;
    plan.slot_count = static_cast<uint32_t>(std::min<uint64_t>(devices_[device].geometry.region_bytes / extent_bytes,
                                                               devices_[device].geometry.slots_max()));
    plan.generation = Generation{region.generation.value + (KVS_RULE(I2_generation_plus_one) ? 1 : 0)};
    return plan;
  }
  return std::nullopt;
}

void Catalog::open_done(const OpenPlan& plan, const Status& status) {
  Region& region = regions_[plan.region];
  {
    std::lock_guard lock(mutex_);
    region.opening = false;
    // Even when a header write failed it may have landed: the generation is spent (I2).
    if (status.ok() || KVS_RULE(I2_a_failed_open_spends_its_generation)) region.generation = plan.generation;
    if (shared() && region.writer != Writer::kThisOpener) {
      // S1: lost on the way, another's by now or nobody's. A header of ours may have landed, and is of an earlier life
      // than theirs.
      region.state = RegionState::kFree;
    } else if (status.ok()) {
      region.state = RegionState::kOpen;
      region.unsealed_on_device = false;
      region.extent_bytes = plan.extent_bytes;
      region.slot_count = plan.slot_count;
      region.live = 0;
      region.dead = {};
      region.bitmap_dirty = false;
      region.bitmap_sequence = 0;
      region.bitmap_copy = 0;
      region.last_use_tick = tick();
      region.open = std::make_unique<OpenRegion>(devices_[region.device].geometry.dictionary_blocks);
      region.open->last_put_tick = region.last_use_tick;
      device_states_[region.device].open.push_back(plan.region);
    } else if (shared() && status.code() == Code::kStale) {
      // S1: the device knows more than the engine. What lives there is the others' to read, and theirs to reclaim.
      region.generation = Generation{plan.generation.value - 1};
      region.writer = Writer::kNobody;
      conflicts_.emplace_back(plan.region, region.generation);
    } else {
      region.state = RegionState::kQuarantined;
      region.quarantined_until_ns = clock_.monotonic_ns() + options_.quarantine_ns;
      if (shared()) spent_.push_back(plan.region);
      note_failure_locked(status);
    }
  }
  if (status.ok() && region.open) add(counters_.region_opens);
  space_changed(region.device);
}

// ---- committing ------------------------------------------------------------------------------------------------

bool Catalog::commit_is_due(uint16_t device) {
  std::lock_guard lock(mutex_);
  const DeviceState& state = device_states_[device];
  return state.commit_wanted || state.pending >= format::kDescriptorsPerBlock;
}

uint64_t Catalog::oldest_pending_ns(uint16_t device) {
  std::lock_guard lock(mutex_);
  return device_states_[device].first_pending_ns;
}

std::vector<CommitWork> Catalog::take_commits(uint16_t device) {
  std::vector<CommitWork> work;
  std::lock_guard lock(mutex_);
  DeviceState& state = device_states_[device];
  state.commit_wanted = false;
  state.first_pending_ns = UINT64_MAX;
  state.pending = 0;
  for (uint32_t number : state.open) {
    Region& region = regions_[number];
    OpenRegion& open = *region.open;
    if (open.poisoned || open.pending.empty()) continue;
    CommitWork& one = work.emplace_back(std::exchange(open.pending, {}));
    one.region = number;
    if (open.dictionary.has_staged()) {
      format::BlockHeader identity;
      identity.store_uuid = devices_[device].store_uuid;
      identity.region = region.id.value;
      identity.generation = region.generation.value;
      identity.owner_epoch = epoch();
      for (auto& block : open.dictionary.take_blocks(identity)) one.dictionary.push_back(std::move(block));
    }
  }
  return work;
}

void Catalog::commit_done(CommitWork work, const Status& status, bool flush_failed) {
  Completions completions;
  std::vector<Eviction> evictions;
  {
    std::lock_guard lock(mutex_);
    Region& region = regions_[work.region];
    if (status.ok()) {
      for (const PendingDescriptor& pending : work.descriptors) {
        IndexEntry* entry = index_.find(pending.fingerprint);
        if (entry != nullptr && entry->region == work.region && entry->slot == pending.descriptor.slot) {
          entry->flags &= static_cast<uint8_t>(~kEntryUncommitted);
        }
      }
      for (DurableWaiter& waiter : work.waiters) completions.push_back({std::move(waiter), {}});
    } else {
      note_failure_locked(status);
      lose_pending_locked(work.region, std::move(work.descriptors), std::move(work.waiters), status, completions,
                          evictions);
      poison_locked(work.region, status, completions, evictions);
      if (flush_failed && KVS_RULE(I6_a_failed_flush_seals_all)) {
        // I6: a failed flush says nothing about which writes it dropped: every region written since the last good
        // one is suspect, and on this device those are the open ones.
        for (uint32_t number : device_states_[region.device].open) {
          poison_locked(number, status, completions, evictions);
        }
      }
    }
  }
  settle(std::move(completions), std::move(evictions));
}

void Catalog::lose_pending_locked(uint32_t number, std::vector<PendingDescriptor> lost,
                                  std::vector<DurableWaiter> waiters, const Status& why, Completions& completions,
                                  std::vector<Eviction>& evictions) {
  for (const PendingDescriptor& pending : lost) {
    IndexEntry* entry = index_.find(pending.fingerprint);
    if (entry == nullptr || entry->region != number || entry->slot != pending.descriptor.slot) continue;
    // Dead for good: the descriptor may have landed all the same, and must not come back after a copy put since was
    // deleted.
    const Forget why_gone = KVS_RULE(I6_lost_blocks_are_dead) ? Forget::kBad : Forget::kEvicted;
    if (KVS_RULE(I6_lost_blocks_are_misses)) forget_entry_locked(entry, why_gone);
    if (shared()) (void)revive_superseded_locked(pending.fingerprint);  // what another opener put stays a hit
    lost_ += KVS_RULE(I6_lost_blocks_are_counted) ? 1 : 0;
    add(counters_.blocks_lost);
    if (!KVS_RULE(I6_listeners_are_told)) continue;
    evictions.push_back(eviction_of(pending.descriptor, pending.space, pending.salt, EvictionReason::kLost));
  }
  for (DurableWaiter& waiter : waiters) {
    // Busy: shared mode, the lease ran out in the middle of the commit. Nothing is wrong with the device.
    const Code code = why.code() == Code::kBusy ? Code::kBusy : Code::kIo;
    if (KVS_RULE(I6_durable_puts_that_wait_fail)) waiter.result = {.status = ItemStatus::kError, .code = code};
    completions.push_back({std::move(waiter), why.message()});
  }
}

void Catalog::poison_locked(uint32_t number, const Status& why, Completions& completions,
                            std::vector<Eviction>& evictions) {
  OpenRegion& open = *regions_[number].open;
  open.poisoned = KVS_RULE(I6_what_is_being_written_is_lost_too);
  open.seal_wanted = KVS_RULE(I6_a_failed_commit_seals);
  CommitWork pending = std::exchange(open.pending, {});
  lose_pending_locked(number, std::move(pending.descriptors), std::move(pending.waiters), why, completions, evictions);
}

Eviction Catalog::eviction_of(const format::Descriptor& descriptor, SpaceId space, const std::string& salt,
                              EvictionReason reason) const {
  Eviction eviction;
  eviction.space = spaces_.find(space)->json;
  eviction.salt = salt;
  const format::StoredKey key = stored_key_of(descriptor);
  eviction.key = key.view();
  eviction.key_is_digest = key.is_digest;
  eviction.payload_bytes = descriptor.payload_bytes;
  eviction.reason = reason;
  return eviction;
}

// ---- sealing ---------------------------------------------------------------------------------------------------

std::optional<uint32_t> Catalog::next_seal(uint16_t device) {
  std::lock_guard lock(mutex_);
  if (!refusal_.ok()) return std::nullopt;  // offline: its headers may be another owner's by now
  for (uint32_t number : device_states_[device].open) {
    const OpenRegion& open = *regions_[number].open;
    // I7: metadata of a region with a write of unknown outcome is left alone.
    if (regions_[number].unknown_writes != 0 && KVS_RULE(I7_no_header_while_unknown)) continue;
    const bool being_written = open.writes_in_flight != 0 && KVS_RULE(I3_an_unfinished_put_keeps_its_region);
    if (open.seal_wanted && !being_written && open.pending.empty()) return number;
  }
  return std::nullopt;
}

void Catalog::seal_done(uint32_t number, const Status& status) {
  uint16_t device = 0;
  {
    std::lock_guard lock(mutex_);
    Region& region = regions_[number];
    device = region.device;
    KVS_ASSERT(region.open->writes_in_flight == 0 && region.open->pending.empty());
    region.state = RegionState::kSealed;
    region.descriptor_count = region.open->committed();
    region.dictionary_count = region.open->dictionary.blocks_used();
    if (region.writer == Writer::kThisOpener) {
      (status.ok() ? sealed_ : unsealed_).push_back(number);
      region.writer = Writer::kNobody;
    }
    if (!status.ok()) {
      // Readable, and recovery would find it open and seal it; but not to be reclaimed while its header is unknown.
      // Its last descriptors are in the tail pair, if nowhere else.
      region.unsealed_on_device = true;
      region.descriptor_count = region.slot_count;
      region.quarantined_until_ns = clock_.monotonic_ns() + options_.quarantine_ns;
      note_failure_locked(status);
    }
    std::erase(device_states_[device].open, number);
    region.open.reset();
  }
  add(counters_.region_seals);
  space_changed(device);
}

void Catalog::seal_all(uint16_t device) {
  std::lock_guard lock(mutex_);
  for (uint32_t number : device_states_[device].open) regions_[number].open->seal_wanted = true;
}

void Catalog::write_outcome_unknown(uint32_t number) {
  std::lock_guard lock(mutex_);
  Region& region = regions_[number];
  ++region.unknown_writes;
  region.quarantined_until_ns = UINT64_MAX;
  if (region.open && KVS_RULE(I7_unknown_outcome_seals)) region.open->seal_wanted = true;
}

void Catalog::write_outcome_known(uint32_t number) {
  std::lock_guard lock(mutex_);
  Region& region = regions_[number];
  const uint64_t quarantine_ns = KVS_RULE(I7_quarantine_outlasts_the_outcome) ? options_.quarantine_ns : 0;
  if (--region.unknown_writes == 0) region.quarantined_until_ns = clock_.monotonic_ns() + quarantine_ns;
}

// ---- reclaiming ------------------------------------------------------------------------------------------------

std::optional<uint32_t> Catalog::next_victim(uint16_t device) {
  DeviceState& state = device_states_[device];
  {
    std::lock_guard lock(mutex_);
    state.reclaiming = false;
    if (!write_refusal_.ok() || shared()) return std::nullopt;  // shared: the agent retires, when the engine agreed
    const uint32_t region_count = devices_[device].geometry.region_count;
    const size_t target = std::min<size_t>(options_.free_regions_target, std::max<uint32_t>(region_count / 8, 1));
    if (state.free.size() >= target && !index_.nearly_full()) return std::nullopt;
  }
  const std::optional<uint32_t> victim = propose_victim(device);
  if (!victim) return std::nullopt;
  std::lock_guard lock(mutex_);
  // Pinned since it was proposed: another one the next time.
  if (!is_victim_locked(regions_[*victim], clock_.monotonic_ns())) return std::nullopt;
  regions_[*victim].state = RegionState::kRetiring;
  state.reclaiming = true;
  return victim;
}

std::optional<uint32_t> Catalog::propose_victim(uint16_t device) {
  {
    std::lock_guard lock(mutex_);
    if (const auto victim = pop_victim_locked(device_states_[device])) return victim;
  }
  find_victims(device);
  std::lock_guard lock(mutex_);
  return pop_victim_locked(device_states_[device]);
}

// The best of the candidates that are what they were when they were found.
std::optional<uint32_t> Catalog::pop_victim_locked(DeviceState& state) {
  const uint64_t now_ns = clock_.monotonic_ns();
  while (!state.victims.empty()) {
    const Victim candidate = state.victims.back();
    state.victims.pop_back();
    const Region& region = regions_[candidate.region];
    const bool used_since = region.live != 0 && region.last_use_tick != candidate.last_use_tick;
    if (used_since || !is_victim_locked(region, now_ns)) continue;
    return candidate.region;
  }
  return std::nullopt;
}

// Walks the region table, which at 100,000 regions takes milliseconds: many victims are found at once, and the mutex
// is given up on the way, or every get would now and then wait for it.
void Catalog::find_victims(uint16_t device) {
  constexpr uint32_t kRegionsAtOnce = 2048;
  constexpr uint32_t kVictimsMax = 64;
  constexpr uint32_t kRegionsPerVictim = 64;
  const uint32_t region_count = devices_[device].geometry.region_count;
  const uint32_t first = first_region_[device];
  // Of a small pool one at a time, so that the choice is exact; among thousands the oldest 64 are as good as each
  // other.
  const size_t wanted = std::clamp(region_count / kRegionsPerVictim, 1u, kVictimsMax);
  // One without a live block costs nobody a hit, however young it is.
  const auto better = [](const Victim& a, const Victim& b) {
    return a.empty != b.empty ? a.empty : a.last_use_tick < b.last_use_tick;
  };
  std::vector<Victim> best;  // a heap, the worst on top
  for (uint32_t begin = first; begin < first + region_count; begin += kRegionsAtOnce) {
    std::lock_guard lock(mutex_);
    const uint64_t now_ns = clock_.monotonic_ns();
    const uint32_t end = std::min(begin + kRegionsAtOnce, first + region_count);
    for (uint32_t number = begin; number < end; ++number) {
      const Region& region = regions_[number];
      if (!is_victim_locked(region, now_ns)) continue;
      const Victim candidate{number, region.live == 0, region.last_use_tick};
      if (best.size() == wanted && !better(candidate, best.front())) continue;
      best.push_back(candidate);
      std::push_heap(best.begin(), best.end(), better);
      if (best.size() <= wanted) continue;
      std::pop_heap(best.begin(), best.end(), better);
      best.pop_back();
    }
  }
  std::sort(best.begin(), best.end(), [&](const Victim& a, const Victim& b) { return better(b, a); });
  std::lock_guard lock(mutex_);
  device_states_[device].victims = std::move(best);
}

std::vector<bool> Catalog::evict(uint32_t number, std::span<const EvictedBlock> blocks) {
  std::vector<bool> was_live(blocks.size());
  std::lock_guard lock(mutex_);
  uint64_t count = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    IndexEntry* entry = index_.find(blocks[i].fingerprint);
    if (entry == nullptr || entry->region != number || entry->slot != blocks[i].slot.value) continue;
    forget_entry_locked(entry, Forget::kEvicted);
    // Shared: another copy is another opener's, who may have promised to keep it; of those that are deleted the bit is
    // set.
    if (shared() && revive_superseded_locked(blocks[i].fingerprint)) continue;
    // Evicted is a miss, also after the next open.
    if (!shared() && KVS_RULE(I12_older_copies_are_evicted_too)) delete_other_copies_locked(blocks[i].fingerprint);
    was_live[i] = true;
    ++count;
  }
  add(counters_.blocks_evicted, count);
  return was_live;
}

bool Catalog::has_entries(uint32_t number) {
  std::lock_guard lock(mutex_);
  return regions_[number].live != 0;
}

// The mutex is given up between the shards, or every get would wait for a walk over the whole index.
void Catalog::walk_evict(uint32_t number, const std::function<bool(const IndexEntry&)>& goes) {
  for (uint32_t shard = 0; shard < Index::kShards; ++shard) {
    std::lock_guard lock(mutex_);
    if (regions_[number].live == 0) return;
    const uint64_t removed = index_.erase_region(shard, number, [&](const IndexEntry& entry) {
      if (!goes(entry)) return false;
      live_bytes_ -= entry.payload_bytes;
      return true;
    });
    regions_[number].live -= static_cast<uint32_t>(removed);
    add(counters_.blocks_evicted, removed);
  }
}

void Catalog::evict_dead_by_walking(uint32_t number) {
  const format::DeadBitmap& dead = regions_[number].dead;
  walk_evict(number, [&](const IndexEntry& entry) { return dead.test(SlotIndex{entry.slot}); });
  evictions_.publish_unnamed();
}

void Catalog::reclaimed(uint32_t number, const Status& status) {
  uint16_t device = 0;
  const bool unnamed = has_entries(number);
  // Descriptors that could not be read back: the entries are found the slow way, their names are not.
  if (unnamed) walk_evict(number, [](const IndexEntry&) { return true; });
  {
    std::lock_guard lock(mutex_);
    Region& region = regions_[number];
    device = region.device;
    KVS_ASSERT(region.live == 0);  // I3: a retiring region gets no entries
    std::erase_if(superseded_, [&](const auto& copy) { return copy.second.entry.region == number; });
    std::erase_if(copies_of_others_, [&](const auto& copy) { return copy.second.region == number; });
    device_states_[device].reclaiming = false;
    if (status.ok()) {
      region.dead = {};
      region.bitmap_dirty = false;
      region.state = RegionState::kFree;
      region.quarantined_until_ns = 0;
      auto& free = device_states_[device].free;
      // Of a shared pool the engine decides whose it is next.
      if (!shared()) KVS_RULE(I7_emptied_last_is_reused_last) ? free.push_back(number) : free.push_front(number);
    } else {
      // Its blocks would be back after a crash, whatever was deleted since: the bitmap says what the header could not.
      for (uint32_t slot = 0; slot < region.slot_count; ++slot) mark_dead_locked(region, SlotIndex{slot});
      region.state = RegionState::kQuarantined;
      region.quarantined_until_ns = clock_.monotonic_ns() + options_.quarantine_ns;
      note_failure_locked(status);
    }
  }
  if (unnamed) evictions_.publish_unnamed();
  if (status.ok()) add(counters_.regions_reclaimed);
  space_changed(device);
}

// ---- ownership -------------------------------------------------------------------------------------------------

bool Catalog::claim_is_fresh_locked(const DeviceState& state) const {
  return clock_.monotonic_ns() - state.confirmed_ns <= fresh_ns();
}

// S3: half the lease time. In owner mode as superblock_io.h says.
uint64_t Catalog::fresh_ns() const {
  return shared() ? options_.shared.lease_ns / 2 : claim_fresh_ns(options_.heartbeat_ns);
}

bool Catalog::claim_is_fresh(uint16_t device) {
  std::lock_guard lock(mutex_);
  return claim_is_fresh_locked(device_states_[device]);
}

void Catalog::confirmed(uint16_t device, uint64_t asked_ns) {
  bool stale = false;
  {
    std::lock_guard lock(mutex_);
    // Once a heartbeat puts that wait look again, also for what no event tells them: the region they hoped for was
    // pinned.
    stale = clock_.monotonic_ns() - device_states_[device].confirmed_ns >= options_.heartbeat_ns;
    device_states_[device].confirmed_ns = asked_ns;
  }
  if (stale) space_changed(device);
}

uint64_t Catalog::confirmed_ns(uint16_t device) {
  std::lock_guard lock(mutex_);
  return device_states_[device].confirmed_ns;
}

void Catalog::doubt_ownership(uint16_t device) {
  {
    std::lock_guard lock(mutex_);
    device_states_[device].ownership_doubted = true;
  }
  wake_keeper(device);
}

bool Catalog::take_ownership_doubt(uint16_t device) {
  std::lock_guard lock(mutex_);
  return std::exchange(device_states_[device].ownership_doubted, false);
}

// ---- dead bitmaps ----------------------------------------------------------------------------------------------

std::optional<uint32_t> Catalog::next_bitmap(uint16_t device, format::DeadBitmap& copy) {
  std::lock_guard lock(mutex_);
  DeviceState& state = device_states_[device];
  if (!write_refusal_.ok()) return std::nullopt;
  for (size_t left = state.bitmaps_dirty.size(); left != 0; --left) {
    const uint32_t number = state.bitmaps_dirty.front();
    state.bitmaps_dirty.pop_front();
    Region& region = regions_[number];
    region.bitmap_queued = false;
    if (!region.bitmap_dirty) continue;  // reclaimed meanwhile
    // I7 again: the late write could undo a later one.
    const bool unknown = region.unknown_writes != 0 && KVS_RULE(I7_no_bitmap_while_unknown);
    if (region.state == RegionState::kRetiring || unknown) {
      queue_bitmap_locked(region);
      continue;
    }
    region.bitmap_dirty = false;
    copy = region.dead;
    return number;
  }
  return std::nullopt;
}

void Catalog::queue_bitmap_locked(Region& region) {
  region.bitmap_dirty = true;
  if (std::exchange(region.bitmap_queued, true)) return;
  device_states_[region.device].bitmaps_dirty.push_back(static_cast<uint32_t>(&region - regions_.data()));
}

void Catalog::bitmap_done(uint32_t number, const Status& status) {
  if (status.ok()) return;
  std::lock_guard lock(mutex_);
  queue_bitmap_locked(regions_[number]);  // tried again with the next flush
  note_failure_locked(status);
}

Status Catalog::bitmaps_left_alone(uint16_t device) {
  std::lock_guard lock(mutex_);
  uint32_t count = 0;
  for (const uint32_t number : device_states_[device].bitmaps_dirty) {
    const Region& region = regions_[number];
    if (!region.bitmap_dirty || region.state == RegionState::kRetiring) continue;
    // Others became dirty during this round: the next flush's business.
    if (!write_refusal_.ok() || (region.unknown_writes != 0 && KVS_RULE(I7_flush_tells_of_deletes_left_alone))) ++count;
  }
  if (count == 0) return {};
  const std::string what = format_text("deletes in %u regions of device %u are not durable: ", count, device);
  if (!write_refusal_.ok()) return Status(write_refusal_.code(), what + write_refusal_.message());
  return Status(Code::kBusy, what + "a write of unknown outcome is outstanding there (I7)");
}

// ---- recovery --------------------------------------------------------------------------------------------------

void Catalog::recovered(std::vector<IndexBuilder::Candidate> superseded, uint64_t live_bytes) {
  std::lock_guard lock(mutex_);
  for (const IndexBuilder::Candidate& copy : superseded) superseded_.emplace(copy.entry.fingerprint, copy);
  live_bytes_ = live_bytes;
  for (uint32_t number = 0; number < regions_.size(); ++number) {
    if (regions_[number].state == RegionState::kFree && !shared()) {
      device_states_[regions_[number].device].free.push_back(number);
    }
    tick_ = std::max(tick_, regions_[number].last_use_tick);
  }
}

Region Catalog::snapshot(uint32_t number) {
  std::lock_guard lock(mutex_);
  const Region& region = regions_[number];
  Region copy;
  copy.device = region.device;
  copy.id = region.id;
  copy.state = region.state;
  copy.generation = region.generation;
  copy.extent_bytes = region.extent_bytes;
  copy.slot_count = region.slot_count;
  copy.pins = region.pins;
  copy.live = region.live;
  copy.dead = region.dead;
  // Of an open region they are the keeper's and grow; a reader of one looks at every place.
  copy.descriptor_count = region.open ? 0 : region.descriptor_count;
  copy.dictionary_count = region.open ? 0 : region.dictionary_count;
  copy.unsealed_on_device = region.unsealed_on_device;
  copy.last_use_tick = region.last_use_tick;
  copy.quarantined_until_ns = region.quarantined_until_ns;
  return copy;
}

}  // namespace kvstore::store
