// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Bounce: one GPU of this process: moves bytes between pinned host memory and its memory, on streams of its own, and
// knows what is under way on the streams of callers.
//
// One thread for each GPU begins the copies, looks after their events, and tells who waits; engines never call CUDA,
// which may block. While something is under way it looks every 20 us, without anything it sleeps. Copies of both
// directions run at the same time, each direction in order.
//
// Guarantees: a move ends only when its event has happened (G3), or when CUDA says that nothing can come of it any
// more. Every call works in the GPU's primary context, and the caller's own context is current again afterwards. A
// stream that is held is let go exactly once. Thread-safe. Lives as long as the process.

#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/units.h"
#include "gpu/cuda_driver.h"
#include "store/memory_mover.h"
#include "store/own_thread.h"

namespace kvstore::gpu {

class Bounce {
 public:
  // Of a GPU by CUDA's number; made at the first use.
  static Result<Bounce*> of(int device);

  const CudaDriver& driver() const { return driver_; }
  cu::Context context() const { return context_; }
  int device() const { return device_; }
  cu::Stream order_stream() const { return order_; }

  // What is under way on a stream now, as an event. It belongs to the caller until when() or give_back().
  Result<cu::Event> mark(cu::Stream stream);
  // Also when an error was the end of it: the copies that follow will tell that.
  bool has_happened(cu::Event event);
  // Takes the event, and calls `then` on the GPU's thread once it has happened.
  void when(cu::Event event, std::function<void()> then);
  void give_back(cu::Event event);

  void start(store::MemoryMove& move, store::MoveListener& listener);

  // From now on the stream waits until let_go(), without any thread of the host: what was put on it before goes on.
  // kBusy: as many as there is room for are held.
  Result<uint32_t> hold(cu::Stream stream);
  void let_go(uint32_t slot);

  // Pins memory for all GPUs, in pieces of at most `piece_bytes_max`; what was pinned is given back when one fails.
  Result<std::unique_ptr<store::PinnedMemory>> pin(void* base, uint64_t bytes, uint64_t piece_bytes_max = 64 * kGiB);

 private:
  static constexpr uint32_t kHoldsMax = 4096;

  struct Begun {
    store::MemoryMove* move = nullptr;
    store::MoveListener* listener = nullptr;
    cu::Event event = nullptr;
  };
  struct Awaited {
    cu::Event event = nullptr;
    std::function<void()> then;
  };

  Bounce(const CudaDriver& driver, int device) : driver_(driver), device_(device) {}
  Status prepare();
  Result<cu::Event> take_event();
  void run();
  void begin(Begun one);
  bool end_those_done(std::deque<Begun>& copies);
  bool call_those_awaited();
  Status hold_by(cu::Stream stream, uint32_t slot, uint32_t value);

  const CudaDriver& driver_;
  const int device_;
  cu::Context context_ = nullptr;
  cu::Stream to_device_ = nullptr;
  cu::Stream to_host_ = nullptr;
  cu::Stream order_ = nullptr;  // does nothing but wait for what others let it wait for

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Begun> new_moves_;
  std::vector<Awaited> new_awaited_;
  std::vector<cu::Event> free_events_;

  store::OwnThread thread_;

  // The thread's own.
  std::deque<Begun> copies_to_device_;
  std::deque<Begun> copies_to_host_;
  std::vector<Awaited> awaited_;

  // A held stream waits until its slot has counted up to a value. Values only grow, so a slot can be used again at
  // once.
  std::mutex holds_mutex_;
  uint32_t* slots_ = nullptr;  // pinned, read by the GPU
  cu::DevicePointer slots_on_device_ = 0;
  std::vector<uint32_t> free_slots_;
  bool gpu_can_wait_ = true;  // cuStreamWaitValue32
};

}  // namespace kvstore::gpu
