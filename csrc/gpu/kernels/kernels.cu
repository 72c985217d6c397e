// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernels as the driver finds them by name. One file, so that one fatbin holds all that is embedded.

#define KVS_UNROLL _Pragma("unroll")
#define KVS_NO_UNROLL _Pragma("unroll 1")

#include "gpu/kernels/arguments.h"
#include "gpu/kernels/move_kernel.h"
#include "gpu/kernels/page_kernel.h"

extern "C" __global__ void __launch_bounds__(kvstore::gpu::kMoveThreads)
    kvstore_scatter_extent(const __grid_constant__ kvstore::gpu::MoveArguments arguments) {
  kvstore::gpu::move_units<true>(arguments);
}

extern "C" __global__ void __launch_bounds__(kvstore::gpu::kMoveThreads)
    kvstore_gather_extent(const __grid_constant__ kvstore::gpu::MoveArguments arguments) {
  kvstore::gpu::move_units<false>(arguments);
}

extern "C" __global__ void __launch_bounds__(kvstore::gpu::kPageThreadsMax)
    kvstore_page_nodes(const __grid_constant__ kvstore::gpu::PageNodesArguments arguments) {
  kvstore::gpu::hash_pages(arguments);
}
