// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Lookups, reads, puts, deletes and pins. What keepers do with regions is in catalog_regions.cpp.

#include "store/catalog.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/assert.h"
#include "base/mutation.h"

namespace kvstore::store {

Catalog::Catalog(const StoreOptions& options, std::vector<DeviceShape> devices, uint64_t epoch, uint64_t blocks_max,
                 SpaceRegistry& spaces, Counters& counters, EvictionHub& evictions, Clock& clock)
    : options_(options),
      devices_(std::move(devices)),
      epoch_(epoch),
      spaces_(spaces),
      counters_(counters),
      evictions_(evictions),
      clock_(clock),
      index_(blocks_max) {
  for (uint16_t device = 0; device < devices_.size(); ++device) {
    const uint32_t count = devices_[device].geometry.region_count;
    first_region_.push_back(static_cast<uint32_t>(regions_.size()));
    for (uint32_t i = 0; i < count; ++i) {
      Region& region = regions_.emplace_back();
      region.device = device;
      region.id = RegionId{i};
    }
    device_states_.emplace_back();
  }
  set_targets_locked(1);
}

// ---- reads -----------------------------------------------------------------------------------------------------

IndexEntry* Catalog::find_readable_locked(const Fingerprint& fingerprint) {
  IndexEntry* entry = index_.find(fingerprint);
  if (entry == nullptr) return nullptr;
  const Region& region = regions_[entry->region];
  // I3: a retiring region takes no new reader; its remaining entries are on their way out.
  const bool emptied = region.state == RegionState::kRetiring || region.state == RegionState::kFree;
  return emptied && KVS_RULE(I3_no_reader_of_a_retiring_region) ? nullptr : entry;
}

void Catalog::fill_grant_locked(Item& item, const IndexEntry& entry, Verify verify) {
  Region& region = regions_[entry.region];
  const format::Geometry& geometry = devices_[region.device].geometry;
  item.place.device = region.device;
  item.place.region = entry.region;
  item.place.region_id = region.id;
  item.place.slot = SlotIndex{entry.slot};
  item.place.generation = region.generation;
  item.place.offset_bytes = geometry.extent_offset(region.id, region.extent_bytes, item.place.slot);
  item.payload_bytes = entry.payload_bytes;
  item.checksum = entry.checksum;
  item.page_hashes = (entry.flags & kEntryPageHashes) != 0;
  // I5: in a region with a write of unknown outcome what was verified once may have been overwritten since.
  const bool doubtful = region.quarantined_until_ns != 0 && KVS_RULE(I5_verified_again_after_an_unknown_outcome);
  const bool verified = (entry.flags & kEntryVerified) != 0 && !doubtful;
  item.verify = verify == Verify::kAlways || (verify == Verify::kFirstRead && !verified);
  ++region.pins;
}

void Catalog::begin_reads(std::span<Item> items, Verify verify) {
  for (const Item& item : items) index_.prefetch(item.fingerprint);
  bool any_missed = false;
  {
    std::lock_guard lock(mutex_);
    take_broken_locked();
    const bool usable_now = refusal_.ok();
    for (size_t i = items.size(); i-- > 0;) {
      Item& item = items[i];
      if (item.phase == ItemPhase::kFinished) continue;
      IndexEntry* entry = usable_now ? find_readable_locked(item.fingerprint) : nullptr;
      if (entry == nullptr) {
        item.phase = ItemPhase::kFinished;
        any_missed = true;
        continue;
      }
      fill_grant_locked(item, *entry, verify);
      used_locked(entry->region);
    }
  }
  if (any_missed && missed) missed();
}

void Catalog::end_read(const Item& item) { unpin_region(item.place.region); }

void Catalog::unpin_region(uint32_t number) {
  uint16_t device = 0;
  {
    std::lock_guard lock(mutex_);
    Region& region = regions_[number];
    KVS_ASSERT(region.pins != 0);
    if (--region.pins != 0 || device_states_[region.device].wanted.empty()) return;
    device = region.device;
  }
  wake_keeper(device);  // a put waits for space and this region may have become a victim
}

bool Catalog::pin_region(uint32_t number, Generation generation) {
  std::lock_guard lock(mutex_);
  Region& region = regions_[number];
  if (region.generation != generation || region.state == RegionState::kRetiring || region.state == RegionState::kFree) {
    return false;
  }
  ++region.pins;
  return true;
}

void Catalog::mark_verified(const Item& item) {
  std::lock_guard lock(mutex_);
  if (IndexEntry* entry = find_at_locked(item.fingerprint, item.place)) entry->flags |= kEntryVerified;
}

void Catalog::mark_suspect(const Item& item) {
  std::lock_guard lock(mutex_);
  if (IndexEntry* entry = find_at_locked(item.fingerprint, item.place)) entry->flags |= kEntrySuspect;
}

IndexEntry* Catalog::find_at_locked(const Fingerprint& fingerprint, const Place& place) {
  IndexEntry* entry = index_.find(fingerprint);
  const bool there = entry != nullptr && entry->region == place.region && entry->slot == place.slot.value &&
                     entry->generation_low == static_cast<uint32_t>(place.generation.value);
  return there || !KVS_RULE(I5_removed_only_where_it_was_read) ? entry : nullptr;
}

bool Catalog::drop_corrupt(const Item& item) {
  bool dropped = false;
  bool revived = false;
  {
    std::lock_guard lock(mutex_);
    if (IndexEntry* entry = find_at_locked(item.fingerprint, item.place)) {
      if (KVS_RULE(I5_what_does_not_verify_is_removed)) forget_entry_locked(entry, Forget::kBad);
      revived = KVS_RULE(I12_the_next_duplicate_is_tried) && revive_superseded_locked(item.fingerprint);
      dropped = !revived;
    }
  }
  if (dropped && evictions_.has_subscribers()) {
    Eviction eviction;
    eviction.space = spaces_.find(item.space)->json;
    eviction.salt = item.salt;
    eviction.key = item.key.view();
    eviction.key_is_digest = item.key.is_digest;
    eviction.payload_bytes = item.payload_bytes;
    eviction.reason = EvictionReason::kCorrupt;
    evictions_.publish({std::move(eviction)});
  }
  return revived;
}

bool Catalog::revive_superseded_locked(const Fingerprint& fingerprint) {
  // I12: of duplicates the highest write_seq wins, and if it fails its checksum the next is tried.
  while (true) {
    const auto [first, last] = superseded_.equal_range(fingerprint);
    if (first == last) return false;
    const auto next = std::max_element(first, last, [](const auto& a, const auto& b) {
      return KVS_RULE(I12_the_next_is_the_newest) == (a.second.write_seq < b.second.write_seq);
    });
    const IndexEntry entry = next->second.entry;
    superseded_.erase(next);
    Region& region = regions_[entry.region];
    const bool valid = region.state == RegionState::kSealed &&
                       static_cast<uint32_t>(region.generation.value) == entry.generation_low &&
                       !region.dead.test(SlotIndex{entry.slot});
    if (!valid || !index_.insert(entry)) continue;
    ++region.live;
    live_bytes_ += entry.payload_bytes;
    return true;
  }
}

// ---- index only ------------------------------------------------------------------------------------------------

// False: pins_max is reached. A hit that cannot be held is told as a miss, which is always legal.
bool Catalog::pin_key_locked(const Fingerprint& fingerprint, const IndexEntry& entry) {
  auto found = pins_.find(fingerprint);
  if (found == pins_.end()) {
    if (pins_.size() >= options_.pins_max) return false;
    pins_by_expiry_.push_back(fingerprint);
    found = pins_.emplace(fingerprint, Pin{0, entry.region, 0, std::prev(pins_by_expiry_.end())}).first;
    ++regions_[entry.region].pins;
  } else {
    pins_by_expiry_.splice(pins_by_expiry_.end(), pins_by_expiry_, found->second.by_expiry);
  }
  ++found->second.count;
  found->second.expires_ns = clock_.monotonic_ns() + options_.pin_lease_ns;
  return true;
}

void Catalog::release_pin_locked(std::unordered_map<Fingerprint, Pin, FingerprintHash>::iterator pin) {
  KVS_ASSERT(regions_[pin->second.region].pins != 0);
  --regions_[pin->second.region].pins;
  pins_by_expiry_.erase(pin->second.by_expiry);
  pins_.erase(pin);
}

void Catalog::lookup(std::span<const Key> keys, bool pin, std::span<int64_t> payload_bytes) {
  for (const Key& key : keys) index_.prefetch(key.fingerprint);
  bool any_missed = false;
  {
    std::lock_guard lock(mutex_);
    // Pins from the head on, so that what pins_max refuses is the tail; touches from the tail, so that the head is
    // younger.
    for (size_t i = 0; i < keys.size(); ++i) {
      const IndexEntry* entry = refusal_.ok() ? find_readable_locked(keys[i].fingerprint) : nullptr;
      const bool held = entry != nullptr && (!pin || pin_key_locked(keys[i].fingerprint, *entry));
      payload_bytes[i] = held ? static_cast<int64_t>(entry->payload_bytes) : -1;
      any_missed = any_missed || entry == nullptr;
    }
    for (size_t i = keys.size(); i-- > 0;) {
      if (payload_bytes[i] >= 0) used_locked(index_.find(keys[i].fingerprint)->region);
    }
  }
  if (any_missed && missed) missed();
}

uint64_t Catalog::match_prefix(std::span<const Key> keys, bool pin) {
  for (const Key& key : keys) index_.prefetch(key.fingerprint);
  uint64_t length = 0;
  {
    std::lock_guard lock(mutex_);
    if (!refusal_.ok()) return 0;
    for (; length < keys.size(); ++length) {
      const IndexEntry* entry = find_readable_locked(keys[length].fingerprint);
      if (entry == nullptr || (pin && !pin_key_locked(keys[length].fingerprint, *entry))) break;
    }
    for (uint64_t i = length; i-- > 0;) used_locked(index_.find(keys[i].fingerprint)->region);
  }
  if (length < keys.size() && missed) missed();
  return length;
}

void Catalog::unpin(std::span<const Key> keys) {
  std::vector<bool> keeper_wanted(devices_.size());
  {
    std::lock_guard lock(mutex_);
    for (const Key& key : keys) {
      auto found = pins_.find(key.fingerprint);
      // Unpinning twice, or after the lease ended, is not an error and never makes a count negative.
      if (found == pins_.end() || --found->second.count != 0) continue;
      const uint16_t device = regions_[found->second.region].device;
      release_pin_locked(found);
      if (!device_states_[device].wanted.empty()) keeper_wanted[device] = true;
    }
  }
  wake_keepers(keeper_wanted);  // a put waits for space and these regions may have become victims
}

void Catalog::touch(std::span<const Key> keys) {
  std::lock_guard lock(mutex_);
  for (size_t i = keys.size(); i-- > 0;) {
    if (IndexEntry* entry = find_readable_locked(keys[i].fingerprint)) used_locked(entry->region);
  }
}

void Catalog::expire_pins() {
  std::lock_guard lock(mutex_);
  const uint64_t now_ns = clock_.monotonic_ns();
  while (!pins_by_expiry_.empty()) {
    auto found = pins_.find(pins_by_expiry_.front());
    if (found->second.expires_ns > now_ns) break;
    add(counters_.pins_expired, found->second.count);
    release_pin_locked(found);
  }
}

std::optional<IndexEntry> Catalog::peek(const Fingerprint& fingerprint) {
  std::lock_guard lock(mutex_);
  const IndexEntry* entry = find_readable_locked(fingerprint);
  return entry == nullptr ? std::nullopt : std::optional<IndexEntry>(*entry);
}

// ---- puts ------------------------------------------------------------------------------------------------------

void Catalog::begin_puts(std::span<Item> items) {
  Completions completions;
  std::vector<bool> keeper_wanted(devices_.size());
  {
    std::lock_guard lock(mutex_);
    take_broken_locked();
    for (Item& item : items) {
      if (item.phase == ItemPhase::kFinished) continue;
      ItemResult result{.status = ItemStatus::kPresent};
      const Status& refusal = write_refusal_.ok() ? suspension_ : write_refusal_;
      if (!refusal.ok()) {
        item.phase = ItemPhase::kFinished;
        result = {.status = ItemStatus::kError, .code = refusal.code()};
        completions.push_back({{JobRef(item.job), item.number, result}, refusal.message()});
        continue;
      }
      const IndexEntry* entry = find_readable_locked(item.fingerprint);
      if (entry != nullptr && (entry->flags & kEntrySuspect) == 0) {
        item.phase = ItemPhase::kFinished;
        add(counters_.puts_present);
        result.bytes = entry->payload_bytes;
        Region& region = regions_[entry->region];
        used_locked(entry->region);
        // A durable put of a key that is there waits for that entry's descriptor.
        if (item.durable && (entry->flags & kEntryUncommitted) != 0 && region.open) {
          region.open->pending.waiters.push_back({JobRef(item.job), item.number, result});
          device_states_[region.device].commit_wanted = true;
          keeper_wanted[region.device] = true;
        } else {
          completions.push_back({{JobRef(item.job), item.number, result}, {}});
        }
        continue;
      }
      auto [pending, added] = pending_puts_.try_emplace(item.fingerprint);
      if (!added) {
        item.phase = ItemPhase::kFinished;
        add(counters_.puts_joined);
        pending->second.joined.push_back({JobRef(item.job), item.number, result});
        pending->second.joined_durable.push_back(item.durable);
      }
    }
  }
  wake_keepers(keeper_wanted);
  settle(std::move(completions), {});
}

namespace {

format::Descriptor descriptor_of(const Item& item, uint64_t write_seq) {
  format::Descriptor descriptor;
  descriptor.checksum = item.checksum;
  std::memcpy(descriptor.key, item.key.bytes, item.key.size);
  descriptor.key_bytes = item.key.size;
  descriptor.write_seq = write_seq;
  descriptor.parent = item.parent;
  descriptor.depth = item.depth;
  descriptor.payload_bytes = static_cast<uint32_t>(item.payload_bytes);
  descriptor.slot = item.place.slot.value;
  descriptor.space_index = item.space_index;
  descriptor.salt_index = item.salt_index;
  descriptor.meta_bytes = item.meta_bytes;
  std::memcpy(descriptor.meta, item.meta, item.meta_bytes);
  descriptor.flags =
      static_cast<uint16_t>(format::kDescriptorValid | (item.key.is_digest ? format::kDescriptorKeyIsDigest : 0) |
                            (item.page_hashes ? format::kDescriptorPageHashes : 0));
  return descriptor;
}

}  // namespace

void Catalog::finish_put(Item& item) {
  Completions completions;
  std::string why;
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    Region& region = regions_[item.place.region];
    KVS_ASSERT(region.state == RegionState::kOpen && region.generation == item.place.generation);
    OpenRegion& open = *region.open;
    KVS_ASSERT(open.writes_in_flight != 0);
    DeviceState& device = device_states_[region.device];
    --open.writes_in_flight;
    const uint8_t unread = KVS_RULE(I5_a_fresh_put_is_no_read) ? 0 : kEntryVerified;
    IndexEntry entry{.fingerprint = item.fingerprint,
                     .checksum = item.checksum,
                     .payload_bytes = static_cast<uint32_t>(item.payload_bytes),
                     .region = item.place.region,
                     .slot = item.place.slot.value & (kSlotsMax - 1),
                     .flags = static_cast<uint8_t>(kEntryUncommitted | unread),
                     .generation_low = static_cast<uint32_t>(region.generation.value)};
    if (item.page_hashes) entry.flags |= kEntryPageHashes;
    if (open.poisoned) {
      why = "its region was sealed by a failed flush before the descriptor was written";
    } else if (!write_refusal_.ok()) {
      why = write_refusal_.message();
    } else {
      // Suspect, or put by another opener meanwhile: that copy is deleted with this one, and stays when this one goes.
      if (IndexEntry* other = index_.find(item.fingerprint)) {
        const bool suspect = (other->flags & kEntrySuspect) != 0;
        if (!suspect) superseded_.emplace(item.fingerprint, IndexBuilder::Candidate{*other, 0});
        forget_entry_locked(other, suspect ? Forget::kBad : Forget::kEvicted);
      }
    }
    if (why.empty() && !index_.insert(entry)) {
      why = format_text("the index is full: %llu blocks", static_cast<unsigned long long>(index_.size()));
    }
    if (why.empty()) {
      ++region.live;
      live_bytes_ += item.payload_bytes;
      region.last_use_tick = tick();
      const uint64_t write_seq = epoch() << 40 | ++write_count_;
      open.pending.descriptors.push_back({descriptor_of(item, write_seq), item.fingerprint, item.space, item.salt});
      ++device.pending;
      if (device.first_pending_ns == UINT64_MAX) {
        device.first_pending_ns = clock_.monotonic_ns();
        wake = true;  // the keeper must learn that its commit timer runs
      }
    }
    wake |= answer_put_locked(item, why, completions);
    if (open.pending.descriptors.size() >= format::kDescriptorsPerBlock) wake = true;
    if (open.seal_wanted && open.writes_in_flight == 0) wake = true;
  }
  add(why.empty() ? counters_.puts_stored : counters_.puts_failed);
  if (why.empty()) add(counters_.bytes_put, item.payload_bytes);
  if (wake) wake_keeper(item.place.device);
  settle(std::move(completions), {});
}

// The put and those that joined it. True: some of them wait for a commit.
bool Catalog::answer_put_locked(const Item& item, const std::string& why, Completions& completions) {
  const ItemResult stored{.status = ItemStatus::kStored, .bytes = item.payload_bytes};
  const ItemResult lost{.status = ItemStatus::kError, .code = Code::kIo};
  PendingPut joined = std::move(pending_puts_[item.fingerprint]);
  pending_puts_.erase(item.fingerprint);
  joined.joined.push_back({JobRef(item.job), item.number, stored});
  joined.joined_durable.push_back(item.durable);
  bool commit_wanted = false;
  for (size_t i = 0; i < joined.joined.size(); ++i) {
    DurableWaiter& waiter = joined.joined[i];
    if (!why.empty()) waiter.result = lost;
    if (why.empty()) waiter.result.bytes = item.payload_bytes;
    if (why.empty() && joined.joined_durable[i] && !suspension_.ok()) {
      // Stored, and perhaps durable in a while, like those that suspend() found waiting.
      waiter.result = {.status = ItemStatus::kError, .code = suspension_.code()};
      completions.push_back({std::move(waiter), suspension_.message()});
    } else if (why.empty() && joined.joined_durable[i]) {
      regions_[item.place.region].open->pending.waiters.push_back(std::move(waiter));
      commit_wanted = true;
    } else {
      completions.push_back({std::move(waiter), why});
    }
  }
  device_states_[item.place.device].commit_wanted |= commit_wanted;
  return commit_wanted;
}

void Catalog::fail_put(Item& item, bool allocated, bool device_failed, Code code, int io_errno,
                       const std::string& text) {
  Completions completions;
  {
    std::lock_guard lock(mutex_);
    if (allocated) {
      // I6: no more puts into a region that refused one; what it holds stays readable.
      OpenRegion& open = *regions_[item.place.region].open;
      --open.writes_in_flight;
      if (device_failed) {
        open.seal_wanted |= KVS_RULE(I6_a_failed_write_seals);
        note_failure_locked(Status(code, text));
      }
    }
    PendingPut joined = std::move(pending_puts_[item.fingerprint]);
    pending_puts_.erase(item.fingerprint);
    joined.joined.push_back({JobRef(item.job), item.number, {}});
    for (DurableWaiter& waiter : joined.joined) {
      if (waiter.job.get() != item.job && !KVS_RULE(I8_what_joined_a_failed_put_fails)) continue;
      waiter.result = {.status = ItemStatus::kError, .code = code, .io_errno = io_errno};
      completions.push_back({std::move(waiter), text});
    }
  }
  add(code == Code::kBusy ? counters_.puts_busy : counters_.puts_failed);
  if (allocated) wake_keeper(item.place.device);
  settle(std::move(completions), {});
}

// ---- deletes ---------------------------------------------------------------------------------------------------

void Catalog::mark_dead_locked(Region& region, SlotIndex slot) {
  if (region.dead.empty()) region.dead = format::DeadBitmap(region.slot_count);
  region.dead.set(slot);
  // Of a shared pool nobody writes the bitmaps; erase() tells the engine.
  if (!shared()) queue_bitmap_locked(region);
}

void Catalog::forget_entry_locked(IndexEntry* entry, Forget why) {
  Region& region = regions_[entry->region];
  KVS_ASSERT(region.live != 0);
  --region.live;
  live_bytes_ -= entry->payload_bytes;
  bool was_pending = false;
  if (why != Forget::kEvicted && (entry->flags & kEntryUncommitted) != 0 && region.open) {
    // Not on the device yet: dropping the descriptor is all it takes.
    CommitWork& work = region.open->pending;
    const auto first = work.descriptors.begin() + static_cast<ptrdiff_t>(work.appended);
    const auto found = std::find_if(first, work.descriptors.end(), [&](const PendingDescriptor& pending) {
      return pending.descriptor.slot == entry->slot;
    });
    was_pending = found != work.descriptors.end();
    if (was_pending) {
      work.descriptors.erase(found);
      --device_states_[region.device].pending;
    }
  }
  if (!was_pending && why == Forget::kBad && shared()) {
    keep_for_others_locked(*entry);
  } else if (!was_pending && why != Forget::kEvicted) {
    delete_copy_locked(*entry);
  }
  index_.erase(entry);
}

void Catalog::keep_for_others_locked(const IndexEntry& copy) {
  const auto [first, last] = copies_of_others_.equal_range(copy.fingerprint);
  const bool kept = std::any_of(first, last, [&](const auto& one) { return one.second.same_place(copy); });
  if (!kept && KVS_RULE(I12_bad_copies_go_with_their_key)) copies_of_others_.emplace(copy.fingerprint, copy);
}

void Catalog::delete_copy_locked(const IndexEntry& copy) {
  Region& region = regions_[copy.region];
  if (static_cast<uint32_t>(region.generation.value) != copy.generation_low) return;
  mark_dead_locked(region, SlotIndex{copy.slot});
  if (shared()) deleted_in_.push_back(copy.region);
}

void Catalog::delete_other_copies_locked(const Fingerprint& fingerprint) {
  const auto [first, last] = superseded_.equal_range(fingerprint);
  for (auto copy = first; copy != last; ++copy) delete_copy_locked(copy->second.entry);
  superseded_.erase(first, last);
  const auto [bad, end] = copies_of_others_.equal_range(fingerprint);
  for (auto copy = bad; copy != end; ++copy) delete_copy_locked(copy->second);
  copies_of_others_.erase(bad, end);
}

ItemResult Catalog::erase(const Fingerprint& fingerprint, const Eviction& named) {
  ItemResult result{.status = ItemStatus::kMiss};
  {
    std::lock_guard lock(mutex_);
    if (!write_refusal_.ok()) return {.status = ItemStatus::kError, .code = write_refusal_.code()};
    IndexEntry* entry = find_readable_locked(fingerprint);
    if (entry != nullptr && pins_.contains(fingerprint)) return {.status = ItemStatus::kError, .code = Code::kBusy};
    // Older copies must not come back, not even after the delete of a key that is a miss already.
    if (KVS_RULE(I12_older_copies_are_deleted_too)) delete_other_copies_locked(fingerprint);
    if (entry == nullptr) return result;
    result = {.status = ItemStatus::kDeleted, .bytes = entry->payload_bytes};
    forget_entry_locked(entry, Forget::kDeleted);
  }
  add(counters_.deletes);
  if (evictions_.has_subscribers()) {
    Eviction eviction = named;
    eviction.payload_bytes = result.bytes;
    evictions_.publish({std::move(eviction)});
  }
  return result;
}

bool Catalog::drop_at(const Fingerprint& fingerprint, uint32_t number, SlotIndex slot, uint64_t generation) {
  std::lock_guard lock(mutex_);
  IndexEntry* entry = index_.find(fingerprint);
  if (entry == nullptr || entry->region != number || entry->slot != slot.value ||
      regions_[number].generation.value != generation) {
    return false;
  }
  forget_entry_locked(entry, Forget::kBad);
  return true;
}

// ---- state -----------------------------------------------------------------------------------------------------

void Catalog::wake_keepers(const std::vector<bool>& wanted) {
  for (uint16_t device = 0; device < wanted.size(); ++device) {
    if (wanted[device]) wake_keeper(device);
  }
}

void Catalog::settle(Completions completions, std::vector<Eviction> evictions) {
  for (auto& [waiter, text] : completions) {
    static_cast<BatchJob*>(waiter.job.get())->complete_item(waiter.item, waiter.result, std::move(text));
  }
  evictions_.publish(std::move(evictions));
}

void Catalog::note_failure_locked(const Status& why) {
  // Shared mode: the lease ran out in the middle, or the region was lost by that; no fault of the device.
  if (shared() && (why.code() == Code::kBusy || why.code() == Code::kStale)) return;
  if (++failures_ >= options_.failures_max && write_refusal_.ok() && KVS_RULE(I6_read_only_after_failures)) {
    write_refusal_ = Status(
        Code::kIo, format_text("the pool is read-only after %u failed writes; see stats() for the counts", failures_));
  }
}

void Catalog::broken(const char* condition, const char* file, int line) noexcept {
  std::fprintf(stderr, "kvstore: invariant broken: %s (%s:%d)\n", condition, file, line);
#ifdef KVSTORE_ABORT_ON_ASSERT
  std::abort();
#else
  if (broken_once_.exchange(true)) return;
  broken_text_ = format_text("invariant broken: %s (%s:%d)", condition, file, line);
  broken_.store(true);
#endif
}

void Catalog::take_broken_locked() {
  if (!broken_.load() || refusal_.code() == Code::kFailed) return;
  refusal_ = Status(Code::kFailed, broken_text_ + "; the store refuses further work, close it and report this");
  write_refusal_ = refusal_;
}

void Catalog::set_read_only(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (write_refusal_.ok()) write_refusal_ = Status(Code::kFenced, "the pool is read-only: " + why);
  }
  for (uint16_t device = 0; device < devices_.size(); ++device) space_changed(device);  // waiting puts are refused
}

void Catalog::set_offline(Code code, const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (refusal_.ok()) refusal_ = Status(code, why);
    write_refusal_ = refusal_;
  }
  for (uint16_t device = 0; device < devices_.size(); ++device) space_changed(device);
}

Status Catalog::writable() {
  std::lock_guard lock(mutex_);
  take_broken_locked();
  return write_refusal_;
}

Status Catalog::put_refusal() {
  std::lock_guard lock(mutex_);
  take_broken_locked();
  return write_refusal_.ok() ? suspension_ : write_refusal_;
}

Status Catalog::usable() {
  std::lock_guard lock(mutex_);
  take_broken_locked();
  return refusal_;
}

uint64_t Catalog::take_lost() {
  std::lock_guard lock(mutex_);
  return std::exchange(lost_, KVS_RULE(I6_a_loss_is_told_once) ? 0 : lost_);
}

std::vector<std::pair<std::string, double>> Catalog::numbers() {
  std::lock_guard lock(mutex_);
  uint64_t by_state[5] = {};
  uint64_t occupied_bytes = 0;
  uint64_t pinned_regions = 0;
  for (const Region& region : regions_) {
    ++by_state[static_cast<size_t>(region.state)];
    if (region.state != RegionState::kFree) occupied_bytes += devices_[region.device].geometry.region_bytes;
    pinned_regions += region.pins != 0;
  }
  uint64_t capacity_bytes = 0;
  for (const DeviceShape& shape : devices_) capacity_bytes += shape.geometry.memory_bytes();
  return {
      {"blocks", static_cast<double>(index_.size())},
      {"blocks_max", static_cast<double>(index_.blocks_max())},
      {"index_bytes", static_cast<double>(index_.memory_bytes())},
      {"live_bytes", static_cast<double>(live_bytes_)},
      {"occupied_bytes", static_cast<double>(occupied_bytes)},
      {"capacity_bytes", static_cast<double>(capacity_bytes)},
      {"regions", static_cast<double>(regions_.size())},
      {"regions_free", static_cast<double>(by_state[0])},
      {"regions_open", static_cast<double>(by_state[1])},
      {"regions_sealed", static_cast<double>(by_state[2])},
      {"regions_retiring", static_cast<double>(by_state[3])},
      {"regions_quarantined", static_cast<double>(by_state[4])},
      {"regions_pinned", static_cast<double>(pinned_regions)},
      {"pins", static_cast<double>(pins_.size())},
      {"puts_in_flight", static_cast<double>(pending_puts_.size())},
      {"write_failures", static_cast<double>(failures_)},
  };
}

}  // namespace kvstore::store
