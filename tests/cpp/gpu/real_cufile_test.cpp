// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what is known of NVIDIA's own libcufile is still so: it opens behind our gate and leaves no log where we are,
// it spins for ever without /proc/modules, and its batch calls do what keeps us from using them. Method: the library of
// the wheel nvidia-cufile, which KVSTORE_TEST_LIBCUFILE names, with host pointers, on a loop device, the fake
// libcuda.so.1 beside it. tests/gpu/test_real_cufile.py runs this in a process of its own that it can kill, with
// tests/fakes/proc_modules.cpp; a CuFileDevice over it is in device_conformance_test.cpp. A test of a defect that fails
// says that NVIDIA has mended it.

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <vector>

#include "device/test_devices.h"
#include "gpu/cufile_device.h"
#include "gpu/cufile_library.h"

namespace kvstore::gpu {
namespace {

constexpr const char* kModules = "/proc/modules";

// cufile.h
struct BatchCall {
  int mode = 1;
  void* base = nullptr;
  off_t file_offset = 0;
  off_t base_offset = 0;
  size_t bytes = 0;
  cufile::Handle file = nullptr;
  int operation = 0;  // CUFILE_READ
  void* cookie = nullptr;
};
struct BatchEvent {
  void* cookie = nullptr;
  int status = 0;
  size_t returned = 0;
};
constexpr int kComplete = 0x10;

class RealCuFile : public testing::Test {
 protected:
  void SetUp() override {
    if (real_cufile_path() == nullptr) GTEST_SKIP() << kNoRealCuFile;
  }
  static Result<CuFile> open(uint64_t timeout_ns = 20'000'000'000) {
    CuFileOptions options = fake_cufile_options();
    options.library = real_cufile_path();
    options.open_timeout_ns = timeout_ns;
    return CuFile::open(FakeDriver::get().driver, options);
  }
};

class RealCuFileBatch : public RealCuFile {
 protected:
  void SetUp() override {
    RealCuFile::SetUp();
    if (IsSkipped()) return;
    if (loop_.path().empty()) GTEST_SKIP() << "needs root and a loop device: " << loop_.problem();
    void* const library = dlopen(real_cufile_path(), RTLD_NOW | RTLD_LOCAL);
    set_up_ = reinterpret_cast<decltype(set_up_)>(dlsym(library, "cuFileBatchIOSetUp"));
    submit_ = reinterpret_cast<decltype(submit_)>(dlsym(library, "cuFileBatchIOSubmit"));
    status_ = reinterpret_cast<decltype(status_)>(dlsym(library, "cuFileBatchIOGetStatus"));
    destroy_ = reinterpret_cast<decltype(destroy_)>(dlsym(library, "cuFileBatchIODestroy"));
    fd_ = ::open(loop_.path().c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
    ASSERT_GE(fd_, 0);
    const AlignedBuffer content = device::random_buffer(8 * kMiB, 4);
    ASSERT_EQ(pwrite(fd_, content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
    std::memcpy(content_.data(), content.data(), content.size());
  }
  void TearDown() override {
    if (fd_ >= 0) close(fd_);
  }

  device::LoopDevice loop_{64 * kMiB};
  AlignedBuffer content_{8 * kMiB};
  int fd_ = -1;
  cufile::Error (*set_up_)(void** batch, unsigned count) = nullptr;
  cufile::Error (*submit_)(void* batch, unsigned count, BatchCall* calls, unsigned flags) = nullptr;
  cufile::Error (*status_)(void* batch, unsigned least, unsigned* count, BatchEvent* events, timespec*) = nullptr;
  void (*destroy_)(void* batch) = nullptr;
};

TEST_F(RealCuFile, OpensBehindTheGateAndLeavesNoLogHere) {
  const Result<CuFile> cufile = open();
  ASSERT_TRUE(cufile.ok()) << cufile.status().message();
  EXPECT_GE(cufile.value().version(), 1140);
  EXPECT_FALSE(cufile.value().says_direct(false)) << "there is no nvidia-fs here";
  EXPECT_FALSE(std::filesystem::exists("cufile.log"));
}

TEST_F(RealCuFile, TheGateRefusesWhereThereIsNoProcModules) {
  if (access(kModules, R_OK) == 0) GTEST_SKIP() << "this kernel has /proc/modules, so nothing is refused";
  CuFileOptions options = fake_cufile_options();
  options.library = real_cufile_path();
  options.modules_path = kModules;
  const Status status = CuFile::open(FakeDriver::get().driver, options).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("/proc/modules cannot be read"), std::string::npos) << status.message();
}

// Without tests/fakes/proc_modules.cpp, and past the gate. The thread that spins goes with the process.
TEST_F(RealCuFile, SpinsForEverWithoutProcModulesAndIsGivenUp) {
  if (std::getenv("LD_PRELOAD") != nullptr) GTEST_SKIP() << "somebody gives it a /proc/modules";
  if (access(kModules, R_OK) == 0) GTEST_SKIP() << "this kernel has /proc/modules, so it does not spin";
  const Status status = open(2'000'000'000).status();
  EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
}

TEST_F(RealCuFile, AReadPastTheEndIsNoErrorButShort) {
  const device::LoopDevice loop(16 * kMiB);
  if (loop.path().empty()) GTEST_SKIP() << "needs root and a loop device: " << loop.problem();
  const Result<CuFile> cufile = open();
  ASSERT_TRUE(cufile.ok()) << cufile.status().message();
  cufile::Description description;
  description.fd = ::open(loop.path().c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  cufile::Handle handle = nullptr;
  ASSERT_EQ(cufile.value().handle_register(&handle, &description).code, 0);
  AlignedBuffer memory(kMiB);
  EXPECT_EQ(cufile.value().read(handle, memory.data(), kMiB, 16 * kMiB, 0), 0);
  cufile.value().handle_deregister(handle);
  close(description.fd);
}

// Batches that had more in flight than cuFile has slabs were seen to hang (nixl#2070, GPU memory in compat mode; with
// host pointers they do not). Ours are single calls on threads, of which any number ends.
TEST_F(RealCuFile, OurDeviceEndsWhatIsInFlightAboveTheCountOfSlabs) {
  constexpr uint32_t kReads = 192;
  const device::LoopDevice loop(16 * kMiB);
  if (loop.path().empty()) GTEST_SKIP() << "needs root and a loop device: " << loop.problem();
  const Result<CuFile> cufile = open();
  ASSERT_TRUE(cufile.ok()) << cufile.status().message();
  const auto below = device::open_device(loop.path(), {.kind = "threads"}, system_clock());
  ASSERT_TRUE(below.ok()) << below.status().message();
  const auto direct =
      make_cufile_device(cufile.value(), FakeDriver::get().driver, FakeDriver::get().context(0), *below.value(), 16);
  ASSERT_TRUE(direct.ok()) << direct.status().message();
  device::Device* const devices[] = {direct.value().get()};
  const auto queue = direct.value()->make_queue(devices, {.depth = kReads});
  AlignedBuffer memory(kReads * kMiB);
  std::vector<std::unique_ptr<device::Transfer>> reads;
  for (uint32_t i = 0; i < kReads; ++i) {
    reads.push_back(
        std::make_unique<device::Transfer>(device::IoOp::kRead, i % 16 * kMiB, memory.data() + i * kMiB, kMiB));
    ASSERT_TRUE(queue.value()->submit(&reads.back()->request));
  }
  for (uint32_t done = 0; done < kReads;) {
    device::IoRequest* completed[kReads];
    const auto count = queue.value()->poll(completed, 20'000'000'000);
    ASSERT_TRUE(count.ok() && count.value() > 0) << "nothing came back in 20 s";
    for (uint32_t i = 0; i < count.value(); ++i) EXPECT_EQ(completed[i]->result, static_cast<int64_t>(kMiB));
    done += count.value();
  }
}

TEST_F(RealCuFileBatch, IgnoresTheOffsetIntoABufferAndSaysThatAllWentWell) {
  constexpr unsigned kSlots = 8;
  constexpr size_t kSlotBytes = 64 * kKiB;
  const Result<CuFile> cufile = open();
  ASSERT_TRUE(cufile.ok()) << cufile.status().message();
  cufile::Description description;
  description.fd = fd_;
  cufile::Handle handle = nullptr;
  ASSERT_EQ(cufile.value().handle_register(&handle, &description).code, 0);
  AlignedBuffer memory(kSlots * kSlotBytes);
  std::array<BatchCall, kSlots> calls;
  for (unsigned i = 0; i < kSlots; ++i) {
    calls[i].base = memory.data();
    calls[i].base_offset = static_cast<off_t>(i * kSlotBytes);
    calls[i].file_offset = static_cast<off_t>(i * kSlotBytes);
    calls[i].bytes = kSlotBytes;
    calls[i].file = handle;
    calls[i].cookie = &calls[i];
  }
  void* batch = nullptr;
  ASSERT_EQ(set_up_(&batch, kSlots).code, 0);
  ASSERT_EQ(submit_(batch, kSlots, calls.data(), 0).code, 0);
  for (unsigned done = 0; done < kSlots;) {
    std::array<BatchEvent, kSlots> events;
    unsigned count = kSlots;
    timespec wait = {10, 0};
    ASSERT_EQ(status_(batch, 1, &count, events.data(), &wait).code, 0);
    ASSERT_GT(count, 0u) << "nothing completed in 10 s";
    for (unsigned i = 0; i < count; ++i) {
      EXPECT_EQ(events[i].status, kComplete);
      EXPECT_EQ(events[i].returned, kSlotBytes) << "it says that it read all";
    }
    done += count;
  }
  unsigned right = 0;
  for (unsigned i = 0; i < kSlots; ++i) {
    right += std::memcmp(memory.data() + i * kSlotBytes, content_.data() + i * kSlotBytes, kSlotBytes) == 0 ? 1 : 0;
  }
  EXPECT_LT(right, kSlots) << "the offset was honoured: mended in version " << cufile.value().version();
  destroy_(batch);
  cufile.value().handle_deregister(handle);
}

TEST_F(RealCuFileBatch, TakesNoMoreThan128Entries) {
  ASSERT_TRUE(open().ok());
  void* batch = nullptr;
  EXPECT_EQ(set_up_(&batch, 256).code, 5022);
  ASSERT_EQ(set_up_(&batch, 128).code, 0);
  destroy_(batch);
}

}  // namespace
}  // namespace kvstore::gpu
