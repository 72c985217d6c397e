// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The locks by which openers of one file or device node keep each other out, or share.
//
// Files: flock, because /proc/locks names its owner. Device nodes: an open-file-description lock, because udev takes an
// flock on every node that somebody closes, and lets a node be for as long as another has one. A node's lock says
// nothing to file systems, device mapper and other nodes of the same device: that is O_EXCL's.

#pragma once

#include <string>

#include "base/status.h"
#include "device/fork_guard.h"

namespace kvstore::device {

// Takes the lock, or turns one kind into the other; never waits. kBusy: somebody's lock is in the way. A node's lock is
// turned in one step; a file's may be lost when kBusy is returned.
Status take_lock(int fd, bool exclusive);

void drop_lock(int fd);

// True when somebody has the exclusive lock of the device node at `path`.
bool is_node_held_alone(const std::string& path);

// Of a file or device node that is in use: whether those who hold it share it.
bool is_shared(const std::string& path);

// `file` is a device node opened with O_EXCL that has a lock: becomes one opened without, which has a shared lock. One
// of the two keeps who wants it alone out at every moment.
Status give_up_claim(GuardedFd& file);

}  // namespace kvstore::device
