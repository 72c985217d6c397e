// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: an agent grants its store a region only when the rules S1 to S7 of docs/sharing.md allow it.
// Method: agents over stores that only answer and take notes, on one engine in memory and one clock. What the device
// bears, who lives, who has let go, and which requests get through is the test's to say.

#include "cluster/agent.h"

#include <gtest/gtest.h>

#include "cluster/memory_engine.h"

namespace kvstore::cluster {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kLease = 10 * kSecond;
constexpr Generation kOnDevice{5};  // of every region that was ever used

class NotingStore final : public StoreSide {
 public:
  void joined(uint64_t) override {}
  void openers_changed(uint32_t) override {}
  void confirmed(uint64_t, bool puts_go_on) override {
    ++confirmations;
    if (puts_go_on) refusal = {};
  }
  void unconfirmed(const Status& why) override { refusal = why; }
  void region_changed(const RegionKey&, const RegionView&) override {}
  void deleted(const RegionKey&, const DeadSlots&) override {}
  void granted(const RegionKey& region, Generation spent) override { grants.emplace_back(region.region, spent.value); }
  void lost(const RegionKey& region) override { losses.push_back(region.region); }
  void state_was_rebuilt() override {}
  void regions_read_by_others(std::span<const uint8_t>) override { ++hits_told; }

  uint32_t regions_wanted(uint16_t device) override {
    if (device != wants_of) return 0;
    return wanted > grants.size() ? wanted - static_cast<uint32_t>(grants.size()) : 0;
  }
  Generation header_generation(const RegionKey& region) override { return generation_of(region.region); }
  std::optional<RegionKey> victim(uint16_t) override { return victim_is; }
  bool holds_nothing(const RegionKey&) override { return true; }
  std::vector<RegionKey> take_sealed() override { return {}; }
  std::vector<RegionKey> take_released() override { return {}; }
  std::vector<std::pair<RegionKey, Generation>> take_conflicts() override { return {}; }
  std::vector<std::pair<RegionKey, DeadSlots>> take_deletes() override {
    std::vector<std::pair<RegionKey, DeadSlots>> taken;
    for (const uint32_t region : deleted_in) {
      DeadSlots dead{kOnDevice, format::DeadBitmap(8)};
      dead.slots.set(SlotIndex{3});
      taken.emplace_back(RegionKey{0, region}, std::move(dead));
    }
    deleted_in.clear();
    return taken;
  }
  void deletes_done(const std::vector<RegionKey>& untold) override {
    for (const RegionKey& region : untold) deleted_in.insert(region.region);
  }
  bool drained_all() override { return lets_go; }
  bool drained(const RegionKey&) override { return lets_go; }
  std::vector<uint8_t> take_hits() override { return {}; }
  Result<std::vector<HeaderFacts>> scan_headers(const RegionKey& first, uint32_t count) override {
    std::vector<HeaderFacts> all;
    for (uint32_t i = first.region; i < first.region + count; ++i) {
      all.push_back({{0, i}, used.contains(i) ? Hold::kSealed : Hold::kFree, generation_of(i), 1});
    }
    return all;
  }
  Generation generation_of(uint32_t region) const { return used.contains(region) ? kOnDevice : Generation{}; }

  uint32_t regions = 1;
  std::set<uint32_t> used;  // sealed on the device
  uint32_t wanted = 0;
  uint16_t wants_of = 0;
  std::optional<RegionKey> victim_is;
  std::set<uint32_t> deleted_in;  // regions, not told yet
  bool lets_go = true;
  uint32_t hits_told = 0;
  std::vector<std::pair<uint32_t, uint64_t>> grants;  // region, generation before it
  std::vector<uint32_t> losses;
  Status refusal;  // of puts
  uint32_t confirmations = 0;
};

// Through which the test comes between two requests.
class Interposed final : public MetadataEngine {
 public:
  Interposed(std::shared_ptr<MemoryCluster> cluster, Clock& clock, Random& random)
      : engine_(std::move(cluster), clock, random), clock_(clock) {}
  Result<TxnOutcome> txn(std::span<const Compare> compares, std::span<const Operation> operations) override {
    if (const auto hook = std::exchange(before_txn, nullptr)) hook();
    clock_.sleep_ns(txn_takes_ns);
    ++txns;
    if (is_mute) return Status(Code::kTimeout, "the engine did not answer");
    Result<TxnOutcome> outcome = engine_.txn(compares, operations);
    if (std::exchange(loses_reply, false)) return Status(Code::kTimeout, "the engine did not answer");
    return outcome;
  }
  Result<Snapshot> range(std::string_view prefix) override {
    if (fails_ranges) return Status(Code::kFailed, "cannot be read");
    if (lost_range != 0 && --lost_range == 0) return Status(Code::kTimeout, "the engine did not answer");
    return engine_.range(prefix);
  }
  Result<std::unique_ptr<Watch>> watch(std::string_view prefix, Revision after) override {
    return engine_.watch(prefix, after);
  }
  Result<LeaseId> grant(uint64_t ttl_ns) override { return engine_.grant(ttl_ns); }
  Status renew(LeaseId lease) override { return engine_.renew(lease); }
  Status revoke(LeaseId lease) override { return engine_.revoke(lease); }
  uint64_t forgets_ns() const override { return engine_.forgets_ns(); }

  std::function<void()> before_txn;  // once
  uint64_t txn_takes_ns = 0;
  bool is_mute = false;      // to transactions
  bool loses_reply = false;  // to one
  uint32_t txns = 0;         // asked for
  uint32_t lost_range = 0;   // the how manieth from now
  bool fails_ranges = false;

 private:
  MemoryEngine engine_;
  Clock& clock_;
};

struct Member {
  Member(std::shared_ptr<MemoryCluster> cluster, Clock& clock, Random& random, uint64_t number, uint32_t regions,
         const std::set<uint32_t>& used, bool first_ever)
      : engine(std::move(cluster), clock, random) {
    store.regions = regions;
    store.used = used;
    Agent::Setup setup;
    setup.engine = &engine;
    setup.prefix = "kvstore/test/";
    setup.region_counts = {regions, regions};
    setup.epoch_floor = 1;
    setup.identity.process_id = number;
    setup.is_gone = [](const Opener&) { return false; };
    const AgentOptions options{.lease_ns = kLease, .first_ever = first_ever};
    agent = std::make_unique<Agent>(options, setup, store, clock, random);
  }
  Interposed engine;
  NotingStore store;
  std::unique_ptr<Agent> agent;
};

std::set<uint32_t> numbers(uint32_t count) {
  std::set<uint32_t> all;
  for (uint32_t i = 0; i < count; ++i) all.insert(i);
  return all;
}

class Agents : public ::testing::Test {
 protected:
  void begin(uint32_t regions, const std::set<uint32_t>& used, uint64_t forgets_ns = 0) {
    cluster_ = std::make_shared<MemoryCluster>(clock_, forgets_ns);
    for (Member* const one : {a_ = make(1, regions, used), b_ = make(2, regions, used)}) {
      for (int tries = 0; !one->agent->join().ok(); ++tries) {
        ASSERT_LT(tries, 100);
        clock_.sleep_ns(kSecond / 2);
      }
      std::vector<RegionKey> empty;
      for (uint32_t i = 0; i < regions; ++i) {
        if (!used.contains(i)) empty.push_back({0, i});
      }
      one->agent->recovered(empty);
    }
    run({a_, b_}, 2 * kSecond);
  }
  Member* make(uint64_t number, uint32_t regions, const std::set<uint32_t>& used) {
    members_.push_back(std::make_unique<Member>(cluster_, clock_, random_, number, regions, used, first_ever_));
    return members_.back().get();
  }
  void run(const std::vector<Member*>& whom, uint64_t duration_ns) {
    for (const uint64_t end_ns = clock_.monotonic_ns() + duration_ns; clock_.monotonic_ns() < end_ns;) {
      turn(whom);
      clock_.sleep_ns(kSecond / 20);
    }
  }
  void turn(const std::vector<Member*>& whom) {
    for (Member* const one : whom) (void)one->agent->turn(0);
  }
  size_t grants() const { return a_->store.grants.size() + b_->store.grants.size(); }

  // In the engine only: B itself does not notice.
  void end_lease_of_b() { cluster_->revoke(cluster_->range("kvstore/test/live/" + epoch_of_b()).items.at(0).lease); }
  std::string epoch_of_b() const { return std::to_string(b_->agent->epoch()); }
  // A reuses region 0, which B has not let go, in the belief that B is not there: a failover forgot in between that its
  // lease had ended.
  void reuse_what_b_reads(bool loses_reply) {
    begin(1, {0}, kSecond);
    a_->store.wanted = 1;
    a_->store.victim_is = RegionKey{0, 0};
    b_->store.lets_go = false;
    run({a_, b_}, 2 * kSecond);
    end_lease_of_b();
    a_->engine.before_txn = [this] { cluster_->failover(kSecond); };
    a_->engine.loses_reply = loses_reply;
    turn({a_});
    const std::vector<KeyValue> record = cluster_->range("kvstore/test/r/0/0").items;
    ASSERT_EQ(record.size(), 1u);
    ASSERT_TRUE(record[0].value.starts_with("owned ")) << record[0].value;
    run({a_, b_}, 3 * kSecond);
    EXPECT_EQ(grants(), 0u);
  }
  void let_b_go() {
    b_->store.lets_go = true;
    run({a_, b_}, 3 * kSecond);
    EXPECT_EQ(a_->store.grants.size(), 1u);
  }

  bool is_rebuilt() { return !cluster_->range("kvstore/test/format").items.empty(); }

  bool first_ever_ = true;
  ManualClock clock_;
  SeededRandom random_{1};
  std::shared_ptr<MemoryCluster> cluster_;
  std::vector<std::unique_ptr<Member>> members_;
  Member* a_ = nullptr;
  Member* b_ = nullptr;
};

TEST_F(Agents, S1_OfTwoThatTakeARegionAtTheSameTimeOneGetsIt) {
  begin(1, {});
  a_->store.wanted = b_->store.wanted = 1;
  // After B made up its mind and before its request is there.
  b_->engine.before_txn = [this] {
    turn({a_});
    turn({a_});
  };
  turn({b_});
  run({a_, b_}, kSecond);
  EXPECT_EQ(a_->store.grants.size(), 1u);
  EXPECT_EQ(b_->store.grants.size(), 0u);
  EXPECT_TRUE(a_->store.losses.empty());
}

TEST_F(Agents, S2_WhatAFailoverMayStillForgetIsNotGranted) {
  begin(1, {}, kSecond);
  a_->store.wanted = b_->store.wanted = 1;
  turn({a_});
  turn({a_});
  cluster_->failover(kSecond);
  run({b_}, 2 * kSecond);
  run({a_, b_}, 2 * kSecond);
  EXPECT_EQ(grants(), 1u);
  EXPECT_EQ(b_->store.grants.size(), 1u);
}

TEST_F(Agents, S4_ARegionIsReusedOnceEverybodyHasLetGo) {
  begin(1, {0});
  a_->store.wanted = 1;
  a_->store.victim_is = RegionKey{0, 0};
  b_->store.lets_go = false;
  run({a_, b_}, 2 * kLease);
  EXPECT_TRUE(a_->store.grants.empty());
  b_->store.lets_go = true;
  run({a_, b_}, kSecond);
  ASSERT_EQ(a_->store.grants.size(), 1u);
  EXPECT_EQ(a_->store.grants[0].second, kOnDevice.value);
}

// What others have let go is told in revisions, and after a failover one of before may stand for something else.
TEST_F(Agents, S4_WhatOthersLetGoBeforeAFailoverCountsForNothingAfterIt) {
  begin(2, {0, 1}, kSecond);
  Interposed other(cluster_, clock_, random_);
  const Operation change{.key = "elsewhere", .value = "v"};
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(other.txn({}, {&change, 1}).ok());
  a_->store.wanted = 1;
  a_->store.victim_is = RegionKey{0, 0};
  for (int i = 0; i < 5; ++i) turn({a_, b_});  // both have let region 0 go
  b_->store.lets_go = false;
  a_->store.wanted = 2;
  a_->store.victim_is = RegionKey{0, 1};
  a_->engine.before_txn = [this] { cluster_->failover(kSecond); };
  turn({a_});
  turn({a_});
  const std::vector<KeyValue> record = cluster_->range("kvstore/test/r/0/1").items;
  ASSERT_EQ(record.size(), 1u);
  EXPECT_TRUE(record[0].value.starts_with("retiring ")) << record[0].value;
}

TEST_F(Agents, S4_WhetherAllHaveLetGoIsLookedAtAgainBeforeAReusedRegionIsGranted) {
  reuse_what_b_reads(false);
  let_b_go();
}

TEST_F(Agents, S4_WhetherAllHaveLetGoIsLookedAtAgainAlsoWhereTheReuseWasNotAnswered) {
  reuse_what_b_reads(true);
  let_b_go();
}

TEST_F(Agents, S4_TheEndOfALeaseCountsOnlyWhenItCannotBeForgotten) {
  reuse_what_b_reads(false);
  end_lease_of_b();
  run({a_}, kSecond * 9 / 10);
  EXPECT_EQ(grants(), 0u);
  cluster_->failover(kSecond);
  run({a_, b_}, 3 * kSecond);
  EXPECT_EQ(grants(), 0u);
  let_b_go();
}

TEST_F(Agents, S5_ASilentOpenerKeepsItsRegionsUntilItIsKnownToBeGone) {
  begin(1, {});
  a_->store.wanted = 1;
  run({a_, b_}, kSecond);
  ASSERT_EQ(a_->store.grants.size(), 1u);
  b_->store.wanted = 1;
  run({b_}, 5 * kLease);
  EXPECT_TRUE(b_->store.grants.empty());
  run({a_, b_}, kLease);
  EXPECT_TRUE(a_->store.losses.empty());
}

// It says itself that it is gone, and what it was about to empty anybody goes on with.
TEST_F(Agents, S5_WhoLeavesWhileARegionRetiresIsNotTakenForOneThatNobodyKnows) {
  begin(1, {0});
  Member* const c = make(3, 1, {0});
  while (!c->agent->join().ok()) clock_.sleep_ns(kSecond);
  c->agent->recovered({});
  run({a_, b_, c}, kSecond);
  b_->store.lets_go = c->store.lets_go = false;
  a_->store.wanted = 1;
  a_->store.victim_is = RegionKey{0, 0};
  run({a_, b_, c}, kSecond);
  ASSERT_TRUE(cluster_->range("kvstore/test/r/0/0").items.at(0).value.starts_with("retiring "));
  ASSERT_TRUE(a_->agent->leave(true).ok());
  c->engine.before_txn = [this] { turn({b_}); };  // goes on with it: C comes too late, and has not seen it yet
  turn({c});
  run({b_, c}, kLease);
  EXPECT_EQ(cluster_->range("kvstore/test/opener/").items.size(), 2u);
}

TEST_F(Agents, S5_OfAnOwnerThatNobodyKnowsNothingIsKeptWhenItOwnsNothing) {
  begin(1, {});
  const Operation left{.key = "kvstore/test/opener/77",
                       .value = encode(Opener{.lost_seconds = clock_.wall_seconds() + 1})};
  ASSERT_TRUE(a_->engine.txn({}, {&left, 1}).ok());
  run({a_, b_}, kLease);
  EXPECT_EQ(cluster_->range("kvstore/test/opener/").items.size(), 2u);
}

TEST_F(Agents, WhoMakesAPoolASharedOneDoesNotWaitForOneThatTakesTheEngineForWiped) {
  cluster_ = std::make_shared<MemoryCluster>(clock_, 0);
  first_ever_ = false;
  Member* const late = make(1, 1, {});
  first_ever_ = true;
  Member* const first = make(2, 1, {});
  EXPECT_EQ(late->agent->join().code(), Code::kBusy);
  EXPECT_TRUE(first->agent->join().ok());
  clock_.sleep_ns(kLease / 10);
  EXPECT_TRUE(late->agent->join().ok());
}

TEST_F(Agents, S7_AWipedEngineIsRebuiltWhenEverybodyHasStoppedWriting) {
  first_ever_ = false;
  begin(1, {0});
  cluster_->wipe();
  run({b_}, kLease * 9 / 10);
  EXPECT_FALSE(is_rebuilt());
  run({b_}, kLease / 2);
  EXPECT_TRUE(is_rebuilt());
}

TEST_F(Agents, S7_WhoMadeAPoolASharedOneWaitsLikeOthersWhenTheStateGoesLater) {
  begin(1, {0});
  cluster_->wipe();
  run({a_, b_}, kLease * 9 / 10);
  EXPECT_FALSE(is_rebuilt());
  run({a_, b_}, kLease / 2);
  EXPECT_TRUE(is_rebuilt());
  EXPECT_EQ(a_->agent->counters().rebuilds + b_->agent->counters().rebuilds, 2u) << "the first, and one more";
}

TEST_F(Agents, S7_WhoMadeAPoolASharedOneAndCameLateToItWaitsLikeOthers) {
  cluster_ = std::make_shared<MemoryCluster>(clock_, 0);
  Member* const first = make(1, 1, {});
  clock_.sleep_ns(kLease);  // others may have been here
  EXPECT_EQ(first->agent->join().code(), Code::kBusy);
}

TEST_F(Agents, S7_ARebuildThatTakesLongerThanALeaseIsFinished) {
  begin(600, numbers(600));
  cluster_->wipe();
  a_->engine.txn_takes_ns = kLease * 3 / 10;  // a hundred records each
  run({a_}, 5 * kLease);
  EXPECT_TRUE(is_rebuilt());
  EXPECT_EQ(cluster_->range("kvstore/test/r/0/").items.size(), 600u);
}

// A header of before the rebuild may still be on its way to the device.
TEST_F(Agents, S7_NoLifeAfterARebuildHasAGenerationThatOneBeforeCouldHave) {
  first_ever_ = false;
  begin(1, {0});
  cluster_->wipe();
  run({a_, b_}, 2 * kLease);
  a_->store.wanted = 1;
  a_->store.victim_is = RegionKey{0, 0};
  run({a_, b_}, kSecond);
  ASSERT_EQ(a_->store.grants.size(), 1u);
  EXPECT_GT(a_->store.grants[0].second, kOnDevice.value);
}

TEST_F(Agents, S7_RegionsThatWereNeverUsedCanBeTakenAfterARebuildToo) {
  first_ever_ = false;
  begin(2, {0});
  a_->store.wanted = 1;
  run({a_, b_}, kSecond);
  ASSERT_EQ(a_->store.grants.size(), 1u);  // taken, and no header of it was written
  cluster_->wipe();
  run({a_, b_}, 2 * kLease);
  b_->store.wanted = 1;
  run({a_, b_}, kSecond);
  EXPECT_EQ(b_->store.grants.size(), 1u);
}

TEST_F(Agents, MuchToTellASlowEngineCostsNoLease) {
  const std::set<uint32_t> all = numbers(60);
  begin(60, all);
  a_->store.deleted_in = all;
  a_->engine.txn_takes_ns = kLease / 20;
  run({a_, b_}, 5 * kLease);
  EXPECT_TRUE(a_->store.deleted_in.empty());
  EXPECT_EQ(cluster_->range("kvstore/test/dead/").items.size(), all.size());
  EXPECT_EQ(a_->agent->counters().rejoins, 0u);
}

TEST_F(Agents, MuchThatADeadOpenerLeftCostsNoLease) {
  begin(60, {});
  Interposed dead(cluster_, clock_, random_);
  for (uint32_t i = 0; i < 60; ++i) {
    const RegionRecord record{Hold::kRetiring, Generation{7}, 100 + i, "stamp"};
    const Operation change{.key = "kvstore/test/" + region_key({0, i}), .value = encode(record)};
    ASSERT_TRUE(dead.txn({}, {&change, 1}).ok());
  }
  a_->engine.txn_takes_ns = kLease / 20;
  run({a_}, 2 * kLease);
  EXPECT_EQ(a_->agent->counters().rejoins, 0u);
}

TEST_F(Agents, MuchToGiveBackIsAllToldWhenAnOpenerLeaves) {
  const std::set<uint32_t> all = numbers(60);
  begin(60, all);
  a_->store.deleted_in = all;
  a_->engine.txn_takes_ns = kLease / 20;
  EXPECT_TRUE(a_->agent->leave(true).ok());
  EXPECT_EQ(cluster_->range("kvstore/test/dead/").items.size(), all.size());
}

TEST_F(Agents, AnEngineThatIsMuteIsNotToldAllThereIsInOneTurn) {
  begin(60, numbers(60));
  a_->store.deleted_in = numbers(60);
  a_->engine.is_mute = true;
  const uint32_t before = a_->engine.txns;
  turn({a_});
  EXPECT_LE(a_->engine.txns - before, 3u);
  EXPECT_EQ(a_->store.deleted_in.size(), 60u);
}

TEST_F(Agents, WhatOthersReadIsToldOnceHoweverOftenTheStateIsRead) {
  begin(1, {});
  const auto tell_hits = [this](const char* bits) {
    const Operation hits{.key = "kvstore/test/hits/" + epoch_of_b(), .value = bits};
    ASSERT_TRUE(b_->engine.txn({}, {&hits, 1}).ok());
    run({a_}, kSecond);
  };
  tell_hits("1");
  EXPECT_EQ(a_->store.hits_told, 1u);
  ASSERT_TRUE(a_->agent->catch_up().ok());
  EXPECT_EQ(a_->store.hits_told, 1u);
  tell_hits("2");
  EXPECT_EQ(a_->store.hits_told, 2u);
}

TEST_F(Agents, AnEmptyRegionIsReusedThoughAnotherDeviceHasFreeOnes) {
  begin(1, {});
  const RegionRecord sealed{Hold::kSealed, Generation{3}, 1, "stamp"};  // its headers could not be written
  const Operation change{.key = "kvstore/test/" + region_key({1, 0}), .value = encode(sealed)};
  ASSERT_TRUE(b_->engine.txn({}, {&change, 1}).ok());
  a_->store.wants_of = 1;
  a_->store.wanted = 1;
  run({a_, b_}, kLease);
  EXPECT_EQ(a_->store.grants.size(), 1u);
}

TEST_F(Agents, ARegionThatCouldNotBeTakenWhenTheLeaseHadEndedIsTakenLater) {
  begin(1, {});
  a_->store.wanted = 1;
  a_->engine.before_txn = [this] { clock_.sleep_ns(2 * kLease); };
  turn({a_});
  run({a_}, kLease);
  EXPECT_EQ(a_->store.grants.size(), 1u);
}

TEST_F(Agents, PutsAreNotToWaitForAnEngineThatOnlyRenewsLeases) {
  begin(2, {});
  a_->store.wanted = 1;
  a_->engine.is_mute = true;
  run({a_}, kLease * 9 / 10);
  EXPECT_TRUE(a_->store.refusal.ok());
  const uint32_t confirmations = a_->store.confirmations;
  run({a_}, 2 * kLease);
  EXPECT_NE(a_->store.refusal.message().find("did not answer"), std::string::npos) << a_->store.refusal.message();
  EXPECT_GT(a_->store.confirmations, confirmations + 5);  // S3: what is on its way to the device may go on
  // Nothing is asked for any more, and yet it is found out that it could be.
  a_->store.wanted = 0;
  a_->engine.is_mute = false;
  run({a_}, kLease / 4);
  EXPECT_TRUE(a_->store.refusal.ok()) << a_->store.refusal.message();
}

TEST_F(Agents, PutsAreNotToWaitForAnEngineThatCannotBeRead) {
  begin(1, {}, kSecond);
  a_->store.wanted = 1;
  a_->engine.fails_ranges = true;  // the watch goes on; that a region has settled (S2) cannot be seen
  run({a_}, kLease * 9 / 10);
  EXPECT_TRUE(a_->store.refusal.ok());
  run({a_}, kLease);
  EXPECT_NE(a_->store.refusal.message().find("cannot be read"), std::string::npos) << a_->store.refusal.message();
  a_->engine.fails_ranges = false;
  run({a_}, kLease);
  EXPECT_TRUE(a_->store.refusal.ok()) << a_->store.refusal.message();
  EXPECT_EQ(a_->store.grants.size(), 1u);
}

TEST_F(Agents, ALeaseThatWasNotRenewedThoughNoRequestFailedIsSaidToBeThisProcesssDoing) {
  begin(1, {});
  clock_.sleep_ns(2 * kLease);
  turn({a_});
  EXPECT_NE(a_->store.refusal.message().find("paused, or got no processor"), std::string::npos)
      << a_->store.refusal.message();
}

TEST_F(Agents, OneRequestThatFailsAndIsNotNeededAgainRefusesNoPuts) {
  begin(1, {});
  a_->store.wanted = 1;
  a_->engine.is_mute = true;
  turn({a_});
  a_->engine.is_mute = false;
  a_->store.wanted = 0;
  for (int i = 0; i < 40; ++i) {
    run({a_}, kLease / 10);
    ASSERT_TRUE(a_->store.refusal.ok()) << i;
  }
}

TEST_F(Agents, WhoseStateWasNotReadAfterJoiningReadsItSoon) {
  begin(1, {});
  clock_.sleep_ns(2 * kLease);
  a_->engine.lost_range = 3;  // two before it becomes an opener again
  run({a_}, kSecond);
  a_->store.wanted = 1;
  run({a_}, kLease / 2);
  EXPECT_EQ(a_->store.grants.size(), 1u);
}

}  // namespace
}  // namespace kvstore::cluster
