// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// ThreadsQueue: an IoQueue that is a bounded pool of threads in blocking calls: preadv2 and pwritev2 for where io_uring
// is refused, or whatever a RequestExecutor calls. Several times slower per small request (two hand-overs), the same
// contract.
//
// The threads share the executor, which holds duplicates of the descriptors. Destroying a queue with requests in flight
// returns at once: requests that no thread has begun are dropped, threads that the kernel holds are left behind with
// their duplicates until it lets go, so a late write can never reach a recycled descriptor. The requests, iovecs and
// buffers must then never be freed (I11).

#pragma once

#include <memory>
#include <vector>

#include "device/device.h"

namespace kvstore::device {

// Does one request, blocking. Called by all threads at once, and by one that outlives its queue.
class RequestExecutor {
 public:
  virtual ~RequestExecutor() = default;
  // What IoRequest::result is to be: bytes moved, or -errno.
  virtual int64_t execute(const IoRequest& request) = 0;
  // As IoQueue::register_buffers(), with nothing in flight.
  virtual Status register_buffers(std::span<const iovec> buffers);
};

Result<std::unique_ptr<IoQueue>> make_threads_queue(std::shared_ptr<RequestExecutor> executor,
                                                    const QueueOptions& options, uint32_t threads);

// By preadv2 and pwritev2. At most min(threads, options.depth) threads; single_issuer makes no difference.
Result<std::unique_ptr<IoQueue>> make_threads_queue(const std::vector<int>& fds, const QueueOptions& options,
                                                    uint32_t threads);

}  // namespace kvstore::device
