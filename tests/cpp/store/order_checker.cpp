// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/order_checker.h"

#include <gtest/gtest.h>

#include <cstring>

#include "format/dictionary.h"
#include "format/region_header.h"

namespace kvstore::store {

namespace {

using format::BlockKind;

std::vector<uint8_t> bytes_of(const device::IoRequest& request) {
  std::vector<uint8_t> data;
  for (uint32_t i = 0; i < request.segment_count; ++i) {
    const auto* const base = static_cast<const uint8_t*>(request.segments[i].iov_base);
    data.insert(data.end(), base, base + request.segments[i].iov_len);
  }
  return data;
}

std::string at(RegionId region) { return "region " + std::to_string(region.value); }

}  // namespace

OrderChecker::OrderChecker(device::SimDisk& disk, const format::Superblock& superblock, bool volatile_cache)
    : disk_(disk), superblock_(superblock), geometry_(superblock_.geometry), volatile_cache_(volatile_cache) {
  for (uint64_t offset = format::kMetadataOffset;
       offset < format::kMetadataOffset + geometry_.region_count * geometry_.entry_bytes; offset += kPageBytes) {
    if (const Copy copy = copy_at(offset); copy.valid) copies_[offset] = copy;
  }
  disk_.set_observer([this](const device::IoRequest& request) { observe(request); });
}

OrderChecker::~OrderChecker() { disk_.set_observer(nullptr); }

void OrderChecker::violation(const std::string& text) {
  violations_.push_back(text);
  if (fails) ADD_FAILURE() << text;
}

OrderChecker::Copy OrderChecker::parse(const uint8_t* page) const {
  Copy copy;
  std::memcpy(&copy.header, page, sizeof copy.header);
  // Bitmaps may be longer than a page: their header is believed, their body is not needed here.
  copy.valid = copy.header.magic == format::kBlockMagic && copy.header.store_uuid == superblock_.store_uuid;
  return copy;
}

OrderChecker::Copy OrderChecker::copy_at(uint64_t offset_bytes) const {
  std::vector<uint8_t> page(kPageBytes);
  disk_.peek(offset_bytes, page.data(), page.size());
  return parse(page.data());
}

void OrderChecker::observe(const device::IoRequest& request) {
  ++now_;
  if (request.result < 0 || request.op == device::IoOp::kRead) return;
  if (request.op == device::IoOp::kFlush) {
    flushed_at_ = now_;
    return;
  }
  const std::vector<uint8_t> data = bytes_of(request);
  if (request.offset_bytes >= geometry_.data_offset) {
    for (const uint64_t copy : geometry_.superblock_offsets()) {
      if (copy == request.offset_bytes && data.size() == kPageBytes) return;
      if (copy < request.offset_bytes + data.size() && copy + kPageBytes > request.offset_bytes) {
        violation("payload over a superblock copy");
      }
    }
    payload_written(request.offset_bytes, static_cast<uint64_t>(request.result));
  } else if (request.offset_bytes >= format::kMetadataOffset) {
    metadata_written(request.offset_bytes, data, request.durable);
  }
}

void OrderChecker::payload_written(uint64_t offset_bytes, uint64_t bytes) {
  ++payload_writes_seen_;
  for (uint64_t page = offset_bytes; page < offset_bytes + bytes; page += kPageBytes) page_written_at_[page] = now_;
  const RegionId region{static_cast<uint32_t>((offset_bytes - geometry_.data_offset) / geometry_.region_bytes)};
  format::RegionHeader headers[2];
  for (uint32_t copy = 0; copy < 2; ++copy) {
    std::vector<uint8_t> page(kPageBytes);
    disk_.peek(geometry_.header_offset(region, copy), page.data(), page.size());
    auto decoded = format::decode_region_header(page, superblock_.store_uuid, geometry_, region, copy);
    if (!decoded.ok()) return violation("I2: payload in " + at(region) + " with an invalid header copy");
    headers[copy] = decoded.value();
  }
  if (headers[0].generation != headers[1].generation) {
    violation("I2: payload in " + at(region) + " whose header copies are of generations " +
              std::to_string(headers[0].generation.value) + " and " + std::to_string(headers[1].generation.value));
  }
  const format::RegionHeader& newest = headers[0].sequence > headers[1].sequence ? headers[0] : headers[1];
  if (newest.state != format::RegionState::kOpen) {
    violation("payload in " + at(region) + ", which is " + format::region_state_name(newest.state));
  }
}

void OrderChecker::check_pair(const char* what, uint64_t offset_bytes, uint64_t other_offset_bytes,
                              const Copy& written) {
  ++pair_writes_seen_;
  const Copy target = copies_[offset_bytes];
  const Copy other = copies_[other_offset_bytes];
  const auto is_current = [&](const Copy& copy) {
    return copy.valid && copy.header.generation == written.header.generation;
  };
  // Headers are one pair for all lives; tails and bitmaps of an earlier life are invalid in this one.
  const bool whole_life = written.header.kind == BlockKind::kHeader;
  const bool target_valid = whole_life ? target.valid : is_current(target);
  const bool other_valid = whole_life ? other.valid : is_current(other);
  if (other_valid && written.header.sequence <= other.header.sequence) {
    violation(std::string("I4: a ") + what + " copy that is not newer than the other");
  }
  if (!target_valid) return;
  if (!other_valid) return violation(std::string("I4: the only valid ") + what + " copy is overwritten");
  if (target.header.sequence > other.header.sequence) {
    violation(std::string("I4: the newer ") + what + " copy is overwritten");
  }
}

void OrderChecker::metadata_written(uint64_t offset_bytes, const std::vector<uint8_t>& data, bool durable) {
  const RegionId region{static_cast<uint32_t>((offset_bytes - format::kMetadataOffset) / geometry_.entry_bytes)};
  const Copy written = parse(data.data());
  if (!written.valid) return violation("a metadata write that is no block, in " + at(region));
  if (!durable) violation("I1: a metadata write that is not durable, in " + at(region));
  if (written.header.region != region.value) violation("a block of another region, in " + at(region));
  switch (written.header.kind) {
    case BlockKind::kHeader: {
      const uint32_t copy = written.header.number;
      check_pair("header", geometry_.header_offset(region, copy), geometry_.header_offset(region, copy ^ 1), written);
      if (offset_bytes != geometry_.header_offset(region, copy)) violation("a header out of place");
      uint64_t& life = lives_seen_[region.value];
      if (written.header.generation > life) {
        const uint64_t first = geometry_.region_offset(region);
        page_written_at_.erase(page_written_at_.lower_bound(first),
                               page_written_at_.lower_bound(first + geometry_.region_bytes));
        const Copy other = copies_[geometry_.header_offset(region, copy ^ 1)];
        // Only what begins now has all its payload under our eyes.
        if (!other.valid || other.header.generation < written.header.generation) life = written.header.generation;
      }
      break;
    }
    case BlockKind::kTail: {
      const uint32_t copy = offset_bytes == geometry_.tail_offset(region, 0) ? 0 : 1;
      check_pair("tail", geometry_.tail_offset(region, copy), geometry_.tail_offset(region, copy ^ 1), written);
      descriptors_written(region, data, written);
      break;
    }
    case BlockKind::kBitmap: {
      const uint32_t copy = written.header.number;
      check_pair("bitmap", geometry_.bitmap_offset(region, copy), geometry_.bitmap_offset(region, copy ^ 1), written);
      break;
    }
    case BlockKind::kDescriptors: {
      const Copy before = copies_[offset_bytes];
      if (before.valid && before.header.generation == written.header.generation) {
        violation("a D block of " + at(region) + " is written twice in one life");
      }
      if (offset_bytes != geometry_.descriptor_block_offset(region, written.header.number))
        violation("a D block out of place");
      descriptors_written(region, data, written);
      break;
    }
    case BlockKind::kDictionary: {
      const Copy before = copies_[offset_bytes];
      if (before.valid && before.header.generation == written.header.generation) {
        violation("a dictionary block of " + at(region) + " is written twice in one life");
      }
      break;
    }
  }
  copies_[offset_bytes] = written;
}

void OrderChecker::descriptors_written(RegionId region, const std::vector<uint8_t>& page, const Copy& written) {
  // What recovery would know of the region at this moment.
  std::vector<format::DictionaryEntry> dictionary;
  for (uint32_t block = 0; block < geometry_.dictionary_blocks; ++block) {
    std::vector<uint8_t> bytes(kPageBytes);
    disk_.peek(geometry_.dictionary_offset(region, block), bytes.data(), bytes.size());
    const format::ExpectedBlock expected{superblock_.store_uuid, region, BlockKind::kDictionary, block};
    if (!format::decode_dictionary_block(bytes, expected, written.header.generation, dictionary).ok()) break;
  }
  uint64_t extent_bytes = 0;
  for (uint32_t copy = 0; copy < 2; ++copy) {
    std::vector<uint8_t> bytes(kPageBytes);
    disk_.peek(geometry_.header_offset(region, copy), bytes.data(), bytes.size());
    auto header = format::decode_region_header(bytes, superblock_.store_uuid, geometry_, region, copy);
    if (header.ok() && header.value().generation.value == written.header.generation)
      extent_bytes = header.value().extent_bytes;
  }
  if (extent_bytes == 0) return violation("I2: a descriptor of a generation that no header of " + at(region) + " has");
  const auto* const descriptors =
      reinterpret_cast<const format::Descriptor*>(page.data() + sizeof(format::BlockHeader));
  for (uint32_t i = 0; i < written.header.count; ++i) {
    format::Descriptor descriptor;
    std::memcpy(&descriptor, descriptors + i, sizeof descriptor);
    ++descriptors_seen_;
    const bool space_known = descriptor.space_index < dictionary.size();
    const bool salt_known = descriptor.salt_index == format::kNoSalt || descriptor.salt_index < dictionary.size();
    if (!space_known || !salt_known)
      violation("I10: a descriptor whose strings are not on the device, in " + at(region));
    const uint64_t first = geometry_.extent_offset(region, extent_bytes, SlotIndex{descriptor.slot});
    const uint64_t bytes =
        format::extent_bytes_needed(descriptor.payload_bytes, (descriptor.flags & format::kDescriptorPageHashes) != 0);
    for (uint64_t offset = first; offset < first + bytes; offset += kPageBytes) {
      const auto page_at = page_written_at_.find(offset);
      if (page_at == page_written_at_.end()) {
        const auto life = lives_seen_.find(region.value);
        // Else written before this checker looked: recovery seals what an earlier opening committed.
        if (life != lives_seen_.end() && life->second == written.header.generation) {
          violation("I1: a descriptor before its payload, in " + at(region));
        }
        break;
      }
      if (volatile_cache_ && page_at->second > flushed_at_) {
        violation("I1: a descriptor before the flush of its payload, in " + at(region) + " slot " +
                  std::to_string(descriptor.slot));
        break;
      }
    }
  }
}

}  // namespace kvstore::store
