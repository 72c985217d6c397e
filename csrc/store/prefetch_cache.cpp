// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/prefetch_cache.h"

#include <algorithm>
#include <cstring>

namespace kvstore::store {

PrefetchCache::Reserve PrefetchCache::reserve(const Fingerprint& fingerprint, const Place& place,
                                              uint64_t payload_bytes, uint64_t job_id, iovec& memory) {
  const uint64_t needed = align_up(payload_bytes, kPageBytes);
  std::lock_guard lock(mutex_);
  if (by_fingerprint_.contains(fingerprint)) return Reserve::kAlreadyThere;
  for (auto block = blocks_.begin(); bytes_ + needed > bytes_max_ && block != blocks_.end();) {
    if (!block->ready || block->job_id == job_id) {
      ++block;
      continue;
    }
    bytes_ -= block->memory.size();
    by_fingerprint_.erase(block->fingerprint);
    block = blocks_.erase(block);
  }
  if (bytes_ + needed > bytes_max_) return Reserve::kFull;
  Block& block = blocks_.emplace_back();
  block.fingerprint = fingerprint;
  block.place = place;
  block.memory = AlignedBuffer(needed);
  block.payload_bytes = payload_bytes;
  block.job_id = job_id;
  bytes_ += block.memory.size();
  by_fingerprint_[fingerprint] = std::prev(blocks_.end());
  memory = {block.memory.data(), payload_bytes};
  return Reserve::kReserved;
}

void PrefetchCache::filled(const Fingerprint& fingerprint, uint64_t job_id) {
  std::lock_guard lock(mutex_);
  auto found = by_fingerprint_.find(fingerprint);
  if (found != by_fingerprint_.end() && found->second->job_id == job_id) found->second->ready = true;
}

void PrefetchCache::dropped(const Fingerprint& fingerprint, uint64_t job_id) {
  std::lock_guard lock(mutex_);
  auto found = by_fingerprint_.find(fingerprint);
  if (found == by_fingerprint_.end() || found->second->job_id != job_id) return;
  bytes_ -= found->second->memory.size();
  blocks_.erase(found->second);
  by_fingerprint_.erase(found);
}

bool PrefetchCache::take(Item& item) {
  List taken;
  {
    std::lock_guard lock(mutex_);
    auto found = by_fingerprint_.find(item.fingerprint);
    if (found == by_fingerprint_.end() || !found->second->ready) return false;
    const Place& place = found->second->place;
    const bool same =
        place.region == item.place.region && place.slot == item.place.slot && place.generation == item.place.generation;
    bytes_ -= found->second->memory.size();
    taken.splice(taken.begin(), blocks_, found->second);
    by_fingerprint_.erase(found);
    if (!same) return false;
  }
  Block& block = taken.front();
  if (item.mover != nullptr) {
    item.prefetched = std::move(block.memory);
    return true;
  }
  uint64_t left = item.wanted_bytes;
  const uint8_t* source = block.memory.data() + item.wanted_offset;
  for (uint32_t i = 0; i < item.segment_count && left != 0; ++i) {
    const uint64_t bytes = std::min<uint64_t>(left, item.segments[i].iov_len);
    std::memcpy(item.segments[i].iov_base, source, bytes);
    source += bytes;
    left -= bytes;
  }
  return true;
}

}  // namespace kvstore::store
