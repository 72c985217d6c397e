// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/spaces.h"

#include <algorithm>
#include <cstring>

namespace kvstore::store {

Result<SpaceId> SpaceRegistry::add(std::string_view canonical_json) {
  if (canonical_json.empty() || canonical_json.size() > kSpaceJsonBytesMax) {
    return Status(Code::kInvalid, format_text("space identity of %zu bytes: 1 to %zu are allowed",
                                              canonical_json.size(), kSpaceJsonBytesMax));
  }
  std::lock_guard lock(mutex_);
  if (auto found = ids_.find(canonical_json); found != ids_.end()) return SpaceId{found->second};
  SpaceRecord& record = records_.emplace_back();
  record.json = canonical_json;
  record.digest = blake2b<32>(canonical_json);
  const uint32_t id = static_cast<uint32_t>(records_.size() - 1);
  ids_.emplace(record.json, id);
  return SpaceId{id};
}

const SpaceRecord* SpaceRegistry::find(SpaceId id) const {
  std::lock_guard lock(mutex_);
  return id.value < records_.size() ? &records_[id.value] : nullptr;
}

Fingerprint fingerprint_of(const FingerprintSecret& secret, const SpaceDigest& space, std::string_view salt,
                           const format::StoredKey& key) {
  char data[3 + kSaltBytesMax + format::kStoredKeyBytes];
  data[0] = static_cast<char>(salt.size() & 0xff);
  data[1] = static_cast<char>(salt.size() >> 8);
  data[2] = key.is_digest ? 1 : 0;
  char* const after_salt = std::copy(salt.begin(), salt.end(), data + 3);  // an empty view may be null: not memcpy
  std::copy_n(key.bytes, key.size, after_salt);
  return siphash128(secret, {reinterpret_cast<const char*>(space.data()), space.size()},
                    {data, 3 + salt.size() + key.size});
}

format::StoredKey stored_key_of(const format::Descriptor& descriptor) {
  format::StoredKey key;
  key.size = descriptor.key_bytes;
  key.is_digest = (descriptor.flags & format::kDescriptorKeyIsDigest) != 0;
  std::memcpy(key.bytes, descriptor.key, descriptor.key_bytes);
  return key;
}

}  // namespace kvstore::store
