// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/region_reader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/mutation.h"

namespace kvstore::store {

namespace {

constexpr uint32_t kPartsOfRegion = 4;  // dictionary, bitmaps, tails, descriptor blocks
constexpr uint32_t kBlocksAhead = 2;    // descriptor blocks looked at behind those known

}  // namespace

uint32_t RegionReader::dictionary_blocks(const RegionRequest& request) const {
  const uint32_t room = superblock_.geometry.dictionary_blocks;
  return request.is_open ? room : std::min(room, request.dictionary_count);
}

uint32_t RegionReader::descriptor_blocks(const RegionRequest& request) const {
  const uint32_t room = superblock_.geometry.descriptor_blocks();
  if (request.is_open) return room;
  return std::min<uint32_t>(room,
                            static_cast<uint32_t>(ceil_div(request.descriptor_count, format::kDescriptorsPerBlock)));
}

uint64_t RegionReader::bytes_of(const RegionRequest& request) const {
  return (dictionary_blocks(request) + descriptor_blocks(request) + (request.is_open ? 2 : 0)) * kPageBytes +
         2 * superblock_.geometry.bitmap_bytes();
}

Result<RegionContents> RegionReader::read(const RegionRequest& request) {
  KVS_ASSIGN(auto contents, read_many({&request, 1}));
  if (!contents[0].status.ok()) return contents[0].status;
  return std::move(contents[0]);
}

Result<std::vector<RegionContents>> RegionReader::read_many(std::span<const RegionRequest> requests) {
  const format::Geometry& geometry = superblock_.geometry;
  uint64_t total_bytes = 0;
  for (const RegionRequest& request : requests) total_bytes += bytes_of(request);
  AlignedBuffer buffer(total_bytes);
  std::vector<device::ReadExtent> extents;
  extents.reserve(requests.size() * kPartsOfRegion);
  uint8_t* target = buffer.data();
  const auto plan = [&](uint64_t offset_bytes, uint64_t length_bytes) {
    extents.push_back({device_index_, offset_bytes, length_bytes, target, {}});
    target += length_bytes;
  };
  for (const RegionRequest& request : requests) {
    plan(geometry.dictionary_offset(request.region, 0), dictionary_blocks(request) * kPageBytes);
    plan(geometry.bitmap_offset(request.region, 0), 2 * geometry.bitmap_bytes());
    plan(geometry.tail_offset(request.region, 0), request.is_open ? 2 * kPageBytes : 0);
    plan(geometry.descriptor_block_offset(request.region, 0), descriptor_blocks(request) * kPageBytes);
  }
  std::vector<device::ReadExtent> wanted;
  std::vector<size_t> origin;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (extents[i].length_bytes == 0) continue;
    wanted.push_back(extents[i]);
    origin.push_back(i);
  }
  KVS_TRY(io_.read_many(wanted, buffer));
  for (size_t i = 0; i < wanted.size(); ++i) extents[origin[i]].status = wanted[i].status;

  std::vector<RegionContents> all(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    RegionContents& contents = all[i];
    const device::ReadExtent* parts = &extents[i * kPartsOfRegion];
    for (uint32_t part = 0; part < kPartsOfRegion; ++part) {
      contents.bytes_read += parts[part].length_bytes;
      if (!parts[part].status.ok()) contents.status = parts[part].status;
    }
    if (!contents.status.ok()) continue;
    parse_dictionary(requests[i], parts[0].target, contents);
    parse_bitmaps(requests[i], parts[1].target, contents);
    parse_descriptors(requests[i], parts[3].target, contents);
    if (requests[i].is_open) parse_tails(requests[i], parts[2].target, contents);
    const bool is_counted = !requests[i].is_open && contents.dictionary_blocks < dictionary_blocks(requests[i]);
    contents.blocks_skipped += contents.dictionary_is_short && !is_counted ? 1 : 0;
  }
  return all;
}

void RegionReader::parse_dictionary(const RegionRequest& request, const uint8_t* pages, RegionContents& contents) {
  bool is_whole = true;
  std::vector<format::DictionaryEntry> beyond;
  for (uint32_t block = 0; block < dictionary_blocks(request); ++block) {
    const format::ExpectedBlock expected{superblock_.store_uuid, request.region, format::BlockKind::kDictionary, block};
    const std::span<const uint8_t> page(pages + block * kPageBytes, kPageBytes);
    if (request.generation.value == 0) {
      // Both headers are lost: all that is asked is which lives there were (I12).
      const auto header = format::read_block_header(page, expected);
      if (header.ok() && KVS_RULE(I12_the_dictionary_tells_generations))
        contents.highest_generation = std::max(contents.highest_generation, header.value().generation);
      continue;
    }
    // Indexes count across blocks: after one that is missing no later string can be trusted to be the right one.
    auto& entries = is_whole ? contents.dictionary : beyond;
    if (!format::decode_dictionary_block(page, expected, request.generation.value, entries).ok()) {
      is_whole = false;
      // Of an open region most of the rest is not written yet; keep_plausible() tells what is missing.
      if (request.is_open) break;
      ++contents.blocks_skipped;
    }
    contents.dictionary_blocks += is_whole ? 1 : 0;
  }
  for (const format::DictionaryEntry& entry : contents.dictionary) {
    contents.space_records.push_back(nullptr);
    contents.space_ids.push_back({});
    if (entry.kind != format::DictionaryKind::kSpace) continue;
    const Result<SpaceId> id = spaces_.add(entry.text);
    if (!id.ok()) continue;
    contents.space_ids.back() = id.value();
    contents.space_records.back() = spaces_.find(id.value());
  }
}

void RegionReader::parse_bitmaps(const RegionRequest& request, const uint8_t* copies, RegionContents& contents) {
  const uint64_t copy_bytes = superblock_.geometry.bitmap_bytes();
  for (uint32_t copy = 0; copy < 2; ++copy) {
    const format::ExpectedBlock expected{superblock_.store_uuid, request.region, format::BlockKind::kBitmap, copy};
    const std::span<const uint8_t> block(copies + copy * copy_bytes, copy_bytes);
    // Before its bits are looked at: an earlier life may have had more slots than this one, and is not damage.
    const auto life = format::read_block_header(block, expected);
    if (life.ok() && KVS_RULE(I12_the_bitmap_tells_generations))
      contents.highest_generation = std::max(contents.highest_generation, life.value().generation);
    if (request.generation.value == 0) continue;
    const bool is_earlier = life.ok() && life.value().generation != request.generation.value;
    if (is_earlier && KVS_RULE(I2_bitmaps_of_earlier_lives_are_ignored)) continue;
    auto decoded = format::decode_bitmap(block, expected, request.slot_count);
    contents.copies_damaged += decoded.status().code() == Code::kCorrupt ? 1 : 0;
    if (!decoded.ok()) continue;
    const format::BlockHeader& header = decoded.value().header;
    if (header.sequence <= contents.bitmap_sequence && KVS_RULE(I4_the_newer_bitmap_counts)) continue;
    contents.dead = std::move(decoded.value().bitmap);
    contents.bitmap_sequence = header.sequence;
    contents.bitmap_copy = KVS_RULE(I4_the_older_bitmap_first) ? copy ^ 1 : copy;
  }
}

void RegionReader::keep_plausible(const RegionRequest& request, std::span<const format::Descriptor> descriptors,
                                  RegionContents& contents, std::vector<format::Descriptor>& kept) {
  const auto dictionary_size = static_cast<uint32_t>(contents.dictionary.size());
  for (const format::Descriptor& descriptor : descriptors) {
    const bool plausible =
        format::is_plausible(descriptor, request.extent_bytes, request.slot_count, dictionary_size) &&
        contents.space_records[descriptor.space_index] != nullptr &&
        (descriptor.salt_index == format::kNoSalt ||
         (contents.dictionary[descriptor.salt_index].kind == format::DictionaryKind::kSalt &&
          contents.dictionary[descriptor.salt_index].text.size() <= kSaltBytesMax));
    // I10: what it refers to was durable before it.
    contents.dictionary_is_short |= descriptor.space_index >= dictionary_size;
    if (!plausible) continue;
    contents.max_write_seq = std::max(contents.max_write_seq, descriptor.write_seq);
    kept.push_back(descriptor);
  }
}

void RegionReader::parse_descriptors(const RegionRequest& request, const uint8_t* pages, RegionContents& contents) {
  const uint32_t blocks = descriptor_blocks(request);
  if (!request.is_open) contents.descriptors.reserve(request.descriptor_count);
  for (uint32_t block = 0; block < blocks; ++block) {
    const format::ExpectedBlock expected{superblock_.store_uuid, request.region, format::BlockKind::kDescriptors,
                                         block};
    auto decoded = format::decode_descriptor_block({pages + block * kPageBytes, kPageBytes}, expected);
    if (decoded.ok() && KVS_RULE(I12_descriptors_tell_generations)) {
      contents.highest_generation = std::max(contents.highest_generation, decoded.value().header.generation);
    }
    // I2: blocks of a lower generation are of an earlier life.
    if (!decoded.ok() || (decoded.value().header.generation != request.generation.value &&
                          KVS_RULE(I2_descriptors_of_earlier_lives_are_ignored))) {
      if (!request.is_open) ++contents.blocks_skipped;
      continue;
    }
    // Of an open region most of the rest is not written yet; what lies before a good block is damaged.
    if (request.is_open) contents.blocks_skipped += block - contents.full_blocks;
    contents.full_blocks = block + 1;
    keep_plausible(request, decoded.value().descriptors, contents, contents.descriptors);
  }
}

void RegionReader::parse_tails(const RegionRequest& request, const uint8_t* pages, RegionContents& contents) {
  uint64_t newest = 0;
  uint32_t number = 0;
  for (uint32_t copy = 0; copy < 2; ++copy) {
    const format::ExpectedBlock expected{superblock_.store_uuid, request.region, format::BlockKind::kTail, 0, true};
    auto decoded = format::decode_descriptor_block({pages + copy * kPageBytes, kPageBytes}, expected);
    contents.copies_damaged += decoded.status().code() == Code::kCorrupt ? 1 : 0;
    if (!decoded.ok()) continue;
    const format::BlockHeader& header = decoded.value().header;
    if (KVS_RULE(I12_the_tail_tells_generations)) {
      contents.highest_generation = std::max(contents.highest_generation, header.generation);
    }
    // A tail whose number has become a D block is contained in that block. One that is further on is good whatever
    // became of the blocks before it.
    if (header.generation != request.generation.value && KVS_RULE(I2_tails_of_earlier_lives_are_ignored)) continue;
    if (header.number < contents.full_blocks) continue;
    if ((header.sequence <= newest && KVS_RULE(I4_the_newer_tail_counts)) ||
        header.number >= superblock_.geometry.descriptor_blocks())
      continue;
    newest = header.sequence;
    number = header.number;
    contents.tail.clear();
    keep_plausible(request, decoded.value().descriptors, contents, contents.tail);
  }
  if (newest != 0) {
    contents.blocks_skipped += number - contents.full_blocks;
    contents.full_blocks = number;
  }
  contents.descriptors.insert(contents.descriptors.end(), contents.tail.begin(), contents.tail.end());
}

// ---- following an open region ----------------------------------------------------------------------------------

Result<std::vector<RegionReader::Added>> RegionReader::read_added(std::span<RegionCursor* const> cursors) {
  constexpr uint64_t kTailBytes = 2 * kPageBytes;
  constexpr uint64_t kStride = kTailBytes + kBlocksAhead * kPageBytes;
  const format::Geometry& geometry = superblock_.geometry;
  AlignedBuffer buffer(std::max<size_t>(cursors.size(), 1) * kStride);
  std::vector<device::ReadExtent> extents;
  std::vector<uint32_t> block_counts;
  std::vector<size_t> first_extent;
  for (size_t i = 0; i < cursors.size(); ++i) {
    const RegionId region = cursors[i]->request.region;
    const uint32_t known = cursors[i]->contents.full_blocks;
    const uint32_t blocks = std::min(kBlocksAhead, geometry.descriptor_blocks() - known);
    uint8_t* const target = buffer.data() + i * kStride;
    first_extent.push_back(extents.size());
    block_counts.push_back(blocks);
    // The tail first: a block that fills up between the two reads is then found as a block.
    extents.push_back({device_index_, geometry.tail_offset(region, 0), kTailBytes, target, {}});
    if (blocks == 0) continue;
    extents.push_back(
        {device_index_, geometry.descriptor_block_offset(region, known), blocks * kPageBytes, target + kTailBytes, {}});
  }
  KVS_TRY(io_.read_many(extents, buffer));
  std::vector<Added> all(cursors.size());
  for (size_t i = 0; i < cursors.size(); ++i) {
    const device::ReadExtent& tails = extents[first_extent[i]];
    all[i].reads = block_counts[i] == 0 ? 1 : 2;
    all[i].status = tails.status;
    if (all[i].status.ok() && block_counts[i] != 0) all[i].status = extents[first_extent[i] + 1].status;
    if (!all[i].status.ok()) continue;
    take_added(*cursors[i], tails.target, tails.target + kTailBytes, block_counts[i], all[i]);
  }
  return all;
}

void RegionReader::take_added(RegionCursor& cursor, const uint8_t* tails, const uint8_t* blocks, uint32_t block_count,
                              Added& added) {
  const RegionRequest& request = cursor.request;
  const auto decode = [&](const uint8_t* page, format::BlockKind kind, uint32_t number) {
    const format::ExpectedBlock expected{superblock_.store_uuid, request.region, kind, number,
                                         kind == format::BlockKind::kTail};
    auto decoded = format::decode_descriptor_block({page, kPageBytes}, expected);
    const bool of_this_life = decoded.ok() && decoded.value().header.generation == request.generation.value;
    return of_this_life ? std::optional(std::move(decoded).value()) : std::nullopt;
  };
  std::vector<format::Descriptor> found;
  uint32_t end = cursor.contents.full_blocks;
  for (uint32_t i = 0; i < block_count; ++i) {
    auto block = decode(blocks + i * kPageBytes, format::BlockKind::kDescriptors, cursor.contents.full_blocks + i);
    if (!block) break;
    found.insert(found.end(), block->descriptors.begin(), block->descriptors.end());
    ++end;
  }
  uint64_t tail_sequence = cursor.tail_sequence;
  for (uint32_t copy = 0; copy < 2; ++copy) {
    auto tail = decode(tails + copy * kPageBytes, format::BlockKind::kTail, 0);
    if (!tail || tail->header.sequence <= tail_sequence) continue;
    if (tail->header.number >= superblock_.geometry.descriptor_blocks()) continue;
    // Blocks were filled faster than they were looked at.
    if (tail->header.number > end) {
      added.status = read_behind(cursor, tail->header.number, found, added);
      if (!added.status.ok()) return;
      end = tail->header.number;
    }
    tail_sequence = tail->header.sequence;
    found.insert(found.end(), tail->descriptors.begin(), tail->descriptors.end());
  }
  const auto has_strings = [&](const format::Descriptor& descriptor) {
    const size_t known = cursor.contents.dictionary.size();
    return descriptor.space_index < known &&
           (descriptor.salt_index == format::kNoSalt || descriptor.salt_index < known);
  };
  // I10: the strings are on the device before the first descriptor that uses them.
  if (!std::all_of(found.begin(), found.end(), has_strings)) {
    added.status = read_dictionary(cursor, added);
    if (!added.status.ok()) return;
  }
  keep_plausible(request, found, cursor.contents, added.descriptors);
  cursor.contents.full_blocks = end;
  cursor.tail_sequence = tail_sequence;
}

// The blocks from where the cursor stands up to `end`.
Status RegionReader::read_behind(RegionCursor& cursor, uint32_t end, std::vector<format::Descriptor>& descriptors,
                                 Added& added) {
  const uint32_t first = cursor.contents.full_blocks;
  AlignedBuffer buffer((end - first) * kPageBytes);
  ++added.reads;
  KVS_TRY(io_.read(device_index_, superblock_.geometry.descriptor_block_offset(cursor.request.region, first), buffer,
                   buffer.size()));
  descriptors.clear();
  for (uint32_t block = first; block < end; ++block) {
    const format::ExpectedBlock expected{superblock_.store_uuid, cursor.request.region, format::BlockKind::kDescriptors,
                                         block};
    auto decoded =
        format::decode_descriptor_block({buffer.data() + (block - first) * kPageBytes, kPageBytes}, expected);
    if (!decoded.ok() || decoded.value().header.generation != cursor.request.generation.value) continue;
    descriptors.insert(descriptors.end(), decoded.value().descriptors.begin(), decoded.value().descriptors.end());
  }
  return {};
}

Status RegionReader::read_dictionary(RegionCursor& cursor, Added& added) {
  const uint32_t blocks = dictionary_blocks(cursor.request);
  AlignedBuffer buffer(blocks * kPageBytes);
  ++added.reads;
  KVS_TRY(
      io_.read(device_index_, superblock_.geometry.dictionary_offset(cursor.request.region, 0), buffer, buffer.size()));
  RegionContents fresh;
  parse_dictionary(cursor.request, buffer.data(), fresh);
  fresh.full_blocks = cursor.contents.full_blocks;
  cursor.contents = std::move(fresh);
  return {};
}

Fingerprint RegionReader::fingerprint(const RegionContents& contents, const format::Descriptor& descriptor) const {
  const std::string_view salt = descriptor.salt_index == format::kNoSalt
                                    ? std::string_view()
                                    : std::string_view(contents.dictionary[descriptor.salt_index].text);
  return fingerprint_of(superblock_.fingerprint_secret, contents.space_records[descriptor.space_index]->digest, salt,
                        stored_key_of(descriptor));
}

IndexBuilder::Candidate RegionReader::candidate(const RegionContents& contents, const format::Descriptor& descriptor,
                                                uint32_t number, Generation generation) const {
  IndexEntry entry{.fingerprint = fingerprint(contents, descriptor),
                   .checksum = descriptor.checksum,
                   .payload_bytes = descriptor.payload_bytes,
                   .region = number,
                   .slot = descriptor.slot & (kSlotsMax - 1),
                   .flags = 0,
                   .generation_low = static_cast<uint32_t>(generation.value)};
  if ((descriptor.flags & format::kDescriptorPageHashes) != 0) entry.flags |= kEntryPageHashes;
  return {entry, descriptor.write_seq};
}

}  // namespace kvstore::store
