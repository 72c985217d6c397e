// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/inline_reader.h"

#include <algorithm>

#include "base/mutation.h"

namespace kvstore::store {

InlineReaders::InlineReaders(std::vector<device::Device*> devices, Counters& counters)
    : devices_(std::move(devices)), counters_(counters) {}

std::unique_ptr<InlineReaders::Reader> InlineReaders::take() {
  std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    auto reader = std::move(free_.back());
    free_.pop_back();
    return reader;
  }
  if (made_ == kReadersMax) return nullptr;
  // Moves between threads under our lock, so it must not be a single-issuer ring.
  auto queue = devices_[0]->make_queue(devices_, {.depth = 2 * kPieces, .single_issuer = false});
  if (!queue.ok()) return nullptr;
  ++made_;
  auto reader = std::make_unique<Reader>();
  reader->queue = std::move(queue).value();
  return reader;
}

InlineReaders::Outcome InlineReaders::read(Item& item) {
  reading_.fetch_add(1, std::memory_order_acq_rel);
  Outcome outcome = Outcome::kTryEngine;
  if (std::unique_ptr<Reader> reader = take()) {
    const bool checked = item.verify && KVS_RULE(I5_the_callers_thread_checks);
    if (transfer(*reader, item) && (!checked || item_root(item) == item.checksum)) outcome = Outcome::kHit;
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(reader));
  }
  reading_.fetch_sub(1, std::memory_order_acq_rel);
  return outcome;
}

bool InlineReaders::transfer(Reader& reader, Item& item) {
  const auto count = static_cast<uint32_t>(ceil_div(item.payload_bytes, kPieceBytes));
  item.nodes.assign(count, 0);
  for (uint32_t i = 0; i < count; ++i) {
    Piece& piece = reader.pieces[i];
    piece.item = &item;
    piece.number = i;
    piece.first_byte = uint64_t{i} * kPieceBytes;
    piece.byte_count = std::min(kPieceBytes, item.payload_bytes - piece.first_byte);
    piece.transfer_bytes = align_up(piece.byte_count, kPageBytes);
    piece.last_page = reader.last_pages.data() + i * kPageBytes;
    place_in_caller_memory(piece);
    piece.request = {};
    piece.request.op = device::IoOp::kRead;
    piece.request.device_index = item.place.device;
    piece.request.offset_bytes = item.place.offset_bytes + piece.first_byte;
    piece.request.segments = piece.vectors.data();
    piece.request.segment_count = static_cast<uint32_t>(piece.vectors.size());
    piece.request.owner = &piece;
    reader.queue->submit(&piece.request);  // depth is twice the pieces: there is room
  }
  bool good = true;
  device::IoRequest* completed[kPieces];
  for (uint32_t left = count; left != 0;) {
    // Without limit: the caller asked to block, and its buffer is the kernel's until the read completes (I11).
    const Result<uint32_t> polled = reader.queue->poll(completed, 1'000'000'000);
    if (!polled.ok()) continue;
    for (uint32_t i = 0; i < polled.value(); ++i) {
      Piece& piece = *static_cast<Piece*>(completed[i]->owner);
      --left;
      if (piece.request.result != static_cast<int64_t>(piece.transfer_bytes) &&
          KVS_RULE(I9_the_callers_thread_counts)) {
        good = false;
        continue;
      }
      if (item.verify) {
        uint64_t nodes[kPieceBytes / kPageBytes];
        item.nodes[piece.number] = piece_node_of_pages({nodes, piece_page_nodes(piece, nodes)});
      }
      copy_out_last_page(piece);
    }
  }
  add(counters_.bytes_read_payload, item.payload_bytes);
  return good;
}

}  // namespace kvstore::store
