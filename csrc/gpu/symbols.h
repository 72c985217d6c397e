// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Symbols: the functions of a library that dlopen() gave, found by name. Of those that are needed it keeps the first
// that is missing.

#pragma once

#include <dlfcn.h>

#include <string>

namespace kvstore::gpu {

class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <typename Function>
  void need(Function*& function, const char* symbol) {
    find(function, symbol);
    if (function == nullptr && missing_.empty()) missing_ = symbol;
  }
  // Null where the library has none.
  template <typename Function>
  void find(Function*& function, const char* symbol) {
    function = reinterpret_cast<Function*>(dlsym(library_, symbol));
  }
  const std::string& missing() const { return missing_; }

 private:
  void* const library_;
  std::string missing_;
};

}  // namespace kvstore::gpu
