// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// A library for LD_PRELOAD that gives who opens /proc/modules a list of one module, on kernels that were built without
// modules and have no such file. With it NVIDIA's libcufile, which looks for a line in it for ever otherwise, opens on
// any Linux. Everything else is opened as it is.

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Open = std::FILE* (*)(const char*, const char*);

std::FILE* open_or_list(const char* name, const char* path, const char* mode) {
  if (path == nullptr || std::strcmp(path, "/proc/modules") != 0) {
    return reinterpret_cast<Open>(dlsym(RTLD_NEXT, name))(path, mode);
  }
  // A file with a descriptor, which is what C++ streams read from.
  constexpr char kList[] = "ext4 1 0 - Live 0x0000000000000000\n";
  const int file = memfd_create("modules", MFD_CLOEXEC);
  if (file < 0 || pwrite(file, kList, sizeof(kList) - 1, 0) != sizeof(kList) - 1) return nullptr;
  return fdopen(file, "r");
}

}  // namespace

EXPORT std::FILE* fopen(const char* path, const char* mode) { return open_or_list("fopen", path, mode); }
EXPORT std::FILE* fopen64(const char* path, const char* mode) { return open_or_list("fopen64", path, mode); }

// Whoever is careful asks first.
EXPORT int access(const char* path, int mode) {
  if (std::strcmp(path, "/proc/modules") == 0) return 0;  // glibc declares that it is not null
  return reinterpret_cast<int (*)(const char*, int)>(dlsym(RTLD_NEXT, "access"))(path, mode);
}
