// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: many threads may use one store while it commits, reclaims and closes: hits are right, every call and every job
// ends, and ThreadSanitizer finds nothing.
// Method: real files with both kinds of queue, and simulated disks, small enough that regions are reclaimed all the
// time. How far the threads get is counted in operations, not in time.

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <thread>

#include "device/test_devices.h"
#include "store/format_device.h"
#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

constexpr uint64_t kBlockBytes[] = {5'000, 64 * kKiB, 200'000, kMiB + 100};

uint64_t size_of(int number) { return kBlockBytes[static_cast<size_t>(number) % std::size(kBlockBytes)]; }

Name name_of(int thread, int number) {
  return {"thread " + std::to_string(thread) + " key " + std::to_string(number), number % 3 == 0 ? "salt" : "", 0};
}

// One thread's work: puts its own keys, reads them and others', deletes some.
class Worker {
 public:
  Worker(Store& store, SpaceId space, int thread) : store_(store), space_(space), thread_(thread) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      put(i);
      get(thread_, i / 2, {1, i % 3 == 0 ? 64u : 0u});
      get((thread_ + 1) % 4, i, {});
      if (i % 5 == 0) erase(i / 3);
      if (i % 7 == 0) pin(i);
      if (i % 11 == 0) prefetch(i);
      if (i % 13 == 0) (void)store_.numbers();
      if (i % 17 == 0) flush();
      if (i % 31 == 0) list();
    }
  }
  uint64_t hits() const { return hits_; }

 private:
  // Closing under way is an answer too.
  static void expect_ended(const Status& status) {
    EXPECT_TRUE(status.ok() || status.code() == Code::kClosed) << status.to_string();
  }
  void flush() { expect_ended(store_.flush(60'000'000'000)); }

  void put(int number) {
    const Name name = name_of(thread_, number);
    Buffers buffers(size_of(number), {1, number % 4 == 0 ? 8u : 0u});
    buffers.fill(name, 1);
    PutItem item;
    item.space = space_;
    item.salt = name.salt;
    item.key = name.key;
    item.segments = buffers.segments();
    item.segment_count = buffers.segment_count();
    item.page_hashes = number % 6 == 0;
    auto job = store_.put({&item, 1}, {.durable = number % 9 == 0}, nullptr);
    if (!job.ok()) return expect_ended(job.status());
    job.value()->wait(UINT64_MAX);
    const ItemResult& result = job.value()->result(0);
    EXPECT_TRUE(result.succeeded() || result.code == Code::kCanceled) << job.value()->error_text(0);
  }
  void get(int thread, int number, const Layout& layout) {
    const Name name = name_of(thread, number);
    Buffers buffers(size_of(number), layout);
    const GetItem item{space_, name.salt, name.key, buffers.segments(), buffers.segment_count(), 0, kWholeBlock};
    ItemResult result;
    if (number % 2 == 0) {
      result = store_.get_one(item);
    } else {
      auto job = store_.get({&item, 1}, {}, nullptr);
      if (!job.ok()) return expect_ended(job.status());
      job.value()->wait(UINT64_MAX);
      result = job.value()->result(0);
    }
    if (result.status == ItemStatus::kHit) {
      ++hits_;
      EXPECT_EQ(result.bytes, size_of(number));
      EXPECT_TRUE(buffers.holds(name, 1, 0, size_of(number))) << "WRONG BYTES of " << name.text();
    } else {
      const bool fine =
          result.status == ItemStatus::kMiss || result.code == Code::kCanceled || result.code == Code::kClosed;
      EXPECT_TRUE(fine) << code_name(result.code);
    }
    EXPECT_TRUE(buffers.guards_intact());
  }
  void erase(int number) {
    const Name name = name_of(thread_, number);
    const KeyRef key{space_, name.salt, name.key};
    auto results = store_.erase({&key, 1});
    expect_ended(results.status());
  }
  void pin(int number) {
    const Name name = name_of(thread_, number);
    const KeyRef key{space_, name.salt, name.key};
    if (store_.match_prefix({&key, 1}, true) == 1) {
      get(thread_, number, {});
      store_.unpin({&key, 1});
    }
  }
  void prefetch(int number) {
    const Name name = name_of(thread_, number);
    const KeyRef key{space_, name.salt, name.key};
    auto job = store_.prefetch({&key, 1}, {}, nullptr);
    if (job.ok()) job.value()->wait(UINT64_MAX);
    get(thread_, number, {});
  }
  void list() {
    expect_ended(store_.list_blocks([](const std::string&, const BlockInfo&) { return true; }));
  }

  Store& store_;
  SpaceId space_;
  int thread_;
  uint64_t hits_ = 0;
};

void run_workers(Store& store, int operations, bool close_under_them) {
  const SpaceId space = store.register_space(SimStore::space_json(0)).value();
  auto feed = store.subscribe_evictions(1u << 20);
  std::vector<Worker> workers;
  for (int t = 0; t < 4; ++t) workers.emplace_back(store, space, t);
  std::atomic<int> running{0};
  std::vector<std::thread> threads;
  for (Worker& worker : workers) {
    threads.emplace_back([&] {
      ++running;
      worker.run(operations);
    });
  }
  if (close_under_them) {
    // The first number: hits. One of each worker may be counted there and end as canceled.
    while (running < 4 || store.numbers()[0].second < 24) std::this_thread::yield();
    const Status status = store.close(60'000'000'000);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t hits = 0;
  for (const Worker& worker : workers) hits += worker.hits();
  EXPECT_GE(hits, 20u);
  if (!close_under_them) {
    EXPECT_GT(feed->drain(UINT32_MAX).size(), 0u) << "small enough to reclaim";
    EXPECT_TRUE(store.close(60'000'000'000).ok());
  }
}

// ---- real files ------------------------------------------------------------------------------------------------

class OnAFile : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "uring" && !device::uring_available().ok()) {
      GTEST_SKIP() << "io_uring: " << device::uring_available().to_string();
    }
    FormatOptions format;
    format.region_bytes = 4 * kMiB;
    format.min_block_bytes = 64 * kKiB;
    format.device_kind = GetParam();
    auto formatted = format_pool({file_.path()}, format, system_clock(), system_random());
    if (!formatted.ok() && formatted.status().code() == Code::kUnsupported) {
      GTEST_SKIP() << formatted.status().to_string();
    }
    ASSERT_TRUE(formatted.ok()) << formatted.status().to_string();
  }
  std::unique_ptr<Store> open() {
    StoreOptions options;
    options.device_kind = GetParam();
    options.staging_bytes = 8 * kMiB;
    options.prefetch_bytes = 8 * kMiB;
    auto store = Store::open({file_.path()}, options);
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return store.ok() ? std::move(store).value() : nullptr;
  }
  device::TempFile file_{96 * kMiB};
};

TEST_P(OnAFile, ManyThreadsPutGetAndDeleteUnderReclaim) {
  for (int opening = 0; opening < 2; ++opening) {
    auto store = open();
    ASSERT_NE(store, nullptr);
    run_workers(*store, 60, false);
  }
}

TEST_P(OnAFile, CloseWaitsForWhoIsInsideAndRefusesTheRest) {
  auto store = open();
  ASSERT_NE(store, nullptr);
  run_workers(*store, 60, true);
  store.reset();
  store = open();
  ASSERT_NE(store, nullptr);
  for (const auto& [name, value] : store->numbers()) {
    EXPECT_TRUE(name != "recovery_regions_open_found" || value == 0) << "closed cleanly";
  }
}

TEST_P(OnAFile, ABlockedWaiterWakesWhenItsJobIsDone) {
  auto store = open();
  ASSERT_NE(store, nullptr);
  const SpaceId space = store->register_space("{}").value();
  auto queue = CompletionQueue::create();
  Buffers buffers(kMiB, {});
  for (int i = 0; i < 50; ++i) {
    const std::string text = std::to_string(i);
    PutItem item;
    item.space = space;
    item.key = text;
    item.segments = buffers.segments();
    item.segment_count = 1;
    JobRef job = store->put({&item, 1}, {}, queue).value();
    std::thread waiter([job]() mutable { EXPECT_TRUE(job->wait(60'000'000'000)); });
    pollfd poll_fd{queue->event_fd(), POLLIN, 0};
    EXPECT_EQ(poll(&poll_fd, 1, 60'000), 1);
    EXPECT_EQ(queue->drain(10).size(), 1u);
    waiter.join();
    EXPECT_TRUE(job->result(0).succeeded());
  }
}

TEST_P(OnAFile, MemoryIsRegisteredAndReleasedUnderLoad) {
  auto store = open();
  ASSERT_NE(store, nullptr);
  const SpaceId space = store->register_space(SimStore::space_json(0)).value();
  std::atomic<bool> done{false};
  std::thread load([&] {
    Worker(*store, space, 0).run(40);
    done = true;
  });
  AlignedBuffer arena(kMiB);
  for (int i = 0; i < 10 || !done; ++i) {
    auto memory = store->allocate(64 * kKiB);
    ASSERT_TRUE(memory.ok()) << memory.status().to_string();
    (void)store->register_memory(arena.data(), arena.size());
    std::memset(memory.value(), i, 64 * kKiB);
    EXPECT_TRUE(store->release(memory.value()).ok());
    (void)store->unregister_memory(arena.data());
  }
  load.join();
}

INSTANTIATE_TEST_SUITE_P(Kinds, OnAFile, ::testing::Values("uring", "threads"),
                         [](const auto& kind) { return std::string(kind.param); });

// ---- simulated disks under real threads ------------------------------------------------------------------------

class OnSimulatedDisks : public ::testing::Test {
 protected:
  std::unique_ptr<Store> open(uint32_t count) {
    std::vector<device::Device*> pointers;
    std::vector<std::unique_ptr<device::Device>> devices;
    for (uint32_t i = 0; i < count; ++i) {
      disks_.push_back(std::make_unique<device::SimDisk>(device_bytes_for(16, 2 * kMiB, 64 * kKiB), 100 + i));
      devices.push_back(device::make_sim_device(*disks_.back(), {}, system_clock()));
      pointers.push_back(devices.back().get());
    }
    FormatOptions format;
    format.region_bytes = 2 * kMiB;
    format.min_block_bytes = 64 * kKiB;
    EXPECT_TRUE(format_devices(pointers, format, system_clock(), system_random()).ok());
    StoreOptions options;
    options.staging_bytes = 8 * kMiB;
    options.prefetch_bytes = 8 * kMiB;
    options.engine_threads = count;
    options.heartbeat_ns = 100'000'000;  // a device that is gone is given up after ten
    auto store = Store::open_devices(std::move(devices), options);
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return store.ok() ? std::move(store).value() : nullptr;
  }
  std::vector<std::unique_ptr<device::SimDisk>> disks_;
};

TEST_F(OnSimulatedDisks, AnEngineAndAKeeperForEachOfThreeDevices) {
  auto store = open(3);
  ASSERT_NE(store, nullptr);
  run_workers(*store, 80, false);
}

// I11 is for what is in the device: taking items off that never got there may last longer than that is waited for.
TEST_F(OnSimulatedDisks, ACloseThatTimesOutOverALargeBatchLeavesNothingBehind) {
#ifdef __SANITIZE_THREAD__
  constexpr size_t kItems = 20'000;  // as long under ThreadSanitizer
#else
  constexpr size_t kItems = 300'000;
#endif
  auto store = open(1);
  ASSERT_NE(store, nullptr);
  const SpaceId space = store->register_space(SimStore::space_json(0)).value();
  AlignedBuffer block(kPageBytes);
  const iovec segment{block.data(), kPageBytes};
  std::vector<std::string> keys(kItems);
  std::vector<PutItem> items(kItems);
  for (size_t i = 0; i < kItems; ++i) {
    keys[i] = std::to_string(i);
    items[i].space = space;
    items[i].key = keys[i];
    items[i].segments = &segment;
    items[i].segment_count = 1;
  }
  JobRef job = store->put(items, {}, nullptr).value();
  const Status status = store->close(0);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(job->done());
}

TEST_F(OnSimulatedDisks, JobsAreCanceledFromOtherThreadsWhileTheyRun) {
  auto store = open(2);
  ASSERT_NE(store, nullptr);
  const SpaceId space = store->register_space(SimStore::space_json(0)).value();
  std::vector<std::unique_ptr<Buffers>> buffers;
  std::vector<std::string> keys;
  std::vector<PutItem> items;
  for (int i = 0; i < 30; ++i) {
    keys.push_back(std::to_string(i));
    buffers.push_back(std::make_unique<Buffers>(size_of(i), Layout{}));
    buffers.back()->fill({keys.back(), "", 0}, 1);
  }
  for (int i = 0; i < 30; ++i) {
    PutItem& item = items.emplace_back();
    item.space = space;
    item.key = keys[static_cast<size_t>(i)];
    item.segments = buffers[static_cast<size_t>(i)]->segments();
    item.segment_count = 1;
  }
  for (int round = 0; round < 40; ++round) {
    JobRef put = store->put(items, {}, nullptr).value();
    std::vector<GetItem> gets;
    std::vector<std::unique_ptr<Buffers>> targets;
    for (int i = 0; i < 30; ++i) {
      targets.push_back(std::make_unique<Buffers>(size_of(i), Layout{1, i % 2 == 0 ? 64u : 0u}));
      gets.push_back({space, {}, keys[static_cast<size_t>(i)], targets.back()->segments(), 1, 0, kWholeBlock});
    }
    JobRef get = store->get(gets, {}, nullptr).value();
    std::thread canceler([put, get, round]() mutable {
      put->cancel_item(static_cast<uint32_t>(round % 30));
      get->cancel();
      if (round % 3 == 0) put->cancel();
    });
    ASSERT_TRUE(put->wait(60'000'000'000));
    ASSERT_TRUE(get->wait(60'000'000'000));
    canceler.join();
    for (uint32_t i = 0; i < 30; ++i) {
      if (get->result(i).status != ItemStatus::kHit) continue;
      EXPECT_TRUE(targets[i]->holds({keys[i], "", 0}, 1, 0, size_of(static_cast<int>(i)))) << i;
    }
  }
  EXPECT_TRUE(store->close(60'000'000'000).ok());
}

// The keeper's write hangs: who waits for it is answered in time, and what waited is durable once the device moves on.
TEST_F(OnSimulatedDisks, AFlushOfADeviceThatHangsEndsInItsTime) {
  auto store = open(1);
  ASSERT_NE(store, nullptr);
  const SpaceId space = store->register_space(SimStore::space_json(0)).value();
  Buffers buffers(100'000, {});
  buffers.fill({"a", "", 0}, 1);
  PutItem item;
  item.space = space;
  item.key = "a";
  item.segments = buffers.segments();
  item.segment_count = 1;
  JobRef put = store->put({&item, 1}, {}, nullptr).value();
  ASSERT_TRUE(put->wait(60'000'000'000));
  disks_[0]->add_rule(rule_of(device::SimFault::kStuck, device::IoOp::kFlush, 0, UINT64_MAX, kForEver));
  item.key = "b";
  put = store->put({&item, 1}, {.durable = true}, nullptr).value();
  const Status status = store->flush(50'000'000);
  EXPECT_EQ(status.code(), Code::kTimeout) << status.to_string();
  EXPECT_FALSE(put->done());
  disks_[0]->clear_rules();
  disks_[0]->release_stuck();
  ASSERT_TRUE(put->wait(60'000'000'000));
  EXPECT_EQ(put->result(0).status, ItemStatus::kStored);
  EXPECT_TRUE(store->flush(60'000'000'000).ok());
  EXPECT_TRUE(store->close(60'000'000'000).ok());
}

TEST_F(OnSimulatedDisks, CloseOfADeviceThatHangsEndsAndSaysSo) {
  auto store = open(1);
  ASSERT_NE(store, nullptr);
  const SpaceId space = store->register_space(SimStore::space_json(0)).value();
  Buffers buffers(100'000, {});
  buffers.fill({"a", "", 0}, 1);
  PutItem item;
  item.space = space;
  item.key = "a";
  item.segments = buffers.segments();
  item.segment_count = 1;
  disks_[0]->add_rule(rule_of(device::SimFault::kStuck, device::IoOp::kFlush, 0, UINT64_MAX, kForEver));
  JobRef put = store->put({&item, 1}, {}, nullptr).value();
  ASSERT_TRUE(put->wait(60'000'000'000));
  const uint64_t started_ns = system_clock().monotonic_ns();
  EXPECT_FALSE(store->close(100'000'000).ok());
  EXPECT_LT(system_clock().monotonic_ns() - started_ns, 20'000'000'000u) << "the io_timeout is thirty seconds";
  EXPECT_FALSE(store->is_open());
  disks_[0]->release_stuck();
}

// Memory that a stuck read may still use by its number stays registered; whoever registers more is told.
TEST_F(OnSimulatedDisks, MemoryIsNotRegisteredWhileARequestIsStuck) {
  auto store = open(1);
  ASSERT_NE(store, nullptr);
  const SpaceId space = store->register_space(SimStore::space_json(0)).value();
  Buffers buffers(100'000, {});
  buffers.fill({"a", "", 0}, 1);
  PutItem item;
  item.space = space;
  item.key = "a";
  item.segments = buffers.segments();
  item.segment_count = 1;
  ASSERT_TRUE(store->put({&item, 1}, {.durable = true}, nullptr).value()->wait(60'000'000'000));
  const KeyRef ref{space, {}, "a"};
  const BlockInfo info = store->describe({&ref, 1}).value()[0];
  disks_[0]->add_rule(rule_of(device::SimFault::kStuck, device::IoOp::kRead, info.offset_bytes, info.offset_bytes + 1));
  Buffers target(100'000, {});
  const GetItem wanted{space, {}, "a", target.segments(), 1, 0, kWholeBlock};
  JobRef get = store->get({&wanted, 1}, {}, nullptr).value();
  while (disks_[0]->stuck_count() == 0) std::this_thread::yield();
  AlignedBuffer arena(kMiB);
  const Status status = store->register_memory(arena.data(), arena.size());
  EXPECT_EQ(status.code(), Code::kUnsupported) << status.to_string();
  EXPECT_NE(status.message().find("stuck"), std::string::npos) << status.message();
  EXPECT_FALSE(get->done());
  disks_[0]->release_stuck();
  ASSERT_TRUE(get->wait(60'000'000'000));
  EXPECT_TRUE(target.holds({"a", "", 0}, 1, 0, 100'000));
  EXPECT_TRUE(store->close(60'000'000'000).ok());
}

TEST_F(OnSimulatedDisks, ADeviceThatDiesUnderLoadAnswersEveryCall) {
  auto store = open(1);
  ASSERT_NE(store, nullptr);
  const SpaceId space = store->register_space(SimStore::space_json(0)).value();
  Buffers buffers(100'000, {});
  std::atomic<uint64_t> ended{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 60; ++i) {
        const std::string text = std::to_string(t) + "-" + std::to_string(i);
        Buffers mine(100'000, {});
        mine.fill({text, "", 0}, 1);
        PutItem item;
        item.space = space;
        item.key = text;
        item.segments = mine.segments();
        item.segment_count = 1;
        JobRef put = store->put({&item, 1}, {.durable = i % 4 == 0}, nullptr).value();
        EXPECT_TRUE(put->wait(60'000'000'000));
        const GetItem get{space, {}, text, mine.segments(), 1, 0, kWholeBlock};
        const ItemResult result = store->get_one(get);
        EXPECT_TRUE(result.status != ItemStatus::kHit || mine.holds({text, "", 0}, 1, 0, 100'000));
        (void)store->flush(60'000'000'000);
        if (++ended == 60) disks_[0]->stop_after(0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended, 180u);
  EXPECT_FALSE(store->close(10'000'000'000).ok());
}

}  // namespace
}  // namespace kvstore::store
