// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the staging cache of prefetch is bounded, serves a block once and only from where the index says it is now, and
// makes room for later jobs, never for another block of the same job.
// Method: the cache alone, with places and jobs made up.

#include "store/prefetch_cache.h"

#include <gtest/gtest.h>

#include <cstring>

namespace kvstore::store {
namespace {

Fingerprint fingerprint(uint64_t number) { return {number, number * 31}; }

Place place(uint32_t slot, uint64_t generation = 1) {
  Place made;
  made.region = 3;
  made.slot = SlotIndex{slot};
  made.generation = Generation{generation};
  return made;
}

class Cache : public ::testing::Test {
 protected:
  static constexpr uint64_t kBlock = 16 * kKiB;

  PrefetchCache::Reserve reserve(uint64_t number, uint64_t job, uint64_t bytes = kBlock) {
    iovec memory{};
    const auto outcome = cache_.reserve(fingerprint(number), place(static_cast<uint32_t>(number)), bytes, job, memory);
    if (outcome == PrefetchCache::Reserve::kReserved) {
      EXPECT_TRUE(is_aligned(memory.iov_base, kPageBytes));
      EXPECT_EQ(memory.iov_len, bytes);
      std::memset(memory.iov_base, static_cast<int>(number), bytes);
    }
    return outcome;
  }
  void stage(uint64_t number, uint64_t job, uint64_t bytes = kBlock) {
    ASSERT_EQ(reserve(number, job, bytes), PrefetchCache::Reserve::kReserved);
    cache_.filled(fingerprint(number), job);
  }
  // Takes [offset, offset + bytes) of a block into two segments; the bytes are checked.
  bool take(uint64_t number, const Place& at, uint64_t offset = 0, uint64_t bytes = kBlock) {
    std::vector<uint8_t> first(bytes / 2), second(bytes - bytes / 2 + 100, 0xcc);
    const iovec segments[] = {{first.data(), first.size()}, {second.data(), second.size()}};
    Item item;
    item.fingerprint = fingerprint(number);
    item.place = at;
    item.segments = segments;
    item.segment_count = 2;
    item.wanted_offset = offset;
    item.wanted_bytes = bytes;
    if (!cache_.take(item)) return false;
    for (const uint8_t byte : first) EXPECT_EQ(byte, number);
    for (size_t i = 0; i < second.size(); ++i) EXPECT_EQ(second[i], i < bytes - bytes / 2 ? number : 0xcc);
    return true;
  }
  PrefetchCache cache_{4 * kBlock};
};

TEST_F(Cache, ABlockIsServedOnceAndThenGone) {
  stage(1, 7);
  EXPECT_EQ(cache_.bytes(), kBlock);
  EXPECT_TRUE(take(1, place(1)));
  EXPECT_EQ(cache_.bytes(), 0u);
  EXPECT_FALSE(take(1, place(1)));
}

TEST_F(Cache, PartsAreCopiedFromTheirOffset) {
  stage(1, 7);
  EXPECT_TRUE(take(1, place(1), 5'000, 300));
}

TEST_F(Cache, WhatIsNotReadYetIsNotServed) {
  ASSERT_EQ(reserve(1, 7), PrefetchCache::Reserve::kReserved);
  EXPECT_FALSE(take(1, place(1)));
  cache_.filled(fingerprint(1), 8);  // another job's news
  EXPECT_FALSE(take(1, place(1)));
  cache_.filled(fingerprint(1), 7);
  EXPECT_TRUE(take(1, place(1)));
}

TEST_F(Cache, ABlockThatMovedIsNotServedAndGone) {
  stage(1, 7);
  EXPECT_FALSE(take(1, place(2)));
  EXPECT_EQ(cache_.bytes(), 0u);
  stage(2, 7);
  EXPECT_FALSE(take(2, place(2, 5))) << "the same slot in another life";
}

TEST_F(Cache, ABlockThatIsThereIsNotReadTwice) {
  stage(1, 7);
  EXPECT_EQ(reserve(1, 8), PrefetchCache::Reserve::kAlreadyThere);
  ASSERT_EQ(reserve(2, 8), PrefetchCache::Reserve::kReserved);
  EXPECT_EQ(reserve(2, 9), PrefetchCache::Reserve::kAlreadyThere) << "being read";
}

TEST_F(Cache, AJobNeverEvictsItsOwnBlocksAndALaterOneTheOldest) {
  for (uint64_t number = 1; number <= 4; ++number) stage(number, 7);
  EXPECT_EQ(reserve(5, 7), PrefetchCache::Reserve::kFull);
  stage(5, 8);
  EXPECT_FALSE(take(1, place(1))) << "the oldest made room";
  EXPECT_TRUE(take(2, place(2)));
  EXPECT_LE(cache_.bytes(), 4 * kBlock);
}

TEST_F(Cache, WhatIsBeingReadIsNeverEvicted) {
  for (uint64_t number = 1; number <= 4; ++number) ASSERT_EQ(reserve(number, 7), PrefetchCache::Reserve::kReserved);
  EXPECT_EQ(reserve(5, 8), PrefetchCache::Reserve::kFull);
  cache_.dropped(fingerprint(3), 7);
  EXPECT_EQ(reserve(5, 8), PrefetchCache::Reserve::kReserved);
}

TEST_F(Cache, ADroppedBlockGivesItsMemoryBack) {
  ASSERT_EQ(reserve(1, 7), PrefetchCache::Reserve::kReserved);
  cache_.dropped(fingerprint(1), 8);  // another job's
  EXPECT_EQ(cache_.bytes(), kBlock);
  cache_.dropped(fingerprint(1), 7);
  EXPECT_EQ(cache_.bytes(), 0u);
  cache_.dropped(fingerprint(1), 7);
}

TEST_F(Cache, ABlockLargerThanTheCacheIsRefused) {
  EXPECT_EQ(reserve(1, 7, 5 * kBlock), PrefetchCache::Reserve::kFull);
  PrefetchCache off(0);
  iovec memory{};
  EXPECT_EQ(off.reserve(fingerprint(1), place(1), 1, 1, memory), PrefetchCache::Reserve::kFull);
}

}  // namespace
}  // namespace kvstore::store
