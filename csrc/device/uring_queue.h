// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// UringQueue: an IoQueue that is one io_uring.
//
// A ring of single_issuer belongs to the thread that polls it first; another thread's poll() then fails. It
// defers completion work to that thread, which is what makes one thread enough for a device. Without
// single_issuer the queue may move between threads (under the caller's lock), and completions need no
// particular thread to be in the kernel; a thread that exits cancels what it submitted (a kernel rule), so a
// thread must not end while requests of its own are in flight.
//
// Destroying a queue with requests in flight returns at once. The kernel cancels or finishes them at its
// leisure, so the requests, iovecs and buffers must then never be freed (I11).

#pragma once

#include <memory>
#include <vector>

#include "device/device.h"

namespace kvstore::device {

// `fds` stay open while the queue lives; IoRequest::device_index counts into them.
Result<std::unique_ptr<IoQueue>> make_uring_queue(const std::vector<int>& fds, const QueueOptions& options);

}  // namespace kvstore::device
