// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/shared_pool.h"

#include <algorithm>
#include <chrono>

#include "store/process_identity.h"

namespace kvstore::store {

namespace {

using cluster::DeadSlots;
using cluster::HeaderFacts;
using cluster::Hold;
using cluster::RegionKey;
using cluster::RegionView;

constexpr uint64_t kWatchNs = 50'000'000;  // the agent looks after the store's wishes this often
// While regions come and go: with small ones an opener fills all that it has ready in less than kWatchNs.
constexpr uint64_t kBusyWatchNs = 5'000'000;
constexpr uint64_t kBusyNs = 200'000'000;  // this long after the last of them
constexpr uint64_t kJoinStepNs = 20'000'000;

cluster::Agent::Setup agent_setup(const StoreOptions& options, const SharedPool::Setup& setup) {
  cluster::Agent::Setup agent;
  agent.engine = options.shared.engine;
  agent.prefix = cluster::pool_prefix(setup.superblocks[0].pool_uuid);
  for (const format::Superblock& superblock : setup.superblocks) {
    agent.region_counts.push_back(superblock.geometry.region_count);
    agent.epoch_floor = std::max(agent.epoch_floor, superblock.owner.epoch);
  }
  agent.identity = options.shared.identity.value_or(this_process(options.host));
  agent.is_gone = options.shared.is_gone;
  if (!agent.is_gone) {
    agent.is_gone = [me = agent.identity](const cluster::Opener& opener) { return is_certainly_gone(opener, me); };
  }
  return agent;
}

cluster::AgentOptions agent_options(const StoreOptions& options, bool first_ever) {
  return {.lease_ns = options.shared.lease_ns,
          .orphan_quarantine_ns = options.shared.orphan_quarantine_ns,
          .hits_interval_ns = options.shared.hits_interval_ns,
          .first_ever = first_ever};
}

Hold hold_of(const format::RegionHeader& header, bool unreadable) {
  if (unreadable) return Hold::kOwned;  // by nobody that is known: left alone
  switch (header.state) {
    case RegionState::kOpen: return Hold::kOwned;
    case RegionState::kSealed: return Hold::kSealed;
    default: return Hold::kFree;
  }
}

}  // namespace

SharedPool::SharedPool(const StoreOptions& options, Setup setup, Clock& clock, Random& random)
    : options_(options),
      setup_(std::move(setup)),
      clock_(clock),
      agent_(agent_options(options, setup_.first_ever), agent_setup(options, setup_), *this, clock, random) {}

SharedPool::~SharedPool() {
  stop(0);
  // An opening that failed after it had joined: else it would hold up every reuse for a lease, and be judged like one
  // that was killed.
  (void)leave(catalog_ == nullptr || !catalog_->any_write_unknown());
}

// ---- opening ---------------------------------------------------------------------------------------------------

Status SharedPool::join(uint64_t until_ns) {
  while (true) {
    Status joined = agent_.join();
    if (joined.ok()) return joined;
    if (clock_.monotonic_ns() >= until_ns) return Status(joined.code(), "joining the pool: " + joined.message());
    clock_.sleep_ns(kJoinStepNs);
  }
}

bool SharedPool::is_over(uint16_t device, const format::RegionHeader& header) const {
  const RegionView view = agent_.view({device, header.region.value});
  if (!view.recorded) return false;
  if (view.hold == Hold::kFree || view.hold == Hold::kRetiring) return true;
  return view.hold == Hold::kOwned && header.generation < view.generation;
}

Status SharedPool::start(Catalog& catalog, SpaceRegistry& spaces, Counters& counters, EvictionHub& evictions) {
  catalog_ = &catalog;
  std::vector<RegionKey> empty;
  for (uint16_t device = 0; device < setup_.superblocks.size(); ++device) {
    Follower::Setup follower;
    follower.device_number = device;
    follower.superblock = setup_.superblocks[device];
    follower.make_io = [this, device] { return setup_.make_io(device); };
    followers_.push_back(
        std::make_unique<Follower>(options_, std::move(follower), catalog, spaces, counters, evictions, clock_));
    for (uint32_t i = 0; i < setup_.superblocks[device].geometry.region_count; ++i) {
      const RegionKey region{device, i};
      const RegionView view = agent_.view(region);
      if (view.recorded) followers_.back()->tell(number_of(region), view);
      if (catalog.state_of(number_of(region)) == RegionState::kFree) empty.push_back(region);
    }
  }
  for (const auto& [region, dead] : std::exchange(early_deletes_, {})) deleted(region, dead);
  agent_.recovered(empty);
  catalog.set_epoch(agent_.epoch());
  catalog.set_openers(agent_.live_openers());
  confirmed(confirmed_at_ns_, true);
  for (auto& follower : followers_) KVS_TRY(follower->start());
  publish_counters();
  if (!options_.threaded) return {};
  {
    std::lock_guard lock(mutex_);
    running_ = true;
  }
  Status started = thread_.start("kvs-agent", [] { return Status(); }, [this] { run(); });
  if (!started.ok()) {
    std::lock_guard lock(mutex_);
    running_ = false;
  }
  return started;
}

void SharedPool::run() {
  while (true) {
    const uint64_t began_ns = clock_.monotonic_ns();
    const bool worked = turn();
    std::unique_lock lock(mutex_);
    if (stopping_) break;
    // The watch waits while there is one that answers; else the engine is not to be asked without pause.
    if (!worked && clock_.monotonic_ns() - began_ns < watch_ns_ / 2) {
      changed_.wait_for(lock, std::chrono::nanoseconds(watch_ns_), [this] { return stopping_; });
    }
  }
  std::lock_guard lock(mutex_);
  running_ = false;
  changed_.notify_all();
}

bool SharedPool::turn() {
  uint64_t ticket = 0;
  uint64_t catch_up_ticket = 0;
  {
    std::lock_guard lock(mutex_);
    ticket = flushes_.last();
    catch_up_ticket = catch_ups_.last();
  }
  for (const auto& [region, spent] : std::exchange(ungranted_, {})) granted(region, spent);
  if (!catch_ups_.is_done(catch_up_ticket) && agent_.catch_up().ok()) {
    std::lock_guard lock(mutex_);
    catch_ups_.call_done(catch_up_ticket);
    changed_.notify_all();
  }
  const uint64_t began_ns = clock_.monotonic_ns();
  watch_ns_ = began_ns - last_worked_ns_ < kBusyNs ? kBusyWatchNs : kWatchNs;
  bool worked = agent_.turn(options_.threaded ? watch_ns_ : 0);
  if (worked) last_worked_ns_ = began_ns;
  if (!options_.threaded) {
    for (auto& follower : followers_) worked |= follower->turn();
  }
  publish_counters();
  std::lock_guard lock(mutex_);
  if (!flushes_.is_done(ticket) && agent_.joined() && !catalog_->deletes_wait()) {
    flushes_.call_done(ticket);
    changed_.notify_all();
  }
  return worked;
}

void SharedPool::publish_counters() {
  std::lock_guard lock(mutex_);
  counters_ = agent_.counters();
  live_openers_ = agent_.live_openers();
  engine_keys_ = agent_.keys_known();
}

// ---- for the store ---------------------------------------------------------------------------------------------

void SharedPool::missed() {
  for (auto& follower : followers_) follower->look_soon();
}

Status SharedPool::refresh(uint64_t timeout_ns, const Interrupted& interrupted) {
  const uint64_t now_ns = clock_.monotonic_ns();
  const uint64_t until_ns = timeout_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + timeout_ns;
  // What the others took since is only in the engine yet.
  KVS_TRY(catch_up(until_ns - now_ns, interrupted));
  for (auto& follower : followers_) {
    const uint64_t at_ns = clock_.monotonic_ns();
    KVS_TRY(follower->refresh(until_ns > at_ns ? until_ns - at_ns : 0, interrupted));
  }
  return {};
}

Status SharedPool::catch_up(uint64_t timeout_ns, const Interrupted& interrupted) {
  std::unique_lock lock(mutex_);
  const uint64_t ticket = catch_ups_.take();
  if (!options_.threaded) {
    lock.unlock();
    turn();
    lock.lock();
    if (catch_ups_.is_done(ticket)) return {};
    catch_ups_.give_up();
    return Status(Code::kBusy, "the metadata engine does not answer");
  }
  switch (catch_ups_.wait(lock, changed_, ticket, timeout_ns, running_, interrupted)) {
    case Code::kOk: return {};
    case Code::kTimeout:
      catch_ups_.give_up();
      return Status(Code::kTimeout, "the metadata engine did not tell in time what the other openers have");
    default: return Status(Code::kClosed, "the store was closed during refresh");
  }
}

Status SharedPool::flush(uint64_t timeout_ns, const Interrupted& interrupted) {
  if (!catalog_->deletes_wait()) return {};
  std::unique_lock lock(mutex_);
  const uint64_t ticket = flushes_.take();
  if (!options_.threaded) {
    lock.unlock();
    turn();
    turn();
    return flushes_.is_done(ticket) ? Status() : Status(Code::kBusy, "deletes are not in the metadata engine yet");
  }
  switch (flushes_.wait(lock, changed_, ticket, timeout_ns, running_, interrupted)) {
    case Code::kOk: return {};
    case Code::kTimeout: return Status(Code::kTimeout, "the metadata engine did not take the deletes in time");
    default: return Status(Code::kClosed, "the store was closed during flush");
  }
}

void SharedPool::stop(uint64_t until_ns) {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  // The agent waits for the engine at most as long as the engine's own time limit.
  thread_.join([] { return false; });
  for (auto& follower : followers_) {
    follower->stop();
    follower->join_until(until_ns);
  }
}

Status SharedPool::leave(bool all_ended) {
  leaving_ = true;
  Status left = agent_.leave(all_ended);
  publish_counters();
  return left;
}

std::vector<std::pair<std::string, double>> SharedPool::numbers() const {
  std::lock_guard lock(mutex_);
  return {
      {"openers", live_openers_},
      {"engine_keys", static_cast<double>(engine_keys_)},
      {"engine_requests", static_cast<double>(counters_.requests)},
      {"engine_errors", static_cast<double>(counters_.request_errors)},
      {"engine_renewals", static_cast<double>(counters_.renewals)},
      {"engine_contended", static_cast<double>(counters_.contended)},
      {"engine_resyncs", static_cast<double>(counters_.resyncs)},
      {"engine_rebuilds", static_cast<double>(counters_.rebuilds)},
      {"rejoins", static_cast<double>(counters_.rejoins)},
      {"regions_taken", static_cast<double>(counters_.takes)},
      {"regions_retired", static_cast<double>(counters_.retires)},
      {"regions_lost", static_cast<double>(counters_.regions_lost)},
  };
}

// ---- told by the agent -----------------------------------------------------------------------------------------

uint32_t SharedPool::number_of(const RegionKey& region) const {
  return catalog_->region_number(region.device, RegionId{region.region});
}

RegionKey SharedPool::key_of(uint32_t number) const {
  RegionKey key;
  while (key.device + 1u < setup_.superblocks.size() &&
         number >= catalog_->region_number(static_cast<uint16_t>(key.device + 1), RegionId{0})) {
    ++key.device;
  }
  key.region = number - catalog_->region_number(key.device, RegionId{0});
  return key;
}

std::vector<RegionKey> SharedPool::keys_of(const std::vector<uint32_t>& numbers) const {
  std::vector<RegionKey> keys;
  for (const uint32_t number : numbers) keys.push_back(key_of(number));
  return keys;
}

void SharedPool::joined(uint64_t epoch) {
  if (catalog_ != nullptr) catalog_->set_epoch(epoch);
}

void SharedPool::openers_changed(uint32_t live) {
  if (catalog_ != nullptr) catalog_->set_openers(live);
}

void SharedPool::confirmed(uint64_t asked_ns, bool puts_go_on) {
  confirmed_at_ns_ = asked_ns;
  if (catalog_ == nullptr) return;
  for (uint16_t device = 0; device < setup_.superblocks.size(); ++device) catalog_->confirmed(device, asked_ns);
  if (puts_go_on) catalog_->resume();
}

void SharedPool::unconfirmed(const Status& why) {
  if (catalog_ != nullptr) catalog_->suspend(why);
}

void SharedPool::region_changed(const RegionKey& region, const RegionView& view) {
  if (catalog_ != nullptr) followers_[region.device]->tell(number_of(region), view);
}

void SharedPool::deleted(const RegionKey& region, const DeadSlots& dead) {
  if (catalog_ == nullptr) {
    early_deletes_.emplace_back(region, dead);
  } else {
    followers_[region.device]->tell_deleted(number_of(region), dead);
  }
}

void SharedPool::granted(const RegionKey& region, Generation spent) {
  if (catalog_->grant(number_of(region), spent)) return;
  ungranted_.emplace_back(region, spent);
}

void SharedPool::lost(const RegionKey& region) {
  std::erase_if(ungranted_, [&](const auto& one) { return one.first == region; });
  if (catalog_ != nullptr) catalog_->lose(number_of(region));
}

void SharedPool::state_was_rebuilt() {
  if (catalog_ != nullptr) catalog_->tell_deletes_again();
}

void SharedPool::regions_read_by_others(std::span<const uint8_t> hits) {
  if (catalog_ != nullptr) catalog_->touch_regions(hits);
}

// ---- asked by the agent ----------------------------------------------------------------------------------------

uint32_t SharedPool::regions_wanted(uint16_t device) {
  const auto waiting = static_cast<uint32_t>(
      std::count_if(ungranted_.begin(), ungranted_.end(), [&](const auto& one) { return one.first.device == device; }));
  const uint32_t wanted = catalog_->regions_wanted(device);
  return wanted > waiting ? wanted - waiting : 0;
}

Generation SharedPool::header_generation(const RegionKey& region) {
  return catalog_ == nullptr ? Generation{} : catalog_->generation_of(number_of(region));
}

std::optional<RegionKey> SharedPool::victim(uint16_t device) {
  const std::optional<uint32_t> number = catalog_->propose_victim(device);
  return number ? std::optional<RegionKey>(key_of(*number)) : std::nullopt;
}

bool SharedPool::holds_nothing(const RegionKey& region) {
  const uint32_t number = number_of(region);
  return followers_[region.device]->settled(number) && catalog_->state_of(number) == RegionState::kFree;
}

std::vector<RegionKey> SharedPool::take_sealed() {
  return catalog_ == nullptr ? std::vector<RegionKey>() : keys_of(catalog_->take_sealed());
}

std::vector<RegionKey> SharedPool::take_released() {
  if (catalog_ == nullptr) return {};
  std::vector<RegionKey> released = keys_of(catalog_->take_released());
  if (!leaving_) return released;
  for (const auto& [region, spent] : std::exchange(ungranted_, {})) released.push_back(region);
  return released;
}

std::vector<std::pair<RegionKey, Generation>> SharedPool::take_conflicts() {
  std::vector<std::pair<RegionKey, Generation>> conflicts;
  if (catalog_ == nullptr) return conflicts;
  for (const auto& [number, generation] : catalog_->take_conflicts())
    conflicts.emplace_back(key_of(number), generation);
  return conflicts;
}

std::vector<std::pair<RegionKey, DeadSlots>> SharedPool::take_deletes() {
  std::vector<std::pair<RegionKey, DeadSlots>> deletes;
  if (catalog_ == nullptr) return deletes;
  for (Catalog::DeletedSlots& one : catalog_->take_deleted()) {
    deletes.push_back({key_of(one.region), {one.generation, std::move(one.slots)}});
  }
  return deletes;
}

void SharedPool::deletes_done(const std::vector<RegionKey>& untold) {
  for (const RegionKey& region : untold) catalog_->deleted_again(number_of(region));
  catalog_->deletes_told();
}

bool SharedPool::drained_all() {
  return std::all_of(followers_.begin(), followers_.end(),
                     [](const auto& follower) { return follower->settled_all(); });
}

bool SharedPool::drained(const RegionKey& region) {
  return catalog_ == nullptr || followers_[region.device]->settled(number_of(region));
}

std::vector<uint8_t> SharedPool::take_hits() { return catalog_->take_hits(); }

Result<std::vector<HeaderFacts>> SharedPool::scan_headers(const RegionKey& first, uint32_t count) {
  std::vector<RegionId> regions;
  for (uint32_t i = 0; i < count; ++i) regions.push_back(RegionId{first.region + i});
  KVS_ASSIGN(auto io, setup_.make_io(first.device));
  KVS_ASSIGN(const HeaderScan scan, store::scan_headers(*io, setup_.superblocks[first.device], regions));
  std::vector<HeaderFacts> facts;
  for (size_t i = 0; i < scan.headers.size(); ++i) {
    const format::RegionHeader& header = scan.headers[i];
    facts.push_back({{first.device, header.region.value},
                     hold_of(header, scan.unreadable[i]),
                     header.generation,
                     header.owner_epoch.value});
  }
  return facts;
}

}  // namespace kvstore::store
