// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What the kernels compute, on the CPU, from the arguments of their launches. Written as loops over planes, cache
// blocks and runs, to be read beside the kernels and to be compared with them; the page nodes are the store's own
// (base/checksum.h). A stand-in for the driver runs these where there is no GPU.

#pragma once

#include <cstdint>
#include <functional>

#include "base/status.h"
#include "gpu/kernels/arguments.h"
#include "gpu/move_plan.h"

namespace kvstore::gpu {

// Where the bytes of a device address can be read and written; null where there are none.
using AddressMap = std::function<uint8_t*(uint64_t address, uint64_t bytes)>;

// Of device addresses that are host addresses.
uint8_t* same_address(uint64_t address, uint64_t bytes);

// Stop with kInvalid at the first address that the map does not know.
Status reference_move(const MoveArguments& arguments, Direction direction, const AddressMap& map);
Status reference_page_nodes(const PageNodesArguments& arguments, const AddressMap& map);

}  // namespace kvstore::gpu
