// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// SimMedium: the bytes of a simulated disk and its volatile cache, with no notion of requests or time.
//
// Reads see every write at once. For each 512-byte sector whose last write is not durable the content that a
// power cut may bring back is kept beside it. A rewrite of such a sector may make the content in between the
// durable one, as a drive that destages when it likes may. Memory is taken only for what was written.
// What a sector held before its last write is kept on request, for stale reads; so are sectors that cannot be read.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

#include "base/clock.h"
#include "base/units.h"

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

  // From now on what each sector held before its last write is kept; sectors not written since read as they are.
  void keep_previous() { keeps_previous_ = true; }
  void read_previous(uint64_t offset_bytes, uint8_t* target, uint64_t bytes) const;

  // One bit of the medium turns over, in the cache and for good.
  void flip(uint64_t offset_bytes, uint32_t bit);

  // A latent error: the sector cannot be read until it is written again.
  void spoil(uint64_t offset_bytes) { spoiled_.insert(align_down(offset_bytes, kSimSectorBytes)); }
  bool is_readable(uint64_t offset_bytes, uint64_t bytes) const;

  // A write that was cut off: nothing, all or some sectors land, as the seed decides; none is durable yet.
  void write_partly(uint64_t offset_bytes, const uint8_t* source, uint64_t bytes);

  // A flush makes durable what was written before its mark was taken.
  uint64_t mark() const { return write_count_; }
  void flush(uint64_t mark);

  // Of a device without a volatile cache: whatever lands is durable, also what lands late or in part.
  void set_write_through(bool write_through) { write_through_ = write_through; }
  // Every sector not durable is kept, dropped or torn in the middle, as the seed decides.
  void power_cut();
  void drop_unflushed();

 private:
  static constexpr uint64_t kChunkBytes = 65536;
  using Sector = std::array<uint8_t, kSimSectorBytes>;
  using Chunks = std::unordered_map<uint64_t, std::unique_ptr<uint8_t[]>>;  // absent = zeros
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
  Chunks chunks_;
  std::map<uint64_t, Undo> undo_;  // by sector offset; ordered, so that equal seeds take equal decisions everywhere
  bool keeps_previous_ = false;
  Chunks previous_;  // of chunks written since; a sector not written since is as it is in chunks_
  bool write_through_ = false;
  std::set<uint64_t> spoiled_;
};

}  // namespace kvstore::device
