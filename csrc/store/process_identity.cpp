// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Which process an opener is, and whether it is certainly gone (S5). "Gone" is said only of the same host: when its
// kernel was started anew since, or, seen from the same process id namespace, no process has that id and start time. A
// process id in another container's namespace means nothing here.

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "store/shared_pool.h"

namespace kvstore::store {

namespace {

constexpr int kStartTimeField = 22;  // of /proc/<pid>/stat, see proc(5)

std::string read_text(const std::string& path) {
  char text[1024] = {};
  FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return {};
  const size_t bytes = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  return {text, bytes};
}

// 0: there is no such process, or it is a zombie, which has let go of everything.
uint64_t process_start(uint64_t process_id) {
  const std::string stat = read_text("/proc/" + std::to_string(process_id) + "/stat");
  // The command in parentheses may hold spaces and parentheses of its own.
  const size_t command_end = stat.rfind(')');
  if (command_end == std::string::npos || command_end + 2 >= stat.size()) return 0;
  const char state = stat[command_end + 2];
  if (state == 'Z' || state == 'X') return 0;
  size_t at = command_end + 2;
  for (int field = 3; field < kStartTimeField; ++field) {
    at = stat.find(' ', at);
    if (at == std::string::npos) return 0;
    ++at;
  }
  return std::strtoull(stat.c_str() + at, nullptr, 10);
}

}  // namespace

cluster::Opener this_process(const format::Uuid& host) {
  cluster::Opener me;
  me.host = host;
  std::string boot = read_text("/proc/sys/kernel/random/boot_id");
  if (!boot.empty() && boot.back() == '\n') boot.pop_back();
  me.boot = format::parse_uuid(boot).value_or(format::Uuid{});
  struct stat space{};
  if (stat("/proc/self/ns/pid", &space) == 0) me.process_namespace = space.st_ino;
  me.process_id = static_cast<uint64_t>(getpid());
  me.process_start = process_start(me.process_id);
  return me;
}

bool is_certainly_gone(const cluster::Opener& opener, const cluster::Opener& me) {
  const bool known = opener.process_id != 0 && opener.process_start != 0 && opener.boot != format::Uuid{};
  if (!known || opener.host != me.host || opener.host == format::Uuid{}) return false;
  if (opener.boot != me.boot) return me.boot != format::Uuid{};
  if (opener.process_namespace != me.process_namespace || opener.process_namespace == 0) return false;
  return process_start(opener.process_id) != opener.process_start;
}

}  // namespace kvstore::store
