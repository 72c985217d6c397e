// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/process_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

#include "base/mutation.h"
#include "base/small_file.h"

namespace kvstore::store {

namespace {

// Of /proc/<pid>/stat, see proc(5). The start time is two after the number of threads.
constexpr int kStateField = 3;
constexpr int kThreadsField = 20;

struct ProcessFacts {
  uint64_t start = 0;
  bool has_ended = false;  // a zombie, which has let go of everything
};

// nullopt: it could not be read, which is no news of the process.
std::optional<ProcessFacts> read_process(uint64_t process_id) {
  // A /proc that was mounted for another namespace counts processes differently.
  char self[32] = {};
  if (readlink("/proc/self", self, sizeof self - 1) <= 0 || self != std::to_string(getpid())) return std::nullopt;
  const std::string stat = read_small_file("/proc/" + std::to_string(process_id) + "/stat");
  // The command in parentheses may hold spaces and parentheses of its own.
  const size_t command_end = stat.rfind(')');
  if (command_end == std::string::npos) return std::nullopt;
  std::istringstream fields(stat.substr(command_end + 1));
  std::string state;
  uint64_t threads = 0;
  ProcessFacts facts;
  fields >> state;
  std::string skipped;
  for (int field = kStateField + 1; field < kThreadsField; ++field) fields >> skipped;
  fields >> threads >> skipped >> facts.start;
  if (!fields) return std::nullopt;
  // The first thread may end before the others, and is such a zombie too.
  facts.has_ended = state == "X" || (state == "Z" && threads <= 1);
  return facts;
}

}  // namespace

cluster::Opener this_process(const format::Uuid& host) {
  cluster::Opener me;
  me.host = host;
  std::string boot = read_small_file("/proc/sys/kernel/random/boot_id");
  if (!boot.empty() && boot.back() == '\n') boot.pop_back();
  me.boot = format::parse_uuid(boot).value_or(format::Uuid{});
  struct stat space{};
  if (stat("/proc/self/ns/pid", &space) == 0) me.process_namespace = space.st_ino;
  me.process_id = static_cast<uint64_t>(getpid());
  if (const auto facts = read_process(me.process_id)) me.process_start = facts->start;
  return me;
}

bool is_certainly_gone(const cluster::Opener& opener, const cluster::Opener& me) {
  const bool known = opener.process_id != 0 && opener.process_start != 0 && opener.boot != format::Uuid{};
  if (!known || opener.host != me.host || opener.host == format::Uuid{}) return false;
  if (opener.boot != me.boot) return me.boot != format::Uuid{};
  if (opener.process_namespace != me.process_namespace || opener.process_namespace == 0) return false;
  if (opener.process_id > static_cast<uint64_t>(std::numeric_limits<pid_t>::max())) return false;
  if (kill(static_cast<pid_t>(opener.process_id), 0) == -1 && errno == ESRCH) return true;
  const auto facts = read_process(opener.process_id);
  // Too many open files, too little memory, a /proc that hides others: all that says nothing of the opener.
  if (!facts) return !KVS_RULE(S5_what_cannot_be_read_proves_nothing);
  return facts->has_ended || facts->start != opener.process_start;
}

}  // namespace kvstore::store
