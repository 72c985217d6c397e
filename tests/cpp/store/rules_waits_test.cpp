// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: rule I11. A deadline, a cancel or close(timeout) ends the wait, never the piece: what the device may still
// write is not given back, and nothing is written into a buffer after its job has answered. Method: reads stuck in the
// simulated device; buffers refilled by the test once the answer is there, and compared after the device was released.

#include <gtest/gtest.h>

#include <algorithm>

#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

Name key(const std::string& text, uint32_t space = 0) { return {text, "", space}; }

class Waits : public ::testing::Test {
 protected:
  void SetUp() override {
    SimSetup setup;
    setup.regions = 10;
    setup.region_bytes = 4 * kMiB;
    setup.min_block_bytes = 64 * kKiB;
    sim_ = std::make_unique<SimStore>(setup);
    ASSERT_TRUE(sim().open().ok());
  }
  SimStore& sim() { return *sim_; }
  void hold_reads_of(const Name& name, uint64_t first_byte = 0, uint64_t times = 1, uint64_t value = 0) {
    const uint64_t offset = sim().describe(name).offset_bytes + first_byte;
    sim().disk().add_rule(rule_of(SimFault::kStuck, IoOp::kRead, offset, offset + 1, times, 0, value));
  }
  // What the caller does with memory that is its own again.
  static void refill(const Buffers& buffers, uint8_t byte) {
    for (uint32_t i = 0; i < buffers.segment_count(); ++i) {
      std::memset(buffers.segments()[i].iov_base, byte, buffers.segments()[i].iov_len);
    }
  }
  static bool is_filled(const Buffers& buffers, uint8_t byte) {
    for (uint32_t i = 0; i < buffers.segment_count(); ++i) {
      const auto* const base = static_cast<const uint8_t*>(buffers.segments()[i].iov_base);
      if (!std::all_of(base, base + buffers.segments()[i].iov_len, [byte](uint8_t value) { return value == byte; }))
        return false;
    }
    return true;
  }

  std::unique_ptr<SimStore> sim_;
};

// ---- deadlines -------------------------------------------------------------------------------------------------

TEST_F(Waits, I11_ADeadlineAnswersInTimeAndTheBufferIsLeftAlone) {
  for (const Layout& layout : {Layout{1, 0}, Layout{3, 64}}) {
    const Name name = key("a" + std::to_string(layout.segments));
    sim().put(name, 2 * kMiB + 5);
    const BlockInfo info = sim().describe(name);
    hold_reads_of(name, kMiB);
    auto get = sim().start_get({name}, layout, {.deadline_ns = 100'000'000});
    const uint64_t start_ns = sim().clock().monotonic_ns();
    ASSERT_TRUE(sim().run(get));
    EXPECT_LE(sim().clock().monotonic_ns() - start_ns, 150'000'000u);
    EXPECT_EQ(get.job->result(0).status, ItemStatus::kError);
    EXPECT_EQ(get.job->result(0).code, Code::kTimeout);
    refill(*get.buffers[0], 0x77);
    EXPECT_GE(sim().number("staging_buffers_out"), 1) << "quarantined, and counted";
    EXPECT_EQ(sim().number("regions_pinned"), 1) << "its region is still held";
    sim().disk().release_stuck();
    sim().run_idle();
    EXPECT_TRUE(is_filled(*get.buffers[0], 0x77)) << "the late read went to staging, and stayed there";
    EXPECT_EQ(sim().number("staging_buffers_out"), 0);
    EXPECT_EQ(sim().number("regions_pinned"), 0);
    EXPECT_EQ(sim().number("pieces_in_flight"), 0);
    EXPECT_TRUE(sim().get(name, layout).succeeded());
  }
  EXPECT_EQ(sim().number("deadline_misses"), 2);
}

TEST_F(Waits, I11_ADeadlineThatIsMetIsAHitThroughStaging) {
  sim().put(key("a"), 2 * kMiB + 5);
  auto get = sim().start_get({key("a")}, {}, {.deadline_ns = 100'000'000});
  EXPECT_TRUE(sim().finish(get)[0].succeeded());
  EXPECT_GT(sim().number("bytes_staged"), 2 * kMiB);
}

TEST_F(Waits, I11_ADeadlineEndsItemsThatWaitInTheQueueToo) {
  std::vector<Name> names;
  for (int i = 0; i < 12; ++i) {
    names.push_back(key(std::to_string(i)));
    sim().put(names.back(), kMiB);
  }
  for (const Name& name : names) hold_reads_of(name);
  auto get = sim().start_get(names, {}, {.deadline_ns = 50'000'000});  // 8 staging buffers: the last four wait
  ASSERT_TRUE(sim().run_until([&] { return get.job->done(); }, 1'000'000'000));
  for (const ItemResult& result : sim().finish(get)) EXPECT_EQ(result.code, Code::kTimeout);
  for (auto& buffers : get.buffers) refill(*buffers, 0x11);
  sim().disk().release_stuck();
  sim().run_idle();
  for (auto& buffers : get.buffers) EXPECT_TRUE(is_filled(*buffers, 0x11));
  EXPECT_EQ(sim().number("staging_buffers_out"), 0);
}

// ---- cancels ---------------------------------------------------------------------------------------------------

TEST_F(Waits, I11_ACancelEndsItemsNotBegunAtOnceAndTheRestWithTheirPieces) {
  std::vector<Name> names;
  for (int i = 0; i < 3; ++i) {
    names.push_back(key(std::to_string(i)));
    sim().put(names.back(), 2 * kMiB);
  }
  hold_reads_of(names[0], kMiB);
  auto get = sim().start_get(names);
  sim().run_idle();
  get.job->cancel();
  sim().run_idle();
  EXPECT_FALSE(get.job->done()) << "a piece of the first block is in the device, and its buffer with it";
  sim().advance_ns(100'000'000'000);
  sim().run_idle();
  EXPECT_FALSE(get.job->done());
  sim().disk().release_stuck();
  const auto results = sim().finish(get);
  EXPECT_EQ(results[0].code, Code::kCanceled);
  EXPECT_TRUE(results[1].succeeded() || results[1].code == Code::kCanceled);
  EXPECT_EQ(sim().number("regions_pinned"), 0);
  EXPECT_EQ(sim().number("jobs_in_flight"), 0);
}

TEST_F(Waits, I11_ACanceledItemsPiecesThatWereNotSubmittedNeverAre) {
  std::vector<Name> names;
  for (int i = 0; i < 6; ++i) {
    names.push_back(key(std::to_string(i)));
    sim().put(names.back(), 4 * kMiB);
  }
  const double read_before = sim().number("bytes_read_payload");
  auto get = sim().start_get(names);
  get.job->cancel();  // before the engine saw any of it
  ASSERT_TRUE(sim().run(get));
  for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(get.job->result(i).code, Code::kCanceled);
  EXPECT_EQ(sim().number("bytes_read_payload"), read_before);
  for (auto& buffers : get.buffers) EXPECT_TRUE(buffers->untouched_from(0));
}

TEST_F(Waits, I11_OneItemIsCanceledAndTheOthersAreServed) {
  sim().put(key("a"), 3 * kMiB);
  sim().put(key("b"), 3 * kMiB);
  hold_reads_of(key("a"));
  auto get = sim().start_get({key("a"), key("b")});
  sim().run_idle();
  get.job->cancel_item(0);
  sim().run_idle();
  sim().disk().release_stuck();
  const auto results = sim().finish(get);
  EXPECT_EQ(results[0].code, Code::kCanceled);
  EXPECT_TRUE(results[1].succeeded());
}

TEST_F(Waits, I11_ACanceledPutIsNeverVisibleAndItsExtentIsNotReused) {
  sim().put(key("first"), kMiB);
  const BlockInfo first = sim().describe(key("first"));
  const uint64_t next = first.offset_bytes + first.extent_bytes;
  sim().disk().add_rule(rule_of(SimFault::kStuck, IoOp::kWrite, next, next + 1));
  auto put = sim().start_put({{key("a"), kMiB}});
  sim().run_idle();
  put.job->cancel();
  sim().run_idle();
  EXPECT_FALSE(put.job->done()) << "the device still reads the buffer";
  sim().disk().release_stuck();
  EXPECT_EQ(sim().finish(put)[0].code, Code::kCanceled);
  EXPECT_FALSE(sim().contains(key("a")));
  sim().put(key("b"), kMiB);
  EXPECT_NE(sim().describe(key("b")).offset_bytes, next);
  sim().crash(true);
  sim().reopen_and_judge();
}

TEST_F(Waits, ACancelAfterTheEndIsHarmless) {
  sim().put(key("a"), kMiB);
  auto get = sim().start_get({key("a")});
  sim().finish(get);
  get.job->cancel();
  get.job->cancel_item(0);
  get.job->cancel_item(7);
  sim().run_idle();
  EXPECT_TRUE(get.job->result(0).succeeded());
}

// ---- stuck for good --------------------------------------------------------------------------------------------

TEST_F(Waits, I11_AStuckReadHoldsUpNobodyElse) {
  sim().put(key("a"), kMiB);
  sim().put(key("b"), kMiB);
  hold_reads_of(key("a"));
  auto get = sim().start_get({key("a")});
  sim().run_idle();
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(sim().get(key("b")).succeeded());
    EXPECT_TRUE(sim().put(key("c" + std::to_string(i)), kMiB).succeeded());
  }
  sim().disk().release_stuck();
  EXPECT_TRUE(sim().finish(get)[0].succeeded());
}

TEST_F(Waits, I11_CloseWithAStuckReadEndsInTimeSaysWhatAndTouchesNothingAfter) {
  sim().put(key("a"), 2 * kMiB, {.durable = true});
  sim().put(key("b"), 2 * kMiB, {.durable = true});
  hold_reads_of(key("a"), kMiB);
  auto get = sim().start_get({key("a")});
  auto healthy = sim().start_get({key("b")});
  sim().run_idle();
  const uint64_t start_ns = sim().clock().monotonic_ns();
  const Status status = sim().store().close(5'000'000'000);
  EXPECT_LE(sim().clock().monotonic_ns() - start_ns, 6'000'000'000u);
  EXPECT_EQ(status.code(), Code::kTimeout) << status.to_string();
  EXPECT_NE(status.message().find("read of 1048576 bytes"), std::string::npos) << status.message();
  EXPECT_TRUE(healthy.job->done());
  EXPECT_FALSE(sim().store().is_open());
  EXPECT_FALSE(get.job->done()) << "its buffer is the device's: the caller must not be told otherwise";
  // Released before the store is dropped, so that nothing is leaked here; the bytes may land in the buffer, which the
  // test still owns, but the closed store does not touch it.
  sim().crash(true);
  sim().reopen_and_judge();
}

// What only waits its turn when close gives up is answered: nobody waits for ever.
TEST_F(Waits, I11_CloseAnswersTheJobsThatHaveNoPieceInTheDevice) {
  std::vector<Name> names;
  for (int i = 0; i < 8; ++i) {  // as many as there are staging buffers
    names.push_back(key(std::to_string(i)));
    sim().put(names.back(), kMiB);
    hold_reads_of(names.back());
  }
  sim().put(key("last"), kMiB);
  auto stuck = sim().start_get(names, {1, 64});
  sim().run_idle();
  auto waiting = sim().start_get({key("last")}, {1, 64});
  sim().run_idle();
  ASSERT_FALSE(waiting.job->done());
  EXPECT_EQ(sim().store().close(1'000'000'000).code(), Code::kTimeout);
  EXPECT_TRUE(waiting.job->done());
  EXPECT_EQ(waiting.job->result(0).code, Code::kClosed);
  EXPECT_FALSE(stuck.job->done());
  sim().crash(true);
  sim().reopen_and_judge();
}

TEST_F(Waits, AClosedStoreRefusesEverything) {
  sim().put(key("a"), kMiB, {.durable = true});
  Store& store = sim().store();
  ASSERT_TRUE(store.close(1'000'000'000).ok());
  Buffers buffers(kMiB, {});
  const GetItem get{sim().space(0), {}, "a", buffers.segments(), 1, 0, kWholeBlock};
  const Name name = key("a");  // a KeyRef is a view
  const KeyRef ref = sim().ref(name);
  PutItem put;
  put.space = sim().space(0);
  put.key = "b";
  put.segments = buffers.segments();
  put.segment_count = 1;
  int64_t bytes = 5;
  EXPECT_EQ(store.get({&get, 1}, {}, nullptr).status().code(), Code::kClosed);
  EXPECT_EQ(store.get_one(get).code, Code::kClosed);
  EXPECT_EQ(store.put({&put, 1}, {}, nullptr).status().code(), Code::kClosed);
  EXPECT_EQ(store.prefetch({&ref, 1}, {}, nullptr).status().code(), Code::kClosed);
  EXPECT_EQ(store.erase({&ref, 1}).status().code(), Code::kClosed);
  EXPECT_EQ(store.flush(1).code(), Code::kClosed);
  EXPECT_EQ(store.close(1).code(), Code::kClosed);
  EXPECT_EQ(store.register_space("{}").status().code(), Code::kClosed);
  EXPECT_EQ(store.describe({&ref, 1}).status().code(), Code::kClosed);
  EXPECT_EQ(store.list_blocks([](const std::string&, const BlockInfo&) { return true; }).code(), Code::kClosed);
  EXPECT_EQ(store.match_prefix({&ref, 1}, true), 0u);
  store.lookup({&ref, 1}, false, {&bytes, 1});
  EXPECT_EQ(bytes, -1);
  store.unpin({&ref, 1});
  store.touch({&ref, 1});
  EXPECT_FALSE(store.numbers().empty());
  EXPECT_FALSE(store.texts().empty());
  EXPECT_TRUE(store.devices().empty());
  EXPECT_TRUE(buffers.untouched_from(0));
}

}  // namespace
}  // namespace kvstore::store
