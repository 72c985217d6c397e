// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "base/digest.h"

#include <bit>
#include <cstring>

namespace kvstore {
namespace {

static_assert(std::endian::native == std::endian::little, "words are loaded as they lie in memory");

constexpr size_t kBlakeBlockBytes = 128;
constexpr int kBlakeRounds = 12;

constexpr uint64_t kBlakeIv[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

constexpr uint8_t kBlakeSigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

void blake_mix(uint64_t (&v)[16], int a, int b, int c, int d, uint64_t x, uint64_t y) {
  v[a] = v[a] + v[b] + x;
  v[d] = std::rotr(v[d] ^ v[a], 32);
  v[c] = v[c] + v[d];
  v[b] = std::rotr(v[b] ^ v[c], 24);
  v[a] = v[a] + v[b] + y;
  v[d] = std::rotr(v[d] ^ v[a], 16);
  v[c] = v[c] + v[d];
  v[b] = std::rotr(v[b] ^ v[c], 63);
}

// RFC 7693 section 3.2. Inputs below 2^64 bytes, so the high counter word stays 0.
void blake_compress(uint64_t (&h)[8], const uint8_t* block, uint64_t counted_bytes, bool last) {
  uint64_t m[16];
  std::memcpy(m, block, sizeof(m));
  uint64_t v[16];
  for (int i = 0; i < 8; ++i) {
    v[i] = h[i];
    v[i + 8] = kBlakeIv[i];
  }
  v[12] ^= counted_bytes;
  if (last) v[14] = ~v[14];
  for (int round = 0; round < kBlakeRounds; ++round) {
    const uint8_t* s = kBlakeSigma[round % 10];
    blake_mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
    blake_mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
    blake_mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
    blake_mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
    blake_mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
    blake_mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
    blake_mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
    blake_mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
  }
  for (int i = 0; i < 8; ++i) h[i] ^= v[i] ^ v[i + 8];
}

// SipHash-2-4 state that takes bytes in runs: whole words straight from the run, the ragged end kept.
class SipHash {
 public:
  explicit SipHash(const FingerprintSecret& secret) {
    uint64_t k[2];
    std::memcpy(k, secret.data(), sizeof(k));
    v_[0] = 0x736f6d6570736575 ^ k[0];
    v_[1] = 0x646f72616e646f6d ^ k[1] ^ 0xee;  // 0xee selects the 128-bit variant
    v_[2] = 0x6c7967656e657261 ^ k[0];
    v_[3] = 0x7465646279746573 ^ k[1];
  }

  void update(std::string_view run) {
    total_bytes_ += run.size();
    const char* data = run.data();
    size_t left = run.size();
    if (tail_bytes_ > 0) {
      while (tail_bytes_ < 8 && left > 0) {
        push_tail(*data++);
        --left;
      }
      if (tail_bytes_ < 8) return;
      absorb(tail_);
      tail_ = 0;
      tail_bytes_ = 0;
    }
    for (; left >= 8; left -= 8, data += 8) {
      uint64_t word;
      std::memcpy(&word, data, 8);
      absorb(word);
    }
    for (; left > 0; --left) push_tail(*data++);
  }

  Fingerprint finish() {
    absorb(tail_ | total_bytes_ << 56);
    Fingerprint fingerprint;
    v_[2] ^= 0xee;
    for (int i = 0; i < 4; ++i) round();
    fingerprint.low = v_[0] ^ v_[1] ^ v_[2] ^ v_[3];
    v_[1] ^= 0xdd;
    for (int i = 0; i < 4; ++i) round();
    fingerprint.high = v_[0] ^ v_[1] ^ v_[2] ^ v_[3];
    return fingerprint;
  }

 private:
  void push_tail(char byte) {
    tail_ |= static_cast<uint64_t>(static_cast<uint8_t>(byte)) << (8 * tail_bytes_);
    ++tail_bytes_;
  }

  void absorb(uint64_t word) {
    v_[3] ^= word;
    round();
    round();
    v_[0] ^= word;
  }

  void round() {
    v_[0] += v_[1];
    v_[1] = std::rotl(v_[1], 13) ^ v_[0];
    v_[0] = std::rotl(v_[0], 32);
    v_[2] += v_[3];
    v_[3] = std::rotl(v_[3], 16) ^ v_[2];
    v_[0] += v_[3];
    v_[3] = std::rotl(v_[3], 21) ^ v_[0];
    v_[2] += v_[1];
    v_[1] = std::rotl(v_[1], 17) ^ v_[2];
    v_[2] = std::rotl(v_[2], 32);
  }

  uint64_t v_[4];
  uint64_t tail_ = 0;
  uint32_t tail_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace

void blake2b(std::string_view data, std::span<uint8_t> out) {
  uint64_t h[8];
  std::memcpy(h, kBlakeIv, sizeof(h));
  h[0] ^= 0x01010000 ^ out.size();  // parameter block: no key, fanout 1, depth 1, this digest length

  const uint8_t* block = reinterpret_cast<const uint8_t*>(data.data());
  size_t left = data.size();
  uint64_t counted_bytes = 0;
  // The last block, even a full one, is compressed with the final flag.
  for (; left > kBlakeBlockBytes; left -= kBlakeBlockBytes, block += kBlakeBlockBytes) {
    counted_bytes += kBlakeBlockBytes;
    blake_compress(h, block, counted_bytes, false);
  }
  uint8_t padded[kBlakeBlockBytes] = {};
  if (left > 0) std::memcpy(padded, block, left);
  blake_compress(h, padded, counted_bytes + left, true);
  std::memcpy(out.data(), h, out.size());
}

Fingerprint siphash128(const FingerprintSecret& secret, std::string_view prefix, std::string_view data) {
  SipHash hash(secret);
  hash.update(prefix);
  hash.update(data);
  return hash.finish();
}

}  // namespace kvstore
