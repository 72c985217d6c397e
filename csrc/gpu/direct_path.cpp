// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/direct_path.h"

namespace kvstore::gpu {

Status DirectPath::use(Bounce& gpu, std::span<const store::PoolDevice> devices) {
  if (mode_ == GpuDirect::kOff) return {};
  const auto outcome = [&]() -> Status {
    std::shared_ptr<DirectReads> reads;
    {
      std::lock_guard lock(mutex_);
      if (const auto failed = failures_.find(gpu.device()); failed != failures_.end()) return failed->second;
      std::shared_ptr<DirectReads>& known = by_gpu_[gpu.device()];
      if (known == nullptr) {
        Result<std::unique_ptr<DirectReads>> made = DirectReads::make(gpu, devices, options_);
        if (!made.ok()) {
          by_gpu_.erase(gpu.device());
          return failures_[gpu.device()] = made.status();
        }
        known = std::move(made).value();
      }
      reads = known;
    }
    return mode_ == GpuDirect::kOn ? reads->wait_until_proven() : Status();
  };
  const Status status = outcome();
  if (mode_ != GpuDirect::kOn || status.ok()) return {};
  return Status(Code::kUnsupported,
                format_text("gpu_direct is 'on' and GPU %d cannot be read into directly: %s; 'auto' goes through host "
                            "memory instead",
                            gpu.device(), status.message().c_str()));
}

void DirectPath::close() {
  decltype(by_gpu_) ended;  // after the lock: its end waits for threads, which may wait for who asks for the state
  std::lock_guard lock(mutex_);
  ended.swap(by_gpu_);
}

std::shared_ptr<DirectReads> DirectPath::reads_of(int gpu) {
  if (mode_ == GpuDirect::kOff) return nullptr;
  std::lock_guard lock(mutex_);
  const auto found = by_gpu_.find(gpu);
  return found == by_gpu_.end() ? nullptr : found->second;
}

std::string DirectPath::state() const {
  if (mode_ == GpuDirect::kOff) return "off";
  std::lock_guard lock(mutex_);
  std::string text;
  const auto add = [&text](int gpu, const std::string& state) {
    text += format_text("%sGPU %d: %s", text.empty() ? "" : "; ", gpu, state.c_str());
  };
  for (const auto& [gpu, reads] : by_gpu_) {
    const std::string state = reads->state();
    add(gpu, state.empty() ? "being proven" : state);
  }
  for (const auto& [gpu, failure] : failures_) add(gpu, "refused: " + failure.message());
  return text.empty() ? "not used yet" : text;
}

}  // namespace kvstore::gpu
