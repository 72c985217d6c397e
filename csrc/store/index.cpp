// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/index.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "base/mutation.h"
#include "base/units.h"

namespace kvstore::store {

namespace {

void* map_zeroed(uint64_t bytes) {
  // NORESERVE: an index sized for a full device must not be charged before blocks fill it.
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  // Probes are random: without huge pages every one costs a page walk as well as a cache miss.
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

}  // namespace

Index::Index(uint64_t blocks_max) : blocks_max_(std::max<uint64_t>(blocks_max, 1)) {
  // Shards fill unevenly; a square-root margin keeps a shard from being full before the whole is.
  const uint64_t per_shard = ceil_div(blocks_max_, kShards);
  uint64_t margin = 16;
  while (margin * margin < per_shard * 25) margin += margin / 4;
  shard_used_max_ = per_shard + margin;
  // 48 bytes at load 0.76: 63 bytes a block, 64 with what blocks_max_for() adds. A shard that runs ahead of the others
  // may reach load 0.77.
  shard_capacity_ = std::max(ceil_div(per_shard * 21, 16), shard_used_max_ + shard_used_max_ / 4);
  mapping_bytes_ = align_up(shard_capacity_ * kShards * sizeof(IndexEntry), kPageBytes);
  mapping_ = map_zeroed(mapping_bytes_);
  for (uint32_t i = 0; i < kShards; ++i) {
    shards_[i].entries = static_cast<IndexEntry*>(mapping_) + i * shard_capacity_;
  }
}

Index::~Index() { munmap(mapping_, mapping_bytes_); }

IndexEntry* Index::find(const Fingerprint& fingerprint) {
  Shard& shard = shards_[shard_of(fingerprint)];
  for (uint64_t i = home(fingerprint);; i = i + 1 == shard_capacity_ ? 0 : i + 1) {
    IndexEntry& entry = shard.entries[i];
    if ((entry.flags & kEntryUsed) == 0) return nullptr;
    if (entry.fingerprint == fingerprint) return &entry;
  }
}

void Index::prefetch(const Fingerprint& fingerprint) const {
  __builtin_prefetch(shards_[shard_of(fingerprint)].entries + home(fingerprint));
}

bool Index::insert(const IndexEntry& entry) {
  Shard& shard = shards_[shard_of(entry.fingerprint)];
  if (shard.used >= shard_used_max_) return false;
  uint64_t i = home(entry.fingerprint);
  while ((shard.entries[i].flags & kEntryUsed) != 0) i = i + 1 == shard_capacity_ ? 0 : i + 1;
  shard.entries[i] = entry;
  shard.entries[i].flags |= kEntryUsed;
  ++shard.used;
  return true;
}

void Index::erase(IndexEntry* entry) {
  Shard& shard = shards_[shard_of(entry->fingerprint)];
  uint64_t hole = static_cast<uint64_t>(entry - shard.entries);
  // Backward shift: every later entry of the run whose home is not behind the hole moves into it.
  for (uint64_t i = hole;;) {
    i = i + 1 == shard_capacity_ ? 0 : i + 1;
    const IndexEntry& candidate = shard.entries[i];
    if ((candidate.flags & kEntryUsed) == 0) break;
    const uint64_t wanted = home(candidate.fingerprint);
    const uint64_t distance_to_hole = hole >= wanted ? hole - wanted : hole + shard_capacity_ - wanted;
    const uint64_t distance_now = i >= wanted ? i - wanted : i + shard_capacity_ - wanted;
    if (distance_to_hole <= distance_now) {
      shard.entries[hole] = candidate;
      hole = i;
    }
  }
  shard.entries[hole] = IndexEntry{};
  --shard.used;
}

uint64_t Index::erase_region(uint32_t shard, uint32_t region, const std::function<bool(const IndexEntry&)>& goes) {
  if (shards_[shard].used == 0) return 0;
  uint64_t count = 0;
  for (uint64_t i = 0; i < shard_capacity_;) {
    IndexEntry& entry = shards_[shard].entries[i];
    if ((entry.flags & kEntryUsed) == 0 || entry.region != region || !goes(entry)) {
      ++i;
      continue;
    }
    erase(&entry);  // may shift another entry into i: look again
    ++count;
  }
  return count;
}

uint64_t Index::size() const {
  uint64_t used = 0;
  for (const Shard& shard : shards_) used += shard.used;
  return used;
}

uint64_t Index::memory_bytes() const { return mapping_bytes_; }

IndexBuilder::IndexBuilder(Index& index) : index_(index) {
  sequences_bytes_ = align_up(index.shard_capacity_ * Index::kShards * sizeof(uint64_t), kPageBytes);
  sequences_ = static_cast<uint64_t*>(map_zeroed(sequences_bytes_));
}

IndexBuilder::~IndexBuilder() { munmap(sequences_, sequences_bytes_); }

uint64_t IndexBuilder::add(std::span<const Candidate> candidates) {
  // Counting sort by shard, so that each lock is taken once per region and the probes of a shard stay close.
  std::array<uint32_t, Index::kShards + 1> first{};
  for (const Candidate& candidate : candidates) ++first[Index::shard_of(candidate.entry.fingerprint) + 1];
  for (uint32_t i = 0; i < Index::kShards; ++i) first[i + 1] += first[i];
  std::vector<uint32_t> order(candidates.size());
  std::array<uint32_t, Index::kShards + 1> next = first;
  for (uint32_t i = 0; i < candidates.size(); ++i) order[next[Index::shard_of(candidates[i].entry.fingerprint)]++] = i;

  uint64_t refused = 0;
  for (uint32_t shard = 0; shard < Index::kShards; ++shard) {
    if (first[shard] == first[shard + 1]) continue;
    std::lock_guard lock(locks_[shard]);
    uint64_t* sequences = sequences_ + shard * index_.shard_capacity_;
    for (uint32_t i = first[shard]; i < first[shard + 1]; ++i) {
      index_.prefetch(candidates[order[i]].entry.fingerprint);
      __builtin_prefetch(sequences + index_.home(candidates[order[i]].entry.fingerprint));
    }
    for (uint32_t i = first[shard]; i < first[shard + 1]; ++i) {
      add_one(index_.shards_[shard], sequences, candidates[order[i]], refused);
    }
  }
  return refused;
}

void IndexBuilder::add_one(Index::Shard& shard, uint64_t* sequences, const Candidate& candidate, uint64_t& refused) {
  uint64_t i = index_.home(candidate.entry.fingerprint);
  for (;; i = i + 1 == index_.shard_capacity_ ? 0 : i + 1) {
    IndexEntry& entry = shard.entries[i];
    if ((entry.flags & kEntryUsed) == 0) break;
    if (entry.fingerprint != candidate.entry.fingerprint) continue;
    Candidate loser = candidate;
    if ((candidate.write_seq > sequences[i]) == KVS_RULE(I12_the_newest_duplicate_wins)) {
      loser = {entry, sequences[i]};
      entry = candidate.entry;
      entry.flags |= kEntryUsed;
      sequences[i] = candidate.write_seq;
    }
    std::lock_guard lock(superseded_lock_);
    superseded_.push_back(loser);
    return;
  }
  if (shard.used >= index_.shard_used_max_) {
    ++refused;
    return;
  }
  shard.entries[i] = candidate.entry;
  shard.entries[i].flags |= kEntryUsed;
  sequences[i] = candidate.write_seq;
  ++shard.used;
}

}  // namespace kvstore::store
