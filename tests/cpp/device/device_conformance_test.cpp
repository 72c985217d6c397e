// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: every implementation of Device and IoQueue keeps the guarantees of device/device.h.
// Method: one suite, run on io_uring and threads over a file and over a loop device (root), on the fake cuFile over a
// loop device, and on the simulated device. What an implementation may lack (registered buffers, strict alignment) is
// skipped by asking it, never by its name.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <ostream>
#include <thread>

#include "device/device.h"
#include "device/sim.h"
#include "device/test_devices.h"
#include "gpu/cufile_device.h"
#include "gpu/cufile_library.h"

namespace kvstore::device {
namespace {

constexpr uint64_t kDeviceBytes = 16 * kMiB;

// Owns whatever stands behind a device.
struct Backing {
  std::unique_ptr<TempFile> file;
  std::unique_ptr<LoopDevice> loop;
  std::unique_ptr<SimDisk> disk;
  std::unique_ptr<Device> below;
  std::unique_ptr<Device> device;
  std::string skip_reason;
};

Backing open_path(Backing backing, const std::string& path, const std::string& kind) {
  OpenOptions options;
  options.kind = kind;
  options.threads = 4;
  Result<std::unique_ptr<Device>> device = open_device(path, options, system_clock());
  if (device.ok()) {
    backing.device = std::move(device).value();
  } else if (device.status().code() == Code::kUnsupported) {
    backing.skip_reason = device.status().to_string();
  } else {
    ADD_FAILURE() << device.status().to_string();
    backing.skip_reason = "open failed";
  }
  return backing;
}

Backing on_file(const std::string& kind) {
  Backing backing;
  backing.file = std::make_unique<TempFile>(kDeviceBytes);
  const std::string path = backing.file->path();
  return open_path(std::move(backing), path, kind);
}

Backing on_loop(const std::string& kind) {
  Backing backing;
  backing.loop = std::make_unique<LoopDevice>(kDeviceBytes);
  if (backing.loop->path().empty()) {
    backing.skip_reason = "needs root and a loop device: " + backing.loop->problem();
    return backing;
  }
  const std::string path = backing.loop->path();
  return open_path(std::move(backing), path, kind);
}

Backing on_sim() {
  Backing backing;
  backing.disk = std::make_unique<SimDisk>(kDeviceBytes, 1);
  backing.device = make_sim_device(*backing.disk, SimDeviceOptions(), system_clock());
  return backing;
}

// With host memory, which cuFile takes too: the suite looks at what it reads.
Backing on_cufile() {
  Backing backing = on_loop("threads");
  if (backing.device == nullptr) return backing;
  const gpu::FakeCuFile& fake = gpu::FakeCuFile::get();
  backing.below = std::move(backing.device);
  backing.device =
      gpu::make_cufile_device(fake.cufile, fake.gpu.driver, fake.gpu.context(0), *backing.below, 4).value();
  return backing;
}

// The same by NVIDIA's own library, which is opened once in a process.
Backing on_real_cufile() {
  Backing backing = on_loop("threads");
  if (backing.device == nullptr) return backing;
  const gpu::CudaDriver& driver = gpu::FakeDriver::get().driver;
  static const Result<gpu::CuFile>& cufile = *new Result<gpu::CuFile>([&driver] {
    gpu::CuFileOptions options = gpu::fake_cufile_options();
    options.library = gpu::real_cufile_path();
    return gpu::CuFile::open(driver, options);
  }());
  EXPECT_TRUE(cufile.ok()) << cufile.status().message();
  backing.below = std::move(backing.device);
  backing.device =
      gpu::make_cufile_device(cufile.value(), driver, gpu::FakeDriver::get().context(0), *backing.below, 4).value();
  return backing;
}

struct Implementation {
  const char* name;
  std::function<Backing()> make;
  friend void PrintTo(const Implementation& implementation, std::ostream* out) { *out << implementation.name; }
};

class DeviceConformance : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    backing_ = GetParam().make();
    if (backing_.device == nullptr) GTEST_SKIP() << backing_.skip_reason;
  }

  std::unique_ptr<IoQueue> make_queue(uint32_t depth, bool single_issuer = true) {
    QueueOptions options;
    options.depth = depth;
    options.single_issuer = single_issuer;
    Device* devices[] = {backing_.device.get()};
    Result<std::unique_ptr<IoQueue>> queue = backing_.device->make_queue(devices, options);
    EXPECT_TRUE(queue.ok()) << queue.status().to_string();
    return queue.ok() ? std::move(queue).value() : nullptr;
  }

  Backing backing_;
};

TEST_P(DeviceConformance, TheDeviceDescribesItself) {
  const DeviceInfo& info = backing_.device->info();
  EXPECT_EQ(info.size_bytes, kDeviceBytes);
  EXPECT_FALSE(info.path.empty());
  EXPECT_LE(info.logical_block_bytes, kPageBytes);
  EXPECT_LE(info.dma_alignment_bytes, kPageBytes);
  EXPECT_EQ(info.dma_alignment_bytes & (info.dma_alignment_bytes - 1), 0u);
  if (info.is_regular_file) {
    EXPECT_TRUE(info.volatile_cache);
  }
}

TEST_P(DeviceConformance, WhatWasWrittenIsRead) {
  auto queue = make_queue(4);
  AlignedBuffer written = random_buffer(256 * kKiB, 1), read(256 * kKiB);
  for (const uint64_t offset : {uint64_t{0}, 5 * kPageBytes, kDeviceBytes - written.size()}) {
    ASSERT_EQ(run_transfer(*queue, IoOp::kWrite, offset, written.data(), written.size()), 256 * 1024);
    ASSERT_EQ(run_transfer(*queue, IoOp::kRead, offset, read.data(), read.size()), 256 * 1024);
    ASSERT_EQ(std::memcmp(written.data(), read.data(), read.size()), 0) << "at " << offset;
  }
}

TEST_P(DeviceConformance, DurableWritesAndFlushesComplete) {
  auto queue = make_queue(4);
  AlignedBuffer written = random_buffer(kPageBytes, 2), read(kPageBytes);
  EXPECT_EQ(run_transfer(*queue, IoOp::kWrite, kPageBytes, written.data(), kPageBytes, true), 4096);
  EXPECT_EQ(run_flush(*queue), 0);
  EXPECT_EQ(run_transfer(*queue, IoOp::kRead, kPageBytes, read.data(), kPageBytes), 4096);
  EXPECT_EQ(std::memcmp(written.data(), read.data(), kPageBytes), 0);
}

TEST_P(DeviceConformance, SegmentsAreFilledInOrder) {
  auto queue = make_queue(4);
  AlignedBuffer written = random_buffer(16 * kPageBytes, 3), read(32 * kPageBytes);
  // Of different lengths, scattered downwards in memory.
  const iovec parts[3] = {{read.data() + 20 * kPageBytes, kPageBytes},
                          {read.data() + 8 * kPageBytes, 4 * kPageBytes},
                          {read.data(), 3 * kPageBytes}};
  ASSERT_EQ(run_transfer(*queue, IoOp::kWrite, 0, written.data(), written.size()), 16 * 4096);
  IoRequest request;
  request.offset_bytes = 2 * kPageBytes;
  request.segments = parts;
  request.segment_count = 3;
  ASSERT_EQ(run_request(*queue, request), 8 * 4096);
  const uint8_t* expected = written.data() + 2 * kPageBytes;
  for (const iovec& part : parts) {
    EXPECT_EQ(std::memcmp(part.iov_base, expected, part.iov_len), 0);
    expected += part.iov_len;
  }
  request.op = IoOp::kWrite;
  request.offset_bytes = 64 * kPageBytes;
  ASSERT_EQ(run_request(*queue, request), 8 * 4096);
  ASSERT_EQ(run_transfer(*queue, IoOp::kRead, 64 * kPageBytes, read.data(), 8 * kPageBytes), 8 * 4096);
  EXPECT_EQ(std::memcmp(read.data(), written.data() + 2 * kPageBytes, 8 * kPageBytes), 0);
}

TEST_P(DeviceConformance, AQueueOfEightCompletesTenThousandRequestsOnceEach) {
  constexpr size_t kRequests = 10'000;
  auto queue = make_queue(8);
  ASSERT_EQ(queue->depth(), 8u);
  AlignedBuffer buffers(8 * kPageBytes);
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (size_t i = 0; i < kRequests; ++i) {
    const uint64_t offset = i % (kDeviceBytes / kPageBytes) * kPageBytes;
    transfers.push_back(std::make_unique<Transfer>(IoOp::kRead, offset, buffers.data() + i % 8 * kPageBytes,
                                                   static_cast<size_t>(kPageBytes)));
  }
  std::vector<int> completions(kRequests);
  for (size_t i = 0; i < kRequests; ++i) transfers[i]->request.owner = &completions[i];
  size_t submitted = 0, completed_count = 0;
  while (completed_count < kRequests) {
    while (submitted < kRequests && queue->submit(&transfers[submitted]->request)) ++submitted;
    if (submitted < kRequests) {
      ASSERT_EQ(queue->in_flight(), 8u) << "refused below its depth";
    }
    IoRequest* completed[3];  // fewer than are there, on purpose
    Result<uint32_t> count = queue->poll(completed, kTestTimeoutNs);
    ASSERT_TRUE(count.ok()) << count.status().to_string();
    ASSERT_GT(count.value(), 0u);
    for (uint32_t i = 0; i < count.value(); ++i) {
      ASSERT_EQ(completed[i]->result, 4096);
      ASSERT_EQ(++*static_cast<int*>(completed[i]->owner), 1);
    }
    completed_count += count.value();
  }
  EXPECT_EQ(queue->in_flight(), 0u);
  EXPECT_EQ(std::count(completions.begin(), completions.end(), 1), static_cast<std::ptrdiff_t>(kRequests));
  IoRequest* none[1];
  EXPECT_EQ(queue->poll(none, 0).value(), 0u);
}

TEST_P(DeviceConformance, AReadAcrossTheEndIsShort) {
  auto queue = make_queue(4);
  AlignedBuffer buffer(4 * kPageBytes);
  EXPECT_EQ(run_transfer(*queue, IoOp::kRead, kDeviceBytes - kPageBytes, buffer.data(), 4 * kPageBytes), 4096);
  EXPECT_EQ(run_transfer(*queue, IoOp::kRead, kDeviceBytes, buffer.data(), kPageBytes), 0);
}

TEST_P(DeviceConformance, UnalignedRequestsGiveTheKernelsAnswer) {
  if (backing_.device->info().is_regular_file) {
    GTEST_SKIP() << "file systems differ: xfs says EINVAL, ext4 and tmpfs read through the page cache";
  }
  auto queue = make_queue(4);
  AlignedBuffer buffer(4 * kPageBytes);
  EXPECT_EQ(run_transfer(*queue, IoOp::kRead, 3, buffer.data(), kPageBytes), -EINVAL);
  EXPECT_EQ(run_transfer(*queue, IoOp::kRead, 0, buffer.data(), 100), -EINVAL);
  if (backing_.device->info().dma_alignment_bytes > 1) {
    EXPECT_EQ(run_transfer(*queue, IoOp::kRead, 0, buffer.data() + 1, kPageBytes), -EINVAL);
  }
}

TEST_P(DeviceConformance, TheDmaAlignmentIsEnough) {
  auto queue = make_queue(4);
  AlignedBuffer buffer(4 * kPageBytes);
  uint8_t* const target = buffer.data() + backing_.device->info().dma_alignment_bytes;
  EXPECT_EQ(run_transfer(*queue, IoOp::kRead, 0, target, kPageBytes), 4096);
}

TEST_P(DeviceConformance, RequestsThatCannotBeAreRefusedThroughTheirResult) {
  auto queue = make_queue(4);
  AlignedBuffer buffer(kPageBytes);
  EXPECT_EQ(run_transfer(*queue, IoOp::kRead, 0, buffer.data(), kPageBytes, false, 7), -EINVAL);
  EXPECT_EQ(queue->in_flight(), 0u);
}

TEST_P(DeviceConformance, PollDoesNotWaitUnlessTold) {
  auto queue = make_queue(4);
  IoRequest* completed[1];
  EXPECT_EQ(queue->poll(completed, 0).value(), 0u);
  const uint64_t before_ns = system_clock().monotonic_ns();
  EXPECT_EQ(queue->poll(completed, 2'000'000).value(), 0u);
  EXPECT_GE(system_clock().monotonic_ns() - before_ns, 2'000'000u);
}

TEST_P(DeviceConformance, KickStartsRequestsThatPollWithoutWaitingFinds) {
  auto queue = make_queue(4);
  AlignedBuffer buffer(kPageBytes);
  Transfer transfer(IoOp::kRead, 0, buffer.data(), kPageBytes);
  ASSERT_TRUE(queue->submit(&transfer.request));
  ASSERT_TRUE(queue->kick().ok());
  IoRequest* completed[1] = {};
  const uint64_t deadline_ns = system_clock().monotonic_ns() + kTestTimeoutNs;
  while (queue->poll(completed, 0).value() == 0) ASSERT_LT(system_clock().monotonic_ns(), deadline_ns);
  EXPECT_EQ(completed[0]->result, 4096);
}

TEST_P(DeviceConformance, AWakeBeforeThePollEndsItOnce) {
  auto queue = make_queue(4);
  IoRequest* completed[1];
  queue->wake();
  EXPECT_EQ(queue->poll(completed, kTestTimeoutNs).value(), 0u);
  EXPECT_EQ(queue->poll(completed, 1'000'000).value(), 0u);
}

TEST_P(DeviceConformance, AWakeIsNotSpentOnAPollThatDoesNotWait) {
  auto queue = make_queue(4);
  IoRequest* completed[1];
  queue->wake();
  EXPECT_EQ(queue->poll(completed, 0).value(), 0u);
  EXPECT_EQ(queue->poll(completed, kTestTimeoutNs).value(), 0u);
}

TEST_P(DeviceConformance, AnotherThreadsWakeEndsAPollThatWaits) {
  auto queue = make_queue(4);
  IoRequest* completed[1];
  for (int i = 0; i < 100; ++i) {
    std::thread waker([&] { queue->wake(); });
    EXPECT_EQ(queue->poll(completed, kTestTimeoutNs).value(), 0u);
    waker.join();
  }
}

TEST_P(DeviceConformance, AQueueMadeInOneThreadIsUsedInAnother) {
  auto queue = make_queue(4);
  std::thread user([&] {
    AlignedBuffer buffer(kPageBytes);
    EXPECT_EQ(run_transfer(*queue, IoOp::kRead, 0, buffer.data(), kPageBytes), 4096);
  });
  user.join();
}

TEST_P(DeviceConformance, ASharedQueueMovesBetweenThreads) {
  auto queue = make_queue(4, false);
  std::mutex mutex;
  std::vector<std::thread> users;
  for (uint64_t user = 0; user < 4; ++user) {
    users.emplace_back([&, user] {
      AlignedBuffer buffer(64 * kKiB);
      for (uint64_t i = 0; i < 200; ++i) {
        const std::lock_guard<std::mutex> lock(mutex);
        ASSERT_EQ(run_transfer(*queue, IoOp::kRead, (user * 16 + i % 16) * 64 * kKiB, buffer.data(), 64 * kKiB),
                  64 * 1024);
      }
    });
  }
  for (std::thread& user : users) user.join();
}

TEST_P(DeviceConformance, RegisteredBuffersReadAndWriteLikeOthers) {
  auto queue = make_queue(4);
  AlignedBuffer first = random_buffer(64 * kKiB, 5), second(128 * kKiB);
  const iovec buffers[2] = {{first.data(), first.size()}, {second.data(), second.size()}};
  const Status registered = queue->register_buffers(buffers);
  if (!registered.ok()) GTEST_SKIP() << registered.to_string();
  Transfer write(IoOp::kWrite, 0, first.data(), first.size());
  write.request.buffer_index = 0;
  ASSERT_EQ(run_request(*queue, write.request), 64 * 1024);
  Transfer read(IoOp::kRead, 0, second.data() + kPageBytes, first.size());  // a part of its buffer
  read.request.buffer_index = 1;
  ASSERT_EQ(run_request(*queue, read.request), 64 * 1024);
  EXPECT_EQ(std::memcmp(first.data(), second.data() + kPageBytes, first.size()), 0);

  Transfer outside(IoOp::kRead, 0, second.data(), first.size());
  outside.request.buffer_index = 0;
  EXPECT_EQ(run_request(*queue, outside.request), -EFAULT);
  ASSERT_TRUE(queue->register_buffers({buffers, 1}).ok()) << "replacing";
  ASSERT_TRUE(queue->register_buffers({}).ok()) << "dropping";
}

TEST_P(DeviceConformance, OneQueueServesSeveralDevices) {
  Backing other = GetParam().make();
  ASSERT_NE(other.device, nullptr);
  Device* devices[] = {backing_.device.get(), other.device.get()};
  Result<std::unique_ptr<IoQueue>> made = backing_.device->make_queue(devices, QueueOptions());
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  std::unique_ptr<IoQueue> queue = std::move(made).value();
  AlignedBuffer first = random_buffer(kPageBytes, 6), second = random_buffer(kPageBytes, 7), read(kPageBytes);
  ASSERT_EQ(run_transfer(*queue, IoOp::kWrite, 0, first.data(), kPageBytes, false, 0), 4096);
  ASSERT_EQ(run_transfer(*queue, IoOp::kWrite, 0, second.data(), kPageBytes, false, 1), 4096);
  ASSERT_EQ(run_transfer(*queue, IoOp::kRead, 0, read.data(), kPageBytes, false, 0), 4096);
  EXPECT_EQ(std::memcmp(read.data(), first.data(), kPageBytes), 0);
  ASSERT_EQ(run_transfer(*queue, IoOp::kRead, 0, read.data(), kPageBytes, false, 1), 4096);
  EXPECT_EQ(std::memcmp(read.data(), second.data(), kPageBytes), 0);
}

TEST_P(DeviceConformance, DestroyingAQueueWithRequestsInFlightDoesNotWaitForThem) {
  // I11: never freed, as the owner of such requests must not either.
  static auto& leaked = *new std::vector<std::unique_ptr<Transfer>>;
  static auto& leaked_buffers = *new std::vector<AlignedBuffer>;
  auto queue = make_queue(16);
  for (uint64_t i = 0; i < 16; ++i) {
    leaked_buffers.emplace_back(kMiB);
    leaked.push_back(std::make_unique<Transfer>(IoOp::kRead, i * kMiB, leaked_buffers.back().data(), kMiB));
    ASSERT_TRUE(queue->submit(&leaked.back()->request));
  }
  ASSERT_TRUE(queue->kick().ok());
  queue.reset();
}

INSTANTIATE_TEST_SUITE_P(All, DeviceConformance,
                         ::testing::Values(Implementation{"uring_file", [] { return on_file("uring"); }},
                                           Implementation{"threads_file", [] { return on_file("threads"); }},
                                           Implementation{"uring_loop", [] { return on_loop("uring"); }},
                                           Implementation{"threads_loop", [] { return on_loop("threads"); }},
                                           Implementation{"cufile_loop", on_cufile}, Implementation{"sim", on_sim}),
                         [](const auto& instance) { return std::string(instance.param.name); });

// Only where it is named: tests/gpu/test_real_cufile.py.
std::vector<Implementation> real_cufile() {
  if (gpu::real_cufile_path() == nullptr) return {};
  return {{"real_cufile_loop", on_real_cufile}};
}
INSTANTIATE_TEST_SUITE_P(Real, DeviceConformance, ::testing::ValuesIn(real_cufile()),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace kvstore::device
