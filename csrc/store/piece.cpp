// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/piece.h"

#include <algorithm>
#include <cstring>

namespace kvstore::store {

namespace {

// Calls visit(pointer, bytes) for each run of the caller's segments that holds bytes [first, first + count).
template <typename Visit>
void for_each_run(const Item& item, uint64_t first, uint64_t count, Visit visit) {
  uint64_t segment_first = 0;
  for (uint32_t i = 0; i < item.segment_count && count != 0; ++i) {
    const iovec& segment = item.segments[i];
    const uint64_t segment_end = segment_first + segment.iov_len;
    if (first < segment_end) {
      const uint64_t offset = first - segment_first;
      const uint64_t bytes = std::min<uint64_t>(count, segment.iov_len - offset);
      visit(static_cast<uint8_t*>(segment.iov_base) + offset, bytes);
      first += bytes;
      count -= bytes;
    }
    segment_first = segment_end;
  }
}

// The first byte of the payload that the caller wants of a piece.
uint64_t wanted_first(const Piece& piece) { return std::max(piece.first_byte, piece.item->wanted_offset); }

template <typename Visit>
void for_each_wanted_run(const Piece& piece, Visit visit) {
  const Item& item = *piece.item;
  const uint64_t first = wanted_first(piece);
  const uint64_t end = std::min(piece.first_byte + piece.byte_count, item.wanted_offset + item.wanted_bytes);
  if (first < end) for_each_run(item, first - item.wanted_offset, end - first, visit);
}

}  // namespace

bool segments_in_place(const iovec* segments, uint32_t count, uint32_t dma_alignment_bytes) {
  for (uint32_t i = 0; i < count; ++i) {
    if (!is_aligned(segments[i].iov_base, dma_alignment_bytes)) return false;
    if (i + 1 < count && !is_aligned(segments[i].iov_len, kPageBytes)) return false;
  }
  return true;
}

void place_in_caller_memory(Piece& piece) {
  piece.vectors.clear();
  const uint64_t whole_bytes = align_down(piece.byte_count, kPageBytes);
  piece.last_page_bytes = piece.byte_count - whole_bytes;
  for_each_run(*piece.item, piece.first_byte, whole_bytes,
               [&](uint8_t* run, uint64_t bytes) { piece.vectors.push_back({run, bytes}); });
  if (piece.last_page_bytes != 0) piece.vectors.push_back({piece.last_page, kPageBytes});
}

void place_in_staging(Piece& piece, bool is_write) {
  piece.vectors.assign(1, {piece.staging, piece.transfer_bytes});
  piece.last_page_bytes = 0;
  if (!is_write) return;
  uint8_t* target = piece.staging;
  for_each_run(*piece.item, piece.first_byte, piece.byte_count, [&](const uint8_t* run, uint64_t bytes) {
    std::memcpy(target, run, bytes);
    target += bytes;
  });
  std::memset(target, 0, piece.transfer_bytes - piece.byte_count);
}

void fill_last_page(Piece& piece) {
  if (piece.last_page_bytes == 0) return;
  uint8_t* target = piece.last_page;
  for_each_run(*piece.item, piece.first_byte + piece.byte_count - piece.last_page_bytes, piece.last_page_bytes,
               [&](const uint8_t* run, uint64_t bytes) {
                 std::memcpy(target, run, bytes);
                 target += bytes;
               });
  std::memset(target, 0, kPageBytes - piece.last_page_bytes);
}

void copy_out_last_page(const Piece& piece) {
  const uint8_t* source = piece.last_page;
  for_each_run(*piece.item, piece.first_byte + piece.byte_count - piece.last_page_bytes, piece.last_page_bytes,
               [&](uint8_t* run, uint64_t bytes) {
                 std::memcpy(run, source, bytes);
                 source += bytes;
               });
}

void copy_out_staging(const Piece& piece) {
  const uint8_t* source = piece.staging + (wanted_first(piece) - piece.first_byte);
  for_each_wanted_run(piece, [&](uint8_t* run, uint64_t bytes) {
    std::memcpy(run, source, bytes);
    source += bytes;
  });
}

bool plan_move_out(Piece& piece) {
  piece.move.to_caller = true;
  piece.move.direct = false;
  piece.move.place = piece.item->memory_place;
  piece.move.host = piece.staging + (wanted_first(piece) - piece.first_byte);
  piece.move.runs.clear();
  for_each_wanted_run(piece, [&](uint8_t* run, uint64_t bytes) { piece.move.runs.push_back({run, bytes}); });
  return !piece.move.runs.empty();
}

void plan_move_in(Piece& piece) {
  piece.move.to_caller = false;
  piece.move.direct = false;
  piece.move.place = piece.item->memory_place;
  piece.move.host = piece.staging;
  piece.move.runs.clear();
  for_each_run(*piece.item, piece.first_byte, piece.byte_count,
               [&](uint8_t* run, uint64_t bytes) { piece.move.runs.push_back({run, bytes}); });
  std::memset(piece.staging + piece.byte_count, 0, piece.transfer_bytes - piece.byte_count);
}

bool wants_whole_pages(const Item& item, uint64_t first, uint64_t count) {
  if (first % kPageBytes != 0 || count % kPageBytes != 0) return false;
  if (first < item.wanted_offset || first + count > item.wanted_offset + item.wanted_bytes) return false;
  bool whole = true;
  for_each_run(item, first - item.wanted_offset, count, [&](const uint8_t* run, uint64_t bytes) {
    whole = whole && is_aligned(run, kPageBytes) && bytes % kPageBytes == 0;
  });
  return whole;
}

void plan_direct_read(Piece& piece) {
  piece.move.to_caller = true;
  piece.move.direct = true;
  piece.move.place = piece.item->memory_place;
  piece.move.host = nullptr;
  piece.move.runs.clear();
  for_each_wanted_run(piece, [&](uint8_t* run, uint64_t bytes) { piece.move.runs.push_back({run, bytes}); });
  piece.move.read.device = piece.item->place.device;
  piece.move.read.offset_bytes = piece.request.offset_bytes;
  piece.move.read.wants_nodes = piece.item->verify;
  piece.move.read.through_host = false;
}

uint32_t piece_page_nodes(const Piece& piece, uint64_t* nodes) {
  uint64_t left = piece.byte_count;
  uint32_t count = 0;
  for (const iovec& vector : piece.vectors) {
    const uint64_t bytes = std::min<uint64_t>(left, vector.iov_len);
    page_nodes(vector.iov_base, bytes, nodes + count);
    count += static_cast<uint32_t>(ceil_div(bytes, kPageBytes));
    left -= bytes;
    if (left == 0) break;
  }
  return count;
}

Checksum128 item_root(const Item& item) {
  return root_checksum({*item.space_digest, item.salt, item.key.view()}, item.payload_bytes, item.nodes);
}

}  // namespace kvstore::store
