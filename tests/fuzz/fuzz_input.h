// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What the fuzz targets share. Each is one decoder: any bytes in, an error or a value out, never undefined behaviour
// (sanitizers watch), and a value that comes out is one that the store can use: encoded again it decodes to itself,
// and nothing it says leads outside the device, the region or the block.
//
// Bit 0 of an input's first byte says whether magic and checksum are put right first. Without that a fuzzer would stay
// in front of the checksum for ever; with it, it plays somebody who writes to the device on purpose.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

#include "base/aligned.h"
#include "format/block_header.h"
#include "format/geometry.h"

namespace kvstore::fuzz {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz target: not so: %s\n", what);
  std::abort();
}

class Input {
 public:
  Input(const uint8_t* data, size_t bytes) : rest_(data, bytes) {}

  uint8_t take_byte() {
    if (rest_.empty()) return 0;
    const uint8_t byte = rest_.front();
    rest_ = rest_.subspan(1);
    return byte;
  }

  // The next `bytes`, zero padded, page-aligned as direct I/O buffers are.
  AlignedBuffer take_block(size_t bytes) {
    AlignedBuffer block(bytes);
    const size_t used = std::min(bytes, rest_.size());
    if (used != 0) std::memcpy(block.data(), rest_.data(), used);
    rest_ = rest_.subspan(used);
    return block;
  }

 private:
  std::span<const uint8_t> rest_;
};

inline std::span<uint8_t> span_of(AlignedBuffer& block) { return {block.data(), block.size()}; }

// Whose blocks the targets expect: those of the seeds in corpus/.
inline const format::Uuid kStore = [] {
  format::Uuid uuid;
  for (size_t i = 0; i < uuid.size(); ++i) uuid[i] = static_cast<uint8_t>(0x20 + i);
  return uuid;
}();
inline constexpr RegionId kRegion{7};

inline format::Geometry small_geometry() {
  format::GeometryOptions options;
  options.device_bytes = 64 * kMiB;
  options.region_bytes = kMiB;
  options.min_block_bytes = 4 * kKiB;
  return format::choose_geometry(options).value();
}

// Everything that read_block_header compares, put right; the rest of the block stays as it is.
inline void seal_block(std::span<uint8_t> block, format::BlockKind kind, uint32_t number) {
  format::BlockHeader header;
  std::memcpy(&header, block.data(), sizeof(header));
  header.store_uuid = kStore;
  header.region = kRegion.value;
  header.kind = kind;
  header.number = number;
  format::write_block_header(header, block);
}

}  // namespace kvstore::fuzz
