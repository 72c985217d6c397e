// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// format_pool: turns raw devices or files into the members of one pool.
//
// Guarantees: refuses what holds anything (partition table, file system, another store; see probe_foreign)
// unless `force`; zeroes every superblock copy first, of an older geometry too, and flushes, so that a crash
// midway leaves no store rather than half of two; writes nothing before every device passed every check.

#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "device/device.h"
#include "format/superblock.h"

namespace kvstore::store {

struct FormatOptions {
  uint64_t region_bytes = 0;  // 0: chosen from block_bytes and the device size, see format/geometry.h
  uint64_t block_bytes = 0;   // of the layout the user tells of; 0: unknown
  uint64_t min_block_bytes = format::kDefaultMinBlockBytes;
  uint64_t file_bytes = 0;  // create (or grow) a regular file of this size, sparse
  bool force = false;
  std::string device_kind = "auto";
};

struct FormatPlan {  // what would be done; printed by the command line before it is
  std::string path;
  format::Geometry geometry;
  std::string found;  // "" or what is there: "ext4 file system", "kvstore store <uuid>, formatted <date>"
};

// What is on the device that is not ours: by blkid where it is installed, and by signature (GPT, MBR, ext, xfs, btrfs,
// LVM, md, swap, zfs, LUKS, ...). Empty: nothing, or a kvstore store.
Result<std::string> probe_foreign(device::Device& device);

// Opens each path as its only owner (kBusy: held, mounted) and writes nothing. A path that does not exist is planned
// when file_bytes says how large to make it (kNotFound else).
Result<std::vector<FormatPlan>> plan_format(const std::vector<std::string>& paths, const FormatOptions& options,
                                            Clock& clock);

// Errors, each with the path and the mend: kForeign (holds something that is not ours), kOtherStore (holds a store,
// whose uuid and date it names), kBusy, kInvalid (sizes), kNotFound, kIo. With `force` the first two do not stop it.
Result<std::vector<format::Superblock>> format_pool(const std::vector<std::string>& paths, const FormatOptions& options,
                                                    Clock& clock, Random& random);

// The same on devices that are already open (simulated ones). Devices in order become members in order.
Result<std::vector<format::Superblock>> format_devices(const std::vector<device::Device*>& devices,
                                                       const FormatOptions& options, Clock& clock, Random& random);

}  // namespace kvstore::store
