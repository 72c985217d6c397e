// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: in which order and how much of it the engine gives the device. Loads before stores, of which a tenth goes on
// all the same; jobs in order of arrival within a priority, the pieces of one job before those of the next; never more
// in flight than the window; a job that cannot make its deadline is refused at once; in place and staged give equal
// bytes. Method: a simulated disk that completes in order of submission, its operations observed, and a manual clock.

#include "store/engine.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

Name key(const std::string& text, uint32_t space = 0) { return {text, "", space}; }

struct Seen {
  IoOp op;
  uint64_t offset_bytes;
  uint64_t bytes;
};

class EngineOrder : public ::testing::Test {
 protected:
  void make(uint64_t window_bytes, uint64_t latency_ns = 0, uint32_t dma_alignment_bytes = 512) {
    SimSetup setup;
    setup.regions = 12;
    setup.region_bytes = 16 * kMiB;
    setup.min_block_bytes = 64 * kKiB;
    setup.device.reorder = false;
    setup.device.latency_ns = latency_ns;
    setup.device.dma_alignment_bytes = dma_alignment_bytes;
    setup.store.window_bytes = window_bytes;
    setup.store.staging_bytes = 16 * kMiB;
    sim_ = std::make_unique<SimStore>(setup);
    ASSERT_TRUE(sim().open().ok());
  }
  SimStore& sim() { return *sim_; }
  void watch() {
    const auto geometry = sim().geometry();
    sim().disk().set_observer([this, geometry](const device::IoRequest& request) {
      if (request.op == IoOp::kFlush || request.offset_bytes < geometry.data_offset) return;
      if (request.offset_bytes + kPageBytes >= geometry.device_bytes) return;
      seen_.push_back({request.op, request.offset_bytes, static_cast<uint64_t>(std::max<int64_t>(request.result, 0))});
    });
  }
  std::vector<uint64_t> offsets(IoOp op) const {
    std::vector<uint64_t> found;
    for (const Seen& one : seen_) {
      if (one.op == op) found.push_back(one.offset_bytes);
    }
    return found;
  }

  std::unique_ptr<SimStore> sim_;
  std::vector<Seen> seen_;
};

// ---- order -----------------------------------------------------------------------------------------------------

TEST_F(EngineOrder, P4_ThePiecesOfOneJobComeBeforeThoseOfTheNext) {
  make(kMiB);
  std::vector<std::vector<Name>> jobs;
  std::vector<uint64_t> expected;
  for (int j = 0; j < 6; ++j) {
    std::vector<Name> names;
    for (int b = 0; b < 3; ++b) {
      names.push_back(key(std::to_string(j) + "-" + std::to_string(b)));
      sim().put(names.back(), 4 * kMiB - 100);
    }
    jobs.push_back(names);
  }
  std::reverse(jobs.begin(), jobs.end());  // not the order in which they lie on the device
  for (const auto& names : jobs) {
    for (const Name& name : names) {
      for (uint64_t piece = 0; piece < 4; ++piece) expected.push_back(sim().describe(name).offset_bytes + piece * kMiB);
    }
  }
  watch();
  std::vector<SimStore::Pending> pending;
  for (const auto& names : jobs) pending.push_back(sim().start_get(names));
  for (auto& job : pending) sim().finish(job);
  EXPECT_EQ(offsets(IoOp::kRead), expected);
}

TEST_F(EngineOrder, P4_AnEarlierJobIsDoneBeforeALaterOneBegins) {
  make(kMiB, 1'000'000);
  std::vector<Name> names;
  for (int i = 0; i < 8; ++i) {
    names.push_back(key(std::to_string(i)));
    sim().put(names.back(), 16 * kMiB);
  }
  std::vector<SimStore::Pending> jobs;
  for (const Name& name : names) jobs.push_back(sim().start_get({name}));
  std::vector<size_t> order;
  std::vector<bool> done(jobs.size());
  sim().run_until([&] {
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (!done[i] && jobs[i].job->done()) {
        done[i] = true;
        order.push_back(i);
      }
    }
    return order.size() == jobs.size();
  });
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  // Not interleaved: the first is done after its share, not near the end.
  EXPECT_LT(jobs[0].job->elapsed_ns() * 4, jobs[7].job->elapsed_ns());
  for (auto& job : jobs) sim().finish(job);
}

TEST_F(EngineOrder, AHigherPriorityGoesBeforeWhatWaits) {
  make(kMiB);
  for (int i = 0; i < 4; ++i) sim().put(key(std::to_string(i)), 16 * kMiB);
  std::vector<uint64_t> first;
  for (int i = 0; i < 4; ++i) first.push_back(sim().describe(key(std::to_string(i))).offset_bytes);
  watch();
  auto a = sim().start_get({key("0")});
  auto b = sim().start_get({key("1")});
  auto c = sim().start_get({key("2")}, {}, {.priority = -1});
  auto d = sim().start_get({key("3")}, {}, {.priority = 5});
  for (auto* job : {&a, &b, &c, &d}) sim().finish(*job);
  std::vector<uint64_t> begun;
  for (const uint64_t offset : offsets(IoOp::kRead)) {
    if (std::find(first.begin(), first.end(), offset) != first.end()) begun.push_back(offset);
  }
  EXPECT_EQ(begun, (std::vector<uint64_t>{first[3], first[0], first[1], first[2]}));
}

TEST_F(EngineOrder, LoadsGoBeforeStoresAndStoresKeepATenth) {
  make(kMiB);
  std::vector<Name> loads;
  for (int i = 0; i < 6; ++i) {
    loads.push_back(key("load " + std::to_string(i)));
    sim().put(loads.back(), 16 * kMiB);
  }
  watch();
  auto put = sim().start_put({{key("s0"), 16 * kMiB}, {key("s1"), 16 * kMiB}, {key("s2"), 16 * kMiB}});
  auto get = sim().start_get(loads);
  sim().finish(get);
  const size_t loads_done = seen_.size();
  sim().finish(put);
  uint64_t load_bytes = 0, store_bytes = 0;
  for (size_t i = 0; i < loads_done; ++i) (seen_[i].op == IoOp::kRead ? load_bytes : store_bytes) += seen_[i].bytes;
  EXPECT_EQ(load_bytes, 96 * kMiB);
  EXPECT_GE(store_bytes * 10, load_bytes * 8 / 10) << "a tenth, or nearly";
  EXPECT_LE(store_bytes, load_bytes / 9 + 20 * kMiB) << "and no more, but for what was in flight at the start";
}

TEST_F(EngineOrder, StoresAloneAreNotHeldBack) {
  make(32 * kMiB);
  watch();
  sim().put_all({{key("a"), 16 * kMiB}, {key("b"), 16 * kMiB}});
  EXPECT_EQ(offsets(IoOp::kWrite).size(), 32u);
  EXPECT_TRUE(sim().get(key("b")).succeeded());
}

// ---- the window ------------------------------------------------------------------------------------------------

TEST_F(EngineOrder, NoMoreIsInFlightThanTheWindowHoldsAndAtLeastSixteenPieces) {
  struct Case {
    uint64_t window_bytes, block_bytes, pieces;
  };
  for (const Case& one : {Case{kMiB, 8 * kMiB, 16}, Case{24 * kMiB, 8 * kMiB, 24}, Case{32 * kMiB, 8 * kMiB, 32},
                          Case{4 * kMiB, 64 * kKiB, 64}, Case{kMiB, 64 * kKiB, 16}}) {
    make(one.window_bytes, 1'000'000);
    std::vector<std::pair<Name, uint64_t>> blocks;
    std::vector<Name> names;
    for (uint64_t i = 0; i * one.block_bytes < 64 * kMiB && i < 200; ++i) {
      blocks.emplace_back(key(std::to_string(i)), one.block_bytes);
      names.push_back(blocks.back().first);
    }
    sim().put_all(blocks);
    auto get = sim().start_get(names);
    double most = 0;
    sim().run_until([&] {
      most = std::max(most, sim().number("pieces_in_flight"));
      return get.job->done();
    });
    EXPECT_EQ(most, static_cast<double>(one.pieces)) << one.window_bytes << " bytes, blocks of " << one.block_bytes;
    sim().finish(get);
  }
}

TEST_F(EngineOrder, PiecesEndOnMebibytesOfTheirBlock) {
  make(32 * kMiB);
  watch();
  sim().put(key("a"), 5 * kMiB + 5'000);
  std::vector<uint64_t> sizes;
  for (const Seen& one : seen_) sizes.push_back(one.bytes);
  EXPECT_EQ(sizes, (std::vector<uint64_t>{kMiB, kMiB, kMiB, kMiB, kMiB, 8192}));
}

// ---- deadlines -------------------------------------------------------------------------------------------------

TEST_F(EngineOrder, AJobThatCannotMakeItsDeadlineIsRefusedAtOnceAndReadsNothing) {
  make(kMiB, 2'000'000);
  std::vector<Name> names;
  for (int i = 0; i < 8; ++i) {
    names.push_back(key(std::to_string(i)));
    sim().put(names.back(), 16 * kMiB);
  }
  sim().get_all(names);  // the rate is known now: 16 MiB in some 2 ms
  auto queued = sim().start_get(names);
  const double read_before = sim().number("bytes_read_payload");
  auto hopeless = sim().start_get({names[0]}, {}, {.deadline_ns = 1'000'000});
  ASSERT_TRUE(hopeless.job->done()) << "at once: the caller recomputes";
  EXPECT_EQ(hopeless.job->result(0).code, Code::kTimeout);
  EXPECT_EQ(sim().number("bytes_read_payload"), read_before);
  auto possible = sim().start_get({names[0]}, {}, {.deadline_ns = 10'000'000'000});
  EXPECT_FALSE(possible.job->done());
  sim().finish(queued);
  EXPECT_TRUE(sim().finish(possible)[0].succeeded());
  EXPECT_EQ(sim().number("regions_pinned"), 0);
}

// ---- in place and staged ---------------------------------------------------------------------------------------

TEST_F(EngineOrder, AlignedBuffersAreReadAndWrittenInPlaceOthersThroughStaging) {
  make(32 * kMiB);
  sim().put(key("a"), 2 * kMiB + 100);
  EXPECT_EQ(sim().number("bytes_staged"), 0);
  sim().get(key("a"));
  EXPECT_EQ(sim().number("bytes_staged"), 0) << "but for the last page";
  sim().get(key("a"), {1, 64});
  EXPECT_EQ(sim().number("bytes_staged"), 2 * kMiB + 100);
  sim().get(key("a"), {4, 0});
  EXPECT_EQ(sim().number("bytes_staged"), 2 * kMiB + 100) << "whole aligned pages in four segments";
  sim().put(key("b"), 2 * kMiB + 100, {.layout = {1, 8}});
  EXPECT_EQ(sim().number("bytes_staged"), 2 * (2 * kMiB + 100));
  sim().judge_all();
}

TEST_F(EngineOrder, WhatIsAlignedIsTheDevicesBusiness) {
  make(32 * kMiB, 0, 4);
  sim().put(key("a"), 2 * kMiB, {.layout = {1, 64}});
  sim().get(key("a"), {1, 4});
  EXPECT_EQ(sim().number("bytes_staged"), 0);
  sim().get(key("a"), {1, 2});
  EXPECT_EQ(sim().number("bytes_staged"), 2 * kMiB);
}

// More unaligned jobs than there is staging: they take turns, and nothing is lost.
TEST_F(EngineOrder, StagingIsBoundedAndTakesTurns) {
  make(64 * kMiB, 500'000);
  std::vector<SimStore::Pending> jobs;
  for (int i = 0; i < 10; ++i) {
    jobs.push_back(sim().start_put({{key(std::to_string(i)), 8 * kMiB + 3}}, {.layout = {2, 64}}));
  }
  double most = 0;
  sim().run_until([&] {
    most = std::max(most, sim().number("staging_buffers_out"));
    return std::all_of(jobs.begin(), jobs.end(), [](const auto& job) { return job.job->done(); });
  });
  EXPECT_LE(most, 16);
  for (auto& job : jobs) EXPECT_EQ(sim().finish(job)[0].status, ItemStatus::kStored);
  EXPECT_EQ(sim().number("staging_buffers_out"), 0);
  sim().judge_all();
}

// ---- registered memory -----------------------------------------------------------------------------------------

TEST_F(EngineOrder, MemoryOfThePoolIsUsedByItsNumberAndStaysRightAfterItsRelease) {
  make(32 * kMiB);
  Store& store = sim().store();
  void* const memory = store.allocate(4 * kMiB).value();
  ASSERT_TRUE(is_aligned(memory, kPageBytes));
  const iovec whole{memory, 2 * kMiB};
  fill_payload(key("a"), 1, 0, static_cast<uint8_t*>(memory), 2 * kMiB);
  PutItem put;
  put.space = sim().space(0);
  put.key = "a";
  put.segments = &whole;
  put.segment_count = 1;
  auto job = store.put({&put, 1}, {}, nullptr).value();
  ASSERT_TRUE(sim().run_until([&] { return job->done(); }));
  EXPECT_EQ(sim().number("pieces_fixed"), 2);
  std::memset(memory, 0, 2 * kMiB);
  const GetItem get{sim().space(0), {}, "a", &whole, 1, 0, kWholeBlock};
  EXPECT_EQ(store.get_one(get).status, ItemStatus::kHit);
  EXPECT_TRUE(is_payload(key("a"), 1, 0, static_cast<uint8_t*>(memory), 2 * kMiB));
  EXPECT_EQ(sim().number("pieces_fixed"), 4);

  EXPECT_TRUE(store.release(memory).ok());
  EXPECT_EQ(store.release(memory).code(), Code::kInvalid) << "released already";
  Buffers elsewhere(2 * kMiB, {});
  const GetItem again{sim().space(0), {}, "a", elsewhere.segments(), 1, 0, kWholeBlock};
  EXPECT_EQ(store.get_one(again).status, ItemStatus::kHit);
  EXPECT_TRUE(elsewhere.holds(key("a"), 1, 0, 2 * kMiB));
}

TEST_F(EngineOrder, AnArenaIsRegisteredOnceAndMustStartOnAPage) {
  make(32 * kMiB);
  Store& store = sim().store();
  AlignedBuffer arena(kMiB);
  EXPECT_EQ(store.register_memory(arena.data() + 8, kMiB - 8).code(), Code::kInvalid);
  EXPECT_EQ(store.register_memory(arena.data(), 0).code(), Code::kInvalid);
  EXPECT_TRUE(store.register_memory(arena.data(), kMiB).ok());
  EXPECT_EQ(store.register_memory(arena.data(), kMiB).code(), Code::kInvalid);
  EXPECT_TRUE(store.unregister_memory(arena.data()).ok());
  EXPECT_EQ(store.unregister_memory(arena.data()).code(), Code::kInvalid);
  EXPECT_EQ(store.allocate(0).status().code(), Code::kInvalid);
  EXPECT_EQ(store.allocate(UINT64_MAX).status().code(), Code::kInvalid);
}

}  // namespace
}  // namespace kvstore::store
