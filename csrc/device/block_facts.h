// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What sysfs tells of a block device. The root of sysfs is a parameter, so that NVMe, fabrics and multipath
// trees are tested without the hardware. Everything is optional: an absent file leaves the default.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"

namespace kvstore::device {

struct BlockFacts {
  bool volatile_cache = true;             // false only where sysfs says "write through"
  uint32_t dma_alignment_bytes = 0;       // 0 = unknown
  uint64_t max_transfer_bytes = 0;        // 0 = unknown
  bool is_fabric = false;                 // also through device mapper, md and NVMe multipath
  DeviceIdentity identity;                // of the whole disk, also for a partition
  std::string loop_backing_file;          // of a loop device
  std::vector<dev_t> related_devices;     // the device, its partitions, and the disk it is a partition of
  std::vector<std::string> holder_names;  // dm and md devices built on it
};

BlockFacts read_block_facts(const std::string& sysfs_root, dev_t device);

// First line of a small text file without surrounding blanks; empty when it cannot be read.
std::string read_line(const std::string& path);

}  // namespace kvstore::device
