// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the engine in memory does to its clients what real services do, from a seed, and says so.
// Method: a service and clients on a clock that the test moves. What every engine must do is in
// tests/python/test_engines.py.

#include "cluster/memory_engine.h"

#include <gtest/gtest.h>

namespace kvstore::cluster {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

class MemoryService : public ::testing::Test {
 protected:
  MemoryEngine client(const MemoryFaults& faults = {}) { return MemoryEngine(cluster_, clock_, random_, faults); }
  Result<TxnOutcome> put(MetadataEngine& engine, const std::string& key, LeaseId lease = kNoLease) {
    const Operation operation{.key = key, .value = "v", .lease = lease};
    return engine.txn({}, {&operation, 1});
  }
  std::vector<std::string> keys() {
    std::vector<std::string> found;
    for (const KeyValue& item : cluster_->range("").items) found.push_back(item.key);
    return found;
  }

  ManualClock clock_;
  SeededRandom random_{1};
  std::shared_ptr<MemoryCluster> cluster_ = std::make_shared<MemoryCluster>(clock_);
};

TEST_F(MemoryService, ALostRequestChangesNothingAndALostReplyDoes) {
  MemoryEngine deaf = client({.request_lost = 1});
  EXPECT_EQ(put(deaf, "a").status().code(), Code::kTimeout);
  EXPECT_TRUE(keys().empty());
  MemoryEngine mute = client({.reply_lost = 1});
  EXPECT_EQ(put(mute, "a").status().code(), Code::kTimeout);
  EXPECT_EQ(keys(), std::vector<std::string>{"a"});
}

TEST_F(MemoryService, FaultsComeFromTheSeed) {
  const auto outcomes = [](uint64_t seed) {
    ManualClock clock;
    SeededRandom random(seed);
    MemoryEngine engine(std::make_shared<MemoryCluster>(clock), clock, random, {.request_lost = 0.5});
    std::string seen;
    for (int i = 0; i < 64; ++i) seen += engine.range("").ok() ? '+' : '-';
    return seen;
  };
  EXPECT_EQ(outcomes(7), outcomes(7));
  EXPECT_NE(outcomes(7), outcomes(8));
}

TEST_F(MemoryService, ASlowCallTakesTheClientsTime) {
  MemoryEngine slow = client({.slow = 1, .slow_ns_max = kSecond});
  const uint64_t before_ns = clock_.monotonic_ns();
  EXPECT_TRUE(slow.range("").ok());
  EXPECT_GT(clock_.monotonic_ns(), before_ns);
}

TEST_F(MemoryService, AFailoverForgetsTheLastSecondAndItsRevisions) {
  MemoryEngine engine = client();
  const Revision kept = put(engine, "kept").value().revision;
  clock_.advance_ns(2 * kSecond);
  const Revision lost = put(engine, "lost").value().revision;
  cluster_->failover(kSecond);
  EXPECT_EQ(keys(), std::vector<std::string>{"kept"});
  EXPECT_EQ(cluster_->range("").revision, kept);
  EXPECT_EQ(put(engine, "other").value().revision, lost) << "a revision that meant something else before";
}

TEST_F(MemoryService, ClientsAreToldHowMuchAFailoverForgets) {
  const auto cluster = std::make_shared<MemoryCluster>(clock_, kSecond);
  EXPECT_EQ(MemoryEngine(cluster, clock_, random_).forgets_ns(), kSecond);
  EXPECT_EQ(client().forgets_ns(), 0u);
}

TEST_F(MemoryService, AFailoverForgetsRenewals) {
  MemoryEngine engine = client();
  const LeaseId lease = engine.grant(3 * kSecond).value();
  ASSERT_TRUE(put(engine, "a", lease).ok());
  clock_.advance_ns(2 * kSecond);
  ASSERT_TRUE(engine.renew(lease).ok());
  cluster_->failover(kSecond);
  clock_.advance_ns(3 * kSecond / 2);
  EXPECT_TRUE(keys().empty());
  EXPECT_EQ(engine.renew(lease).code(), Code::kNotFound);
}

TEST_F(MemoryService, AWatchThatSawMoreThanIsKnownAfterAFailoverIsStale) {
  MemoryEngine engine = client();
  clock_.advance_ns(2 * kSecond);
  const auto watch = engine.watch("", put(engine, "lost").value().revision).value();
  cluster_->failover(kSecond);
  EXPECT_EQ(watch->poll(0).status().code(), Code::kStale);
}

TEST_F(MemoryService, AServiceWhoseClockRunsFastEndsLeasesEarlyForItsClients) {
  DriftingClock fast(clock_, 2.0, 0);
  const auto cluster = std::make_shared<MemoryCluster>(fast);
  MemoryEngine engine(cluster, clock_, random_);
  const LeaseId lease = engine.grant(4 * kSecond).value();
  clock_.advance_ns(1 * kSecond);
  EXPECT_TRUE(engine.renew(lease).ok());
  clock_.advance_ns(3 * kSecond);
  EXPECT_EQ(engine.renew(lease).code(), Code::kNotFound);
}

TEST_F(MemoryService, RequestsAreCounted) {
  MemoryEngine engine = client();
  ASSERT_TRUE(put(engine, "a").ok());
  ASSERT_TRUE(engine.range("").ok());
  EXPECT_EQ(cluster_->requests(), 2u);
  EXPECT_EQ(cluster_->keys(), 1u);
}

}  // namespace
}  // namespace kvstore::cluster
