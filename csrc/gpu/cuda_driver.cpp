// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/cuda_driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

#include "gpu/symbols.h"

namespace kvstore::gpu {

namespace {

const char* mend_of(cu::Code code) {
  switch (code) {
    case 2: return "; free some of it, or raise the limit (ulimit -l for pinned memory)";
    case 3:
    case 803: return "; the driver's library and its kernel module differ: restart after an upgrade";
    case cu::kNoDevice: return "; is a GPU there, and visible to this process (CUDA_VISIBLE_DEVICES, --gpus all)?";
    case cu::kInvalidHandle: return "; does the stream belong to the GPU of the memory, and is it still there?";
    case 700:
    case 719: return "; a kernel of this process crashed: CUDA can only be used again in a new process";
    case cu::kNotSupported: return "; this driver or GPU cannot do that";
    case 900:
    case 906: return "; the stream is being captured into a graph: submit outside of the capture";
    default: return "";
  }
}

}  // namespace

Status CudaDriver::check(cu::Code code, const char* call, const std::string& what) const {
  if (code == cu::kSuccess) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  if (error_name == nullptr || error_name(code, &name) != cu::kSuccess || name == nullptr) name = "an unknown error";
  if (error_text == nullptr || error_text(code, &text) != cu::kSuccess || text == nullptr) text = "no text";
  return Status(code == cu::kNotSupported ? kvstore::Code::kUnsupported : kvstore::Code::kInvalid,
                format_text("%s: %s gave %s (%d), %s%s", what.c_str(), call, name, code, text, mend_of(code)));
}

Result<CudaDriver> CudaDriver::load(const std::string& library) {
  // Never closed: the driver starts threads and keeps state that an unload would pull away beneath it.
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    return Status(kvstore::Code::kUnsupported,
                  format_text("no CUDA driver: %s; install the NVIDIA driver's libraries (libcuda1), or start the "
                              "container with --gpus all",
                              why == nullptr ? library.c_str() : why));
  }
  CudaDriver driver;
  driver.library_ = library;
  Symbols symbols(handle);
  // The _v2 are what cuda.h maps the plain names to.
  symbols.need(driver.init, "cuInit");
  symbols.need(driver.driver_version, "cuDriverGetVersion");
  symbols.need(driver.error_name, "cuGetErrorName");
  symbols.need(driver.error_text, "cuGetErrorString");
  symbols.need(driver.device_count, "cuDeviceGetCount");
  symbols.need(driver.device_get, "cuDeviceGet");
  symbols.need(driver.device_name, "cuDeviceGetName");
  symbols.need(driver.primary_retain, "cuDevicePrimaryCtxRetain");
  symbols.need(driver.primary_release, "cuDevicePrimaryCtxRelease_v2");
  symbols.need(driver.context_push, "cuCtxPushCurrent_v2");
  symbols.need(driver.context_pop, "cuCtxPopCurrent_v2");
  symbols.need(driver.pointer_attribute, "cuPointerGetAttribute");
  symbols.need(driver.memory_alloc, "cuMemAlloc_v2");
  symbols.need(driver.memory_free, "cuMemFree_v2");
  symbols.need(driver.host_alloc, "cuMemHostAlloc");
  symbols.need(driver.host_free, "cuMemFreeHost");
  symbols.need(driver.host_register, "cuMemHostRegister_v2");
  symbols.need(driver.host_unregister, "cuMemHostUnregister");
  symbols.need(driver.host_device_pointer, "cuMemHostGetDevicePointer_v2");
  symbols.need(driver.copy_to_device, "cuMemcpyHtoDAsync_v2");
  symbols.need(driver.copy_to_host, "cuMemcpyDtoHAsync_v2");
  symbols.need(driver.stream_create, "cuStreamCreate");
  symbols.need(driver.stream_destroy, "cuStreamDestroy_v2");
  symbols.need(driver.stream_synchronize, "cuStreamSynchronize");
  symbols.need(driver.stream_wait_event, "cuStreamWaitEvent");
  symbols.need(driver.event_create, "cuEventCreate");
  symbols.need(driver.event_record, "cuEventRecord");
  symbols.need(driver.event_query, "cuEventQuery");
  symbols.need(driver.launch_host_function, "cuLaunchHostFunc");
  symbols.need(driver.module_load, "cuModuleLoadData");
  symbols.need(driver.module_function, "cuModuleGetFunction");
  symbols.need(driver.launch_kernel, "cuLaunchKernel");
  symbols.find(driver.device_bus_id, "cuDeviceGetPCIBusId");
  symbols.find(driver.stream_wait_value32, "cuStreamWaitValue32_v2");
  if (!symbols.missing().empty()) {
    return Status(kvstore::Code::kUnsupported, format_text("%s has no %s: a driver of CUDA 11 or later is needed",
                                                           library.c_str(), symbols.missing().c_str()));
  }
  KVS_TRY(driver.check(driver.init(0), "cuInit", library));
  KVS_TRY(driver.check(driver.driver_version(&driver.version_), "cuDriverGetVersion", library));
  KVS_TRY(driver.check(driver.device_count(&driver.devices_), "cuDeviceGetCount", library));
  if (driver.devices_ == 0) return driver.check(cu::kNoDevice, "cuDeviceGetCount", library);
  return driver;
}

Result<const CudaDriver*> CudaDriver::get() {
  static std::mutex mutex;
  static const CudaDriver* found = nullptr;
  std::lock_guard lock(mutex);
  if (found == nullptr) {
    const char* const named = std::getenv("KVSTORE_LIBCUDA");
    KVS_ASSIGN(CudaDriver driver, load(named != nullptr && *named != '\0' ? named : "libcuda.so.1"));
    found = new CudaDriver(std::move(driver));  // NOLINT: as long as the process, like the library
  }
  return found;
}

}  // namespace kvstore::gpu
