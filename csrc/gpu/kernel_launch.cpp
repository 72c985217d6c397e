// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/kernel_launch.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/units.h"
#include "gpu/symbols.h"

namespace kvstore::gpu {
namespace {

enum KernelIndex : size_t { kScatterKernel, kGatherKernel, kPageKernel };
constexpr std::array<const char*, 3> kKernelNames = {"kvstore_scatter_extent", "kvstore_gather_extent",
                                                     "kvstore_page_nodes"};

constexpr int kMultiprocessorCount = 16;  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
constexpr uint32_t kMultiprocessorsUnknown = 8;
constexpr uint32_t kShareOfMultiprocessors = 3;  // a third: docs/gpu.md
constexpr uint64_t kBatchRunBytes = 64 * kKiB;
constexpr size_t kBatchCopies = 1024;

// CU_MEMCPY_SRC_ACCESS_ORDER_STREAM. Any other lets a copy read before the stream has written (vllm#39306).
constexpr int kSourceInStreamOrder = 1;

// cuMemcpyBatchAsync refuses the legacy default stream; its other handle is 1.
bool is_legacy_stream(cu::Stream stream) { return reinterpret_cast<uintptr_t>(stream) <= 1; }

cu::DevicePointer target_of(const CopyRun& run, Direction direction) {
  return direction == Direction::kScatter ? run.cache_address : run.extent_address;
}
cu::DevicePointer source_of(const CopyRun& run, Direction direction) {
  return direction == Direction::kScatter ? run.extent_address : run.cache_address;
}

uint32_t blocks_for(uint64_t work, uint64_t work_a_block, uint32_t blocks_max) {
  return static_cast<uint32_t>(std::min<uint64_t>(ceil_div(work, work_a_block), blocks_max));
}

}  // namespace

LaunchDriver LaunchDriver::of(const CudaDriver& driver) {
  LaunchDriver found;
  found.error_name = driver.error_name;
  found.module_load = driver.module_load;
  found.module_function = driver.module_function;
  found.launch_kernel = driver.launch_kernel;
  // It is loaded already and is never unloaded.
  void* const library = dlopen(driver.library().c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return found;
  Symbols symbols(library);
  symbols.find(found.device_attribute, "cuDeviceGetAttribute");
  symbols.find(found.copy, "cuMemcpyAsync");
  symbols.find(found.copy_batch, "cuMemcpyBatchAsync_v2");
  symbols.find(found.copy_batch_12, "cuMemcpyBatchAsync");
  return found;
}

const char* move_way_name(MoveWay way) {
  switch (way) {
    case MoveWay::kKernel: return "kernel";
    case MoveWay::kCopyBatch: return "copy_batch";
    case MoveWay::kCopies: return "copies";
  }
  return "";
}

MoveWay choose_way(uint64_t run_bytes, bool has_kernels, bool has_batch) {
  if (has_batch && (run_bytes >= kBatchRunBytes || !has_kernels)) return MoveWay::kCopyBatch;
  return has_kernels ? MoveWay::kKernel : MoveWay::kCopies;
}

Result<KernelLauncher> KernelLauncher::load(const LaunchDriver& driver, cu::Device device, const KernelImage& image) {
  KernelLauncher launcher;
  launcher.driver_ = driver;
  int count = 0;
  if (driver.device_attribute == nullptr || driver.device_attribute(&count, kMultiprocessorCount, device) != 0)
    count = 0;
  launcher.set_multiprocessors(count > 0 ? static_cast<uint32_t>(count) / kShareOfMultiprocessors
                                         : kMultiprocessorsUnknown);
  if (image.bytes.empty()) {
    launcher.kernels_missing_ = image.absent;
  } else {
    cu::Module module = nullptr;
    Status status = launcher.check(driver.module_load(&module, image.bytes.data()), "cuModuleLoadData");
    for (size_t i = 0; i < kKernelNames.size() && status.ok(); ++i) {
      status = launcher.check(driver.module_function(&launcher.kernels_[i], module, kKernelNames[i]), kKernelNames[i]);
    }
    // A driver older than the toolkit, or a GPU older than all that was compiled for.
    launcher.kernels_missing_ = status.message();
  }
  if (!launcher.has_kernels() && driver.copy == nullptr) {
    return Status(Code::kUnsupported,
                  "the driver has no cuMemcpyAsync, and there are no kernels: " + launcher.kernels_missing_);
  }
  return launcher;
}

MoveWay KernelLauncher::way_of(const PagedLayout& layout, cu::Stream stream) const {
  const bool has_batch = driver_.copy_batch != nullptr || driver_.copy_batch_12 != nullptr;
  return choose_way(layout.run_bytes(), has_kernels(), has_batch && !is_legacy_stream(stream));
}

Status KernelLauncher::move(const PagedLayout& layout, Direction direction, const MovePlan& plan,
                            cu::Stream stream) const {
  switch (way_of(layout, stream)) {
    case MoveWay::kCopyBatch: return copy_batches(layout, direction, plan, stream);
    case MoveWay::kCopies: return copy_runs(layout, direction, plan, stream);
    case MoveWay::kKernel: break;
  }
  return for_each_launch(layout, plan, [&](const MoveArguments& arguments) {
    const uint32_t blocks = blocks_for(arguments.total_units, uint64_t{kMoveThreads} * kMoveUnroll, multiprocessors_);
    return launch(direction == Direction::kScatter ? kScatterKernel : kGatherKernel, blocks, kMoveThreads, &arguments,
                  stream);
  });
}

Status KernelLauncher::hash_pages(std::span<const PayloadRun> runs, cu::Stream stream) const {
  if (!has_kernels()) return Status(Code::kUnsupported, "pages cannot be hashed on the GPU: " + kernels_missing_);
  return for_each_page_launch(runs, [&](const PageNodesArguments& arguments) {
    // Few pages are spread over as many multiprocessors as they may take, in small blocks of threads.
    const uint64_t work = uint64_t{arguments.page_count} * kThreadsAPage;
    uint32_t threads = kPageThreadsMin;
    while (threads < kPageThreadsMax && ceil_div(work, threads) > multiprocessors_) threads *= 2;
    return launch(kPageKernel, blocks_for(work, threads, multiprocessors_), threads, &arguments, stream);
  });
}

// cuLaunchKernel copies what the arguments point to before it returns, and takes them without const.
Status KernelLauncher::launch(size_t kernel, uint32_t blocks, uint32_t threads, const void* arguments,
                              cu::Stream stream) const {
  void* pointers[] = {const_cast<void*>(arguments)};
  return check(driver_.launch_kernel(kernels_[kernel], blocks, 1, 1, threads, 1, 1, 0, stream, pointers, nullptr),
               kKernelNames[kernel]);
}

Status KernelLauncher::copy_runs(const PagedLayout& layout, Direction direction, const MovePlan& plan,
                                 cu::Stream stream) const {
  if (driver_.copy == nullptr) return Status(Code::kUnsupported, "the driver has no cuMemcpyAsync");
  return for_each_run(layout, plan, [&](const CopyRun& run) {
    return check(driver_.copy(target_of(run, direction), source_of(run, direction), run.bytes, stream),
                 "cuMemcpyAsync");
  });
}

Status KernelLauncher::copy_batches(const PagedLayout& layout, Direction direction, const MovePlan& plan,
                                    cu::Stream stream) const {
  std::vector<cu::DevicePointer> targets, sources;
  std::vector<size_t> sizes;
  const auto flush = [&]() -> Status {
    if (targets.empty()) return {};
    CopyAttributes attributes = {};
    attributes.source_order = kSourceInStreamOrder;
    size_t first = 0, failed = 0;
    const cu::Code code = driver_.copy_batch != nullptr
                              ? driver_.copy_batch(targets.data(), sources.data(), sizes.data(), targets.size(),
                                                   &attributes, &first, 1, stream)
                              : driver_.copy_batch_12(targets.data(), sources.data(), sizes.data(), targets.size(),
                                                      &attributes, &first, 1, &failed, stream);
    targets.clear();
    sources.clear();
    sizes.clear();
    return check(code, "cuMemcpyBatchAsync");
  };
  KVS_TRY(for_each_run(layout, plan, [&](const CopyRun& run) -> Status {
    targets.push_back(target_of(run, direction));
    sources.push_back(source_of(run, direction));
    sizes.push_back(run.bytes);
    return targets.size() == kBatchCopies ? flush() : Status();
  }));
  return flush();
}

Status KernelLauncher::check(cu::Code code, const char* call) const {
  if (code == cu::kSuccess) return {};
  const char* name = nullptr;
  if (driver_.error_name == nullptr || driver_.error_name(code, &name) != cu::kSuccess || name == nullptr) {
    name = "an unknown error";
  }
  return Status(Code::kIo, format_text("%s on the GPU: %s (%d)", call, name, code));
}

Result<const KernelLauncher*> launcher_of(const CudaDriver& driver, cu::Context context, cu::Device device) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<cu::Context, std::unique_ptr<const KernelLauncher>>;  // NOLINT: never destroyed
  std::lock_guard lock(mutex);
  std::unique_ptr<const KernelLauncher>& launcher = loaded[context];
  if (launcher == nullptr) {
    const ContextScope scope(driver, context);
    KVS_TRY(scope.status());
    KVS_ASSIGN(KernelLauncher found, KernelLauncher::load(LaunchDriver::of(driver), device, kernel_image()));
    launcher = std::make_unique<const KernelLauncher>(std::move(found));
  }
  return launcher.get();
}

}  // namespace kvstore::gpu
