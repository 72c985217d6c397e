// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/job.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>

#include "base/aligned.h"

namespace kvstore::store {

Job::~Job() = default;

bool Job::wait(uint64_t timeout_ns) {
  if (done()) return true;
  std::unique_lock lock(mutex_);
  if (timeout_ns == UINT64_MAX) {
    finished_.wait(lock, [this] { return done() || abandoned(); });
  } else {
    finished_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] { return done() || abandoned(); });
  }
  return done();
}

std::string Job::error_text(uint32_t item) const {
  const auto found = errors_.find(item);
  if (found != errors_.end()) return found->second;
  return results_[item].status == ItemStatus::kError ? code_name(results_[item].code) : std::string();
}

void Job::finish() {
  JobRef keep(this);  // a waiter may drop the last reference the moment done_ is visible
  std::shared_ptr<CompletionQueue> queue = std::move(queue_);
  std::shared_ptr<CompletionQueue> notified;
  {
    // Both locks: whoever saw wait() end finds the job in the queue.
    std::unique_lock<std::mutex> queue_lock;
    if (queue) queue_lock = std::unique_lock(queue->mutex_);
    std::lock_guard lock(mutex_);
    notified = std::move(notified_);
    done_.store(true, std::memory_order_release);
    finished_.notify_all();
    if (queue) queue->push_locked(keep);
  }
  if (notified) notified->push(keep);
}

void Job::abandon() {
  abandoned_by_store();
  std::shared_ptr<CompletionQueue> notified;
  {
    std::lock_guard lock(mutex_);
    notified = std::move(notified_);
    abandoned_.store(true, std::memory_order_release);
    finished_.notify_all();
  }
  if (notified) notified->push(JobRef(this));
}

void Job::notify(std::shared_ptr<CompletionQueue> queue) {
  {
    std::lock_guard lock(mutex_);
    if (!done() && !abandoned()) {
      notified_ = std::move(queue);
      return;
    }
  }
  queue->push(JobRef(this));
}

std::shared_ptr<CompletionQueue> CompletionQueue::create() {
  std::shared_ptr<CompletionQueue> queue(new CompletionQueue());
  queue->event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (queue->event_fd_ < 0) return nullptr;
  return queue;
}

CompletionQueue::~CompletionQueue() {
  if (event_fd_ >= 0) close(event_fd_);
}

uint64_t CompletionQueue::undrained() {
  std::lock_guard lock(mutex_);
  return finished_.size();
}

void CompletionQueue::push(JobRef job) {
  std::lock_guard lock(mutex_);
  push_locked(std::move(job));
}

void CompletionQueue::push_locked(JobRef job) {
  finished_.push_back(std::move(job));
  eventfd_write(event_fd_, 1);  // always: a foreign reader may have cleared it without draining
}

std::vector<JobRef> CompletionQueue::drain(uint32_t limit) {
  std::vector<JobRef> taken;
  std::lock_guard lock(mutex_);
  while (!finished_.empty() && taken.size() < limit) {
    taken.push_back(std::move(finished_.front()));
    finished_.pop_front();
  }
  eventfd_t value = 0;
  if (finished_.empty()) eventfd_read(event_fd_, &value);
  return taken;
}

}  // namespace kvstore::store
