// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// How fast the kernels move and hash what is in device memory. A round ends when the stream has come to its end; a
// round is long beside that, or the figure would be of launches.

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "figures.h"

namespace kvstore::gpu {

namespace {

// Llama-3-8B's: 32 layers, 8 heads of 256 bytes. The tokens of a cache block make the runs longer or shorter.
constexpr uint32_t kLayers = 32;
constexpr uint32_t kHeads = 8;
constexpr uint32_t kHeadBytes = 256;
constexpr uint64_t kTokenBytes = uint64_t{2} * kLayers * kHeads * kHeadBytes;

struct Case {
  const char* scatter;
  const char* gather;
  uint32_t block_tokens;
  bool heads_first;
};
constexpr Case kCases[] = {
    {"scatter_256", "gather_256", 16, true},         // HND: a head of a token
    {"scatter_4096", "gather_4096", 2, false},       // the shortest runs that the goal is for
    {"scatter_32768", "gather_32768", 16, false},    // vLLM's and SGLang's usual cache block
    {"scatter_131072", "gather_131072", 64, false},  // by the copy engines
};

// Everything on both sides of a transfer of `bytes`: extents of 512 tokens, cache blocks in an order of chance.
struct Transfer {
  PagedLayout layout;
  MovePlan scatter, gather;
  uint64_t bytes = 0;
};

Result<Transfer> make_transfer(const Case& one, const PlainMemory& cache, const PlainMemory& extents) {
  constexpr uint32_t kExtentTokens = 512;
  Transfer made;
  const uint64_t extent_count = std::max<uint64_t>(extents.bytes() / (kExtentTokens * kTokenBytes), 1);
  const auto tokens = static_cast<uint32_t>(
      std::min<uint64_t>(kExtentTokens, align_down(extents.bytes() / kTokenBytes, one.block_tokens)));
  if (tokens == 0) return Status(Code::kInvalid, "too little memory for a cache block");
  CacheShape shape;
  shape.layers = kLayers;
  shape.heads = kHeads;
  shape.head_bytes = kHeadBytes;
  shape.heads_first = one.heads_first;
  shape.block_tokens = one.block_tokens;
  shape.cache_blocks = static_cast<uint32_t>(extent_count * tokens / one.block_tokens);
  const uint64_t plane = cache.bytes() / (2 * kLayers);
  std::vector<DeviceSpan> tensors;
  for (uint64_t i = 0; i < 2 * kLayers; ++i) tensors.push_back({cache.pointer() + i * plane, plane});
  KVS_ASSIGN(made.layout, layer_first(shape, tensors));
  std::vector<int64_t> blocks(shape.cache_blocks);
  std::iota(blocks.begin(), blocks.end(), int64_t{0});
  SeededRandom random(1);
  for (size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[random.below(i)]);
  std::vector<ExtentMove> moves;
  const uint64_t extent_bytes = made.layout.extent_bytes(tokens);
  const size_t blocks_each = tokens / one.block_tokens;
  for (uint64_t i = 0; i < extent_count; ++i) {
    moves.push_back({{extents.pointer() + i * extent_bytes, extent_bytes},
                     tokens,
                     std::span<const int64_t>(blocks).subspan(i * blocks_each, blocks_each)});
  }
  KVS_TRY(make_plan(made.layout, Direction::kScatter, moves, {}, made.scatter));
  KVS_TRY(make_plan(made.layout, Direction::kGather, moves, {}, made.gather));
  made.bytes = made.scatter.bytes;
  return made;
}

void measure_moves(const PlainGpu& gpu, const KernelLauncher& launcher, const BenchOptions& options,
                   const PlainMemory& cache, const PlainMemory& extents) {
  for (const Case& one : kCases) {
    const Result<Transfer> made = make_transfer(one, cache, extents);
    for (const Direction direction : {Direction::kScatter, Direction::kGather}) {
      const bool is_scatter = direction == Direction::kScatter;
      const char* const name = is_scatter ? one.scatter : one.gather;
      if (!made.ok()) {
        print_absent(name, made.status());
        continue;
      }
      const Transfer& transfer = made.value();
      const Result<double> rate = rate_of(options.least_ns, transfer.bytes, [&]() -> Status {
        KVS_TRY(
            launcher.move(transfer.layout, direction, is_scatter ? transfer.scatter : transfer.gather, gpu.stream()));
        return gpu.synchronize_here();
      });
      if (rate.ok()) {
        print_rate(name, rate.value(), move_way_name(launcher.way_of(transfer.layout, gpu.stream())));
      } else {
        print_absent(name, rate.status());
      }
    }
  }
}

Status measure(const PlainGpu& gpu, const BenchOptions& options) {
  const ContextScope scope(gpu.driver(), gpu.context());
  KVS_TRY(scope.status());
  KVS_ASSIGN(const PlainMemory cache, PlainMemory::make(gpu, options.bytes));
  KVS_ASSIGN(const PlainMemory extents, PlainMemory::make(gpu, options.bytes));
  const LaunchDriver driver = LaunchDriver::of(gpu.driver());
  if (driver.copy == nullptr) {
    print_absent("copy_within", Status(Code::kUnsupported, "the driver has no cuMemcpyAsync"));
  } else {
    const Result<double> copied = rate_of(options.least_ns, options.bytes, [&]() -> Status {
      KVS_TRY(gpu.driver().check(driver.copy(cache.pointer(), extents.pointer(), options.bytes, gpu.stream()),
                                 "cuMemcpyAsync", gpu.name()));
      return gpu.synchronize_here();
    });
    copied.ok() ? print_rate("copy_within", copied.value(), "") : print_absent("copy_within", copied.status());
  }
  KVS_ASSIGN(const KernelLauncher launcher, KernelLauncher::load(driver, gpu.device(), kernel_image()));
  print_text("kernels", launcher.has_kernels() ? format_text("at most %u multiprocessors", launcher.multiprocessors())
                                               : "none: " + launcher.kernels_missing());
  measure_moves(gpu, launcher, options, cache, extents);
  KVS_ASSIGN(const PlainMemory nodes, PlainMemory::make(gpu, ceil_div(options.bytes, kPageBytes) * 8));
  const PayloadRun run = {{extents.pointer(), options.bytes}, nodes.pointer()};
  const Result<double> hashed = rate_of(options.least_ns, options.bytes, [&]() -> Status {
    KVS_TRY(launcher.hash_pages({&run, 1}, gpu.stream()));
    return gpu.synchronize_here();
  });
  hashed.ok() ? print_rate("page_nodes", hashed.value(), "kernel") : print_absent("page_nodes", hashed.status());
  return {};
}

}  // namespace

void measure_kernels(const PlainGpu& gpu, const BenchOptions& options) {
  const Status measured = measure(gpu, options);
  if (!measured.ok()) print_absent("page_nodes", measured);
}

void measure_link(const PlainGpu& gpu, const BenchOptions& options) {
  const uint64_t bytes = std::min<uint64_t>(options.bytes, 256 * kMiB);
  const CudaDriver& driver = gpu.driver();
  const ContextScope scope(driver, gpu.context());
  void* host = nullptr;
  const auto prepare = [&]() -> Status {
    KVS_TRY(scope.status());
    return driver.check(driver.host_alloc(&host, bytes, cu::kHostPortable), "cuMemHostAlloc", gpu.name());
  };
  const Status prepared = prepare();
  const Result<PlainMemory> memory = prepared.ok() ? PlainMemory::make(gpu, bytes) : Result<PlainMemory>(prepared);
  for (const bool to_device : {true, false}) {
    const char* const name = to_device ? "pinned_to_device" : "pinned_to_host";
    if (!memory.ok()) {
      print_absent(name, memory.status());
      continue;
    }
    const Result<double> rate = rate_of(options.least_ns, bytes, [&] {
      return to_device ? gpu.copy_to_device(memory.value().pointer(), host, bytes)
                       : gpu.copy_to_host(host, memory.value().pointer(), bytes);
    });
    rate.ok() ? print_rate(name, rate.value(), "") : print_absent(name, rate.status());
  }
  if (host != nullptr) (void)driver.host_free(host);
}

}  // namespace kvstore::gpu
