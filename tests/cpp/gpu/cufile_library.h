// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The fake libcufile.so.0 of tests/fakes as tests use it, beside the fake libcuda.so.1; and where NVIDIA's own is.

#pragma once

#include <dlfcn.h>

#include <cstdlib>

#include "../../fakes/fake_cufile.h"
#include "gpu/cufile.h"
#include "gpu/fake_driver.h"

namespace kvstore::gpu {

// Options with which the fake opens where there is no /proc/modules.
inline CuFileOptions fake_cufile_options() {
  return {.library = KVSTORE_FAKE_LIBCUFILE, .modules_path = "/proc/self/status", .log_folder = testing::TempDir()};
}

// NVIDIA's own library, which tests/gpu/test_real_cufile.py names; null without.
inline const char* real_cufile_path() { return std::getenv("KVSTORE_TEST_LIBCUFILE"); }
inline constexpr const char* kNoRealCuFile = "needs NVIDIA's libcufile in build/venv-kvikio";

// Of this process; opened at the first use.
class FakeCuFile {
 public:
  static FakeCuFile& get() {
    static FakeCuFile fake;
    return fake;
  }

  template <typename Function>
  Function symbol(const char* name) const {
    return reinterpret_cast<Function>(dlsym(handle_, name));
  }

  FakeDriver& gpu = FakeDriver::get();
  const CuFile cufile = CuFile::open(FakeDriver::get().driver, fake_cufile_options()).value();

 private:
  void* const handle_ = dlopen(KVSTORE_FAKE_LIBCUFILE, RTLD_NOW | RTLD_NOLOAD);  // before what is found in it

 public:
  const FakeCuFileFail fail = symbol<FakeCuFileFail>("fake_cufile_fail");
  const FakeCuFileShortenReads shorten_reads = symbol<FakeCuFileShortenReads>("fake_cufile_shorten_reads");
  const FakeCuFileMoveNothing move_nothing = symbol<FakeCuFileMoveNothing>("fake_cufile_move_nothing");
  const FakeCuFileSpoilReads spoil_reads = symbol<FakeCuFileSpoilReads>("fake_cufile_spoil_reads");
  const FakeCuFileSayDirect say_direct = symbol<FakeCuFileSayDirect>("fake_cufile_say_direct");
  const FakeCuFileHang hang = symbol<FakeCuFileHang>("fake_cufile_hang");
  const FakeCuFileCalls calls = symbol<FakeCuFileCalls>("fake_cufile_calls");
  const FakeCuFileOffsets offsets = symbol<FakeCuFileOffsets>("fake_cufile_offsets");
  const FakeCuFileRegistered registered = symbol<FakeCuFileRegistered>("fake_cufile_registered");
  const FakeCuFileFiles files = symbol<FakeCuFileFiles>("fake_cufile_files");
  const FakeCuFileReset reset = symbol<FakeCuFileReset>("fake_cufile_reset");
};

}  // namespace kvstore::gpu
