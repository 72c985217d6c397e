// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Metadata engines of the core for Python tests: the one in memory, with the faults of the C++ simulation, and the
// bridge to one in Python, called as the store's threads call it.

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <optional>
#include <thread>

#include "binding/engine_bridge.h"
#include "binding/errors.h"
#include "binding/gil.h"
#include "binding/pool.h"
#include "cluster/memory_engine.h"

namespace kvstore::binding {

namespace {

using cluster::MemoryCluster;

// Calls of a bridged engine are made on a thread that is not Python's, while the caller waits without the GIL.
struct CoreEngine {
  std::unique_ptr<Random> random;  // of the faults
  std::unique_ptr<cluster::MetadataEngine> engine;
  bool bridged = false;
};

struct CoreWatch {
  std::shared_ptr<cluster::Watch> watch;  // null: closed
  bool bridged = false;
};

template <typename F>
auto on_own_thread(F&& f) {
  return without_gil([&] {
    std::optional<decltype(f())> result;
    // Like a thread of the store it is never unwound.
    std::thread([&]() noexcept { result.emplace(f()); }).join();
    return *std::move(result);
  });
}

// The one in memory is quick, and its random numbers are guarded by the GIL.
template <typename F>
auto run(const CoreEngine& self, F&& f) {
  return self.bridged ? on_own_thread(f) : f();
}

std::unique_ptr<CoreEngine> memory_engine(std::shared_ptr<MemoryCluster> cluster, uint64_t seed, double request_lost,
                                          double reply_lost) {
  const cluster::MemoryFaults faults{
      .request_lost = request_lost, .reply_lost = reply_lost, .slow = 0, .slow_ns_max = 0};
  auto self = std::make_unique<CoreEngine>();
  self->random = std::make_unique<SeededRandom>(seed);
  self->engine = std::make_unique<cluster::MemoryEngine>(std::move(cluster), system_clock(), *self->random, faults);
  return self;
}

std::unique_ptr<CoreEngine> bridged_engine(nb::object engine) {
  auto self = std::make_unique<CoreEngine>();
  self->engine = bridge_engine(std::move(engine));
  self->bridged = true;
  return self;
}

nb::tuple item_tuple(const cluster::KeyValue& item) {
  return nb::make_tuple(item.key, nb::bytes(item.value.data(), item.value.size()), item.modified, item.lease);
}

std::string text_of(nb::handle given) {
  const auto value = nb::cast<nb::bytes>(given);
  return {value.c_str(), value.size()};
}

nb::tuple txn(CoreEngine& self, nb::list asked, nb::list wanted) {
  std::vector<cluster::Compare> compares;
  for (nb::handle given : asked) {
    const auto one = nb::cast<nb::tuple>(given);
    cluster::Compare compare{nb::cast<std::string>(one[0]), std::nullopt};
    if (!one[1].is_none()) compare.value = text_of(one[1]);
    compares.push_back(std::move(compare));
  }
  std::vector<cluster::Operation> operations;
  for (nb::handle given : wanted) {
    const auto one = nb::cast<nb::tuple>(given);
    operations.push_back(
        {nb::cast<std::string>(one[0]), text_of(one[1]), nb::cast<uint64_t>(one[2]), nb::cast<bool>(one[3])});
  }
  const auto outcome = unwrap(run(self, [&] { return self.engine->txn(compares, operations); }));
  return nb::make_tuple(outcome.applied, outcome.revision);
}

nb::tuple range(CoreEngine& self, const std::string& prefix) {
  const cluster::Snapshot snapshot = unwrap(run(self, [&] { return self.engine->range(prefix); }));
  nb::list items;
  for (const cluster::KeyValue& item : snapshot.items) items.append(item_tuple(item));
  return nb::make_tuple(items, snapshot.revision);
}

std::unique_ptr<CoreWatch> watch(CoreEngine& self, const std::string& prefix, uint64_t after) {
  auto made = run(self, [&] { return self.engine->watch(prefix, after); });
  return std::make_unique<CoreWatch>(unwrap(std::move(made)), self.bridged);
}

nb::list poll(CoreWatch& self, uint64_t timeout_ns) {
  const std::shared_ptr<cluster::Watch> watch = self.watch;  // another thread may close it meanwhile
  if (watch == nullptr) throw StatusError(Status(Code::kClosed, "the watch is closed"));
  const auto waiting = [&] { return watch->poll(timeout_ns); };
  auto polled = self.bridged ? on_own_thread(waiting) : without_gil(waiting);
  nb::list changes;
  for (const cluster::Change& change : unwrap(std::move(polled))) {
    changes.append(nb::make_tuple(item_tuple(change.item), change.erased));
  }
  return changes;
}

}  // namespace

void bind_cluster(nb::module_& module) {
  nb::class_<MemoryCluster>(module, "MemoryCluster", nb::is_final())
      .def(
          "__init__",
          [](MemoryCluster* self, uint64_t forgets_ns) { new (self) MemoryCluster(system_clock(), forgets_ns); },
          nb::arg("forgets_ns"))
      .def("failover", &MemoryCluster::failover, nb::arg("forgotten_ns"))
      .def("requests", &MemoryCluster::requests)
      .def("keys", &MemoryCluster::keys);
  nb::class_<CoreWatch>(module, "CoreWatch", nb::is_final())
      .def("poll", poll, nb::arg("timeout_ns"))
      .def("close", [](CoreWatch& self) { self.watch.reset(); });
  nb::class_<CoreEngine>(module, "CoreEngine", nb::is_final())
      .def_static("memory", memory_engine, nb::arg("cluster"), nb::arg("seed"), nb::arg("request_lost"),
                  nb::arg("reply_lost"))
      .def_static("bridged", bridged_engine, nb::arg("engine"))
      .def_prop_ro("forgets_ns", [](const CoreEngine& self) { return self.engine->forgets_ns(); })
      .def("txn", txn, nb::arg("compares"), nb::arg("operations"))
      .def("range", range, nb::arg("prefix"))
      .def("watch", watch, nb::arg("prefix"), nb::arg("after"), nb::keep_alive<0, 1>())
      .def(
          "grant",
          [](CoreEngine& self, uint64_t ttl_ns) {
            return unwrap(run(self, [&] { return self.engine->grant(ttl_ns); }));
          },
          nb::arg("ttl_ns"))
      .def(
          "renew",
          [](CoreEngine& self, uint64_t lease) { check(run(self, [&] { return self.engine->renew(lease); })); },
          nb::arg("lease"))
      .def(
          "revoke",
          [](CoreEngine& self, uint64_t lease) { check(run(self, [&] { return self.engine->revoke(lease); })); },
          nb::arg("lease"));
}

}  // namespace kvstore::binding
