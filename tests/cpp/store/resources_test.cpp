// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what is taken is given back, whatever went wrong: staging buffers, pins, job slots, puts in flight, pieces,
// prefetched bytes, file descriptors, memory.
// Method: 100,000 mixed operations while one device request in twenty fails and jobs are canceled, then a look at the
// numbers when all is quiet; memory is compared with what it was after the first tenth. On a simulated disk with every
// kind of failure, and on a file through real rings and threads.

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <filesystem>
#include <fstream>
#include <thread>

#include "device/test_devices.h"
#include "store/failing_device.h"
#include "store/format_device.h"
#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

constexpr uint64_t kOperations = 100'000;
constexpr const char* kGivenBack[] = {"staging_buffers_out", "pins",           "regions_pinned",
                                      "jobs_in_flight",      "puts_in_flight", "pieces_in_flight"};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryIsTheStores = false;  // shadow and quarantine grow
#else
constexpr bool kMemoryIsTheStores = true;
#endif

struct Taken {
  int64_t heap_bytes;
  int64_t resident_bytes;
  int64_t descriptors;
};

Taken taken_now() {
  const auto heap = mallinfo2();
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages >> pages;
  const auto entries = std::filesystem::directory_iterator("/proc/self/fd");
  return {static_cast<int64_t>(heap.uordblks + heap.hblkhd), pages * getpagesize(),
          std::distance(begin(entries), end(entries))};
}

// Fragmentation and caches that fill up late are allowed for; a leak of 100 bytes an operation is not.
void expect_no_more_than(const Taken& before, const Taken& now, const char* when) {
  EXPECT_EQ(now.descriptors, before.descriptors) << when;
  if (!kMemoryIsTheStores) return;
  EXPECT_LE(now.heap_bytes, before.heap_bytes + int64_t{2 * kMiB}) << when;
  EXPECT_LE(now.resident_bytes, before.resident_bytes + int64_t{16 * kMiB}) << when;
}

// ---- a simulated disk ------------------------------------------------------------------------------------------

class MixedLoad {
 public:
  explicit MixedLoad(SimStore& sim) : sim_(sim) { sim_.allow_misses(true); }

  void run(uint64_t operations) {
    for (uint64_t i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      if (i % 100 == 0) add_faults();
      act();
      for (uint64_t step = 0; step < random_.below(5); ++step) sim_.store().step();
      finish_done();
      while (pinned_.size() > 3) {
        const KeyRef ref = sim_.ref(pinned_.front());
        sim_.store().unpin({&ref, 1});
        pinned_.pop_front();
      }
      if (pending_.size() > 50) {
        sim_.disk().release_stuck();
        sim_.run_until([&] { return pending_.front().job->done(); });
      }
    }
  }
  // All is answered, and leases, quarantines and time-outs are over.
  void settle() {
    sim_.disk().clear_rules();
    sim_.disk().release_stuck();
    for (auto& one : pending_) sim_.finish(one);
    for (JobRef& job : prefetches_) sim_.run_until([&] { return job->done(); });
    pending_.clear();
    prefetches_.clear();
    sim_.advance_ns(400'000'000'000);
    sim_.run_idle();
    (void)sim_.disk().take_hits();
  }
  uint64_t canceled() const { return canceled_; }

 private:
  Name name() { return {"key " + std::to_string(random_.below(300)), random_.below(3) == 0 ? "salt" : "", 0}; }
  Layout layout() { return {1, static_cast<uint32_t>(random_.below(2) * 64)}; }

  // Of the next 400 requests of a kind about twenty are hit.
  void add_faults() {
    sim_.disk().clear_rules();
    sim_.disk().release_stuck();
    sim_.disk().land_ghosts();
    for (int i = 0; i < 20; ++i) {
      const SimFault faults[] = {SimFault::kError, SimFault::kShort,  SimFault::kAgain, SimFault::kErrorAfterWrite,
                                 SimFault::kStuck, SimFault::kBitRot, SimFault::kGhost, SimFault::kAgainAfterPart};
      const SimFault fault = faults[random_.below(std::size(faults))];
      const IoOp op = fault == SimFault::kBitRot || random_.below(2) == 0 ? IoOp::kRead : IoOp::kWrite;
      const uint64_t value = fault == SimFault::kStuck || fault == SimFault::kGhost ? 0 : 512 * random_.below(8);
      sim_.disk().add_rule(rule_of(fault, op, format::kMetadataOffset, sim_.geometry().device_bytes - kPageBytes, 1,
                                   random_.below(400), value));
    }
  }
  void act() {
    switch (random_.below(9)) {
      case 0:
      case 1: return put();
      case 2:
      case 3: return get();
      case 4: return prefetch();
      case 5: {
        const Name one = name();
        if (!sim_.has_put_in_flight(one) && sim_.was_put(one)) sim_.erase(one);
        return;
      }
      case 6: {
        pinned_.push_back(name());
        const KeyRef ref = sim_.ref(pinned_.back());
        sim_.store().match_prefix({&ref, 1}, true);
        return;
      }
      case 7: {
        if (pending_.empty()) return;
        pending_[random_.below(pending_.size())].job->cancel();
        ++canceled_;
        return;
      }
      case 8: return sim_.advance_ns(random_.below(30'000'000));
    }
  }
  void put() {
    std::vector<std::pair<Name, uint64_t>> blocks;
    for (uint64_t i = 0; i <= random_.below(5); ++i) {
      const Name one = name();
      blocks.emplace_back(one, 1 + one.key.size() * 8'000 % 90'000);
    }
    pending_.push_back(sim_.start_put(
        blocks, {.durable = random_.below(4) == 0, .page_hashes = random_.below(3) == 0, .layout = layout()}));
  }
  void get() {
    std::vector<Name> names;
    for (uint64_t i = 0; i <= random_.below(8); ++i) names.push_back(name());
    const uint64_t deadline_ns = random_.below(4) == 0 ? 1'000'000 : uint64_t{0};
    pending_.push_back(sim_.start_get(names, layout(), {.deadline_ns = deadline_ns}));
  }
  void prefetch() {
    const std::vector<Name> names = {name(), name(), name()};
    std::vector<KeyRef> refs;
    for (const Name& one : names) refs.push_back(sim_.ref(one));
    prefetches_.push_back(sim_.store().prefetch(refs, {}, nullptr).value());
  }
  void finish_done() {
    for (size_t i = 0; i < pending_.size();) {
      if (!pending_[i].job->done()) {
        ++i;
        continue;
      }
      SimStore::Pending done = std::move(pending_[i]);
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      sim_.finish(done);
    }
    std::erase_if(prefetches_, [](const JobRef& job) { return job->done(); });
  }

  SimStore& sim_;
  SeededRandom random_{42};
  std::vector<SimStore::Pending> pending_;
  std::vector<JobRef> prefetches_;
  std::deque<Name> pinned_;
  uint64_t canceled_ = 0;
};

TEST(Resources, NothingIsLeftOutAfterAHundredThousandOperationsWithFaultsAndCancels) {
  SimSetup setup;
  setup.regions = 16;
  setup.region_bytes = kMiB;
  setup.min_block_bytes = 16 * kKiB;
  setup.store.failures_max = 1'000'000'000;
  setup.store.io_timeout_ns = 1'000'000'000;
  setup.store.quarantine_ns = 1'000'000'000;
  SimStore sim(setup);
  ASSERT_TRUE(sim.open().ok());
  MixedLoad load(sim);
  load.run(kOperations / 10);
  load.settle();
  const Taken before = taken_now();
  load.run(kOperations - kOperations / 10);
  load.settle();
  expect_no_more_than(before, taken_now(), "after the other nine tenths");
  for (const char* resource : kGivenBack) EXPECT_EQ(sim.number(resource), 0) << resource;
  EXPECT_LE(sim.number("prefetch_bytes"), static_cast<double>(sim.options().prefetch_bytes));
  EXPECT_EQ(sim.number("regions_free") + sim.number("regions_open") + sim.number("regions_sealed") +
                sim.number("regions_quarantined"),
            sim.number("regions"));
  EXPECT_GT(sim.number("io_retries") + sim.number("read_errors") + sim.number("write_errors"), 1'000);
  EXPECT_GT(load.canceled(), 1'000u);
  (void)sim.try_flush();  // tells of what the faults have lost
  // And it still works.
  sim.allow_misses(false);
  EXPECT_EQ(sim.put({"after", "", 0}, 50'000, {.durable = true}).status, ItemStatus::kStored);
  EXPECT_TRUE(sim.get({"after", "", 0}).succeeded());
  EXPECT_TRUE(sim.close().ok());
}

// ---- a file ----------------------------------------------------------------------------------------------------

class FileLoad {
 public:
  explicit FileLoad(Store& store) : store_(store), space_(store.register_space("{}").value()) {}

  void run(uint64_t operations) {
    for (uint64_t i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      act();
      while (pending_.size() > 32) finish_first();
    }
  }
  void settle() {
    while (!pending_.empty()) finish_first();
    for (const std::string& key : pinned_) unpin(key);
    pinned_.clear();
    (void)store_.flush(60'000'000'000);  // tells of what the faults have lost
  }
  uint64_t hits() const { return hits_; }
  uint64_t canceled() const { return canceled_; }

 private:
  struct Pending {
    JobRef job;
    std::vector<std::string> keys;
    std::vector<std::unique_ptr<Buffers>> buffers;  // of gets: none
    bool is_get = false;
  };

  std::string key() { return "key " + std::to_string(random_.below(400)); }
  static uint64_t size_of(const std::string& key) { return 1 + std::hash<std::string>()(key) % 20'000; }
  KeyRef ref(const std::string& key) const { return {space_, {}, key}; }

  void act() {
    switch (random_.below(8)) {
      case 0:
      case 1: return put();
      case 2:
      case 3: return get();
      case 4: {
        Pending& one = pending_.emplace_back();
        one.keys = {key(), key(), key()};
        std::vector<KeyRef> refs;
        for (const std::string& each : one.keys) refs.push_back(ref(each));
        one.job = store_.prefetch(refs, {}, nullptr).value();
        return;
      }
      case 5: {
        const std::string one = key();
        const KeyRef wanted = ref(one);
        ASSERT_TRUE(store_.erase({&wanted, 1}).ok());
        return;
      }
      case 6: {
        const std::string one = key();
        const KeyRef wanted = ref(one);
        if (store_.match_prefix({&wanted, 1}, true) == 1) pinned_.push_back(one);
        if (pinned_.size() <= 3) return;
        unpin(pinned_.front());
        pinned_.pop_front();
        return;
      }
      case 7: {
        if (pending_.empty()) return;
        pending_[random_.below(pending_.size())].job->cancel();
        ++canceled_;
        return;
      }
    }
  }
  void put() {
    Pending one;
    std::vector<PutItem> items;
    for (uint64_t i = 0; i <= random_.below(3); ++i) {
      one.keys.push_back(key());
      auto& buffers = one.buffers.emplace_back(std::make_unique<Buffers>(size_of(one.keys.back()), layout()));
      buffers->fill({one.keys.back(), "", 0}, 1);
    }
    for (size_t i = 0; i < one.keys.size(); ++i) {
      PutItem& item = items.emplace_back();
      item.space = space_;
      item.key = one.keys[i];
      item.segments = one.buffers[i]->segments();
      item.segment_count = one.buffers[i]->segment_count();
    }
    one.job = store_.put(items, {.durable = random_.below(20) == 0}, nullptr).value();
    pending_.push_back(std::move(one));
  }
  void get() {
    Pending one;
    one.is_get = true;
    std::vector<GetItem> items;
    for (uint64_t i = 0; i <= random_.below(4); ++i) {
      one.keys.push_back(key());
      one.buffers.push_back(std::make_unique<Buffers>(size_of(one.keys.back()), layout()));
    }
    for (size_t i = 0; i < one.keys.size(); ++i) {
      const Buffers& buffers = *one.buffers[i];
      items.push_back({space_, {}, one.keys[i], buffers.segments(), buffers.segment_count(), 0, kWholeBlock});
    }
    const uint64_t deadline_ns = random_.below(4) == 0 ? 1 + random_.below(300'000) : 0;
    one.job = store_.get(items, {.deadline_ns = deadline_ns}, nullptr).value();
    pending_.push_back(std::move(one));
  }
  void finish_first() {
    Pending one = std::move(pending_.front());
    pending_.pop_front();
    ASSERT_TRUE(one.job->wait(60'000'000'000));
    for (uint32_t i = 0; one.is_get && i < one.keys.size(); ++i) {
      if (one.job->result(i).status != ItemStatus::kHit) continue;
      ++hits_;
      EXPECT_TRUE(one.buffers[i]->holds({one.keys[i], "", 0}, 1, 0, size_of(one.keys[i]))) << one.keys[i];
    }
  }
  void unpin(const std::string& key) {
    const KeyRef pinned = ref(key);
    store_.unpin({&pinned, 1});
  }
  Layout layout() { return {1, static_cast<uint32_t>(random_.below(2) * 64)}; }

  Store& store_;
  SpaceId space_;
  SeededRandom random_{7};
  std::deque<Pending> pending_;
  std::deque<std::string> pinned_;
  uint64_t hits_ = 0;
  uint64_t canceled_ = 0;
};

double number_of(const Store& store, const std::string& wanted) {
  for (const auto& [name, value] : store.numbers()) {
    if (name == wanted) return value;
  }
  ADD_FAILURE() << "no number is called " << wanted;
  return -1;
}

class ResourcesOfAFile : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "uring" && !device::uring_available().ok()) {
      GTEST_SKIP() << "io_uring: " << device::uring_available().to_string();
    }
    FormatOptions format;
    format.region_bytes = 2 * kMiB;
    format.min_block_bytes = 16 * kKiB;
    format.device_kind = GetParam();
    auto formatted = format_pool({file_.path()}, format, system_clock(), system_random());
    if (!formatted.ok() && formatted.status().code() == Code::kUnsupported) {
      GTEST_SKIP() << formatted.status().to_string();
    }
    ASSERT_TRUE(formatted.ok()) << formatted.status().to_string();
  }
  std::unique_ptr<Store> open() {
    StoreOptions options;
    options.staging_bytes = 8 * kMiB;
    options.prefetch_bytes = 2 * kMiB;
    options.failures_max = 1'000'000'000;
    options.quarantine_ns = 10'000'000;
    auto device = device::open_device(file_.path(), {.kind = GetParam()}, system_clock());
    if (!device.ok()) return nullptr;
    std::vector<std::unique_ptr<device::Device>> devices;
    devices.push_back(std::make_unique<FailingDevice>(std::move(device).value(), 5, failed_));
    auto store = Store::open_devices(std::move(devices), options);
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return store.ok() ? std::move(store).value() : nullptr;
  }
  device::TempFile file_{80 * kMiB, "/dev/shm"};  // a disk would make this a test of its flushes
  std::atomic<uint64_t> failed_{0};
};

TEST_P(ResourcesOfAFile, NothingIsLeftOutAfterAHundredThousandOperationsWithFailuresAndCancels) {
  const Taken closed = taken_now();
  auto store = open();
  ASSERT_NE(store, nullptr);
  FileLoad load(*store);
  load.run(kOperations / 10);
  load.settle();
  const Taken before = taken_now();
  load.run(kOperations - kOperations / 10);
  load.settle();
  expect_no_more_than(before, taken_now(), "after the other nine tenths");
  // What a deadline or a cancel left behind comes back from the kernel by itself.
  const uint64_t give_up_ns = system_clock().monotonic_ns() + 60'000'000'000;
  for (const char* resource : kGivenBack) {
    while (number_of(*store, resource) > 0 && system_clock().monotonic_ns() < give_up_ns) std::this_thread::yield();
    EXPECT_EQ(number_of(*store, resource), 0) << resource;
  }
  EXPECT_LE(number_of(*store, "prefetch_bytes"), 2.0 * kMiB);
  EXPECT_GT(load.hits(), kOperations / 10);
  EXPECT_GT(load.canceled(), kOperations / 20);
  EXPECT_GT(failed_.load(), kOperations / 50);
  (void)store->close(60'000'000'000);
  store.reset();
  expect_no_more_than(closed, taken_now(), "after close");
}

INSTANTIATE_TEST_SUITE_P(Kinds, ResourcesOfAFile, ::testing::Values("uring", "threads"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace kvstore::store
