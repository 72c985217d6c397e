// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the index is a map of fixed size: find, insert and erase agree with a plain map whatever the order, it refuses
// instead of growing, and the builder keeps of equal keys the one with the highest sequence, from several threads.
// Method: seeded sequences against std::unordered_map; crowded shards, so that runs wrap around and shift back.

#include "store/index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>
#include <unordered_map>

#include "base/clock.h"

namespace kvstore::store {
namespace {

struct Hash {
  size_t operator()(const Fingerprint& fingerprint) const { return fingerprint.low; }
};
using Model = std::unordered_map<Fingerprint, uint32_t, Hash>;

Fingerprint draw(SeededRandom& random) { return {random.next(), random.next()}; }

// All in one shard, and with homes close to each other: long runs.
Fingerprint draw_crowded(SeededRandom& random) {
  Fingerprint fingerprint = draw(random);
  fingerprint.high &= (uint64_t{1} << 58) - 1;
  if (random.below(2) == 0) fingerprint.low |= 0xffff'ffff'ffff'0000ULL;  // the last homes: runs wrap to the front
  return fingerprint;
}

IndexEntry entry_of(const Fingerprint& fingerprint, uint32_t bytes, uint32_t region = 0) {
  IndexEntry entry;
  entry.fingerprint = fingerprint;
  entry.payload_bytes = bytes;
  entry.region = region;
  entry.slot = bytes & (kSlotsMax - 1);
  return entry;
}

void expect_equal(const Index& index, const Model& model) {
  ASSERT_EQ(index.size(), model.size());
  for (const auto& [fingerprint, bytes] : model) {
    const IndexEntry* found = index.find(fingerprint);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->payload_bytes, bytes);
  }
  uint64_t visited = 0;
  index.for_each([&](const IndexEntry& entry) {
    ++visited;
    const auto expected = model.find(entry.fingerprint);
    ASSERT_NE(expected, model.end());
    EXPECT_EQ(expected->second, entry.payload_bytes);
  });
  EXPECT_EQ(visited, model.size());
}

template <typename Draw>
void compare_with_a_map(uint64_t seed, uint64_t blocks_max, int steps, Draw draw_key) {
  SeededRandom random(seed);
  Index index(blocks_max);
  Model model;
  std::vector<Fingerprint> keys;
  for (int i = 0; i < steps; ++i) {
    const uint64_t what = random.below(10);
    if (what < 5 || keys.empty()) {
      const Fingerprint key = draw_key(random);
      if (index.find(key) != nullptr) continue;
      const auto bytes = static_cast<uint32_t>(random.next());
      if (!index.insert(entry_of(key, bytes))) continue;  // full
      model[key] = bytes;
      keys.push_back(key);
    } else if (what < 9) {
      const size_t at = random.below(keys.size());
      IndexEntry* found = index.find(keys[at]);
      ASSERT_NE(found, nullptr);
      index.erase(found);
      model.erase(keys[at]);
      keys[at] = keys.back();
      keys.pop_back();
    } else {
      EXPECT_EQ(index.find(draw(random)), nullptr);
    }
    if (i % 500 == 0) expect_equal(index, model);
  }
  expect_equal(index, model);
}

TEST(Index, AgreesWithAMap) {
  for (uint64_t seed = 0; seed < 20; ++seed) compare_with_a_map(seed, 4'000, 4'000, draw);
}

TEST(Index, AgreesWithAMapWhileAShardIsCrowdedAndRunsWrapAround) {
  for (uint64_t seed = 0; seed < 60; ++seed) compare_with_a_map(seed, 64 * 20, 2'000, draw_crowded);
}

TEST(Index, RefusesWhenFullAndServesWhatItHas) {
  SeededRandom random(1);
  Index index(10'000);
  Model model;
  uint64_t refused = 0;
  for (int i = 0; i < 40'000; ++i) {
    const Fingerprint key = draw(random);
    if (index.insert(entry_of(key, static_cast<uint32_t>(i)))) {
      model[key] = static_cast<uint32_t>(i);
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0u);
  EXPECT_GE(model.size(), 10'000u) << "at least what was promised";
  EXPECT_TRUE(index.nearly_full());
  expect_equal(index, model);
}

TEST(Index, HoldsWhatItPromisesHoweverKeysSpread) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SeededRandom random(seed);
    Index index(200'000);
    uint64_t refused = 0;
    for (int i = 0; i < 200'000; ++i) refused += index.insert(entry_of(draw(random), 1)) ? 0 : 1;
    EXPECT_EQ(refused, 0u) << "seed " << seed;
  }
}

TEST(Index, TakesAtMost64BytesABlock) {
  EXPECT_EQ(sizeof(IndexEntry), 48u);
  for (const uint64_t blocks : {uint64_t{1'000'000}, uint64_t{10'000'000}, uint64_t{256'000'000}}) {
    EXPECT_LE(Index(blocks).memory_bytes(), blocks * 65) << blocks;
  }
}

TEST(Index, IsNearlyFullWhenASixtyFourthIsLeftAndNotOfTheBlocksItWasMadeFor) {
  SeededRandom random(3);
  Index index(Index::blocks_max_for(6'400));
  for (int i = 0; i < 6'400; ++i) ASSERT_TRUE(index.insert(entry_of(draw(random), 1)));
  EXPECT_FALSE(index.nearly_full());
  for (uint64_t i = 6'400; i < index.blocks_max() - index.blocks_max() / 64; ++i) {
    ASSERT_TRUE(index.insert(entry_of(draw(random), 1)));
  }
  EXPECT_TRUE(index.nearly_full());
}

TEST(Index, ErasesARegionByWalking) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SeededRandom random(seed);
    Index index(64 * 20);
    Model kept;
    uint64_t gone = 0;
    for (uint32_t i = 0; i < 900; ++i) {
      const Fingerprint key = i % 2 == 0 ? draw(random) : draw_crowded(random);
      if (index.find(key) != nullptr) continue;
      const auto region = static_cast<uint32_t>(random.below(3));
      if (!index.insert(entry_of(key, i, region))) continue;
      if (region == 1) {
        ++gone;
      } else {
        kept[key] = i;
      }
    }
    uint64_t told = 0;
    uint64_t erased = 0;
    for (uint32_t shard = 0; shard < Index::kShards; ++shard) {
      erased += index.erase_region(shard, 1, [&](const IndexEntry& entry) {
        told += entry.region == 1 ? 1 : 0;
        return true;
      });
    }
    EXPECT_EQ(erased, gone);
    EXPECT_EQ(told, gone);
    expect_equal(index, kept);
  }
}

// ---- the builder -----------------------------------------------------------------------------------------------

IndexBuilder::Candidate candidate(const Fingerprint& fingerprint, uint64_t write_seq) {
  return {entry_of(fingerprint, static_cast<uint32_t>(write_seq)), write_seq};
}

TEST(IndexBuilder, OfEqualKeysTheHighestSequenceWinsAndTheOthersAreKept) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SeededRandom random(seed);
    Index index(2'000);
    IndexBuilder builder(index);
    std::vector<Fingerprint> keys;
    for (int i = 0; i < 200; ++i) keys.push_back(draw(random));
    std::map<std::pair<uint64_t, uint64_t>, std::vector<uint64_t>> sequences;
    std::vector<IndexBuilder::Candidate> batch;
    for (uint64_t sequence = 1; sequence < 900; ++sequence) {
      const Fingerprint& key = keys[random.below(keys.size())];
      sequences[{key.low, key.high}].push_back(sequence);
      batch.push_back(candidate(key, sequence));
    }
    for (size_t i = batch.size(); i > 1; --i) std::swap(batch[i - 1], batch[random.below(i)]);
    for (size_t first = 0; first < batch.size(); first += 100) {
      EXPECT_EQ(builder.add({batch.data() + first, std::min<size_t>(100, batch.size() - first)}), 0u);
    }
    EXPECT_EQ(index.size(), sequences.size());
    size_t losers = 0;
    for (auto& [key, all] : sequences) {
      const IndexEntry* found = index.find({key.first, key.second});
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(found->payload_bytes, *std::max_element(all.begin(), all.end()));
      losers += all.size() - 1;
    }
    const auto superseded = builder.take_superseded();
    EXPECT_EQ(superseded.size(), losers);
    for (const auto& one : superseded)
      EXPECT_EQ(one.entry.payload_bytes, one.write_seq) << "each with its own sequence";
  }
}

TEST(IndexBuilder, ManyThreadsBuildTheSameIndex) {
  constexpr int kThreads = 4;
  SeededRandom random(5);
  std::vector<Fingerprint> keys;
  for (int i = 0; i < 20'000; ++i) keys.push_back(draw(random));
  Index index(30'000);
  IndexBuilder builder(index);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<IndexBuilder::Candidate> batch;
      for (size_t i = 0; i < keys.size(); ++i) {
        batch.push_back(candidate(keys[i], 1 + i * kThreads + static_cast<size_t>(t)));
        if (batch.size() == 128 || i + 1 == keys.size()) {
          builder.add(batch);
          batch.clear();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(index.size(), keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(index.find(keys[i])->payload_bytes, static_cast<uint32_t>(1 + i * kThreads + kThreads - 1));
  }
  EXPECT_EQ(builder.take_superseded().size(), keys.size() * (kThreads - 1));
}

TEST(IndexBuilder, CountsWhatFindsNoRoom) {
  SeededRandom random(6);
  Index index(100);
  IndexBuilder builder(index);
  std::vector<IndexBuilder::Candidate> batch;
  for (uint64_t i = 0; i < 10'000; ++i) batch.push_back(candidate(draw(random), i + 1));
  const uint64_t refused = builder.add(batch);
  EXPECT_GT(refused, 0u);
  EXPECT_EQ(index.size() + refused, batch.size());
}

}  // namespace
}  // namespace kvstore::store
