// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/stream_order.h"

#include "device/fork_guard.h"

namespace kvstore::gpu {

namespace {

uint64_t generation() { return kvstore::device::fork_generation(); }

}  // namespace

OwnStream::OwnStream(Bounce& gpu, cu::Stream stream) : gpu_(gpu), stream_(stream), fork_generation_(generation()) {}

Result<std::unique_ptr<OwnStream>> OwnStream::make(int device) {
  KVS_ASSIGN(Bounce* const gpu, Bounce::of(device));
  const ContextScope scope(gpu->driver(), gpu->context());
  KVS_TRY(scope.status());
  cu::Stream stream = nullptr;
  // Not blocking: it does not wait for the legacy default stream, nor that one for it.
  KVS_TRY(gpu->driver().check(gpu->driver().stream_create(&stream, cu::kStreamNonBlocking), "cuStreamCreate",
                              format_text("a stream of GPU %d", device)));
  return std::unique_ptr<OwnStream>(new OwnStream(*gpu, stream));
}

OwnStream::~OwnStream() {
  if (fork_generation_ != generation()) return;
  const ContextScope scope(gpu_.driver(), gpu_.context());
  if (scope.status().ok()) (void)gpu_.driver().stream_destroy(stream_);
}

StreamMark::StreamMark(Bounce& gpu, cu::Event event) : gpu_(gpu), event_(event), fork_generation_(generation()) {}

Result<std::unique_ptr<StreamMark>> StreamMark::make(int device, uint64_t stream) {
  KVS_ASSIGN(Bounce* const gpu, Bounce::of(device));
  KVS_ASSIGN(cu::Event const event, gpu->mark(reinterpret_cast<cu::Stream>(stream)));
  return std::unique_ptr<StreamMark>(new StreamMark(*gpu, event));
}

StreamMark::~StreamMark() {
  if (fork_generation_ == generation()) gpu_.give_back(event_);
}

Result<bool> StreamMark::has_happened() const {
  const cu::Code code = gpu_.driver().event_query(event_);
  if (code == cu::kNotReady) return false;
  KVS_TRY(gpu_.driver().check(code, "cuEventQuery", format_text("work on a stream of GPU %d", gpu_.device())));
  return true;
}

Status StreamMark::hold_back(uint64_t stream) const {
  const ContextScope scope(gpu_.driver(), gpu_.context());
  KVS_TRY(scope.status());
  return gpu_.driver().check(gpu_.driver().stream_wait_event(reinterpret_cast<cu::Stream>(stream), event_, 0),
                             "cuStreamWaitEvent", format_text("ordering streams of GPU %d", gpu_.device()));
}

}  // namespace kvstore::gpu
