// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What the GPU benchmark measures, and how it says so: a line of JSON for each figure, or for why there is none. What
// a figure is compared with, and what is a goal, scripts/lib/gpu_check.py knows.

#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "plain_gpu.h"

namespace kvstore::gpu {

struct BenchOptions {
  int device = 0;
  uint64_t bytes = 0;                     // of device memory that a kernel works on, and of blocks that a pool is given
  uint64_t least_ns = 0;                  // that a rate is measured over
  std::string path;                       // a file or namespace, whose contents are lost
  std::string modules = "/proc/modules";  // stands in for it where cuFile is the fake
};

void print_text(const char* name, const std::string& text);
void print_rate(const char* name, double bytes_per_second, const std::string& note);
void print_absent(const char* name, const Status& why);

// The median of five rates in bytes per second: `round` moves `bytes` and has ended when it returns. After one that
// does not count; each of the five is of as many rounds as take a fifth of the time.
Result<double> rate_of(uint64_t least_ns, uint64_t bytes, const std::function<Status()>& round);

// Copies within the device, scatter, gather, page nodes.
void measure_kernels(const PlainGpu& gpu, const BenchOptions& options);
// Copies between pinned host memory and the device.
void measure_link(const PlainGpu& gpu, const BenchOptions& options);
// Blocks between device memory and a pool at options.path, by bounce.
void measure_bounce(const PlainGpu& gpu, const BenchOptions& options);
// The self-test of cuFile, then reads and writes by it, at options.path.
void measure_direct(const PlainGpu& gpu, const BenchOptions& options);

}  // namespace kvstore::gpu
