// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// OwnStream and StreamMark: streams of ours, and their order with those of others, by events alone.
//
// Guarantees: nothing here waits on the host. An error that a stream ran into is told by has_happened(), as a mark that
// has not happened says nothing of the bytes before it. Every call works in the GPU's primary context, and the caller's
// own is current again afterwards. A forked child, in which the driver cannot be called, gives nothing back.

#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "gpu/bounce.h"

namespace kvstore::gpu {

class OwnStream {
 public:
  static Result<std::unique_ptr<OwnStream>> make(int device);
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream();  // what is on it is still done

  int device() const { return gpu_.device(); }
  uint64_t handle() const { return reinterpret_cast<uint64_t>(stream_); }

 private:
  OwnStream(Bounce& gpu, cu::Stream stream);

  Bounce& gpu_;
  cu::Stream const stream_;
  const uint64_t fork_generation_;
};

// What was under way on a stream, a CUstream of that GPU, when it was made.
class StreamMark {
 public:
  static Result<std::unique_ptr<StreamMark>> make(int device, uint64_t stream);
  StreamMark(const StreamMark&) = delete;
  StreamMark& operator=(const StreamMark&) = delete;
  ~StreamMark();

  Result<bool> has_happened() const;
  // What is put on `stream` from here on runs only after it.
  Status hold_back(uint64_t stream) const;

 private:
  StreamMark(Bounce& gpu, cu::Event event);

  Bounce& gpu_;
  cu::Event const event_;
  const uint64_t fork_generation_;
};

}  // namespace kvstore::gpu
