// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "device/posix_device.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "base/mutation.h"
#include "device/block_facts.h"
#include "device/holding.h"
#include "device/threads_queue.h"
#include "device/uring_queue.h"

namespace kvstore::device {
namespace {

constexpr uint32_t kProbeAlignmentBytes = 512;  // what loop, virtio and most SCSI devices want

struct DirectIoAlignment {
  bool known = false;
  uint32_t memory_bytes = 0;
  uint32_t offset_bytes = 0;  // 0 = direct I/O is not possible on this file
};

DirectIoAlignment ask_statx(int fd) {
  DirectIoAlignment alignment;
#if defined(STATX_DIOALIGN)
  struct statx facts{};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) == 0 && (facts.stx_mask & STATX_DIOALIGN) != 0) {
    alignment = {true, facts.stx_dio_mem_align, facts.stx_dio_offset_align};
  }
#else
  (void)fd;
#endif
  return alignment;
}

// The smallest memory alignment, from `at_least` on, at which a real direct read of one page is accepted.
Result<uint32_t> probe_memory_alignment(const std::string& path, int fd, uint32_t at_least) {
  AlignedBuffer buffer(2 * kPageBytes);
  for (uint64_t alignment = at_least; alignment <= kPageBytes; alignment *= 2) {
    uint8_t* target = buffer.data() + (alignment < kPageBytes ? alignment : 0);
    if (pread(fd, target, kPageBytes, 0) >= 0) return static_cast<uint32_t>(alignment);
    if (errno != EINVAL) return Status::from_errno(errno, path + ": reading the first 4096 bytes");
  }
  return Status(Code::kUnsupported,
                path + ": direct reads of 4096 bytes are refused; is its sector larger than 4 KiB?");
}

Result<uint64_t> block_device_size(const std::string& path, int fd) {
  uint64_t size_bytes = 0;
  if (ioctl(fd, BLKGETSIZE64, &size_bytes) != 0) return Status::from_errno(errno, path + ": BLKGETSIZE64");
  return size_bytes;
}

Result<uint32_t> logical_block_size(const std::string& path, int fd) {
  int bytes = 0;
  if (ioctl(fd, BLKSSZGET, &bytes) != 0) return Status::from_errno(errno, path + ": BLKSSZGET");
  return static_cast<uint32_t>(bytes);
}

}  // namespace

Result<DeviceInfo> describe_device(const std::string& path, int fd) {
  struct stat facts{};
  if (fstat(fd, &facts) != 0) return Status::from_errno(errno, path);
  DeviceInfo info;
  info.path = path;
  info.is_regular_file = S_ISREG(facts.st_mode);

  const DirectIoAlignment direct = ask_statx(fd);
  uint32_t memory_alignment_bytes = direct.memory_bytes;
  if (info.is_regular_file) {
    info.size_bytes = static_cast<uint64_t>(facts.st_size);
    // A file's flush goes through a file system and whatever is below it: never assume it needless.
    info.volatile_cache = KVS_RULE(I1_files_are_always_flushed);
    if (direct.known && direct.offset_bytes == 0) {
      return Status(Code::kUnsupported, path +
                                            ": its file system has no direct I/O for this file (encrypted or "
                                            "compressed?); put it on ext4 or xfs, or use a block device");
    }
    if (direct.known) info.logical_block_bytes = direct.offset_bytes;
  } else {
    KVS_ASSIGN(info.size_bytes, block_device_size(path, fd));
    KVS_ASSIGN(info.logical_block_bytes, logical_block_size(path, fd));
    BlockFacts block = read_block_facts("/sys", facts.st_rdev);
    info.volatile_cache = block.volatile_cache;
    info.max_transfer_bytes = block.max_transfer_bytes;
    info.is_fabric = block.is_fabric;
    info.identity = std::move(block.identity);
    if (memory_alignment_bytes == 0) memory_alignment_bytes = block.dma_alignment_bytes;
  }
  if (info.logical_block_bytes > kPageBytes) {
    return Status(Code::kUnsupported, format_text("%s: logical blocks of %u bytes; at most 4096 are supported",
                                                  path.c_str(), info.logical_block_bytes));
  }
  if (memory_alignment_bytes == 0) memory_alignment_bytes = kProbeAlignmentBytes;
  info.dma_alignment_bytes = memory_alignment_bytes;
  if (info.size_bytes >= kPageBytes) {
    KVS_ASSIGN(info.dma_alignment_bytes, probe_memory_alignment(path, fd, memory_alignment_bytes));
  }
  return info;
}

PosixDevice::PosixDevice(DeviceInfo info, GuardedFd file, GuardedFd lock, uint32_t threads, bool chosen)
    : info_(std::move(info)), file_(std::move(file)), lock_(std::move(lock)), threads_(threads), chosen_(chosen) {}

PosixDevice::~PosixDevice() {
  // Explicitly, because a ring just destroyed may keep the open file, and with it the lock, for a moment. A forked
  // child, where get() is -1, must not: the lock is its parent's.
  if (file_.get() >= 0) drop_lock(file_.get());
  if (lock_.get() >= 0) drop_lock(lock_.get());
}

Status PosixDevice::share() {
  if (file_.get() < 0) return Status(Code::kClosed, info_.path + " was opened by the parent of this forked process");
  KVS_TRY(take_lock(file_.get(), false));
  if (lock_.get() >= 0) KVS_TRY(take_lock(lock_.get(), false));
  // Last: until here the claim keeps out whom a lost lock of the backing file would let in.
  return info_.is_regular_file ? Status() : give_up_claim(file_);
}

Result<std::unique_ptr<IoQueue>> PosixDevice::make_queue(std::span<Device* const> devices,
                                                         const QueueOptions& options) {
  if (options.depth == 0) return Status(Code::kInvalid, "a queue of depth 0");
  std::vector<int> fds;
  for (Device* device : devices) {
    const PosixDevice* posix = dynamic_cast<PosixDevice*>(device);
    if (posix == nullptr || posix->info_.kind != info_.kind) {
      return Status(Code::kInvalid, format_text("a queue over devices of different kinds: %s is \"%s\", %s is \"%s\"",
                                                info_.path.c_str(), info_.kind.c_str(), device->info().path.c_str(),
                                                device->info().kind.c_str()));
    }
    if (posix->file_.get() < 0) {
      return Status(Code::kClosed, posix->info_.path + " was opened by the parent of this forked process");
    }
    fds.push_back(posix->file_.get());
  }
  if (info_.kind == "uring") {
    Result<std::unique_ptr<IoQueue>> queue = make_uring_queue(fds, options);
    // Rings are charged to the user's memlock limit, and the one that was tried may have been the last that fits. Not
    // for payload: what info() says of the kind holds for that.
    const bool replace = chosen_ && !options.single_issuer && queue.status().io_errno() == ENOMEM;
    if (queue.ok() || !replace) return queue;
  }
  return make_threads_queue(fds, options, threads_);
}

}  // namespace kvstore::device
