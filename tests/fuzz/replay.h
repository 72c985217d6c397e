// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target without libFuzzer: every file of its corpus, then mutations of them that a seed decides. Finds
// less than a coverage-guided fuzzer, but runs in every build and every compiler.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
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

inline uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// For a test in tests/cpp/<folder>/`test_file`: the corpus of `name`, and mutations as many as KVSTORE_FUZZ_MUTATIONS
// says, from KVSTORE_SEED.
inline void replay_corpus(const char* test_file, const std::string& name, Target target, uint64_t mutations) {
  const auto folder = std::filesystem::path(test_file).parent_path() / "../../fuzz/corpus" / name;
  const std::vector<Bytes> corpus = read_corpus(folder);
  if (corpus.empty()) throw std::runtime_error("no corpus in " + folder.string());
  const uint64_t seed = from_environment("KVSTORE_SEED", 1);
  std::printf("KVSTORE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  replay(target, corpus, from_environment("KVSTORE_FUZZ_MUTATIONS", mutations), seed);
}

}  // namespace kvstore::fuzz
