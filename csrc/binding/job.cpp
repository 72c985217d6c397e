// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "binding/job.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <unordered_map>

#include "binding/gil.h"
#include "device/fork_guard.h"

namespace kvstore::binding {
namespace {

// How long the main thread sleeps between two looks at Python's signals.
constexpr uint64_t kSignalSliceNs = 50'000'000;

// Leaked: handles may die after static destructors ran.
std::unordered_map<const store::Job*, std::weak_ptr<JobHandle>>& handles() {
  static auto* const all = new std::unordered_map<const store::Job*, std::weak_ptr<JobHandle>>;  // NOLINT
  return *all;
}

const char* status_word(store::ItemStatus status) {
  switch (status) {
    case store::ItemStatus::kPending: return "pending";
    case store::ItemStatus::kHit: return "hit";
    case store::ItemStatus::kMiss: return "miss";
    case store::ItemStatus::kStored: return "stored";
    case store::ItemStatus::kPresent: return "present";
    case store::ItemStatus::kDeleted: return "deleted";
    case store::ItemStatus::kError: return "error";
  }
  return "error";
}

}  // namespace

void refuse_forked_child(uint64_t generation, const char* what) {
  park_if_exiting();
  if (generation == device::fork_generation()) return;
  throw StatusError(Status(Code::kClosed, std::string(what) +
                                              " belongs to the parent process: a forked child may not use it; open "
                                              "the pool in one process, or start children with spawn"));
}

ItemOutcome ItemOutcome::of(const store::ItemResult& result, std::string text) {
  return {result.status, result.code, result.io_errno, result.bytes, std::move(text)};
}

// ---- JobHandle ----

JobHandle::JobHandle(store::JobRef job) : job_(std::move(job)), fork_generation_(device::fork_generation()) {}

std::shared_ptr<JobHandle> JobHandle::of(store::JobRef job) {
  std::weak_ptr<JobHandle>& known = handles()[job.get()];
  std::shared_ptr<JobHandle> handle = known.lock();
  if (!handle) {
    handle.reset(new JobHandle(std::move(job)));
    known = handle;
  }
  return handle;
}

JobHandle::~JobHandle() {
  const auto found = handles().find(job_.get());
  if (found != handles().end() && found->second.expired()) handles().erase(found);
  // In a forked child the store's threads and locks are copies that nobody runs.
  if (fork_generation_ != device::fork_generation() || !job_->done()) leak();
}

void JobHandle::refuse_abandoned() const {
  if (job_->abandoned() && !job_->done()) {
    check(Status(Code::kClosed, "the pool was closed while the device still had pieces of this job"));
  }
}

void JobHandle::refuse_fork() const { refuse_forked_child(fork_generation_, "this job"); }

void JobHandle::hold(std::shared_ptr<store::Store> store, std::unique_ptr<Buffers> buffers) {
  store_ = std::move(store);
  buffers_ = std::move(buffers);
}

void JobHandle::leak() {
  if (buffers_) buffers_->leak();
  leak_value(store_);
  leak_value(job_);
}

bool JobHandle::done() {
  refuse_fork();
  if (!job_->done()) return false;
  buffers_.reset();
  store_.reset();
  return true;
}

bool JobHandle::wait(uint64_t timeout_ns) {
  refuse_fork();
  const bool sliced = on_main_thread();
  while (!job_->done() && timeout_ns > 0) {
    const uint64_t slice = sliced ? std::min(timeout_ns, kSignalSliceNs) : timeout_ns;
    store::JobRef job = job_;
    without_gil([&] { return job->wait(slice); });
    if (sliced) check_signals();
    refuse_abandoned();
    if (timeout_ns != UINT64_MAX) timeout_ns -= slice;
    if (!sliced) break;
  }
  return done();
}

void JobHandle::cancel(std::optional<uint32_t> item) {
  if (done()) return;
  store::JobRef job = job_;
  without_gil([&] { item ? job->cancel_item(*item) : job->cancel(); });
}

void JobHandle::notify(const QueueHandle& queue) {
  refuse_fork();
  if (notified_ && notified_ != queue.queue()) {
    raise_invalid("job " + std::to_string(id()) + " is awaited by another event loop already");
  }
  notified_ = queue.queue();
  job_->notify(notified_);
}

ItemOutcome JobHandle::result(uint32_t item) const {
  const store::ItemResult& result = job_->result(item);
  return ItemOutcome::of(result, result.status == store::ItemStatus::kError ? job_->error_text(item) : std::string());
}

uint64_t JobHandle::elapsed_ns() { return done() ? job_->elapsed_ns() : 0; }

// ---- InFlight ----

void InFlight::add(std::shared_ptr<JobHandle> job) {
  jobs_.push_back(std::move(job));
  sweep_some();
}

void InFlight::sweep_some() {
  for (int looks = 0; looks < 2 && !jobs_.empty(); ++looks) {
    if (next_ == jobs_.end()) next_ = jobs_.begin();
    const auto here = next_++;
    if (!(*here)->complete()) continue;
    // Giving the buffers back may run Python code that comes back here: unlink the handle before.
    Jobs finished;
    finished.splice(finished.begin(), jobs_, here);
    finished.front()->done();
  }
}

void InFlight::sweep_all() {
  Jobs finished;
  for (auto here = jobs_.begin(); here != jobs_.end();) {
    const auto job = here++;
    if ((*job)->complete()) finished.splice(finished.end(), jobs_, job);
  }
  next_ = jobs_.end();
  for (const std::shared_ptr<JobHandle>& job : finished) job->done();
}

void InFlight::abandon() {
  Jobs rest;
  rest.swap(jobs_);
  next_ = jobs_.end();
  for (const std::shared_ptr<JobHandle>& job : rest) {
    new std::shared_ptr<JobHandle>(job);  // NOLINT: leaked whole; its Python object may live on and see it done
  }
}

// ---- QueueHandle ----

QueueHandle::QueueHandle() : queue_(store::CompletionQueue::create()), fork_generation_(device::fork_generation()) {
  if (!queue_) throw StatusError(Status::from_errno(errno, "eventfd of a completion queue"));
}

QueueHandle::~QueueHandle() {
  if (fork_generation_ != device::fork_generation()) leak_value(queue_);
}

int QueueHandle::event_fd() const {
  refuse_forked_child(fork_generation_, "this completion queue");
  return queue_->event_fd();
}

const std::shared_ptr<store::CompletionQueue>& QueueHandle::queue() const {
  refuse_forked_child(fork_generation_, "this completion queue");
  return queue_;
}

std::vector<std::shared_ptr<JobHandle>> QueueHandle::drain(uint32_t limit) {
  std::vector<std::shared_ptr<JobHandle>> jobs;
  for (store::JobRef& job : queue()->drain(limit)) {
    jobs.push_back(JobHandle::of(std::move(job)));
    jobs.back()->done();
  }
  return jobs;
}

// ---- Python ----

nb::list outcomes(const JobHandle& job) {
  nb::list results;
  for (uint32_t i = 0; i < job.size(); ++i) results.append(job.result(i));
  return results;
}

namespace {

std::string describe(const ItemOutcome& outcome) {
  std::string text =
      "Result(status='" + std::string(status_word(outcome.status)) + "', nbytes=" + std::to_string(outcome.bytes);
  if (outcome.status == store::ItemStatus::kError) {
    text += ", error=" + std::string(code_word(outcome.code)) + ": " + outcome.text;
  }
  return text + ")";
}

nb::object error_of(const ItemOutcome& outcome) {
  if (outcome.status != store::ItemStatus::kError) return nb::none();
  return make_exception(outcome.code, outcome.io_errno, outcome.text);
}

}  // namespace

void bind_jobs(nb::module_& module) {
  nb::class_<ItemOutcome>(module, "Result", nb::is_final(), R"(What became of one item of a job.

Immutable and independent of its job. True when the item succeeded: hit, stored, present or deleted.

Attributes
----------
status : ``"hit"``, ``"miss"``, ``"stored"``, ``"present"`` (was there already), ``"deleted"`` or ``"error"``.
nbytes : bytes moved (hit, stored), the size of the block (present, deleted), or 0.
error : the :class:`kvstore.errors.KvStoreError` of an ``"error"``, else None. Not raised.
code : its machine-readable word, such as ``"io"`` or ``"busy"``; ``"ok"`` without an error.

Examples
--------
>>> pool = kvstore.open(example_pool)
>>> space = pool.space(engine="example", model="none")
>>> job = space.put_many([b"result-1", b"result-2"], [b"abc", b"defg"])
>>> [(result.status, result.nbytes) for result in job.wait()]
[('stored', 3), ('stored', 4)]
>>> bool(space.get_many([b"result-3"], [bytearray(4)]).wait()[0])
False
>>> pool.close()
)")
      .def_prop_ro("status", [](const ItemOutcome& outcome) { return status_word(outcome.status); })
      .def_ro("nbytes", &ItemOutcome::bytes)
      .def_prop_ro("error", error_of)
      .def_prop_ro("code", [](const ItemOutcome& outcome) { return code_word(outcome.code); })
      .def("__bool__", &ItemOutcome::succeeded)
      .def("__repr__", describe);

  nb::class_<JobHandle>(module, "JobHandle", nb::is_final(), nb::is_weak_referenceable())
      .def_prop_ro("id", &JobHandle::id)
      .def_prop_ro("tag", &JobHandle::tag)
      .def_prop_ro("done", &JobHandle::done)
      .def_prop_ro("elapsed_ns", &JobHandle::elapsed_ns)
      .def(
          "wait",
          [](JobHandle& job, nb::object timeout_s) {
            return job.wait(parse_duration_ns(timeout_s, "timeout_s", 1e9, UINT64_MAX));
          },
          nb::arg("timeout_s").none())
      .def(
          "cancel",
          [](JobHandle& job, nb::object item) {
            if (item.is_none()) return job.cancel({});
            job.cancel(static_cast<uint32_t>(parse_u64(item, {"item"}, job.size() - 1)));
          },
          nb::arg("item").none())
      .def("notify", &JobHandle::notify, nb::arg("queue"))
      .def("results",
           [](JobHandle& job) {
             if (!job.done()) {
               job.refuse_abandoned();
               throw StatusError(
                   Status(Code::kTimeout, "job " + std::to_string(job.id()) + " is not done: wait for it"));
             }
             return outcomes(job);
           })
      .def("__len__", &JobHandle::size);

  nb::class_<QueueHandle>(module, "QueueHandle", nb::is_final())
      .def(nb::init<>())
      .def("fileno", &QueueHandle::event_fd)
      .def(
          "drain", [](QueueHandle& self, nb::object limit) { return self.drain(parse_limit(limit)); },
          nb::arg("limit").none());
}

}  // namespace kvstore::binding
