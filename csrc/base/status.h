// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Status and Result<T>: how every C++ layer reports failure. No exceptions cross a module.
//
// Guarantees: a Status is ok or carries a code, a message (what, where, the numbers, the mend) and, for
// kIo, the errno. A miss is a value (kNotFound is for lookups inside the core), an error is a Status,
// a bug is KVS_ASSERT, which fails the store and never the process (base/assert.h).

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace kvstore {

enum class Code : uint8_t {
  kOk = 0,
  kNotFound,        // no such block, no store here
  kCorrupt,         // bytes on the device contradict themselves
  kStale,           // right once, superseded since (generation, epoch)
  kBusy,            // a bound is reached or somebody else holds it; try again
  kNoSpace,         // nothing can be reclaimed
  kFenced,          // a higher epoch owns the device
  kInvalid,         // the caller's argument
  kUnsupported,     // this build, kernel or format version cannot
  kIo,              // the device said no; io_errno says why
  kTimeout,         // the wait ended, the operation may not have
  kClosed,          // closed, or used in a forked child
  kForeign,         // something that is not ours is on the device (file system, partition table)
  kOtherStore,      // a store, but not the one that was asked for
  kDurabilityLost,  // blocks reported written were lost before their descriptor was (I6)
  kFailed,          // an invariant broke: the store refuses further work
  kCanceled,
};

const char* code_name(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message, int io_errno = 0)
      : code_(code), io_errno_(io_errno), message_(std::move(message)) {}

  // "<what>: <strerror>" with code kIo.
  static Status from_errno(int io_errno, std::string what);

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  int io_errno() const { return io_errno_; }
  const std::string& message() const { return message_; }
  std::string to_string() const;

 private:
  Code code_ = Code::kOk;
  int io_errno_ = 0;
  std::string message_;
};

// A value or the Status that explains its absence.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit on purpose
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

// printf-style message building, so that call sites stay one line.
std::string format_text(const char* format, ...) __attribute__((format(printf, 1, 2)));

#define KVS_CONCAT_INNER(a, b) a##b
#define KVS_CONCAT(a, b) KVS_CONCAT_INNER(a, b)

// Returns the Status (or Result's Status) of `expression` from this function unless it is ok.
#define KVS_TRY(expression)                                                               \
  do {                                                                                    \
    if (::kvstore::Status kvs_status = (expression); !kvs_status.ok()) return kvs_status; \
  } while (0)

// KVS_ASSIGN(auto x, f()): x is the value of the Result, or this function returns its Status.
#define KVS_ASSIGN(declaration, expression)                                                       \
  auto KVS_CONCAT(kvs_result_, __LINE__) = (expression);                                          \
  if (!KVS_CONCAT(kvs_result_, __LINE__).ok()) return KVS_CONCAT(kvs_result_, __LINE__).status(); \
  declaration = std::move(KVS_CONCAT(kvs_result_, __LINE__)).value()

}  // namespace kvstore
