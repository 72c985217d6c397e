// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What happens to the blocks of a region that is given up: its descriptors are read back, its entries become misses,
// and subscribers are told their names. Keepers reclaim so; followers drop so what another opener reclaims or deleted.

#pragma once

#include "device/blocking_io.h"
#include "format/superblock.h"
#include "store/catalog.h"
#include "store/spaces.h"

namespace kvstore::store {

class RegionEvictor {
 public:
  RegionEvictor(device::BlockingIo& io, const format::Superblock& superblock, Catalog& catalog, SpaceRegistry& spaces,
                Counters& counters, EvictionHub& evictions)
      : io_(io),
        superblock_(superblock),
        catalog_(catalog),
        spaces_(spaces),
        counters_(counters),
        evictions_(evictions) {}

  // Not ok: descriptors could not be read.
  // Every block; Catalog::reclaimed() finds by walking what no descriptor names.
  Status evict_all(uint32_t number) { return evict(number, false, EvictionReason::kReclaimed).status(); }
  // Those in slots that are marked dead; the index is walked for what no descriptor names.
  Status evict_dead(uint32_t number);

 private:
  // Whether descriptors named all that was to go.
  Result<bool> evict(uint32_t number, bool only_dead, EvictionReason reason);

  device::BlockingIo& io_;
  const format::Superblock& superblock_;
  Catalog& catalog_;
  SpaceRegistry& spaces_;
  Counters& counters_;
  EvictionHub& evictions_;
};

}  // namespace kvstore::store
