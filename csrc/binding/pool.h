// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// PoolHandle: one open Store as Python holds it, with the buffers of its jobs in flight.
//
// Guarantees: the Store lives while any call, feed or allocated buffer needs it, also after close(). A close that
// leaves pieces outstanding, and any end in a forked child, leaks Store and buffers on purpose (I11). Every member
// needs the GIL; those that block give it up inside.

#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "binding/job.h"
#include "gpu/direct_path.h"
#include "store/format_device.h"
#include "store/store.h"

namespace kvstore::binding {

class PoolHandle {
 public:
  static std::shared_ptr<PoolHandle> open(const std::vector<std::string>& paths, nb::dict options);
  explicit PoolHandle(std::shared_ptr<store::Store> store, std::unique_ptr<cluster::MetadataEngine> engine = nullptr,
                      std::shared_ptr<gpu::DirectPath> direct_path = nullptr);
  PoolHandle(const PoolHandle&) = delete;
  PoolHandle& operator=(const PoolHandle&) = delete;
  ~PoolHandle();

  // Throws when closed or in a forked child. Keep the result while using it: another thread may close.
  std::shared_ptr<store::Store> store() const;
  bool is_open() const { return store_ != nullptr; }

  void close(uint64_t timeout_ns);
  void flush(uint64_t timeout_ns);
  void refresh(uint64_t timeout_ns);

  // Takes a submitted job into the table.
  std::shared_ptr<JobHandle> keep(store::JobRef job, std::shared_ptr<store::Store> store,
                                  std::unique_ptr<Buffers> buffers);
  InFlight& in_flight() { return in_flight_; }
  // How its blocks get into GPU memory; null: through host memory.
  const std::shared_ptr<gpu::DirectPath>& direct_path() const { return direct_path_; }

  // Ok, or kUnsupported with the reason why the memory is used unregistered.
  Status register_buffer(nb::object buffer);
  void unregister_buffer(nb::object buffer);

 private:
  // On the main thread its signal handlers run meanwhile; what they raise ends the wait.
  void wait_interruptibly(const std::function<Status(const store::Interrupted&)>& wait);

  std::unique_ptr<cluster::MetadataEngine> engine_;  // shared mode: outlives the store
  std::shared_ptr<store::Store> store_;
  std::shared_ptr<gpu::DirectPath> direct_path_;
  InFlight in_flight_;
  std::map<void*, std::unique_ptr<Buffers>> registered_;
  uint64_t fork_generation_;
};

void bind_pool(nb::module_& module);
void bind_batches(nb::class_<PoolHandle>& pool);
void bind_index(nb::class_<PoolHandle>& pool);
void bind_memory(nb::module_& module, nb::class_<PoolHandle>& pool);
void bind_listing(nb::module_& module, nb::class_<PoolHandle>& pool);
void bind_format(nb::module_& module);
void bind_simulated(nb::module_& module);
void bind_cluster(nb::module_& module);
void bind_gpu(nb::module_& module);
void bind_direct(nb::module_& module);

store::StoreOptions parse_store_options(nb::dict given);
// Takes gpu_direct and gpu_engine out of the options of a pool, of which the store knows nothing. Null: off.
std::shared_ptr<gpu::DirectPath> take_direct_path(nb::dict given);
store::FormatOptions parse_format_options(nb::dict given);

nb::dict superblock_dict(const format::Superblock& superblock);
nb::dict geometry_dict(const format::Geometry& geometry);

}  // namespace kvstore::binding
