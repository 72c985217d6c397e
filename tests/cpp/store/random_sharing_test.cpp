// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever openers of a shared pool do, and whatever happens to them, to the metadata engine and to the device:
// no wrong byte, no two writers of a life, no durable block lost, none that was deleted back, no call without end, and
// afterwards the whole pool can be used again.
// Method: seeded runs of two to four openers on one simulated disk, one engine and one clock, judged by many_openers.h
// and here. Each seed draws its own world: some faults are switched off, the rest weighted wildly.
// KVS_SEEDS, KVS_FIRST_SEED, KVS_SECONDS, KVS_SEED and KVS_TRACE as in random_run_test.cpp; tools/replay --sharing
// SEED.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "store/many_openers.h"
#include "store/seeded_runs.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kSeedsDefault = 60;
constexpr uint32_t kOperations = 150;

enum Action : uint32_t {
  kPut,
  kPutDurable,
  kBeginPut,
  kSettle,
  kGet,
  kLookup,
  kFlush,
  kRefresh,
  kDelete,
  kDeleteForSure,
  kAdvance,
  kPause,
  kGoOn,
  kCloseOpen,
  kKill,
  kKillWithGhosts,
  kLandGhosts,
  kOpenAgain,
  kCut,
  kHeal,
  kFailover,
  kWipe,
  kDeviceFault,
  kJudge,
  kActions,
};

constexpr const char* kActionNames[] = {"put",          "put durable",
                                        "begin put",    "settle",
                                        "get",          "lookup",
                                        "flush",        "refresh",
                                        "delete",       "delete for sure",
                                        "advance",      "pause",
                                        "go on",        "close, open",
                                        "kill",         "kill with ghosts",
                                        "land ghosts",  "open again",
                                        "cut",          "heal",
                                        "failover",     "wipe",
                                        "device fault", "judge"};
static_assert(std::size(kActionNames) == kActions);

struct FaultKind {
  SimFault fault;
  IoOp op;
};
constexpr FaultKind kFaultKinds[] = {
    {SimFault::kError, IoOp::kRead},  {SimFault::kError, IoOp::kWrite},      {SimFault::kErrorAfterWrite, IoOp::kWrite},
    {SimFault::kShort, IoOp::kRead},  {SimFault::kShort, IoOp::kWrite},      {SimFault::kAgain, IoOp::kRead},
    {SimFault::kAgain, IoOp::kWrite}, {SimFault::kFlushFails, IoOp::kFlush}, {SimFault::kStuck, IoOp::kWrite},
    {SimFault::kGhost, IoOp::kWrite},
};

// What a seed's runs came to.
struct Totals {
  uint64_t seeds = 0;
  uint64_t operations = 0;
  uint64_t hits = 0;
  uint64_t durable_checked = 0;
  uint64_t deleted_checked = 0;
  uint64_t lives = 0;
  uint64_t actions[kActions] = {};
  uint64_t rejoins = 0;
  uint64_t rebuilds = 0;
  uint64_t retires = 0;
  uint64_t regions_lost = 0;
};

class SharingRun {
 public:
  SharingRun(uint64_t seed, Totals& totals)
      : seed_(seed),
        totals_(totals),
        random_(seed * 6'364'136'223'846'793'005 + 1),
        setup_(draw_setup()),
        openers_(setup_) {
    for (uint32_t& weight : weights_) weight = random_.below(4) == 0 ? 0 : 1 + static_cast<uint32_t>(random_.below(12));
    weights_[kPut] += 4;
    weights_[kGet] += 3;
    weights_[kOpenAgain] += 2;
    for (const Action rare : {kPause, kGoOn, kCloseOpen, kKill, kKillWithGhosts, kCut, kHeal, kJudge})
      weights_[rare] /= 3;
    for (const Action rare : {kFailover, kWipe}) weights_[rare] /= 6;
    const uint64_t world = random_.below(8);  // none of these faults, one kind alone, or what was drawn
    const Action faults[] = {kPause, kKill, kKillWithGhosts, kCut, kFailover, kWipe, kDeviceFault};
    const size_t alone = random_.below(std::size(faults));
    for (size_t i = 0; i < std::size(faults) && world < 4; ++i) {
      weights_[faults[i]] = world != 0 && i == alone ? 3 : 0;
    }
    if (setup_.forgets_ns == 0) weights_[kFailover] = 0;
    weights_[kLandGhosts] = weights_[kKillWithGhosts] + weights_[kDeviceFault];
    // A lease can do nothing about who is stopped between looking at it and writing; that others do not take its
    // regions is for the engine to remember (S5), and a wiped one does not know of those it had not written to yet.
    interleave_one_in_ = random_.below(3) == 0 ? 0 : 1 + static_cast<uint32_t>(random_.below(40));
    interleave_long_one_in_ =
        weights_[kWipe] != 0 || random_.below(2) == 0 ? 0 : 20 + static_cast<uint32_t>(random_.below(200));
    keys_ = static_cast<int>(5 + random_.below(setup_.regions >= 64 ? 60 : 160));
  }

  void run() {
    openers_.interleave(interleave_one_in_, interleave_long_one_in_);
    for (uint32_t i = 0; i < setup_.openers; ++i) {
      if (i == 0 || random_.below(3) != 0) open(i);
    }
    for (uint32_t i = 0; i < kOperations && openers_.violations().empty(); ++i) {
      const auto opener = static_cast<uint32_t>(random_.below(setup_.openers));
      const Action action = choose();
      ++totals_.operations;
      ++totals_.actions[action];
      if (trace_) {
        std::printf("%u: opener %u%s: %s, at %.3f s\n", i, opener, openers_.is_open(opener) ? "" : " (closed)",
                    kActionNames[action], static_cast<double>(openers_.now_ns()) / 1e9);
      }
      act(action, opener);
      note_dropped();
    }
    if (openers_.violations().empty()) judge();
    if (openers_.violations().empty()) end();
    if (trace_ && !openers_.violations().empty()) std::printf("%s", openers_.describe().c_str());
    for (uint32_t i = 0; i < setup_.openers; ++i) leave(i);
    totals_.lives += openers_.lives().size();
    EXPECT_EQ(openers_.all_violations(), "") << "KVS_SEED=" << seed_;
  }

 private:
  OpenersSetup draw_setup() {
    OpenersSetup setup;
    setup.seed = seed_;
    setup.openers = static_cast<uint32_t>(2 + random_.below(3));
    setup.regions = random_.below(3) == 0 ? 96 : static_cast<uint32_t>(8 + random_.below(16));
    const double probabilities[] = {0, 0, 0.01, 0.1};
    setup.faults.request_lost = probabilities[random_.below(4)];
    setup.faults.reply_lost = probabilities[random_.below(4)];
    setup.faults.slow = probabilities[random_.below(4)];
    setup.faults.slow_ns_max = random_.below(2) == 0 ? 20'000'000 : kSecondNs;
    setup.forgets_ns = random_.below(3) == 0 ? kSecondNs : 0;
    setup.drift = random_.below(2) == 0;
    const uint64_t latencies[] = {0, 0, 80'000, 4'000'000};
    setup.latency_ns = latencies[random_.below(4)];
    setup.early = random_.below(3) == 0;
    return setup;
  }

  Action choose() { return static_cast<Action>(draw_weighted(random_, weights_)); }

  int any() { return static_cast<int>(random_.below(static_cast<uint64_t>(keys_))); }

  void act(Action action, uint32_t opener) {
    const bool for_open = action <= kDeleteForSure || (action >= kPause && action <= kKillWithGhosts) || action == kCut;
    if (for_open && !openers_.is_open(opener)) return;
    switch (action) {
      case kPut: return put(opener, any(), false);
      case kPutDurable: return put(opener, any(), true);
      case kBeginPut: return begin_put(opener);
      case kSettle: return openers_.settle_puts(opener);
      case kGet: return get(opener, any());
      case kLookup: return (void)openers_.contains(opener, any());
      case kFlush: return flush(opener);
      case kRefresh: return (void)openers_.refresh(opener);
      case kDelete: return (void)erase(opener, any());
      case kDeleteForSure: return erase_for_sure(opener);
      case kAdvance: return advance();
      case kPause: return openers_.pause(opener, true);
      case kGoOn: return openers_.pause(opener, false);
      case kCloseOpen: return close_and_open(opener);
      case kKill: return kill(opener);
      case kKillWithGhosts: return kill_with_ghosts(opener);
      case kLandGhosts: return land_ghosts();
      case kOpenAgain:
        if (!openers_.is_open(opener)) open(opener);
        return;
      case kCut: return openers_.cut(opener, true);
      case kHeal: return heal();
      case kFailover: return failover();
      case kWipe: return wipe();
      case kDeviceFault: return device_fault();
      case kJudge: return judge();
      case kActions: return;
    }
  }

  // ---- life ----
  void open(uint32_t opener) {
    opened_with_faults_[opener] = device_faults_;
    (void)openers_.open(opener);
  }
  void leave(uint32_t opener) {
    if (!openers_.is_open(opener)) return;
    count(opener);
    openers_.kill(opener);
  }
  void count(uint32_t opener) {
    totals_.rejoins += static_cast<uint64_t>(openers_.number(opener, "rejoins"));
    totals_.rebuilds += static_cast<uint64_t>(openers_.number(opener, "engine_rebuilds"));
    totals_.regions_lost += static_cast<uint64_t>(openers_.number(opener, "regions_lost"));
    totals_.retires += static_cast<uint64_t>(openers_.number(opener, "regions_retired"));
  }
  void close_and_open(uint32_t opener) {
    openers_.settle_puts(opener);
    count(opener);
    const Status closed = openers_.close(opener);
    if (!closed.ok()) unsure(opener);
    unflushed_[opener].clear();
    if (random_.below(3) != 0) open(opener);
  }
  void kill(uint32_t opener) {
    for (const int number : openers_.pending_numbers(opener)) murky_.insert(number);
    unsure(opener);
    count(opener);
    openers_.kill(opener);
    if (random_.below(3) == 0) open(opener);
  }
  // What it writes from some moment on stays in the device, and lands whenever it likes.
  void kill_with_ghosts(uint32_t opener) {
    device::SimRule rule{
        .fault = SimFault::kStuck, .op = IoOp::kWrite, .skip = random_.below(6), .times = 1 + random_.below(8)};
    openers_.disk().add_rule(rule);
    for (int i = 0; i < 3; ++i) begin_put(opener);
    for (uint64_t steps = random_.below(12); steps != 0; --steps) (void)openers_.step(opener);
    kill(opener);
    openers_.disk().clear_rules();
    device_faults_ = false;
  }
  void land_ghosts() {
    openers_.disk().land_ghosts();
    openers_.disk().release_stuck();
  }
  void failover() {
    openers_.cluster().failover(random_.below(setup_.forgets_ns + 1));
    // Told again by who deleted it, if that one lives on.
    if (openers_.now_ns() - deleted_ns_ <= setup_.forgets_ns) deleted_.clear();
  }
  void wipe() {
    openers_.cluster().wipe();
    deleted_.clear();  // what was deleted may come back
  }

  // ---- work ----
  void tell(const char* what, int number, ItemStatus status) {
    if (trace_) std::printf("   %s %d: %d\n", what, number, static_cast<int>(status));
  }
  void put(uint32_t opener, int number, bool durable) {
    deleted_.erase(number);
    const ItemResult result = openers_.put(opener, number, durable);
    tell("block", number, result.status);
    if (!result.succeeded()) murky_.insert(number);
    if (result.status == ItemStatus::kStored) dropped_.erase(number);
    if (result.succeeded() && !durable) unflushed_[opener].insert(number);
  }
  void begin_put(uint32_t opener) {
    if (openers_.pending(opener) > 12) return openers_.settle_puts(opener);
    const int number = any();
    deleted_.erase(number);
    unflushed_[opener].insert(number);
    openers_.begin_put(opener, number, random_.below(2) == 0);
    tell("block", number, ItemStatus::kPending);
  }
  void get(uint32_t opener, int number) {
    if (openers_.get(opener, number).status == ItemStatus::kHit) ++totals_.hits;
  }
  void flush(uint32_t opener) {
    const size_t pending = openers_.pending(opener);
    if (openers_.flush(opener).ok()) {
      if (pending == 0) unflushed_[opener].clear();
    } else {
      unsure(opener);
    }
  }
  void unsure(uint32_t opener) {
    murky_.insert(unflushed_[opener].begin(), unflushed_[opener].end());
    unflushed_[opener].clear();
  }
  bool erase(uint32_t opener, int number) {
    deleted_.erase(number);
    const ItemStatus status = openers_.erase(opener, number).status;
    tell("block", number, status);
    return status == ItemStatus::kDeleted;
  }
  // Only when nothing of it is on its way: then it must be gone for good.
  void erase_for_sure(uint32_t opener) {
    const int number = any();
    if (device_faults_) return (void)erase(opener, number);
    heal();
    bool sure = true;
    for (uint32_t i = 0; i < setup_.openers; ++i) {
      if (!openers_.is_open(i)) continue;
      openers_.settle_puts(i);
      sure = openers_.flush(i).ok() && sure;
    }
    openers_.run(2 * kSecondNs);
    sure = sure && openers_.refresh(opener).ok();
    sure = erase(opener, number) && sure;
    for (int tries = 0; tries < 5 && sure; ++tries) {
      if (openers_.flush(opener).ok()) break;
      openers_.run(kSecondNs);
      sure = tries != 4;
    }
    deleted_ns_ = openers_.now_ns();
    if (sure && !murky_.contains(number) && !openers_.failed_puts().contains(number)) deleted_.insert(number);
  }
  void advance() {
    std::set<uint32_t> some;
    for (uint32_t i = 0; i < setup_.openers; ++i) {
      if (random_.below(2) == 0) some.insert(i);
    }
    const uint64_t most_ns[] = {100'000'000, kSecondNs, 4 * kSecondNs, 2 * ManyOpeners::kLeaseNs};
    openers_.run_only(some, random_.below(most_ns[random_.below(4)]));
  }

  // ---- faults ----
  // A device that drops its cache says so to the one whose flush fails; what the others had written and not flushed is
  // gone as well, and theirs succeeds (docs/fault_model.md).
  void note_dropped() {
    const std::vector<device::SimHit> hits = openers_.disk().take_hits();
    const bool dropped = std::any_of(hits.begin(), hits.end(),
                                     [](const device::SimHit& hit) { return hit.fault == SimFault::kFlushFails; });
    if (!dropped) return;
    for (const auto& [opener, numbers] : unflushed_) dropped_.insert(numbers.begin(), numbers.end());
  }
  void device_fault() {
    const FaultKind& kind = kFaultKinds[random_.below(std::size(kFaultKinds))];
    device::SimRule rule{.fault = kind.fault, .op = kind.op, .skip = random_.below(20), .times = 1 + random_.below(4)};
    if (kind.fault == SimFault::kShort) rule.value = 512 * random_.below(64);
    openers_.disk().add_rule(rule);
    device_faults_ = true;
  }
  void heal() {
    openers_.disk().clear_rules();
    land_ghosts();
    device_faults_ = false;
    for (uint32_t i = 0; i < setup_.openers; ++i) {
      openers_.pause(i, false);
      if (openers_.is_open(i)) openers_.cut(i, false);
    }
  }

  // ---- judging ----
  void fail(const std::string& text) { openers_.violation(text); }

  void settle_all() {
    heal();
    for (uint32_t i = 0; i < setup_.openers; ++i) {
      if (openers_.is_open(i)) openers_.settle_puts(i);
    }
    openers_.interleave(0, 0);
    openers_.run(4 * ManyOpeners::kLeaseNs);
  }
  void judge() {
    settle_all();
    for (uint32_t i = 0; i < setup_.openers; ++i) {
      if (openers_.is_open(i)) judge_one(i);
    }
    openers_.interleave(interleave_one_in_, interleave_long_one_in_);
  }
  void judge_one(uint32_t opener) {
    const bool must_refresh = setup_.faults.request_lost == 0 && setup_.faults.reply_lost == 0;
    const Status refreshed = openers_.refresh(opener);
    if (!refreshed.ok() && must_refresh) fail("refresh without a fault: " + refreshed.to_string());
    if (!refreshed.ok()) return;
    const std::set<int> durable = openers_.durable();
    for (const int number : durable) {
      const ItemResult result = openers_.get(opener, number);
      const bool hit = result.status == ItemStatus::kHit;
      if (hit) ++totals_.hits;
      // What it was told is lost it does not read again, though the descriptor may have landed, for others to find.
      const bool excused =
          opened_with_faults_[opener] || openers_.number(opener, "blocks_lost") != 0 || dropped_.contains(number);
      if (excused || openers_.any_reclaimed()) continue;
      ++totals_.durable_checked;
      if (!hit)
        fail("DURABLE block " + std::to_string(number) + " is a miss for opener " + std::to_string(opener) + ": " +
             std::to_string(static_cast<int>(result.status)));
    }
    for (const int number : deleted_) {
      ++totals_.deleted_checked;
      if (openers_.get(opener, number).status == ItemStatus::kHit) {
        fail("DELETED block " + std::to_string(number) + " is back for opener " + std::to_string(opener));
      }
    }
  }
  // Everybody can put again, and when all have left the whole pool is there for the next.
  void end() {
    settle_all();
    for (uint32_t i = 0; i < setup_.openers; ++i) {
      if (!openers_.is_open(i)) continue;
      int tries = 0;
      while (!openers_.put(i, 10'000 + static_cast<int>(i), true).succeeded() && ++tries < 10) {
        openers_.run(ManyOpeners::kLeaseNs);
        // All may be owned by openers of which a rebuilt engine knows nothing (S5).
        if (tries == 5) openers_.pass(2 * setup_.orphan_quarantine_ns);
      }
      if (tries == 10) fail("opener " + std::to_string(i) + " cannot put when all faults are over");
    }
    for (uint32_t i = 0; i < setup_.openers; ++i) {
      if (!openers_.is_open(i)) continue;
      count(i);
      random_.below(2) == 0 ? openers_.kill(i) : (void)openers_.close(i);
    }
    openers_.pass(2 * setup_.orphan_quarantine_ns);
    int tries = 0;
    while (!openers_.open(0).ok() && ++tries < 10) openers_.pass(ManyOpeners::kLeaseNs);
    if (tries == 10) return fail("the pool cannot be opened when all faults are over");
    // It may have rebuilt the engine's state, and has heard only then of openers of which nobody knows anything (S7).
    openers_.run(2 * ManyOpeners::kLeaseNs);
    openers_.pass(2 * setup_.orphan_quarantine_ns);
    openers_.run(2 * ManyOpeners::kLeaseNs);
    const uint32_t regions = openers_.geometry().region_count;
    std::set<uint32_t> used;
    for (uint32_t i = 0; i < 12 * regions && used.size() < regions && openers_.violations().empty(); ++i) {
      (void)openers_.put(0, 20'000 + static_cast<int>(i));
      if (i < 3 * regions || i % regions != 0) continue;
      for (const auto& [life, writers] : openers_.lives()) {
        if (writers.contains(openers_.opening(0))) used.insert(life.first);
      }
    }
    if (used.size() < regions) {
      std::string text =
          "of " + std::to_string(regions) + " regions only " + std::to_string(used.size()) + " are used again:";
      for (uint32_t region = 0; region < regions; ++region) {
        if (!used.contains(region)) text += " " + std::to_string(region);
      }
      fail(text);
    }
  }

  const uint64_t seed_;
  Totals& totals_;
  SeededRandom random_;
  const OpenersSetup setup_;
  ManyOpeners openers_;
  uint32_t weights_[kActions] = {};
  uint32_t interleave_one_in_ = 0;
  uint32_t interleave_long_one_in_ = 0;
  int keys_ = 0;
  bool device_faults_ = false;
  std::map<uint32_t, bool> opened_with_faults_;
  std::map<uint32_t, std::set<int>> unflushed_;  // stored, and perhaps not durable yet
  std::set<int> murky_;                          // of which a descriptor may still land
  std::set<int> dropped_;                        // by a flush that failed for another opener; not put again since
  std::set<int> deleted_;                        // for good
  uint64_t deleted_ns_ = 0;                      // the last of them
  const bool trace_ = std::getenv("KVS_TRACE") != nullptr;
};

void print(const Totals& totals, uint64_t first_seed) {
  const std::pair<const char*, uint64_t> numbers[] = {
      {"seeds", totals.seeds},
      {"operations", totals.operations},
      {"hits_verified", totals.hits},
      {"durable_checked", totals.durable_checked},
      {"deleted_checked", totals.deleted_checked},
      {"lives_of_regions", totals.lives},
      {"rejoins", totals.rejoins},
      {"engine_rebuilds", totals.rebuilds},
      {"regions_retired", totals.retires},
      {"regions_lost", totals.regions_lost},
  };
  std::string text = summary_text(first_seed, numbers);
  for (uint32_t i = 0; i < kActions; ++i) {
    text += std::string(i == 0 ? ", \"actions\": {\"" : ", \"") + kActionNames[i] +
            "\": " + std::to_string(totals.actions[i]);
  }
  std::printf("%s}}\n", text.c_str());
}

TEST(RandomSharing, NoSeedFindsAWrongAnswer) {
  Totals totals;
  const uint64_t first = run_seeds(kSeedsDefault, "tools/replay --sharing", [&totals](uint64_t seed) {
    ++totals.seeds;
    SharingRun(seed, totals).run();
  });
  print(totals, first);
}

}  // namespace
}  // namespace kvstore::store
