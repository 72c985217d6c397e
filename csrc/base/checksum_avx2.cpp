// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Checksum loops for AVX2. The pragmas, not compiler flags, switch it on, so that no build file has to know.

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi2")
#endif

#include <immintrin.h>

#define XXH_VECTOR XXH_AVX2
#include "base/checksum_kernel_body.h"

namespace kvstore {

const ChecksumKernel kChecksumKernelAvx2 = {"avx2", hash_pages_by_library, hash64, hash128};

}  // namespace kvstore

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
