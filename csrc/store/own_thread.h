// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// OwnThread: a thread of the store whose work can end before the thread does.
//
// io_uring's workers belong to the thread that submitted to them, and the kernel keeps a thread that exits until they
// are done: as long as a device that hangs likes. std::thread::join() would wait for that too, and close() with it.

#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace kvstore::store {

class OwnThread {
 public:
  bool started() const { return thread_.joinable(); }

  void start(std::function<void()> work) {
    state_ = std::make_shared<State>();
    thread_ = std::thread([work = std::move(work), state = state_] {
      work();
      std::lock_guard lock(state->mutex);
      state->ended = true;
      state->changed.notify_all();
    });
  }

  // Waits until the work has ended; nothing of its owner is touched from then on. `device_has_requests` is asked then:
  // if so the thread is let go, to end when the device answers. Else it is joined.
  void join(const std::function<bool()>& device_has_requests) {
    if (!started()) return;
    {
      std::unique_lock lock(state_->mutex);
      state_->changed.wait(lock, [this] { return state_->ended; });
    }
    device_has_requests() ? thread_.detach() : thread_.join();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
  };
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace kvstore::store
