// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the protocol of docs/sharing.md is right, and needs each of its rules.
// Method: a model of it is explored exhaustively within bounds (explorer.h). With all rules no state or step violates
//   P1  a read that is done returned the block that was asked for, or a miss;
//   P2  no two openers may write one generation of a region, none begins twice, and payload writes are issued by the
//       owner that the header on the device names;
//   P3  an acknowledged block is there and readable until its region is retired by the rules;
//   P4  a region is not reused while a reader of a live opener is in it;
//   P5  somebody can always put again, if all do what they can.
// Without a clause of a rule there is a counterexample, which is printed. C++, because the state spaces that tell
// something have millions of states. KVSTORE_TEST_LONG=1 takes larger bounds, KVS_STRIDE fewer states.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "model/explorer.h"

namespace kvstore::model {
namespace {

constexpr uint64_t kStatesMaxOfSanitizers = 20'000;

bool is_strided() { return std::getenv("KVS_STRIDE") != nullptr; }
bool is_long() { return std::getenv("KVSTORE_TEST_LONG") != nullptr; }

ExploreOptions options_for(bool ways_out) {
  return {.states_max = is_strided() ? kStatesMaxOfSanitizers : UINT64_MAX, .ways_out = ways_out};
}

void print(const std::string& name, const Exploration& found) {
  std::printf("%s: %llu states, %llu steps, depth %llu%s%s\n", name.c_str(),
              static_cast<unsigned long long>(found.states), static_cast<unsigned long long>(found.steps),
              static_cast<unsigned long long>(found.depth), found.violation.empty() ? "" : ", ",
              found.violation.c_str());
}

template <typename T>
std::string name_of(const testing::TestParamInfo<T>& info) {
  return info.param.name;
}

// ---- with all rules ------------------------------------------------------------------------------------------------

struct World {
  const char* name;
  Bounds bounds;
  Bounds larger;
  bool ways_out = false;  // also P5
};

void PrintTo(const World& world, std::ostream* out) { *out << world.name; }

class SharingWorlds : public testing::TestWithParam<World> {};

TEST_P(SharingWorlds, AllRulesHold) {
  const World& world = GetParam();
  const SharingModel model({}, is_long() ? world.larger : world.bounds);
  const Exploration found = explore(model, options_for(world.ways_out));
  print(world.name, found);
  EXPECT_EQ(found.violation, "") << found.trace;
  EXPECT_TRUE(found.complete || is_strided());
}

constexpr World kWorlds[] = {
    {"FromNothing", {.generations = 2, .epochs = 2, .crashes = 1}, {.generations = 3, .epochs = 3, .crashes = 1}},
    {"LeasesAndReaders",
     {.start = Start::kSealedRegion, .generations = 2, .epochs = 3, .crashes = 1},
     {.start = Start::kSealedRegion, .generations = 3, .epochs = 4, .crashes = 1}},
    {"ThreeOpeners",
     {.start = Start::kSealedRegion, .openers = 3, .generations = 2, .epochs = 3},
     {.start = Start::kSealedRegion, .openers = 3, .generations = 2, .epochs = 3, .crashes = 1}},
    {"TwoRegions",
     {.start = Start::kSealedRegion,
      .regions = 2,
      .generations = 2,
      .generations_of_the_second = 1,
      .epochs = 2,
      .leases_end = false},
     {.start = Start::kSealedRegion, .regions = 2, .generations = 2, .epochs = 2, .reads = false, .leases_end = false}},
    {"Failovers",
     {.start = Start::kSealedRegion, .generations = 2, .epochs = 2, .unsettled = 2, .failovers = 2, .releases = false},
     {.start = Start::kSealedRegion, .generations = 2, .epochs = 3, .unsettled = 2, .failovers = 1}},
    {"FailoverAfterAQuarantine",
     {.start = Start::kOpenRegion,
      .generations = 2,
      .epochs = 3,
      .unsettled = 1,
      .failovers = 1,
      .reads = false,
      .releases = false,
      .quarantine = true},
     {.start = Start::kOpenRegion,
      .generations = 2,
      .epochs = 3,
      .unsettled = 2,
      .failovers = 1,
      .reads = false,
      .quarantine = true}},
    {"LostReplies",
     {.start = Start::kOpenRegion,
      .generations = 2,
      .epochs = 3,
      .wipes = 1,
      .replies_lost = 1,
      .reads = false,
      .pauses = true},
     {.start = Start::kOpenRegion,
      .generations = 2,
      .epochs = 3,
      .unsettled = 1,
      .failovers = 1,
      .replies_lost = 1,
      .reads = false,
      .releases = false}},
    {"Quarantine",
     {.start = Start::kOpenRegion, .generations = 2, .epochs = 3, .reads = false, .quarantine = true},
     {.start = Start::kOpenRegion,
      .generations = 3,
      .epochs = 4,
      .reads = false,
      .releases = false,
      .quarantine = true}},
    {"PausesAndACrash",
     {.start = Start::kOpenRegion, .generations = 2, .epochs = 3, .crashes = 1, .reads = false, .pauses = true},
     {.start = Start::kOpenRegion, .generations = 3, .epochs = 3, .crashes = 1, .reads = false, .pauses = true}},
    {"WipeAndPauses",
     {.start = Start::kOpenRegion, .generations = 2, .epochs = 4, .wipes = 1, .reads = false, .pauses = true},
     {.start = Start::kOpenRegion,
      .generations = 3,
      .epochs = 4,
      .wipes = 1,
      .reads = false,
      .releases = false,
      .pauses = true}},
    {"WaysOutOfACrash",
     {.start = Start::kOpenRegion, .generations = 2, .epochs = 3, .crashes = 1, .reads = false},
     {.start = Start::kOpenRegion, .generations = 3, .epochs = 3, .crashes = 1},
     true},
    {"WaysOutOfAFailover",
     {.generations = 2, .epochs = 2, .unsettled = 1, .failovers = 1, .reads = false},
     {.generations = 2, .epochs = 3, .unsettled = 1, .failovers = 1, .reads = false},
     true},
    {"WaysOutOfAWipe",
     {.start = Start::kOpenRegion, .generations = 2, .epochs = 3, .wipes = 1, .reads = false, .quarantine = true},
     {.start = Start::kOpenRegion, .generations = 2, .epochs = 4, .wipes = 1, .reads = false, .quarantine = true},
     true},
};

INSTANTIATE_TEST_SUITE_P(Model, SharingWorlds, testing::ValuesIn(kWorlds), name_of<World>);

// ---- without a clause ----------------------------------------------------------------------------------------------

struct Clause {
  const char* name;
  bool Rules::* rule;
  const char* property;
  Bounds bounds;
  bool Rules::* also = nullptr;  // another that keeps the same in most cases
};

void PrintTo(const Clause& clause, std::ostream* out) { *out << clause.name; }

class SharingClauses : public testing::TestWithParam<Clause> {};

TEST_P(SharingClauses, IsNeeded) {
  const Clause& clause = GetParam();
  Rules rules;
  rules.*clause.rule = false;
  if (clause.also != nullptr) rules.*clause.also = false;
  const std::string property = clause.property;
  const Exploration found = explore(SharingModel(rules, clause.bounds), options_for(property == "P5"));
  print(std::string("without ") + clause.name, found);
  if (is_strided() && found.violation.empty()) return;
  EXPECT_EQ(found.violation.substr(0, property.size()), property);
  std::printf("%s", found.trace.c_str());
}

constexpr Bounds kReaders{.start = Start::kSealedRegion, .generations = 2, .epochs = 2};
constexpr Bounds kAlone{.openers = 1, .generations = 2, .epochs = 1, .unsettled = 1, .failovers = 1, .reads = false};
constexpr Bounds kFailover{.generations = 2, .epochs = 2, .unsettled = 1, .failovers = 1, .reads = false};
constexpr Bounds kPauses{.start = Start::kOpenRegion, .generations = 2, .epochs = 3, .reads = false, .pauses = true};
constexpr Bounds kWipe{.generations = 2, .epochs = 3, .wipes = 1, .reads = false};

constexpr Clause kClauses[] = {
    {"S1_whole_value", &Rules::s1_whole_value, "P3", kFailover},
    {"S1_live_after_a_failover", &Rules::s1_live, "P2", kFailover},
    {"S1_live_after_a_wipe", &Rules::s1_live, "P3", kWipe},
    {"S1_headers_first", &Rules::s1_headers_first, "P2", kAlone},
    {"S1_release_spends", &Rules::s1_release_spends, "P2", {.generations = 2, .epochs = 2, .reads = false}},
    {"S1_foreign_copy_first",
     &Rules::s1_foreign_copy_first,
     "P3",
     {.generations = 2, .epochs = 2, .crashes = 2, .reads = false}},
    {"S1_given_up",
     &Rules::s1_given_up,
     "P3",
     {.start = Start::kOpenRegion, .generations = 2, .epochs = 2, .replies_lost = 1, .reads = false}},
    {"S2_take", &Rules::s2_take, "P2", kFailover},
    {"S2_take_over",
     &Rules::s2_take_over,
     "P2",
     {.start = Start::kOpenRegion,
      .generations = 2,
      .epochs = 3,
      .unsettled = 2,
      .failovers = 1,
      .reads = false,
      .releases = false,
      .quarantine = true}},
    {"S2_own_records", &Rules::s2_own_records, "P5", kAlone},
    {"S2_no_release", &Rules::s2_no_release, "P3", kAlone},
    {"S3_fresh", &Rules::s3_fresh, "P2", {.generations = 2, .epochs = 2, .reads = false, .quarantine = true}},
    {"S4_wait", &Rules::s4_wait, "P4", kReaders, &Rules::s4_check_again},
    {"S4_drain", &Rules::s4_drain, "P4", kReaders},
    {"S4_history",
     &Rules::s4_history,
     "P4",
     {.start = Start::kSealedRegion,
      .regions = 2,
      .generations = 2,
      .generations_of_the_second = 1,
      .epochs = 2,
      .unsettled = 1,
      .failovers = 1,
      .releases = false,
      .leases_end = false},
     &Rules::s4_check_again},
    {"S4_live_first", &Rules::s4_live_first, "P4", {.generations = 2, .epochs = 2}},
    {"S4_check_again",
     &Rules::s4_check_again,
     "P4",
     {.start = Start::kSealedRegion, .generations = 2, .epochs = 2, .unsettled = 1, .failovers = 1, .releases = false}},
    {"S4_ends_settle",
     &Rules::s4_ends_settle,
     "P4",
     {.start = Start::kSealedRegion, .generations = 2, .epochs = 2, .unsettled = 1, .failovers = 2, .releases = false}},
    {"S5_proof", &Rules::s5_proof, "P3", {.generations = 2, .epochs = 2, .reads = false}},
    {"S5_drained", &Rules::s5_drained, "P2", kPauses},
    {"S6_compare",
     &Rules::s6_compare,
     "P2",
     {.start = Start::kOpenRegion, .generations = 2, .epochs = 3, .reads = false}},
    {"S6_gives_up",
     &Rules::s6_gives_up,
     "P2",
     {.start = Start::kOpenRegion,
      .generations = 3,
      .epochs = 4,
      .wipes = 1,
      .reads = false,
      .releases = false,
      .pauses = true}},
    {"S7_wait", &Rules::s7_wait, "P3", kWipe},
    {"S7_skip", &Rules::s7_skip, "P2", kWipe},
    {"S7_open_is_owned",
     &Rules::s7_open_is_owned,
     "P2",
     {.start = Start::kOpenRegion, .generations = 2, .epochs = 4, .wipes = 1, .reads = false, .pauses = true}},
    {"S8_verify", &Rules::s8_verify, "P1", kReaders},
};

INSTANTIATE_TEST_SUITE_P(Model, SharingClauses, testing::ValuesIn(kClauses), name_of<Clause>);

// S5 says that one case rests on time. This is it: whoever pauses for longer than the quarantine, between its check and
// its write, writes into another's region. A read finds it (S8).
TEST(SharingModel, OnlyTheQuarantineRestsOnTime) {
  const Exploration found =
      explore(SharingModel({}, {.generations = 2, .epochs = 2, .reads = false, .pauses = true, .quarantine = true}),
              options_for(false));
  print("a pause longer than the quarantine", found);
  if (is_strided() && found.violation.empty()) return;
  EXPECT_EQ(found.violation, "P2: a payload write of another's region");
}

}  // namespace
}  // namespace kvstore::model
