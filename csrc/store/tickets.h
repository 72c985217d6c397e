// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Tickets: how somebody waits for a round of work that began after it asked. Who asks takes a ticket; the thread that
// does the rounds notes the last one taken before a round, and calls it done after it. Guarded by its owner's mutex.

#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/status.h"

namespace kvstore::store {

class Tickets {
 public:
  uint64_t take() { return ++taken_; }
  uint64_t last() const { return taken_; }
  bool wanted() const { return taken_ != done_; }
  bool is_done(uint64_t ticket) const { return done_ >= ticket; }
  void call_done(uint64_t ticket) { done_ = std::max(done_, ticket); }  // and notify
  // Who asked does not wait any more; what nobody waits for is not wanted.
  void give_up() {
    if (waiting_ == 0) done_ = taken_;
  }

  // kOk: done. kTimeout: not in that time (UINT64_MAX: no end). kClosed: `running` is false, nobody does rounds any
  // more.
  Code wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, uint64_t ticket, uint64_t timeout_ns,
            const bool& running) {
    const auto ended = [&] { return is_done(ticket) || !running; };
    bool in_time = true;
    ++waiting_;
    if (timeout_ns == UINT64_MAX) {
      changed.wait(lock, ended);
    } else {
      const uint64_t wait_ns = std::min<uint64_t>(timeout_ns, INT64_MAX / 2);
      in_time = changed.wait_for(lock, std::chrono::nanoseconds(wait_ns), ended);
    }
    --waiting_;
    if (!in_time) return Code::kTimeout;
    return is_done(ticket) ? Code::kOk : Code::kClosed;
  }

 private:
  uint64_t taken_ = 0;
  uint64_t done_ = 0;
  uint32_t waiting_ = 0;
};

}  // namespace kvstore::store
