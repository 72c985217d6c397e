// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The body of one ChecksumKernel. The including file sets the instruction set, XXH_VECTOR,
// KVS_CHECKSUM_KERNEL (the table's name) and KVS_CHECKSUM_ENGINE (its text). No C++ library header may be
// included here or there: an inline function of one, emitted with AVX-512 instructions, could be the copy
// that the linker keeps for the whole program.

#include "base/checksum_kernel.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvstore {
namespace {

void hash_pages(const void* pages, size_t count, uint64_t* nodes) {
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

const ChecksumKernel KVS_CHECKSUM_KERNEL = {KVS_CHECKSUM_ENGINE, hash_pages, hash64, hash128};

}  // namespace kvstore
