// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// MemoryMover: how a job reaches memory that the CPU cannot, such as a GPU's. Its pieces travel through staging: the
// bytes of a put are moved into it before they are hashed and written, those of a get out of it once they have been
// hashed. A mover may also read whole pages straight from a device of the pool, and hash them where they are: a direct
// read. This is all that the store knows of it; csrc/gpu has what moves.
//
// What a mover promises: a move ends exactly once, whatever becomes of it, and then nothing touches the memory of
// either side for it any more (I11). It never blocks an engine. Calls come from any thread.

#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/device.h"

namespace kvstore::store {

// The bytes of one piece, between staging and the caller's memory.
struct MemoryMove {
  bool to_caller = false;
  uint32_t place = 0;       // PutItem::memory_place, GetItem::memory_place
  uint8_t* host = nullptr;  // in staging
  std::vector<iovec> runs;  // in the caller's memory, in the order of the bytes in staging
  bool direct = false;      // a read of the device itself: into `runs`, whole pages, without staging
  struct {
    uint16_t device = 0;  // its number in the pool
    uint64_t offset_bytes = 0;
    bool wants_nodes = false;
    std::vector<uint64_t> nodes;  // of its pages, where they are wanted
    bool through_host = false;    // it was direct in name only: the library copied the bytes through host memory
  } read;
  Status outcome;         // set before it is told as ended
  void* owner = nullptr;  // the listener's
};

class MoveListener {
 public:
  virtual ~MoveListener() = default;
  virtual void move_ended(MemoryMove& move) = 0;  // any thread, also from within start()
};

// While it lives, the memory is pinned for the mover's machinery. Its end gives that up, so it ends before the memory.
class PinnedMemory {
 public:
  virtual ~PinnedMemory() = default;
};

// A device of the pool, and where on it payload begins.
struct PoolDevice {
  device::Device* device = nullptr;
  uint64_t payload_offset_bytes = 0;
};

class MemoryMover {
 public:
  virtual ~MemoryMover() = default;

  // Before a job: the pool's devices in its order, which are there until this returns. May block. An error refuses the
  // job.
  virtual Status meet(std::span<const PoolDevice> /*devices*/) { return {}; }

  // Calls `ready` once, from any thread, maybe at once: when all that the caller had under way in the memory of this
  // job as it submitted has come to pass. Nothing is moved before.
  virtual void when_ready(std::function<void()> ready) = 0;

  // Whether start() takes direct reads of that device of the pool into memory of that place. Where its memory, and what
  // is wanted of a block, are whole pages. `has_deadline`: of a job that then ends only when such a read has (I11).
  virtual bool reads_directly(uint32_t /*place*/, uint16_t /*device*/, bool /*has_deadline*/) { return false; }
  // What a direct read did not get right and a read through staging did. Such reads are not asked for again.
  virtual void refuse_direct(uint32_t /*place*/, uint16_t /*device*/, const Status& /*why*/) {}

  // The move belongs to the mover until the listener is told.
  virtual void start(MemoryMove& move, MoveListener& listener) = 0;

  // Every item has its result and no move will follow: whoever waits for the job on the mover's side may go on. At
  // least once for each submitted job; further calls do nothing.
  virtual void job_ended() = 0;

  // The NUMA node from which its machinery reaches memory best; -1: not known.
  virtual int near_node() { return -1; }
  // Makes moves from and to this memory fast. kUnsupported with the reason where that cannot be: slower, never wrong.
  virtual Result<std::unique_ptr<PinnedMemory>> pin(void* base, uint64_t bytes) = 0;
};

}  // namespace kvstore::store
