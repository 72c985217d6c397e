// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: when the engine's own queue fails (not a request: the queue), nobody waits for ever. What has no piece in the
// device is answered, what has one keeps its buffer (I11), the store takes no further work and its blocks stay as they
// were for the next opening.
// Method: a simulated device whose queues, told so, refuse to be polled or to take requests.

#include <gtest/gtest.h>

#include <atomic>

#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

Name key(const std::string& text) { return {text, "", 0}; }

struct Trouble {
  bool polls_fail = false;
  bool refuses = false;
  std::atomic<int> queues_left{1'000'000};  // that can still be made
};

class TroubledQueue final : public device::IoQueue {
 public:
  TroubledQueue(std::unique_ptr<device::IoQueue> queue, const Trouble& trouble)
      : queue_(std::move(queue)), trouble_(trouble) {}
  bool submit(device::IoRequest* request) override { return !trouble_.refuses && queue_->submit(request); }
  Status kick() override { return queue_->kick(); }
  Result<uint32_t> poll(std::span<device::IoRequest*> completed, uint64_t timeout_ns, uint32_t wait_for) override {
    if (trouble_.polls_fail) return Status(Code::kIo, "the ring is broken");
    return queue_->poll(completed, timeout_ns, wait_for);
  }
  void wake() override { queue_->wake(); }
  Status register_buffers(std::span<const iovec> buffers) override { return queue_->register_buffers(buffers); }
  uint32_t in_flight() const override { return queue_->in_flight(); }
  uint32_t depth() const override { return queue_->depth(); }

 private:
  std::unique_ptr<device::IoQueue> queue_;
  const Trouble& trouble_;
};

// All queues of the device are in trouble together, as they are where the kernel refuses.
class TroubledDevice final : public device::Device {
 public:
  TroubledDevice(std::unique_ptr<device::Device> device, Trouble& trouble)
      : device_(std::move(device)), trouble_(trouble) {}
  const device::DeviceInfo& info() const override { return device_->info(); }
  Result<std::unique_ptr<device::IoQueue>> make_queue(std::span<device::Device* const>,
                                                      const device::QueueOptions& options) override {
    if (trouble_.queues_left-- <= 0) return Status(Code::kUnsupported, "no further ring", ENOMEM);
    device::Device* const devices[] = {device_.get()};
    KVS_ASSIGN(auto queue, device_->make_queue(devices, options));
    return std::unique_ptr<device::IoQueue>(std::make_unique<TroubledQueue>(std::move(queue), trouble_));
  }

 private:
  std::unique_ptr<device::Device> device_;
  Trouble& trouble_;
};

class QueueTrouble : public ::testing::Test {
 protected:
  void SetUp() override {
    // A block of the life before, by the ordinary device.
    ASSERT_TRUE(sim_.open().ok());
    sim_.put(key("a"), 100'000, {.durable = true});
    info_ = sim_.describe(key("a"));
    ASSERT_TRUE(sim_.close().ok());
    std::vector<std::unique_ptr<device::Device>> devices;
    devices.push_back(std::make_unique<TroubledDevice>(sim_.make_device(0), trouble_));
    store_ = Store::open_devices(std::move(devices), sim_.options()).value();
    space_ = store_->register_space(SimStore::space_json(0)).value();
  }
  JobRef start_get(Buffers& target) {
    const GetItem item{space_, {}, "a", target.segments(), target.segment_count(), 0, kWholeBlock};
    return store_->get({&item, 1}, {}, nullptr).value();
  }
  JobRef start_put(const Buffers& source, const std::string& name) {
    PutItem item;
    item.space = space_;
    item.key = name;
    item.segments = source.segments();
    item.segment_count = source.segment_count();
    return store_->put({&item, 1}, {}, nullptr).value();
  }
  void step(int times = 200) {
    for (int i = 0; i < times; ++i) store_->step();
  }
  // The disk of the next opening: what is stuck in it lands, late.
  void open_again() {
    trouble_.polls_fail = trouble_.refuses = false;
    store_.reset();
    sim_.crash(true);
    sim_.reopen_and_judge();
    EXPECT_TRUE(sim_.get(key("a")).succeeded());
  }

  SimStore sim_;
  Trouble trouble_;
  std::unique_ptr<Store> store_;
  SpaceId space_;
  BlockInfo info_;
};

TEST_F(QueueTrouble, JobsThatWaitAreAnsweredWhenTheQueueFailsAndNoneIsTakenAfter) {
  trouble_.polls_fail = true;
  Buffers target(100'000, {}), source(100'000, {});
  JobRef put = start_put(source, "b");  // needs a region: it waits
  step();
  EXPECT_TRUE(put->done());
  EXPECT_EQ(put->result(0).status, ItemStatus::kError);
  EXPECT_EQ(put->result(0).code, Code::kIo);
  JobRef get = start_get(target);
  step();
  EXPECT_TRUE(get->done()) << "offline: nothing is there any more";
  EXPECT_NE(get->result(0).status, ItemStatus::kHit);
  EXPECT_TRUE(target.untouched_from(0));
  open_again();
}

TEST_F(QueueTrouble, I11_AReadInTheDeviceKeepsItsBufferWhenTheQueueFails) {
  sim_.disk().add_rule(rule_of(SimFault::kStuck, IoOp::kRead, info_.offset_bytes, info_.offset_bytes + 1));
  Buffers target(100'000, {});
  JobRef get = start_get(target);
  step();
  ASSERT_EQ(sim_.disk().stuck_count(), 1u);
  trouble_.polls_fail = true;
  step();
  EXPECT_FALSE(get->done()) << "the device may still write there";
  const Status status = store_->close(1'000'000'000);
  EXPECT_EQ(status.code(), Code::kTimeout) << status.to_string();
  EXPECT_FALSE(get->done());
  EXPECT_TRUE(get->abandoned());
  open_again();
}

TEST_F(QueueTrouble, ARequestThatTheQueueDoesNotTakeIsAnErrorOfItsItem) {
  Buffers target(100'000, {});
  trouble_.refuses = true;
  JobRef get = start_get(target);
  step();
  ASSERT_TRUE(get->done());
  EXPECT_EQ(get->result(0).status, ItemStatus::kError);
  trouble_.refuses = false;
  get = start_get(target);
  step();
  ASSERT_TRUE(get->done());
  EXPECT_EQ(get->result(0).status, ItemStatus::kHit);
  EXPECT_TRUE(target.holds(key("a"), 1, 0, 100'000));
  EXPECT_TRUE(store_->close(1'000'000'000).ok());
  open_again();
}

// Whichever thread it was for: that of an engine, of a keeper, of recovery.
TEST_F(QueueTrouble, AQueueThatCannotBeMadeEndsTheOpeningWithItsReason) {
  ASSERT_TRUE(store_->close(1'000'000'000).ok());
  store_.reset();
  for (int queues = 0; queues < 50; ++queues) {
    trouble_.queues_left = queues;
    std::vector<std::unique_ptr<device::Device>> devices;
    devices.push_back(
        std::make_unique<TroubledDevice>(device::make_sim_device(sim_.disk(), {}, system_clock()), trouble_));
    auto opened = Store::open_devices(std::move(devices), StoreOptions{});
    if (opened.ok()) {
      EXPECT_GE(queues, 4) << "at least: the superblock, the claim, an engine, a keeper";
      EXPECT_TRUE(opened.value()->close(1'000'000'000).ok());
      return;
    }
    EXPECT_EQ(opened.status().code(), Code::kUnsupported) << queues << ": " << opened.status().to_string();
    EXPECT_EQ(opened.status().io_errno(), ENOMEM);
  }
  FAIL() << "50 queues were not enough";
}

}  // namespace
}  // namespace kvstore::store
