// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// One simulated device with a BlockingIo on it, for tests of what is below the store.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/aligned.h"
#include "base/clock.h"
#include "device/blocking_io.h"
#include "device/sim.h"
#include "format/superblock.h"

namespace kvstore::store {

// An opener of a SimDisk. Make another one on the same disk after a crash.
class OneSimDevice {
 public:
  explicit OneSimDevice(device::SimDisk& disk, Clock& clock) {
    device = device::make_sim_device(disk, {}, clock);
    device::Device* const devices[] = {device.get()};
    io = std::make_unique<device::BlockingIo>(device->make_queue(devices, {}).value(),
                                              std::vector<device::Device*>{device.get()}, 1'000'000'000);
  }

  std::unique_ptr<device::Device> device;
  std::unique_ptr<device::BlockingIo> io;
};

inline device::SimRule rule_at(device::SimFault fault, device::IoOp op, uint64_t offset_bytes, uint64_t times = 1) {
  device::SimRule rule;
  rule.fault = fault;
  rule.op = op;
  rule.first_byte = offset_bytes;
  rule.last_byte = offset_bytes + 1;
  rule.times = times;
  return rule;
}

inline constexpr uint64_t kEveryTime = UINT64_MAX;

inline format::Uuid uuid_of(uint8_t byte) {
  format::Uuid uuid;
  uuid.fill(byte);
  return uuid;
}

}  // namespace kvstore::store
