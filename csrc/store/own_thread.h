// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// OwnThread: a thread of the store whose work can end before the thread does.
//
// io_uring's workers belong to the thread that submitted to them, and the kernel keeps a thread that exits until they
// are done: as long as a device that hangs likes. std::thread::join() would wait for that too, and close() with it.

#pragma once

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status.h"

namespace kvstore::store {

class OwnThread {
 public:
  bool started() const { return thread_.joinable(); }

  // Runs `work`, which must not throw, once. On an error (kIo, EAGAIN: the limit of threads or of memory) there is no
  // thread, `work` is not run, and start() may be called again. Not thread-safe, as join() is not.
  [[nodiscard]] Status start(std::function<void()> work) {
    auto state = std::make_shared<State>();
    try {
      thread_ = std::thread([work = std::move(work), state] {
        work();
        std::lock_guard lock(state->mutex);
        state->ended = true;
        state->changed.notify_all();
      });
    } catch (const std::system_error& error) {
      return Status(Code::kIo, std::string("a thread cannot be started: ") + error.what(), error.code().value());
    }
    state_ = std::move(state);
    return {};
  }

  // A thread that lasts: named (15 characters at most), and not asked for the host process's signals. `prepare` runs on
  // it first (a ring belongs to the thread that makes it), and start() waits for that; where it fails `work` is not
  // run, and its Status is returned.
  [[nodiscard]] Status start(const char* name, const std::function<Status()>& prepare, std::function<void()> work) {
    std::promise<Status> ready;
    std::future<Status> outcome = ready.get_future();
    KVS_TRY(start([name, &prepare, &ready, work = std::move(work)] {
      pthread_setname_np(pthread_self(), name);
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_BLOCK, &all, nullptr);
      Status status = prepare();
      const bool ok = status.ok();
      ready.set_value(std::move(status));  // `prepare` and `ready` are gone from here on
      if (ok) work();
    }));
    return outcome.get();
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
