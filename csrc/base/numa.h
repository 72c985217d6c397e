// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// On which NUMA node memory is, and moving it to another. By system calls, without libnuma. Where the kernel or a
// container's filter refuses them, that is a value with the reason: memory stays where it is, slower and never wrong.

#pragma once

#include <cstdint>

#include "base/status.h"

namespace kvstore {

// -1: not known.
int numa_node_of_memory(const void* base);

// Moves the pages that are there and lets those to come be of that node, where it has room. Pages that are pinned, by
// io_uring or CUDA, stay where they are, and the kernel does not say so: ask where they are.
Status move_to_numa_node(void* base, uint64_t bytes, int node);

}  // namespace kvstore
