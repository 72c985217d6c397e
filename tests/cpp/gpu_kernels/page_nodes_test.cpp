// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the kernel's page nodes, and so the root over them, are bit for bit the CPU's, and it reads and writes nothing
// beyond its payload and its nodes.
// Method: random payloads of odd lengths, in a heap allocation of just their size, several in a launch, against
// base/checksum.h. The kernel is the text that nvcc compiles, run on the CPU by threads in warps.

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/checksum.h"
#include "base/units.h"
#include "gpu/page_nodes.h"
#include "gpu/reference.h"
#include "gpu_kernels/cuda_on_cpu.h"
#include "gpu_kernels/random_cache.h"

#include "gpu/kernels/page_kernel.h"

namespace kvstore::gpu {
namespace {

void kernel(const PageNodesArguments arguments) { hash_pages(arguments); }

struct Payload {
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint8_t, Free> memory;
  uint64_t bytes;
  std::vector<uint64_t> nodes;  // one more than there are

  Payload(uint64_t payload_bytes, SeededRandom& random)
      : memory(static_cast<uint8_t*>(std::malloc(payload_bytes))),
        bytes(payload_bytes),
        nodes(ceil_div(payload_bytes, kPageBytes) + 1, kGuard) {
    random.fill(memory.get(), bytes);
  }
  std::vector<uint64_t> expected() const {
    std::vector<uint64_t> by_cpu(nodes.size(), kGuard);
    page_nodes(memory.get(), bytes, by_cpu.data());
    return by_cpu;
  }
  static constexpr uint64_t kGuard = 0x5a5a5a5a5a5a5a5a;
};

PageNodesArguments arguments_of(std::vector<Payload>& payloads) {
  PageNodesArguments arguments = {};
  for (Payload& payload : payloads) {
    arguments.runs[arguments.run_count++] = {reinterpret_cast<uint64_t>(payload.memory.get()), payload.bytes,
                                             reinterpret_cast<uint64_t>(payload.nodes.data()), arguments.page_count, 0};
    arguments.page_count += static_cast<uint32_t>(ceil_div(payload.bytes, kPageBytes));
  }
  return arguments;
}

TEST(PageKernel, EqualsTheCpuOnEveryLengthOfALastPage) {
  SeededRandom random(11);
  std::vector<Payload> payloads;
  for (const uint64_t bytes : {1,    7,    15,   16,   17,   63,   64,   65,   1023, 1024, 1025,        4031,
                               4032, 4033, 4080, 4081, 4095, 4096, 4097, 4104, 8191, 8192, 12288 + 3000}) {
    payloads.emplace_back(bytes, random);
  }
  run_grid_of_warps(kernel, arguments_of(payloads), 2, 32);
  for (const Payload& payload : payloads) EXPECT_EQ(payload.nodes, payload.expected()) << payload.bytes << " bytes";
}

TEST(PageKernel, EqualsTheCpuOnRandomRuns) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SeededRandom random(seed);
    std::vector<Payload> payloads;
    const uint64_t count = 1 + random.below(seed == 0 ? 1 : kLaunchRuns);
    for (uint64_t i = 0; i < count; ++i) payloads.emplace_back(1 + random.below(6 * kPageBytes), random);
    run_grid_of_warps(kernel, arguments_of(payloads), static_cast<uint32_t>(1 + random.below(3)), 64);
    for (const Payload& payload : payloads) ASSERT_EQ(payload.nodes, payload.expected()) << "seed " << seed;
  }
}

// All zeros, and all ones, reach the sums that random bytes do not.
TEST(PageKernel, EqualsTheCpuOnUniformPages) {
  SeededRandom random(1);
  for (const int value : {0, 255, 128}) {
    std::vector<Payload> payloads;
    payloads.emplace_back(3 * kPageBytes, random);
    std::memset(payloads[0].memory.get(), value, payloads[0].bytes);
    run_grid_of_warps(kernel, arguments_of(payloads), 1, 32);
    EXPECT_EQ(payloads[0].nodes, payloads[0].expected()) << value;
  }
}

TEST(PageKernel, LeadsToTheRootOfTheBlock) {
  SeededRandom random(5);
  std::vector<Payload> payloads;
  payloads.emplace_back(2 * kMiB + 5 * kPageBytes + 100, random);
  run_grid_of_warps(kernel, arguments_of(payloads), 3, 64);
  const SpaceDigest space = {1, 2, 3};
  const BlockIdentity identity = {space, "salt", "key"};
  EXPECT_EQ(root_of_page_nodes(identity, payloads[0].bytes, {payloads[0].nodes.data(), payloads[0].nodes.size() - 1}),
            block_checksum(identity, payloads[0].memory.get(), payloads[0].bytes));
}

TEST(ReferencePageNodes, AreTheStores) {
  SeededRandom random(6);
  std::vector<Payload> payloads;
  for (const uint64_t bytes : {1, 4096, 5000, 100'000}) payloads.emplace_back(bytes, random);
  ASSERT_TRUE(reference_page_nodes(arguments_of(payloads), same_address).ok());
  for (const Payload& payload : payloads) EXPECT_EQ(payload.nodes, payload.expected());
}

}  // namespace
}  // namespace kvstore::gpu
