// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Checksum loops for AVX512. The pragmas, not compiler flags, switch it on, so that no build file has to know.

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,bmi2")
#endif

// GCC 12 takes the "undefined" operand of its own intrinsics for an uninitialised variable.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <immintrin.h>

#define XXH_VECTOR XXH_AVX512
#define KVS_CHECKSUM_KERNEL kChecksumKernelAvx512
#define KVS_CHECKSUM_ENGINE "avx512"

#include "base/checksum_kernel_body.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
