// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// DeviceArena: memory of a GPU that is ours, of a size chosen once, for extents on their way between an engine's paged
// cache and the devices. Taken from the driver in the GPU's primary context, so that no framework has to be there.
//
// Guarantees: begins at a multiple of 64 KiB, the page of a GPU, so that cuFile can register it whole. Nothing of it is
// given back before the arena is destroyed, and never after leak() (I11: something may still write to it). A forked
// child, in which the driver cannot be called, leaves it alone. Thread-safe.

#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "gpu/cuda_driver.h"

namespace kvstore::gpu {

inline constexpr uint64_t kDevicePageBytes = 64 * 1024;

class DeviceArena {
 public:
  static Result<std::unique_ptr<DeviceArena>> make(int device, uint64_t bytes);
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;
  ~DeviceArena();

  int device() const { return device_; }
  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  void leak() { allocated_ = 0; }

 private:
  DeviceArena(const CudaDriver& driver, cu::Context context, int device, uint64_t bytes);

  const CudaDriver& driver_;
  cu::Context const context_;
  const int device_;
  const uint64_t bytes_;
  const uint64_t fork_generation_;
  cu::DevicePointer allocated_ = 0;
  uint64_t address_ = 0;
};

}  // namespace kvstore::gpu
