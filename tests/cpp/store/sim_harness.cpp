// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/sim_harness.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "format/descriptor.h"
#include "store/format_device.h"

namespace kvstore::store {

namespace {

constexpr uint64_t kIdleStepNs = 1'000'000;
constexpr uint64_t kStepsMax = 5'000'000;
constexpr uint64_t kGuardBytes = kPageBytes;
constexpr uint8_t kGuardByte = 0xa5;
constexpr uint8_t kFreshByte = 0x5a;

uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

uint64_t payload_seed(const Name& name, uint32_t version) {
  uint64_t seed = mix(name.space * 1000003ULL + version);
  for (const char c : name.key) seed = mix(seed ^ static_cast<uint8_t>(c));
  seed = mix(seed + 7);
  for (const char c : name.salt) seed = mix(seed ^ static_cast<uint8_t>(c));
  return seed;
}

// As they are on the device: padded with zeros.
uint64_t first_bytes(const Name& name, uint32_t version, uint64_t payload_bytes) {
  uint64_t first = 0;
  fill_payload(name, version, 0, reinterpret_cast<uint8_t*>(&first), std::min<uint64_t>(payload_bytes, sizeof first));
  return first;
}

// Calls visit(offset within the payload, pointer, bytes) for each run of the segments, up to `bytes`.
template <typename Visit>
void for_each_segment(const std::vector<iovec>& segments, uint64_t bytes, Visit visit) {
  uint64_t done = 0;
  for (const iovec& segment : segments) {
    const uint64_t run = std::min<uint64_t>(segment.iov_len, bytes - done);
    if (run == 0) return;
    visit(done, static_cast<uint8_t*>(segment.iov_base), run);
    done += run;
  }
}

std::string identity_text(std::string_view space_json, std::string_view salt, std::string_view stored_key) {
  std::string text(space_json);
  text.append(1, '\0').append(salt).append(1, '\0').append(stored_key);
  return text;
}

const char* text_of(ItemStatus status) {
  switch (status) {
    case ItemStatus::kPending: return "pending";
    case ItemStatus::kHit: return "hit";
    case ItemStatus::kMiss: return "miss";
    case ItemStatus::kStored: return "stored";
    case ItemStatus::kPresent: return "present";
    case ItemStatus::kDeleted: return "deleted";
    case ItemStatus::kError: return "error";
  }
  return "?";
}

// Thousands of stores are opened and dropped: zeroing fresh pages for each would be most of the time.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

}  // namespace

// ---- blocks ----------------------------------------------------------------------------------------------------

void fill_payload(const Name& name, uint32_t version, uint64_t offset, uint8_t* target, uint64_t bytes) {
  const uint64_t seed = payload_seed(name, version);
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t word = mix(seed + (offset + done) / 8);
    const uint64_t skip = (offset + done) % 8;
    const uint64_t run = std::min<uint64_t>(8 - skip, bytes - done);
    std::memcpy(target + done, reinterpret_cast<const uint8_t*>(&word) + skip, run);
    done += run;
  }
}

bool is_payload(const Name& name, uint32_t version, uint64_t offset, const uint8_t* data, uint64_t bytes) {
  const uint64_t seed = payload_seed(name, version);
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t word = mix(seed + (offset + done) / 8);
    const uint64_t skip = (offset + done) % 8;
    const uint64_t run = std::min<uint64_t>(8 - skip, bytes - done);
    if (std::memcmp(data + done, reinterpret_cast<const uint8_t*>(&word) + skip, run) != 0) return false;
    done += run;
  }
  return true;
}

Buffers::Buffers(uint64_t bytes, const Layout& layout) : bytes_(bytes) {
  const uint64_t count = std::clamp<uint64_t>(layout.segments, 1, std::max<uint64_t>(bytes, 1));
  // Whole pages each but for the last, where there are enough: what an engine's layers look like.
  uint64_t each = bytes / count;
  if (each > kPageBytes) each = align_down(each, kPageBytes);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t length = i + 1 == count ? bytes - each * (count - 1) : each;
    AlignedBuffer& memory = memory_.emplace_back(2 * kGuardBytes + layout.misaligned_bytes + length);
    std::memset(memory.data(), kGuardByte, memory.size());
    uint8_t* const base = memory.data() + kGuardBytes + layout.misaligned_bytes;
    std::memset(base, kFreshByte, length);
    segments_.push_back({base, length});
  }
}

void Buffers::fill(const Name& name, uint32_t version) {
  for_each_segment(segments_, bytes_, [&](uint64_t offset, uint8_t* run, uint64_t bytes) {
    fill_payload(name, version, offset, run, bytes);
  });
}

bool Buffers::holds(const Name& name, uint32_t version, uint64_t offset, uint64_t bytes) const {
  bool same = bytes <= bytes_;
  for_each_segment(segments_, std::min(bytes, bytes_), [&](uint64_t first, uint8_t* run, uint64_t count) {
    same = same && is_payload(name, version, offset + first, run, count);
  });
  return same;
}

bool Buffers::untouched_from(uint64_t first) const {
  bool fresh = guards_intact();
  for_each_segment(segments_, bytes_, [&](uint64_t offset, const uint8_t* run, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; ++i) fresh = fresh && (offset + i < first || run[i] == kFreshByte);
  });
  return fresh;
}

bool Buffers::guards_intact() const {
  for (size_t i = 0; i < memory_.size(); ++i) {
    const uint8_t* const base = static_cast<const uint8_t*>(segments_[i].iov_base);
    const uint8_t* const end = memory_[i].data() + memory_[i].size();
    const auto is_guard = [](uint8_t byte) { return byte == kGuardByte; };
    if (!std::all_of(memory_[i].data(), base, is_guard)) return false;
    if (!std::all_of(base + segments_[i].iov_len, end, is_guard)) return false;
  }
  return true;
}

// ---- making and opening ----------------------------------------------------------------------------------------

uint64_t device_bytes_for(uint32_t regions, uint64_t region_bytes, uint64_t min_block_bytes) {
  format::GeometryOptions options;
  options.region_bytes = region_bytes;
  options.min_block_bytes = min_block_bytes;
  options.device_bytes = format::kMetadataOffset + regions * region_bytes + kMiB + kPageBytes;
  while (true) {
    const auto geometry = format::choose_geometry(options);
    if (geometry.ok() && geometry.value().region_count >= regions) return options.device_bytes;
    options.device_bytes += 16 * kKiB;
  }
}

device::SimRule rule_of(device::SimFault fault, std::optional<device::IoOp> op, uint64_t first_byte, uint64_t last_byte,
                        uint64_t times, uint64_t skip, uint64_t value) {
  device::SimRule rule;
  rule.fault = fault;
  rule.op = op;
  rule.first_byte = first_byte;
  rule.last_byte = last_byte;
  rule.times = times;
  rule.skip = skip;
  rule.value = value;
  return rule;
}

uint64_t case_stride() {
  const char* const text = std::getenv("KVS_STRIDE");
  return text == nullptr ? 1 : std::max<uint64_t>(std::strtoull(text, nullptr, 10), 1);
}

SimStore::SimStore(const SimSetup& setup) : setup_(setup), random_(setup.seed) {
  keep_freed_memory();
  const uint64_t bytes = device_bytes_for(setup.regions, setup.region_bytes, setup.min_block_bytes);
  std::vector<std::unique_ptr<device::Device>> devices;
  std::vector<device::Device*> pointers;
  for (uint32_t i = 0; i < setup.devices; ++i) {
    disks_.push_back(std::make_unique<device::SimDisk>(bytes, setup.seed * 64 + i));
    devices.push_back(make_device(i));
    pointers.push_back(devices.back().get());
  }
  FormatOptions options;
  options.region_bytes = setup.region_bytes;
  options.min_block_bytes = setup.min_block_bytes;
  auto formatted = format_devices(pointers, options, clock_, random_);
  if (!formatted.ok()) throw std::runtime_error(formatted.status().to_string());
  formatted_ = std::move(formatted).value();
}

SimStore::~SimStore() {
  if (store_ != nullptr) drop_store();
}

std::string SimStore::space_json(uint32_t number) {
  return R"({"engine":"sim","model":"m)" + std::to_string(number) + R"("})";
}

std::unique_ptr<device::Device> SimStore::make_device(uint32_t number) {
  device::SimDeviceOptions options = setup_.device;
  options.path = "sim:" + std::to_string(number);
  return device::make_sim_device(*disks_[number], options, clock_);
}

StoreOptions SimStore::options() const {
  StoreOptions options = setup_.store;
  options.threaded = false;
  options.clock = const_cast<ManualClock*>(&clock_);
  options.random = const_cast<SeededRandom*>(&random_);
  if (options.host == format::Uuid{}) options.host.fill(7);
  const StoreOptions defaults;
  // The defaults are sized for real devices, and hundreds of openings are what these tests are about.
  if (options.staging_bytes == defaults.staging_bytes) options.staging_bytes = 8 * kMiB;
  if (options.prefetch_bytes == defaults.prefetch_bytes) options.prefetch_bytes = 8 * kMiB;
  return options;
}

Status SimStore::open() {
  for (auto& watch : watches_) watch->begin_life();
  std::vector<std::unique_ptr<device::Device>> devices;
  for (uint32_t i = 0; i < setup_.devices; ++i) devices.push_back(make_device(i));
  auto opened = Store::open_devices(std::move(devices), options());
  if (!opened.ok()) return opened.status();
  store_ = std::move(opened).value();
  feed_ = store_->subscribe_evictions(1u << 20);
  spaces_.clear();
  for (uint32_t i = 0; i < kSpaces; ++i) spaces_.push_back(store_->register_space(space_json(i)).value());
  return {};
}

bool SimStore::stopped() const {
  return std::any_of(disks_.begin(), disks_.end(), [](const auto& disk) { return disk->stopped(); });
}

Status SimStore::close(uint64_t timeout_ns) {
  const Status status = store_->close(timeout_ns);
  take_evictions();
  if (status.ok()) {
    for (auto& [name, record] : records_) {
      record.durable = record.live.has_value() && !record.uncertain;
      if (record.erased && !record.live && !metadata_rots_) record.possible.clear();
      record.erased = false;
    }
  }
  feed_.reset();
  store_.reset();
  return status;
}

void SimStore::drop_store() {
  for (auto& disk : disks_) disk->release_stuck();
  uint64_t idle_steps = 0;
  while ((number("jobs_in_flight") != 0 || number("pieces_in_flight") != 0) && idle_steps < 200'000) {
    if (store_->step()) continue;
    ++idle_steps;
    clock_.advance_ns(kIdleStepNs);
  }
  if (number("jobs_in_flight") != 0 || number("pieces_in_flight") != 0) {
    violation("jobs or pieces never end after the device is gone: " + std::to_string(number("jobs_in_flight")) +
              " jobs, " + std::to_string(number("pieces_in_flight")) + " pieces");
  }
  (void)store_->close(0);
  feed_.reset();
  store_.reset();
}

void SimStore::crash(bool cache_survives) {
  ++totals.crashes;
  if (store_ != nullptr) take_evictions();
  for (auto& disk : disks_) disk->power_cut(cache_survives);
  if (store_ != nullptr) drop_store();
  for (auto& [name, record] : records_) record.in_flight.clear();
}

double SimStore::number(const std::string& name) const {
  for (const auto& [key, value] : store_->numbers()) {
    if (key == name) return value;
  }
  throw std::runtime_error("no number is called " + name);
}

bool SimStore::run_until(const std::function<bool()>& done, uint64_t virtual_limit_ns) {
  const uint64_t until_ns = clock_.monotonic_ns() + virtual_limit_ns;
  for (uint64_t steps = 0; !done(); ++steps) {
    if (!store_->step()) clock_.advance_ns(kIdleStepNs);
    if (steps > kStepsMax || clock_.monotonic_ns() > until_ns) {
      violation("hangs: not done after " + std::to_string(steps) + " steps and " +
                std::to_string(virtual_limit_ns / 1'000'000) + " ms of the clock");
      return false;
    }
  }
  return true;
}

void SimStore::run_idle() {
  for (uint64_t steps = 0; store_->step(); ++steps) {
    if (steps > kStepsMax) return violation("step() never comes to rest");
  }
}

// ---- puts ------------------------------------------------------------------------------------------------------

SimStore::Pending SimStore::start_put(const std::vector<std::pair<Name, uint64_t>>& blocks, const PutHow& how,
                                      const SubmitOptions& options) {
  take_evictions();
  Pending pending;
  std::vector<PutItem> items;
  for (const auto& [name, bytes] : blocks) {
    auto& buffers = pending.buffers.emplace_back(std::make_unique<Buffers>(bytes, how.layout));
    buffers->fill(name, how.version);
    PutItem& item = items.emplace_back();
    item.space = spaces_[name.space];
    item.salt = name.salt;
    item.key = name.key;
    item.segments = buffers->segments();
    item.segment_count = buffers->segment_count();
    item.page_hashes = how.page_hashes;
    item.parent = how.parent;
    item.depth = how.depth;
    item.meta = how.meta;
    Record& record = records_[name];
    record.bytes[how.version] = bytes;
    record.possible.insert(how.version);
    record.in_flight.insert(how.version);
    pending.names.push_back(name);
    pending.versions.push_back(how.version);
  }
  pending.durable = how.durable || options.durable;
  SubmitOptions submit = options;
  submit.durable = pending.durable;
  auto job = store_->put(items, submit, nullptr);
  if (!job.ok()) {
    violation("put refused: " + job.status().to_string());
    throw std::runtime_error("put refused");
  }
  pending.job = std::move(job).value();
  return pending;
}

void SimStore::note_put(const Pending& pending, uint32_t item, const ItemResult& result) {
  Record& record = records_[pending.names[item]];
  if (const auto found = record.in_flight.find(pending.versions[item]); found != record.in_flight.end()) {
    record.in_flight.erase(found);
  }
  switch (result.status) {
    case ItemStatus::kStored:
      record.live = pending.versions[item];
      ++record.changes;
      for (auto& watch : watches_) {
        watch->stored(first_bytes(pending.names[item], pending.versions[item], result.bytes));
      }
      record.erased = false;  // the older copies may be back when this one goes
      record.durable = pending.durable && !record.uncertain;
      if (result.bytes != record.bytes[pending.versions[item]]) {
        violation("stored " + std::to_string(result.bytes) + " bytes of " + pending.names[item].text());
      }
      return;
    case ItemStatus::kPresent:
      if (pending.durable && record.live && !record.uncertain) record.durable = true;
      return;
    case ItemStatus::kError: return;  // may have reached the device: stays possible after a crash, never live
    default: violation("a put ended as " + std::string(text_of(result.status)));
  }
}

std::vector<ItemResult> SimStore::put_all(const std::vector<std::pair<Name, uint64_t>>& blocks, const PutHow& how) {
  Pending pending = start_put(blocks, how);
  return finish(pending);
}

ItemResult SimStore::put(const Name& name, uint64_t bytes, const PutHow& how) {
  return put_all({{name, bytes}}, how)[0];
}

// ---- gets ------------------------------------------------------------------------------------------------------

SimStore::Pending SimStore::start_get(const std::vector<Name>& names, const Layout& layout,
                                      const SubmitOptions& options) {
  take_evictions();
  Pending pending;
  pending.names = names;
  std::vector<GetItem> items;
  for (const Name& name : names) {
    uint64_t bytes = 1;
    pending.expected.push_back(expectation(name));
    if (const auto found = records_.find(name); found != records_.end()) {
      for (const auto& [version, version_bytes] : found->second.bytes) bytes = std::max(bytes, version_bytes);
    }
    auto& buffers = pending.buffers.emplace_back(std::make_unique<Buffers>(bytes, layout));
    items.push_back(
        {spaces_[name.space], name.salt, name.key, buffers->segments(), buffers->segment_count(), 0, kWholeBlock});
    pending.parts.emplace_back(0, kWholeBlock);
  }
  auto job = store_->get(items, options, nullptr);
  if (!job.ok()) {
    violation("get refused: " + job.status().to_string());
    throw std::runtime_error("get refused");
  }
  pending.job = std::move(job).value();
  return pending;
}

void SimStore::judge_get(const Pending& pending, uint32_t item, const ItemResult& result) {
  const Name& name = pending.names[item];
  const Buffers& buffers = *pending.buffers[item];
  const Pending::Expected& expected = pending.expected[item];
  if (!buffers.guards_intact()) violation("a read wrote past the buffer of " + name.text());
  const auto found = records_.find(name);
  if (result.status == ItemStatus::kMiss) ++totals.misses;
  if (result.status == ItemStatus::kHit) {
    std::vector<uint32_t> versions(expected.in_flight.begin(), expected.in_flight.end());
    if (expected.live) versions.push_back(*expected.live);
    // A copy whose successor rotted comes to light when that one is dropped.
    if (metadata_rots_ && found != records_.end()) {
      versions.insert(versions.end(), found->second.possible.begin(), found->second.possible.end());
    }
    if (found == records_.end() || versions.empty())
      return violation("a hit of " + name.text() + ", which is not there");
    const auto [offset, length] = pending.parts[item];
    for (const uint32_t version : versions) {
      const uint64_t whole = found->second.bytes.at(version);
      const uint64_t wanted = length == kWholeBlock ? whole - offset : length;
      if (result.bytes == wanted && buffers.holds(name, version, offset, wanted)) {
        if (found->second.changes == expected.changes) found->second.uncertain = false;
        ++totals.hits_verified;
        return;
      }
    }
    ++totals.wrong_bytes;
    return violation("WRONG BYTES of " + name.text() + ": " + std::to_string(result.bytes));
  }
  const bool excused = expected.may_miss || misses_allowed_ || stopped() || was_hit(name);
  if (result.status == ItemStatus::kMiss) {
    if (expected.live && !excused) violation("a miss of " + name.text() + ", which is live");
    // What was stored since the read began is not what it missed.
    if (expected.live && found != records_.end() && found->second.changes == expected.changes) {
      if (misses_allowed_ || was_hit(name)) found->second.durable = false;
      if (found->second.uncertain) found->second.live.reset();
      found->second.uncertain = false;
    }
    return;
  }
  if (result.status != ItemStatus::kError) return violation(std::string("a get ended as ") + text_of(result.status));
  // Answers to the caller's own doing: a bad argument, a cancel, a deadline, a close.
  const bool asked_for = result.code == Code::kInvalid || result.code == Code::kCanceled ||
                         result.code == Code::kTimeout || result.code == Code::kClosed;
  if (!excused && !asked_for) violation("an error (" + pending.job->error_text(item) + ") for " + name.text());
}

std::vector<ItemResult> SimStore::finish(Pending& pending) {
  std::vector<ItemResult> results(pending.names.size());
  if (!run(pending)) return results;
  take_evictions();  // first: of a block whose put was in flight they may mean either copy
  for (uint32_t i = 0; i < results.size(); ++i) {
    results[i] = pending.job->result(i);
    if (pending.job->kind() == JobKind::kPut) {
      note_put(pending, i, results[i]);
    } else {
      judge_get(pending, i, results[i]);
    }
  }
  return results;
}

std::vector<ItemResult> SimStore::get_all(const std::vector<Name>& names, const Layout& layout) {
  if (names.empty()) return {};
  Pending pending = start_get(names, layout);
  return finish(pending);
}

ItemResult SimStore::get(const Name& name, const Layout& layout) { return get_all({name}, layout)[0]; }

ItemResult SimStore::get_part(const Name& name, uint64_t offset, uint64_t bytes, const Layout& layout) {
  take_evictions();
  Pending pending;
  pending.names = {name};
  pending.buffers.push_back(std::make_unique<Buffers>(bytes, layout));
  pending.parts.emplace_back(offset, bytes);
  pending.expected.push_back(expectation(name));
  const Buffers& buffers = *pending.buffers[0];
  const GetItem item{spaces_[name.space],     name.salt, name.key, buffers.segments(),
                     buffers.segment_count(), offset,    bytes};
  pending.job = store_->get({&item, 1}, {}, nullptr).value();
  return finish(pending)[0];
}

bool SimStore::contains(const Name& name) {
  int64_t bytes = 0;
  const KeyRef key = ref(name);
  store_->lookup({&key, 1}, false, {&bytes, 1});
  return bytes >= 0;
}

bool SimStore::is_live(const Name& name) const {
  const auto found = records_.find(name);
  return found != records_.end() && found->second.live.has_value();
}

uint64_t SimStore::live_bytes(const Name& name) const {
  const Record& record = records_.at(name);
  return record.bytes.at(*record.live);
}

// ---- deletes and flushes ---------------------------------------------------------------------------------------

ItemResult SimStore::erase(const Name& name) {
  take_evictions();
  const KeyRef key = ref(name);
  auto results = store_->erase({&key, 1});
  if (!results.ok()) {
    violation("erase refused: " + results.status().to_string());
    return {};
  }
  const ItemResult result = results.value()[0];
  Record& record = records_[name];
  if (result.status == ItemStatus::kDeleted) {
    record.uncertain = false;
    if (!record.live && !metadata_rots_) violation("deleted " + name.text() + ", which was not there");
    record.live.reset();
    record.durable = false;
    record.erased = true;
  } else if (result.status == ItemStatus::kMiss && record.live) {
    if (!misses_allowed_ && !record.uncertain && !stopped() && !was_hit(name))
      violation("erase says that " + name.text() + " is not there");
    record.live.reset();
    record.durable = false;
  }
  take_evictions();
  return result;
}

void SimStore::flush() {
  const Status status = try_flush();
  if (!status.ok() && !stopped()) violation("flush: " + status.to_string());
}

Status SimStore::try_flush() {
  const Status status = store_->flush(10'000'000'000);
  take_evictions();
  if (!status.ok()) return status;
  for (auto& [name, record] : records_) {
    record.durable = record.live.has_value() && !record.uncertain;
    if (record.erased && !metadata_rots_) {
      record.possible.clear();
      if (record.live) record.possible.insert(*record.live);
      record.possible.insert(record.in_flight.begin(), record.in_flight.end());
    }
    record.erased = false;
  }
  return status;
}

std::vector<Eviction> SimStore::take_evictions() {
  std::vector<Eviction> evictions = feed_->drain(UINT32_MAX);
  if (feed_->take_overflowed()) {
    // Evictions that could not be named: anything may be a miss.
    for (auto& [name, record] : records_) {
      record.uncertain = record.uncertain || record.live.has_value() || !record.in_flight.empty();
      record.durable = false;
      ++record.changes;
    }
  }
  if (evictions.empty()) return evictions;
  std::map<std::string, Record*> by_identity;
  for (auto& [name, record] : records_) {
    by_identity[identity_text(space_json(name.space), name.salt, format::make_stored_key(name.key).view())] = &record;
  }
  for (const Eviction& eviction : evictions) {
    const auto found = by_identity.find(identity_text(eviction.space, eviction.salt, eviction.key));
    if (found == by_identity.end()) {
      violation("told of the eviction of a block that was never put");
      continue;
    }
    if (eviction.reason == EvictionReason::kDeleted) continue;
    found->second->live.reset();
    found->second->durable = false;
    // Which copy it was is not told: the one in flight may have been written and evicted already.
    if (!found->second->in_flight.empty()) found->second->uncertain = true;
    ++found->second->changes;
  }
  return evictions;
}

SimStore::Pending::Expected SimStore::expectation(const Name& name) const {
  Pending::Expected expected;
  expected.may_miss = misses_allowed_;
  if (const auto found = records_.find(name); found != records_.end()) {
    expected.live = found->second.live;
    expected.changes = found->second.changes;
    expected.in_flight = found->second.in_flight;
    expected.may_miss = expected.may_miss || found->second.uncertain || !found->second.in_flight.empty();
  }
  return expected;
}

bool SimStore::has_put_in_flight(const Name& name) const {
  const auto found = records_.find(name);
  return found != records_.end() && !found->second.in_flight.empty();
}

void SimStore::expect_gone(const Name& name) {
  records_[name].live.reset();
  records_[name].durable = false;
}

// ---- judging the whole -----------------------------------------------------------------------------------------

void SimStore::judge_all() {
  std::vector<Name> names;
  for (const auto& [name, record] : records_) names.push_back(name);
  names.push_back({"never put", "", 0});
  // In parts, so that buffers stay small.
  for (size_t first = 0; first < names.size(); first += 64) {
    const size_t end = std::min(names.size(), first + 64);
    get_all({names.begin() + static_cast<std::ptrdiff_t>(first), names.begin() + static_cast<std::ptrdiff_t>(end)});
  }
  judge_listing();
}

void SimStore::judge_listing() {
  if (stopped()) return;
  std::map<std::string, const Name*> unlisted;
  std::map<std::string, const Name*> known;
  for (const auto& [name, record] : records_) {
    const std::string identity =
        identity_text(space_json(name.space), name.salt, format::make_stored_key(name.key).view());
    known[identity] = &name;
    if (record.live && !record.uncertain) unlisted[identity] = &name;
  }
  const Status status = store_->list_blocks([&](const std::string& space, const BlockInfo& info) {
    const std::string identity = identity_text(space, info.salt, info.key);
    const auto found = known.find(identity);
    if (found == known.end()) {
      violation("the listing names a block that was never put: space '" + space + "' salt '" + info.salt + "' key '" +
                info.key + "'");
      return true;
    }
    const Record& record = records_.at(*found->second);
    if (!record.live && (metadata_rots_ || !record.in_flight.empty())) return true;
    if (!record.live) {
      violation("the listing names " + found->second->text() + ", which is not there");
    } else if (record.bytes.at(*record.live) != info.payload_bytes && !metadata_rots_) {
      violation("the listing gives another size for " + found->second->text());
    } else if (unlisted.erase(identity) == 0 && !record.uncertain) {
      violation("the listing names " + found->second->text() + " twice");
    }
    return true;
  });
  if (!status.ok() && !misses_allowed_ && watches_.empty()) violation("listing: " + status.to_string());
  take_evictions();  // reclaim goes on meanwhile
  if (misses_allowed_ || !status.ok()) return;
  for (const auto& [identity, name] : unlisted) {
    const Record& record = records_.at(*name);
    if (record.live && !record.uncertain && !was_hit(*name)) violation("the listing leaves out " + name->text());
  }
}

void SimStore::reopen_and_judge() {
  const Status status = open();
  if (!status.ok()) return violation("does not open: " + status.to_string());
  ++totals.reopened;
  for (auto& [name, record] : records_) {
    uint64_t bytes = 1;
    for (const auto& [version, version_bytes] : record.bytes) bytes = std::max(bytes, version_bytes);
    Buffers buffers(bytes, {});
    const GetItem item{spaces_[name.space],     name.salt, name.key,   buffers.segments(),
                       buffers.segment_count(), 0,         kWholeBlock};
    take_evictions();  // reclaim goes on meanwhile
    auto job = store_->get({&item, 1}, {}, nullptr);
    if (!job.ok() || !run_until([&] { return job.value()->done(); })) return violation("a get does not end");
    const ItemResult result = job.value()->result(0);
    if (result.status == ItemStatus::kHit) {
      const auto version = std::find_if(record.possible.begin(), record.possible.end(), [&](uint32_t candidate) {
        return record.bytes[candidate] == result.bytes && buffers.holds(name, candidate, 0, result.bytes);
      });
      if (version == record.possible.end()) {
        ++totals.wrong_bytes;
        violation(record.possible.empty() ? "deleted for good, or gone before, and back again: " + name.text()
                                          : "WRONG BYTES after reopening of " + name.text());
        continue;
      }
      if (record.durable && record.live != *version && !metadata_rots_)
        violation("an older version of " + name.text() + " is back");
      ++totals.hits_verified;
      record.live = *version;
      record.durable = true;
    } else {
      ++totals.misses;
      const bool excused = misses_allowed_ || was_hit(name);
      if (record.durable && !excused) {
        ++totals.lost_durable;
        violation(name.text() + " was acknowledged as durable and is a " + text_of(result.status));
      }
      if (result.status == ItemStatus::kError && !excused) violation("an error for " + name.text());
      if (!misses_allowed_ && !metadata_rots_) record.possible.clear();
      record.live.reset();
      record.durable = false;
    }
    record.erased = false;
    record.uncertain = false;
  }
  take_evictions();
  judge_listing();
}

void SimStore::watch_damage() {
  for (uint32_t i = 0; i < disks_.size(); ++i) {
    watches_.push_back(std::make_unique<DamageWatch>(*disks_[i], formatted_[i].geometry));
  }
}

FaultCounts SimStore::faults() {
  FaultCounts sum{};
  for (auto& watch : watches_) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += watch->counts()[i];
  }
  return sum;
}

bool SimStore::was_hit(const Name& name) const {
  const auto found = records_.find(name);
  if (found == records_.end()) return false;
  for (const auto& [version, bytes] : found->second.bytes) {
    const uint64_t first = first_bytes(name, version, bytes);
    if (std::any_of(watches_.begin(), watches_.end(), [&](auto& watch) { return watch->was_hit(first); })) return true;
  }
  return false;
}

BlockInfo SimStore::describe(const Name& name) {
  const KeyRef key = ref(name);
  auto infos = store_->describe({&key, 1});
  if (!infos.ok()) {
    violation("describe: " + infos.status().to_string());
    return {};
  }
  return infos.value()[0];
}

void SimStore::corrupt_payload(const Name& name, uint64_t byte) {
  const BlockInfo info = describe(name);
  uint8_t value = 0;
  device::SimDisk& medium = disk(info.device);
  medium.peek(info.offset_bytes + byte, &value, 1);
  value ^= 0x40;
  medium.poke(info.offset_bytes + byte, &value, 1);
}

void SimStore::violation(const std::string& text) const {
  ADD_FAILURE() << (context.empty() ? "" : context + ": ") << text;
}

}  // namespace kvstore::store
