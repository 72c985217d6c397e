// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// S5: an opener is called gone only where that is certain.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/shared_pool.h"

namespace kvstore::store {
namespace {

class ProcessIdentity : public testing::Test {
 protected:
  ProcessIdentity() {
    format::Uuid host{};
    host.fill(1);
    me = this_process(host);
  }
  cluster::Opener me;
};

TEST_F(ProcessIdentity, ALivingProcessIsNotGone) { EXPECT_FALSE(is_certainly_gone(me, me)); }

TEST_F(ProcessIdentity, AProcessThatEndedIsGoneAlsoWhileItsParentHasNotNoticed) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    (void)!read(pipe_ends[0], &byte, 1);
    _exit(0);
  }
  cluster::Opener other = me;
  other.process_id = static_cast<uint64_t>(child);
  // Its start time is what /proc says of it while it lives: of another value the id was given again.
  EXPECT_TRUE(is_certainly_gone(other, me)) << "the id of another process";
  ASSERT_EQ(write(pipe_ends[1], "x", 1), 1);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);  // a zombie now
  EXPECT_TRUE(is_certainly_gone(other, me));
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(is_certainly_gone(other, me));
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

TEST_F(ProcessIdentity, AHostThatWasStartedAnewHasNoneOfItsProcesses) {
  cluster::Opener other = me;
  other.boot.fill(9);
  EXPECT_TRUE(is_certainly_gone(other, me));
}

TEST_F(ProcessIdentity, NothingIsCertainOfAnotherHostAnotherContainerOrNobody) {
  cluster::Opener other = me;
  other.process_id = 999'999'999;  // there is no such process here
  ASSERT_TRUE(is_certainly_gone(other, me));
  other.host.fill(2);
  EXPECT_FALSE(is_certainly_gone(other, me));
  other = me;
  other.process_id = 999'999'999;
  other.process_namespace += 1;
  EXPECT_FALSE(is_certainly_gone(other, me));
  EXPECT_FALSE(is_certainly_gone(cluster::Opener{}, me));
}

}  // namespace
}  // namespace kvstore::store
