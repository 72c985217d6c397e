// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Time and randomness as injected interfaces: the store reads neither any other way, so that a simulated
// run replays bit for bit.

#pragma once

#include <cstdint>

namespace kvstore {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual uint64_t monotonic_ns() = 0;  // never goes back; CLOCK_BOOTTIME, so that a suspend counts
  virtual uint64_t wall_seconds() = 0;  // for humans: opened and sealed times
  virtual void sleep_ns(uint64_t duration_ns) = 0;
};

class Random {
 public:
  virtual ~Random() = default;
  virtual uint64_t next() = 0;
  virtual void fill(void* data, uint64_t bytes) = 0;
};

Clock& system_clock();    // thread-safe
Random& system_random();  // thread-safe, getrandom(2)

// Deterministic twins. ManualClock: sleep_ns advances it. SeededRandom: xoshiro256**. Not thread-safe.
class ManualClock final : public Clock {
 public:
  uint64_t monotonic_ns() override { return now_ns_; }
  uint64_t wall_seconds() override { return 1'700'000'000 + now_ns_ / 1'000'000'000; }
  void sleep_ns(uint64_t duration_ns) override { now_ns_ += duration_ns; }
  void advance_ns(uint64_t duration_ns) { now_ns_ += duration_ns; }

 private:
  uint64_t now_ns_ = 1'000'000'000;
};

class SeededRandom final : public Random {
 public:
  explicit SeededRandom(uint64_t seed);
  uint64_t next() override;
  void fill(void* data, uint64_t bytes) override;
  uint64_t below(uint64_t bound) { return bound == 0 ? 0 : next() % bound; }

 private:
  uint64_t state_[4];
};

}  // namespace kvstore
