// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: blocks of memory that the CPU does not reach go through staging, verified, in order and without an early end:
// nothing moves before the mover is ready, a buffer is free only when the last move has ended, and what waits on the
// mover's side is always let go. Method: a simulated disk, and a mover whose memory has addresses that nobody can touch
// and whose moves happen when the test says so.

#include "store/memory_mover.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

constexpr uint64_t kFarBase = 0xdead000000000000;  // not canonical: any access faults
constexpr uint64_t kBlockBytes = 2 * kMiB + 1000;

class FarMemory : public MemoryMover {
 public:
  explicit FarMemory(uint64_t bytes) : bytes_(bytes) {}

  void when_ready(std::function<void()> ready) override { is_ready ? ready() : void(waiting = std::move(ready)); }
  void start(MemoryMove& move, MoveListener& listener) override {
    started.emplace_back(&move, &listener);
    if (moves_at_once) run();
  }
  void job_ended() override { ended = true; }
  int near_node() override { return node; }
  Result<std::unique_ptr<PinnedMemory>> pin(void*, uint64_t bytes) override {
    pinned_bytes += bytes;
    return std::make_unique<PinnedMemory>();
  }

  // What waits holds the job, and the job this: kept any longer, neither would ever be freed.
  void become_ready() { std::exchange(waiting, nullptr)(); }

  void run() {
    while (!started.empty()) {
      auto [move, listener] = started.back();  // the last first: pieces come in any order
      started.pop_back();
      if (move->direct) {
        read_directly(*move);
        listener->move_ended(*move);
        continue;
      }
      uint8_t* host = move->host;
      for (const iovec& run : move->runs) {
        uint8_t* const far = bytes_.data() + (reinterpret_cast<uint64_t>(run.iov_base) - kFarBase);
        move->to_caller ? std::memcpy(far, host, run.iov_len) : std::memcpy(host, far, run.iov_len);
        host += run.iov_len;
      }
      if (fails) move->outcome = Status(Code::kInvalid, "the far side is gone");
      listener->move_ended(*move);
    }
  }
  uint8_t* bytes() { return bytes_.data(); }

  bool reads_directly(uint32_t, uint16_t, bool has_deadline) override {
    return disk != nullptr && refusal.ok() && (takes_deadlines || !has_deadline);
  }
  void refuse_direct(uint32_t, uint16_t, const Status& why) override { refusal = why; }

  device::SimDisk* disk = nullptr;  // that is read directly
  Status direct_outcome;            // of the next direct reads
  bool takes_deadlines = false;
  bool spoils = false;  // direct reads give other bytes
  uint64_t direct_reads = 0;
  Status refusal;
  int node = -1;  // of NUMA
  bool is_ready = true;
  bool moves_at_once = true;
  bool fails = false;
  bool ended = false;
  uint64_t pinned_bytes = 0;
  std::function<void()> waiting;
  std::vector<std::pair<MemoryMove*, MoveListener*>> started;

 private:
  void read_directly(MemoryMove& move) {
    ++direct_reads;
    move.outcome = direct_outcome;
    if (!direct_outcome.ok()) return;
    move.read.nodes.clear();
    uint64_t offset = move.read.offset_bytes;
    for (const iovec& run : move.runs) {
      uint8_t* const far = bytes_.data() + (reinterpret_cast<uint64_t>(run.iov_base) - kFarBase);
      disk->peek(offset, far, run.iov_len);
      if (spoils) far[run.iov_len - 1] ^= 1;
      offset += run.iov_len;
      if (!move.read.wants_nodes) continue;
      move.read.nodes.resize(move.read.nodes.size() + run.iov_len / kPageBytes);
      page_nodes(far, run.iov_len, move.read.nodes.data() + move.read.nodes.size() - run.iov_len / kPageBytes);
    }
  }
  std::vector<uint8_t> bytes_;
};

class FarBlocks : public testing::Test {
 protected:
  void SetUp() override {
    SimSetup setup;
    setup.region_bytes = 16 * kMiB;
    setup.store.staging_bytes = 4 * kMiB;
    setup.device.latency_ns = 1'000;
    sim_ = std::make_unique<SimStore>(setup);
    ASSERT_TRUE(sim().open().ok());
    for (uint64_t i = 0; i < kBlockBytes; ++i) source->bytes()[i] = static_cast<uint8_t>(i * 7 / 5);
  }
  SimStore& sim() { return *sim_; }

  JobRef put(const std::string& key, std::shared_ptr<FarMemory> memory) {
    const iovec segment{reinterpret_cast<void*>(kFarBase), kBlockBytes};
    PutItem item;
    item.space = sim().space(0);
    item.key = key;
    item.segments = &segment;
    item.segment_count = 1;
    item.memory_place = 0;
    SubmitOptions options;
    options.mover = std::move(memory);
    return sim().store().put({&item, 1}, options, nullptr).value();
  }
  JobRef get(const std::string& key, std::shared_ptr<FarMemory> memory, uint64_t deadline_ns = 0) {
    // In three segments with a byte between, none of them aligned.
    const iovec segments[] = {{reinterpret_cast<void*>(kFarBase + 1), 1000},
                              {reinterpret_cast<void*>(kFarBase + 1002), kMiB},
                              {reinterpret_cast<void*>(kFarBase + 1003 + kMiB), kMiB}};
    GetItem item;
    item.space = sim().space(0);
    item.key = key;
    item.segments = segments;
    item.segment_count = 3;
    item.memory_place = 0;
    SubmitOptions options;
    options.mover = std::move(memory);
    options.deadline_ns = deadline_ns;
    return sim().store().get({&item, 1}, options, nullptr).value();
  }
  // Into memory that is cut at pages, from where the mover reads directly; all of the block or some bytes.
  JobRef get_pages(std::shared_ptr<FarMemory> memory, uint64_t offset = 0, uint64_t bytes = kWholeBlock,
                   uint64_t deadline_ns = 0) {
    memory->disk = &sim().disk(0);
    const iovec segments[] = {{reinterpret_cast<void*>(kFarBase), kMiB + kPageBytes},
                              {reinterpret_cast<void*>(kFarBase + kMiB + kPageBytes), kMiB}};
    GetItem item;
    item.space = sim().space(0);
    item.key = "a";
    item.segments = segments;
    item.segment_count = 2;
    item.memory_place = 0;
    item.offset_bytes = offset;
    item.length_bytes = bytes;
    SubmitOptions options;
    options.mover = std::move(memory);
    options.deadline_ns = deadline_ns;
    return sim().store().get({&item, 1}, options, nullptr).value();
  }
  bool is_whole(FarMemory& memory) { return std::memcmp(memory.bytes(), source->bytes(), kBlockBytes) == 0; }
  bool run(const JobRef& job) {
    return sim().run_until([&] { return job->done(); });
  }
  bool holds(FarMemory& memory) {
    const uint8_t* const from = source->bytes();
    const uint8_t* const to = memory.bytes();
    return std::memcmp(to + 1, from, 1000) == 0 && std::memcmp(to + 1002, from + 1000, kMiB) == 0 &&
           std::memcmp(to + 1003 + kMiB, from + 1000 + kMiB, kMiB) == 0 && to[0] == 0 && to[1001] == 0 &&
           to[1002 + kMiB] == 0 && to[1003 + 2 * kMiB] == 0;
  }

  std::unique_ptr<SimStore> sim_;
  std::shared_ptr<FarMemory> source = std::make_shared<FarMemory>(kBlockBytes + kPageBytes);
  std::shared_ptr<FarMemory> target = std::make_shared<FarMemory>(kBlockBytes + kPageBytes);
};

TEST_F(FarBlocks, ComeBackAsTheyWerePut) {
  const JobRef stored = put("a", source);
  ASSERT_TRUE(run(stored));
  EXPECT_EQ(stored->result(0).status, ItemStatus::kStored);
  const JobRef read = get("a", target);
  ASSERT_TRUE(run(read));
  EXPECT_EQ(read->result(0).status, ItemStatus::kHit) << read->error_text(0);
  EXPECT_TRUE(holds(*target));
  EXPECT_TRUE(source->ended && target->ended);
  EXPECT_EQ(sim().number("bytes_bounced"), 2 * kBlockBytes);
  EXPECT_EQ(source->pinned_bytes, 4 * kMiB) << "once, with the first job";
  EXPECT_EQ(target->pinned_bytes, 0u);
}

TEST_F(FarBlocks, NothingMovesBeforeTheMoverIsReady) {
  source->is_ready = false;
  const JobRef stored = put("a", source);
  sim().run_idle();
  EXPECT_FALSE(stored->done());
  EXPECT_EQ(sim().number("staging_buffers_out"), 0) << "who waits for a GPU must not hold what others need";
  source->is_ready = true;
  source->become_ready();
  ASSERT_TRUE(run(stored));
  EXPECT_EQ(stored->result(0).status, ItemStatus::kStored);
}

TEST_F(FarBlocks, AJobEndsOnlyWhenItsLastMoveHas) {
  ASSERT_TRUE(run(put("a", source)));
  target->moves_at_once = false;
  const JobRef read = get("a", target);
  read->cancel();
  ASSERT_TRUE(sim().run_until([&] { return !target->started.empty() || read->done(); }));
  const JobRef again = get("a", target);
  ASSERT_TRUE(sim().run_until([&] { return target->started.size() == 3; }));
  again->cancel();
  sim().run_idle();
  EXPECT_FALSE(again->done()) << "I11: its memory is being written";
  target->run();
  ASSERT_TRUE(run(again));
}

TEST_F(FarBlocks, ADeadlineDoesNotEndAReadThatIsBeingMoved) {
  ASSERT_TRUE(run(put("a", source)));
  target->moves_at_once = false;
  const JobRef read = get("a", target, 1'000'000'000);
  ASSERT_TRUE(sim().run_until([&] { return target->started.size() == 3; }));
  sim().advance_ns(2'000'000'000);
  sim().run_idle();
  EXPECT_FALSE(read->done());
  target->run();
  ASSERT_TRUE(run(read));
  EXPECT_TRUE(target->ended);
}

TEST_F(FarBlocks, AFailedMoveIsTheCallersErrorAndNoFaultOfTheDevice) {
  source->fails = true;
  const JobRef stored = put("a", source);
  ASSERT_TRUE(run(stored));
  EXPECT_EQ(stored->result(0).code, Code::kInvalid);
  EXPECT_EQ(stored->error_text(0), "the far side is gone");
  EXPECT_TRUE(source->ended);
  EXPECT_FALSE(sim().contains({"a", "", 0})) << "I8";
  EXPECT_EQ(sim().number("write_errors"), 0);
  source->fails = false;
  ASSERT_TRUE(run(put("a", source)));
  target->fails = true;
  const JobRef read = get("a", target);
  ASSERT_TRUE(run(read));
  EXPECT_EQ(read->result(0).code, Code::kInvalid);
  target->fails = false;
  ASSERT_TRUE(run(get("a", target)));
  EXPECT_TRUE(holds(*target)) << "the block is still there";
}

TEST_F(FarBlocks, ACorruptBlockIsAMissAndWhoWaitsIsLetGo) {
  ASSERT_TRUE(run(put("a", source)));
  sim().flush();
  sim().corrupt_payload({"a", "", 0}, 5);
  const JobRef read = get("a", target);
  ASSERT_TRUE(run(read));
  EXPECT_EQ(read->result(0).status, ItemStatus::kMiss);
  EXPECT_TRUE(target->ended);
}

TEST_F(FarBlocks, AJobThatWaitsForTheMoverCanBeCanceled) {
  source->is_ready = false;
  const JobRef stored = put("a", source);
  stored->cancel();
  ASSERT_TRUE(stored->done());
  EXPECT_EQ(stored->result(0).code, Code::kCanceled);
  EXPECT_TRUE(source->ended);
  source->become_ready();  // finds nothing to do
  source->is_ready = true;
  ASSERT_TRUE(run(put("a", source)));
}

TEST_F(FarBlocks, ClosingEndsWhatWaitsForTheMover) {
  source->is_ready = false;
  const JobRef stored = put("a", source);
  EXPECT_TRUE(sim().close(0).ok());
  EXPECT_EQ(stored->result(0).code, Code::kClosed);
  source->become_ready();  // after the end of the store
}

TEST_F(FarBlocks, WholePagesAreReadDirectlyAndTheRestThroughStaging) {
  ASSERT_TRUE(run(put("a", source)));
  const double bounced = sim().number("bytes_bounced");
  const JobRef read = get_pages(target);
  ASSERT_TRUE(run(read));
  EXPECT_EQ(read->result(0).status, ItemStatus::kHit) << read->error_text(0);
  EXPECT_TRUE(is_whole(*target));
  EXPECT_EQ(target->direct_reads, 2u);
  EXPECT_EQ(sim().number("bytes_direct"), 2 * kMiB);
  EXPECT_EQ(sim().number("bytes_bounced"), bounced + (kBlockBytes - 2 * kMiB)) << "less than a page is left";
  EXPECT_EQ(target->bytes()[kBlockBytes], 0) << "never past the caller's bytes";
  ASSERT_TRUE(run(get("a", target))) << "this memory is not cut at pages";
  EXPECT_EQ(target->direct_reads, 2u);
}

TEST_F(FarBlocks, G4_ADirectReadOfOtherBytesIsNoHit) {
  ASSERT_TRUE(run(put("a", source)));
  target->spoils = true;
  const JobRef read = get_pages(target);
  ASSERT_TRUE(run(read));
  EXPECT_EQ(read->result(0).status, ItemStatus::kHit) << "the block is right, and staging shows it";
  EXPECT_TRUE(is_whole(*target));
  EXPECT_EQ(sim().number("checksum_mismatches"), 0) << "of the device";
}

TEST_F(FarBlocks, G4_APathThatWasWrongOnceIsNotTakenAgain) {
  ASSERT_TRUE(run(put("a", source)));
  target->spoils = true;
  ASSERT_TRUE(run(get_pages(target)));
  EXPECT_EQ(target->refusal.code(), Code::kCorrupt) << target->refusal.message();
  const uint64_t before = target->direct_reads;
  ASSERT_TRUE(run(get_pages(target)));
  EXPECT_EQ(target->direct_reads, before);
}

TEST_F(FarBlocks, G4_ADirectReadIsVerifiedAlsoWhenTheBlockWasBefore) {
  ASSERT_TRUE(sim().close(0).ok());
  SimSetup setup;
  setup.region_bytes = 16 * kMiB;
  setup.store.staging_bytes = 4 * kMiB;
  setup.store.verify = Verify::kFirstRead;
  sim_ = std::make_unique<SimStore>(setup);
  ASSERT_TRUE(sim().open().ok());
  ASSERT_TRUE(run(put("a", source)));
  ASSERT_TRUE(run(get("a", target)));
  target->spoils = true;
  const JobRef read = get_pages(target);
  ASSERT_TRUE(run(read));
  EXPECT_EQ(read->result(0).status, ItemStatus::kHit);
  EXPECT_TRUE(is_whole(*target));
}

TEST_F(FarBlocks, ADirectReadThatFailsIsReadThroughStagingAndThePathRefused) {
  ASSERT_TRUE(run(put("a", source)));
  target->direct_outcome = Status(Code::kIo, "peer-to-peer is not supported", EIO);
  const JobRef read = get_pages(target);
  ASSERT_TRUE(run(read));
  EXPECT_EQ(read->result(0).status, ItemStatus::kHit) << read->error_text(0);
  EXPECT_TRUE(is_whole(*target));
  EXPECT_EQ(target->refusal.message(), "peer-to-peer is not supported");
  EXPECT_EQ(sim().number("read_errors"), 0) << "of the device";
}

TEST_F(FarBlocks, ACorruptBlockIsAMissAndNoFaultOfTheDirectPath) {
  ASSERT_TRUE(run(put("a", source)));
  sim().flush();
  sim().corrupt_payload({"a", "", 0}, 5);
  const JobRef read = get_pages(target);
  ASSERT_TRUE(run(read));
  EXPECT_EQ(read->result(0).status, ItemStatus::kMiss);
  EXPECT_TRUE(target->refusal.ok()) << target->refusal.message();
}

TEST_F(FarBlocks, AReadWithADeadlineIsDirectOnlyWhereTheMoverTakesThose) {
  ASSERT_TRUE(run(put("a", source)));
  ASSERT_TRUE(run(get_pages(target, 0, kWholeBlock, 1'000'000'000)));
  EXPECT_EQ(target->direct_reads, 0u);
  EXPECT_TRUE(is_whole(*target));
  target->takes_deadlines = true;
  ASSERT_TRUE(run(get_pages(target, 0, kWholeBlock, 1'000'000'000)));
  EXPECT_EQ(target->direct_reads, 2u);
}

TEST_F(FarBlocks, ADeadlineDoesNotEndADirectRead) {
  ASSERT_TRUE(run(put("a", source)));
  target->takes_deadlines = true;
  target->moves_at_once = false;
  const JobRef read = get_pages(target, 0, kWholeBlock, 1'000'000'000);
  ASSERT_TRUE(sim().run_until([&] { return target->started.size() >= 2; }));
  sim().advance_ns(2'000'000'000);
  sim().run_idle();
  EXPECT_FALSE(read->done()) << "I11: its memory is being written";
  target->run();
  target->moves_at_once = true;
  ASSERT_TRUE(run(read));
}

TEST_F(FarBlocks, ADirectReadHoldsItsJobUntilItHasEnded) {
  ASSERT_TRUE(run(put("a", source)));
  target->moves_at_once = false;
  const JobRef read = get_pages(target);
  ASSERT_TRUE(sim().run_until([&] { return target->started.size() == 3; }));
  read->cancel();
  sim().run_idle();
  EXPECT_FALSE(read->done()) << "I11: its memory is being written";
  target->run();
  ASSERT_TRUE(run(read));
  EXPECT_TRUE(target->refusal.ok());
}

TEST_F(FarBlocks, PagesOfAPartAreReadDirectlyToo) {
  ASSERT_TRUE(run(put("a", source)));
  const JobRef read = get_pages(target, 0, kMiB);
  ASSERT_TRUE(run(read));
  EXPECT_EQ(read->result(0).status, ItemStatus::kHit);
  EXPECT_EQ(std::memcmp(target->bytes(), source->bytes(), kMiB), 0);
  EXPECT_EQ(target->direct_reads, 1u) << "the rest is read to be verified, and is nobody's to have";
}

TEST_F(FarBlocks, APrefetchedBlockIsMovedFromMemory) {
  ASSERT_TRUE(run(put("a", source)));
  const KeyRef key{sim().space(0), "", "a"};
  ASSERT_TRUE(run(sim().store().prefetch({&key, 1}, {}, nullptr).value()));
  const double read_before = sim().number("bytes_read_payload");
  const JobRef read = get("a", target);
  ASSERT_TRUE(run(read));
  EXPECT_EQ(read->result(0).status, ItemStatus::kHit) << read->error_text(0);
  EXPECT_TRUE(holds(*target));
  EXPECT_EQ(sim().number("bytes_read_payload"), read_before) << "the device was asked again";
  EXPECT_EQ(sim().number("prefetch_hits"), 1);
  ASSERT_TRUE(run(get("a", target))) << "it was taken: from the device again";
  EXPECT_GT(sim().number("bytes_read_payload"), read_before);
}

TEST_F(FarBlocks, StagingThatCannotBeNearTheMoverWorksAndIsTold) {
  source->node = 1000;  // no machine has it
  ASSERT_TRUE(run(put("a", source)));
  ASSERT_TRUE(run(get("a", target)));
  EXPECT_TRUE(holds(*target));
  EXPECT_EQ(source->pinned_bytes, 4 * kMiB);
  for (const auto& [name, text] : sim().store().texts()) {
    if (name != "bounce") continue;
    EXPECT_NE(text.find("NUMA node 1000"), std::string::npos) << text;
  }
}

TEST_F(FarBlocks, MemoryWithoutAMoverIsRefused) {
  const iovec segment{reinterpret_cast<void*>(kFarBase), kBlockBytes};
  PutItem item;
  item.space = sim().space(0);
  item.key = "a";
  item.segments = &segment;
  item.segment_count = 1;
  item.memory_place = 0;
  EXPECT_EQ(sim().store().put({&item, 1}, {}, nullptr).status().code(), Code::kInvalid);
}

}  // namespace
}  // namespace kvstore::store
