// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a round of work that takes longer than its caller waits at a time ends the wait all the same; a wait that is
// interrupted ends at once, one whose time is over in time.
// Method: rounds that end when the caller has been asked often enough, so that no clock decides.

#include "store/tickets.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace kvstore::store {
namespace {

constexpr uint64_t kLongNs = 60'000'000'000;
constexpr uint64_t kShortNs = 1'000'000;

class TicketsTest : public testing::Test {
 protected:
  Code wait(uint64_t timeout_ns, const Interrupted& interrupted) {
    std::unique_lock lock(mutex_);
    const uint64_t ticket = tickets_.take();
    changed_.notify_all();
    return tickets_.wait(lock, changed_, ticket, timeout_ns, running_, interrupted);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Tickets tickets_;
  bool running_ = true;
  uint64_t asked_ = 0;
};

TEST_F(TicketsTest, ARoundThatOutlastsThreeInterruptionsIsTheOneThatWasAskedFor) {
  std::thread rounds([this] {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tickets_.wanted(); });
    const uint64_t ticket = tickets_.last();
    changed_.wait(lock, [this] { return asked_ == 3; });
    tickets_.call_done(ticket);
    changed_.notify_all();
  });
  const Code code = wait(kLongNs, [this] {
    std::lock_guard lock(mutex_);  // asked without it
    ++asked_;
    changed_.notify_all();
    return false;
  });
  rounds.join();
  EXPECT_EQ(code, Code::kOk);
  EXPECT_EQ(asked_, 3u);
}

TEST_F(TicketsTest, WhoIsInterruptedWaitsNoLonger) {
  EXPECT_EQ(wait(UINT64_MAX, [this] { return ++asked_ == 2; }), Code::kTimeout);
  EXPECT_EQ(asked_, 2u);
}

TEST_F(TicketsTest, ATimeThatIsOverEndsTheWaitAndNobodyIsAskedForIt) {
  EXPECT_EQ(wait(kShortNs, {}), Code::kTimeout);
  EXPECT_EQ(wait(kShortNs, [this] { return ++asked_ != 0; }), Code::kTimeout);
  EXPECT_EQ(wait(0, {}), Code::kTimeout);
  EXPECT_EQ(asked_, 0u);
}

TEST_F(TicketsTest, WhereNobodyDoesRoundsAnyMoreTheWaitIsClosed) {
  running_ = false;
  EXPECT_EQ(wait(UINT64_MAX, {}), Code::kClosed);
}

}  // namespace
}  // namespace kvstore::store
