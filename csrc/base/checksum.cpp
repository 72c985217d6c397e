// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "base/checksum.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/checksum_kernel.h"
#include "base/mutation.h"

namespace kvstore {
namespace {

// The tree hashes nodes and lengths as they lie in memory.
static_assert(std::endian::native == std::endian::little, "the device format is little-endian");

constexpr size_t kPiecePages = kPieceBytes / kPageBytes;
// Room for the root's input of blocks up to about 480 MiB with ordinary salts; larger ones allocate.
constexpr size_t kRootInputBytes = 4096;

const ChecksumKernel& choose_kernel() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("bmi2")) {
    return kChecksumKernelAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) return kChecksumKernelAvx2;
#endif
  return kChecksumKernelGeneric;
}

// Constant-initialised users before main() are safe: a function-local static.
const ChecksumKernel& kernel() {
  static const ChecksumKernel& chosen = choose_kernel();
  return chosen;
}

uint64_t hash_short_page(const void* page, size_t bytes) {
  alignas(64) uint8_t padded[kPageBytes];
  if (bytes > 0) std::memcpy(padded, page, bytes);
  std::memset(padded + bytes, 0, kPageBytes - bytes);
  uint64_t node;
  kernel().hash_pages(padded, 1, &node);
  return node;
}

}  // namespace

uint64_t page_node(const void* page, size_t bytes) {
  if (bytes < kPageBytes) return hash_short_page(page, bytes);
  uint64_t node;
  kernel().hash_pages(page, 1, &node);
  return node;
}

void page_nodes(const void* data, size_t bytes, uint64_t* nodes) {
  const size_t whole_pages = bytes / kPageBytes;
  kernel().hash_pages(data, whole_pages, nodes);
  const size_t rest_bytes = bytes % kPageBytes;
  if (rest_bytes == 0) return;
  nodes[whole_pages] = hash_short_page(static_cast<const uint8_t*>(data) + whole_pages * kPageBytes, rest_bytes);
}

uint64_t piece_node_of_pages(std::span<const uint64_t> nodes) {
  return kernel().hash64(nodes.data(), nodes.size_bytes());
}

uint64_t piece_node(const void* data, size_t bytes) {
  uint64_t nodes[kPiecePages];
  page_nodes(data, bytes, nodes);
  return piece_node_of_pages({nodes, ceil_div(bytes, kPageBytes)});
}

Checksum128 root_checksum(const BlockIdentity& identity, uint64_t payload_bytes,
                          std::span<const uint64_t> piece_nodes) {
  const uint32_t salt_bytes = static_cast<uint32_t>(identity.salt.size());
  const uint32_t key_bytes = static_cast<uint32_t>(identity.key.size());
  const size_t total_bytes = identity.space.size() + sizeof(salt_bytes) + identity.salt.size() + sizeof(key_bytes) +
                             identity.key.size() + sizeof(payload_bytes) + piece_nodes.size_bytes();

  uint8_t stack_input[kRootInputBytes];
  std::vector<uint8_t> heap_input;
  uint8_t* input = stack_input;
  if (total_bytes > sizeof(stack_input)) {
    heap_input.resize(total_bytes);
    input = heap_input.data();
  }
  uint8_t* end = input;
  const auto append = [&end](const void* data, size_t bytes) {
    if (bytes > 0) std::memcpy(end, data, bytes);
    end += bytes;
  };
  append(identity.space.data(), KVS_RULE(I5_the_root_binds_the_space) ? identity.space.size() : 0);
  append(&salt_bytes, sizeof(salt_bytes));
  append(identity.salt.data(), KVS_RULE(I5_the_root_binds_the_salt) ? identity.salt.size() : 0);
  append(&key_bytes, sizeof(key_bytes));
  append(identity.key.data(), KVS_RULE(I5_the_root_binds_the_key) ? identity.key.size() : 0);
  append(&payload_bytes, sizeof(payload_bytes));
  append(piece_nodes.data(), piece_nodes.size_bytes());
  return metadata_checksum(input, static_cast<size_t>(end - input));
}

Checksum128 block_checksum(const BlockIdentity& identity, const void* data, uint64_t payload_bytes) {
  std::vector<uint64_t> nodes;
  nodes.reserve(ceil_div(payload_bytes, kPieceBytes));
  const uint8_t* piece = static_cast<const uint8_t*>(data);
  for (uint64_t done = 0; done < payload_bytes; done += kPieceBytes) {
    const uint64_t left = payload_bytes - done;
    nodes.push_back(piece_node(piece + done, left < kPieceBytes ? left : kPieceBytes));
  }
  return root_checksum(identity, payload_bytes, nodes);
}

Checksum128 metadata_checksum(const void* data, size_t bytes) {
  Checksum128 checksum;
  kernel().hash128(data, bytes, &checksum.low, &checksum.high);
  return checksum;
}

const char* checksum_engine() { return kernel().name; }

}  // namespace kvstore
