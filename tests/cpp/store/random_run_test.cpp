// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: no sequence of calls, faults and crashes makes the store answer wrong, hang, or keep what it should give back.
// Method: seeded runs of a few hundred random operations on a simulated pool, judged by the oracle of sim_harness.h.
// Each seed draws its own world (swarm testing): some operations and faults are switched off, the rest weighted wildly.
// KVS_SEEDS=n runs n seeds, KVS_SEED=s runs the one that failed, KVS_TRACE=1 prints its operations.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "store/order_checker.h"
#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

constexpr uint64_t kSeedsDefault = 200;
constexpr uint64_t kSizes[] = {1, 700, 4095, 4096, 4097, 9'000, 30'000, 64 * kKiB + 1, 100'000, 240'000};

enum class Faults : uint8_t {
  kNone,
  kTransient,   // errors, short transfers, EAGAIN: nothing acknowledged as durable may go
  kFlush,       // the same of flushes, which lose what was not durable
  kStuck,       // requests that hang, and complete late
  kCorrupting,  // rot, lost and misdirected I/O: anything may be a miss
};

enum Action : uint32_t {
  kPut,
  kPutDurable,
  kPutBatch,
  kGet,
  kGetBatch,
  kGetPart,
  kErase,
  kFlush,
  kPin,
  kUnpin,
  kPrefix,
  kPrefetch,
  kAdvance,
  kCancel,
  kDeadline,
  kFinishOne,
  kJudge,
  kCloseOpen,
  kKill,
  kPowerCut,
  kAddFault,
  kActions,
};

constexpr const char* kActionNames[] = {"put",     "put durable", "put batch", "get",        "get batch", "get part",
                                        "erase",   "flush",       "pin",       "unpin",      "prefix",    "prefetch",
                                        "advance", "cancel",      "deadline",  "finish one", "judge",     "close, open",
                                        "kill",    "power cut",   "add fault"};
static_assert(std::size(kActionNames) == kActions);

class RandomRun {
 public:
  explicit RandomRun(uint64_t seed) : random_(seed * 7919 + 17), sim_(draw_setup(seed)) {
    faults_ = random_.below(10) < 4 ? Faults::kNone : static_cast<Faults>(1 + random_.below(4));
    for (uint32_t& weight : weights_) weight = random_.below(4) == 0 ? 0 : 1 + static_cast<uint32_t>(random_.below(12));
    weights_[kPut] += 4;
    weights_[kGet] += 3;
    for (const Action rare : {kCloseOpen, kKill, kPowerCut, kJudge}) weights_[rare] = weights_[rare] / 5;
    if (faults_ == Faults::kNone) weights_[kAddFault] = 0;
    keys_ = 10 + random_.below(120);
    if (faults_ == Faults::kCorrupting) sim_.expect_metadata_to_rot();
    sim_.context = "KVS_SEED=" + std::to_string(seed);
  }

  void run(uint32_t operations) {
    watch();
    if (!open()) return;
    for (uint32_t i = 0; i < operations && sim_.is_open() && !::testing::Test::HasFailure(); ++i) {
      finish_done();
      const Action action = choose();
      if (trace_) {
        std::printf("%u: %s, at %.3f s, faults %d\n", i, kActionNames[action],
                    static_cast<double>(sim_.clock().monotonic_ns()) / 1e9, static_cast<int>(faults_));
      }
      act(action);
    }
    if (sim_.is_open() && !::testing::Test::HasFailure()) settle();
  }

 private:
  SimSetup draw_setup(uint64_t seed) {
    SimSetup setup;
    setup.seed = seed;
    setup.devices = random_.below(4) == 0 ? 2 : 1;
    setup.regions = static_cast<uint32_t>(8 + random_.below(10));
    setup.region_bytes = uint64_t{256 * kKiB} << random_.below(3);
    setup.min_block_bytes = random_.below(2) == 0 ? 4 * kKiB : 16 * kKiB;
    setup.device.volatile_cache = random_.below(4) != 0;
    setup.device.reorder = random_.below(4) != 0;
    setup.device.is_fabric = random_.below(5) == 0;
    setup.device.dma_alignment_bytes = random_.below(2) == 0 ? 512 : 4;
    const uint64_t latencies[] = {0, 0, 80'000, 4'000'000};
    setup.device.latency_ns = latencies[random_.below(4)];
    setup.store.window_bytes = kMiB << random_.below(4);
    setup.store.staging_bytes = 4 * kMiB << random_.below(2);
    setup.store.prefetch_bytes = random_.below(3) == 0 ? 0 : 2 * kMiB;
    setup.store.free_regions_target = static_cast<uint32_t>(1 + random_.below(4));
    setup.store.failures_max = 1'000'000;
    setup.store.io_timeout_ns = 2'000'000'000;
    setup.store.quarantine_ns = 3'000'000'000;
    setup.store.pin_lease_ns = 5'000'000'000;
    setup.store.index_blocks_max = random_.below(8) == 0 ? 64 : 0;
    return setup;
  }

  void watch() {
    if (faults_ != Faults::kNone) return;
    for (uint32_t i = 0; i < sim_.setup().devices; ++i) {
      checkers_.push_back(
          std::make_unique<OrderChecker>(sim_.disk(i), sim_.formatted(i), sim_.setup().device.volatile_cache));
    }
  }

  bool open() {
    const Status status = sim_.open();
    if (!status.ok()) ADD_FAILURE() << sim_.context << ": open: " << status.to_string();
    return status.ok();
  }

  Action choose() {
    uint64_t total = 0;
    for (const uint32_t weight : weights_) total += weight;
    uint64_t drawn = random_.below(total);
    for (uint32_t action = 0; action < kActions; ++action) {
      if (drawn < weights_[action]) return static_cast<Action>(action);
      drawn -= weights_[action];
    }
    return kPut;
  }

  Name name() {
    const uint64_t number = random_.below(keys_);
    Name name;
    name.key = number % 7 == 0 ? std::string(60 + number, 'k') : "key " + std::to_string(number);
    name.salt = number % 3 == 0 ? "salt " + std::to_string(number % 9) : "";
    name.space = static_cast<uint32_t>(number % SimStore::kSpaces);
    return name;
  }
  // A name always has one size, and its version says how often it was deleted.
  uint64_t size_of(const Name& name, uint32_t version) const {
    return kSizes[(name.key.size() * 31 + name.key.back() * 7 + version) % std::size(kSizes)];
  }
  Layout layout() {
    const uint32_t misalignments[] = {0, 0, 64, 512, 4095};
    return {static_cast<uint32_t>(1 + (random_.below(3) == 0 ? random_.below(5) : 0)), misalignments[random_.below(5)]};
  }

  void act(Action action) {
    switch (action) {
      case kPut: return put(1, false);
      case kPutDurable: return put(1 + random_.below(3), true);
      case kPutBatch: return put(2 + random_.below(12), random_.below(4) == 0);
      case kGet: return get(1, {});
      case kGetBatch: return get(2 + random_.below(12), {});
      case kGetPart: return get_part();
      case kErase: return erase();
      case kFlush: return flush();
      case kPin: return pin();
      case kUnpin: return unpin();
      case kPrefix: return prefix();
      case kPrefetch: return prefetch();
      case kAdvance: return sim_.advance_ns(random_.below(4) == 0 ? 3'000'000'000 : random_.below(80'000'000));
      case kCancel: return cancel();
      case kDeadline: return get(1 + random_.below(6), {.deadline_ns = 1 + random_.below(20'000'000)});
      case kFinishOne: return finish_one();
      case kJudge: return judge();
      case kCloseOpen: return close_and_open();
      case kKill: return crash(true);
      case kPowerCut: return crash(false);
      case kAddFault: return add_fault();
      case kActions: return;
    }
  }

  // ---- operations ----
  void put(uint64_t count, bool durable) {
    std::vector<std::pair<Name, uint64_t>> blocks;
    PutHow how;
    how.durable = durable;
    how.page_hashes = random_.below(3) == 0;
    how.layout = layout();
    how.version = version_;
    for (uint64_t i = 0; i < count; ++i) {
      const Name chosen = name();
      blocks.emplace_back(chosen, size_of(chosen, how.version));
    }
    pending_.push_back(sim_.start_put(blocks, how));
    sometimes_finish();
  }
  void get(uint64_t count, const SubmitOptions& options) {
    std::vector<Name> names;
    for (uint64_t i = 0; i < count; ++i) names.push_back(name());
    pending_.push_back(sim_.start_get(names, layout(), options));
    sometimes_finish();
  }
  void get_part() {
    const Name chosen = name();
    if (!sim_.is_live(chosen) || sim_.has_put_in_flight(chosen)) return;
    const uint64_t bytes = sim_.live_bytes(chosen);
    const uint64_t offset = random_.below(bytes);
    finish_all();  // it runs to completion: what else ends meanwhile is judged first
    if (faults_ == Faults::kStuck) heal();
    if (sim_.is_live(chosen)) sim_.get_part(chosen, offset, 1 + random_.below(bytes - offset), layout());
  }
  void erase() {
    const Name chosen = name();
    if (sim_.has_put_in_flight(chosen) || !sim_.was_put(chosen)) return;
    const ItemResult result = sim_.erase(chosen);
    if (result.status == ItemStatus::kDeleted && random_.below(2) == 0) ++version_;
  }
  void flush() {
    const Status status = sim_.try_flush();
    const bool excused = faults_ != Faults::kNone;
    if (!status.ok() && !excused) ADD_FAILURE() << sim_.context << ": flush: " << status.to_string();
  }
  void pin() {
    std::vector<Name> names = {name(), name(), name()};
    std::vector<KeyRef> refs;
    for (const Name& one : names) refs.push_back(sim_.ref(one));
    std::vector<int64_t> bytes(refs.size());
    sim_.store().lookup(refs, true, bytes);
    for (size_t i = 0; i < names.size(); ++i) {
      if (bytes[i] >= 0) pinned_.push_back(names[i]);
    }
    if (pinned_.size() > 6) unpin();
  }
  void unpin() {
    while (!pinned_.empty()) {
      const KeyRef key = sim_.ref(pinned_.back());
      sim_.store().unpin({&key, 1});
      if (random_.below(4) == 0) sim_.store().unpin({&key, 1});  // twice is harmless
      pinned_.pop_back();
    }
  }
  void prefix() {
    std::vector<Name> names = {name(), name(), name(), name()};
    std::vector<KeyRef> refs;
    for (const Name& one : names) refs.push_back(sim_.ref(one));
    sim_.take_evictions();
    const uint64_t length = sim_.store().match_prefix(refs, false);
    for (uint64_t i = 0; i < length; ++i) {
      if (faults_ != Faults::kCorrupting && !sim_.is_live(names[i]) && !sim_.has_put_in_flight(names[i])) {
        ADD_FAILURE() << sim_.context << ": match_prefix counts " << names[i].text();
      }
    }
  }
  void prefetch() {
    prefetched_.emplace_back();
    std::vector<KeyRef> refs;
    for (int i = 0; i < 6; ++i) prefetched_.back().names.push_back(name());
    for (const Name& one : prefetched_.back().names) refs.push_back(sim_.ref(one));
    prefetched_.back().job = sim_.store().prefetch(refs, {}, nullptr).value();
  }
  void cancel() {
    if (pending_.empty()) return;
    auto& chosen = pending_[random_.below(pending_.size())];
    random_.below(2) == 0 ? chosen.job->cancel() : chosen.job->cancel_item(static_cast<uint32_t>(random_.below(4)));
  }
  void judge() {
    finish_all();
    if (faults_ == Faults::kStuck) heal();
    sim_.judge_all();
  }

  // ---- waiting ----
  void sometimes_finish() {
    const uint64_t steps = random_.below(4) == 0 ? 0 : random_.below(6);
    for (uint64_t i = 0; i < steps; ++i) sim_.store().step();
    if (random_.below(3) != 0 || pending_.size() > 6) finish_one();
  }
  void finish_done() {
    for (size_t i = 0; i < pending_.size();) {
      if (!pending_[i].job->done()) {
        ++i;
        continue;
      }
      finish_at(i);
    }
    std::erase_if(prefetched_, [](const auto& one) { return one.job->done(); });
  }
  void finish_at(size_t i) {
    SimStore::Pending chosen = std::move(pending_[i]);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
    // What is stuck is released after a while, sometimes past the time-out; then it may get stuck again.
    for (int rounds = 0; faults_ == Faults::kStuck && !chosen.job->done() && rounds < 1000; ++rounds) {
      const uint64_t until_ns = sim_.clock().monotonic_ns() + (random_.below(4) == 0 ? 3'000'000'000 : 20'000'000);
      sim_.run_until([&] { return chosen.job->done() || sim_.clock().monotonic_ns() >= until_ns; });
      release();
    }
    sim_.finish(chosen);
  }
  void finish_one() {
    finish_done();
    if (!pending_.empty()) finish_at(random_.below(pending_.size()));
    finish_done();
  }
  void finish_all() {
    release();
    while (!pending_.empty()) finish_at(0);
    if (faults_ == Faults::kStuck) heal();
    for (auto& one : prefetched_) sim_.run_until([&] { return one.job->done(); });
    prefetched_.clear();
  }

  // ---- faults ----
  void release() {
    for (uint32_t i = 0; i < sim_.setup().devices; ++i) sim_.disk(i).release_stuck();
  }
  void heal() {
    for (uint32_t i = 0; i < sim_.setup().devices; ++i) sim_.disk(i).clear_rules();
    release();
  }
  void add_fault() {
    device::SimDisk& disk = sim_.disk(static_cast<uint32_t>(random_.below(sim_.setup().devices)));
    const auto& geometry = sim_.geometry();
    const uint64_t skip = random_.below(30);
    const uint64_t times = 1 + random_.below(3);
    const IoOp op = random_.below(2) == 0 ? IoOp::kRead : IoOp::kWrite;
    // Superblocks are left alone: an update that fails is an opening that fails, which other tests are about.
    const uint64_t first = random_.below(2) == 0 ? format::kMetadataOffset : geometry.data_offset;
    const uint64_t last = geometry.device_bytes - kPageBytes;
    const auto add = [&](SimFault fault, IoOp which, uint64_t value) {
      disk.add_rule(rule_of(fault, which, first, last, times, skip, value));
    };
    sim_.allow_misses(true);
    switch (faults_) {
      case Faults::kNone: return;
      case Faults::kTransient:
        switch (random_.below(4)) {
          case 0: return add(SimFault::kError, op, 0);
          case 1: return add(SimFault::kShort, op, 512 * random_.below(12));
          case 2: return add(SimFault::kAgain, op, 0);
          default: return add(SimFault::kErrorAfterWrite, IoOp::kWrite, 0);
        }
      case Faults::kFlush:
        return disk.add_rule(rule_of(SimFault::kFlushFails, IoOp::kFlush, 0, UINT64_MAX, times, skip / 5));
      case Faults::kStuck: return add(SimFault::kStuck, op, random_.below(3) == 0 ? EIO : 0);
      case Faults::kCorrupting:
        switch (random_.below(4)) {
          case 0: return add(SimFault::kBitRot, IoOp::kRead, random_.below(4096));
          case 1: return add(SimFault::kLost, IoOp::kWrite, 0);
          case 2: return add(SimFault::kMisdirected, IoOp::kRead, elsewhere());
          default: return add(SimFault::kMisdirected, IoOp::kWrite, elsewhere());
        }
    }
  }
  uint64_t elsewhere() {
    const auto& geometry = sim_.geometry();
    return geometry.data_offset + random_.below(geometry.memory_bytes() / kPageBytes - 64) * kPageBytes;
  }
  // After faults that lose nothing durable the next opening must find all of it.
  void expect_all_again() {
    if (faults_ != Faults::kCorrupting) sim_.allow_misses(false);
  }

  // ---- ends ----
  void crash(bool cache_survives) {
    pinned_.clear();
    for (uint32_t i = 0; i < sim_.setup().devices; ++i) sim_.disk(i).clear_rules();
    sim_.crash(cache_survives);
    pending_.clear();
    prefetched_.clear();
    reopen();
  }
  void close_and_open() {
    pinned_.clear();
    finish_all();
    heal();
    const Status status = sim_.close();
    const bool excused = faults_ != Faults::kNone;
    if (!status.ok() && !excused) ADD_FAILURE() << sim_.context << ": close: " << status.to_string();
    reopen();
  }
  void reopen() {
    // A small index drops what finds no room: the oracle cannot know which.
    const bool may_drop = sim_.setup().store.index_blocks_max != 0;
    expect_all_again();
    if (may_drop) sim_.allow_misses(true);
    sim_.reopen_and_judge();
    if (!may_drop) expect_all_again();
  }
  void settle() {
    unpin();
    finish_all();
    heal();
    sim_.advance_ns(10'000'000'000);
    sim_.run_idle();
    sim_.advance_ns(10'000'000'000);
    sim_.run_idle();
    for (const char* name :
         {"staging_buffers_out", "pins", "jobs_in_flight", "puts_in_flight", "pieces_in_flight", "regions_pinned"}) {
      EXPECT_EQ(sim_.number(name), 0) << sim_.context << ": " << name;
    }
    sim_.judge_all();
    close_and_open();
  }

  struct Prefetched {
    std::vector<Name> names;
    JobRef job;
  };

  SeededRandom random_;
  SimStore sim_;
  std::vector<std::unique_ptr<OrderChecker>> checkers_;
  Faults faults_ = Faults::kNone;
  uint32_t weights_[kActions] = {};
  uint64_t keys_ = 0;
  uint32_t version_ = 1;
  const bool trace_ = std::getenv("KVS_TRACE") != nullptr;
  std::vector<SimStore::Pending> pending_;
  std::vector<Prefetched> prefetched_;
  std::vector<Name> pinned_;
};

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(RandomRun, NoSeedFindsAWrongAnswer) {
  const uint64_t only = from_environment("KVS_SEED", 0);
  const uint64_t first = only != 0 ? only : from_environment("KVS_FIRST_SEED", 1);
  const uint64_t count = only != 0 ? 1 : from_environment("KVS_SEEDS", kSeedsDefault);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    if (std::getenv("KVS_PROGRESS") != nullptr)
      std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed));
    RandomRun(seed).run(250);
    if (!HasFailure()) continue;
    std::printf("KVS_SEED=%llu replays this failure\n", static_cast<unsigned long long>(seed));
    return;
  }
}

}  // namespace
}  // namespace kvstore::store
