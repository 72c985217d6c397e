// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: with cuFile a get is right, a miss or goes through host memory, whatever cuFile does: nothing is read directly
// before it was proven, nothing wrong is a hit, what was wrong is not asked again, and the counts say which way it was.
// Method: a store in a file, the fake cuFile and the fake GPU, whose kernel for page nodes is the CPU's code.

#include "gpu/direct_reads.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "base/checksum.h"
#include "device/test_devices.h"
#include "gpu/cufile_library.h"
#include "gpu/device_memory.h"
#include "gpu/kernels/arguments.h"
#include "store/format_device.h"
#include "store/store.h"

namespace kvstore::gpu {
namespace {

constexpr uint64_t kBlockBytes = 3 * kMiB + 2 * kPageBytes;
constexpr uint64_t kForeverNs = 60'000'000'000;

// What kvstore_page_nodes does, by the CPU's own code.
void hash_on_cpu(void** arguments, const unsigned*, const unsigned*) {
  const auto& launch = *static_cast<const PageNodesArguments*>(arguments[0]);
  const auto view = [](uint64_t pointer) {
    void* const in_gpu = FakeDriver::get().view(pointer);
    return in_gpu == nullptr ? reinterpret_cast<void*>(pointer) : in_gpu;
  };
  for (uint32_t i = 0; i < launch.run_count; ++i) {
    const PageRun& run = launch.runs[i];
    page_nodes(view(run.address), run.bytes, static_cast<uint64_t*>(view(run.nodes_address)));
  }
}

// One that computes something else.
void hash_wrongly(void** arguments, const unsigned* grid, const unsigned* block) {
  hash_on_cpu(arguments, grid, block);
  const auto& launch = *static_cast<const PageNodesArguments*>(arguments[0]);
  ++*reinterpret_cast<uint64_t*>(launch.runs[0].nodes_address);
}

class DirectBlocks : public testing::Test {
 protected:
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
    store_ = store::Store::open({file_.path()}, options).value();
    space_ = store_->register_space("{}").value();
    launcher_ = load_launcher();
    source_ = std::make_unique<GpuMemory>(0, kBlockBytes);
    target_ = std::make_unique<GpuMemory>(0, kBlockBytes);
    for (uint64_t i = 0; i < kBlockBytes; ++i) source_->bytes()[i] = static_cast<uint8_t>(i * 31 / 7);
  }
  void TearDown() override {
    store_.reset();
    if (path_ != nullptr) path_->close();
    cufile.reset();
    fake.reset();
    EXPECT_EQ(cufile.files(), 0u);
    EXPECT_EQ(cufile.registered(), 0u);
  }

  // With the fake's own kernels, or with this one for page nodes.
  std::unique_ptr<KernelLauncher> load_launcher(FakeCudaKernel page_kernel = nullptr) {
    constexpr size_t kNodesBytes = sizeof(PageNodesArguments);
    if (page_kernel != nullptr) fake.add_kernel("kvstore_page_nodes", page_kernel, &kNodesBytes, 1);
    const ContextScope scope(fake.driver, fake.context(0));
    static constexpr uint8_t kImage[] = {1};
    return std::make_unique<KernelLauncher>(
        KernelLauncher::load(LaunchDriver::of(fake.driver), 0, {kImage, ""}).value());
  }

  // From now on jobs have this way. `says_direct`: what cuFile says of itself.
  void use(GpuDirect mode, bool says_direct = true) {
    cufile.say_direct(says_direct);
    library_ = std::make_unique<CuFile>(CuFile::open(fake.driver, fake_cufile_options()).value());
    DirectOptions options;
    options.cufile = library_.get();
    options.launcher = launcher_.get();
    path_ = std::make_shared<DirectPath>(mode, options);
  }
  Status proven() {
    DeviceMemory mover(path_);
    EXPECT_TRUE(mover.place_of(0, std::nullopt).ok());
    EXPECT_TRUE(store_->prepare_mover(mover).ok()) << "auto never fails";
    return path_->reads_of(0)->wait_until_proven();
  }
  void prove() {
    const Status status = proven();
    ASSERT_TRUE(status.ok()) << status.message();
  }

  Result<store::JobRef> submit(bool is_put, const GpuMemory& memory) {
    auto mover = std::make_shared<DeviceMemory>(path_);
    const iovec segment{memory.address(), kBlockBytes};
    KVS_ASSIGN(const uint32_t place, mover->place_of(0, reinterpret_cast<uint64_t>(fake.make_stream(0))));
    store::PutItem put;
    store::GetItem get;
    put.space = get.space = space_;
    put.key = get.key = "a";
    put.segments = get.segments = &segment;
    put.segment_count = get.segment_count = 1;
    put.memory_place = get.memory_place = static_cast<int32_t>(place);
    KVS_TRY(store_->prepare_mover(*mover));
    KVS_TRY(mover->begin(!is_put));
    store::SubmitOptions options;
    options.mover = std::move(mover);
    return is_put ? store_->put({&put, 1}, options, nullptr) : store_->get({&get, 1}, options, nullptr);
  }
  void put_block() {
    const store::JobRef job = submit(true, *source_).value();
    ASSERT_TRUE(job->wait(kForeverNs));
    ASSERT_EQ(job->result(0).status, store::ItemStatus::kStored) << job->error_text(0);
  }
  // Gets the block and looks at its bytes.
  void expect_hit() {
    std::memset(target_->bytes(), 0, kBlockBytes);
    const store::JobRef job = submit(false, *target_).value();
    ASSERT_TRUE(job->wait(kForeverNs));
    ASSERT_EQ(job->result(0).status, store::ItemStatus::kHit) << job->error_text(0);
    EXPECT_EQ(std::memcmp(source_->bytes(), target_->bytes(), kBlockBytes), 0);
  }
  uint64_t number(const char* name) const {
    for (const auto& [one, value] : store_->numbers()) {
      if (one == name) return static_cast<uint64_t>(value);
    }
    return UINT64_MAX;
  }

  FakeCuFile& cufile = FakeCuFile::get();
  FakeDriver& fake = FakeDriver::get();
  device::TempFile file_{160 * kMiB};
  std::unique_ptr<store::Store> store_;
  store::SpaceId space_;
  std::unique_ptr<KernelLauncher> launcher_;
  std::unique_ptr<CuFile> library_;
  std::shared_ptr<DirectPath> path_;
  std::unique_ptr<GpuMemory> source_, target_;
};

TEST_F(DirectBlocks, AProvenPathReadsStraightIntoGpuMemory) {
  put_block();
  use(GpuDirect::kAuto);
  EXPECT_EQ(path_->state(), "not used yet");
  prove();
  const uint64_t bounced = number("bytes_bounced");
  expect_hit();
  EXPECT_EQ(number("bytes_direct"), kBlockBytes);
  EXPECT_EQ(number("bytes_bounced"), bounced);
  EXPECT_EQ(path_->state(), "GPU 0: direct");
  EXPECT_EQ(cufile.offsets(), 0u) << "cuFile has ignored offsets into buffers";
}

TEST_F(DirectBlocks, UntilItIsProvenBytesGoThroughHostMemory) {
  put_block();
  use(GpuDirect::kAuto);
  cufile.hang("cuFileRead", true);
  expect_hit();
  EXPECT_EQ(path_->state(), "GPU 0: being proven");
  EXPECT_EQ(number("bytes_direct"), 0u);
  cufile.hang("cuFileRead", false);
  ASSERT_TRUE(path_->reads_of(0)->wait_until_proven().ok());
  expect_hit();
  EXPECT_EQ(number("bytes_direct"), kBlockBytes);
}

TEST_F(DirectBlocks, ReadsThatGiveOtherBytesAreRefusedByTheProof) {
  put_block();
  cufile.spoil_reads(true);
  use(GpuDirect::kAuto);
  EXPECT_EQ(proven().code(), Code::kCorrupt);
  expect_hit();
  EXPECT_EQ(number("bytes_direct"), 0u);
  EXPECT_NE(path_->state().find("other bytes"), std::string::npos) << path_->state();
}

TEST_F(DirectBlocks, AKernelThatHashesWronglyIsRefusedByTheProof) {
  put_block();
  launcher_ = load_launcher(hash_wrongly);
  use(GpuDirect::kAuto);
  const Status refused = proven();
  EXPECT_NE(refused.message().find("other nodes than the CPU"), std::string::npos) << refused.message();
  expect_hit();
  (void)load_launcher(hash_on_cpu);  // for the tests that follow
}

TEST_F(DirectBlocks, CompatModeIsTakenOnlyWhereItIsAskedFor) {
  put_block();
  use(GpuDirect::kAuto, false);
  const Status refused = proven();
  EXPECT_NE(refused.message().find("compat mode"), std::string::npos) << refused.message();
  use(GpuDirect::kOn, false);
  expect_hit();
  EXPECT_EQ(number("bytes_compat"), kBlockBytes);
  EXPECT_EQ(number("bytes_direct"), 0u);
  EXPECT_EQ(path_->state(), "GPU 0: compat");
}

TEST_F(DirectBlocks, WhatIsToBeDirectAndCannotBeIsAnErrorWithTheReason) {
  put_block();
  use(GpuDirect::kOn);
  cufile.fail("cuFileHandleRegister", 5018, 0, 1);
  const auto refused = submit(false, *target_);
  EXPECT_EQ(refused.status().code(), Code::kUnsupported);
  EXPECT_NE(refused.status().message().find("gpu_direct is 'on'"), std::string::npos) << refused.status().message();
  EXPECT_NE(refused.status().message().find("device-mapper"), std::string::npos) << refused.status().message();
}

TEST_F(DirectBlocks, APathThatTurnsWrongLaterCostsNoWrongByteAndIsLeft) {
  put_block();
  use(GpuDirect::kAuto);
  prove();
  cufile.spoil_reads(true);
  expect_hit();
  cufile.spoil_reads(false);
  const uint64_t calls = cufile.calls("cuFileRead");
  expect_hit();
  EXPECT_EQ(cufile.calls("cuFileRead"), calls);
  EXPECT_NE(path_->state().find("was wrong where one through host memory was right"), std::string::npos)
      << path_->state();
}

TEST_F(DirectBlocks, AShortReadIsAskedForItsRestAndThenReadThroughHostMemory) {
  put_block();
  use(GpuDirect::kAuto);
  prove();
  cufile.shorten_reads(kPageBytes);
  expect_hit();
}

TEST_F(DirectBlocks, AReadThatFailsIsReadThroughHostMemory) {
  put_block();
  use(GpuDirect::kAuto);
  prove();
  cufile.fail("cuFileRead", EIO, 1, 1);
  expect_hit();
  EXPECT_NE(path_->state().find("cuFileRead of"), std::string::npos) << path_->state();
}

TEST_F(DirectBlocks, AnArenaIsRegisteredOnceAllOrNothing) {
  put_block();
  use(GpuDirect::kAuto);
  prove();
  DirectReads& reads = *path_->reads_of(0);
  cufile.fail("cuFileBufRegister", 5036, 2, 1);
  const Status refused = reads.register_memory(target_->address(), kBlockBytes);
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_NE(refused.message().find("BAR1"), std::string::npos) << refused.message();
  EXPECT_EQ(cufile.registered(), 0u);
  ASSERT_TRUE(reads.register_memory(target_->address(), kBlockBytes).ok());
  EXPECT_EQ(cufile.registered(), kBlockBytes);
  expect_hit();
  reads.unregister_memory(target_->address());
  EXPECT_EQ(cufile.registered(), 0u);
  ASSERT_TRUE(reads.register_memory(target_->address(), kBlockBytes).ok());  // and the end of the pool undoes it
}

TEST_F(DirectBlocks, ManyGetsAtOnceEndOnceEach) {
  put_block();
  use(GpuDirect::kAuto);
  prove();
  std::vector<std::unique_ptr<GpuMemory>> memory;
  std::vector<store::JobRef> jobs;
  for (int i = 0; i < 40; ++i) {
    memory.push_back(std::make_unique<GpuMemory>(0, kBlockBytes));
    jobs.push_back(submit(false, *memory.back()).value());
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    ASSERT_TRUE(jobs[i]->wait(kForeverNs));
    EXPECT_EQ(jobs[i]->result(0).status, store::ItemStatus::kHit) << jobs[i]->error_text(0);
    EXPECT_EQ(std::memcmp(source_->bytes(), memory[i]->bytes(), kBlockBytes), 0) << i;
  }
  EXPECT_EQ(number("bytes_direct"), 40 * kBlockBytes);
}

}  // namespace
}  // namespace kvstore::gpu
