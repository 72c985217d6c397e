// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the simulated device lies exactly as it is told to, and the same way for the same seed: every crash and
// fault test of the store stands on it. Method: each fault and each crash kind alone, over several seeds where
// chance decides, on a manual clock.

#include "device/sim.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "device/test_devices.h"

namespace kvstore::device {
namespace {

constexpr uint64_t kDiskBytes = 8 * kMiB;
constexpr size_t kPage = kPageBytes;
constexpr size_t kSector = 512;

class Sim {
 public:
  explicit Sim(uint64_t seed = 1, SimDeviceOptions options = {}) : disk(kDiskBytes, seed) {
    device = make_sim_device(disk, options, clock);
    queue = make_queue();
  }
  std::unique_ptr<IoQueue> make_queue(uint32_t depth = 64) {
    Device* devices[] = {device.get()};
    QueueOptions options;
    options.depth = depth;
    return device->make_queue(devices, options).value();
  }
  int64_t write(uint64_t offset, AlignedBuffer& data, bool durable = false) {
    return run_transfer(*queue, IoOp::kWrite, offset, data.data(), data.size(), durable);
  }
  int64_t read(uint64_t offset, AlignedBuffer& data) {
    return run_transfer(*queue, IoOp::kRead, offset, data.data(), data.size());
  }
  std::vector<uint8_t> peek(uint64_t offset, size_t bytes) const {
    std::vector<uint8_t> data(bytes);
    disk.peek(offset, data.data(), bytes);
    return data;
  }
  bool holds(uint64_t offset, const AlignedBuffer& data) const {
    return std::memcmp(peek(offset, data.size()).data(), data.data(), data.size()) == 0;
  }
  void add(SimFault fault, std::optional<IoOp> op = {}, uint64_t value = 0, uint64_t skip = 0, uint64_t times = 1) {
    SimRule rule;
    rule.fault = fault;
    rule.op = op;
    rule.value = value;
    rule.skip = skip;
    rule.times = times;
    disk.add_rule(rule);
  }

  ManualClock clock;
  SimDisk disk;
  std::unique_ptr<Device> device;
  std::unique_ptr<IoQueue> queue;
};

AlignedBuffer filled(size_t bytes, uint8_t value) {
  AlignedBuffer buffer(bytes);
  std::memset(buffer.data(), value, buffer.size());
  return buffer;
}

// ---- power cuts ------------------------------------------------------------------------------------------

TEST(SimPowerCut, KeepsWhatWasFlushedOrDurable) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Sim sim(seed);
    AlignedBuffer flushed = random_buffer(8 * kPage, 1), durable = random_buffer(8 * kPage, 2);
    ASSERT_EQ(sim.write(0, flushed), 32768);
    ASSERT_EQ(run_flush(*sim.queue), 0);
    ASSERT_EQ(sim.write(kMiB, durable, true), 32768);
    sim.disk.power_cut(false);
    ASSERT_TRUE(sim.holds(0, flushed)) << "seed " << seed;
    ASSERT_TRUE(sim.holds(kMiB, durable)) << "seed " << seed;
  }
}

TEST(SimPowerCut, KeepsDropsAndTearsUnflushedSectorsOverTheSeeds) {
  size_t kept = 0, dropped = 0, torn = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Sim sim(seed);
    AlignedBuffer before = filled(16 * kPage, 0xaa), after = filled(16 * kPage, 0xbb);
    ASSERT_EQ(sim.write(0, before, true), 65536);
    ASSERT_EQ(sim.write(0, after), 65536);
    ASSERT_TRUE(sim.holds(0, after)) << "reads see the cache";
    sim.disk.power_cut(false);
    const std::vector<uint8_t> left = sim.peek(0, 16 * kPage);
    for (size_t sector = 0; sector < left.size(); sector += kSector) {
      const auto news = static_cast<size_t>(std::count(left.begin() + static_cast<long>(sector),
                                                       left.begin() + static_cast<long>(sector + kSector), 0xbb));
      kept += news == kSector;
      dropped += news == 0;
      torn += news != 0 && news != kSector;
    }
  }
  EXPECT_GT(kept, 500u);
  EXPECT_GT(dropped, 500u);
  EXPECT_GT(torn, 50u);
}

TEST(SimPowerCut, OfARewrittenSectorAnyVersionSinceTheFlushMaySurvive) {
  std::set<uint8_t> survivors;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Sim sim(seed);
    for (uint8_t value = 1; value <= 3; ++value) {
      AlignedBuffer data = filled(kPage, value);
      ASSERT_EQ(sim.write(0, data), 4096);
    }
    sim.disk.power_cut(false);
    for (const uint8_t byte : sim.peek(0, kPage)) survivors.insert(byte);
  }
  EXPECT_EQ(survivors, (std::set<uint8_t>{0, 1, 2, 3}));
}

TEST(SimPowerCut, AFlushCoversOnlyWhatCompletedBeforeItWasSubmitted) {
  bool lost = false;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SimDeviceOptions in_order;
    in_order.reorder = false;
    Sim sim(seed, in_order);
    AlignedBuffer data = random_buffer(kPage, 1);
    Transfer write(IoOp::kWrite, 0, data.data(), kPage);
    IoRequest flush;
    flush.op = IoOp::kFlush;
    ASSERT_TRUE(sim.queue->submit(&write.request));
    ASSERT_TRUE(sim.queue->submit(&flush));
    IoRequest* completed[2];
    ASSERT_EQ(sim.queue->poll(completed, 1).value(), 2u);
    sim.disk.power_cut(false);
    lost = lost || !sim.holds(0, data);
  }
  EXPECT_TRUE(lost);
}

TEST(SimPowerCut, AProcessKillKeepsTheCache) {
  Sim sim;
  AlignedBuffer data = random_buffer(8 * kPage, 1);
  ASSERT_EQ(sim.write(0, data), 32768);
  sim.disk.power_cut(true);
  EXPECT_TRUE(sim.holds(0, data));
}

TEST(SimPowerCut, AWriteThroughDeviceLosesNothing) {
  SimDeviceOptions options;
  options.volatile_cache = false;
  Sim sim(3, options);
  AlignedBuffer data = random_buffer(8 * kPage, 1);
  ASSERT_EQ(sim.write(0, data), 32768);
  sim.disk.power_cut(false);
  EXPECT_TRUE(sim.holds(0, data));
}

TEST(SimPowerCut, QueuesOfBeforeAnswerNoDeviceAndTouchNothing) {
  Sim sim;
  AlignedBuffer data = random_buffer(kPage, 1), read(kPage);
  auto old_queue = std::move(sim.queue);
  Transfer late(IoOp::kWrite, kMiB, data.data(), kPage);
  ASSERT_TRUE(old_queue->submit(&late.request));
  sim.disk.power_cut(true);
  const std::vector<uint8_t> after_cut = sim.peek(kMiB, kPage);
  IoRequest* completed[1];
  ASSERT_EQ(old_queue->poll(completed, 1).value(), 1u);
  EXPECT_EQ(late.request.result, -ENODEV);
  EXPECT_EQ(sim.peek(kMiB, kPage), after_cut);
  EXPECT_EQ(run_transfer(*old_queue, IoOp::kWrite, kMiB, data.data(), kPage), -ENODEV)
      << "and so does what comes later";
  EXPECT_EQ(sim.peek(kMiB, kPage), after_cut);
  sim.queue = sim.make_queue();
  EXPECT_EQ(sim.read(0, read), 4096);
}

// ---- stops (a dying process) -----------------------------------------------------------------------------

TEST(SimStop, TheNthOperationIsTheLast) {
  Sim sim;
  AlignedBuffer data = random_buffer(kPage, 1);
  sim.disk.stop_after(2);
  EXPECT_EQ(sim.write(0, data), 4096);
  EXPECT_EQ(sim.read(0, data), 4096) << "reads are not counted";
  EXPECT_FALSE(sim.disk.stopped());
  EXPECT_EQ(run_flush(*sim.queue), 0);
  EXPECT_TRUE(sim.disk.stopped());
  EXPECT_EQ(sim.write(0, data), -ENODEV);
  EXPECT_EQ(sim.read(0, data), -ENODEV);
  EXPECT_EQ(run_flush(*sim.queue), -ENODEV);
  EXPECT_EQ(sim.disk.operations(), 2u);
  sim.disk.power_cut(true);
  sim.queue = sim.make_queue();
  EXPECT_EQ(sim.write(0, data), 4096);
}

TEST(SimStop, ReadsCountWhenAsked) {
  Sim sim;
  AlignedBuffer data(kPage);
  sim.disk.set_count_reads(true);
  sim.disk.stop_after(1);
  EXPECT_EQ(sim.read(0, data), 4096);
  EXPECT_EQ(sim.read(0, data), -ENODEV);
}

TEST(SimStop, WritesInFlightLandNotAtAllInPartOrWhole) {
  size_t whole = 0, none = 0, part = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Sim sim(seed);
    AlignedBuffer data = filled(8 * kPage, 0xbb);
    Transfer write(IoOp::kWrite, 0, data.data(), data.size());
    ASSERT_TRUE(sim.queue->submit(&write.request));
    sim.disk.stop_after(0);
    IoRequest* completed[1];
    ASSERT_EQ(sim.queue->poll(completed, 1).value(), 1u);
    ASSERT_EQ(write.request.result, -ENODEV);
    const std::vector<uint8_t> left = sim.peek(0, data.size());
    const auto news = static_cast<size_t>(std::count(left.begin(), left.end(), 0xbb));
    whole += news == data.size();
    none += news == 0;
    part += news != 0 && news != data.size();
  }
  EXPECT_GT(whole, 0u);
  EXPECT_GT(none, 0u);
  EXPECT_GT(part, 0u);
}

TEST(SimStop, AQueueDestroyedUnpolledLetsItsWritesLandToo) {
  size_t landed = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Sim sim(seed);
    AlignedBuffer data = filled(kPage, 0xbb);
    Transfer write(IoOp::kWrite, 0, data.data(), data.size());
    ASSERT_TRUE(sim.queue->submit(&write.request));
    sim.queue.reset();
    const std::vector<uint8_t> left = sim.peek(0, kPage);
    landed += std::count(left.begin(), left.end(), 0xbb) > 0;
  }
  EXPECT_GT(landed, 0u);
  EXPECT_LT(landed, 30u);
}

// ---- faults ----------------------------------------------------------------------------------------------

TEST(SimFaults, AnErrorMovesNothing) {
  Sim sim;
  AlignedBuffer data = random_buffer(kPage, 1);
  sim.add(SimFault::kError, IoOp::kWrite);
  sim.add(SimFault::kError, IoOp::kRead, ENOMEM);
  EXPECT_EQ(sim.write(0, data), -EIO);
  EXPECT_FALSE(sim.holds(0, data));
  EXPECT_EQ(sim.read(0, data), -ENOMEM);
  EXPECT_EQ(sim.read(0, data), 4096) << "once";
}

TEST(SimFaults, AnErrorAfterTheWriteLeavesTheBytes) {
  Sim sim;
  AlignedBuffer data = random_buffer(kPage, 1);
  sim.add(SimFault::kErrorAfterWrite);
  EXPECT_EQ(sim.write(0, data), -EIO);
  EXPECT_TRUE(sim.holds(0, data));
}

TEST(SimFaults, AShortTransferMovesWholeSectors) {
  Sim sim;
  AlignedBuffer data = random_buffer(2 * kPage, 1);
  sim.add(SimFault::kShort, IoOp::kWrite, 4096 + 700);
  EXPECT_EQ(sim.write(0, data), 4096 + 512);
  EXPECT_EQ(std::memcmp(sim.peek(0, 4608).data(), data.data(), 4608), 0);
  EXPECT_EQ(sim.peek(4608, 512), std::vector<uint8_t>(512));
  sim.add(SimFault::kShort, IoOp::kWrite, 0);
  EXPECT_EQ(sim.write(0, data), 0);
}

TEST(SimFaults, AgainMovesNothing) {
  Sim sim;
  AlignedBuffer data(kPage);
  sim.add(SimFault::kAgain, {}, 0, 0, 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(sim.read(0, data), -EAGAIN);
  EXPECT_EQ(sim.read(0, data), 4096);
}

TEST(SimFaults, AStuckRequestWaitsForItsRelease) {
  Sim sim;
  AlignedBuffer data = random_buffer(kPage, 1);
  sim.add(SimFault::kStuck);
  Transfer write(IoOp::kWrite, 0, data.data(), kPage);
  ASSERT_TRUE(sim.queue->submit(&write.request));
  IoRequest* completed[1];
  const uint64_t before_ns = sim.clock.monotonic_ns();
  EXPECT_EQ(sim.queue->poll(completed, 5'000'000'000).value(), 0u);
  EXPECT_EQ(sim.clock.monotonic_ns() - before_ns, 5'000'000'000u) << "the wait was not the simulated one";
  EXPECT_EQ(sim.disk.stuck_count(), 1u);
  EXPECT_FALSE(sim.holds(0, data));
  sim.disk.release_stuck();
  EXPECT_EQ(sim.disk.stuck_count(), 0u);
  EXPECT_EQ(sim.queue->poll(completed, 1).value(), 1u);
  EXPECT_EQ(write.request.result, 4096);
  EXPECT_TRUE(sim.holds(0, data));
}

TEST(SimFaults, AStuckRequestMayFailWhenReleased) {
  Sim sim;
  AlignedBuffer data(kPage);
  sim.add(SimFault::kStuck, {}, ETIMEDOUT);
  Transfer read(IoOp::kRead, 0, data.data(), kPage);
  ASSERT_TRUE(sim.queue->submit(&read.request));
  sim.disk.release_stuck();
  IoRequest* completed[1];
  ASSERT_EQ(sim.queue->poll(completed, 1).value(), 1u);
  EXPECT_EQ(read.request.result, -ETIMEDOUT);
}

TEST(SimFaults, AStuckWriteOfAQueueThatIsGoneLandsLateAsAGhost) {
  Sim sim;
  AlignedBuffer ghost = random_buffer(kPage, 1), later = random_buffer(kPage, 2);
  sim.add(SimFault::kStuck);
  auto write = std::make_unique<Transfer>(IoOp::kWrite, 0, ghost.data(), kPage);
  ASSERT_TRUE(sim.queue->submit(&write->request));
  sim.queue = sim.make_queue();
  ASSERT_EQ(sim.write(0, later), 4096);
  EXPECT_TRUE(sim.holds(0, later));
  sim.disk.release_stuck();
  EXPECT_TRUE(sim.holds(0, ghost));
}

TEST(SimFaults, AStuckReadOfAQueueThatIsGoneLandsInItsBufferLate) {
  Sim sim;
  AlignedBuffer data = random_buffer(kPage, 1), buffer = filled(kPage, 0);
  ASSERT_EQ(sim.write(0, data), 4096);
  sim.add(SimFault::kStuck);
  auto read = std::make_unique<Transfer>(IoOp::kRead, 0, buffer.data(), kPage);
  ASSERT_TRUE(sim.queue->submit(&read->request));
  sim.queue = sim.make_queue();
  EXPECT_EQ(buffer.data()[0], 0);
  sim.disk.release_stuck();
  EXPECT_EQ(std::memcmp(buffer.data(), data.data(), kPage), 0);
}

TEST(SimFaults, AWriteReportedAsFailedLandsLaterOverWhatCameAfter) {
  Sim sim;
  AlignedBuffer ghost = random_buffer(kPage, 1), later = random_buffer(kPage, 2);
  sim.add(SimFault::kGhost, IoOp::kWrite, ETIMEDOUT);
  EXPECT_EQ(sim.write(0, ghost), -ETIMEDOUT);
  ASSERT_EQ(sim.write(0, later, true), 4096);
  EXPECT_EQ(sim.disk.ghost_count(), 1u);
  EXPECT_TRUE(sim.holds(0, later));
  sim.disk.power_cut(true);  // the process that wrote it may be dead
  sim.disk.land_ghosts();
  EXPECT_TRUE(sim.holds(0, ghost));
  EXPECT_EQ(sim.disk.ghost_count(), 0u);
  sim.disk.power_cut(false);
  const std::vector<SimHit> hits = sim.disk.take_hits();
  ASSERT_EQ(hits.size(), 1u);
  EXPECT_EQ(hits[0].tick, 3u) << "when it landed, not when it was sent";
}

TEST(SimFaults, AGhostDoesNotOutliveThePower) {
  Sim sim;
  AlignedBuffer ghost = random_buffer(kPage, 1);
  sim.add(SimFault::kGhost, IoOp::kWrite);
  EXPECT_EQ(sim.write(0, ghost), -EIO);
  sim.disk.power_cut(false);
  sim.disk.land_ghosts();
  EXPECT_FALSE(sim.holds(0, ghost));
}

TEST(SimFaults, AgainAfterAPartHasMovedThatPart) {
  Sim sim;
  AlignedBuffer data = random_buffer(2 * kPage, 1), zeros = filled(2 * kPage, 0);
  sim.add(SimFault::kAgainAfterPart, IoOp::kWrite, kPage + 100);
  EXPECT_EQ(sim.write(0, data), -EAGAIN);
  std::memset(data.data() + kPage, 0, kPage);
  EXPECT_TRUE(sim.holds(0, data));
  sim.add(SimFault::kAgainAfterPart, IoOp::kRead, kSector);
  EXPECT_EQ(sim.read(0, zeros), -EAGAIN);
  EXPECT_EQ(std::memcmp(zeros.data(), data.data(), kSector), 0);
  EXPECT_EQ(zeros.data()[kSector], 0);
}

TEST(SimFaults, AStaleReadReturnsWhatWasThereBeforeTheLastWrite) {
  Sim sim;
  sim.disk.keep_previous();
  AlignedBuffer first = random_buffer(kPage, 1), second = random_buffer(kPage, 2), read(2 * kPage);
  ASSERT_EQ(sim.write(0, first, true), 4096);
  ASSERT_EQ(sim.write(kPage, first), 4096);
  ASSERT_EQ(sim.write(0, second), 4096);
  sim.add(SimFault::kStale, IoOp::kRead);
  EXPECT_EQ(sim.read(0, read), 8192);
  EXPECT_EQ(std::memcmp(read.data(), first.data(), kPage), 0);
  EXPECT_EQ(read.data()[kPage], 0) << "nothing was there before";
  EXPECT_EQ(sim.read(0, read), 8192);
  EXPECT_EQ(std::memcmp(read.data(), second.data(), kPage), 0) << "the medium is right";
}

TEST(SimFaults, RotOnTheMediumStaysUntilItIsWrittenAgain) {
  for (const IoOp op : {IoOp::kWrite, IoOp::kRead}) {
    Sim sim;
    AlignedBuffer data = random_buffer(kPage, 1), read(kPage);
    sim.add(SimFault::kRot, op, 77);
    ASSERT_EQ(sim.write(0, data, true), 4096);
    ASSERT_EQ(sim.read(0, read), 4096);
    sim.disk.power_cut(false);
    const std::vector<uint8_t> left = sim.peek(0, kPage);
    EXPECT_EQ(__builtin_popcount(static_cast<unsigned>(left[77] ^ data.data()[77])), 1);
    EXPECT_EQ(left[77], read.data()[77]);
    EXPECT_EQ(left[78], data.data()[78]);
    sim.queue = sim.make_queue();
    ASSERT_EQ(sim.write(0, data), 4096);
    EXPECT_TRUE(sim.holds(0, data));
  }
}

TEST(SimFaults, ALatentErrorFailsReadsOfItsSectorUntilItIsWrittenAgain) {
  Sim sim;
  AlignedBuffer data = random_buffer(2 * kPage, 1), page(kPage);
  sim.add(SimFault::kLatent, IoOp::kWrite, kPage + 600);
  ASSERT_EQ(sim.write(0, data), 8192);
  EXPECT_EQ(sim.read(0, page), 4096) << "the page before it";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(sim.read(kPage, page), -EIO);
  EXPECT_EQ(run_transfer(*sim.queue, IoOp::kRead, kPage, page.data(), kSector), 512) << "its neighbour";
  ASSERT_EQ(sim.write(kPage, page), 4096);
  EXPECT_EQ(sim.read(0, data), 8192);
}

TEST(SimFaults, HitsTellWhatWasHitWhereAndWhen) {
  Sim sim;
  AlignedBuffer data(kPage);
  ASSERT_EQ(sim.write(0, data), 4096);
  sim.add(SimFault::kMisdirected, IoOp::kWrite, kMiB);
  ASSERT_EQ(sim.write(kPage, data), 4096);
  const std::vector<SimHit> hits = sim.disk.take_hits();
  ASSERT_EQ(hits.size(), 1u);
  EXPECT_EQ(hits[0].fault, SimFault::kMisdirected);
  EXPECT_EQ(hits[0].offset_bytes, kPage);
  EXPECT_EQ(hits[0].other_offset_bytes, kMiB);
  EXPECT_EQ(hits[0].bytes, kPage);
  EXPECT_EQ(hits[0].tick, sim.disk.ticks());
  EXPECT_TRUE(sim.disk.take_hits().empty());
}

TEST(SimFaults, ALostWriteSaysItWasDone) {
  Sim sim;
  AlignedBuffer data = random_buffer(kPage, 1);
  sim.add(SimFault::kLost, IoOp::kWrite);
  EXPECT_EQ(sim.write(0, data, true), 4096);
  EXPECT_FALSE(sim.holds(0, data));
}

TEST(SimFaults, MisdirectedTransfersGoElsewhere) {
  Sim sim;
  AlignedBuffer data = random_buffer(kPage, 1), read(kPage);
  sim.add(SimFault::kMisdirected, IoOp::kWrite, kMiB);
  EXPECT_EQ(sim.write(0, data), 4096);
  EXPECT_TRUE(sim.holds(kMiB, data));
  EXPECT_FALSE(sim.holds(0, data));
  sim.add(SimFault::kMisdirected, IoOp::kRead, kMiB);
  EXPECT_EQ(sim.read(0, read), 4096);
  EXPECT_EQ(std::memcmp(read.data(), data.data(), kPage), 0);
}

TEST(SimFaults, BitRotFlipsOneBitOfTheReadAndNotOfTheMedium) {
  Sim sim;
  AlignedBuffer data = random_buffer(kPage, 1), read(kPage);
  ASSERT_EQ(sim.write(0, data), 4096);
  sim.add(SimFault::kBitRot, IoOp::kRead, 77);
  EXPECT_EQ(sim.read(0, read), 4096);
  EXPECT_EQ(__builtin_popcount(static_cast<unsigned>(read.data()[77] ^ data.data()[77])), 1);
  read.data()[77] = data.data()[77];
  EXPECT_EQ(std::memcmp(read.data(), data.data(), kPage), 0);
  EXPECT_TRUE(sim.holds(0, data));
}

TEST(SimFaults, AFailedFlushDropsWhatItShouldHaveSavedAndTheNextOneSucceeds) {
  Sim sim;
  AlignedBuffer data = random_buffer(kPage, 1);
  ASSERT_EQ(sim.write(0, data), 4096);
  sim.add(SimFault::kFlushFails, IoOp::kFlush);
  EXPECT_EQ(run_flush(*sim.queue), -EIO);
  EXPECT_EQ(run_flush(*sim.queue), 0);
  EXPECT_FALSE(sim.holds(0, data));
}

TEST(SimFaults, ARuleSkipsHitsAndIsLimitedToItsBytes) {
  Sim sim;
  AlignedBuffer data(kPage);
  SimRule rule;
  rule.fault = SimFault::kError;
  rule.op = IoOp::kRead;
  rule.first_byte = kMiB;
  rule.last_byte = kMiB + kPage;
  rule.skip = 1;
  rule.times = 2;
  sim.disk.add_rule(rule);
  EXPECT_EQ(sim.read(0, data), 4096) << "outside";
  EXPECT_EQ(sim.read(kMiB + kPage, data), 4096) << "just past it";
  EXPECT_EQ(sim.read(kMiB, data), 4096) << "skipped";
  EXPECT_EQ(sim.read(kMiB, data), -EIO);
  EXPECT_EQ(sim.read(kMiB, data), -EIO);
  EXPECT_EQ(sim.read(kMiB, data), 4096) << "used up";
}

// ---- time, order, medium ---------------------------------------------------------------------------------

TEST(SimOrder, OverlappingWritesInFlightEndInAnyOrder) {
  std::set<uint8_t> last;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Sim sim(seed);
    AlignedBuffer one = filled(kPage, 1), two = filled(kPage, 2);
    Transfer first(IoOp::kWrite, 0, one.data(), kPage), second(IoOp::kWrite, 0, two.data(), kPage);
    ASSERT_TRUE(sim.queue->submit(&first.request));
    ASSERT_TRUE(sim.queue->submit(&second.request));
    IoRequest* completed[2];
    for (uint32_t count = 0; count < 2;) count += sim.queue->poll(completed, 1).value();
    last.insert(sim.peek(0, 1)[0]);
  }
  EXPECT_EQ(last, (std::set<uint8_t>{1, 2}));
}

TEST(SimOrder, WhatIsInFlightMovesSectorBySectorBeforeItIsReported) {
  size_t landed = 0, arrived = 0, missing = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SimDeviceOptions options;
    options.early = true;
    Sim sim(seed, options);
    AlignedBuffer ones = filled(16 * kPage, 1), twos = filled(16 * kPage, 2), target = filled(16 * kPage, 0);
    ASSERT_EQ(sim.write(kMiB, twos, true), 65536);
    sim.add(SimFault::kStuck, {}, 0, 0, 2);  // neither is reported
    Transfer write(IoOp::kWrite, 0, ones.data(), ones.size()), read(IoOp::kRead, kMiB, target.data(), target.size());
    ASSERT_TRUE(sim.queue->submit(&write.request));
    ASSERT_TRUE(sim.queue->submit(&read.request));
    IoRequest* completed[2];
    for (int polls = 0; polls < 4; ++polls) ASSERT_EQ(sim.queue->poll(completed, 0).value(), 0u);
    for (size_t sector = 0; sector < ones.size(); sector += kSector) {
      const uint8_t on_medium = sim.peek(sector, 1)[0], in_buffer = target.data()[sector];
      ASSERT_LE(on_medium, 1);
      landed += on_medium == 1;
      arrived += in_buffer == 2;
      missing += (on_medium == 0) + (in_buffer == 0);
    }
    sim.disk.release_stuck();
    for (uint32_t count = 0; count < 2;) count += sim.queue->poll(completed, 1).value();
    ASSERT_TRUE(sim.holds(0, ones)) << "in the end all of it has";
    ASSERT_EQ(std::memcmp(target.data(), twos.data(), target.size()), 0);
  }
  EXPECT_GT(landed, 100u);
  EXPECT_GT(arrived, 100u);
  EXPECT_GT(missing, 100u);
}

TEST(Sim, LatencyPassesOnTheClockOnlyWhilePollWaits) {
  SimDeviceOptions options;
  options.latency_ns = 100'000;
  Sim sim(1, options);
  AlignedBuffer data(kPage);
  Transfer read(IoOp::kRead, 0, data.data(), kPage);
  ASSERT_TRUE(sim.queue->submit(&read.request));
  const uint64_t start_ns = sim.clock.monotonic_ns();
  IoRequest* completed[1];
  EXPECT_EQ(sim.queue->poll(completed, 0).value(), 0u);
  EXPECT_EQ(sim.queue->poll(completed, 40'000).value(), 0u);
  EXPECT_EQ(sim.clock.monotonic_ns() - start_ns, 40'000u);
  EXPECT_EQ(sim.queue->poll(completed, 1'000'000).value(), 1u);
  EXPECT_EQ(sim.clock.monotonic_ns() - start_ns, 100'000u);
}

std::vector<uint64_t> completion_order(uint64_t seed, bool reorder) {
  SimDeviceOptions options;
  options.reorder = reorder;
  Sim sim(seed, options);
  AlignedBuffer data(32 * kPage);
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (uint64_t i = 0; i < 32; ++i) {
    transfers.push_back(std::make_unique<Transfer>(IoOp::kRead, i * kPage, data.data() + i * kPage, kPage));
    EXPECT_TRUE(sim.queue->submit(&transfers.back()->request));
  }
  std::vector<uint64_t> order;
  while (order.size() < 32) {
    IoRequest* completed[8];
    const uint32_t count = sim.queue->poll(completed, 1).value();
    for (uint32_t i = 0; i < count; ++i) order.push_back(completed[i]->offset_bytes / kPage);
  }
  return order;
}

TEST(Sim, CompletionOrderIsTheSeeds) {
  EXPECT_EQ(completion_order(1, true), completion_order(1, true));
  EXPECT_NE(completion_order(1, true), completion_order(2, true));
  const std::vector<uint64_t> in_order = completion_order(1, false);
  EXPECT_TRUE(std::is_sorted(in_order.begin(), in_order.end()));
}

TEST(Sim, TheObserverSeesEachOperationAndMayPeek) {
  Sim sim;
  AlignedBuffer data = random_buffer(kPage, 1);
  uint64_t seen = 0;
  sim.disk.set_observer([&](const IoRequest& request) {
    ++seen;
    if (request.op == IoOp::kWrite) {
      EXPECT_TRUE(sim.holds(request.offset_bytes, data));
    }
  });
  EXPECT_EQ(sim.write(0, data), 4096);
  EXPECT_EQ(run_flush(*sim.queue), 0);
  EXPECT_EQ(seen, 2u);
}

TEST(Sim, PokesAreDurable) {
  Sim sim;
  AlignedBuffer data = random_buffer(kPage, 1);
  ASSERT_EQ(sim.write(0, data), 4096);
  const uint8_t byte = 0x55;
  sim.disk.poke(100, &byte, 1);
  sim.disk.power_cut(false);
  EXPECT_EQ(sim.peek(100, 1)[0], 0x55);
}

TEST(Sim, AHugeDiskTakesMemoryOnlyForWhatWasWritten) {
  ManualClock clock;
  SimDisk disk(8'000 * kGiB, 1);
  const std::unique_ptr<Device> device = make_sim_device(disk, SimDeviceOptions(), clock);
  Device* devices[] = {device.get()};
  auto queue = device->make_queue(devices, QueueOptions()).value();
  AlignedBuffer data = random_buffer(kPage, 1), read(kPage);
  ASSERT_EQ(run_transfer(*queue, IoOp::kWrite, 7'999 * kGiB, data.data(), kPage), 4096);
  ASSERT_EQ(run_transfer(*queue, IoOp::kRead, 7'999 * kGiB, read.data(), kPage), 4096);
  EXPECT_EQ(std::memcmp(read.data(), data.data(), kPage), 0);
}

TEST(Sim, ResizingForgetsWhatLayBehindTheEnd) {
  Sim sim;
  AlignedBuffer data = random_buffer(2 * kPage, 1);
  ASSERT_EQ(sim.write(0, data), 8192);
  sim.disk.resize(kPage);
  EXPECT_EQ(sim.disk.size_bytes(), kPage);
  EXPECT_EQ(sim.read(0, data), 4096);
  EXPECT_EQ(sim.write(kPage, data), -ENOSPC);
  sim.disk.resize(kDiskBytes);
  EXPECT_EQ(sim.peek(kPage, kPage), std::vector<uint8_t>(kPage));
}

TEST(Sim, EqualSeedsLeaveEqualDisksAfterACut) {
  std::vector<uint8_t> left[2];
  for (std::vector<uint8_t>& disk : left) {
    Sim sim(42);
    for (uint64_t i = 0; i < 50; ++i) {
      AlignedBuffer data = random_buffer(2 * kPage, i);
      ASSERT_EQ(sim.write(i * kPage, data, i % 7 == 0), 8192);
    }
    sim.disk.power_cut(false);
    disk = sim.peek(0, 52 * kPage);
  }
  EXPECT_EQ(left[0], left[1]);
}

}  // namespace
}  // namespace kvstore::device
