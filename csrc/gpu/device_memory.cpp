// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/device_memory.h"

#include "base/mutation.h"
#include "gpu/gpu_place.h"

namespace kvstore::gpu {

namespace {

// cuda.h's handles of the default streams are small numbers; 0 means the legacy one too.
cu::Stream stream_of(uint64_t handle) { return reinterpret_cast<cu::Stream>(handle); }

}  // namespace

Result<int> device_of_pointer(uint64_t pointer) {
  KVS_ASSIGN(const CudaDriver* const driver, CudaDriver::get());
  const std::string what = format_text("asking whose memory 0x%llx is", static_cast<unsigned long long>(pointer));
  uint32_t type = 0;
  KVS_TRY(
      driver->check(driver->pointer_attribute(&type, cu::kPointerMemoryType, pointer), "cuPointerGetAttribute", what));
  if (type == cu::kMemoryHost) return -1;
  int device = 0;
  KVS_TRY(driver->check(driver->pointer_attribute(&device, cu::kPointerDeviceOrdinal, pointer), "cuPointerGetAttribute",
                        what));
  return device;
}

DeviceMemory::~DeviceMemory() {
  job_ended();
  for (const auto& [gpu, event] : marks_) gpu->give_back(event);
}

Result<uint64_t> order_stream(int device) {
  KVS_ASSIGN(Bounce* const gpu, Bounce::of(device));
  return reinterpret_cast<uint64_t>(gpu->order_stream());
}

Result<uint32_t> DeviceMemory::place_of(int device, std::optional<uint64_t> stream, bool may_hold) {
  for (uint32_t i = 0; i < places_.size(); ++i) {
    if (places_[i].gpu->device() == device && places_[i].stream == stream) return i;
  }
  KVS_ASSIGN(Bounce* const gpu, Bounce::of(device));
  places_.push_back({gpu, stream, may_hold});
  return static_cast<uint32_t>(places_.size() - 1);
}

Status DeviceMemory::begin(bool holds) {
  for (const Place& place : places_) {
    if (place.stream && KVS_RULE(G1_the_job_waits_for_the_stream)) {
      KVS_ASSIGN(cu::Event const event, place.gpu->mark(stream_of(*place.stream)));
      marks_.emplace_back(place.gpu, event);
    }
  }
  // After all marks: one on the legacy default stream waits for other streams, and a held one would wait for the job.
  for (const Place& place : places_) {
    if (place.stream && place.may_hold && holds && direct_ != nullptr && direct_->waits_for_streams()) {
      return Status(
          Code::kUnsupported,
          "a get that its stream waits for, where gpu_engine is 'kvikio': KvikIO waits for the default stream, and "
          "so for what is held; use get(), or give no stream and wait for the job");
    }
    if (place.stream && place.may_hold && holds && KVS_RULE(G2_the_stream_waits_for_the_get)) {
      KVS_ASSIGN(const uint32_t slot, place.gpu->hold(stream_of(*place.stream)));
      holds_.emplace_back(place.gpu, slot);
    }
  }
  return {};
}

void DeviceMemory::when_ready(std::function<void()> ready) {
  std::vector<std::pair<Bounce*, cu::Event>> marks;
  marks.swap(marks_);
  std::erase_if(marks, [](const auto& mark) {
    if (!mark.first->has_happened(mark.second)) return false;
    mark.first->give_back(mark.second);
    return true;
  });
  if (marks.empty()) return ready();
  struct Countdown {
    std::atomic<size_t> left;
    std::function<void()> ready;
  };
  const auto countdown = std::make_shared<Countdown>();
  countdown->left = marks.size();
  countdown->ready = std::move(ready);
  for (const auto& [gpu, event] : marks) {
    gpu->when(event, [countdown] {
      if (countdown->left.fetch_sub(1) == 1) std::exchange(countdown->ready, nullptr)();
    });
  }
}

Status DeviceMemory::meet(std::span<const store::PoolDevice> devices) {
  for (const Place& place : places_) {
    if (direct_ != nullptr) {
      KVS_TRY(direct_->use(*place.gpu, devices));
    }
  }
  return {};
}

bool DeviceMemory::reads_directly(uint32_t place, uint16_t device, bool has_deadline) {
  if (direct_ == nullptr || (has_deadline && !direct_->takes_deadlines())) return false;
  const std::shared_ptr<DirectReads> direct = direct_->reads_of(places_[place].gpu->device());
  return direct != nullptr && direct->reads(device);
}

void DeviceMemory::refuse_direct(uint32_t place, uint16_t device, const Status& why) {
  direct_->reads_of(places_[place].gpu->device())->refuse(device, why);
}

void DeviceMemory::start(store::MemoryMove& move, store::MoveListener& listener) {
  Bounce* const gpu = places_[move.place].gpu;
  move.direct ? direct_->reads_of(gpu->device())->start(move, listener) : gpu->start(move, listener);
}

void DeviceMemory::job_ended() {
  if (ended_.exchange(true)) return;
  for (const auto& [gpu, slot] : holds_) gpu->let_go(slot);
}

// Of the first GPU: a process drives one as a rule, and staging is in one place.
int DeviceMemory::near_node() {
  if (places_.empty()) return -1;
  return numa_node_of_gpu(places_.front().gpu->driver(), places_.front().gpu->device());
}

Result<std::unique_ptr<store::PinnedMemory>> DeviceMemory::pin(void* base, uint64_t bytes) {
  if (places_.empty()) return Status(Code::kInvalid, "no GPU is known to pin memory for");
  return places_.front().gpu->pin(base, bytes);
}

}  // namespace kvstore::gpu
