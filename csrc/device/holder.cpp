// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "device/holder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/small_file.h"
#include "base/status.h"
#include "device/block_facts.h"

namespace kvstore::device {
namespace {

constexpr size_t kCommandCharsMax = 120;

struct Directory {
  explicit Directory(const std::string& path) : handle(opendir(path.c_str())) {}
  ~Directory() {
    if (handle != nullptr) closedir(handle);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  DIR* handle;
};

std::vector<std::string> numeric_entries(const std::string& path) {
  std::vector<std::string> names;
  const Directory directory(path);
  if (directory.handle == nullptr) return names;
  while (const dirent* entry = readdir(directory.handle)) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0]))) names.emplace_back(entry->d_name);
  }
  return names;
}

std::string command_of(const std::string& pid) {
  std::string command = read_small_file("/proc/" + pid + "/cmdline");
  std::replace(command.begin(), command.end(), '\0', ' ');
  while (!command.empty() && command.back() == ' ') command.pop_back();
  if (command.empty()) command = read_line("/proc/" + pid + "/comm");
  if (command.size() > kCommandCharsMax) command = command.substr(0, kCommandCharsMax) + "..";
  return command;
}

// When the process started, as "2026-03-01 12:00:00 UTC"; empty when it has just ended.
std::string started_at(const std::string& pid) {
  std::string line = read_line("/proc/" + pid + "/stat");
  const size_t after_name = line.rfind(')');  // the name may hold blanks and brackets
  if (after_name == std::string::npos) return "";
  std::istringstream fields(line.substr(after_name + 1));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;  // field 22 of the line: start time in clock ticks after boot
  const long ticks_per_second = sysconf(_SC_CLK_TCK);
  timespec wall{}, boot{};
  clock_gettime(CLOCK_REALTIME, &wall);
  clock_gettime(CLOCK_BOOTTIME, &boot);
  const long long start_seconds = std::strtoll(field.c_str(), nullptr, 10) / std::max(1L, ticks_per_second);
  const time_t start = static_cast<time_t>(wall.tv_sec - boot.tv_sec + start_seconds);
  tm parts{};
  gmtime_r(&start, &parts);
  char text[32];
  strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

std::string describe_process(const std::string& pid) {
  const std::string since = started_at(pid);
  const std::string self = pid == std::to_string(getpid()) ? "this process, " : "process ";
  return self + pid + " (" + command_of(pid) + ")" + (since.empty() ? "" : ", running since " + since);
}

// The processes that /proc/locks names for the file. Open-file-description locks name nobody (-1).
std::vector<std::string> lock_owners(const struct stat& facts) {
  std::vector<std::string> owners;
  const std::string inode = format_text("%02x:%02x:%llu", major(facts.st_dev), minor(facts.st_dev),
                                        static_cast<unsigned long long>(facts.st_ino));
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    if (line.find("->") != std::string::npos) continue;  // waits for a lock
    std::istringstream fields(line);
    std::string number, type, advice, access, pid, where;
    fields >> number >> type >> advice >> access >> pid >> where;
    if (where == inode && pid != "-1" && pid != "0") owners.push_back(pid);
  }
  return owners;
}

struct OpenFile {
  std::string pid;
  bool writable = false;
};

bool is_writable(const std::string& pid, const std::string& fd) {
  std::ifstream info("/proc/" + pid + "/fdinfo/" + fd);
  for (std::string word; info >> word;) {
    if (word != "flags:") continue;
    info >> word;
    return (std::strtoul(word.c_str(), nullptr, 8) & O_ACCMODE) != O_RDONLY;
  }
  return false;
}

template <typename Matches>
std::vector<OpenFile> processes_that_have_open(Matches matches) {
  std::vector<OpenFile> found;
  for (const std::string& pid : numeric_entries("/proc")) {
    for (const std::string& fd : numeric_entries("/proc/" + pid + "/fd")) {
      struct stat target{};
      // stat follows the magic link to the open file itself, whatever its path has become.
      if (stat(("/proc/" + pid + "/fd/" + fd).c_str(), &target) != 0 || !matches(target)) continue;
      found.push_back({pid, is_writable(pid, fd)});
    }
  }
  return found;
}

// The process most likely to be what holds it: a writer before a reader (blkid, udev), the first found else.
const OpenFile* likely_holder(const std::vector<OpenFile>& open_files) {
  const OpenFile* best = nullptr;
  for (const OpenFile& open_file : open_files) {
    if (best == nullptr || (open_file.writable && !best->writable)) best = &open_file;
  }
  return best;
}

std::string mount_point(const std::vector<dev_t>& devices) {
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string id, parent, number, root, where;
    fields >> id >> parent >> number >> root >> where;
    for (const dev_t device : devices) {
      if (number == format_text("%u:%u", major(device), minor(device))) return where;
    }
  }
  return "";
}

std::string swap_device(const std::vector<dev_t>& devices) {
  std::ifstream swaps("/proc/swaps");
  for (std::string path, line; swaps >> path; std::getline(swaps, line)) {
    struct stat facts{};
    if (stat(path.c_str(), &facts) != 0 || !S_ISBLK(facts.st_mode)) continue;
    if (std::find(devices.begin(), devices.end(), facts.st_rdev) != devices.end()) return path;
  }
  return "";
}

Holder find_device_holder(const struct stat& facts) {
  const BlockFacts block = read_block_facts("/sys", facts.st_rdev);
  const std::vector<dev_t>& devices = block.related_devices;
  if (const std::string where = mount_point(devices); !where.empty()) return {true, false, "mounted at " + where};
  if (!block.holder_names.empty()) return {true, false, "part of " + block.holder_names.front()};
  if (const std::string path = swap_device(devices); !path.empty()) return {true, false, "swap on " + path};
  const std::vector<OpenFile> open_files = processes_that_have_open([&](const struct stat& target) {
    return S_ISBLK(target.st_mode) && std::find(devices.begin(), devices.end(), target.st_rdev) != devices.end();
  });
  const OpenFile* likely = likely_holder(open_files);
  if (likely == nullptr) return {};
  // Who only reads it hardly claims it: the claim is more likely a killed writer's.
  return {likely->writable, true, describe_process(likely->pid)};
}

bool is_running(const std::string& pid) {
  struct stat process{};
  return stat(("/proc/" + pid).c_str(), &process) == 0;
}

Holder find_file_holder(const struct stat& facts) {
  const std::vector<OpenFile> open_files = processes_that_have_open(
      [&](const struct stat& target) { return target.st_dev == facts.st_dev && target.st_ino == facts.st_ino; });
  // Of several that share it, one that lives is enough.
  const std::vector<std::string> owners = lock_owners(facts);
  for (const std::string& owner : owners) {
    const auto is_owner = [&](const OpenFile& open_file) { return open_file.pid == owner; };
    if (std::any_of(open_files.begin(), open_files.end(), is_owner)) return {true, true, describe_process(owner)};
    const Directory descriptors("/proc/" + owner + "/fd");
    // Another user's process: its descriptors are hidden, but the lock names it.
    if (descriptors.handle == nullptr && is_running(owner)) return {true, true, describe_process(owner)};
  }

  const OpenFile* likely = likely_holder(open_files);
  if (!owners.empty()) {
    // The owner has ended or has closed the file: the kernel lets go in a moment, unless a child inherited the lock.
    const std::string& owner = owners.front();
    std::string text = "locked by process " + owner + ", which has " + (is_running(owner) ? "closed it" : "ended");
    if (likely != nullptr) text += "; open in " + describe_process(likely->pid);
    return {false, true, text};
  }
  if (likely == nullptr) return {};
  return {true, true, describe_process(likely->pid)};
}

}  // namespace

Holder find_holder(const struct stat& facts) {
  Holder holder = S_ISBLK(facts.st_mode) ? find_device_holder(facts) : find_file_holder(facts);
  if (holder.description.empty()) {
    holder.description = geteuid() == 0 ? "no living process here has it open; another container, a kernel user (an "
                                          "nvmet target), or the kernel has not let go of a killed process"
                                        : "no process visible to this user has it open (root sees all)";
  }
  return holder;
}

}  // namespace kvstore::device
