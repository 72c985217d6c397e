// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/two_hosts.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <thread>

#include "format/region_header.h"
#include "store/format_device.h"

namespace kvstore::store {

namespace {

constexpr uint64_t kRegionBytes = 256 * kKiB;
constexpr uint64_t kMinBlockBytes = 64 * kKiB;
constexpr uint64_t kBlockBytes = 60'000;
constexpr uint64_t kIdleNs = 20'000'000;
constexpr uint32_t kStepsMax = 20'000;

Name name_of(int number) { return {"block " + std::to_string(number), "", 0}; }

}  // namespace

std::string text_of(const Schedule& schedule) {
  std::string text;
  for (const Break& one : schedule) {
    text += " " + std::to_string(one.operation);
    if (one.pause_ns != 0) text += " (paused for " + std::to_string(one.pause_ns / 1'000'000) + " ms)";
  }
  return "schedule:" + text;
}

// ---- turns -----------------------------------------------------------------------------------------------------

void Turns::run(const std::function<void()>& script0, const std::function<void()>& script1, uint32_t first) {
  host_ = first;
  running_ = true;
  const std::function<void()>* const scripts[] = {&script0, &script1};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 2; ++i) {
    threads.emplace_back([this, i, &scripts] {
      {
        std::unique_lock lock(mutex_);
        states_[i].turn_came.wait(lock, [&] { return host_ == i; });
      }
      (*scripts[i])();
      std::unique_lock lock(mutex_);
      states_[i].ended = true;
      give_way(lock, true);
    });
  }
  for (std::thread& thread : threads) thread.join();
  running_ = false;
}

// The other one if it is ready, else this one, else whoever wakes first.
void Turns::give_way(std::unique_lock<std::mutex>& lock, bool prefer_other) {
  const uint32_t self = host_;
  const uint32_t order[] = {prefer_other ? 1 - self : self, prefer_other ? self : 1 - self};
  uint32_t next = 2;
  for (const uint32_t host : order) {
    if (states_[host].ended) continue;
    if (next == 2 || states_[host].wakes_ns < std::max(states_[next].wakes_ns, now_ns_)) next = host;
  }
  if (next == 2) return;
  now_ns_ = std::max(now_ns_, states_[next].wakes_ns);
  host_ = next;
  states_[next].turn_came.notify_one();
  if (!states_[self].ended) {
    states_[self].turn_came.wait(lock, [&] { return host_ == self; });
  }
}

void Turns::before_operation() {
  std::unique_lock lock(mutex_);
  if (!running_) return;
  const uint64_t number = operations_++;
  for (const Break& one : schedule_) {
    if (one.operation != number) continue;
    states_[host_].wakes_ns = now_ns_ + one.pause_ns;
    give_way(lock, true);
  }
}

void Turns::sleep_ns(uint64_t duration_ns) {
  std::unique_lock lock(mutex_);
  if (!running_) {
    now_ns_ += duration_ns;
    return;
  }
  states_[host_].wakes_ns = now_ns_ + duration_ns;
  give_way(lock, true);
}

// ---- a device whose operations wait for their turn -------------------------------------------------------------

class GatedQueue final : public device::IoQueue {
 public:
  GatedQueue(TwoHosts& hosts, uint32_t host, std::unique_ptr<device::IoQueue> queue)
      : hosts_(hosts), host_(host), queue_(std::move(queue)) {}
  bool submit(device::IoRequest* request) override {
    hosts_.issued(request, host_);
    hosts_.turns().before_operation();
    return queue_->submit(request);
  }
  Status kick() override { return queue_->kick(); }
  Result<uint32_t> poll(std::span<device::IoRequest*> completed, uint64_t timeout_ns, uint32_t wait_for) override {
    return queue_->poll(completed, timeout_ns, wait_for);
  }
  void wake() override { queue_->wake(); }
  Status register_buffers(std::span<const iovec> buffers) override { return queue_->register_buffers(buffers); }
  uint32_t in_flight() const override { return queue_->in_flight(); }
  uint32_t depth() const override { return queue_->depth(); }

 private:
  TwoHosts& hosts_;
  const uint32_t host_;
  std::unique_ptr<device::IoQueue> queue_;
};

namespace {

class GatedDevice final : public device::Device {
 public:
  GatedDevice(TwoHosts& hosts, uint32_t host, std::unique_ptr<device::Device> device)
      : hosts_(hosts), host_(host), device_(std::move(device)) {}
  const device::DeviceInfo& info() const override { return device_->info(); }
  Result<std::unique_ptr<device::IoQueue>> make_queue(std::span<device::Device* const>,
                                                      const device::QueueOptions& options) override {
    device::Device* const inner[] = {device_.get()};
    KVS_ASSIGN(auto queue, device_->make_queue(inner, options));
    return std::unique_ptr<device::IoQueue>(std::make_unique<GatedQueue>(hosts_, host_, std::move(queue)));
  }

 private:
  TwoHosts& hosts_;
  const uint32_t host_;
  std::unique_ptr<device::Device> device_;
};

}  // namespace

// ---- hosts -----------------------------------------------------------------------------------------------------

TwoHosts::TwoHosts(Schedule schedule, uint32_t regions) : turns_(std::move(schedule)) {
  disk_ = std::make_unique<device::SimDisk>(device_bytes_for(regions, kRegionBytes, kMinBlockBytes), 5);
  device::SimDeviceOptions options;
  options.reorder = false;
  const auto device = device::make_sim_device(*disk_, options, turns_);
  FormatOptions format;
  format.region_bytes = kRegionBytes;
  format.min_block_bytes = kMinBlockBytes;
  superblock_ = format_devices({device.get()}, format, turns_, hosts_[2].random).value()[0];
  for (uint32_t i = 0; i < 3; ++i) hosts_[i].random = SeededRandom(10 + i);
  disk_->set_observer([this](const device::IoRequest& request) { observe(request); });
}

TwoHosts::~TwoHosts() { power_cut(); }

void TwoHosts::power_cut() {
  disk_->power_cut(true);
  disk_->stop_after(0);  // what the stores still try while they go
  for (Host& host : hosts_) {
    if (host.store != nullptr) (void)host.store->close(0);
    host.store.reset();
  }
  disk_->power_cut(true);
}

Status TwoHosts::open(uint32_t host) {
  Host& mine = hosts_[host];
  device::SimDeviceOptions device_options;
  device_options.reorder = false;
  std::vector<std::unique_ptr<device::Device>> devices;
  devices.push_back(
      std::make_unique<GatedDevice>(*this, host, device::make_sim_device(*disk_, device_options, turns_)));
  StoreOptions options;
  options.threaded = false;
  options.clock = &turns_;
  options.random = &mine.random;
  options.host.fill(static_cast<uint8_t>(host + 1));
  options.heartbeat_ns = kHeartbeatNs;
  options.staging_bytes = 4 * kMiB;
  options.prefetch_bytes = 0;
  auto opened = Store::open_devices(std::move(devices), options);
  if (!opened.ok()) return opened.status();
  mine.store = std::move(opened).value();
  mine.space = mine.store->register_space(SimStore::space_json(0)).value();
  mine.deposed_at = UINT64_MAX;
  for (uint32_t other = 0; other < 3; ++other) {
    if (other == host || hosts_[other].store == nullptr) continue;
    hosts_[other].deposed_at = std::min(hosts_[other].deposed_at, turns_.operations());
  }
  return {};
}

JobRef TwoHosts::finish(uint32_t host, JobRef job) {
  for (uint32_t step = 0; !job->done(); ++step) {
    if (step > kStepsMax) {
      violation("a job of host " + std::to_string(host) + " hangs");
      std::abort();  // its memory must not be freed under it
    }
    if (!hosts_[host].store->step()) turns_.sleep_ns(kIdleNs);
  }
  return job;
}

ItemResult TwoHosts::put(uint32_t host, int number, bool durable) {
  Host& mine = hosts_[host];
  const Name name = name_of(number);
  Buffers buffers(kBlockBytes, {});
  buffers.fill(name, host + 1);
  PutItem item;
  item.space = mine.space;
  item.key = name.key;
  item.segments = buffers.segments();
  item.segment_count = 1;
  auto job = mine.store->put({&item, 1}, {.durable = durable}, nullptr);
  if (!job.ok()) return {.status = ItemStatus::kError, .code = job.status().code()};
  const ItemResult result = finish(host, std::move(job).value())->result(0);
  if (durable && result.succeeded()) mine.durable.insert(number);
  return result;
}

ItemResult TwoHosts::get(uint32_t host, int number) {
  const Name name = name_of(number);
  Buffers buffers(kBlockBytes, {});
  const GetItem item{hosts_[host].space, {}, name.key, buffers.segments(), 1, 0, kWholeBlock};
  auto job = hosts_[host].store->get({&item, 1}, {}, nullptr);
  if (!job.ok()) return {.status = ItemStatus::kError, .code = job.status().code()};
  const ItemResult result = finish(host, std::move(job).value())->result(0);
  if (result.status != ItemStatus::kHit) return result;
  bool right = false;
  for (uint32_t putter = 0; putter < 3; ++putter) {
    right = right || (result.bytes == kBlockBytes && buffers.holds(name, putter + 1, 0, kBlockBytes));
  }
  if (!right) violation("WRONG BYTES of " + name.text() + " for host " + std::to_string(host));
  return result;
}

Status TwoHosts::flush(uint32_t host) { return hosts_[host].store->flush(10 * kHeartbeatNs); }

Status TwoHosts::close(uint32_t host) {
  hosts_[host].closing = true;
  const Status status = hosts_[host].store->close(10 * kHeartbeatNs);
  hosts_[host].store.reset();
  return status;
}

void TwoHosts::idle(uint32_t host, uint64_t duration_ns) {
  const uint64_t end_ns = turns_.monotonic_ns() + duration_ns;
  while (turns_.monotonic_ns() < end_ns) {
    if (!hosts_[host].store->step()) turns_.sleep_ns(kIdleNs);
  }
}

// ---- judging ---------------------------------------------------------------------------------------------------

void TwoHosts::violation(const std::string& text) { violations_.push_back(text); }

void TwoHosts::observe(const device::IoRequest& request) {
  if (request.op != device::IoOp::kWrite || request.result < 0) return;
  const auto issued = issued_.find(&request);
  if (issued == issued_.end()) return;  // format
  const uint32_t host = issued->second.host;
  Host& mine = hosts_[host];
  const format::Geometry& geometry = superblock_.geometry;
  const bool is_superblock =
      request.offset_bytes < format::kMetadataOffset || request.offset_bytes >= geometry.superblock_offsets()[3];
  if (mine.deposed_at != UINT64_MAX) {
    // Two copies that say "closed" are enough for the next one to open, and the others may follow: of a lower sequence.
    if (mine.closing && is_superblock) return;
    const bool broken_off = issued->second.operation < mine.deposed_at;
    ++late_writes_;
    if (!broken_off) {
      violation("host " + std::to_string(host) + " writes at " + std::to_string(request.offset_bytes) +
                " as operation " + std::to_string(turns_.operations()) + ", deposed at " +
                std::to_string(mine.deposed_at));
    }
    if (broken_off) return;
  }
  if (is_superblock) return;
  if (request.offset_bytes >= geometry.data_offset) {
    const auto region = static_cast<uint32_t>((request.offset_bytes - geometry.data_offset) / geometry.region_bytes);
    std::set<uint32_t>& writers = writers_[{region, mine.opened[region]}];
    writers.insert(host);
    if (writers.size() > 1) violation("two hosts write payload of region " + std::to_string(region));
    return;
  }
  const uint64_t in_area = request.offset_bytes - format::kMetadataOffset;
  const auto region = static_cast<uint32_t>(in_area / geometry.entry_bytes);
  if (in_area % geometry.entry_bytes >= 2 * kPageBytes) return;
  const auto copy = static_cast<uint32_t>(in_area % geometry.entry_bytes / kPageBytes);
  std::vector<uint8_t> page(kPageBytes);
  disk_->peek(request.offset_bytes, page.data(), page.size());
  const auto header = format::decode_region_header(page, superblock_.store_uuid, geometry, RegionId{region}, copy);
  if (header.ok() && header.value().state == format::RegionState::kOpen) {
    mine.opened[region] = header.value().generation.value;
  }
}

void TwoHosts::expect_one_owner() {
  uint32_t owners = 0;
  for (uint32_t host = 0; host < 2; ++host) {
    if (hosts_[host].store != nullptr && flush(host).ok()) ++owners;
  }
  if (owners > 1) violation("both hosts still think that they own the device");
}

void TwoHosts::expect_everything_durable_of(uint32_t host, uint32_t reader) {
  for (const int number : hosts_[host].durable) {
    if (get(reader, number).status != ItemStatus::kHit) {
      violation("block " + std::to_string(number) + ", acknowledged as durable by host " + std::to_string(host) +
                ", is gone");
    }
  }
}

}  // namespace kvstore::store
