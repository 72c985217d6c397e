// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/gpu_place.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "device/block_facts.h"

namespace kvstore::gpu {

int numa_node_of_gpu(const CudaDriver& driver, int device, const std::string& sysfs_root) {
  char bus_id[32] = {};
  cu::Device handle = 0;
  if (driver.device_bus_id == nullptr || driver.device_get(&handle, device) != cu::kSuccess ||
      driver.device_bus_id(bus_id, sizeof(bus_id), handle) != cu::kSuccess) {
    return -1;
  }
  std::string name = bus_id;  // 0000:3B:00.0, which sysfs has in lower case
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char one) { return std::tolower(one); });
  const std::string node = device::read_line(sysfs_root + "/bus/pci/devices/" + name + "/numa_node");
  return node.empty() ? -1 : std::atoi(node.c_str());
}

}  // namespace kvstore::gpu
