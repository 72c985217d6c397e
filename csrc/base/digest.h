// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Cryptographic digests of identities (never of payloads): BLAKE2b (RFC 7693) for space and long-key
// digests, SipHash-2-4-128 keyed with the store's secret for index fingerprints, so that nobody who picks
// keys can pick collisions. Both are our own 60 lines rather than a library, so that building needs no
// headers beyond liburing's and xxHash's; both are checked against published vectors and hashlib.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvstore {

// Writes out.size() (1..64) bytes of BLAKE2b, unkeyed.
void blake2b(std::string_view data, std::span<uint8_t> out);

template <size_t Bytes>
std::array<uint8_t, Bytes> blake2b(std::string_view data) {
  std::array<uint8_t, Bytes> out;
  blake2b(data, out);
  return out;
}

struct Fingerprint {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Fingerprint&) const = default;
};

using FingerprintSecret = std::array<uint8_t, 16>;

// SipHash-2-4 with 128-bit output over the concatenation prefix | data (one pass, no allocation).
Fingerprint siphash128(const FingerprintSecret& secret, std::string_view prefix, std::string_view data);

}  // namespace kvstore
