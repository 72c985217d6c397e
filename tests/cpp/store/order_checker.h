// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Watches every operation of a simulated disk and checks the order that crash safety rests on:
//   I1   a descriptor is written only when its payload was written and a flush came after it; durably
//   I2   payload is written only into a region whose two header copies both hold the generation of that life, open
//   I4   of a pair (headers, tails, bitmaps) the copy overwritten is the older or an invalid one
//   I10  a descriptor is written only when the dictionary on the device holds the strings it refers to
//        D blocks are written once in a life; superblocks are touched by whole superblock writes only
// For runs without faults that lose or corrupt. Each violation is a test failure, and listed.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "device/sim.h"
#include "format/block_header.h"
#include "format/descriptor.h"
#include "format/superblock.h"

namespace kvstore::store {

class OrderChecker {
 public:
  // One region header, dictionary ... of the medium as it is now is the starting point.
  OrderChecker(device::SimDisk& disk, const format::Superblock& superblock, bool volatile_cache);
  ~OrderChecker();
  OrderChecker(const OrderChecker&) = delete;

  uint64_t descriptors_seen() const { return descriptors_seen_; }
  uint64_t payload_writes_seen() const { return payload_writes_seen_; }
  uint64_t pair_writes_seen() const { return pair_writes_seen_; }
  const std::vector<std::string>& violations() const { return violations_; }
  // Off: violations are listed, not failed; for the test of the checker itself.
  bool fails = true;

 private:
  struct Copy {
    bool valid = false;
    format::BlockHeader header;
  };
  void observe(const device::IoRequest& request);
  void payload_written(uint64_t offset_bytes, uint64_t bytes);
  void metadata_written(uint64_t offset_bytes, const std::vector<uint8_t>& data, bool durable);
  void descriptors_written(RegionId region, const std::vector<uint8_t>& page, const Copy& written);
  void check_pair(const char* what, uint64_t offset_bytes, uint64_t other_offset_bytes, const Copy& written);
  Copy copy_at(uint64_t offset_bytes) const;
  Copy parse(const uint8_t* page) const;
  void violation(const std::string& text);

  device::SimDisk& disk_;
  const format::Superblock superblock_;
  const format::Geometry& geometry_;
  const bool volatile_cache_;
  uint64_t now_ = 1;  // counts operations
  uint64_t flushed_at_ = 0;
  std::map<uint64_t, uint64_t> page_written_at_;  // payload pages, by offset
  std::map<uint32_t, uint64_t> lives_seen_;       // region -> generation whose beginning was seen
  std::map<uint64_t, Copy> copies_;               // metadata blocks as last seen, by offset
  uint64_t descriptors_seen_ = 0;
  uint64_t payload_writes_seen_ = 0;
  uint64_t pair_writes_seen_ = 0;
  std::vector<std::string> violations_;
};

}  // namespace kvstore::store
