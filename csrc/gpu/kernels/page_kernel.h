// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Device code: the page nodes of the payload checksum (base/checksum.h), XXH3-64 of each 4 KiB page with the default
// secret. Bit for bit what the CPU computes.
//
// XXH3 adds stripes of 64 bytes to eight accumulators, scrambles these after every 16 stripes, and folds them in pairs
// at the end. An accumulator takes data from itself and from its neighbour in the pair only. So four threads hash a
// page, each with one pair: it loads 16 bytes of every stripe and never needs another's accumulators; only the four
// folded numbers are added across threads. Source of the algorithm: xxHash, XXH3_hashLong_64b.

#pragma once

#include "gpu/kernels/arguments.h"

namespace kvstore {
namespace gpu {

constexpr uint32_t kHashPageBytes = 4096;
constexpr uint32_t kStripeBytes = 64;
constexpr uint32_t kBlockStripes = 16;  // between two scrambles
constexpr uint32_t kPageBlocks = 4;
constexpr uint32_t kSecretBytes = 192;

constexpr uint64_t kPrime32_1 = 0x9E3779B1u;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87u;

// What the four threads need of the secret. The words are read for every stripe, at a different place by each of the
// four, which the constant bank would serve one after the other: so they are copied to shared memory.
struct PageKeys {
  uint64_t words[kSecretBytes / 8];  // stripe n of a block is keyed from word n on; words 16 to 23 scramble
  struct Pair {
    uint64_t last[2];  // of a page's last stripe
    uint64_t fold[2];
    uint64_t start[2];  // of the accumulators
  } pairs[kThreadsAPage];
};

constexpr uint64_t secret_word(const uint8_t* secret, uint32_t offset) {
  uint64_t word = 0;
  for (uint32_t i = 0; i < 8; ++i) word |= static_cast<uint64_t>(secret[offset + i]) << (8 * i);
  return word;
}

constexpr PageKeys make_page_keys() {
  // XXH3_kSecret of xxHash.
  const uint8_t secret[kSecretBytes] = {
      0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
      0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
      0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
      0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
      0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
      0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
      0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
      0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
      0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
      0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
      0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};
  const uint64_t start[8] = {0xC2B2AE3Du,         kPrime64_1,  0xC2B2AE3D27D4EB4Fu, 0x165667B19E3779F9u,
                             0x85EBCA77C2B2AE63u, 0x85EBCA77u, 0x27D4EB2F165667C5u, kPrime32_1};
  PageKeys keys = {};
  for (uint32_t i = 0; i < kSecretBytes / 8; ++i) keys.words[i] = secret_word(secret, 8 * i);
  for (uint32_t pair = 0; pair < kThreadsAPage; ++pair) {
    for (uint32_t i = 0; i < 2; ++i) {
      keys.pairs[pair].last[i] = secret_word(secret, kSecretBytes - kStripeBytes - 7 + 16 * pair + 8 * i);
      keys.pairs[pair].fold[i] = secret_word(secret, 11 + 16 * pair + 8 * i);
      keys.pairs[pair].start[i] = start[2 * pair + i];
    }
  }
  return keys;
}

__constant__ const PageKeys kPageKeys = make_page_keys();

struct Words {
  uint64_t low;
  uint64_t high;
};

__device__ __forceinline__ Words words_of(const uint4& unit) {
  return {static_cast<uint64_t>(unit.y) << 32 | unit.x, static_cast<uint64_t>(unit.w) << 32 | unit.z};
}

// The 16 bytes at `offset` of a page of `bytes`, zeros beyond its end; nothing beyond it is read.
__device__ __forceinline__ Words load_padded(uint64_t page, uint32_t offset, uint32_t bytes) {
  if (offset + 16 <= bytes) return words_of(__ldcs(reinterpret_cast<const uint4*>(page + offset)));
  Words words = {0, 0};
  for (uint32_t i = 0; i < 16 && offset + i < bytes; ++i) {
    const uint64_t byte = static_cast<uint64_t>(*reinterpret_cast<const uint8_t*>(page + offset + i)) << (i % 8 * 8);
    words.low |= i < 8 ? byte : 0;
    words.high |= i < 8 ? 0 : byte;
  }
  return words;
}

__device__ __forceinline__ void accumulate(uint64_t* sums, const Words& data, uint64_t low_key, uint64_t high_key) {
  const uint64_t low = data.low ^ low_key, high = data.high ^ high_key;
  sums[0] += data.high + (low & 0xffffffffu) * (low >> 32);
  sums[1] += data.low + (high & 0xffffffffu) * (high >> 32);
}

// `words` are the secret's, from the pair's first on.
__device__ __forceinline__ void scramble(uint64_t* sums, const uint64_t* words) {
  for (uint32_t i = 0; i < 2; ++i) sums[i] = (sums[i] ^ sums[i] >> 47 ^ words[kBlockStripes + i]) * kPrime32_1;
}

// XXH3 hashes the last 64 bytes of a page with a part of the secret of their own.
__device__ __forceinline__ void accumulate_stripe(uint64_t* sums, const Words& data, uint32_t block, uint32_t stripe,
                                                  const uint64_t* words, const PageKeys::Pair& keys) {
  const bool last = stripe == kBlockStripes - 1 && block == kPageBlocks - 1;
  accumulate(sums, data, last ? keys.last[0] : words[stripe], last ? keys.last[1] : words[stripe + 1]);
}

__device__ __forceinline__ uint64_t fold(const uint64_t* sums, const PageKeys::Pair& keys) {
  const uint64_t a = sums[0] ^ keys.fold[0], b = sums[1] ^ keys.fold[1];
  return (a * b) ^ __umul64hi(a, b);
}

// One thread's share of a whole page's hash, with eight loads under way at once: more take registers that there are
// not.
__device__ __forceinline__ uint64_t folded_pair(uint64_t page, uint32_t pair, const uint64_t* words,
                                                const PageKeys::Pair& keys) {
  constexpr uint32_t kBatch = 8;
  uint64_t sums[2] = {keys.start[0], keys.start[1]};
  KVS_NO_UNROLL
  for (uint32_t block = 0; block < kPageBlocks; ++block) {
    const uint64_t start = page + pair * 16 + block * (kBlockStripes * kStripeBytes);
    KVS_UNROLL
    for (uint32_t first = 0; first < kBlockStripes; first += kBatch) {
      Words data[kBatch];
      KVS_UNROLL
      for (uint32_t i = 0; i < kBatch; ++i) {
        data[i] = words_of(__ldcs(reinterpret_cast<const uint4*>(start + (first + i) * kStripeBytes)));
      }
      KVS_UNROLL
      for (uint32_t i = 0; i < kBatch; ++i) accumulate_stripe(sums, data[i], block, first + i, words, keys);
    }
    if (block < kPageBlocks - 1) scramble(sums, words);
  }
  return fold(sums, keys);
}

// Of a page that ends early: one a run at most, so short code matters more than speed.
__device__ __forceinline__ uint64_t folded_pair_padded(uint64_t page, uint32_t bytes, uint32_t pair,
                                                       const uint64_t* words, const PageKeys::Pair& keys) {
  uint64_t sums[2] = {keys.start[0], keys.start[1]};
  KVS_NO_UNROLL
  for (uint32_t stripe = 0; stripe < kPageBlocks * kBlockStripes; ++stripe) {
    if (stripe > 0 && stripe % kBlockStripes == 0) scramble(sums, words);
    accumulate_stripe(sums, load_padded(page, stripe * kStripeBytes + pair * 16, bytes), stripe / kBlockStripes,
                      stripe % kBlockStripes, words, keys);
  }
  return fold(sums, keys);
}

__device__ __forceinline__ uint64_t avalanche(uint64_t hash) {
  hash ^= hash >> 37;
  hash *= 0x165667919E3779F9u;
  return hash ^ hash >> 32;
}

// The run that a page is in: the last that begins at or before it.
__device__ __forceinline__ uint32_t run_of(const PageNodesArguments& arguments, uint32_t page) {
  uint32_t low = 0, high = arguments.run_count;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (arguments.runs[middle].first_page <= page) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// All 32 threads of a warp stay together, for the exchange; those without a page add nothing that is used.
__device__ __forceinline__ void hash_pages(const PageNodesArguments& arguments) {
  constexpr uint32_t kWarpPages = 32 / kThreadsAPage;
  const uint32_t pair = threadIdx.x % kThreadsAPage;
  const PageKeys::Pair& keys = kPageKeys.pairs[pair];
  __shared__ uint64_t secret[kSecretBytes / 8];
  if (threadIdx.x < kSecretBytes / 8) secret[threadIdx.x] = kPageKeys.words[threadIdx.x];
  __syncthreads();
  const uint64_t* words = secret + 2 * pair;
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const uint32_t warps = gridDim.x * blockDim.x / 32;
  for (uint64_t first = static_cast<uint64_t>(warp) * kWarpPages; first < arguments.page_count;
       first += static_cast<uint64_t>(warps) * kWarpPages) {
    const uint64_t page = first + threadIdx.x % 32 / kThreadsAPage;
    uint64_t sum = 0;
    uint64_t node_address = 0;
    if (page < arguments.page_count) {
      const PageRun& run = arguments.runs[run_of(arguments, static_cast<uint32_t>(page))];
      const uint64_t in_run = page - run.first_page;
      const uint64_t address = run.address + in_run * kHashPageBytes;
      const uint64_t left = run.bytes - in_run * kHashPageBytes;
      node_address = run.nodes_address + in_run * 8;
      sum = left >= kHashPageBytes ? folded_pair(address, pair, words, keys)
                                   : folded_pair_padded(address, static_cast<uint32_t>(left), pair, words, keys);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (node_address != 0 && pair == 0) {
      *reinterpret_cast<uint64_t*>(node_address) = avalanche(sum + kHashPageBytes * kPrime64_1);
    }
  }
}

}  // namespace gpu
}  // namespace kvstore
