// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The metadata engine in memory, for Python tests: the same service and faults as in the C++ simulation.

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <optional>

#include "binding/errors.h"
#include "binding/gil.h"
#include "binding/pool.h"
#include "cluster/memory_engine.h"

namespace kvstore::binding {

namespace {

using cluster::MemoryCluster;

// A client with its own random numbers.
struct Client {
  Client(std::shared_ptr<MemoryCluster> cluster, uint64_t seed, double request_lost, double reply_lost)
      : random(seed),
        engine(std::move(cluster), system_clock(), random,
               {.request_lost = request_lost, .reply_lost = reply_lost, .slow = 0, .slow_ns_max = 0}) {}

  SeededRandom random;
  cluster::MemoryEngine engine;
};

nb::tuple item_tuple(const cluster::KeyValue& item) {
  return nb::make_tuple(item.key, nb::bytes(item.value.data(), item.value.size()), item.modified, item.lease);
}

std::string text_of(nb::handle given) {
  const auto value = nb::cast<nb::bytes>(given);
  return {value.c_str(), value.size()};
}

nb::tuple txn(Client& client, nb::list asked, nb::list wanted) {
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
  const auto outcome = unwrap(client.engine.txn(compares, operations));
  return nb::make_tuple(outcome.applied, outcome.revision);
}

nb::tuple range(Client& client, const std::string& prefix) {
  const cluster::Snapshot snapshot = unwrap(client.engine.range(prefix));
  nb::list items;
  for (const cluster::KeyValue& item : snapshot.items) items.append(item_tuple(item));
  return nb::make_tuple(items, snapshot.revision);
}

nb::list poll(cluster::Watch& watch, uint64_t timeout_ns) {
  auto polled = without_gil([&] { return watch.poll(timeout_ns); });
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
  nb::class_<cluster::Watch>(module, "MemoryWatch").def("poll", poll, nb::arg("timeout_ns"));
  nb::class_<Client>(module, "MemoryEngine", nb::is_final())
      .def(nb::init<std::shared_ptr<MemoryCluster>, uint64_t, double, double>(), nb::arg("cluster"), nb::arg("seed"),
           nb::arg("request_lost"), nb::arg("reply_lost"))
      .def_prop_ro("forgets_ns", [](const Client& self) { return self.engine.forgets_ns(); })
      .def("txn", txn, nb::arg("compares"), nb::arg("operations"))
      .def("range", range, nb::arg("prefix"))
      .def(
          "watch",
          [](Client& self, const std::string& prefix, uint64_t after) {
            return unwrap(self.engine.watch(prefix, after));
          },
          nb::arg("prefix"), nb::arg("after"), nb::keep_alive<0, 1>())
      .def(
          "grant", [](Client& self, uint64_t ttl_ns) { return unwrap(self.engine.grant(ttl_ns)); }, nb::arg("ttl_ns"))
      .def(
          "renew", [](Client& self, uint64_t lease) { check(self.engine.renew(lease)); }, nb::arg("lease"))
      .def("revoke", [](Client& self, uint64_t lease) { check(self.engine.revoke(lease)); }, nb::arg("lease"));
}

}  // namespace kvstore::binding
