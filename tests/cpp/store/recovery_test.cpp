// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: rule I12 and what opening makes of a damaged device. Open regions are sealed, never continued; dead slots drop
// first; of duplicates the newest wins, and when it fails its checksum the next is tried; a region with both headers
// unreadable is quarantined and its generation goes on from the highest seen; damage costs what it hit, no more.
// Method: bytes of the metadata area changed or made unreadable between two openings.

#include "store/recovery.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "format/descriptor.h"
#include "format/region_header.h"
#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

Name key(const std::string& text, uint32_t space = 0, const std::string& salt = "") { return {text, salt, space}; }

class Recovery : public ::testing::Test {
 protected:
  void SetUp() override { make({}); }
  void make(const StoreOptions& options, uint32_t regions = 12) {
    SimSetup setup;
    setup.regions = regions;
    setup.region_bytes = kMiB;
    setup.min_block_bytes = 8 * kKiB;  // 128 slots, five descriptor blocks
    setup.store = options;
    sim_ = std::make_unique<SimStore>(setup);
    ASSERT_TRUE(sim().open().ok());
  }
  SimStore& sim() { return *sim_; }
  const format::Geometry& geometry() { return sim().geometry(); }

  void destroy(uint64_t offset, uint64_t bytes = kPageBytes) {
    const std::vector<uint8_t> noise(bytes, 0xee);
    sim().disk().poke(offset, noise.data(), noise.size());
  }
  void flip(uint64_t offset) {
    uint8_t value = 0;
    sim().disk().peek(offset, &value, 1);
    value ^= 1;
    sim().disk().poke(offset, &value, 1);
  }
  void make_unreadable(uint64_t offset, uint64_t bytes) {
    sim().disk().add_rule(rule_of(SimFault::kError, IoOp::kRead, offset, offset + bytes, kForEver));
  }
  Result<format::RegionHeader> header(RegionId region, uint32_t copy) {
    std::vector<uint8_t> page(kPageBytes);
    sim().disk().peek(geometry().header_offset(region, copy), page.data(), page.size());
    return format::decode_region_header(page, sim().formatted().store_uuid, geometry(), region, copy);
  }
  // Durable blocks in one region, by name prefix.
  std::vector<Name> fill_region(const std::string& prefix, int count, uint64_t bytes = 5'000) {
    std::vector<Name> names;
    for (int i = 0; i < count; ++i) {
      names.push_back(key(prefix + std::to_string(i)));
      EXPECT_TRUE(sim().put(names.back(), bytes, {.durable = true}).succeeded());
    }
    return names;
  }
  RegionId region_of(const Name& name) { return RegionId{sim().describe(name).region}; }
  // Fills the pool until the region is used again, and tells the generation of that life; 0: it never is.
  uint64_t generation_of_next_life(RegionId region) {
    for (int i = 0; i < 200; ++i) {
      const Name name = key("fill " + std::to_string(i));
      sim().put(name, 200'000);
      const BlockInfo info = sim().describe(name);
      if (info.payload_bytes != 0 && info.region == region.value) return info.generation;
    }
    return 0;
  }

  std::unique_ptr<SimStore> sim_;
};

// ---- open regions ----------------------------------------------------------------------------------------------

// A killed writer's last block may be read from the device's cache. Were the region sealed on its strength, a power cut
// would take it, and the tail pair that kept its descriptors safe is not read any more.
TEST_F(Recovery, I1_WhatIsReadOfAnOpenRegionIsMadeDurableBeforeItIsSealed) {
  const auto names = fill_region("a", 40);
  const uint64_t entry = geometry().entry_offset(region_of(names[0]));
  sim().crash(true);
  bool flushed = false, sealed = false;
  sim().disk().set_observer([&](const device::IoRequest& request) {
    flushed = flushed || request.op == device::IoOp::kFlush;
    if (request.op != device::IoOp::kWrite || request.offset_bytes < entry) return;
    if (request.offset_bytes >= entry + geometry().entry_bytes) return;
    EXPECT_TRUE(flushed);
    sealed = true;
  });
  sim().reopen_and_judge();
  sim().disk().set_observer(nullptr);
  EXPECT_TRUE(sealed);
}

TEST_F(Recovery, I12_AnOpenRegionIsSealedOnTheDeviceAndNeverContinued) {
  const auto names = fill_region("a", 40);  // one full descriptor block and a tail
  const RegionId region = region_of(names[0]);
  sim().crash(false);
  sim().reopen_and_judge();
  EXPECT_EQ(sim().number("recovery_regions_open_found"), 1);
  const auto first = header(region, 0), second = header(region, 1);
  ASSERT_TRUE(first.ok() && second.ok());
  const format::RegionHeader& newest =
      first.value().sequence > second.value().sequence ? first.value() : second.value();
  EXPECT_EQ(newest.state, format::RegionState::kSealed);
  EXPECT_EQ(newest.descriptor_count, 40u);
  sim().put(key("next"), 5'000);
  EXPECT_NE(region_of(key("next")), region);
  ASSERT_TRUE(sim().close().ok());
  sim().reopen_and_judge();
  EXPECT_EQ(sim().number("recovery_regions_open_found"), 0);
}

TEST_F(Recovery, I12_EveryCountOfDescriptorsIsRecoveredOpenAndSealed) {
  for (const int count : {1, 30, 31, 32, 61, 62, 63, 93, 128}) {
    make({});
    fill_region("a", count);
    const int blocks = static_cast<int>(sim().number("blocks"));
    sim().crash(false);
    sim().reopen_and_judge();
    EXPECT_EQ(sim().number("blocks"), blocks) << count;
    ASSERT_TRUE(sim().close().ok());
    sim().reopen_and_judge();
    EXPECT_EQ(sim().number("blocks"), blocks) << count;
  }
}

TEST_F(Recovery, I2_ContentOfAnEarlierLifeIsNeverRead) {
  make({}, 8);
  // Several lives of every region, the later ones with fewer blocks: old descriptor blocks stay behind the new.
  for (int i = 0; i < 500; ++i) sim().put(key("small " + std::to_string(i)), 6'000);
  for (int i = 0; i < 40; ++i) sim().put(key("large " + std::to_string(i)), 300'000);
  sim().flush();
  for (const bool survives : {true, false}) {
    sim().crash(survives);
    sim().reopen_and_judge();
    for (int i = 0; i < 10; ++i) sim().put(key("again " + std::to_string(i)), 100'000, {.durable = true});
  }
}

// ---- headers ---------------------------------------------------------------------------------------------------

TEST_F(Recovery, I12_BothHeadersDestroyedQuarantinesAndTheGenerationGoesOn) {
  const auto names = fill_region("a", 40);
  const auto others = fill_region("b", 3, 50'000);
  const RegionId region = region_of(names[0]);
  const uint64_t generation = sim().describe(names[0]).generation;
  ASSERT_TRUE(sim().close().ok());
  destroy(geometry().header_offset(region, 0), 2 * kPageBytes);
  for (const Name& name : names) sim().expect_gone(name);
  sim().reopen_and_judge();
  EXPECT_EQ(sim().number("recovery_regions_quarantined"), 1);
  for (const Name& name : others) EXPECT_TRUE(sim().get(name).succeeded());
  // It is used again, in a life that its old descriptors are not of.
  EXPECT_GT(generation_of_next_life(region), generation);
  sim().flush();
  sim().crash(false);
  sim().reopen_and_judge();
}

// The last life may have left but one kind of block: a crash before the first descriptor, or damage to the others.
TEST_F(Recovery, I12_TheHighestGenerationIsSoughtInEveryKindOfBlock) {
  for (const std::string kind : {"dictionary", "bitmap", "descriptors", "tail"}) {
    SCOPED_TRACE(kind);
    make({});
    const auto names = fill_region("a", 3);
    const RegionId region = region_of(names[0]);
    sim().erase(names[0]);
    sim().flush();
    ASSERT_TRUE(sim().close().ok());
    // Flipped rather than gone: headers without a trace are taken for lost only where the dictionary tells.
    for (uint32_t copy = 0; copy < 2; ++copy) flip(geometry().header_offset(region, copy) + 200);
    if (kind != "dictionary") destroy(geometry().dictionary_offset(region, 0));
    if (kind != "bitmap") destroy(geometry().bitmap_offset(region, 0), 2 * geometry().bitmap_bytes());
    if (kind != "descriptors") destroy(geometry().descriptor_block_offset(region, 0));
    if (kind != "tail") destroy(geometry().tail_offset(region, 0), 2 * kPageBytes);
    for (const Name& name : names) sim().expect_gone(name);
    sim().reopen_and_judge();
    EXPECT_GE(generation_of_next_life(region), 2u);
  }
}

// A crash between the two header writes of an opening: one copy has the generation of a life without payload.
TEST_F(Recovery, I2_AGenerationThatOnlyOneHeaderHasIsSpent) {
  for (const uint32_t copy : {0u, 1u}) {
    make({}, 8);
    const auto names = fill_region("a", 3);
    const RegionId region = region_of(names[0]);
    ASSERT_TRUE(sim().close().ok());
    format::RegionHeader begun = header(region, copy).value();
    begun.generation = Generation{7};
    begun.sequence += 10;
    begun.state = format::RegionState::kOpen;
    std::vector<uint8_t> page(kPageBytes);
    format::encode_region_header(begun, sim().formatted().store_uuid, copy, page);
    sim().disk().poke(geometry().header_offset(region, copy), page.data(), page.size());
    for (const Name& name : names) sim().expect_gone(name);
    sim().reopen_and_judge();
    EXPECT_GT(generation_of_next_life(region), 7u) << "copy " << copy;
  }
}

// It was stopped while it opened the region, and its successor has opened it since, for blocks of another size.
TEST_F(Recovery, AHeaderThatADeposedOwnerWroteLateDoesNotHideItsSuccessors) {
  for (const uint32_t copy : {0u, 1u}) {
    make({}, 8);
    ASSERT_TRUE(sim().close().ok());
    ASSERT_TRUE(sim().open().ok());  // epoch 2
    const auto names = fill_region("a", 3);
    const RegionId region = region_of(names[0]);
    sim().crash(true);
    format::RegionHeader late = header(region, copy).value();
    late.owner_epoch = Epoch{1};
    late.sequence += 10;
    late.extent_bytes *= 2;
    late.slot_count /= 2;
    std::vector<uint8_t> page(kPageBytes);
    format::encode_region_header(late, sim().formatted().store_uuid, copy, page);
    sim().disk().poke(geometry().header_offset(region, copy), page.data(), page.size());
    sim().reopen_and_judge();
    for (const Name& name : names) EXPECT_TRUE(sim().get(name).succeeded()) << "copy " << copy;
  }
}

// Its slots may be full of blocks by now.
TEST_F(Recovery, I2_DeadSlotsOfAnEarlierLifeAreForgotten) {
  make({}, 8);
  const auto names = fill_region("a", 5);
  const RegionId region = region_of(names[0]);
  for (const Name& name : names) sim().erase(name);
  sim().flush();
  ASSERT_GE(generation_of_next_life(region), 2u);
  sim().flush();
  sim().crash(true);
  sim().reopen_and_judge();
}

TEST_F(Recovery, I4_OfATailPairTheNewerCounts) {
  for (const int count : {1, 2, 3, 4}) {
    make({});
    fill_region("a", count);
    sim().crash(false);
    sim().reopen_and_judge();
    EXPECT_EQ(sim().number("blocks"), count);
  }
}

TEST_F(Recovery, I4_SealingWhatACrashLeftOpenSparesTheOnlyHeader) {
  for (const uint32_t copy : {0u, 1u}) {
    make({});
    const RegionId region = region_of(fill_region("a", 3)[0]);
    sim().crash(true);
    destroy(geometry().header_offset(region, copy));
    const uint64_t only = geometry().header_offset(region, copy ^ 1);
    uint64_t overwritten = 0;
    sim().disk().set_observer([&](const device::IoRequest& request) {
      overwritten += request.op == IoOp::kWrite && request.offset_bytes == only;
    });
    sim().reopen_and_judge();
    sim().disk().set_observer(nullptr);
    EXPECT_EQ(overwritten, 0u) << "a torn write there would have left none";
    EXPECT_TRUE(header(region, 0).ok() && header(region, 1).ok());
  }
}

TEST_F(Recovery, I12_AnUnreadableHeaderSectorIsNotALostRegion) {
  for (const uint32_t copy : {0u, 1u}) {
    make({});
    const auto names = fill_region("a", 10);
    const RegionId region = region_of(names[0]);
    ASSERT_TRUE(sim().close().ok());
    // Sealed: the header written last, and an older one that still says open.
    make_unreadable(geometry().header_offset(region, copy), 512);
    sim().reopen_and_judge();
    EXPECT_EQ(sim().number("recovery_regions_quarantined"), 0) << "copy " << copy;
    sim().disk().clear_rules();
  }
}

// Neither header nor anything else of the region can be read: its generation is unknown, so it may have no next life.
TEST_F(Recovery, I12_ARegionThatCannotBeReadAtAllIsNotReused) {
  make({}, 8);
  const auto names = fill_region("a", 10);
  const RegionId region = region_of(names[0]);
  ASSERT_TRUE(sim().close().ok());
  make_unreadable(geometry().entry_offset(region), geometry().entry_bytes);
  for (const Name& name : names) sim().expect_gone(name);
  sim().allow_misses(true);
  sim().reopen_and_judge();
  EXPECT_EQ(sim().number("recovery_regions_quarantined"), 1);
  sim().disk().clear_rules();  // readable again, but this opening has not seen what is there
  uint64_t writes = 0;
  const uint64_t entry = geometry().entry_offset(region);
  sim().disk().set_observer([&](const device::IoRequest& request) {
    writes += request.op == IoOp::kWrite && request.offset_bytes >= entry &&
              request.offset_bytes < entry + geometry().entry_bytes;
  });
  for (int i = 0; i < 60; ++i) sim().put(key("fill " + std::to_string(i)), 300'000);
  sim().disk().set_observer(nullptr);
  EXPECT_EQ(writes, 0u);
  // The next opening reads it, and finds everything.
  ASSERT_TRUE(sim().close().ok());
  ASSERT_TRUE(sim().open().ok());
  for (const Name& name : names) EXPECT_TRUE(sim().contains(name));
}

// ---- descriptors -----------------------------------------------------------------------------------------------

TEST_F(Recovery, ADamagedDescriptorBlockCostsItsThirtyOneBlocks) {
  const auto names = fill_region("a", 100);
  const RegionId region = region_of(names[0]);
  ASSERT_EQ(region_of(names[99]), region);
  for (const bool sealed : {false, true}) {
    if (sealed) {
      ASSERT_TRUE(sim().close().ok());
    } else {
      sim().crash(true);
    }
    destroy(geometry().descriptor_block_offset(region, sealed ? 1 : 0));
    for (int i = sealed ? 31 : 0; i < (sealed ? 62 : 31); ++i) sim().expect_gone(names[static_cast<size_t>(i)]);
    sim().reopen_and_judge();
    EXPECT_EQ(sim().number("blocks"), sealed ? 38 : 69);
  }
}

// The last full block rots while the region is open: the tail behind it is still good.
TEST_F(Recovery, ADamagedLastDescriptorBlockDoesNotCostTheTail) {
  const auto names = fill_region("a", 70);  // D0, D1 and a tail of 8
  const RegionId region = region_of(names[0]);
  sim().crash(true);
  destroy(geometry().descriptor_block_offset(region, 1));
  for (int i = 31; i < 62; ++i) sim().expect_gone(names[static_cast<size_t>(i)]);
  sim().reopen_and_judge();
  EXPECT_EQ(sim().number("blocks"), 39);
  ASSERT_TRUE(sim().close().ok());
  sim().reopen_and_judge();
  EXPECT_EQ(sim().number("blocks"), 39) << "the seal kept the tail";
}

TEST_F(Recovery, ADamagedDictionaryBlockIsCounted) {
  for (const bool sealed : {false, true}) {
    make({});
    const auto names = fill_region("a", 35);
    const RegionId region = region_of(names[0]);
    if (sealed) {
      ASSERT_TRUE(sim().close().ok());
    } else {
      sim().crash(true);
    }
    flip(geometry().dictionary_offset(region, 0) + 200);
    sim().allow_misses(true);
    for (int opening = 0; opening < 2; ++opening) {
      sim().reopen_and_judge();
      EXPECT_EQ(sim().number("blocks"), 0);
      EXPECT_EQ(sim().number("recovery_blocks_skipped"), 1) << sealed << ", opening " << opening;
      ASSERT_TRUE(sim().close().ok());
    }
  }
}

TEST_F(Recovery, ADamagedCopyOfAPairIsCountedAndOneNeverWrittenIsNot) {
  const auto copies_damaged = [this](auto offset_in) {
    make({});
    const auto names = fill_region("a", 35);
    const RegionId region = region_of(names[0]);
    for (const size_t dead : {3u, 4u}) {  // into the one copy, then into the other
      sim().erase(names[dead]);
      sim().flush();
    }
    sim().crash(true);
    if (const uint64_t offset = offset_in(region); offset != 0) flip(offset + 100);
    sim().allow_misses(true);
    sim().reopen_and_judge();
    return sim().number("recovery_copies_damaged");
  };
  EXPECT_EQ(copies_damaged([](RegionId) { return uint64_t{0}; }), 0);
  EXPECT_EQ(copies_damaged([this](RegionId region) { return geometry().tail_offset(region, 0); }), 1);
  EXPECT_EQ(copies_damaged([this](RegionId region) { return geometry().header_offset(region, 1); }), 1);
  EXPECT_EQ(copies_damaged([this](RegionId region) { return geometry().bitmap_offset(region, 0); }), 1);
}

TEST_F(Recovery, AnyFlippedBitInAMetadataEntryIsHarmless) {
  SeededRandom random(3);
  for (int round = 0; round < 40; ++round) {
    make({});
    const auto names = fill_region("a", 35);
    const RegionId region = region_of(names[0]);
    if (round % 2 == 0) {
      sim().erase(names[3]);  // not flushed: the rot of the bitmap may bring it back
      sim().crash(true);
    } else {
      ASSERT_TRUE(sim().close().ok());
    }
    for (int i = 0; i < 3; ++i) flip(geometry().entry_offset(region) + random.below(16 * kPageBytes));
    sim().allow_misses(true);
    sim().context = "round " + std::to_string(round);
    sim().reopen_and_judge();  // never wrong bytes, never something else
    ASSERT_TRUE(sim().is_open());
    sim().put(key("after"), 5'000, {.durable = true});
    EXPECT_TRUE(sim().get(key("after")).succeeded());
  }
}

// ---- duplicates and dead slots ---------------------------------------------------------------------------------

// The same key several times on the device: put, deleted, put again, and a crash before any dead bit is written.
class Duplicates : public Recovery {
 protected:
  // Copy i has version i + 1 and lies in slot i. The store is left crashed.
  std::vector<BlockInfo> make_copies(uint32_t count) {
    std::vector<BlockInfo> copies;
    for (uint32_t version = 1; version <= count; ++version) {
      EXPECT_EQ(sim().put(key("k"), 10'000, {.durable = true, .version = version}).status, ItemStatus::kStored);
      BlockInfo copy = version == 1 ? sim().describe(key("k")) : copies.back();  // only the first: it flushes
      if (version != 1) copy.offset_bytes += copy.extent_bytes;
      copies.push_back(copy);
      const bool last = version == count;
      EXPECT_TRUE(last || sim().erase(key("k")).status == ItemStatus::kDeleted);
    }
    sim().crash(true);
    return copies;
  }
  void corrupt(const BlockInfo& copy) { flip(copy.offset_bytes + 77); }
  // The version that a get hits; 0: a miss.
  uint32_t version_found() {
    Buffers buffers(10'000, {});
    const GetItem item{sim().space(0), {}, "k", buffers.segments(), 1, 0, kWholeBlock};
    if (sim().store().get_one(item).status != ItemStatus::kHit) return 0;
    for (uint32_t version = 1; version < 9; ++version) {
      if (buffers.holds(key("k"), version, 0, 10'000)) return version;
    }
    ADD_FAILURE() << "WRONG BYTES";
    return 0;
  }
};

TEST_F(Duplicates, I12_TheHighestWriteSequenceWins) {
  make_copies(4);
  sim().reopen_and_judge();
  EXPECT_EQ(sim().number("recovery_duplicates"), 3);
  EXPECT_EQ(version_found(), 4u);
}

TEST_F(Duplicates, I12_AWinnerThatFailsItsChecksumGivesWayToTheNextBest) {
  for (uint32_t rotten = 1; rotten <= 4; ++rotten) {
    make({});
    const auto copies = make_copies(4);
    for (uint32_t i = 0; i < rotten; ++i) corrupt(copies[copies.size() - 1 - i]);
    ASSERT_TRUE(sim().open().ok());
    EXPECT_EQ(version_found(), 4 - rotten) << rotten << " rotten";
    EXPECT_EQ(sim().contains(key("k")), rotten < 4);
    EXPECT_EQ(version_found(), 4 - rotten) << "and again";
    // The next opening has dropped the rotten ones for good.
    ASSERT_TRUE(sim().store().close(1'000'000'000).ok());
    ASSERT_TRUE(sim().open().ok());
    EXPECT_EQ(version_found(), 4 - rotten);
    EXPECT_EQ(sim().number("checksum_mismatches"), 0);
  }
}

// Puts go to the devices in turn, so the copies of a key may lie on devices that different engines serve.
TEST_F(Duplicates, I12_AnOlderCopyOnAnotherDeviceIsServedByTheEngineOfThatDevice) {
  for (const uint32_t engines : {1u, 2u}) {
    SimSetup setup;
    setup.devices = 2;
    setup.store.engine_threads = engines;
    sim_ = std::make_unique<SimStore>(setup);
    ASSERT_TRUE(sim().open().ok());
    sim().put(key("x"), 10'000, {.durable = true});
    sim().erase(key("x"));
    ASSERT_EQ(sim().put(key("x"), 10'000, {.durable = true, .version = 2}).status, ItemStatus::kStored);
    sim().crash(true);
    ASSERT_TRUE(sim().open().ok());
    ASSERT_EQ(sim().number("recovery_duplicates"), 1);
    sim().corrupt_payload(key("x"));
    Buffers buffers(10'000, {});
    const GetItem item{sim().space(0), {}, "x", buffers.segments(), 1, 0, kWholeBlock};
    const ItemResult first = sim().store().get_one(item);
    EXPECT_EQ(first.status, engines == 1 ? ItemStatus::kHit : ItemStatus::kMiss);
    EXPECT_EQ(sim().store().get_one(item).status, ItemStatus::kHit);
    EXPECT_TRUE(buffers.holds(key("x"), 1, 0, 10'000));
  }
}

// Values under one key are taken to be equal, but nothing wrong may come of it when they are not.
TEST_F(Duplicates, I12_AnOlderCopyOfAnotherSizeIsNeverServedInPart) {
  for (const uint64_t older_bytes : {uint64_t{12'000}, uint64_t{9'000}}) {
    make({});
    sim().put(key("x"), older_bytes, {.durable = true});
    sim().erase(key("x"));
    ASSERT_EQ(sim().put(key("x"), 10'000, {.durable = true, .version = 2}).status, ItemStatus::kStored);
    sim().crash(true);
    ASSERT_TRUE(sim().open().ok());
    ASSERT_EQ(sim().number("recovery_duplicates"), 1);
    sim().corrupt_payload(key("x"));
    Buffers buffers(12'000, {});
    const GetItem item{sim().space(0), {}, "x", buffers.segments(), 1, 0, kWholeBlock};
    EXPECT_EQ(sim().store().get_one(item).status, ItemStatus::kMiss);
    const ItemResult result = sim().store().get_one(item);
    EXPECT_EQ(result.status, ItemStatus::kHit);
    EXPECT_EQ(result.bytes, older_bytes);
    EXPECT_TRUE(buffers.holds(key("x"), 1, 0, older_bytes));
  }
}

TEST_F(Duplicates, I12_DeletingTheWinnerDeletesThemAll) {
  make_copies(4);
  sim().reopen_and_judge();
  EXPECT_EQ(sim().erase(key("k")).status, ItemStatus::kDeleted);
  sim().flush();
  sim().crash(false);
  sim().reopen_and_judge();
  EXPECT_FALSE(sim().contains(key("k")));
}

// The winner is evicted by reclaim and told to be a miss; the copy it superseded must not take its place at the next
// opening.
TEST_F(Duplicates, I12_EvictingTheWinnerEvictsThemAll) {
  make({}, 8);
  sim().put(key("k"), 10'000, {.durable = true});
  const Name fellow = key("fellow");
  sim().put(fellow, 10'000);
  sim().put(key("fill its region"), 900'000);  // another extent size: the first region is sealed
  const RegionId older = region_of(fellow);
  sim().erase(key("k"));
  ASSERT_EQ(sim().put(key("k"), 10'000, {.durable = true, .version = 2}).status, ItemStatus::kStored);
  sim().crash(true);  // before the dead bit of the first copy is written
  sim().reopen_and_judge();
  ASSERT_EQ(sim().number("recovery_duplicates"), 1);
  ASSERT_NE(region_of(key("k")), older);
  for (int i = 0; i < 100 && sim().is_live(key("k")); ++i) {
    sim().get(fellow);  // so that the older copy's region is not the one that goes
    sim().put(key("fill " + std::to_string(i)), 900'000);
  }
  ASSERT_TRUE(sim().contains(fellow));
  ASSERT_FALSE(sim().contains(key("k")));
  sim().flush();
  sim().crash(true);
  sim().reopen_and_judge();
  EXPECT_FALSE(sim().contains(key("k")));
}

// The dead slot has the highest sequence; the live older copy counts all the same.
TEST_F(Duplicates, I12_DeadSlotsDropBeforeDuplicatesAreDecided) {
  fill_region("x", 1);
  const auto first = fill_region("k", 1)[0];
  const BlockInfo old_copy = sim().describe(first);
  ASSERT_TRUE(sim().close().ok());
  ASSERT_TRUE(sim().open().ok());
  // A second copy in another region, put because the first could not be read for a while.
  sim().disk().add_rule(rule_of(SimFault::kError, IoOp::kRead, old_copy.offset_bytes, old_copy.offset_bytes + 1, 2));
  sim().allow_misses(true);
  EXPECT_EQ(sim().get(first).status, ItemStatus::kError);
  EXPECT_EQ(sim().put(first, 5'000, {.durable = true}).status, ItemStatus::kStored);
  sim().crash(true);  // before the old copy's dead bit is written
  ASSERT_TRUE(sim().open().ok());
  EXPECT_EQ(sim().number("recovery_duplicates"), 1);
  const BlockInfo new_copy = sim().describe(first);
  ASSERT_NE(new_copy.region, old_copy.region) << "the newer one";
  // check --repair drops the newer copy: its dead bit is on the device, the older is alive at the next opening.
  ASSERT_TRUE(sim().store().drop_block(new_copy, SimStore::space_json(0)).ok());
  ASSERT_TRUE(sim().try_flush().ok());
  ASSERT_TRUE(sim().close().ok());
  ASSERT_TRUE(sim().open().ok());
  EXPECT_EQ(sim().describe(first).region, old_copy.region);
}

// ---- deleted for good ------------------------------------------------------------------------------------------

// Evicted by reclaim, put again, deleted, flushed: what is left of the first copy in its emptied region must not count.
TEST_F(Recovery, ADeletedBlockDoesNotComeBackOutOfAnEmptiedRegion) {
  StoreOptions options;
  options.free_regions_target = 4;
  make(options, 32);
  sim().put(key("k"), 200'000, {.durable = true});
  int i = 0;
  for (; i < 400 && sim().is_live(key("k")); ++i) sim().put(key("fill " + std::to_string(i)), 200'000);
  ASSERT_FALSE(sim().contains(key("k"))) << "reclaimed, and its region waits to be used again";
  sim().put(key("k"), 200'000, {.durable = true, .version = 2});
  ASSERT_EQ(sim().erase(key("k")).status, ItemStatus::kDeleted);
  sim().flush();
  sim().crash(true);
  sim().reopen_and_judge();
  EXPECT_FALSE(sim().contains(key("k")));
}

// ---- a full index ----------------------------------------------------------------------------------------------

TEST_F(Recovery, I12_AFullIndexDropsTheOldestRegions) {
  make({}, 16);
  std::vector<Name> names;
  for (int i = 0; i < 1500; ++i) {
    names.push_back(key(std::to_string(i)));
    sim().put(names.back(), 6'000);
  }
  ASSERT_TRUE(sim().close().ok());
  sim().setup().store.index_blocks_max = 64;  // the table is larger, by its margins, but not that large
  sim().allow_misses(true);
  ASSERT_TRUE(sim().open().ok());
  const auto blocks = static_cast<size_t>(sim().number("blocks"));
  ASSERT_LT(blocks, 1400u);
  // The newest are there, up to those that share a region with the first that found no room.
  size_t newest_found = 0;
  for (size_t i = names.size() - blocks / 2; i < names.size(); ++i) newest_found += sim().contains(names[i]) ? 1 : 0;
  EXPECT_GT(newest_found, blocks / 2 * 8 / 10) << "of the newest " << blocks / 2;
  size_t oldest_found = 0;
  for (size_t i = 0; i < 200; ++i) oldest_found += sim().contains(names[i]) ? 1 : 0;
  EXPECT_LT(oldest_found, 80u);
  sim().put(key("next"), 6'000, {.durable = true});
}

// ---- ages ------------------------------------------------------------------------------------------------------

TEST_F(Recovery, RegionsAreReclaimedInTheOrderTheyWereWrittenAfterAnOpening) {
  make({}, 10);
  std::vector<Name> names;
  for (int i = 0; i < 9; ++i) {
    names.push_back(key(std::to_string(i)));
    sim().put(names.back(), 600'000);  // one region each
  }
  ASSERT_TRUE(sim().close().ok());
  sim().reopen_and_judge();
  ASSERT_TRUE(sim().close().ok());
  ASSERT_TRUE(sim().open().ok());
  int left = 9;
  for (int i = 0; i < 6; ++i) {
    sim().put(key("new " + std::to_string(i)), 600'000);
    sim().run_idle();
    bool gap = false;
    int now = 0;
    for (const Name& name : names) {
      const bool there = sim().contains(name);
      EXPECT_FALSE(gap && !there) << "an older block outlived a younger";
      gap = gap || there;
      now += there ? 1 : 0;
    }
    EXPECT_LE(now, left);
    left = now;
  }
  EXPECT_LT(left, 9);
}

}  // namespace
}  // namespace kvstore::store
