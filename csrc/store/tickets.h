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
#include <functional>
#include <mutex>

#include "base/status.h"

namespace kvstore::store {

// Asked now and then on the thread that waits, without a lock: true ends the wait, as its time would. Empty: never.
using Interrupted = std::function<bool()>;

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
  // more. One wait for one ticket, however often it is interrupted: a round that takes longer than a caller waits at a
  // time would never be the one that it asks for.
  Code wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, uint64_t ticket, uint64_t timeout_ns,
            const bool& running, const Interrupted& interrupted) {
    const auto ended = [&] { return is_done(ticket) || !running; };
    const uint64_t longest_ns = interrupted ? kAskNs : INT64_MAX / 2;
    ++waiting_;
    for (bool goes_on = true; goes_on;) {
      const uint64_t step_ns = std::min(timeout_ns, longest_ns);
      if (changed.wait_for(lock, std::chrono::nanoseconds(step_ns), ended)) break;
      if (timeout_ns != UINT64_MAX) timeout_ns -= step_ns;
      goes_on = timeout_ns != 0;
      if (goes_on && interrupted) {
        lock.unlock();
        goes_on = !interrupted();
        lock.lock();
      }
    }
    --waiting_;
    if (is_done(ticket)) return Code::kOk;
    return running ? Code::kTimeout : Code::kClosed;
  }

 private:
  static constexpr uint64_t kAskNs = 50'000'000;

  uint64_t taken_ = 0;
  uint64_t done_ = 0;
  uint32_t waiting_ = 0;
};

}  // namespace kvstore::store
