// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what only the io_uring queue promises: registration limits are statuses, never crashes, and no request
// is lost when the kernel takes less than it is given. Method: a real ring over a file; address space without
// memory behind it for the large buffer; a child without privileges for the memlock limit.

#include "device/uring_queue.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "device/test_devices.h"

namespace kvstore::device {
namespace {

class UringQueueTest : public ::testing::Test {
 protected:
  UringQueueTest() : file_(kMiB) {}
  void SetUp() override {
    if (!uring_available().ok()) GTEST_SKIP() << uring_available().to_string();
    fd_ = open(file_.path().c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
    ASSERT_GE(fd_, 0);
  }
  void TearDown() override {
    if (fd_ >= 0) close(fd_);
  }
  std::unique_ptr<IoQueue> make(uint32_t depth = 8, bool single_issuer = true) {
    QueueOptions options;
    options.depth = depth;
    options.single_issuer = single_issuer;
    Result<std::unique_ptr<IoQueue>> queue = make_uring_queue({fd_}, options);
    EXPECT_TRUE(queue.ok()) << queue.status().to_string();
    return std::move(queue).value();
  }
  TempFile file_;
  int fd_ = -1;
};

TEST_F(UringQueueTest, ABufferOfMoreThanOneGibibyteIsInvalidAndNothingIsRegistered) {
  auto queue = make();
  const size_t bytes = kGiB + kPageBytes;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const iovec buffer{memory, bytes};
  const Status status = queue->register_buffers({&buffer, 1});
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("split"), std::string::npos) << status.to_string();
  munmap(memory, bytes);
  AlignedBuffer page(kPageBytes);
  EXPECT_EQ(run_transfer(*queue, IoOp::kRead, 0, page.data(), kPageBytes), 4096);
}

TEST_F(UringQueueTest, BuffersAreNotReplacedUnderRequests) {
  auto queue = make();
  AlignedBuffer page(kPageBytes);
  const iovec buffer{page.data(), page.size()};
  Transfer read(IoOp::kRead, 0, page.data(), kPageBytes);
  ASSERT_TRUE(queue->submit(&read.request));
  EXPECT_EQ(queue->register_buffers({&buffer, 1}).code(), Code::kBusy);
  IoRequest* completed[1];
  ASSERT_EQ(queue->poll(completed, kTestTimeoutNs).value(), 1u);
  EXPECT_TRUE(queue->register_buffers({&buffer, 1}).ok());
}

TEST_F(UringQueueTest, WithoutMemlockRegisteringIsAnErrorThatSaysSoAndReadsGoOn) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become a user whom the limit binds";
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{64 * kKiB, 64 * kKiB};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || setuid(65534) != 0) _exit(1);
    QueueOptions options;
    options.depth = 4;
    auto queue = make_uring_queue({fd_}, options);
    if (!queue.ok()) _exit(2);
    AlignedBuffer memory(4 * kMiB);
    const iovec buffer{memory.data(), memory.size()};
    const Status status = queue.value()->register_buffers({&buffer, 1});
    if (status.io_errno() != ENOMEM) _exit(3);
    if (status.message().find("memlock") == std::string::npos) _exit(4);
    _exit(run_transfer(*queue.value(), IoOp::kRead, 0, memory.data(), kPageBytes) == 4096 ? 0 : 5);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
}

TEST_F(UringQueueTest, ASingleIssuerRingBelongsToItsFirstPoller) {
  auto queue = make();
  IoRequest* completed[1];
  ASSERT_TRUE(queue->poll(completed, 0).ok());
  std::thread other([&] {
    AlignedBuffer page(kPageBytes);
    Transfer read(IoOp::kRead, 0, page.data(), kPageBytes);
    if (!queue->submit(&read.request)) return;
    // EEXIST where the kernel has SINGLE_ISSUER; an older one lets it pass.
    const Status status = queue->kick();
    if (status.ok()) {
      EXPECT_EQ(queue->poll(completed, kTestTimeoutNs).value(), 1u);
    } else {
      EXPECT_EQ(status.io_errno(), EEXIST);
    }
  });
  other.join();
}

TEST_F(UringQueueTest, AWaitCutByASignalGoesOn) {
  auto queue = make();
  struct sigaction action{}, before{};
  action.sa_handler = [](int) {};
  sigaction(SIGUSR1, &action, &before);
  const pthread_t self = pthread_self();
  std::atomic<bool> done{false};
  std::thread signaler([&] {
    while (!done) pthread_kill(self, SIGUSR1);
  });
  IoRequest* completed[1];
  const uint64_t start_ns = system_clock().monotonic_ns();
  EXPECT_EQ(queue->poll(completed, 20'000'000).value(), 0u);
  EXPECT_GE(system_clock().monotonic_ns() - start_ns, 20'000'000u);
  done = true;
  signaler.join();
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(UringQueueTest, ManyRingsFitInOneProcess) {
  std::vector<std::unique_ptr<IoQueue>> queues;
  AlignedBuffer page(kPageBytes);
  for (int i = 0; i < 64; ++i) {
    queues.push_back(make(64, i % 2 == 0));
    ASSERT_EQ(run_transfer(*queues.back(), IoOp::kRead, 0, page.data(), kPageBytes), 4096);
  }
}

}  // namespace
}  // namespace kvstore::device
