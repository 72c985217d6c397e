// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// KVS_RULE(I4_tails_alternate): one clause of a rule of ARCHITECTURE.md, at the place that keeps it.
//
// It is the constant true, and costs nothing. Only a build with KVSTORE_MUTATIONS, which scripts/mutate makes for
// itself, asks the environment: in a process with KVS_MUTATE=I4_tails_alternate that clause is not kept, all others
// are. A test must then fail, the one that tests/cpp/store/mutations.txt names; a rule whose absence no test notices is
// not tested. Never the only thing that a statement does: what is switched off is what the code would do without the
// rule.

#pragma once

#ifdef KVSTORE_MUTATIONS

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kvstore {

// False for the clause that this process is to break. `told` is of one place: that it was reached is said once.
inline bool rule_is_kept(const char* clause, bool& told) {
  static const char* const broken = std::getenv("KVS_MUTATE");
  if (broken == nullptr || std::strcmp(broken, clause) != 0) return true;
  if (!told) std::fprintf(stderr, "KVS_MUTATE: %s is not kept here\n", clause);
  told = true;
  return false;
}

}  // namespace kvstore

#define KVS_RULE(clause)                           \
  ([] {                                            \
    static bool told = false;                      \
    return ::kvstore::rule_is_kept(#clause, told); \
  }())

#else

#define KVS_RULE(clause) true

#endif
