// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "base/status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace kvstore {

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kNotFound: return "not found";
    case Code::kCorrupt: return "corrupt";
    case Code::kStale: return "stale";
    case Code::kBusy: return "busy";
    case Code::kNoSpace: return "no space";
    case Code::kFenced: return "fenced";
    case Code::kInvalid: return "invalid";
    case Code::kUnsupported: return "unsupported";
    case Code::kIo: return "i/o error";
    case Code::kTimeout: return "timeout";
    case Code::kClosed: return "closed";
    case Code::kForeign: return "not ours";
    case Code::kOtherStore: return "another store";
    case Code::kDurabilityLost: return "durability lost";
    case Code::kFailed: return "store failed";
    case Code::kCanceled: return "canceled";
  }
  return "unknown";
}

Status Status::from_errno(int io_errno, std::string what) {
  return Status(Code::kIo, std::move(what) + ": " + std::strerror(io_errno), io_errno);
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(code_name(code_)) + ": " + message_;
}

std::string format_text(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  va_list measured;
  va_copy(measured, arguments);
  const int length = std::vsnprintf(nullptr, 0, format, measured);
  va_end(measured);
  std::string text(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  if (length > 0) std::vsnprintf(text.data(), text.size() + 1, format, arguments);
  va_end(arguments);
  return text;
}

}  // namespace kvstore
