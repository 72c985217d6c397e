// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "cluster/records.h"

#include <gtest/gtest.h>

namespace kvstore::cluster {
namespace {

TEST(Records, ARegionReadsBackAsItWasWritten) {
  for (const Hold hold : {Hold::kFree, Hold::kOwned, Hold::kSealed, Hold::kRetiring}) {
    const RegionRecord record{hold, Generation{12}, 7, "0123456789abcdef.4"};
    EXPECT_EQ(decode_region_record(encode(record)), record);
  }
  EXPECT_EQ(encode(RegionRecord{Hold::kOwned, Generation{12}, 3, "n.1"}), "owned 12 3 n.1");
}

TEST(Records, AnOpenerReadsBackAsItWasWritten) {
  Opener opener;
  opener.host.fill(3);
  opener.boot.fill(4);
  opener.process_namespace = 5;
  opener.process_id = 6;
  opener.process_start = 7;
  opener.lost_seconds = 8;
  EXPECT_EQ(decode_opener(encode(opener)), opener);
  opener.gone = true;
  EXPECT_EQ(decode_opener(encode(opener)), opener);
}

TEST(Records, DeadSlotsReadBackAsTheyWereWritten) {
  DeadSlots dead{Generation{9}, format::DeadBitmap(13)};
  dead.slots.set(SlotIndex{0});
  dead.slots.set(SlotIndex{12});
  const auto decoded = decode_dead_slots(encode(dead));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->generation, dead.generation);
  EXPECT_EQ(decoded->slots.count(), 2u);
  EXPECT_TRUE(decoded->slots.test(SlotIndex{0}));
  EXPECT_TRUE(decoded->slots.test(SlotIndex{12}));
}

TEST(Records, WhatIsNoRecordIsNone) {
  for (const char* text : {"", " ", "owned", "owned 1 2", "owned 1 2 s t", "taken 1 2 s", "owned -1 2 s", "owned 1 x s",
                           "owned 99999999999999999999 2 s", "owned  1 2"}) {
    EXPECT_FALSE(decode_region_record(text).has_value()) << text;
  }
  EXPECT_FALSE(decode_region_record("owned 1 2 " + std::string(65, 's')).has_value());
  for (const char* text : {"", "a b c d e f g", "- - 1 2 3 4 gone"})
    EXPECT_FALSE(decode_opener(text).has_value()) << text;
  for (const char* text : {"", "1", "1 xyz", "x 00", "1 0 0", "1 FF"}) {
    EXPECT_FALSE(decode_dead_slots(text).has_value()) << text;
  }
  EXPECT_FALSE(decode_dead_slots("1 " + std::string((1u << 22) + 1, '0')).has_value())
      << "more slots than a region has";
}

TEST(Records, KeysNameTheirRegionAndEpoch) {
  EXPECT_EQ(parse_region_key(region_key({3, 77}), "r/"), (RegionKey{3, 77}));
  EXPECT_EQ(parse_region_key(dead_key({0, 1}), "dead/"), (RegionKey{0, 1}));
  EXPECT_EQ(parse_epoch_key(live_key(12), "live/"), 12u);
  for (const char* key : {"r/", "r/1", "r/x/1", "r/1/x", "r/32/1", "r/0/16777216", "q/1/1"}) {
    EXPECT_FALSE(parse_region_key(key, "r/").has_value()) << key;
  }
  for (const char* key : {"live/", "live/-1", "live/1/2", "lives/1"}) {
    EXPECT_FALSE(parse_epoch_key(key, "live/").has_value()) << key;
  }
}

}  // namespace
}  // namespace kvstore::cluster
