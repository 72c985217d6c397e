// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: metadata I/O is whole or an error that says where (I9), and memory that the device may still write is
// never given back (I11). Method: BlockingIo over the simulated device with one fault at a time; a time-out is
// simulated time.

#include "device/blocking_io.h"

#include <gtest/gtest.h>

#include <cstring>

#include "device/sim.h"
#include "device/test_devices.h"

namespace kvstore::device {
namespace {

constexpr uint64_t kTimeoutNs = 1'000'000'000;

class BlockingIoTest : public ::testing::Test {
 protected:
  BlockingIoTest() : disk_(64 * kMiB, 1), device_(make_sim_device(disk_, SimDeviceOptions(), clock_)) { reset(8); }
  void reset(uint32_t depth) {
    Device* devices[] = {device_.get()};
    QueueOptions options;
    options.depth = depth;
    io_ = std::make_unique<BlockingIo>(device_->make_queue(devices, options).value(),
                                       std::vector<Device*>{device_.get()}, kTimeoutNs);
  }
  void add(SimFault fault, IoOp op, uint64_t value = 0, uint64_t times = 1, uint64_t skip = 0) {
    SimRule rule;
    rule.fault = fault;
    rule.op = op;
    rule.value = value;
    rule.times = times;
    rule.skip = skip;
    disk_.add_rule(rule);
  }

  ManualClock clock_;
  SimDisk disk_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<BlockingIo> io_;
};

TEST_F(BlockingIoTest, ReadsWhatWasWrittenAcrossManyPieces) {
  AlignedBuffer written = random_buffer(20 * kMiB + kPageBytes, 1), read(20 * kMiB + kPageBytes);
  ASSERT_TRUE(io_->write(0, kPageBytes, written, written.size(), true).ok());
  ASSERT_TRUE(io_->read(0, kPageBytes, read, read.size()).ok());
  EXPECT_EQ(std::memcmp(written.data(), read.data(), read.size()), 0);
  EXPECT_TRUE(io_->flush(0).ok());
}

TEST_F(BlockingIoTest, ShortCompletionsAreContinued) {
  AlignedBuffer written = random_buffer(kMiB, 1), read(kMiB);
  add(SimFault::kShort, IoOp::kWrite, 512, 3);
  ASSERT_TRUE(io_->write(0, 0, written, kMiB, false).ok());
  add(SimFault::kShort, IoOp::kRead, 64 * kKiB, 5);
  ASSERT_TRUE(io_->read(0, 0, read, kMiB).ok());
  EXPECT_EQ(std::memcmp(written.data(), read.data(), kMiB), 0);
}

TEST_F(BlockingIoTest, AgainIsRetriedAndNotForEver) {
  AlignedBuffer buffer(kPageBytes);
  add(SimFault::kAgain, IoOp::kRead, 0, kRetriesMax);
  EXPECT_TRUE(io_->read(0, 0, buffer, kPageBytes).ok());
  add(SimFault::kAgain, IoOp::kRead, 0, kRetriesMax + 1);
  const Status status = io_->read(0, 0, buffer, kPageBytes);
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_EQ(status.io_errno(), EAGAIN);
}

TEST_F(BlockingIoTest, AWriteThatNeverMovesAnythingEnds) {
  AlignedBuffer buffer(kPageBytes);
  add(SimFault::kShort, IoOp::kWrite, 0, 1000);
  EXPECT_EQ(io_->write(0, 0, buffer, kPageBytes, false).code(), Code::kIo);
}

TEST_F(BlockingIoTest, AnErrorSaysWhatWhereAndHowMuch) {
  AlignedBuffer buffer(kPageBytes);
  add(SimFault::kError, IoOp::kRead);
  const Status status = io_->read(0, 8192, buffer, kPageBytes);
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_EQ(status.io_errno(), EIO);
  EXPECT_EQ(status.message(), "read of sim:0 at offset 8192, 4096 bytes: Input/output error");
}

TEST_F(BlockingIoTest, AReadPastTheEndIsAnError) {
  AlignedBuffer buffer(4 * kPageBytes);
  EXPECT_EQ(io_->read(0, 64 * kMiB - kPageBytes, buffer, 4 * kPageBytes).code(), Code::kIo);
}

TEST_F(BlockingIoTest, AFailedFlushIsAnError) {
  add(SimFault::kFlushFails, IoOp::kFlush);
  EXPECT_EQ(io_->flush(0).code(), Code::kIo);
  EXPECT_TRUE(io_->flush(0).ok());
}

TEST_F(BlockingIoTest, LengthsBeyondTheBufferAreRefused) {
  AlignedBuffer buffer(kPageBytes);
  EXPECT_EQ(io_->read(0, 0, buffer, 2 * kPageBytes).code(), Code::kInvalid);
  EXPECT_EQ(io_->write(0, 0, buffer, 2 * kPageBytes, false).code(), Code::kInvalid);
}

TEST_F(BlockingIoTest, ManyReadsHaveEachTheirOwnStatus) {
  AlignedBuffer written = random_buffer(8 * kMiB, 1), read(8 * kMiB);
  ASSERT_TRUE(io_->write(0, 0, written, written.size(), false).ok());
  std::vector<ReadExtent> extents(200);
  for (size_t i = 0; i < extents.size(); ++i) {
    extents[i].offset_bytes = i * 4 * kPageBytes;
    extents[i].length_bytes = 4 * kPageBytes;
    extents[i].target = read.data() + i * 4 * kPageBytes;
  }
  SimRule rule;
  rule.fault = SimFault::kError;
  rule.first_byte = extents[50].offset_bytes;
  rule.last_byte = rule.first_byte + 1;
  disk_.add_rule(rule);
  ASSERT_TRUE(io_->read_many(extents, read).ok());
  for (size_t i = 0; i < extents.size(); ++i) {
    EXPECT_EQ(extents[i].status.ok(), i != 50) << extents[i].status.to_string();
    if (i == 50) continue;
    EXPECT_EQ(std::memcmp(extents[i].target, written.data() + i * 4 * kPageBytes, 4 * kPageBytes), 0) << i;
  }
  EXPECT_TRUE(io_->read_many({}, read).ok());
}

TEST_F(BlockingIoTest, AStuckReadTakesTheBufferAndLaterReadsGoOn) {
  AlignedBuffer data = random_buffer(kPageBytes, 1);
  ASSERT_TRUE(io_->write(0, 0, data, kPageBytes, true).ok());
  AlignedBuffer buffer(kPageBytes), second(kPageBytes);
  const uint8_t* const memory = buffer.data();
  add(SimFault::kStuck, IoOp::kRead);
  const Status status = io_->read(0, 0, buffer, kPageBytes);
  EXPECT_EQ(status.code(), Code::kTimeout) << status.to_string();
  EXPECT_NE(status.message().find("sim:0 at offset 0"), std::string::npos) << status.to_string();
  EXPECT_EQ(buffer.data(), nullptr) << "the device may still write it";
  EXPECT_EQ(io_->stuck_requests(), 1u);

  EXPECT_TRUE(io_->read(0, 0, second, kPageBytes).ok());
  EXPECT_EQ(io_->stuck_requests(), 1u);
  // Released, its late data goes to the buffer that was kept (a sanitizer would see it freed).
  disk_.release_stuck();
  for (int i = 0; i < 20 && io_->stuck_requests() > 0; ++i) EXPECT_TRUE(io_->read(0, 0, second, kPageBytes).ok());
  EXPECT_EQ(io_->stuck_requests(), 0u);
  EXPECT_NE(memory, second.data());
}

TEST_F(BlockingIoTest, AStuckWriteLeavesTheCallersBufferAlone) {
  AlignedBuffer data = random_buffer(kPageBytes, 1);
  add(SimFault::kStuck, IoOp::kWrite);
  EXPECT_EQ(io_->write(0, 0, data, kPageBytes, true).code(), Code::kTimeout);
  std::memset(data.data(), 0, kPageBytes);  // the caller goes on using it
  disk_.release_stuck();
  AlignedBuffer read(kPageBytes);
  for (int i = 0; i < 20 && io_->stuck_requests() > 0; ++i) EXPECT_TRUE(io_->read(0, 0, read, kPageBytes).ok());
  ASSERT_TRUE(io_->read(0, 0, read, kPageBytes).ok());
  EXPECT_EQ(std::memcmp(read.data(), random_buffer(kPageBytes, 1).data(), kPageBytes), 0);
}

TEST_F(BlockingIoTest, OneStuckReadOfManyTimesOutTheCallOnly) {
  AlignedBuffer buffer(kMiB);
  std::vector<ReadExtent> extents(64);
  for (size_t i = 0; i < extents.size(); ++i) {
    extents[i] = {0, i * kPageBytes, kPageBytes, buffer.data() + i * kPageBytes, {}};
  }
  add(SimFault::kStuck, IoOp::kRead, 0, 1, 20);
  EXPECT_EQ(io_->read_many(extents, buffer).code(), Code::kTimeout);
  EXPECT_EQ(io_->stuck_requests(), 1u);
}

TEST_F(BlockingIoTest, WhenEverySlotIsStuckNothingMoreIsIssued) {
  reset(2);
  add(SimFault::kStuck, IoOp::kRead, 0, 2);
  for (int i = 0; i < 2; ++i) {
    AlignedBuffer buffer(kPageBytes);
    EXPECT_EQ(io_->read(0, 0, buffer, kPageBytes).code(), Code::kTimeout);
  }
  AlignedBuffer buffer(kPageBytes);
  EXPECT_EQ(io_->read(0, 0, buffer, kPageBytes).code(), Code::kIo);
  EXPECT_EQ(io_->stuck_requests(), 2u);
  disk_.release_stuck();
  EXPECT_TRUE(io_->read(0, 0, buffer, kPageBytes).ok());
}

TEST(AdvanceAfterCompletion, ResumesInTheMiddleOfASegment) {
  uint8_t memory[4 * 4096];
  iovec segments[3] = {{memory, 4096}, {memory + 4096, 8192}, {memory + 12288, 4096}};
  IoRequest request;
  request.offset_bytes = 1 << 20;
  request.segments = segments;
  request.segment_count = 3;
  request.result = 4096 + 512;
  std::vector<iovec> scratch;
  uint32_t attempts = 0;
  ASSERT_EQ(advance_after_completion(request, scratch, attempts), IoOutcome::kRetry);
  EXPECT_EQ(request.offset_bytes, (1u << 20) + 4608);
  ASSERT_EQ(request.segment_count, 2u);
  EXPECT_EQ(request.segments[0].iov_base, memory + 4608);
  EXPECT_EQ(request.segments[0].iov_len, 8192u - 512);
  EXPECT_EQ(segments[1].iov_len, 8192u) << "the caller's list is not touched";

  request.result = 8192 - 512;  // exactly the rest of that segment
  ASSERT_EQ(advance_after_completion(request, scratch, attempts), IoOutcome::kRetry);
  ASSERT_EQ(request.segment_count, 1u);
  EXPECT_EQ(request.segments[0].iov_base, memory + 12288);
  request.result = 4096;
  EXPECT_EQ(advance_after_completion(request, scratch, attempts), IoOutcome::kDone);
  EXPECT_EQ(attempts, 2u);
}

TEST(AdvanceAfterCompletion, ErrorsOtherThanAgainAndInterruptedFail) {
  IoRequest request;
  std::vector<iovec> scratch;
  uint32_t attempts = 0;
  for (const int error : {EIO, ENODEV, ENOSPC, EINVAL, ETIMEDOUT}) {
    request.result = -error;
    EXPECT_EQ(advance_after_completion(request, scratch, attempts), IoOutcome::kFailed);
  }
  request.result = -EINTR;
  EXPECT_EQ(advance_after_completion(request, scratch, attempts), IoOutcome::kRetry);
}

}  // namespace
}  // namespace kvstore::device
