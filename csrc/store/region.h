// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Region: what the catalog knows of one region, and OpenRegion: what more it keeps while the region is filled.
// Plain data guarded by the catalog's mutex, except where a field says "keeper": that is touched by the keeper of
// the region's device only.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "format/bitmap.h"
#include "format/descriptor.h"
#include "format/dictionary.h"
#include "format/region_header.h"
#include "store/job_state.h"

namespace kvstore::store {

using format::RegionState;

// A put that asked to be told when its descriptor is on the device.
struct DurableWaiter {
  JobRef job;
  uint32_t item = 0;
  ItemResult result;
};

// A descriptor whose payload is written: waits for the next commit.
struct PendingDescriptor {
  format::Descriptor descriptor;
  Fingerprint fingerprint;
  SpaceId space;
  std::string salt;
};

// What one round of a keeper's commit writes of one region.
struct CommitWork {
  uint32_t region = 0;
  std::vector<PendingDescriptor> descriptors;
  size_t appended = 0;                 // of them, to OpenRegion::tail or to a block on the device, by an earlier round
  std::vector<DurableWaiter> waiters;  // complete when it is written
  std::vector<format::DictionaryWriter::EncodedBlock> dictionary;

  bool empty() const { return descriptors.empty() && waiters.empty(); }
};

struct OpenRegion {
  explicit OpenRegion(uint32_t dictionary_blocks) : dictionary(dictionary_blocks) {}

  format::DictionaryWriter dictionary;
  uint32_t slots_given = 0;  // slots 0 .. slots_given-1 were handed out
  uint32_t writes_in_flight = 0;
  bool seal_wanted = false;  // full, poisoned, dictionary full, or its place is needed
  bool poisoned = false;     // a write or flush failed (I6): what is pending is lost
  uint64_t last_put_tick = 0;
  CommitWork pending;  // of the next round

  // Keeper: the descriptor stream on the device.
  uint32_t full_blocks = 0;              // D blocks written
  std::vector<format::Descriptor> tail;  // of the partial block, < 31
  bool tail_changed = false;             // since it was last written
  uint32_t tail_copy = 0;                // the copy to write next (I4)
  uint64_t block_sequence = 0;
  uint64_t min_write_seq = 0;
  uint64_t max_write_seq = 0;
  uint32_t committed() const { return full_blocks * format::kDescriptorsPerBlock + static_cast<uint32_t>(tail.size()); }
};

// Shared mode (docs/sharing.md): who may write there. In owner mode it is always kNobody.
enum class Writer : uint8_t {
  kNobody,      // sealed, or free and of no use until it is granted
  kThisOpener,  // granted, and neither sealed, lost nor given back since
  kAnother,     // or may still (S5): read only, and no victim
};

struct Region {
  uint16_t device = 0;
  RegionId id;
  RegionState state = RegionState::kFree;
  bool opening = false;   // keeper: headers of the next life are being written
  Generation generation;  // of the current life; the next is +1 (I2)
  uint64_t extent_bytes = 0;
  uint32_t slot_count = 0;
  uint32_t pins = 0;                // readers, lookup pins (I3)
  uint32_t live = 0;                // index entries that point here
  uint32_t descriptor_count = 0;    // when sealed
  uint32_t dictionary_count = 0;    // when sealed
  bool unsealed_on_device = false;  // found open by a read-only opener: the last descriptors are in the tail pair
  uint64_t last_use_tick = 0;       // or of the last write: StoreOptions::reclaim_order
  // Shared mode (docs/sharing.md).
  Writer writer = Writer::kNobody;
  uint64_t told_tick = 0;             // last_use_tick as the others' hits set it: not to be told back to them
  Generation retired_below;           // lives of a lower generation are gone: nothing of them is learnt any more (S4)
  uint64_t quarantined_until_ns = 0;  // I7; UINT64_MAX while the write is outstanding
  uint32_t unknown_writes = 0;        // outstanding writes past the time-out

  uint64_t header_sequence = 0;
  uint32_t header_copy = 0;  // keeper: the copy to write next (I4)

  format::DeadBitmap dead;  // empty until a slot dies
  bool bitmap_dirty = false;
  bool bitmap_queued = false;  // its number is in the device's list of dirty ones
  uint64_t bitmap_sequence = 0;
  uint32_t bitmap_copy = 0;  // keeper

  std::unique_ptr<OpenRegion> open;
};

}  // namespace kvstore::store
