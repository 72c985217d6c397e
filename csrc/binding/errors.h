// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Status to Python exception. The classes live in kvstore/errors.py, which hands this module the class of each code:
// the only conversion there is. Making one runs no Python code, see gil.h for why.

#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <utility>

#include "base/status.h"

namespace kvstore::binding {

namespace nb = nanobind;

// Carries a Status from where it is found to nanobind's translator; never leaves this module.
class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)) {}
  const Status& status() const { return status_; }
  const char* what() const noexcept override { return status_.message().c_str(); }

 private:
  Status status_;
};

inline void check(Status status) {
  if (!status.ok()) throw StatusError(std::move(status));
}

template <typename T>
T unwrap(Result<T> result) {
  if (!result.ok()) throw StatusError(result.status());
  return std::move(result).value();
}

[[noreturn]] inline void raise_invalid(std::string message) {
  throw StatusError(Status(Code::kInvalid, std::move(message)));
}
[[noreturn]] void raise_type_error(const std::string& message);

// "io", "busy", ...: what an exception's and a Result's `code` says.
const char* code_word(Code code);

// The exception object of a Status; does not raise it.
nb::object make_exception(Code code, int io_errno, const std::string& message);

void bind_errors(nb::module_& module);

}  // namespace kvstore::binding
