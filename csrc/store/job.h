// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Job: one submitted batch; JobRef: a counted reference to it; CompletionQueue: where finished jobs queue up.
//
// Guarantees: a job completes exactly once, after the last of its pieces has completed (I11), and then no
// kernel write to its buffers can follow. cancel() drops pieces that were not submitted to the device; it ends
// items, never pieces in flight. Thread-safe.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/types.h"

namespace kvstore::store {

class CompletionQueue;

enum class JobKind : uint8_t { kPut, kGet, kPrefetch };

class Job {
 public:
  virtual ~Job();

  uint64_t id() const { return id_; }
  uint64_t tag() const { return tag_; }
  JobKind kind() const { return kind_; }
  uint32_t size() const { return static_cast<uint32_t>(results_.size()); }

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Ends the wait, not the job. UINT64_MAX: without limit. Only for threaded stores; see Store::step otherwise.
  bool wait(uint64_t timeout_ns);
  // The store was closed with pieces of this job outstanding: waits end, without a result; the buffers stay the
  // kernel's (I11). Whoever asked to be notified is.
  bool abandoned() const { return abandoned_.load(std::memory_order_acquire); }
  void abandon();
  // Tells `queue` too when the job finishes or is abandoned; at once when it has or was. At most one such queue.
  void notify(std::shared_ptr<CompletionQueue> queue);
  // Items not begun end as kError/kCanceled at once; the job completes when the pieces in flight have.
  virtual void cancel() = 0;
  virtual void cancel_item(uint32_t item) = 0;

  // Valid when done().
  const ItemResult& result(uint32_t item) const { return results_[item]; }
  // What, where, the numbers; empty unless the item is kError.
  std::string error_text(uint32_t item) const;
  // Submit to completion.
  uint64_t elapsed_ns() const { return elapsed_ns_; }

 protected:
  friend class JobRef;
  friend class CompletionQueue;
  Job(JobKind kind, uint64_t id, uint64_t tag, uint32_t items) : kind_(kind), id_(id), tag_(tag), results_(items) {}
  void finish();  // sets done, wakes waiters, tells the queue
  virtual void abandoned_by_store() {}

  JobKind kind_;
  uint64_t id_;
  uint64_t tag_;
  std::vector<ItemResult> results_;
  std::unordered_map<uint32_t, std::string> errors_;  // by item: few, or all of a large batch that was canceled
  uint64_t elapsed_ns_ = 0;
  std::shared_ptr<CompletionQueue> queue_;
  std::shared_ptr<CompletionQueue> notified_;
  std::atomic<bool> done_{false};
  std::atomic<bool> abandoned_{false};
  std::atomic<uint32_t> references_{0};
  std::mutex mutex_;
  std::condition_variable finished_;
};

class JobRef {
 public:
  JobRef() = default;
  explicit JobRef(Job* job) : job_(job) { acquire(); }
  JobRef(const JobRef& other) : job_(other.job_) { acquire(); }
  JobRef(JobRef&& other) noexcept : job_(std::exchange(other.job_, nullptr)) {}
  JobRef& operator=(JobRef other) noexcept {
    std::swap(job_, other.job_);
    return *this;
  }
  ~JobRef() { release(); }
  Job* operator->() const { return job_; }
  Job* get() const { return job_; }
  explicit operator bool() const { return job_ != nullptr; }

 private:
  void acquire() {
    if (job_ != nullptr) job_->references_.fetch_add(1, std::memory_order_relaxed);
  }
  void release() {
    if (job_ != nullptr && job_->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete job_;
  }
  Job* job_ = nullptr;
};

// Finished jobs in order of completion, behind an eventfd of its own that is readable while any waits. Bounded by
// the store's jobs_max: with so many undrained a further submission to it is kBusy. Outlives the jobs submitted to it
// (they hold it).
class CompletionQueue {
 public:
  static std::shared_ptr<CompletionQueue> create();
  ~CompletionQueue();
  int event_fd() const { return event_fd_; }
  // Takes up to `limit` finished jobs and clears the eventfd when none is left. Never blocks.
  std::vector<JobRef> drain(uint32_t limit);
  void push(JobRef job);
  uint64_t undrained();

 private:
  friend class Job;
  CompletionQueue() = default;
  void push_locked(JobRef job);
  int event_fd_ = -1;
  std::mutex mutex_;
  std::deque<JobRef> finished_;
};

}  // namespace kvstore::store
