// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Puts transfers between extents and a paged cache, and the hashing of payload, on a stream of the caller's.
//
// Guarantees: everything is in the order of that stream, and nothing of the host's has to outlive a call. Kernels take
// a bounded share of the multiprocessors. Without kernels (built without nvcc, or refused by the driver) transfers are
// copies and give the same bytes; hashing is kUnsupported, with the reason. Of an error, what was queued before it
// stays queued. Thread-safe. The context that the launcher was loaded in must be current.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "gpu/cuda_driver.h"
#include "gpu/kernel_image.h"
#include "gpu/move_plan.h"
#include "gpu/page_nodes.h"
#include "gpu/paged_layout.h"

namespace kvstore::gpu {

// CUmemcpyAttributes of cuda.h.
struct CopyAttributes {
  int source_order;
  int source_hint[2];
  int target_hint[2];
  unsigned flags;
};

// What is needed of the driver, apart from the table of cuda_driver.h so that a test can be the driver. Null: the
// driver has it not; load() says what follows.
struct LaunchDriver {
  cu::Code (*error_name)(cu::Code code, const char** name) = nullptr;
  cu::Code (*device_attribute)(int* value, int attribute, cu::Device device) = nullptr;
  cu::Code (*module_load)(cu::Module* module, const void* image) = nullptr;
  cu::Code (*module_function)(cu::Function* found, cu::Module module, const char* name) = nullptr;
  cu::Code (*launch_kernel)(cu::Function kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared_bytes, cu::Stream stream,
                            void** arguments, void** extra) = nullptr;
  cu::Code (*copy)(cu::DevicePointer target, cu::DevicePointer source, size_t bytes, cu::Stream stream) = nullptr;
  // cuMemcpyBatchAsync_v2, of CUDA 13, and cuMemcpyBatchAsync, of 12.8.
  cu::Code (*copy_batch)(cu::DevicePointer* targets, cu::DevicePointer* sources, size_t* bytes, size_t count,
                         CopyAttributes* attributes, size_t* attribute_starts, size_t attribute_count,
                         cu::Stream stream) = nullptr;
  cu::Code (*copy_batch_12)(cu::DevicePointer* targets, cu::DevicePointer* sources, size_t* bytes, size_t count,
                            CopyAttributes* attributes, size_t* attribute_starts, size_t attribute_count,
                            size_t* failed, cu::Stream stream) = nullptr;

  // What of it is found in the library of `driver`.
  static LaunchDriver of(const CudaDriver& driver);
};

enum class MoveWay : uint8_t { kKernel, kCopyBatch, kCopies };
const char* move_way_name(MoveWay way);

// Runs of 64 KiB and more go to the copy engines: they reach full rate there (51 GB/s from the host on an H100, but 4-7
// GB/s for runs of up to 24 KiB. Source: vllm#42212) and do not wait for a multiprocessor that is busy with a prefill
// (1.6 ms each. Source: LMCache#5067).
MoveWay choose_way(uint64_t run_bytes, bool has_kernels, bool has_batch);

class KernelLauncher {
 public:
  // In the current context, of `device`. An image that is empty, or that the driver refuses, is no error.
  static Result<KernelLauncher> load(const LaunchDriver& driver, cu::Device device, const KernelImage& image);

  // Begins all of the plan on `stream`. Both sides must be memory that the device can reach.
  Status move(const PagedLayout& layout, Direction direction, const MovePlan& plan, cu::Stream stream) const;

  // Begins to write the page nodes of all runs.
  Status hash_pages(std::span<const PayloadRun> runs, cu::Stream stream) const;

  MoveWay way_of(const PagedLayout& layout, cu::Stream stream) const;
  bool has_kernels() const { return kernels_missing_.empty(); }
  const std::string& kernels_missing() const { return kernels_missing_; }  // why, or empty

  // How many blocks of threads a launch has at most, so how many multiprocessors it takes. At least 1.
  uint32_t multiprocessors() const { return multiprocessors_; }
  void set_multiprocessors(uint32_t count) { multiprocessors_ = count == 0 ? 1 : count; }

 private:
  Status launch(size_t kernel, uint32_t blocks, uint32_t threads, const void* arguments, cu::Stream stream) const;
  Status copy_runs(const PagedLayout& layout, Direction direction, const MovePlan& plan, cu::Stream stream) const;
  Status copy_batches(const PagedLayout& layout, Direction direction, const MovePlan& plan, cu::Stream stream) const;
  Status check(cu::Code code, const char* call) const;

  LaunchDriver driver_;
  std::array<cu::Function, 3> kernels_ = {};  // in the order of kKernelNames
  std::string kernels_missing_;
  uint32_t multiprocessors_ = 1;
};

// The launcher of a device's context, loaded at the first call and kept as long as the process.
Result<const KernelLauncher*> launcher_of(const CudaDriver& driver, cu::Context context, cu::Device device);

}  // namespace kvstore::gpu
