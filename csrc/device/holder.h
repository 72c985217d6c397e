// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Who holds a device or file that could not be opened or locked: a process, a mount, or a device built on it.
// After SIGKILL the kernel may hold it for a moment with nobody to be found; that is the difference that
// decides how long opening waits.

#pragma once

#include <sys/stat.h>

#include <string>

namespace kvstore::device {

struct Holder {
  bool alive = false;       // somebody was found who can hold it
  bool is_process = true;   // not a mount, swap, or a device built on it
  std::string description;  // "process 4711 (python serve.py), running since 2026-03-01 12:00:00 UTC", or what else
};

// `facts` is of the block device or file itself. Reads /proc and /sys; milliseconds with thousands of processes.
Holder find_holder(const struct stat& facts);

}  // namespace kvstore::device
