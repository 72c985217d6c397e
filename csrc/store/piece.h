// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Piece: one device I/O of a job, at most 1 MiB, on a 1 MiB boundary of its block, so that it yields exactly one node
// of the checksum tree. Here is how a piece meets memory: in the caller's own pages where they are aligned, through
// staging where they are not.
//
// Guarantees: never reads or writes past the caller's bytes: the padding of the last page goes through a page of the
// piece's own. Does no I/O.

#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <vector>

#include "device/blocking_io.h"
#include "device/device.h"
#include "store/job_state.h"
#include "store/memory_mover.h"

namespace kvstore::store {

enum class PieceState : uint8_t { kFree, kInFlight, kCompleted, kMoving };

struct Piece {
  device::IoRequest request;
  Item* item = nullptr;
  JobRef job;  // keeps the item while the kernel may still touch its buffers (I11)
  PieceState state = PieceState::kFree;
  ItemStage stage = ItemStage::kPayload;
  device::IoOutcome outcome = device::IoOutcome::kDone;
  uint32_t number = 0;      // of the 1 MiB span within the payload or the table
  uint64_t first_byte = 0;  // within the payload or the table
  uint64_t byte_count = 0;  // of payload or table; the transfer is this rounded up to pages
  uint64_t transfer_bytes = 0;
  uint8_t* staging = nullptr;    // 1 MiB, or null: in place
  uint8_t* last_page = nullptr;  // 4 KiB, the piece's own for good: padding of a short last page
  uint64_t last_page_bytes = 0;  // payload bytes in it; 0: not used
  std::vector<iovec> vectors;    // what the request points to
  std::vector<iovec> rest;       // the same, shortened by a partial completion
  uint32_t attempts = 0;
  uint64_t submitted_ns = 0;
  bool stuck = false;
  MemoryMove move;  // between staging and memory that only the job's mover reaches
  Piece* next = nullptr;
};

// Bytes of page nodes a block carries after its payload.
inline uint64_t page_table_bytes(uint64_t payload_bytes) {
  return ceil_div(payload_bytes, kPageBytes) * sizeof(uint64_t);
}

// Whether the caller's segments can be read or written in place: aligned for DMA, whole pages but for the last.
bool segments_in_place(const iovec* segments, uint32_t count, uint32_t dma_alignment_bytes);

// Points the piece at payload bytes [first_byte, first_byte + byte_count) of its item, in place.
void place_in_caller_memory(Piece& piece);
// The same through piece.staging; a write's bytes are copied in and padded with zeros.
void place_in_staging(Piece& piece, bool is_write);

// After a write was prepared in place, its short last page is copied and padded; after a read it is copied out.
void fill_last_page(Piece& piece);
void copy_out_last_page(const Piece& piece);

// Copies the wanted part of a staged read into the caller's segments.
void copy_out_staging(const Piece& piece);

// The same for memory that the CPU does not reach: what is to be moved. False: nothing of the piece is wanted.
bool plan_move_out(Piece& piece);
// And of a put's payload into staging; pads the last page there.
void plan_move_in(Piece& piece);
// Whether payload bytes [first, first + count) are whole pages, all of them wanted, in memory that is cut at pages.
bool wants_whole_pages(const Item& item, uint64_t first, uint64_t count);
// What is to be read from the device into that memory itself.
void plan_direct_read(Piece& piece);

// Page nodes of the piece's payload in order (at most 256), from wherever its bytes are.
uint32_t piece_page_nodes(const Piece& piece, uint64_t* nodes);

// The item's root from its piece nodes.
Checksum128 item_root(const Item& item);

}  // namespace kvstore::store
