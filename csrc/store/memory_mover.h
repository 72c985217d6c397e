// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// MemoryMover: how a job reaches memory that the CPU cannot, such as a GPU's. Its pieces travel through staging: the
// bytes of a put are moved into it before they are hashed and written, those of a get out of it once they have been
// hashed. This is all that the store knows of it; csrc/gpu has what moves.
//
// What a mover promises: a move ends exactly once, whatever becomes of it, and then nothing touches the memory of
// either side for it any more (I11). It never blocks an engine. Calls come from any thread.

#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"

namespace kvstore::store {

// The bytes of one piece, between staging and the caller's memory.
struct MemoryMove {
  bool to_caller = false;
  uint32_t place = 0;       // PutItem::memory_place, GetItem::memory_place
  uint8_t* host = nullptr;  // in staging
  std::vector<iovec> runs;  // in the caller's memory, in the order of the bytes in staging
  Status outcome;           // set before it is told as ended
  void* owner = nullptr;    // the listener's
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

class MemoryMover {
 public:
  virtual ~MemoryMover() = default;

  // Calls `ready` once, from any thread, maybe at once: when all that the caller had under way in the memory of this
  // job as it submitted has come to pass. Nothing is moved before.
  virtual void when_ready(std::function<void()> ready) = 0;

  // The move belongs to the mover until the listener is told.
  virtual void start(MemoryMove& move, MoveListener& listener) = 0;

  // Every item has its result and no move will follow: whoever waits for the job on the mover's side may go on. At
  // least once for each submitted job; further calls do nothing.
  virtual void job_ended() = 0;

  // Makes moves from and to this memory fast. kUnsupported with the reason where that cannot be: slower, never wrong.
  virtual Result<std::unique_ptr<PinnedMemory>> pin(void* base, uint64_t bytes) = 0;
};

}  // namespace kvstore::store
