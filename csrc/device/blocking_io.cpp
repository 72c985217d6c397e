// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "device/blocking_io.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/mutation.h"
#include "base/units.h"

namespace kvstore::device {
namespace {

// Progress is counted in these: a completion that ends inside a sector (the end of a file) is resumed from the
// sector's start, since direct I/O cannot start elsewhere.
constexpr uint64_t kSectorBytes = 512;
constexpr uint64_t kWaitSliceNs = 100'000'000;  // how soon give_up() ends a wait

uint64_t request_bytes(const IoRequest& request) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < request.segment_count; ++i) bytes += request.segments[i].iov_len;
  return bytes;
}

// Leaves in `scratch` what `request` has not moved yet.
void drop_moved(IoRequest& request, std::vector<iovec>& scratch, uint64_t moved_bytes) {
  if (request.segments != scratch.data()) {
    scratch.assign(request.segments, request.segments + request.segment_count);
  }
  request.offset_bytes += moved_bytes;
  size_t whole = 0;
  while (whole < scratch.size() && scratch[whole].iov_len <= moved_bytes) moved_bytes -= scratch[whole++].iov_len;
  scratch.erase(scratch.begin(), scratch.begin() + static_cast<std::ptrdiff_t>(whole));
  if (!scratch.empty()) {
    scratch.front().iov_base = static_cast<uint8_t*>(scratch.front().iov_base) + moved_bytes;
    scratch.front().iov_len -= moved_bytes;
  }
  request.segments = scratch.data();
  request.segment_count = static_cast<uint32_t>(scratch.size());
}

const char* op_name(IoOp op) {
  switch (op) {
    case IoOp::kRead: return "read";
    case IoOp::kWrite: return "write";
    case IoOp::kFlush: return "flush";
  }
  return "request";
}

// One device request's worth of an operation.
struct Piece {
  IoOp op = IoOp::kRead;
  bool durable = false;
  uint16_t device_index = 0;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  uint8_t* data = nullptr;
  Status* status = nullptr;  // the first failure is put here
};

struct Batch;

struct Slot {
  Batch* batch = nullptr;
  Piece piece;
  IoRequest request;
  iovec segment{};
  std::vector<iovec> scratch;
  uint32_t attempts = 0;
  bool in_flight = false;
};

// Everything that the kernel may touch for one operation. Lives until its last request has completed.
struct Batch {
  explicit Batch(size_t slot_count) : slots(slot_count) {
    for (Slot& slot : slots) slot.batch = this;
  }
  std::vector<Slot> slots;  // never resized: requests point into it
  AlignedBuffer buffer;     // taken over when the caller has been told of a time-out
  uint32_t in_flight = 0;
};

}  // namespace

IoOutcome advance_after_completion(IoRequest& request, std::vector<iovec>& scratch, uint32_t& attempts) {
  if (request.result < 0) {
    if (request.result != -EAGAIN && request.result != -EINTR) {
      return KVS_RULE(I9_an_error_is_never_success) ? IoOutcome::kFailed : IoOutcome::kDone;
    }
    if (!KVS_RULE(I9_again_is_retried)) return IoOutcome::kFailed;
    return ++attempts <= kRetriesMax ? IoOutcome::kRetry : IoOutcome::kFailed;
  }
  if (request.op == IoOp::kFlush) return IoOutcome::kDone;
  const uint64_t moved_bytes = static_cast<uint64_t>(request.result);
  if (moved_bytes >= request_bytes(request) || !KVS_RULE(I9_short_is_not_done)) return IoOutcome::kDone;
  if (moved_bytes == 0 && request.op == IoOp::kRead) return IoOutcome::kFailed;  // past the end of the device
  if (++attempts > kRetriesMax) return IoOutcome::kFailed;
  if (KVS_RULE(I9_the_rest_is_sent)) drop_moved(request, scratch, align_down(moved_bytes, kSectorBytes));
  return IoOutcome::kRetry;
}

struct BlockingIo::Impl {
  std::unique_ptr<IoQueue> queue;
  std::vector<Device*> devices;
  uint64_t timeout_ns = 0;
  std::atomic<bool> giving_up{false};
  AlignedBuffer bounce;                       // source of writes: a stuck write keeps it, not the caller's memory
  std::vector<std::unique_ptr<Batch>> stuck;  // of operations that gave kTimeout

  std::string where(const Piece& piece) const {
    const char* path =
        piece.device_index < devices.size() ? devices[piece.device_index]->info().path.c_str() : "unknown device";
    if (piece.op == IoOp::kFlush) return format_text("flush of %s", path);
    return format_text("%s of %s at offset %llu, %llu bytes", op_name(piece.op), path,
                       static_cast<unsigned long long>(piece.offset_bytes),
                       static_cast<unsigned long long>(piece.length_bytes));
  }

  Status failure(const Slot& slot) const {
    if (slot.request.result < 0) {
      return Status::from_errno(static_cast<int>(-slot.request.result), where(slot.piece));
    }
    return Status(Code::kIo,
                  format_text("%s: stopped short at offset %llu", where(slot.piece).c_str(),
                              static_cast<unsigned long long>(slot.request.offset_bytes +
                                                              static_cast<uint64_t>(slot.request.result))),
                  EIO);
  }

  static void fill(Slot& slot, const Piece& piece) {
    slot.piece = piece;
    slot.attempts = 0;
    slot.segment = {piece.data, static_cast<size_t>(piece.length_bytes)};
    slot.request = IoRequest();
    slot.request.op = piece.op;
    slot.request.durable = piece.durable;
    slot.request.device_index = piece.device_index;
    slot.request.offset_bytes = piece.offset_bytes;
    if (piece.op != IoOp::kFlush) {
      slot.request.segments = &slot.segment;
      slot.request.segment_count = 1;
    }
  }

  bool submit(Batch& batch, Slot& slot) {
    slot.request.owner = &slot;
    if (!queue->submit(&slot.request)) return false;
    slot.in_flight = true;
    ++batch.in_flight;
    return true;
  }

  // Collects what completes within wait_ns; those of `batch` are added to `completed_slots`. Returns how many
  // came, also of operations given up earlier.
  Result<uint32_t> collect(uint64_t wait_ns, const Batch* batch, std::vector<Slot*>& completed_slots) {
    IoRequest* completed[64];
    KVS_ASSIGN(const uint32_t count, queue->poll(completed, wait_ns));
    for (uint32_t i = 0; i < count; ++i) {
      Slot* slot = static_cast<Slot*>(completed[i]->owner);
      slot->in_flight = false;
      --slot->batch->in_flight;
      if (slot->batch == batch) completed_slots.push_back(slot);
    }
    std::erase_if(stuck, [](const std::unique_ptr<Batch>& old) { return old->in_flight == 0; });
    return count;
  }

  // Waits for one of `batch`; kTimeout after timeout_ns in which nothing at all completed.
  Status wait_for(const Batch& batch, std::vector<Slot*>& completed_slots) {
    completed_slots.clear();
    while (completed_slots.empty()) {
      uint64_t waited_ns = 0;
      uint32_t count = 0;
      while (count == 0 && waited_ns < timeout_ns && !(giving_up.load() && waited_ns != 0)) {
        const uint64_t slice_ns = std::min(timeout_ns - waited_ns, kWaitSliceNs);
        KVS_ASSIGN(count, collect(slice_ns, &batch, completed_slots));
        waited_ns += slice_ns;
      }
      if (count > 0) continue;
      return Status(Code::kTimeout, format_text("no completion within %.1f s", static_cast<double>(waited_ns) / 1e9));
    }
    return {};
  }

  // Runs the pieces that `next` yields (false: no more) at full queue depth. Failures of pieces go to their own
  // status; the Status returned is of the queue, or kTimeout, and then `buffer` has been taken over.
  template <typename Next>
  Status run(Next next, size_t pieces_max, AlignedBuffer& buffer) {
    std::vector<Slot*> idle, completed;
    if (!stuck.empty()) KVS_TRY(collect(0, nullptr, completed).status());
    // What is still stuck counts against the queue's depth.
    const uint32_t depth = queue->depth();
    const uint32_t stuck_now = stuck_requests();
    if (stuck_now != 0 && giving_up.load()) {
      return Status(Code::kTimeout, format_text("%u earlier requests are stuck in the device", stuck_now));
    }
    if (stuck_now >= depth) {
      return Status(Code::kIo, format_text("all %u requests of the queue are stuck in the device", depth));
    }
    auto batch = std::make_unique<Batch>(std::min<size_t>(pieces_max, depth - stuck_now));
    for (Slot& slot : batch->slots) idle.push_back(&slot);

    Status failed;
    bool more = true;
    while (failed.ok()) {
      while (more && !idle.empty()) {
        Piece piece;
        more = next(piece);
        if (!more) break;
        Slot& slot = *idle.back();
        fill(slot, piece);
        if (!submit(*batch, slot)) {
          failed = queue_refused();
          break;
        }
        idle.pop_back();
      }
      if (batch->in_flight == 0 || !failed.ok()) break;
      failed = wait_for(*batch, completed);
      if (!failed.ok()) break;
      for (Slot* slot : completed) {
        const IoOutcome outcome = advance_after_completion(slot->request, slot->scratch, slot->attempts);
        if (outcome == IoOutcome::kRetry) {
          if (!submit(*batch, *slot)) failed = queue_refused();
          continue;
        }
        if (outcome == IoOutcome::kFailed && slot->piece.status->ok()) *slot->piece.status = failure(*slot);
        idle.push_back(slot);
      }
    }
    if (failed.ok()) return failed;
    return give_up(std::move(batch), buffer, std::move(failed));
  }

  // I11: what the kernel may still write or read stays alive, in here.
  Status give_up(std::unique_ptr<Batch> batch, AlignedBuffer& buffer, Status failed) {
    if (batch->in_flight == 0) return failed;
    std::string first;
    for (const Slot& slot : batch->slots) {
      if (slot.in_flight && first.empty()) first = where(slot.piece);
    }
    const uint32_t stuck_now = batch->in_flight;
    if (KVS_RULE(I11_a_stuck_request_keeps_its_buffer)) batch->buffer = std::move(buffer);
    stuck.push_back(std::move(batch));
    return Status(failed.code(),
                  format_text("%s: %s (%u requests outstanding)", first.c_str(), failed.message().c_str(), stuck_now),
                  failed.io_errno());
  }

  static Status queue_refused() { return Status(Code::kClosed, "the I/O queue takes no requests (a forked child?)"); }

  uint32_t stuck_requests() const {
    uint32_t count = 0;
    for (const std::unique_ptr<Batch>& batch : stuck) count += batch->in_flight;
    return count;
  }

  // Yields the pieces of one contiguous run.
  struct Cutter {
    Piece rest;
    bool operator()(Piece& piece) {
      if (rest.length_bytes == 0) return false;
      piece = rest;
      piece.length_bytes = std::min(rest.length_bytes, kPieceBytes);
      rest.offset_bytes += piece.length_bytes;
      rest.data += piece.length_bytes;
      rest.length_bytes -= piece.length_bytes;
      return true;
    }
  };

  Status run_one(const Piece& whole, AlignedBuffer& buffer) {
    Status status;
    Piece piece = whole;
    piece.status = &status;
    if (whole.op == IoOp::kFlush) {
      bool given = false;
      const auto once = [&](Piece& target) {
        target = piece;
        return !std::exchange(given, true);
      };
      KVS_TRY(run(once, 1, buffer));
    } else {
      KVS_TRY(run(Cutter{piece}, ceil_div(whole.length_bytes, kPieceBytes), buffer));
    }
    return status;
  }
};

BlockingIo::BlockingIo(std::unique_ptr<IoQueue> queue, std::vector<Device*> devices, uint64_t timeout_ns)
    : impl_(std::make_unique<Impl>()) {
  impl_->queue = std::move(queue);
  impl_->devices = std::move(devices);
  impl_->timeout_ns = timeout_ns;
}

BlockingIo::~BlockingIo() {
  // I11: the kernel may still use them after the queue is gone. Kept in a list that is never freed, so that a leak
  // checker counts them as what they are.
  static std::mutex mutex;
  static auto* const abandoned = new std::vector<std::unique_ptr<Batch>>;  // NOLINT
  const std::lock_guard<std::mutex> lock(mutex);
  for (std::unique_ptr<Batch>& batch : impl_->stuck) {
    if (batch->in_flight > 0) abandoned->push_back(std::move(batch));
  }
}

Status BlockingIo::read(uint16_t device_index, uint64_t offset_bytes, AlignedBuffer& buffer, size_t length_bytes) {
  if (length_bytes > buffer.size()) {
    return Status(Code::kInvalid, format_text("a read of %zu bytes into %zu", length_bytes, buffer.size()));
  }
  Piece piece;
  piece.device_index = device_index;
  piece.offset_bytes = offset_bytes;
  piece.length_bytes = length_bytes;
  piece.data = buffer.data();
  return impl_->run_one(piece, buffer);
}

Status BlockingIo::write(uint16_t device_index, uint64_t offset_bytes, const AlignedBuffer& buffer, size_t length_bytes,
                         bool durable) {
  if (length_bytes > buffer.size()) {
    return Status(Code::kInvalid, format_text("a write of %zu bytes from %zu", length_bytes, buffer.size()));
  }
  AlignedBuffer& bounce = impl_->bounce;
  if (bounce.size() < length_bytes) bounce = AlignedBuffer(length_bytes);
  std::memcpy(bounce.data(), buffer.data(), length_bytes);
  Piece piece;
  piece.op = IoOp::kWrite;
  piece.durable = durable;
  piece.device_index = device_index;
  piece.offset_bytes = offset_bytes;
  piece.length_bytes = length_bytes;
  piece.data = bounce.data();
  return impl_->run_one(piece, bounce);
}

Status BlockingIo::flush(uint16_t device_index) {
  Piece piece;
  piece.op = IoOp::kFlush;
  piece.device_index = device_index;
  AlignedBuffer none;
  return impl_->run_one(piece, none);
}

Status BlockingIo::read_many(std::span<ReadExtent> extents, AlignedBuffer& buffer) {
  size_t pieces = 0;
  for (ReadExtent& extent : extents) {
    extent.status = Status();
    pieces += ceil_div(extent.length_bytes, kPieceBytes);
  }
  size_t index = 0;
  Impl::Cutter cutter;
  const auto next = [&](Piece& piece) {
    while (!cutter(piece)) {
      if (index == extents.size()) return false;
      ReadExtent& extent = extents[index++];
      cutter.rest = Piece();
      cutter.rest.device_index = extent.device_index;
      cutter.rest.offset_bytes = extent.offset_bytes;
      cutter.rest.length_bytes = extent.length_bytes;
      cutter.rest.data = extent.target;
      cutter.rest.status = &extent.status;
    }
    return true;
  };
  return impl_->run(next, pieces, buffer);
}

uint32_t BlockingIo::stuck_requests() const { return impl_->stuck_requests(); }

uint32_t BlockingIo::collect_stuck() {
  std::vector<Slot*> none;
  if (!impl_->stuck.empty()) (void)impl_->collect(0, nullptr, none);
  return impl_->stuck_requests();
}

void BlockingIo::set_timeout(uint64_t timeout_ns) { impl_->timeout_ns = timeout_ns; }

void BlockingIo::give_up() { impl_->giving_up.store(true); }

}  // namespace kvstore::device
