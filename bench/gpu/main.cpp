// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// kvstore_gpu_bench: what csrc/gpu does on one GPU in GB/s, a line of JSON for each figure. scripts/gpu-check runs it
// and says what the figures are worth.
//
//   kvstore_gpu_bench kernels|link|bounce|direct [--path=FILE] [--bytes=N] [--least-ms=N] [--gpu=N] [--modules=FILE]
//
// bounce and direct overwrite PATH. direct reads and writes what bounce left there, so it comes after it. Exit status
// 1: there is no GPU here, and why.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/units.h"
#include "figures.h"

namespace {

using namespace kvstore;
using namespace kvstore::gpu;

const char* value_of(const char* argument, const char* name) {
  const size_t length = std::strlen(name);
  return std::strncmp(argument, name, length) == 0 ? argument + length : nullptr;
}

int usage() {
  std::fputs(
      "usage: kvstore_gpu_bench kernels|link|bounce|direct [--path=FILE] [--bytes=N] [--least-ms=N] [--gpu=N]\n"
      "       [--modules=FILE]\n",
      stderr);
  return 2;
}

}  // namespace

int main(int count, char** arguments) {
  BenchOptions options;
  options.bytes = kGiB;
  options.least_ns = 500'000'000;
  if (count < 2) return usage();
  const std::string what = arguments[1];
  for (int i = 2; i < count; ++i) {
    if (const char* path = value_of(arguments[i], "--path=")) {
      options.path = path;
    } else if (const char* bytes = value_of(arguments[i], "--bytes=")) {
      options.bytes = align_down(std::strtoull(bytes, nullptr, 10), kMiB);
    } else if (const char* least = value_of(arguments[i], "--least-ms=")) {
      options.least_ns = std::strtoull(least, nullptr, 10) * 1'000'000;
    } else if (const char* device = value_of(arguments[i], "--gpu=")) {
      options.device = std::atoi(device);
    } else if (const char* modules = value_of(arguments[i], "--modules=")) {
      options.modules = modules;
    } else {
      return usage();
    }
  }
  const bool is_storage = what == "bounce" || what == "direct";
  if (options.bytes == 0 || is_storage == options.path.empty()) return usage();
  const Result<PlainGpu> gpu = PlainGpu::open(options.device);
  if (!gpu.ok()) {
    std::fprintf(stderr, "no GPU: %s\n", gpu.status().message().c_str());
    return 1;
  }
  print_text("gpu", gpu.value().name());
  if (what == "kernels") {
    measure_kernels(gpu.value(), options);
  } else if (what == "link") {
    measure_link(gpu.value(), options);
  } else if (what == "bounce") {
    measure_bounce(gpu.value(), options);
  } else if (what == "direct") {
    measure_direct(gpu.value(), options);
  } else {
    return usage();
  }
  return 0;
}
