// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "format/region_header.h"

#include "fuzz_input.h"

namespace kvstore::fuzz {

void fuzz_region_header(const uint8_t* data, size_t bytes) {
  static const format::Geometry geometry = small_geometry();
  Input input(data, bytes);
  const uint8_t choices = input.take_byte();
  AlignedBuffer page = input.take_block(kPageBytes);
  if ((choices & 1) != 0) seal_block(span_of(page), format::BlockKind::kHeader, 1);
  const auto decoded = format::decode_region_header(span_of(page), kStore, geometry, kRegion, 1);
  if (!decoded.ok()) return;
  const format::RegionHeader& header = decoded.value();
  require(header.slot_count <= geometry.slots_max(), "slots are bounded");
  require(uint64_t{header.slot_count} * header.extent_bytes <= geometry.region_bytes, "extents are in the region");
  require(header.descriptor_count <= header.slot_count, "descriptors are bounded");
  require(header.dictionary_count <= geometry.dictionary_blocks, "dictionary blocks are bounded");
  AlignedBuffer again(kPageBytes);
  format::encode_region_header(header, kStore, 1, span_of(again));
  require(format::decode_region_header(span_of(again), kStore, geometry, kRegion, 1).value() == header,
          "it decodes to itself");
}

}  // namespace kvstore::fuzz

#ifndef KVSTORE_FUZZ_REPLAY
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  kvstore::fuzz::fuzz_region_header(data, bytes);
  return 0;
}
#endif
