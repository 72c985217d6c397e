// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// StagingPool: a fixed number of 1 MiB page-aligned buffers, one arena, allocated at open. Empty is an answer (null):
// the piece waits its turn. A buffer the kernel never gave back is simply never returned (I11): the pool shrinks and
// counts it. One thread at a time.

#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "base/units.h"

namespace kvstore::store {

class StagingPool {
 public:
  explicit StagingPool(uint64_t bytes) : arena_(align_up(bytes < kPieceBytes ? kPieceBytes : bytes, kPieceBytes)) {
    for (uint64_t offset = arena_.size(); offset != 0; offset -= kPieceBytes) {
      free_.push_back(arena_.data() + offset - kPieceBytes);
    }
  }
  uint8_t* take() {
    if (free_.empty()) return nullptr;
    uint8_t* buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  void give_back(uint8_t* buffer) { free_.push_back(buffer); }
  uint64_t buffers() const { return arena_.size() / kPieceBytes; }
  uint64_t buffers_out() const { return buffers() - free_.size(); }
  AlignedBuffer& arena() { return arena_; }

 private:
  AlignedBuffer arena_;
  std::vector<uint8_t*> free_;
};

}  // namespace kvstore::store
