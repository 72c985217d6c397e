// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: memory is moved to a NUMA node, or the reason why not is told. Method: this machine's nodes, of which every
// machine has node 0.

#include "base/numa.h"

#include <gtest/gtest.h>

#include "base/aligned.h"

namespace kvstore {
namespace {

TEST(Numa, MemoryIsMovedToANodeThatIsThere) {
  AlignedBuffer memory(4 * kMiB);
  if (numa_node_of_memory(memory.data()) < 0) GTEST_SKIP() << "needs get_mempolicy, which this container refuses";
  memory.data()[5] = 7;
  const Status moved = move_to_numa_node(memory.data(), memory.size(), 0);
  ASSERT_TRUE(moved.ok()) << moved.message();
  EXPECT_EQ(numa_node_of_memory(memory.data()), 0);
  EXPECT_EQ(memory.data()[5], 7);
}

TEST(Numa, ANodeThatIsNotThereIsTold) {
  AlignedBuffer memory(kMiB);
  const Status moved = move_to_numa_node(memory.data(), memory.size(), 1000);
  EXPECT_FALSE(moved.ok());
  EXPECT_NE(moved.message().find("NUMA node 1000"), std::string::npos) << moved.message();
  EXPECT_EQ(move_to_numa_node(memory.data(), memory.size(), -1).code(), Code::kInvalid);
  EXPECT_EQ(move_to_numa_node(memory.data(), memory.size(), 1 << 20).code(), Code::kInvalid);
}

TEST(Numa, WhatIsNoMemoryIsOnNoNode) { EXPECT_EQ(numa_node_of_memory(nullptr), -1); }

}  // namespace
}  // namespace kvstore
