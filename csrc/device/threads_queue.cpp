// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "device/threads_queue.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "device/fork_guard.h"

namespace kvstore::device {
namespace {

constexpr uint64_t kForeverNs = 1'000'000'000'000'000'000;

// First in, first out, linked through the requests, so that nothing allocates.
class RequestList {
 public:
  void push(IoRequest* request) {
    request->next = nullptr;
    *end_ = request;
    end_ = &request->next;
  }
  IoRequest* pop() {
    IoRequest* request = head_;
    if (request == nullptr) return nullptr;
    head_ = std::exchange(request->next, nullptr);
    if (head_ == nullptr) end_ = &head_;
    return request;
  }
  bool empty() const { return head_ == nullptr; }
  RequestList() = default;
  RequestList(const RequestList&) = delete;  // end_ points into the object
  RequestList& operator=(const RequestList&) = delete;

 private:
  IoRequest* head_ = nullptr;
  IoRequest** end_ = &head_;
};

// Shared by the queue and its threads; the last of them frees it.
struct Shared {
  std::mutex mutex;
  std::condition_variable work_came;
  std::condition_variable work_done;
  RequestList work;
  RequestList done;
  bool woken = false;
  bool stopping = false;
  std::shared_ptr<RequestExecutor> executor;
};

class DescriptorExecutor final : public RequestExecutor {
 public:
  Status duplicate(const std::vector<int>& fds) {
    const ForkBarrier barrier;
    for (const int fd : fds) {
      const int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 0);
      if (duplicate < 0) return Status::from_errno(errno, "the device's descriptor cannot be duplicated");
      fds_.emplace_back(duplicate, barrier);
    }
    return {};
  }

  int64_t execute(const IoRequest& request) override {
    if (request.device_index >= fds_.size()) return -EINVAL;
    const int fd = fds_[request.device_index].get();
    const auto offset = static_cast<off_t>(request.offset_bytes);
    const auto count = static_cast<int>(request.segment_count);
    ssize_t moved = 0;
    switch (request.op) {
      case IoOp::kRead: moved = preadv2(fd, request.segments, count, offset, 0); break;
      case IoOp::kWrite: moved = pwritev2(fd, request.segments, count, offset, request.durable ? RWF_DSYNC : 0); break;
      case IoOp::kFlush: moved = fdatasync(fd); break;
    }
    return moved < 0 ? -errno : moved;
  }

 private:
  std::vector<GuardedFd> fds_;
};

void serve(const std::shared_ptr<Shared>& shared) {
  std::unique_lock<std::mutex> lock(shared->mutex);
  while (true) {
    shared->work_came.wait(lock, [&] { return shared->stopping || !shared->work.empty(); });
    // Requests are not begun once the queue is being destroyed: their buffers are the owner's again.
    if (shared->stopping) return;
    IoRequest* request = shared->work.pop();
    lock.unlock();
    request->result = shared->executor->execute(*request);
    lock.lock();
    if (shared->stopping) return;  // the request may be gone with its owner
    shared->done.push(request);
    shared->work_done.notify_one();
  }
}

class ThreadsQueue final : public IoQueue {
 public:
  ThreadsQueue(uint32_t depth, std::shared_ptr<RequestExecutor> executor)
      : depth_(depth), generation_(fork_generation()), shared_(std::make_shared<Shared>()) {
    shared_->executor = std::move(executor);
  }

  ~ThreadsQueue() override {
    if (forked()) {
      // Mutex, condition variables and thread handles are copies of things in use elsewhere: leak them.
      new std::shared_ptr<Shared>(std::move(shared_));
      new std::vector<std::thread>(std::move(threads_));
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(shared_->mutex);
      shared_->stopping = true;
    }
    shared_->work_came.notify_all();
    for (std::thread& thread : threads_) {
      if (in_flight_ == 0) {
        thread.join();
      } else {
        thread.detach();  // it may be in the kernel for as long as the device likes
      }
    }
  }

  Status start(uint32_t threads) {
    // Threads inherit the mask: the program's signals are for the program's threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    std::string refusal;
    for (uint32_t i = 0; i < threads; ++i) {
      try {
        threads_.emplace_back(serve, shared_);
      } catch (const std::system_error& error) {
        refusal = error.what();
        break;
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    // Fewer threads than asked for are slower, none is a failure.
    if (threads_.empty()) return Status(Code::kIo, "no I/O thread can be started: " + refusal, EAGAIN);
    return {};
  }

  bool submit(IoRequest* request) override {
    if (in_flight_ >= depth_ || forked()) return false;
    staged_.push(request);
    ++staged_count_;
    ++in_flight_;
    return true;
  }

  Status kick() override {
    if (forked()) return closed_in_child();
    hand_over();
    return {};
  }

  Result<uint32_t> poll(std::span<IoRequest*> completed, uint64_t timeout_ns, uint32_t /*wait_for*/) override {
    if (forked()) return closed_in_child();
    hand_over();
    std::unique_lock<std::mutex> lock(shared_->mutex);
    if (timeout_ns > 0) {
      shared_->work_done.wait_for(lock, std::chrono::nanoseconds(std::min(timeout_ns, kForeverNs)),
                                  [&] { return shared_->woken || !shared_->done.empty(); });
      shared_->woken = false;
    }
    uint32_t count = 0;
    while (count < completed.size() && !shared_->done.empty()) completed[count++] = shared_->done.pop();
    in_flight_ -= count;
    return count;
  }

  void wake() override {
    if (forked()) return;
    {
      const std::lock_guard<std::mutex> lock(shared_->mutex);
      shared_->woken = true;
    }
    shared_->work_done.notify_one();
  }

  Status register_buffers(std::span<const iovec> buffers) override {
    if (forked()) return closed_in_child();
    if (in_flight_ != 0) return Status(Code::kBusy, "buffers are registered while requests are in flight");
    return shared_->executor->register_buffers(buffers);
  }

  uint32_t in_flight() const override { return in_flight_; }
  uint32_t depth() const override { return depth_; }

 private:
  bool forked() const { return generation_ != fork_generation(); }
  static Status closed_in_child() {
    return Status(Code::kClosed, "the I/O queue belongs to the parent of this forked process");
  }

  void hand_over() {
    if (staged_count_ == 0) return;
    {
      const std::lock_guard<std::mutex> lock(shared_->mutex);
      while (IoRequest* request = staged_.pop()) shared_->work.push(request);
    }
    if (staged_count_ == 1) {
      shared_->work_came.notify_one();
    } else {
      shared_->work_came.notify_all();
    }
    staged_count_ = 0;
  }

  const uint32_t depth_;
  const uint64_t generation_;
  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
  RequestList staged_;
  uint32_t staged_count_ = 0;
  uint32_t in_flight_ = 0;
};

}  // namespace

Status RequestExecutor::register_buffers(std::span<const iovec> buffers) {
  if (buffers.empty()) return {};
  return Status(Code::kUnsupported, "the \"threads\" kind has no registered buffers");
}

Result<std::unique_ptr<IoQueue>> make_threads_queue(const std::vector<int>& fds, const QueueOptions& options,
                                                    uint32_t threads) {
  auto executor = std::make_shared<DescriptorExecutor>();
  KVS_TRY(executor->duplicate(fds));
  return make_threads_queue(std::move(executor), options, threads);
}

Result<std::unique_ptr<IoQueue>> make_threads_queue(std::shared_ptr<RequestExecutor> executor,
                                                    const QueueOptions& options, uint32_t threads) {
  auto queue = std::make_unique<ThreadsQueue>(options.depth, std::move(executor));
  KVS_TRY(queue->start(std::clamp<uint32_t>(threads, 1, std::max<uint32_t>(options.depth, 1))));
  return std::unique_ptr<IoQueue>(std::move(queue));
}

}  // namespace kvstore::device
