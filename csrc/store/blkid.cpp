// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/blkid.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <optional>

namespace kvstore::store {
namespace {

// Not searched on PATH: format runs as root.
constexpr const char* kPrograms[] = {"/usr/sbin/blkid", "/sbin/blkid", "/usr/bin/blkid", "/bin/blkid"};
constexpr size_t kOutputBytesMax = 64 * 1024;
constexpr int kExitAmbivalent = 8;  // two file systems, one over the other; nothing is printed then

// Of the program's answer, not of the store: the injected Clock does not move another process.
class Deadline {
 public:
  explicit Deadline(uint64_t timeout_ms)
      : end_(std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms)) {}
  int left_ms() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now());
    return left.count() > 0 ? static_cast<int>(left.count()) : 0;
  }

 private:
  std::chrono::steady_clock::time_point end_;
};

const char* find_program() {
  for (const char* program : kPrograms) {
    if (access(program, X_OK) == 0) return program;
  }
  return nullptr;
}

std::optional<pid_t> spawn(const char* program, const std::string& path, int output_fd) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output_fd, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string arguments[] = {"blkid", "-p", "-o", "export", "--", path};
  char* argv[] = {arguments[0].data(),
                  arguments[1].data(),
                  arguments[2].data(),
                  arguments[3].data(),
                  arguments[4].data(),
                  arguments[5].data(),
                  nullptr};
  char language[] = "LC_ALL=C";
  char* environment[] = {language, nullptr};
  pid_t pid = -1;
  const int error = posix_spawn(&pid, program, &actions, nullptr, argv, environment);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return std::nullopt;
  return pid;
}

// False when the time is up or the output is absurdly long.
bool read_all(int fd, const Deadline& deadline, std::string& output) {
  char buffer[4096];
  while (output.size() < kOutputBytesMax) {
    pollfd waiting{fd, POLLIN, 0};
    const int ready = poll(&waiting, 1, deadline.left_ms());
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t bytes = read(fd, buffer, sizeof(buffer));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return false;
    if (bytes == 0) return true;
    output.append(buffer, static_cast<size_t>(bytes));
  }
  return false;
}

// Exit code; nothing when it was killed, or when somebody else in this process reaps children. A killed program that
// sleeps in the device cannot be reaped yet: left behind as a zombie rather than waited for.
std::optional<int> reap(pid_t pid, const Deadline& deadline) {
  while (true) {
    int status = 0;
    const pid_t done = waitpid(pid, &status, WNOHANG);
    if (done == pid) return WIFEXITED(status) ? std::optional<int>(WEXITSTATUS(status)) : std::nullopt;
    if (done < 0 && errno != EINTR) return std::nullopt;
    if (deadline.left_ms() == 0) return std::nullopt;
    poll(nullptr, 0, 1);
  }
}

std::string printable(const std::string& text) {
  std::string cleaned = text.substr(0, 64);
  for (char& c : cleaned) {
    if (c < 0x20 || c >= 0x7f) c = '?';
  }
  return cleaned;
}

}  // namespace

std::string ask_blkid(const std::string& path, uint64_t timeout_ms) {
  const char* const program = find_program();
  int pipe_fds[2];
  if (program == nullptr || pipe2(pipe_fds, O_CLOEXEC) != 0) return "";
  const std::optional<pid_t> pid = spawn(program, path, pipe_fds[1]);
  close(pipe_fds[1]);
  std::string output;
  bool complete = false;
  std::optional<int> exit_code;
  if (pid) {
    complete = read_all(pipe_fds[0], Deadline(timeout_ms), output);
    if (!complete) kill(*pid, SIGKILL);
    exit_code = reap(*pid, Deadline(1000));
  }
  close(pipe_fds[0]);
  if (!complete) return "";
  if (exit_code == kExitAmbivalent) return "signatures of several things at once";
  return parse_blkid_export(output);
}

std::string parse_blkid_export(const std::string& output) {
  std::map<std::string, std::string> fields;
  size_t start = 0;
  while (start < output.size()) {
    const size_t end = std::min(output.find('\n', start), output.size());
    const std::string line = output.substr(start, end - start);
    if (const size_t equals = line.find('='); equals != std::string::npos) {
      fields.emplace(line.substr(0, equals), line.substr(equals + 1));
    }
    start = end + 1;
  }
  if (const auto type = fields.find("TYPE"); type != fields.end()) {
    const auto usage = fields.find("USAGE");
    const bool is_file_system = usage == fields.end() || usage->second == "filesystem";
    return printable(type->second) + (is_file_system ? " file system" : " (" + printable(usage->second) + ")");
  }
  if (const auto table = fields.find("PTTYPE"); table != fields.end()) {
    return printable(table->second) + " partition table";
  }
  return "";
}

}  // namespace kvstore::store
