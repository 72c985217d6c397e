// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What a device holds that is not ours, told by the magic numbers in its first and last 1 MiB: the last line before
// something valuable is overwritten, also where no blkid is installed. Knows the partition tables, volume
// managers and file systems that are found on NVMe namespaces; not every format that ever was.

#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "device/blocking_io.h"

namespace kvstore::store {

inline constexpr uint64_t kSignatureWindowBytes = kMiB;

// `head` and `tail` are the first and last bytes of `device_bytes`; either may be short. Never trusts a byte.
// "ext2/3/4 file system", "GPT partition table", ...; empty: nothing known.
std::string find_signature(std::span<const uint8_t> head, std::span<const uint8_t> tail, uint64_t device_bytes);

// Reads both windows and looks.
Result<std::string> read_signature(device::BlockingIo& io, uint16_t device_index, uint64_t device_bytes);

}  // namespace kvstore::store
