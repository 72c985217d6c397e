// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of a ChecksumKernel, compiled once for each. The including file sets the instruction set and
// XXH_VECTOR, and defines the table. No C++ library header may be included here or there: an inline function
// of one, emitted with AVX-512 instructions, could be the copy that the linker keeps for the whole program.

#include "base/checksum_kernel.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvstore {
namespace {

// The constant length lets the compiler unroll the loop over the page.
[[maybe_unused]] void hash_pages_by_library(const void* pages, size_t count, uint64_t* nodes) {
  const unsigned char* page = static_cast<const unsigned char*>(pages);
  for (size_t i = 0; i < count; ++i, page += 4096) nodes[i] = XXH3_64bits(page, 4096);
}

uint64_t hash64(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

void hash128(const void* data, size_t bytes, uint64_t* low, uint64_t* high) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  *low = hash.low64;
  *high = hash.high64;
}

}  // namespace
}  // namespace kvstore
