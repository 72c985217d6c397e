// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what cuFile moves between a namespace and GPU memory is right or told as wrong: short reads, refusals, requests
// that are not aligned, reads that move nothing; and nothing asks of cuFile what it is known to do wrong.
// Method: the fake libcufile.so.0 over a loop device, memory of the fake GPUs. That a CuFileDevice keeps device.h's
// guarantees is in tests/cpp/device/device_conformance_test.cpp.

#include "gpu/cufile_device.h"

#include <cerrno>
#include <cstring>

#include "device/test_devices.h"
#include "gpu/cufile_library.h"

namespace kvstore::gpu {
namespace {

using device::IoOp;

constexpr uint64_t kBytes = 64 * kMiB;

class CuFileIo : public testing::Test {
 protected:
  void SetUp() override {
    if (loop_.path().empty()) GTEST_SKIP() << "needs root and a loop device: " << loop_.problem();
    below_ = device::open_device(loop_.path(), {.kind = "threads"}, system_clock()).value();
    use_gpu(0);
    device::Device* const below[] = {below_.get()};
    host_ = below_->make_queue(below, {.depth = 8}).value();
  }
  void TearDown() override {
    fake.reset();
    queue_.reset();
    host_.reset();
    direct_.reset();
    EXPECT_EQ(fake.files(), 0u);
    EXPECT_EQ(fake.registered(), 0u);
  }

  void use_gpu(int gpu) {
    queue_.reset();
    direct_ = make_cufile_device(fake.cufile, fake.gpu.driver, fake.gpu.context(gpu), *below_, 2).value();
    device::Device* const devices[] = {direct_.get()};
    queue_ = direct_->make_queue(devices, {.depth = 8}).value();
  }
  int64_t move(IoOp op, uint64_t offset, GpuMemory& memory, uint64_t at, uint64_t bytes) {
    return device::run_transfer(*queue_, op, offset, static_cast<uint8_t*>(memory.address()) + at, bytes);
  }
  Status check(GpuMemory& memory, uint64_t bytes) {
    const cu::Stream stream = fake.gpu.make_stream(0);
    return check_direct_reads(fake.gpu.driver, fake.gpu.context(0), stream, *direct_, *below_, kMiB, bytes,
                              memory.pointer());
  }
  AlignedBuffer put(uint64_t offset, uint64_t bytes, uint64_t seed) {
    AlignedBuffer written = device::random_buffer(bytes, seed);
    EXPECT_EQ(device::run_transfer(*host_, IoOp::kWrite, offset, written.data(), bytes), static_cast<int64_t>(bytes));
    return written;
  }

  FakeCuFile& fake = FakeCuFile::get();
  device::LoopDevice loop_{kBytes};
  std::unique_ptr<device::Device> below_, direct_;
  std::unique_ptr<device::IoQueue> queue_, host_;
};

TEST_F(CuFileIo, BytesGoBetweenTheDeviceAndTheMemoryOfEachGpu) {
  for (const int gpu : {0, 1}) {
    use_gpu(gpu);
    const AlignedBuffer written = put(kMiB, kMiB, 1);
    GpuMemory memory(gpu, 2 * kMiB);
    ASSERT_EQ(move(IoOp::kRead, kMiB, memory, kMiB, kMiB), static_cast<int64_t>(kMiB));
    EXPECT_EQ(std::memcmp(memory.bytes() + kMiB, written.data(), kMiB), 0);
    ASSERT_EQ(move(IoOp::kWrite, 8 * kMiB, memory, kMiB, kMiB), static_cast<int64_t>(kMiB));
    AlignedBuffer back(kMiB);
    ASSERT_EQ(device::run_transfer(*host_, IoOp::kRead, 8 * kMiB, back.data(), kMiB), static_cast<int64_t>(kMiB));
    EXPECT_EQ(std::memcmp(back.data(), written.data(), kMiB), 0);
  }
}

TEST_F(CuFileIo, NoCallMovesMoreThan16MiBAndNoneHasAnOffsetIntoItsBuffer) {
  const AlignedBuffer written = put(0, 40 * kMiB, 2);
  GpuMemory memory(0, 48 * kMiB);
  const uint64_t before = fake.calls("cuFileRead");
  ASSERT_EQ(move(IoOp::kRead, 0, memory, 4 * kMiB, 40 * kMiB), static_cast<int64_t>(40 * kMiB));
  EXPECT_EQ(fake.calls("cuFileRead") - before, 3u);
  EXPECT_EQ(std::memcmp(memory.bytes() + 4 * kMiB, written.data(), 40 * kMiB), 0);
  EXPECT_EQ(fake.offsets(), 0u);
}

TEST_F(CuFileIo, AShortReadIsToldAsOne) {
  GpuMemory memory(0, kMiB);
  fake.shorten_reads(64 * kKiB);
  EXPECT_EQ(move(IoOp::kRead, 0, memory, 0, kMiB), static_cast<int64_t>(kMiB - 64 * kKiB));
}

TEST_F(CuFileIo, ARefusalIsItsErrno) {
  GpuMemory memory(0, kMiB);
  fake.fail("cuFileRead", ENXIO, 0, 1);
  EXPECT_EQ(move(IoOp::kRead, 0, memory, 0, kMiB), -ENXIO);
}

TEST_F(CuFileIo, WhatIsNotAlignedNeverReachesCuFile) {
  GpuMemory memory(0, kMiB);
  const uint64_t before = fake.calls("cuFileRead");
  EXPECT_EQ(move(IoOp::kRead, 512, memory, 0, kPageBytes), -EINVAL);
  EXPECT_EQ(move(IoOp::kRead, 0, memory, 16, kPageBytes), -EINVAL);
  EXPECT_EQ(move(IoOp::kRead, 0, memory, 0, 100), -EINVAL);
  EXPECT_EQ(fake.calls("cuFileRead"), before);
}

TEST_F(CuFileIo, WhatCuFileCannotRegisterIsRefusedWithTheMend) {
  fake.fail("cuFileHandleRegister", 5018, 0, 1);
  const auto made = make_cufile_device(fake.cufile, fake.gpu.driver, fake.gpu.context(0), *below_, 2);
  EXPECT_EQ(made.status().code(), Code::kUnsupported);
  EXPECT_NE(made.status().message().find("device-mapper"), std::string::npos) << made.status().message();
}

TEST_F(CuFileIo, BuffersAreRegisteredAllOrNone) {
  GpuMemory memory(0, 4 * kMiB);
  const auto part = [&](uint64_t at) { return iovec{static_cast<uint8_t*>(memory.address()) + at * kMiB, kMiB}; };
  const iovec parts[] = {part(0), part(1), part(2)};
  fake.fail("cuFileBufRegister", 5036, 2, 1);
  const Status refused = queue_->register_buffers(parts);
  EXPECT_NE(refused.message().find("BAR1"), std::string::npos) << refused.message();
  EXPECT_EQ(fake.registered(), 0u);
  ASSERT_TRUE(queue_->register_buffers(parts).ok());
  EXPECT_EQ(fake.registered(), 3 * kMiB);
}

TEST_F(CuFileIo, TheSelfTestPassesWhereBothReadTheSame) {
  put(kMiB, kMiB, 3);
  GpuMemory memory(0, kMiB);
  const Status status = check(memory, kMiB);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(CuFileIo, TheSelfTestNoticesAReadThatMovedNothing) {
  GpuMemory memory(0, kMiB);
  fake.move_nothing(true);
  const Status status = check(memory, kMiB);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_NE(status.message().find("other bytes"), std::string::npos) << status.message();
}

TEST_F(CuFileIo, TheSelfTestNoticesAShortReadAndARefusal) {
  GpuMemory memory(0, kMiB);
  fake.shorten_reads(kPageBytes);
  EXPECT_EQ(check(memory, kMiB).code(), Code::kIo);
  fake.shorten_reads(0);
  fake.fail("cuFileRead", EIO, 0, 1);
  EXPECT_EQ(check(memory, kMiB).code(), Code::kIo);
}

}  // namespace
}  // namespace kvstore::gpu
