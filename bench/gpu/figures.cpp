// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "figures.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/clock.h"

namespace kvstore::gpu {

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char one : text) {
    if (one == '"' || one == '\\') out += '\\';
    out += static_cast<unsigned char>(one) < ' ' ? ' ' : one;
  }
  return out + '"';
}

}  // namespace

void print_text(const char* name, const std::string& text) {
  std::printf("{\"name\": \"%s\", \"text\": %s}\n", name, quoted(text).c_str());
  std::fflush(stdout);
}

void print_rate(const char* name, double bytes_per_second, const std::string& note) {
  std::printf("{\"name\": \"%s\", \"gb_per_s\": %.4f, \"note\": %s}\n", name, bytes_per_second / 1e9,
              quoted(note).c_str());
  std::fflush(stdout);
}

void print_absent(const char* name, const Status& why) {
  std::printf("{\"name\": \"%s\", \"gb_per_s\": null, \"note\": %s}\n", name, quoted(why.message()).c_str());
  std::fflush(stdout);
}

Result<double> rate_of(uint64_t least_ns, uint64_t bytes, const std::function<Status()>& round) {
  KVS_TRY(round());
  std::array<double, 5> rates;
  for (double& rate : rates) {
    const uint64_t begin = system_clock().monotonic_ns();
    uint64_t rounds = 0, took = 0;
    while (took < least_ns / rates.size() || rounds == 0) {
      KVS_TRY(round());
      ++rounds;
      took = system_clock().monotonic_ns() - begin;
    }
    rate = static_cast<double>(rounds * bytes) * 1e9 / static_cast<double>(std::max<uint64_t>(took, 1));
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

}  // namespace kvstore::gpu
