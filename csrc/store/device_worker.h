// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// DeviceWorker: what a keeper and a follower have in common: one device, blocking I/O on it, and a thread of its own
// that does rounds until it is told to stop. Unthreaded stores drive the rounds themselves, and have no thread.
//
// Guarantees: join_until() ends, whatever the device does: what it does not answer in time is given up (I11).

#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "device/blocking_io.h"
#include "store/own_thread.h"

namespace kvstore::store {

class DeviceWorker {
 public:
  void stop();  // ends the thread after the round it is in
  // Waits for the thread; from until_ns on (of the clock; at least a second is given) it gives up what its device does
  // not answer.
  void join_until(uint64_t until_ns);

 protected:
  static constexpr uint64_t kCloseNsMin = 1'000'000'000;

  explicit DeviceWorker(Clock& clock) : clock_(clock) {}
  ~DeviceWorker() = default;  // of a derived class: it stops and joins, before its members go

  // `prepare` makes io_; `rounds` returns once stopping_ is set.
  Status start(bool threaded, const char* name, const std::function<Status()>& prepare, std::function<void()> rounds);

  Clock& clock_;
  std::unique_ptr<device::BlockingIo> io_;  // replaced under mutex_ only
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  bool running_ = false;

 private:
  OwnThread thread_;
};

}  // namespace kvstore::store
