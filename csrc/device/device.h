// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Device and IoQueue: the whole outside world of the store. A Device is one raw namespace or one file
// that stands in for it; an IoQueue moves aligned bytes to and from one or more devices.
//
// Guarantees of every implementation (tests/cpp/device/device_conformance_test.cpp runs on each):
//   - a submitted request completes exactly once, in any order, with the kernel's own answer in `result`:
//     bytes moved (may be short), or -errno. Nothing is retried here (I9 is the caller's, see blocking_io.h).
//   - a write with `durable` set is on stable media when it completes (FUA / RWF_DSYNC); other writes are
//     after a flush submitted once they completed (I1).
//   - buffers, the iovec array and the request itself belong to the queue from submit to completion (I11).
//   - in a forked child every call fails (kClosed, or submit() false) and destroying is safe.
// It does not order requests, and never waits unless poll() is told to.

#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"

namespace kvstore::device {

enum class IoOp : uint8_t { kRead, kWrite, kFlush };

struct IoRequest {
  IoOp op = IoOp::kRead;
  bool durable = false;             // writes only
  uint16_t device_index = 0;        // position in the span given to make_queue
  uint64_t offset_bytes = 0;        // multiple of 4 KiB
  const iovec* segments = nullptr;  // every base aligned to DeviceInfo::dma_alignment_bytes, every length to
  uint32_t segment_count = 0;       //   logical_block_bytes; lengths sum to a multiple of 4 KiB; at most 1,024
  int32_t buffer_index = -1;        // registered buffer that holds segments[0] (segment_count == 1), or -1
  int64_t result = 0;               // set at completion
  void* owner = nullptr;            // the submitter's
  IoRequest* next = nullptr;        // the queue's while submitted, the submitter's otherwise
};

// Who the device is, beyond its path: /dev names move at each boot.
struct DeviceIdentity {
  std::string nguid;  // hex, empty when the device has none
  std::string eui64;
  std::string serial;
};

struct DeviceInfo {
  std::string path;
  std::string kind;  // "uring", "threads", "sim"
  uint64_t size_bytes = 0;
  uint32_t logical_block_bytes = 512;  // <= 4096, else open refuses
  uint32_t dma_alignment_bytes = 512;  // of memory; probed
  uint64_t max_transfer_bytes = 0;     // of one request before the kernel splits it; 0 = unknown
  bool is_regular_file = false;
  bool volatile_cache = true;  // false only when the device says write-through
  bool is_fabric = false;      // NVMe over Fabrics: late ("ghost") writes are possible
  DeviceIdentity identity;
};

struct QueueOptions {
  uint32_t depth = 64;  // requests in flight at most
  // One thread, the first to kick() or poll(), does all but wake() (SINGLE_ISSUER | DEFER_TASKRUN). False: the queue
  // may move between threads under the caller's lock; a thread must not end with requests of its own in flight.
  bool single_issuer = true;
};

// Destroying a queue never waits for requests in flight. They are then never reported, and the request, its segments
// and its buffers must never be freed, because the kernel may still use them (I11).
class IoQueue {
 public:
  virtual ~IoQueue() = default;

  // Takes the request, or returns false when `depth` are in flight. The kernel may not have seen it before
  // the next poll() or kick(). Not thread-safe: one thread at a time uses a queue.
  virtual bool submit(IoRequest* request) = 0;

  // Hands submitted requests to the kernel without waiting.
  virtual Status kick() = 0;

  // Hands over, then collects up to completed.size() completions; waits for the first at most timeout_ns
  // (0: does not wait) or until wake(). Returns how many; 0 after a wait means the time-out or wake(), never a signal.
  // A wake() is spent only by a poll() that may wait. `wait_for` is a hint that a wait may go on until so many are
  // there, which spares a context switch for each of many small requests; fewer may be returned at any time.
  virtual Result<uint32_t> poll(std::span<IoRequest*> completed, uint64_t timeout_ns, uint32_t wait_for = 1) = 0;

  // Ends a poll() that waits, now or the next one. The only member that any thread may call.
  virtual void wake() = 0;

  // Registers memory for zero-mapping I/O; replaces what was registered (empty: drops it). Buffers of at most 1 GiB,
  // else kInvalid; kBusy with requests in flight. On kUnsupported (no such thing here) or io_errno ENOMEM (memlock)
  // nothing is registered and requests simply carry buffer_index -1.
  virtual Status register_buffers(std::span<const iovec> buffers) = 0;

  virtual uint32_t in_flight() const = 0;
  virtual uint32_t depth() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;

  // The descriptor, for who moves bytes by other means; the device's. -1: there is none, or this is a forked child.
  virtual int descriptor() const { return -1; }

  // From held alone to shared: openers that share get in from now on. No queue made from it may be alive, because what
  // a ring refers to keeps the claim. On an error the device may be held by nobody: destroy it. On a block device
  // nobody can open it alone in between. On a file flock(2) promises no such thing, though Linux keeps it on local file
  // systems: an error says that somebody is in now, but who came and went meanwhile is not seen, so read again what was
  // read.
  virtual Status share() { return {}; }

  // A queue over `devices`, all of this kind; IoRequest::device_index counts into it. The devices outlive it.
  virtual Result<std::unique_ptr<IoQueue>> make_queue(std::span<Device* const> devices,
                                                      const QueueOptions& options) = 0;
};

// ---- opening (device/open.cpp) -------------------------------------------------------------------------

// Whom an opener keeps out. The kernel sees to it for all names of a file or device node, and for a loop device and its
// backing file. Two device nodes with one number (containers with a /dev each), and a partition and its disk, are one
// to kExclusive openers, and a kShared one does not get in beside a kExclusive one; that a kShared one is there it
// cannot tell.
enum class Holding : uint8_t {
  kNone,       // nobody: looks on
  kShared,     // who wants it alone, and mounts that are there already
  kExclusive,  // everybody but who looks on
};

struct OpenOptions {
  std::string kind = "auto";  // "auto" (uring where allowed, else threads) | "uring" | "threads"
  bool read_only = false;     // dump, check, info on a store that somebody else may own: holds nothing
  Holding holding = Holding::kExclusive;
  uint64_t wait_ns = 0;                     // for a living holder to go away
  uint64_t stale_wait_ns = 10'000'000'000;  // for a killed holder's kernel references, no living holder found
  uint32_t threads = 16;                    // of the "threads" kind, per queue
};

// Opens a block device or regular file with O_DIRECT. Errors: kNotFound, kBusy (message names the holder:
// pid, command, since when), kInvalid (not a device or file), kUnsupported (no O_DIRECT, logical block > 4 KiB).
Result<std::unique_ptr<Device>> open_device(const std::string& path, const OpenOptions& options, Clock& clock);

// Why io_uring is not usable here, or ok. Probed once per process by really setting up a ring.
Status uring_available();

}  // namespace kvstore::device
