// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// A fake libcuda.so.1 for machines without a GPU: two devices, memory, streams, events, pinned memory, copies, and the
// kernels of csrc/gpu/kernels (cuda_kernels.h), besides those that a test adds.
//
// It is honest where a mistake would go unnoticed otherwise:
//   - a device pointer points into a mapping that nobody may touch (PROT_NONE): a host that dereferences it faults, and
//     the kernel refuses I/O to it. The fake reaches the bytes through a second mapping of the same memory.
//   - each stream is a thread. A copy lies on it for a while before it happens, and reads its source only then: what is
//     not ordered by an event really reads too early, and memory that is reused too soon really is copied wrong.
//   - contexts are checked: no current context, a stream, event or pointer of another device is an error.
//   - a host function may call nothing of CUDA.
// Not like a GPU: the legacy default stream waits for no other stream, copies of two streams share no engine, and
// contexts are primary ones only. fake_cuda.h is what tests tell it.

#include "fake_cuda.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_kernels.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Code = int;
using Pointer = uint64_t;
using Clock = std::chrono::steady_clock;

constexpr int kDevices = 2;
constexpr size_t kAllocationBytes = 64 * 1024;
constexpr int kMaxWaitMicroseconds = 50;
constexpr int kMultiprocessors = 12;
constexpr unsigned kLaunchArgumentBytes = 4096;  // what a launch carries on every driver

enum : Code {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kNotPermitted = 800,
};

struct Stream;

struct Context {
  int device = 0;
  std::unique_ptr<Stream> default_stream;
};

// What an event was last recorded as; a wait keeps the one it was told of, whatever is recorded later.
struct Mark {
  bool done = false;
};

struct Event {
  Context* context = nullptr;
  std::shared_ptr<Mark> mark;
};

struct Kernel {
  std::string name;
  FakeCudaKernel run = nullptr;  // null: one of cuda_kernels.h
  std::vector<size_t> argument_bytes;
};

// CUmemcpyAttributes.
struct CopyAttributes {
  int source_order;  // 1: when the stream comes to it; any other may read at once
  int source_hint[2];
  int target_hint[2];
  unsigned flags;
};

struct Allocation {
  int device = 0;
  size_t bytes = 0;
  uint8_t* view = nullptr;  // the second mapping
};

struct HostRange {
  size_t bytes = 0;
  bool is_ours = false;  // cuMemHostAlloc
};

struct Fault {
  Code code = 0;
  uint64_t passed = 0;
  uint64_t times = 0;
};

// One thing a stream does: tried again and again until it says that it is done.
using Step = std::function<bool()>;

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_initialized = false;
  Context contexts[kDevices];
  std::map<Pointer, Allocation> allocations;
  std::map<uintptr_t, HostRange> host_ranges;
  std::map<std::string, Fault> faults;
  std::map<std::string, uint64_t> calls;
  std::map<std::string, std::unique_ptr<Kernel>> kernels;
  std::map<Event*, std::unique_ptr<Event>> events;
  std::vector<Stream*> streams;  // never deleted: their threads go on
  std::map<uint64_t, bool> gates;
  uint64_t next_gate = 1;
  std::chrono::microseconds copy_delay{200};
  Code broken = kSuccess;
};

World& world() {
  static auto* const all = new World;  // threads of streams outlive static destructors
  return *all;
}

thread_local std::vector<Context*> current;
thread_local bool in_host_function = false;

struct Stream {
  Context* context = nullptr;
  std::deque<Step> steps;
  bool is_destroyed = false;

  explicit Stream(Context* owner) : context(owner) {
    std::thread([this] { run(); }).detach();
  }

  // The world's mutex is held while a step is tried, so steps are short; those that call out release it themselves.
  void run() {
    std::unique_lock lock(world().mutex);
    for (;;) {
      if (steps.empty() && is_destroyed) return;
      if (steps.empty()) {
        world().changed.wait(lock);
      } else if (steps.front()()) {
        steps.pop_front();
        world().changed.notify_all();
      } else {
        world().changed.wait_for(lock, std::chrono::microseconds(kMaxWaitMicroseconds));
      }
    }
  }

  void push(Step step) {
    if (is_destroyed) std::abort();  // what a driver does then is undefined
    steps.push_back(std::move(step));
    world().changed.notify_all();
  }
};

// Begins each exported function: counts it, and gives the code that a test asked for.
Code enter(const char* function) {
  if (in_host_function) return kNotPermitted;
  World& all = world();
  ++all.calls[function];
  const auto found = all.faults.find(function);
  if (found == all.faults.end() || found->second.times == 0) return kSuccess;
  if (found->second.passed != 0) {
    --found->second.passed;
    return kSuccess;
  }
  --found->second.times;
  return found->second.code;
}

#define ENTER(function)                             \
  std::unique_lock<std::mutex> lock(world().mutex); \
  if (const Code code = enter(#function); code != kSuccess) return code

#define ENTER_CONTEXT(function)                          \
  ENTER(function);                                       \
  if (!world().is_initialized) return kNotInitialized;   \
  if (current.empty()) return kInvalidContext;           \
  if (world().broken != kSuccess) return world().broken; \
  Context* const context = current.back()

Stream* stream_of(Context* context, void* handle) {
  if (reinterpret_cast<uintptr_t>(handle) > 2) return static_cast<Stream*>(handle);
  if (!context->default_stream) context->default_stream = std::make_unique<Stream>(context);
  return context->default_stream.get();
}

std::map<Pointer, Allocation>::iterator allocation_of(Pointer pointer, size_t bytes) {
  World& all = world();
  auto after = all.allocations.upper_bound(pointer);
  if (after == all.allocations.begin()) return all.allocations.end();
  const auto found = std::prev(after);
  return pointer + bytes <= found->first + found->second.bytes ? found : all.allocations.end();
}

uint8_t* view_of(Pointer pointer, size_t bytes) {
  const auto found = allocation_of(pointer, bytes);
  return found == world().allocations.end() ? nullptr : found->second.view + (pointer - found->first);
}

bool is_pinned(const void* memory, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  auto after = world().host_ranges.upper_bound(address);
  if (after == world().host_ranges.begin()) return false;
  const auto found = std::prev(after);
  return address + bytes <= found->first + found->second.bytes;
}

// Of memory that a GPU reaches, wherever it is: its own, or pinned memory of the host.
uint8_t* reached_by(const Context* context, Pointer pointer, size_t bytes) {
  const auto found = allocation_of(pointer, bytes);
  if (found != world().allocations.end()) {
    return found->second.device == context->device ? found->second.view + (pointer - found->first) : nullptr;
  }
  return is_pinned(reinterpret_cast<void*>(pointer), bytes) ? reinterpret_cast<uint8_t*>(pointer) : nullptr;
}

// A copy happens once it has lain on its stream for a while, as the one before it has happened.
Step delayed(std::function<void()> copy) {
  return [copy = std::move(copy), until = Clock::time_point{}]() mutable {
    if (world().broken != kSuccess) return true;
    if (until == Clock::time_point{}) until = Clock::now() + world().copy_delay;
    if (Clock::now() < until) return false;
    copy();
    return true;
  };
}

void wait_until_empty(Stream* stream, std::unique_lock<std::mutex>& lock) {
  world().changed.wait(lock, [stream] { return stream->steps.empty(); });
}

}  // namespace

// ---- the driver and its devices ----

EXPORT Code cuInit(unsigned flags) {
  ENTER(cuInit);
  if (flags != 0) return kInvalidValue;
  world().is_initialized = true;
  for (int i = 0; i < kDevices; ++i) world().contexts[i].device = i;
  return kSuccess;
}

EXPORT Code cuDriverGetVersion(int* version) {
  ENTER(cuDriverGetVersion);
  *version = 13000;
  return kSuccess;
}

EXPORT Code cuGetErrorName(Code code, const char** name) {
  static const std::map<Code, const char*> names = {
      {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {100, "CUDA_ERROR_NO_DEVICE"},
      {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
      {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
      {kNotReady, "CUDA_ERROR_NOT_READY"},
      {716, "CUDA_ERROR_MISALIGNED_ADDRESS"},
      {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {kAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
      {719, "CUDA_ERROR_LAUNCH_FAILED"},
      {801, "CUDA_ERROR_NOT_SUPPORTED"},
  };
  const auto found = names.find(code);
  if (found == names.end()) return kInvalidValue;
  *name = found->second;
  return kSuccess;
}

EXPORT Code cuGetErrorString(Code code, const char** text) {
  *text = code == kOutOfMemory ? "out of memory" : "said by the fake driver";
  return kSuccess;
}

EXPORT Code cuDeviceGetCount(int* count) {
  ENTER(cuDeviceGetCount);
  *count = kDevices;
  return kSuccess;
}

EXPORT Code cuDeviceGet(int* device, int ordinal) {
  ENTER(cuDeviceGet);
  if (ordinal < 0 || ordinal >= kDevices) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

EXPORT Code cuDeviceGetAttribute(int* value, int attribute, int device) {
  ENTER(cuDeviceGetAttribute);
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  if (attribute != 16) return kInvalidValue;  // the only one that is asked for
  *value = kMultiprocessors;
  return kSuccess;
}

EXPORT Code cuDeviceGetName(char* name, int bytes, int device) {
  ENTER(cuDeviceGetName);
  std::strncpy(name, device == 0 ? "Fake GPU 0" : "Fake GPU 1", static_cast<size_t>(bytes));
  return kSuccess;
}

EXPORT Code cuDeviceGetPCIBusId(char* name, int bytes, int device) {
  ENTER(cuDeviceGetPCIBusId);
  std::strncpy(name, device == 0 ? "0000:3B:00.0" : "0000:AF:00.0", static_cast<size_t>(bytes));
  return kSuccess;
}

EXPORT Code cuDevicePrimaryCtxRetain(Context** context, int device) {
  ENTER(cuDevicePrimaryCtxRetain);
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  *context = &world().contexts[device];
  return kSuccess;
}

EXPORT Code cuDevicePrimaryCtxRelease_v2(int device) {
  ENTER(cuDevicePrimaryCtxRelease_v2);
  return device < 0 || device >= kDevices ? kInvalidDevice : kSuccess;
}

EXPORT Code cuCtxPushCurrent_v2(Context* context) {
  ENTER(cuCtxPushCurrent_v2);
  if (context == nullptr) return kInvalidContext;
  current.push_back(context);
  return kSuccess;
}

EXPORT Code cuCtxPopCurrent_v2(Context** context) {
  ENTER(cuCtxPopCurrent_v2);
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}

// ---- memory ----

EXPORT Code cuMemAlloc_v2(Pointer* pointer, size_t bytes) {
  ENTER_CONTEXT(cuMemAlloc_v2);
  if (bytes == 0) return kInvalidValue;
  const size_t rounded = (bytes + kAllocationBytes - 1) / kAllocationBytes * kAllocationBytes;
  const int file = memfd_create("fake-gpu", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(rounded)) != 0) return kOutOfMemory;
  void* const hidden = mmap(nullptr, rounded, PROT_NONE, MAP_SHARED, file, 0);
  void* const view = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (hidden == MAP_FAILED || view == MAP_FAILED) return kOutOfMemory;
  *pointer = reinterpret_cast<Pointer>(hidden);
  world().allocations[*pointer] = {context->device, bytes, static_cast<uint8_t*>(view)};
  return kSuccess;
}

EXPORT Code cuMemFree_v2(Pointer pointer) {
  ENTER_CONTEXT(cuMemFree_v2);
  const auto found = world().allocations.find(pointer);
  if (found == world().allocations.end()) return kInvalidValue;
  const size_t rounded = (found->second.bytes + kAllocationBytes - 1) / kAllocationBytes * kAllocationBytes;
  munmap(reinterpret_cast<void*>(pointer), rounded);
  munmap(found->second.view, rounded);
  world().allocations.erase(found);
  return context->device < 0 ? kInvalidContext : kSuccess;
}

EXPORT Code cuPointerGetAttribute(void* value, int attribute, Pointer pointer) {
  ENTER(cuPointerGetAttribute);
  const auto found = allocation_of(pointer, 1);
  const bool is_device = found != world().allocations.end();
  const bool is_host = is_pinned(reinterpret_cast<void*>(pointer), 1);
  if (!is_device && !is_host) return kInvalidValue;  // as for any memory that CUDA does not know
  switch (attribute) {
    case 2: *static_cast<uint32_t*>(value) = is_device ? 2 : 1; return kSuccess;
    case 8: *static_cast<uint32_t*>(value) = 0; return kSuccess;
    case 9: *static_cast<int*>(value) = is_device ? found->second.device : 0; return kSuccess;
    default: return kInvalidValue;
  }
}

EXPORT Code cuMemHostRegister_v2(void* memory, size_t bytes, unsigned flags) {
  ENTER_CONTEXT(cuMemHostRegister_v2);
  if (memory == nullptr || bytes == 0 || flags > 7 || context->device < 0) return kInvalidValue;
  const auto first = reinterpret_cast<uintptr_t>(memory);
  for (const auto& [base, range] : world().host_ranges) {
    if (first < base + range.bytes && base < first + bytes) return kAlreadyRegistered;
  }
  world().host_ranges[first] = {bytes, false};
  return kSuccess;
}

EXPORT Code cuMemHostUnregister(void* memory) {
  ENTER(cuMemHostUnregister);
  return world().host_ranges.erase(reinterpret_cast<uintptr_t>(memory)) != 0 ? kSuccess : kNotRegistered;
}

EXPORT Code cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
  ENTER_CONTEXT(cuMemHostAlloc);
  if (flags > 7 || context->device < 0) return kInvalidValue;
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return kOutOfMemory;
  *memory = mapped;
  world().host_ranges[reinterpret_cast<uintptr_t>(mapped)] = {bytes, true};
  return kSuccess;
}

EXPORT Code cuMemFreeHost(void* memory) {
  ENTER(cuMemFreeHost);
  const auto found = world().host_ranges.find(reinterpret_cast<uintptr_t>(memory));
  if (found == world().host_ranges.end() || !found->second.is_ours) return kInvalidValue;
  munmap(memory, found->second.bytes);
  world().host_ranges.erase(found);
  return kSuccess;
}

EXPORT Code cuMemHostGetDevicePointer_v2(Pointer* pointer, void* memory, unsigned flags) {
  ENTER_CONTEXT(cuMemHostGetDevicePointer_v2);
  if (flags != 0 || context->device < 0 || !is_pinned(memory, 1)) return kInvalidValue;
  *pointer = reinterpret_cast<Pointer>(memory);
  return kSuccess;
}

// ---- streams and events ----

EXPORT Code cuStreamCreate(Stream** stream, unsigned flags) {
  ENTER_CONTEXT(cuStreamCreate);
  if (flags > 1) return kInvalidValue;
  *stream = new Stream(context);
  world().streams.push_back(*stream);
  return kSuccess;
}

// What is on it is still done.
EXPORT Code cuStreamDestroy_v2(void* handle) {
  ENTER(cuStreamDestroy_v2);
  if (reinterpret_cast<uintptr_t>(handle) <= 2) return kInvalidHandle;
  Stream* const stream = static_cast<Stream*>(handle);
  if (stream->is_destroyed) return kInvalidHandle;
  stream->is_destroyed = true;
  world().changed.notify_all();
  return kSuccess;
}

EXPORT Code cuStreamSynchronize(void* handle) {
  ENTER_CONTEXT(cuStreamSynchronize);
  wait_until_empty(stream_of(context, handle), lock);
  return world().broken;
}

EXPORT Code cuEventCreate(Event** event, unsigned flags) {
  ENTER_CONTEXT(cuEventCreate);
  if (flags > 7) return kInvalidValue;
  auto made = std::make_unique<Event>(Event{context, nullptr});
  *event = made.get();
  world().events[*event] = std::move(made);
  return kSuccess;
}

EXPORT Code cuEventDestroy_v2(Event* event) {
  ENTER(cuEventDestroy_v2);
  return world().events.erase(event) != 0 ? kSuccess : kInvalidHandle;
}

EXPORT Code cuEventRecord(Event* event, void* handle) {
  ENTER_CONTEXT(cuEventRecord);
  Stream* const stream = stream_of(context, handle);
  if (!world().events.contains(event) || stream->context != event->context) return kInvalidHandle;
  event->mark = std::make_shared<Mark>();
  stream->push([mark = event->mark] { return mark->done = true; });
  return kSuccess;
}

EXPORT Code cuEventQuery(Event* event) {
  ENTER(cuEventQuery);
  if (world().broken != kSuccess) return world().broken;
  if (!world().events.contains(event)) return kInvalidHandle;
  return event->mark == nullptr || event->mark->done ? kSuccess : kNotReady;
}

EXPORT Code cuStreamWaitEvent(void* handle, Event* event, unsigned flags) {
  ENTER_CONTEXT(cuStreamWaitEvent);
  if (flags != 0) return kInvalidValue;
  if (!world().events.contains(event)) return kInvalidHandle;
  if (event->mark != nullptr) stream_of(context, handle)->push([mark = event->mark] { return mark->done; });
  return kSuccess;
}

EXPORT Code cuStreamWaitValue32_v2(void* handle, Pointer address, uint32_t value, unsigned flags) {
  ENTER_CONTEXT(cuStreamWaitValue32_v2);
  uint8_t* view = view_of(address, sizeof(value));
  if (view == nullptr && is_pinned(reinterpret_cast<void*>(address), sizeof(value))) {
    view = reinterpret_cast<uint8_t*>(address);
  }
  if (view == nullptr || flags != 0 || address % sizeof(value) != 0) return kInvalidValue;
  stream_of(context, handle)->push([view, value] {
    const uint32_t now = __atomic_load_n(reinterpret_cast<uint32_t*>(view), __ATOMIC_ACQUIRE);
    return static_cast<int32_t>(now - value) >= 0;
  });
  return kSuccess;
}

EXPORT Code cuStreamWriteValue32_v2(void* handle, Pointer address, uint32_t value, unsigned flags) {
  ENTER_CONTEXT(cuStreamWriteValue32_v2);
  uint8_t* view = view_of(address, sizeof(value));
  if (view == nullptr && is_pinned(reinterpret_cast<void*>(address), sizeof(value))) {
    view = reinterpret_cast<uint8_t*>(address);
  }
  if (view == nullptr || flags != 0 || address % sizeof(value) != 0) return kInvalidValue;
  stream_of(context, handle)->push([view, value] {
    __atomic_store_n(reinterpret_cast<uint32_t*>(view), value, __ATOMIC_RELEASE);
    return true;
  });
  return kSuccess;
}

EXPORT Code cuLaunchHostFunc(void* handle, void (*run)(void*), void* argument) {
  ENTER_CONTEXT(cuLaunchHostFunc);
  stream_of(context, handle)->push([run, argument] {
    world().mutex.unlock();
    in_host_function = true;
    run(argument);
    in_host_function = false;
    world().mutex.lock();
    return true;
  });
  return kSuccess;
}

// ---- copies ----

EXPORT Code cuMemcpyHtoDAsync_v2(Pointer target, const void* source, size_t bytes, void* handle) {
  ENTER_CONTEXT(cuMemcpyHtoDAsync_v2);
  const auto found = allocation_of(target, bytes);
  if (found == world().allocations.end() || found->second.device != context->device) return kInvalidValue;
  Stream* const stream = stream_of(context, handle);
  uint8_t* const view = view_of(target, bytes);
  if (is_pinned(source, bytes)) {
    stream->push(delayed([view, source, bytes] { std::memcpy(view, source, bytes); }));
  } else {  // pageable memory is staged before the call returns
    std::vector<uint8_t> staged(static_cast<const uint8_t*>(source), static_cast<const uint8_t*>(source) + bytes);
    stream->push(delayed([view, staged = std::move(staged)] { std::memcpy(view, staged.data(), staged.size()); }));
  }
  return kSuccess;
}

EXPORT Code cuMemcpyDtoHAsync_v2(void* target, Pointer source, size_t bytes, void* handle) {
  ENTER_CONTEXT(cuMemcpyDtoHAsync_v2);
  const auto found = allocation_of(source, bytes);
  if (found == world().allocations.end() || found->second.device != context->device) return kInvalidValue;
  Stream* const stream = stream_of(context, handle);
  const uint8_t* const view = view_of(source, bytes);
  stream->push(delayed([target, view, bytes] { std::memcpy(target, view, bytes); }));
  if (!is_pinned(target, bytes)) wait_until_empty(stream, lock);  // to pageable memory the call waits
  return kSuccess;
}

EXPORT Code cuMemcpyAsync(Pointer target, Pointer source, size_t bytes, void* handle) {
  ENTER_CONTEXT(cuMemcpyAsync);
  uint8_t* const to = reached_by(context, target, bytes);
  const uint8_t* const from = reached_by(context, source, bytes);
  if (to == nullptr || from == nullptr) return kInvalidValue;
  stream_of(context, handle)->push(delayed([to, from, bytes] { std::memmove(to, from, bytes); }));
  return kSuccess;
}

namespace {

Code copy_batch(Context* context, const Pointer* targets, const Pointer* sources, const size_t* sizes, size_t count,
                const CopyAttributes* attributes, const size_t* attribute_starts, size_t attribute_count, void* handle,
                size_t* failed) {
  if (reinterpret_cast<uintptr_t>(handle) <= 1 || count == 0) return kInvalidValue;  // not on the legacy stream
  if (attribute_count != 1 || attributes == nullptr || attribute_starts == nullptr || attribute_starts[0] != 0) {
    return kInvalidValue;
  }
  if (attributes->source_order < 1 || attributes->source_order > 3 || attributes->flags > 1) return kInvalidValue;
  struct Copy {
    uint8_t* to;
    const uint8_t* from;
    size_t bytes;
    std::vector<uint8_t> early;
  };
  std::vector<Copy> copies;
  for (size_t i = 0; i < count; ++i) {
    Copy copy = {reached_by(context, targets[i], sizes[i]), reached_by(context, sources[i], sizes[i]), sizes[i], {}};
    if (copy.to == nullptr || copy.from == nullptr || copy.bytes == 0) {
      if (failed != nullptr) *failed = i;
      return kInvalidValue;
    }
    if (attributes->source_order != 1) copy.early.assign(copy.from, copy.from + copy.bytes);
    copies.push_back(std::move(copy));
  }
  stream_of(context, handle)->push(delayed([copies = std::move(copies)] {
    for (const Copy& one : copies) std::memmove(one.to, one.early.empty() ? one.from : one.early.data(), one.bytes);
  }));
  return kSuccess;
}

}  // namespace

// Of CUDA 12.8.
EXPORT Code cuMemcpyBatchAsync(Pointer* targets, Pointer* sources, size_t* sizes, size_t count,
                               CopyAttributes* attributes, size_t* attribute_starts, size_t attribute_count,
                               size_t* failed, void* handle) {
  ENTER_CONTEXT(cuMemcpyBatchAsync);
  if (failed == nullptr) return kInvalidValue;
  return copy_batch(context, targets, sources, sizes, count, attributes, attribute_starts, attribute_count, handle,
                    failed);
}

// Of CUDA 13.
EXPORT Code cuMemcpyBatchAsync_v2(Pointer* targets, Pointer* sources, size_t* sizes, size_t count,
                                  CopyAttributes* attributes, size_t* attribute_starts, size_t attribute_count,
                                  void* handle) {
  ENTER_CONTEXT(cuMemcpyBatchAsync_v2);
  return copy_batch(context, targets, sources, sizes, count, attributes, attribute_starts, attribute_count, handle,
                    nullptr);
}

EXPORT Code cuMemsetD8Async(Pointer target, unsigned char byte, size_t bytes, void* handle) {
  ENTER_CONTEXT(cuMemsetD8Async);
  uint8_t* const view = view_of(target, bytes);
  if (view == nullptr) return kInvalidValue;
  stream_of(context, handle)->push(delayed([view, byte, bytes] { std::memset(view, byte, bytes); }));
  return kSuccess;
}

// ---- kernels ----

EXPORT Code cuModuleLoadData(void** module, const void* image) {
  ENTER_CONTEXT(cuModuleLoadData);
  if (image == nullptr) return kInvalidValue;
  *module = context;  // any module has the kernels of cuda_kernels.h and every one that a test has added
  for (const auto& [name, bytes] : {std::pair("kvstore_scatter_extent", sizeof(kvstore::gpu::MoveArguments)),
                                    std::pair("kvstore_gather_extent", sizeof(kvstore::gpu::MoveArguments)),
                                    std::pair("kvstore_page_nodes", sizeof(kvstore::gpu::PageNodesArguments))}) {
    if (!world().kernels.contains(name)) {
      world().kernels[name] = std::make_unique<Kernel>(Kernel{name, nullptr, {bytes}});
    }
  }
  return kSuccess;
}

EXPORT Code cuModuleGetFunction(Kernel** kernel, void* module, const char* name) {
  ENTER_CONTEXT(cuModuleGetFunction);
  const auto found = world().kernels.find(name);
  if (module != context) return kInvalidHandle;
  if (found == world().kernels.end()) return kNotFound;
  *kernel = found->second.get();
  return kSuccess;
}

EXPORT Code cuLaunchKernel(Kernel* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                           unsigned block_y, unsigned block_z, unsigned shared_bytes, void* handle, void** arguments,
                           void** extra) {
  ENTER_CONTEXT(cuLaunchKernel);
  const uint64_t threads = uint64_t{block_x} * block_y * block_z;
  if (extra != nullptr || shared_bytes > 227 * 1024 || threads == 0 || threads > 1024) return kInvalidValue;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_y > 65535 || grid_z > 65535) return kInvalidValue;
  std::vector<std::vector<uint8_t>> copies;  // arguments are read at the launch
  size_t bytes = 0;
  for (const size_t one : kernel->argument_bytes) bytes += one;
  if (bytes > kLaunchArgumentBytes) return kInvalidValue;
  for (size_t i = 0; i < kernel->argument_bytes.size(); ++i) {
    const auto* const first = static_cast<const uint8_t*>(arguments[i]);
    copies.emplace_back(first, first + kernel->argument_bytes[i]);
  }
  const unsigned grid[] = {grid_x, grid_y, grid_z};
  const unsigned block[] = {block_x, block_y, block_z};
  stream_of(context, handle)->push(delayed([context, kernel, copies, grid, block]() mutable {
    std::vector<void*> pointers;
    for (std::vector<uint8_t>& copy : copies) pointers.push_back(copy.data());
    if (kernel->run == nullptr) {
      const auto map = [context](uint64_t pointer, uint64_t size) { return reached_by(context, pointer, size); };
      const Code code = fake_kernels::run(kernel->name.c_str(), pointers.data(), map);
      if (code != kSuccess) world().broken = code;
      return;
    }
    world().mutex.unlock();  // it asks for views
    kernel->run(pointers.data(), grid, block);
    world().mutex.lock();
  }));
  return kSuccess;
}

// ---- what tests tell it ----

EXPORT void* fake_cuda_view(Pointer pointer) {
  std::lock_guard lock(world().mutex);
  return view_of(pointer, 1);
}

EXPORT void fake_cuda_fail(const char* function, int code, uint64_t passed, uint64_t times) {
  std::lock_guard lock(world().mutex);
  world().faults[function] = {code, passed, times};
}

EXPORT void fake_cuda_break(int code) {
  std::lock_guard lock(world().mutex);
  world().broken = code;
  world().changed.notify_all();
}

EXPORT void fake_cuda_set_copy_delay(uint64_t microseconds) {
  std::lock_guard lock(world().mutex);
  world().copy_delay = std::chrono::microseconds(microseconds);
}

EXPORT void fake_cuda_reset() {
  std::lock_guard lock(world().mutex);
  world().faults.clear();
  world().calls.clear();
  world().broken = kSuccess;
  world().copy_delay = std::chrono::microseconds(200);
}

EXPORT uint64_t fake_cuda_gate(void* handle) {
  std::lock_guard lock(world().mutex);
  const uint64_t gate = world().next_gate++;
  world().gates[gate] = false;
  static_cast<Stream*>(handle)->push([gate] { return world().gates[gate]; });
  return gate;
}

EXPORT void fake_cuda_open_gate(uint64_t gate) {
  std::lock_guard lock(world().mutex);
  world().gates[gate] = true;
  world().changed.notify_all();
}

EXPORT void fake_cuda_add_kernel(const char* name, FakeCudaKernel run, const size_t* argument_bytes, size_t count) {
  std::lock_guard lock(world().mutex);
  std::unique_ptr<Kernel>& kernel = world().kernels[name];
  if (kernel == nullptr) kernel = std::make_unique<Kernel>();  // who has found it keeps it
  *kernel = {name, run, {argument_bytes, argument_bytes + count}};
}

EXPORT uint64_t fake_cuda_calls(const char* function) {
  std::lock_guard lock(world().mutex);
  return world().calls[function];
}

EXPORT uint64_t fake_cuda_registered() {
  std::lock_guard lock(world().mutex);
  uint64_t bytes = 0;
  for (const auto& [base, range] : world().host_ranges) bytes += range.is_ours ? 0 : range.bytes;
  return bytes;
}
