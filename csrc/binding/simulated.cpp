// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The simulated device for Python tests: the real store on a disk in memory that loses, delays and spoils what it is
// told to. Python's side and documentation: kvstore/testing.py.

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>

#include "binding/gil.h"
#include "binding/pool.h"
#include "device/sim.h"
#include "store/format_device.h"

namespace kvstore::binding {
namespace {

using device::IoOp;
using device::SimDisk;
using device::SimFault;

struct Medium {
  std::string path;
  uint64_t latency_ns;
  bool is_fabric;
  SimDisk disk;

  Medium(std::string path_text, uint64_t size_bytes, uint64_t seed, uint64_t latency, bool fabric)
      : path(std::move(path_text)), latency_ns(latency), is_fabric(fabric), disk(size_bytes, seed) {}

  std::unique_ptr<device::Device> open() {
    device::SimDeviceOptions options;
    options.path = path;
    options.latency_ns = latency_ns;
    options.is_fabric = is_fabric;
    return device::make_sim_device(disk, options, system_clock());
  }
};

using Media = std::vector<std::shared_ptr<Medium>>;

constexpr std::array<std::pair<const char*, SimFault>, 9> kFaults{{
    {"error", SimFault::kError},
    {"error_after_write", SimFault::kErrorAfterWrite},
    {"short", SimFault::kShort},
    {"again", SimFault::kAgain},
    {"stuck", SimFault::kStuck},
    {"lost", SimFault::kLost},
    {"misdirected", SimFault::kMisdirected},
    {"bit_rot", SimFault::kBitRot},
    {"flush_fails", SimFault::kFlushFails},
}};

void add_fault(Medium& medium, const std::string& fault, const std::string& op, uint64_t first_byte, uint64_t last_byte,
               uint64_t skip, uint64_t times, uint64_t value) {
  device::SimRule rule;
  for (const auto& [name, kind] : kFaults) {
    if (fault == name) rule.fault = kind;
  }
  if (rule.fault == SimFault::kNone) raise_invalid("there is no fault '" + fault + "'");
  if (op == "read") rule.op = IoOp::kRead;
  if (op == "write") rule.op = IoOp::kWrite;
  if (op == "flush") rule.op = IoOp::kFlush;
  if (!rule.op && op != "any") raise_invalid("op is '" + op + "', allowed are 'read', 'write', 'flush' and 'any'");
  rule.first_byte = first_byte;
  rule.last_byte = last_byte;
  rule.skip = skip;
  rule.times = times;
  rule.value = value;
  medium.disk.add_rule(rule);
}

nb::bytes peek(const Medium& medium, uint64_t offset, uint64_t bytes) {
  if (offset > medium.disk.size_bytes() || bytes > medium.disk.size_bytes() - offset) {
    raise_invalid("bytes " + number_text(offset) + " and " + number_text(bytes) + " more are beyond the disk");
  }
  std::string data(bytes, '\0');
  medium.disk.peek(offset, data.data(), bytes);
  return nb::bytes(data.data(), data.size());
}

void poke(Medium& medium, uint64_t offset, nb::bytes data) {
  if (offset > medium.disk.size_bytes() || data.size() > medium.disk.size_bytes() - offset) {
    raise_invalid("bytes " + number_text(offset) + " and " + number_text(data.size()) + " more are beyond the disk");
  }
  medium.disk.poke(offset, data.c_str(), data.size());
}

std::shared_ptr<PoolHandle> open_simulated(const Media& media, nb::dict given) {
  auto direct_path = take_direct_path(given);
  const store::StoreOptions options = parse_store_options(given);
  auto opened = without_gil([&] {
    std::vector<std::unique_ptr<device::Device>> devices;
    for (const std::shared_ptr<Medium>& medium : media) devices.push_back(medium->open());
    return store::Store::open_devices(std::move(devices), options);
  });
  std::unique_ptr<store::Store> store = unwrap(std::move(opened));
  // The disks outlive the store, however long a leaked reference keeps that.
  return std::make_shared<PoolHandle>(
      std::shared_ptr<store::Store>(store.release(), [media](store::Store* ended) { delete ended; }), nullptr,
      std::move(direct_path));
}

nb::list format_simulated(const Media& media, nb::dict given) {
  const store::FormatOptions options = parse_format_options(given);
  auto formatted = without_gil([&] {
    std::vector<std::unique_ptr<device::Device>> devices;
    std::vector<device::Device*> pointers;
    for (const std::shared_ptr<Medium>& medium : media) {
      devices.push_back(medium->open());
      pointers.push_back(devices.back().get());
    }
    return store::format_devices(pointers, options, system_clock(), system_random());
  });
  nb::list superblocks;
  for (const format::Superblock& superblock : unwrap(std::move(formatted))) {
    superblocks.append(superblock_dict(superblock));
  }
  return superblocks;
}

}  // namespace

void bind_simulated(nb::module_& module) {
  nb::class_<Medium>(module, "SimMedium", nb::is_final())
      .def(nb::init<std::string, uint64_t, uint64_t, uint64_t, bool>(), nb::arg("path"), nb::arg("size_bytes"),
           nb::arg("seed"), nb::arg("latency_ns"), nb::arg("is_fabric"))
      .def("add_fault", add_fault, nb::arg("fault"), nb::arg("op"), nb::arg("first_byte"), nb::arg("last_byte"),
           nb::arg("skip"), nb::arg("times"), nb::arg("value"))
      .def("clear_faults", [](Medium& self) { self.disk.clear_rules(); })
      .def("release_stuck", [](Medium& self) { self.disk.release_stuck(); })
      .def("stuck_count", [](const Medium& self) { return self.disk.stuck_count(); })
      .def(
          "stop_after", [](Medium& self, uint64_t operations) { self.disk.stop_after(operations); },
          nb::arg("operations"))
      .def(
          "power_cut", [](Medium& self, bool cache_survives) { self.disk.power_cut(cache_survives); },
          nb::arg("cache_survives"))
      .def("peek", peek, nb::arg("offset"), nb::arg("nbytes"))
      .def("poke", poke, nb::arg("offset"), nb::arg("data"));
  module.def("open_simulated", open_simulated, nb::arg("media"), nb::arg("options"));
  module.def("format_simulated", format_simulated, nb::arg("media"), nb::arg("options"));
}

}  // namespace kvstore::binding
