// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/follower.h"

#include <algorithm>
#include <chrono>

#include "base/assert.h"
#include "base/mutation.h"
#include "store/recovery.h"
#include "store/region_evictor.h"

namespace kvstore::store {

namespace {

using cluster::Hold;

constexpr uint64_t kIdleNs = 1'000'000'000;
constexpr uint64_t kRetiredStepNs = 5'000'000;  // how often a retired region is asked whether its readers are gone
constexpr uint32_t kRegionsPerLook = 64;
constexpr uint32_t kReadsOfRegion = 2;
constexpr uint64_t kSecondNs = 1'000'000'000;

}  // namespace

Follower::Follower(const StoreOptions& options, Setup setup, Catalog& catalog, SpaceRegistry& spaces,
                   Counters& counters, EvictionHub& evictions, Clock& clock)
    : DeviceWorker(clock),
      options_(options),
      setup_(std::move(setup)),
      catalog_(catalog),
      spaces_(spaces),
      counters_(counters),
      evictions_(evictions),
      first_region_(catalog.region_number(setup_.device_number, RegionId{0})),
      reads_left_(options.shared.refresh_reads_per_s) {}

Follower::~Follower() {
  stop();
  join_until(0);
}

// ---- its thread ------------------------------------------------------------------------------------------------

Status Follower::start() {
  const auto prepare = [this]() -> Status {
    KVS_ASSIGN(io_, setup_.make_io());
    reader_ = std::make_unique<RegionReader>(*io_, 0, setup_.superblock, spaces_);
    (void)take_news();  // what was deleted before is a miss from the first lookup on
    return {};
  };
  return DeviceWorker::start(options_.threaded, "kvs-follower", prepare, [this] { run(); });
}

void Follower::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    const bool worked = turn();
    const bool wanted = look_wanted_.load();
    const uint64_t wait_ns = worked ? 0 : next_wait_ns();
    lock.lock();
    if (wait_ns == 0 || stopping_) continue;
    if (put_off_) {
      changed_.wait_for(lock, std::chrono::nanoseconds(kRetiredStepNs), [this] { return stopping_; });
      continue;
    }
    changed_.wait_for(lock, std::chrono::nanoseconds(wait_ns), [this, wanted] {
      // A look that is wanted from now on may have to wait for its gap: how long, the next round tells.
      return stopping_ || !news_.empty() || refreshes_.wanted() || (look_wanted_.load() && !wanted);
    });
  }
}

uint64_t Follower::next_wait_ns() {
  if (followed_.empty() && retired_.empty()) return kIdleNs;
  const uint64_t interval_ns =
      look_wanted_.load() ? options_.shared.refresh_gap_ns : options_.shared.refresh_interval_ns;
  const uint64_t since_ns = clock_.monotonic_ns() - last_look_ns_;
  uint64_t wait_ns = followed_.empty() ? kIdleNs : since_ns < interval_ns ? interval_ns - since_ns : kRetiredStepNs;
  if (!retired_.empty()) wait_ns = std::min(wait_ns, kRetiredStepNs);
  return wait_ns;
}

void Follower::look_soon() {
  if (look_wanted_.exchange(true)) return;
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

Status Follower::refresh(uint64_t timeout_ns, const Interrupted& interrupted) {
  std::unique_lock lock(mutex_);
  const uint64_t ticket = refreshes_.take();
  if (!options_.threaded) {
    lock.unlock();
    while (turn()) {
    }
    lock.lock();
    if (refreshes_.is_done(ticket)) return {};
    refreshes_.give_up();
    return Status(Code::kBusy, "the others' regions cannot be read, try again");
  }
  changed_.notify_all();
  switch (refreshes_.wait(lock, changed_, ticket, timeout_ns, running_, interrupted)) {
    case Code::kOk: return {};
    case Code::kTimeout:
      refreshes_.give_up();  // else it would be worked for without a bound, for as long as it cannot be had
      return Status(Code::kTimeout, "the other openers' regions were not read in time");
    default: return Status(Code::kClosed, "the store was closed during refresh");
  }
}

// ---- what the agent tells --------------------------------------------------------------------------------------

void Follower::tell(uint32_t number, const cluster::RegionView& view) {
  std::lock_guard lock(mutex_);
  news_.push_back({number, view, false, {}});
  unsettled_.insert(number);
  changed_.notify_all();
}

void Follower::tell_deleted(uint32_t number, const cluster::DeadSlots& dead) {
  std::lock_guard lock(mutex_);
  news_.push_back({number, {}, true, dead});
  changed_.notify_all();
}

bool Follower::settled_all() {
  std::lock_guard lock(mutex_);
  return unsettled_.empty();
}

bool Follower::settled(uint32_t number) {
  std::lock_guard lock(mutex_);
  return !unsettled_.contains(number);
}

bool Follower::take_news() {
  std::deque<News> news;
  {
    std::lock_guard lock(mutex_);
    news.swap(news_);
  }
  for (News& one : news) {
    if (!one.deleted) {
      left_open_.erase(one.number);
      take_view(one.number, one.view);
      continue;
    }
    dead_[one.number] = std::move(one.dead);
    const cluster::DeadSlots& dead = dead_[one.number];
    if (!catalog_.mark_deleted(one.number, dead.generation, dead.slots)) continue;
    RegionEvictor evictor(*io_, setup_.superblock, catalog_, spaces_, counters_, evictions_);
    if (!evictor.evict_dead(one.number).ok()) add(counters_.read_errors);
  }
  if (news.empty()) return false;
  std::lock_guard lock(mutex_);
  std::set<uint32_t> told_again;
  for (const News& one : news_) told_again.insert(one.number);
  std::erase_if(unsettled_,
                [&](uint32_t number) { return !retired_.contains(number) && !told_again.contains(number); });
  return true;
}

void Follower::take_view(uint32_t number, const cluster::RegionView& view) {
  if (!view.recorded) return;
  switch (view.hold) {
    case Hold::kFree:
      followed_.erase(number);
      catalog_.set_retired_below(number, Generation{view.generation.value + 1});
      retire(number, Generation{view.generation.value + 1});
      catalog_.set_held_by_peer(number, false);
      return;
    case Hold::kRetiring:
      followed_.erase(number);
      catalog_.set_retired_below(number, view.generation);
      retire(number, view.generation);
      catalog_.set_held_by_peer(number, false);
      return;
    case Hold::kSealed: {
      catalog_.set_retired_below(number, {});
      catalog_.set_held_by_peer(number, false);
      // Read to its end already, by recovery or here.
      const Region known = catalog_.snapshot(number);
      const bool whole =
          known.state == RegionState::kSealed && !known.unsealed_on_device && known.generation == view.generation;
      if (whole && !followed_.contains(number)) return;
      Followed& followed = followed_[number];
      followed.view = view;
      followed.stage = Stage::kHeader;
      return;
    }
    case Hold::kOwned: break;
  }
  catalog_.set_retired_below(number, view.generation);
  // A life that this opener never heard of may lie between: what it knows is older all the same.
  retire(number, view.generation);
  if (view.mine) {
    followed_.erase(number);
    return;
  }
  catalog_.set_held_by_peer(number, !view.owner_gone);
  Followed& followed = followed_[number];
  if (followed.view.generation != view.generation) followed = {};
  followed.view = view;
  followed.last_look = !view.owner_lives;
}

void Follower::retire(uint32_t number, Generation below) {
  if (!catalog_.retire(number, below)) return;
  Generation& so_far = retired_[number];
  so_far = std::max(so_far, below);
}

bool Follower::drop_retired() {
  bool worked = false;
  for (auto next = retired_.begin(); next != retired_.end();) {
    const auto [number, below] = *next++;
    // Again: it may have been ours, and open, when it was retired.
    if (!catalog_.retire(number, below)) {
      retired_.erase(number);
    } else if (catalog_.state_of(number) == RegionState::kRetiring && !catalog_.has_readers(number)) {
      RegionEvictor evictor(*io_, setup_.superblock, catalog_, spaces_, counters_, evictions_);
      if (!evictor.evict_all(number).ok()) add(counters_.read_errors);
      catalog_.reclaimed(number, {});
      retired_.erase(number);
    } else {
      continue;
    }
    worked = true;
    std::lock_guard lock(mutex_);
    const bool told_again =
        std::any_of(news_.begin(), news_.end(), [number = number](const News& one) { return one.number == number; });
    if (!told_again) unsettled_.erase(number);
  }
  return worked;
}

// ---- looking ---------------------------------------------------------------------------------------------------

bool Follower::turn() {
  bool worked = take_news();
  worked |= drop_retired();
  uint64_t ticket = 0;
  {
    std::lock_guard lock(mutex_);
    ticket = refreshes_.last();
  }
  const bool asked = !refreshes_.is_done(ticket);
  if (asked && std::exchange(looked_again_for_, ticket) != ticket) {
    for (const auto& [number, view] : std::exchange(left_open_, {})) {
      followed_[number] = {.view = view, .last_look = true, .header = {}, .cursor = {}};
    }
  }
  if (!asked && !may_look()) return worked;
  const bool wanted = look_wanted_.exchange(false);
  last_look_ns_ = clock_.monotonic_ns();
  const uint64_t learnt = counters_.blocks_learnt.load();
  put_off_ = false;
  const Status looked = look();
  if (!looked.ok()) {
    add(counters_.read_errors);
    // A queue that failed, or holds a stuck read, is given up for another one.
    if (auto io = setup_.make_io(); io.ok()) {
      std::unique_ptr<device::BlockingIo> given_up = std::move(io).value();
      {
        std::lock_guard lock(mutex_);  // join_until() may be about to give up on it
        std::swap(io_, given_up);
      }
      reader_ = std::make_unique<RegionReader>(*io_, 0, setup_.superblock, spaces_);
    }
  }
  if (!asked) return worked || (wanted && learnt != counters_.blocks_learnt.load());
  std::lock_guard lock(mutex_);
  put_off_ |= !looked.ok();
  if (!put_off_) refreshes_.call_done(ticket);
  changed_.notify_all();
  return worked || !put_off_;
}

bool Follower::may_look() {
  if (followed_.empty()) {
    look_wanted_ = false;  // there is nobody who could have put what was missed
    return false;
  }
  const uint64_t now_ns = clock_.monotonic_ns();
  if (now_ns - reads_refilled_ns_ >= kSecondNs / 10) {
    const uint64_t tenths = std::min<uint64_t>((now_ns - reads_refilled_ns_) / (kSecondNs / 10), 10);
    const uint64_t most = std::max<uint64_t>(options_.shared.refresh_reads_per_s, kReadsOfRegion);
    reads_left_ = std::min<uint64_t>(most, reads_left_ + std::max<uint64_t>(most * tenths / 10, kReadsOfRegion));
    reads_refilled_ns_ = now_ns;
  }
  if (reads_left_ < kReadsOfRegion) return false;
  const uint64_t gap_ns = look_wanted_.load() ? options_.shared.refresh_gap_ns : options_.shared.refresh_interval_ns;
  return now_ns - last_look_ns_ >= gap_ns;
}

void Follower::spend(uint64_t reads) {
  add(counters_.peer_reads, reads);
  reads_left_ -= std::min<uint64_t>(reads_left_, reads);
}

// Every followed region, unless the bound on reads ends it: the next look goes on there.
Status Follower::look() {
  add(counters_.peer_looks);
  const auto all = static_cast<uint32_t>(followed_.size());
  uint32_t done = 0;
  while (done < all) {
    std::vector<uint32_t> numbers;
    auto next = followed_.lower_bound(next_followed_);
    while (numbers.size() < kRegionsPerLook && done < all) {
      if (next == followed_.end()) next = followed_.begin();
      numbers.push_back(next->first);
      ++next;
      ++done;
    }
    next_followed_ = numbers.back() + 1;
    std::vector<uint32_t> headers;
    for (const uint32_t number : numbers) {
      if (followed_[number].stage == Stage::kHeader) headers.push_back(number);
    }
    KVS_TRY(look_at_headers(headers));
    std::vector<uint32_t> open;
    for (const uint32_t number : numbers) {
      if (followed_[number].stage == Stage::kOpen) open.push_back(number);
    }
    KVS_TRY(look_at_open(open));
    for (const uint32_t number : numbers) {
      if (followed_[number].stage == Stage::kSealed) KVS_TRY(read_sealed(number));
    }
    const bool asked = [this] {
      std::lock_guard lock(mutex_);
      return refreshes_.wanted();
    }();
    if (reads_left_ < kReadsOfRegion && !asked) break;
  }
  return {};
}

Status Follower::look_at_headers(std::vector<uint32_t>& numbers) {
  if (numbers.empty()) return {};
  std::vector<RegionId> regions;
  for (const uint32_t number : numbers) regions.push_back(id_of(number));
  spend(regions.size());
  KVS_ASSIGN(const HeaderScan scan, scan_headers(*io_, setup_.superblock, regions));
  for (size_t i = 0; i < numbers.size(); ++i) {
    Followed& followed = followed_[numbers[i]];
    const format::RegionHeader& header = scan.headers[i];
    const bool is_whole = !scan.unreadable[i] && header.generation >= followed.view.generation &&
                          (followed.view.hold != Hold::kSealed || header.state == RegionState::kSealed);
    if (scan.in_doubt[i] && !is_whole) {
      add(counters_.read_errors);
      continue;  // the next look tries again
    }
    // Owned: taken ahead of need, and its life has not begun. Sealed: what the engine calls so was on the device
    // before.
    const bool begun = followed.view.hold == Hold::kSealed
                           ? header.generation.value != 0
                           : header.generation >= followed.view.generation && header.state != RegionState::kFree;
    if (!scan.unreadable[i] && begun) {
      begin_life(numbers[i], followed, header);
    } else if (followed.view.hold == Hold::kSealed || followed.last_look) {
      leave_alone(numbers[i]);  // nothing there that could be read
    }
  }
  return {};
}

void Follower::begin_life(uint32_t number, Followed& followed, const format::RegionHeader& header) {
  if (!catalog_.learn_life(number, header, setup_.superblock.geometry.dictionary_blocks)) {
    retire(number, header.generation);  // an earlier life goes first
    if (retired_.contains(number)) {
      put_off_ = true;
    } else {
      followed_.erase(number);  // retired, or ours
    }
    return;
  }
  const auto dead = dead_.find(number);
  if (dead != dead_.end()) (void)catalog_.mark_deleted(number, dead->second.generation, dead->second.slots);
  followed.header = header;
  if (header.state != RegionState::kOpen || followed.view.hold == Hold::kSealed || followed.last_look) {
    followed.stage = Stage::kSealed;
    return;
  }
  followed.stage = Stage::kOpen;
  followed.cursor = {};
  followed.cursor.request = {.region = id_of(number),
                             .generation = header.generation,
                             .extent_bytes = header.extent_bytes,
                             .slot_count = header.slot_count,
                             .descriptor_count = 0,
                             .dictionary_count = 0,
                             .is_open = true};
}

Status Follower::look_at_open(const std::vector<uint32_t>& numbers) {
  if (numbers.empty()) return {};
  std::vector<RegionCursor*> cursors;
  for (const uint32_t number : numbers) cursors.push_back(&followed_[number].cursor);
  KVS_ASSIGN(const auto added, reader_->read_added(cursors));
  for (size_t i = 0; i < numbers.size(); ++i) {
    spend(added[i].reads);
    Followed& followed = followed_[numbers[i]];
    if (!added[i].status.ok()) add(counters_.read_errors);
    if (added[i].status.ok()) {
      learn(numbers[i], followed.cursor.contents, added[i].descriptors, followed.header.generation);
    }
    // Of one whose owner is not there any more: all that is there.
    if (followed.last_look) followed.stage = Stage::kHeader;
  }
  return {};
}

Status Follower::read_sealed(uint32_t number) {
  const format::RegionHeader header = followed_[number].header;
  const bool sealed = header.state == RegionState::kSealed;
  spend(kReadsOfRegion);
  KVS_ASSIGN(const RegionContents contents, reader_->read({.region = id_of(number),
                                                           .generation = header.generation,
                                                           .extent_bytes = header.extent_bytes,
                                                           .slot_count = header.slot_count,
                                                           .descriptor_count = header.descriptor_count,
                                                           .dictionary_count = header.dictionary_count,
                                                           .is_open = !sealed}));
  add(counters_.bytes_read_metadata, contents.bytes_read);
  learn(number, contents, contents.descriptors, header.generation);
  leave_alone(number);
  return {};
}

void Follower::leave_alone(uint32_t number) {
  const auto followed = followed_.find(number);
  if (followed->second.last_look) left_open_[number] = followed->second.view;
  followed_.erase(followed);
}

void Follower::learn(uint32_t number, const RegionContents& contents,
                     const std::vector<format::Descriptor>& descriptors, Generation generation) {
  std::vector<IndexBuilder::Candidate> blocks;
  blocks.reserve(descriptors.size());
  for (const format::Descriptor& descriptor : descriptors) {
    blocks.push_back(reader_->candidate(contents, descriptor, number, generation));
  }
  add(counters_.blocks_learnt, catalog_.learn(number, generation, blocks));
}

}  // namespace kvstore::store
