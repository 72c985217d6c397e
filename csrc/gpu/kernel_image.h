// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The compiled kernels as bytes for cuModuleLoadData: a fatbin of machine code for sm_80, 90, 100, 120, and PTX. Built
// without nvcc it is empty, with the reason; whoever wants a kernel then copies instead (kernel_launch.h).

#pragma once

#include <cstdint>
#include <span>

namespace kvstore::gpu {

struct KernelImage {
  std::span<const uint8_t> bytes;
  const char* absent = "";  // why it is empty
};

KernelImage kernel_image();

}  // namespace kvstore::gpu
