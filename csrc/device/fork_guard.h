// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What keeps a forked child harmless: every descriptor that holds a device, a lock or a ring is registered
// here and closed in the child, whose copies would else keep the parent's locks alive. Objects that survive in the
// child see another fork generation: their calls fail, and their destructors leave memory and threads alone,
// because the threads do not exist there and mutexes may be copied locked.

#pragma once

#include <cstdint>
#include <mutex>
#include <string>

namespace kvstore::device {

// 0 in the process that loaded the library, +1 in each forked child. One atomic load.
uint64_t fork_generation();

// While one lives no fork() of this process proceeds, so that no child inherits a descriptor between its
// creation and its registration. Keep it short; not recursive.
class ForkBarrier {
 public:
  ForkBarrier();

 private:
  std::unique_lock<std::mutex> lock_;
};

// Registers a descriptor that something else (liburing) owns and closes.
void register_descriptor(int fd, const ForkBarrier& barrier);
void unregister_descriptor(int fd);

// An owned, registered descriptor. get() is -1 in a forked child: the number may be anybody's there.
class GuardedFd {
 public:
  GuardedFd() = default;
  GuardedFd(int fd, const ForkBarrier& barrier);
  GuardedFd(GuardedFd&& other) noexcept;
  GuardedFd& operator=(GuardedFd&& other) noexcept;
  GuardedFd(const GuardedFd&) = delete;
  GuardedFd& operator=(const GuardedFd&) = delete;
  ~GuardedFd();

  int get() const { return generation_ == fork_generation() ? fd_ : -1; }

  // Opens `path` with O_CLOEXEC; 0, or the errno. Never as descriptor 0, 1 or 2, closed as they may be: what a library
  // prints to standard error would be written to the device.
  static int open(const std::string& path, int flags, GuardedFd& opened);

 private:
  int fd_ = -1;
  uint64_t generation_ = 0;
};

}  // namespace kvstore::device
