// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// RegionReader: reads back what a region says of itself: descriptors, dictionary, dead bits. Used by recovery,
// reclaim, listings and check. Several regions at a time, so that the device's queue is full.
//
// Guarantees: returns only descriptors of the asked generation that are plausible in a region of this shape; a block
// that is damaged, misplaced or of another life is skipped and counted, never interpreted.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/blocking_io.h"
#include "format/bitmap.h"
#include "format/descriptor.h"
#include "format/dictionary.h"
#include "format/superblock.h"
#include "store/index.h"
#include "store/spaces.h"

namespace kvstore::store {

struct RegionRequest {
  RegionId region;
  Generation generation;
  uint64_t extent_bytes = 0;
  uint32_t slot_count = 0;
  uint32_t descriptor_count = 0;  // from a sealed header
  uint32_t dictionary_count = 0;
  bool is_open = false;  // counts are not known: read all places, and the tail pair
};

struct RegionContents {
  std::vector<format::Descriptor> descriptors;
  std::vector<format::DictionaryEntry> dictionary;
  std::vector<const SpaceRecord*> space_records;  // by dictionary index; null where it is a salt
  std::vector<SpaceId> space_ids;
  format::DeadBitmap dead;
  uint64_t bitmap_sequence = 0;
  uint32_t bitmap_copy = 0;              // the copy to write next
  uint32_t full_blocks = 0;              // D blocks in place
  std::vector<format::Descriptor> tail;  // of an open region: what is in the tail pair only
  uint32_t dictionary_blocks = 0;
  bool dictionary_is_short = false;  // a descriptor refers to what was not read
  uint64_t highest_generation = 0;   // seen in any intact block of the region, of any life
  uint64_t max_write_seq = 0;
  uint32_t blocks_skipped = 0;  // damaged: what they held is lost
  uint32_t copies_damaged = 0;  // of a pair: the other serves, which is older if the damaged one was the last written
  uint64_t bytes_read = 0;
  Status status;  // of the reads

  const std::string& space_json(const format::Descriptor& descriptor) const {
    return space_records[descriptor.space_index]->json;
  }
  std::string salt(const format::Descriptor& descriptor) const {
    return descriptor.salt_index == format::kNoSalt ? std::string() : dictionary[descriptor.salt_index].text;
  }
};

// How far an open region of another opener was read.
struct RegionCursor {
  RegionRequest request;    // is_open
  RegionContents contents;  // dictionary and full_blocks as of the last read; no descriptors
  uint64_t tail_sequence = 0;
};

class RegionReader {
 public:
  RegionReader(device::BlockingIo& io, uint16_t device_index, const format::Superblock& superblock,
               SpaceRegistry& spaces)
      : io_(io), device_index_(device_index), superblock_(superblock), spaces_(spaces) {}

  // One result per request, in order; the returned status is not ok only when the queue itself failed.
  Result<std::vector<RegionContents>> read_many(std::span<const RegionRequest> requests);
  Result<RegionContents> read(const RegionRequest& request);

  // What was added to open regions since they were read: their new descriptors, and the cursors moved on. Two reads
  // each, or four where more than two blocks of descriptors came together or a new space or salt. Those of a tail come
  // again when it grows.
  struct Added {
    std::vector<format::Descriptor> descriptors;
    Status status;
    uint32_t reads = 0;
  };
  Result<std::vector<Added>> read_added(std::span<RegionCursor* const> cursors);

  Fingerprint fingerprint(const RegionContents& contents, const format::Descriptor& descriptor) const;
  // As the index knows it; `number` is the region's in the pool.
  IndexBuilder::Candidate candidate(const RegionContents& contents, const format::Descriptor& descriptor,
                                    uint32_t number, Generation generation) const;

  // Bytes of one request's metadata: what a batch is sized by.
  uint64_t bytes_of(const RegionRequest& request) const;

 private:
  void parse_dictionary(const RegionRequest& request, const uint8_t* pages, RegionContents& contents);
  void parse_bitmaps(const RegionRequest& request, const uint8_t* copies, RegionContents& contents);
  void parse_descriptors(const RegionRequest& request, const uint8_t* pages, RegionContents& contents);
  void parse_tails(const RegionRequest& request, const uint8_t* pages, RegionContents& contents);
  void keep_plausible(const RegionRequest& request, std::span<const format::Descriptor> descriptors,
                      RegionContents& contents, std::vector<format::Descriptor>& kept);
  void take_added(RegionCursor& cursor, const uint8_t* tails, const uint8_t* blocks, uint32_t block_count,
                  Added& added);
  Status read_behind(RegionCursor& cursor, uint32_t end, std::vector<format::Descriptor>& descriptors, Added& added);
  Status read_dictionary(RegionCursor& cursor, Added& added);
  uint32_t dictionary_blocks(const RegionRequest& request) const;
  uint32_t descriptor_blocks(const RegionRequest& request) const;

  device::BlockingIo& io_;
  uint16_t device_index_;
  const format::Superblock& superblock_;
  SpaceRegistry& spaces_;
};

}  // namespace kvstore::store
