// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Checksum loops for what every CPU of the architecture has: SSE2, NEON, or plain C.

#include "base/checksum_kernel_body.h"

namespace kvstore {

const ChecksumKernel kChecksumKernelGeneric = {
#if defined(__SSE2__)
    "sse2",
#elif defined(__ARM_NEON) || defined(__ARM_NEON__)
    "neon",
#else
    "scalar",
#endif
    hash_pages_by_library, hash64, hash128};

}  // namespace kvstore
