// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// SpaceRegistry: canonical JSON of a space <-> small id and digest; and the fingerprint of a block's full identity
// (space, salt, key). Thread-safe; records never move or go away.

#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/checksum.h"
#include "base/digest.h"
#include "base/status.h"
#include "format/descriptor.h"
#include "store/types.h"

namespace kvstore::store {

inline constexpr size_t kSpaceJsonBytesMax = 3900;
inline constexpr size_t kSaltBytesMax = 1024;

struct SpaceRecord {
  std::string json;
  SpaceDigest digest{};
};

class SpaceRegistry {
 public:
  // Same text, same id.
  Result<SpaceId> add(std::string_view canonical_json);
  // Null for an id that was not handed out.
  const SpaceRecord* find(SpaceId id) const;

 private:
  mutable std::mutex mutex_;
  std::deque<SpaceRecord> records_;
  std::unordered_map<std::string_view, uint32_t> ids_;  // views into records_
};

// The salt's length and the key's kind are hashed in, so that no two identities concatenate to the same bytes.
Fingerprint fingerprint_of(const FingerprintSecret& secret, const SpaceDigest& space, std::string_view salt,
                           const format::StoredKey& key);

// A stored key read back from a descriptor.
format::StoredKey stored_key_of(const format::Descriptor& descriptor);

}  // namespace kvstore::store
