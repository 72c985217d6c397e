// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// BlockingIo: aligned reads and writes that return when done, for metadata (format, open, recovery, the
// keeper). Wraps an IoQueue of its own. Short completions, -EAGAIN and -EINTR are a retry of the rest, at most
// kRetriesMax times; -EIO and the rest an error with path, offset and length (I9). A request that does not
// complete within timeout_ns gives kTimeout; the buffer is then still the kernel's (I11): it is moved into
// the BlockingIo, counted in stuck_requests(), and leaked on purpose if it never completes.
// One thread at a time.

#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/status.h"
#include "device/device.h"

namespace kvstore::device {

inline constexpr uint32_t kRetriesMax = 16;

struct ReadExtent {
  uint16_t device_index = 0;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;  // multiple of 4 KiB
  uint8_t* target = nullptr;  // page-aligned, inside the buffer that was given
  Status status;              // set
};

class BlockingIo {
 public:
  BlockingIo(std::unique_ptr<IoQueue> queue, std::vector<Device*> devices, uint64_t timeout_ns);
  ~BlockingIo();

  Status read(uint16_t device_index, uint64_t offset_bytes, AlignedBuffer& buffer, size_t length_bytes);
  Status write(uint16_t device_index, uint64_t offset_bytes, const AlignedBuffer& buffer, size_t length_bytes,
               bool durable);
  Status flush(uint16_t device_index);

  // Many reads at full queue depth into one buffer; each extent gets its own status. The Status returned is
  // not ok only when the queue itself failed or a read is stuck.
  Status read_many(std::span<ReadExtent> extents, AlignedBuffer& buffer);

  uint32_t stuck_requests() const;

  // For the operations that begin from now on.
  void set_timeout(uint64_t timeout_ns);

  // From now on a wait ends, with kTimeout, as soon as nothing completes for a tenth of a second, and an operation
  // whose device has a stuck request fails at once. Any thread.
  void give_up();
  // The same after taking what has completed meanwhile.
  uint32_t collect_stuck();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Advances a partly completed request past `request.result` bytes. Returns true when the rest must be
// submitted again; `scratch` holds the shortened iovec list and must outlive the request. Shared with the engine.
enum class IoOutcome { kDone, kRetry, kFailed };
IoOutcome advance_after_completion(IoRequest& request, std::vector<iovec>& scratch, uint32_t& attempts);

}  // namespace kvstore::device
