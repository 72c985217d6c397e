// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// A fake libcufile.so.0 for machines without a GPU: files, registered buffers, reads and writes of GPU and host memory.
//
// It is as strict as the ways below cuFile are: the descriptor must be open with O_DIRECT and not be a device-mapper
// one, offsets, sizes and memory are multiples of 4 KiB, GPU memory is used with a context current that is of its GPU.
// GPU memory is that of the fake libcuda.so.1 (KVSTORE_LIBCUDA). Not like cuFile: it never copies through memory of its
// own what is not aligned. It writes its log where CUFILE_LOGFILE_PATH says, and cufile.log into the working directory
// where that says nothing. fake_cufile.h is what tests tell it.

#include "fake_cufile.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "fake_cuda.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr uint64_t kAlignment = 4096;
constexpr int kPointerDeviceOrdinal = 9;

struct Error {
  int code = 0;
  int cuda = 0;
};

struct Fault {
  int code = 0;
  uint64_t passed = 0;
  uint64_t times = 0;
};

struct File {
  int fd = -1;
};

struct Description {
  int type;
  union {
    int fd;
    void* pointer;
  };
  const void* fs_ops;
};

// For processes that load it without telling it anything: FAKE_CUFILE_SAYS_DIRECT=1.
bool says_direct_at_first() {
  const char* const said = std::getenv("FAKE_CUFILE_SAYS_DIRECT");
  return said != nullptr && *said == '1';
}

struct State {
  std::mutex mutex;
  std::condition_variable released;
  std::map<std::string, Fault> faults;
  std::map<std::string, uint64_t> calls;
  std::set<std::string> hanging;
  std::set<File*> files;
  std::map<const void*, size_t> buffers;
  uint64_t shorten_bytes = 0;
  uint64_t offsets = 0;
  bool moves_nothing = false;
  bool spoils = false;
  bool says_direct = says_direct_at_first();
  bool open = false;
};

State& state() {
  static State& the = *new State;  // outlives the threads that hang in it
  return the;
}

// The error that is due to this call, or 0.
int take_fault(State& s, const char* function) {
  const auto found = s.faults.find(function);
  if (found == s.faults.end()) return 0;
  Fault& fault = found->second;
  if (fault.passed != 0) {
    --fault.passed;
    return 0;
  }
  if (fault.times == 0) return 0;
  --fault.times;
  return fault.code;
}

// Counts the call, and waits while it hangs. What comes of it is settled before: a call that was left behind must not
// take the fault that a later test has laid.
int enter(const char* function) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  ++s.calls[function];
  const int code = take_fault(s, function);
  s.released.wait(lock, [&] { return s.hanging.count(function) == 0; });
  return code;
}

void* cuda(const char* name) {
  static void* const library = dlopen(std::getenv("KVSTORE_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : dlsym(library, name);
}

// Where the bytes are: the fake's own mapping of GPU memory, or the host's own. Null: GPU memory of another context.
uint8_t* bytes_of(void* memory) {
  const auto view = reinterpret_cast<FakeCudaView>(cuda("fake_cuda_view"));
  void* const in_gpu = view == nullptr ? nullptr : view(reinterpret_cast<uint64_t>(memory));
  if (in_gpu == nullptr) return static_cast<uint8_t*>(memory);
  using Push = int (*)(void*);
  using Pop = int (*)(void**);
  using Attribute = int (*)(void*, int, uint64_t);
  using Retain = int (*)(void**, int);
  void* current = nullptr;
  if (reinterpret_cast<Pop>(cuda("cuCtxPopCurrent_v2"))(&current) != 0 || current == nullptr) return nullptr;
  (void)reinterpret_cast<Push>(cuda("cuCtxPushCurrent_v2"))(current);
  int ordinal = -1;
  void* its = nullptr;
  const auto attribute = reinterpret_cast<Attribute>(cuda("cuPointerGetAttribute"));
  if (attribute(&ordinal, kPointerDeviceOrdinal, reinterpret_cast<uint64_t>(memory)) != 0) return nullptr;
  if (reinterpret_cast<Retain>(cuda("cuDevicePrimaryCtxRetain"))(&its, ordinal) != 0) return nullptr;
  return its == current ? static_cast<uint8_t*>(in_gpu) : nullptr;
}

// What cuFileRead and cuFileWrite have in common before they move anything: where, or null with errno set.
uint8_t* begin_io(const char* function, void* handle, void* memory, size_t bytes, off_t offset, off_t buffer_offset) {
  if (const int code = enter(function)) {
    errno = code;
    return nullptr;
  }
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (buffer_offset != 0) ++s.offsets;
  const uint64_t all =
      static_cast<uint64_t>(offset) | bytes | reinterpret_cast<uint64_t>(memory) | static_cast<uint64_t>(buffer_offset);
  errno = EINVAL;
  if (s.files.count(static_cast<File*>(handle)) == 0 || all % kAlignment != 0) return nullptr;
  uint8_t* const found = bytes_of(memory);
  // cuFile has been seen to ignore the offset and to say that all went well (compat mode): so does this one, always.
  if (found == nullptr) errno = EFAULT;
  return found;
}

}  // namespace

EXPORT Error cuFileDriverOpen() {
  // Before it hangs: a call that was left behind must not write where a later test does not expect it.
  const char* const named = std::getenv("CUFILE_LOGFILE_PATH");
  const std::string log_path = named != nullptr && *named != '\0' ? named : "cufile.log";
  if (const int code = enter("cuFileDriverOpen")) return {code, 0};
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.open = true;
  if (std::FILE* log = std::fopen(log_path.c_str(), "a")) {
    std::fputs("the fake libcufile was opened\n", log);
    std::fclose(log);
  }
  return {};
}

EXPORT Error cuFileDriverGetProperties(void* properties) {
  if (const int code = enter("cuFileDriverGetProperties")) return {code, 0};
  if (!state().open) return {5001, 0};
  std::memset(properties, 0, 56);
  constexpr size_t kStatusFlags = 24;  // of CUfileDrvProps_t: bits 4 and 5 are NVMe and NVMe over Fabrics
  const uint32_t flags = state().says_direct ? 1u << 4 | 1u << 5 : 0;
  std::memcpy(static_cast<uint8_t*>(properties) + kStatusFlags, &flags, sizeof(flags));
  return {};
}

EXPORT Error cuFileGetVersion(int* version) {
  *version = 1200;
  return {};
}

EXPORT Error cuFileHandleRegister(void** handle, Description* description) {
  if (const int code = enter("cuFileHandleRegister")) return {code, 0};
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.open) return {5001, 0};
  struct stat status{};
  if (description->type != 1 || fstat(description->fd, &status) != 0) return {5018, 0};
  constexpr unsigned kDeviceMapper = 252;
  if (S_ISBLK(status.st_mode) && major(status.st_rdev) == kDeviceMapper) return {5018, 0};
  if ((fcntl(description->fd, F_GETFL) & O_DIRECT) == 0) return {5020, 0};
  File* const file = new File{description->fd};
  s.files.insert(file);
  *handle = file;
  return {};
}

EXPORT void cuFileHandleDeregister(void* handle) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  ++s.calls["cuFileHandleDeregister"];
  if (s.files.erase(static_cast<File*>(handle)) == 1) delete static_cast<File*>(handle);
}

EXPORT Error cuFileBufRegister(const void* memory, size_t bytes, int /*flags*/) {
  if (const int code = enter("cuFileBufRegister")) return {code, 0};
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (const auto& [begin, length] : s.buffers) {
    const auto first = reinterpret_cast<uint64_t>(begin), asked = reinterpret_cast<uint64_t>(memory);
    if (asked < first + length && first < asked + bytes) return {5023, 0};
  }
  s.buffers[memory] = bytes;
  return {};
}

EXPORT Error cuFileBufDeregister(const void* memory) {
  if (const int code = enter("cuFileBufDeregister")) return {code, 0};
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return {s.buffers.erase(memory) == 1 ? 0 : 5024, 0};
}

EXPORT ssize_t cuFileRead(void* handle, void* memory, size_t bytes, off_t offset, off_t buffer_offset) {
  uint8_t* const target = begin_io("cuFileRead", handle, memory, bytes, offset, buffer_offset);
  if (target == nullptr) return -1;
  uint64_t shorten = 0;
  bool nothing = false, spoils = false;
  {
    const std::lock_guard lock(state().mutex);
    spoils = state().spoils;
    shorten = state().shorten_bytes < bytes ? state().shorten_bytes : bytes;
    nothing = state().moves_nothing;
  }
  if (nothing) return static_cast<ssize_t>(bytes);
  // As a device writes memory: unseen by ThreadSanitizer, which would take two reads into one buffer for a race.
  const iovec run{target, bytes - shorten};
  const ssize_t moved = preadv2(static_cast<File*>(handle)->fd, &run, 1, offset, 0);
  if (spoils && moved > 0) target[moved - 1] ^= 1;
  return moved;
}

EXPORT ssize_t cuFileWrite(void* handle, const void* memory, size_t bytes, off_t offset, off_t buffer_offset) {
  const uint8_t* const source =
      begin_io("cuFileWrite", handle, const_cast<void*>(memory), bytes, offset, buffer_offset);
  if (source == nullptr) return -1;
  const iovec run{const_cast<uint8_t*>(source), bytes};
  return pwritev2(static_cast<File*>(handle)->fd, &run, 1, offset, 0);
}

EXPORT void fake_cufile_fail(const char* function, int code, uint64_t passed, uint64_t times) {
  const std::lock_guard lock(state().mutex);
  state().faults[function] = {code, passed, times};
}

EXPORT void fake_cufile_shorten_reads(uint64_t bytes) {
  const std::lock_guard lock(state().mutex);
  state().shorten_bytes = bytes;
}

EXPORT void fake_cufile_move_nothing(bool on) {
  const std::lock_guard lock(state().mutex);
  state().moves_nothing = on;
}

EXPORT void fake_cufile_spoil_reads(bool on) {
  const std::lock_guard lock(state().mutex);
  state().spoils = on;
}

EXPORT void fake_cufile_say_direct(bool on) {
  const std::lock_guard lock(state().mutex);
  state().says_direct = on;
}

EXPORT void fake_cufile_hang(const char* function, bool on) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (on) {
    s.hanging.insert(function);
  } else {
    s.hanging.erase(function);
  }
  s.released.notify_all();
}

EXPORT uint64_t fake_cufile_calls(const char* function) {
  const std::lock_guard lock(state().mutex);
  return state().calls[function];
}

EXPORT uint64_t fake_cufile_offsets() {
  const std::lock_guard lock(state().mutex);
  return state().offsets;
}

EXPORT uint64_t fake_cufile_registered() {
  const std::lock_guard lock(state().mutex);
  uint64_t bytes = 0;
  for (const auto& [memory, length] : state().buffers) bytes += length;
  return bytes;
}

EXPORT uint64_t fake_cufile_files() {
  const std::lock_guard lock(state().mutex);
  return state().files.size();
}

EXPORT void fake_cufile_reset() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.faults.clear();
  s.calls.clear();
  s.hanging.clear();
  s.shorten_bytes = 0;
  s.moves_nothing = false;
  s.spoils = false;
  s.says_direct = false;
  s.released.notify_all();
}
