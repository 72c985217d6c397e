// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// PosixDevice: an open block device or regular file, for the kinds "uring" and "threads". It holds what keeps others
// out (O_EXCL claim, locks) and lets go of it when destroyed; queues made from it must be destroyed first.

#pragma once

#include <memory>
#include <string>

#include "device/device.h"
#include "device/fork_guard.h"

namespace kvstore::device {

class PosixDevice final : public Device {
 public:
  // `file` is open with O_DIRECT; `lock` is a second locked descriptor (a loop device's backing file), or empty.
  // `chosen`: the kind was not asked for by name, so another may serve where this one does not.
  PosixDevice(DeviceInfo info, GuardedFd file, GuardedFd lock, uint32_t threads, bool chosen);
  ~PosixDevice() override;

  const DeviceInfo& info() const override { return info_; }
  int descriptor() const override { return file_.get(); }
  Status share() override;
  Result<std::unique_ptr<IoQueue>> make_queue(std::span<Device* const> devices, const QueueOptions& options) override;

 private:
  DeviceInfo info_;
  GuardedFd file_;
  GuardedFd lock_;
  uint32_t threads_;
  bool chosen_;
};

// Size, alignments, cache and identity of an open descriptor. kUnsupported when direct I/O of 4 KiB units is
// not possible there, with the mend.
Result<DeviceInfo> describe_device(const std::string& path, int fd);

}  // namespace kvstore::device
