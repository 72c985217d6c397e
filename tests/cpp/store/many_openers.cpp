// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/many_openers.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "format/region_header.h"
#include "store/format_device.h"

namespace kvstore::store {

namespace {

constexpr uint64_t kMinBlockBytes = 64 * kKiB;
constexpr uint64_t kIdleNs = 20'000'000;
constexpr uint64_t kIoTimeoutNs = 2'000'000'000;
constexpr uint32_t kStepsMax = 20'000;
constexpr uint32_t kStepsUntilAllGoOn = 1'000;  // then nothing is stuck or paused any more

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
    openers_.others_run(opening_);
    openers_.issued(*request, opening_);
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

// Lets others run between what an opener knows and what it asks for.
class WatchedEngine final : public cluster::MetadataEngine {
 public:
  WatchedEngine(ManyOpeners& openers, uint64_t opening, cluster::MetadataEngine& engine)
      : openers_(openers), opening_(opening), engine_(engine) {}
  Result<cluster::TxnOutcome> txn(std::span<const cluster::Compare> compares,
                                  std::span<const cluster::Operation> operations) override {
    openers_.others_run(opening_);
    if (openers_.txns_are_refused_) return Status(Code::kFailed, "the engine has no space");
    Result<cluster::TxnOutcome> outcome = engine_.txn(compares, operations);
    for (const cluster::Operation& operation : operations) {
      openers_.reclaimed_ = openers_.reclaimed_ || operation.value.starts_with("retiring ");
    }
    openers_.others_run(opening_);
    return outcome;
  }
  Result<cluster::Snapshot> range(std::string_view prefix) override {
    openers_.others_run(opening_);
    return engine_.range(prefix);
  }
  Result<std::unique_ptr<cluster::Watch>> watch(std::string_view prefix, cluster::Revision after) override {
    openers_.others_run(opening_);
    return engine_.watch(prefix, after);
  }
  Result<cluster::LeaseId> grant(uint64_t ttl_ns) override { return engine_.grant(ttl_ns); }
  Status renew(cluster::LeaseId lease) override {
    openers_.others_run(opening_);
    Status renewed = engine_.renew(lease);
    openers_.others_run(opening_);
    return renewed;
  }
  Status revoke(cluster::LeaseId lease) override { return engine_.revoke(lease); }
  uint64_t forgets_ns() const override { return engine_.forgets_ns(); }

 private:
  ManyOpeners& openers_;
  const uint64_t opening_;
  cluster::MetadataEngine& engine_;
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

// An opener inside a call; the same one is not entered again from there.
class ManyOpeners::Turn {
 public:
  Turn(ManyOpeners& openers, uint32_t opener) : openers_(openers), opener_(opener) { openers_.in_turn_.insert(opener); }
  ~Turn() { openers_.in_turn_.erase(opener_); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  ManyOpeners& openers_;
  const uint32_t opener_;
};

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
}

ManyOpeners::~ManyOpeners() {
  interleave(0, 0);
  for (uint32_t i = 0; i < openers_.size(); ++i) {
    if (is_open(i)) kill(i);
  }
}

Status ManyOpeners::open(uint32_t opener) {
  const Turn turn(*this, opener);
  Opener& mine = openers_[opener];
  mine.random = SeededRandom(random_.next());
  mine.engine = std::make_unique<cluster::MemoryEngine>(cluster_, *mine.clock, mine.random, setup_.faults);
  mine.dead = std::make_shared<bool>(false);
  mine.process_id = next_process_++;
  mine.opening = next_opening_++;
  device::SimDeviceOptions device_options;
  device_options.latency_ns = setup_.latency_ns;
  device_options.early = setup_.early;
  std::vector<std::unique_ptr<device::Device>> devices;
  devices.push_back(std::make_unique<WatchedDevice>(*this, mine.opening, mine.dead,
                                                    device::make_sim_device(*disk_, device_options, *mine.clock)));
  StoreOptions options = store_options;
  options.threaded = false;
  options.clock = mine.clock.get();
  options.random = &mine.random;
  options.host.fill(7);
  options.staging_bytes = 4 * kMiB;
  options.prefetch_bytes = 0;
  options.failures_max = 1'000'000;
  options.io_timeout_ns = kIoTimeoutNs;
  options.quarantine_ns = kIoTimeoutNs;
  mine.watched_engine = std::make_unique<WatchedEngine>(*this, mine.opening, *mine.engine);
  options.shared.engine = mine.watched_engine.get();
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
  const Turn turn(*this, opener);
  Opener& mine = openers_[opener];
  paused_.erase(opener);
  const Status status = mine.store->close(2 * kLeaseNs);
  mine.store.reset();
  processes_.erase(mine.process_id);
  return status;
}

void ManyOpeners::kill(uint32_t opener) {
  const Turn turn(*this, opener);
  Opener& mine = openers_[opener];
  paused_.erase(opener);
  *mine.dead = true;
  mine.engine->set_cut(true);
  processes_.erase(mine.process_id);
  (void)mine.store->close(0);
  mine.store.reset();
  mine.pending.clear();
}

void ManyOpeners::cut(uint32_t opener, bool cut) { openers_[opener].engine->set_cut(cut); }

void ManyOpeners::pause(uint32_t opener, bool paused) {
  paused ? (void)paused_.insert(opener) : (void)paused_.erase(opener);
}

// ---- time ------------------------------------------------------------------------------------------------------

bool ManyOpeners::step(uint32_t opener) {
  if (in_turn_.contains(opener) || !is_open(opener)) return false;
  const Turn turn(*this, opener);
  return store(opener).step();
}

void ManyOpeners::interleave(uint32_t one_in, uint32_t long_one_in) {
  interleave_one_in_ = one_in;
  interleave_long_one_in_ = long_one_in;
}

void ManyOpeners::others_run(uint64_t opening) {
  if (interleave_one_in_ == 0 || random_.below(interleave_one_in_) != 0) return;
  const bool for_long = interleave_long_one_in_ != 0 && random_.below(interleave_long_one_in_) == 0;
  const uint64_t end_ns = clock_.monotonic_ns() + (for_long ? kLeaseNs * 5 / 4 : 0);
  do {
    for (uint32_t i = 0; i < openers_.size(); ++i) {
      if (openers_[i].opening != opening && !paused_.contains(i) && random_.below(2) == 0) (void)step(i);
    }
    if (for_long) clock_.sleep_ns(kLeaseNs / 20);
  } while (clock_.monotonic_ns() < end_ns);
}

void ManyOpeners::run(uint64_t duration_ns) {
  std::set<uint32_t> all;
  for (uint32_t i = 0; i < openers_.size(); ++i) all.insert(i);
  run_only(all, duration_ns);
}

void ManyOpeners::run_only(const std::set<uint32_t>& openers, uint64_t duration_ns) {
  const uint64_t end_ns = clock_.monotonic_ns() + duration_ns;
  while (clock_.monotonic_ns() < end_ns) {
    for (const uint32_t opener : openers) {
      if (!paused_.contains(opener)) (void)step(opener);
    }
    clock_.sleep_ns(kIdleNs);
  }
}

// ---- work ------------------------------------------------------------------------------------------------------

JobRef ManyOpeners::finish(uint32_t opener, JobRef job) {
  for (uint32_t steps = 0; !job->done(); ++steps) {
    if (steps > kStepsMax) {
      std::string text = describe();
      for (const auto& [name, value] : store(opener).numbers()) text += name + " " + std::to_string(value) + "\n";
      std::fprintf(stderr, "seed %llu: a job of opener %u hangs\n%s%s", static_cast<unsigned long long>(setup_.seed),
                   opener, all_violations().c_str(), std::getenv("KVS_TRACE") != nullptr ? text.c_str() : "");
      std::abort();  // its memory must not be freed under it
    }
    if (steps % kStepsUntilAllGoOn == kStepsUntilAllGoOn - 1) {
      disk_->release_stuck();
      paused_.clear();
    }
    // The others go on as well: a put may wait for a region that all of them have to let go.
    const bool worked = step(opener);
    if (worked && steps % 16 != 15) continue;
    for (uint32_t i = 0; i < openers_.size(); ++i) {
      if (i != opener && !paused_.contains(i)) (void)step(i);
    }
    clock_.sleep_ns(kIdleNs);
  }
  return job;
}

JobRef ManyOpeners::submit_put(uint32_t opener, int number, bool durable, Buffers& buffers, Status& status) {
  const Name name = name_of(number);
  buffers.fill(name, 1);
  const Turn turn(*this, opener);
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
  // Present, to an opener that has not heard of a delete yet, is no promise.
  const bool stays = result.status == ItemStatus::kStored || !deleted_.contains(put.number);
  if (put.durable && result.succeeded() && stays) durable_.insert(put.number);
  if (!result.succeeded()) failed_puts_.insert(put.number);
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

std::vector<int> ManyOpeners::pending_numbers(uint32_t opener) const {
  std::vector<int> numbers;
  for (const Pending& put : openers_[opener].pending) numbers.push_back(put.number);
  return numbers;
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
  auto job = [&] {
    const Turn turn(*this, opener);
    return store(opener).get({&item, 1}, {}, nullptr);
  }();
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
  deleted_.insert(number);
  for (Opener& other : openers_) {
    for (Pending& put : other.pending) put.durable = put.durable && put.number != number;
  }
  const Turn turn(*this, opener);
  auto erased = store(opener).erase({&ref, 1});
  return erased.ok() ? erased.value()[0] : ItemResult{.status = ItemStatus::kError, .code = erased.status().code()};
}

void ManyOpeners::pin(uint32_t opener, int number, bool pinned) {
  const std::string key = name_of(number).key;
  const KeyRef ref{openers_[opener].space, {}, key};
  int64_t bytes = 0;
  pinned ? store(opener).lookup({&ref, 1}, true, {&bytes, 1}) : store(opener).unpin({&ref, 1});
}

Status ManyOpeners::flush(uint32_t opener) {
  const Turn turn(*this, opener);
  return store(opener).flush(kLeaseNs);
}

Status ManyOpeners::refresh(uint32_t opener) {
  const Turn turn(*this, opener);
  return store(opener).refresh(kLeaseNs);
}

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

std::string ManyOpeners::describe() {
  std::string text;
  for (const auto& item : cluster_->range("").items) {
    const std::string key = item.key.substr(item.key.find('/', 8) + 1);
    if (!key.starts_with("hits/")) text += key + " = " + item.value + "\n";
  }
  for (const auto& [life, writers] : writers_) {
    text += "region " + std::to_string(life.first) + " generation " + std::to_string(life.second) + " written by";
    for (const uint64_t opening : writers) text += " " + std::to_string(opening);
    for (uint32_t copy = 0; copy < 2; ++copy) {
      std::vector<uint8_t> page(kPageBytes);
      disk_->peek(geometry().header_offset(RegionId{life.first}, copy), page.data(), page.size());
      const auto header =
          format::decode_region_header(page, superblock_.store_uuid, geometry(), RegionId{life.first}, copy);
      text += header.ok() ? ", header: generation " + std::to_string(header.value().generation.value) + " state " +
                                std::to_string(static_cast<int>(header.value().state)) + " epoch " +
                                std::to_string(header.value().owner_epoch.value)
                          : ", no header";
    }
    text += "\n";
  }
  return text;
}

void ManyOpeners::poke_headers(uint32_t region, Generation generation) {
  format::RegionHeader header;
  header.region = RegionId{region};
  header.generation = generation;
  header.state = format::RegionState::kOpen;
  header.extent_bytes = 64 * kKiB;
  header.slot_count = kBlocksPerRegion;
  for (uint32_t copy = 0; copy < 2; ++copy) {
    AlignedBuffer page(kPageBytes);
    header.sequence = 100 + copy;
    format::encode_region_header(header, superblock_.store_uuid, copy, {page.data(), kPageBytes});
    disk_->poke(geometry().header_offset(RegionId{region}, copy), page.data(), kPageBytes);
  }
}

// ---- judging ---------------------------------------------------------------------------------------------------

void ManyOpeners::judge(uint64_t opening, uint32_t region, uint64_t generation, const char* what) {
  std::set<uint64_t>& writers = writers_[{region, generation}];
  writers.insert(opening);
  const std::string where = std::string(" (") + what + ") of region " + std::to_string(region) + " generation " +
                            std::to_string(generation) + ": opening " + std::to_string(opening);
  if (writers.size() > 1) violation("TWO WRITERS" + where + ", after " + std::to_string(*writers.begin()));
  // A life of which no header landed never was.
  const uint64_t on_device = generation_on_device(region);
  if (on_device <= generation || writers_[{region, on_device}].contains(opening)) return;
  violation("A LATE WRITER" + where + ", when the device bears generation " + std::to_string(on_device));
}

uint64_t ManyOpeners::generation_on_device(uint32_t region) {
  uint64_t highest = 0;
  for (uint32_t copy = 0; copy < 2; ++copy) {
    std::vector<uint8_t> page(kPageBytes);
    disk_->peek(geometry().header_offset(RegionId{region}, copy), page.data(), page.size());
    const auto header = format::decode_region_header(page, superblock_.store_uuid, geometry(), RegionId{region}, copy);
    if (header.ok()) highest = std::max(highest, header.value().generation.value);
  }
  return highest;
}

void ManyOpeners::issued(const device::IoRequest& request, uint64_t opening) {
  if (on_request) on_request(request);
  if (request.op != device::IoOp::kWrite) return;
  const format::Geometry& geometry = superblock_.geometry;
  const bool is_superblock =
      request.offset_bytes < format::kMetadataOffset || request.offset_bytes >= geometry.superblock_offsets()[3];
  if (is_superblock) return violation("an opener writes the superblock of a shared pool");
  const bool is_payload = request.offset_bytes >= geometry.data_offset;
  const uint64_t from = is_payload ? geometry.data_offset : format::kMetadataOffset;
  const uint64_t each = is_payload ? geometry.region_bytes : geometry.entry_bytes;
  const auto region = static_cast<uint32_t>((request.offset_bytes - from) / each);
  const uint64_t in_entry = (request.offset_bytes - from) % each;
  // What continues a short write is of the life that it began with.
  if (!is_payload && in_entry < 2 * kPageBytes && in_entry % kPageBytes == 0) {
    std::vector<uint8_t> page(kPageBytes);
    std::memcpy(page.data(), request.segments[0].iov_base, page.size());
    const auto copy = static_cast<uint32_t>(in_entry / kPageBytes);
    const auto header = format::decode_region_header(page, superblock_.store_uuid, geometry, RegionId{region}, copy);
    if (!header.ok()) return violation("a header is written that cannot be read: " + header.status().message());
    lives_[{opening, region}] = header.value().generation.value;
    return judge(opening, region, header.value().generation.value, "header");
  }
  const auto life = lives_.find({opening, region});
  if (life != lives_.end()) return judge(opening, region, life->second, is_payload ? "payload" : "descriptors");
  violation("opening " + std::to_string(opening) + " writes to region " + std::to_string(region) +
            ", of which it began no life");
}

}  // namespace kvstore::store
