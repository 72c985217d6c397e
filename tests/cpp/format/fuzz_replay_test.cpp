// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: hostile bytes in any block give an error or a usable value; under sanitizers, never undefined behaviour.
// Method: the fuzz targets of tests/fuzz, over their corpus and seeded mutations of it. KVSTORE_SEED and
// KVSTORE_FUZZ_MUTATIONS make it another or a longer run.

#define KVSTORE_FUZZ_REPLAY
#include "../../fuzz/bitmap_fuzz.cpp"
#include "../../fuzz/descriptor_block_fuzz.cpp"
#include "../../fuzz/dictionary_fuzz.cpp"
#include "../../fuzz/region_header_fuzz.cpp"
#include "../../fuzz/superblock_fuzz.cpp"

#include <gtest/gtest.h>

#include "../../fuzz/replay.h"

namespace kvstore::fuzz {
namespace {

void replay_corpus_of(const char* name, Target target) { replay_corpus(__FILE__, name, target, 5000); }

TEST(FuzzReplay, Superblock) { replay_corpus_of("superblock", fuzz_superblock); }
TEST(FuzzReplay, RegionHeader) { replay_corpus_of("region_header", fuzz_region_header); }
TEST(FuzzReplay, Dictionary) { replay_corpus_of("dictionary", fuzz_dictionary); }
TEST(FuzzReplay, DescriptorBlock) { replay_corpus_of("descriptor_block", fuzz_descriptor_block); }
TEST(FuzzReplay, Bitmap) { replay_corpus_of("bitmap", fuzz_bitmap); }

}  // namespace
}  // namespace kvstore::fuzz
