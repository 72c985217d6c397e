// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Batches, lookups, memory and numbers of an open store. Every argument is checked here, once; what goes on to the
// catalog and the engines is well formed.

#include "store/store.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/checksum.h"
#include "base/numa.h"
#include "store/store_core.h"

namespace kvstore::store {

namespace {

constexpr uint32_t kBatchItemsMax = 1u << 20;
constexpr uint64_t kIdleStepNs = 1'000'000;

Status check_key(std::string_view key, std::string_view salt) {
  if (key.empty() || key.size() > format::kKeyBytesMax) {
    return Status(Code::kInvalid,
                  format_text("key of %zu bytes: 1 to %u are allowed", key.size(), format::kKeyBytesMax));
  }
  if (salt.size() > kSaltBytesMax) {
    return Status(Code::kInvalid,
                  format_text("salt of %zu bytes: at most %zu are allowed", salt.size(), kSaltBytesMax));
  }
  return {};
}

uint64_t total_bytes(const iovec* segments, uint32_t count) {
  uint64_t bytes = 0;
  // Saturated: lengths whose sum wraps must not pass for a small block.
  for (uint32_t i = 0; i < count; ++i) bytes += std::min<uint64_t>(segments[i].iov_len, UINT64_MAX - bytes);
  return bytes;
}

// Identity of one item: space, salt, stored key, fingerprint.
Status identify(StoreCore& core, SpaceId space, std::string_view salt, std::string_view key, Item& item) {
  const SpaceRecord* record = core.spaces.find(space);
  if (record == nullptr) return Status(Code::kInvalid, "the space was not registered with this store");
  KVS_TRY(check_key(key, salt));
  item.space = space;
  item.space_digest = &record->digest;
  item.key = format::make_stored_key(key);
  item.salt = salt;
  item.fingerprint = fingerprint_of(core.superblocks[0].fingerprint_secret, record->digest, salt, item.key);
  return {};
}

std::vector<Catalog::Key> fingerprints(const StoreCore& core, std::span<const KeyRef> keys) {
  std::vector<Catalog::Key> resolved(keys.size());
  SpaceId space{UINT32_MAX};
  const SpaceRecord* record = nullptr;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!(keys[i].space == space)) record = core.spaces.find(space = keys[i].space);
    // A malformed key cannot have been put: the zero fingerprint is its miss.
    if (record == nullptr || !check_key(keys[i].key, keys[i].salt).ok()) continue;
    resolved[i].fingerprint = fingerprint_of(core.superblocks[0].fingerprint_secret, record->digest, keys[i].salt,
                                             format::make_stored_key(keys[i].key));
  }
  return resolved;
}

void take_segments(BatchJob& job, Item& item, const iovec* segments, uint32_t count, uint32_t dma_alignment_bytes) {
  std::vector<iovec>& all = job.segments();  // reserved: its pointers stay
  item.segments = all.data() + all.size();
  for (uint32_t i = 0; i < count; ++i) {
    if (segments[i].iov_len != 0) all.push_back(segments[i]);
  }
  item.segment_count = static_cast<uint32_t>(all.data() + all.size() - item.segments);
  item.segment_bytes = total_bytes(item.segments, item.segment_count);
  item.pages_in_place = segments_in_place(item.segments, item.segment_count, dma_alignment_bytes);
}

uint32_t dma_alignment(const StoreCore& core) {
  uint32_t alignment = 1;
  for (const auto& device : core.devices) alignment = std::max(alignment, device->info().dma_alignment_bytes);
  return alignment;
}

uint64_t largest_payload(const StoreCore& core, bool page_hashes) {
  uint64_t bytes = UINT32_MAX;
  for (const format::Superblock& superblock : core.superblocks) {
    uint64_t room = superblock.geometry.region_bytes;
    if (page_hashes) room -= align_up(page_table_bytes(room), kPageBytes);
    bytes = std::min(bytes, room);
  }
  return bytes;
}

// A job in its table, or kBusy.
Result<JobRef> make_job(StoreCore& core, JobKind kind, const SubmitOptions& options, size_t items,
                        std::shared_ptr<CompletionQueue> queue) {
  if (items == 0 || items > kBatchItemsMax) {
    return Status(Code::kInvalid, format_text("a batch of %zu items: 1 to %u are allowed", items, kBatchItemsMax));
  }
  if (queue && queue->undrained() >= core.options.jobs_max) {
    return Status(Code::kBusy, format_text("the completion queue holds %llu finished jobs, jobs_max is %u: drain it",
                                           static_cast<unsigned long long>(queue->undrained()), core.options.jobs_max));
  }
  std::lock_guard lock(core.jobs_mutex);
  if (core.closing) return Status(Code::kClosed, "the store is being closed");
  if (core.jobs.size() >= core.options.jobs_max) {
    return Status(Code::kBusy, format_text("%zu jobs are in flight, jobs_max is %u: wait for some", core.jobs.size(),
                                           core.options.jobs_max));
  }
  const uint64_t id = core.next_job_id++;
  JobRef job(new BatchJob(core, kind, id, options, static_cast<uint32_t>(items), std::move(queue)));
  core.jobs.emplace(id, job);
  return job;
}

// Pieces of memory that only a mover reaches always go through staging.
Status check_memory_place(int32_t place, const SubmitOptions& options) {
  if (place < 0 || options.mover) return {};
  return Status(Code::kInvalid, "memory that the CPU does not reach was given without what moves its bytes");
}

void set_memory_place(BatchJob& job, Item& item, int32_t place) {
  if (place < 0) return;
  item.mover = job.options().mover.get();
  item.memory_place = static_cast<uint32_t>(place);
  item.staged = true;
}

bool meets_deadline(StoreCore& core, const BatchJob& job, const Item& item) {
  if (job.options().deadline_ns == 0) return true;
  const Engine& engine = core.engine_of(item.place.device);
  const uint64_t rate = engine.load_rate();
  if (rate == 0) return true;  // not measured yet: let the deadline itself decide
  const double seconds = static_cast<double>(engine.queued_load_bytes()) / static_cast<double>(rate);
  return seconds * 1e9 <= static_cast<double>(job.options().deadline_ns);
}

// What is wanted of a block whose size is known now. False: the item was completed with an error.
bool set_wanted(BatchJob& job, Item& item, const GetItem& wanted) {
  item.wanted_offset = wanted.offset_bytes;
  const bool whole = wanted.length_bytes == kWholeBlock;
  if (wanted.offset_bytes > item.payload_bytes ||
      (!whole && wanted.length_bytes > item.payload_bytes - wanted.offset_bytes)) {
    job.fail_item(
        item.number, Code::kInvalid,
        format_text("bytes %llu..+%llu of a block of %llu", static_cast<unsigned long long>(wanted.offset_bytes),
                    static_cast<unsigned long long>(wanted.length_bytes),
                    static_cast<unsigned long long>(item.payload_bytes)));
    return false;
  }
  item.wanted_bytes = whole ? item.payload_bytes - wanted.offset_bytes : wanted.length_bytes;
  if (item.segment_bytes < item.wanted_bytes) {
    job.fail_item(item.number, Code::kInvalid,
                  format_text("the buffer holds %llu bytes, the block needs %llu",
                              static_cast<unsigned long long>(item.segment_bytes),
                              static_cast<unsigned long long>(item.wanted_bytes)));
    return false;
  }
  return true;
}

}  // namespace

// ---- jobs ------------------------------------------------------------------------------------------------------

BatchJob::BatchJob(StoreCore& core, JobKind kind, uint64_t id, const SubmitOptions& options, uint32_t items,
                   std::shared_ptr<CompletionQueue> queue)
    : Job(kind, id, options.tag, items), core_(core), options_(options), items_(items), items_left_(items) {
  queue_ = std::move(queue);
  submitted_at_ns_ = core.clock->monotonic_ns();
  if (options.deadline_ns != 0) deadline_at_ns_ = submitted_at_ns_ + options.deadline_ns;
  for (uint32_t i = 0; i < items; ++i) {
    items_[i].job = this;
    items_[i].number = i;
  }
}

BatchJob::~BatchJob() = default;

void BatchJob::complete_item(uint32_t item, const ItemResult& result, std::string error_text) {
  JobRef keep(this);
  if (kind_ == JobKind::kPrefetch) core_.prefetch_done(items_[item], result.status == ItemStatus::kHit);
  results_[item] = result;
  if (!error_text.empty()) {
    std::lock_guard lock(errors_mutex_);
    errors_.emplace(item, std::move(error_text));
  }
  if (items_left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  elapsed_ns_ = core_.clock->monotonic_ns() - submitted_at_ns_;
  if (options_.mover) options_.mover->job_ended();
  core_.job_finished(*this);
  finish();
}

void BatchJob::fail_item(uint32_t item, Code code, std::string error_text, int io_errno) {
  items_[item].phase = ItemPhase::kFinished;
  complete_item(item, {.status = ItemStatus::kError, .code = code, .io_errno = io_errno}, std::move(error_text));
}

void BatchJob::end(const Status& why) {
  if (done()) return;
  const StoreCore::Call call(core_);
  if (!call.status().ok() || end_waiting(-1, why)) return;
  for (auto& engine : core_.engines) engine->cancel(this, -1, why);
}

void BatchJob::cancel_item(uint32_t item) {
  if (done() || item >= items_.size()) return;
  const StoreCore::Call call(core_);
  const Status why(Code::kCanceled, "canceled by the caller");
  if (!call.status().ok() || end_waiting(item, why)) return;
  for (auto& engine : core_.engines) engine->cancel(this, item, why);
}

// While the job waits for its mover its items are nobody's: they end here. False: they are the engines' by now.
bool BatchJob::end_waiting(int64_t item_or_all, const Status& why) {
  JobRef keep(this);
  std::lock_guard lock(hand_over_mutex_);
  if (!waits_for_mover_) return false;
  for (Item& item : items_) {
    if (item.phase != ItemPhase::kWaiting || (item_or_all >= 0 && item_or_all != item.number)) continue;
    add(core_.counters.canceled);
    item.phase = ItemPhase::kFinished;
    item.prefetched = {};
    if (kind_ == JobKind::kPut) {
      core_.catalog->fail_put(item, false, false, why.code(), why.io_errno(), why.message());
    } else {
      core_.catalog->end_read(item);
      complete_item(item, {.status = ItemStatus::kError, .code = why.code(), .io_errno = why.io_errno()},
                    why.message());
    }
  }
  return true;
}

void BatchJob::hand_over() {
  if (!options_.mover) return hand_over_now();
  {
    std::lock_guard lock(hand_over_mutex_);
    waits_for_mover_ = true;
  }
  options_.mover->when_ready([job = JobRef(this)] { static_cast<BatchJob&>(*job.get()).mover_is_ready(); });
}

void BatchJob::mover_is_ready() {
  std::lock_guard lock(hand_over_mutex_);
  waits_for_mover_ = false;
  const auto waits = [](const Item& item) { return item.phase == ItemPhase::kWaiting; };
  if (std::none_of(items_.begin(), items_.end(), waits)) return;  // ended meanwhile, and the store may be gone
  const StoreCore::Call call(core_);
  if (call.status().ok()) hand_over_now();  // else the store was closed, and leaked for the sake of this job
}

// Gives every unfinished item to the engine of its device, in order.
void BatchJob::hand_over_now() {
  std::vector<std::vector<Item*>> by_engine(core_.engines.size());
  for (Item& item : items_) {
    if (item.phase == ItemPhase::kWaiting) by_engine[item.place.device % core_.engines.size()].push_back(&item);
  }
  for (size_t i = 0; i < by_engine.size(); ++i) {
    if (!by_engine[i].empty()) core_.engines[i]->submit(std::move(by_engine[i]), kind_ == JobKind::kPut);
  }
}

// Who waits on the mover's side for a job that never ends would wait for ever.
void BatchJob::abandoned_by_store() {
  if (options_.mover) options_.mover->job_ended();
}

void StoreCore::job_finished(BatchJob& job) {
  std::lock_guard lock(jobs_mutex);
  jobs.erase(job.id());
}

void StoreCore::prefetch_done(const Item& item, bool read) {
  if (item.segment_count == 0) return;
  if (read) {
    prefetched->filled(item.fingerprint, item.job->id());
  } else {
    prefetched->dropped(item.fingerprint, item.job->id());
  }
}

// ---- batches ---------------------------------------------------------------------------------------------------

Result<SpaceId> Store::register_space(std::string_view canonical_json) {
  const StoreCore::Call call(*core_);
  KVS_TRY(call.status());
  return core_->spaces.add(canonical_json);
}

Result<JobRef> Store::put(std::span<const PutItem> items, const SubmitOptions& options,
                          std::shared_ptr<CompletionQueue> queue) {
  StoreCore& core = *core_;
  const StoreCore::Call call(core);
  KVS_TRY(call.status());
  size_t segments = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const PutItem& put = items[i];
    const uint64_t bytes = total_bytes(put.segments, put.segment_count);
    const uint64_t bytes_max = largest_payload(core, put.page_hashes);
    if (put.segment_count > kSegmentsMax) {
      return Status(Code::kInvalid,
                    format_text("item %zu has %u segments: at most %u", i, put.segment_count, kSegmentsMax));
    }
    if (bytes == 0 || bytes > bytes_max) {
      return Status(Code::kInvalid,
                    format_text("item %zu is %llu bytes: 1 to %llu fit a region of this store", i,
                                static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(bytes_max)));
    }
    if (put.meta.size() > format::kMetaBytes) {
      return Status(Code::kInvalid,
                    format_text("item %zu has %zu bytes of meta: at most %u", i, put.meta.size(), format::kMetaBytes));
    }
    if (put.parent.size() > format::kKeyBytesMax) {
      return Status(Code::kInvalid, format_text("item %zu has a parent key of %zu bytes: at most %u", i,
                                                put.parent.size(), format::kKeyBytesMax));
    }
    KVS_TRY(check_key(put.key, put.salt));
    KVS_TRY(check_memory_place(put.memory_place, options));
    if (core.spaces.find(put.space) == nullptr)
      return Status(Code::kInvalid, "the space was not registered with this store");
    segments += put.segment_count;
  }
  if (options.mover) core.pin_staging(*options.mover);
  KVS_ASSIGN(JobRef job, make_job(core, JobKind::kPut, options, items.size(), std::move(queue)));
  auto& batch = static_cast<BatchJob&>(*job.get());
  batch.segments().reserve(segments);
  const uint32_t alignment = dma_alignment(core);
  uint64_t device = 0;
  {
    std::lock_guard lock(core.jobs_mutex);
    device = core.next_device;
    core.next_device += items.size();
  }
  for (size_t i = 0; i < items.size(); ++i) {
    const PutItem& put = items[i];
    Item& item = batch.items()[i];
    (void)identify(core, put.space, put.salt, put.key, item);  // checked above
    take_segments(batch, item, put.segments, put.segment_count, alignment);
    set_memory_place(batch, item, put.memory_place);
    item.payload_bytes = item.segment_bytes;
    item.durable = options.durable;
    item.page_hashes = put.page_hashes;
    item.parent = format::parent_hint(put.parent);
    item.depth = put.depth;
    item.meta_bytes = static_cast<uint8_t>(put.meta.size());
    std::copy(put.meta.begin(), put.meta.end(), item.meta);
    item.place.device = static_cast<uint16_t>((device + i) % core.devices.size());
  }
  core.catalog->begin_puts(batch.items());
  batch.hand_over();
  return job;
}

Result<JobRef> Store::get(std::span<const GetItem> items, const SubmitOptions& options,
                          std::shared_ptr<CompletionQueue> queue) {
  StoreCore& core = *core_;
  const StoreCore::Call call(core);
  KVS_TRY(call.status());
  size_t segments = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    KVS_TRY(check_key(items[i].key, items[i].salt));
    KVS_TRY(check_memory_place(items[i].memory_place, options));
    if (items[i].segment_count > kSegmentsMax) {
      return Status(Code::kInvalid,
                    format_text("item %zu has %u segments: at most %u", i, items[i].segment_count, kSegmentsMax));
    }
    if (core.spaces.find(items[i].space) == nullptr)
      return Status(Code::kInvalid, "the space was not registered with this store");
    segments += items[i].segment_count;
  }
  if (options.mover) core.pin_staging(*options.mover);
  KVS_ASSIGN(JobRef job, make_job(core, JobKind::kGet, options, items.size(), std::move(queue)));
  auto& batch = static_cast<BatchJob&>(*job.get());
  batch.segments().reserve(segments);
  const uint32_t alignment = dma_alignment(core);
  for (size_t i = 0; i < items.size(); ++i) {
    Item& item = batch.items()[i];
    (void)identify(core, items[i].space, items[i].salt, items[i].key, item);  // checked above
    take_segments(batch, item, items[i].segments, items[i].segment_count, alignment);
    set_memory_place(batch, item, items[i].memory_place);
  }
  core.catalog->begin_reads(batch.items(), core.options.verify);
  for (size_t i = 0; i < items.size(); ++i) {
    Item& item = batch.items()[i];
    if (item.phase == ItemPhase::kFinished) {
      add(core.counters.misses);
      batch.complete_item(item, {.status = ItemStatus::kMiss});
    } else if (!set_wanted(batch, item, items[i])) {
      core.catalog->end_read(item);
    } else if (item.wanted_bytes == 0 || core.prefetched->take(item)) {
      add(core.counters.prefetch_hits, item.wanted_bytes != 0);
      if (item.prefetched.size() != 0) continue;  // an engine has it moved
      item.phase = ItemPhase::kFinished;
      add(core.counters.hits);
      add(core.counters.bytes_got, item.wanted_bytes);
      core.catalog->end_read(item);
      batch.complete_item(item, {.status = ItemStatus::kHit, .bytes = item.wanted_bytes});
    } else if (!meets_deadline(core, batch, item)) {
      core.catalog->end_read(item);
      add(core.counters.deadline_misses);
      batch.fail_item(item.number, Code::kTimeout, "refused: what is queued before it takes longer than the deadline");
    }
  }
  batch.hand_over();
  return job;
}

Result<JobRef> Store::prefetch(std::span<const KeyRef> keys, const SubmitOptions& options,
                               std::shared_ptr<CompletionQueue> queue) {
  StoreCore& core = *core_;
  const StoreCore::Call call(core);
  KVS_TRY(call.status());
  for (const KeyRef& key : keys) {
    KVS_TRY(check_key(key.key, key.salt));
    if (core.spaces.find(key.space) == nullptr)
      return Status(Code::kInvalid, "the space was not registered with this store");
  }
  KVS_ASSIGN(JobRef job, make_job(core, JobKind::kPrefetch, options, keys.size(), std::move(queue)));
  auto& batch = static_cast<BatchJob&>(*job.get());
  batch.segments().reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    (void)identify(core, keys[i].space, keys[i].salt, keys[i].key, batch.items()[i]);
  }
  core.catalog->begin_reads(batch.items(), core.options.verify);
  bool refusing = false;  // a chain is worth its leading run: after one refusal the rest is refused too
  for (Item& item : batch.items()) {
    if (item.phase == ItemPhase::kFinished) {
      batch.complete_item(item, {.status = ItemStatus::kMiss});
      continue;
    }
    item.wanted_bytes = item.payload_bytes;
    iovec memory{};
    const auto reserved =
        refusing || !meets_deadline(core, batch, item)
            ? PrefetchCache::Reserve::kFull
            : core.prefetched->reserve(item.fingerprint, item.place, item.payload_bytes, batch.id(), memory);
    if (reserved == PrefetchCache::Reserve::kReserved) {
      take_segments(batch, item, &memory, 1, 1);
      continue;
    }
    core.catalog->end_read(item);
    item.phase = ItemPhase::kFinished;
    if (reserved == PrefetchCache::Reserve::kAlreadyThere) {
      batch.complete_item(item, {.status = ItemStatus::kHit, .bytes = item.payload_bytes});
      continue;
    }
    refusing = true;
    add(core.counters.prefetch_refused);
    batch.fail_item(item.number, Code::kBusy,
                    format_text("prefetch refused: %llu bytes do not fit the staging cache of %llu or the deadline",
                                static_cast<unsigned long long>(item.payload_bytes),
                                static_cast<unsigned long long>(core.options.prefetch_bytes)));
  }
  batch.hand_over();
  return job;
}

ItemResult Store::get_one(const GetItem& wanted, std::string* error_text) {
  StoreCore& core = *core_;
  const auto refuse = [error_text](const Status& status) {
    if (error_text != nullptr) *error_text = status.message();
    return ItemResult{.status = ItemStatus::kError, .code = status.code(), .io_errno = status.io_errno()};
  };
  const StoreCore::Call call(core);
  if (!call.status().ok()) return refuse(call.status());
  const auto through_engine = [&]() -> ItemResult {
    Result<JobRef> job = get({&wanted, 1}, {}, nullptr);
    if (!job.ok()) return refuse(job.status());
    if (core.options.threaded) {
      job.value()->wait(UINT64_MAX);
    } else {
      while (!job.value()->done()) {
        if (!step()) core.clock->sleep_ns(kIdleStepNs);  // a simulated device with latency waits for the clock
      }
    }
    if (error_text != nullptr) *error_text = job.value()->error_text(0);
    return job.value()->result(0);
  };
  Item item;
  if (Status status = identify(core, wanted.space, wanted.salt, wanted.key, item); !status.ok()) return refuse(status);
  item.segments = wanted.segments;
  item.segment_count = wanted.segment_count;
  item.segment_bytes = total_bytes(wanted.segments, wanted.segment_count);
  if (Status status = check_memory_place(wanted.memory_place, {}); !status.ok()) return refuse(status);
  const bool in_place = wanted.offset_bytes == 0 && wanted.length_bytes == kWholeBlock &&
                        segments_in_place(wanted.segments, wanted.segment_count, dma_alignment(core));
  if (!in_place || !core.options.threaded) return through_engine();
  for (const auto& engine : core.engines) {
    if (!engine->idle()) return through_engine();  // in order of arrival, behind what waits there
  }
  core.catalog->begin_reads({&item, 1}, core.options.verify);
  if (item.phase == ItemPhase::kFinished) {
    add(core.counters.misses);
    return {.status = ItemStatus::kMiss};
  }
  item.wanted_bytes = item.payload_bytes;
  const bool suits = item.payload_bytes <= item.segment_bytes && item.payload_bytes <= InlineReaders::kPayloadBytesMax;
  const bool staged = suits && core.prefetched->bytes() != 0 && core.prefetched->take(item);
  const bool hit = staged || (suits && core.inline_readers->read(item) == InlineReaders::Outcome::kHit);
  if (hit && item.verify && !staged && core.options.verify == Verify::kFirstRead) core.catalog->mark_verified(item);
  core.catalog->end_read(item);
  if (!hit) return through_engine();
  add(staged ? core.counters.prefetch_hits : core.counters.reads_inline);
  add(core.counters.hits);
  add(core.counters.bytes_got, item.payload_bytes);
  return {.status = ItemStatus::kHit, .bytes = item.payload_bytes};
}

// ---- index only ------------------------------------------------------------------------------------------------

void Store::lookup(std::span<const KeyRef> keys, bool pin, std::span<int64_t> payload_bytes) {
  std::fill(payload_bytes.begin(), payload_bytes.end(), -1);
  if (!core_->check_open().ok()) return;
  core_->catalog->lookup(fingerprints(*core_, keys), pin, payload_bytes);
}

uint64_t Store::match_prefix(std::span<const KeyRef> keys, bool pin) {
  if (!core_->check_open().ok()) return 0;
  return core_->catalog->match_prefix(fingerprints(*core_, keys), pin);
}

void Store::unpin(std::span<const KeyRef> keys) {
  if (core_->check_open().ok()) core_->catalog->unpin(fingerprints(*core_, keys));
}

void Store::touch(std::span<const KeyRef> keys) {
  if (core_->check_open().ok()) core_->catalog->touch(fingerprints(*core_, keys));
}

Result<std::vector<ItemResult>> Store::erase(std::span<const KeyRef> keys) {
  const StoreCore::Call call(*core_);
  KVS_TRY(call.status());
  for (const KeyRef& key : keys) {  // all of them first: a refused batch deletes nothing
    if (core_->spaces.find(key.space) == nullptr)
      return Status(Code::kInvalid, "the space was not registered with this store");
    KVS_TRY(check_key(key.key, key.salt));
  }
  const std::vector<Catalog::Key> resolved = fingerprints(*core_, keys);
  std::vector<ItemResult> results(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    Eviction eviction;
    if (core_->evictions.has_subscribers()) {
      const format::StoredKey key = format::make_stored_key(keys[i].key);
      eviction = {.space = core_->spaces.find(keys[i].space)->json,
                  .salt = std::string(keys[i].salt),
                  .key = std::string(key.view()),
                  .key_is_digest = key.is_digest,
                  .payload_bytes = 0,
                  .reason = EvictionReason::kDeleted};
    }
    results[i] = core_->catalog->erase(resolved[i].fingerprint, eviction);
  }
  return results;
}

Status Store::flush(uint64_t timeout_ns, const Interrupted& interrupted) {
  StoreCore& core = *core_;
  const StoreCore::Call call(core);
  KVS_TRY(call.status());
  const uint64_t started_ns = core.clock->monotonic_ns();
  Status first_error;
  for (auto& keeper : core.keepers) {  // each device, whatever becomes of the others
    const uint64_t used_ns = core.clock->monotonic_ns() - started_ns;
    const bool unlimited = timeout_ns == UINT64_MAX;
    const uint64_t left_ns = unlimited ? UINT64_MAX : timeout_ns - std::min(timeout_ns, used_ns);
    Status status = keeper->flush(left_ns, interrupted);
    if (first_error.ok()) first_error = std::move(status);
  }
  if (core.shared && first_error.ok()) {
    const uint64_t used_ns = core.clock->monotonic_ns() - started_ns;
    first_error = core.shared->flush(timeout_ns - std::min(timeout_ns, used_ns), interrupted);
  }
  if (const uint64_t lost = core.catalog->take_lost(); lost != 0) {
    return Status(
        Code::kDurabilityLost,
        format_text("%llu blocks that were reported written since the last flush are lost: a write or flush of "
                    "the device failed before their descriptors were on it; they are misses now",
                    static_cast<unsigned long long>(lost)));
  }
  KVS_TRY(first_error);
  return core.catalog->usable();
}

Status Store::refresh(uint64_t timeout_ns, const Interrupted& interrupted) {
  StoreCore& core = *core_;
  const StoreCore::Call call(core);
  KVS_TRY(call.status());
  return core.shared ? core.shared->refresh(timeout_ns, interrupted) : Status();
}

// ---- memory ----------------------------------------------------------------------------------------------------

Status StoreCore::set_memory(const MemoryMap& map) {
  Status first;
  for (auto& engine : engines) {
    const Status status = engine->set_memory(map);
    if (!status.ok() && first.ok()) {
      first = Status(Code::kUnsupported, "the memory stays unregistered (slower, never wrong): " + status.message(),
                     status.io_errno());
    }
  }
  return first;
}

void StoreCore::pin_staging(MemoryMover& mover) {
  std::lock_guard lock(memory_mutex);
  if (staging_pins_asked) return;
  staging_pins_asked = true;
  const int node = mover.near_node();
  for (auto& engine : engines) {
    AlignedBuffer& arena = engine->staging_arena();
    if (node >= 0 && numa_node_of_memory(arena.data()) != node) {
      const Status moved = engine->set_memory(memory, node);
      if (numa_node_of_memory(arena.data()) != node) {
        staging_far = moved.ok() ? "its pages stayed where they were" : moved.message();
      }
    }
    Result<std::unique_ptr<PinnedMemory>> pinned = mover.pin(arena.data(), arena.size());
    if (pinned.ok()) {
      staging_pins.push_back(std::move(pinned).value());
    } else {
      staging_pin_refusal = pinned.status().message();
    }
  }
}

Status Store::prepare_mover(MemoryMover& mover) {
  const StoreCore::Call call(*core_);
  KVS_TRY(call.status());
  core_->pin_staging(mover);
  std::vector<PoolDevice> devices;
  for (size_t i = 0; i < core_->devices.size(); ++i) {
    devices.push_back({core_->devices[i].get(), core_->superblocks[i].geometry.data_offset});
  }
  return mover.meet(devices);
}

Result<void*> Store::allocate(uint64_t bytes) {
  StoreCore& core = *core_;
  const StoreCore::Call call(core);
  KVS_TRY(call.status());
  if (bytes == 0 || bytes > 1024 * kGiB) {
    return Status(Code::kInvalid, format_text("alloc of %llu bytes", static_cast<unsigned long long>(bytes)));
  }
  std::lock_guard lock(core.memory_mutex);
  AlignedBuffer buffer(bytes);
  void* memory = buffer.data();
  MemoryMap map = core.memory;
  map.add(memory, buffer.size());
  core.allocations.emplace(memory, std::move(buffer));
  if (core.set_memory(map).ok()) core.memory = std::move(map);  // else unregistered: slower, never wrong
  return memory;
}

Status Store::release(void* memory) {
  StoreCore& core = *core_;
  const StoreCore::Call call(core);
  if (core.forked()) return call.status();
  std::lock_guard lock(core.memory_mutex);
  auto found = core.allocations.find(memory);
  if (found == core.allocations.end()) return Status(Code::kInvalid, "not memory of this pool, or released already");
  core.memory.remove(memory, found->second.size());
  if (call.status().ok()) (void)core.set_memory(core.memory);
  core.allocations.erase(found);
  return {};
}

namespace {

// By its two ends, at once, however long it is: what is between is the kernel's to refuse.
bool is_mapped(void* base, uint64_t bytes) {
  unsigned char resident = 0;
  uint8_t* const last_page = static_cast<uint8_t*>(base) + align_down(bytes - 1, kPageBytes);
  return mincore(base, kPageBytes, &resident) == 0 && mincore(last_page, kPageBytes, &resident) == 0;
}

}  // namespace

Status Store::register_memory(void* base, uint64_t bytes) {
  StoreCore& core = *core_;
  const StoreCore::Call call(core);
  KVS_TRY(call.status());
  if (!is_aligned(base, kPageBytes) || bytes == 0) {
    return Status(Code::kInvalid,
                  format_text("memory to register must start on a page: address %% 4096 is %llu, %llu bytes",
                              static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(base) % kPageBytes),
                              static_cast<unsigned long long>(bytes)));
  }
  if (!is_mapped(base, bytes)) {
    return Status(Code::kInvalid, format_text("memory to register is %llu bytes from %p on, not all of it mapped",
                                              static_cast<unsigned long long>(bytes), base));
  }
  std::lock_guard lock(core.memory_mutex);
  if (core.registrations.contains(base)) return Status(Code::kInvalid, "this memory is registered already");
  MemoryMap map = core.memory;
  map.add(base, bytes);
  core.registrations[base] = bytes;
  KVS_TRY(core.set_memory(map));
  core.memory = std::move(map);
  return {};
}

Status Store::unregister_memory(void* base) {
  StoreCore& core = *core_;
  const StoreCore::Call call(core);
  if (core.forked()) return call.status();
  std::lock_guard lock(core.memory_mutex);
  auto found = core.registrations.find(base);
  if (found == core.registrations.end()) return Status(Code::kInvalid, "this memory is not registered");
  core.memory.remove(base, found->second);
  core.registrations.erase(found);
  if (call.status().ok()) return core.set_memory(core.memory);
  return {};
}

// ---- events and numbers ----------------------------------------------------------------------------------------

std::unique_ptr<EvictionFeed> Store::subscribe_evictions(uint32_t limit) { return core_->evictions.subscribe(limit); }

std::vector<std::pair<std::string, double>> Store::numbers() const {
  const StoreCore& core = *core_;
  const StoreCore::Call call(core);
  auto listed = core.counters.list();
  if (core.forked()) return listed;
  const auto catalog_numbers = core.catalog->numbers();
  listed.insert(listed.end(), catalog_numbers.begin(), catalog_numbers.end());
  uint64_t pieces = 0;
  uint64_t staging = 0;
  if (!core.torn_down.load()) {
    for (const auto& engine : core.engines) {
      pieces += engine->pieces_in_flight();
      staging += engine->staging_out();
    }
  }
  listed.emplace_back("pieces_in_flight", static_cast<double>(pieces));
  listed.emplace_back("staging_buffers_out", static_cast<double>(staging));
  listed.emplace_back("prefetch_bytes", static_cast<double>(core.prefetched->bytes()));
  {
    std::lock_guard lock(core_->jobs_mutex);
    listed.emplace_back("jobs_in_flight", static_cast<double>(core.jobs.size()));
  }
  listed.emplace_back("epoch", static_cast<double>(core.catalog->epoch()));
  if (!core.torn_down.load() && core.shared) {  // in this order: close() takes it away behind the flag
    const auto shared_numbers = core.shared->numbers();
    listed.insert(listed.end(), shared_numbers.begin(), shared_numbers.end());
  }
  listed.emplace_back("recovery_seconds", core.recovery.seconds);
  listed.emplace_back("recovery_blocks", static_cast<double>(core.recovery.blocks));
  listed.emplace_back("recovery_bytes_read", static_cast<double>(core.recovery.bytes_read));
  listed.emplace_back("recovery_regions_open_found", core.recovery.regions_open_found);
  listed.emplace_back("recovery_regions_quarantined", core.recovery.regions_quarantined);
  listed.emplace_back("recovery_blocks_skipped", static_cast<double>(core.recovery.blocks_skipped));
  listed.emplace_back("recovery_copies_damaged", static_cast<double>(core.recovery.copies_damaged));
  listed.emplace_back("superblock_copies_damaged", core.recovery.superblock_copies_damaged);
  listed.emplace_back("recovery_duplicates", static_cast<double>(core.recovery.duplicates));
  return listed;
}

std::string Store::write_refusal() const {
  return core_->forked() ? std::string() : core_->catalog->put_refusal().message();
}

std::vector<std::pair<std::string, std::string>> Store::texts() const {
  const StoreCore& core = *core_;
  const StoreCore::Call call(core);
  if (core.forked()) return {};
  const char* verify = core.options.verify == Verify::kAlways      ? "always"
                       : core.options.verify == Verify::kFirstRead ? "first_read"
                                                                   : "off";
  bool registered = false;
  std::string bounce = "unused";
  {
    std::lock_guard lock(core_->memory_mutex);
    registered = !core.memory.pieces().empty();
    if (core.staging_pins_asked) bounce = "pinned";
    if (!core.staging_pin_refusal.empty()) bounce = "unpinned: " + core.staging_pin_refusal;
    if (!core.staging_far.empty()) bounce += ", on another NUMA node than the GPU: " + core.staging_far;
  }
  return {
      {"verify", verify},
      {"device_kind", core.torn_down.load() ? "closed" : core.devices[0]->info().kind},
      {"checksum_engine", checksum_engine()},
      {"pool_uuid", format::uuid_text(core.superblocks[0].pool_uuid)},
      {"path", registered ? "registered" : "unregistered"},
      {"bounce", bounce},
      {"write_refusal", write_refusal()},
      {"mode", core.options.read_only     ? "read_only"
               : core.options.shared.on() ? "shared"
                                          : "owner"},
  };
}

std::vector<format::Superblock> Store::superblocks() const { return core_->superblocks; }

std::vector<device::DeviceInfo> Store::devices() const {
  std::vector<device::DeviceInfo> infos;
  const StoreCore::Call call(*core_);
  if (core_->torn_down.load()) return infos;
  for (const auto& device : core_->devices) infos.push_back(device->info());
  return infos;
}

bool Store::step() {
  bool worked = false;
  for (auto& engine : core_->engines) worked |= engine->turn(0);
  for (auto& keeper : core_->keepers) worked |= keeper->turn();
  if (core_->shared) worked |= core_->shared->turn();
  return worked;
}

}  // namespace kvstore::store
