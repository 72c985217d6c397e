// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Reading the store back: what is in it, and whether it is right. Works on metadata as it is on the device, region by
// region, each pinned while it is read.

#include <algorithm>
#include <map>

#include "store/region_reader.h"
#include "store/store_core.h"

namespace kvstore::store {

namespace {

struct RegionView {
  uint32_t number = 0;
  Region region;
  RegionContents contents;
};

BlockInfo block_info(const StoreCore& core, const RegionView& view, const format::Descriptor& descriptor) {
  BlockInfo info;
  const format::StoredKey key = stored_key_of(descriptor);
  info.space_number = view.contents.space_ids[descriptor.space_index].value;
  info.salt = view.contents.salt(descriptor);
  info.key = key.view();
  info.key_is_digest = key.is_digest;
  info.payload_bytes = descriptor.payload_bytes;
  info.extent_bytes = view.region.extent_bytes;
  info.write_seq = descriptor.write_seq;
  info.parent = descriptor.parent;
  info.depth = descriptor.depth;
  info.meta.assign(reinterpret_cast<const char*>(descriptor.meta), descriptor.meta_bytes);
  info.device = view.region.device;
  info.region = view.region.id.value;
  info.slot = descriptor.slot;
  info.generation = view.region.generation.value;
  info.offset_bytes = core.superblocks[info.device].geometry.extent_offset(view.region.id, view.region.extent_bytes,
                                                                           SlotIndex{descriptor.slot});
  info.checksum = descriptor.checksum;
  info.page_hashes = (descriptor.flags & format::kDescriptorPageHashes) != 0;
  return info;
}

// Reads one region's descriptors; nothing when it is free or on its way out.
Result<std::optional<RegionView>> read_region(StoreCore& core, uint32_t number) {
  RegionView view;
  view.number = number;
  view.region = core.catalog->snapshot(number);
  const bool filled = view.region.state == RegionState::kOpen || view.region.state == RegionState::kSealed;
  if (!filled || !core.catalog->pin_region(number, view.region.generation)) return std::optional<RegionView>();
  const format::Superblock& superblock = core.superblocks[view.region.device];
  auto io = core.make_io(view.region.device);
  Result<RegionContents> contents = io.status();
  if (io.ok()) {
    RegionReader reader(*io.value(), 0, superblock, core.spaces);
    contents = reader.read({.region = view.region.id,
                            .generation = view.region.generation,
                            .extent_bytes = view.region.extent_bytes,
                            .slot_count = view.region.slot_count,
                            .descriptor_count = view.region.descriptor_count,
                            .dictionary_count = view.region.dictionary_count,
                            .is_open = view.region.state == RegionState::kOpen || view.region.unsealed_on_device});
  }
  core.catalog->unpin_region(number);
  KVS_ASSIGN(view.contents, std::move(contents));
  return std::optional<RegionView>(std::move(view));
}

bool is_live(StoreCore& core, const RegionView& view, const format::Descriptor& descriptor, const SpaceRecord& space) {
  const std::string salt = view.contents.salt(descriptor);
  const auto entry = core.catalog->peek(
      fingerprint_of(core.superblocks[0].fingerprint_secret, space.digest, salt, stored_key_of(descriptor)));
  return entry && entry->region == view.number && entry->slot == descriptor.slot;
}

Fingerprint listed_fingerprint(StoreCore& core, SpaceId space, const BlockInfo& info) {
  format::StoredKey key;
  key.size = static_cast<uint8_t>(std::min<size_t>(info.key.size(), format::kStoredKeyBytes));
  std::copy_n(info.key.data(), key.size, reinterpret_cast<char*>(key.bytes));
  key.is_digest = info.key_is_digest;
  return fingerprint_of(core.superblocks[0].fingerprint_secret, core.spaces.find(space)->digest, info.salt, key);
}

// What came out of a listing of this store and not out of thin air: its numbers are used as they are.
Status check_place(const StoreCore& core, const BlockInfo& info) {
  const bool known =
      info.device < core.superblocks.size() && info.region < core.superblocks[info.device].geometry.region_count;
  if (known) {
    const format::Geometry& geometry = core.superblocks[info.device].geometry;
    const uint64_t first = geometry.region_offset(RegionId{info.region});
    const uint64_t end = first + geometry.region_bytes;
    if (is_aligned(info.offset_bytes, kPageBytes) && info.offset_bytes >= first && info.offset_bytes < end &&
        info.payload_bytes != 0 && info.payload_bytes <= end - info.offset_bytes) {
      return {};
    }
  }
  return Status(Code::kInvalid,
                format_text("no block of this store: device %u region %u, %llu bytes at offset %llu", info.device,
                            info.region, static_cast<unsigned long long>(info.payload_bytes),
                            static_cast<unsigned long long>(info.offset_bytes)));
}

}  // namespace

Result<std::unique_ptr<device::BlockingIo>> StoreCore::take_listing_io(uint16_t device) {
  {
    std::lock_guard lock(listing_mutex);
    if (device < listing_ios.size() && !listing_ios[device].empty()) {
      auto io = std::move(listing_ios[device].back());
      listing_ios[device].pop_back();
      return io;
    }
  }
  return make_io(device);
}

void StoreCore::give_back_listing_io(uint16_t device, std::unique_ptr<device::BlockingIo> io) {
  if (io->stuck_requests() != 0) return;  // destroyed: what is stuck in it stays its own (I11)
  std::lock_guard lock(listing_mutex);
  listing_ios.resize(devices.size());
  listing_ios[device].push_back(std::move(io));
}

Status Store::list_some_blocks(uint64_t& cursor, const VisitBlock& visit) {
  StoreCore& core = *core_;
  const StoreCore::Call call(core);
  KVS_TRY(call.status());
  // What was put but not committed is not on the device yet.
  if (cursor == 0 && !core.keepers.empty()) KVS_TRY(flush(core.options.io_timeout_ns));
  for (; cursor < core.catalog->region_count(); ++cursor) {
    KVS_ASSIGN(std::optional<RegionView> view, read_region(core, static_cast<uint32_t>(cursor)));
    if (!view) continue;
    ++cursor;
    for (const format::Descriptor& descriptor : view->contents.descriptors) {
      const SpaceRecord& space = *view->contents.space_records[descriptor.space_index];
      if (!is_live(core, *view, descriptor, space)) continue;
      if (!visit(space.json, block_info(core, *view, descriptor))) {
        cursor = UINT64_MAX;
        return {};
      }
    }
    return {};
  }
  cursor = UINT64_MAX;
  return {};
}

Status Store::list_blocks(const VisitBlock& visit) {
  for (uint64_t cursor = 0; cursor != UINT64_MAX;) KVS_TRY(list_some_blocks(cursor, visit));
  return {};
}

Result<std::vector<BlockInfo>> Store::describe(std::span<const KeyRef> keys) {
  StoreCore& core = *core_;
  const StoreCore::Call call(core);
  KVS_TRY(call.status());
  if (!core.keepers.empty()) KVS_TRY(flush(core.options.io_timeout_ns));
  std::vector<BlockInfo> infos(keys.size());
  std::map<uint32_t, std::vector<std::pair<size_t, uint32_t>>> by_region;  // region -> (key, slot)
  for (size_t i = 0; i < keys.size(); ++i) {
    const SpaceRecord* space = core.spaces.find(keys[i].space);
    if (space == nullptr) return Status(Code::kInvalid, "the space was not registered with this store");
    if (keys[i].key.empty() || keys[i].key.size() > format::kKeyBytesMax || keys[i].salt.size() > kSaltBytesMax)
      continue;
    const auto entry = core.catalog->peek(fingerprint_of(core.superblocks[0].fingerprint_secret, space->digest,
                                                         keys[i].salt, format::make_stored_key(keys[i].key)));
    if (entry) by_region[entry->region].emplace_back(i, entry->slot);
  }
  for (const auto& [number, wanted] : by_region) {
    KVS_ASSIGN(std::optional<RegionView> view, read_region(core, number));
    if (!view) continue;
    for (const format::Descriptor& descriptor : view->contents.descriptors) {
      for (const auto& [key, slot] : wanted) {
        if (descriptor.slot == slot) infos[key] = block_info(core, *view, descriptor);
      }
    }
  }
  return infos;
}

Status Store::verify_block(const BlockInfo& info, const std::string& space_json) {
  StoreCore& core = *core_;
  const StoreCore::Call call(core);
  KVS_TRY(call.status());
  KVS_TRY(check_place(core, info));
  KVS_ASSIGN(const SpaceId space, core.spaces.add(space_json));
  const uint32_t number = core.catalog->region_number(info.device, RegionId{info.region});
  if (!core.catalog->pin_region(number, Generation{info.generation})) {
    return Status(Code::kStale, "the region was reclaimed since the block was listed");
  }
  const auto verify = [&](device::BlockingIo& io) -> Status {
    AlignedBuffer buffer(std::min(align_up(info.payload_bytes, kPageBytes), 16 * kPieceBytes));
    std::vector<uint64_t> nodes;
    for (uint64_t done = 0; done < info.payload_bytes; done += buffer.size()) {
      const uint64_t bytes = std::min<uint64_t>(buffer.size(), info.payload_bytes - done);
      std::vector<device::ReadExtent> extents;
      for (uint64_t offset = 0; offset < bytes; offset += kPieceBytes) {
        extents.push_back({0,
                           info.offset_bytes + done + offset,
                           align_up(std::min(kPieceBytes, bytes - offset), kPageBytes),
                           buffer.data() + offset,
                           {}});
      }
      KVS_TRY(io.read_many(extents, buffer));
      for (const device::ReadExtent& extent : extents) {
        KVS_TRY(extent.status);
        const auto first = static_cast<uint64_t>(extent.target - buffer.data());
        nodes.push_back(piece_node(extent.target, std::min(kPieceBytes, bytes - first)));
      }
    }
    const Checksum128 root =
        root_checksum({core.spaces.find(space)->digest, info.salt, info.key}, info.payload_bytes, nodes);
    if (root == info.checksum) return {};
    return Status(Code::kCorrupt,
                  format_text("checksum mismatch: device %u region %u slot %u, %llu bytes at offset %llu", info.device,
                              info.region, info.slot, static_cast<unsigned long long>(info.payload_bytes),
                              static_cast<unsigned long long>(info.offset_bytes)));
  };
  Result<std::unique_ptr<device::BlockingIo>> io = core.take_listing_io(info.device);
  Status status = io.ok() ? verify(*io.value()) : io.status();
  if (io.ok()) core.give_back_listing_io(info.device, std::move(io).value());
  // Asked last: a block that went while it was read is not one to say "ok" of.
  const auto entry = core.catalog->peek(listed_fingerprint(core, space, info));
  const bool still_there = entry && entry->region == number && entry->slot == info.slot;
  core.catalog->unpin_region(number);
  if (status.ok() && !still_there) return Status(Code::kStale, "the block is not where it was listed any more");
  return status;
}

Status Store::drop_block(const BlockInfo& info, const std::string& space_json) {
  StoreCore& core = *core_;
  const StoreCore::Call call(core);
  KVS_TRY(call.status());
  KVS_TRY(core.catalog->writable());
  KVS_TRY(check_place(core, info));
  KVS_ASSIGN(const SpaceId space, core.spaces.add(space_json));
  const bool dropped = core.catalog->drop_at(listed_fingerprint(core, space, info),
                                             core.catalog->region_number(info.device, RegionId{info.region}),
                                             SlotIndex{info.slot}, info.generation);
  return dropped ? Status() : Status(Code::kStale, "the block is not where it was listed any more");
}

}  // namespace kvstore::store
