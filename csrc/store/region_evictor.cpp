// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/region_evictor.h"

#include <utility>
#include <vector>

#include "store/region_reader.h"

namespace kvstore::store {

Result<bool> RegionEvictor::evict(uint32_t number, bool only_dead, EvictionReason reason) {
  const Region region = catalog_.snapshot(number);
  RegionReader reader(io_, 0, superblock_, spaces_);
  KVS_ASSIGN(const RegionContents contents,
             reader.read({.region = region.id,
                          .generation = region.generation,
                          .extent_bytes = region.extent_bytes,
                          .slot_count = region.slot_count,
                          .descriptor_count = region.descriptor_count,
                          .dictionary_count = region.dictionary_count,
                          .is_open = region.unsealed_on_device || region.state == RegionState::kOpen}));
  add(counters_.bytes_read_metadata, contents.bytes_read);
  std::vector<const format::Descriptor*> descriptors;
  std::vector<Catalog::EvictedBlock> blocks;
  blocks.reserve(contents.descriptors.size());
  for (const format::Descriptor& descriptor : contents.descriptors) {
    if (only_dead && !region.dead.test(SlotIndex{descriptor.slot})) continue;
    descriptors.push_back(&descriptor);
    blocks.push_back({reader.fingerprint(contents, descriptor), SlotIndex{descriptor.slot}});
  }
  const std::vector<bool> was_live = catalog_.evict(number, blocks);
  // Of a region that is being filled more blocks are known than descriptors are there; those are not deleted yet.
  const bool all_named = blocks.size() >= region.dead.count() || contents.descriptors.size() >= region.live;
  if (!evictions_.has_subscribers()) return all_named;
  std::vector<Eviction> evictions;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!was_live[i]) continue;
    const format::Descriptor& descriptor = *descriptors[i];
    const format::StoredKey key = stored_key_of(descriptor);
    evictions.push_back({.space = contents.space_json(descriptor),
                         .salt = contents.salt(descriptor),
                         .key = std::string(key.view()),
                         .key_is_digest = key.is_digest,
                         .payload_bytes = descriptor.payload_bytes,
                         .reason = reason});
  }
  evictions_.publish(std::move(evictions));
  return all_named;
}

Status RegionEvictor::evict_dead(uint32_t number) {
  const Result<bool> all_named = evict(number, true, EvictionReason::kDeleted);
  if (!all_named.ok() || !all_named.value()) catalog_.evict_dead_by_walking(number);
  return all_named.status();
}

}  // namespace kvstore::store
