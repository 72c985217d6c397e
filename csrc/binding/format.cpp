// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// format, and what a store says of itself: superblock and geometry as dicts.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdio>

#include "binding/gil.h"
#include "binding/pool.h"
#include "store/format_device.h"

namespace kvstore::binding {

nb::dict geometry_dict(const format::Geometry& geometry) {
  nb::dict dict;
  dict["device_bytes"] = geometry.device_bytes;
  dict["region_bytes"] = geometry.region_bytes;
  dict["min_block_bytes"] = geometry.min_block_bytes;
  dict["region_count"] = geometry.region_count;
  dict["dictionary_blocks"] = geometry.dictionary_blocks;
  dict["entry_bytes"] = geometry.entry_bytes;
  dict["data_offset"] = geometry.data_offset;
  return dict;
}

nb::dict superblock_dict(const format::Superblock& superblock) {
  nb::list members;
  for (const format::Uuid& member : superblock.members) members.append(format::uuid_text(member));
  nb::dict owner;
  owner["epoch"] = superblock.owner.epoch;
  owner["host"] = format::uuid_text(superblock.owner.host);
  owner["nonce"] = format::uuid_text(superblock.owner.nonce);
  nb::dict dict;
  dict["version"] = superblock.version;
  dict["compat_flags"] = superblock.compat_flags;
  dict["ro_compat_flags"] = superblock.ro_compat_flags;
  dict["incompat_flags"] = superblock.incompat_flags;
  dict["store_uuid"] = format::uuid_text(superblock.store_uuid);
  dict["pool_uuid"] = format::uuid_text(superblock.pool_uuid);
  dict["member_index"] = superblock.member_index;
  dict["members"] = members;
  dict["nguid"] = superblock.nguid;
  dict["eui64"] = superblock.eui64;
  dict["serial"] = superblock.serial;
  dict["logical_block_bytes"] = superblock.logical_block_bytes;
  dict["geometry"] = geometry_dict(superblock.geometry);
  dict["formatted_seconds"] = superblock.formatted_seconds;
  dict["opened_seconds"] = superblock.opened_seconds;
  dict["owner"] = owner;
  dict["clean"] = superblock.clean;
  dict["shared_mode"] = superblock.shared_mode;
  dict["sequence"] = superblock.sequence;
  return dict;
}

store::FormatOptions parse_format_options(nb::dict given) {
  store::FormatOptions options;
  for (auto [key, value] : given) {
    if (value.is_none()) continue;
    const std::string name = parse_text(key, {"name of an option"});
    const Where where{name.c_str()};
    if (name == "region_bytes") {
      options.region_bytes = parse_u64(value, where);
    } else if (name == "block_bytes") {
      options.block_bytes = parse_u64(value, where);
    } else if (name == "min_block_bytes") {
      options.min_block_bytes = parse_u64(value, where);
    } else if (name == "file_bytes") {
      options.file_bytes = parse_u64(value, where);
    } else if (name == "force") {
      options.force = nb::cast<bool>(value);
    } else if (name == "device_kind") {
      options.device_kind = parse_text(value, where);
    } else {
      raise_type_error("format() has no option " + name);
    }
  }
  return options;
}

namespace {

nb::list format_pool(const std::vector<std::string>& paths, nb::dict given) {
  const store::FormatOptions options = parse_format_options(given);
  auto formatted = without_gil([&] { return store::format_pool(paths, options, system_clock(), system_random()); });
  nb::list superblocks;
  for (const format::Superblock& superblock : unwrap(std::move(formatted))) {
    superblocks.append(superblock_dict(superblock));
  }
  return superblocks;
}

nb::list plan_format(const std::vector<std::string>& paths, nb::dict given) {
  const store::FormatOptions options = parse_format_options(given);
  auto planned = without_gil([&] { return store::plan_format(paths, options, system_clock()); });
  nb::list plans;
  for (const store::FormatPlan& plan : unwrap(std::move(planned))) {
    nb::dict dict;
    dict["path"] = plan.path;
    dict["geometry"] = geometry_dict(plan.geometry);
    dict["found"] = plan.found;
    plans.append(dict);
  }
  return plans;
}

// "" or why io_uring cannot be used here.
std::string uring_problem() {
  return without_gil([] { return device::uring_available(); }).message();
}

}  // namespace

void bind_format(nb::module_& module) {
  module.def("format_pool", format_pool, nb::arg("paths"), nb::arg("options"));
  module.def("plan_format", plan_format, nb::arg("paths"), nb::arg("options"));
  module.def("uring_problem", uring_problem);
}

}  // namespace kvstore::binding
