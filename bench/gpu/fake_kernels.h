// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Lets the fake driver of tests/fakes run the CPU references in place of the kernels, so that what is written for a
// real GPU can be run, and shown to be right, without one. On a real driver it does nothing.

#pragma once

#include <dlfcn.h>

#include "../../tests/fakes/fake_cuda.h"
#include "gpu/cuda_driver.h"
#include "gpu/reference.h"

namespace kvstore::gpu {

inline FakeCudaView fake_view = nullptr;  // what reaches the bytes of the fake's memory

inline uint8_t* fake_bytes(uint64_t address, uint64_t /*bytes*/) {
  void* const view = fake_view(address);
  return view == nullptr ? reinterpret_cast<uint8_t*>(address) : static_cast<uint8_t*>(view);
}

template <Direction kDirection>
void run_reference_move(void** arguments, const unsigned*, const unsigned*) {
  (void)reference_move(*static_cast<const MoveArguments*>(arguments[0]), kDirection, fake_bytes);
}

inline void run_reference_page_nodes(void** arguments, const unsigned*, const unsigned*) {
  (void)reference_page_nodes(*static_cast<const PageNodesArguments*>(arguments[0]), fake_bytes);
}

// True: the driver is the fake one.
inline bool lend_reference_kernels(const CudaDriver& driver) {
  void* const library = dlopen(driver.library().c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  const auto add = reinterpret_cast<FakeCudaAddKernel>(dlsym(library, "fake_cuda_add_kernel"));
  if (add == nullptr) return false;
  fake_view = reinterpret_cast<FakeCudaView>(dlsym(library, "fake_cuda_view"));
  constexpr size_t kMoveBytes = sizeof(MoveArguments), kPageBytesOfArguments = sizeof(PageNodesArguments);
  add("kvstore_scatter_extent", run_reference_move<Direction::kScatter>, &kMoveBytes, 1);
  add("kvstore_gather_extent", run_reference_move<Direction::kGather>, &kMoveBytes, 1);
  add("kvstore_page_nodes", run_reference_page_nodes, &kPageBytesOfArguments, 1);
  return true;
}

}  // namespace kvstore::gpu
