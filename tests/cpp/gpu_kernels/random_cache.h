// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Paged caches of random shapes and strides in host memory, extents beside them, and what a transfer between them must
// leave behind, byte by byte. Everything lies in one arena of random bytes, of which the expected state is a full copy:
// so a byte written anywhere else, into padding, a guard or a neighbour, is seen.

#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "gpu/move_plan.h"
#include "gpu/paged_layout.h"

namespace kvstore::gpu {

// Random bytes at an address that is a multiple of 16 and of no more.
class Arena {
 public:
  Arena(uint64_t bytes, SeededRandom& random);
  uint64_t address() const { return reinterpret_cast<uint64_t>(units_.data()) + kUnitBytes; }
  std::vector<uint8_t> copy() const;
  uint8_t* at(uint64_t address) { return reinterpret_cast<uint8_t*>(address); }
  uint64_t offset(uint64_t address) const { return address - address_of_copy(); }
  bool holds(const std::vector<uint8_t>& expected) const;  // of copy(); prints the first difference

 private:
  struct alignas(32) Unit {
    uint8_t bytes[32];
  };
  uint64_t address_of_copy() const { return reinterpret_cast<uint64_t>(units_.data()); }
  std::vector<Unit> units_;
};

struct RandomTransfer {
  explicit RandomTransfer(uint64_t seed);
  // What the arena holds afterwards, by a loop over every byte.
  std::vector<uint8_t> expected(Direction direction) const;
  std::vector<ExtentMove> extent_moves() const;
  MovePlan plan(Direction direction) const;

  SeededRandom random;
  PagedLayout layout;
  LayerRange layers;
  struct Extent {
    uint64_t address;
    uint32_t tokens;
    std::vector<int64_t> cache_blocks;
  };
  std::vector<Extent> extents;
  std::vector<Arena> arena;  // one; made when its size is known

 private:
  uint64_t make_layout();  // relative to 0; gives its span
  uint64_t make_extents(uint64_t end);
};

}  // namespace kvstore::gpu
