// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "binding/pool.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "binding/engine_bridge.h"
#include "binding/gil.h"
#include "binding/python_reader.h"
#include "device/blocking_io.h"
#include "device/fork_guard.h"
#include "store/superblock_io.h"

namespace kvstore::binding {
namespace {

store::Verify parse_verify(nb::handle value) {
  const std::string word = parse_text(value, {"verify"});
  if (word == "always") return store::Verify::kAlways;
  if (word == "first_read") return store::Verify::kFirstRead;
  if (word == "off") return store::Verify::kOff;
  raise_invalid("verify is '" + word + "', allowed are 'always', 'first_read' and 'off'");
}

const char* verify_word(store::Verify verify) {
  switch (verify) {
    case store::Verify::kAlways: return "always";
    case store::Verify::kFirstRead: return "first_read";
    case store::Verify::kOff: return "off";
  }
  return "always";
}

store::ReclaimOrder parse_reclaim_order(nb::handle value) {
  const std::string word = parse_text(value, {"reclaim_order"});
  if (word == "lru") return store::ReclaimOrder::kLeastRecentlyUsed;
  if (word == "fifo") return store::ReclaimOrder::kFirstFilled;
  raise_invalid("reclaim_order is '" + word + "', allowed are 'lru' and 'fifo'");
}

const char* reclaim_order_word(store::ReclaimOrder order) {
  switch (order) {
    case store::ReclaimOrder::kLeastRecentlyUsed: return "lru";
    case store::ReclaimOrder::kFirstFilled: return "fifo";
  }
  return "lru";
}

gpu::GpuDirect parse_gpu_direct(nb::handle value) {
  const std::string word = parse_text(value, {"gpu_direct"});
  if (word == "off") return gpu::GpuDirect::kOff;
  if (word == "auto") return gpu::GpuDirect::kAuto;
  if (word == "on") return gpu::GpuDirect::kOn;
  raise_invalid("gpu_direct is '" + word + "', allowed are 'off', 'auto' and 'on'");
}

// The kernel refuses: no such feature, or the memory lock limit. The memory is used all the same, unregistered.
bool only_unregistered(const Status& status) {
  return status.code() == Code::kUnsupported || status.io_errno() == ENOMEM;
}

uint32_t parse_u32(nb::handle value, const char* name) {
  return static_cast<uint32_t>(parse_u64(value, {name}, UINT32_MAX));
}

// Sets the option of that name; false when there is none.
bool set_option(store::StoreOptions& options, const std::string& name, nb::handle value) {
  const char* const n = name.c_str();
  if (name == "device_kind") {
    options.device_kind = parse_text(value, {n});
    if (options.device_kind != "auto" && options.device_kind != "uring" && options.device_kind != "threads") {
      raise_invalid("device_kind is '" + options.device_kind + "', allowed are 'auto', 'uring' and 'threads'");
    }
  } else if (name == "read_only") {
    options.read_only = nb::cast<bool>(value);
  } else if (name == "verify") {
    options.verify = parse_verify(value);
  } else if (name == "wait_s") {
    options.wait_ns = parse_duration_ns(value, n, 1e9, 0);
  } else if (name == "window_bytes") {
    options.window_bytes = parse_u64(value, {n});
  } else if (name == "engine_threads") {
    options.engine_threads = parse_u32(value, n);
  } else if (name == "staging_bytes") {
    options.staging_bytes = parse_u64(value, {n});
  } else if (name == "prefetch_bytes") {
    options.prefetch_bytes = parse_u64(value, {n});
  } else if (name == "index_blocks_max") {
    options.index_blocks_max = parse_u64(value, {n});
  } else if (name == "jobs_max") {
    options.jobs_max = parse_u32(value, n);
  } else if (name == "pins_max") {
    options.pins_max = parse_u32(value, n);
  } else if (name == "pin_lease_s") {
    options.pin_lease_ns = parse_duration_ns(value, n, 1e9, 0);
  } else if (name == "commit_interval_ms") {
    options.commit_interval_ns = parse_duration_ns(value, n, 1e6, 0);
  } else if (name == "io_timeout_s") {
    options.io_timeout_ns = parse_duration_ns(value, n, 1e9, 0);
  } else if (name == "quarantine_s") {
    options.quarantine_ns = parse_duration_ns(value, n, 1e9, 0);
  } else if (name == "heartbeat_s") {
    options.heartbeat_ns = parse_duration_ns(value, n, 1e9, 0);
  } else if (name == "failures_max") {
    options.failures_max = parse_u32(value, n);
  } else if (name == "free_regions_target") {
    options.free_regions_target = parse_u32(value, n);
  } else if (name == "reclaim_order") {
    options.reclaim_order = parse_reclaim_order(value);
  } else if (name == "becomes_shared") {
    options.becomes_shared = nb::cast<bool>(value);
  } else if (name == "deleted_before") {
    for (const auto& [place, slots] : nb::cast<std::vector<std::pair<std::string, std::string>>>(value)) {
      const auto region = cluster::parse_region_key(place, "");
      auto dead = cluster::decode_dead_slots(slots);
      if (region && dead) options.deleted_before.emplace_back(*region, std::move(*dead));
    }
  } else if (name == "lease_s") {
    options.shared.lease_ns = parse_duration_ns(value, n, 1e9, 0);
  } else if (name == "orphan_quarantine_s") {
    options.shared.orphan_quarantine_ns = parse_duration_ns(value, n, 1e9, 0);
  } else if (name == "refresh_interval_ms") {
    options.shared.refresh_interval_ns = parse_duration_ns(value, n, 1e6, 0);
  } else if (name == "refresh_reads_per_s") {
    options.shared.refresh_reads_per_s = parse_u32(value, n);
  } else {
    return false;
  }
  return true;
}

nb::dict default_options() {
  const store::StoreOptions options;
  nb::dict dict;
  dict["device_kind"] = options.device_kind;
  dict["read_only"] = options.read_only;
  dict["verify"] = verify_word(options.verify);
  dict["window_bytes"] = options.window_bytes;
  dict["engine_threads"] = options.engine_threads;
  dict["staging_bytes"] = options.staging_bytes;
  dict["prefetch_bytes"] = options.prefetch_bytes;
  dict["index_blocks_max"] = options.index_blocks_max;
  dict["jobs_max"] = options.jobs_max;
  dict["pins_max"] = options.pins_max;
  dict["reclaim_order"] = reclaim_order_word(options.reclaim_order);
  dict["free_regions_target"] = options.free_regions_target;
  dict["gpu_direct"] = "off";
  return dict;
}

nb::dict stats(const PoolHandle& pool) {
  const std::shared_ptr<store::Store> store = pool.store();
  const auto numbers = without_gil([&] { return store->numbers(); });
  nb::dict dict;
  for (const auto& [name, value] : numbers) {
    const bool whole = std::floor(value) == value && std::fabs(value) < 9e15;
    dict[name.c_str()] = whole ? nb::object(nb::int_(static_cast<int64_t>(value))) : nb::object(nb::float_(value));
  }
  for (const auto& [name, value] : store->texts()) dict[name.c_str()] = value;
  dict["gpu_direct"] = pool.direct_path() ? pool.direct_path()->state() : "off";
  return dict;
}

nb::list devices(const PoolHandle& pool) {
  nb::list list;
  for (const device::DeviceInfo& info : pool.store()->devices()) {
    nb::dict dict;
    dict["path"] = info.path;
    dict["kind"] = info.kind;
    dict["size_bytes"] = info.size_bytes;
    dict["logical_block_bytes"] = info.logical_block_bytes;
    dict["dma_alignment_bytes"] = info.dma_alignment_bytes;
    dict["max_transfer_bytes"] = info.max_transfer_bytes;
    dict["is_regular_file"] = info.is_regular_file;
    dict["volatile_cache"] = info.volatile_cache;
    dict["is_fabric"] = info.is_fabric;
    dict["nguid"] = info.identity.nguid;
    dict["eui64"] = info.identity.eui64;
    dict["serial"] = info.identity.serial;
    list.append(dict);
  }
  return list;
}

// Of a pool that somebody may have open.
nb::dict read_superblock(const std::string& path) {
  auto read = without_gil([&]() -> Result<format::Superblock> {
    KVS_ASSIGN(auto device, device::open_device(path, {.kind = "threads", .read_only = true}, system_clock()));
    device::Device* const one = device.get();
    KVS_ASSIGN(auto queue, one->make_queue({&one, 1}, {.depth = 4, .single_issuer = false}));
    device::BlockingIo io(std::move(queue), {one}, store::StoreOptions().io_timeout_ns);
    KVS_ASSIGN(const format::Quorum quorum, store::read_superblock(io, 0, one->info().size_bytes));
    return quorum.superblock;
  });
  return superblock_dict(unwrap(std::move(read)));
}

nb::list superblocks(const PoolHandle& pool) {
  nb::list list;
  for (const format::Superblock& superblock : pool.store()->superblocks()) list.append(superblock_dict(superblock));
  return list;
}

}  // namespace

store::StoreOptions parse_store_options(nb::dict given) {
  store::StoreOptions options;
  for (auto [key, value] : given) {
    if (value.is_none()) continue;  // None: the default
    const std::string name = parse_text(key, {"name of an option"});
    if (!set_option(options, name, value)) raise_type_error("open() has no option " + name);
  }
  return options;
}

std::shared_ptr<gpu::DirectPath> take_direct_path(nb::dict given) {
  const auto take = [&](const char* name) {
    nb::object word = nb::none();
    if (given.contains(name)) {
      word = given[name];
      nb::del(given[name]);
    }
    return word;
  };
  const nb::object mode_given = take("gpu_direct");
  const nb::object engine_given = take("gpu_engine");
  const auto mode = mode_given.is_none() ? gpu::GpuDirect::kOff : parse_gpu_direct(mode_given);
  const std::string engine = engine_given.is_none() ? "cufile" : parse_text(engine_given, {"gpu_engine"});
  if (engine != "cufile" && engine != "kvikio") {
    raise_invalid("gpu_engine is '" + engine + "', allowed are 'cufile' and 'kvikio'");
  }
  if (mode == gpu::GpuDirect::kOff) return nullptr;
  gpu::DirectOptions options;
  if (engine == "kvikio") {
    options.make_device = python_reader(nb::module_::import_("kvstore._kvikio").attr("KvikioReader")());
  }
  return std::make_shared<gpu::DirectPath>(mode, options);
}

// ---- PoolHandle ----

PoolHandle::PoolHandle(std::shared_ptr<store::Store> store, std::unique_ptr<cluster::MetadataEngine> engine,
                       std::shared_ptr<gpu::DirectPath> direct_path)
    : engine_(std::move(engine)),
      store_(std::move(store)),
      direct_path_(std::move(direct_path)),
      fork_generation_(device::fork_generation()) {}

std::shared_ptr<PoolHandle> PoolHandle::open(const std::vector<std::string>& paths, nb::dict given) {
  std::unique_ptr<cluster::MetadataEngine> engine;
  if (given.contains("engine")) {
    nb::object python_engine = given["engine"];
    nb::del(given["engine"]);
    if (!python_engine.is_none()) engine = bridge_engine(std::move(python_engine));
  }
  auto direct_path = take_direct_path(given);
  store::StoreOptions options = parse_store_options(given);
  options.shared.engine = engine.get();
  auto opened = without_gil([&] { return store::Store::open(paths, options); });
  return std::make_shared<PoolHandle>(unwrap(std::move(opened)), std::move(engine), std::move(direct_path));
}

PoolHandle::~PoolHandle() {
  if (store_ == nullptr) return;
  if (fork_generation_ != device::fork_generation()) {
    leak_value(store_);
    leak_value(direct_path_);
    (void)engine_.release();
    for (auto& [base, buffers] : registered_) buffers->leak();
    in_flight_.abandon();
    return;
  }
  // Dropped without close(), which the registry of open pools prevents until the interpreter exits.
  std::shared_ptr<store::Store> store = std::move(store_);
  const Status closed = without_gil([&] { return store->close(0); });
  in_flight_.sweep_all();
  if (!closed.ok()) {
    leak_value(store);
    leak_value(direct_path_);
    (void)engine_.release();
    for (auto& [base, buffers] : registered_) buffers->leak();
    in_flight_.abandon();
  } else if (direct_path_) {
    without_gil([&] { direct_path_->close(); });
  }
}

std::shared_ptr<store::Store> PoolHandle::store() const {
  refuse_forked_child(fork_generation_, "this pool");
  if (store_ == nullptr) throw StatusError(Status(Code::kClosed, "the pool is closed"));
  return store_;
}

void PoolHandle::close(uint64_t timeout_ns) {
  refuse_forked_child(fork_generation_, "this pool");
  if (store_ == nullptr) return;
  std::shared_ptr<store::Store> store = std::move(store_);
  const Status closed = without_gil([&] { return store->close(timeout_ns); });
  in_flight_.sweep_all();
  if (closed.code() == Code::kTimeout || in_flight_.size() != 0) {
    leak_value(store);
    leak_value(direct_path_);
    for (auto& [base, buffers] : registered_) buffers->leak();
    in_flight_.abandon();
  } else if (direct_path_) {
    without_gil([&] { direct_path_->close(); });
  }
  registered_.clear();
  without_gil([&] { store.reset(); });
  check(closed);
}

void PoolHandle::flush(uint64_t timeout_ns) {
  const std::shared_ptr<store::Store> store = this->store();
  wait_interruptibly([&](const store::Interrupted& interrupted) { return store->flush(timeout_ns, interrupted); });
}

void PoolHandle::refresh(uint64_t timeout_ns) {
  const std::shared_ptr<store::Store> store = this->store();
  wait_interruptibly([&](const store::Interrupted& interrupted) { return store->refresh(timeout_ns, interrupted); });
}

void PoolHandle::wait_interruptibly(const std::function<Status(const store::Interrupted&)>& wait) {
  bool raised = false;
  store::Interrupted interrupted;
  if (on_main_thread()) {
    interrupted = [&raised] {
      // False: the interpreter ends, and nobody waits for anything any more.
      return raised || !with_gil([&raised] { raised = PyErr_CheckSignals() != 0; }) || raised;
    };
  }
  Status waited = without_gil([&] { return wait(interrupted); });
  if (raised) throw nb::python_error();
  check(std::move(waited));
}

std::shared_ptr<JobHandle> PoolHandle::keep(store::JobRef job, std::shared_ptr<store::Store> store,
                                            std::unique_ptr<Buffers> buffers) {
  std::shared_ptr<JobHandle> handle = JobHandle::of(std::move(job));
  handle->hold(std::move(store), std::move(buffers));
  in_flight_.add(handle);
  return handle;
}

Status PoolHandle::register_buffer(nb::object buffer) {
  const std::shared_ptr<store::Store> store = this->store();
  auto held = std::make_unique<Buffers>(std::nullopt, direct_path_);
  const Buffers::Block block = held->add(buffer, Access::kWrite, {"buffer"});
  if (block.count != 1) raise_invalid("buffer has " + number_text(block.count) + " segments: register them one by one");
  const iovec memory = *held->segments(block);
  if (registered_.contains(memory.iov_base)) {
    raise_invalid("buffer is registered already");
  }
  const bool is_on_gpu = block.memory_place >= 0;
  Status status = is_on_gpu ? held->register_device_memory(*store)
                            : without_gil([&] { return store->register_memory(memory.iov_base, memory.iov_len); });
  if (!status.ok() && !only_unregistered(status)) throw StatusError(std::move(status));
  registered_[memory.iov_base] = std::move(held);
  return status;
}

void PoolHandle::unregister_buffer(nb::object buffer) {
  const std::shared_ptr<store::Store> store = this->store();
  Buffers view;
  const Buffers::Block block = view.add(buffer, Access::kWrite, {"buffer"});
  void* const base = view.segments(block)->iov_base;
  const auto found = registered_.find(base);
  if (found == registered_.end()) raise_invalid("buffer is not registered");
  if (block.memory_place >= 0) {
    found->second->unregister_device_memory();
  } else {
    Status status = without_gil([&] { return store->unregister_memory(base); });
    if (!only_unregistered(status)) check(std::move(status));
  }
  const std::unique_ptr<Buffers> held = std::move(found->second);
  registered_.erase(found);
}

// ---- Python ----

void bind_pool(nb::module_& module) {
  nb::class_<PoolHandle> pool(module, "PoolHandle", nb::is_final());
  pool.def_static("open", &PoolHandle::open, nb::arg("paths"), nb::arg("options"))
      .def_static("default_options", default_options)
      .def_prop_ro("is_open", &PoolHandle::is_open)
      .def_prop_ro("jobs_held", [](PoolHandle& self) { return self.in_flight().size(); })
      .def(
          "close",
          [](PoolHandle& self, nb::object timeout_s) {
            self.close(parse_duration_ns(timeout_s, "timeout_s", 1e9, UINT64_MAX));
          },
          nb::arg("timeout_s").none())
      .def(
          "flush",
          [](PoolHandle& self, nb::object timeout_s) {
            self.flush(parse_duration_ns(timeout_s, "timeout_s", 1e9, UINT64_MAX));
          },
          nb::arg("timeout_s").none())
      .def(
          "refresh",
          [](PoolHandle& self, nb::object timeout_s) {
            self.refresh(parse_duration_ns(timeout_s, "timeout_s", 1e9, UINT64_MAX));
          },
          nb::arg("timeout_s").none())
      .def(
          "register_space",
          [](PoolHandle& self, std::string_view json) { return unwrap(self.store()->register_space(json)).value; },
          nb::arg("canonical_json"))
      .def("stats", stats)
      .def("devices", devices)
      .def("superblocks", superblocks);
  module.def("read_superblock", read_superblock, nb::arg("path"));
  bind_batches(pool);
  bind_index(pool);
  bind_memory(module, pool);
  bind_listing(module, pool);
  bind_format(module);
  bind_simulated(module);
  bind_cluster(module);
  bind_direct(module);
}

}  // namespace kvstore::binding
