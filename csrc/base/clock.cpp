// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "base/clock.h"

#include <sys/random.h>
#include <time.h>

#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace kvstore {
namespace {

constexpr uint64_t kNanosecondsPerSecond = 1'000'000'000;

class SystemClock final : public Clock {
 public:
  uint64_t monotonic_ns() override {
    timespec now{};
    clock_gettime(CLOCK_BOOTTIME, &now);
    return static_cast<uint64_t>(now.tv_sec) * kNanosecondsPerSecond + static_cast<uint64_t>(now.tv_nsec);
  }

  uint64_t wall_seconds() override {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<uint64_t>(now.tv_sec);
  }

  void sleep_ns(uint64_t duration_ns) override {
    timespec left{static_cast<time_t>(duration_ns / kNanosecondsPerSecond),
                  static_cast<long>(duration_ns % kNanosecondsPerSecond)};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
    }
  }
};

class SystemRandom final : public Random {
 public:
  uint64_t next() override {
    uint64_t value;
    fill(&value, sizeof(value));
    return value;
  }

  void fill(void* data, uint64_t bytes) override {
    uint8_t* target = static_cast<uint8_t*>(data);
    while (bytes > 0) {
      const ssize_t filled = getrandom(target, bytes, 0);
      if (filled < 0) {
        if (errno == EINTR) continue;
        // No kernel this runs on lacks getrandom(2); a store secret from anything weaker would be worse
        // than stopping here.
        std::abort();
      }
      target += filled;
      bytes -= static_cast<uint64_t>(filled);
    }
  }
};

}  // namespace

Clock& system_clock() {
  static SystemClock clock;
  return clock;
}

Random& system_random() {
  static SystemRandom random;
  return random;
}

SeededRandom::SeededRandom(uint64_t seed) {
  // splitmix64, as xoshiro's authors advise: near seeds must not give near streams, nor seed 0 all zeros.
  for (uint64_t& word : state_) {
    seed += 0x9e3779b97f4a7c15;
    uint64_t mixed = seed;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    word = mixed ^ (mixed >> 31);
  }
}

uint64_t SeededRandom::next() {
  const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

void SeededRandom::fill(void* data, uint64_t bytes) {
  uint8_t* target = static_cast<uint8_t*>(data);
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), target += sizeof(uint64_t)) {
    const uint64_t word = next();
    std::memcpy(target, &word, sizeof(word));
  }
  if (bytes == 0) return;
  const uint64_t word = next();
  std::memcpy(target, &word, bytes);
}

}  // namespace kvstore
