// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "device/sim.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "device/sim_medium.h"

namespace kvstore::device {
namespace {

// A poll() on the system clock looks this often whether another thread has released stuck requests.
constexpr uint64_t kLookAgainNs = 1'000'000;

class SimQueue;

uint64_t request_bytes(const IoRequest& request) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < request.segment_count; ++i) bytes += request.segments[i].iov_len;
  return bytes;
}

std::vector<uint8_t> gather(const IoRequest& request, uint64_t bytes) {
  std::vector<uint8_t> data;
  data.reserve(bytes);
  for (uint32_t i = 0; i < request.segment_count && data.size() < bytes; ++i) {
    const uint8_t* base = static_cast<const uint8_t*>(request.segments[i].iov_base);
    data.insert(data.end(), base, base + std::min<uint64_t>(request.segments[i].iov_len, bytes - data.size()));
  }
  return data;
}

void scatter(const IoRequest& request, const std::vector<uint8_t>& data) {
  uint64_t done = 0;
  for (uint32_t i = 0; i < request.segment_count && done < data.size(); ++i) {
    const uint64_t run = std::min<uint64_t>(request.segments[i].iov_len, data.size() - done);
    std::copy_n(data.data() + done, run, static_cast<uint8_t*>(request.segments[i].iov_base));
    done += run;
  }
}

bool rule_matches(const SimRule& rule, const IoRequest& request) {
  if (rule.op && *rule.op != request.op) return false;
  if (request.op == IoOp::kFlush) return true;
  return request.offset_bytes < rule.last_byte && request.offset_bytes + request_bytes(request) > rule.first_byte;
}

}  // namespace

// Lock order: registry_mutex, a queue's mutex, mutex.
struct SimDisk::Impl {
  Impl(uint64_t size_bytes, uint64_t disk_seed) : seed(disk_seed), random(disk_seed), medium(size_bytes, random) {}

  // Recursive, so that an observer may peek.
  mutable std::recursive_mutex mutex;
  const uint64_t seed;
  SeededRandom random;
  SimMedium medium;
  std::vector<SimRule> rules;
  Observer observer;
  bool count_reads = false;
  uint64_t operations = 0;
  uint64_t stop_at = UINT64_MAX;
  bool stopped = false;
  uint64_t life = 0;      // +1 per power cut
  uint64_t releases = 0;  // +1 per release_stuck()
  uint64_t stuck_count = 0;

  uint64_t ticks = 0;  // requests executed and ghosts landed
  std::vector<SimHit> hits;

  struct GhostWrite {
    uint64_t offset_bytes;
    std::vector<uint8_t> data;
  };
  struct GhostRead {
    uint64_t offset_bytes;
    std::vector<iovec> buffers;
  };
  std::vector<GhostWrite> orphan_writes;  // stuck, and their queue is gone
  std::vector<GhostRead> orphan_reads;
  std::vector<GhostWrite> failed_writes;  // reported as failed, to land all the same

  std::mutex registry_mutex;
  std::vector<SimQueue*> queues;

  SimRule take_rule(const IoRequest& request) {
    for (SimRule& rule : rules) {
      if (rule.times == 0 || !rule_matches(rule, request)) continue;
      if (rule.skip > 0) {
        --rule.skip;
        continue;
      }
      --rule.times;
      return rule;
    }
    return {};
  }

  void note_hit(SimFault fault, IoOp op, uint64_t offset_bytes, uint64_t bytes, uint64_t other_offset_bytes) {
    hits.push_back({fault, op, offset_bytes, bytes, other_offset_bytes, ticks});
  }

  void land(std::vector<GhostWrite>& writes) {
    for (const GhostWrite& ghost : writes) {
      if (ghost.offset_bytes + ghost.data.size() > medium.size_bytes()) continue;
      ++ticks;
      medium.write(ghost.offset_bytes, ghost.data.data(), ghost.data.size(), false);
      note_hit(SimFault::kGhost, IoOp::kWrite, ghost.offset_bytes, ghost.data.size(), ghost.offset_bytes);
    }
    writes.clear();
  }

  void land(std::vector<GhostRead>& reads) {
    for (const GhostRead& ghost : reads) {
      uint64_t offset_bytes = ghost.offset_bytes;
      for (const iovec& buffer : ghost.buffers) {
        const uint64_t end = std::min(offset_bytes + buffer.iov_len, medium.size_bytes());
        if (end > offset_bytes) medium.read(offset_bytes, static_cast<uint8_t*>(buffer.iov_base), end - offset_bytes);
        offset_bytes += buffer.iov_len;
      }
    }
    reads.clear();
  }

  void count_operation(IoOp op) {
    if (op == IoOp::kRead && !count_reads) return;
    ++operations;
    if (operations >= stop_at) stopped = true;
  }

  void land_partly(const IoRequest& request) {
    const uint64_t size_bytes = medium.size_bytes();
    if (request.op != IoOp::kWrite || request.offset_bytes >= size_bytes) return;
    const std::vector<uint8_t> data =
        gather(request, std::min(request_bytes(request), size_bytes - request.offset_bytes));
    medium.write_partly(request.offset_bytes, data.data(), align_down(data.size(), kSimSectorBytes));
  }

  // Some sectors of a read are in its buffer before it is reported.
  void arrive_partly(const IoRequest& request) {
    const uint64_t bytes = request_bytes(request);
    if (request.op != IoOp::kRead || request.offset_bytes + bytes > medium.size_bytes()) return;
    if (!medium.is_readable(request.offset_bytes, bytes)) return;
    std::vector<uint8_t> data = gather(request, bytes);
    for (uint64_t done = 0; done < data.size(); done += kSimSectorBytes) {
      const uint64_t run = std::min<uint64_t>(kSimSectorBytes, data.size() - done);
      if (random.below(2) == 0) medium.read(request.offset_bytes + done, data.data() + done, run);
    }
    scatter(request, data);
  }
};

namespace {

struct Pending {
  IoRequest* request = nullptr;
  SimDisk::Impl* disk = nullptr;
  SimRule rule;
  uint64_t ready_ns = 0;
  uint64_t flush_mark = 0;
  uint64_t life = 0;      // of the disk when the queue was made
  uint64_t releases = 0;  // of the disk at submit
  bool submitted_stopped = false;
};

class SimDevice final : public Device {
 public:
  SimDevice(SimDisk& disk, const SimDeviceOptions& device_options, Clock& device_clock)
      : disk_(disk.impl()), options_(device_options), clock_(device_clock) {
    info_.path = options_.path;
    info_.kind = "sim";
    info_.size_bytes = disk.size_bytes();
    info_.logical_block_bytes = options_.logical_block_bytes;
    info_.dma_alignment_bytes = options_.dma_alignment_bytes;
    info_.volatile_cache = options_.volatile_cache;
    disk_->medium.set_write_through(!options_.volatile_cache);
    info_.is_fabric = options_.is_fabric;
    info_.identity.serial = format_text("SIM%016llx", static_cast<unsigned long long>(disk_->seed));
  }

  const DeviceInfo& info() const override { return info_; }
  Result<std::unique_ptr<IoQueue>> make_queue(std::span<Device* const> devices, const QueueOptions& options) override;

  SimDisk::Impl* disk() const { return disk_; }
  const SimDeviceOptions& options() const { return options_; }
  Clock& clock() const { return clock_; }

 private:
  SimDisk::Impl* disk_;
  SimDeviceOptions options_;
  Clock& clock_;
  DeviceInfo info_;
};

class SimQueue final : public IoQueue {
 public:
  SimQueue(std::vector<SimDevice*> devices, uint32_t depth) : devices_(std::move(devices)), depth_(depth) {
    for (SimDevice* device : devices_) {
      const std::lock_guard<std::mutex> lock(device->disk()->registry_mutex);
      device->disk()->queues.push_back(this);
      const std::lock_guard<std::recursive_mutex> disk_lock(device->disk()->mutex);
      lives_.push_back(device->disk()->life);
    }
  }

  ~SimQueue() override {
    for (SimDevice* device : devices_) {
      const std::lock_guard<std::mutex> lock(device->disk()->registry_mutex);
      std::erase(device->disk()->queues, this);
    }
    for (const Pending& pending : pending_) abandon_request(pending, true);
  }

  bool submit(IoRequest* request) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (pending_.size() >= depth_) return false;
    Pending pending;
    pending.request = request;
    if (request->device_index < devices_.size()) {
      const SimDevice& device = *devices_[request->device_index];
      SimDisk::Impl& disk = *device.disk();
      pending.disk = &disk;
      pending.ready_ns = device.clock().monotonic_ns() + device.options().latency_ns;
      const std::lock_guard<std::recursive_mutex> disk_lock(disk.mutex);
      pending.flush_mark = disk.medium.mark();
      pending.life = lives_[request->device_index];
      pending.releases = disk.releases;
      pending.submitted_stopped = disk.stopped;
      if (!disk.stopped && pending.life == disk.life) pending.rule = disk.take_rule(*request);
      if (pending.rule.fault == SimFault::kStuck) ++disk.stuck_count;
    }
    pending_.push_back(pending);
    return true;
  }

  Status kick() override { return {}; }

  Result<uint32_t> poll(std::span<IoRequest*> completed, uint64_t timeout_ns, uint32_t /*wait_for*/) override {
    if (completed.empty()) return 0u;
    Clock& clock = devices_.front()->clock();
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t start_ns = clock.monotonic_ns();
    while (true) {
      const uint32_t count = complete_ready(completed, clock.monotonic_ns());
      if (timeout_ns == 0) return count;
      if (woken_.exchange(false) || count > 0) return count;
      const uint64_t now_ns = clock.monotonic_ns();
      const uint64_t waited_ns = now_ns - start_ns;
      if (waited_ns >= timeout_ns) return 0u;
      sleep(clock, std::min(timeout_ns - waited_ns, until_next_ready(now_ns)), lock);
    }
  }

  void wake() override {
    woken_ = true;
    wake_came_.notify_one();
  }

  Status register_buffers(std::span<const iovec> buffers) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!pending_.empty()) return Status(Code::kBusy, "buffers cannot be registered with requests in flight");
    buffers_.assign(buffers.begin(), buffers.end());
    return {};
  }

  uint32_t in_flight() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<uint32_t>(pending_.size());
  }
  uint32_t depth() const override { return depth_; }

  // The power is about to be cut: what is in flight to this disk lands or not, and is never executed later.
  void abandon(SimDisk::Impl* disk) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Pending& pending : pending_) {
      if (pending.disk == disk) abandon_request(pending, false);
    }
  }

 private:
  static bool is_stuck(const Pending& pending) {
    return pending.disk != nullptr && pending.rule.fault == SimFault::kStuck &&
           pending.releases == pending.disk->releases && pending.life == pending.disk->life && !pending.disk->stopped;
  }

  static void abandon_request(const Pending& pending, bool keeps_ghosts) {
    if (pending.disk == nullptr) return;
    SimDisk::Impl& disk = *pending.disk;
    const std::lock_guard<std::recursive_mutex> lock(disk.mutex);
    if (pending.life != disk.life || pending.submitted_stopped) return;
    const IoRequest& request = *pending.request;
    if (keeps_ghosts && is_stuck(pending)) {
      if (request.op == IoOp::kWrite) {
        disk.orphan_writes.push_back({request.offset_bytes, gather(request, request_bytes(request))});
      } else if (request.op == IoOp::kRead && pending.rule.value == 0) {
        disk.orphan_reads.push_back(
            {request.offset_bytes, {request.segments, request.segments + request.segment_count}});
      }
      return;
    }
    disk.land_partly(request);
  }

  // With the system clock other threads may wake this one; any other clock is advanced in one step.
  void sleep(Clock& clock, uint64_t duration_ns, std::unique_lock<std::mutex>& lock) {
    if (&clock == &system_clock()) {
      wake_came_.wait_for(lock, std::chrono::nanoseconds(std::min(duration_ns, kLookAgainNs)),
                          [&] { return woken_.load(); });
    } else {
      lock.unlock();
      clock.sleep_ns(duration_ns);
      lock.lock();
    }
  }

  uint64_t until_next_ready(uint64_t now_ns) const {
    uint64_t soonest_ns = UINT64_MAX;
    for (const Pending& pending : pending_) {
      if (pending.disk == nullptr) continue;
      const std::lock_guard<std::recursive_mutex> lock(pending.disk->mutex);
      if (!is_stuck(pending)) soonest_ns = std::min(soonest_ns, pending.ready_ns);
    }
    if (soonest_ns == UINT64_MAX) return UINT64_MAX;
    return soonest_ns > now_ns ? soonest_ns - now_ns : 0;
  }

  // The device moves bytes when it likes: of overlapping writes each sector may be anybody's, a buffer that is changed
  // too soon is written changed, one that is given back too soon is written to.
  void move_early() {
    for (const Pending& pending : pending_) {
      if (pending.disk == nullptr || !devices_[pending.request->device_index]->options().early) continue;
      SimDisk::Impl& disk = *pending.disk;
      const std::lock_guard<std::recursive_mutex> lock(disk.mutex);
      if (pending.life != disk.life || disk.stopped || pending.submitted_stopped) continue;
      if (pending.rule.fault != SimFault::kNone && pending.rule.fault != SimFault::kStuck) continue;
      if (disk.random.below(8) != 0 || check(*pending.request) != 0) continue;
      disk.land_partly(*pending.request);
      disk.arrive_partly(*pending.request);
    }
  }

  uint32_t complete_ready(std::span<IoRequest*> completed, uint64_t now_ns) {
    move_early();
    uint32_t count = 0;
    while (count < completed.size()) {
      std::vector<size_t> ready;
      for (size_t i = 0; i < pending_.size(); ++i) {
        const Pending& pending = pending_[i];
        if (pending.disk != nullptr) {
          const std::lock_guard<std::recursive_mutex> lock(pending.disk->mutex);
          if (is_stuck(pending) || pending.ready_ns > now_ns) continue;
        }
        ready.push_back(i);
      }
      if (ready.empty()) break;
      const SimDevice& first = *devices_.front();
      size_t chosen = ready.front();
      if (first.options().reorder) {
        const std::lock_guard<std::recursive_mutex> lock(first.disk()->mutex);
        chosen = ready[first.disk()->random.below(ready.size())];
        // Not all that could be reported at once is: callers must not count on batches.
        if (count > 0 && first.disk()->random.below(4) == 0) break;
      }
      const Pending pending = pending_[chosen];
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(chosen));
      complete(pending);
      completed[count++] = pending.request;
    }
    return count;
  }

  void complete(const Pending& pending) {
    IoRequest& request = *pending.request;
    if (pending.disk == nullptr) {
      request.result = -EINVAL;
      return;
    }
    SimDisk::Impl& disk = *pending.disk;
    const std::lock_guard<std::recursive_mutex> lock(disk.mutex);
    request.result = execute(disk, pending);
    if (disk.observer) disk.observer(request);
  }

  int64_t execute(SimDisk::Impl& disk, const Pending& pending) {
    const IoRequest& request = *pending.request;
    if (pending.life != disk.life) return -ENODEV;
    if (disk.stopped) {
      if (!pending.submitted_stopped) disk.land_partly(request);
      return -ENODEV;
    }
    if (const int64_t error = check(request); error != 0) return error;
    const SimRule& rule = pending.rule;
    disk.count_operation(request.op);
    ++disk.ticks;
    if (rule.fault != SimFault::kNone && rule.fault != SimFault::kGhost) {
      disk.note_hit(rule.fault, request.op, request.offset_bytes, request_bytes(request),
                    rule.fault == SimFault::kMisdirected ? rule.value : request.offset_bytes);
    }
    if (rule.fault == SimFault::kAgain) return -EAGAIN;
    if (rule.fault == SimFault::kGhost && request.op == IoOp::kWrite) {
      disk.failed_writes.push_back({request.offset_bytes, gather(request, request_bytes(request))});
      return rule.value == 0 ? -EIO : -static_cast<int64_t>(rule.value);
    }
    if (rule.fault == SimFault::kError) return rule.value == 0 ? -EIO : -static_cast<int64_t>(rule.value);
    if (rule.fault == SimFault::kStuck && rule.value != 0) return -static_cast<int64_t>(rule.value);
    switch (request.op) {
      case IoOp::kRead: return read(disk, request, rule);
      case IoOp::kWrite: return write(disk, request, rule);
      case IoOp::kFlush: return flush(disk, pending);
    }
    return -EINVAL;
  }

  // What the kernel would refuse.
  int64_t check(const IoRequest& request) const {
    if (request.op == IoOp::kFlush) return 0;
    const SimDeviceOptions& options = devices_[request.device_index]->options();
    if (request.segment_count == 0 || !is_aligned(request.offset_bytes, options.logical_block_bytes)) return -EINVAL;
    for (uint32_t i = 0; i < request.segment_count; ++i) {
      const iovec& segment = request.segments[i];
      if (!is_aligned(segment.iov_base, options.dma_alignment_bytes)) return -EINVAL;
      if (!is_aligned(segment.iov_len, options.logical_block_bytes)) return -EINVAL;
    }
    if (request.buffer_index < 0 || request.segment_count != 1) return 0;
    if (static_cast<size_t>(request.buffer_index) >= buffers_.size()) return -EFAULT;
    const iovec& buffer = buffers_[static_cast<size_t>(request.buffer_index)];
    const uint8_t* start = static_cast<const uint8_t*>(buffer.iov_base);
    const uint8_t* base = static_cast<const uint8_t*>(request.segments[0].iov_base);
    return base >= start && base + request.segments[0].iov_len <= start + buffer.iov_len ? 0 : -EFAULT;
  }

  static uint64_t bytes_to_move(uint64_t size_bytes, uint64_t offset_bytes, uint64_t bytes, const SimRule& rule) {
    if (offset_bytes >= size_bytes) return 0;
    bytes = std::min(bytes, size_bytes - offset_bytes);
    const bool is_part = rule.fault == SimFault::kShort || rule.fault == SimFault::kAgainAfterPart;
    return is_part ? std::min(bytes, align_down(rule.value, kSimSectorBytes)) : bytes;
  }

  static int64_t reported(const SimRule& rule, uint64_t moved) {
    if (rule.fault == SimFault::kAgainAfterPart) return -EAGAIN;
    return rule.fault == SimFault::kErrorAfterWrite ? -EIO : static_cast<int64_t>(moved);
  }

  // The medium itself changes at byte `value` of a request to it.
  static void damage(SimDisk::Impl& disk, const IoRequest& request, const SimRule& rule) {
    const uint64_t place = request.offset_bytes + rule.value;
    if (rule.value >= request_bytes(request) || place >= disk.medium.size_bytes()) return;
    if (rule.fault == SimFault::kRot) disk.medium.flip(place, static_cast<uint32_t>(disk.random.below(8)));
    if (rule.fault == SimFault::kLatent) disk.medium.spoil(place);
  }

  static int64_t read(SimDisk::Impl& disk, const IoRequest& request, const SimRule& rule) {
    const uint64_t from = rule.fault == SimFault::kMisdirected ? rule.value : request.offset_bytes;
    std::vector<uint8_t> data(bytes_to_move(disk.medium.size_bytes(), from, request_bytes(request), rule));
    damage(disk, request, rule);
    if (!disk.medium.is_readable(from, data.size())) return -EIO;
    if (rule.fault == SimFault::kStale) {
      disk.medium.read_previous(from, data.data(), data.size());
    } else {
      disk.medium.read(from, data.data(), data.size());
    }
    if (rule.fault == SimFault::kBitRot && rule.value < data.size()) {
      data[rule.value] = static_cast<uint8_t>(data[rule.value] ^ (1u << disk.random.below(8)));
    }
    scatter(request, data);
    return reported(rule, data.size());
  }

  int64_t write(SimDisk::Impl& disk, const IoRequest& request, const SimRule& rule) {
    const uint64_t total = request_bytes(request);
    if (rule.fault == SimFault::kLost) return static_cast<int64_t>(total);
    const uint64_t to = rule.fault == SimFault::kMisdirected ? rule.value : request.offset_bytes;
    const uint64_t moved = bytes_to_move(disk.medium.size_bytes(), to, total, rule);
    if (moved == 0 && bytes_to_move(disk.medium.size_bytes(), to, total, {}) == 0 && total > 0) return -ENOSPC;
    const std::vector<uint8_t> data = gather(request, moved);
    const bool durable = request.durable || !devices_[request.device_index]->options().volatile_cache;
    disk.medium.write(to, data.data(), align_down(data.size(), kSimSectorBytes), durable);
    damage(disk, request, rule);
    return reported(rule, moved);
  }

  static int64_t flush(SimDisk::Impl& disk, const Pending& pending) {
    if (pending.rule.fault == SimFault::kFlushFails) {
      disk.medium.drop_unflushed();
      return -EIO;
    }
    if (pending.rule.fault != SimFault::kLost) disk.medium.flush(pending.flush_mark);
    return pending.rule.fault == SimFault::kErrorAfterWrite ? -EIO : 0;
  }

  const std::vector<SimDevice*> devices_;
  std::vector<uint64_t> lives_;  // of each device's disk: after a power cut this queue is dead for ever
  const uint32_t depth_;
  mutable std::mutex mutex_;
  std::condition_variable wake_came_;
  std::atomic<bool> woken_{false};
  std::vector<Pending> pending_;
  std::vector<iovec> buffers_;
};

Result<std::unique_ptr<IoQueue>> SimDevice::make_queue(std::span<Device* const> devices, const QueueOptions& options) {
  std::vector<SimDevice*> sims;
  for (Device* device : devices) {
    SimDevice* sim = dynamic_cast<SimDevice*>(device);
    if (sim == nullptr) return Status(Code::kInvalid, device->info().path + " is not a simulated device");
    sims.push_back(sim);
  }
  if (sims.empty() || options.depth == 0) return Status(Code::kInvalid, "a queue needs a device and a depth");
  return std::unique_ptr<IoQueue>(std::make_unique<SimQueue>(std::move(sims), options.depth));
}

}  // namespace

SimDisk::SimDisk(uint64_t size_bytes, uint64_t seed) : impl_(std::make_unique<Impl>(size_bytes, seed)) {}
SimDisk::~SimDisk() = default;

uint64_t SimDisk::operations() const {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  return impl_->operations;
}

void SimDisk::set_count_reads(bool count_reads) {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  impl_->count_reads = count_reads;
}

void SimDisk::stop_after(uint64_t operations) {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  impl_->stop_at = impl_->operations + operations;
  impl_->stopped = operations == 0;
}

bool SimDisk::stopped() const {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  return impl_->stopped;
}

void SimDisk::power_cut(bool cache_survives) {
  const std::lock_guard<std::mutex> registry_lock(impl_->registry_mutex);
  for (SimQueue* queue : impl_->queues) queue->abandon(impl_.get());
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  if (!cache_survives) impl_->medium.power_cut();
  ++impl_->life;
  impl_->stopped = false;
  impl_->stop_at = UINT64_MAX;
  impl_->stuck_count = 0;
  // The memory they would land in is gone with the process.
  impl_->orphan_reads.clear();
  if (!cache_survives) {
    impl_->orphan_writes.clear();
    impl_->failed_writes.clear();
  }
}

void SimDisk::add_rule(SimRule rule) {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  impl_->rules.push_back(std::move(rule));
}

void SimDisk::clear_rules() {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  impl_->rules.clear();
}

void SimDisk::release_stuck() {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  impl_->land(impl_->orphan_writes);
  impl_->land(impl_->orphan_reads);
  impl_->stuck_count = 0;
  ++impl_->releases;
}

void SimDisk::land_ghosts() {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  impl_->land(impl_->failed_writes);
}

uint64_t SimDisk::ghost_count() const {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  return impl_->failed_writes.size();
}

void SimDisk::keep_previous() {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  impl_->medium.keep_previous();
}

std::vector<SimHit> SimDisk::take_hits() {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  return std::exchange(impl_->hits, {});
}

uint64_t SimDisk::ticks() const {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  return impl_->ticks;
}

uint64_t SimDisk::stuck_count() const {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  return impl_->stuck_count;
}

void SimDisk::peek(uint64_t offset_bytes, void* data, uint64_t bytes) const {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  impl_->medium.read(offset_bytes, static_cast<uint8_t*>(data), bytes);
}

void SimDisk::poke(uint64_t offset_bytes, const void* data, uint64_t bytes) {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  impl_->medium.poke(offset_bytes, static_cast<const uint8_t*>(data), bytes);
}

uint64_t SimDisk::size_bytes() const {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  return impl_->medium.size_bytes();
}

void SimDisk::resize(uint64_t size_bytes) {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  impl_->medium.resize(size_bytes);
}

void SimDisk::set_observer(Observer observer) {
  const std::lock_guard<std::recursive_mutex> lock(impl_->mutex);
  impl_->observer = std::move(observer);
}

std::unique_ptr<Device> make_sim_device(SimDisk& disk, const SimDeviceOptions& options, Clock& clock) {
  return std::make_unique<SimDevice>(disk, options, clock);
}

}  // namespace kvstore::device
