// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Just enough of CUDA C++ to compile csrc/gpu/kernels as plain C++ and run it on the CPU: the same text that nvcc
// compiles. A 16-byte access to an unaligned address is seen by UndefinedBehaviorSanitizer, one outside an allocation
// by AddressSanitizer.
//
// run_grid() runs the threads one after the other. run_grid_of_warps() makes a thread of its own for each of a block,
// so that those of a warp can exchange values; a kernel that leaves one of them out of an exchange hangs.

#pragma once

#include <barrier>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#define KVS_UNROLL
#define KVS_NO_UNROLL
#define __global__
#define __device__
#define __constant__
#define __shared__ static
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(threads)

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

struct CudaIndex {
  uint32_t x = 0;
};
inline thread_local CudaIndex threadIdx, blockIdx, blockDim, gridDim;

template <typename Value>
Value __ldcs(const Value* address) {
  return *address;
}
template <typename Value>
Value __ldcg(const Value* address) {
  return *address;
}
template <typename Value>
void __stcg(Value* address, Value value) {
  *address = value;
}

inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(Wide{a} * b >> 64);
}

struct CudaWarp {
  std::barrier<> together{32};
  uint64_t values[32];
};
inline thread_local CudaWarp* cuda_warp = nullptr;
inline thread_local std::barrier<>* cuda_block = nullptr;

inline void __syncthreads() { cuda_block->arrive_and_wait(); }

inline uint64_t __shfl_xor_sync(uint32_t, uint64_t value, uint32_t distance) {
  cuda_warp->values[threadIdx.x % 32] = value;
  cuda_warp->together.arrive_and_wait();
  const uint64_t other = cuda_warp->values[threadIdx.x % 32 ^ distance];
  cuda_warp->together.arrive_and_wait();  // before anybody puts the next value there
  return other;
}

template <typename Arguments>
void run_grid(void (*kernel)(Arguments), const std::remove_const_t<Arguments>& arguments, uint32_t blocks,
              uint32_t threads) {
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) kernel(arguments);
  }
}

template <typename Arguments>
void run_grid_of_warps(void (*kernel)(Arguments), const std::remove_const_t<Arguments>& arguments, uint32_t blocks,
                       uint32_t threads) {
  std::vector<std::unique_ptr<CudaWarp>> warps;
  for (uint32_t i = 0; i < threads / 32; ++i) warps.push_back(std::make_unique<CudaWarp>());
  std::barrier<> together(static_cast<std::ptrdiff_t>(threads));
  std::vector<std::thread> block;
  for (uint32_t i = 0; i < threads; ++i) {
    block.emplace_back([&, i] {
      cuda_warp = warps[i / 32].get();
      cuda_block = &together;
      threadIdx.x = i;
      gridDim.x = blocks;
      blockDim.x = threads;
      for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        kernel(arguments);
        __syncthreads();  // the next block's shared memory is this one's
      }
    });
  }
  for (std::thread& thread : block) thread.join();
}
