// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// main() of a fuzz target built by a compiler without libFuzzer:
//   superblock_replay CORPUS_FOLDER [MUTATIONS [SEED]]     or     superblock_replay FILE   (one crash file)

#include <cstdio>
#include <cstdlib>

#include "replay.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER|FILE [MUTATIONS [SEED]]\n", argv[0]);
    return 2;
  }
  const auto target = [](const uint8_t* data, size_t bytes) { LLVMFuzzerTestOneInput(data, bytes); };
  const uint64_t mutations = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  const std::filesystem::path path = argv[1];
  if (std::filesystem::is_directory(path)) {
    kvstore::fuzz::replay(target, kvstore::fuzz::read_corpus(path), mutations, seed);
  } else {
    std::ifstream file(path, std::ios::binary);
    const kvstore::fuzz::Bytes input{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    kvstore::fuzz::replay(target, {input}, mutations, seed);
  }
  std::printf("%s: nothing found\n", argv[0]);
}
