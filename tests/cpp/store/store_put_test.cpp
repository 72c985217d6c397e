// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what a put answers. A key that is present writes nothing; one that is being put is joined; durable waits for
// the descriptor, also of somebody else's put; a block that could not be read is written anew; bad arguments are
// refused whole. Deletes refuse what is pinned. Method: an open store on a simulated disk, whose writes are counted or
// held.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "format/descriptor.h"
#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

Name key(const std::string& text, uint32_t space = 0, const std::string& salt = "") { return {text, salt, space}; }

class Puts : public ::testing::Test {
 protected:
  void SetUp() override {
    SimSetup setup;
    setup.regions = 12;
    setup.region_bytes = kMiB;
    sim_ = std::make_unique<SimStore>(setup);
    ASSERT_TRUE(sim().open().ok());
  }
  SimStore& sim() { return *sim_; }
  double payload_written() { return sim().number("bytes_written_payload"); }
  void hold_payload_writes(uint64_t times = kForEver) {
    const auto& geometry = sim().geometry();
    sim().disk().add_rule(
        rule_of(SimFault::kStuck, IoOp::kWrite, geometry.data_offset, geometry.device_bytes - kPageBytes, times));
  }
  // Whether the descriptors of all blocks put so far are on the device, without asking the store to put them there.
  bool survives_a_crash(const Name& name) {
    sim().crash(false);
    sim().reopen_and_judge();
    return sim().contains(name);
  }

  std::unique_ptr<SimStore> sim_;
};

// ---- present, joined, duplicate ----------------------------------------------------------------------------------

TEST_F(Puts, APresentKeyWritesNothingAndTellsItsSize) {
  sim().put(key("a"), 10'000);
  const double before = payload_written();
  const ItemResult again = sim().put(key("a"), 20'000, {.version = 2});
  EXPECT_EQ(again.status, ItemStatus::kPresent);
  EXPECT_EQ(again.bytes, 10'000u) << "the first wins";
  EXPECT_TRUE(again.succeeded());
  EXPECT_EQ(payload_written(), before);
  EXPECT_TRUE(sim().get(key("a")).succeeded()) << "with the first's bytes";
  EXPECT_EQ(sim().number("puts_present"), 1);
}

TEST_F(Puts, ADuplicateInABatchIsWrittenOnce) {
  const auto results = sim().put_all({{key("a"), 10'000}, {key("b"), 10'000}, {key("a"), 10'000}});
  EXPECT_EQ(results[0].status, ItemStatus::kStored);
  EXPECT_EQ(results[1].status, ItemStatus::kStored);
  EXPECT_EQ(results[2].status, ItemStatus::kPresent);
  EXPECT_EQ(results[2].bytes, 10'000u);
  EXPECT_EQ(payload_written(), 2 * 12'288);
  EXPECT_EQ(sim().number("puts_joined"), 1);
}

TEST_F(Puts, APutJoinsTheOneInFlightAndTakesItsOutcome) {
  hold_payload_writes(1);
  auto first = sim().start_put({{key("a"), 10'000}});
  sim().run_idle();
  auto second = sim().start_put({{key("a"), 10'000}});
  sim().run_idle();
  EXPECT_FALSE(first.job->done());
  EXPECT_FALSE(second.job->done()) << "it must not say present while the payload may still fail";
  sim().disk().release_stuck();
  EXPECT_EQ(sim().finish(first)[0].status, ItemStatus::kStored);
  EXPECT_EQ(sim().finish(second)[0].status, ItemStatus::kPresent);
  EXPECT_EQ(payload_written(), 12'288);
}

TEST_F(Puts, ADurablePutThatJoinsWaitsForTheDescriptor) {
  hold_payload_writes(1);
  auto first = sim().start_put({{key("a"), 10'000}});
  auto second = sim().start_put({{key("a"), 10'000}}, {.durable = true});
  sim().run_idle();
  sim().disk().release_stuck();
  EXPECT_EQ(sim().finish(second)[0].status, ItemStatus::kPresent);
  sim().finish(first);
  EXPECT_TRUE(survives_a_crash(key("a")));
}

TEST_F(Puts, ADurablePutOfAPresentKeyWaitsForThatEntrysDescriptor) {
  sim().put(key("a"), 10'000);
  EXPECT_EQ(sim().number("commits"), 0);
  EXPECT_EQ(sim().put(key("a"), 10'000, {.durable = true}).status, ItemStatus::kPresent);
  EXPECT_EQ(sim().number("commits"), 1);
  EXPECT_TRUE(survives_a_crash(key("a")));
}

// ---- when descriptors are written ------------------------------------------------------------------------------

TEST_F(Puts, ADescriptorIsWrittenWithinTheCommitInterval) {
  sim().put(key("a"), 10'000);
  sim().run_idle();
  EXPECT_EQ(sim().number("commits"), 0) << "not at once";
  sim().advance_ns(51'000'000);
  sim().run_idle();
  EXPECT_EQ(sim().number("commits"), 1);
  EXPECT_TRUE(survives_a_crash(key("a")));
}

TEST_F(Puts, ThirtyOneBlocksAreCommittedWithoutWaiting) {
  std::vector<std::pair<Name, uint64_t>> blocks;
  for (int i = 0; i < 31; ++i) blocks.emplace_back(key(std::to_string(i)), 10'000);
  sim().put_all(blocks);
  sim().run_idle();
  EXPECT_EQ(sim().number("commits"), 1);
  EXPECT_TRUE(survives_a_crash(key("30")));
}

TEST_F(Puts, FlushCommitsWhatWasReportedStored) {
  sim().put_all({{key("a"), 10'000}, {key("b"), 300'000}, {key("c", 1), 5}});
  sim().flush();
  sim().crash(false);
  sim().reopen_and_judge();  // the oracle demands all three
  EXPECT_EQ(sim().number("blocks"), 3);
}

TEST_F(Puts, ADescriptorKeepsWhatThePutSaid) {
  PutHow how;
  how.durable = true;
  how.parent = "the parent";
  how.depth = 7;
  how.meta = std::string("m\0eta", 5);
  how.page_hashes = true;
  sim().put(key("a", 2, "salt"), 10'000, how);
  for (int opening = 0; opening < 2; ++opening) {
    const BlockInfo info = sim().describe(key("a", 2, "salt"));
    EXPECT_EQ(info.key, "a");
    EXPECT_EQ(info.salt, "salt");
    EXPECT_EQ(info.payload_bytes, 10'000u);
    EXPECT_EQ(info.depth, 7u);
    EXPECT_EQ(info.meta, std::string("m\0eta", 5));
    EXPECT_EQ(info.parent, format::parent_hint("the parent"));
    EXPECT_TRUE(info.page_hashes);
    EXPECT_EQ(info.extent_bytes, 16'384u);
    sim().crash(false);
    sim().reopen_and_judge();
  }
}

// ---- suspects --------------------------------------------------------------------------------------------------

TEST_F(Puts, ABlockThatCouldNotBeReadIsWrittenAnewElsewhere) {
  sim().put(key("a"), 10'000, {.durable = true});
  const BlockInfo old = sim().describe(key("a"));
  sim().disk().add_rule(rule_of(SimFault::kError, IoOp::kRead, old.offset_bytes, old.offset_bytes + 1, kForEver));
  sim().allow_misses(true);
  EXPECT_EQ(sim().get(key("a")).code, Code::kIo);
  EXPECT_TRUE(sim().contains(key("a"))) << "it may be readable again";
  EXPECT_EQ(sim().put(key("a"), 10'000, {.durable = true}).status, ItemStatus::kStored) << "not present";
  sim().allow_misses(false);
  EXPECT_TRUE(sim().get(key("a")).succeeded());
  EXPECT_NE(sim().describe(key("a")).offset_bytes, old.offset_bytes);
  sim().disk().clear_rules();
  sim().flush();
  sim().crash(false);
  sim().reopen_and_judge();
  EXPECT_EQ(sim().number("recovery_duplicates"), 0) << "the old copy is dead";
}

// ---- deletes ---------------------------------------------------------------------------------------------------

TEST_F(Puts, ADeletedKeyIsAMissAtOnceAndCanBePutAgain) {
  sim().put(key("a"), 10'000);
  const ItemResult deleted = sim().erase(key("a"));
  EXPECT_EQ(deleted.status, ItemStatus::kDeleted);
  EXPECT_EQ(deleted.bytes, 10'000u);
  EXPECT_FALSE(sim().contains(key("a")));
  EXPECT_EQ(sim().erase(key("a")).status, ItemStatus::kMiss);
  EXPECT_EQ(sim().put(key("a"), 5'000, {.version = 2}).status, ItemStatus::kStored);
  EXPECT_TRUE(sim().get(key("a")).succeeded());
}

TEST_F(Puts, DeleteRefusesWhatIsPinned) {
  sim().put(key("a"), 10'000);
  const Name a = key("a");
  const KeyRef ref = sim().ref(a);
  sim().store().match_prefix({&ref, 1}, true);
  const ItemResult refused = sim().erase(key("a"));
  EXPECT_EQ(refused.status, ItemStatus::kError);
  EXPECT_EQ(refused.code, Code::kBusy);
  EXPECT_TRUE(sim().get(key("a")).succeeded());
  sim().store().unpin({&ref, 1});
  EXPECT_EQ(sim().erase(key("a")).status, ItemStatus::kDeleted);
}

TEST_F(Puts, AReadInFlightOutlivesTheDelete) {
  sim().put(key("a"), 10'000);
  const BlockInfo info = sim().describe(key("a"));
  sim().disk().add_rule(rule_of(SimFault::kStuck, IoOp::kRead, info.offset_bytes, info.offset_bytes + 1));
  auto get = sim().start_get({key("a")});
  sim().run_idle();
  sim().erase(key("a"));
  sim().flush();
  sim().disk().release_stuck();
  EXPECT_TRUE(sim().finish(get)[0].succeeded()) << "it had begun before";
}

TEST_F(Puts, ADeletedBlockThatWasNotCommittedLeavesNoTrace) {
  sim().put(key("a"), 10'000);
  sim().erase(key("a"));
  sim().flush();
  sim().crash(true);
  sim().reopen_and_judge();
  EXPECT_FALSE(sim().contains(key("a")));
}

// ---- arguments -------------------------------------------------------------------------------------------------

class Arguments : public Puts {
 protected:
  void SetUp() override {
    Puts::SetUp();
    buffers_ = std::make_unique<Buffers>(8'192, Layout{});
    item_.space = sim().space(0);
    item_.key = "good";
    item_.segments = buffers_->segments();
    item_.segment_count = 1;
  }
  // A batch of one good item and this one: refused whole.
  Code put(const PutItem& item) {
    PutItem good = item_;
    const PutItem batch[] = {good, item};
    auto job = sim().store().put(batch, {}, nullptr);
    EXPECT_FALSE(sim().contains(key("good"))) << "nothing of the batch was taken";
    if (job.ok()) sim().run_until([&] { return job.value()->done(); });
    EXPECT_TRUE(job.ok() || !job.status().message().empty());
    return job.status().code();
  }
  std::unique_ptr<Buffers> buffers_;
  PutItem item_;
};

TEST_F(Arguments, AKeyHasOneTo1024Bytes) {
  const std::string longest(1024, 'k'), too_long(1025, 'k');
  PutItem item = item_;
  item.key = "";
  EXPECT_EQ(put(item), Code::kInvalid);
  item.key = too_long;
  EXPECT_EQ(put(item), Code::kInvalid);
  item.key = longest;
  EXPECT_EQ(put(item), Code::kOk);
}

TEST_F(Arguments, SaltParentAndMetaAreBounded) {
  const std::string salt(1025, 's'), parent(1025, 'p'), meta(29, 'm');
  PutItem item = item_;
  item.salt = salt;
  EXPECT_EQ(put(item), Code::kInvalid);
  item = item_;
  item.parent = parent;
  EXPECT_EQ(put(item), Code::kInvalid);
  item = item_;
  item.meta = meta;
  EXPECT_EQ(put(item), Code::kInvalid);
}

TEST_F(Arguments, ABlockHasOneByteToARegion) {
  PutItem item = item_;
  item.segment_count = 0;
  EXPECT_EQ(put(item), Code::kInvalid);
  const iovec empty{buffers_->segments()[0].iov_base, 0};
  item.segments = &empty;
  item.segment_count = 1;
  EXPECT_EQ(put(item), Code::kInvalid);
  const iovec large{buffers_->segments()[0].iov_base, kMiB + 1};  // never read: refused before
  item.segments = &large;
  EXPECT_EQ(put(item), Code::kInvalid);
  const iovec absurd[] = {{buffers_->segments()[0].iov_base, UINT64_MAX - 5}, {buffers_->segments()[0].iov_base, 10}};
  item.segments = absurd;
  item.segment_count = 2;
  EXPECT_EQ(put(item), Code::kInvalid) << "a sum that wraps";
}

TEST_F(Arguments, AtMost512Segments) {
  std::vector<iovec> segments(513, {buffers_->segments()[0].iov_base, 8});
  PutItem item = item_;
  item.segments = segments.data();
  item.segment_count = 513;
  EXPECT_EQ(put(item), Code::kInvalid);
  const GetItem wanted{sim().space(0), {}, "many", segments.data(), 513, 0, kWholeBlock};
  EXPECT_EQ(sim().store().get({&wanted, 1}, {}, nullptr).status().code(), Code::kInvalid);
  item.segment_count = 512;
  item.key = "many";
  EXPECT_EQ(put(item), Code::kOk);
}

TEST_F(Arguments, ASpaceMustBeRegisteredHere) {
  PutItem item = item_;
  item.space = SpaceId{4711};
  EXPECT_EQ(put(item), Code::kInvalid);
  const KeyRef ref{SpaceId{4711}, {}, "k"};
  EXPECT_EQ(sim().store().erase({&ref, 1}).status().code(), Code::kInvalid);
  EXPECT_EQ(sim().store().prefetch({&ref, 1}, {}, nullptr).status().code(), Code::kInvalid);
  const GetItem wanted{ref.space, {}, "k", buffers_->segments(), 1, 0, kWholeBlock};
  EXPECT_EQ(sim().store().get({&wanted, 1}, {}, nullptr).status().code(), Code::kInvalid);
  int64_t bytes = 0;
  sim().store().lookup({&ref, 1}, true, {&bytes, 1});
  EXPECT_EQ(bytes, -1);
}

TEST_F(Arguments, AnEmptyBatchIsRefused) {
  EXPECT_EQ(sim().store().put({}, {}, nullptr).status().code(), Code::kInvalid);
  EXPECT_EQ(sim().store().get({}, {}, nullptr).status().code(), Code::kInvalid);
  EXPECT_EQ(sim().store().prefetch({}, {}, nullptr).status().code(), Code::kInvalid);
  EXPECT_TRUE(sim().store().erase({}).value().empty());
  EXPECT_EQ(sim().store().match_prefix({}, true), 0u);
}

TEST_F(Arguments, AGetIntoTooSmallABufferIsAnErrorOfThatItem) {
  sim().put(key("a"), 10'000);
  sim().put(key("b"), 4'000);
  Buffers small(9'999, {}), enough(4'000, {});
  const GetItem items[] = {{sim().space(0), {}, "a", small.segments(), 1, 0, kWholeBlock},
                           {sim().space(0), {}, "b", enough.segments(), 1, 0, kWholeBlock}};
  auto job = sim().store().get(items, {}, nullptr).value();
  ASSERT_TRUE(sim().run_until([&] { return job->done(); }));
  EXPECT_EQ(job->result(0).code, Code::kInvalid);
  EXPECT_NE(job->error_text(0).find("9999"), std::string::npos) << job->error_text(0);
  EXPECT_TRUE(small.untouched_from(0));
  EXPECT_EQ(job->result(1).status, ItemStatus::kHit);
  EXPECT_EQ(sim().number("regions_pinned"), 0);
}

TEST_F(Arguments, ABlockWithPageHashesNeedsRoomForItsTable) {
  // A region of 1 MiB: 256 pages, whose table takes a page.
  const uint64_t largest = kMiB - kPageBytes;
  Buffers buffers(kMiB, {});
  PutItem item = item_;
  item.page_hashes = true;
  item.key = "hashed";
  const iovec fits{buffers.segments()[0].iov_base, largest}, does_not{buffers.segments()[0].iov_base, largest + 1};
  item.segments = &does_not;
  EXPECT_EQ(put(item), Code::kInvalid);
  item.segments = &fits;
  EXPECT_EQ(put(item), Code::kOk);
}

// ---- bounds ----------------------------------------------------------------------------------------------------

TEST_F(Puts, MoreJobsThanAllowedAreBusy) {
  SimSetup setup = sim().setup();
  setup.store.jobs_max = 3;
  sim_ = std::make_unique<SimStore>(setup);
  ASSERT_TRUE(sim().open().ok());
  std::vector<SimStore::Pending> jobs;
  for (int i = 0; i < 3; ++i) jobs.push_back(sim().start_put({{key(std::to_string(i)), 10'000}}));
  Buffers buffers(100, {});
  const GetItem get{sim().space(0), {}, "0", buffers.segments(), 1, 0, kWholeBlock};
  EXPECT_EQ(sim().store().get({&get, 1}, {}, nullptr).status().code(), Code::kBusy);
  for (auto& job : jobs) sim().finish(job);
  EXPECT_TRUE(sim().get(key("0")).succeeded());
}

TEST_F(Puts, CompletionsReachTheirQueueOnceEach) {
  auto queue = CompletionQueue::create();
  ASSERT_NE(queue, nullptr);
  Buffers buffers(10'000, {});
  std::vector<JobRef> jobs;
  for (int i = 0; i < 5; ++i) {
    const std::string text = std::to_string(i);
    PutItem item;
    item.space = sim().space(0);
    item.key = text;
    item.segments = buffers.segments();
    item.segment_count = 1;
    jobs.push_back(sim().store().put({&item, 1}, {.tag = static_cast<uint64_t>(i)}, queue).value());
  }
  EXPECT_TRUE(queue->drain(10).empty());
  sim().run_until([&] { return std::all_of(jobs.begin(), jobs.end(), [](const JobRef& job) { return job->done(); }); });
  std::set<uint64_t> tags;
  for (const JobRef& job : queue->drain(3)) tags.insert(job->tag());
  EXPECT_EQ(tags.size(), 3u);
  for (const JobRef& job : queue->drain(10)) tags.insert(job->tag());
  EXPECT_EQ(tags.size(), 5u);
  EXPECT_TRUE(queue->drain(10).empty());
}

TEST_F(Puts, AQueueThatNobodyDrainsIsBusyAtItsBoundAndOthersAreNot) {
  SimSetup setup = sim().setup();
  setup.store.jobs_max = 3;
  sim_ = std::make_unique<SimStore>(setup);
  ASSERT_TRUE(sim().open().ok());
  auto queue = CompletionQueue::create();
  Buffers buffers(100, {});
  const GetItem get{sim().space(0), {}, "not there", buffers.segments(), 1, 0, kWholeBlock};
  for (int i = 0; i < 3; ++i) {
    const JobRef job = sim().store().get({&get, 1}, {}, queue).value();
    ASSERT_TRUE(sim().run_until([&] { return job->done(); }));
  }
  EXPECT_EQ(sim().store().get({&get, 1}, {}, queue).status().code(), Code::kBusy);
  EXPECT_TRUE(sim().store().get({&get, 1}, {}, nullptr).ok());
  EXPECT_EQ(queue->drain(1).size(), 1u);
  EXPECT_TRUE(sim().store().get({&get, 1}, {}, queue).ok());
}

TEST_F(Puts, AQueueThatAsksLaterIsToldAtTheEndOrAtOnce) {
  sim().put(key("first"), 10'000);
  const BlockInfo first = sim().describe(key("first"));
  sim().disk().add_rule(rule_of(SimFault::kStuck, IoOp::kRead, first.offset_bytes, first.offset_bytes + 1));
  auto get = sim().start_get({key("first")});
  sim().run_idle();
  auto before = CompletionQueue::create();
  get.job->notify(before);
  EXPECT_TRUE(before->drain(10).empty());
  sim().disk().release_stuck();
  sim().finish(get);
  EXPECT_EQ(before->drain(10).size(), 1u);
  auto after = CompletionQueue::create();
  get.job->notify(after);
  EXPECT_EQ(after->drain(10).size(), 1u);
}

}  // namespace
}  // namespace kvstore::store
