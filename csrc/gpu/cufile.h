// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// CuFile: the functions of GPUDirect Storage that are used here, found by dlopen of libcufile.so.0 (or of the file that
// KVSTORE_LIBCUFILE names). Nothing of NVIDIA is linked and no header of it is needed; the ABI is declared here as
// cufile.h 1.20 has it.
//
// Guarantees: what would make it hang or litter is looked at before its driver is opened, and the opening is given up
// after a time; each refusal is a value with the reason and the mend. cufile.log never lands in the working directory.
// The library is never unloaded. Thread-safe.
//
// The batch calls are not used: they ignore the offset into a buffer in compat mode, fail above 128 entries, hang
// above the count of slabs, and can only be polled.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "gpu/cuda_driver.h"

namespace kvstore::gpu {

namespace cufile {

struct Error {
  int code = 0;       // CUfileOpError: 0, or 5001 and up
  cu::Code cuda = 0;  // with 5011
};

using Handle = void*;

struct Description {
  int type = 1;  // CU_FILE_HANDLE_TYPE_OPAQUE_FD
  union {
    int fd;
    void* pointer;
  };
  const void* fs_ops = nullptr;
};

inline constexpr int kBaseError = 5000;
inline constexpr int kCudaDriverError = 5011;

enum P2pTarget : int { kNvme = 4, kNvmeOf = 5 };  // CUfileDriverStatusFlags_t

// CUfileDrvProps_t
struct Properties {
  unsigned nvfs_major = 0;
  unsigned nvfs_minor = 0;
  size_t poll_threshold_bytes = 0;
  size_t max_direct_io_kib = 0;
  unsigned status_flags = 0;  // bit of CUfileDriverStatusFlags_t: this kind of storage is reached without compat mode
  unsigned control_flags = 0;
  unsigned feature_flags = 0;
  unsigned max_device_cache_kib = 0;
  unsigned per_buffer_cache_kib = 0;
  unsigned max_device_pinned_kib = 0;
  unsigned max_batch_entries = 0;
  unsigned max_batch_timeout_ms = 0;
  uint8_t of_later_versions[256] = {};
};

}  // namespace cufile

struct CuFileOptions {
  std::string library;                         // empty: KVSTORE_LIBCUFILE, or libcufile.so.0
  std::string modules_path = "/proc/modules";  // for tests
  std::string log_folder = "/tmp";             // unless CUFILE_LOGFILE_PATH says where
  uint64_t open_timeout_ns = 20'000'000'000;   // of cuFileDriverOpen
};

class CuFile {
 public:
  // Opened once in a process, also when it was refused: a call that hangs once is not made again. Taking the driver
  // says that libcuda is there and cuInit worked, without which opening may not be tried.
  static Result<const CuFile*> get(const CudaDriver& driver);
  // One more, by options.
  static Result<CuFile> open(const CudaDriver& driver, const CuFileOptions& options);

  // Ok, or an error: "<what>: <call> gave <code and text><mend>".
  static Status check(cufile::Error error, const char* call, const std::string& what);
  // The same of what cuFileRead and cuFileWrite return below 0, as -errno: what is no errno is EIO.
  static int64_t errno_of(ssize_t returned, int saved_errno);

  int version() const { return version_; }  // 1200 is 1.20; 0: it does not say
  // Whether NVMe (or NVMe over Fabrics) is reached by DMA into the GPU; else cuFile copies through host memory
  // ("compat"). What the library says of itself; the self-test and the counters of the run decide.
  bool says_direct(bool fabric) const;

  cufile::Error (*handle_register)(cufile::Handle*, cufile::Description*) = nullptr;
  void (*handle_deregister)(cufile::Handle) = nullptr;
  cufile::Error (*buffer_register)(const void*, size_t, int flags) = nullptr;
  cufile::Error (*buffer_deregister)(const void*) = nullptr;
  ssize_t (*read)(cufile::Handle, void*, size_t, off_t offset_bytes, off_t buffer_offset) = nullptr;
  ssize_t (*write)(cufile::Handle, const void*, size_t, off_t offset_bytes, off_t buffer_offset) = nullptr;

 private:
  CuFile() = default;
  Status find_functions(void* library, const std::string& name);
  Status open_driver(const CuFileOptions& options);

  cufile::Error (*driver_open_)() = nullptr;
  cufile::Error (*driver_properties_)(cufile::Properties*) = nullptr;
  cufile::Error (*get_version_)(int*) = nullptr;
  int version_ = 0;
  cufile::Properties properties_;
};

}  // namespace kvstore::gpu
