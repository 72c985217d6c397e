// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what is read of /proc while processes come and go is text or nothing, and never an exception.

#include "base/small_file.h"

#include <gtest/gtest.h>

namespace kvstore {
namespace {

TEST(SmallFile, IsReadWhole) { EXPECT_NE(read_small_file("/proc/self/status").find("Threads:"), std::string::npos); }

TEST(SmallFile, IsCutWhereItIsTooLong) { EXPECT_EQ(read_small_file("/dev/zero", 10), std::string(10, '\0')); }

TEST(SmallFile, IsEmptyWhenItCannotBeReadToItsEnd) {
  EXPECT_EQ(read_small_file("/proc/self/mem"), "");  // opens, and fails to be read at 0
  EXPECT_EQ(read_small_file("/proc/self/no such file"), "");
}

}  // namespace
}  // namespace kvstore
