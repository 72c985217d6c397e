// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "device/fork_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>
#include <vector>

namespace kvstore::device {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<int> descriptors;
  std::atomic<uint64_t> generation{0};
};

Registry& registry();

// The mutex is held across the fork by the thread that forks, so the child's copy is consistent and its own.
void before_fork() { registry().mutex.lock(); }
void after_fork_in_parent() { registry().mutex.unlock(); }

void close_registered(Registry& all) {
  for (const int fd : all.descriptors) ::close(fd);
  all.descriptors.clear();
  all.generation.fetch_add(1, std::memory_order_relaxed);
}

void after_fork_in_child() {
  Registry& all = registry();
  close_registered(all);
  all.mutex.unlock();
}

Registry& registry() {
  // Leaked: descriptors of static objects may be closed after any destructor of ours would have run.
  static Registry* const all = [] {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return new Registry;  // NOLINT
  }();
  return *all;
}

}  // namespace

uint64_t fork_generation() { return registry().generation.load(std::memory_order_relaxed); }

ForkBarrier::ForkBarrier() : lock_(registry().mutex) {}

void register_descriptor(int fd, const ForkBarrier&) { registry().descriptors.push_back(fd); }

void unregister_descriptor(int fd) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = std::find(all.descriptors.begin(), all.descriptors.end(), fd);
  if (found == all.descriptors.end()) return;
  *found = all.descriptors.back();
  all.descriptors.pop_back();
}

GuardedFd::GuardedFd(int fd, const ForkBarrier& barrier) : fd_(fd), generation_(fork_generation()) {
  register_descriptor(fd, barrier);
}

GuardedFd::GuardedFd(GuardedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}

GuardedFd& GuardedFd::operator=(GuardedFd&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(generation_, other.generation_);
  return *this;
}

int GuardedFd::open(const std::string& path, int flags, GuardedFd& opened) {
  const ForkBarrier barrier;
  int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) return errno;
  if (fd <= STDERR_FILENO) {
    const int higher = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int error = errno;
    ::close(fd);
    if (higher < 0) return error;
    fd = higher;
  }
  opened = GuardedFd(fd, barrier);
  return 0;
}

GuardedFd::~GuardedFd() {
  const int fd = get();
  if (fd < 0) return;
  unregister_descriptor(fd);  // first: once closed, the number may be registered by another thread
  ::close(fd);
}

}  // namespace kvstore::device
