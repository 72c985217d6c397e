// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "device/holding.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

namespace kvstore::device {
namespace {

bool is_node(int fd) {
  struct stat facts{};
  return fstat(fd, &facts) == 0 && S_ISBLK(facts.st_mode);
}

struct flock whole_node(short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

Status take_lock(int fd, bool exclusive) {
  int result = 0;
  if (is_node(fd)) {
    struct flock lock = whole_node(exclusive ? F_WRLCK : F_RDLCK);
    result = fcntl(fd, F_OFD_SETLK, &lock);
  } else {
    result = flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB);
  }
  if (result == 0) return {};
  if (errno == EAGAIN || errno == EACCES) return Status(Code::kBusy, "locked by somebody else", EBUSY);
  return Status::from_errno(errno, "lock");
}

void drop_lock(int fd) {
  struct flock lock = whole_node(F_UNLCK);
  is_node(fd) ? fcntl(fd, F_OFD_SETLK, &lock) : flock(fd, LOCK_UN);
}

bool is_node_held_alone(const std::string& path) {
  GuardedFd node;
  if (GuardedFd::open(path, O_RDONLY | O_NONBLOCK, node) != 0) return false;
  struct flock lock = whole_node(F_RDLCK);
  return fcntl(node.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type == F_WRLCK;
}

bool is_shared(const std::string& path) {
  GuardedFd file;
  if (GuardedFd::open(path, O_RDWR | O_NONBLOCK, file) != 0) return false;
  if (!is_node(file.get())) return flock(file.get(), LOCK_SH | LOCK_NB) == 0;
  struct flock lock = whole_node(F_WRLCK);
  return fcntl(file.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type == F_RDLCK;
}

Status give_up_claim(GuardedFd& file) {
  GuardedFd shared;
  // By the descriptor: the path may lead elsewhere by now.
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  const int error = GuardedFd::open(path, O_RDWR | O_DIRECT, shared);
  if (error != 0) return Status::from_errno(error, path);
  // Before the first is closed: between claim and lock nobody may find neither.
  KVS_TRY(take_lock(file.get(), false));
  KVS_TRY(take_lock(shared.get(), false));
  file = std::move(shared);
  return {};
}

}  // namespace kvstore::device
