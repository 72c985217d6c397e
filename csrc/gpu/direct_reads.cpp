// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/direct_reads.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "device/blocking_io.h"
#include "device/fork_guard.h"
#include "device/threads_queue.h"
#include "gpu/cufile_device.h"

namespace kvstore::gpu {

namespace {

constexpr uint64_t kForeverNs = UINT64_MAX;
constexpr size_t kNodesOfRead = kPieceBytes / kPageBytes;
// The pool may write where the proof reads: between the two reads of one attempt, not of all.
constexpr int kProofAttempts = 3;

// A device by a duplicate of its descriptor, so that it can be read whatever becomes of the pool's own.
class SameDevice final : public device::Device {
 public:
  static Result<std::unique_ptr<device::Device>> of(const device::Device& device) {
    if (device.descriptor() < 0) {
      return Status(Code::kUnsupported, device.info().path + " has no descriptor that cuFile could read from");
    }
    const device::ForkBarrier barrier;
    const int duplicate = fcntl(device.descriptor(), F_DUPFD_CLOEXEC, 3);
    if (duplicate < 0) return Status::from_errno(errno, device.info().path + " cannot be duplicated");
    return std::unique_ptr<device::Device>(
        std::make_unique<SameDevice>(device.info(), device::GuardedFd(duplicate, barrier)));
  }
  SameDevice(device::DeviceInfo info, device::GuardedFd fd) : info_(std::move(info)), fd_(std::move(fd)) {}

  const device::DeviceInfo& info() const override { return info_; }
  int descriptor() const override { return fd_.get(); }
  Result<std::unique_ptr<device::IoQueue>> make_queue(std::span<device::Device* const> devices,
                                                      const device::QueueOptions& options) override {
    std::vector<int> fds;
    for (const device::Device* const one : devices) fds.push_back(one->descriptor());
    return device::make_threads_queue(fds, options, 1);
  }

 private:
  const device::DeviceInfo info_;
  const device::GuardedFd fd_;
};

}  // namespace

Result<std::unique_ptr<DirectReads>> DirectReads::make(Bounce& gpu, std::span<const store::PoolDevice> devices,
                                                       const DirectOptions& options) {
  std::unique_ptr<DirectReads> made(new DirectReads(gpu, options));
  for (const store::PoolDevice& one : devices) {
    auto source = std::make_unique<Source>();
    KVS_ASSIGN(source->host, SameDevice::of(*one.device));
    source->proof_offset_bytes = one.payload_offset_bytes;
    made->sources_.push_back(std::move(source));
  }
  KVS_TRY(made->prepare_gpu());
  DirectReads* const reads = made.get();
  KVS_TRY(reads->thread_.start("kvs-direct", [] { return Status(); }, [reads] { reads->run(); }));
  return made;
}

DirectReads::~DirectReads() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
    if (queue_) queue_->wake();
  }
  thread_.join([] { return false; });
  for (const auto& [base, bytes] : registered_) deregister_buffers(base, bytes);
  const ContextScope scope(gpu_.driver(), gpu_.context());
  if (nodes_ != nullptr) (void)gpu_.driver().host_free(nodes_);
  if (proof_memory_ != 0) (void)gpu_.driver().memory_free(proof_memory_);
  if (stream_ != nullptr) (void)gpu_.driver().stream_destroy(stream_);
}

// ---- proof -----------------------------------------------------------------------------------------------------

bool DirectReads::is_stopping() {
  std::lock_guard lock(mutex_);
  return is_stopping_;
}

Status DirectReads::prepare_gpu() {
  const ContextScope scope(gpu_.driver(), gpu_.context());
  KVS_TRY(scope.status());
  launcher_ = options_.launcher;
  if (launcher_ == nullptr) {
    KVS_ASSIGN(launcher_, launcher_of(gpu_.driver(), gpu_.context(), gpu_.device()));
  }
  if (!launcher_->has_kernels()) {
    return Status(Code::kUnsupported, "what is read directly could not be verified: " + launcher_->kernels_missing());
  }
  KVS_TRY(gpu_.driver().check(gpu_.driver().stream_create(&stream_, cu::kStreamNonBlocking), "cuStreamCreate",
                              "direct reads"));
  KVS_TRY(gpu_.driver().check(gpu_.driver().memory_alloc(&proof_memory_, kProofBytes), "cuMemAlloc",
                              "the self-test of direct reads"));
  return prepare_reads();
}

Status DirectReads::prepare_reads() {
  void* memory = nullptr;
  KVS_TRY(gpu_.driver().check(gpu_.driver().host_alloc(&memory, kReadsMax * kNodesOfRead * sizeof(uint64_t),
                                                       cu::kHostPortable | cu::kHostDeviceMap),
                              "cuMemHostAlloc", "page nodes of direct reads"));
  nodes_ = static_cast<uint64_t*>(memory);
  cu::DevicePointer on_device = 0;
  KVS_TRY(gpu_.driver().check(gpu_.driver().host_device_pointer(&on_device, memory, 0), "cuMemHostGetDevicePointer",
                              "page nodes of direct reads"));
  reads_ = std::vector<Read>(kReadsMax);
  std::lock_guard lock(mutex_);
  for (size_t i = reads_.size(); i-- > 0;) {
    reads_[i].nodes = nodes_ + i * kNodesOfRead;
    reads_[i].nodes_on_device = on_device + i * kNodesOfRead * sizeof(uint64_t);
    free_reads_.push_back(&reads_[i]);
  }
  return {};
}

Status DirectReads::prove_bytes(Source& source, cu::DevicePointer memory) {
  Status last;
  for (int attempt = 0; attempt < kProofAttempts; ++attempt) {
    last = check_direct_reads(gpu_.driver(), gpu_.context(), stream_, *source.direct, *source.host,
                              source.proof_offset_bytes, kProofBytes, memory);
    if (last.code() != Code::kCorrupt) break;
  }
  return last;
}

// That the kernel computes here what the CPU does, over whatever bytes are in `memory`.
Status DirectReads::prove_nodes(Source& source, cu::DevicePointer memory) {
  const PayloadRun run{{memory, kProofBytes}, reads_.front().nodes_on_device};
  KVS_TRY(launcher_->hash_pages({&run, 1}, stream_));
  AlignedBuffer bytes(kProofBytes);
  KVS_TRY(gpu_.driver().check(gpu_.driver().copy_to_host(bytes.data(), memory, kProofBytes, stream_),
                              "cuMemcpyDtoHAsync", "the self-test of direct reads"));
  KVS_TRY(gpu_.driver().check(gpu_.driver().stream_synchronize(stream_), "cuStreamSynchronize",
                              "the self-test of direct reads"));
  uint64_t expected[kNodesOfRead];
  page_nodes(bytes.data(), kProofBytes, expected);
  if (std::memcmp(expected, reads_.front().nodes, sizeof(expected)) == 0) return {};
  return Status(Code::kCorrupt, "the kernel that hashes pages gave other nodes than the CPU, over bytes read of " +
                                    source.host->info().path);
}

void DirectReads::prove(Source& source, cu::DevicePointer memory) {
  const auto outcome = [&]() -> Status {
    const device::DeviceInfo& info = source.host->info();
    source.through_host = options_.make_device || !cufile_->says_direct(info.is_fabric);
    if (source.through_host && !options_.through_host_too) {
      return Status(Code::kUnsupported,
                    format_text("cuFile says that it would copy what it reads of %s through host memory (compat mode), "
                                "which the store does faster itself; is nvidia-fs loaded, or use_pci_p2pdma set?",
                                info.path.c_str()));
    }
    if (options_.make_device) {
      KVS_ASSIGN(source.direct,
                 options_.make_device({&gpu_.driver(), gpu_.context(), source.host.get(), options_.threads}));
    } else {
      KVS_ASSIGN(source.direct,
                 make_cufile_device(*cufile_, gpu_.driver(), gpu_.context(), *source.host, options_.threads));
    }
    KVS_TRY(prove_bytes(source, memory));
    return prove_nodes(source, memory);
  };
  source.refusal = outcome();
}

Status DirectReads::make_queue() {
  std::vector<device::Device*> devices;
  for (const auto& source : sources_) {
    if (!source->refusal.ok()) continue;
    source->number_in_queue = static_cast<uint16_t>(devices.size());
    devices.push_back(source->direct.get());
  }
  if (devices.empty()) return {};
  KVS_ASSIGN(auto queue, devices.front()->make_queue(devices, {.depth = kReadsMax}));
  std::lock_guard lock(mutex_);
  queue_ = std::move(queue);
  return {};
}

void DirectReads::run() {
  const ContextScope scope(gpu_.driver(), gpu_.context());
  const auto prove_all = [&]() -> Status {
    KVS_TRY(scope.status());
    // Whatever reads: without its gate libcufile may spin for ever.
    cufile_ = options_.cufile;
    if (cufile_ == nullptr) {
      KVS_ASSIGN(cufile_, CuFile::get(gpu_.driver()));
    }
    for (auto& source : sources_) {
      if (is_stopping()) return Status(Code::kClosed, "the pool was closed");
      prove(*source, proof_memory_);
      if (source->refusal.code() != Code::kTimeout) continue;
      proof_memory_ = 0;  // I11: it did not come back, and may still write it
      return Status(Code::kTimeout, "cuFile did not come back from a read of a device of this pool");
    }
    return make_queue();
  };
  const Status all = prove_all();
  {
    std::lock_guard lock(mutex_);
    for (auto& source : sources_) {
      if (!all.ok() && source->refusal.ok()) source->refusal = all;
      source->proof = source->refusal;
      source->proven.store(source->refusal.ok(), std::memory_order_release);
    }
    is_settled_ = true;
  }
  changed_.notify_all();
  if (!queue_) return;
  device::IoRequest* completed[16];
  while (take_started()) serve(completed);
}

Status DirectReads::wait_until_proven() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_settled_; });
  for (const auto& source : sources_) KVS_TRY(source->proof);
  return {};
}

std::string DirectReads::state() const {
  std::lock_guard lock(mutex_);
  if (!is_settled_) return {};
  for (const auto& source : sources_) {
    if (!source->refusal.ok()) return "refused: " + source->refusal.message();
  }
  for (const auto& source : sources_) {
    if (source->through_host) return "compat";
  }
  return "direct";
}

void DirectReads::refuse(uint16_t device, const Status& why) {
  std::lock_guard lock(mutex_);
  Source& source = *sources_[device];
  source.proven.store(false, std::memory_order_release);
  if (source.refusal.ok()) {
    source.refusal = Status(why.code(), "a direct read of " + source.host->info().path +
                                            " was wrong where one through host memory was right: " + why.message());
  }
}

// ---- registered memory -----------------------------------------------------------------------------------------

Status DirectReads::register_memory(void* base, uint64_t bytes) {
  const Status proven = wait_until_proven();
  if (!proven.ok()) return Status(Code::kUnsupported, "nothing is read directly: " + proven.message());
  if (options_.make_device)
    return Status(Code::kUnsupported, "gpu_engine is not cuFile, with which memory is registered");
  const ContextScope scope(gpu_.driver(), gpu_.context());
  KVS_TRY(scope.status());
  std::lock_guard lock(registered_mutex_);
  for (uint64_t done = 0; done < bytes; done += kPieceBytes) {
    const Status registered = CuFile::check(
        cufile_->buffer_register(static_cast<uint8_t*>(base) + done, std::min(kPieceBytes, bytes - done), 0),
        "cuFileBufRegister", format_text("%llu bytes of GPU memory", static_cast<unsigned long long>(bytes)));
    if (registered.ok()) continue;
    deregister_buffers(base, done);
    return Status(Code::kUnsupported, registered.message());
  }
  registered_[base] = bytes;
  return {};
}

void DirectReads::unregister_memory(void* base) {
  std::lock_guard lock(registered_mutex_);
  const auto found = registered_.find(base);
  if (found == registered_.end()) return;
  deregister_buffers(base, found->second);
  registered_.erase(found);
}

void DirectReads::deregister_buffers(void* base, uint64_t bytes) {
  const ContextScope scope(gpu_.driver(), gpu_.context());
  for (uint64_t done = 0; done < bytes; done += kPieceBytes) {
    (void)cufile_->buffer_deregister(static_cast<uint8_t*>(base) + done);
  }
}

// ---- reads -----------------------------------------------------------------------------------------------------

void DirectReads::start(store::MemoryMove& move, store::MoveListener& listener) {
  std::lock_guard lock(mutex_);
  started_.push_back({&move, &listener});
  queue_->wake();
}

// False: the thread is to end.
bool DirectReads::take_started() {
  std::lock_guard lock(mutex_);
  waiting_.insert(waiting_.end(), started_.begin(), started_.end());
  started_.clear();
  return !is_stopping_;
}

void DirectReads::serve(std::span<device::IoRequest*> completed) {
  while (!waiting_.empty()) {
    Read* read = nullptr;
    {
      std::lock_guard lock(mutex_);
      if (free_reads_.empty()) break;  // one that ends wakes this thread
      read = free_reads_.back();
      free_reads_.pop_back();
    }
    begin(*read, waiting_.front());
    waiting_.pop_front();
  }
  const Result<uint32_t> count = queue_->poll(completed, kForeverNs);
  if (!count.ok()) return;  // a forked child has no such thread, and this queue fails for nothing else
  for (uint32_t i = 0; i < count.value(); ++i) {
    Read& read = *static_cast<Read*>(completed[i]->owner);
    const int64_t result = read.request.result;
    switch (device::advance_after_completion(read.request, read.rest, read.attempts)) {
      case device::IoOutcome::kDone: hash(read); break;
      case device::IoOutcome::kRetry: queue_->submit(&read.request); break;
      case device::IoOutcome::kFailed: {
        const std::string what = "cuFileRead of " + sources_[read.move->read.device]->host->info().path;
        end(read, result < 0 ? Status::from_errno(static_cast<int>(-result), what)
                             : Status(Code::kIo, what + ": stopped short", EIO));
        break;
      }
    }
  }
}

void DirectReads::begin(Read& read, const Started& started) {
  read.move = started.move;
  read.listener = started.listener;
  read.attempts = 0;
  const Source& source = *sources_[read.move->read.device];
  read.move->read.through_host = source.through_host;
  read.request = {};
  read.request.device_index = source.number_in_queue;
  read.request.offset_bytes = read.move->read.offset_bytes;
  read.request.segments = read.move->runs.data();
  read.request.segment_count = static_cast<uint32_t>(read.move->runs.size());
  read.request.owner = &read;
  queue_->submit(&read.request);  // no more than kReadsMax at once, which the queue has room for
}

// cuFile has returned, so that its writes are seen by a kernel that is launched from now on.
void DirectReads::hash(Read& read) {
  store::MemoryMove& move = *read.move;
  if (!move.read.wants_nodes) return end(read, {});
  std::vector<PayloadRun> runs;
  uint64_t pages = 0;
  for (const iovec& run : move.runs) {
    runs.push_back({{reinterpret_cast<cu::DevicePointer>(run.iov_base), run.iov_len},
                    read.nodes_on_device + pages * sizeof(uint64_t)});
    pages += run.iov_len / kPageBytes;
  }
  move.read.nodes.resize(pages);
  std::memset(read.nodes, 0, pages * sizeof(uint64_t));  // those of an earlier read must not count if no kernel runs
  if (Status begun = launcher_->hash_pages(runs, stream_); !begun.ok()) {
    (void)gpu_.driver().stream_synchronize(stream_);  // a part of it may be under way
    return end(read, std::move(begun));
  }
  const Result<cu::Event> hashed = gpu_.mark(stream_);
  if (!hashed.ok()) {
    (void)gpu_.driver().stream_synchronize(stream_);  // `nodes` may be written until then
    return end(read, hashed.status());
  }
  gpu_.when(hashed.value(), [this, &read] {
    std::copy_n(read.nodes, read.move->read.nodes.size(), read.move->read.nodes.begin());
    end(read, {});
  });
}

void DirectReads::end(Read& read, Status outcome) {
  store::MemoryMove& move = *std::exchange(read.move, nullptr);
  store::MoveListener& listener = *read.listener;
  {
    std::lock_guard lock(mutex_);
    if (free_reads_.empty()) queue_->wake();
    free_reads_.push_back(&read);
  }
  move.outcome = std::move(outcome);
  listener.move_ended(move);
}

}  // namespace kvstore::gpu
