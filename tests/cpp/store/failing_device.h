// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// A real device of which a seeded share of the requests fails: answered with -EIO, never handed to the kernel. The
// superblocks are left alone, so that it opens and stays owned. For what a simulated disk cannot show: rings,
// registered memory and file descriptors that come back.

#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "device/device.h"
#include "format/geometry.h"

namespace kvstore::store {

class FailingQueue final : public device::IoQueue {
 public:
  FailingQueue(std::unique_ptr<IoQueue> inner, uint64_t seed, uint32_t percent, uint64_t device_bytes,
               std::atomic<uint64_t>& failed)
      : inner_(std::move(inner)), random_(seed), percent_(percent), device_bytes_(device_bytes), failed_(failed) {}

  bool submit(device::IoRequest* request) override {
    const bool is_superblock =
        request->offset_bytes < format::kMetadataOffset || request->offset_bytes >= device_bytes_ - kPageBytes;
    if (request->op == device::IoOp::kFlush || is_superblock || random_.below(100) >= percent_) {
      return inner_->submit(request);
    }
    if (in_flight() >= depth()) return false;
    request->result = -EIO;
    answered_.push_back(request);
    ++failed_;
    return true;
  }
  Status kick() override { return inner_->kick(); }
  Result<uint32_t> poll(std::span<device::IoRequest*> completed, uint64_t timeout_ns, uint32_t wait_for) override {
    if (answered_.empty()) return inner_->poll(completed, timeout_ns, wait_for);
    const size_t count = std::min(completed.size(), answered_.size());
    std::copy_n(answered_.begin(), count, completed.begin());
    answered_.erase(answered_.begin(), answered_.begin() + static_cast<std::ptrdiff_t>(count));
    return static_cast<uint32_t>(count);
  }
  void wake() override { inner_->wake(); }
  Status register_buffers(std::span<const iovec> buffers) override { return inner_->register_buffers(buffers); }
  uint32_t in_flight() const override { return inner_->in_flight() + static_cast<uint32_t>(answered_.size()); }
  uint32_t depth() const override { return inner_->depth(); }

 private:
  std::unique_ptr<IoQueue> inner_;
  SeededRandom random_;
  const uint32_t percent_;
  const uint64_t device_bytes_;
  std::vector<device::IoRequest*> answered_;
  std::atomic<uint64_t>& failed_;
};

class FailingDevice final : public device::Device {
 public:
  FailingDevice(std::unique_ptr<Device> inner, uint32_t percent, std::atomic<uint64_t>& failed)
      : inner_(std::move(inner)), percent_(percent), failed_(failed) {}

  const device::DeviceInfo& info() const override { return inner_->info(); }
  Result<std::unique_ptr<device::IoQueue>> make_queue(std::span<Device* const> devices,
                                                      const device::QueueOptions& options) override {
    std::vector<Device*> inner;
    for (Device* device : devices) inner.push_back(static_cast<FailingDevice*>(device)->inner_.get());
    auto queue = inner_->make_queue(inner, options);
    if (!queue.ok()) return queue.status();
    return std::unique_ptr<device::IoQueue>(
        std::make_unique<FailingQueue>(std::move(queue).value(), ++queues_, percent_, info().size_bytes, failed_));
  }

 private:
  std::unique_ptr<Device> inner_;
  const uint32_t percent_;
  std::atomic<uint64_t>& failed_;
  std::atomic<uint64_t> queues_{0};
};

}  // namespace kvstore::store
