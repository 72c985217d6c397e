// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// DeviceMemory: the GPU memory of one job, on any number of GPUs, and how the job stands to the callers' streams.
//
// Rules (scripts/mutate switches them off, a test fails for each):
//   G1  nothing of the job's memory is read or written before all that was on its streams at submission has happened;
//   G2  what is put on the stream of a get afterwards runs only when the get has ended, however it ends. No thread of
//       the host waits for that: the stream does;
//   G3  a copy has ended when its event has happened (bounce.h).
//
// Use: place_of() for each segment, Store::prepare_mover(), begin(), then submit with it. If the submission is refused,
// letting it go lets the streams go.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gpu/bounce.h"
#include "gpu/direct_path.h"
#include "store/memory_mover.h"

namespace kvstore::gpu {

// Whose memory a pointer is: a GPU's number, or -1 for memory of the host (pinned). An error: CUDA does not know it.
Result<int> device_of_pointer(uint64_t pointer);

// A stream of ours on that GPU, for exporters that let the stream of who asks wait for their bytes (DLPack).
Result<uint64_t> order_stream(int device);

class DeviceMemory final : public store::MemoryMover {
 public:
  // `direct`: what may read the pool's devices straight into this memory; null: everything goes through staging.
  explicit DeviceMemory(std::shared_ptr<DirectPath> direct = nullptr) : direct_(std::move(direct)) {}
  ~DeviceMemory() override;

  // The number by which the mover knows memory of a GPU whose work is on `stream`, a CUstream (1: the legacy default
  // stream, 2: the thread's). Without a stream: it is ready, and who gets into it waits for the job. `may_hold`: the
  // stream is the caller's own.
  Result<uint32_t> place_of(int device, std::optional<uint64_t> stream, bool may_hold = true);

  // Marks what is on the streams (G1), and with `holds` lets them wait for the job (G2).
  Status begin(bool holds);

  void when_ready(std::function<void()> ready) override;
  Status meet(std::span<const store::PoolDevice> devices) override;
  bool reads_directly(uint32_t place, uint16_t device, bool has_deadline) override;
  void refuse_direct(uint32_t place, uint16_t device, const Status& why) override;
  void start(store::MemoryMove& move, store::MoveListener& listener) override;
  void job_ended() override;
  int near_node() override;
  Result<std::unique_ptr<store::PinnedMemory>> pin(void* base, uint64_t bytes) override;

 private:
  struct Place {
    Bounce* gpu;
    std::optional<uint64_t> stream;
    bool may_hold;
  };
  const std::shared_ptr<DirectPath> direct_;
  std::vector<Place> places_;
  std::vector<std::pair<Bounce*, cu::Event>> marks_;
  std::vector<std::pair<Bounce*, uint32_t>> holds_;
  std::atomic<bool> ended_{false};
};

}  // namespace kvstore::gpu
