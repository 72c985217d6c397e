// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// How fast blocks go between device memory and storage: through a pool, by pinned bounce, verified as always; and by
// cuFile, as the device below a pool would ask it. Two jobs are always under way, so that none waits for the end of
// another.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "figures.h"
#include "gpu/cufile_device.h"
#include "gpu/device_memory.h"
#include "store/format_device.h"
#include "store/store.h"

namespace kvstore::gpu {

namespace {

constexpr uint64_t kBlockBytes = 4 * kMiB;
constexpr uint32_t kBatchBlocks = 16;
constexpr uint32_t kJobs = 2;
constexpr uint64_t kForeverNs = 60'000'000'000;
constexpr uint32_t kDirectThreads = 16;
constexpr uint64_t kDirectBytes = 4 * kMiB;  // of a call

// A pool of `blocks` blocks, which are put and got in batches.
class BouncePool {
 public:
  static Result<std::unique_ptr<BouncePool>> make(const PlainGpu& gpu, const BenchOptions& options, uint64_t blocks) {
    store::FormatOptions format;
    format.block_bytes = kBlockBytes;
    format.force = true;
    // Twice what is put, so that nothing is reclaimed meanwhile, and what a pool needs beside that.
    if (options.path.rfind("/dev/", 0) != 0) format.file_bytes = 2 * blocks * kBlockBytes + kGiB;
    KVS_TRY(store::format_pool({options.path}, format, system_clock(), system_random()).status());
    KVS_ASSIGN(std::unique_ptr<store::Store> store, store::Store::open({options.path}, {}));
    std::unique_ptr<BouncePool> pool(new BouncePool(gpu, std::move(store)));
    KVS_ASSIGN(pool->space_, pool->store_->register_space(R"({"engine":"gpu-bench"})"));
    for (uint32_t i = 0; i < kJobs; ++i) {
      KVS_ASSIGN(const cu::Stream stream, gpu.make_stream());
      pool->streams_.push_back(stream);
      KVS_ASSIGN(PlainMemory memory, PlainMemory::make(gpu, kBatchBlocks * kBlockBytes));
      pool->memory_.push_back(std::move(memory));
    }
    return pool;
  }
  ~BouncePool() { (void)store_->close(kForeverNs); }
  BouncePool(const BouncePool&) = delete;
  BouncePool& operator=(const BouncePool&) = delete;

  // Blocks first to first + count, all of which must come to `wanted`.
  Status run(bool is_put, uint64_t first, uint64_t count) {
    store::JobRef jobs[kJobs];
    const store::ItemStatus wanted = is_put ? store::ItemStatus::kStored : store::ItemStatus::kHit;
    uint32_t turn = 0;
    Status failed;
    for (uint64_t at = first; at < first + count && failed.ok(); at += kBatchBlocks, turn = (turn + 1) % kJobs) {
      failed = ended(jobs[turn], wanted);
      if (!failed.ok()) break;
      Result<store::JobRef> job = submit(is_put, at, std::min<uint64_t>(kBatchBlocks, first + count - at), turn);
      if (job.ok()) jobs[turn] = std::move(job).value();
      failed = job.status();
    }
    for (store::JobRef& job : jobs) {
      Status status = ended(job, wanted);
      if (failed.ok()) failed = std::move(status);
    }
    return failed;
  }
  Status flush() { return store_->flush(kForeverNs); }
  std::string bounce() const {
    for (const auto& [name, text] : store_->texts()) {
      if (name == "bounce") return text;
    }
    return "";
  }

 private:
  BouncePool(const PlainGpu& gpu, std::unique_ptr<store::Store> store) : gpu_(gpu), store_(std::move(store)) {}

  Result<store::JobRef> submit(bool is_put, uint64_t first, uint64_t count, uint32_t turn) {
    auto mover = std::make_shared<DeviceMemory>();
    KVS_ASSIGN(const uint32_t place, mover->place_of(gpu_.device(), reinterpret_cast<uint64_t>(streams_[turn])));
    std::vector<store::PutItem> puts(count);
    std::vector<store::GetItem> gets(count);
    std::vector<iovec>& segments = segments_[turn];
    std::vector<std::string>& keys = keys_[turn];
    segments.clear();
    keys.clear();
    for (uint64_t i = 0; i < count; ++i) {
      keys.push_back(format_text("block %llu", static_cast<unsigned long long>(first + i)));
      segments.push_back({static_cast<uint8_t*>(memory_[turn].address()) + i * kBlockBytes, kBlockBytes});
    }
    for (uint64_t i = 0; i < count; ++i) {
      puts[i].space = gets[i].space = space_;
      puts[i].key = gets[i].key = keys[i];
      puts[i].segments = gets[i].segments = &segments[i];
      puts[i].segment_count = gets[i].segment_count = 1;
      puts[i].memory_place = gets[i].memory_place = static_cast<int32_t>(place);
    }
    KVS_TRY(store_->prepare_mover(*mover));
    KVS_TRY(mover->begin(!is_put));
    store::SubmitOptions options;
    options.mover = std::move(mover);
    return is_put ? store_->put(puts, options, nullptr) : store_->get(gets, options, nullptr);
  }

  static Status ended(store::JobRef& job, store::ItemStatus wanted) {
    const store::JobRef ended = std::move(job);
    job = {};
    if (!ended) return {};
    if (!ended->wait(kForeverNs)) return Status(Code::kTimeout, "a job did not end in 60 s");
    for (uint32_t i = 0; i < ended->size(); ++i) {
      if (ended->result(i).status == wanted) continue;
      return Status(Code::kIo, "a block was neither stored nor read: " + ended->error_text(i));
    }
    return {};
  }

  const PlainGpu& gpu_;
  std::unique_ptr<store::Store> store_;
  store::SpaceId space_;
  // One for each job: what is behind a get on its stream waits for it (G2), and so would the next one.
  std::vector<cu::Stream> streams_;
  std::vector<PlainMemory> memory_;
  std::vector<iovec> segments_[kJobs];
  std::vector<std::string> keys_[kJobs];
};

Status bounce_rates(const PlainGpu& gpu, const BenchOptions& options) {
  const uint64_t blocks = std::max<uint64_t>(options.bytes / kBlockBytes, kBatchBlocks);
  KVS_ASSIGN(const std::unique_ptr<BouncePool> pool, BouncePool::make(gpu, options, blocks));
  // The first batch pins staging, which is no part of the rate.
  KVS_TRY(pool->run(true, 0, kBatchBlocks));
  const uint64_t begin = system_clock().monotonic_ns();
  KVS_TRY(pool->run(true, kBatchBlocks, blocks));
  KVS_TRY(pool->flush());
  const uint64_t took = system_clock().monotonic_ns() - begin;
  print_rate("bounce_put", static_cast<double>(blocks * kBlockBytes) * 1e9 / static_cast<double>(took),
             pool->bounce() + ", durable");
  const Result<double> rate =
      rate_of(options.least_ns, blocks * kBlockBytes, [&] { return pool->run(false, kBatchBlocks, blocks); });
  KVS_TRY(rate.status());
  print_rate("bounce_get", rate.value(), pool->bounce() + ", verified");
  return {};
}

// Keeps a queue full until `bytes` from `offset` on were moved to or from the memory, block i of it at i modulo its
// size.
Status stream_through(device::IoQueue& queue, device::IoOp op, uint64_t bytes, const PlainMemory& memory) {
  struct Call {
    iovec segment{};
    device::IoRequest request;
  };
  // I11: what does not come back is never freed.
  auto calls = std::make_unique<std::vector<Call>>(memory.bytes() / kDirectBytes);
  std::vector<Call*> idle;
  for (size_t i = 0; i < calls->size(); ++i) {
    Call& call = (*calls)[i];
    call.segment = {static_cast<uint8_t*>(memory.address()) + i * kDirectBytes, kDirectBytes};
    call.request.owner = &call;
    idle.push_back(&call);
  }
  Status failed;
  for (uint64_t at = 0; (at < bytes && failed.ok()) || queue.in_flight() != 0;) {
    while (!idle.empty() && at < bytes && failed.ok()) {
      device::IoRequest& request = idle.back()->request;
      request.op = op;
      request.offset_bytes = at;
      request.segments = &idle.back()->segment;
      request.segment_count = 1;
      if (!queue.submit(&request)) break;
      idle.pop_back();
      at += kDirectBytes;
    }
    device::IoRequest* completed[kDirectThreads];
    const Result<uint32_t> count = queue.poll(completed, kForeverNs);
    if (!count.ok() || count.value() == 0) {
      (void)calls.release();
      return count.ok() ? Status(Code::kTimeout, "cuFile did not come back in 60 s") : count.status();
    }
    for (uint32_t i = 0; i < count.value(); ++i) {
      const int64_t result = completed[i]->result;
      if (result != static_cast<int64_t>(kDirectBytes) && failed.ok()) {
        failed = Status(Code::kIo,
                        format_text("a call of %llu bytes gave %lld", static_cast<unsigned long long>(kDirectBytes),
                                    static_cast<long long>(result)));
      }
      idle.push_back(static_cast<Call*>(completed[i]->owner));
    }
  }
  return failed;
}

Status direct_rates(const PlainGpu& gpu, const BenchOptions& options) {
  CuFileOptions cufile_options;
  cufile_options.modules_path = options.modules;
  KVS_ASSIGN(const CuFile opened, CuFile::open(gpu.driver(), cufile_options));
  // For ever, as its threads may outlive this.
  const CuFile& cufile = *new CuFile(opened);
  KVS_ASSIGN(const std::unique_ptr<device::Device> below, device::open_device(options.path, {}, system_clock()));
  KVS_ASSIGN(const std::unique_ptr<device::Device> direct,
             make_cufile_device(cufile, gpu.driver(), gpu.context(), *below, kDirectThreads));
  KVS_ASSIGN(const PlainMemory memory, PlainMemory::make(gpu, kDirectThreads * kDirectBytes));
  const std::string way = cufile.says_direct(below->info().is_fabric) ? "direct" : "compat: through host memory";
  const uint64_t size = below->info().size_bytes;
  const uint64_t bytes = align_down(std::min(options.bytes, size), kDirectBytes);
  for (const uint64_t part : {uint64_t{0}, size / 2, size - 2 * kDirectBytes}) {
    Status same = check_direct_reads(gpu.driver(), gpu.context(), gpu.stream(), *direct, *below,
                                     align_down(part, kPageBytes), kDirectBytes, memory.pointer());
    if (same.code() == Code::kCorrupt) print_text("self_test", "WRONG: " + same.message());
    KVS_TRY(same);
  }
  print_text("self_test", "equal bytes: " + way);
  device::Device* const devices[] = {direct.get()};
  KVS_ASSIGN(const std::unique_ptr<device::IoQueue> queue, direct->make_queue(devices, {.depth = kDirectThreads}));
  std::vector<iovec> buffers;
  for (uint32_t i = 0; i < kDirectThreads; ++i) {
    buffers.push_back({static_cast<uint8_t*>(memory.address()) + i * kDirectBytes, kDirectBytes});
  }
  const Status registered = queue->register_buffers(buffers);
  const std::string note = way + (registered.ok() ? ", registered memory" : ", " + registered.message());
  for (const bool is_get : {true, false}) {
    const char* const name = is_get ? "direct_get" : "direct_put";
    const Result<double> rate = rate_of(options.least_ns, bytes, [&] {
      return stream_through(*queue, is_get ? device::IoOp::kRead : device::IoOp::kWrite, bytes, memory);
    });
    rate.ok() ? print_rate(name, rate.value(), note) : print_absent(name, rate.status());
  }
  return {};
}

}  // namespace

void measure_bounce(const PlainGpu& gpu, const BenchOptions& options) {
  const Status status = bounce_rates(gpu, options);
  if (status.ok()) return;
  print_absent("bounce_put", status);
  print_absent("bounce_get", status);
}

void measure_direct(const PlainGpu& gpu, const BenchOptions& options) {
  const Status status = direct_rates(gpu, options);
  if (status.ok()) return;
  print_absent("direct_get", status);
  print_absent("direct_put", status);
}

}  // namespace kvstore::gpu
