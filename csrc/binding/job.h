// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What Python sees of a job: JobHandle, ItemOutcome and QueueHandle, and the table of jobs in flight.
//
// Guarantees (I11): a job's buffers are held until the C++ job is done, also when Python dropped its Job: the table of
// the pool holds the handle until then, and gives finished ones back on later calls and at close. No Python code ever
// runs on an engine thread: buffers are given back by whichever Python thread next looks. GIL needed, but in wait().

#pragma once

#include <nanobind/nanobind.h>

#include <list>
#include <memory>
#include <optional>
#include <string>

#include "binding/buffers.h"
#include "store/job.h"
#include "store/store.h"

namespace kvstore::binding {

// Moves `value` where no destructor finds it.
template <typename T>
void leak_value(T& value) {
  new T(std::move(value));  // NOLINT: on purpose (I11, or a forked child)
}

// One item's result, copied out of the job.
struct ItemOutcome {
  store::ItemStatus status = store::ItemStatus::kPending;
  Code code = Code::kOk;
  int io_errno = 0;
  uint64_t bytes = 0;
  std::string text;

  static ItemOutcome of(const store::ItemResult& result, std::string text);
  bool succeeded() const {
    return status != store::ItemStatus::kPending && status != store::ItemStatus::kMiss &&
           status != store::ItemStatus::kError;
  }
  Status to_status() const { return status == store::ItemStatus::kError ? Status(code, text, io_errno) : Status(); }
};

class QueueHandle;

class JobHandle {
 public:
  // The handle of a job: the one that exists, so that draining gives back the object that submitting gave.
  static std::shared_ptr<JobHandle> of(store::JobRef job);
  ~JobHandle();

  // What must live until the job is done.
  void hold(std::shared_ptr<store::Store> store, std::unique_ptr<Buffers> buffers);

  uint64_t id() const { return job_->id(); }
  uint64_t tag() const { return job_->tag(); }
  uint32_t size() const { return job_->size(); }
  const void* key() const { return job_.get(); }
  bool complete() const { return job_->done(); }
  bool done();                                // the same; gives the buffers back when it is
  bool wait(uint64_t timeout_ns);             // without the GIL; signal handlers run meanwhile on the main thread
  void cancel(std::optional<uint32_t> item);  // -1: all
  void notify(const QueueHandle& queue);
  void refuse_abandoned() const;  // raises when the pool was closed with pieces of the job in the device
  ItemOutcome result(uint32_t item) const;
  uint64_t elapsed_ns();
  // The pieces may be in flight for ever: never gives the buffers back.
  void leak();

 private:
  explicit JobHandle(store::JobRef job);
  void refuse_fork() const;

  store::JobRef job_;
  std::shared_ptr<store::Store> store_;  // until done: a job in flight needs its store
  std::unique_ptr<Buffers> buffers_;
  std::shared_ptr<store::CompletionQueue> notified_;  // the only one that notify() may be given
  uint64_t fork_generation_;
};

// The handles of a pool's jobs that were not seen done yet.
class InFlight {
 public:
  void add(std::shared_ptr<JobHandle> job);
  // Looks at a few, round robin: two for each one added, so that the table stays as large as what really is in flight.
  void sweep_some();
  void sweep_all();
  size_t size() const { return jobs_.size(); }
  // Those not done are leaked on purpose.
  void abandon();

 private:
  using Jobs = std::list<std::shared_ptr<JobHandle>>;
  Jobs jobs_;
  Jobs::iterator next_ = jobs_.end();
};

class QueueHandle {
 public:
  QueueHandle();
  ~QueueHandle();
  int event_fd() const;
  std::vector<std::shared_ptr<JobHandle>> drain(uint32_t limit);
  const std::shared_ptr<store::CompletionQueue>& queue() const;

 private:
  std::shared_ptr<store::CompletionQueue> queue_;
  uint64_t fork_generation_;
};

// Throws ClosedError in a process other than the one of `generation`.
void refuse_forked_child(uint64_t generation, const char* what);

nb::list outcomes(const JobHandle& job);
void bind_jobs(nb::module_& module);

}  // namespace kvstore::binding
