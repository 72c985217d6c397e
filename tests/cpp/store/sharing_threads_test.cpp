// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: openers of one pool with all their threads (engines, keepers, followers, agents) on a real file: hits are
// right, every job ends, closing gives everything back, and ThreadSanitizer finds nothing. Method: three openers of one
// process, small enough that each has to let go of what the others reuse.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "cluster/memory_engine.h"
#include "device/test_devices.h"
#include "store/format_device.h"
#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

constexpr uint32_t kOpeners = 3;
constexpr uint64_t kBlockBytes = 200'000;
constexpr uint64_t kLongNs = 60'000'000'000;

Name name_of(uint32_t opener, int number) {
  return {"opener " + std::to_string(opener) + " key " + std::to_string(number), "", 0};
}

class SharingThreads : public testing::Test {
 protected:
  void SetUp() override {
    FormatOptions format;
    format.region_bytes = kMiB;
    format.min_block_bytes = 64 * kKiB;
    auto formatted = format_pool({file_.path()}, format, system_clock(), system_random());
    if (!formatted.ok() && formatted.status().code() == Code::kUnsupported) {
      GTEST_SKIP() << formatted.status().to_string();
    }
    ASSERT_TRUE(formatted.ok()) << formatted.status().to_string();
  }
  std::unique_ptr<Store> open(uint32_t opener) {
    engines_[opener] = std::make_unique<cluster::MemoryEngine>(cluster_, system_clock(), randoms_[opener]);
    StoreOptions options;
    options.staging_bytes = 8 * kMiB;
    options.prefetch_bytes = 0;
    options.shared.engine = engines_[opener].get();
    options.shared.lease_ns = 4'000'000'000;
    options.shared.refresh_interval_ns = 5'000'000;
    auto store = Store::open({file_.path()}, options);
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return store.ok() ? std::move(store).value() : nullptr;
  }
  // Puts its own keys, reads them and the others', deletes some.
  void work(Store& store, uint32_t opener, int operations) {
    const SpaceId space = store.register_space(SimStore::space_json(0)).value();
    for (int i = 0; i < operations; ++i) {
      put(store, space, opener, i);
      get(store, space, opener, i / 2);
      get(store, space, (opener + 1) % kOpeners, i);
      const std::string key = name_of(opener, i / 3).key;
      const KeyRef ref{space, {}, key};
      if (i % 9 == 0) (void)store.erase({&ref, 1});
      if (i % 13 == 0) (void)store.flush(kLongNs);
      if (i % 7 == 0) (void)store.refresh(kLongNs);
      if (i % 5 == 0) (void)store.numbers();
      if (i % 11 == 0 && store.match_prefix({&ref, 1}, true) == 1) store.unpin({&ref, 1});
    }
  }
  void put(Store& store, SpaceId space, uint32_t opener, int number) {
    const Name name = name_of(opener, number);
    Buffers buffers(kBlockBytes, {});
    buffers.fill(name, 1);
    PutItem item;
    item.space = space;
    item.key = name.key;
    item.segments = buffers.segments();
    item.segment_count = buffers.segment_count();
    auto job = store.put({&item, 1}, {.durable = number % 9 == 0}, nullptr);
    ASSERT_TRUE(job.ok()) << job.status().to_string();
    ASSERT_TRUE(job.value()->wait(kLongNs)) << "a put hangs";
    const ItemResult& result = job.value()->result(0);
    // Busy: on a slow machine the lease may not have been renewed in time.
    EXPECT_TRUE(result.succeeded() || result.code == Code::kBusy) << job.value()->error_text(0);
    stored_ += result.succeeded() ? 1 : 0;
  }
  void get(Store& store, SpaceId space, uint32_t opener, int number) {
    const Name name = name_of(opener, number);
    Buffers buffers(kBlockBytes, {});
    const GetItem item{space, {}, name.key, buffers.segments(), buffers.segment_count(), 0, kWholeBlock};
    const ItemResult result = store.get_one(item);
    if (result.status != ItemStatus::kHit) return;
    ++hits_;
    EXPECT_TRUE(buffers.holds(name, 1, 0, kBlockBytes)) << "WRONG BYTES of " << name.text();
  }

  device::TempFile file_{96 * kMiB};
  std::shared_ptr<cluster::MemoryCluster> cluster_ = std::make_shared<cluster::MemoryCluster>(system_clock());
  SeededRandom randoms_[kOpeners] = {SeededRandom(1), SeededRandom(2), SeededRandom(3)};
  std::unique_ptr<cluster::MemoryEngine> engines_[kOpeners];
  std::atomic<uint64_t> stored_{0};
  std::atomic<uint64_t> hits_{0};
};

TEST_F(SharingThreads, AnOwnerIsWaitedForOnlyWhileItMayBeMakingThePoolASharedOne) {
  ManualClock clock;
  StoreOptions alone;
  alone.threaded = false;
  alone.clock = &clock;
  const auto owner = Store::open({file_.path()}, alone);
  ASSERT_TRUE(owner.ok()) << owner.status().to_string();
  cluster::MemoryEngine engine(cluster_, clock, randoms_[0]);
  StoreOptions shared = alone;
  shared.shared.engine = &engine;
  const auto waited_ns = [&] {
    const uint64_t begun_ns = clock.monotonic_ns();
    EXPECT_EQ(Store::open({file_.path()}, shared).status().code(), Code::kBusy);
    return clock.monotonic_ns() - begun_ns;
  };
  EXPECT_GE(waited_ns(), 9'000'000'000u);  // it has just been opened
  EXPECT_LT(waited_ns(), 1'000'000'000u);
}

TEST_F(SharingThreads, ThreeOpenersPutGetAndReclaimAndEachOpensAgain) {
  std::vector<std::thread> threads;
  for (uint32_t opener = 0; opener < kOpeners; ++opener) {
    threads.emplace_back([this, opener] {
      for (int opening = 0; opening < 2; ++opening) {
        const std::unique_ptr<Store> store = open(opener);
        ASSERT_NE(store, nullptr);
        std::thread second([&] { work(*store, (opener + 1) % kOpeners, 60); });
        work(*store, opener, 120);
        second.join();
        const Status closed = store->close(kLongNs);
        EXPECT_TRUE(closed.ok()) << closed.to_string();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(stored_, 100u);
  EXPECT_GT(hits_, 100u);
  for (const auto& item : cluster_->range("kvstore/").items) {
    EXPECT_EQ(item.value.find("owned"), std::string::npos) << item.key << " " << item.value;
  }
}

}  // namespace
}  // namespace kvstore::store
