// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/device_worker.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvstore::store {

Status DeviceWorker::start(bool threaded, const char* name, const std::function<Status()>& prepare,
                           std::function<void()> rounds) {
  if (!threaded) return prepare();
  running_ = true;
  const auto ended = [this] {
    std::lock_guard lock(mutex_);
    running_ = false;
    changed_.notify_all();
  };
  Status started = thread_.start(name, prepare, [rounds = std::move(rounds), ended] {
    rounds();
    ended();
  });
  if (!started.ok()) ended();  // join_until() must not wait for rounds that never began
  return started;
}

void DeviceWorker::stop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

void DeviceWorker::join_until(uint64_t until_ns) {
  if (!thread_.started()) return;
  {
    std::unique_lock lock(mutex_);
    const uint64_t now_ns = clock_.monotonic_ns();
    const uint64_t left_ns = std::max(until_ns > now_ns ? until_ns - now_ns : 0, kCloseNsMin);
    const auto ended = [this] { return !running_; };
    if (until_ns == UINT64_MAX) {
      changed_.wait(lock, ended);
    } else if (!changed_.wait_for(lock, std::chrono::nanoseconds(left_ns), ended)) {
      if (io_) io_->give_up();
    }
  }
  thread_.join([this] { return io_ && io_->stuck_requests() != 0; });
}

}  // namespace kvstore::store
