// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What the catalog does for a shared pool (docs/sharing.md). Its regions are then of three kinds:
//
//   ours       granted by the agent: free -> open -> sealed, driven by the keeper as in owner mode
//   another's  read only; what it holds is learnt by the follower, block by block
//   nobody's   sealed, and readable until it is retired; or free, and of no use until it is granted
//
// Guarantees: nothing of a life below retired_below is learnt (S4); what a peer may still write is no victim (S5); a
// region that was lost gets no further descriptor (S1), and its pending blocks are told as lost (I6).

#include <algorithm>

#include "base/assert.h"
#include "base/mutation.h"
#include "store/catalog.h"

namespace kvstore::store {

namespace {

constexpr uint32_t kOpenMax = 8;
constexpr uint32_t kRegionsPerOpen = 8;         // owner mode: at most an eighth of all is open
constexpr uint32_t kRegionsPerOpenerOpen = 4;   // shared: of an opener's share a quarter
constexpr uint32_t kRegionsPerOpenerReady = 8;  // and an eighth is kept ready
constexpr uint64_t kReadyBytes = 256 * kMiB;
constexpr uint64_t kReadyMax = 16;
constexpr size_t kBlocksLearntAtOnce = 1024;

Status lost_status() { return Status(Code::kStale, "the region is another opener's: the lease of this one had ended"); }

}  // namespace

// ---- shares ----------------------------------------------------------------------------------------------------

void Catalog::set_targets_locked(uint32_t openers) {
  openers = std::max(openers, 1u);
  for (uint16_t device = 0; device < devices_.size(); ++device) {
    const uint32_t count = devices_[device].geometry.region_count;
    DeviceState& state = device_states_[device];
    const uint32_t share = shared() ? count / (kRegionsPerOpenerOpen * openers) : count / kRegionsPerOpen;
    state.open_max = std::clamp<uint32_t>(share, 1, std::clamp<uint32_t>(count / kRegionsPerOpen, 1, kOpenMax));
    // Of small regions more: a region is taken in milliseconds, in which a device fills many of them.
    const uint64_t ready = std::clamp<uint64_t>(kReadyBytes / devices_[device].geometry.region_bytes,
                                                std::max(options_.free_regions_target, 1u), kReadyMax);
    state.free_target =
        static_cast<uint32_t>(std::clamp<uint64_t>(count / (kRegionsPerOpenerReady * openers), 1, ready));
  }
}

void Catalog::set_openers(uint32_t openers) {
  std::lock_guard lock(mutex_);
  set_targets_locked(openers);
}

uint32_t Catalog::regions_wanted(uint16_t device) {
  std::lock_guard lock(mutex_);
  const DeviceState& state = device_states_[device];
  const auto ready = static_cast<uint32_t>(state.free.size());
  if (!write_refusal_.ok() || wants_nothing_) return 0;
  return state.free_target > ready ? state.free_target - ready : 0;
}

bool Catalog::grant(uint32_t number, Generation spent) {
  uint16_t device = 0;
  {
    std::lock_guard lock(mutex_);
    Region& region = regions_[number];
    if (region.state != RegionState::kFree || region.pins != 0 || region.live != 0 || region.open || region.opening) {
      return false;
    }
    if (region.unknown_writes != 0) return false;  // I7
    device = region.device;
    region.writer = Writer::kThisOpener;
    // The life that it is granted for was begun, and lost on the way: given back, its generation is spent.
    const bool begun = region.generation > spent;
    region.generation = std::max(region.generation, spent);
    if (begun || wants_nothing_) {
      spent_.push_back(number);
      return true;
    }
    device_states_[device].free.push_back(number);
  }
  space_changed(device);
  wake_keeper(device);
  return true;
}

void Catalog::lose(uint32_t number) {
  Completions completions;
  std::vector<Eviction> evictions;
  {
    std::lock_guard lock(mutex_);
    Region& region = regions_[number];
    std::erase(device_states_[region.device].free, number);
    // What was to be told of it would be told of a life of another's, or of the one that it is granted for next.
    std::erase(sealed_, number);
    std::erase(unsealed_, number);
    std::erase_if(conflicts_, [&](const auto& one) { return one.first == number; });
    if (std::erase(spent_, number) != 0 && region.state == RegionState::kQuarantined) region.state = RegionState::kFree;
    if (region.open || KVS_RULE(S1_lost_while_opened_is_not_written)) region.writer = Writer::kAnother;
    if (region.open) {
      poison_locked(number, lost_status(), completions, evictions);
      region.open->seal_wanted = true;
    }
  }
  settle(std::move(completions), std::move(evictions));
  wake_keeper(regions_[number].device);
}

Status Catalog::may_write(uint32_t number) {
  if (!shared()) return {};
  std::lock_guard lock(mutex_);
  return regions_[number].writer == Writer::kThisOpener ? Status() : lost_status();
}

// Stored, and perhaps durable in a while; nobody can say when.
void Catalog::refuse_waiters_locked(std::vector<DurableWaiter>& waiters, Completions& completions) {
  for (DurableWaiter& waiter : std::exchange(waiters, {})) {
    waiter.result = {.status = ItemStatus::kError, .code = suspension_.code()};
    completions.push_back({std::move(waiter), suspension_.message()});
  }
}

void Catalog::commit_interrupted(CommitWork work) {
  Completions completions;
  std::vector<Eviction> evictions;
  {
    std::lock_guard lock(mutex_);
    const uint32_t number = work.region;
    OpenRegion& open = *regions_[number].open;
    DeviceState& device = device_states_[regions_[number].device];
    if (!suspension_.ok()) refuse_waiters_locked(work.waiters, completions);
    device.pending += static_cast<uint32_t>(work.descriptors.size() - work.appended);
    device.commit_wanted = true;
    // What was put meanwhile goes after it.
    CommitWork later = std::exchange(open.pending, std::move(work));
    std::move(later.descriptors.begin(), later.descriptors.end(), std::back_inserter(open.pending.descriptors));
    std::move(later.waiters.begin(), later.waiters.end(), std::back_inserter(open.pending.waiters));
    // Lost on the way: what was pending then was told so.
    if (open.poisoned) poison_locked(number, lost_status(), completions, evictions);
  }
  settle(std::move(completions), std::move(evictions));
}

void Catalog::suspend(const Status& why) {
  Completions completions;
  {
    std::lock_guard lock(mutex_);
    suspension_ = Status(Code::kBusy, "no puts for the moment: " + why.message());
    for (DeviceState& state : device_states_) {
      for (const uint32_t number : state.open) {
        refuse_waiters_locked(regions_[number].open->pending.waiters, completions);
      }
    }
  }
  settle(std::move(completions), {});
  for (uint16_t device = 0; device < devices_.size(); ++device) space_changed(device);
}

void Catalog::resume() {
  {
    std::lock_guard lock(mutex_);
    if (suspension_.ok()) return;
    suspension_ = {};
  }
  for (uint16_t device = 0; device < devices_.size(); ++device) {
    space_changed(device);
    wake_keeper(device);
  }
}

// ---- what the others do ----------------------------------------------------------------------------------------

void Catalog::set_held_by_peer(uint32_t number, bool held) {
  uint16_t device = 0;
  {
    std::lock_guard lock(mutex_);
    Region& region = regions_[number];
    // What the follower was told of it before it was granted, and gets round to only now.
    if (region.writer == Writer::kThisOpener && KVS_RULE(S1_late_news_takes_no_region_away)) return;
    const Writer before = std::exchange(region.writer, held ? Writer::kAnother : Writer::kNobody);
    if (held || before != Writer::kAnother) return;
    device = region.device;
  }
  space_changed(device);  // it can be reclaimed
}

// What the engine says last counts, also when it is lower: a failover may have forgotten that the region was retired,
// and one that was rebuilt knows only what the device bears.
void Catalog::set_retired_below(uint32_t number, Generation below) {
  std::lock_guard lock(mutex_);
  regions_[number].retired_below = below;
}

bool Catalog::retire(uint32_t number, Generation below) {
  std::lock_guard lock(mutex_);
  Region& region = regions_[number];
  if (region.generation >= below || (region.state == RegionState::kFree && !region.opening)) return false;
  // Ours until a moment ago: its keeper ends what it has begun first.
  if (!region.open && !region.opening) region.state = RegionState::kRetiring;
  return true;
}

RegionState Catalog::state_of(uint32_t number) {
  std::lock_guard lock(mutex_);
  return regions_[number].state;
}

bool Catalog::has_readers(uint32_t number) {
  std::lock_guard lock(mutex_);
  return regions_[number].pins != 0 && KVS_RULE(S4_a_retired_region_waits_for_its_readers);
}

Generation Catalog::generation_of(uint32_t number) {
  std::lock_guard lock(mutex_);
  return regions_[number].generation;
}

bool Catalog::learn_life(uint32_t number, const format::RegionHeader& header, uint32_t dictionary_blocks) {
  std::lock_guard lock(mutex_);
  Region& region = regions_[number];
  if (header.generation < region.retired_below || region.open || region.opening) return false;
  if (region.writer == Writer::kThisOpener) return false;  // the header of an earlier life, read before it was granted
  const bool empty =
      region.state == RegionState::kFree || (region.state == RegionState::kQuarantined && region.live == 0);
  if (!empty && region.generation != header.generation) return false;
  if (region.state == RegionState::kRetiring) return false;
  const bool sealed = header.state == RegionState::kSealed;
  if (empty) {
    region.generation = header.generation;
    region.extent_bytes = header.extent_bytes;
    region.slot_count = header.slot_count;
    region.dead = {};
    region.last_use_tick = tick();
    region.state = RegionState::kSealed;  // to us: there is nothing to put into it
  }
  region.unsealed_on_device = !sealed;
  region.descriptor_count = sealed ? header.descriptor_count : region.slot_count;
  region.dictionary_count = sealed ? header.dictionary_count : dictionary_blocks;
  return true;
}

uint64_t Catalog::learn(uint32_t number, Generation generation, std::span<const IndexBuilder::Candidate> blocks) {
  uint64_t learnt = 0;
  // A region may hold 65,536: every get would wait for all of them.
  for (; !blocks.empty(); blocks = blocks.subspan(std::min(blocks.size(), kBlocksLearntAtOnce))) {
    std::lock_guard lock(mutex_);
    // Asked again each time: it may have been retired while its descriptors were being read.
    if (!is_there_locked(regions_[number], generation)) break;
    learnt += learn_locked(regions_[number], blocks.first(std::min(blocks.size(), kBlocksLearntAtOnce)));
  }
  return learnt;
}

bool Catalog::is_there_locked(const Region& region, Generation generation) const {
  const bool there =
      region.state == RegionState::kSealed && region.generation == generation && generation >= region.retired_below;
  return there || !KVS_RULE(S4_nothing_of_a_retired_life_is_learnt);
}

uint64_t Catalog::learn_locked(Region& region, std::span<const IndexBuilder::Candidate> blocks) {
  uint64_t learnt = 0;
  for (const IndexBuilder::Candidate& block : blocks) {
    if (region.dead.test(SlotIndex{block.entry.slot})) continue;
    const IndexEntry* known = index_.find(block.entry.fingerprint);
    if (known == nullptr) {
      if (!index_.insert(block.entry)) continue;  // no room: a miss
      ++region.live;
      live_bytes_ += block.entry.payload_bytes;
      ++learnt;
      continue;
    }
    if (known->same_place(block.entry)) continue;
    const auto [first, last] = superseded_.equal_range(block.entry.fingerprint);
    const bool kept =
        std::any_of(first, last, [&](const auto& one) { return one.second.entry.same_place(block.entry); });
    if (!kept) superseded_.emplace(block.entry.fingerprint, block);
  }
  if (learnt != 0) region.last_use_tick = tick();
  return learnt;
}

bool Catalog::mark_deleted(uint32_t number, Generation generation, const format::DeadBitmap& slots) {
  std::lock_guard lock(mutex_);
  Region& region = regions_[number];
  if (region.generation != generation || region.state == RegionState::kFree) return false;
  bool any = false;
  for (uint32_t slot = 0; slot < std::min(slots.slot_count(), region.slot_count); ++slot) {
    const bool known = !region.dead.empty() && region.dead.test(SlotIndex{slot});
    if (known || !slots.test(SlotIndex{slot})) continue;
    mark_dead_locked(region, SlotIndex{slot});
    any = true;
  }
  return any;
}

void Catalog::touch_regions(std::span<const uint8_t> hits) {
  std::lock_guard lock(mutex_);
  if (options_.reclaim_order != ReclaimOrder::kLeastRecentlyUsed) return;
  const uint64_t now = tick();
  for (uint32_t number = 0; number < std::min<size_t>(regions_.size(), hits.size() * 8); ++number) {
    if ((hits[number / 8] >> (number % 8) & 1) == 0) continue;
    regions_[number].last_use_tick = now;
    regions_[number].told_tick = now;
  }
}

// ---- what they are told ----------------------------------------------------------------------------------------

std::vector<uint8_t> Catalog::take_hits() {
  std::lock_guard lock(mutex_);
  std::vector<uint8_t> hits((regions_.size() + 7) / 8);
  bool any = false;
  for (uint32_t number = 0; number < regions_.size(); ++number) {
    const Region& region = regions_[number];
    if (region.last_use_tick <= hits_told_tick_ || region.last_use_tick == region.told_tick) continue;
    hits[number / 8] |= static_cast<uint8_t>(1u << (number % 8));
    any = true;
  }
  hits_told_tick_ = tick_;
  if (!any) hits.clear();
  return hits;
}

std::vector<uint32_t> Catalog::take_sealed() {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> taken = std::exchange(sealed_, {});
  // Their seal is not on the device, and could still land: as long as that is so they are ours.
  const uint64_t now_ns = clock_.monotonic_ns();
  std::erase_if(unsealed_, [&](uint32_t number) {
    const Region& region = regions_[number];
    if (region.unknown_writes != 0 || region.quarantined_until_ns > now_ns) return false;
    taken.push_back(number);
    return true;
  });
  return taken;
}

std::vector<uint32_t> Catalog::take_released() {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> taken;
  const uint64_t now_ns = clock_.monotonic_ns();
  std::erase_if(spent_, [&](uint32_t number) {
    Region& region = regions_[number];
    if (region.unknown_writes != 0 || region.quarantined_until_ns > now_ns) return false;
    region.state = RegionState::kFree;
    region.writer = Writer::kNobody;
    taken.push_back(number);
    return true;
  });
  return taken;
}

void Catalog::release_ready() {
  std::lock_guard lock(mutex_);
  wants_nothing_ = true;
  for (DeviceState& state : device_states_) {
    spent_.insert(spent_.end(), state.free.begin(), state.free.end());
    state.free.clear();
  }
}

bool Catalog::any_write_unknown() {
  std::lock_guard lock(mutex_);
  return std::any_of(regions_.begin(), regions_.end(), [](const Region& region) { return region.unknown_writes != 0; });
}

std::vector<std::pair<uint32_t, Generation>> Catalog::take_conflicts() {
  std::lock_guard lock(mutex_);
  return std::exchange(conflicts_, {});
}

std::vector<Catalog::DeletedSlots> Catalog::take_deleted() {
  std::lock_guard lock(mutex_);
  std::vector<DeletedSlots> taken;
  std::sort(deleted_in_.begin(), deleted_in_.end());
  deleted_in_.erase(std::unique(deleted_in_.begin(), deleted_in_.end()), deleted_in_.end());
  for (const uint32_t number : std::exchange(deleted_in_, {})) {
    const Region& region = regions_[number];
    if (!region.dead.empty()) taken.push_back({number, region.generation, region.dead});
  }
  deletes_under_way_ = !taken.empty();
  return taken;
}

void Catalog::deleted_again(uint32_t number) {
  std::lock_guard lock(mutex_);
  deleted_in_.push_back(number);
}

void Catalog::tell_deletes_again() {
  std::lock_guard lock(mutex_);
  for (uint32_t number = 0; number < regions_.size(); ++number) {
    if (!regions_[number].dead.empty()) deleted_in_.push_back(number);
  }
}

void Catalog::deletes_told() {
  std::lock_guard lock(mutex_);
  deletes_under_way_ = false;
}

bool Catalog::deletes_wait() {
  std::lock_guard lock(mutex_);
  return !deleted_in_.empty() || deletes_under_way_;
}

}  // namespace kvstore::store
