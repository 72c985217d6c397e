// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Where in the machine a GPU is: the NUMA node of its PCI device, from which pinned memory is reached without crossing
// between processors.

#pragma once

#include <string>

#include "gpu/cuda_driver.h"

namespace kvstore::gpu {

// -1: the driver or sysfs does not say, or the machine has one node. `sysfs_root` is a parameter for tests.
int numa_node_of_gpu(const CudaDriver& driver, int device, const std::string& sysfs_root = "/sys");

}  // namespace kvstore::gpu
