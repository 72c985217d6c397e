// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// DirectReads: reads the devices of a pool by cuFile straight into the memory of one GPU, and hashes the pages there.
//
// One thread proves the path, then hands reads to cuFile, which runs on threads of its own, and what was read to a
// kernel, on a stream of its own; the GPU's Bounce tells when that has happened. Engines never wait for any of it.
//
// Guarantees: a device is read only after the same bytes of it were read through the host and were equal, and hashed by
// the kernel and by the CPU and were equal; else, or when refuse() is called, it is refused for good, with the reason.
// A read that was started ends exactly once, unless cuFile never returns: then its memory stays in use (I11), and this
// object must not be destroyed. Bounded: kReadsMax at once, others wait in order. It keeps descriptors of its own.
// Thread-safe.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/device.h"
#include "gpu/bounce.h"
#include "gpu/cufile.h"
#include "gpu/kernel_launch.h"
#include "store/memory_mover.h"
#include "store/own_thread.h"

namespace kvstore::gpu {

// What a device that reads into the memory of one GPU is made from.
struct DirectDeviceSetup {
  const CudaDriver* driver = nullptr;
  cu::Context context = nullptr;
  device::Device* host = nullptr;  // has a descriptor; outlives the device
  uint32_t threads = 0;
};
using MakeDirectDevice = std::function<Result<std::unique_ptr<device::Device>>(const DirectDeviceSetup&)>;

struct DirectOptions {
  bool through_host_too = false;  // also where cuFile says that it copies through host memory ("compat")
  uint32_t threads = 16;          // in cuFile; it has no queue of its own that could be filled without them
  // Null: make_cufile_device. Another library decides for itself, read by read, whether it copies through host memory,
  // and may wait for the default stream of the GPU.
  MakeDirectDevice make_device = nullptr;
  const CuFile* cufile = nullptr;            // null: the process's
  const KernelLauncher* launcher = nullptr;  // null: the process's
};

class DirectReads {
 public:
  static constexpr uint32_t kReadsMax = 64;
  static constexpr uint64_t kProofBytes = kMiB;

  // Begins to prove, with the first payload of each device; returns once what is needed of the GPU is there. The
  // devices may go then. Before a stream of that GPU is held: allocating may wait for all of them.
  static Result<std::unique_ptr<DirectReads>> make(Bounce& gpu, std::span<const store::PoolDevice> devices,
                                                   const DirectOptions& options);
  ~DirectReads();

  bool reads(uint16_t device) const {
    return device < sources_.size() && sources_[device]->proven.load(std::memory_order_acquire);
  }
  // Waits until all devices are proven or refused by the proof. The first of those refusals, or ok.
  Status wait_until_proven();
  // The same without waiting; empty while it is being proven.
  std::string state() const;

  // Memory of this GPU that reads go to again and again, registered with cuFile once, in buffers of 1 MiB: a read into
  // what is not registered is copied once more on the GPU, and cuFile knows only reads that begin where a buffer does.
  // All of it or nothing. Waits for the proof. kUnsupported: slower, never wrong.
  Status register_memory(void* base, uint64_t bytes);
  // Nothing may be read into it any more.
  void unregister_memory(void* base);

  void start(store::MemoryMove& move, store::MoveListener& listener);
  void refuse(uint16_t device, const Status& why);

 private:
  struct Source {
    std::unique_ptr<device::Device> host;  // by a descriptor of ours
    std::unique_ptr<device::Device> direct;
    uint64_t proof_offset_bytes = 0;
    bool through_host = false;
    uint16_t number_in_queue = 0;
    std::atomic<bool> proven{false};
    Status refusal;  // by the proof, or because it was wrong later; under mutex_
    Status proof;    // under mutex_
  };
  struct Read {
    device::IoRequest request;
    std::vector<iovec> rest;
    uint32_t attempts = 0;
    uint64_t* nodes = nullptr;  // pinned, of kPieceBytes
    cu::DevicePointer nodes_on_device = 0;
    store::MemoryMove* move = nullptr;
    store::MoveListener* listener = nullptr;
  };
  struct Started {
    store::MemoryMove* move;
    store::MoveListener* listener;
  };

  DirectReads(Bounce& gpu, const DirectOptions& options) : gpu_(gpu), options_(options) {}
  void run();
  Status prepare_gpu();
  Status prepare_reads();
  bool is_stopping();
  void prove(Source& source, cu::DevicePointer memory);
  Status prove_bytes(Source& source, cu::DevicePointer memory);
  Status prove_nodes(Source& source, cu::DevicePointer memory);
  Status make_queue();
  bool take_started();
  void serve(std::span<device::IoRequest*> completed);
  void begin(Read& read, const Started& started);
  void hash(Read& read);
  void end(Read& read, Status outcome);
  void deregister_buffers(void* base, uint64_t bytes);

  Bounce& gpu_;
  const DirectOptions options_;
  const CuFile* cufile_ = nullptr;
  const KernelLauncher* launcher_ = nullptr;
  cu::Stream stream_ = nullptr;
  std::vector<std::unique_ptr<Source>> sources_;
  std::unique_ptr<device::IoQueue> queue_;
  std::vector<Read> reads_;
  uint64_t* nodes_ = nullptr;
  cu::DevicePointer proof_memory_ = 0;
  std::deque<Started> waiting_;  // the thread's

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Started> started_;
  std::vector<Read*> free_reads_;
  bool is_settled_ = false;  // each device is proven or refused
  bool is_stopping_ = false;

  // Of its own: registering takes long, and reads go on meanwhile.
  std::mutex registered_mutex_;
  std::map<void*, uint64_t> registered_;  // bytes, by base

  store::OwnThread thread_;
};

}  // namespace kvstore::gpu
