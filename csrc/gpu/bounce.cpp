// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/bounce.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/mutation.h"

namespace kvstore::gpu {

namespace {

constexpr std::chrono::microseconds kLook{20};

// What a stream's host function waits for, where the GPU cannot wait by itself.
struct HostWait {
  uint32_t* slot;
  uint32_t value;
};

bool has_counted_to(uint32_t now, uint32_t value) { return static_cast<int32_t>(now - value) >= 0; }

void wait_on_host(void* argument) {
  const std::unique_ptr<HostWait> wait(static_cast<HostWait*>(argument));
  const std::atomic_ref<uint32_t> slot(*wait->slot);
  for (uint32_t now = slot.load(); !has_counted_to(now, wait->value); now = slot.load()) slot.wait(now);
}

class Pinned final : public store::PinnedMemory {
 public:
  explicit Pinned(Bounce& gpu) : gpu_(gpu) {}
  ~Pinned() override {
    const ContextScope scope(gpu_.driver(), gpu_.context());
    for (void* const piece : pieces_) (void)gpu_.driver().host_unregister(piece);
  }
  Status add(uint8_t* base, uint64_t bytes) {
    const ContextScope scope(gpu_.driver(), gpu_.context());
    KVS_TRY(scope.status());
    KVS_TRY(gpu_.driver().check(gpu_.driver().host_register(base, bytes, cu::kHostPortable), "cuMemHostRegister",
                                format_text("pinning %llu bytes", static_cast<unsigned long long>(bytes))));
    pieces_.push_back(base);
    return {};
  }

 private:
  Bounce& gpu_;
  std::vector<void*> pieces_;
};

}  // namespace

Result<Bounce*> Bounce::of(int device) {
  static std::mutex mutex;
  static auto* const all = new std::vector<Bounce*>;  // NOLINT: their threads go on until the process is gone
  KVS_ASSIGN(const CudaDriver* const driver, CudaDriver::get());
  if (device < 0 || device >= driver->devices()) {
    return Status(Code::kInvalid, format_text("GPU %d: this process sees %d", device, driver->devices()));
  }
  std::lock_guard lock(mutex);
  for (Bounce* const known : *all) {
    if (known->device() == device) return known;
  }
  std::unique_ptr<Bounce> made(new Bounce(*driver, device));
  Bounce* const gpu = made.get();
  KVS_TRY(gpu->prepare());
  KVS_TRY(gpu->thread_.start("kvs-gpu", [] { return Status(); }, [gpu] { gpu->run(); }));
  all->push_back(made.release());
  return all->back();
}

Status Bounce::prepare() {
  cu::Device handle = 0;
  const std::string what = format_text("GPU %d", device_);
  KVS_TRY(driver_.check(driver_.device_get(&handle, device_), "cuDeviceGet", what));
  KVS_TRY(driver_.check(driver_.primary_retain(&context_, handle), "cuDevicePrimaryCtxRetain", what));
  const ContextScope scope(driver_, context_);
  KVS_TRY(scope.status());
  KVS_TRY(driver_.check(driver_.stream_create(&to_device_, cu::kStreamNonBlocking), "cuStreamCreate", what));
  KVS_TRY(driver_.check(driver_.stream_create(&to_host_, cu::kStreamNonBlocking), "cuStreamCreate", what));
  KVS_TRY(driver_.check(driver_.stream_create(&order_, cu::kStreamNonBlocking), "cuStreamCreate", what));
  void* memory = nullptr;
  KVS_TRY(
      driver_.check(driver_.host_alloc(&memory, kHoldsMax * sizeof(uint32_t), cu::kHostPortable | cu::kHostDeviceMap),
                    "cuMemHostAlloc", what));
  slots_ = static_cast<uint32_t*>(memory);
  std::fill_n(slots_, kHoldsMax, 0);
  KVS_TRY(driver_.check(driver_.host_device_pointer(&slots_on_device_, memory, 0), "cuMemHostGetDevicePointer", what));
  for (uint32_t slot = kHoldsMax; slot-- > 0;) free_slots_.push_back(slot);
  gpu_can_wait_ = driver_.stream_wait_value32 != nullptr;
  return {};
}

// ---- events ----------------------------------------------------------------------------------------------------

// The context is current.
Result<cu::Event> Bounce::take_event() {
  {
    std::lock_guard lock(mutex_);
    if (!free_events_.empty()) {
      cu::Event const event = free_events_.back();
      free_events_.pop_back();
      return event;
    }
  }
  cu::Event event = nullptr;
  KVS_TRY(driver_.check(driver_.event_create(&event, cu::kEventDisableTiming), "cuEventCreate", "an event"));
  return event;
}

void Bounce::give_back(cu::Event event) {
  std::lock_guard lock(mutex_);
  free_events_.push_back(event);
}

Result<cu::Event> Bounce::mark(cu::Stream stream) {
  const ContextScope scope(driver_, context_);
  KVS_TRY(scope.status());
  KVS_ASSIGN(cu::Event const event, take_event());
  const Status recorded = driver_.check(driver_.event_record(event, stream), "cuEventRecord",
                                        format_text("ordering behind the stream, on GPU %d", device_));
  if (recorded.ok()) return event;
  give_back(event);
  return recorded;
}

bool Bounce::has_happened(cu::Event event) { return driver_.event_query(event) != cu::kNotReady; }

void Bounce::when(cu::Event event, std::function<void()> then) {
  {
    std::lock_guard lock(mutex_);
    new_awaited_.push_back({event, std::move(then)});
  }
  changed_.notify_one();
}

// ---- moves -----------------------------------------------------------------------------------------------------

void Bounce::start(store::MemoryMove& move, store::MoveListener& listener) {
  {
    std::lock_guard lock(mutex_);
    new_moves_.push_back({&move, &listener, nullptr});
  }
  changed_.notify_one();
}

void Bounce::run() {
  prctl(PR_SET_TIMERSLACK, 1'000);  // ns; 50 us by default, more than it sleeps for
  const ContextScope scope(driver_, context_);
  const auto has_more = [this] { return !new_moves_.empty() || !new_awaited_.empty(); };
  std::vector<Begun> moves;
  std::vector<Awaited> awaited;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (copies_to_device_.empty() && copies_to_host_.empty() && awaited_.empty()) {
        changed_.wait(lock, has_more);
      } else {
        changed_.wait_for(lock, kLook, has_more);
      }
      moves.swap(new_moves_);
      awaited.swap(new_awaited_);
    }
    for (Begun& one : moves) begin(one);
    moves.clear();
    for (Awaited& one : awaited) awaited_.push_back(std::move(one));
    awaited.clear();
    // All that is done, so that one look serves many copies.
    while (end_those_done(copies_to_device_) || end_those_done(copies_to_host_) || call_those_awaited()) {
    }
  }
}

void Bounce::begin(Begun one) {
  store::MemoryMove& move = *one.move;
  cu::Stream const stream = move.to_caller ? to_device_ : to_host_;
  uint8_t* host = move.host;
  for (const iovec& run : move.runs) {
    const auto pointer = reinterpret_cast<cu::DevicePointer>(run.iov_base);
    move.outcome = move.to_caller ? driver_.check(driver_.copy_to_device(pointer, host, run.iov_len, stream),
                                                  "cuMemcpyHtoDAsync", "copying into GPU memory")
                                  : driver_.check(driver_.copy_to_host(host, pointer, run.iov_len, stream),
                                                  "cuMemcpyDtoHAsync", "copying out of GPU memory");
    if (!move.outcome.ok()) break;
    host += run.iov_len;
  }
  // Of a move that failed some runs may be under way: it too ends with an event.
  Result<cu::Event> event = take_event();
  Status recorded = event.status();
  if (event.ok()) {
    one.event = event.value();
    recorded = driver_.check(driver_.event_record(one.event, stream), "cuEventRecord", "the end of a copy");
  }
  if (recorded.ok()) {
    (move.to_caller ? copies_to_device_ : copies_to_host_).push_back(one);
    return;
  }
  if (one.event != nullptr) give_back(one.event);
  (void)driver_.stream_synchronize(stream);  // an error of this one means that the context is gone, and its copies
  if (move.outcome.ok()) move.outcome = std::move(recorded);
  one.listener->move_ended(move);
}

// True when some have ended: they took a while to tell, and others may have ended meanwhile.
bool Bounce::end_those_done(std::deque<Begun>& copies) {
  bool any = false;
  while (!copies.empty()) {
    Begun& one = copies.front();
    const cu::Code code = driver_.event_query(one.event);
    if (code == cu::kNotReady && KVS_RULE(G3_a_move_ends_with_its_event)) break;
    if (one.move->outcome.ok() && code != cu::kNotReady) {
      one.move->outcome = driver_.check(code, "cuEventQuery", "a copy of GPU memory");
    }
    give_back(one.event);
    store::MoveListener* const listener = one.listener;
    store::MemoryMove* const move = one.move;
    copies.pop_front();
    listener->move_ended(*move);
    any = true;
  }
  return any;
}

bool Bounce::call_those_awaited() {
  std::vector<Awaited> happened;
  const auto first =
      std::partition(awaited_.begin(), awaited_.end(), [this](const Awaited& one) { return !has_happened(one.event); });
  std::move(first, awaited_.end(), std::back_inserter(happened));
  awaited_.erase(first, awaited_.end());
  for (Awaited& one : happened) {
    give_back(one.event);
    one.then();
  }
  return !happened.empty();
}

// ---- holding streams -------------------------------------------------------------------------------------------

Status Bounce::hold_by(cu::Stream stream, uint32_t slot, uint32_t value) {
  const ContextScope scope(driver_, context_);
  KVS_TRY(scope.status());
  if (gpu_can_wait_) {
    const cu::Code code =
        driver_.stream_wait_value32(stream, slots_on_device_ + slot * sizeof(uint32_t), value, cu::kWaitGreaterOrEqual);
    if (code != cu::kNotSupported) return driver_.check(code, "cuStreamWaitValue32", "holding the stream");
    gpu_can_wait_ = false;
  }
  // Costs a thread of the driver, which runs no other host function meanwhile.
  auto wait = std::make_unique<HostWait>(HostWait{&slots_[slot], value});
  KVS_TRY(driver_.check(driver_.launch_host_function(stream, wait_on_host, wait.get()), "cuLaunchHostFunc",
                        "holding the stream"));
  (void)wait.release();  // the function's
  return {};
}

Result<uint32_t> Bounce::hold(cu::Stream stream) {
  std::lock_guard lock(holds_mutex_);
  if (free_slots_.empty()) {
    return Status(Code::kBusy, format_text("%u streams of GPU %d are held by gets: wait for some", kHoldsMax, device_));
  }
  const uint32_t slot = free_slots_.back();
  KVS_TRY(hold_by(stream, slot, slots_[slot] + 1));
  free_slots_.pop_back();
  return slot;
}

void Bounce::let_go(uint32_t slot) {
  std::lock_guard lock(holds_mutex_);
  const std::atomic_ref<uint32_t> count(slots_[slot]);
  count.store(slots_[slot] + 1);
  count.notify_all();
  free_slots_.push_back(slot);
}

// ---- pinning ---------------------------------------------------------------------------------------------------

Result<std::unique_ptr<store::PinnedMemory>> Bounce::pin(void* base, uint64_t bytes, uint64_t piece_bytes_max) {
  auto pinned = std::make_unique<Pinned>(*this);
  for (uint64_t offset = 0; offset < bytes; offset += piece_bytes_max) {
    KVS_TRY(pinned->add(static_cast<uint8_t*>(base) + offset, std::min(piece_bytes_max, bytes - offset)));
  }
  return std::unique_ptr<store::PinnedMemory>(std::move(pinned));
}

}  // namespace kvstore::gpu
