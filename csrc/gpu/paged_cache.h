// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// PagedCache: an engine's paged KV cache in the memory of one GPU, with the transfers between it and extents there.
//
// Guarantees: every byte that a transfer touches is memory of that GPU as far as CUDA can tell (the first and the last
// byte of each plane and of each extent), and every cache block is within the cache: a kernel that meets a bad address
// would take the whole process's CUDA with it. A transfer is in the order of its stream. Thread-safe.

#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "gpu/kernel_launch.h"
#include "gpu/paged_layout.h"

namespace kvstore::gpu {

class PagedCache {
 public:
  // kInvalid: a layout that does not validate, or planes that are not memory of one GPU.
  static Result<std::unique_ptr<PagedCache>> make(PagedLayout layout);

  int device() const { return device_; }
  const PagedLayout& layout() const { return layout_; }
  MoveWay way(uint64_t stream) const;
  // Why there are no kernels, or empty.
  const std::string& kernels_missing() const { return launcher_->kernels_missing(); }

  // Begins to move the extents on `stream`, a CUstream of this GPU. Of an error, what was begun before it is still on
  // the stream: wait for that before the memory is used again.
  Status move(Direction direction, std::span<const ExtentMove> extents, LayerRange layers, uint64_t stream) const;

 private:
  PagedCache(PagedLayout layout, int device, cu::Context context, const CudaDriver& driver,
             const KernelLauncher* launcher)
      : layout_(std::move(layout)), device_(device), context_(context), driver_(driver), launcher_(launcher) {}

  const PagedLayout layout_;
  const int device_;
  cu::Context const context_;
  const CudaDriver& driver_;
  const KernelLauncher* const launcher_;
};

}  // namespace kvstore::gpu
