// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/keeper.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/assert.h"
#include "base/mutation.h"
#include "store/recovery.h"
#include "store/region_evictor.h"
#include "store/superblock_io.h"

namespace kvstore::store {

namespace {

constexpr uint64_t kUnconfirmedHeartbeatsMax = 10;
constexpr uint64_t kDoubtedLooksPerHeartbeat = 10;

}  // namespace

Keeper::Keeper(const StoreOptions& options, Setup setup, Catalog& catalog, SpaceRegistry& spaces, Counters& counters,
               EvictionHub& evictions, Clock& clock)
    : DeviceWorker(clock),
      options_(options),
      setup_(std::move(setup)),
      catalog_(catalog),
      spaces_(spaces),
      counters_(counters),
      evictions_(evictions),
      geometry_(setup_.superblock.geometry),
      page_(kPageBytes) {}

Keeper::~Keeper() {
  stop();
  join_until(0);
}

Status Keeper::start() {
  const auto prepare = [this]() -> Status {
    KVS_ASSIGN(io_, setup_.make_io());
    return {};
  };
  return DeviceWorker::start(options_.threaded, "kvs-keeper", prepare, [this] { run(); });
}

void Keeper::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    const bool worked = turn();
    const uint64_t wait_ns = worked ? 0 : next_wait_ns();
    lock.lock();
    if (!woken_ && !stopping_ && wait_ns != 0) {
      changed_.wait_for(lock, std::chrono::nanoseconds(wait_ns), [this] { return woken_ || stopping_; });
    }
    woken_ = false;
  }
}

void Keeper::wake() {
  std::lock_guard lock(mutex_);
  if (std::exchange(woken_, true)) return;
  changed_.notify_all();
}

uint64_t Keeper::next_wait_ns() {
  if (claim_in_doubt_) return options_.heartbeat_ns / kDoubtedLooksPerHeartbeat;
  const uint64_t now_ns = clock_.monotonic_ns();
  uint64_t at_ns = next_heartbeat_ns_;
  const uint64_t pending_ns = catalog_.oldest_pending_ns(setup_.device_number);
  if (pending_ns != UINT64_MAX) at_ns = std::min(at_ns, pending_ns + options_.commit_interval_ns);
  return at_ns > now_ns ? at_ns - now_ns : 0;
}

bool Keeper::turn() {
  uint64_t ticket = 0;
  {
    std::lock_guard lock(mutex_);
    ticket = flushes_.last();
  }
  const bool flush_wanted = !flushes_.is_done(ticket);
  const uint64_t pending_ns = catalog_.oldest_pending_ns(setup_.device_number);
  const bool timer_due = pending_ns != UINT64_MAX && clock_.monotonic_ns() - pending_ns >= options_.commit_interval_ns;
  bool worked = release_held();
  // Before anything is written: after a pause (a suspended host) the device may have another owner, and a descriptor of
  // ours could destroy one of its regions' next life.
  heartbeat();
  // What is due waits while the claim cannot be read back, and fails when that takes too long, or it is lost.
  const Status claim = catalog_.writable().ok() ? still_ours() : Status();
  claim_in_doubt_ = !claim.ok() && catalog_.writable().ok();  // lost for good: the store takes no writes any more
  const bool commit_due = flush_wanted || timer_due || catalog_.commit_is_due(setup_.device_number);
  if (!claim_in_doubt_ && commit_due) worked |= commit();
  if (claim_in_doubt_) {
    // Shared mode: no promise can be made, and nobody knows for how long.
    const Status refusal = flush_wanted ? catalog_.put_refusal() : Status();
    if (refusal.ok()) return worked;
    std::lock_guard lock(mutex_);
    flushes_.call_done(ticket);
    flush_outcome_ = refusal;
    changed_.notify_all();
    return true;
  }
  Status deletes_durable;
  if (flush_wanted || timer_due) worked |= write_bitmaps(deletes_durable);
  // Opening before reclaiming: somebody may wait for the region that is already free.
  worked |= seal_regions();
  worked |= open_regions();
  worked |= reclaim_one();
  if (flush_wanted) {
    std::lock_guard lock(mutex_);
    flushes_.call_done(ticket);
    flush_outcome_ = std::move(deletes_durable);
    changed_.notify_all();
    worked = true;
  }
  return worked;
}

Status Keeper::flush(uint64_t timeout_ns, const Interrupted& interrupted) {
  std::unique_lock lock(mutex_);
  const uint64_t ticket = flushes_.take();
  if (!options_.threaded) {
    lock.unlock();
    turn();
    if (!flushes_.is_done(ticket)) {
      return Status(Code::kBusy, catalog_.shared() ? "the lease of this opener is not renewed, try again"
                                                   : "the owner's claim cannot be read back, try again");
    }
    return flush_outcome_;
  }
  woken_ = true;
  changed_.notify_all();
  switch (flushes_.wait(lock, changed_, ticket, timeout_ns, running_, interrupted)) {
    case Code::kOk: return flush_outcome_;
    case Code::kTimeout:
      return Status(Code::kTimeout,
                    format_text("flush of %s did not finish within %.1f s", setup_.device->info().path.c_str(),
                                static_cast<double>(timeout_ns) / 1e9));
    default: return Status(Code::kClosed, "the store was closed during flush");
  }
}

// ---- committing ------------------------------------------------------------------------------------------------

format::BlockHeader Keeper::identity(const Region& region) const {
  format::BlockHeader header;
  header.store_uuid = setup_.superblock.store_uuid;
  header.region = region.id.value;
  header.generation = region.generation.value;
  header.owner_epoch = catalog_.epoch();
  return header;
}

Status Keeper::write_page(const Region& region, uint64_t offset_bytes, bool durable) {
  // Superblock copies and payload are never a keeper's to write; a wrong offset would destroy them.
  KVS_ASSERT(offset_bytes >= format::kMetadataOffset && offset_bytes + kPageBytes <= geometry_.data_offset);
  KVS_TRY(still_ours());
  // S6: joined anew meanwhile, and the lease is fresh, but not everything was taken over.
  KVS_TRY(catalog_.may_write(catalog_.region_number(region.device, region.id)));
  add(counters_.bytes_written_metadata, kPageBytes);
  return io_->write(0, offset_bytes, page_, kPageBytes, durable);
}

Status Keeper::flush_device() {
  // A device that says write-through has nothing to flush; a regular file always has.
  if (!setup_.device->info().volatile_cache) return {};
  add(counters_.flushes);
  return io_->flush(0);
}

bool Keeper::commit(bool last) {
  std::vector<CommitWork> work = catalog_.take_commits(setup_.device_number);
  if (work.empty()) return false;
  // Offline: the regions may have another owner by now, and a late write would destroy what it keeps there.
  if (const Status usable = catalog_.usable(); !usable.ok()) {
    for (CommitWork& one : work) catalog_.commit_done(std::move(one), usable, false);
    return true;
  }
  const bool any_payload =
      std::any_of(work.begin(), work.end(), [](const CommitWork& one) { return !one.descriptors.empty(); });
  // I1: one flush, after every payload of this round has completed, covers all its regions.
  const Status flushed = any_payload && KVS_RULE(I1_flush_before_descriptors) ? flush_device() : Status();
  if (!flushed.ok()) add(counters_.flush_errors);
  bool whole = true;
  for (CommitWork& one : work) {
    Status status = flushed.ok() || !KVS_RULE(I1_no_descriptors_after_a_failed_flush) ? write_region(one) : flushed;
    // A write that took so long that another owner may have read the device before it landed is no promise. In a shared
    // pool it is one: the region is nobody else's before we are known to be gone (S5).
    if (status.ok() && !catalog_.shared()) status = still_ours();
    if (interrupted(status) && !last && KVS_RULE(S3_an_interrupted_commit_goes_on)) {
      claim_in_doubt_ = true;
      whole = false;
      catalog_.commit_interrupted(std::move(one));
      continue;
    }
    if (!status.ok() && flushed.ok()) add(counters_.write_errors);
    const uint32_t number = one.region;
    catalog_.commit_done(std::move(one), status, !flushed.ok());
    if (flushed.ok()) hold_if_unknown(number, status);
  }
  if (whole) add(counters_.commits);
  return whole;
}

Status Keeper::write_region(CommitWork& work) {
  Region& region = catalog_.region(work.region);
  while (!work.dictionary.empty()) {
    // I10: the strings are durable before the first descriptor that refers to them.
    const auto& block = work.dictionary.front();
    std::memcpy(page_.data(), block.page.data(), kPageBytes);
    if (KVS_RULE(I10_strings_before_descriptors)) {
      KVS_TRY(
          write_page(region, geometry_.dictionary_offset(region.id, block.number), KVS_RULE(I10_strings_are_durable)));
    }
    work.dictionary.erase(work.dictionary.begin());  // written once, also when the rest is interrupted
  }
  return write_descriptors(region, work);
}

// Can be called again for the rest, when it was interrupted before a write.
Status Keeper::write_descriptors(Region& region, CommitWork& work) {
  OpenRegion& open = *region.open;
  format::BlockHeader header = identity(region);
  while (true) {
    if (open.tail.size() < format::kDescriptorsPerBlock) {
      if (work.appended == work.descriptors.size()) break;
      const format::Descriptor& next = work.descriptors[work.appended++].descriptor;
      open.min_write_seq = open.min_write_seq == 0 ? next.write_seq : std::min(open.min_write_seq, next.write_seq);
      open.max_write_seq = std::max(open.max_write_seq, next.write_seq);
      open.tail.push_back(next);
      open.tail_changed = true;
      continue;
    }
    header.number = open.full_blocks;
    header.sequence = ++open.block_sequence;
    format::encode_descriptor_block(format::BlockKind::kDescriptors, header, open.tail, {page_.data(), kPageBytes});
    KVS_TRY(write_page(region, geometry_.descriptor_block_offset(region.id, open.full_blocks),
                       KVS_RULE(I1_descriptors_are_durable)));
    ++open.full_blocks;
    open.tail.clear();
    open.tail_changed = false;
  }
  if (!open.tail_changed) return {};
  header.number = open.full_blocks;
  header.sequence = ++open.block_sequence;
  format::encode_descriptor_block(format::BlockKind::kTail, header, open.tail, {page_.data(), kPageBytes});
  KVS_TRY(write_page(region, geometry_.tail_offset(region.id, open.tail_copy), KVS_RULE(I1_tails_are_durable)));
  open.tail_changed = false;
  // I4: the copy just written is the newer; the next write takes the older.
  if (KVS_RULE(I4_tails_alternate)) open.tail_copy ^= 1;
  return {};
}

// ---- opening and sealing ---------------------------------------------------------------------------------------

Status Keeper::write_header(Region& region, const format::RegionHeader& header) {
  format::RegionHeader next = header;
  next.region = region.id;
  next.sequence = ++region.header_sequence;
  next.owner_epoch = Epoch{catalog_.epoch()};
  next.owner_host = setup_.superblock.owner.host;
  format::encode_region_header(next, setup_.superblock.store_uuid, region.header_copy, {page_.data(), kPageBytes});
  KVS_TRY(write_page(region, geometry_.header_offset(region.id, region.header_copy), KVS_RULE(I2_headers_are_durable)));
  if (KVS_RULE(I4_headers_alternate)) region.header_copy ^= 1;
  return {};
}

// I2: a header write that was acknowledged and lost would let the next opening give the same generation to another
// life, in which descriptors of this one are believed and read with the strings of that one.
Status Keeper::check_headers(RegionId region, Generation generation) {
  for (uint32_t copy = 0; copy < 2; ++copy) {
    AlignedBuffer page(kPageBytes);
    KVS_TRY(io_->read(0, geometry_.header_offset(region, copy), page, kPageBytes));
    const auto found =
        format::decode_region_header({page.data(), kPageBytes}, setup_.superblock.store_uuid, geometry_, region, copy);
    if (found.ok() && found.value().generation == generation) continue;
    return Status(Code::kIo, format_text("header %u of region %u of %s was written and does not read back", copy,
                                         region.value, setup_.device->info().path.c_str()));
  }
  return {};
}

// S1: of a region that was another's until now nothing is known but what is on the device; and a late write of its
// former owner may have landed since.
Status Keeper::look_at_headers(Region& region, Generation next) {
  if (!catalog_.shared()) return {};
  KVS_ASSIGN(const HeaderScan scan, scan_headers(*io_, setup_.superblock, {&region.id, 1}));
  if (scan.in_doubt[0] && !region.open)
    return Status(Code::kIo, "the headers cannot be read, and may bear a later life");
  region.header_sequence = std::max(region.header_sequence, scan.header_sequences[0]);
  region.header_copy = scan.header_copies[0];
  const Generation found = scan.headers[0].generation;
  if (found < next || !KVS_RULE(S1_the_device_is_asked_before_a_life_begins)) return {};
  return Status(Code::kStale, format_text("region %u of %s bears generation %llu, the engine knew of none above %llu",
                                          region.id.value, setup_.device->info().path.c_str(),
                                          static_cast<unsigned long long>(found.value),
                                          static_cast<unsigned long long>(next.value - 1)));
}

bool Keeper::open_regions() {
  bool worked = false;
  // Before a generation is spent: a claim that cannot be read back now is no fault of the region.
  if (!catalog_.wants_region(setup_.device_number) || !catalog_.writable().ok() || !confirm().ok()) return false;
  while (std::optional<OpenPlan> plan = catalog_.next_open(setup_.device_number)) {
    worked = true;
    Region& region = catalog_.region(plan->region);
    format::RegionHeader header;
    header.generation = plan->generation;
    header.state = RegionState::kOpen;
    header.extent_bytes = plan->extent_bytes;
    header.slot_count = plan->slot_count;
    header.opened_seconds = clock_.wall_seconds();
    Status status;
    status = look_at_headers(region, plan->generation);
    const bool known = status.code() != Code::kStale;
    // I2: the new generation is durable in both copies before the first payload byte of the new life; a crash
    // in between leaves one copy with the higher generation, and that one counts.
    if (status.ok()) status = write_header(region, header);
    if (status.ok() && KVS_RULE(I2_both_headers)) status = write_header(region, header);
    if (status.ok()) status = check_headers(region.id, plan->generation);
    if (!status.ok() && known) add(counters_.write_errors);
    catalog_.open_done(*plan, KVS_RULE(I2_headers_before_payload) ? status : Status());
    hold_if_unknown(plan->region, status);
  }
  return worked;
}

bool Keeper::seal_regions() {
  bool worked = false;
  while (std::optional<uint32_t> number = catalog_.next_seal(setup_.device_number)) {
    worked = true;
    Region& region = catalog_.region(*number);
    const Status status = catalog_.may_write(*number).ok() ? write_seal(region) : Status();
    if (interrupted(status)) return worked;
    if (!status.ok()) add(counters_.write_errors);
    catalog_.seal_done(*number, status);
    hold_if_unknown(*number, status);
  }
  return worked;
}

Status Keeper::write_seal(Region& region) {
  OpenRegion& open = *region.open;
  if (!open.tail.empty()) {
    format::BlockHeader header = identity(region);
    header.number = open.full_blocks;
    header.sequence = ++open.block_sequence;
    format::encode_descriptor_block(format::BlockKind::kDescriptors, header, open.tail, {page_.data(), kPageBytes});
    KVS_TRY(write_page(region, geometry_.descriptor_block_offset(region.id, open.full_blocks),
                       KVS_RULE(I1_sealed_descriptors_are_durable)));
  }
  format::RegionHeader header;
  KVS_TRY(look_at_headers(region, Generation{region.generation.value + 1}));
  header.generation = region.generation;
  header.state = RegionState::kSealed;
  header.extent_bytes = region.extent_bytes;
  header.slot_count = region.slot_count;
  header.sealed_seconds = clock_.wall_seconds();
  header.min_write_seq = open.min_write_seq;
  header.max_write_seq = open.max_write_seq;
  header.descriptor_count = open.committed();
  header.dictionary_count = open.dictionary.blocks_used();
  return write_header(region, header);
}

// ---- reclaiming ------------------------------------------------------------------------------------------------

bool Keeper::reclaim_one() {
  const std::optional<uint32_t> victim = catalog_.next_victim(setup_.device_number);
  if (!victim) return false;
  // A region whose descriptors cannot be read is reclaimed all the same: the catalog finds its entries by walking.
  RegionEvictor evictor(*io_, setup_.superblock, catalog_, spaces_, counters_, evictions_);
  if (!evictor.evict_all(*victim).ok()) add(counters_.read_errors);
  // What was evicted may be put again elsewhere, deleted and flushed, and must not come back out of this region after a
  // crash before its next life.
  Region& region = catalog_.region(*victim);
  format::RegionHeader header;
  header.generation = region.generation;
  header.state = RegionState::kFree;
  const Status status = KVS_RULE(I7_an_emptied_region_says_so) ? write_header(region, header) : Status();
  if (!status.ok()) add(counters_.write_errors);
  catalog_.reclaimed(*victim, status);
  hold_if_unknown(*victim, status);
  return true;
}

// ---- dead bitmaps ----------------------------------------------------------------------------------------------

bool Keeper::write_bitmaps(Status& outcome) {
  bool worked = false;
  const uint32_t rounds = geometry_.region_count;  // a region dirtied again meanwhile waits for the next flush
  AlignedBuffer buffer;
  format::DeadBitmap bitmap;
  for (uint32_t i = 0; i < rounds; ++i) {
    const std::optional<uint32_t> number = catalog_.next_bitmap(setup_.device_number, bitmap);
    if (!number) break;
    worked = true;
    Region& region = catalog_.region(*number);
    if (buffer.size() == 0) buffer = AlignedBuffer(geometry_.bitmap_bytes());
    format::BlockHeader header = identity(region);
    header.number = region.bitmap_copy;
    header.sequence = ++region.bitmap_sequence;
    header.count = bitmap.count();
    format::encode_bitmap(bitmap, header, {buffer.data(), geometry_.bitmap_bytes()});
    Status status = still_ours();
    if (status.ok()) {
      add(counters_.bytes_written_metadata, geometry_.bitmap_bytes());
      status =
          io_->write(0, geometry_.bitmap_offset(region.id, region.bitmap_copy), buffer, geometry_.bitmap_bytes(), true);
    }
    // I4: the other copy next time; after a failure this one again, for the other is the one known to be good.
    const bool other_next = status.ok() ? KVS_RULE(I4_bitmaps_alternate) : !KVS_RULE(I4_the_good_bitmap_is_spared);
    if (other_next) region.bitmap_copy ^= 1;
    catalog_.bitmap_done(*number, status);
    hold_if_unknown(*number, status);
    if (status.ok()) continue;
    add(counters_.write_errors);
    outcome = status;
    return worked;
  }
  outcome = catalog_.bitmaps_left_alone(setup_.device_number);
  return worked;
}

// ---- writes of unknown outcome ---------------------------------------------------------------------------------

void Keeper::hold_if_unknown(uint32_t number, const Status& status) {
  // I7: a metadata write past the time-out may land after whatever is written there next.
  if (status.code() != Code::kTimeout) return;
  catalog_.write_outcome_unknown(number);
  held_.push_back(number);
}

bool Keeper::release_held() {
  if (held_.empty() || (io_->collect_stuck() != 0 && KVS_RULE(I7_unknown_until_it_completes))) return false;
  for (const uint32_t number : held_) catalog_.write_outcome_known(number);
  held_.clear();
  return true;
}

// ---- ownership -------------------------------------------------------------------------------------------------

Status Keeper::still_ours() { return catalog_.claim_is_fresh(setup_.device_number) ? Status() : confirm(); }

Status Keeper::confirm() {
  // S3: the agent renews the lease; there is nothing on the device to ask.
  if (catalog_.shared()) {
    const bool fresh = catalog_.claim_is_fresh(setup_.device_number) || !KVS_RULE(S3_no_write_without_a_fresh_lease);
    return fresh ? Status() : Status(Code::kBusy, "the lease of this opener is not renewed");
  }
  add(counters_.ownership_checks);
  const uint64_t asked_ns = clock_.monotonic_ns();
  const Status status = confirm_ownership(*io_, 0, geometry_.device_bytes, setup_.superblock.owner);
  if (status.ok()) catalog_.confirmed(setup_.device_number, asked_ns);
  if (status.code() == Code::kFenced) {
    catalog_.set_offline(Code::kFenced, setup_.device->info().path + ": " + status.message());
  }
  return status;
}

void Keeper::heartbeat() {
  const uint64_t now_ns = clock_.monotonic_ns();
  if (now_ns < next_heartbeat_ns_ && !catalog_.take_ownership_doubt(setup_.device_number)) return;
  if (next_heartbeat_ns_ != 0 && now_ns > next_heartbeat_ns_ + options_.heartbeat_ns / 2)
    add(counters_.heartbeats_late);
  next_heartbeat_ns_ = now_ns + options_.heartbeat_ns;
  catalog_.expire_pins();
  catalog_.space_changed(setup_.device_number);  // a wake-up lost by a bug would cost a heartbeat, never a hang
  if (catalog_.shared()) return;
  const Status status = confirm();
  // A claim that cannot be read back for long leaves puts waiting: say no instead.
  if (!status.ok() &&
      now_ns - catalog_.confirmed_ns(setup_.device_number) > kUnconfirmedHeartbeatsMax * options_.heartbeat_ns) {
    catalog_.set_read_only(setup_.device->info().path + ": the owner's claim cannot be read back: " + status.message());
  }
}

// S3: what the end of a lease interrupts goes on when it is renewed, also while closing.
bool Keeper::awaits_renewal() {
  if (!catalog_.shared() || !catalog_.usable().ok() || confirm().ok()) return false;
  const bool pending =
      catalog_.commit_is_due(setup_.device_number) || catalog_.oldest_pending_ns(setup_.device_number) != UINT64_MAX;
  return pending && KVS_RULE(S3_closing_waits_for_the_renewal);
}

Status Keeper::close(uint64_t until_ns, const std::function<void()>& pass_time) {
  const uint64_t now_ns = clock_.monotonic_ns();
  const uint64_t left_ns = std::max(until_ns > now_ns ? until_ns - now_ns : 0, kCloseNsMin);
  io_->set_timeout(std::min(left_ns, options_.io_timeout_ns));
  // As in turn(). A claim that cannot be read says nothing, and is asked for again before the clean flag.
  if (now_ns - catalog_.confirmed_ns(setup_.device_number) > options_.heartbeat_ns) (void)confirm();
  catalog_.seal_all(setup_.device_number);
  // The first round commits, the second seals what the first committed, the third writes what that marked dead.
  Status deletes_durable;
  const uint64_t renewed_by_ns = std::min(until_ns, now_ns + options_.shared.lease_ns);
  for (int round = 0; round < 3; ++round) {
    while (awaits_renewal() && clock_.monotonic_ns() < renewed_by_ns) pass_time();
    commit(round == 2);
    if (io_->stuck_requests() != 0) io_->give_up();  // the rest of close must not wait as long again, and again
    write_bitmaps(deletes_durable);
    seal_regions();
  }
  KVS_TRY(deletes_durable);
  if (catalog_.shared()) return flush_device();  // nobody owns the superblock
  KVS_TRY(confirm());
  KVS_TRY(flush_device());
  setup_.superblock.clean = true;
  setup_.superblock.shared_mode = options_.becomes_shared.value_or(setup_.superblock.shared_mode);
  return update_superblock(*io_, 0, setup_.superblock, [this](uint32_t) { return still_ours(); });
}

}  // namespace kvstore::store
