// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Engine: moves the payload of jobs between memory and its devices, on one thread with one queue.
//
// Order: loads before stores (stores keep at least a tenth of the bytes while both wait), jobs in order of arrival
// within a priority, the pieces of one job before those of the next (P4). Each device has a window of bytes in flight,
// and a completed piece is hashed after the queue was refilled, so that the device never waits for a checksum.
//
// Guarantees: I5 (every read verified before it is a hit), I9 (short and -EAGAIN are a retry of the rest), I11 (a
// piece holds its job, and so its buffers, until its completion). Bounded: pieces, staging and window are fixed at
// open.

#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "device/device.h"
#include "store/catalog.h"
#include "store/memory_map.h"
#include "store/memory_mover.h"
#include "store/own_thread.h"
#include "store/piece.h"
#include "store/staging.h"

namespace kvstore::store {

class Engine : public MoveListener {
 public:
  struct Setup {
    std::vector<device::Device*> devices;    // that this engine serves
    std::vector<uint16_t> device_numbers;    // their numbers in the pool
    std::unique_ptr<device::IoQueue> queue;  // over `devices`; null: made on the engine's thread by make_queue
    std::function<Result<std::unique_ptr<device::IoQueue>>()> make_queue;
  };
  Engine(const StoreOptions& options, Setup setup, Catalog& catalog, Counters& counters, Clock& clock);
  ~Engine() override;

  Status start();  // spawns the thread (threaded stores); returns when its queue exists
  // Asks the thread to end when nothing is in flight or abandon() was called.
  void stop();
  // Ends the thread with pieces in flight; what they touch is leaked by the caller.
  void abandon();
  void join() {
    thread_.join([this] { return pieces_in_flight() != 0; });
  }

  // Any thread. Items of one job, in order; the job must be referenced by its owner until complete.
  void submit(std::vector<Item*> items, bool stores);
  void cancel(BatchJob* job, int64_t item_or_all, Status why);
  // Cancels that were asked for and not carried out yet. Any thread.
  uint32_t cancels_waiting() const { return cancels_waiting_.load(std::memory_order_acquire); }
  void wake();
  // A region opened, sealed or became free: puts that wait may go on.
  void space_changed() {
    space_changed_.store(true, std::memory_order_release);
    wake();
  }

  // Replaces the registered memory. Blocks until the engine thread did it. Engine staging is always part of it; with a
  // `staging_node` its pages are moved to that NUMA node first.
  Status set_memory(const MemoryMap& memory, int staging_node = -1);

  void move_ended(MemoryMove& move) override;
  AlignedBuffer& staging_arena() { return staging_.arena(); }

  // One round: take what came in, fill the window, collect completions, hash. Waits at most wait_ns for something
  // to do. True when anything happened. The engine's thread, or the caller's when not threaded.
  bool turn(uint64_t wait_ns);

  bool idle() const { return busy_items_.load(std::memory_order_acquire) == 0; }
  uint64_t queued_load_bytes() const { return queued_load_bytes_.load(std::memory_order_relaxed); }
  // Bytes a second over the last busy stretch; 0: not known yet.
  uint64_t load_rate() const { return load_rate_.load(std::memory_order_relaxed); }
  uint32_t pieces_in_flight() const { return pieces_in_flight_.load(std::memory_order_relaxed); }
  uint64_t staging_out() const { return staging_out_.load(std::memory_order_relaxed); }
  std::vector<std::string> describe_in_flight();

 private:
  void broken(const char* condition, const char* file, int line) noexcept { catalog_.broken(condition, file, line); }
  void run();
  void take_inbox();
  bool fill();
  Item* choose_item(bool& is_store);
  bool submit_next_piece(Item& item, bool is_store);
  bool prepare_put(Item& item);
  bool may_go_on(Item& item);
  void take_off(std::deque<Item*>& list, Item& item);
  void forget_deadline(Item& item);
  void refuse_put(Item& item, const Status& why);
  void send(Piece& piece);
  void copy_prefetched(Piece& piece);
  void put_in_line(Piece& piece);  // to be finished
  void collect(std::span<device::IoRequest*> completed);
  void finish_piece(Piece& piece);
  void piece_over(Piece& piece);
  bool may_go_direct(const Item& item, uint64_t first, uint64_t count) const;
  void start_move(Piece& piece);
  void finish_move(Piece& piece);
  void finish_direct_read(Piece& piece);
  bool send_moved();
  // Places in the queue that pieces of puts will take once they are in staging.
  uint32_t places_promised() const { return moving_in_ + static_cast<uint32_t>(to_write_.size()); }
  void take_window(Piece& piece);
  void give_window_back(const Piece& piece);
  void finish_read_piece(Piece& piece);
  void read_was(Piece& piece, std::span<const uint64_t> nodes);
  void finish_write_piece(Piece& piece);
  void item_pieces_done(Item& item);
  void finish_read(Item& item);
  void begin_item(Item& item);
  void end_item(Item& item);
  void apply_cancels();
  void end_early(Item& item, const Status& why);
  void end_waiting_items(const Status& why);
  void check_times();
  void free_piece(Piece& piece);
  uint32_t completions_worth_waiting_for() const;
  uint64_t window_bytes_in_flight() const;
  bool has_window(uint16_t device, uint64_t bytes) const;
  uint16_t local(uint16_t device_number) const;

  const StoreOptions& options_;
  Setup setup_;
  Catalog& catalog_;
  Counters& counters_;
  Clock& clock_;

  std::unique_ptr<device::IoQueue> queue_;
  OwnThread thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> abandoned_{false};
  std::atomic<bool> sleeping_{false};

  std::mutex inbox_mutex_;
  std::vector<std::pair<std::vector<Item*>, bool>> inbox_;
  struct Cancel {
    JobRef job;
    int64_t item;
    Status why;
  };
  std::vector<Cancel> cancels_;
  std::vector<Piece*> moved_;  // their moves have ended
  std::atomic<uint32_t> cancels_waiting_{0};
  std::function<void(bool)> memory_request_;          // from the inbox
  std::function<void(bool)> waiting_memory_request_;  // the engine's: until nothing is in flight, true, or given up
  uint64_t memory_wait_since_ns_ = 0;
  bool ended_ = false;  // the thread took its last request
  std::atomic<bool> inbox_filled_{false};

  std::deque<Item*> loads_;
  std::deque<Item*> stores_;
  std::atomic<bool> space_changed_{false};
  uint64_t contended_load_bytes_ = 0;
  uint64_t contended_store_bytes_ = 0;

  StagingPool staging_;
  MemoryMap memory_;
  AlignedBuffer last_pages_;
  std::vector<Piece> pieces_;
  Piece* free_pieces_ = nullptr;
  std::deque<Piece*> to_write_;  // of puts, moved into staging
  uint32_t moving_in_ = 0;       // pieces of puts on their way there: each will need a place in the queue
  Piece* done_first_ = nullptr;  // completed, to be hashed
  Piece** done_last_ = &done_first_;
  std::vector<uint64_t> window_used_;  // by local device
  std::vector<uint32_t> window_pieces_;
  std::vector<bool> stores_wait_;  // by local device: for a region; space_changed() ends it
  std::vector<device::IoRequest*> completed_;
  std::vector<Item*> deadlines_;  // running or waiting loads with a deadline
  bool waited_in_vain_ = false;
  uint64_t next_time_check_ns_ = 0;
  uint64_t busy_since_ns_ = 0;
  uint64_t busy_bytes_ = 0;

  std::atomic<uint64_t> busy_items_{0};
  std::atomic<uint64_t> queued_load_bytes_{0};
  std::atomic<uint64_t> load_rate_{0};
  std::atomic<uint32_t> pieces_in_flight_{0};
  std::atomic<uint64_t> staging_out_{0};
};

}  // namespace kvstore::store
