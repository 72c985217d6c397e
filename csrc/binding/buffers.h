// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Buffers: the memory of one batch. Turns Python objects into segments (iovec) and holds the objects.
//
// Accepts per block one contiguous buffer or a list or tuple of up to 512 of them: the buffer protocol, torch tensors,
// DLPack, (pointer, nbytes), and in the memory of a CUDA device also __cuda_array_interface__. All segments of one
// block are in the same memory. Refuses by name what is not contiguous, read-only where it must be written, in memory
// that cannot be reached, or empty.
//
// Guarantees (I11): the objects are held, and bytearrays and arrays stay exported (cannot be resized), until release().
// (pointer, nbytes) holds nothing: that memory is the caller's to keep. GIL needed for everything here.

#pragma once

#include <Python.h>
#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "binding/arguments.h"
#include "gpu/device_memory.h"
#include "store/store.h"

namespace kvstore::binding {

enum class Access { kRead, kWrite };

class Buffers {
 public:
  struct Block {
    size_t first = 0;  // of its segments
    uint32_t count = 0;
    uint64_t bytes = 0;
    int32_t memory_place = kHost;  // as of store::PutItem
  };

  // `stream`: a CUstream that what is given of a GPU is ordered with, whatever the objects say themselves.
  // `direct`: what may read a pool's devices straight into such memory.
  explicit Buffers(std::optional<uint64_t> stream = std::nullopt, std::shared_ptr<gpu::DirectPath> direct = nullptr)
      : stream_(stream), direct_(std::move(direct)) {}
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() { release(); }

  // Adds the segments of one block.
  Block add(nb::handle object, Access access, const Where& where);
  // Valid until the next add().
  const iovec* segments(const Block& block) const { return segments_.data() + block.first; }

  // Once all blocks are added: what reaches GPU memory among them, ordered behind its streams, which with `holds` wait
  // for the job. Null: it is all in host memory.
  std::shared_ptr<store::MemoryMover> begin_device_memory(store::Store& store, bool holds);

  // With one block added, in GPU memory: registers it with the direct path (csrc/gpu/direct_reads.h).
  Status register_device_memory(store::Store& store);
  void unregister_device_memory();

  // Gives everything back. Only when no I/O can touch the memory any more.
  void release();
  // Never gives anything back: the kernel may still write (close() with pieces outstanding, a forked child).
  void leak();
  bool empty() const { return exports_.empty() && objects_.empty(); }

 private:
  static constexpr int32_t kHost = -1;

  struct DevicePart {
    uint64_t pointer = 0;
    uint64_t bytes = 0;
    std::optional<int> device;       // as its object says
    std::optional<uint64_t> stream;  // that its bytes wait for
    bool is_ordered_by_us = false;   // `stream` is ours: its exporter made it wait
  };
  void add_device_memory(const DevicePart& part, const Where& where, Py_ssize_t segment);
  void add_cuda_array(nb::handle interface, nb::handle object, Access access, const Where& where, Py_ssize_t segment);

  void add_segment(nb::handle object, Access access, const Where& where, Py_ssize_t segment);
  void add_memory(const void* data, uint64_t bytes, const Where& where, Py_ssize_t segment);
  void add_pointer(nb::handle pair, const Where& where, Py_ssize_t segment);
  void add_export(nb::handle object, Access access, const Where& where, Py_ssize_t segment);
  void add_tensor(nb::handle object, const Where& where, Py_ssize_t segment);
  void add_dlpack(nb::handle object, Access access, const Where& where, Py_ssize_t segment);

  std::optional<uint64_t> stream_;
  std::shared_ptr<gpu::DirectPath> direct_;
  std::shared_ptr<gpu::DeviceMemory> device_memory_;
  int32_t place_of_segment_ = kHost;  // the one added last
  std::vector<iovec> segments_;
  std::deque<Py_buffer> exports_;  // a deque: a Py_buffer may point into itself, so it must not move
  std::vector<PyObject*> objects_;
};

}  // namespace kvstore::binding
