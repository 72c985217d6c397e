// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The hashing loops behind checksum.h, one table per instruction set. checksum_kernel_body.h is compiled once
// for each table, with that instruction set switched on for that file only; checksum.cpp picks a table once,
// by what the CPU can do, so that one binary runs everywhere. All tables give equal results.

#pragma once

#include <stddef.h>
#include <stdint.h>

namespace kvstore {

struct ChecksumKernel {
  const char* name;
  // XXH3-64 of each of `count` whole 4 KiB pages.
  void (*hash_pages)(const void* pages, size_t count, uint64_t* nodes);
  uint64_t (*hash64)(const void* data, size_t bytes);
  void (*hash128)(const void* data, size_t bytes, uint64_t* low, uint64_t* high);
};

extern const ChecksumKernel kChecksumKernelGeneric;
#if defined(__x86_64__)
extern const ChecksumKernel kChecksumKernelAvx2;
extern const ChecksumKernel kChecksumKernelAvx512;
#endif

}  // namespace kvstore
