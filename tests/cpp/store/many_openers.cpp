// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/many_openers.h"

#include <cerrno>
#include <cstdlib>

#include "format/region_header.h"
#include "store/format_device.h"

namespace kvstore::store {

namespace {

constexpr uint64_t kMinBlockBytes = 64 * kKiB;
constexpr uint64_t kIdleNs = 20'000'000;
constexpr uint32_t kStepsMax = 20'000;

Name name_of(int number) { return {"block " + std::to_string(number), "", 0}; }

}  // namespace

// ---- a device that is told apart by its opening ----------------------------------------------------------------

class WatchedQueue final : public device::IoQueue {
 public:
  WatchedQueue(ManyOpeners& openers, uint64_t opening, std::shared_ptr<bool> dead,
               std::unique_ptr<device::IoQueue> queue)
      : openers_(openers), opening_(opening), dead_(std::move(dead)), queue_(std::move(queue)) {}
  bool submit(device::IoRequest* request) override {
    if (*dead_) {
      request->result = -ENODEV;
      refused_.push_back(request);
      return true;
    }
    openers_.issued(request, opening_);
    return queue_->submit(request);
  }
  Status kick() override { return *dead_ ? Status() : queue_->kick(); }
  Result<uint32_t> poll(std::span<device::IoRequest*> completed, uint64_t timeout_ns, uint32_t wait_for) override {
    if (!*dead_) return queue_->poll(completed, timeout_ns, wait_for);
    uint32_t count = 0;
    while (count < completed.size() && !refused_.empty()) {
      completed[count++] = refused_.back();
      refused_.pop_back();
    }
    return count;
  }
  void wake() override { queue_->wake(); }
  Status register_buffers(std::span<const iovec> buffers) override { return queue_->register_buffers(buffers); }
  uint32_t in_flight() const override { return *dead_ ? static_cast<uint32_t>(refused_.size()) : queue_->in_flight(); }
  uint32_t depth() const override { return queue_->depth(); }

 private:
  ManyOpeners& openers_;
  const uint64_t opening_;
  const std::shared_ptr<bool> dead_;
  std::unique_ptr<device::IoQueue> queue_;
  std::vector<device::IoRequest*> refused_;
};

namespace {

class WatchedDevice final : public device::Device {
 public:
  WatchedDevice(ManyOpeners& openers, uint64_t opening, std::shared_ptr<bool> dead,
                std::unique_ptr<device::Device> device)
      : openers_(openers), opening_(opening), dead_(std::move(dead)), device_(std::move(device)) {}
  const device::DeviceInfo& info() const override { return device_->info(); }
  Result<std::unique_ptr<device::IoQueue>> make_queue(std::span<device::Device* const>,
                                                      const device::QueueOptions& options) override {
    device::Device* const inner[] = {device_.get()};
    KVS_ASSIGN(auto queue, device_->make_queue(inner, options));
    return std::unique_ptr<device::IoQueue>(
        std::make_unique<WatchedQueue>(openers_, opening_, dead_, std::move(queue)));
  }

 private:
  ManyOpeners& openers_;
  const uint64_t opening_;
  const std::shared_ptr<bool> dead_;
  std::unique_ptr<device::Device> device_;
};

}  // namespace

// ---- life ------------------------------------------------------------------------------------------------------

ManyOpeners::ManyOpeners(const OpenersSetup& setup) : setup_(setup), random_(setup.seed) {
  disk_ = std::make_unique<device::SimDisk>(device_bytes_for(setup.regions, kRegionBytes, kMinBlockBytes), setup.seed);
  cluster_ = std::make_shared<cluster::MemoryCluster>(clock_, setup.forgets_ns);
  const auto device = device::make_sim_device(*disk_, {}, clock_);
  FormatOptions format;
  format.region_bytes = kRegionBytes;
  format.min_block_bytes = kMinBlockBytes;
  superblock_ = format_devices({device.get()}, format, clock_, random_).value()[0];
  // What Store::open() does with paths: once as the only owner.
  std::vector<std::unique_ptr<device::Device>> devices;
  devices.push_back(device::make_sim_device(*disk_, {}, clock_));
  StoreOptions alone;
  alone.threaded = false;
  alone.clock = &clock_;
  alone.random = &random_;
  alone.becomes_shared = true;
  auto store = Store::open_devices(std::move(devices), alone).value();
  (void)store->close(kLeaseNs);
  openers_.resize(setup.openers);
  for (uint32_t i = 0; i < setup.openers; ++i) {
    const double rate = setup.drift ? 0.9 + static_cast<double>(random_.below(200)) / 1000.0 : 1.0;
    openers_[i].clock = std::make_unique<cluster::DriftingClock>(clock_, rate, random_.below(1'000'000'000));
  }
  disk_->set_observer([this](const device::IoRequest& request) { observe(request); });
}

ManyOpeners::~ManyOpeners() {
  for (uint32_t i = 0; i < openers_.size(); ++i) {
    if (is_open(i)) kill(i);
  }
}

Status ManyOpeners::open(uint32_t opener) {
  Opener& mine = openers_[opener];
  mine.random = SeededRandom(random_.next());
  mine.engine = std::make_unique<cluster::MemoryEngine>(cluster_, *mine.clock, mine.random, setup_.faults);
  mine.dead = std::make_shared<bool>(false);
  mine.process_id = next_process_++;
  mine.opening = next_opening_++;
  device::SimDeviceOptions device_options;
  device_options.latency_ns = setup_.latency_ns;
  std::vector<std::unique_ptr<device::Device>> devices;
  devices.push_back(std::make_unique<WatchedDevice>(*this, mine.opening, mine.dead,
                                                    device::make_sim_device(*disk_, device_options, *mine.clock)));
  StoreOptions options;
  options.threaded = false;
  options.clock = mine.clock.get();
  options.random = &mine.random;
  options.host.fill(7);
  options.staging_bytes = 4 * kMiB;
  options.prefetch_bytes = 0;
  options.shared.engine = mine.engine.get();
  options.shared.lease_ns = kLeaseNs;
  options.shared.orphan_quarantine_ns = setup_.orphan_quarantine_ns;
  cluster::Opener identity;
  identity.host.fill(7);
  identity.boot.fill(1);
  identity.process_id = mine.process_id;
  options.shared.identity = identity;
  options.shared.is_gone = [this](const cluster::Opener& other) {
    return other.process_id != 0 && !processes_.contains(other.process_id);
  };
  processes_.insert(mine.process_id);
  auto opened = Store::open_devices(std::move(devices), options);
  if (!opened.ok()) {
    processes_.erase(mine.process_id);
    return opened.status();
  }
  mine.store = std::move(opened).value();
  mine.space = mine.store->register_space(SimStore::space_json(0)).value();
  return {};
}

Status ManyOpeners::close(uint32_t opener) {
  settle_puts(opener);
  Opener& mine = openers_[opener];
  const Status status = mine.store->close(2 * kLeaseNs);
  mine.store.reset();
  processes_.erase(mine.process_id);
  return status;
}

void ManyOpeners::kill(uint32_t opener) {
  Opener& mine = openers_[opener];
  *mine.dead = true;
  mine.engine->set_cut(true);
  processes_.erase(mine.process_id);
  (void)mine.store->close(0);
  mine.store.reset();
  mine.pending.clear();
}

void ManyOpeners::cut(uint32_t opener, bool cut) { openers_[opener].engine->set_cut(cut); }

// ---- time ------------------------------------------------------------------------------------------------------

bool ManyOpeners::step(uint32_t opener) { return store(opener).step(); }

void ManyOpeners::run(uint64_t duration_ns) {
  std::set<uint32_t> all;
  for (uint32_t i = 0; i < openers_.size(); ++i) all.insert(i);
  run_only(all, duration_ns);
}

void ManyOpeners::run_only(const std::set<uint32_t>& openers, uint64_t duration_ns) {
  const uint64_t end_ns = clock_.monotonic_ns() + duration_ns;
  while (clock_.monotonic_ns() < end_ns) {
    for (const uint32_t opener : openers) {
      if (is_open(opener)) (void)step(opener);
    }
    clock_.sleep_ns(kIdleNs);
  }
}

// ---- work ------------------------------------------------------------------------------------------------------

JobRef ManyOpeners::finish(uint32_t opener, JobRef job) {
  for (uint32_t steps = 0; !job->done(); ++steps) {
    if (steps > kStepsMax) {
      violation("a job of opener " + std::to_string(opener) + " hangs");
      std::abort();  // its memory must not be freed under it
    }
    // The others go on as well: a put may wait for a region that all of them have to let go.
    bool worked = step(opener);
    if (worked) continue;
    for (uint32_t i = 0; i < openers_.size(); ++i) {
      if (i != opener && is_open(i)) (void)step(i);
    }
    clock_.sleep_ns(kIdleNs);
  }
  return job;
}

JobRef ManyOpeners::submit_put(uint32_t opener, int number, bool durable, Buffers& buffers, Status& status) {
  const Name name = name_of(number);
  buffers.fill(name, 1);
  PutItem item;
  item.space = openers_[opener].space;
  item.key = name.key;
  item.segments = buffers.segments();
  item.segment_count = 1;
  auto job = store(opener).put({&item, 1}, {.durable = durable}, nullptr);
  status = job.status();
  return job.ok() ? std::move(job).value() : JobRef();
}

void ManyOpeners::note_put(const Pending& put) {
  const ItemResult result = put.job->result(0);
  if (put.durable && result.succeeded()) durable_.insert(put.number);
}

ItemResult ManyOpeners::put(uint32_t opener, int number, bool durable) {
  Pending put{number, durable, std::make_unique<Buffers>(kBlockBytes, Layout{}), {}};
  Status status;
  put.job = submit_put(opener, number, durable, *put.buffers, status);
  if (!status.ok()) return {.status = ItemStatus::kError, .code = status.code()};
  put.job = finish(opener, std::move(put.job));
  note_put(put);
  return put.job->result(0);
}

void ManyOpeners::begin_put(uint32_t opener, int number, bool durable) {
  Pending put{number, durable, std::make_unique<Buffers>(kBlockBytes, Layout{}), {}};
  Status status;
  put.job = submit_put(opener, number, durable, *put.buffers, status);
  if (status.ok()) openers_[opener].pending.push_back(std::move(put));
}

void ManyOpeners::settle_puts(uint32_t opener) {
  for (Pending& put : std::exchange(openers_[opener].pending, {})) {
    put.job = finish(opener, std::move(put.job));
    note_put(put);
  }
}

ItemResult ManyOpeners::get(uint32_t opener, int number) {
  const Name name = name_of(number);
  Buffers buffers(kBlockBytes, {});
  const GetItem item{openers_[opener].space, {}, name.key, buffers.segments(), 1, 0, kWholeBlock};
  auto job = store(opener).get({&item, 1}, {}, nullptr);
  if (!job.ok()) return {.status = ItemStatus::kError, .code = job.status().code()};
  const ItemResult result = finish(opener, std::move(job).value())->result(0);
  const bool right = result.bytes == kBlockBytes && buffers.holds(name, 1, 0, kBlockBytes);
  if (result.status == ItemStatus::kHit && !right) {
    violation("WRONG BYTES of block " + std::to_string(number) + " for opener " + std::to_string(opener));
  }
  return result;
}

bool ManyOpeners::contains(uint32_t opener, int number) {
  const std::string key = name_of(number).key;
  const KeyRef ref{openers_[opener].space, {}, key};
  int64_t bytes = 0;
  store(opener).lookup({&ref, 1}, false, {&bytes, 1});
  return bytes >= 0;
}

ItemResult ManyOpeners::erase(uint32_t opener, int number) {
  const std::string key = name_of(number).key;
  const KeyRef ref{openers_[opener].space, {}, key};
  durable_.erase(number);
  auto erased = store(opener).erase({&ref, 1});
  return erased.ok() ? erased.value()[0] : ItemResult{.status = ItemStatus::kError, .code = erased.status().code()};
}

Status ManyOpeners::flush(uint32_t opener) { return store(opener).flush(kLeaseNs); }

double ManyOpeners::number(uint32_t opener, const std::string& name) {
  for (const auto& [key, value] : store(opener).numbers()) {
    if (key == name) return value;
  }
  violation("no number is called " + name);
  return 0;
}

std::string ManyOpeners::all_violations() const {
  std::string all;
  for (const std::string& one : violations_) all += one + "\n";
  return all;
}

// ---- judging ---------------------------------------------------------------------------------------------------

void ManyOpeners::issued(const device::IoRequest* request, uint64_t opening) { issued_[request] = {opening}; }

void ManyOpeners::observe(const device::IoRequest& request) {
  if (request.op != device::IoOp::kWrite || request.result < 0) return;
  const auto issued = issued_.find(&request);
  if (issued == issued_.end()) return;
  const uint64_t opening = issued->second.opening;
  const format::Geometry& geometry = superblock_.geometry;
  const bool is_superblock =
      request.offset_bytes < format::kMetadataOffset || request.offset_bytes >= geometry.superblock_offsets()[3];
  if (is_superblock) {
    violation("an opener writes the superblock of a shared pool");
    return;
  }
  const auto judge = [&](uint32_t region, uint64_t generation, const char* what) {
    std::set<uint64_t>& writers = writers_[{region, generation}];
    writers.insert(opening);
    if (writers.size() < 2) return;
    std::string text = std::string("TWO WRITERS (") + what + ") of region " + std::to_string(region) + " generation " +
                       std::to_string(generation) + ": openings";
    for (const uint64_t one : writers) text += " " + std::to_string(one);
    violation(text);
  };
  if (request.offset_bytes >= geometry.data_offset) {
    const auto region = static_cast<uint32_t>((request.offset_bytes - geometry.data_offset) / geometry.region_bytes);
    const auto life = lives_.find({opening, region});
    if (life == lives_.end()) {
      violation("opening " + std::to_string(opening) + " writes payload of region " + std::to_string(region) +
                ", of which it began no life");
      return;
    }
    judge(region, life->second, "payload");
    return;
  }
  const uint64_t in_area = request.offset_bytes - format::kMetadataOffset;
  const auto region = static_cast<uint32_t>(in_area / geometry.entry_bytes);
  std::vector<uint8_t> page(kPageBytes);
  disk_->peek(request.offset_bytes, page.data(), page.size());
  if (in_area % geometry.entry_bytes >= 2 * kPageBytes) {
    const auto life = lives_.find({opening, region});
    judge(region, life == lives_.end() ? 0 : life->second, "descriptors");
    return;
  }
  const auto copy = static_cast<uint32_t>(in_area % geometry.entry_bytes / kPageBytes);
  const auto header = format::decode_region_header(page, superblock_.store_uuid, geometry, RegionId{region}, copy);
  if (!header.ok()) return;
  lives_[{opening, region}] = header.value().generation.value;
  judge(region, header.value().generation.value, "header");
}

}  // namespace kvstore::store
