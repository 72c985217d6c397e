// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// DirectPath: whether a pool reads straight into GPU memory by cuFile, and by which DirectReads for each GPU.
//
// Guarantees: nothing of cuFile is touched while it is off, and nothing of a GPU before its memory is given for the
// first time. kAuto never fails and never waits: until a GPU's path is proven, and where it is refused, bytes go
// through host memory. kOn waits for the proof (bounded by cuFile's own time-outs, direct_reads.h) and says why it is
// refused. Thread-safe.

#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "gpu/direct_reads.h"

namespace kvstore::gpu {

enum class GpuDirect : uint8_t { kOff, kAuto, kOn };

class DirectPath {
 public:
  explicit DirectPath(GpuDirect mode, DirectOptions options = {}) : mode_(mode), options_(options) {
    options_.through_host_too = mode == GpuDirect::kOn;
  }

  // Memory of this GPU is about to be given. An error: it is to be direct and cannot be.
  Status use(Bounce& gpu, std::span<const store::PoolDevice> devices);
  // Lets go of the devices, which nobody could open alone before. No read may be under way, or come. Waits for a proof.
  void close();
  // Whether also what has a deadline is read directly: cuFile cannot be told to give up, so it may come late.
  bool takes_deadlines() const { return mode_ == GpuDirect::kOn; }
  // Whether a read may wait for the default stream of its GPU, and so for streams that are held for a get (G2): such a
  // path holds none.
  bool waits_for_streams() const { return options_.make_device != nullptr; }
  // What reads into the memory of a GPU; null: nothing does.
  std::shared_ptr<DirectReads> reads_of(int gpu);
  // For people: "off", "not used yet", or for each GPU "GPU 0: direct", "compat", "being proven" or "refused: <why>".
  std::string state() const;

 private:
  const GpuDirect mode_;
  DirectOptions options_;
  mutable std::mutex mutex_;
  std::map<int, std::shared_ptr<DirectReads>> by_gpu_;
  std::map<int, Status> failures_;  // GPUs for which there is none
};

}  // namespace kvstore::gpu
