// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: kernels, bounce and cuFile give the right bytes on whatever driver this process has: a real GPU with
// scripts/gpu-check, which also runs it under compute-sanitizer, and the fake one elsewhere.
// Method: only what every driver offers. The expected bytes are the CPU's: those of the kernels' references and of the
// store's own checksum. Nothing here says how fast it was.

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "../../../bench/gpu/plain_gpu.h"
#include "base/checksum.h"
#include "device/test_devices.h"
#include "gpu/cufile_device.h"
#include "gpu/device_memory.h"
#include "gpu_kernels/random_cache.h"
#include "store/format_device.h"
#include "store/store.h"

namespace kvstore::gpu {
namespace {

constexpr uint64_t kForeverNs = 60'000'000'000;

class RealGpu : public testing::Test {
 protected:
  void SetUp() override {
    Result<PlainGpu> opened = PlainGpu::open(0);
    if (!opened.ok()) GTEST_SKIP() << "needs a GPU: " << opened.status().message();
    gpu_.emplace(std::move(opened).value());
  }
  // Where there are none, the reason; the caller skips or goes on.
  void SetUpLauncher(bool with_kernels) {
    Result<KernelLauncher> loaded = gpu_->launcher();
    if (!loaded.ok()) GTEST_SKIP() << "needs kernels or copies on the GPU: " << loaded.status().message();
    launcher_.emplace(std::move(loaded).value());
    if (with_kernels && !launcher_->has_kernels()) {
      GTEST_SKIP() << "needs kernels on the GPU: " << launcher_->kernels_missing();
    }
  }
  Status move(const PagedLayout& layout, Direction direction, const MovePlan& plan) {
    const ContextScope scope(gpu_->driver(), gpu_->context());
    KVS_TRY(launcher_->move(layout, direction, plan, gpu_->stream()));
    return gpu_->synchronize_here();
  }
  std::optional<PlainGpu> gpu_;
  std::optional<KernelLauncher> launcher_;
};

// The transfer of the arena, as it is of a copy of the arena at `base`.
void relocate(RandomTransfer& transfer, uint64_t base) {
  const uint64_t delta = base - (transfer.arena[0].address() - transfer.arena[0].offset(transfer.arena[0].address()));
  for (uint64_t& plane : transfer.layout.planes) plane += delta;
  for (RandomTransfer::Extent& extent : transfer.extents) extent.address += delta;
}

TEST_F(RealGpu, ScatterAndGatherOfRandomShapesTouchTheBytesOfTheReferenceAndNoOthers) {
  SetUpLauncher(false);
  if (IsSkipped()) return;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    for (const Direction direction : {Direction::kScatter, Direction::kGather}) {
      RandomTransfer transfer(seed);
      const std::vector<uint8_t> before = transfer.arena[0].copy(), expected = transfer.expected(direction);
      const auto memory = PlainMemory::make(*gpu_, before.size());
      ASSERT_TRUE(memory.ok()) << memory.status().message();
      ASSERT_TRUE(gpu_->copy_to_device(memory.value().pointer(), before.data(), before.size()).ok());
      relocate(transfer, memory.value().pointer());
      const Status moved = move(transfer.layout, direction, transfer.plan(direction));
      ASSERT_TRUE(moved.ok()) << moved.message();
      std::vector<uint8_t> found(before.size());
      ASSERT_TRUE(gpu_->copy_to_host(found.data(), memory.value().pointer(), found.size()).ok());
      const auto differs = std::mismatch(found.begin(), found.end(), expected.begin()).first - found.begin();
      ASSERT_EQ(static_cast<size_t>(differs), found.size()) << "seed " << seed;
    }
  }
}

TEST_F(RealGpu, PageNodesAreThoseOfTheCpu) {
  SetUpLauncher(true);
  if (IsSkipped()) return;
  SeededRandom random(3);
  for (const uint64_t bytes : {uint64_t{1}, kPageBytes - 1, kPageBytes, 3 * kPageBytes + 17, 5 * kMiB + 4000}) {
    std::vector<uint8_t> payload(bytes);
    random.fill(payload.data(), bytes);
    std::vector<uint64_t> expected(ceil_div(bytes, kPageBytes)), found(expected.size());
    page_nodes(payload.data(), bytes, expected.data());
    const auto memory = PlainMemory::make(*gpu_, bytes);
    const auto nodes = PlainMemory::make(*gpu_, expected.size() * 8);
    ASSERT_TRUE(memory.ok() && nodes.ok());
    ASSERT_TRUE(gpu_->copy_to_device(memory.value().pointer(), payload.data(), bytes).ok());
    const PayloadRun run = {{memory.value().pointer(), bytes}, nodes.value().pointer()};
    {
      const ContextScope scope(gpu_->driver(), gpu_->context());
      const Status hashed = launcher_->hash_pages({&run, 1}, gpu_->stream());
      ASSERT_TRUE(hashed.ok()) << hashed.message();
      ASSERT_TRUE(gpu_->synchronize_here().ok());
    }
    ASSERT_TRUE(gpu_->copy_to_host(found.data(), nodes.value().pointer(), found.size() * 8).ok());
    EXPECT_EQ(found, expected) << bytes << " bytes";
  }
}

TEST_F(RealGpu, ABlockComesBackThroughAPool) {
  constexpr uint64_t kBytes = 5 * kMiB + 4097;
  device::TempFile file(160 * kMiB);
  store::FormatOptions format;
  format.region_bytes = 16 * kMiB;
  format.device_kind = "threads";
  const auto formatted = store::format_pool({file.path()}, format, system_clock(), system_random());
  if (formatted.status().code() == Code::kUnsupported) GTEST_SKIP() << formatted.status().message();
  ASSERT_TRUE(formatted.ok()) << formatted.status().to_string();
  store::StoreOptions options;
  options.device_kind = "threads";
  const auto store = store::Store::open({file.path()}, options);
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  const store::SpaceId space = store.value()->register_space("{}").value();
  const AlignedBuffer written = device::random_buffer(kBytes, 7);
  const auto source = PlainMemory::make(*gpu_, kBytes), target = PlainMemory::make(*gpu_, kBytes);
  ASSERT_TRUE(source.ok() && target.ok());
  ASSERT_TRUE(gpu_->copy_to_device(source.value().pointer(), written.data(), kBytes).ok());
  for (const bool is_put : {true, false}) {
    auto mover = std::make_shared<DeviceMemory>();
    const iovec segment = {is_put ? source.value().address() : target.value().address(), kBytes};
    const auto place = static_cast<int32_t>(mover->place_of(0, reinterpret_cast<uint64_t>(gpu_->stream())).value());
    store::PutItem put;
    store::GetItem get;
    put.space = get.space = space;
    put.key = get.key = "block";
    put.segments = get.segments = &segment;
    put.segment_count = get.segment_count = 1;
    put.memory_place = get.memory_place = place;
    ASSERT_TRUE(store.value()->prepare_mover(*mover).ok());
    ASSERT_TRUE(mover->begin(!is_put).ok());
    store::SubmitOptions submit;
    submit.mover = std::move(mover);
    const auto job =
        is_put ? store.value()->put({&put, 1}, submit, nullptr) : store.value()->get({&get, 1}, submit, nullptr);
    ASSERT_TRUE(job.ok()) << job.status().message();
    ASSERT_TRUE(job.value()->wait(kForeverNs));
    ASSERT_TRUE(job.value()->result(0).succeeded()) << job.value()->error_text(0);
  }
  AlignedBuffer found(kBytes);
  ASSERT_TRUE(gpu_->copy_to_host(found.data(), target.value().pointer(), kBytes).ok());
  EXPECT_EQ(std::memcmp(found.data(), written.data(), kBytes), 0);
}

// KVSTORE_GPU_CHECK_PATH names a file or namespace that may be read; else a file for the time of the test.
TEST_F(RealGpu, CuFileReadsWhatTheKernelReads) {
  CuFileOptions options;
  if (const char* modules = std::getenv("KVSTORE_GPU_CHECK_MODULES")) options.modules_path = modules;
  const auto cufile = CuFile::open(gpu_->driver(), options);
  if (!cufile.ok()) GTEST_SKIP() << "needs cuFile and a GPU: " << cufile.status().message();
  device::TempFile file(16 * kMiB);
  const AlignedBuffer content = device::random_buffer(8 * kMiB, 5);
  const int fd = open(file.path().c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(pwrite(fd, content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
  close(fd);
  const char* const named = std::getenv("KVSTORE_GPU_CHECK_PATH");
  const auto below = device::open_device(named == nullptr ? file.path() : named, {.kind = "threads"}, system_clock());
  ASSERT_TRUE(below.ok()) << below.status().message();
  const auto direct = make_cufile_device(cufile.value(), gpu_->driver(), gpu_->context(), *below.value(), 2);
  if (!direct.ok()) GTEST_SKIP() << "needs storage that cuFile takes, and a GPU: " << direct.status().message();
  const auto memory = PlainMemory::make(*gpu_, 4 * kMiB);
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  const Status same = check_direct_reads(gpu_->driver(), gpu_->context(), gpu_->stream(), *direct.value(),
                                         *below.value(), kMiB, 4 * kMiB, memory.value().pointer());
  EXPECT_TRUE(same.ok()) << same.message();
}

}  // namespace
}  // namespace kvstore::gpu
