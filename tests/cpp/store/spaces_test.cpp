// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a space is its text: the same text has one id, any other has another; fingerprints keep spaces, salts and keys
// apart however they concatenate.
// Method: the registry and fingerprint_of alone.

#include "store/spaces.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>

namespace kvstore::store {
namespace {

TEST(SpaceRegistry, TheSameTextHasOneIdAndAnyOtherAnother) {
  SpaceRegistry registry;
  const SpaceId a = registry.add(R"({"model":"a"})").value();
  const SpaceId b = registry.add(R"({"model":"b"})").value();
  EXPECT_FALSE(a == b);
  EXPECT_EQ(registry.add(R"({"model":"a"})").value(), a);
  EXPECT_EQ(registry.find(a)->json, R"({"model":"a"})");
  EXPECT_NE(registry.find(a)->digest, registry.find(b)->digest);
  EXPECT_EQ(registry.find(SpaceId{2}), nullptr);
  EXPECT_EQ(registry.find(SpaceId{UINT32_MAX}), nullptr);
}

TEST(SpaceRegistry, RefusesEmptyAndOverlongTexts) {
  SpaceRegistry registry;
  EXPECT_EQ(registry.add("").status().code(), Code::kInvalid);
  EXPECT_TRUE(registry.add(std::string(kSpaceJsonBytesMax, 'x')).ok());
  EXPECT_EQ(registry.add(std::string(kSpaceJsonBytesMax + 1, 'x')).status().code(), Code::kInvalid);
}

TEST(SpaceRegistry, RecordsNeverMoveAndThreadsAgree) {
  SpaceRegistry registry;
  const SpaceId first = registry.add("first").value();
  const SpaceRecord* const record = registry.find(first);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&registry] {
      for (int i = 0; i < 500; ++i) {
        const std::string text = "space " + std::to_string(i);
        const SpaceId id = registry.add(text).value();
        ASSERT_EQ(registry.find(id)->json, text);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry.find(first), record);
  EXPECT_EQ(record->json, "first");
  EXPECT_NE(registry.find(SpaceId{500}), nullptr);
  EXPECT_EQ(registry.find(SpaceId{501}), nullptr) << "501 texts, 501 records";
}

TEST(FingerprintOf, KeepsApartWhateverConcatenatesToTheSameBytes) {
  SpaceRegistry registry;
  const SpaceDigest a = registry.find(registry.add("a").value())->digest;
  const SpaceDigest b = registry.find(registry.add("b").value())->digest;
  const FingerprintSecret secret{1, 2, 3};
  std::set<std::pair<uint64_t, uint64_t>> seen;
  const auto add = [&](const SpaceDigest& space, std::string_view salt, const format::StoredKey& key) {
    const Fingerprint fingerprint = fingerprint_of(secret, space, salt, key);
    return seen.insert({fingerprint.low, fingerprint.high}).second;
  };
  using format::make_stored_key;
  EXPECT_TRUE(add(a, "", make_stored_key("saltkey")));
  EXPECT_TRUE(add(a, "s", make_stored_key("altkey")));
  EXPECT_TRUE(add(a, "salt", make_stored_key("key")));
  EXPECT_TRUE(add(a, "saltke", make_stored_key("y")));
  EXPECT_TRUE(add(b, "salt", make_stored_key("key")));
  EXPECT_TRUE(add(a, std::string(kSaltBytesMax, 's'), make_stored_key("key")));
  // A long key's digest is not the short key that happens to have those bytes.
  const format::StoredKey digest = make_stored_key(std::string(100, 'k'));
  ASSERT_TRUE(digest.is_digest);
  const format::StoredKey raw = make_stored_key(digest.view());
  ASSERT_FALSE(raw.is_digest);
  EXPECT_TRUE(add(a, "", digest));
  EXPECT_TRUE(add(a, "", raw));
  // And another secret tells other fingerprints.
  EXPECT_FALSE(fingerprint_of(secret, a, "", raw) == fingerprint_of({9}, a, "", raw));
}

TEST(FingerprintOf, IsTheSameForAKeyReadBackFromItsDescriptor) {
  SpaceRegistry registry;
  const SpaceDigest space = registry.find(registry.add("a").value())->digest;
  for (const std::string& text :
       {std::string("k"), std::string(48, 'x'), std::string(49, 'x'), std::string(1024, 'y')}) {
    const format::StoredKey key = format::make_stored_key(text);
    format::Descriptor descriptor;
    std::memcpy(descriptor.key, key.bytes, key.size);
    descriptor.key_bytes = key.size;
    descriptor.flags =
        static_cast<uint16_t>(format::kDescriptorValid | (key.is_digest ? format::kDescriptorKeyIsDigest : 0));
    EXPECT_TRUE(fingerprint_of({}, space, "s", key) == fingerprint_of({}, space, "s", stored_key_of(descriptor)));
  }
}

}  // namespace
}  // namespace kvstore::store
