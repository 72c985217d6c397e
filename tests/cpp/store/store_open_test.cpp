// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a pool opens whole or not at all, with the reason; each answer of open is its own; pools of several devices
// spread their blocks and come back whole after a crash. Method: simulated disks in every wrong combination;
// superblocks rewritten with flags of later versions.

#include <gtest/gtest.h>

#include <algorithm>

#include "store/format_device.h"
#include "store/one_sim_device.h"
#include "store/sim_harness.h"
#include "store/superblock_io.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimDisk;
using device::SimFault;

Name key(const std::string& text, uint32_t space = 0) { return {text, "", space}; }

SimSetup pool_of(uint32_t devices) {
  SimSetup setup;
  setup.devices = devices;
  setup.regions = 10;
  setup.region_bytes = kMiB;
  return setup;
}

class Opening : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Store>> open_with(SimStore& sim, const std::vector<uint32_t>& numbers) {
    std::vector<std::unique_ptr<device::Device>> devices;
    for (const uint32_t number : numbers) devices.push_back(sim.make_device(number));
    return Store::open_devices(std::move(devices), sim.options());
  }
  // The superblock as `change` makes it, on all copies.
  template <typename Change>
  void rewrite_superblock(SimStore& sim, Change change) {
    OneSimDevice one(sim.disk(), sim.clock());
    format::Superblock superblock = sim.formatted();
    superblock.sequence = 1'000;
    change(superblock);
    ASSERT_TRUE(update_superblock(*one.io, 0, superblock).ok());
  }
};

// ---- pools -----------------------------------------------------------------------------------------------------

TEST_F(Opening, APoolSpreadsBlocksOverItsDevicesAndComesBackWhole) {
  for (const uint32_t engine_threads : {1u, 2u, 3u}) {
    SimSetup setup = pool_of(3);
    setup.store.engine_threads = engine_threads;
    SimStore sim(setup);
    ASSERT_TRUE(sim.open().ok());
    std::vector<std::pair<Name, uint64_t>> blocks;
    for (int i = 0; i < 60; ++i) blocks.emplace_back(key(std::to_string(i), i % 3), 20'000 + i);
    sim.put_all(blocks);
    sim.flush();
    std::vector<int> on(3);
    for (const auto& [name, bytes] : blocks) ++on[sim.describe(name).device];
    EXPECT_EQ(on, (std::vector<int>{20, 20, 20}));
    sim.judge_all();
    sim.crash(false);
    sim.reopen_and_judge();
    EXPECT_EQ(sim.number("blocks"), 60);
    EXPECT_EQ(sim.store().superblocks().size(), 3u);
    EXPECT_TRUE(sim.close().ok());
  }
}

TEST_F(Opening, DevicesMayBeNamedInAnyOrder) {
  SimStore sim(pool_of(3));
  ASSERT_TRUE(sim.open().ok());
  for (int i = 0; i < 9; ++i) sim.put(key(std::to_string(i)), 5'000);
  ASSERT_TRUE(sim.close().ok());
  auto store = open_with(sim, {2, 0, 1});
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  const SpaceId space = store.value()->register_space(SimStore::space_json(0)).value();
  for (int i = 0; i < 9; ++i) {
    const std::string text = std::to_string(i);
    Buffers buffers(5'000, {});
    const GetItem get{space, {}, text, buffers.segments(), 1, 0, kWholeBlock};
    EXPECT_EQ(store.value()->get_one(get).status, ItemStatus::kHit);
    EXPECT_TRUE(buffers.holds(key(text), 1, 0, 5'000));
  }
  EXPECT_TRUE(store.value()->close(1'000'000'000).ok());
}

TEST_F(Opening, AMemberThatIsMissingOrGivenTwiceIsRefusedAndNothingIsWritten) {
  SimStore sim(pool_of(3));
  const uint64_t operations = sim.disk().operations();
  EXPECT_EQ(open_with(sim, {0, 1}).status().code(), Code::kInvalid);
  EXPECT_EQ(open_with(sim, {2}).status().code(), Code::kInvalid);
  const Status twice = open_with(sim, {0, 1, 1}).status();
  EXPECT_EQ(twice.code(), Code::kOtherStore);
  EXPECT_NE(twice.message().find("twice"), std::string::npos) << twice.message();
  EXPECT_EQ(open_with(sim, {0, 1, 2, 2}).status().code(), Code::kInvalid);
  EXPECT_EQ(sim.disk().operations(), operations);
  EXPECT_TRUE(open_with(sim, {0, 1, 2}).ok());
}

TEST_F(Opening, AMemberOfAnotherPoolIsRefused) {
  SimStore one(pool_of(2));
  SimSetup setup = pool_of(2);
  setup.seed = 77;
  SimStore two(setup);
  std::vector<std::unique_ptr<device::Device>> devices;
  devices.push_back(one.make_device(0));
  devices.push_back(device::make_sim_device(two.disk(1), {}, one.clock()));
  const Status status = Store::open_devices(std::move(devices), one.options()).status();
  EXPECT_EQ(status.code(), Code::kOtherStore) << status.to_string();
}

// A crash of the whole pool at every operation of its first device.
TEST_F(Opening, APoolSurvivesACrashAnywhere) {
  for (uint64_t n = 1; n < 400; n += 3) {
    SimSetup setup = pool_of(2);
    setup.seed = 1'000 + n;
    SimStore sim(setup);
    sim.context = "stopped after " + std::to_string(n);
    sim.disk(n % 2).stop_after(n);
    bool finished = false;
    if (sim.open().ok()) {
      for (int i = 0; i < 25 && !sim.stopped(); ++i) {
        sim.put_all({{key("a" + std::to_string(i)), 150'000}, {key("b" + std::to_string(i)), 90'000}},
                    {.durable = i % 2 == 0});
      }
      finished = !sim.stopped();
    }
    sim.crash(n % 4 < 2);
    sim.reopen_and_judge();
    if (finished || HasFailure()) return;
  }
}

// ---- the answers of open are kept apart ------------------------------------------------------------------------

TEST_F(Opening, NoStoreAForeignOneACorruptOneAndTryAgain) {
  ManualClock clock;
  SeededRandom random(5);
  StoreOptions options;
  options.threaded = false;
  options.clock = &clock;
  options.random = &random;
  const auto open_disk = [&](SimDisk& disk) {
    std::vector<std::unique_ptr<device::Device>> devices;
    devices.push_back(device::make_sim_device(disk, {}, clock));
    return Store::open_devices(std::move(devices), options).status();
  };
  SimDisk blank(64 * kMiB, 1);
  EXPECT_EQ(open_disk(blank).code(), Code::kNotFound);
  EXPECT_NE(open_disk(blank).message().find("sim:0"), std::string::npos) << "names the path";

  const uint8_t magic[] = {0x53, 0xef};
  blank.poke(1'024 + 56, magic, 2);  // ext4
  EXPECT_EQ(open_disk(blank).code(), Code::kForeign) << open_disk(blank).to_string();

  SimStore sim(pool_of(1));
  for (const uint64_t offset : sim.geometry().superblock_offsets()) {
    const uint8_t noise = 0xee;
    sim.disk().poke(offset + 100, &noise, 1);
  }
  EXPECT_EQ(open_with(sim, {0}).status().code(), Code::kCorrupt);

  SimStore unreadable(pool_of(1));
  for (const uint64_t offset : unreadable.geometry().superblock_offsets()) {
    unreadable.disk().add_rule(rule_of(SimFault::kError, IoOp::kRead, offset, offset + 1, kForEver));
  }
  EXPECT_EQ(open_with(unreadable, {0}).status().code(), Code::kBusy);
}

TEST_F(Opening, AResizedDeviceOrACopyOnAnotherIsRefused) {
  SimStore sim(pool_of(1));
  sim.disk().resize(sim.disk().size_bytes() + kMiB);
  EXPECT_FALSE(open_with(sim, {0}).ok());

  SimStore original(pool_of(1));
  SimDisk copy(original.disk().size_bytes(), 4'711);  // another serial number
  std::vector<uint8_t> bytes(40 * kMiB);
  bytes.resize(std::min<uint64_t>(bytes.size(), copy.size_bytes()));
  original.disk().peek(0, bytes.data(), bytes.size());
  copy.poke(0, bytes.data(), bytes.size());
  std::vector<std::unique_ptr<device::Device>> devices;
  devices.push_back(device::make_sim_device(copy, {}, original.clock()));
  EXPECT_EQ(Store::open_devices(std::move(devices), original.options()).status().code(), Code::kOtherStore);
}

TEST_F(Opening, FlagsOfALaterVersion) {
  SimStore sim(pool_of(1));
  rewrite_superblock(sim, [](format::Superblock& superblock) { superblock.compat_flags = 1u << 20; });
  EXPECT_TRUE(open_with(sim, {0}).ok()) << "compat: of no consequence";

  rewrite_superblock(sim, [](format::Superblock& superblock) { superblock.ro_compat_flags = 1u << 20; });
  EXPECT_EQ(open_with(sim, {0}).status().code(), Code::kUnsupported);
  sim.setup().store.read_only = true;
  EXPECT_TRUE(open_with(sim, {0}).ok()) << "ro_compat: may be read";
  sim.setup().store.read_only = false;

  rewrite_superblock(sim, [](format::Superblock& superblock) { superblock.incompat_flags |= 1u << 20; });
  EXPECT_EQ(open_with(sim, {0}).status().code(), Code::kUnsupported);
  sim.setup().store.read_only = true;
  EXPECT_EQ(open_with(sim, {0}).status().code(), Code::kUnsupported) << "incompat: not even that";
}

TEST_F(Opening, OwnerModeRefusesASharedStore) {
  SimStore sim(pool_of(1));
  rewrite_superblock(sim, [](format::Superblock& superblock) { superblock.shared_mode = true; });
  EXPECT_EQ(open_with(sim, {0}).status().code(), Code::kFenced);
}

TEST_F(Opening, OptionsOutOfRangeAreRefusedByName) {
  SimStore sim(pool_of(1));
  const auto refusal = [&](auto change) {
    const StoreOptions before = sim.setup().store;
    change(sim.setup().store);
    const Status status = open_with(sim, {0}).status();
    sim.setup().store = before;
    EXPECT_EQ(status.code(), Code::kInvalid);
    return status.message();
  };
  EXPECT_NE(refusal([](StoreOptions& options) { options.window_bytes = 4'096; }).find("window_bytes"),
            std::string::npos);
  EXPECT_NE(refusal([](StoreOptions& options) { options.staging_bytes = kMiB; }).find("staging_bytes"),
            std::string::npos);
  EXPECT_NE(refusal([](StoreOptions& options) { options.jobs_max = 0; }).find("jobs_max"), std::string::npos);
  EXPECT_NE(refusal([](StoreOptions& options) { options.heartbeat_ns = 0; }).find("heartbeat"), std::string::npos);
  EXPECT_NE(refusal([](StoreOptions& options) { options.index_blocks_max = UINT64_MAX; }).find("index_blocks_max"),
            std::string::npos);
  EXPECT_NE(refusal([](StoreOptions& options) { options.io_timeout_ns = 1; }).find("io_timeout"), std::string::npos);
}

// write_seq orders copies of a block on different members.
TEST_F(Opening, MembersOfUnequalEpochsAreClaimedWithOneAndNobodyWaits) {
  SimStore sim(pool_of(2));
  rewrite_superblock(sim, [](format::Superblock& superblock) { superblock.owner.epoch = 9; });
  const uint64_t before_ns = sim.clock().monotonic_ns();
  ASSERT_TRUE(sim.open().ok());
  EXPECT_LT(sim.clock().monotonic_ns() - before_ns, 1'000'000'000u);
  for (const format::Superblock& superblock : sim.store().superblocks()) EXPECT_EQ(superblock.owner.epoch, 10u);
}

// write_seq is made of it: one more would order later copies of a block before earlier ones.
TEST_F(Opening, AnEpochBeyondTheLastIsRefused) {
  SimStore sim(pool_of(1));
  rewrite_superblock(sim, [](format::Superblock& superblock) { superblock.owner.epoch = (1u << 24) - 1; });
  EXPECT_EQ(open_with(sim, {0}).status().code(), Code::kCorrupt);
  rewrite_superblock(sim, [](format::Superblock& superblock) {
    superblock.owner.epoch = (1u << 24) - 2;
    superblock.sequence = 2'000;
  });
  EXPECT_TRUE(open_with(sim, {0}).ok());
}

TEST_F(Opening, OneSuperblockCopyMayBeBadForGood) {
  for (uint32_t copy = 0; copy < 4; ++copy) {
    SimStore sim(pool_of(1));
    const uint64_t offset = sim.geometry().superblock_offsets()[copy];
    for (const IoOp op : {IoOp::kRead, IoOp::kWrite}) {
      sim.disk().add_rule(rule_of(SimFault::kError, op, offset, offset + 1, kForEver));
    }
    ASSERT_TRUE(sim.open().ok());
    sim.put(key("a"), 10'000, {.durable = true});
    sim.advance_ns(1'100'000'000);
    sim.run_idle();
    EXPECT_EQ(sim.put(key("b"), 10'000, {.durable = true}).status, ItemStatus::kStored);
    EXPECT_TRUE(sim.close().ok());
    sim.reopen_and_judge();
  }
}

TEST_F(Opening, AnEmptyStoreOpensAndClosesAndSaysSo) {
  SimStore sim(pool_of(1));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(sim.open().ok());
    EXPECT_EQ(sim.number("blocks"), 0);
    EXPECT_EQ(sim.get(key("a")).status, ItemStatus::kMiss);
    int listed = 0;
    EXPECT_TRUE(sim.store().list_blocks([&](const std::string&, const BlockInfo&) { return ++listed > 0; }).ok());
    EXPECT_EQ(listed, 0);
    EXPECT_TRUE(sim.close().ok());
  }
}

}  // namespace
}  // namespace kvstore::store
