// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "base/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace kvstore {

namespace {

constexpr int kNodesMax = 1024;  // what the kernel can be built for
constexpr int kBitsPerWord = 8 * sizeof(unsigned long);

}  // namespace

int numa_node_of_memory(const void* base) {
  int node = -1;
  const long code = syscall(SYS_get_mempolicy, &node, nullptr, 0, base, MPOL_F_NODE | MPOL_F_ADDR);
  return code == 0 ? node : -1;
}

Status move_to_numa_node(void* base, uint64_t bytes, int node) {
  if (node < 0 || node >= kNodesMax) return Status(Code::kInvalid, format_text("NUMA node %d", node));
  unsigned long nodes[kNodesMax / kBitsPerWord] = {};
  nodes[node / kBitsPerWord] = 1UL << (node % kBitsPerWord);
  // Preferred, not bound: a node that is full must not end the process.
  if (syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, nodes, kNodesMax, MPOL_MF_MOVE) == 0) return {};
  return Status::from_errno(errno, format_text("memory cannot be moved to NUMA node %d (mbind)", node));
}

}  // namespace kvstore
