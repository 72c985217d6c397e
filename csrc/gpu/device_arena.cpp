// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/device_arena.h"

#include "base/units.h"
#include "device/fork_guard.h"
#include "gpu/bounce.h"

namespace kvstore::gpu {

DeviceArena::DeviceArena(const CudaDriver& driver, cu::Context context, int device, uint64_t bytes)
    : driver_(driver),
      context_(context),
      device_(device),
      bytes_(bytes),
      fork_generation_(kvstore::device::fork_generation()) {}

Result<std::unique_ptr<DeviceArena>> DeviceArena::make(int device, uint64_t bytes) {
  KVS_ASSIGN(Bounce* const gpu, Bounce::of(device));
  uint64_t taken = 0;
  if (bytes == 0 || __builtin_add_overflow(bytes, kDevicePageBytes, &taken)) {
    return Status(Code::kInvalid,
                  format_text("%llu bytes of GPU memory: give 1 and more", static_cast<unsigned long long>(bytes)));
  }
  std::unique_ptr<DeviceArena> arena(new DeviceArena(gpu->driver(), gpu->context(), device, bytes));
  const ContextScope scope(gpu->driver(), gpu->context());
  KVS_TRY(scope.status());
  KVS_TRY(gpu->driver().check(gpu->driver().memory_alloc(&arena->allocated_, taken), "cuMemAlloc",
                              format_text("%llu bytes of GPU %d", static_cast<unsigned long long>(bytes), device)));
  arena->address_ = ceil_div(arena->allocated_, kDevicePageBytes) * kDevicePageBytes;
  return arena;
}

DeviceArena::~DeviceArena() {
  if (allocated_ == 0 || fork_generation_ != kvstore::device::fork_generation()) return;
  const ContextScope scope(driver_, context_);
  if (scope.status().ok())
    (void)driver_.memory_free(allocated_);  // nobody to tell; a context that is gone took it along
}

}  // namespace kvstore::gpu
