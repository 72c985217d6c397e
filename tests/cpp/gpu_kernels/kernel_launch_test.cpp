// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a transfer gives the same bytes by kernel, by batches of copies and by single copies; the way is chosen as
// documented; a launch keeps to its share of the GPU; whatever is missing or fails is said.
// Method: a driver of this file's own that runs at once, kernels as the text that nvcc compiles; and the fake libcuda,
// whose streams run late and take copies of the arguments only.

#include "gpu/kernel_launch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/units.h"
#include "gpu/fake_driver.h"
#include "gpu/reference.h"
#include "gpu_kernels/cuda_on_cpu.h"
#include "gpu_kernels/random_cache.h"

#include "gpu/kernels/move_kernel.h"
#include "gpu/kernels/page_kernel.h"

namespace kvstore::gpu {
namespace {

const uint8_t kImageBytes[4] = {1, 2, 3, 4};
const KernelImage kImage = {kImageBytes};
const KernelImage kNoImage = {{}, "nvcc was not found when this was built"};
const cu::Stream kStream = reinterpret_cast<cu::Stream>(0x1000);

// What the driver was asked for, and what it is to answer.
struct Asked {
  int kernels = 0, batches = 0, copies = 0;
  uint32_t blocks_most = 0, threads_most = 0;
  size_t batch_most = 0;
  cu::Code load = 0, launch = 0, batch = 0;
};
Asked asked;

void to_cache(const MoveArguments arguments) { move_units<true>(arguments); }
void to_extent(const MoveArguments arguments) { move_units<false>(arguments); }
void page_nodes_kernel(const PageNodesArguments arguments) { hash_pages(arguments); }

cu::Code copy(cu::DevicePointer target, cu::DevicePointer source, size_t bytes, cu::Stream) {
  ++asked.copies;
  std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), bytes);
  return cu::kSuccess;
}

cu::Code copy_batch(cu::DevicePointer* targets, cu::DevicePointer* sources, size_t* bytes, size_t count,
                    CopyAttributes* attributes, size_t* attribute_starts, size_t attribute_count, cu::Stream stream) {
  ++asked.batches;
  asked.batch_most = std::max(asked.batch_most, count);
  EXPECT_EQ(attribute_count, 1u);
  EXPECT_EQ(*attribute_starts, 0u);
  EXPECT_EQ(attributes->source_order, 1) << "what the stream writes before must be read";
  EXPECT_EQ(stream, kStream);
  if (asked.batch != 0) return asked.batch;
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(reinterpret_cast<void*>(targets[i]), reinterpret_cast<const void*>(sources[i]), bytes[i]);
  }
  return cu::kSuccess;
}

cu::Code copy_batch_12(cu::DevicePointer* targets, cu::DevicePointer* sources, size_t* bytes, size_t count,
                       CopyAttributes* attributes, size_t* attribute_starts, size_t attribute_count, size_t* failed,
                       cu::Stream stream) {
  *failed = count;
  return copy_batch(targets, sources, bytes, count, attributes, attribute_starts, attribute_count, stream);
}

cu::Code module_function(cu::Function* found, cu::Module, const char* name) {
  *found = reinterpret_cast<cu::Function>(const_cast<char*>(name));
  return cu::kSuccess;
}

cu::Code launch_kernel(cu::Function kernel, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                       unsigned shared_bytes, cu::Stream, void** arguments, void** extra) {
  EXPECT_EQ(shared_bytes, 0u);
  EXPECT_EQ(extra, nullptr);
  ++asked.kernels;
  asked.blocks_most = std::max(asked.blocks_most, blocks);
  asked.threads_most = std::max(asked.threads_most, threads);
  if (asked.launch != 0) return asked.launch;
  const std::string name = reinterpret_cast<const char*>(kernel);
  if (name == "kvstore_page_nodes") {
    run_grid_of_warps(page_nodes_kernel, *static_cast<PageNodesArguments*>(arguments[0]), blocks, threads);
  } else {
    run_grid(name == "kvstore_scatter_extent" ? to_cache : to_extent, *static_cast<MoveArguments*>(arguments[0]),
             blocks, threads);
  }
  return cu::kSuccess;
}

LaunchDriver driver() {
  LaunchDriver driver;
  driver.error_name = [](cu::Code, const char** name) {
    *name = "CUDA_ERROR_NO_BINARY_FOR_GPU";
    return cu::kSuccess;
  };
  driver.device_attribute = [](int* value, int attribute, cu::Device) {
    *value = attribute == 16 ? 132 : 0;
    return cu::kSuccess;
  };
  driver.module_load = [](cu::Module*, const void*) { return asked.load; };
  driver.module_function = module_function;
  driver.launch_kernel = launch_kernel;
  driver.copy = copy;
  return driver;
}

KernelLauncher loaded(const LaunchDriver& with, const KernelImage& image) {
  asked = {};
  Result<KernelLauncher> launcher = KernelLauncher::load(with, 0, image);
  EXPECT_TRUE(launcher.ok()) << launcher.status().to_string();
  return launcher.value();
}

// Moves random transfers with whatever the driver and the image offer.
void expect_right_bytes(const LaunchDriver& with, const KernelImage& image) {
  const KernelLauncher launcher = loaded(with, image);
  for (uint64_t seed = 0; seed < 30; ++seed) {
    for (const Direction direction : {Direction::kScatter, Direction::kGather}) {
      RandomTransfer transfer(seed);
      const std::vector<uint8_t> expected = transfer.expected(direction);
      ASSERT_TRUE(launcher.move(transfer.layout, direction, transfer.plan(direction), kStream).ok());
      ASSERT_TRUE(transfer.arena[0].holds(expected)) << "seed " << seed;
    }
  }
}

TEST(KernelLauncher, MovesByKernelWhereRunsAreShort) {
  LaunchDriver with = driver();
  with.copy_batch = copy_batch;
  expect_right_bytes(with, kImage);
  EXPECT_GT(asked.kernels, 0);
  EXPECT_EQ(asked.batches + asked.copies, 0);
}

TEST(KernelLauncher, WithoutKernelsBatchesOfCopiesMoveTheSame) {
  LaunchDriver with = driver();
  with.copy_batch = copy_batch;
  expect_right_bytes(with, kNoImage);
  EXPECT_GT(asked.batches, 0);
  EXPECT_LE(asked.batch_most, 1024u);
  EXPECT_EQ(asked.kernels + asked.copies, 0);
}

TEST(KernelLauncher, TheBatchCallOfCuda12MovesTheSame) {
  LaunchDriver with = driver();
  with.copy_batch_12 = copy_batch_12;
  expect_right_bytes(with, kNoImage);
  EXPECT_GT(asked.batches, 0);
}

TEST(KernelLauncher, WithoutKernelsAndBatchesSingleCopiesMoveTheSame) {
  expect_right_bytes(driver(), kNoImage);
  EXPECT_GT(asked.copies, 0);
  EXPECT_EQ(asked.kernels + asked.batches, 0);
}

TEST(KernelLauncher, TheWayFollowsFromTheLengthOfARun) {
  EXPECT_EQ(choose_way(64 * kKiB, true, true), MoveWay::kCopyBatch);
  EXPECT_EQ(choose_way(64 * kKiB - 16, true, true), MoveWay::kKernel);
  EXPECT_EQ(choose_way(64 * kKiB, true, false), MoveWay::kKernel);
  EXPECT_EQ(choose_way(256, false, true), MoveWay::kCopyBatch);
  EXPECT_EQ(choose_way(kMiB, false, false), MoveWay::kCopies);
}

TEST(KernelLauncher, TheDefaultStreamGetsNoBatchWhichItWouldRefuse) {
  LaunchDriver with = driver();
  with.copy_batch = copy_batch;
  const KernelLauncher launcher = loaded(with, kNoImage);
  const RandomTransfer transfer(1);
  EXPECT_EQ(launcher.way_of(transfer.layout, kStream), MoveWay::kCopyBatch);
  EXPECT_EQ(launcher.way_of(transfer.layout, nullptr), MoveWay::kCopies);
  EXPECT_EQ(launcher.way_of(transfer.layout, reinterpret_cast<cu::Stream>(1)), MoveWay::kCopies);
}

TEST(KernelLauncher, ALaunchKeepsToItsShareOfTheMultiprocessors) {
  KernelLauncher launcher = loaded(driver(), kImage);
  EXPECT_EQ(launcher.multiprocessors(), 44u) << "a third of 132";
  asked.launch = 719;  // counts, and runs nothing
  PagedLayout layout;
  layout.layers = layout.kv_count = 2;
  layout.cache_blocks = 64;
  layout.block_tokens = 16;
  layout.heads = 8;
  layout.head_bytes = 256;
  layout.head_stride_bytes = 256;
  layout.token_stride_bytes = 2048;
  layout.block_stride_bytes = 32768;
  for (uint64_t i = 0; i < 4; ++i) layout.planes.push_back((i + 1) << 32);
  const std::vector<int64_t> blocks = {3, 9, 1, 0, 63, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
  const ExtentMove move = {{uint64_t{1} << 40, layout.extent_bytes(336)}, 336, blocks};
  MovePlan plan;
  ASSERT_TRUE(make_plan(layout, Direction::kScatter, {&move, 1}, {}, plan).ok());
  (void)launcher.move(layout, Direction::kScatter, plan, kStream);
  EXPECT_EQ(asked.blocks_most, 42u) << "2.6 MiB, of which a block of threads moves 64 KiB at a time";
  launcher.set_multiprocessors(5);
  asked = {.launch = 719};
  (void)launcher.move(layout, Direction::kScatter, plan, kStream);
  EXPECT_EQ(asked.blocks_most, 5u);
  EXPECT_EQ(asked.threads_most, kMoveThreads);
}

TEST(KernelLauncher, FewPagesAreSpreadAndManyAreBounded) {
  KernelLauncher launcher = loaded(driver(), kImage);
  const auto launched = [&launcher](uint64_t payload_bytes) {
    asked = {.launch = 719};
    const PayloadRun run = {{4096, payload_bytes}, 1 << 20};
    (void)launcher.hash_pages({&run, 1}, kStream);
    return std::pair(asked.blocks_most, asked.threads_most);
  };
  EXPECT_EQ(launched(1), std::pair(1u, 128u));
  EXPECT_EQ(launched(kMiB), std::pair(8u, 128u));
  EXPECT_EQ(launched(32 * kMiB), std::pair(32u, 1024u));
  EXPECT_EQ(launched(kGiB), std::pair(44u, 1024u));
}

TEST(KernelLauncher, HashesPagesAsTheCpuDoes) {
  KernelLauncher launcher = loaded(driver(), kImage);
  launcher.set_multiprocessors(2);
  SeededRandom random(9);
  Arena arena(40 * kPageBytes, random);
  std::vector<uint64_t> nodes(40), expected(40);
  std::vector<PayloadRun> runs;
  for (uint64_t i = 0; i < 10; ++i) {  // of 3 pages and a part of a fourth
    const uint64_t bytes = 3 * kPageBytes + 1 + random.below(kPageBytes);
    runs.push_back({{arena.address() + i * 4 * kPageBytes, bytes}, reinterpret_cast<uint64_t>(&nodes[4 * i])});
    page_nodes(arena.at(runs[i].payload.address), bytes, &expected[4 * i]);
  }
  ASSERT_TRUE(launcher.hash_pages(runs, kStream).ok());
  EXPECT_EQ(nodes, expected);
}

TEST(KernelLauncher, AnImageThatTheDriverRefusesIsNoErrorButIsSaid) {
  asked = {};
  LaunchDriver with = driver();
  with.module_load = [](cu::Module*, const void*) { return 209; };
  const KernelLauncher launcher = KernelLauncher::load(with, 0, kImage).value();
  EXPECT_EQ(launcher.kernels_missing(), "cuModuleLoadData on the GPU: CUDA_ERROR_NO_BINARY_FOR_GPU (209)");
  const PayloadRun run = {{4096, 4096}, 8192};
  EXPECT_EQ(launcher.hash_pages({&run, 1}, kStream).message(),
            "pages cannot be hashed on the GPU: cuModuleLoadData on the GPU: CUDA_ERROR_NO_BINARY_FOR_GPU (209)");
  expect_right_bytes(with, kImage);
  EXPECT_GT(asked.copies, 0);
}

TEST(KernelLauncher, ADriverThatCanDoNothingIsRefused) {
  LaunchDriver with = driver();
  with.copy = nullptr;
  EXPECT_EQ(KernelLauncher::load(with, 0, kNoImage).status().code(), Code::kUnsupported);
}

TEST(KernelLauncher, AFailureNamesTheCall) {
  const RandomTransfer transfer(2);
  const MovePlan plan = transfer.plan(Direction::kScatter);
  LaunchDriver with = driver();
  with.copy_batch = copy_batch;
  const KernelLauncher kernels = loaded(with, kImage), batches = loaded(with, kNoImage);
  asked.launch = asked.batch = 700;
  EXPECT_EQ(kernels.move(transfer.layout, Direction::kScatter, plan, kStream).message(),
            "kvstore_scatter_extent on the GPU: CUDA_ERROR_NO_BINARY_FOR_GPU (700)");
  EXPECT_EQ(batches.move(transfer.layout, Direction::kScatter, plan, kStream).message(),
            "cuMemcpyBatchAsync on the GPU: CUDA_ERROR_NO_BINARY_FOR_GPU (700)");
}

uint8_t* fake_memory(uint64_t address, uint64_t) { return static_cast<uint8_t*>(FakeDriver::get().view(address)); }

void scatter_on_the_fake(void** arguments, const unsigned*, const unsigned*) {
  EXPECT_TRUE(reference_move(*static_cast<MoveArguments*>(arguments[0]), Direction::kScatter, fake_memory).ok());
}
void gather_on_the_fake(void** arguments, const unsigned*, const unsigned*) {
  EXPECT_TRUE(reference_move(*static_cast<MoveArguments*>(arguments[0]), Direction::kGather, fake_memory).ok());
}
void hash_on_the_fake(void** arguments, const unsigned*, const unsigned*) {
  EXPECT_TRUE(reference_page_nodes(*static_cast<PageNodesArguments*>(arguments[0]), fake_memory).ok());
}

KernelLauncher launcher_on_the_fake(const FakeDriver& fake) {
  const size_t move_bytes = sizeof(MoveArguments), page_bytes = sizeof(PageNodesArguments);
  fake.add_kernel("kvstore_scatter_extent", scatter_on_the_fake, &move_bytes, 1);
  fake.add_kernel("kvstore_gather_extent", gather_on_the_fake, &move_bytes, 1);
  fake.add_kernel("kvstore_page_nodes", hash_on_the_fake, &page_bytes, 1);
  const ContextScope scope(fake.driver, fake.context(0));
  return KernelLauncher::load(LaunchDriver::of(fake.driver), 0, kImage).value();
}

// The extent is written by the stream, long after move() has returned and its arguments are gone.
TEST(KernelLauncherOnTheFake, ATransferIsInTheOrderOfItsStream) {
  const FakeDriver& fake = FakeDriver::get();
  const KernelLauncher launcher = launcher_on_the_fake(fake);
  GpuMemory cache(0, 64 * 1024), extent(0, 4096), back(0, 4096), nodes(0, 64);
  const CacheShape shape = {.layers = 1, .cache_blocks = 8, .block_tokens = 4, .heads = 1, .head_bytes = 512};
  const DeviceSpan tensor = {cache.pointer(), cache.size()};
  const PagedLayout layout = two_major(shape, {&tensor, 1}).value();
  const cu::Stream stream = fake.make_stream(0);
  fake.fill(0, stream, cache.pointer(), 0x11, cache.size());
  {
    const uint64_t gate = fake.gate(stream);
    fake.fill(0, stream, extent.pointer(), 0x77, extent.size());
    const ContextScope scope(fake.driver, fake.context(0));
    std::vector<int64_t> blocks = {6};
    for (const auto& [direction, memory] :
         {std::pair(Direction::kScatter, &extent), std::pair(Direction::kGather, &back)}) {
      const ExtentMove move = {{memory->pointer(), 4096}, 4, blocks};
      MovePlan plan;
      ASSERT_TRUE(make_plan(layout, direction, {&move, 1}, {}, plan).ok());
      ASSERT_TRUE(launcher.move(layout, direction, plan, stream).ok());
    }
    const PayloadRun run = {{back.pointer(), 4096}, nodes.pointer()};
    ASSERT_TRUE(launcher.hash_pages({&run, 1}, stream).ok());
    fake.open_gate(gate);
  }
  fake.synchronize(0, stream);
  EXPECT_EQ(std::count(cache.bytes(), cache.bytes() + cache.size(), 0x77), 4096);
  EXPECT_EQ(std::count(back.bytes(), back.bytes() + back.size(), 0x77), 4096);
  EXPECT_EQ(cache.bytes()[6 * 2048], 0x77);
  const std::vector<uint8_t> page(4096, 0x77);
  uint64_t node = 0;
  std::memcpy(&node, nodes.bytes(), sizeof(node));
  EXPECT_EQ(node, page_node(page.data(), page.size()));
}

TEST(KernelLauncherOnTheFake, TheModuleIsLoadedOnceForAContext) {
  const FakeDriver& fake = FakeDriver::get();
  (void)launcher_on_the_fake(fake);
  const uint64_t before = fake.calls("cuModuleLoadData");
  const auto first = launcher_of(fake.driver, fake.context(0), 0), again = launcher_of(fake.driver, fake.context(0), 0);
  if (kernel_image().bytes.empty()) {
    EXPECT_EQ(first.status().code(), Code::kUnsupported);
    return;
  }
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ(first.value(), again.value());
  EXPECT_NE(launcher_of(fake.driver, fake.context(1), 1).value(), first.value());
  EXPECT_EQ(fake.calls("cuModuleLoadData"), before + 2);
}

}  // namespace
}  // namespace kvstore::gpu
