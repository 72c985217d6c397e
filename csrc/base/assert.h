// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// KVS_ASSERT: an invariant of the store, checked in all builds. A failure is a bug of ours: it must not take the
// process down with it, and must not let the store go on writing. The enclosing class has
//
//   void broken(const char* condition, const char* file, int line) noexcept;
//
// which marks the store failed (every later call gives kFailed), tells stderr once, and returns; in builds with
// KVSTORE_ABORT_ON_ASSERT (tests) it aborts instead.

#pragma once

#define KVS_ASSERT(condition)                                 \
  do {                                                        \
    if (!(condition)) broken(#condition, __FILE__, __LINE__); \
  } while (0)
