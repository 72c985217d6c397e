// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Devices for tests: a temporary file, a loop device over one in memory, and small helpers to run requests.

#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/clock.h"
#include "device/device.h"

namespace kvstore::device {

// A file of its own, removed at the end.
class TempFile {
 public:
  explicit TempFile(uint64_t size_bytes, std::string folder = "") {
    if (folder.empty()) folder = ::testing::TempDir();
    std::string pattern = folder + "/kvstore-device-XXXXXX";
    const int fd = mkstemp(pattern.data());
    path_ = pattern;
    if (fd >= 0) {
      EXPECT_EQ(ftruncate(fd, static_cast<off_t>(size_bytes)), 0);
      close(fd);
    }
  }
  ~TempFile() { unlink(path_.c_str()); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A loop device with direct I/O over a file in memory. problem() says why there is none (no root, no driver).
class LoopDevice {
 public:
  explicit LoopDevice(uint64_t size_bytes) : file_(size_bytes, "/dev/shm") {
    const int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0) {
      problem_ = std::string("/dev/loop-control: ") + std::strerror(errno);
      return;
    }
    // Another test may take the number between the two calls: ask again.
    for (int tries = 0; tries < 100 && path_.empty(); ++tries) attach(control);
    close(control);
  }
  ~LoopDevice() {
    if (path_.empty()) return;
    const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ioctl(fd, LOOP_CLR_FD, 0);
    close(fd);
  }
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;

  const std::string& problem() const { return problem_; }
  const std::string& path() const { return path_; }
  const std::string& backing_path() const { return file_.path(); }

 private:
  void attach(int control) {
    const int number = ioctl(control, LOOP_CTL_GET_FREE);
    const std::string path = "/dev/loop" + std::to_string(number);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    const int backing = open(file_.path().c_str(), O_RDWR | O_CLOEXEC | O_DIRECT);
    loop_config config{};
    config.fd = static_cast<uint32_t>(backing);
    config.info.lo_flags = LO_FLAGS_DIRECT_IO;
    if (number >= 0 && fd >= 0 && backing >= 0 && ioctl(fd, LOOP_CONFIGURE, &config) == 0) {
      path_ = path;
      problem_.clear();
    } else {
      problem_ = path + ": " + std::strerror(errno);
    }
    if (backing >= 0) close(backing);
    if (fd >= 0) close(fd);
  }

  TempFile file_;
  std::string path_;
  std::string problem_;
};

inline AlignedBuffer random_buffer(size_t bytes, uint64_t seed) {
  AlignedBuffer buffer(bytes);
  SeededRandom(seed).fill(buffer.data(), buffer.size());
  return buffer;
}

// A request over one run of memory, with its segment.
struct Transfer {
  IoRequest request;
  iovec segment{};
  Transfer() = default;
  Transfer(IoOp op, uint64_t offset_bytes, uint8_t* data, size_t bytes) : segment{data, bytes} {
    request.op = op;
    request.offset_bytes = offset_bytes;
    request.segments = &segment;
    request.segment_count = 1;
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
};

inline constexpr uint64_t kTestTimeoutNs = 30'000'000'000;

// Submits one request and returns its result.
inline int64_t run_request(IoQueue& queue, IoRequest& request) {
  EXPECT_TRUE(queue.submit(&request));
  IoRequest* completed[1] = {};
  Result<uint32_t> count = queue.poll(completed, kTestTimeoutNs);
  EXPECT_TRUE(count.ok()) << count.status().to_string();
  if (!count.ok()) return INT64_MIN;
  EXPECT_EQ(count.value(), 1u);
  EXPECT_EQ(completed[0], &request);
  return request.result;
}

inline int64_t run_transfer(IoQueue& queue, IoOp op, uint64_t offset_bytes, uint8_t* data, size_t bytes,
                            bool durable = false, uint16_t device_index = 0) {
  Transfer transfer(op, offset_bytes, data, bytes);
  transfer.request.durable = durable;
  transfer.request.device_index = device_index;
  return run_request(queue, transfer.request);
}

inline int64_t run_flush(IoQueue& queue) {
  IoRequest request;
  request.op = IoOp::kFlush;
  return run_request(queue, request);
}

}  // namespace kvstore::device
