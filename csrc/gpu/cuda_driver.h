// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// CudaDriver: the functions of the CUDA driver API that are used here, found by dlopen of libcuda.so.1 (or of the file
// that KVSTORE_LIBCUDA names). Nothing of NVIDIA is linked and no header of its toolkit is needed: the ABI is declared
// here, as cuda.h has it, and is stable.
//
// Guarantees: no driver, a driver without GPU and one too old are values with the reason, never a crash. An error names
// the call, CUDA's name for it, and the mend. The library is never unloaded. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace kvstore::gpu {

namespace cu {

using Code = int;    // CUresult
using Device = int;  // CUdevice
using DevicePointer = uint64_t;
using Context = struct ContextObject*;
using Stream = struct StreamObject*;
using Event = struct EventObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;
using HostFunction = void (*)(void*);

inline constexpr Code kSuccess = 0;
inline constexpr Code kInvalidValue = 1;
inline constexpr Code kNoDevice = 100;
inline constexpr Code kInvalidHandle = 400;
inline constexpr Code kNotReady = 600;
inline constexpr Code kNotSupported = 801;

// cuda.h's handles of the default streams: 0 and 1 are the legacy one, 2 is that of the calling thread.
inline constexpr uint64_t kDefaultStreamsMax = 2;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostPortable = 1;   // CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTALLOC_PORTABLE
inline constexpr unsigned kHostDeviceMap = 2;  // CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP
inline constexpr unsigned kWaitGreaterOrEqual = 0;

enum PointerAttribute : int { kPointerMemoryType = 2, kPointerIsManaged = 8, kPointerDeviceOrdinal = 9 };
enum MemoryType : uint32_t { kMemoryHost = 1, kMemoryDevice = 2, kMemoryArray = 3, kMemoryUnified = 4 };

}  // namespace cu

// One line a function: its name in the table, its symbol, its parameters. The _v2 are what cuda.h maps the plain names
// to.
#define KVS_CUDA_FUNCTIONS(function, optional)                                                                         \
  function(init, cuInit, (unsigned flags)) function(driver_version, cuDriverGetVersion, (int* version)) function(      \
      error_name, cuGetErrorName, (cu::Code code, const char** name)) function(error_text, cuGetErrorString,           \
                                                                               (cu::Code code, const char** text))     \
      function(device_count, cuDeviceGetCount, (int* count)) function(                                                 \
          device_get, cuDeviceGet,                                                                                     \
          (cu::Device * device, int ordinal)) function(device_name, cuDeviceGetName,                                   \
                                                       (char* name, int bytes, cu::Device device))                     \
          function(primary_retain, cuDevicePrimaryCtxRetain, (cu::Context * context, cu::Device device)) function(     \
              primary_release, cuDevicePrimaryCtxRelease_v2,                                                           \
              (cu::Device device)) function(context_push, cuCtxPushCurrent_v2, (cu::Context context))                  \
              function(context_pop, cuCtxPopCurrent_v2, (cu::Context * context)) function(                             \
                  pointer_attribute, cuPointerGetAttribute,                                                            \
                  (void* value, int attribute,                                                                         \
                   cu::DevicePointer pointer)) function(host_alloc, cuMemHostAlloc,                                    \
                                                        (void** memory, size_t bytes, unsigned flags))                 \
                  function(host_free, cuMemFreeHost, (void* memory)) function(                                         \
                      host_register, cuMemHostRegister_v2,                                                             \
                      (void* memory, size_t bytes, unsigned flags))                                                    \
                      function(host_unregister, cuMemHostUnregister,                                                   \
                               (void* memory)) function(host_device_pointer, cuMemHostGetDevicePointer_v2,             \
                                                        (cu::DevicePointer * pointer, void* memory, unsigned flags))   \
                          function(copy_to_device, cuMemcpyHtoDAsync_v2,                                               \
                                   (cu::DevicePointer target, const void* source, size_t bytes, cu::Stream stream))    \
                              function(copy_to_host, cuMemcpyDtoHAsync_v2,                                             \
                                       (void* target, cu::DevicePointer source, size_t bytes, cu::Stream stream))      \
                                  function(stream_create, cuStreamCreate, (cu::Stream * stream, unsigned flags))       \
                                      function(stream_synchronize, cuStreamSynchronize, (cu::Stream stream)) function( \
                                          event_create, cuEventCreate,                                                 \
                                          (cu::Event * event, unsigned flags))                                         \
                                          function(event_record, cuEventRecord, (cu::Event event, cu::Stream stream))  \
                                              function(event_query, cuEventQuery, (cu::Event event)) function(         \
                                                  launch_host_function, cuLaunchHostFunc,                              \
                                                  (cu::Stream stream, cu::HostFunction run, void* argument))           \
                                                  function(module_load, cuModuleLoadData,                              \
                                                           (cu::Module * module, const void* image))                   \
                                                      function(                                                        \
                                                          module_function, cuModuleGetFunction,                        \
                                                          (cu::Function * found, cu::Module module, const char* name)) \
                                                          function(                                                    \
                                                              launch_kernel, cuLaunchKernel,                           \
                                                              (cu::Function kernel, unsigned grid_x, unsigned grid_y,  \
                                                               unsigned grid_z, unsigned block_x, unsigned block_y,    \
                                                               unsigned block_z, unsigned shared_bytes,                \
                                                               cu::Stream stream, void** arguments, void** extra))     \
                                                              optional(stream_wait_value32, cuStreamWaitValue32_v2,    \
                                                                       (cu::Stream stream, cu::DevicePointer address,  \
                                                                        uint32_t value, unsigned flags))

class CudaDriver {
 public:
  // The driver of this process, initialised. Found once; an absent one is looked for again at each call.
  static Result<const CudaDriver*> get();
  // A library by file name, initialised.
  static Result<CudaDriver> load(const std::string& library);

#define KVS_CUDA_MEMBER(name, symbol, parameters) cu::Code(*name) parameters = nullptr;
  KVS_CUDA_FUNCTIONS(KVS_CUDA_MEMBER, KVS_CUDA_MEMBER)
#undef KVS_CUDA_MEMBER

  int version() const { return version_; }  // 13000 is CUDA 13.0
  int devices() const { return devices_; }
  const std::string& library() const { return library_; }

  // Ok, or an error: "<what>: <call> gave CUDA_ERROR_..., <CUDA's text><mend>".
  Status check(cu::Code code, const char* call, const std::string& what) const;

 private:
  std::string library_;
  int version_ = 0;
  int devices_ = 0;
};

// Makes a context current on this thread while it lives; the caller's own is current again afterwards.
class ContextScope {
 public:
  ContextScope(const CudaDriver& driver, cu::Context context) : driver_(driver) {
    status_ = driver_.check(driver_.context_push(context), "cuCtxPushCurrent", "the GPU's context");
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() {
    cu::Context popped = nullptr;
    if (status_.ok()) (void)driver_.context_pop(&popped);
  }
  const Status& status() const { return status_; }

 private:
  const CudaDriver& driver_;
  Status status_;
};

}  // namespace kvstore::gpu
