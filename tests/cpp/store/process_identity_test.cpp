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
#include <functional>
#include <string>
#include <thread>

#include "store/process_identity.h"

namespace kvstore::store {
namespace {

// A process that says when it started, and ends when it is told to.
class Child {
 public:
  // `run` is what the child does; it ends in tell_and_wait(), in whatever thread.
  explicit Child(const std::function<void(Child&)>& run) {
    EXPECT_EQ(pipe(from_child_), 0);
    EXPECT_EQ(pipe(to_child_), 0);
    pid = fork();
    if (pid == 0) run(*this);
  }
  ~Child() {
    for (const int end : {from_child_[0], from_child_[1], to_child_[0], to_child_[1]}) close(end);
  }
  [[noreturn]] void tell_and_wait(uint64_t start) {
    char byte = 0;
    const bool ok = write(from_child_[1], &start, sizeof start) == sizeof start && read(to_child_[0], &byte, 1) == 1;
    _exit(ok ? 0 : 1);
  }
  // As it would be known to `me`, of the same host; waits for what it says.
  cluster::Opener opener(cluster::Opener me) {
    me.process_id = static_cast<uint64_t>(pid);
    EXPECT_EQ(read(from_child_[0], &me.process_start, sizeof me.process_start),
              static_cast<ssize_t>(sizeof me.process_start));
    return me;
  }
  void let_go() { EXPECT_EQ(write(to_child_[1], "x", 1), 1); }

  pid_t pid = -1;

 private:
  int from_child_[2]{};
  int to_child_[2]{};
};

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
  Child child([this](Child& self) { self.tell_and_wait(this_process(me.host).process_start); });
  const cluster::Opener other = child.opener(me);
  EXPECT_FALSE(is_certainly_gone(other, me));
  cluster::Opener earlier = other;
  earlier.process_start += 1;
  EXPECT_TRUE(is_certainly_gone(earlier, me)) << "its id is another process's now";
  child.let_go();
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOWAIT), 0);  // a zombie now
  EXPECT_TRUE(is_certainly_gone(other, me));
  ASSERT_EQ(waitpid(child.pid, nullptr, 0), child.pid);
  EXPECT_TRUE(is_certainly_gone(other, me));
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
  Child child([this](Child& self) {
    const uint64_t start = this_process(me.host).process_start;
    std::thread([&self, start] {
      std::string stat;
      while (stat.find(") Z ") == std::string::npos) {
        sched_yield();
        std::ifstream file("/proc/self/stat");
        std::getline(file, stat);
      }
      self.tell_and_wait(start);
    }).detach();
    syscall(SYS_exit, 0);
  });
  const cluster::Opener other = child.opener(me);
  EXPECT_FALSE(is_certainly_gone(other, me));
  child.let_go();
  ASSERT_EQ(waitpid(child.pid, nullptr, 0), child.pid);
  EXPECT_TRUE(is_certainly_gone(other, me));
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
