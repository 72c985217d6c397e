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

class CudaDriver {
 public:
  // The driver of this process, initialised. Found once; an absent one is looked for again at each call.
  static Result<const CudaDriver*> get();
  // A library by file name, initialised.
  static Result<CudaDriver> load(const std::string& library);

  // As cuda.h declares them; the symbols are in cuda_driver.cpp.
  cu::Code (*init)(unsigned flags) = nullptr;
  cu::Code (*driver_version)(int* version) = nullptr;
  cu::Code (*error_name)(cu::Code code, const char** name) = nullptr;
  cu::Code (*error_text)(cu::Code code, const char** text) = nullptr;
  cu::Code (*device_count)(int* count) = nullptr;
  cu::Code (*device_get)(cu::Device* device, int ordinal) = nullptr;
  cu::Code (*device_name)(char* name, int bytes, cu::Device device) = nullptr;
  cu::Code (*primary_retain)(cu::Context* context, cu::Device device) = nullptr;
  cu::Code (*primary_release)(cu::Device device) = nullptr;
  cu::Code (*context_push)(cu::Context context) = nullptr;
  cu::Code (*context_pop)(cu::Context* context) = nullptr;
  cu::Code (*pointer_attribute)(void* value, int attribute, cu::DevicePointer pointer) = nullptr;
  cu::Code (*memory_alloc)(cu::DevicePointer* memory, size_t bytes) = nullptr;
  cu::Code (*memory_free)(cu::DevicePointer memory) = nullptr;
  cu::Code (*host_alloc)(void** memory, size_t bytes, unsigned flags) = nullptr;
  cu::Code (*host_free)(void* memory) = nullptr;
  cu::Code (*host_register)(void* memory, size_t bytes, unsigned flags) = nullptr;
  cu::Code (*host_unregister)(void* memory) = nullptr;
  cu::Code (*host_device_pointer)(cu::DevicePointer* pointer, void* memory, unsigned flags) = nullptr;
  cu::Code (*copy_to_device)(cu::DevicePointer target, const void* source, size_t bytes, cu::Stream stream) = nullptr;
  cu::Code (*copy_to_host)(void* target, cu::DevicePointer source, size_t bytes, cu::Stream stream) = nullptr;
  cu::Code (*stream_create)(cu::Stream* stream, unsigned flags) = nullptr;
  cu::Code (*stream_destroy)(cu::Stream stream) = nullptr;
  cu::Code (*stream_synchronize)(cu::Stream stream) = nullptr;
  cu::Code (*stream_wait_event)(cu::Stream stream, cu::Event event, unsigned flags) = nullptr;
  cu::Code (*event_create)(cu::Event* event, unsigned flags) = nullptr;
  cu::Code (*event_record)(cu::Event event, cu::Stream stream) = nullptr;
  cu::Code (*event_query)(cu::Event event) = nullptr;
  cu::Code (*launch_host_function)(cu::Stream stream, cu::HostFunction run, void* argument) = nullptr;
  cu::Code (*module_load)(cu::Module* module, const void* image) = nullptr;
  cu::Code (*module_function)(cu::Function* found, cu::Module module, const char* name) = nullptr;
  cu::Code (*launch_kernel)(cu::Function kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared_bytes, cu::Stream stream,
                            void** arguments, void** extra) = nullptr;
  // Null where the driver is too old.
  cu::Code (*device_bus_id)(char* name, int bytes, cu::Device device) = nullptr;
  cu::Code (*stream_wait_value32)(cu::Stream stream, cu::DevicePointer address, uint32_t value,
                                  unsigned flags) = nullptr;

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
