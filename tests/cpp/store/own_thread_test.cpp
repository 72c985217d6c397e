// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a thread that cannot be had is a Status, and leaves nothing behind.
// Method: threads are asked to have a stack that no address space has room for.

#include "store/own_thread.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <cerrno>

namespace kvstore::store {
namespace {

class StacksOf {
 public:
  explicit StacksOf(size_t bytes) {
    pthread_attr_t attributes;
    pthread_getattr_default_np(&attributes);
    pthread_attr_getstacksize(&attributes, &before_);
    set(attributes, bytes);
  }
  ~StacksOf() {
    pthread_attr_t attributes;
    pthread_getattr_default_np(&attributes);
    set(attributes, before_);
  }
  StacksOf(const StacksOf&) = delete;

 private:
  static void set(pthread_attr_t& attributes, size_t bytes) {
    EXPECT_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
    EXPECT_EQ(pthread_setattr_default_np(&attributes), 0);
    pthread_attr_destroy(&attributes);
  }
  size_t before_ = 0;
};

TEST(OwnThread, AThreadThatIsRefusedIsAStatusAndTheWorkIsNotRun) {
  OwnThread thread;
  int runs = 0;
  {
    const StacksOf no_room(size_t{1} << 60);
    const Status refused = thread.start([&] { ++runs; });
    EXPECT_EQ(refused.code(), Code::kIo);
    EXPECT_EQ(refused.io_errno(), EAGAIN);
  }
  EXPECT_FALSE(thread.started());
  thread.join([] { return false; });  // returns
  EXPECT_EQ(runs, 0);
  EXPECT_TRUE(thread.start([&] { ++runs; }).ok());
  thread.join([] { return false; });
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace kvstore::store
