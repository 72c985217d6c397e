// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What openers of one shared pool see of each other, and what happens when one of them, or the metadata engine, fails.

#include <gtest/gtest.h>

#include "store/many_openers.h"

namespace kvstore::store {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

class Sharing : public testing::Test {
 protected:
  explicit Sharing(const OpenersSetup& setup = {}) : openers(setup) {}
  void TearDown() override { EXPECT_EQ(openers.all_violations(), ""); }
  void open_all(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) ASSERT_TRUE(openers.open(i).ok()) << i;
  }
  // Of the next write of the metadata page there.
  void add_fault(device::SimFault fault, uint64_t page_offset) {
    openers.disk().add_rule(
        {.fault = fault, .op = device::IoOp::kWrite, .first_byte = page_offset, .last_byte = page_offset + kPageBytes});
  }
  void add_fault_of_tails(device::SimFault fault, RegionId region) {
    for (const uint32_t copy : {0u, 1u}) add_fault(fault, openers.geometry().tail_offset(region, copy));
  }

  ManyOpeners openers;
};

TEST_F(Sharing, WhatOneOpenerPutsTheOthersGet) {
  open_all(3);
  for (int number = 0; number < 12; ++number) {
    const auto opener = static_cast<uint32_t>(number % 3);
    ASSERT_EQ(openers.put(opener, number, true).status, ItemStatus::kStored) << number;
  }
  for (uint32_t opener = 0; opener < 3; ++opener) {
    openers.run(kSecondNs);
    ASSERT_TRUE(openers.refresh(opener).ok());
    for (int number = 0; number < 12; ++number) {
      EXPECT_EQ(openers.get(opener, number).status, ItemStatus::kHit) << opener << " " << number;
    }
  }
}

TEST_F(Sharing, AMissBringsTheNextLookupWhatWasPutMeanwhile) {
  open_all(2);
  ASSERT_EQ(openers.put(0, 1, true).status, ItemStatus::kStored);
  openers.run(kSecondNs);
  ASSERT_EQ(openers.put(0, 2, true).status, ItemStatus::kStored);
  EXPECT_FALSE(openers.contains(1, 2));
  const double reads = openers.number(1, "peer_reads");
  openers.run_only({1}, 2'000'000);
  EXPECT_TRUE(openers.contains(1, 2));
  EXPECT_LE(openers.number(1, "peer_reads") - reads, 8);
}

TEST_F(Sharing, ARefreshKnowsOfRegionsThatWereTakenAMomentAgo) {
  open_all(2);
  EXPECT_EQ(openers.number(1, "openers"), 2);
  for (int number = 0; number < 10; ++number) ASSERT_EQ(openers.put(0, number, true).status, ItemStatus::kStored);
  ASSERT_TRUE(openers.refresh(1).ok());
  for (int number = 0; number < 10; ++number) EXPECT_TRUE(openers.contains(1, number)) << number;
}

TEST_F(Sharing, ARefreshDoesNotClaimToKnowWhatAnEngineThatIsAwayCouldTell) {
  open_all(2);
  openers.cut(1, true);
  EXPECT_EQ(openers.refresh(1).code(), Code::kBusy);
  openers.cut(1, false);
  openers.run_only({1}, kSecondNs);
  EXPECT_TRUE(openers.refresh(1).ok());
}

TEST_F(Sharing, AnEngineThatIsAwayIsNotAskedWithoutPause) {
  open_all(2);
  openers.run(kSecondNs);
  const double before = openers.number(1, "engine_requests");
  openers.cut(1, true);
  for (int asked = 0; asked < 100; ++asked) ASSERT_EQ(openers.refresh(1).code(), Code::kBusy);
  openers.run(ManyOpeners::kLeaseNs);
  // Twenty renewals and twenty looks in a lease, of three requests each at most.
  EXPECT_LE(openers.number(1, "engine_requests") - before, 100);
  openers.cut(1, false);
  openers.run(ManyOpeners::kLeaseNs);
  EXPECT_EQ(openers.put(1, 7, true).status, ItemStatus::kStored);
}

// As a service whose disk is full.
TEST_F(Sharing, PutsThatWaitForAnEngineThatOnlyRenewsLeasesAreRefusedWithinALeaseAndGoOnAfter) {
  open_all(2);
  int number = 0;
  for (; number < 300; ++number) ASSERT_TRUE(openers.put(0, number).succeeded()) << number;  // more than fit
  openers.refuse_txns(true);
  ItemResult result;
  uint64_t asked_ns = 0;
  do {
    asked_ns = openers.now_ns();
    result = openers.put(0, number++);
  } while (result.succeeded() && number < 600);
  EXPECT_EQ(result.code, Code::kBusy);
  EXPECT_LT(openers.now_ns() - asked_ns, ManyOpeners::kLeaseNs * 5 / 4);
  EXPECT_NE(openers.store(0).write_refusal().find("no space"), std::string::npos) << openers.store(0).write_refusal();
  EXPECT_EQ(openers.get(0, 299).status, ItemStatus::kHit);
  openers.run(ManyOpeners::kLeaseNs);
  EXPECT_EQ(openers.put(0, number).code, Code::kBusy);
  openers.refuse_txns(false);
  openers.run(ManyOpeners::kLeaseNs / 4);
  EXPECT_EQ(openers.put(0, number, true).status, ItemStatus::kStored);
}

TEST_F(Sharing, ClosingWhileTheEngineOnlyRenewsLeasesKeepsWhatWasPutAndTellsOfDeletesThatItDoesNotHave) {
  open_all(2);
  for (int number = 0; number < 6; ++number) ASSERT_TRUE(openers.put(0, number).succeeded()) << number;
  ASSERT_TRUE(openers.put(1, 6, true).succeeded());
  openers.refuse_txns(true);
  openers.run(2 * ManyOpeners::kLeaseNs);
  ASSERT_EQ(openers.erase(1, 6).status, ItemStatus::kDeleted);
  const uint64_t asked_ns = openers.now_ns();
  EXPECT_TRUE(openers.close(0).ok());
  const Status closed = openers.close(1);
  EXPECT_EQ(closed.code(), Code::kDurabilityLost);
  EXPECT_NE(closed.message().find("no space"), std::string::npos) << closed.message();
  EXPECT_LT(openers.now_ns() - asked_ns, kSecondNs);
  openers.refuse_txns(false);
  ASSERT_TRUE(openers.open(2).ok());
  for (int number = 0; number < 6; ++number) EXPECT_EQ(openers.get(2, number).status, ItemStatus::kHit) << number;
}

TEST_F(Sharing, HeadersThatCannotBeReadOnceAreLookedAtAgain) {
  open_all(2);
  openers.pause(1, true);
  for (int number = 0; number < 4; ++number) ASSERT_EQ(openers.put(0, number, true).status, ItemStatus::kStored);
  openers.run(kSecondNs);  // sealed, and opener 1 has not looked yet
  openers.pause(1, false);
  const uint64_t area = openers.geometry().entry_bytes * openers.geometry().region_count;
  openers.disk().add_rule({.fault = device::SimFault::kError,
                           .op = device::IoOp::kRead,
                           .first_byte = format::kMetadataOffset,
                           .last_byte = format::kMetadataOffset + area,
                           .times = UINT64_MAX});
  ASSERT_EQ(openers.number(1, "blocks_learnt"), 0);
  openers.run_only({1}, kSecondNs);
  ASSERT_EQ(openers.number(1, "blocks_learnt"), 0);
  ASSERT_GT(openers.number(1, "read_errors"), 0);
  openers.disk().clear_rules();
  ASSERT_TRUE(openers.refresh(1).ok());
  for (int number = 0; number < 4; ++number) EXPECT_EQ(openers.get(1, number).status, ItemStatus::kHit) << number;
}

TEST_F(Sharing, ARefreshThatWasGivenUpIsNotWorkedForAnyMore) {
  openers.store_options.pin_lease_ns = 1'000 * kSecondNs;
  open_all(2);
  ASSERT_EQ(openers.put(0, 1, true).status, ItemStatus::kStored);
  openers.run(kSecondNs);
  openers.pin(1, 1, true);
  openers.cut(1, true);
  openers.run(2 * ManyOpeners::kLeaseNs);
  for (int number = 100; number < 300; ++number) ASSERT_TRUE(openers.put(0, number).succeeded()) << number;
  openers.cut(1, false);
  openers.run(ManyOpeners::kLeaseNs);
  // It still reads what lived in a region before, and cannot learn yet what lives there.
  ASSERT_EQ(openers.refresh(1).code(), Code::kBusy);
  const double looks = openers.number(1, "peer_looks");
  openers.run(kSecondNs);
  // The usual ones.
  EXPECT_LE(openers.number(1, "peer_looks") - looks, kSecondNs / StoreOptions().shared.refresh_interval_ns + 1);
  openers.pin(1, 1, false);
  EXPECT_TRUE(openers.refresh(1).ok());
}

TEST_F(Sharing, BlocksArePutAgainByNobodyOnceTheyAreKnown) {
  open_all(2);
  ASSERT_EQ(openers.put(0, 1, true).status, ItemStatus::kStored);
  openers.run(kSecondNs);
  EXPECT_EQ(openers.put(1, 1, true).status, ItemStatus::kPresent);
}

TEST_F(Sharing, WhatIsLostToItsOwnerAndLandedIsKeptByTheOthersUntilItsKeyIsDeleted) {
  openers.store_options.io_timeout_ns = kSecondNs;
  open_all(2);
  ASSERT_EQ(openers.put(0, 1, true).status, ItemStatus::kStored);
  const RegionId region{openers.lives().begin()->first.first};
  add_fault_of_tails(device::SimFault::kStuck, region);
  ASSERT_EQ(openers.put(0, 2, true).status, ItemStatus::kError);
  openers.disk().clear_rules();
  openers.disk().release_stuck();
  openers.run(kSecondNs);
  ASSERT_FALSE(openers.contains(0, 2));
  ASSERT_FALSE(openers.flush(0).ok());  // tells of it, once (I6)
  ASSERT_EQ(openers.put(1, 2, true).status, ItemStatus::kPresent);
  const auto others_see = [&](int number) {
    EXPECT_TRUE(openers.flush(0).ok());
    EXPECT_TRUE(openers.refresh(1).ok());
    return openers.contains(1, number);
  };
  ASSERT_EQ(openers.erase(0, 1).status, ItemStatus::kDeleted);  // of the same region
  EXPECT_FALSE(others_see(1));
  EXPECT_TRUE(others_see(2));
  openers.erase(0, 2);
  EXPECT_FALSE(others_see(2));
}

TEST_F(Sharing, AClosingThatTheEngineDoesNotAnswerIsAnErrorOnlyWhenDeletesAreLost) {
  open_all(2);
  for (const int number : {1, 2}) ASSERT_EQ(openers.put(0, number, true).status, ItemStatus::kStored);
  ASSERT_TRUE(openers.refresh(1).ok());
  ASSERT_EQ(openers.erase(1, 1).status, ItemStatus::kDeleted);
  for (const uint32_t opener : {0u, 1u}) openers.cut(opener, true);
  openers.run(ManyOpeners::kLeaseNs);
  const Status whole = openers.close(0);
  EXPECT_TRUE(whole.ok()) << whole.to_string();
  EXPECT_EQ(openers.close(1).code(), Code::kDurabilityLost);
}

TEST_F(Sharing, ARefreshFindsAlsoWhatADeadOpenersLateWriteBrought) {
  open_all(2);
  ASSERT_EQ(openers.put(0, 1, true).status, ItemStatus::kStored);
  const RegionId region{openers.lives().begin()->first.first};
  add_fault_of_tails(device::SimFault::kGhost, region);
  // Where a seal would bring it.
  add_fault(device::SimFault::kError, openers.geometry().descriptor_block_offset(region, 0));
  ASSERT_EQ(openers.put(0, 2, true).status, ItemStatus::kError);
  openers.kill(0);
  openers.run(3 * ManyOpeners::kLeaseNs);
  ASSERT_TRUE(openers.refresh(1).ok());
  ASSERT_TRUE(openers.contains(1, 1));
  ASSERT_FALSE(openers.contains(1, 2));
  openers.disk().land_ghosts();
  ASSERT_TRUE(openers.refresh(1).ok());
  EXPECT_TRUE(openers.contains(1, 2));
}

TEST_F(Sharing, WhatIsDeletedElsewhereIsAMissAlsoWhereTheSealOfItsRegionFailed) {
  open_all(2);
  ASSERT_EQ(openers.put(0, 1, true).status, ItemStatus::kStored);
  const RegionId region{openers.lives().begin()->first.first};
  add_fault(device::SimFault::kError, openers.geometry().descriptor_block_offset(region, 0));
  for (int number = 2; number <= 4; ++number) ASSERT_EQ(openers.put(0, number, true).status, ItemStatus::kStored);
  openers.run(kSecondNs);
  ASSERT_EQ(openers.number(0, "write_errors"), 1);
  ASSERT_EQ(openers.erase(1, 4).status, ItemStatus::kDeleted);
  ASSERT_TRUE(openers.flush(1).ok());
  ASSERT_TRUE(openers.refresh(0).ok());
  EXPECT_FALSE(openers.contains(0, 4));
  EXPECT_TRUE(openers.contains(0, 3));
}

TEST_F(Sharing, WhatIsDeletedElsewhereIsAMissAlsoWhenItsDescriptorCannotBeRead) {
  open_all(2);
  for (int number = 1; number <= 4; ++number) ASSERT_EQ(openers.put(0, number, true).status, ItemStatus::kStored);
  openers.run(kSecondNs);
  ASSERT_EQ(openers.erase(1, 4).status, ItemStatus::kDeleted);
  ASSERT_TRUE(openers.flush(1).ok());
  openers.disk().add_rule({.fault = device::SimFault::kError,
                           .op = device::IoOp::kRead,
                           .first_byte = format::kMetadataOffset,
                           .last_byte = openers.geometry().data_offset,
                           .times = UINT64_MAX});
  openers.run_only({0}, kSecondNs);
  openers.disk().clear_rules();
  EXPECT_FALSE(openers.contains(0, 4));
  EXPECT_TRUE(openers.contains(0, 3));
}

TEST_F(Sharing, WhatIsDeletedElsewhereIsAMissAlsoWhenItsDescriptorIsDestroyed) {
  open_all(2);
  for (int number = 1; number <= 4; ++number) ASSERT_EQ(openers.put(0, number, true).status, ItemStatus::kStored);
  openers.run(kSecondNs);
  const RegionId region{openers.lives().begin()->first.first};
  const std::vector<uint8_t> nothing(kPageBytes);
  openers.disk().poke(openers.geometry().descriptor_block_offset(region, 0), nothing.data(), nothing.size());
  ASSERT_EQ(openers.erase(1, 4).status, ItemStatus::kDeleted);
  ASSERT_TRUE(openers.flush(1).ok());
  openers.run_only({0}, kSecondNs);
  EXPECT_FALSE(openers.contains(0, 4));
  EXPECT_TRUE(openers.contains(0, 3));
  EXPECT_EQ(openers.number(0, "read_errors"), 0) << "every read was good";
}

TEST_F(Sharing, ALaterOpenerFindsWhatIsThere) {
  open_all(1);
  for (int number = 0; number < 10; ++number) ASSERT_EQ(openers.put(0, number, true).status, ItemStatus::kStored);
  ASSERT_TRUE(openers.open(1).ok());
  for (int number = 0; number < 10; ++number) EXPECT_EQ(openers.get(1, number).status, ItemStatus::kHit) << number;
}

TEST_F(Sharing, AfterACleanCloseNothingIsOwned) {
  open_all(2);
  for (int number = 0; number < 10; ++number) ASSERT_EQ(openers.put(0, number, true).status, ItemStatus::kStored);
  ASSERT_TRUE(openers.close(0).ok());
  ASSERT_TRUE(openers.close(1).ok());
  for (const auto& item : openers.cluster().range("kvstore/").items) {
    EXPECT_EQ(item.value.find("owned"), std::string::npos) << item.key << " " << item.value;
    EXPECT_EQ(item.key.find("live/"), std::string::npos) << item.key;
    EXPECT_EQ(item.key.find("opener/"), std::string::npos) << item.key;
  }
  ASSERT_TRUE(openers.open(2).ok());
  for (int number = 0; number < 10; ++number) EXPECT_EQ(openers.get(2, number).status, ItemStatus::kHit) << number;
}

// What an opener that never was would hold up: reuse for a lease, and the judgement of its epoch.
TEST_F(Sharing, AnOpeningThatFailsAfterItJoinedLeavesAgain) {
  open_all(1);
  const auto openers_known = [&] {
    int known = 0;
    for (const auto& item : openers.cluster().range("kvstore/").items) {
      const bool of_opener = item.key.find("/live/") != std::string::npos ||
                             item.key.find("/read/") != std::string::npos ||
                             item.key.find("/opener/") != std::string::npos;
      known += of_opener ? 1 : 0;
    }
    return known;
  };
  ASSERT_EQ(openers_known(), 3);
  openers.disk().add_rule({.fault = device::SimFault::kStuck,
                           .op = device::IoOp::kRead,
                           .first_byte = format::kMetadataOffset,
                           .last_byte = openers.geometry().data_offset,
                           .times = UINT64_MAX});
  ASSERT_FALSE(openers.open(1).ok());
  EXPECT_EQ(openers_known(), 3);
  openers.disk().clear_rules();
  openers.disk().release_stuck();
  EXPECT_TRUE(openers.open(1).ok());
}

TEST_F(Sharing, AFullPoolGoesOnAndEverybodyLetsGoOfWhatIsReused) {
  open_all(3);
  for (int number = 0; number < 400; ++number) {
    const auto opener = static_cast<uint32_t>(number % 3);
    ASSERT_EQ(openers.put(opener, number).status, ItemStatus::kStored) << number;
    if (number % 7 == 0) (void)openers.get((opener + 1) % 3, number - 5);
  }
  EXPECT_GT(openers.number(0, "regions_retired") + openers.number(1, "regions_retired"), 10);
  openers.run(2 * kSecondNs);
  int hits = 0;
  for (int number = 300; number < 400; ++number) hits += openers.get(0, number).status == ItemStatus::kHit ? 1 : 0;
  EXPECT_GT(hits, 20);
}

TEST_F(Sharing, AKilledOpenersBlocksStayAndItsRegionsAreReusedOnceItIsKnownToBeGone) {
  open_all(3);
  for (int number = 0; number < 10; ++number) ASSERT_EQ(openers.put(0, number, true).status, ItemStatus::kStored);
  openers.kill(0);
  openers.run(2 * ManyOpeners::kLeaseNs);
  for (int number = 0; number < 10; ++number) EXPECT_EQ(openers.get(1, number).status, ItemStatus::kHit) << number;
  for (int number = 100; number < 400; ++number) {
    ASSERT_EQ(openers.put(1 + static_cast<uint32_t>(number % 2), number).status, ItemStatus::kStored) << number;
  }
  openers.run(ManyOpeners::kLeaseNs);
  int known = 0;
  for (const auto& item : openers.cluster().range("kvstore/").items) {
    known += item.key.find("/opener/") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(known, 2) << "the one that is gone owns nothing any more";
}

TEST_F(Sharing, AnOpenerThatCannotRenewStopsPuttingAndGoesOnReading) {
  open_all(2);
  ASSERT_EQ(openers.put(0, 1, true).status, ItemStatus::kStored);
  openers.run(kSecondNs);
  openers.cut(1, true);
  openers.run(2 * ManyOpeners::kLeaseNs);
  const ItemResult refused = openers.put(1, 2);
  EXPECT_EQ(refused.status, ItemStatus::kError);
  EXPECT_EQ(refused.code, Code::kBusy);
  EXPECT_EQ(openers.get(1, 1).status, ItemStatus::kHit);
  openers.cut(1, false);
  openers.run(ManyOpeners::kLeaseNs);
  EXPECT_EQ(openers.put(1, 2, true).status, ItemStatus::kStored);
  EXPECT_EQ(openers.number(1, "rejoins"), 1);
}

TEST_F(Sharing, ADurablePutWhoseWriteEndsWhenTheLeaseHasEndedIsAnsweredToo) {
  open_all(2);
  ASSERT_EQ(openers.put(0, 1, true).status, ItemStatus::kStored);
  openers.disk().add_rule(
      {.fault = device::SimFault::kStuck, .op = device::IoOp::kWrite, .first_byte = openers.geometry().data_offset});
  openers.begin_put(0, 2, true);
  openers.cut(0, true);
  openers.run(2 * ManyOpeners::kLeaseNs);
  openers.disk().release_stuck();
  openers.run(kSecondNs);
  EXPECT_EQ(openers.number(0, "jobs_in_flight"), 0);
}

TEST_F(Sharing, AnEngineThatDoesNotAnswerIsNotAskedWithoutPause) {
  open_all(1);
  const double before = openers.number(0, "engine_requests");
  openers.cut(0, true);
  openers.run(2 * ManyOpeners::kLeaseNs);
  EXPECT_LT(openers.number(0, "engine_requests") - before, 200);
}

TEST_F(Sharing, APausedOpenerKeepsWhatNobodyTook) {
  open_all(2);
  ASSERT_EQ(openers.put(0, 1).status, ItemStatus::kStored);  // not durable: its descriptor is still to be written
  openers.run_only({1}, 3 * ManyOpeners::kLeaseNs);
  openers.run(ManyOpeners::kLeaseNs);
  EXPECT_TRUE(openers.flush(0).ok());
  EXPECT_EQ(openers.number(0, "rejoins"), 1);
  EXPECT_EQ(openers.number(0, "regions_lost"), 0);
  ASSERT_TRUE(openers.refresh(1).ok());
  EXPECT_EQ(openers.get(1, 1).status, ItemStatus::kHit);
  EXPECT_EQ(openers.put(0, 2, true).status, ItemStatus::kStored);
}

TEST_F(Sharing, AWipedEngineIsRebuiltFromTheDeviceAndNothingIsLost) {
  open_all(3);
  for (int number = 0; number < 20; ++number) {
    ASSERT_EQ(openers.put(static_cast<uint32_t>(number % 3), number, true).status, ItemStatus::kStored);
  }
  const double before = openers.number(0, "engine_rebuilds");
  openers.cluster().wipe();
  openers.run(4 * ManyOpeners::kLeaseNs);
  for (uint32_t opener = 0; opener < 3; ++opener) {
    for (int number = 0; number < 20; ++number) {
      EXPECT_EQ(openers.get(opener, number).status, ItemStatus::kHit) << opener << " " << number;
    }
    EXPECT_EQ(openers.put(opener, 100 + static_cast<int>(opener), true).status, ItemStatus::kStored);
  }
  EXPECT_EQ(openers.number(0, "engine_rebuilds") + openers.number(1, "engine_rebuilds") +
                openers.number(2, "engine_rebuilds") - before,
            1);
}

TEST_F(Sharing, ADeleteIsAMissForEverybodyAndForLaterOpeners) {
  open_all(2);
  ASSERT_EQ(openers.put(0, 1, true).status, ItemStatus::kStored);
  ASSERT_EQ(openers.put(0, 2, true).status, ItemStatus::kStored);
  openers.run(kSecondNs);
  ASSERT_EQ(openers.erase(1, 1).status, ItemStatus::kDeleted);
  ASSERT_TRUE(openers.flush(1).ok());
  openers.run(kSecondNs);
  EXPECT_EQ(openers.get(0, 1).status, ItemStatus::kMiss);
  EXPECT_EQ(openers.get(0, 2).status, ItemStatus::kHit);
  ASSERT_TRUE(openers.open(2).ok());
  EXPECT_EQ(openers.get(2, 1).status, ItemStatus::kMiss);
  EXPECT_EQ(openers.get(2, 2).status, ItemStatus::kHit);
}

TEST_F(Sharing, DeletesThatAreKnownCostNothingWhenTheEnginesStateIsReadAgain) {
  open_all(2);
  for (int number = 1; number <= 4; ++number) ASSERT_EQ(openers.put(0, number, true).status, ItemStatus::kStored);
  openers.run(kSecondNs);
  ASSERT_EQ(openers.erase(1, 1).status, ItemStatus::kDeleted);
  ASSERT_TRUE(openers.flush(1).ok());
  openers.run(kSecondNs);
  double read[2];
  for (const uint32_t opener : {0u, 1u}) read[opener] = openers.number(opener, "bytes_read_metadata");
  const double resyncs = openers.number(1, "engine_resyncs");
  openers.run(7 * ManyOpeners::kLeaseNs);
  ASSERT_GT(openers.number(1, "engine_resyncs"), resyncs);
  for (const uint32_t opener : {0u, 1u}) {
    EXPECT_EQ(openers.number(opener, "bytes_read_metadata"), read[opener]) << opener;
    EXPECT_FALSE(openers.contains(opener, 1));
  }
}

class SharingWithAFailover : public Sharing {
 protected:
  SharingWithAFailover() : Sharing({.forgets_ns = kSecondNs}) {}
};

TEST_F(SharingWithAFailover, DeletesThatAFailoverForgotAreToldAgain) {
  open_all(2);
  ASSERT_EQ(openers.put(0, 1, true).status, ItemStatus::kStored);
  openers.run(kSecondNs);
  ASSERT_EQ(openers.erase(1, 1).status, ItemStatus::kDeleted);
  ASSERT_TRUE(openers.flush(1).ok());
  openers.cluster().failover(kSecondNs);
  openers.run(ManyOpeners::kLeaseNs);
  ASSERT_TRUE(openers.open(2).ok());
  EXPECT_EQ(openers.get(2, 1).status, ItemStatus::kMiss);
}

TEST_F(Sharing, DeletesOutliveAWipedEngineInTheOpenersThatLiveThroughIt) {
  open_all(2);
  ASSERT_EQ(openers.put(0, 1, true).status, ItemStatus::kStored);
  openers.run(kSecondNs);
  ASSERT_EQ(openers.erase(1, 1).status, ItemStatus::kDeleted);
  ASSERT_TRUE(openers.flush(1).ok());
  openers.cluster().wipe();
  openers.run(4 * ManyOpeners::kLeaseNs);
  ASSERT_TRUE(openers.open(2).ok());
  EXPECT_EQ(openers.get(2, 1).status, ItemStatus::kMiss);
}

// Two openers that did not know of each other put the same block, and each was told that its copy is durable.
TEST_F(Sharing, ADeletedOrReclaimedCopyDoesNotTakeAnotherOpenersCopyWithIt) {
  open_all(2);
  ASSERT_EQ(openers.put(0, 2, true).status, ItemStatus::kStored);
  openers.cut(0, true);  // it does not hear of opener 1's region
  ASSERT_EQ(openers.put(1, 1, true).status, ItemStatus::kStored);
  ASSERT_EQ(openers.put(0, 1, true).status, ItemStatus::kStored);
  openers.cut(0, false);
  openers.run(2 * kSecondNs);
  ASSERT_EQ(openers.erase(1, 1).status, ItemStatus::kDeleted);  // both copies
  ASSERT_TRUE(openers.flush(1).ok());
  ASSERT_EQ(openers.put(1, 1, true).status, ItemStatus::kStored);
  openers.run(2 * kSecondNs);
  for (uint32_t opener = 0; opener < 2; ++opener) {
    ASSERT_TRUE(openers.refresh(opener).ok());
    EXPECT_EQ(openers.get(opener, 1).status, ItemStatus::kHit) << opener;
  }
}

TEST_F(Sharing, S3_WithoutAFreshLeaseNotEvenWhatIsWaitingIsWritten) {
  open_all(2);
  ASSERT_EQ(openers.put(0, 1, true).status, ItemStatus::kStored);
  ASSERT_EQ(openers.put(0, 2).status, ItemStatus::kStored);  // its descriptor is still to be written
  openers.cut(0, true);
  openers.run_only({1}, ManyOpeners::kLeaseNs * 6 / 10);  // the lease has not ended
  openers.run(kSecondNs);
  ASSERT_TRUE(openers.refresh(1).ok());
  EXPECT_FALSE(openers.contains(1, 2));
}

TEST_F(Sharing, S3_ACommitThatTheEndOfALeaseInterruptsGoesOnWhenItIsRenewed) {
  open_all(2);
  // The strings of a region go out before its first descriptor (I10): in between the opener stands still.
  const auto is_dictionary = [&](const device::IoRequest& request) {
    const uint64_t in_entry = (request.offset_bytes - format::kMetadataOffset) % openers.geometry().entry_bytes;
    const uint64_t strings = openers.geometry().dictionary_offset(RegionId{0}, 0) - format::kMetadataOffset;
    return request.op == device::IoOp::kWrite && request.offset_bytes < openers.geometry().data_offset &&
           in_entry == strings;
  };
  int interruptions = 0;
  openers.on_request = [&](const device::IoRequest& request) {
    if (interruptions == 0 && is_dictionary(request)) {
      ++interruptions;
      openers.pass(ManyOpeners::kLeaseNs * 6 / 10);
    }
  };
  ASSERT_EQ(openers.put(0, 1, true).status, ItemStatus::kStored);
  ASSERT_EQ(interruptions, 1);
  ASSERT_EQ(openers.put(0, 2, true).status, ItemStatus::kStored);
  ASSERT_TRUE(openers.refresh(1).ok());
  EXPECT_TRUE(openers.contains(1, 1));
  EXPECT_TRUE(openers.contains(1, 2));
  EXPECT_EQ(openers.number(0, "blocks_lost"), 0);
  EXPECT_EQ(openers.number(0, "write_failures"), 0);
}

TEST_F(Sharing, S3_ACommitThatGoesOnDoesNotWriteItsStringsAgain) {
  open_all(1);
  // The opener stands still when the strings are on the device and the first descriptor is to follow.
  int strings = 0;
  int others = 0;
  openers.on_request = [&](const device::IoRequest& request) {
    const auto& geometry = openers.geometry();
    if (request.op != device::IoOp::kWrite || request.offset_bytes >= geometry.data_offset) return;
    const uint64_t in_entry = (request.offset_bytes - format::kMetadataOffset) % geometry.entry_bytes;
    const bool is_strings = in_entry == geometry.dictionary_offset(RegionId{0}, 0) - format::kMetadataOffset;
    strings += is_strings ? 1 : 0;
    if (is_strings && strings == 1) openers.pass(ManyOpeners::kLeaseNs * 6 / 10);
    others += strings != 0 && !is_strings ? 1 : 0;
  };
  ASSERT_EQ(openers.put(0, 1).status, ItemStatus::kStored);
  const double commits = openers.number(0, "commits");
  openers.run(kSecondNs);
  EXPECT_EQ(openers.number(0, "commits"), commits) << "it was interrupted";
  openers.run(kSecondNs);
  EXPECT_EQ(strings, 1);
  EXPECT_EQ(others, 1) << "the tail";
  EXPECT_EQ(openers.number(0, "commits") - commits, 1);
}

TEST_F(Sharing, S3_WhatIsClosedJustThenWaitsForTheRenewalAndLosesNothing) {
  open_all(2);
  ASSERT_EQ(openers.put(0, 1).status, ItemStatus::kStored);  // its descriptor is still to be written
  openers.pass(ManyOpeners::kLeaseNs * 6 / 10);
  const Status closed = openers.close(0);
  EXPECT_TRUE(closed.ok()) << closed.to_string();
  ASSERT_TRUE(openers.refresh(1).ok());
  EXPECT_EQ(openers.get(1, 1).status, ItemStatus::kHit);
}

TEST_F(Sharing, S3_CloseWaitsForARenewalThatDoesNotComeNoLongerThanALease) {
  open_all(2);
  ASSERT_EQ(openers.put(0, 1).status, ItemStatus::kStored);
  openers.cut(0, true);
  openers.pass(ManyOpeners::kLeaseNs * 6 / 10);
  const uint64_t began_ns = openers.now_ns();
  EXPECT_FALSE(openers.close(0).ok());
  EXPECT_LE(openers.now_ns() - began_ns, ManyOpeners::kLeaseNs * 11 / 10);
}

TEST_F(Sharing, S4_ARegionWithAReaderIsNotReusedByAnybody) {
  open_all(2);
  ASSERT_EQ(openers.put(0, 1, true).status, ItemStatus::kStored);
  openers.run(kSecondNs);
  openers.pin(1, 1, true);
  ASSERT_EQ(openers.number(1, "pins"), 1);
  const uint32_t region = openers.lives().begin()->first.first;
  const auto lives_of_it = [&] {
    return std::count_if(openers.lives().begin(), openers.lives().end(),
                         [&](const auto& life) { return life.first.first == region; });
  };
  for (int number = 100; number < 400; ++number) openers.begin_put(0, number, false);
  openers.run(3 * ManyOpeners::kLeaseNs);
  EXPECT_EQ(lives_of_it(), 1);
  openers.pin(1, 1, false);
  openers.settle_puts(0);
  EXPECT_GT(lives_of_it(), 1);
}

TEST_F(Sharing, S1_ALifeBeginsOnlyAboveWhatTheDeviceBears) {
  open_all(2);
  constexpr Generation kLanded{1'000'000};
  for (uint32_t region = 0; region < openers.geometry().region_count; ++region) openers.poke_headers(region, kLanded);
  for (int number = 0; number < 8; ++number) ASSERT_EQ(openers.put(0, number, true).status, ItemStatus::kStored);
  for (const auto& [life, writers] : openers.lives()) EXPECT_GT(life.second, kLanded.value) << life.first;
}

TEST_F(Sharing, S8_EveryReadIsVerified) {
  openers.store_options.verify = Verify::kFirstRead;
  EXPECT_EQ(openers.open(0).code(), Code::kInvalid);
  openers.store_options.verify = Verify::kOff;
  EXPECT_EQ(openers.open(0).code(), Code::kInvalid);
}

TEST_F(Sharing, WhatOneOpenerReadsTheOthersDoNotReclaim) {
  open_all(2);
  // The oldest region is opener 1's favourite, of which opener 0 knows nothing but by its hits.
  for (int number = 0; number < 8; ++number) ASSERT_EQ(openers.put(1, number, true).status, ItemStatus::kStored);
  openers.run(kSecondNs);
  for (int number = 100; number < 500; ++number) {
    ASSERT_EQ(openers.put(0, number).status, ItemStatus::kStored) << number;
    if (number % 4 == 0) {
      ASSERT_EQ(openers.get(1, 0).status, ItemStatus::kHit) << number;
    }
    if (number % 16 == 0) openers.run(11 * kSecondNs);  // so that it is told
  }
  EXPECT_EQ(openers.get(1, 0).status, ItemStatus::kHit);
  EXPECT_EQ(openers.get(0, 0).status, ItemStatus::kHit);
}

TEST_F(Sharing, MissesDoNotMakeMoreReadsASecondThanAllowed) {
  open_all(3);
  for (uint32_t opener = 0; opener < 2; ++opener) {
    ASSERT_EQ(openers.put(opener, static_cast<int>(opener), true).status, ItemStatus::kStored);
  }
  openers.run(kSecondNs);
  const double before = openers.number(2, "peer_reads");
  const uint64_t began_ns = openers.now_ns();
  for (int i = 0; i < 40'000; ++i) {
    EXPECT_FALSE(openers.contains(2, 1000 + i));
    (void)openers.step(2);
    if (i % 20 == 0) openers.pass(1'000'000);
  }
  const double seconds = static_cast<double>(openers.now_ns() - began_ns) / 1e9;
  const double allowed = StoreOptions().shared.refresh_reads_per_s * (seconds + 1);
  EXPECT_GT(openers.number(2, "peer_reads") - before, 100);
  EXPECT_LE(openers.number(2, "peer_reads") - before, allowed);
}

// The prefix of the pool's keys.
std::string prefix_of(ManyOpeners& openers) {
  const std::string key = openers.cluster().range("kvstore/").items.at(0).key;
  return key.substr(0, key.find('/', std::string("kvstore/").size()) + 1);
}

TEST_F(Sharing, WhatTheEngineCallsSealedOrOwnedAndIsNotThereIsUsedAgain) {
  open_all(1);
  const std::string prefix = prefix_of(openers);
  // A seal whose headers were lost, and an owner of which there is no other trace.
  const std::vector<cluster::Operation> strange = {{prefix + "r/0/20", "sealed 5 1 strange.1", 0, false},
                                                   {prefix + "r/0/21", "owned 5 2 strange.2", 0, false}};
  ASSERT_TRUE(openers.cluster().txn({}, strange).value().applied);
  openers.run(ManyOpeners::kLeaseNs);
  openers.pass(2 * OpenersSetup().orphan_quarantine_ns);
  openers.run(2 * ManyOpeners::kLeaseNs);
  for (int number = 0; number < 600; ++number) {
    ASSERT_TRUE(openers.put(0, number).succeeded()) << number;
    if (number % 50 == 0) openers.run(ManyOpeners::kLeaseNs);
  }
  for (const auto& item : openers.cluster().range(prefix + "r/0/2").items) {
    EXPECT_EQ(item.value.find("strange"), std::string::npos) << item.key << " " << item.value;
  }
}

TEST_F(Sharing, TheEnginesStateGrowsWithRegionsAndOpenersAndNotWithBlocks) {
  open_all(3);
  for (int number = 0; number < 300; ++number) {
    ASSERT_EQ(openers.put(static_cast<uint32_t>(number % 3), number).status, ItemStatus::kStored);
  }
  EXPECT_LE(openers.cluster().keys(), openers.geometry().region_count + 4 * 3 + 2);
}

}  // namespace
}  // namespace kvstore::store
