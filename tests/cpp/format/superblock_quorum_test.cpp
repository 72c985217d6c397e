// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the four copies have one answer each, and it is never "no store" where a store might be.
// Method: every combination of ten kinds of copy (10^4) against a second, independent statement of the rules, then
// the cases that somebody will one day have in front of them, one by one.

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "format/samples.h"
#include "format/superblock.h"

namespace kvstore::format {
namespace {

using Page = std::array<uint8_t, kPageBytes>;
using Kinds = std::array<char, kSuperblockCopies>;

// 0 zero  f foreign bytes  d damaged  u unreadable  m misplaced (another copy's place)
// 4 5 sequences of store A  p sequence 5 of A by another owner  b sequence 5 of store B  n sequence 6 of A, later
// version
constexpr std::string_view kAllKinds = "0fdum45pbn";
constexpr std::string_view kValidKinds = "45pbn";

Superblock superblock_of(char kind) {
  Superblock superblock = samples::superblock();
  superblock.sequence = 5;
  superblock.owner = {1, samples::uuid(1), samples::uuid(1)};
  if (kind == '4') superblock.sequence = 4;
  if (kind == 'p') superblock.owner.nonce = samples::uuid(2);
  if (kind == 'n') {
    superblock.sequence = 6;
    superblock.version = kFormatVersion + 1;
  }
  if (kind == 'b') {
    superblock.store_uuid = samples::uuid(0xb0);
    superblock.members = {samples::uuid(0xb0)};
    superblock.member_index = 0;
  }
  return superblock;
}

Page page_of(char kind, uint32_t copy) {
  Page page{};
  if (kind == 'f') page.fill(0xf6);
  if (kind == 'm') encode_superblock(superblock_of('5'), (copy + 1) % kSuperblockCopies, page);
  if (kind == 'd') {
    encode_superblock(superblock_of('5'), copy, page);
    page[300] ^= 1;
  }
  if (kValidKinds.find(kind) != std::string_view::npos) encode_superblock(superblock_of(kind), copy, page);
  return page;
}

Quorum choose(const Kinds& kinds) {
  static const std::vector<std::vector<Page>> pages = [] {
    std::vector<std::vector<Page>> all;
    for (const char kind : kAllKinds) {
      all.emplace_back();
      for (uint32_t copy = 0; copy < kSuperblockCopies; ++copy) all.back().push_back(page_of(kind, copy));
    }
    return all;
  }();
  std::array<CopyRead, kSuperblockCopies> copies;
  for (uint32_t i = 0; i < kSuperblockCopies; ++i) {
    copies[i].readable = kinds[i] != 'u';
    if (copies[i].readable) copies[i].page = pages[kAllKinds.find(kinds[i])][i];
  }
  return choose_superblock(copies);
}

int count(const Kinds& kinds, std::string_view wanted) {
  int found = 0;
  for (const char kind : kinds) found += wanted.find(kind) != std::string_view::npos ? 1 : 0;
  return found;
}

struct Answer {
  QuorumVerdict verdict;
  char winner = ' ';
};

// The rules again, by counting.
Answer expected_answer(const Kinds& kinds) {
  std::string quorums;  // ascending rank: 4 < 5 < p < n
  for (const char kind : std::string_view("45pnb")) {
    if (count(kinds, std::string_view(&kind, 1)) >= 2) quorums += kind;
  }
  if (quorums.size() == 2 && quorums.back() == 'b') return {QuorumVerdict::kCorrupt};
  if (!quorums.empty()) {
    const char winner = quorums.back();
    return {winner == 'n' ? QuorumVerdict::kUnsupported : QuorumVerdict::kOk, winner};
  }
  const int unreadable = count(kinds, "u");
  const int valid = count(kinds, kValidKinds);
  if (unreadable >= 2 || (unreadable == 1 && valid >= 1)) return {QuorumVerdict::kTryAgain};
  if (valid == 0 && count(kinds, "dm") == 0) return {QuorumVerdict::kNoStore};
  if (count(kinds, "0") >= 2) return {QuorumVerdict::kNoStore};
  return {QuorumVerdict::kCorrupt};
}

TEST(SuperblockQuorum, EveryCombinationHasItsAnswer) {
  Kinds kinds;
  for (const char a : kAllKinds) {
    for (const char b : kAllKinds) {
      for (const char c : kAllKinds) {
        for (const char d : kAllKinds) {
          kinds = {a, b, c, d};
          const std::string name(kinds.begin(), kinds.end());
          const Answer expected = expected_answer(kinds);
          const Quorum quorum = choose(kinds);
          ASSERT_EQ(quorum.verdict, expected.verdict) << name << ": " << quorum.why;
          ASSERT_FALSE(quorum.why.empty());
          if (quorum.verdict != QuorumVerdict::kOk) continue;
          ASSERT_EQ(quorum.superblock, superblock_of(expected.winner)) << name;
          for (uint32_t i = 0; i < kSuperblockCopies; ++i) {
            ASSERT_EQ(quorum.repair[i], kinds[i] != expected.winner) << name << " copy " << i;
          }
        }
      }
    }
  }
}

QuorumVerdict verdict(const char (&kinds)[5]) { return choose({kinds[0], kinds[1], kinds[2], kinds[3]}).verdict; }

TEST(SuperblockQuorum, ABlankOrForeignDeviceHasNoStore) {
  EXPECT_EQ(verdict("0000"), QuorumVerdict::kNoStore);
  EXPECT_EQ(verdict("ffff"), QuorumVerdict::kNoStore);
  EXPECT_EQ(verdict("f00f"), QuorumVerdict::kNoStore);
}

TEST(SuperblockQuorum, TwoCopiesThatAgreeAreTheStore) {
  EXPECT_EQ(verdict("5555"), QuorumVerdict::kOk);
  EXPECT_EQ(verdict("f55f"), QuorumVerdict::kOk);
  EXPECT_EQ(verdict("5du5"), QuorumVerdict::kOk);
  EXPECT_EQ(verdict("5mm5"), QuorumVerdict::kOk);
}

TEST(SuperblockQuorum, AnUpdateCutShortIsTheOldOrTheUpdatedOne) {
  EXPECT_EQ(choose({'5', '4', '4', '4'}).superblock.sequence, 4u);
  EXPECT_EQ(choose({'5', '5', '4', '4'}).superblock.sequence, 5u);
  EXPECT_EQ(choose({'5', '5', '5', '4'}).superblock.sequence, 5u);
}

TEST(SuperblockQuorum, AHigherSequenceInOneCopyAloneNeverSucceededAndIsPassedOver) {
  EXPECT_EQ(choose({'5', '4', '4', 'u'}).superblock.sequence, 4u);
  EXPECT_EQ(choose({'d', '4', '4', '5'}).superblock.sequence, 4u);
}

TEST(SuperblockQuorum, TwoStoresWithAQuorumEachAreCorrupt) {
  EXPECT_EQ(verdict("55bb"), QuorumVerdict::kCorrupt);
  EXPECT_EQ(verdict("b55b"), QuorumVerdict::kCorrupt);
  EXPECT_EQ(verdict("55b0"), QuorumVerdict::kOk);
}

TEST(SuperblockQuorum, AStoreLostToDamageIsCorruptNotMissing) {
  EXPECT_EQ(verdict("dddd"), QuorumVerdict::kCorrupt);
  EXPECT_EQ(verdict("5ddd"), QuorumVerdict::kCorrupt);
  EXPECT_EQ(verdict("5fff"), QuorumVerdict::kCorrupt);
  EXPECT_EQ(verdict("5d0f"), QuorumVerdict::kCorrupt);
}

TEST(SuperblockQuorum, AFormatCutShortIsNoStore) {
  EXPECT_EQ(verdict("0005"), QuorumVerdict::kNoStore);
  EXPECT_EQ(verdict("00d5"), QuorumVerdict::kNoStore);
  EXPECT_EQ(verdict("5000"), QuorumVerdict::kNoStore);
  EXPECT_EQ(verdict("b000"), QuorumVerdict::kNoStore);
}

TEST(SuperblockQuorum, UnreadableCopiesThatMayHideAQuorumMeanTryAgain) {
  EXPECT_EQ(verdict("uuuu"), QuorumVerdict::kTryAgain);
  EXPECT_EQ(verdict("uu00"), QuorumVerdict::kTryAgain);
  EXPECT_EQ(verdict("5u00"), QuorumVerdict::kTryAgain);
  EXPECT_EQ(verdict("u000"), QuorumVerdict::kNoStore);  // one copy is no quorum
}

TEST(SuperblockQuorum, ALaterVersionIsSaidToBeOne) {
  EXPECT_EQ(verdict("nnnn"), QuorumVerdict::kUnsupported);
  EXPECT_EQ(verdict("nn55"), QuorumVerdict::kUnsupported);
  EXPECT_EQ(verdict("n555"), QuorumVerdict::kOk);  // an upgrade that did not succeed
}

TEST(SuperblockQuorum, TheSameStoreInTwoGeometriesIsCorrupt) {
  std::array<Page, kSuperblockCopies> pages{};
  std::array<CopyRead, kSuperblockCopies> copies;
  for (uint32_t i = 0; i < kSuperblockCopies; ++i) {
    Superblock superblock = superblock_of('5');
    if (i >= 2) superblock.geometry.region_count -= 1;
    if (i >= 2) superblock.sequence += 1;
    encode_superblock(superblock, i, pages[i]);
    copies[i] = {true, pages[i]};
  }
  EXPECT_EQ(choose_superblock(copies).verdict, QuorumVerdict::kCorrupt);
}

}  // namespace
}  // namespace kvstore::format
