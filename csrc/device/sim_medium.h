// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// SimMedium: the bytes of a simulated disk and its volatile cache, with no notion of requests or time.
//
// Reads see every write at once. For each 512-byte sector whose last write is not durable the content that a
// power cut may bring back is kept beside it. A rewrite of such a sector may make the content in between the
// durable one, as a drive that destages when it likes may. Memory is taken only for what was written.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>

#include "base/clock.h"

namespace kvstore::device {

inline constexpr uint64_t kSimSectorBytes = 512;

class SimMedium {
 public:
  SimMedium(uint64_t size_bytes, SeededRandom& random) : size_bytes_(size_bytes), random_(random) {}

  uint64_t size_bytes() const { return size_bytes_; }
  void resize(uint64_t size_bytes);

  // Ranges are within the size; reads and pokes need no alignment, the others whole sectors.
  void read(uint64_t offset_bytes, uint8_t* target, uint64_t bytes) const;
  void write(uint64_t offset_bytes, const uint8_t* source, uint64_t bytes, bool durable);
  void poke(uint64_t offset_bytes, const uint8_t* source, uint64_t bytes);  // durable

  // A write that was cut off: nothing, all or some sectors land, as the seed decides; none is durable yet.
  void write_partly(uint64_t offset_bytes, const uint8_t* source, uint64_t bytes);

  // A flush makes durable what was written before its mark was taken.
  uint64_t mark() const { return write_count_; }
  void flush(uint64_t mark);

  // Every sector not durable is kept, dropped or torn in the middle, as the seed decides.
  void power_cut();
  void drop_unflushed();

 private:
  static constexpr uint64_t kChunkBytes = 65536;
  using Sector = std::array<uint8_t, kSimSectorBytes>;
  struct Undo {
    Sector durable;            // what the medium holds should the cache be lost
    uint64_t first_write = 0;  // number of the oldest write that is not durable
  };

  uint8_t* chunk_for_write(uint64_t offset_bytes);
  void write_sector(uint64_t offset_bytes, const uint8_t* source, bool durable);
  void copy_in(uint64_t offset_bytes, const uint8_t* source, uint64_t bytes);

  uint64_t size_bytes_;
  SeededRandom& random_;
  uint64_t write_count_ = 0;
  std::unordered_map<uint64_t, std::unique_ptr<uint8_t[]>> chunks_;  // absent = zeros
  std::map<uint64_t, Undo> undo_;  // by sector offset; ordered, so that equal seeds take equal decisions everywhere
};

}  // namespace kvstore::device
