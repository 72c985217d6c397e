// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/kernel_image.h"

#if defined(KVSTORE_KERNELS_FATBIN)

// The assembler reads the file; a byte array in C++ would be compiled for longer than the kernels are.
__asm__(
    ".pushsection .rodata, \"a\"\n"
    ".balign 64\n"
    ".hidden kvstore_kernels_begin\n"
    ".hidden kvstore_kernels_end\n"
    ".globl kvstore_kernels_begin\n"
    ".globl kvstore_kernels_end\n"
    "kvstore_kernels_begin:\n"
    ".incbin \"" KVSTORE_KERNELS_FATBIN
    "\"\n"
    "kvstore_kernels_end:\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" const uint8_t kvstore_kernels_begin[];
extern "C" const uint8_t kvstore_kernels_end[];

namespace kvstore::gpu {

KernelImage kernel_image() {
  return {{kvstore_kernels_begin, static_cast<size_t>(kvstore_kernels_end - kvstore_kernels_begin)}};
}

}  // namespace kvstore::gpu

#else

#if !defined(KVSTORE_KERNELS_ABSENT)
#define KVSTORE_KERNELS_ABSENT "this build has no kernels"
#endif

namespace kvstore::gpu {

KernelImage kernel_image() { return {{}, KVSTORE_KERNELS_ABSENT}; }

}  // namespace kvstore::gpu

#endif
