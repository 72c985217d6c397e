// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// A whole small image, damaged as the input says, is opened, listed, read, checked, written to, closed and opened
// again. Whatever was damaged: an error or a store; every hit has the bytes that were put; nothing goes on for ever;
// and what is put into the store that came out is kept to the same rules.
//
// Input: one byte of choices, then patches of
//   page (1 byte, into the image's written and metadata pages), offset (2), length (1), that many bytes
// Choices: bit 0 puts magic and checksum of each patched metadata block right afterwards; bit 1 opens read-only;
// bit 2 takes all that follows as the raw content of consecutive pages, the first byte says from which one on.
//
// Only a checksum in a descriptor that was itself patched can vouch for other bytes than those put.

#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/clock.h"
#include "device/sim.h"
#include "format/descriptor.h"
#include "format/superblock.h"
#include "fuzz_input.h"
#include "store/format_device.h"
#include "store/store.h"

namespace kvstore::fuzz {
namespace {

using store::ItemResult;
using store::ItemStatus;

constexpr uint64_t kImageRegionBytes = 64 * kKiB;
constexpr uint64_t kImageBlockBytes = 4 * kKiB;
constexpr uint32_t kImageRegions = 6;
constexpr uint64_t kDiskSeed = 42;
constexpr uint32_t kStepsMax = 20'000;
constexpr uint32_t kListedMax = 4096;  // slots of the whole image are far fewer
const char* const kSpaceJson[] = {R"({"model":"a"})", R"({"model":"b"})"};

struct Block {
  uint32_t space;
  std::string salt, key;
  bool page_hashes;
  std::vector<uint8_t> payload;
};

// Small and large, with and without a salt, a long key, a page table.
const std::vector<Block>& blocks() {
  static const std::vector<Block> all = [] {
    std::vector<Block> made;
    for (uint32_t i = 0; i < 24; ++i) {
      made.push_back({i % 2, i % 3 == 0 ? "tenant" : "", "key " + std::to_string(i), i % 5 == 0, {}});
    }
    made.push_back({0, "", std::string(200, 'k'), false, {}});
    SeededRandom random(5);
    for (size_t i = 0; i < made.size(); ++i) {
      made[i].payload.resize(1'000 + i * 700);
      random.fill(made[i].payload.data(), made[i].payload.size());
    }
    return made;
  }();
  return all;
}

// One opening of a disk: single-threaded, on a clock of its own.
class Opening {
 public:
  Opening(device::SimDisk& disk, bool read_only, uint8_t host) : random_(7) {
    store::StoreOptions options;
    options.threaded = false;
    options.clock = &clock_;
    options.random = &random_;
    options.read_only = read_only;
    options.host.fill(host);
    options.staging_bytes = 4 * kMiB;
    options.prefetch_bytes = 0;
    std::vector<std::unique_ptr<device::Device>> devices;
    devices.push_back(device::make_sim_device(disk, {}, clock_));
    auto opened = store::Store::open_devices(std::move(devices), options);
    if (!opened.ok()) return;
    store_ = std::move(opened).value();
    for (uint32_t i = 0; i < 2; ++i) spaces_[i] = store_->register_space(kSpaceJson[i]).value();
  }
  store::Store* operator->() { return store_.get(); }
  bool ok() const { return store_ != nullptr; }

  ItemResult put(const Block& block, bool durable) {
    const iovec segment{const_cast<uint8_t*>(block.payload.data()), block.payload.size()};
    store::PutItem item;
    item.space = spaces_[block.space];
    item.salt = block.salt;
    item.key = block.key;
    item.segments = &segment;
    item.segment_count = 1;
    item.page_hashes = block.page_hashes;
    return finish(store_->put({&item, 1}, {.durable = durable}, nullptr));
  }
  // The bytes hit, or nothing. Batches and single reads go different ways.
  bool get(const Block& block, bool single, std::vector<uint8_t>& found) {
    found.assign(block.payload.size() + kPageBytes, 0xee);
    const iovec segment{found.data(), found.size()};
    const store::GetItem item{spaces_[block.space], block.salt, block.key, &segment, 1, 0, store::kWholeBlock};
    const ItemResult result = single ? store_->get_one(item) : finish(store_->get({&item, 1}, {}, nullptr));
    if (result.status != ItemStatus::kHit) return false;
    require(result.bytes <= found.size(), "a hit fits its buffer");
    found.resize(result.bytes);
    return true;
  }
  store::KeyRef ref(const Block& block) const { return {spaces_[block.space], block.salt, block.key}; }

 private:
  ItemResult finish(Result<store::JobRef> job) {
    if (!job.ok()) return {.status = ItemStatus::kError, .code = job.status().code()};
    for (uint32_t step = 0; !job.value()->done(); ++step) {
      require(step < kStepsMax, "a job ends");
      if (!store_->step()) clock_.advance_ns(10'000'000);
    }
    return job.value()->result(0);
  }

  ManualClock clock_;
  SeededRandom random_;
  std::unique_ptr<store::Store> store_;
  store::SpaceId spaces_[2];
};

// The image as it was before anybody damaged it, and what its pages are.
struct Image {
  format::Superblock superblock;
  std::vector<uint64_t> pages;  // offsets of what a patch can name: the same in every build
  std::map<uint64_t, std::vector<uint8_t>> content;

  Image() {
    format::GeometryOptions geometry_options;
    geometry_options.region_bytes = kImageRegionBytes;
    geometry_options.min_block_bytes = kImageBlockBytes;
    geometry_options.device_bytes = format::kMetadataOffset + kMiB;
    while (true) {
      const auto geometry = format::choose_geometry(geometry_options);
      if (geometry.ok() && geometry.value().region_count >= kImageRegions) break;
      geometry_options.device_bytes += 16 * kKiB;
    }
    device::SimDisk disk(geometry_options.device_bytes, kDiskSeed);
    ManualClock clock;
    SeededRandom random(3);
    const auto device = device::make_sim_device(disk, {}, clock);
    store::FormatOptions format_options;
    format_options.region_bytes = kImageRegionBytes;
    format_options.min_block_bytes = kImageBlockBytes;
    superblock = store::format_devices({device.get()}, format_options, clock, random).value()[0];
    // Two lives: regions closed cleanly, and regions found open by whoever opens next.
    for (int life = 0; life < 2; ++life) {
      Opening opening(disk, false, 1);
      require(opening.ok(), "the image opens");
      for (size_t i = life == 0 ? 0 : 16; i < (life == 0 ? 16 : blocks().size()); ++i) {
        (void)opening.put(blocks()[i], i % 2 == 0);
      }
      const store::KeyRef dead[] = {opening.ref(blocks()[1]), opening.ref(blocks()[20])};
      (void)opening->erase(dead);
      (void)opening->flush(UINT64_MAX);
      if (life == 0) {
        require(opening->close(UINT64_MAX).ok(), "the image closes");
      } else {
        disk.power_cut(true);
      }
    }
    read_pages(disk);
  }

  const format::Geometry& geometry() const { return superblock.geometry; }
  bool is_superblock(uint64_t offset_bytes) const {
    return offset_bytes < format::kMetadataOffset || offset_bytes >= last_copy();
  }
  bool is_payload(uint64_t offset_bytes) const {
    return offset_bytes >= geometry().data_offset && !is_superblock(offset_bytes);
  }
  uint64_t last_copy() const { return geometry().superblock_offsets()[3]; }

 private:
  void read_pages(device::SimDisk& disk) {
    const auto add_page = [&](uint64_t offset_bytes) {
      std::vector<uint8_t> page(kPageBytes);
      disk.peek(offset_bytes, page.data(), page.size());
      content[offset_bytes] = std::move(page);
    };
    for (const uint64_t offset_bytes : geometry().superblock_offsets()) pages.push_back(offset_bytes);
    for (uint32_t region = 0; region < geometry().region_count; ++region) {
      for (uint64_t at = 0; at < geometry().entry_bytes; at += kPageBytes) {
        pages.push_back(geometry().entry_offset(RegionId{region}) + at);
      }
    }
    for (const uint64_t offset_bytes : pages) add_page(offset_bytes);
    for (uint64_t at = geometry().data_offset; at < geometry().data_offset + geometry().memory_bytes();
         at += kPageBytes) {
      add_page(at);
      if (at % (4 * kPageBytes) == 0) pages.push_back(at);
    }
  }
};

// What the input makes of it.
class Damage {
 public:
  Damage(const Image& image, std::span<const uint8_t> input, uint8_t choices) : image_(image) {
    size_t at = 0;
    const auto take = [&]() -> uint8_t { return at < input.size() ? input[at++] : uint8_t{0}; };
    if ((choices & 4) != 0) {
      for (size_t page = take(); at < input.size(); ++page) {
        const uint64_t offset_bytes = image.pages[page % image.pages.size()];
        const size_t count = std::min<size_t>(kPageBytes, input.size() - at);
        patch(offset_bytes, 0, input.subspan(at, count));
        at += count;
      }
    } else {
      while (at < input.size()) {
        const uint64_t offset_bytes = image.pages[take() % image.pages.size()];
        const uint32_t within = (take() | uint32_t{take()} << 8) % kPageBytes;
        const size_t count = std::min({size_t{take()}, input.size() - at, size_t{kPageBytes - within}});
        patch(offset_bytes, within, input.subspan(at, count));
        at += count;
      }
    }
    if ((choices & 1) != 0) {
      for (auto& [offset_bytes, page] : pages_) put_right(offset_bytes, page);
    }
  }

  void apply(device::SimDisk& disk) const {
    for (const auto& [offset_bytes, page] : image_.content) disk.poke(offset_bytes, page.data(), page.size());
    for (const auto& [offset_bytes, page] : pages_) disk.poke(offset_bytes, page.data(), page.size());
  }
  bool may_vouch_for_other_bytes() const { return checksums_patched_; }

 private:
  void patch(uint64_t offset_bytes, uint32_t within, std::span<const uint8_t> bytes) {
    if (bytes.empty()) return;
    std::vector<uint8_t>& page = pages_.try_emplace(offset_bytes, image_.content.at(offset_bytes)).first->second;
    std::copy(bytes.begin(), bytes.end(), page.begin() + within);
    if (image_.is_superblock(offset_bytes) || image_.is_payload(offset_bytes)) return;
    for (uint32_t i = within; i < within + bytes.size(); ++i) {
      const uint32_t in_descriptor = i % sizeof(format::Descriptor);
      checksums_patched_ =
          checksums_patched_ || (i >= sizeof(format::BlockHeader) && in_descriptor < sizeof(Checksum128));
    }
  }
  void put_right(uint64_t offset_bytes, std::vector<uint8_t>& page) const {
    if (image_.is_superblock(offset_bytes)) {
      std::memcpy(page.data() + 24, &format::kSuperblockMagic, sizeof(format::kSuperblockMagic));
      const std::span<uint8_t> covered = std::span(page).subspan(format::kSuperblockChecksumFrom);
      const Checksum128 checksum = metadata_checksum(covered.data(), covered.size());
      std::memcpy(page.data(), &checksum, sizeof(checksum));
    } else if (!image_.is_payload(offset_bytes)) {
      format::BlockHeader header;
      std::memcpy(&header, page.data(), sizeof(header));
      format::write_block_header(header, page);
    }
  }

  const Image& image_;
  std::map<uint64_t, std::vector<uint8_t>> pages_;
  bool checksums_patched_ = false;
};

void read_all(Opening& opening, bool may_be_forged) {
  std::vector<uint8_t> found;
  for (size_t i = 0; i < blocks().size(); ++i) {
    const Block& block = blocks()[i];
    const bool hit = opening.get(block, i % 2 == 0, found);
    require(!hit || may_be_forged || found == block.payload, "no wrong byte");
  }
}

void list_and_check(Opening& opening) {
  std::vector<std::pair<store::BlockInfo, std::string>> listed;
  (void)opening->list_blocks([&](const std::string& space, const store::BlockInfo& info) {
    listed.emplace_back(info, space);
    return listed.size() < kListedMax;
  });
  require(listed.size() < kListedMax, "a listing ends");
  for (const auto& [info, space] : listed) (void)opening->verify_block(info, space);
  for (const Block& block : blocks()) {
    const store::KeyRef key = opening.ref(block);
    (void)opening->describe({&key, 1});
  }
}

}  // namespace

void fuzz_image(const uint8_t* data, size_t bytes) {
  static const Image image;
  Input input(data, bytes);
  const uint8_t choices = input.take_byte();
  const Damage damage(image, bytes == 0 ? std::span<const uint8_t>() : std::span(data + 1, bytes - 1), choices);
  device::SimDisk disk(image.geometry().device_bytes, kDiskSeed);
  damage.apply(disk);
  const bool read_only = (choices & 2) != 0;
  for (uint8_t opening_number = 0; opening_number < 2; ++opening_number) {
    Opening opening(disk, read_only, static_cast<uint8_t>(1 + opening_number));
    if (!opening.ok()) return;
    read_all(opening, damage.may_vouch_for_other_bytes());
    list_and_check(opening);
    if (!read_only) {
      // Enough to reclaim what the damage may have made look reclaimable.
      for (size_t i = 0; i < blocks().size(); ++i) {
        const store::KeyRef key = opening.ref(blocks()[i]);
        if (i % 3 == 0) (void)opening->erase({&key, 1});
        (void)opening.put(blocks()[i], i % 4 == 0);
      }
      (void)opening->flush(UINT64_MAX);
      read_all(opening, damage.may_vouch_for_other_bytes());
    }
    (void)opening->close(UINT64_MAX);
  }
}

}  // namespace kvstore::fuzz

#ifndef KVSTORE_FUZZ_REPLAY
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  kvstore::fuzz::fuzz_image(data, bytes);
  return 0;
}
#endif
