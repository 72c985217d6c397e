// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether cuFile reads the devices of a pool into the memory of a GPU and how, for the doctor. Opens nothing for
// writing, holds nothing, and leaves the process's CUDA and cuFile loaded.

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/clock.h"
#include "binding/gil.h"
#include "binding/pool.h"
#include "device/blocking_io.h"
#include "gpu/direct_reads.h"
#include "store/superblock_io.h"

namespace kvstore::binding {
namespace {

Result<uint64_t> payload_offset(device::Device& device) {
  device::Device* const one = &device;
  KVS_ASSIGN(auto queue, device.make_queue({&one, 1}, {.depth = 4, .single_issuer = false}));
  device::BlockingIo io(std::move(queue), {one}, store::StoreOptions().io_timeout_ns);
  KVS_ASSIGN(const format::Quorum quorum, store::read_superblock(io, 0, device.info().size_bytes));
  return quorum.superblock.geometry.data_offset;
}

// "direct", "compat" or "refused: <why>".
Result<std::string> prove(const std::vector<std::string>& paths, int gpu) {
  KVS_ASSIGN(gpu::Bounce* const bounce, gpu::Bounce::of(gpu));
  std::vector<std::unique_ptr<device::Device>> opened;
  std::vector<store::PoolDevice> devices;
  for (const std::string& path : paths) {
    KVS_ASSIGN(auto device, device::open_device(path, {.kind = "threads", .read_only = true}, system_clock()));
    KVS_ASSIGN(const uint64_t offset, payload_offset(*device));
    devices.push_back({device.get(), offset});
    opened.push_back(std::move(device));
  }
  KVS_ASSIGN(const auto reads, gpu::DirectReads::make(*bounce, devices, {.through_host_too = true}));
  (void)reads->wait_until_proven();  // state() says it
  return reads->state();
}

}  // namespace

void bind_direct(nb::module_& module) {
  module.def(
      "prove_direct_reads",
      [](const std::vector<std::string>& paths, int gpu) {
        return unwrap(without_gil([&] { return prove(paths, gpu); }));
      },
      nb::arg("paths"), nb::arg("gpu"));
}

}  // namespace kvstore::binding
