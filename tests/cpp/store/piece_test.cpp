// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a piece meets memory without touching a byte that is not the block's: in place where the caller's pages are
// aligned, through staging where not, the padding of the last page in a page of its own. Both give equal checksums.
// Method: blocks of many sizes in guarded segments, cut into pieces as the engine does, "transferred" by copying what
// the request's vectors point to.

#include "store/piece.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

const Name kName{"block", "", 0};

class Pieces : public ::testing::Test {
 protected:
  // The device: what was written, padded.
  std::vector<uint8_t> device_;
  AlignedBuffer staging_{kPieceBytes};
  AlignedBuffer last_page_{kPageBytes};
  SpaceDigest space_{};

  Item item_for(const Buffers& buffers, uint64_t payload_bytes) {
    Item item;
    item.segments = buffers.segments();
    item.segment_count = buffers.segment_count();
    item.segment_bytes = buffers.bytes();
    item.payload_bytes = payload_bytes;
    item.wanted_bytes = payload_bytes;
    item.space_digest = &space_;
    item.key = format::make_stored_key(kName.key);
    item.nodes.assign(ceil_div(payload_bytes, kPieceBytes), 0);
    return item;
  }
  Piece piece_of(Item& item, uint64_t first, uint64_t end) {
    Piece piece;
    piece.item = &item;
    piece.first_byte = first;
    piece.number = static_cast<uint32_t>(first / kPieceBytes);
    piece.byte_count = std::min((uint64_t{piece.number} + 1) * kPieceBytes, end) - first;
    piece.transfer_bytes = align_up(piece.byte_count, kPageBytes);
    piece.last_page = last_page_.data();
    return piece;
  }
  static uint64_t bytes_of(const Piece& piece) {
    uint64_t bytes = 0;
    for (const iovec& vector : piece.vectors) bytes += vector.iov_len;
    return bytes;
  }
  void hash(const Piece& piece, Item& item) {
    uint64_t nodes[kPieceBytes / kPageBytes];
    item.nodes[piece.number] = piece_node_of_pages({nodes, piece_page_nodes(piece, nodes)});
  }
  Checksum128 write(const Buffers& buffers, bool in_place) {
    Item item = item_for(buffers, buffers.bytes());
    device_.assign(align_up(buffers.bytes(), kPageBytes), 0x99);
    for (uint64_t first = 0; first < buffers.bytes(); first += kPieceBytes) {
      Piece piece = piece_of(item, first, buffers.bytes());
      if (in_place) {
        place_in_caller_memory(piece);
        fill_last_page(piece);
      } else {
        piece.staging = staging_.data();
        place_in_staging(piece, true);
      }
      EXPECT_EQ(bytes_of(piece), piece.transfer_bytes);
      uint8_t* target = device_.data() + first;
      for (const iovec& vector : piece.vectors) {
        EXPECT_TRUE(is_aligned(vector.iov_len, kPageBytes));
        std::memcpy(target, vector.iov_base, vector.iov_len);
        target += vector.iov_len;
      }
      hash(piece, item);
    }
    return item_root(item);
  }
  Checksum128 read(Buffers& buffers, uint64_t payload_bytes, bool in_place) {
    Item item = item_for(buffers, payload_bytes);
    for (uint64_t first = 0; first < payload_bytes; first += kPieceBytes) {
      Piece piece = piece_of(item, first, payload_bytes);
      if (in_place) {
        place_in_caller_memory(piece);
      } else {
        piece.staging = staging_.data();
        place_in_staging(piece, false);
      }
      const uint8_t* source = device_.data() + first;
      for (const iovec& vector : piece.vectors) {
        std::memcpy(vector.iov_base, source, vector.iov_len);
        source += vector.iov_len;
      }
      hash(piece, item);
      in_place ? copy_out_last_page(piece) : copy_out_staging(piece);
    }
    return item_root(item);
  }
};

constexpr uint64_t kSizes[] = {1, 4095, 4096, 4097, 50'000, kMiB - 1, kMiB, kMiB + 1, 2 * kMiB + 4095, 3 * kMiB};

TEST_F(Pieces, InPlaceAndStagedGiveTheSameBytesAndChecksum) {
  for (const uint64_t bytes : kSizes) {
    for (const uint32_t segments : {1u, 2u, 5u, 64u}) {
      Buffers source(bytes, {segments, 0});
      source.fill(kName, 1);
      const Checksum128 staged = write(source, false);
      const bool allowed = segments_in_place(source.segments(), source.segment_count(), 512);
      if (allowed) {
        EXPECT_EQ(write(source, true), staged) << bytes << " in " << segments;
      }
      std::vector<uint8_t> whole(bytes);
      fill_payload(kName, 1, 0, whole.data(), bytes);
      EXPECT_EQ(staged, block_checksum({space_, "", kName.key}, whole.data(), bytes));
      EXPECT_TRUE(std::equal(whole.begin(), whole.end(), device_.begin()));
      EXPECT_TRUE(std::all_of(device_.begin() + static_cast<std::ptrdiff_t>(bytes), device_.end(), [](uint8_t byte) {
        return byte == 0;
      })) << "padded with zeros, not with what lay behind the buffer";
      for (const bool in_place : {false, true}) {
        if (in_place && !allowed) continue;
        Buffers target(bytes, {segments, 0});
        EXPECT_EQ(read(target, bytes, in_place), staged);
        EXPECT_TRUE(target.holds(kName, 1, 0, bytes));
        EXPECT_TRUE(target.guards_intact()) << bytes << " in " << segments;
      }
    }
  }
}

TEST_F(Pieces, AReadNeverWritesBehindTheBlock) {
  for (const uint64_t bytes : kSizes) {
    Buffers source(bytes, {1, 0});
    source.fill(kName, 1);
    write(source, false);
    for (const bool in_place : {false, true}) {
      Buffers longer(bytes + 3 * kPageBytes, {1, 0});
      read(longer, bytes, in_place);
      EXPECT_TRUE(longer.holds(kName, 1, 0, bytes));
      EXPECT_TRUE(longer.untouched_from(bytes)) << bytes;
    }
  }
}

TEST_F(Pieces, APartIsCopiedOutOfStaging) {
  const uint64_t bytes = 2 * kMiB + 1'000;
  Buffers source(bytes, {1, 0});
  source.fill(kName, 1);
  write(source, false);
  for (const auto& [offset, length] :
       {std::pair<uint64_t, uint64_t>{0, 1}, {kMiB - 5, 10}, {bytes - 1, 1}, {77, 2 * kMiB}}) {
    Buffers target(length, {3, 8});
    Item item = item_for(target, bytes);
    item.wanted_offset = offset;
    item.wanted_bytes = length;
    for (uint64_t first = 0; first < bytes; first += kPieceBytes) {
      Piece piece = piece_of(item, first, bytes);
      piece.staging = staging_.data();
      place_in_staging(piece, false);
      std::memcpy(staging_.data(), device_.data() + first, piece.transfer_bytes);
      copy_out_staging(piece);
    }
    EXPECT_TRUE(target.holds(kName, 1, offset, length)) << offset << " + " << length;
    EXPECT_TRUE(target.guards_intact());
  }
}

TEST_F(Pieces, OnlyAlignedWholePagesAreTakenInPlace) {
  alignas(4096) static uint8_t memory[5 * kPageBytes];
  const auto in_place = [](std::vector<iovec> segments, uint32_t alignment = 512) {
    return segments_in_place(segments.data(), static_cast<uint32_t>(segments.size()), alignment);
  };
  EXPECT_TRUE(in_place({{memory, kPageBytes}, {memory + kPageBytes, kPageBytes}}));
  EXPECT_TRUE(in_place({{memory, kPageBytes}, {memory + kPageBytes, 5}})) << "the last may be short";
  EXPECT_FALSE(in_place({{memory, 5}, {memory + kPageBytes, kPageBytes}}));
  EXPECT_FALSE(in_place({{memory + 64, kPageBytes}}));
  EXPECT_TRUE(in_place({{memory + 512, kPageBytes}}));
  EXPECT_FALSE(in_place({{memory + 512, kPageBytes}}, 4096));
  EXPECT_TRUE(in_place({{memory + 4, kPageBytes}}, 4));
}

TEST_F(Pieces, ATableOfPageNodesTakesEightBytesAPage) {
  EXPECT_EQ(page_table_bytes(1), 8u);
  EXPECT_EQ(page_table_bytes(kPageBytes), 8u);
  EXPECT_EQ(page_table_bytes(kPageBytes + 1), 16u);
  EXPECT_EQ(page_table_bytes(kMiB), 2048u);
}

}  // namespace
}  // namespace kvstore::store
