// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Makes a store of many blocks without writing their payload: a sparse file whose metadata says that every region is
// full of blocks of zeros (which is what a hole reads as, so every block verifies), left as a killed process leaves it:
// not clean, the last region open. For measuring how long open takes.
//
//   kvstore_fill_metadata PATH BLOCKS [BLOCK_BYTES]

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device/blocking_io.h"
#include "format/descriptor.h"
#include "format/dictionary.h"
#include "format/region_header.h"
#include "store/format_device.h"
#include "store/superblock_io.h"

namespace {

using namespace kvstore;

constexpr const char* kSpaceJson = R"({"engine":"fill_metadata"})";

class Filler {
 public:
  Filler(device::BlockingIo& io, format::Superblock superblock, uint64_t block_bytes)
      : io_(io),
        superblock_(std::move(superblock)),
        block_bytes_(block_bytes),
        space_(blake2b<32>(kSpaceJson)),
        nodes_(ceil_div(block_bytes, kPieceBytes)),
        page_(kPageBytes) {
    const AlignedBuffer zeros(kPieceBytes);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i] = piece_node(zeros.data(), std::min(kPieceBytes, block_bytes - i * kPieceBytes));
    }
  }

  Status fill(uint64_t blocks) {
    const uint32_t slots = superblock_.geometry.slots_max();
    for (uint32_t region = 0; blocks != 0; ++region) {
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(blocks, slots));
      blocks -= count;
      KVS_TRY(fill_region(RegionId{region}, count, blocks == 0));
    }
    superblock_.clean = false;
    superblock_.owner = {1, {1}, {1}};
    return store::update_superblock(io_, 0, superblock_);
  }

 private:
  Status fill_region(RegionId region, uint32_t count, bool open) {
    const format::Geometry& geometry = superblock_.geometry;
    format::BlockHeader identity;
    identity.store_uuid = superblock_.store_uuid;
    identity.region = region.value;
    identity.generation = 1;
    identity.owner_epoch = 1;
    format::DictionaryWriter dictionary(geometry.dictionary_blocks);
    const uint16_t space_index = dictionary.add(format::DictionaryKind::kSpace, kSpaceJson).value();
    for (const auto& block : dictionary.take_blocks(identity)) {
      std::memcpy(page_.data(), block.page.data(), kPageBytes);
      KVS_TRY(io_.write(0, geometry.dictionary_offset(region, block.number), page_, kPageBytes, false));
    }
    const auto blocks = static_cast<uint32_t>(ceil_div(count, format::kDescriptorsPerBlock));
    AlignedBuffer run(blocks * kPageBytes);
    std::vector<format::Descriptor> descriptors;
    for (uint32_t slot = 0; slot < count; ++slot) {
      descriptors.push_back(descriptor(slot, space_index));
      if (descriptors.size() < format::kDescriptorsPerBlock && slot + 1 < count) continue;
      identity.number = slot / format::kDescriptorsPerBlock;
      identity.sequence = identity.number + 1;
      format::encode_descriptor_block(format::BlockKind::kDescriptors, identity, descriptors,
                                      {run.data() + identity.number * kPageBytes, kPageBytes});
      descriptors.clear();
    }
    KVS_TRY(io_.write(0, geometry.descriptor_block_offset(region, 0), run, run.size(), false));
    format::RegionHeader header;
    header.region = region;
    header.generation = Generation{1};
    header.extent_bytes = align_up(block_bytes_, kPageBytes);
    header.slot_count = geometry.slots_max();
    header.state = open ? format::RegionState::kOpen : format::RegionState::kSealed;
    header.owner_epoch = Epoch{1};
    header.descriptor_count = open ? 0 : count;
    header.dictionary_count = open ? 0 : 1;
    AlignedBuffer pair(2 * kPageBytes);
    for (uint32_t copy = 0; copy < 2; ++copy) {
      header.sequence = copy + 1;
      format::encode_region_header(header, superblock_.store_uuid, copy, {pair.data() + copy * kPageBytes, kPageBytes});
    }
    return io_.write(0, geometry.header_offset(region, 0), pair, pair.size(), false);
  }

  format::Descriptor descriptor(uint32_t slot, uint16_t space_index) {
    format::Descriptor one;
    uint64_t key[4] = {next_block_, ~next_block_, next_block_ * 0x9e3779b97f4a7c15, 7};
    std::memcpy(one.key, key, sizeof key);
    one.key_bytes = sizeof key;
    one.checksum = root_checksum({space_, {}, {reinterpret_cast<const char*>(key), sizeof key}}, block_bytes_, nodes_);
    one.write_seq = uint64_t{1} << 40 | ++next_block_;
    one.payload_bytes = static_cast<uint32_t>(block_bytes_);
    one.slot = slot;
    one.space_index = space_index;
    one.flags = format::kDescriptorValid;
    return one;
  }

  device::BlockingIo& io_;
  format::Superblock superblock_;
  const uint64_t block_bytes_;
  const SpaceDigest space_;
  std::vector<uint64_t> nodes_;
  AlignedBuffer page_;
  uint64_t next_block_ = 0;
};

Status run(const char* path, uint64_t blocks, uint64_t block_bytes) {
  store::FormatOptions options;
  options.region_bytes = kGiB;
  options.block_bytes = block_bytes;
  options.min_block_bytes = block_bytes;
  const uint64_t regions = ceil_div(blocks, kGiB / block_bytes) + 8;
  options.file_bytes = regions * (kGiB + 2 * kMiB) + 64 * kMiB;
  options.force = true;
  KVS_ASSIGN(auto superblocks, store::format_pool({path}, options, system_clock(), system_random()));
  KVS_ASSIGN(auto opened, device::open_device(path, {}, system_clock()));
  device::Device* device = opened.get();
  KVS_ASSIGN(auto queue, device->make_queue({&device, 1}, {.depth = 32, .single_issuer = false}));
  device::BlockingIo io(std::move(queue), {device}, 30'000'000'000);
  return Filler(io, superblocks[0], block_bytes).fill(blocks);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: %s PATH BLOCKS [BLOCK_BYTES]\n", arguments[0]);
    return 2;
  }
  const uint64_t block_bytes = count > 3 ? std::strtoull(arguments[3], nullptr, 10) : kvstore::kMiB;
  const kvstore::Status status = run(arguments[1], std::strtoull(arguments[2], nullptr, 10), block_bytes);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
