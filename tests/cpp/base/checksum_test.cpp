// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the payload checksum is the documented tree, equal on every CPU, and binds bytes to their identity.
// Method: every compiled kernel that this CPU can run against the plain library (built for scalar code here),
// the tree rebuilt by hand, and one flip of each input of the root.

#include "base/checksum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/checksum_kernel.h"
#include "base/clock.h"

#define XXH_INLINE_ALL
#define XXH_VECTOR 0  // XXH_SCALAR: an implementation apart from the ones under test
#include <xxhash.h>

namespace kvstore {
namespace {

std::vector<uint8_t> random_bytes(size_t bytes, uint64_t seed) {
  std::vector<uint8_t> data(bytes);
  SeededRandom(seed).fill(data.data(), data.size());
  return data;
}

std::vector<const ChecksumKernel*> runnable_kernels() {
  std::vector<const ChecksumKernel*> kernels = {&kChecksumKernelGeneric};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) kernels.push_back(&kChecksumKernelAvx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
    kernels.push_back(&kChecksumKernelAvx512);
  }
#endif
  return kernels;
}

TEST(ChecksumKernels, EqualTheLibraryOnPages) {
  constexpr size_t kPages = 11;  // no multiple of any unrolling
  // An odd start: payload pages of a caller's buffer need no alignment to be hashed.
  const std::vector<uint8_t> data = random_bytes(kPages * kPageBytes + 64, 1);
  for (const ChecksumKernel* kernel : runnable_kernels()) {
    for (const size_t start : {size_t{0}, size_t{1}, size_t{8}, size_t{33}}) {
      for (size_t count = 0; count <= kPages; ++count) {
        std::vector<uint64_t> nodes(kPages + 1, 0x5a5a5a5a5a5a5a5a);
        kernel->hash_pages(data.data() + start, count, nodes.data());
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(nodes[i], XXH3_64bits(data.data() + start + i * kPageBytes, kPageBytes))
              << kernel->name << " page " << i << " of " << count << " start " << start;
        }
        ASSERT_EQ(nodes[count], 0x5a5a5a5a5a5a5a5a) << "wrote past the nodes";
      }
    }
  }
}

TEST(ChecksumKernels, EqualTheLibraryOnEveryLengthClass) {
  const std::vector<uint8_t> data = random_bytes(3 * kPageBytes, 2);
  for (const ChecksumKernel* kernel : runnable_kernels()) {
    for (size_t bytes = 0; bytes <= data.size(); bytes += bytes < 600 ? 1 : 509) {
      ASSERT_EQ(kernel->hash64(data.data(), bytes), XXH3_64bits(data.data(), bytes)) << kernel->name << " " << bytes;
      uint64_t low = 0, high = 0;
      kernel->hash128(data.data(), bytes, &low, &high);
      const XXH128_hash_t expected = XXH3_128bits(data.data(), bytes);
      ASSERT_EQ(low, expected.low64) << kernel->name << " " << bytes;
      ASSERT_EQ(high, expected.high64) << kernel->name << " " << bytes;
    }
  }
}

// Published by xxHash (tests/sanity_test_vectors): the empty input, no seed.
TEST(Checksum, XxhashVectorOfTheEmptyInput) {
  EXPECT_EQ(piece_node_of_pages({}), 0x2d06800538d394c2u);
  const Checksum128 empty = metadata_checksum("", 0);
  EXPECT_EQ(empty.low, 0x6001c324468d497fu);
  EXPECT_EQ(empty.high, 0x99aa06d3014798d8u);
}

TEST(Checksum, AShortLastPageIsZeroPadded) {
  std::vector<uint8_t> data = random_bytes(2 * kPageBytes, 3);
  std::memset(data.data() + kPageBytes + 100, 0, kPageBytes - 100);
  uint64_t short_nodes[2], whole_nodes[2];
  page_nodes(data.data(), kPageBytes + 100, short_nodes);
  page_nodes(data.data(), 2 * kPageBytes, whole_nodes);
  EXPECT_EQ(short_nodes[0], whole_nodes[0]);
  EXPECT_EQ(short_nodes[1], whole_nodes[1]);
  EXPECT_EQ(page_node(data.data() + kPageBytes, 100), whole_nodes[1]);
  EXPECT_EQ(page_node(nullptr, 0), page_node(std::vector<uint8_t>(kPageBytes).data(), kPageBytes));
}

TEST(Checksum, TheBlockChecksumIsTheDocumentedTree) {
  const size_t payload_bytes = 2 * kPieceBytes + 5 * kPageBytes + 77;
  std::vector<uint8_t> data = random_bytes(payload_bytes, 4);
  SpaceDigest space;
  space.fill(9);
  const BlockIdentity identity{space, "salt", "key"};
  const Checksum128 checksum = block_checksum(identity, data.data(), payload_bytes);

  data.resize(align_up(payload_bytes, kPageBytes));
  std::vector<uint64_t> pieces;
  for (size_t piece = 0; piece < data.size(); piece += kPieceBytes) {
    std::vector<uint64_t> pages;
    for (size_t page = piece; page < std::min(data.size(), piece + kPieceBytes); page += kPageBytes) {
      pages.push_back(XXH3_64bits(data.data() + page, kPageBytes));
    }
    pieces.push_back(XXH3_64bits(pages.data(), pages.size() * 8));
  }
  std::string root(space.begin(), space.end());
  root += std::string("\4\0\0\0salt\3\0\0\0key", 15);
  const uint64_t payload_word = payload_bytes;
  root.append(reinterpret_cast<const char*>(&payload_word), 8);
  root.append(reinterpret_cast<const char*>(pieces.data()), pieces.size() * 8);
  const XXH128_hash_t expected = XXH3_128bits(root.data(), root.size());
  EXPECT_EQ(checksum.low, expected.low64);
  EXPECT_EQ(checksum.high, expected.high64);
}

// The pin of the format: a change here orphans every store.
TEST(Checksum, GoldenBlock) {
  std::vector<uint8_t> data(kPieceBytes + 5000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 131 + (i >> 8));
  const SpaceDigest space = {1, 2, 3};
  const Checksum128 checksum = block_checksum({space, "", "golden"}, data.data(), data.size());
  EXPECT_EQ(checksum.low, 4833801264517702574u);
  EXPECT_EQ(checksum.high, 12406039133404555517u);
}

TEST(Checksum, EveryPartOfTheIdentityIsBound) {
  const std::vector<uint8_t> data = random_bytes(kPageBytes, 5);
  const std::vector<uint64_t> nodes = {piece_node(data.data(), data.size())};
  SpaceDigest space{}, other_space{};
  other_space[31] = 1;
  const Checksum128 root = root_checksum({space, "ab", "c"}, data.size(), nodes);
  EXPECT_EQ(root, root_checksum({space, "ab", "c"}, data.size(), nodes));
  EXPECT_NE(root, root_checksum({other_space, "ab", "c"}, data.size(), nodes));
  EXPECT_NE(root, root_checksum({space, "a", "bc"}, data.size(), nodes)) << "salt and key must not run together";
  EXPECT_NE(root, root_checksum({space, "ab", "d"}, data.size(), nodes));
  EXPECT_NE(root, root_checksum({space, "ab", "c"}, data.size() - 1, nodes));
  EXPECT_NE(root, root_checksum({space, "ab", "c"}, data.size(), std::vector<uint64_t>{nodes[0] ^ 1}));
}

TEST(Checksum, ARootLargerThanTheStackBufferIsTheSameHash) {
  const std::vector<uint64_t> nodes(2000, 0x1234);
  const SpaceDigest space{};
  const std::string salt(500, 's');
  std::string root(space.begin(), space.end());
  root += std::string("\xf4\1\0\0", 4) + salt + std::string("\1\0\0\0k", 5);
  const uint64_t payload_word = nodes.size() * kPieceBytes;
  root.append(reinterpret_cast<const char*>(&payload_word), 8);
  root.append(reinterpret_cast<const char*>(nodes.data()), nodes.size() * 8);
  const Checksum128 checksum = root_checksum({space, salt, "k"}, payload_word, nodes);
  EXPECT_EQ(checksum.low, XXH3_128bits(root.data(), root.size()).low64);
}

TEST(Checksum, TheEngineIsNamed) { EXPECT_STRNE(checksum_engine(), ""); }

}  // namespace
}  // namespace kvstore
