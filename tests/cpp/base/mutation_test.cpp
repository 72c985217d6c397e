// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: no ordinary build can be told to break a rule, and none pays for the possibility. Method: the rule is used
// where only a constant may stand, with the environment asking for the contrary.

#include "base/mutation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

namespace kvstore {
namespace {

#ifdef KVSTORE_MUTATIONS

TEST(Mutation, OnlyTheClauseThatIsNamedIsBroken) {
  const char* const named = std::getenv("KVS_MUTATE");
  EXPECT_EQ(KVS_RULE(I4_of_a_test), named == nullptr || std::string_view(named) != "I4_of_a_test");
  EXPECT_TRUE(KVS_RULE(I4_of_another));
}

#else

TEST(Mutation, ARuleIsAConstantInAnOrdinaryBuild) {
  setenv("KVS_MUTATE", "I4_of_a_test", 1);
  static_assert(KVS_RULE(I4_of_a_test), "costs nothing, and cannot be switched off");
  EXPECT_TRUE(KVS_RULE(I4_of_a_test));
  unsetenv("KVS_MUTATE");
}

#endif

}  // namespace
}  // namespace kvstore
