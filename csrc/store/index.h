// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Index: fingerprint -> where a block is, how long it is and what its checksum must be. Open addressing, linear
// probing, backward-shift deletion (no tombstones), 48 bytes an entry, fixed size at open.
//
// Guarantees: never rehashes, never allocates after construction; insert refuses above load 0.8 of its capacity
// (the caller reclaims first). Memory is mapped, not touched, until used. Not thread-safe: the catalog's mutex guards
// it, except during recovery, when IndexBuilder's shard locks do.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/checksum.h"
#include "base/digest.h"
#include "base/status.h"

namespace kvstore::store {

enum IndexFlags : uint8_t {
  kEntryUsed = 1,
  kEntryUncommitted = 2,  // payload written, descriptor not yet on the device
  kEntryVerified = 4,     // Verify::kFirstRead: checked since open
  kEntryPageHashes = 8,
  kEntrySuspect = 16,  // a read of it failed with an I/O error: still tried, but a put writes it anew
};

struct IndexEntry {
  Fingerprint fingerprint;
  Checksum128 checksum;
  uint32_t payload_bytes = 0;
  uint32_t region = 0;  // number in the pool's region table
  uint32_t slot : 24 = 0;
  uint32_t flags : 8 = 0;
  uint32_t generation_low = 0;
  bool same_place(const IndexEntry& other) const {
    return region == other.region && slot == other.slot && generation_low == other.generation_low;
  }
};
static_assert(sizeof(IndexEntry) == 48);

inline constexpr uint32_t kSlotsMax = 1u << 24;

class Index {
 public:
  static constexpr uint32_t kShards = 64;
  static constexpr uint64_t kSpareDivisor = 64;

  // Room for `blocks_max` entries at load 0.76. Throws std::bad_alloc when the address space cannot be had.
  explicit Index(uint64_t blocks_max);
  ~Index();
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;

  IndexEntry* find(const Fingerprint& fingerprint);
  const IndexEntry* find(const Fingerprint& fingerprint) const { return const_cast<Index*>(this)->find(fingerprint); }
  void prefetch(const Fingerprint& fingerprint) const;  // pulls the home cache line in

  // False when the entry's shard is full. The fingerprint must be absent.
  bool insert(const IndexEntry& entry);
  void erase(IndexEntry* entry);

  // Removes the entries of a region that go by walking one shard of the table: the fallback when its descriptors cannot
  // be read. A shard is milliseconds of a large table.
  uint64_t erase_region(uint32_t shard, uint32_t region, const std::function<bool(const IndexEntry&)>& goes);

  template <typename Visit>
  void for_each(Visit visit) const {
    for (const Shard& shard : shards_) {
      uint64_t left = shard.used;  // untouched memory of an empty table is not even read
      for (uint64_t i = 0; left != 0; ++i) {
        if ((shard.entries[i].flags & kEntryUsed) == 0) continue;
        visit(shard.entries[i]);
        --left;
      }
    }
  }

  uint64_t size() const;
  uint64_t blocks_max() const { return blocks_max_; }
  uint64_t memory_bytes() const;
  // Some room is left: puts go on while what lives in a region is being removed.
  bool nearly_full() const { return size() >= blocks_max_ - blocks_max_ / kSpareDivisor; }
  // How large an index must be that is not nearly full of so many blocks.
  static uint64_t blocks_max_for(uint64_t blocks) { return blocks + blocks / (kSpareDivisor - 1) + 1; }

 private:
  friend class IndexBuilder;
  struct Shard {
    IndexEntry* entries = nullptr;
    uint64_t used = 0;
  };
  static uint32_t shard_of(const Fingerprint& fingerprint) { return static_cast<uint32_t>(fingerprint.high >> 58); }
  uint64_t home(const Fingerprint& fingerprint) const {
    return static_cast<uint64_t>((static_cast<__uint128_t>(fingerprint.low) * shard_capacity_) >> 64);
  }

  uint64_t blocks_max_ = 0;
  uint64_t shard_capacity_ = 0;
  uint64_t shard_used_max_ = 0;
  std::array<Shard, kShards> shards_{};
  void* mapping_ = nullptr;
  uint64_t mapping_bytes_ = 0;
};

// Fills an index from several threads during recovery; of equal fingerprints the highest write_seq wins and the
// others are kept aside (I12). Holds 8 more bytes an entry until it is destroyed.
class IndexBuilder {
 public:
  struct Candidate {
    IndexEntry entry;
    uint64_t write_seq;
  };
  explicit IndexBuilder(Index& index);
  ~IndexBuilder();

  // Thread-safe. Candidates of one region, in any order. Returns how many found no room.
  uint64_t add(std::span<const Candidate> candidates);

  // Copies that lost to a higher write_seq. Call when all add() returned.
  std::vector<Candidate> take_superseded() { return std::move(superseded_); }

 private:
  void add_one(Index::Shard& shard, uint64_t* sequences, const Candidate& candidate, uint64_t& refused);

  Index& index_;
  uint64_t* sequences_ = nullptr;  // parallel to the entries
  uint64_t sequences_bytes_ = 0;
  std::array<std::mutex, Index::kShards> locks_;
  std::mutex superseded_lock_;
  std::vector<Candidate> superseded_;
};

}  // namespace kvstore::store
