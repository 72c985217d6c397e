// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: identities digest to what the published algorithms say, on every machine and for ever.
// Method: the RFC 7693 vector, vectors computed with Python's hashlib around the block boundary, and the
// vectors of the SipHash reference implementation (key 00..0f, input 00, 01, 02 ..).

#include "base/digest.h"

#include <gtest/gtest.h>

#include <string>

namespace kvstore {
namespace {

std::string hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

// byte i = 7 i + 1
std::string pattern(size_t bytes) {
  std::string data(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 7 + 1);
  return data;
}

TEST(Blake2b, Rfc7693VectorOfAbc) {
  EXPECT_EQ(hex(blake2b<64>("abc")),
            "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
            "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923");
}

TEST(Blake2b, EmptyInput) {
  EXPECT_EQ(hex(blake2b<64>("")),
            "786a02f742015903c6c6fd852552d272912f4740e15847618a86e217f71f5419"
            "d25e1031afee585313896444934eb04b903a685b1448b755d56f701afe9be2ce");
}

TEST(Blake2b, LengthsAroundTheBlockEqualHashlib) {
  const struct {
    size_t bytes;
    const char* digest256;
  } vectors[] = {
      {3, "e43d000b0a37d6fcddcd15640107181a908675e1820dd5ae307155ffff196ba5"},
      {127, "3b03a73c3c02e3eef11be3e2e16c12ccf6090dea00aa861ded320910892e13ac"},
      {128, "6b89237e0a469a721c700b8bbcb51b6231c48e71ff023e0e3444ec84882ae32e"},
      {129, "524a9dc9d008a9ce1d9d2a111bcd10d2461a02dadf30ec5a47225501608a87eb"},
      {255, "c00ba3c990ad9e1b4ebb2fb2127b74f642b2a888b985be208f7a65ad4db0a6fc"},
      {256, "e7001e3026924e6650fcd5b274bc3ddf556a6c7fedfe038383c0f4ad5f26cfc9"},
      {1000, "1d16566788d72e44f7c8ca9aaf73edc64bb03fc69322cb735f49974d7c9ce383"},
  };
  for (const auto& vector : vectors) {
    EXPECT_EQ(hex(blake2b<32>(pattern(vector.bytes))), vector.digest256) << vector.bytes << " bytes";
  }
}

TEST(Blake2b, TheDigestLengthIsPartOfTheDigest) {
  EXPECT_EQ(hex(blake2b<48>(pattern(1000))),
            "8ba5cb7beaacfbe30b3d912d702061537bf8b1004f5c7de9cfd883e49b12fe2f09ba0b052ccbfa0b86ff6a6733736725");
  EXPECT_NE(hex(blake2b<48>(pattern(3))).substr(0, 64), hex(blake2b<32>(pattern(3))));
}

class SipHash : public ::testing::Test {
 protected:
  SipHash() {
    for (size_t i = 0; i < secret_.size(); ++i) secret_[i] = static_cast<uint8_t>(i);
  }
  static std::string counting(size_t bytes) {
    std::string data(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i);
    return data;
  }
  std::string digest(std::string_view prefix, std::string_view data) const {
    const Fingerprint fingerprint = siphash128(secret_, prefix, data);
    const uint64_t words[2] = {fingerprint.low, fingerprint.high};
    return hex({reinterpret_cast<const uint8_t*>(words), sizeof(words)});
  }
  FingerprintSecret secret_;
};

// Source: vectors_sip128 of github.com/veorq/SipHash, entries 0, 1, 7, 8, 15.
TEST_F(SipHash, ReferenceVectors) {
  EXPECT_EQ(digest("", counting(0)), "a3817f04ba25a8e66df67214c7550293");
  EXPECT_EQ(digest("", counting(1)), "da87c1d86b99af44347659119b22fc45");
  EXPECT_EQ(digest("", counting(7)), "a1f1ebbed8dbc153c0b84aa61ff08239");
  EXPECT_EQ(digest("", counting(8)), "3b62a9ba6258f5610f83e264f31497b4");
  EXPECT_EQ(digest("", counting(15)), "5493e99933b0a8117e08ec0f97cfc3d9");
}

TEST_F(SipHash, EveryCutIntoPrefixAndDataIsTheConcatenation) {
  const std::string all = counting(40);
  const std::string_view view = all;
  for (size_t bytes = 0; bytes <= view.size(); ++bytes) {
    const std::string whole = digest("", view.substr(0, bytes));
    for (size_t cut = 0; cut <= bytes; ++cut) {
      ASSERT_EQ(digest(view.substr(0, cut), view.substr(cut, bytes - cut)), whole) << bytes << " cut at " << cut;
    }
  }
}

TEST_F(SipHash, AnotherSecretIsAnotherFingerprint) {
  FingerprintSecret other = secret_;
  other[15] ^= 0x80;
  EXPECT_NE(siphash128(other, "", "key"), siphash128(secret_, "", "key"));
}

}  // namespace
}  // namespace kvstore
