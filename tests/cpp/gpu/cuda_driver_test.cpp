// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a driver that is absent, incomplete or broken is a value with its reason; and the fake driver is as strict as
// the other tests need it to be.
// Method: libraries by name, and the fake libcuda.so.1 with faults.

#include "gpu/cuda_driver.h"

#include <setjmp.h>

#include <array>
#include <csignal>

#include "gpu/fake_driver.h"
#include "gpu/kernel_launch.h"

namespace kvstore::gpu {
namespace {

class Driver : public testing::Test {
 protected:
  void TearDown() override { fake.reset(); }
  FakeDriver& fake = FakeDriver::get();
};

TEST(AbsentDriver, IsAValueThatNamesTheMend) {
  const auto loaded = CudaDriver::load("libcuda-of-nobody.so.1");
  EXPECT_EQ(loaded.status().code(), Code::kUnsupported);
  EXPECT_NE(loaded.status().message().find("libcuda-of-nobody.so.1"), std::string::npos);
  EXPECT_NE(loaded.status().message().find("--gpus all"), std::string::npos);
}

TEST(AbsentDriver, ALibraryThatIsNoDriverSaysWhatItLacks) {
  const auto loaded = CudaDriver::load("libdl.so.2");
  EXPECT_NE(loaded.status().message().find("has no cuInit"), std::string::npos) << loaded.status().message();
}

TEST_F(Driver, AnErrorOfCuInitNamesTheCallAndTheMend) {
  fake.fail("cuInit", cu::kNoDevice, 0, 1);
  const auto loaded = CudaDriver::load(KVSTORE_FAKE_LIBCUDA);
  EXPECT_NE(loaded.status().message().find("cuInit gave CUDA_ERROR_NO_DEVICE (100)"), std::string::npos);
  EXPECT_NE(loaded.status().message().find("CUDA_VISIBLE_DEVICES"), std::string::npos);
}

TEST_F(Driver, TellsVersionAndDevices) {
  EXPECT_EQ(fake.driver.version(), 13000);
  EXPECT_EQ(fake.driver.devices(), 2);
  EXPECT_EQ(CudaDriver::get().value(), &fake.driver);
}

TEST_F(Driver, TheCallersContextIsCurrentAgainAfterwards) {
  const ContextScope outer(fake.driver, fake.context(1));
  {
    const ContextScope inner(fake.driver, fake.context(0));
  }
  cu::Context current = nullptr;
  ASSERT_EQ(fake.driver.context_pop(&current), cu::kSuccess);
  EXPECT_EQ(current, fake.context(1));
  ASSERT_EQ(fake.driver.context_push(current), cu::kSuccess);
}

// ---- the fake itself ----

sigjmp_buf fault_place;

TEST_F(Driver, TheFakesMemoryCannotBeTouchedByTheHost) {
  const GpuMemory memory(0, 4096);
  struct sigaction handler{};
  struct sigaction before{};
  handler.sa_handler = [](int) { siglongjmp(fault_place, 1); };
  sigaction(SIGSEGV, &handler, &before);
  bool faulted = true;
  if (sigsetjmp(fault_place, 1) == 0) {
    __atomic_store_n(static_cast<uint8_t*>(memory.address()), uint8_t{1}, __ATOMIC_RELAXED);
    faulted = false;
  }
  sigaction(SIGSEGV, &before, nullptr);
  EXPECT_TRUE(faulted);
  memory.bytes()[0] = 1;  // but by the fake
}

TEST_F(Driver, TheFakesCopyReadsItsSourceLate) {
  const GpuMemory memory(0, 4096);
  cu::Stream const stream = fake.make_stream(0);
  alignas(4096) static std::array<uint8_t, 4096> source;
  source.fill(1);
  const ContextScope scope(fake.driver, fake.context(0));
  ASSERT_EQ(fake.driver.host_register(source.data(), source.size(), cu::kHostPortable), cu::kSuccess);
  const uint64_t gate = fake.gate(stream);
  ASSERT_EQ(fake.driver.copy_to_device(memory.pointer(), source.data(), source.size(), stream), cu::kSuccess);
  source.fill(2);
  fake.open_gate(gate);
  fake.synchronize(0, stream);
  EXPECT_EQ(memory.bytes()[4095], 2);
  ASSERT_EQ(fake.driver.host_unregister(source.data()), cu::kSuccess);
}

TEST_F(Driver, TheFakesEventOfAnotherDeviceIsRefused) {
  cu::Stream const stream = fake.make_stream(1);
  const ContextScope scope(fake.driver, fake.context(0));
  cu::Event event = nullptr;
  ASSERT_EQ(fake.driver.event_create(&event, cu::kEventDisableTiming), cu::kSuccess);
  EXPECT_EQ(fake.driver.event_record(event, stream), cu::kInvalidHandle);
}

TEST_F(Driver, TheFakesKernelRunsOnItsStreamWithTheArgumentsOfTheLaunch) {
  const GpuMemory memory(0, 8);
  cu::Stream const stream = fake.make_stream(0);
  const std::array<size_t, 2> argument_bytes = {8, 4};
  fake.add_kernel(
      "store_number",
      [](void** arguments, const unsigned grid[3], const unsigned[3]) {
        uint64_t pointer = 0;
        uint32_t number = 0;
        std::memcpy(&pointer, arguments[0], sizeof(pointer));
        std::memcpy(&number, arguments[1], sizeof(number));
        *static_cast<uint32_t*>(FakeDriver::get().view(pointer)) = number + grid[0];
      },
      argument_bytes.data(), argument_bytes.size());
  const ContextScope scope(fake.driver, fake.context(0));
  cu::Module module = nullptr;
  cu::Function kernel = nullptr;
  ASSERT_EQ(fake.driver.module_load(&module, "image"), cu::kSuccess);
  ASSERT_EQ(fake.driver.module_function(&kernel, module, "store_number"), cu::kSuccess);
  uint64_t pointer = memory.pointer();
  uint32_t number = 40;
  void* arguments[] = {&pointer, &number};
  ASSERT_EQ(fake.driver.launch_kernel(kernel, 2, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr), cu::kSuccess);
  number = 7;
  fake.synchronize(0, stream);
  EXPECT_EQ(*reinterpret_cast<uint32_t*>(memory.bytes()), 42u);
}

// Copies within the GPU: what tests of the launcher rely on.
class DriverCopies : public Driver {
 protected:
  using Copy = cu::Code (*)(uint64_t, uint64_t, size_t, cu::Stream);
  using Batch = cu::Code (*)(uint64_t*, uint64_t*, size_t*, size_t, CopyAttributes*, size_t*, size_t, cu::Stream);

  cu::Code batch(int source_order, cu::Stream on) {
    uint64_t to = target.pointer(), from = source.pointer();
    size_t bytes = 4096, first = 0;
    CopyAttributes attributes = {};
    attributes.source_order = source_order;
    return fake.symbol<Batch>("cuMemcpyBatchAsync_v2")(&to, &from, &bytes, 1, &attributes, &first, 1, on);
  }

  const GpuMemory source{0, 4096}, target{0, 4096};
  cu::Stream const stream = fake.make_stream(0);
};

TEST_F(DriverCopies, TheFakesBatchReadsInStreamOrderWhenAskedTo) {
  for (const auto& [order, expected] : {std::pair(1, 2), std::pair(3, 1)}) {  // 3: any order, so it may read at once
    std::memset(source.bytes(), 1, 4096);
    const uint64_t gate = fake.gate(stream);
    fake.fill(0, stream, source.pointer(), 2, 4096);
    const ContextScope scope(fake.driver, fake.context(0));
    ASSERT_EQ(batch(order, stream), cu::kSuccess);
    fake.open_gate(gate);
    ASSERT_EQ(fake.driver.stream_synchronize(stream), cu::kSuccess);
    EXPECT_EQ(target.bytes()[4095], expected);
  }
}

TEST_F(DriverCopies, TheFakesBatchRefusesTheLegacyStreamAndAnUnknownOrder) {
  const ContextScope scope(fake.driver, fake.context(0));
  EXPECT_EQ(batch(1, nullptr), cu::kInvalidValue);
  EXPECT_EQ(batch(1, reinterpret_cast<cu::Stream>(1)), cu::kInvalidValue);
  EXPECT_EQ(batch(0, stream), cu::kInvalidValue);
}

TEST_F(DriverCopies, TheFakesCopyKnowsWhereMemoryEndsAndWhoseItIs) {
  const auto copy = fake.symbol<Copy>("cuMemcpyAsync");
  const GpuMemory other(1, 4096);
  uint64_t number = 0;
  const ContextScope scope(fake.driver, fake.context(0));
  EXPECT_EQ(copy(target.pointer(), source.pointer(), 4096, stream), cu::kSuccess);
  EXPECT_EQ(copy(target.pointer(), source.pointer() + 1, 4096, stream), cu::kInvalidValue);
  EXPECT_EQ(copy(target.pointer(), other.pointer(), 4096, stream), cu::kInvalidValue);
  EXPECT_EQ(copy(target.pointer(), reinterpret_cast<uint64_t>(&number), 8, stream), cu::kInvalidValue);
  EXPECT_EQ(fake.driver.stream_synchronize(stream), cu::kSuccess);  // before the memory goes
}

TEST_F(DriverCopies, TheFakesOwnKernelBreaksTheContextAtABadAddress) {
  const ContextScope scope(fake.driver, fake.context(0));
  cu::Module module = nullptr;
  cu::Function kernel = nullptr;
  ASSERT_EQ(fake.driver.module_load(&module, "image"), cu::kSuccess);
  ASSERT_EQ(fake.driver.module_function(&kernel, module, "kvstore_page_nodes"), cu::kSuccess);
  for (const auto& [past, code] : {std::pair(16, 700), std::pair(8, 716)}) {
    PageNodesArguments hashed = {};
    hashed.run_count = hashed.page_count = 1;
    hashed.runs[0] = {source.pointer() + static_cast<uint64_t>(past), 4096, target.pointer(), 0, 0};
    void* arguments[] = {&hashed};
    ASSERT_EQ(fake.driver.launch_kernel(kernel, 1, 1, 1, 128, 1, 1, 0, stream, arguments, nullptr), cu::kSuccess);
    EXPECT_EQ(fake.driver.stream_synchronize(stream), code);
    fake.break_context(0);
  }
}

TEST_F(Driver, TheFakesStreamEndsAfterWhatIsOnIt) {
  const GpuMemory memory(0, 4096);
  cu::Stream const stream = fake.make_stream(0), other = fake.make_stream(0);
  const uint64_t gate = fake.gate(stream);
  fake.fill(0, stream, memory.pointer(), 5, 4096);
  const ContextScope scope(fake.driver, fake.context(0));
  cu::Event event = nullptr;
  ASSERT_EQ(fake.driver.event_create(&event, cu::kEventDisableTiming), cu::kSuccess);
  ASSERT_EQ(fake.driver.event_record(event, stream), cu::kSuccess);
  ASSERT_EQ(fake.driver.stream_wait_event(other, event, 0), cu::kSuccess);
  ASSERT_EQ(fake.driver.stream_destroy(stream), cu::kSuccess);
  EXPECT_EQ(fake.driver.stream_destroy(stream), cu::kInvalidHandle);
  fake.open_gate(gate);
  ASSERT_EQ(fake.driver.stream_synchronize(other), cu::kSuccess);
  EXPECT_EQ(memory.bytes()[0], 5);
}

}  // namespace
}  // namespace kvstore::gpu
