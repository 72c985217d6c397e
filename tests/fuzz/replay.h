// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target without libFuzzer: every file of its corpus, then mutations of them that a seed decides. Finds
// less than a coverage-guided fuzzer, but runs in every build and every compiler.

#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/clock.h"

namespace kvstore::fuzz {

using Target = void (*)(const uint8_t* data, size_t bytes);
using Bytes = std::vector<uint8_t>;

inline std::vector<Bytes> read_corpus(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());  // so that a seed means the same everywhere
  std::vector<Bytes> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

// A few bytes, or one field of 2, 4 or 8, become something that is likely to hurt.
inline void mutate(Bytes& input, SeededRandom& random) {
  constexpr uint64_t kNasty[] = {0,
                                 1,
                                 0x7f,
                                 0x80,
                                 0xff,
                                 0x7fff,
                                 0xffff,
                                 0x10000,
                                 0x7fffffff,
                                 0xffffffff,
                                 0x100000000,
                                 0x7fffffffffffffff,
                                 0xfffffffffffff000,
                                 0xffffffffffffffff};
  for (uint64_t changes = 1 + random.below(4); changes > 0; --changes) {
    if (input.empty() || random.below(16) == 0) input.resize(random.below(3 * 4096));
    if (input.empty()) continue;
    const size_t at = random.below(input.size());
    const size_t width = std::min<size_t>(size_t{1} << random.below(4), input.size() - at);
    uint64_t value = random.below(2) == 0 ? random.next() : kNasty[random.below(std::size(kNasty))];
    for (size_t i = 0; i < width; ++i, value >>= 8) input[at + i] = static_cast<uint8_t>(value);
  }
}

inline void replay(Target target, const std::vector<Bytes>& corpus, uint64_t mutations, uint64_t seed) {
  target(nullptr, 0);
  for (const Bytes& input : corpus) target(input.data(), input.size());
  SeededRandom random(seed);
  for (uint64_t i = 0; i < mutations && !corpus.empty(); ++i) {
    Bytes input = corpus[random.below(corpus.size())];
    mutate(input, random);
    target(input.data(), input.size());
  }
}

}  // namespace kvstore::fuzz
