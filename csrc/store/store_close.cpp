// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Closing a store.
//
//   jobs end, or are canceled -> callers leave -> threads stop -> devices are marked clean -> the pool is left
//
// It ends at its deadline, and a grace after it. What the device may still write into then is leaked, never freed
// (I11), and the devices stay marked unclean: the next open seals what this one left.

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/mutation.h"
#include "store/store_core.h"

namespace kvstore::store {

namespace {

constexpr uint64_t kStepNs = 1'000'000;
constexpr uint64_t kGraceNs = 100'000'000;  // for what was canceled, and callers inside, to end

class Closing {
 public:
  // `step`: one round of the engines' work, where no threads do it; whether anything was done.
  Closing(StoreCore& core, uint64_t timeout_ns, std::function<bool()> step)
      : core_(core), timeout_ns_(timeout_ns), step_(std::move(step)) {
    const uint64_t now_ns = core_.clock->monotonic_ns();
    until_ns_ = timeout_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + timeout_ns;
  }

  Status run() {
    wait_while([this] { return busy(); }, until_ns_);
    if (busy()) cancel_jobs();
    core_.open.store(false);
    wait_while([this] { return called(); }, std::max(until_ns_, grace_ends_ns()));
    core_.leaked = (busy() && KVS_RULE(I11_close_leaks_what_is_in_the_device)) || called();
    stop_threads();
    if (core_.leaked) {
      abandon();
      return outstanding();
    }
    Status outcome = close_devices();
    if (core_.shared) leave_pool(outcome);
    tell_lost(outcome);
    tear_down();
    return outcome;
  }

 private:
  bool busy() const {
    std::lock_guard lock(core_.jobs_mutex);
    bool pieces = core_.inline_readers->reading() != 0;
    for (const auto& engine : core_.engines) pieces = pieces || !engine->idle();
    return !core_.jobs.empty() || pieces;
  }

  bool called() const { return core_.callers.load() != 0; }

  uint64_t grace_ends_ns() const { return core_.clock->monotonic_ns() + kGraceNs; }

  void wait_while(const std::function<bool()>& condition, uint64_t end_ns) {
    while (condition() && core_.clock->monotonic_ns() < end_ns) {
      if (core_.options.threaded || !step_()) core_.clock->sleep_ns(kStepNs);
    }
  }

  // I11: what is in the device ends when the device says so. The rest is answered now: nobody waits for ever.
  void cancel_jobs() {
    std::vector<JobRef> unfinished;
    {
      std::lock_guard lock(core_.jobs_mutex);
      for (const auto& [id, job] : core_.jobs) unfinished.push_back(job);
    }
    for (JobRef& job : unfinished) {
      static_cast<BatchJob&>(*job.get()).end(Status(Code::kClosed, "the pool was closed before this was done"));
    }
    const auto items_left = [&unfinished] {
      uint64_t items = 0;
      for (const JobRef& job : unfinished) items += static_cast<BatchJob&>(*job.get()).items_left();
      return items;
    };
    // The grace is for the device. To take 100,000 items off lasts longer, and goes on for as long as items end.
    uint64_t before = 0;
    bool was_canceling = false;
    do {
      before = items_left();
      was_canceling = canceling();
      wait_while([this] { return busy(); }, grace_ends_ns());
    } while (busy() && was_canceling && items_left() < before);
  }

  bool canceling() const {
    return std::any_of(core_.engines.begin(), core_.engines.end(),
                       [](const auto& engine) { return engine->cancels_waiting() != 0; });
  }

  void stop_threads() {
    for (auto& engine : core_.engines) core_.leaked ? engine->abandon() : engine->stop();
    for (auto& engine : core_.engines) engine->join();
    if (core_.shared) core_.catalog->release_ready();
    for (auto& keeper : core_.keepers) {
      keeper->stop();
      keeper->join_until(until_ns_);
    }
  }

  void abandon() {
    if (core_.shared) {
      core_.shared->stop(until_ns_);
      (void)core_.shared->leave(false);  // what it owns stays its own while the process lives (S5)
    }
    std::lock_guard lock(core_.jobs_mutex);
    for (const auto& [id, job] : core_.jobs) job->abandon();  // whoever waits for them waits for nothing
  }

  Status outstanding() const {
    std::string names;
    uint32_t count = 0;
    for (auto& engine : core_.engines) {
      for (const std::string& name : engine->describe_in_flight()) {
        if (++count <= 4) names += (names.empty() ? "" : "; ") + name;
      }
    }
    std::lock_guard lock(core_.jobs_mutex);
    return Status(Code::kTimeout,
                  format_text("%zu jobs and %u requests were outstanding after %.1f s (%s); their buffers are leaked "
                              "on purpose, since the device may still write them",
                              core_.jobs.size(), count, static_cast<double>(timeout_ns_) / 1e9, names.c_str()));
  }

  Status close_devices() {
    const auto pass_time = [this] {
      if (core_.options.threaded || !core_.shared->turn()) core_.clock->sleep_ns(kStepNs);
    };
    Status outcome = core_.catalog->usable();
    for (auto& keeper : core_.keepers) {
      if (!core_.catalog->usable().ok()) break;
      Status closed = keeper->close(until_ns_, pass_time);  // each device, whatever becomes of the others
      if (outcome.ok()) outcome = std::move(closed);
    }
    return outcome;
  }

  // Without an answer nothing is lost but deletes: the lease ends by itself, and that this process is gone is seen.
  void leave_pool(Status& outcome) {
    core_.shared->stop(until_ns_);
    const Status left = core_.shared->leave(!core_.catalog->any_write_unknown());
    if (!outcome.ok() || !core_.catalog->deletes_wait()) return;
    outcome = Status(Code::kDurabilityLost, "deletes since the last flush are not in the metadata engine: " +
                                                (left.ok() ? "this opener has no lease" : left.message()));
  }

  void tell_lost(Status& outcome) {
    const uint64_t lost = core_.catalog->take_lost();
    if (lost == 0 || !outcome.ok()) return;
    outcome = Status(Code::kDurabilityLost, format_text("%llu blocks that were reported written were lost before their "
                                                        "descriptor was on the device",
                                                        static_cast<unsigned long long>(lost)));
  }

  void tear_down() {
    core_.torn_down.store(true);
    while (called()) core_.clock->sleep_ns(kStepNs);  // numbers() and the like: none of them waits for anything
    core_.shared.reset();
    core_.keepers.clear();
    core_.staging_pins.clear();  // before what they pin
    core_.engines.clear();
    core_.inline_readers.reset();
    core_.listing_ios.clear();
    core_.devices.clear();
  }

  StoreCore& core_;
  const uint64_t timeout_ns_;
  const std::function<bool()> step_;
  uint64_t until_ns_ = 0;
};

}  // namespace

Status Store::close(uint64_t timeout_ns) {
  StoreCore& core = *core_;
  KVS_TRY(core.check_open());
  {
    std::lock_guard lock(core.jobs_mutex);
    if (std::exchange(core.closing, true)) return Status(Code::kClosed, "the store is being closed");
  }
  return Closing(core, timeout_ns, [this] { return step(); }).run();
}

}  // namespace kvstore::store
