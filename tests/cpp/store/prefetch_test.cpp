// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: prefetch reads blocks into bounded memory ahead of their get, says what it refuses, cuts tails and never holes,
// and holds nothing when it is done: no pin, no memory for what failed, no stale bytes.
// Method: an open store on a simulated disk whose reads are counted, held or made to fail.

#include <gtest/gtest.h>

#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

Name key(const std::string& text, uint32_t space = 0) { return {text, "", space}; }

class Prefetch : public ::testing::Test {
 protected:
  static constexpr uint64_t kBlock = 100'000;  // 102,400 in the cache

  void SetUp() override { make(10 * 102'400); }
  void make(uint64_t prefetch_bytes) {
    SimSetup setup;
    setup.regions = 12;
    setup.region_bytes = kMiB;
    setup.store.prefetch_bytes = prefetch_bytes;
    sim_ = std::make_unique<SimStore>(setup);
    ASSERT_TRUE(sim().open().ok());
  }
  SimStore& sim() { return *sim_; }
  std::vector<Name> put_chain(const std::string& prefix, int length) {
    std::vector<Name> names;
    for (int i = 0; i < length; ++i) {
      names.push_back(key(prefix + std::to_string(i)));
      EXPECT_TRUE(sim().put(names.back(), kBlock).succeeded());
    }
    return names;
  }
  JobRef start(const std::vector<Name>& names, const SubmitOptions& options = {}) {
    std::vector<KeyRef> refs;
    for (const Name& name : names) refs.push_back(sim().ref(name));
    return sim().store().prefetch(refs, options, nullptr).value();
  }
  std::vector<ItemStatus> prefetch(const std::vector<Name>& names, const SubmitOptions& options = {}) {
    JobRef job = start(names, options);
    sim().run_until([&] { return job->done(); });
    std::vector<ItemStatus> statuses;
    for (uint32_t i = 0; i < job->size(); ++i) statuses.push_back(job->result(i).status);
    return statuses;
  }
  double reads() { return sim().number("bytes_read_payload"); }

  std::unique_ptr<SimStore> sim_;
};

TEST_F(Prefetch, AStagedBlockIsServedFromMemoryOnce) {
  const auto names = put_chain("a", 3);
  EXPECT_EQ(prefetch(names), (std::vector<ItemStatus>(3, ItemStatus::kHit)));
  EXPECT_EQ(sim().number("regions_pinned"), 0);
  const double before = reads();
  for (const Name& name : names) EXPECT_TRUE(sim().get(name).succeeded());
  EXPECT_EQ(reads(), before);
  EXPECT_EQ(sim().number("prefetch_hits"), 3);
  EXPECT_EQ(sim().number("prefetch_bytes"), 0) << "used and gone";
  EXPECT_TRUE(sim().get(names[0]).succeeded());
  EXPECT_GT(reads(), before) << "from the device again";
}

TEST_F(Prefetch, PartsAreServedFromMemoryToo) {
  put_chain("a", 1);
  prefetch({key("a0")});
  const double before = reads();
  EXPECT_TRUE(sim().get_part(key("a0"), 5'000, 60'000, {3, 8}).succeeded());
  EXPECT_EQ(reads(), before);
}

TEST_F(Prefetch, ThirtyTwoBlocksWithRoomForTenAreTenHitsAndTheRestRefused) {
  const auto names = put_chain("a", 32);
  const auto statuses = prefetch(names);
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(statuses[i], i < 10 ? ItemStatus::kHit : ItemStatus::kError) << i;
  EXPECT_EQ(sim().number("prefetch_refused"), 22);
  EXPECT_EQ(sim().number("pins"), 0);
  EXPECT_EQ(sim().number("regions_pinned"), 0);
  EXPECT_EQ(sim().number("jobs_in_flight"), 0);
  for (const Name& name : names) EXPECT_TRUE(sim().get(name).succeeded());
  EXPECT_EQ(sim().number("prefetch_hits"), 10);
  // Nothing is left behind: the next one works as well.
  EXPECT_EQ(sim().number("prefetch_bytes"), 0);
  EXPECT_EQ(prefetch({names.begin() + 20, names.begin() + 30}), (std::vector<ItemStatus>(10, ItemStatus::kHit)));
}

TEST_F(Prefetch, AfterOneRefusalTheTailIsRefusedEvenWhereItWouldFit) {
  put_chain("a", 9);
  sim().put(key("large"), 2 * kBlock);
  sim().put(key("small"), 1'000);
  std::vector<Name> names;
  for (int i = 0; i < 9; ++i) names.push_back(key("a" + std::to_string(i)));
  names.push_back(key("large"));
  names.push_back(key("small"));
  const auto statuses = prefetch(names);
  EXPECT_EQ(statuses[8], ItemStatus::kHit);
  EXPECT_EQ(statuses[9], ItemStatus::kError);
  EXPECT_EQ(statuses[10], ItemStatus::kError) << "useless without what came before it";
}

TEST_F(Prefetch, MissesAreMissesAndARefusedOneSaysSo) {
  put_chain("a", 1);
  JobRef job = start({key("a0"), key("none")});
  sim().run_until([&] { return job->done(); });
  EXPECT_EQ(job->result(0).bytes, kBlock);
  EXPECT_EQ(job->result(1).status, ItemStatus::kMiss);
  make(kBlock / 2);
  put_chain("a", 1);
  JobRef refused = start({key("a0")});
  ASSERT_TRUE(refused->done()) << "at once";
  EXPECT_EQ(refused->result(0).code, Code::kBusy);
  EXPECT_NE(refused->error_text(0).find("100000"), std::string::npos) << refused->error_text(0);
}

TEST_F(Prefetch, OffMeansRefused) {
  make(0);
  put_chain("a", 1);
  EXPECT_EQ(prefetch({key("a0")})[0], ItemStatus::kError);
  EXPECT_TRUE(sim().get(key("a0")).succeeded());
}

TEST_F(Prefetch, ALaterPrefetchReplacesWhatNobodyCameFor) {
  const auto first = put_chain("a", 10);
  const auto second = put_chain("b", 10);
  prefetch(first);
  EXPECT_EQ(prefetch(second), (std::vector<ItemStatus>(10, ItemStatus::kHit)));
  const double before = reads();
  sim().get_all(second);
  EXPECT_EQ(reads(), before);
}

TEST_F(Prefetch, ABlockBeingReadIsNotReadTwice) {
  put_chain("a", 1);
  JobRef one = start({key("a0")});
  JobRef two = start({key("a0")});
  EXPECT_TRUE(two->done());
  EXPECT_EQ(two->result(0).status, ItemStatus::kHit);
  sim().run_until([&] { return one->done(); });
  EXPECT_EQ(reads(), 102'400);
}

// ---- what changed meanwhile ------------------------------------------------------------------------------------

TEST_F(Prefetch, ADeletedBlockIsNotServedFromMemory) {
  put_chain("a", 1);
  prefetch({key("a0")});
  sim().erase(key("a0"));
  EXPECT_EQ(sim().get(key("a0")).status, ItemStatus::kMiss);
  sim().put(key("a0"), 50'000, {.version = 2});
  EXPECT_TRUE(sim().get(key("a0")).succeeded()) << "and its successor is itself";
}

TEST_F(Prefetch, ABlockThatDoesNotVerifyIsNeitherStagedNorServed) {
  put_chain("a", 2);
  sim().corrupt_payload(key("a0"));
  sim().allow_misses(true);
  const auto statuses = prefetch({key("a0"), key("a1")});
  EXPECT_EQ(statuses[0], ItemStatus::kMiss);
  EXPECT_EQ(statuses[1], ItemStatus::kHit);
  EXPECT_EQ(sim().number("prefetch_bytes"), 102'400);
  EXPECT_EQ(sim().get(key("a0")).status, ItemStatus::kMiss);
}

TEST_F(Prefetch, AReadErrorGivesTheMemoryBack) {
  put_chain("a", 1);
  const BlockInfo info = sim().describe(key("a0"));
  sim().disk().add_rule(rule_of(SimFault::kError, IoOp::kRead, info.offset_bytes, info.offset_bytes + 1, kForEver));
  EXPECT_EQ(prefetch({key("a0")})[0], ItemStatus::kError);
  EXPECT_EQ(sim().number("prefetch_bytes"), 0);
  EXPECT_EQ(sim().number("regions_pinned"), 0);
}

// ---- deadlines -------------------------------------------------------------------------------------------------

TEST_F(Prefetch, I11_ADeadlineEndsAStuckPrefetchAndItsMemoryIsNotWrittenAfter) {
  put_chain("a", 2);
  const BlockInfo info = sim().describe(key("a0"));
  sim().disk().add_rule(rule_of(SimFault::kStuck, IoOp::kRead, info.offset_bytes, info.offset_bytes + 1));
  const auto statuses = prefetch({key("a0"), key("a1")}, {.deadline_ns = 50'000'000});
  EXPECT_EQ(statuses[0], ItemStatus::kError);
  EXPECT_EQ(statuses[1], ItemStatus::kHit);
  EXPECT_EQ(sim().number("prefetch_bytes"), 102'400) << "the first one's is given back";
  EXPECT_EQ(sim().number("staging_buffers_out"), 1);
  sim().disk().release_stuck();
  sim().run_idle();
  EXPECT_EQ(sim().number("staging_buffers_out"), 0);
  EXPECT_EQ(sim().number("regions_pinned"), 0);
  EXPECT_TRUE(sim().get(key("a0")).succeeded());
}

TEST_F(Prefetch, ACanceledPrefetchGivesItsMemoryBack) {
  const auto names = put_chain("a", 5);
  JobRef job = start(names);
  job->cancel();
  sim().run_until([&] { return job->done(); });
  EXPECT_EQ(sim().number("prefetch_bytes"), 0);
  EXPECT_EQ(sim().number("regions_pinned"), 0);
  EXPECT_TRUE(sim().get(names[0]).succeeded());
}

}  // namespace
}  // namespace kvstore::store
