// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// DamageWatch: which blocks of a simulated disk had device bytes of their own hit by a fault of the medium, so that an
// oracle excuses these and no others.
//
// A block's place is learned from its payload write: payloads of sim_harness.h differ in their first eight bytes. It is
// hit when a fault touched its extent at or after that write, or the metadata of its region at any time. Errs towards
// excusing: after a reopen all places a block ever had count, because any of them may have come back.
// Knows the first MiB of a block only.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "device/sim.h"
#include "format/geometry.h"

namespace kvstore::store {

// Faults that change or withhold bytes that were acknowledged: the medium's fault, not the store's.
bool is_of_the_medium(device::SimFault fault);
const char* text_of(device::SimFault fault);
inline constexpr size_t kSimFaults = static_cast<size_t>(device::SimFault::kFlushFails) + 1;
using FaultCounts = std::array<uint64_t, kSimFaults>;

class DamageWatch {
 public:
  // Takes the disk's observer and its hits.
  DamageWatch(device::SimDisk& disk, const format::Geometry& geometry);
  ~DamageWatch();
  DamageWatch(const DamageWatch&) = delete;

  void begin_life() { ++life_; }
  // The block was put: in this life only its latest places count, two because another put of it may be under way.
  void stored(uint64_t first_bytes);
  // Of the block whose payload begins with these bytes, in memory order, padded with zeros.
  bool was_hit(uint64_t first_bytes);
  const FaultCounts& counts();

 private:
  struct Place {
    uint64_t offset_bytes;
    uint64_t bytes;
    uint64_t tick;
    uint64_t superseded_in_life;
  };
  struct Range {
    uint64_t first_byte;
    uint64_t last_byte;
    uint64_t tick;
  };
  void observe(const device::IoRequest& request);
  void take_hits();
  void damage(uint64_t offset_bytes, uint64_t bytes, uint64_t tick);
  bool is_hit(const Place& place) const;

  device::SimDisk& disk_;
  const format::Geometry geometry_;
  uint64_t life_ = 0;
  std::unordered_map<uint64_t, std::vector<Place>> places_;
  std::vector<Range> payload_ranges_;
  std::set<uint64_t> regions_;  // whose metadata was touched
  FaultCounts counts_{};
};

}  // namespace kvstore::store
