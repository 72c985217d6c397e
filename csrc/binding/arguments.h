// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Python arguments of a batch -> numbers and views of bytes. Every refusal names the argument, its index, what
// was given and what is allowed.
//
// Guarantees: keys are not copied; the bytes objects are held until the Texts is destroyed, so the views stay valid
// while the GIL is released and whatever another thread does to the list. Create and destroy with the GIL held.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "binding/errors.h"

namespace kvstore::binding {

// "keys[3]", or "key" when index is negative: where in the call something is wrong.
struct Where {
  const char* name;
  Py_ssize_t index = -1;
  std::string text() const;
};

std::string name_of_type(nb::handle object);
// str(object) for a message, whatever that is: what UTF-8 cannot hold is escaped, and an error of str() is no error.
std::string message_text(nb::handle object);
std::string number_text(uint64_t number);  // 1,025

// A list or tuple seen as such; other sequences and iterables are copied into a list first. Bytes and str are not
// sequences here: a lone key where keys are wanted is a TypeError that says so.
class Sequence {
 public:
  Sequence(nb::handle object, const char* name);
  size_t size() const { return size_; }
  nb::object operator[](size_t index) const;
  const char* name() const { return name_; }

 private:
  nb::object items_;
  bool is_list_ = false;
  size_t size_ = 0;
  const char* name_;
};

struct ByteLimits {
  size_t min_bytes;
  size_t max_bytes;
};
inline constexpr ByteLimits kKeyLimits{1, 1024};
inline constexpr ByteLimits kParentLimits{1, 1024};  // None is none
inline constexpr ByteLimits kSaltLimits{0, 1024};
inline constexpr ByteLimits kMetaLimits{0, 28};

class Texts {
 public:
  Texts() = default;
  Texts(Texts&&) = default;
  Texts& operator=(Texts&&) = default;

  // One bytes-like object. str is refused: which encoding would it be.
  void add(nb::handle object, const Where& where, ByteLimits limits);
  void add_empty() { views_.emplace_back(); }
  void reserve(size_t count);

  static Texts of_sequence(nb::handle object, const char* name, ByteLimits limits);
  // None: `count` empty ones. One bytes-like object: used for all. Else a sequence of `count`; its items may be None.
  static Texts of_optional(nb::handle object, const char* name, ByteLimits limits, size_t count);

  size_t size() const { return views_.size(); }
  std::string_view operator[](size_t index) const { return views_[index]; }

 private:
  std::vector<nb::object> held_;
  std::deque<std::string> copies_;  // of bytearray and memoryview, which may change under the call
  std::vector<std::string_view> views_;
};

// A str, as UTF-8. A str may hold lone surrogates, which UTF-8 cannot: refused, as is what is no str.
std::string parse_text(nb::handle object, const Where& where);
uint64_t parse_u64(nb::handle object, const Where& where, uint64_t max = UINT64_MAX);
int32_t parse_i32(nb::handle object, const Where& where);
// How many at most; None: all.
uint32_t parse_limit(nb::handle object);
// None: `fallback` for all. An int: for all. Else a sequence of `count`; its items may be None.
std::vector<uint64_t> parse_u64s(nb::handle object, const char* name, size_t count, uint64_t fallback, uint64_t max);

// Seconds (or milliseconds) -> ns. None: `none`. Negative or not a number: refused; huge: UINT64_MAX.
uint64_t parse_duration_ns(nb::handle object, const char* name, double unit_ns, uint64_t none);

}  // namespace kvstore::binding
