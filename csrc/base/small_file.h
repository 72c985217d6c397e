// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// read_small_file: a file of /proc or /sys, whole. What cannot be read is empty: a process that one reads about may end
// in the middle, and an iterator over a stream would throw then (std::ios_base::failure, ESRCH).

#pragma once

#include <cstdio>
#include <string>

namespace kvstore {

inline std::string read_small_file(const std::string& path, size_t bytes_max = 64 * 1024) {
  FILE* const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return {};
  std::string text(bytes_max, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  return failed ? std::string() : text;
}

}  // namespace kvstore
