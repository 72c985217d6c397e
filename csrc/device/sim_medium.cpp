// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "device/sim_medium.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/units.h"

namespace kvstore::device {

uint8_t* SimMedium::chunk_for_write(uint64_t offset_bytes) {
  std::unique_ptr<uint8_t[]>& chunk = chunks_[offset_bytes / kChunkBytes];
  if (chunk == nullptr) chunk = std::make_unique<uint8_t[]>(kChunkBytes);
  return chunk.get() + offset_bytes % kChunkBytes;
}

void SimMedium::copy_in(uint64_t offset_bytes, const uint8_t* source, uint64_t bytes) {
  while (bytes > 0) {
    const uint64_t run = std::min(bytes, kChunkBytes - offset_bytes % kChunkBytes);
    std::memcpy(chunk_for_write(offset_bytes), source, run);
    offset_bytes += run;
    source += run;
    bytes -= run;
  }
}

void SimMedium::read(uint64_t offset_bytes, uint8_t* target, uint64_t bytes) const {
  while (bytes > 0) {
    const uint64_t run = std::min(bytes, kChunkBytes - offset_bytes % kChunkBytes);
    const auto chunk = chunks_.find(offset_bytes / kChunkBytes);
    if (chunk == chunks_.end()) {
      std::memset(target, 0, run);
    } else {
      std::memcpy(target, chunk->second.get() + offset_bytes % kChunkBytes, run);
    }
    offset_bytes += run;
    target += run;
    bytes -= run;
  }
}

void SimMedium::read_previous(uint64_t offset_bytes, uint8_t* target, uint64_t bytes) const {
  while (bytes > 0) {
    const uint64_t run = std::min(bytes, kChunkBytes - offset_bytes % kChunkBytes);
    const auto chunk = previous_.find(offset_bytes / kChunkBytes);
    if (chunk == previous_.end()) {
      read(offset_bytes, target, run);
    } else {
      std::memcpy(target, chunk->second.get() + offset_bytes % kChunkBytes, run);
    }
    offset_bytes += run;
    target += run;
    bytes -= run;
  }
}

void SimMedium::flip(uint64_t offset_bytes, uint32_t bit) {
  const uint8_t mask = static_cast<uint8_t>(1u << bit);
  *chunk_for_write(offset_bytes) ^= mask;
  const auto undo = undo_.find(align_down(offset_bytes, kSimSectorBytes));
  if (undo != undo_.end()) undo->second.durable[offset_bytes % kSimSectorBytes] ^= mask;
}

bool SimMedium::is_readable(uint64_t offset_bytes, uint64_t bytes) const {
  const auto first = spoiled_.lower_bound(align_down(offset_bytes, kSimSectorBytes));
  return first == spoiled_.end() || *first >= offset_bytes + bytes;
}

void SimMedium::write_sector(uint64_t offset_bytes, const uint8_t* source, bool durable) {
  uint8_t* place = chunk_for_write(offset_bytes);
  if (keeps_previous_) {
    std::unique_ptr<uint8_t[]>& chunk = previous_[offset_bytes / kChunkBytes];
    if (chunk == nullptr) {
      chunk = std::make_unique<uint8_t[]>(kChunkBytes);
      std::memcpy(chunk.get(), place - offset_bytes % kChunkBytes, kChunkBytes);
    }
    std::memcpy(chunk.get() + offset_bytes % kChunkBytes, place, kSimSectorBytes);
  }
  if (!spoiled_.empty()) spoiled_.erase(offset_bytes);
  if (durable || write_through_) {
    undo_.erase(offset_bytes);
  } else {
    const auto [undo, is_first] = undo_.try_emplace(offset_bytes);
    if (is_first) undo->second.first_write = write_count_;
    if (is_first || random_.below(2) == 0) std::memcpy(undo->second.durable.data(), place, kSimSectorBytes);
  }
  std::memcpy(place, source, kSimSectorBytes);
}

void SimMedium::write(uint64_t offset_bytes, const uint8_t* source, uint64_t bytes, bool durable) {
  ++write_count_;
  for (uint64_t done = 0; done < bytes; done += kSimSectorBytes) {
    write_sector(offset_bytes + done, source + done, durable);
  }
}

void SimMedium::write_partly(uint64_t offset_bytes, const uint8_t* source, uint64_t bytes) {
  ++write_count_;
  // Of 4: none, all, or (2) a coin for each sector; large writes would else never land as a whole.
  const uint64_t fate = random_.below(4);
  for (uint64_t done = 0; done < bytes; done += kSimSectorBytes) {
    if (fate == 1 || (fate >= 2 && random_.below(2) == 0)) write_sector(offset_bytes + done, source + done, false);
  }
}

void SimMedium::poke(uint64_t offset_bytes, const uint8_t* source, uint64_t bytes) {
  copy_in(offset_bytes, source, bytes);
  const uint64_t end = offset_bytes + bytes;
  spoiled_.erase(spoiled_.lower_bound(align_down(offset_bytes, kSimSectorBytes)), spoiled_.lower_bound(end));
  undo_.erase(undo_.lower_bound(align_down(offset_bytes, kSimSectorBytes)), undo_.lower_bound(end));
}

void SimMedium::flush(uint64_t mark) {
  // A sector written before and after the mark becomes durable as it is now: a drive may always persist more.
  std::erase_if(undo_, [mark](const auto& entry) { return entry.second.first_write <= mark; });
}

void SimMedium::power_cut() {
  // Each cut leans its own way, so that runs also see caches that kept or lost almost everything.
  constexpr uint64_t kKeepWeights[] = {0, 1, 8, 15, 16};  // of 16
  const uint64_t keep_weight = kKeepWeights[random_.below(std::size(kKeepWeights))];
  const uint64_t tear_weight = random_.below(2);  // of 16
  for (const auto& [offset_bytes, undo] : undo_) {
    uint64_t kept_bytes = random_.below(16) < keep_weight ? kSimSectorBytes : 0;
    if (random_.below(16) < tear_weight) kept_bytes = 1 + random_.below(kSimSectorBytes - 1);
    copy_in(offset_bytes + kept_bytes, undo.durable.data() + kept_bytes, kSimSectorBytes - kept_bytes);
  }
  undo_.clear();
}

void SimMedium::drop_unflushed() {
  for (const auto& [offset_bytes, undo] : undo_) copy_in(offset_bytes, undo.durable.data(), kSimSectorBytes);
  undo_.clear();
}

void SimMedium::resize(uint64_t size_bytes) {
  // What lies past a smaller end is gone, also when the disk grows again.
  std::erase_if(undo_, [size_bytes](const auto& entry) { return entry.first >= size_bytes; });
  std::erase_if(chunks_, [size_bytes](const auto& entry) { return entry.first * kChunkBytes >= size_bytes; });
  std::erase_if(previous_, [size_bytes](const auto& entry) { return entry.first * kChunkBytes >= size_bytes; });
  spoiled_.erase(spoiled_.lower_bound(size_bytes), spoiled_.end());
  if (size_bytes % kChunkBytes != 0) {
    const auto last = chunks_.find(size_bytes / kChunkBytes);
    if (last != chunks_.end()) {
      std::memset(last->second.get() + size_bytes % kChunkBytes, 0, kChunkBytes - size_bytes % kChunkBytes);
    }
  }
  size_bytes_ = size_bytes;
}

}  // namespace kvstore::device
