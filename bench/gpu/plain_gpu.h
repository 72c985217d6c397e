// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// PlainGpu: one GPU as a program without CUDA's toolkit uses it: memory, copies that are waited for, one stream. For
// checks and benchmarks, on a real driver and on the fake one.
//
// Guarantees: every call works in the GPU's primary context and tells errors with the call and CUDA's name for them.
// One thread.

#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"
#include "gpu/cuda_driver.h"
#include "gpu/kernel_launch.h"

namespace kvstore::gpu {

class PlainGpu {
 public:
  // The driver of this process (KVSTORE_LIBCUDA, or libcuda.so.1) and one of its GPUs.
  static Result<PlainGpu> open(int ordinal) {
    KVS_ASSIGN(const CudaDriver* driver, CudaDriver::get());
    cu::Device device = 0;
    KVS_TRY(driver->check(driver->device_get(&device, ordinal), "cuDeviceGet", format_text("GPU %d", ordinal)));
    PlainGpu gpu(*driver, device);
    char name[128] = {};
    KVS_TRY(driver->check(driver->device_name(name, sizeof(name) - 1, device), "cuDeviceGetName", "the GPU"));
    gpu.name_ = name;
    KVS_TRY(driver->check(driver->primary_retain(&gpu.context_, device), "cuDevicePrimaryCtxRetain", gpu.name_));
    KVS_ASSIGN(gpu.stream_, gpu.make_stream());
    return gpu;
  }

  const CudaDriver& driver() const { return *driver_; }
  int device() const { return device_; }
  const std::string& name() const { return name_; }
  cu::Context context() const { return context_; }
  cu::Stream stream() const { return stream_; }

  // Lives as long as the process.
  Result<cu::Stream> make_stream() const {
    const ContextScope scope(*driver_, context_);
    KVS_TRY(scope.status());
    cu::Stream stream = nullptr;
    KVS_TRY(driver_->check(driver_->stream_create(&stream, cu::kStreamNonBlocking), "cuStreamCreate", name_));
    return stream;
  }

  Result<cu::DevicePointer> allocate(uint64_t bytes) const {
    const ContextScope scope(*driver_, context_);
    KVS_TRY(scope.status());
    cu::DevicePointer pointer = 0;
    KVS_TRY(driver_->check(driver_->memory_alloc(&pointer, bytes), "cuMemAlloc",
                           format_text("%llu bytes of %s", static_cast<unsigned long long>(bytes), name_.c_str())));
    return pointer;
  }
  void free(cu::DevicePointer pointer) const {
    const ContextScope scope(*driver_, context_);
    if (scope.status().ok()) (void)driver_->memory_free(pointer);
  }

  Status copy_to_device(cu::DevicePointer target, const void* source, uint64_t bytes) const {
    const ContextScope scope(*driver_, context_);
    KVS_TRY(scope.status());
    KVS_TRY(driver_->check(driver_->copy_to_device(target, source, bytes, stream_), "cuMemcpyHtoDAsync", name_));
    return synchronize_here();
  }
  Status copy_to_host(void* target, cu::DevicePointer source, uint64_t bytes) const {
    const ContextScope scope(*driver_, context_);
    KVS_TRY(scope.status());
    KVS_TRY(driver_->check(driver_->copy_to_host(target, source, bytes, stream_), "cuMemcpyDtoHAsync", name_));
    return synchronize_here();
  }
  // With the context current: waits for all that is on the stream.
  Status synchronize_here() const {
    return driver_->check(driver_->stream_synchronize(stream_), "cuStreamSynchronize", name_);
  }

  Result<KernelLauncher> launcher() const {
    const ContextScope scope(*driver_, context_);
    KVS_TRY(scope.status());
    return KernelLauncher::load(LaunchDriver::of(*driver_), device_, kernel_image());
  }

 private:
  PlainGpu(const CudaDriver& driver, int device) : driver_(&driver), device_(device) {}

  const CudaDriver* driver_;
  int device_;
  std::string name_;
  cu::Context context_ = nullptr;
  cu::Stream stream_ = nullptr;
};

// Memory of a GPU while it lives.
class PlainMemory {
 public:
  static Result<PlainMemory> make(const PlainGpu& gpu, uint64_t bytes) {
    KVS_ASSIGN(const cu::DevicePointer pointer, gpu.allocate(bytes));
    return PlainMemory(gpu, pointer, bytes);
  }
  PlainMemory(PlainMemory&& other) noexcept
      : gpu_(other.gpu_), pointer_(std::exchange(other.pointer_, 0)), bytes_(other.bytes_) {}
  PlainMemory(const PlainMemory&) = delete;
  PlainMemory& operator=(const PlainMemory&) = delete;
  PlainMemory& operator=(PlainMemory&&) = delete;
  ~PlainMemory() {
    if (pointer_ != 0) gpu_->free(pointer_);
  }
  cu::DevicePointer pointer() const { return pointer_; }
  void* address() const { return reinterpret_cast<void*>(pointer_); }
  uint64_t bytes() const { return bytes_; }

 private:
  PlainMemory(const PlainGpu& gpu, cu::DevicePointer pointer, uint64_t bytes)
      : gpu_(&gpu), pointer_(pointer), bytes_(bytes) {}

  const PlainGpu* gpu_;
  cu::DevicePointer pointer_;
  uint64_t bytes_;
};

}  // namespace kvstore::gpu
