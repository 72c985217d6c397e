// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/cufile.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "gpu/symbols.h"

namespace kvstore::gpu {

namespace {

const char* text_of(int code) {
  switch (code) {
    case 5001: return "the driver is not open";
    case 5008: return "I/O to this kind of storage is not supported; is nvidia-fs loaded, or PCI P2PDMA switched on?";
    case cufile::kCudaDriverError: return "an error of the CUDA driver";
    case 5016: return "the mapping of GPU memory is too large or not aligned";
    case 5018:
      return "not a kind of file that it takes; device-mapper devices are refused, give it the namespace below";
    case 5019: return "the file is not open for that";
    case 5020: return "the file is not open with O_DIRECT";
    case 5022: return "an invalid argument";
    case 5023: return "the memory is registered already";
    case 5024: return "the memory is not registered";
    case 5027: return "what the storage is cannot be found out; is /run/udev mounted in this container?";
    case 5028: return "the file is registered already";
    case 5033: return "nvidia-fs or its setup is missing";
    case 5036: return "GPU memory cannot be pinned; BAR1 may be full (nvidia-smi -q -d MEMORY)";
    default: return "see the CUfileOpError of that number in cufile.h";
  }
}

// Runs a call on a thread of its own, for at most so long. A thread that does not come back is left behind: it cannot
// be ended, and runs from then on only when nobody else wants the core.
std::optional<cufile::Error> call_within(cufile::Error (*call)(), uint64_t timeout_ns) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable ended;
    std::optional<cufile::Error> result;
  };
  const auto shared = std::make_shared<Shared>();
  std::thread thread([shared, call] {
    const cufile::Error result = call();
    const std::lock_guard lock(shared->mutex);
    shared->result = result;
    shared->ended.notify_all();
  });
  std::unique_lock lock(shared->mutex);
  shared->ended.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [&] { return shared->result.has_value(); });
  const std::optional<cufile::Error> result = shared->result;
  if (result) {
    lock.unlock();
    thread.join();
    return result;
  }
  const sched_param idle{};
  (void)pthread_setschedparam(thread.native_handle(), SCHED_IDLE, &idle);
  thread.detach();
  return std::nullopt;
}

}  // namespace

Status CuFile::check(cufile::Error error, const char* call, const std::string& what) {
  if (error.code == 0) return {};
  const std::string cuda = error.code == cufile::kCudaDriverError ? format_text(" (CUDA %d)", error.cuda) : "";
  return Status(Code::kUnsupported,
                format_text("%s: %s gave %d%s, %s", what.c_str(), call, error.code, cuda.c_str(), text_of(error.code)));
}

int64_t CuFile::errno_of(ssize_t returned, int saved_errno) {
  if (returned == -1 && saved_errno > 0 && saved_errno < cufile::kBaseError) return -saved_errno;
  return -EIO;
}

bool CuFile::says_direct(bool fabric) const {
  return (properties_.status_flags >> (fabric ? cufile::kNvmeOf : cufile::kNvme) & 1) != 0;
}

Status CuFile::find_functions(void* library, const std::string& name) {
  Symbols symbols(library);
  symbols.need(driver_open_, "cuFileDriverOpen");
  symbols.need(driver_properties_, "cuFileDriverGetProperties");
  symbols.need(handle_register, "cuFileHandleRegister");
  symbols.need(handle_deregister, "cuFileHandleDeregister");
  symbols.need(buffer_register, "cuFileBufRegister");
  symbols.need(buffer_deregister, "cuFileBufDeregister");
  symbols.need(read, "cuFileRead");
  symbols.need(write, "cuFileWrite");
  symbols.find(get_version_, "cuFileGetVersion");
  if (symbols.missing().empty()) return {};
  return Status(Code::kUnsupported, format_text("%s has no %s: GPUDirect Storage 1.4 or later is needed", name.c_str(),
                                                symbols.missing().c_str()));
}

Status CuFile::open_driver(const CuFileOptions& options) {
  // Without this file every libcufile from 1.16 to 1.20 spins in cuFileDriverOpen for ever: it looks in it for a line.
  if (access(options.modules_path.c_str(), R_OK) != 0) {
    return Status(
        Code::kUnsupported,
        format_text("GPUDirect Storage is not tried: %s cannot be read, and libcufile spins for ever without it; "
                    "a kernel with modules is needed",
                    options.modules_path.c_str()),
        errno);
  }
  // By the environment, which is where 1.20 takes it from: cuFileSetParameterString says that it did and does nothing.
  const char* const said = std::getenv("CUFILE_LOGFILE_PATH");
  if (said == nullptr || *said == '\0') {
    if (setenv("CUFILE_LOGFILE_PATH", (options.log_folder + "/cufile.log").c_str(), 1) != 0) {
      return Status::from_errno(errno, "the place of libcufile's log");
    }
  }
  std::optional<cufile::Error> opened;
  try {
    opened = call_within(driver_open_, options.open_timeout_ns);
  } catch (const std::system_error& error) {
    return Status(Code::kUnsupported, std::string("no thread can be started to open libcufile: ") + error.what());
  }
  if (!opened) {
    return Status(Code::kTimeout,
                  format_text("cuFileDriverOpen did not return in %.0f s and was left alone; GPUDirect Storage is off "
                              "until the process ends. See cufile.log in %s",
                              static_cast<double>(options.open_timeout_ns) / 1e9, options.log_folder.c_str()));
  }
  return check(*opened, "cuFileDriverOpen", "GPUDirect Storage");
}

Result<CuFile> CuFile::open(const CudaDriver& /*driver*/, const CuFileOptions& options) {
  const char* const named = std::getenv("KVSTORE_LIBCUFILE");
  const std::string from_environment = named != nullptr && *named != '\0' ? named : "libcufile.so.0";
  const std::string name = options.library.empty() ? from_environment : options.library;
  // Never closed: its threads would return into nothing.
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return Status(
        Code::kUnsupported,
        format_text("no GPUDirect Storage: %s; install libcufile (CUDA toolkit, or the wheel nvidia-cufile and "
                    "its folder in LD_LIBRARY_PATH)",
                    why == nullptr ? name.c_str() : why));
  }
  CuFile made;
  KVS_TRY(made.find_functions(library, name));
  KVS_TRY(made.open_driver(options));
  KVS_TRY(check(made.driver_properties_(&made.properties_), "cuFileDriverGetProperties", "GPUDirect Storage"));
  if (made.get_version_ != nullptr) (void)made.get_version_(&made.version_);
  return made;
}

Result<const CuFile*> CuFile::get(const CudaDriver& driver) {
  static std::mutex mutex;
  static const Result<CuFile>* found = nullptr;
  const std::lock_guard lock(mutex);
  if (found == nullptr) found = new Result<CuFile>(open(driver, {}));  // NOLINT: as long as the process
  if (!found->ok()) return found->status();
  return &found->value();
}

}  // namespace kvstore::gpu
