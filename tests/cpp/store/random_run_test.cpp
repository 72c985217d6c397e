// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: no sequence of calls, faults and crashes makes the store answer wrong, hang, or keep what it should give back.
// Method: seeded runs of a few hundred random operations on a simulated pool, judged by the oracle of sim_harness.h.
// Each seed draws its own world (swarm testing): some operations and faults are switched off, the rest weighted wildly.
// KVS_SEEDS=n runs n seeds from KVS_FIRST_SEED, KVS_SECONDS=s as many as fit, KVS_SEED=s the one that failed (see
// tools/replay), KVS_TRACE=1 prints its operations. The line that begins with KVS_SUMMARY is JSON: what the run came
// to.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "store/order_checker.h"
#include "store/seeded_runs.h"
#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

constexpr uint64_t kSeedsDefault = 200;
constexpr uint64_t kSizes[] = {1, 700, 4095, 4096, 4097, 9'000, 30'000, 64 * kKiB + 1, 100'000, 240'000};

struct FaultKind {
  SimFault fault;
  IoOp op;
};

constexpr FaultKind kFaultKinds[] = {
    // Nothing acknowledged as durable may go; while they last anything may be an error.
    {SimFault::kError, IoOp::kRead},
    {SimFault::kError, IoOp::kWrite},
    {SimFault::kErrorAfterWrite, IoOp::kWrite},
    {SimFault::kShort, IoOp::kRead},
    {SimFault::kShort, IoOp::kWrite},
    {SimFault::kAgain, IoOp::kRead},
    {SimFault::kAgain, IoOp::kWrite},
    {SimFault::kAgainAfterPart, IoOp::kRead},
    {SimFault::kAgainAfterPart, IoOp::kWrite},
    {SimFault::kFlushFails, IoOp::kFlush},
    {SimFault::kStuck, IoOp::kRead},
    {SimFault::kStuck, IoOp::kWrite},
    // Of the medium: blocks whose own bytes they touch may be misses, at any time.
    {SimFault::kLost, IoOp::kWrite},
    {SimFault::kMisdirected, IoOp::kRead},
    {SimFault::kMisdirected, IoOp::kWrite},
    {SimFault::kBitRot, IoOp::kRead},
    {SimFault::kRot, IoOp::kRead},
    {SimFault::kRot, IoOp::kWrite},
    {SimFault::kStale, IoOp::kRead},
    {SimFault::kLatent, IoOp::kRead},
    {SimFault::kLatent, IoOp::kWrite},
    {SimFault::kGhost, IoOp::kWrite},
};

// The caller may be told of these, by errors or by blocks that are given up.
bool excuses_while_open(SimFault fault) { return !is_of_the_medium(fault) || fault == SimFault::kGhost; }

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
    draw_faults();
    for (uint32_t& weight : weights_) weight = random_.below(4) == 0 ? 0 : 1 + static_cast<uint32_t>(random_.below(12));
    weights_[kPut] += 4;
    weights_[kGet] += 3;
    for (const Action rare : {kCloseOpen, kKill, kPowerCut, kJudge}) weights_[rare] = weights_[rare] / 5;
    if (!has_faults_) weights_[kAddFault] = 0;
    keys_ = 10 + random_.below(120);
    if (has_rot_) sim_.expect_metadata_to_rot();
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
                    static_cast<double>(sim_.clock().monotonic_ns()) / 1e9, has_faults_);
      }
      act(action);
      ++operations_;
    }
    if (sim_.is_open() && !::testing::Test::HasFailure()) settle();
  }

  uint64_t operations() const { return operations_; }
  SimStore& sim() { return sim_; }

 private:
  // No faults, or one kind alone, or about half of them, some much more often than others.
  void draw_faults() {
    const uint64_t world = random_.below(10);
    if (world < 3) return;
    for (uint32_t& weight : fault_weights_) {
      weight = world < 6 || random_.below(2) == 0 ? 0 : 1 + static_cast<uint32_t>(random_.below(8));
    }
    fault_weights_[random_.below(std::size(kFaultKinds))] = 4;
    has_faults_ = true;
    for (size_t i = 0; i < std::size(kFaultKinds); ++i) {
      const SimFault fault = kFaultKinds[i].fault;
      if (fault_weights_[i] == 0) continue;
      has_rot_ = has_rot_ || is_of_the_medium(fault);
      has_stuck_ = has_stuck_ || fault == SimFault::kStuck;
      for (uint32_t disk = 0; fault == SimFault::kStale && disk < sim_.setup().devices; ++disk) {
        sim_.disk(disk).keep_previous();
      }
    }
  }

  SimSetup draw_setup(uint64_t seed) {
    SimSetup setup;
    setup.seed = seed;
    setup.devices = random_.below(4) == 0 ? 2 : 1;
    setup.regions = static_cast<uint32_t>(8 + random_.below(10));
    setup.region_bytes = uint64_t{256 * kKiB} << random_.below(3);
    setup.min_block_bytes = random_.below(2) == 0 ? 4 * kKiB : 16 * kKiB;
    setup.device.volatile_cache = random_.below(4) != 0;
    setup.device.reorder = random_.below(4) != 0;
    setup.device.early = random_.below(4) == 0;
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
    if (has_faults_) return sim_.watch_damage();
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

  Action choose() { return static_cast<Action>(draw_weighted(random_, weights_)); }

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
    if (has_stuck_) heal();
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
    const bool excused = has_faults_;
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
      if (!has_rot_ && !sim_.is_live(names[i]) && !sim_.has_put_in_flight(names[i])) {
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
    if (has_stuck_) heal();
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
    for (int rounds = 0; has_stuck_ && !chosen.job->done() && rounds < 1000; ++rounds) {
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
    if (has_stuck_) heal();
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
    device::SimDisk& disk = any_disk();
    if (disk.ghost_count() != 0 && random_.below(2) == 0) return disk.land_ghosts();
    const FaultKind& kind = kFaultKinds[draw_weighted(random_, fault_weights_)];
    const auto& geometry = sim_.geometry();
    const bool is_flush = kind.op == IoOp::kFlush;
    const uint64_t skip = random_.below(is_flush ? 6 : 30);
    // Superblocks are left alone: an update that fails is an opening that fails, which other tests are about.
    const uint64_t first = random_.below(2) == 0 ? format::kMetadataOffset : geometry.data_offset;
    const uint64_t last = geometry.device_bytes - kPageBytes;
    if (excuses_while_open(kind.fault)) sim_.allow_misses(true);
    disk.add_rule(rule_of(kind.fault, kind.op, is_flush ? 0 : first, is_flush ? UINT64_MAX : last, 1 + random_.below(3),
                          skip, value_of(kind.fault)));
  }
  uint64_t value_of(SimFault fault) {
    switch (fault) {
      case SimFault::kShort:
      case SimFault::kAgainAfterPart: return 512 * random_.below(12);
      case SimFault::kStuck: return random_.below(3) == 0 ? EIO : 0;
      case SimFault::kGhost: return random_.below(2) == 0 ? ETIMEDOUT : 0;
      case SimFault::kBitRot:
      case SimFault::kRot:
      case SimFault::kLatent: return random_.below(random_.below(4) == 0 ? 200'000 : 4096);
      case SimFault::kMisdirected: return elsewhere();
      default: return 0;
    }
  }
  uint64_t elsewhere() {
    const auto& geometry = sim_.geometry();
    if (random_.below(4) == 0) {
      return format::kMetadataOffset +
             random_.below(geometry.region_count * geometry.entry_bytes / kPageBytes) * kPageBytes;
    }
    return geometry.data_offset + random_.below(geometry.memory_bytes() / kPageBytes - 64) * kPageBytes;
  }
  device::SimDisk& any_disk() { return sim_.disk(static_cast<uint32_t>(random_.below(sim_.setup().devices))); }

  // ---- ends ----
  void crash(bool cache_survives) {
    pinned_.clear();
    for (uint32_t i = 0; i < sim_.setup().devices; ++i) sim_.disk(i).clear_rules();
    sim_.crash(cache_survives);
    pending_.clear();
    prefetched_.clear();
    may_lose_ = false;
    while (random_.below(3) == 0) die_while_opening();
    if (random_.below(2) == 0) any_disk().land_ghosts();
    reopen();
  }
  // Killed again while it opens, or opened on a disk that cannot read all of its metadata for now: what was durable
  // must survive that too.
  void die_while_opening() {
    device::SimDisk& disk = any_disk();
    if (has_faults_ && random_.below(2) == 0) {
      const auto& geometry = sim_.geometry();
      disk.add_rule(rule_of(SimFault::kError, IoOp::kRead, format::kMetadataOffset, geometry.data_offset,
                            1 + random_.below(4), random_.below(20)));
    } else {
      disk.stop_after(1 + random_.below(16));
    }
    if (sim_.open().ok()) {
      for (uint64_t steps = random_.below(40); steps > 0; --steps) sim_.store().step();
      // A region that was reclaimed without being read whole takes along what nobody could be told of.
      may_lose_ = may_lose_ || sim_.number("regions_reclaimed") != 0;
    }
    sim_.crash(random_.below(2) == 0);
    disk.clear_rules();
  }
  void close_and_open() {
    pinned_.clear();
    finish_all();
    heal();
    const Status status = sim_.close();
    const bool excused = has_faults_;
    if (!status.ok() && !excused) ADD_FAILURE() << sim_.context << ": close: " << status.to_string();
    reopen();
  }
  void reopen() {
    // A small index drops what finds no room: the oracle cannot know which.
    const bool may_drop = sim_.setup().store.index_blocks_max != 0;
    sim_.allow_misses(may_drop || std::exchange(may_lose_, false));
    sim_.reopen_and_judge();
    sim_.allow_misses(may_drop);
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
  bool has_faults_ = false;
  bool has_rot_ = false;
  bool has_stuck_ = false;
  bool may_lose_ = false;
  uint32_t fault_weights_[std::size(kFaultKinds)] = {};
  uint64_t operations_ = 0;
  uint32_t weights_[kActions] = {};
  uint64_t keys_ = 0;
  uint32_t version_ = 1;
  const bool trace_ = std::getenv("KVS_TRACE") != nullptr;
  std::vector<SimStore::Pending> pending_;
  std::vector<Prefetched> prefetched_;
  std::vector<Name> pinned_;
};

// The sums over all seeds, as one line of JSON.
class Summary {
 public:
  void add(RandomRun& run) {
    ++seeds_;
    operations_ += run.operations();
    const SimTotals& totals = run.sim().totals;
    totals_.hits_verified += totals.hits_verified;
    totals_.misses += totals.misses;
    totals_.wrong_bytes += totals.wrong_bytes;
    totals_.lost_durable += totals.lost_durable;
    totals_.reopened += totals.reopened;
    totals_.crashes += totals.crashes;
    const FaultCounts faults = run.sim().faults();
    for (size_t i = 0; i < faults.size(); ++i) faults_[i] += faults[i];
  }
  void print(uint64_t first_seed) const {
    std::string faults;
    for (size_t i = 1; i < faults_.size(); ++i) {
      faults += std::string(i == 1 ? "" : ", ") + "\"" + text_of(static_cast<SimFault>(i)) +
                "\": " + std::to_string(faults_[i]);
    }
    const std::pair<const char*, uint64_t> numbers[] = {
        {"seeds", seeds_},
        {"operations", operations_},
        {"hits_verified", totals_.hits_verified},
        {"misses", totals_.misses},
        {"wrong_bytes", totals_.wrong_bytes},
        {"lost_durable_blocks", totals_.lost_durable},
        {"reopened", totals_.reopened},
        {"crashes", totals_.crashes},
    };
    std::printf("%s, \"faults\": {%s}}\n", summary_text(first_seed, numbers).c_str(), faults.c_str());
  }

 private:
  uint64_t seeds_ = 0;
  uint64_t operations_ = 0;
  SimTotals totals_;
  FaultCounts faults_{};
};

TEST(RandomRun, NoSeedFindsAWrongAnswer) {
  Summary summary;
  const uint64_t first = run_seeds(kSeedsDefault, "tools/replay", [&summary](uint64_t seed) {
    RandomRun run(seed);
    run.run(250);
    summary.add(run);
  });
  summary.print(first);
}

}  // namespace
}  // namespace kvstore::store
