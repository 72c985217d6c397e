// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Makes a device read no faster than SLOW_READS_MB_PER_S: a library to be preloaded, for `bench/ttft`, where a fast
// disk shows one side of a crossover only. The kernel's own limit (blkio, io.max) lets what it allows for 100 ms pass
// at once, which is more than most prompts of a small model read.
//
// Each preadv2() ends no sooner than a device of one queue, which does nothing else, would have it. Guarantees no more
// than that: a sleep may be longer, other system calls and io_uring are not held back (`"device_kind": "threads"`).
//
//   g++ -O2 -shared -fPIC -o slow_reads.so bench/cpp/slow_reads.cpp && LD_PRELOAD=$PWD/slow_reads.so …

#include <dlfcn.h>
#include <sys/uio.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

// When the device would have done this read, after all that came before it.
Clock::time_point done_at(double bytes, double bytes_per_s) {
  static std::mutex mutex;
  static Clock::time_point busy_until;
  const auto takes = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bytes / bytes_per_s));
  const std::lock_guard lock(mutex);
  busy_until = std::max(busy_until, Clock::now()) + takes;
  return busy_until;
}

double limit_bytes_per_s() {
  const char* text = std::getenv("SLOW_READS_MB_PER_S");
  return text == nullptr ? 0 : std::strtod(text, nullptr) * 1e6;
}

}  // namespace

extern "C" ssize_t preadv2(int fd, const iovec* segments, int count, off_t offset, int flags) {
  using Read = ssize_t (*)(int, const iovec*, int, off_t, int);
  static const auto read = reinterpret_cast<Read>(dlsym(RTLD_NEXT, "preadv2"));
  static const double bytes_per_s = limit_bytes_per_s();
  const ssize_t moved = read(fd, segments, count, offset, flags);
  if (moved > 0 && bytes_per_s > 0) {
    std::this_thread::sleep_until(done_at(static_cast<double>(moved), bytes_per_s));
  }
  return moved;
}
