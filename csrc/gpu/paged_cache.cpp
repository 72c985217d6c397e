// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/paged_cache.h"

#include <string>
#include <utility>

#include "gpu/bounce.h"
#include "gpu/device_memory.h"

namespace kvstore::gpu {
namespace {

// The number of the GPU that has both ends of a run; one that ends beyond its allocation is nobody's, or another's.
Result<int> device_of_run(const std::string& what, uint64_t address, uint64_t bytes) {
  int found = -1;
  for (const uint64_t end : {address, address + bytes - 1}) {
    const Result<int> device = device_of_pointer(end);
    if (!device.ok()) return Status(Code::kInvalid, what + ": " + device.status().message());
    if (device.value() < 0) return Status(Code::kInvalid, what + " is memory of the host, not of a GPU");
    if (end != address && device.value() != found) {
      return Status(Code::kInvalid,
                    format_text("%s begins on GPU %d and ends on GPU %d", what.c_str(), found, device.value()));
    }
    found = device.value();
  }
  return found;
}

}  // namespace

Result<std::unique_ptr<PagedCache>> PagedCache::make(PagedLayout layout) {
  KVS_TRY(layout.validate());
  int device = -1;
  for (size_t i = 0; i < layout.planes.size(); ++i) {
    const std::string what =
        format_text("layer %zu, kv %zu of the paged cache", i / layout.kv_count, i % layout.kv_count);
    KVS_ASSIGN(const int found, device_of_run(what, layout.planes[i], layout.plane_span_bytes()));
    if (device >= 0 && found != device) {
      return Status(Code::kInvalid,
                    format_text("%s is on GPU %d, those before it on GPU %d", what.c_str(), found, device));
    }
    device = found;
  }
  KVS_ASSIGN(Bounce* const gpu, Bounce::of(device));
  cu::Device handle = 0;
  KVS_TRY(gpu->driver().check(gpu->driver().device_get(&handle, device), "cuDeviceGet", "the paged cache's GPU"));
  KVS_ASSIGN(const KernelLauncher* const launcher, launcher_of(gpu->driver(), gpu->context(), handle));
  return std::unique_ptr<PagedCache>(
      new PagedCache(std::move(layout), device, gpu->context(), gpu->driver(), launcher));
}

MoveWay PagedCache::way(uint64_t stream) const {
  return launcher_->way_of(layout_, reinterpret_cast<cu::Stream>(stream));
}

Status PagedCache::move(Direction direction, std::span<const ExtentMove> extents, LayerRange layers,
                        uint64_t stream) const {
  MovePlan plan;
  KVS_TRY(make_plan(layout_, direction, extents, layers, plan));
  for (size_t i = 0; i < extents.size(); ++i) {
    const std::string what = format_text("extent %zu of the transfer", i);
    KVS_ASSIGN(const int found, device_of_run(what, extents[i].extent.address, extents[i].extent.bytes));
    if (found == device_) continue;
    return Status(Code::kInvalid,
                  format_text("%s is on GPU %d, the paged cache on GPU %d", what.c_str(), found, device_));
  }
  const ContextScope scope(driver_, context_);
  KVS_TRY(scope.status());
  return launcher_->move(layout_, direction, plan, reinterpret_cast<cu::Stream>(stream));
}

}  // namespace kvstore::gpu
