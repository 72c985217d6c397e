// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// InlineReader: reads one small block on the caller's own thread, over a queue of its own, when the engine is idle: no
// hand-over, no wake-up. A few such readers are kept; when all are taken the caller goes to the engine.
//
// Guarantees: verifies like the engine does; on any trouble (an error, a mismatch, a short read) says kTryEngine and
// has nothing in flight, so that retries and removals live in one place.

#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"
#include "store/counters.h"
#include "store/piece.h"

namespace kvstore::store {

class InlineReaders {
 public:
  static constexpr uint64_t kPayloadBytesMax = 4 * kMiB;

  InlineReaders(std::vector<device::Device*> devices, Counters& counters);

  // The item is resolved, pinned, whole and in place.
  enum class Outcome : uint8_t { kHit, kTryEngine };
  Outcome read(Item& item);

  uint32_t reading() const { return reading_.load(std::memory_order_acquire); }

 private:
  static constexpr uint32_t kReadersMax = 8;
  static constexpr uint32_t kPieces = kPayloadBytesMax / kPieceBytes;
  struct Reader {
    std::unique_ptr<device::IoQueue> queue;
    std::vector<Piece> pieces{kPieces};
    AlignedBuffer last_pages{kPieces * kPageBytes};
  };
  std::unique_ptr<Reader> take();
  bool transfer(Reader& reader, Item& item);

  std::vector<device::Device*> devices_;
  Counters& counters_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Reader>> free_;
  uint32_t made_ = 0;
  std::atomic<uint32_t> reading_{0};
};

}  // namespace kvstore::store
