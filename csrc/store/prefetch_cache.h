// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// PrefetchCache: blocks read ahead of their get, verified, in bounded memory. A staged block is used by one get and
// then gone; one nobody came for makes room for a later prefetch, never for one of its own job.
// Serves a block only at the place it was read from: what was deleted or replaced meanwhile is not served. Thread-safe.

#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/aligned.h"
#include "store/catalog.h"

namespace kvstore::store {

class PrefetchCache {
 public:
  explicit PrefetchCache(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  enum class Reserve : uint8_t { kReserved, kAlreadyThere, kFull };
  // Memory for one block, to be filled by the job; `memory` stays valid until filled() or dropped().
  Reserve reserve(const Fingerprint& fingerprint, const Place& place, uint64_t payload_bytes, uint64_t job_id,
                  iovec& memory);
  void filled(const Fingerprint& fingerprint, uint64_t job_id);
  void dropped(const Fingerprint& fingerprint, uint64_t job_id);

  // Copies the staged block into the caller's segments and forgets it; where only a mover reaches those, gives the item
  // its memory instead. False: not staged (yet), or another place.
  bool take(Item& item);

  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Block {
    Fingerprint fingerprint;
    Place place;
    AlignedBuffer memory;
    uint64_t payload_bytes = 0;
    uint64_t job_id = 0;
    bool ready = false;
  };
  using List = std::list<Block>;

  const uint64_t bytes_max_;
  std::mutex mutex_;
  List blocks_;  // oldest first
  std::unordered_map<Fingerprint, List::iterator, FingerprintHash> by_fingerprint_;
  std::atomic<uint64_t> bytes_{0};  // written under the mutex
};

}  // namespace kvstore::store
