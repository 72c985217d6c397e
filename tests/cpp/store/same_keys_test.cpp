// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: threads that want the same few keys at once, while these are put, deleted, reclaimed, and the store is closed
// and opened again, get right bytes, a miss or a named error; every call and every job ends (I3, I5, I8, I11).
// Method: a simulated disk of few regions under real threads; what a key holds follows from the key. How far threads
// get is counted in operations.

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "store/format_device.h"
#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

constexpr uint64_t kForeverNs = 60'000'000'000;

Name key_of(int number) { return {"key " + std::to_string(number), number % 2 == 0 ? "salt" : "", 0}; }
uint64_t bytes_of(int number) { return 3'000 + static_cast<uint64_t>(number) * 170'000; }

class SameKeys : public ::testing::Test {
 protected:
  void SetUp() override {
    device::Device* const devices[] = {device_.get()};
    FormatOptions format;
    format.region_bytes = 2 * kMiB;
    format.min_block_bytes = 64 * kKiB;
    ASSERT_TRUE(format_devices({devices[0]}, format, system_clock(), system_random()).ok());
    open();
  }
  void open() {
    StoreOptions options;
    options.staging_bytes = 8 * kMiB;
    options.prefetch_bytes = 0;
    std::vector<std::unique_ptr<device::Device>> devices;
    devices.push_back(device::make_sim_device(disk_, {}, system_clock()));
    auto opened = Store::open_devices(std::move(devices), options);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    std::shared_ptr<Store> store = std::move(opened).value();
    const std::lock_guard lock(mutex_);
    const SpaceId space = store->register_space(SimStore::space_json(0)).value();
    if (store_ == nullptr) space_ = space;
    ASSERT_EQ(space_, space) << "the first of every opening";
    store_ = std::move(store);
  }
  std::shared_ptr<Store> store() {
    const std::lock_guard lock(mutex_);
    return store_;
  }

  // Submits and waits. What a store that is being closed answers is an answer.
  void put(int number, bool durable = false) {
    const Name name = key_of(number);
    Buffers buffers(bytes_of(number), {});
    buffers.fill(name, 1);
    PutItem item;
    item.space = space_;
    item.salt = name.salt;
    item.key = name.key;
    item.segments = buffers.segments();
    item.segment_count = 1;
    const auto store = this->store();
    auto job = store->put({&item, 1}, {.durable = durable}, nullptr);
    if (!job.ok()) return expect_closing(job.status().code());
    ASSERT_TRUE(job.value()->wait(kForeverNs));
    const ItemResult result = job.value()->result(0);
    if (!result.succeeded()) expect_closing(result.code);
  }
  bool get(int number) {
    const Name name = key_of(number);
    Buffers buffers(bytes_of(number), {1, number % 3 == 0 ? 64u : 0u});
    const GetItem item{space_, name.salt, name.key, buffers.segments(), 1, 0, kWholeBlock};
    ItemResult result;
    const auto store = this->store();
    if (++gets_ % 2 == 0) {
      result = store->get_one(item);
    } else {
      auto job = store->get({&item, 1}, {}, nullptr);
      if (!job.ok()) {
        expect_closing(job.status().code());
        return false;
      }
      EXPECT_TRUE(job.value()->wait(kForeverNs));
      result = job.value()->result(0);
    }
    if (result.status == ItemStatus::kHit) {
      EXPECT_EQ(result.bytes, bytes_of(number));
      EXPECT_TRUE(buffers.holds(name, 1, 0, bytes_of(number))) << "WRONG BYTES of " << name.text();
      return true;
    }
    if (result.status != ItemStatus::kMiss) expect_closing(result.code);
    return false;
  }
  void erase(int number) {
    const Name name = key_of(number);
    const KeyRef key{space_, name.salt, name.key};
    const auto results = store()->erase({&key, 1});
    if (!results.ok()) expect_closing(results.status().code());
  }
  static void expect_closing(Code code) {
    EXPECT_TRUE(code == Code::kClosed || code == Code::kCanceled) << code_name(code);
  }

  device::SimDisk disk_{device_bytes_for(8, 2 * kMiB, 64 * kKiB), 11};
  std::unique_ptr<device::Device> device_ = device::make_sim_device(disk_, {}, system_clock());
  std::mutex mutex_;
  std::shared_ptr<Store> store_;
  SpaceId space_;
  std::atomic<uint64_t> gets_{0};
};

TEST_F(SameKeys, AGetWhileThePutIsUnderWayIsAMissOrTheWholeBlock) {
  for (int number = 0; number < 30; ++number) {
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    for (int reader = 0; reader < 2; ++reader) {
      threads.emplace_back([&] {
        while (!done) get(number % 12);
      });
    }
    threads.emplace_back([&] { put(number % 12); });  // joined by the other, or present
    put(number % 12);
    EXPECT_TRUE(get(number % 12)) << "stored, and nothing was evicted since";
    done = true;
    for (std::thread& thread : threads) thread.join();
    erase(number % 12);
  }
}

TEST_F(SameKeys, PutsGetsAndDeletesOfTheSameFewKeysUnderReclaim) {
  auto feed = store_->subscribe_evictions(1u << 20);
  std::atomic<uint64_t> hits{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 80; ++i) {
        const int number = (i * (t + 1) + t) % 12;
        put(number, i % 16 == 0);
        hits += get((number + i) % 12) ? 1 : 0;
        if (i % 3 == t % 3) erase((number + 1) % 12);
        if (i % 20 == 0) {
          EXPECT_TRUE(store_->flush(kForeverNs).ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(hits, 20u);
  uint64_t reclaimed = 0;
  for (const auto& [name, value] : store_->numbers()) reclaimed += name == "regions_reclaimed" && value > 0 ? 1 : 0;
  EXPECT_EQ(reclaimed, 1u) << "few enough regions to reclaim";
  EXPECT_TRUE(store_->close(kForeverNs).ok());
}

// A reader may be inside a call when close() comes: it is waited for, or told. The next opening has the same bytes.
TEST_F(SameKeys, ReadersWhoseStoreIsClosedAndOpenedAgainGetRightBytesOrAreTold) {
  constexpr int kKept = 5;  // never full
  for (int number = 0; number < kKept; ++number) put(number, true);
  std::atomic<bool> done{false};
  std::atomic<uint64_t> hits{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; !done; ++i) {
        hits += get((i + t) % kKept) ? 1 : 0;
        if (i % 5 == 0) put((i + t) % kKept);
      }
    });
  }
  for (int opening = 0; opening < 6; ++opening) {
    const uint64_t before = hits;
    while (hits < before + 10) std::this_thread::yield();
    EXPECT_TRUE(store()->close(kForeverNs).ok());
    open();
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  for (int number = 0; number < kKept; ++number) EXPECT_TRUE(get(number)) << "closed cleanly";
}

TEST_F(SameKeys, CloseWithJobsInFlightAndCancelsUnderWayEndsEveryJob) {
  for (int round = 0; round < 6; ++round) {
    std::vector<std::unique_ptr<Buffers>> memory;
    std::vector<JobRef> jobs;
    std::vector<int> numbers;
    for (int i = 0; i < 24; ++i) {
      const int number = i % 12;
      const Name name = key_of(number);
      Buffers& buffers = *memory.emplace_back(std::make_unique<Buffers>(bytes_of(number), Layout{}));
      Result<JobRef> job = Status(Code::kInvalid, "");
      if (i < 12) {
        buffers.fill(name, 1);
        PutItem put;
        put.space = space_;
        put.salt = name.salt;
        put.key = name.key;
        put.segments = buffers.segments();
        put.segment_count = 1;
        job = store_->put({&put, 1}, {.durable = i % 4 == 0}, nullptr);
      } else {
        const GetItem get{space_, name.salt, name.key, buffers.segments(), 1, 0, kWholeBlock};
        job = store_->get({&get, 1}, {}, nullptr);
      }
      ASSERT_TRUE(job.ok());
      jobs.push_back(std::move(job).value());
      numbers.push_back(number);
    }
    std::thread canceler([&] {
      for (size_t i = static_cast<size_t>(round); i < jobs.size(); i += 5) jobs[i]->cancel();
    });
    EXPECT_TRUE(store_->close(kForeverNs).ok());
    canceler.join();
    for (size_t i = 0; i < jobs.size(); ++i) {
      ASSERT_TRUE(jobs[i]->done());
      const ItemResult result = jobs[i]->result(0);
      // Busy: the reads may hold every region of so small a disk.
      if (result.status == ItemStatus::kError && result.code != Code::kBusy) expect_closing(result.code);
      if (result.status == ItemStatus::kHit) {
        EXPECT_TRUE(memory[i]->holds(key_of(numbers[i]), 1, 0, bytes_of(numbers[i])));
      }
    }
    jobs.clear();
    store_.reset();
    open();
  }
}

}  // namespace
}  // namespace kvstore::store
