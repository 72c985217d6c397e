// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a damaged or forged image is an error or a store whose every hit is right, and nothing about it hangs.
// Method: the fuzz target of whole images, over its corpus and seeded mutations of it. KVSTORE_SEED and
// KVSTORE_FUZZ_MUTATIONS make it another or a longer run.

#define KVSTORE_FUZZ_REPLAY
#include "../../fuzz/image_fuzz.cpp"

#include <gtest/gtest.h>

#include "../../fuzz/replay.h"

namespace kvstore::fuzz {
namespace {

constexpr uint64_t kImageMutations = 100;  // each opens a store twice

TEST(FuzzReplay, Image) { replay_corpus(__FILE__, "image", fuzz_image, kImageMutations); }

}  // namespace
}  // namespace kvstore::fuzz
