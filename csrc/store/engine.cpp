// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/engine.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>

#include "base/assert.h"
#include "base/mutation.h"
#include "base/numa.h"

namespace kvstore::store {

namespace {

constexpr uint64_t kTimeCheckNs = 20'000'000;
constexpr uint64_t kIdleWaitNs = 1'000'000'000;
constexpr uint64_t kDrainWaitNs = 1'000'000'000;
constexpr uint32_t kPiecesAlways = 16;  // a window smaller than this many pieces would starve the device
constexpr size_t kScanMax = 64;         // items looked past when the first ones' devices are full
constexpr uint64_t kStoreShare = 10;    // stores keep at least one tenth
constexpr uint32_t kCompletedMax = 32;  // collected per poll
constexpr uint64_t kLongWaitNs = 1'000'000;
constexpr uint32_t kShareMin = 4;  // fewer in flight are waited for one by one
constexpr uint64_t kSmallPieceBytes = 256 * kKiB;

uint64_t stage_bytes(const Item& item) {
  return item.stage == ItemStage::kPayload ? item.payload_bytes : page_table_bytes(item.payload_bytes);
}

bool wants_part(const Item& item) { return item.wanted_offset != 0 || item.wanted_bytes != item.payload_bytes; }

}  // namespace

Engine::Engine(const StoreOptions& options, Setup setup, Catalog& catalog, Counters& counters, Clock& clock)
    : options_(options),
      setup_(std::move(setup)),
      catalog_(catalog),
      counters_(counters),
      clock_(clock),
      queue_(std::move(setup_.queue)),
      staging_(options.staging_bytes),
      window_used_(setup_.devices.size()),
      window_pieces_(setup_.devices.size()),
      stores_wait_(setup_.devices.size()) {}

Engine::~Engine() {
  stop();
  join();
}

Status Engine::start() {
  const auto prepare = [this]() -> Status {
    if (!queue_) {
      KVS_ASSIGN(queue_, setup_.make_queue());
    }
    // Twice the depth: a completed piece keeps its slot until it is hashed, and must not hold up the refill.
    pieces_ = std::vector<Piece>(size_t{2} * queue_->depth());
    last_pages_ = AlignedBuffer(pieces_.size() * kPageBytes);
    for (size_t i = pieces_.size(); i-- > 0;) {
      Piece& piece = pieces_[i];
      piece.last_page = last_pages_.data() + i * kPageBytes;
      piece.vectors.reserve(kPieceBytes / kPageBytes + 1);
      piece.next = std::exchange(free_pieces_, &piece);
    }
    completed_.resize(kCompletedMax);
    memory_.add(staging_.arena().data(), staging_.arena().size());
    if (!queue_->register_buffers(memory_.pieces()).ok()) memory_ = {};
    return {};
  };
  if (!options_.threaded) return prepare();
  // SINGLE_ISSUER rings belong to the task that makes them: the queue is made on the engine's own thread.
  return thread_.start("kvs-engine", prepare, [this] { run(); });
}

void Engine::run() {
  while (!abandoned_.load(std::memory_order_acquire)) {
    if (stopping_.load(std::memory_order_acquire) && idle() && pieces_in_flight() == 0) break;
    turn(kIdleWaitNs);
  }
  // Somebody may wait for these.
  std::lock_guard lock(inbox_mutex_);
  ended_ = true;
  if (waiting_memory_request_) std::exchange(waiting_memory_request_, nullptr)(false);
  if (memory_request_) std::exchange(memory_request_, nullptr)(false);
}

void Engine::stop() {
  stopping_.store(true, std::memory_order_release);
  if (queue_) queue_->wake();
}

void Engine::abandon() {
  abandoned_.store(true, std::memory_order_release);
  if (queue_) queue_->wake();
}

// ---- hand-over -------------------------------------------------------------------------------------------------

void Engine::submit(std::vector<Item*> items, bool stores) {
  uint64_t load_bytes = 0;
  for (const Item* item : items) load_bytes += stores ? 0 : item->payload_bytes;
  busy_items_.fetch_add(items.size(), std::memory_order_acq_rel);
  queued_load_bytes_.fetch_add(load_bytes, std::memory_order_relaxed);
  {
    std::lock_guard lock(inbox_mutex_);
    inbox_.emplace_back(std::move(items), stores);
  }
  wake();
}

void Engine::cancel(BatchJob* job, int64_t item_or_all, Status why) {
  {
    std::lock_guard lock(inbox_mutex_);
    cancels_.push_back({JobRef(job), item_or_all, std::move(why)});
    cancels_waiting_.fetch_add(1, std::memory_order_acq_rel);
  }
  wake();
}

void Engine::wake() {
  inbox_filled_.store(true, std::memory_order_seq_cst);
  // Only a sleeping engine needs the system call; seq_cst on both sides, so that one of the two sees the other.
  if (sleeping_.load(std::memory_order_seq_cst) && queue_) queue_->wake();
}

Status Engine::set_memory(const MemoryMap& memory, int staging_node) {
  std::promise<Status> done;
  std::future<Status> outcome = done.get_future();
  Status moved;
  const auto apply = [&](bool drained) {
    if (!drained) {
      // What the ring knows by number is not what callers have any more: slower, never wrong.
      memory_ = MemoryMap{};
      done.set_value(Status(Code::kBusy, "memory cannot be registered while requests are stuck in the device"));
      return;
    }
    if (staging_node >= 0) {
      (void)queue_->register_buffers({});  // pages that the ring has pinned cannot be moved
      moved = move_to_numa_node(staging_.arena().data(), staging_.arena().size(), staging_node);
    }
    MemoryMap map = memory;
    map.add(staging_.arena().data(), staging_.arena().size());
    const Status registered = queue_->register_buffers(map.pieces());
    if (registered.ok()) {
      memory_ = std::move(map);
    } else {
      // What was registered and still may be: never what is being taken away, whose pages the caller frees next.
      memory_.keep_only(map);
      if (!queue_->register_buffers(memory_.pieces()).ok()) memory_ = MemoryMap{};  // slower, never wrong
    }
    done.set_value(registered.ok() ? std::move(moved) : registered);
  };
  if (!options_.threaded) {
    apply(true);
    return outcome.get();
  }
  {
    std::lock_guard lock(inbox_mutex_);
    if (ended_) return Status(Code::kClosed, "the engine has ended");
    memory_request_ = apply;
  }
  wake();
  return outcome.get();
}

void Engine::take_inbox() {
  if (!inbox_filled_.exchange(false, std::memory_order_seq_cst)) return;
  std::vector<std::pair<std::vector<Item*>, bool>> batches;
  std::vector<Piece*> moved;
  std::function<void(bool)> memory_request;
  {
    std::lock_guard lock(inbox_mutex_);
    batches.swap(inbox_);
    moved.swap(moved_);
    memory_request = std::exchange(memory_request_, nullptr);
  }
  if (memory_request) {
    waiting_memory_request_ = std::move(memory_request);
    memory_wait_since_ns_ = clock_.monotonic_ns();
  }
  for (auto& [items, stores] : batches) {
    std::deque<Item*>& list = stores ? stores_ : loads_;
    const int32_t priority = items.front()->job->options().priority;
    auto position = list.end();
    while (position != list.begin() && (*std::prev(position))->job->options().priority < priority &&
           (*std::prev(position))->phase == ItemPhase::kWaiting) {
      --position;
    }
    for (Item* item : items) {
      item->queued = true;
      if (!stores && item->job->deadline_at_ns() != UINT64_MAX) {
        // I11: it may have to answer before its device does.
        item->staged = KVS_RULE(I11_reads_with_a_deadline_are_staged);
        item->deadline_place = deadlines_.size();
        deadlines_.push_back(item);
      }
    }
    list.insert(position, items.begin(), items.end());
  }
  if (busy_since_ns_ == 0 && !loads_.empty()) {
    busy_since_ns_ = clock_.monotonic_ns();
    busy_bytes_ = 0;
  }
  for (Piece* const piece : moved) finish_move(*piece);
  apply_cancels();
}

// ---- one round -------------------------------------------------------------------------------------------------

bool Engine::turn(uint64_t wait_ns) {
  take_inbox();
  if (space_changed_.exchange(false, std::memory_order_acq_rel))
    std::fill(stores_wait_.begin(), stores_wait_.end(), false);
  bool progressed = fill();

  uint64_t timeout_ns = progressed ? 0 : wait_ns;
  if (queue_->in_flight() != 0) timeout_ns = wait_ns;  // the first completion ends the wait
  if (!deadlines_.empty() || queue_->in_flight() != 0) timeout_ns = std::min(timeout_ns, kTimeCheckNs);
  if (timeout_ns != 0) {
    sleeping_.store(true, std::memory_order_seq_cst);
    if (inbox_filled_.load(std::memory_order_seq_cst)) timeout_ns = 0;
  }
  if (done_first_ != nullptr) timeout_ns = 0;  // of prefetched blocks
  const uint64_t polled_ns = clock_.monotonic_ns();
  Result<uint32_t> count = queue_->poll(completed_, timeout_ns, completions_worth_waiting_for());
  sleeping_.store(false, std::memory_order_relaxed);
  if (!count.ok()) {
    catalog_.set_offline(Code::kIo, "the I/O queue failed: " + count.status().message());
    abandon();
    end_waiting_items(count.status());
    return false;
  }
  // A wake-up does not end a wait for several: on a slow device what is new would sit behind them.
  waited_in_vain_ = queue_->in_flight() != 0 && clock_.monotonic_ns() - polled_ns > kLongWaitNs;
  if (count.value() != 0) {
    collect({completed_.data(), count.value()});
    fill();
    (void)queue_->kick();  // before hashing: the device works meanwhile. A failure comes back from the next poll
    progressed = true;
  }
  while (Piece* piece = done_first_) {
    done_first_ = piece->next;
    if (done_first_ == nullptr) done_last_ = &done_first_;
    finish_piece(*piece);
  }
  check_times();
  return progressed;
}

// With many small pieces in flight a wake-up for each costs more than the piece: wait for a share of them, a smaller
// one while there is more to submit, so that the device does not run dry. Never once a wait for more has timed out:
// then some of what is in flight is stuck.
uint32_t Engine::completions_worth_waiting_for() const {
  const uint32_t in_flight = queue_->in_flight();
  if (in_flight < kShareMin || window_bytes_in_flight() > uint64_t{in_flight} * kSmallPieceBytes || waited_in_vain_)
    return 1;
  return loads_.empty() && stores_.empty() ? in_flight / 2 : in_flight / 8 + 1;
}

uint64_t Engine::window_bytes_in_flight() const {
  uint64_t bytes = 0;
  for (const uint64_t used : window_used_) bytes += used;
  return bytes;
}

bool Engine::has_window(uint16_t device, uint64_t bytes) const {
  return window_pieces_[device] < kPiecesAlways || window_used_[device] + bytes <= options_.window_bytes;
}

uint16_t Engine::local(uint16_t device_number) const {
  const auto& numbers = setup_.device_numbers;
  return static_cast<uint16_t>(std::find(numbers.begin(), numbers.end(), device_number) - numbers.begin());
}

Item* Engine::choose_item(bool& is_store) {
  const auto first_with_window = [this](const std::deque<Item*>& list, bool stores) -> Item* {
    const size_t scan = setup_.devices.size() == 1 ? std::min<size_t>(1, list.size()) : std::min(kScanMax, list.size());
    for (size_t i = 0; i < scan; ++i) {
      const bool begun = list[i]->phase != ItemPhase::kWaiting;
      const uint64_t bytes =
          std::min(kPieceBytes, begun ? list[i]->end_byte - list[i]->next_byte : list[i]->payload_bytes);
      if (stores && stores_wait_[local(list[i]->place.device)]) continue;
      if (has_window(local(list[i]->place.device), bytes)) return list[i];
    }
    return nullptr;
  };
  Item* load = first_with_window(loads_, false);
  Item* store = first_with_window(stores_, true);
  if (load == nullptr || store == nullptr) {
    if (loads_.empty() || stores_.empty()) contended_load_bytes_ = contended_store_bytes_ = 0;
    is_store = load == nullptr;
    return is_store ? store : load;
  }
  is_store = contended_store_bytes_ * (kStoreShare - 1) < contended_load_bytes_;
  return is_store ? store : load;
}

bool Engine::fill() {
  bool any = false;
  if (waiting_memory_request_) {
    // A ring takes new buffers only when no request uses the old ones: let the window drain first, but not for ever.
    const bool drained = queue_->in_flight() == 0;
    if (!drained && clock_.monotonic_ns() - memory_wait_since_ns_ < kDrainWaitNs) return false;
    std::exchange(waiting_memory_request_, nullptr)(drained);
    any = true;
  }
  any |= send_moved();
  while (free_pieces_ != nullptr && queue_->in_flight() + places_promised() < queue_->depth()) {
    bool is_store = false;
    Item* item = choose_item(is_store);
    if (item == nullptr || !submit_next_piece(*item, is_store)) break;
    any = true;
  }
  return any;
}

// ---- items -----------------------------------------------------------------------------------------------------

void Engine::begin_item(Item& item) {
  item.phase = ItemPhase::kRunning;
  item.failure = Code::kOk;
  item.next_byte = 0;
  const bool is_put = item.job->kind() == JobKind::kPut;
  const bool is_prefetched = item.prefetched.size() != 0;
  const bool needs_table = !is_put && item.page_hashes && wants_part(item) && !is_prefetched;
  item.stage = needs_table ? ItemStage::kReadTable : ItemStage::kPayload;
  item.end_byte = stage_bytes(item);
  item.went_direct = false;
  if (is_prefetched) item.verify = false;  // it was
  // G4: that a block was right once, read by the kernel, says nothing of other ways into other memory.
  if (!is_put && item.mover != nullptr && options_.verify == Verify::kFirstRead && !is_prefetched) item.verify = true;
  item.nodes.assign(ceil_div(item.payload_bytes, kPieceBytes), 0);
  if (item.page_hashes && (is_put || item.stage == ItemStage::kReadTable)) {
    item.pages.assign(ceil_div(item.payload_bytes, kPageBytes), 0);
  }
  if (!is_put && wants_part(item)) item.staged = true;
}

bool Engine::prepare_put(Item& item) {
  switch (catalog_.allocate(item, item.place.device)) {
    case Allocation::kGranted: item.allocated = true; return true;
    case Allocation::kWait: stores_wait_[local(item.place.device)] = true; return false;
    case Allocation::kBusy:
      refuse_put(item, Status(Code::kBusy,
                              format_text("no space for %llu bytes on device %u: every region is pinned, "
                                          "quarantined or failed",
                                          static_cast<unsigned long long>(item.payload_bytes), item.place.device)));
      return false;
    case Allocation::kRefused: refuse_put(item, catalog_.put_refusal()); return false;
  }
  return false;
}

// A put that was begun before a pause waits until the claim has been read back: its region may be another owner's.
bool Engine::may_go_on(Item& item) {
  const uint16_t device = item.place.device;
  if (catalog_.claim_is_fresh(device)) return true;
  if (const Status refusal = catalog_.put_refusal(); !refusal.ok()) {
    end_early(item, refusal);
    return false;
  }
  stores_wait_[local(device)] = true;
  catalog_.wake_keeper(device);
  return false;
}

void Engine::take_off(std::deque<Item*>& list, Item& item) {
  if (!std::exchange(item.queued, false)) return;
  // Nearly always the first.
  if (list.front() == &item) {
    list.pop_front();
  } else {
    std::erase(list, &item);
  }
}

void Engine::forget_deadline(Item& item) {
  if (item.deadline_place == Item::kNoDeadline) return;
  deadlines_.back()->deadline_place = item.deadline_place;
  deadlines_[item.deadline_place] = deadlines_.back();
  deadlines_.pop_back();
  item.deadline_place = Item::kNoDeadline;
}

void Engine::refuse_put(Item& item, const Status& why) {
  JobRef keep(item.job);
  take_off(stores_, item);
  catalog_.fail_put(item, false, false, why.code(), why.io_errno(), why.message());
  end_item(item);
}

bool Engine::submit_next_piece(Item& item, bool is_store) {
  if (item.phase == ItemPhase::kWaiting) {
    if (is_store && !prepare_put(item)) return true;
    begin_item(item);
  } else if (is_store && !may_go_on(item)) {
    return true;
  }
  const bool table = item.stage != ItemStage::kPayload;
  const auto number = static_cast<uint32_t>(item.next_byte / kPieceBytes);
  const uint64_t byte_count = std::min((uint64_t{number} + 1) * kPieceBytes, item.end_byte) - item.next_byte;
  const bool direct = !is_store && !table && may_go_direct(item, item.next_byte, byte_count);
  const bool staged = !direct && (table || item.staged || !item.pages_in_place);
  uint8_t* staging = nullptr;
  if (staged) {
    staging = staging_.take();
    if (staging == nullptr) return false;  // one of ours is on its way back: the queue is not empty
    staging_out_.store(staging_.buffers_out(), std::memory_order_relaxed);
  }
  Piece& piece = *free_pieces_;
  free_pieces_ = piece.next;
  piece.next = nullptr;
  piece.item = &item;
  piece.job = JobRef(item.job);
  piece.stage = item.stage;
  piece.staging = staging;
  piece.first_byte = item.next_byte;
  piece.number = number;
  piece.byte_count = byte_count;
  piece.transfer_bytes = align_up(piece.byte_count, kPageBytes);
  piece.attempts = 0;
  piece.stuck = false;
  piece.request = {};
  piece.request.op = is_store ? device::IoOp::kWrite : device::IoOp::kRead;
  piece.request.device_index = local(item.place.device);
  piece.request.offset_bytes = item.place.offset_bytes + item.next_byte;
  if (table) piece.request.offset_bytes += align_up(item.payload_bytes, kPageBytes);

  const bool moved_in = is_store && !table && item.mover != nullptr;
  if (moved_in) {
    piece.vectors.assign(1, {staging, piece.transfer_bytes});
    piece.last_page_bytes = 0;
    plan_move_in(piece);
    add(counters_.bytes_staged, piece.byte_count);
  } else if (item.stage == ItemStage::kWriteTable) {
    piece.vectors.assign(1, {staging, piece.transfer_bytes});
    piece.last_page_bytes = 0;
    std::memset(staging, 0, piece.transfer_bytes);
    std::memcpy(staging, reinterpret_cast<const uint8_t*>(item.pages.data()) + piece.first_byte, piece.byte_count);
  } else if (staged) {
    place_in_staging(piece, is_store);
    add(counters_.bytes_staged, piece.byte_count);
  } else if (direct) {
    plan_direct_read(piece);
    item.went_direct = true;
  } else {
    place_in_caller_memory(piece);
    if (is_store) fill_last_page(piece);
  }

  item.next_byte += piece.byte_count;
  ++item.pieces_in_flight;
  if (item.next_byte >= item.end_byte) {
    take_off(is_store ? stores_ : loads_, item);
  }
  if (!loads_.empty() && !stores_.empty()) {
    (is_store ? contended_store_bytes_ : contended_load_bytes_) += piece.transfer_bytes;
  }
  take_window(piece);
  moving_in_ += moved_in ? 1 : 0;
  if (item.prefetched.size() != 0) {
    copy_prefetched(piece);
  } else {
    moved_in || direct ? start_move(piece) : send(piece);
  }
  return true;
}

void Engine::take_window(Piece& piece) {
  window_used_[piece.request.device_index] += piece.transfer_bytes;
  ++window_pieces_[piece.request.device_index];
}

void Engine::give_window_back(const Piece& piece) {
  window_used_[piece.request.device_index] -= piece.transfer_bytes;
  --window_pieces_[piece.request.device_index];
}

void Engine::send(Piece& piece) {
  device::IoRequest& request = piece.request;
  // Metadata and superblocks are never an engine's to touch.
  KVS_ASSERT(request.offset_bytes >= catalog_.shape(piece.item->place.device).geometry.data_offset);
  request.owner = &piece;
  if (piece.attempts == 0) {
    request.segments = piece.vectors.data();
    request.segment_count = static_cast<uint32_t>(piece.vectors.size());
    request.buffer_index =
        piece.vectors.size() == 1 ? memory_.find(piece.vectors[0].iov_base, piece.vectors[0].iov_len) : -1;
    if (request.buffer_index >= 0) add(counters_.pieces_fixed);
  }
  piece.submitted_ns = clock_.monotonic_ns();
  piece.state = PieceState::kInFlight;
  pieces_in_flight_.fetch_add(1, std::memory_order_relaxed);
  // Room was checked by fill(); a resubmission uses the place its completion has just left.
  if (!queue_->submit(&request)) {
    request.result = -EBUSY;
    device::IoRequest* refused = &request;
    collect({&refused, 1});
  }
}

void Engine::collect(std::span<device::IoRequest*> completed) {
  for (device::IoRequest* request : completed) {
    Piece& piece = *static_cast<Piece*>(request->owner);
    pieces_in_flight_.fetch_sub(1, std::memory_order_relaxed);
    const bool timed_out = std::exchange(piece.stuck, false);
    if (timed_out) {
      if (request->op == device::IoOp::kWrite) catalog_.write_outcome_known(piece.item->place.region);
    }
    const int64_t result = request->result;
    piece.outcome = device::advance_after_completion(*request, piece.rest, piece.attempts);
    // I6: a timed-out write is never retried into the same extent.
    if (timed_out && request->op == device::IoOp::kWrite && piece.outcome == device::IoOutcome::kRetry &&
        KVS_RULE(I6_a_timed_out_write_is_not_retried)) {
      piece.outcome = device::IoOutcome::kFailed;
    }
    if (piece.outcome == device::IoOutcome::kRetry) {
      add(counters_.io_retries);
      send(piece);
      continue;
    }
    request->result = result;
    put_in_line(piece);
  }
}

void Engine::put_in_line(Piece& piece) {
  give_window_back(piece);
  piece.state = PieceState::kCompleted;
  piece.next = nullptr;
  *done_last_ = &piece;
  done_last_ = &piece.next;
}

// Into pinned staging, from where the mover takes it as it does what was read.
void Engine::copy_prefetched(Piece& piece) {
  std::memcpy(piece.staging, piece.item->prefetched.data() + piece.first_byte, piece.byte_count);
  piece.outcome = device::IoOutcome::kDone;
  put_in_line(piece);
}

void Engine::free_piece(Piece& piece) {
  if (piece.staging != nullptr) {
    staging_.give_back(std::exchange(piece.staging, nullptr));
    staging_out_.store(staging_.buffers_out(), std::memory_order_relaxed);
  }
  piece.item = nullptr;
  piece.state = PieceState::kFree;
  piece.job = {};
  piece.next = std::exchange(free_pieces_, &piece);
}

void Engine::finish_piece(Piece& piece) {
  Item& item = *piece.item;
  const bool is_put = item.job->kind() == JobKind::kPut;
  // I6: also of a put that was canceled.
  const bool counts = item.failure == Code::kOk || KVS_RULE(I6_a_canceled_write_that_fails_seals);
  // EFAULT is the caller's memory, unmapped or protected: the device was not asked, and nothing of it is to blame.
  const bool bad_memory = piece.request.result == -EFAULT;
  if (piece.outcome == device::IoOutcome::kFailed && counts && !bad_memory) item.device_failed = true;
  if (piece.outcome == device::IoOutcome::kFailed && item.failure == Code::kOk) {
    const int64_t result = piece.request.result;
    item.failure = bad_memory ? Code::kInvalid : Code::kIo;
    item.failure_errno = result < 0 ? static_cast<int>(-result) : EIO;
    item.failure_text = format_text("%s failed: region %u slot %u of %s (offset %llu, %llu bytes): %s",
                                    is_put ? "write" : "read", item.place.region_id.value, item.place.slot.value,
                                    setup_.devices[piece.request.device_index]->info().path.c_str(),
                                    static_cast<unsigned long long>(piece.request.offset_bytes),
                                    static_cast<unsigned long long>(piece.transfer_bytes),
                                    bad_memory   ? "the memory given cannot be used (EFAULT): is all of it mapped?"
                                    : result < 0 ? std::strerror(item.failure_errno)
                                                 : "stopped short");
    if (!bad_memory) add(is_put ? counters_.write_errors : counters_.read_errors);
  }
  if (item.failure == Code::kOk && !(item.retired && KVS_RULE(I11_nothing_is_copied_after_the_deadline))) {
    is_put ? finish_write_piece(piece) : finish_read_piece(piece);
  }
  if (piece.state != PieceState::kMoving) piece_over(piece);
}

// Nothing of the piece is under way any more.
void Engine::piece_over(Piece& piece) {
  Item& item = *piece.item;
  --item.pieces_in_flight;
  if (item.failure != Code::kOk) take_off(item.job->kind() == JobKind::kPut ? stores_ : loads_, item);
  JobRef keep(item.job);
  free_piece(piece);
  if (item.pieces_in_flight <= (KVS_RULE(I8_after_the_last_piece) ? 0 : 1) && !item.queued) item_pieces_done(item);
}

// ---- memory that the CPU does not reach ------------------------------------------------------------------------

bool Engine::may_go_direct(const Item& item, uint64_t first, uint64_t count) const {
  if (item.mover == nullptr || item.by_staging || item.prefetched.size() != 0) return false;
  const bool has_deadline = item.job->deadline_at_ns() != UINT64_MAX;
  return wants_whole_pages(item, first, count) &&
         item.mover->reads_directly(item.memory_place, item.place.device, has_deadline);
}

void Engine::start_move(Piece& piece) {
  piece.state = PieceState::kMoving;
  piece.move.outcome = {};
  piece.move.owner = &piece;
  pieces_in_flight_.fetch_add(1, std::memory_order_relaxed);  // I11: staging and the caller's memory are in use
  if (piece.move.to_caller) ++piece.item->pieces_moving;
  piece.item->mover->start(piece.move, *this);
}

void Engine::move_ended(MemoryMove& move) {
  // The wake-up too: once the engine can take the piece, the job may end, and the store be closed and gone.
  std::lock_guard lock(inbox_mutex_);
  moved_.push_back(static_cast<Piece*>(move.owner));
  wake();
}

void Engine::finish_move(Piece& piece) {
  Item& item = *piece.item;
  pieces_in_flight_.fetch_sub(1, std::memory_order_relaxed);
  piece.state = PieceState::kCompleted;
  if (piece.move.direct) return finish_direct_read(piece);
  if (piece.move.to_caller) {
    --item.pieces_moving;
  } else {
    --moving_in_;
  }
  if (piece.move.outcome.ok()) {
    add(counters_.bytes_bounced, piece.byte_count);
  } else if (item.failure == Code::kOk) {
    item.failure = Code::kInvalid;  // the memory given cannot be used; nothing of the store is to blame (I6)
    item.failure_text = piece.move.outcome.message();
  }
  if (piece.move.to_caller) return piece_over(piece);
  to_write_.push_back(&piece);
}

void Engine::finish_direct_read(Piece& piece) {
  Item& item = *piece.item;
  --item.pieces_moving;
  give_window_back(piece);
  if (piece.move.outcome.ok()) {
    add(piece.move.read.through_host ? counters_.bytes_compat : counters_.bytes_direct, piece.byte_count);
    if (item.failure == Code::kOk) read_was(piece, piece.move.read.nodes);
  } else if (item.failure == Code::kOk) {
    item.failure = Code::kIo;
    item.direct_failure = piece.move.outcome;
  }
  piece_over(piece);
}

// Puts' pieces that are in staging now go to the device; the claim may have grown old meanwhile.
bool Engine::send_moved() {
  bool any = false;
  while (!to_write_.empty()) {
    Piece& piece = *to_write_.front();
    Item& item = *piece.item;
    // Without a fresh claim it waits, or has failed by now.
    if (item.failure == Code::kOk && !may_go_on(item) && item.failure == Code::kOk) break;
    to_write_.pop_front();
    any = true;
    if (item.failure == Code::kOk) {
      send(piece);
    } else {
      give_window_back(piece);
      piece_over(piece);
    }
  }
  return any;
}

void Engine::finish_read_piece(Piece& piece) {
  Item& item = *piece.item;
  if (piece.stage == ItemStage::kReadTable) {
    add(counters_.bytes_read_payload, piece.transfer_bytes);
    busy_bytes_ += piece.transfer_bytes;
    std::memcpy(reinterpret_cast<uint8_t*>(item.pages.data()) + piece.first_byte, piece.staging, piece.byte_count);
    return;
  }
  uint64_t nodes[kPieceBytes / kPageBytes];
  const uint32_t count = item.verify ? piece_page_nodes(piece, nodes) : 0;
  read_was(piece, {nodes, count});
  if (item.failure != Code::kOk) return;
  if (item.mover != nullptr) {
    if (plan_move_out(piece)) start_move(piece);
  } else {
    piece.staging != nullptr ? copy_out_staging(piece) : copy_out_last_page(piece);
  }
}

// The piece's payload is in memory; `nodes` are those of its pages, where they are to be verified.
void Engine::read_was(Piece& piece, std::span<const uint64_t> nodes) {
  Item& item = *piece.item;
  if (item.prefetched.size() != 0) return;
  add(counters_.bytes_read_payload, piece.transfer_bytes);
  busy_bytes_ += piece.transfer_bytes;
  if (!item.verify) return;
  if (item.pages.empty()) {
    item.nodes[piece.number] = piece_node_of_pages(nodes);
  } else if (std::memcmp(nodes.data(), item.pages.data() + piece.first_byte / kPageBytes, nodes.size_bytes()) != 0 &&
             KVS_RULE(I5_pages_are_checked)) {
    item.failure = Code::kCorrupt;  // the table was verified against the root; these pages do not match it
  }
}

void Engine::finish_write_piece(Piece& piece) {
  Item& item = *piece.item;
  add(counters_.bytes_written_payload, piece.transfer_bytes);
  if (piece.stage == ItemStage::kWriteTable) return;
  uint64_t nodes[kPieceBytes / kPageBytes];
  const uint32_t count = piece_page_nodes(piece, nodes);
  item.nodes[piece.number] = piece_node_of_pages({nodes, count});
  if (item.page_hashes)
    std::copy_n(nodes, count, item.pages.begin() + static_cast<std::ptrdiff_t>(piece.first_byte / kPageBytes));
}

// Every piece of the item's stage is back.
void Engine::item_pieces_done(Item& item) {
  JobRef keep(item.job);
  if (item.retired) {
    catalog_.end_read(item);
    end_item(item);
    return;
  }
  if (item.job->kind() != JobKind::kPut) {
    finish_read(item);
    return;
  }
  if (item.failure != Code::kOk && KVS_RULE(I8_a_failed_put_is_not_visible)) {
    catalog_.fail_put(item, true, item.device_failed, item.failure, item.failure_errno, item.failure_text);
  } else if (item.page_hashes && item.stage == ItemStage::kPayload) {
    item.stage = ItemStage::kWriteTable;
    item.next_byte = 0;
    item.end_byte = stage_bytes(item);
    item.queued = true;
    stores_.push_front(&item);
    fill();
    return;
  } else {
    item.checksum = item_root(item);
    catalog_.finish_put(item);
  }
  end_item(item);
}

void Engine::finish_read(Item& item) {
  const auto start_over = [&] {
    begin_item(item);
    item.queued = true;
    loads_.push_front(&item);
    fill();
  };
  const auto again = [&] {
    item.reread = true;
    start_over();
  };
  if (item.failure == Code::kOk && item.stage == ItemStage::kReadTable) {
    for (size_t i = 0; i < item.nodes.size(); ++i) {
      const size_t first = i * (kPieceBytes / kPageBytes);
      const size_t count = std::min<size_t>(kPieceBytes / kPageBytes, item.pages.size() - first);
      item.nodes[i] = piece_node_of_pages({item.pages.data() + first, count});
    }
    if (item_root(item) == item.checksum || !KVS_RULE(I5_the_table_is_checked)) {
      item.stage = ItemStage::kPayload;
      item.next_byte = align_down(item.wanted_offset, kPageBytes);
      item.end_byte = std::min(align_up(item.wanted_offset + item.wanted_bytes, kPageBytes), item.payload_bytes);
      item.verify = true;
      item.queued = true;
      loads_.push_front(&item);
      fill();
      return;
    }
    item.failure = Code::kCorrupt;
  }
  const bool by_root = item.verify && item.pages.empty() && KVS_RULE(I5_the_engine_checks) &&
                       (!item.went_direct || KVS_RULE(G4_what_was_read_directly_is_verified));
  if (item.failure == Code::kOk && by_root && item_root(item) != item.checksum) item.failure = Code::kCorrupt;
  if (item.went_direct && item.failure == Code::kCorrupt) {
    item.direct_failure = Status(Code::kCorrupt, "it read other bytes than were put");
  }
  if (item.went_direct && !item.direct_failure.ok() && (item.failure == Code::kCorrupt || item.failure == Code::kIo) &&
      KVS_RULE(G4_staging_has_the_last_word)) {
    item.by_staging = true;  // a direct read says nothing of the block: one through staging does
    item.pages.clear();
    return start_over();
  }
  if (item.failure != Code::kOk) item.direct_failure = {};  // the block is to blame, or the device

  ItemResult result{.status = ItemStatus::kHit, .bytes = item.wanted_bytes};
  if (item.failure == Code::kOk) {
    if (!item.direct_failure.ok() && KVS_RULE(G4_a_wrong_path_is_not_taken_again)) {
      item.mover->refuse_direct(item.memory_place, item.place.device, item.direct_failure);
    }
    add(counters_.hits);
    add(counters_.bytes_got, item.wanted_bytes);
    if (options_.verify == Verify::kFirstRead && item.verify) catalog_.mark_verified(item);
    catalog_.end_read(item);
    item.job->complete_item(item, result);
  } else if (item.failure == Code::kCorrupt) {
    // I5: re-read once, then remove the entry if it is still there; a miss either way, unless an older copy is (I12).
    add(counters_.checksum_mismatches);
    catalog_.doubt_ownership(item.place.device);
    item.pages.clear();
    if (!item.reread && KVS_RULE(I5_a_mismatch_is_read_once_more)) return again();
    add(counters_.checksum_misses);
    const bool another_copy = catalog_.drop_corrupt(item);
    catalog_.end_read(item);
    if (another_copy) {
      item.phase = ItemPhase::kWaiting;
      const uint64_t counted_bytes = item.payload_bytes;  // in queued_load_bytes_
      catalog_.begin_reads({&item, 1}, Verify::kAlways);
      queued_load_bytes_.fetch_add(item.payload_bytes - counted_bytes, std::memory_order_relaxed);  // may be less
      // What was wanted was worked out from the other copy's size. Of one of another size it would be a piece.
      const bool same_size = item.payload_bytes == counted_bytes || !KVS_RULE(I12_no_duplicate_of_another_size);
      // One on a device of another engine is for the next get: it has become the one that lookups find.
      const bool is_mine = local(item.place.device) < setup_.devices.size();
      if (item.phase == ItemPhase::kWaiting && same_size && is_mine) return again();
      if (item.phase == ItemPhase::kWaiting) catalog_.end_read(item);
    }
    add(counters_.misses);
    item.job->complete_item(item, {.status = ItemStatus::kMiss});
  } else {
    if (item.failure == Code::kIo) {
      if (!item.reread && KVS_RULE(I9_eio_is_read_once_more)) return again();
      catalog_.mark_suspect(item);
    }
    catalog_.end_read(item);
    item.job->complete_item(item, {.status = ItemStatus::kError, .code = item.failure, .io_errno = item.failure_errno},
                            item.failure_text);
  }
  end_item(item);
}

void Engine::end_item(Item& item) {
  item.phase = ItemPhase::kFinished;
  item.prefetched = {};
  if (item.job->kind() != JobKind::kPut) {
    queued_load_bytes_.fetch_sub(item.payload_bytes, std::memory_order_relaxed);
    forget_deadline(item);
  }
  if (busy_items_.fetch_sub(1, std::memory_order_acq_rel) == 1 && busy_since_ns_ != 0) {
    const uint64_t elapsed_ns = clock_.monotonic_ns() - busy_since_ns_;
    busy_since_ns_ = 0;
    if (elapsed_ns != 0 && busy_bytes_ >= kPieceBytes) {
      load_rate_.store(static_cast<uint64_t>(static_cast<double>(busy_bytes_) * 1e9 / static_cast<double>(elapsed_ns)),
                       std::memory_order_relaxed);
    }
  }
}

// ---- ends before their time ------------------------------------------------------------------------------------

void Engine::apply_cancels() {
  std::vector<Cancel> cancels;
  {
    std::lock_guard lock(inbox_mutex_);
    cancels.swap(cancels_);
  }
  for (Cancel& cancel : cancels) {
    auto* job = static_cast<BatchJob*>(cancel.job.get());
    // Those that wait, in one pass: item by item a large batch would hold up everybody else for seconds.
    std::vector<Item*> waiting;
    for (std::deque<Item*>* list : {&loads_, &stores_}) {
      std::erase_if(*list, [&](Item* item) {
        if (item->job != job || (cancel.item >= 0 && cancel.item != item->number)) return false;
        waiting.push_back(item);
        return true;
      });
    }
    for (Item* item : waiting) {
      item->queued = false;
      add(counters_.canceled);
      end_early(*item, cancel.why);
    }
    for (Item& item : job->items()) {
      if (cancel.item >= 0 && cancel.item != item.number) continue;
      if (local(item.place.device) >= setup_.devices.size()) continue;  // another engine's to read
      if (item.phase == ItemPhase::kFinished || item.retired) continue;
      if (item.pieces_in_flight == 0) continue;         // not handed over
      if (item.failure == cancel.why.code()) continue;  // just now
      add(counters_.canceled);
      end_early(item, cancel.why);
    }
    cancels_waiting_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

// Ends an item before its last piece was submitted; with pieces in flight it ends with the last of those.
void Engine::end_early(Item& item, const Status& why) {
  const bool is_put = item.job->kind() == JobKind::kPut;
  take_off(is_put ? stores_ : loads_, item);
  item.failure = why.code();
  item.failure_errno = why.io_errno();
  item.failure_text = why.message();
  if (item.pieces_in_flight != 0 && KVS_RULE(I11_a_cancel_waits_for_the_device)) return;
  JobRef keep(item.job);
  if (is_put) {
    catalog_.fail_put(item, item.allocated, false, item.failure, item.failure_errno, item.failure_text);
    end_item(item);
  } else {
    item.reread = true;  // no second attempt
    finish_read(item);
  }
}

void Engine::end_waiting_items(const Status& why) {
  take_inbox();
  while (!loads_.empty()) end_early(*loads_.front(), why);
  while (!stores_.empty()) end_early(*stores_.front(), why);
}

void Engine::check_times() {
  if (deadlines_.empty() && pieces_in_flight() == 0) return;
  const uint64_t now_ns = clock_.monotonic_ns();
  if (now_ns < next_time_check_ns_) return;
  next_time_check_ns_ = now_ns + kTimeCheckNs / 4;
  std::vector<Item*> late;
  // I11: while a mover writes the caller's memory the caller is not told that the read has ended.
  const auto is_late = [now_ns](const Item* item) {
    return item->job->deadline_at_ns() <= now_ns && item->pieces_moving == 0;
  };
  for (Item* item : deadlines_) {
    if (is_late(item)) late.push_back(item);
  }
  if (!late.empty()) std::erase_if(loads_, is_late);
  for (Item* one : late) {
    // I11: the wait ends, the pieces do not: they are in staging of ours and go back to it when they complete.
    Item& item = *one;
    JobRef keep(item.job);
    forget_deadline(item);
    item.queued = false;
    item.retired = true;
    add(counters_.deadline_misses);
    item.job->complete_item(item, {.status = ItemStatus::kError, .code = Code::kTimeout},
                            "the deadline passed before the read completed");
    if (item.pieces_in_flight == 0 || !KVS_RULE(I11_pins_outlast_the_deadline)) item_pieces_done(item);
  }
  for (Piece& piece : pieces_) {
    if (piece.state != PieceState::kInFlight || piece.stuck || now_ns - piece.submitted_ns < options_.io_timeout_ns)
      continue;
    piece.stuck = true;
    add(counters_.io_stuck);
    if (piece.request.op == device::IoOp::kWrite) catalog_.write_outcome_unknown(piece.item->place.region);
  }
}

std::vector<std::string> Engine::describe_in_flight() {
  std::vector<std::string> described;
  for (const Piece& piece : pieces_) {
    if (piece.state == PieceState::kMoving) {
      described.push_back(format_text("a move of %llu bytes %s GPU memory",
                                      static_cast<unsigned long long>(piece.byte_count),
                                      piece.move.to_caller ? "into" : "out of"));
    }
    if (piece.state != PieceState::kInFlight) continue;
    described.push_back(format_text("%s of %llu bytes at offset %llu of %s",
                                    piece.request.op == device::IoOp::kWrite ? "write" : "read",
                                    static_cast<unsigned long long>(piece.transfer_bytes),
                                    static_cast<unsigned long long>(piece.request.offset_bytes),
                                    setup_.devices[piece.request.device_index]->info().path.c_str()));
  }
  return described;
}

}  // namespace kvstore::store
