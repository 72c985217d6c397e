// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Opening a device alone, beside others that share it, or to look on; and waiting for who is in the way.

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "device/block_facts.h"
#include "device/device.h"
#include "device/fork_guard.h"
#include "device/holder.h"
#include "device/holding.h"
#include "device/posix_device.h"

namespace kvstore::device {
namespace {

constexpr uint64_t kFirstPauseNs = 5'000'000;
constexpr uint64_t kLongestPauseNs = 100'000'000;

// One attempt: the descriptors, or who is in the way (`busy` set), or why it can never be.
struct Attempt {
  GuardedFd file;
  GuardedFd lock;
  std::optional<struct stat> busy;
  bool is_passing = false;  // nobody holds it alone: what is in the way may be another that shares, at its first step
  Status status;
};

Attempt failed(Status status) {
  Attempt attempt;
  attempt.status = std::move(status);
  return attempt;
}

Status open_error(const std::string& path, int error) {
  switch (error) {
    case ENOENT:
    case ENXIO:  // a device node with no device behind it
    case ENODEV: return Status(Code::kNotFound, path + ": no such device or file", error);
    case EINVAL:
      return Status(Code::kUnsupported,
                    path +
                        ": its file system refuses O_DIRECT; put the file on ext4 or xfs, or use "
                        "a block device (tmpfs has it since Linux 6.6)",
                    error);
    case EACCES:
    case EPERM:
      return Status(Code::kIo,
                    path +
                        ": permission denied; run as a user that may read and write it (group \"disk\" "
                        "for block devices)",
                    error);
    default: return Status::from_errno(error, path);
  }
}

// True when `fd` is what the loop device is attached to: the path in sysfs may have been renamed over since, or be of
// another mount namespace.
bool backs_loop_device(int loop_fd, int fd) {
  loop_info64 loop{};
  struct stat facts{};
  if (ioctl(loop_fd, LOOP_GET_STATUS64, &loop) != 0 || fstat(fd, &facts) != 0) return false;
  return loop.lo_inode == facts.st_ino;
}

// kBusy becomes `busy`.
Status lock_or_tell(int fd, const std::string& path, bool exclusive, Attempt& attempt) {
  const Status locked = take_lock(fd, exclusive);
  if (locked.ok()) return {};
  if (locked.code() != Code::kBusy) return Status::from_errno(locked.io_errno(), path + ": lock");
  struct stat facts{};
  if (fstat(fd, &facts) != 0) return Status::from_errno(errno, path);
  attempt.busy = facts;
  return {};
}

// A loop device and the file behind it are one device under two names: holding one must refuse the other.
Status lock_backing_file(const BlockFacts& block, bool exclusive, Attempt& attempt) {
  if (block.loop_backing_file.empty()) return {};
  GuardedFd backing;
  // A node's exclusive lock wants a descriptor that may write.
  int error = GuardedFd::open(block.loop_backing_file, O_RDWR | O_NONBLOCK, backing);
  if (error != 0) error = GuardedFd::open(block.loop_backing_file, O_RDONLY | O_NONBLOCK, backing);
  // Deleted, or of another mount namespace: nobody can open it by that name either.
  if (error != 0) return {};
  if (!backs_loop_device(attempt.file.get(), backing.get())) return {};
  KVS_TRY(lock_or_tell(backing.get(), block.loop_backing_file, exclusive, attempt));
  if (!attempt.busy) attempt.lock = std::move(backing);
  return {};
}

// Everybody who wants to hold a device node claims it first, so that no two of them take its locks at once; who shares
// gives the claim up again when it has its lock. The claim also finds mounts and whatever is built on the device.
Status hold_node(const std::string& path, dev_t device, bool exclusive, Attempt& attempt) {
  KVS_TRY(lock_or_tell(attempt.file.get(), path, exclusive, attempt));
  if (attempt.busy) return {};
  KVS_TRY(lock_backing_file(read_block_facts("/sys", device), exclusive, attempt));
  if (attempt.busy || exclusive) return {};
  return give_up_claim(attempt.file);
}

Attempt try_open(const std::string& path, const OpenOptions& options) {
  struct stat facts{};
  if (stat(path.c_str(), &facts) != 0) return failed(open_error(path, errno));
  const bool is_block = S_ISBLK(facts.st_mode);
  if (!is_block && !S_ISREG(facts.st_mode)) {
    return failed(Status(Code::kInvalid, path + " is neither a block device nor a regular file"));
  }
  // A reader may look at what somebody else owns.
  const Holding holding = options.read_only ? Holding::kNone : options.holding;
  const bool exclusive = holding == Holding::kExclusive;
  int flags = O_DIRECT | (options.read_only ? O_RDONLY : O_RDWR);
  if (is_block && holding != Holding::kNone) flags |= O_EXCL;

  Attempt attempt;
  const int error = GuardedFd::open(path, flags, attempt.file);
  if (error != 0 && error != EBUSY) return failed(open_error(path, error));
  if (error == EBUSY) {
    attempt.busy = facts;
    attempt.is_passing = holding == Holding::kShared && !is_node_held_alone(path);
    return attempt;
  }
  // The name may point elsewhere since stat(); without O_EXCL a block device would be open unclaimed.
  struct stat opened{};
  if (fstat(attempt.file.get(), &opened) != 0) return failed(Status::from_errno(errno, path));
  if ((opened.st_mode & S_IFMT) != (facts.st_mode & S_IFMT)) {
    return failed(Status(Code::kInvalid, path + " was replaced while it was being opened"));
  }
  if (holding == Holding::kNone) return attempt;
  attempt.status = is_block ? hold_node(path, opened.st_rdev, exclusive, attempt)
                            : lock_or_tell(attempt.file.get(), path, exclusive, attempt);
  return attempt;
}

Result<Attempt> open_or_wait(const std::string& path, const OpenOptions& options, Clock& clock) {
  const uint64_t start_ns = clock.monotonic_ns();
  uint64_t pause_ns = kFirstPauseNs;
  while (true) {
    Attempt attempt = try_open(path, options);
    if (!attempt.status.ok()) return attempt.status;
    if (!attempt.busy) return attempt;
    const struct stat busy = *attempt.busy;
    const bool is_passing = attempt.is_passing;
    attempt = Attempt();  // before the search, which would else find this very descriptor

    const Holder holder = find_holder(busy);
    // A holder that nobody can see is most likely a killed one whose rings the kernel still takes down.
    const bool stays = holder.alive && !(is_passing && holder.is_process);
    const uint64_t limit_ns = stays ? options.wait_ns : std::max(options.wait_ns, options.stale_wait_ns);
    const uint64_t waited_ns = clock.monotonic_ns() - start_ns;
    if (waited_ns >= limit_ns) {
      const char* how = is_shared(path) ? " is in use in shared mode: " : " is in use: ";
      return Status(Code::kBusy, path + how + holder.description, EBUSY);
    }
    clock.sleep_ns(std::min(pause_ns, limit_ns - waited_ns));
    pause_ns = std::min(2 * pause_ns, kLongestPauseNs);
  }
}

Result<std::string> choose_kind(const std::string& asked) {
  if (asked == "threads") return asked;
  if (asked == "uring") {
    KVS_TRY(uring_available());
    return asked;
  }
  if (asked == "auto") return std::string(uring_available().ok() ? "uring" : "threads");
  return Status(Code::kInvalid, "device kind \"" + asked + "\": must be \"auto\", \"uring\" or \"threads\"");
}

}  // namespace

Result<std::unique_ptr<Device>> open_device(const std::string& path, const OpenOptions& options, Clock& clock) {
  KVS_ASSIGN(std::string kind, choose_kind(options.kind));
  KVS_ASSIGN(Attempt opened, open_or_wait(path, options, clock));
  KVS_ASSIGN(DeviceInfo info, describe_device(path, opened.file.get()));
  info.kind = std::move(kind);
  return std::unique_ptr<Device>(std::make_unique<PosixDevice>(
      std::move(info), std::move(opened.file), std::move(opened.lock), options.threads, options.kind == "auto"));
}

}  // namespace kvstore::device
