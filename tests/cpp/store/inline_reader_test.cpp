// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what the caller's own thread reads is a hit only if every byte came and, where that is asked for, verifies (I5,
// I9); anything else is left to the engine, which knows what to do about it.
// Method: payloads poked into a simulated disk that rots, stops short and refuses, resolved by hand as the catalog
// does.

#include "store/inline_reader.h"

#include <gtest/gtest.h>

#include "store/sim_harness.h"

namespace kvstore::store {
namespace {

using device::IoOp;
using device::SimFault;

const Name kName{"block", "salt", 0};
constexpr uint64_t kOffset = 64 * kKiB;

class OnTheCallersThread : public ::testing::Test {
 protected:
  InlineReaders::Outcome read(uint64_t bytes, bool verify = true) {
    std::vector<uint8_t> payload(bytes);
    fill_payload(kName, 1, 0, payload.data(), bytes);
    disk_.poke(kOffset, payload.data(), bytes);
    buffers_ = std::make_unique<Buffers>(bytes, Layout{});
    Item item;
    item.segments = buffers_->segments();
    item.segment_count = buffers_->segment_count();
    item.segment_bytes = bytes;
    item.payload_bytes = item.wanted_bytes = bytes;
    item.place.offset_bytes = kOffset;
    item.space_digest = &space_;
    item.salt = kName.salt;
    item.key = format::make_stored_key(kName.key);
    item.checksum = block_checksum({space_, item.salt, item.key.view()}, payload.data(), bytes);
    item.verify = verify;
    return readers_.read(item);
  }
  bool right_bytes() const { return buffers_->guards_intact() && buffers_->holds(kName, 1, 0, buffers_->bytes()); }
  void add_rule(SimFault fault, uint64_t value = 0) {
    disk_.add_rule(rule_of(fault, IoOp::kRead, 0, UINT64_MAX, 1, 0, value));
  }

  device::SimDisk disk_{8 * kMiB, 5};
  std::unique_ptr<device::Device> device_ = device::make_sim_device(disk_, {}, system_clock());
  Counters counters_;
  InlineReaders readers_{{device_.get()}, counters_};
  SpaceDigest space_{};
  std::unique_ptr<Buffers> buffers_;
};

TEST_F(OnTheCallersThread, EverySizeUpToTheLargestIsReadWhole) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{4096}, uint64_t{100'001}, 3 * kMiB + 5, 4 * kMiB}) {
    EXPECT_EQ(read(bytes), InlineReaders::Outcome::kHit) << bytes;
    EXPECT_TRUE(right_bytes()) << bytes;
  }
  EXPECT_EQ(readers_.reading(), 0u);
}

TEST_F(OnTheCallersThread, I5_AFlippedBitIsNoHit) {
  for (const uint64_t bytes : {uint64_t{100'000}, 2 * kMiB}) {
    add_rule(SimFault::kBitRot, 99'999);
    EXPECT_EQ(read(bytes), InlineReaders::Outcome::kTryEngine) << bytes;
    EXPECT_EQ(read(bytes), InlineReaders::Outcome::kHit) << "the medium is sound";
  }
}

TEST_F(OnTheCallersThread, I5_WhatIsNotToBeVerifiedIsNot) {
  add_rule(SimFault::kBitRot, 99'999);
  EXPECT_EQ(read(100'000, false), InlineReaders::Outcome::kHit);
  EXPECT_FALSE(right_bytes());
}

// With nothing to verify the count is all that tells.
TEST_F(OnTheCallersThread, I9_AShortReadIsNoHitThoughNothingIsVerified) {
  add_rule(SimFault::kShort, 4096);
  EXPECT_EQ(read(100'000, false), InlineReaders::Outcome::kTryEngine);
}

TEST_F(OnTheCallersThread, I9_AReadErrorOfOnePieceIsNoHit) {
  add_rule(SimFault::kError);
  EXPECT_EQ(read(3 * kMiB, false), InlineReaders::Outcome::kTryEngine);
  EXPECT_EQ(read(3 * kMiB, false), InlineReaders::Outcome::kHit);
}

}  // namespace
}  // namespace kvstore::store
