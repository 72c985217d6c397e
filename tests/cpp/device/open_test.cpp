// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: one owner at a time, or any number that share; a refusal says who has the device; a child of fork() keeps
// nothing alive.
// Method: real files, and loop devices where root has them; holders are this process and forked children that
// wait on pipes. Waiting is on a manual clock, so nothing sleeps.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/swap.h>
#include <sys/wait.h>

#include <atomic>
#include <filesystem>
#include <new>

#include "device/device.h"
#include "device/test_devices.h"

namespace kvstore::device {
namespace {

constexpr uint64_t kBytes = kMiB;

Result<std::unique_ptr<Device>> open_now(const std::string& path, OpenOptions options = {}) {
  ManualClock clock;
  return open_device(path, options, clock);
}

// A child that holds something until it is told to go; its exit code is that of `hold`.
class Child {
 public:
  // `hold` returns when its argument, the child's end of the pipe, reads end-of-file (see wait_for_end).
  template <typename Hold>
  explicit Child(Hold hold) {
    int to_child[2], to_parent[2];
    EXPECT_EQ(pipe2(to_child, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(to_parent, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(to_child[1]);
      close(to_parent[0]);
      const int code = hold([&] {
        [[maybe_unused]] const ssize_t told = write(to_parent[1], "r", 1);
        char byte;
        while (read(to_child[0], &byte, 1) > 0) {
        }
      });
      _exit(code);
    }
    close(to_child[0]);
    close(to_parent[1]);
    end_ = to_child[1];
    char byte;
    ready_ = read(to_parent[0], &byte, 1) == 1;
    close(to_parent[0]);
  }
  ~Child() {
    if (pid_ > 0) finish();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  bool ready() const { return ready_; }
  void let_go() {
    close(end_);
    end_ = -1;
  }
  int finish() {
    if (end_ >= 0) let_go();
    return reap();
  }
  int kill_and_reap() {
    kill(pid_, SIGKILL);  // before the pipe tells it to end by itself
    close(end_);
    return reap();
  }

 private:
  int reap() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }
  pid_t pid_ = -1;
  int end_ = -1;
  bool ready_ = false;
};

TEST(Open, WhatIsNoDeviceIsRefusedWithTheReason) {
  EXPECT_EQ(open_now("/nonexistent/device").status().code(), Code::kNotFound);
  EXPECT_EQ(open_now("/dev/null").status().code(), Code::kInvalid);
  EXPECT_EQ(open_now(::testing::TempDir()).status().code(), Code::kInvalid);
  const TempFile file(kBytes);
  OpenOptions options;
  options.kind = "spdk";
  EXPECT_EQ(open_now(file.path(), options).status().code(), Code::kInvalid);
}

TEST(Open, AFileWithoutDirectIoIsUnsupportedAndSaysWhatToDo) {
  // procfs files are regular files that no kernel opens with O_DIRECT.
  OpenOptions options;
  options.read_only = true;
  const Status status = open_now("/proc/self/status", options).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("ext4 or xfs"), std::string::npos) << status.to_string();
}

TEST(Open, AFileIsHeldByOneAndTheRefusalNamesThisProcess) {
  const TempFile file(kBytes);
  auto first = open_now(file.path());
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  const Status second = open_now(file.path()).status();
  EXPECT_EQ(second.code(), Code::kBusy);
  EXPECT_NE(second.message().find("this process, " + std::to_string(getpid())), std::string::npos)
      << second.to_string();
}

TEST(Open, ClosingLetsTheNextOneInAtOnce) {
  const TempFile file(kBytes);
  for (int i = 0; i < 20; ++i) {
    auto device = open_now(file.path());
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    Device* devices[] = {device.value().get()};
    auto queue = device.value()->make_queue(devices, QueueOptions());
    ASSERT_TRUE(queue.ok()) << queue.status().to_string();
    AlignedBuffer buffer(kPageBytes);
    EXPECT_EQ(run_transfer(*queue.value(), IoOp::kRead, 0, buffer.data(), kPageBytes), 4096);
  }
}

// What is printed to a standard error that was closed goes to whatever was opened in its place.
TEST(Open, ADeviceNeverTakesThePlaceOfAClosedStandardStream) {
  const TempFile file(kBytes);
  Child child([&](auto wait_for_end) {
    for (const int standard : {0, 1, 2}) close(standard);
    auto device = open_now(file.path());
    wait_for_end();
    if (!device.ok()) return 10;
    for (const int standard : {0, 1, 2}) {
      if (fcntl(standard, F_GETFD) >= 0) return standard + 1;
    }
    return 0;
  });
  EXPECT_EQ(child.finish(), 0);
}

TEST(Open, AReaderMayLookAtWhatSomebodyOwns) {
  const TempFile file(kBytes);
  auto owner = open_now(file.path());
  ASSERT_TRUE(owner.ok());
  OpenOptions options;
  options.read_only = true;
  auto reader = open_now(file.path(), options);
  ASSERT_TRUE(reader.ok()) << reader.status().to_string();
  Device* devices[] = {reader.value().get()};
  auto queue = reader.value()->make_queue(devices, QueueOptions());
  ASSERT_TRUE(queue.ok());
  AlignedBuffer buffer(kPageBytes);
  EXPECT_EQ(run_transfer(*queue.value(), IoOp::kRead, 0, buffer.data(), kPageBytes), 4096);
  EXPECT_EQ(run_transfer(*queue.value(), IoOp::kWrite, 0, buffer.data(), kPageBytes), -EBADF);
}

TEST(Open, AnotherProcessIsNamedWithItsCommandAndStart) {
  const TempFile file(kBytes);
  Child child([&](auto wait_for_end) {
    auto device = open_now(file.path());
    if (!device.ok()) return 1;
    wait_for_end();
    return 0;
  });
  ASSERT_TRUE(child.ready());
  const Status status = open_now(file.path()).status();
  EXPECT_EQ(status.code(), Code::kBusy);
  EXPECT_NE(status.message().find("process " + std::to_string(child.pid()) + " ("), std::string::npos)
      << status.to_string();
  EXPECT_NE(status.message().find("running since 20"), std::string::npos) << status.to_string();
  EXPECT_EQ(child.finish(), 0);
  EXPECT_TRUE(open_now(file.path()).ok());
}

TEST(Open, ALivingHolderIsWaitedForAsLongAsAsked) {
  const TempFile file(kBytes);
  auto owner = open_now(file.path());
  ASSERT_TRUE(owner.ok());
  ManualClock clock;
  OpenOptions options;
  options.wait_ns = 3'000'000'000;
  const uint64_t start_ns = clock.monotonic_ns();
  EXPECT_EQ(open_device(file.path(), options, clock).status().code(), Code::kBusy);
  EXPECT_EQ(clock.monotonic_ns() - start_ns, options.wait_ns);
}

// A clock whose first sleep makes the holder go away.
class ReleasingClock final : public Clock {
 public:
  explicit ReleasingClock(std::unique_ptr<Device> held) : held_(std::move(held)) {}
  uint64_t monotonic_ns() override { return now_ns_; }
  uint64_t wall_seconds() override { return 0; }
  void sleep_ns(uint64_t duration_ns) override {
    now_ns_ += duration_ns;
    held_.reset();
  }

 private:
  std::unique_ptr<Device> held_;
  uint64_t now_ns_ = 0;
};

TEST(Open, WaitingEndsWhenTheHolderGoes) {
  const TempFile file(kBytes);
  ReleasingClock clock(open_now(file.path()).value());
  OpenOptions options;
  options.wait_ns = 60'000'000'000;
  EXPECT_TRUE(open_device(file.path(), options, clock).ok());
  EXPECT_LT(clock.monotonic_ns(), 1'000'000'000u);
}

// The lock of a file description that a killed process passed on looks like what the kernel still holds for one.
TEST(Open, AHolderThatNobodyCanFindIsWaitedForAsStale) {
  const TempFile file(kBytes);
  // Held through a descriptor in flight inside a socket: locked, and in nobody's descriptor table.
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair), 0);
  const int fd = open(file.path().c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  ASSERT_EQ(sendmsg(pair[0], &message, 0), 1);
  close(fd);

  ManualClock clock;
  OpenOptions options;
  const uint64_t start_ns = clock.monotonic_ns();
  const Status status = open_device(file.path(), options, clock).status();
  EXPECT_EQ(status.code(), Code::kBusy) << status.to_string();
  EXPECT_EQ(clock.monotonic_ns() - start_ns, options.stale_wait_ns);
  close(pair[0]);
  close(pair[1]);
  EXPECT_TRUE(open_now(file.path()).ok());
}

TEST(Open, AKilledHolderIsNoHolder) {
  const TempFile file(kBytes);
  Child child([&](auto wait_for_end) {
    auto device = open_now(file.path());
    if (!device.ok()) return 1;
    Device* devices[] = {device.value().get()};
    auto queue = device.value()->make_queue(devices, QueueOptions());
    if (!queue.ok()) return 2;
    wait_for_end();
    return 0;
  });
  ASSERT_TRUE(child.ready());
  EXPECT_EQ(child.kill_and_reap(), 128);
  auto device = open_device(file.path(), OpenOptions(), system_clock());
  EXPECT_TRUE(device.ok()) << device.status().to_string();
}

class OpenLoop : public ::testing::Test {
 protected:
  OpenLoop() : loop_(kBytes) {}
  void SetUp() override {
    if (loop_.path().empty()) GTEST_SKIP() << "needs root and a loop device: " << loop_.problem();
  }
  LoopDevice loop_;
};

TEST_F(OpenLoop, ABlockDeviceIsHeldByOne) {
  auto first = open_now(loop_.path());
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_FALSE(first.value()->info().is_regular_file);
  EXPECT_EQ(first.value()->info().size_bytes, kBytes);
  const Status second = open_now(loop_.path()).status();
  EXPECT_EQ(second.code(), Code::kBusy);
  EXPECT_NE(second.message().find(std::to_string(getpid())), std::string::npos) << second.to_string();
}

TEST_F(OpenLoop, ALoopDeviceAndItsFileAreOneDevice) {
  {
    auto device = open_now(loop_.path());
    ASSERT_TRUE(device.ok());
    EXPECT_EQ(open_now(loop_.backing_path()).status().code(), Code::kBusy);
  }
  {
    auto file = open_now(loop_.backing_path());
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    const Status status = open_now(loop_.path()).status();
    EXPECT_EQ(status.code(), Code::kBusy);
    EXPECT_NE(status.message().find(std::to_string(getpid())), std::string::npos) << status.to_string();
  }
  EXPECT_TRUE(open_now(loop_.path()).ok());
}

TEST_F(OpenLoop, ClosingARingLetsTheNextOneInAtOnce) {
  for (int i = 0; i < 20; ++i) {
    OpenOptions options;
    options.stale_wait_ns = 0;
    auto device = open_now(loop_.path(), options);
    ASSERT_TRUE(device.ok()) << i << ": " << device.status().to_string();
    Device* devices[] = {device.value().get()};
    auto queue = device.value()->make_queue(devices, QueueOptions());
    ASSERT_TRUE(queue.ok());
    AlignedBuffer buffer(kPageBytes);
    ASSERT_EQ(run_transfer(*queue.value(), IoOp::kRead, 0, buffer.data(), kPageBytes), 4096);
  }
}

TEST_F(OpenLoop, AfterSigkillTheDeviceOpensWithinTheStaleWait) {
  Child child([&](auto wait_for_end) {
    auto device = open_now(loop_.path());
    if (!device.ok()) return 1;
    Device* devices[] = {device.value().get()};
    auto queue = device.value()->make_queue(devices, QueueOptions());
    if (!queue.ok()) return 2;
    AlignedBuffer buffer(kPageBytes);
    if (run_transfer(*queue.value(), IoOp::kRead, 0, buffer.data(), kPageBytes) != 4096) return 3;
    wait_for_end();
    return 0;
  });
  ASSERT_TRUE(child.ready());
  EXPECT_EQ(child.kill_and_reap(), 128);
  auto device = open_device(loop_.path(), OpenOptions(), system_clock());
  EXPECT_TRUE(device.ok()) << device.status().to_string();
}

// ---- sharing ---------------------------------------------------------------------------------------------

OpenOptions shared() {
  OpenOptions options;
  options.holding = Holding::kShared;
  return options;
}

// On a file; and where root has one, on a loop device, and on one whose file has lost its name, so that what holds it
// is the device node alone.
class Share : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "file") {
      file_ = std::make_unique<TempFile>(kBytes);
      path_ = file_->path();
      return;
    }
    loop_ = std::make_unique<LoopDevice>(kBytes);
    if (loop_->path().empty()) GTEST_SKIP() << "needs root and a loop device: " << loop_->problem();
    path_ = loop_->path();
    if (std::string(GetParam()) == "node") unlink(loop_->backing_path().c_str());
  }
  std::unique_ptr<TempFile> file_;
  std::unique_ptr<LoopDevice> loop_;
  std::string path_;
};

TEST_P(Share, ThoseWhoShareDoNotRefuseEachOther) {
  auto first = open_now(path_, shared());
  auto second = open_now(path_, shared());
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  Child child([&](auto wait_for_end) {
    auto third = open_now(path_, shared());
    if (!third.ok()) return 1;
    Device* devices[] = {third.value().get()};
    auto queue = third.value()->make_queue(devices, QueueOptions());
    AlignedBuffer buffer(kPageBytes);
    if (!queue.ok() || run_transfer(*queue.value(), IoOp::kWrite, 0, buffer.data(), kPageBytes) != 4096) return 2;
    wait_for_end();
    return 0;
  });
  EXPECT_TRUE(child.ready());
  EXPECT_EQ(child.finish(), 0);
}

TEST_P(Share, WhoWantsItAloneIsToldWhoSharesIt) {
  Child child([&](auto wait_for_end) {
    auto device = open_now(path_, shared());
    if (!device.ok()) return 1;
    wait_for_end();
    return 0;
  });
  ASSERT_TRUE(child.ready());
  ManualClock clock;
  const uint64_t start_ns = clock.monotonic_ns();
  const Status status = open_device(path_, {}, clock).status();
  EXPECT_EQ(status.code(), Code::kBusy);
  EXPECT_NE(status.message().find("process " + std::to_string(child.pid()) + " ("), std::string::npos)
      << status.to_string();
  EXPECT_EQ(clock.monotonic_ns(), start_ns) << "a living holder was taken for a killed one";
  EXPECT_EQ(child.finish(), 0);
  EXPECT_TRUE(open_now(path_).ok());
}

TEST_P(Share, WhoSharesIsToldWhoHasItAlone) {
  Child child([&](auto wait_for_end) {
    auto device = open_now(path_);
    if (!device.ok()) return 1;
    wait_for_end();
    return 0;
  });
  ASSERT_TRUE(child.ready());
  ManualClock clock;
  const uint64_t start_ns = clock.monotonic_ns();
  const Status status = open_device(path_, shared(), clock).status();
  EXPECT_EQ(status.code(), Code::kBusy);
  EXPECT_NE(status.message().find("process " + std::to_string(child.pid()) + " ("), std::string::npos)
      << status.to_string();
  EXPECT_EQ(clock.monotonic_ns(), start_ns);
  EXPECT_EQ(child.finish(), 0);
  EXPECT_TRUE(open_now(path_, shared()).ok());
}

TEST_P(Share, OneThatLivesKeepsItHeldWhenAnotherIsKilled) {
  const auto share_and_wait = [&](auto wait_for_end) {
    auto device = open_now(path_, shared());
    if (!device.ok()) return 1;
    wait_for_end();
    return 0;
  };
  Child killed(share_and_wait), living(share_and_wait);
  ASSERT_TRUE(killed.ready() && living.ready());
  EXPECT_EQ(killed.kill_and_reap(), 128);
  const Status status = open_now(path_).status();
  EXPECT_EQ(status.code(), Code::kBusy);
  EXPECT_NE(status.message().find("process " + std::to_string(living.pid()) + " ("), std::string::npos)
      << status.to_string();
  EXPECT_EQ(living.kill_and_reap(), 128);
  EXPECT_TRUE(open_device(path_, {}, system_clock()).ok());
}

TEST_P(Share, AChildOfWhoSharesKeepsNothingAlive) {
  auto device = open_now(path_, shared());
  ASSERT_TRUE(device.ok());
  Child child([&](auto wait_for_end) {
    if (device.value()->share().code() != Code::kClosed) return 1;
    device = Status(Code::kClosed, "");
    wait_for_end();
    return 0;
  });
  ASSERT_TRUE(child.ready());
  EXPECT_EQ(open_now(path_).status().code(), Code::kBusy) << "the child gave up its parent's lock";
  device = Status(Code::kClosed, "");
  EXPECT_TRUE(open_now(path_).ok());
  EXPECT_EQ(child.finish(), 0);
}

TEST_P(Share, WhoLooksOnHoldsNothing) {
  OpenOptions options = shared();
  options.read_only = true;
  auto reader = open_now(path_, options);
  ASSERT_TRUE(reader.ok()) << reader.status().to_string();
  EXPECT_TRUE(open_now(path_).ok());
}

TEST_P(Share, WhoHeldItAloneLetsThoseInWhoShareAndNobodyElse) {
  auto owner = open_now(path_);
  ASSERT_TRUE(owner.ok());
  ASSERT_TRUE(owner.value()->share().ok());
  EXPECT_EQ(open_now(path_).status().code(), Code::kBusy);
  auto second = open_now(path_, shared());
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  EXPECT_TRUE(owner.value()->share().ok()) << "sharing twice is sharing";
  Device* devices[] = {owner.value().get()};
  auto queue = owner.value()->make_queue(devices, QueueOptions());
  ASSERT_TRUE(queue.ok());
  AlignedBuffer buffer(kPageBytes);
  EXPECT_EQ(run_transfer(*queue.value(), IoOp::kWrite, 0, buffer.data(), kPageBytes), 4096);
  queue = Status(Code::kClosed, "");
  owner = Status(Code::kClosed, "");
  EXPECT_EQ(open_now(path_).status().code(), Code::kBusy);
  second = Status(Code::kClosed, "");
  EXPECT_TRUE(open_now(path_).ok());
}

// Runs `work` in children that all start at one moment, and returns their exit codes.
template <typename Work>
std::vector<int> run_at_once(int count, Work work) {
  int gate[2];
  EXPECT_EQ(pipe2(gate, O_CLOEXEC), 0);
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < count; ++i) {
    children.push_back(std::make_unique<Child>([&](auto wait_for_end) {
      close(gate[1]);
      for (auto& earlier : children) earlier->let_go();  // this child's copies of their pipes
      wait_for_end();
      char byte;
      return read(gate[0], &byte, 1) == 0 ? work(i) : 100;
    }));
    EXPECT_TRUE(children.back()->ready());
  }
  close(gate[0]);
  for (auto& child : children) child->let_go();
  close(gate[1]);
  std::vector<int> codes;
  for (auto& child : children) codes.push_back(child->finish());
  return codes;
}

// Who finds another at its first step tries again.
TEST_P(Share, ManyThatComeAtOnceAllGetIn) {
  const auto share_often = [&](int) {
    for (int round = 0; round < 20; ++round) {
      if (!open_device(path_, shared(), system_clock()).ok()) return 1;
    }
    return 0;
  };
  EXPECT_EQ(run_at_once(16, share_often), std::vector<int>(16, 0));
}

TEST_P(Share, NobodyIsEverInBesideOneThatIsAlone) {
  struct Inside {
    std::atomic<int> alone{0}, sharing{0}, alone_ever{0};
  };
  void* const memory = mmap(nullptr, sizeof(Inside), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Inside& inside = *new (memory) Inside;
  const auto come_and_go = [&](int child) {
    for (int round = 0; round < 60; ++round) {
      const bool alone = child % 2 == 0;
      auto device = open_now(path_, alone ? OpenOptions() : shared());
      if (!device.ok() && device.status().code() != Code::kBusy) return 1;
      if (!device.ok()) continue;
      if (alone) {
        ++inside.alone_ever;
        if (++inside.alone != 1 || inside.sharing != 0) return 2;
        --inside.alone;
        if (round % 2 == 0 && !device.value()->share().ok()) return 3;
        if (round % 2 != 0) continue;
      }
      ++inside.sharing;
      if (inside.alone != 0) return 4;
      --inside.sharing;
    }
    return 0;
  };
  EXPECT_EQ(run_at_once(8, come_and_go), std::vector<int>(8, 0));
  EXPECT_GT(inside.alone_ever, 0);
  munmap(memory, sizeof(Inside));
}

INSTANTIATE_TEST_SUITE_P(All, Share, ::testing::Values("file", "loop", "node"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_F(OpenLoop, ALoopDeviceAndItsFileAreSharedAsOneDevice) {
  auto device = open_now(loop_.path(), shared());
  auto file = open_now(loop_.backing_path(), shared());
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  file = Status(Code::kClosed, "");
  EXPECT_EQ(open_now(loop_.backing_path()).status().code(), Code::kBusy);
  device = Status(Code::kClosed, "");
  device = open_now(loop_.backing_path());
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  EXPECT_EQ(open_now(loop_.path(), shared()).status().code(), Code::kBusy);
}

TEST_F(OpenLoop, AnOwnerThatSharesSharesTheFileBehindItsLoopDeviceToo) {
  auto owner = open_now(loop_.path());
  ASSERT_TRUE(owner.ok());
  EXPECT_EQ(open_now(loop_.backing_path(), shared()).status().code(), Code::kBusy);
  ASSERT_TRUE(owner.value()->share().ok());
  EXPECT_TRUE(open_now(loop_.backing_path(), shared()).ok());
  EXPECT_EQ(open_now(loop_.backing_path()).status().code(), Code::kBusy);
}

// A clock whose first sleep closes a descriptor.
class ClosingClock final : public Clock {
 public:
  explicit ClosingClock(int fd) : fd_(fd) {}
  uint64_t monotonic_ns() override { return now_ns_; }
  uint64_t wall_seconds() override { return 0; }
  void sleep_ns(uint64_t duration_ns) override {
    if (now_ns_ == 0) close(fd_);
    now_ns_ += duration_ns;
  }

 private:
  int fd_;
  uint64_t now_ns_ = 0;
};

TEST_F(OpenLoop, WhoSharesWaitsForOneThatHasOnlyJustClaimedIt) {
  const int claim = open(loop_.path().c_str(), O_RDWR | O_EXCL | O_CLOEXEC);
  ASSERT_GE(claim, 0);
  ClosingClock clock(claim);
  auto device = open_device(loop_.path(), shared(), clock);
  EXPECT_TRUE(device.ok()) << device.status().to_string();
  EXPECT_LT(clock.monotonic_ns(), 1'000'000'000u);
}

TEST_F(OpenLoop, AClaimOfSomebodyElseThatStaysRefusesThoseWhoShare) {
  const int claim = open(loop_.path().c_str(), O_RDWR | O_EXCL | O_CLOEXEC);
  ASSERT_GE(claim, 0);
  const Status status = open_now(loop_.path(), shared()).status();
  EXPECT_EQ(status.code(), Code::kBusy);
  EXPECT_NE(status.message().find(std::to_string(getpid())), std::string::npos) << status.to_string();
  close(claim);
}

// Like a mount, but without a file system to make.
TEST_F(OpenLoop, WhatTheKernelUsesIsRefusedAtOnceAlsoToThoseWhoShare) {
  std::vector<uint8_t> page(kPageBytes);
  const uint32_t version = 1, last_page = kBytes / kPageBytes - 1;
  std::memcpy(&page[1024], &version, sizeof(version));
  std::memcpy(&page[1028], &last_page, sizeof(last_page));
  std::memcpy(&page[kPageBytes - 10], "SWAPSPACE2", 10);
  const int fd = open(loop_.path().c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(pwrite(fd, page.data(), page.size(), 0), static_cast<ssize_t>(page.size()));
  ASSERT_EQ(fsync(fd), 0);
  close(fd);
  if (swapon(loop_.path().c_str(), 0) != 0) GTEST_SKIP() << "needs root that may swap: " << std::strerror(errno);
  for (const Holding holding : {Holding::kShared, Holding::kExclusive}) {
    ManualClock clock;
    OpenOptions options;
    options.holding = holding;
    const uint64_t start_ns = clock.monotonic_ns();
    const Status status = open_device(loop_.path(), options, clock).status();
    EXPECT_EQ(status.code(), Code::kBusy);
    EXPECT_NE(status.message().find("swap on " + loop_.path()), std::string::npos) << status.to_string();
    EXPECT_EQ(clock.monotonic_ns(), start_ns);
  }
  EXPECT_EQ(swapoff(loop_.path().c_str()), 0);
}

// ---- fork ------------------------------------------------------------------------------------------------

class Fork : public ::testing::TestWithParam<const char*> {};

TEST_P(Fork, TheChildsObjectsFailAndNeverHang) {
  const TempFile file(kBytes);
  OpenOptions options;
  options.kind = GetParam();
  auto opened = open_now(file.path(), options);
  if (opened.status().code() == Code::kUnsupported) GTEST_SKIP() << opened.status().to_string();
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  std::unique_ptr<Device> device = std::move(opened).value();
  Device* devices[] = {device.get()};
  std::unique_ptr<IoQueue> queue = device->make_queue(devices, QueueOptions()).value();
  AlignedBuffer buffer(kPageBytes);
  ASSERT_EQ(run_transfer(*queue, IoOp::kRead, 0, buffer.data(), kPageBytes), 4096);
  Transfer in_flight(IoOp::kRead, 0, buffer.data(), kPageBytes);
  ASSERT_TRUE(queue->submit(&in_flight.request));
  ASSERT_TRUE(queue->kick().ok());

  Child child([&](auto wait_for_end) {
    alarm(20);  // a hang becomes an exit by signal
    Transfer transfer(IoOp::kRead, 0, buffer.data(), kPageBytes);
    IoRequest* completed[1];
    if (queue->submit(&transfer.request)) return 1;
    if (queue->poll(completed, kTestTimeoutNs).status().code() != Code::kClosed) return 2;
    if (queue->kick().code() != Code::kClosed) return 3;
    queue->wake();
    if (queue->register_buffers({}).ok() && std::string(GetParam()) == "uring") return 4;
    if (device->make_queue(devices, QueueOptions()).status().code() != Code::kClosed) return 5;
    queue.reset();
    device.reset();
    wait_for_end();
    return 0;
  });
  ASSERT_TRUE(child.ready());
  // The parent is not disturbed by what the child destroyed.
  IoRequest* completed[1];
  ASSERT_EQ(queue->poll(completed, kTestTimeoutNs).value(), 1u);
  EXPECT_EQ(run_transfer(*queue, IoOp::kRead, 0, buffer.data(), kPageBytes), 4096);
  EXPECT_EQ(open_now(file.path()).status().code(), Code::kBusy) << "the child gave up its parent's lock";
  EXPECT_EQ(child.finish(), 0);
}

TEST_P(Fork, AChildDoesNotKeepTheLockAlive) {
  const TempFile file(kBytes);
  OpenOptions options;
  options.kind = GetParam();
  auto device = open_now(file.path(), options);
  if (device.status().code() == Code::kUnsupported) GTEST_SKIP() << device.status().to_string();
  ASSERT_TRUE(device.ok());
  Device* devices[] = {device.value().get()};
  auto queue = device.value()->make_queue(devices, QueueOptions());
  ASSERT_TRUE(queue.ok());
  Child child([&](auto wait_for_end) {
    wait_for_end();
    return 0;
  });
  ASSERT_TRUE(child.ready());
  queue = Status(Code::kClosed, "");
  device = Status(Code::kClosed, "");
  EXPECT_TRUE(open_now(file.path()).ok());
  // Nothing of ours is among the child's descriptors, also what a kill of the parent would not close.
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(child.pid()) + "/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    EXPECT_EQ(target.find("kvstore-device-"), std::string::npos) << target;
    EXPECT_EQ(target.find("io_uring"), std::string::npos) << target;
    EXPECT_EQ(target.find("eventfd"), std::string::npos) << target;
  }
  EXPECT_EQ(child.finish(), 0);
}

TEST_P(Fork, AChildMayOpenAfresh) {
  const TempFile file(kBytes), other(kBytes);
  auto device = open_now(file.path());
  ASSERT_TRUE(device.ok());
  Child child([&](auto wait_for_end) {
    OpenOptions options;
    options.kind = GetParam();
    auto own = open_now(other.path(), options);
    if (!own.ok()) return own.status().code() == Code::kUnsupported ? 0 : 1;
    Device* devices[] = {own.value().get()};
    auto queue = own.value()->make_queue(devices, QueueOptions());
    if (!queue.ok()) return 2;
    AlignedBuffer buffer(kPageBytes);
    if (run_transfer(*queue.value(), IoOp::kRead, 0, buffer.data(), kPageBytes) != 4096) return 3;
    wait_for_end();
    return 0;
  });
  EXPECT_EQ(child.finish(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, Fork, ::testing::Values("uring", "threads"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace kvstore::device
