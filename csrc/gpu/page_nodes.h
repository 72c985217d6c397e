// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The payload checksum of bytes in device memory (base/checksum.h): a kernel makes the page nodes, 8 bytes for 4 KiB,
// and the CPU the two levels above them, by the store's own code. So a block that was read straight into device memory
// is verified like any other (I5), for a 512th of its bytes over PCIe.

#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/checksum.h"
#include "base/status.h"
#include "gpu/kernels/arguments.h"
#include "gpu/paged_layout.h"

namespace kvstore::gpu {

struct PayloadRun {
  DeviceSpan payload;          // contiguous, aligned to 16 bytes
  uint64_t nodes_address = 0;  // room for a node a page, aligned to 8; mapped pinned host memory saves a copy
};

// The launches that hash all runs. Stops at the first that is not ok; kInvalid names a run that is not as above.
Status for_each_page_launch(std::span<const PayloadRun> runs,
                            const std::function<Status(const PageNodesArguments&)>& launch);

// The root over a block's page nodes, as block_checksum() gives it for its bytes.
Checksum128 root_of_page_nodes(const BlockIdentity& identity, uint64_t payload_bytes, std::span<const uint64_t> nodes);

}  // namespace kvstore::gpu
