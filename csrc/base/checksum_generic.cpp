// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Checksum loops for what every CPU of the architecture has: SSE2, NEON, or plain C.

#define KVS_CHECKSUM_KERNEL kChecksumKernelGeneric
#if defined(__SSE2__)
#define KVS_CHECKSUM_ENGINE "sse2"
#elif defined(__ARM_NEON) || defined(__ARM_NEON__)
#define KVS_CHECKSUM_ENGINE "neon"
#else
#define KVS_CHECKSUM_ENGINE "scalar"
#endif

#include "base/checksum_kernel_body.h"
