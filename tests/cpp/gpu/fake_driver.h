// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The fake libcuda.so.1 of tests/fakes as tests use it: what a caller of CUDA does, and what only the fake can be told.

#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../../fakes/fake_cuda.h"
#include "gpu/cuda_driver.h"

namespace kvstore::gpu {

// Of this process; made at the first use, before which nothing else may have loaded a driver.
class FakeDriver {
 public:
  static FakeDriver& get() {
    static FakeDriver fake;
    return fake;
  }

  template <typename Function>
  Function symbol(const char* name) const {
    return reinterpret_cast<Function>(dlsym(handle_, name));
  }

  const CudaDriver& driver;

 private:
  void* const handle_;  // before what is found in it

 public:
  const FakeCudaView view = symbol<FakeCudaView>("fake_cuda_view");
  const FakeCudaFail fail = symbol<FakeCudaFail>("fake_cuda_fail");
  const FakeCudaBreak break_context = symbol<FakeCudaBreak>("fake_cuda_break");
  const FakeCudaReset reset = symbol<FakeCudaReset>("fake_cuda_reset");
  const FakeCudaSetCopyDelay set_copy_delay = symbol<FakeCudaSetCopyDelay>("fake_cuda_set_copy_delay");
  const FakeCudaGate gate = symbol<FakeCudaGate>("fake_cuda_gate");
  const FakeCudaOpenGate open_gate = symbol<FakeCudaOpenGate>("fake_cuda_open_gate");
  const FakeCudaAddKernel add_kernel = symbol<FakeCudaAddKernel>("fake_cuda_add_kernel");
  const FakeCudaCalls calls = symbol<FakeCudaCalls>("fake_cuda_calls");
  const FakeCudaRegistered registered = symbol<FakeCudaRegistered>("fake_cuda_registered");

  cu::Context context(int device) const {
    cu::Context found = nullptr;
    EXPECT_EQ(driver.primary_retain(&found, device), cu::kSuccess);
    return found;
  }
  cu::Stream make_stream(int device) const {
    const ContextScope scope(driver, context(device));
    cu::Stream stream = nullptr;
    EXPECT_EQ(driver.stream_create(&stream, cu::kStreamNonBlocking), cu::kSuccess);
    return stream;
  }
  void synchronize(int device, cu::Stream stream) const {
    const ContextScope scope(driver, context(device));
    EXPECT_EQ(driver.stream_synchronize(stream), cu::kSuccess);
  }
  // Writes the bytes when the stream comes to it, as a kernel would.
  void fill(int device, cu::Stream stream, uint64_t pointer, uint8_t byte, size_t bytes) const {
    const ContextScope scope(driver, context(device));
    const auto memset = symbol<cu::Code (*)(uint64_t, unsigned char, size_t, cu::Stream)>("cuMemsetD8Async");
    EXPECT_EQ(memset(pointer, byte, bytes, stream), cu::kSuccess);
  }

 private:
  FakeDriver() : driver(load()), handle_(dlopen(KVSTORE_FAKE_LIBCUDA, RTLD_NOW | RTLD_NOLOAD)) {}
  static const CudaDriver& load() {
    setenv("KVSTORE_LIBCUDA", KVSTORE_FAKE_LIBCUDA, 1);
    return *CudaDriver::get().value();
  }
};

// Memory of a GPU. No host address of it can be touched; `bytes()` is what a kernel would see.
class GpuMemory {
 public:
  GpuMemory(int device, size_t bytes) : device_(device), bytes_(bytes) {
    const FakeDriver& fake = FakeDriver::get();
    const ContextScope scope(fake.driver, fake.context(device));
    const auto alloc = fake.symbol<cu::Code (*)(uint64_t*, size_t)>("cuMemAlloc_v2");
    EXPECT_EQ(alloc(&pointer_, bytes), cu::kSuccess);
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  ~GpuMemory() {
    const FakeDriver& fake = FakeDriver::get();
    const ContextScope scope(fake.driver, fake.context(device_));
    EXPECT_EQ(fake.symbol<cu::Code (*)(uint64_t)>("cuMemFree_v2")(pointer_), cu::kSuccess);
  }
  uint64_t pointer() const { return pointer_; }
  void* address() const { return reinterpret_cast<void*>(pointer_); }
  uint8_t* bytes() const { return static_cast<uint8_t*>(FakeDriver::get().view(pointer_)); }
  size_t size() const { return bytes_; }

 private:
  int device_;
  size_t bytes_;
  uint64_t pointer_ = 0;
};

}  // namespace kvstore::gpu
