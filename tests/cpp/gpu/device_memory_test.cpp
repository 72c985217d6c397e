// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: blocks go from and into GPU memory with the right bytes, ordered with the callers' streams, and every error
// ends as the job's, with all that waits let go. Method: a store in a file, and the fake driver, whose copies are late,
// whose memory the host cannot touch, and whose streams can be stopped by a gate.

#include "gpu/device_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "device/test_devices.h"
#include "gpu/fake_driver.h"
#include "gpu/gpu_place.h"
#include "store/format_device.h"
#include "store/store.h"

namespace kvstore::gpu {
namespace {

constexpr uint64_t kBlockBytes = 3 * kMiB + 777;
constexpr uint64_t kForeverNs = 60'000'000'000;
// For what must not happen: long beside the 200 us of a copy, and paid by every run that is right.
constexpr uint64_t kMomentNs = 100'000'000;

uint64_t handle_of(cu::Stream stream) { return reinterpret_cast<uint64_t>(stream); }

class GpuBlocks : public testing::Test {
 protected:
  struct Segment {
    std::string key;
    const GpuMemory* memory;
    int device;
    cu::Stream stream;
  };

  void SetUp() override {
    store::FormatOptions format;
    format.region_bytes = 16 * kMiB;
    format.min_block_bytes = 64 * kKiB;
    format.device_kind = "threads";
    const auto formatted = store::format_pool({file_.path()}, format, system_clock(), system_random());
    if (!formatted.ok() && formatted.status().code() == Code::kUnsupported) {
      GTEST_SKIP() << formatted.status().to_string();
    }
    ASSERT_TRUE(formatted.ok()) << formatted.status().to_string();
    store::StoreOptions options;
    options.device_kind = "threads";
    options.staging_bytes = 8 * kMiB;
    auto opened = store::Store::open({file_.path()}, options);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    store_ = std::move(opened).value();
    space_ = store_->register_space("{}").value();
  }
  void TearDown() override { fake.reset(); }

  Result<store::JobRef> submit(bool is_put, const std::vector<Segment>& blocks) {
    auto memory = std::make_shared<DeviceMemory>();
    std::vector<store::PutItem> puts(blocks.size());
    std::vector<store::GetItem> gets(blocks.size());
    std::vector<iovec> segments;
    segments.reserve(blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i) {
      segments.push_back({blocks[i].memory->address(), kBlockBytes});
      KVS_ASSIGN(const uint32_t place, memory->place_of(blocks[i].device, handle_of(blocks[i].stream)));
      puts[i].space = gets[i].space = space_;
      puts[i].key = gets[i].key = blocks[i].key;
      puts[i].segments = gets[i].segments = &segments[i];
      puts[i].segment_count = gets[i].segment_count = 1;
      puts[i].memory_place = gets[i].memory_place = static_cast<int32_t>(place);
    }
    KVS_TRY(store_->prepare_mover(*memory));
    KVS_TRY(memory->begin(!is_put));
    store::SubmitOptions options;
    options.mover = std::move(memory);
    return is_put ? store_->put(puts, options, nullptr) : store_->get(gets, options, nullptr);
  }
  store::JobRef put(const std::vector<Segment>& blocks) { return submit(true, blocks).value(); }
  store::JobRef get(const std::vector<Segment>& blocks) { return submit(false, blocks).value(); }

  void put_pattern(const std::string& key, const GpuMemory& memory, int device) {
    for (uint64_t i = 0; i < kBlockBytes; ++i) memory.bytes()[i] = static_cast<uint8_t>(i % 251 + key.size());
    const store::JobRef job = put({{key, &memory, device, fake.make_stream(device)}});
    ASSERT_TRUE(job->wait(kForeverNs));
    ASSERT_EQ(job->result(0).status, store::ItemStatus::kStored) << job->error_text(0);
  }
  static bool is_all(const GpuMemory& memory, uint8_t byte) {
    return std::all_of(memory.bytes(), memory.bytes() + kBlockBytes, [byte](uint8_t one) { return one == byte; });
  }

  FakeDriver& fake = FakeDriver::get();
  device::TempFile file_{160 * kMiB};
  std::unique_ptr<store::Store> store_;
  store::SpaceId space_;
};

TEST_F(GpuBlocks, GoFromOneGpuIntoAnother) {
  const GpuMemory source(0, kBlockBytes);
  const GpuMemory target(1, kBlockBytes + 1);
  put_pattern("a", source, 0);
  const store::JobRef read = get({{"a", &target, 1, fake.make_stream(1)}});
  ASSERT_TRUE(read->wait(kForeverNs));
  EXPECT_EQ(read->result(0).status, store::ItemStatus::kHit) << read->error_text(0);
  EXPECT_EQ(std::memcmp(source.bytes(), target.bytes(), kBlockBytes), 0);
  EXPECT_EQ(target.bytes()[kBlockBytes], 0) << "never past the caller's bytes";
  EXPECT_GE(fake.registered(), 8 * kMiB) << "staging is pinned";
}

TEST_F(GpuBlocks, G1_APutReadsOnlyWhatItsStreamHasWritten) {
  const GpuMemory source(0, kBlockBytes);
  std::memset(source.bytes(), 1, kBlockBytes);
  cu::Stream const stream = fake.make_stream(0);
  const uint64_t gate = fake.gate(stream);
  fake.fill(0, stream, source.pointer(), 2, kBlockBytes);
  const store::JobRef stored = put({{"a", &source, 0, stream}});
  EXPECT_FALSE(stored->wait(kMomentNs));
  fake.open_gate(gate);
  ASSERT_TRUE(stored->wait(kForeverNs));
  const GpuMemory target(0, kBlockBytes);
  ASSERT_TRUE(get({{"a", &target, 0, fake.make_stream(0)}})->wait(kForeverNs));
  EXPECT_TRUE(is_all(target, 2));
}

TEST_F(GpuBlocks, G1_AGetWritesOnlyWhatItsStreamHasReadItsFillOf) {
  const GpuMemory source(0, kBlockBytes);
  put_pattern("a", source, 0);
  const GpuMemory target(0, kBlockBytes);
  cu::Stream const stream = fake.make_stream(0);
  const uint64_t gate = fake.gate(stream);
  fake.fill(0, stream, target.pointer(), 9, kBlockBytes);
  const store::JobRef read = get({{"a", &target, 0, stream}});
  EXPECT_FALSE(read->wait(kMomentNs));
  fake.open_gate(gate);
  ASSERT_TRUE(read->wait(kForeverNs));
  EXPECT_EQ(std::memcmp(source.bytes(), target.bytes(), kBlockBytes), 0);
}

TEST_F(GpuBlocks, G2_WhatFollowsAGetOnItsStreamSeesTheBlock) {
  const GpuMemory source(0, kBlockBytes);
  put_pattern("a", source, 0);
  const GpuMemory target(0, kBlockBytes);
  const GpuMemory other(0, kBlockBytes);
  cu::Stream const stopped = fake.make_stream(0);
  cu::Stream const stream = fake.make_stream(0);
  const uint64_t gate = fake.gate(stopped);  // keeps the job from its end
  const store::JobRef read = get({{"a", &target, 0, stream}, {"a", &other, 0, stopped}});
  AlignedBuffer seen(kBlockBytes);
  const ContextScope scope(fake.driver, fake.context(0));
  ASSERT_EQ(fake.driver.host_register(seen.data(), seen.size(), 0), cu::kSuccess);
  ASSERT_EQ(fake.driver.copy_to_host(seen.data(), target.pointer(), kBlockBytes, stream), cu::kSuccess);
  EXPECT_FALSE(read->wait(kMomentNs)) << "and no thread of the host waited until here";
  fake.open_gate(gate);
  fake.synchronize(0, stream);
  EXPECT_EQ(std::memcmp(source.bytes(), seen.data(), kBlockBytes), 0);
  ASSERT_EQ(fake.driver.host_unregister(seen.data()), cu::kSuccess);
  ASSERT_TRUE(read->wait(kForeverNs));
}

TEST_F(GpuBlocks, G2_TheStreamGoesOnAfterAMissAnErrorAndARefusal) {
  const GpuMemory target(0, kBlockBytes);
  cu::Stream const stream = fake.make_stream(0);
  ASSERT_TRUE(get({{"nobody put this", &target, 0, stream}})->wait(kForeverNs));
  fake.synchronize(0, stream);
  const GpuMemory source(0, kBlockBytes);
  put_pattern("a", source, 0);
  fake.fail("cuMemcpyHtoDAsync_v2", cu::kInvalidValue, 1, 1);
  const store::JobRef read = get({{"a", &target, 0, stream}});
  ASSERT_TRUE(read->wait(kForeverNs));
  EXPECT_EQ(read->result(0).code, Code::kInvalid);
  EXPECT_NE(read->error_text(0).find("cuMemcpyHtoDAsync gave CUDA_ERROR_INVALID_VALUE"), std::string::npos);
  fake.synchronize(0, stream);
  ASSERT_FALSE(submit(false, {{"", &target, 0, stream}}).ok());
  fake.synchronize(0, stream);
}

TEST_F(GpuBlocks, G2_AStreamIsHeldByAHostFunctionWhereTheGpuCannotWait) {
  const GpuMemory source(1, kBlockBytes);
  put_pattern("a", source, 1);
  const GpuMemory target(1, kBlockBytes);
  cu::Stream const stream = fake.make_stream(1);
  fake.fail("cuStreamWaitValue32_v2", cu::kNotSupported, 0, UINT64_MAX);
  const uint64_t before = fake.calls("cuLaunchHostFunc");
  ASSERT_TRUE(get({{"a", &target, 1, stream}})->wait(kForeverNs));
  fake.synchronize(1, stream);
  EXPECT_EQ(fake.calls("cuLaunchHostFunc"), before + 1);
  EXPECT_EQ(std::memcmp(source.bytes(), target.bytes(), kBlockBytes), 0);
}

TEST_F(GpuBlocks, G3_AJobEndsWhenItsCopiesHaveHappened) {
  const GpuMemory source(0, kBlockBytes);
  put_pattern("a", source, 0);
  const GpuMemory target(0, kBlockBytes);
  fake.set_copy_delay(30'000);
  ASSERT_TRUE(get({{"a", &target, 0, fake.make_stream(0)}})->wait(kForeverNs));
  EXPECT_EQ(std::memcmp(source.bytes(), target.bytes(), kBlockBytes), 0);
}

TEST_F(GpuBlocks, AStreamOfAnotherGpuIsRefusedByName) {
  const GpuMemory source(0, kBlockBytes);
  const auto refused = submit(true, {{"a", &source, 0, fake.make_stream(1)}});
  EXPECT_EQ(refused.status().code(), Code::kInvalid);
  EXPECT_NE(refused.status().message().find("CUDA_ERROR_INVALID_HANDLE"), std::string::npos);
  EXPECT_NE(refused.status().message().find("does the stream belong to the GPU"), std::string::npos);
}

TEST_F(GpuBlocks, AContextThatACrashBrokeEndsTheJobWithItsName) {
  const GpuMemory source(0, kBlockBytes);
  put_pattern("a", source, 0);
  const GpuMemory target(0, kBlockBytes);
  cu::Stream const stream = fake.make_stream(0);
  fake.set_copy_delay(20'000);
  const store::JobRef read = get({{"a", &target, 0, stream}});
  fake.break_context(719);
  ASSERT_TRUE(read->wait(kForeverNs));
  EXPECT_NE(read->error_text(0).find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos) << read->error_text(0);
  EXPECT_NE(read->error_text(0).find("in a new process"), std::string::npos);
  fake.break_context(0);
}

TEST_F(GpuBlocks, ManyJobsOnManyStreamsKeepTheirBytes) {
  std::vector<std::unique_ptr<GpuMemory>> memory;
  std::vector<store::JobRef> jobs;
  for (int i = 0; i < 12; ++i) {
    memory.push_back(std::make_unique<GpuMemory>(i % 2, kBlockBytes));
    cu::Stream const stream = fake.make_stream(i % 2);
    fake.fill(i % 2, stream, memory.back()->pointer(), static_cast<uint8_t>(i + 1), kBlockBytes);
    jobs.push_back(put({{"key " + std::to_string(i), memory.back().get(), i % 2, stream}}));
  }
  for (const store::JobRef& job : jobs) ASSERT_TRUE(job->wait(kForeverNs));
  for (int i = 0; i < 12; ++i) {
    const GpuMemory target(1 - i % 2, kBlockBytes);
    ASSERT_TRUE(get({{"key " + std::to_string(i), &target, 1 - i % 2, fake.make_stream(1 - i % 2)}})->wait(kForeverNs));
    EXPECT_TRUE(is_all(target, static_cast<uint8_t>(i + 1))) << i;
  }
}

TEST_F(GpuBlocks, PinningRollsBackWhatItPinned) {
  Bounce& gpu = *Bounce::of(0).value();
  AlignedBuffer arena(4 * kMiB);
  const uint64_t before = fake.registered();
  fake.fail("cuMemHostRegister_v2", 2, 2, 1);
  const auto refused = gpu.pin(arena.data(), arena.size(), kMiB);
  EXPECT_NE(refused.status().message().find("ulimit -l"), std::string::npos) << refused.status().message();
  EXPECT_EQ(fake.registered(), before);
  {
    const auto pinned = gpu.pin(arena.data(), arena.size(), kMiB);
    EXPECT_EQ(fake.registered(), before + arena.size());
  }
  EXPECT_EQ(fake.registered(), before);
}

TEST_F(GpuBlocks, AGpuIsNearTheNumaNodeOfItsPciDevice) {
  const std::string root = testing::TempDir() + "sysfs_of_gpus";
  const std::string folder = root + "/bus/pci/devices/0000:3b:00.0";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/numa_node") << "1\n";
  EXPECT_EQ(numa_node_of_gpu(fake.driver, 0, root), 1);
  EXPECT_EQ(numa_node_of_gpu(fake.driver, 1, root), -1) << "sysfs does not say";
  std::filesystem::remove_all(root);
}

TEST_F(GpuBlocks, APointerIsKnownByItsGpu) {
  const GpuMemory memory(1, 4096);
  EXPECT_EQ(device_of_pointer(memory.pointer() + 4095).value(), 1);
  int on_the_stack = 0;
  EXPECT_FALSE(device_of_pointer(reinterpret_cast<uint64_t>(&on_the_stack)).ok());
}

}  // namespace
}  // namespace kvstore::gpu
