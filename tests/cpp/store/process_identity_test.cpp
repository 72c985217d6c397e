// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// S5: an opener is called gone only where that is certain.

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

#include "store/process_identity.h"

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
  int from_child[2];
  int to_child[2];
  ASSERT_EQ(pipe(from_child), 0);
  ASSERT_EQ(pipe(to_child), 0);
  const pid_t child = fork();
  if (child == 0) {
    const uint64_t start = this_process(me.host).process_start;
    char byte = 0;
    const bool ok = write(from_child[1], &start, sizeof start) == sizeof start && read(to_child[0], &byte, 1) == 1;
    _exit(ok ? 0 : 1);
  }
  cluster::Opener other = me;
  other.process_id = static_cast<uint64_t>(child);
  ASSERT_EQ(read(from_child[0], &other.process_start, sizeof other.process_start),
            static_cast<ssize_t>(sizeof other.process_start));
  EXPECT_FALSE(is_certainly_gone(other, me));
  cluster::Opener earlier = other;
  earlier.process_start += 1;
  EXPECT_TRUE(is_certainly_gone(earlier, me)) << "its id is another process's now";
  ASSERT_EQ(write(to_child[1], "x", 1), 1);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);  // a zombie now
  EXPECT_TRUE(is_certainly_gone(other, me));
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(is_certainly_gone(other, me));
  for (const int end : {from_child[0], from_child[1], to_child[0], to_child[1]}) close(end);
}

TEST_F(ProcessIdentity, S5_WhenNoFileCanBeOpenedNothingIsKnownOfAProcessThatIsThere) {
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  rlimit none = usual;
  none.rlim_cur = 0;
  cluster::Opener ended = me;
  ended.process_id = 999'999'999;  // there is no such process here
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool living_is_gone = is_certainly_gone(me, me);
  const bool ended_is_gone = is_certainly_gone(ended, me);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_FALSE(living_is_gone);
  EXPECT_TRUE(ended_is_gone) << "that takes no file";
}

// Its other threads go on writing, and its entry in /proc has the first one's state.
TEST_F(ProcessIdentity, AProcessWhoseFirstThreadEndedIsNotGone) {
  int from_child[2];
  int to_child[2];
  ASSERT_EQ(pipe(from_child), 0);
  ASSERT_EQ(pipe(to_child), 0);
  const pid_t child = fork();
  if (child == 0) {
    const uint64_t start = this_process(me.host).process_start;
    std::thread([&, start] {
      std::string stat;
      while (stat.find(") Z ") == std::string::npos) {
        sched_yield();
        std::ifstream file("/proc/self/stat");
        std::getline(file, stat);
      }
      char byte = 0;
      const bool ok = write(from_child[1], &start, sizeof start) == sizeof start && read(to_child[0], &byte, 1) == 1;
      _exit(ok ? 0 : 1);
    }).detach();
    syscall(SYS_exit, 0);
  }
  cluster::Opener other = me;
  other.process_id = static_cast<uint64_t>(child);
  ASSERT_EQ(read(from_child[0], &other.process_start, sizeof other.process_start),
            static_cast<ssize_t>(sizeof other.process_start));
  EXPECT_FALSE(is_certainly_gone(other, me));
  ASSERT_EQ(write(to_child[1], "x", 1), 1);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(is_certainly_gone(other, me));
  for (const int end : {from_child[0], from_child[1], to_child[0], to_child[1]}) close(end);
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
