// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what is embedded is a fatbin, whole; or nothing, with the reason.

#include "gpu/kernel_image.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace kvstore::gpu {
namespace {

// The header of a fatbin: magic, version, its own size, and the size of what follows (fatbinary.h of the toolkit).
struct FatbinHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t body_bytes;
};

TEST(KernelImage, IsAWholeFatbinOrSaysWhyThereIsNone) {
  const KernelImage image = kernel_image();
  if (image.bytes.empty()) {
    EXPECT_GT(std::string(image.absent).size(), 10u);
    return;
  }
  FatbinHeader header;
  ASSERT_GE(image.bytes.size(), sizeof(header));
  std::memcpy(&header, image.bytes.data(), sizeof(header));
  EXPECT_EQ(header.magic, 0xba55ed50u);
  EXPECT_EQ(header.header_bytes + header.body_bytes, image.bytes.size());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(image.bytes.data()) % 64, 0u);
}

}  // namespace
}  // namespace kvstore::gpu
