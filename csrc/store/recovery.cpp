// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/recovery.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/mutation.h"
#include "store/own_thread.h"
#include "store/region_reader.h"

namespace kvstore::store {

namespace {

constexpr uint64_t kHeaderBatchBytes = 8 * kMiB;
constexpr uint64_t kRegionBatchBytes = 16 * kMiB;

struct RegionAge {
  uint32_t number;
  uint64_t write_seq;
};

// H0, H1 and the first dictionary block, which every life with a descriptor has written.
constexpr uint32_t kScanPages = 3;

struct ScannedPages {
  const uint8_t* pages = nullptr;
  std::array<bool, kScanPages> readable{};
};

bool ever_written(const uint8_t* page, const format::ExpectedBlock& expected) {
  const auto header = format::read_block_header({page, kPageBytes}, expected);
  return header.ok() || header.status().code() != Code::kNotFound;
}

format::RegionHeader choose_header(const ScannedPages& scanned, const format::Superblock& superblock, RegionId region,
                                   uint64_t& sequence, uint32_t& copy_to_write, bool& unreadable,
                                   uint64_t& copies_damaged) {
  format::RegionHeader best;
  bool found = false;
  bool blank = true;
  uint64_t corrupt = 0;
  for (uint32_t copy = 0; copy < 2; ++copy) {
    Result<format::RegionHeader> decoded = Status(Code::kIo, "not readable");
    if (scanned.readable[copy]) {
      decoded = format::decode_region_header({scanned.pages + copy * kPageBytes, kPageBytes}, superblock.store_uuid,
                                             superblock.geometry, region, copy);
    }
    if (!decoded.ok()) {
      blank = blank && decoded.status().code() == Code::kNotFound;
      corrupt += decoded.status().code() == Code::kCorrupt ? 1 : 0;
      // I4: overwrite the invalid copy first.
      if (!found) copy_to_write = KVS_RULE(I4_the_invalid_header_first) ? copy : copy ^ 1;
      continue;
    }
    blank = false;
    const format::RegionHeader& header = decoded.value();
    // The epoch first: what a deposed owner wrote late must not hide its successor's header.
    const bool later = std::tie(header.owner_epoch, header.sequence) > std::tie(best.owner_epoch, best.sequence) ||
                       !KVS_RULE(I4_the_newer_header_counts);
    const bool newer = !found || (header.generation > best.generation && KVS_RULE(I2_the_higher_generation_counts)) ||
                       (header.generation == best.generation && later);
    if (newer) {
      if (found || copy == 0) copy_to_write = KVS_RULE(I4_the_older_header_first) ? copy ^ 1 : copy;
      best = header;
    }
    sequence = std::max(sequence, header.sequence);
    found = true;
  }
  // I12: headers that are gone without a trace look like those of a region never used, but for what follows them. Taken
  // for new, it would begin again with a generation that its old descriptors have.
  const format::ExpectedBlock dictionary{superblock.store_uuid, region, format::BlockKind::kDictionary, 0};
  if (!found && blank && KVS_RULE(I12_blank_headers_are_doubted))
    blank = scanned.readable[2] && !ever_written(scanned.pages + 2 * kPageBytes, dictionary);
  unreadable = !found && !blank;
  if (found) copies_damaged += corrupt;
  return best;
}

// Not a bad sector: what cannot be read now must not be taken for lost.
bool device_is_gone(const Status& status) { return status.io_errno() == ENODEV || status.io_errno() == ENXIO; }

// What a read of all three could not give, page by page: one bad sector must not cost the other copy.
Status read_singly(device::BlockingIo& io, uint64_t offset_bytes, uint8_t* target,
                   std::array<bool, kScanPages>& readable) {
  AlignedBuffer page(kPageBytes);
  for (uint32_t i = 0; i < kScanPages; ++i) {
    const Status status = io.read(0, offset_bytes + i * kPageBytes, page, kPageBytes);
    if (status.code() == Code::kTimeout || device_is_gone(status)) return status;
    readable[i] = status.ok();
    if (status.ok()) std::memcpy(target + i * kPageBytes, page.data(), kPageBytes);
  }
  return {};
}

}  // namespace

Result<HeaderScan> scan_headers(device::BlockingIo& io, const format::Superblock& superblock) {
  std::vector<RegionId> all(superblock.geometry.region_count);
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = RegionId{i};
  return scan_headers(io, superblock, all);
}

Result<HeaderScan> scan_headers(device::BlockingIo& io, const format::Superblock& superblock,
                                std::span<const RegionId> regions) {
  const format::Geometry& geometry = superblock.geometry;
  HeaderScan scan;
  scan.headers.resize(regions.size());
  scan.header_sequences.resize(regions.size());
  scan.header_copies.resize(regions.size());
  scan.unreadable.resize(regions.size());
  scan.in_doubt.resize(regions.size());
  constexpr uint64_t kScanBytes = kScanPages * kPageBytes;
  constexpr size_t kBatch = kHeaderBatchBytes / kScanBytes;
  AlignedBuffer buffer(std::min(regions.size(), kBatch) * kScanBytes);
  for (size_t first = 0; first < regions.size(); first += kBatch) {
    const size_t count = std::min(kBatch, regions.size() - first);
    std::vector<device::ReadExtent> extents;
    for (size_t i = 0; i < count; ++i) {
      extents.push_back(
          {0, geometry.header_offset(regions[first + i], 0), kScanBytes, buffer.data() + i * kScanBytes, {}});
    }
    KVS_TRY(io.read_many(extents, buffer));
    for (size_t i = 0; i < count; ++i) {
      const size_t number = first + i;
      ScannedPages scanned{extents[i].target, {true, true, true}};
      if (!extents[i].status.ok()) {
        KVS_TRY(read_singly(io, extents[i].offset_bytes, extents[i].target, scanned.readable));
      }
      bool unreadable = false;
      scan.headers[number] = choose_header(scanned, superblock, regions[number], scan.header_sequences[number],
                                           scan.header_copies[number], unreadable, scan.copies_damaged);
      scan.headers[number].region = regions[number];
      scan.unreadable[number] = unreadable;
      scan.in_doubt[number] = !scanned.readable[0] || !scanned.readable[1];
      const format::RegionHeader& header = scan.headers[number];
      if (unreadable || header.generation.value == 0 || header.state == RegionState::kFree) continue;
      ++scan.regions_used;
      scan.extent_bytes_sum += header.extent_bytes;
      scan.descriptors_max += header.state == RegionState::kSealed ? header.descriptor_count : header.slot_count;
    }
  }
  return scan;
}

void ignore_lives(HeaderScan& scan, const std::function<bool(const format::RegionHeader&)>& is_over) {
  for (size_t i = 0; i < scan.headers.size(); ++i) {
    if (!is_over(scan.headers[i])) continue;
    scan.headers[i].state = RegionState::kFree;
    scan.unreadable[i] = false;
  }
}

namespace {

// One worker's share of a device: every `stride`-th batch of regions.
class RegionLoader {
 public:
  RegionLoader(Catalog& catalog, SpaceRegistry& spaces, uint16_t device, const format::Superblock& superblock,
               const HeaderScan& scan, IndexBuilder& builder, device::BlockingIo& io)
      : catalog_(catalog),
        device_(device),
        superblock_(superblock),
        scan_(scan),
        builder_(builder),
        reader_(io, 0, superblock, spaces) {}

  Status load(std::span<const uint32_t> regions) {
    std::vector<RegionRequest> requests;
    uint64_t bytes = 0;
    for (size_t i = 0; i <= regions.size(); ++i) {
      if (i == regions.size() || (bytes != 0 && bytes >= kRegionBatchBytes)) {
        if (!requests.empty()) KVS_TRY(load_batch(requests));
        requests.clear();
        bytes = 0;
      }
      if (i == regions.size()) break;
      requests.push_back(request_for(regions[i]));
      bytes += reader_.bytes_of(requests.back());
    }
    return {};
  }

  RecoveryReport& report() { return report_; }

 private:
  RegionRequest request_for(uint32_t number) const {
    const format::RegionHeader& header = scan_.headers[number];
    return {.region = RegionId{number},
            .generation = header.generation,
            .extent_bytes = header.extent_bytes,
            .slot_count = header.slot_count,
            .descriptor_count = header.descriptor_count,
            .dictionary_count = header.dictionary_count,
            .is_open = scan_.unreadable[number] || header.state != RegionState::kSealed};
  }

  Status load_batch(std::span<const RegionRequest> requests) {
    KVS_ASSIGN(std::vector<RegionContents> all, reader_.read_many(requests));
    for (size_t i = 0; i < requests.size(); ++i) {
      // Once more where a read failed: what cannot be read is a miss for the whole of this opening. And where a copy is
      // damaged: who looks on may have read it while its owner wrote.
      if (!all[i].status.ok() || all[i].copies_damaged != 0) {
        KVS_ASSIGN(std::vector<RegionContents> again, reader_.read_many({&requests[i], 1}));
        all[i] = std::move(again[0]);
        if (device_is_gone(all[i].status)) return all[i].status;
      }
      load_region(requests[i], all[i]);
    }
    return {};
  }

  void load_region(const RegionRequest& request, RegionContents& contents) {
    const uint32_t number = catalog_.region_number(device_, request.region);
    Region& region = catalog_.region(number);
    report_.bytes_read += contents.bytes_read;
    report_.blocks_skipped += contents.blocks_skipped;
    report_.copies_damaged += contents.copies_damaged;
    const bool headers_lost = scan_.unreadable[request.region.value];
    if (headers_lost || !contents.status.ok()) {
      region.state = RegionState::kQuarantined;
      if (headers_lost && KVS_RULE(I12_lost_headers_go_on_from_the_highest))
        region.generation = Generation{contents.highest_generation};
      // I2: while nothing says which generation was the last there can be no next one.
      if (headers_lost && !contents.status.ok() && KVS_RULE(I2_no_life_after_an_unknown_generation))
        region.quarantined_until_ns = UINT64_MAX;
      ++report_.regions_quarantined;
      return;
    }
    region.state = RegionState::kSealed;
    region.dead = std::move(contents.dead);
    region.bitmap_sequence = contents.bitmap_sequence;
    region.bitmap_copy = contents.bitmap_copy;
    region.dictionary_count = request.is_open ? contents.dictionary_blocks : request.dictionary_count;
    // At most: a seal cut short leaves a last D block that is not full. What counts is how many blocks to read.
    region.descriptor_count = request.is_open ? std::min(contents.full_blocks * format::kDescriptorsPerBlock +
                                                             static_cast<uint32_t>(contents.tail.size()),
                                                         request.slot_count)
                                              : request.descriptor_count;
    region.last_use_tick = contents.max_write_seq;  // becomes a rank in finish_recovery
    if (request.is_open) {
      ++report_.regions_open_found;
      // Kept so that the caller can seal it on the device.
      region.open = std::make_unique<OpenRegion>(superblock_.geometry.dictionary_blocks);
      region.open->full_blocks = contents.full_blocks;
      region.open->tail = contents.tail;
      region.open->max_write_seq = contents.max_write_seq;
    }
    candidates_.clear();
    for (const format::Descriptor& descriptor : contents.descriptors) {
      if (region.dead.test(SlotIndex{descriptor.slot}) && KVS_RULE(I12_dead_slots_drop_first)) continue;
      candidates_.push_back(reader_.candidate(contents, descriptor, number, request.generation));
    }
    report_.refused += builder_.add(candidates_);
  }

  Catalog& catalog_;
  uint16_t device_;
  const format::Superblock& superblock_;
  const HeaderScan& scan_;
  IndexBuilder& builder_;
  RegionReader reader_;
  RecoveryReport report_;
  std::vector<IndexBuilder::Candidate> candidates_;
};

// I12: what a crash left open is sealed as it stands.
Status seal_recovered(Catalog& catalog, const format::Superblock& superblock, device::BlockingIo& io,
                      const StillOurs& still_ours, Clock& clock, uint32_t number) {
  Region& region = catalog.region(number);
  const OpenRegion& open = *region.open;
  const format::Geometry& geometry = superblock.geometry;
  AlignedBuffer page(kPageBytes);
  if (!open.tail.empty()) {
    format::BlockHeader header;
    header.store_uuid = superblock.store_uuid;
    header.region = region.id.value;
    header.generation = region.generation.value;
    header.owner_epoch = catalog.epoch();
    header.number = open.full_blocks;
    header.sequence = open.full_blocks + 1;
    format::encode_descriptor_block(format::BlockKind::kDescriptors, header, open.tail, {page.data(), kPageBytes});
    KVS_TRY(still_ours());
    KVS_TRY(io.write(0, geometry.descriptor_block_offset(region.id, open.full_blocks), page, kPageBytes, true));
  }
  format::RegionHeader header;
  header.region = region.id;
  header.generation = region.generation;
  header.sequence = ++region.header_sequence;
  header.state = KVS_RULE(I12_open_regions_are_sealed) ? RegionState::kSealed : RegionState::kOpen;
  header.owner_epoch = Epoch{catalog.epoch()};
  header.owner_host = superblock.owner.host;
  header.extent_bytes = region.extent_bytes;
  header.slot_count = region.slot_count;
  header.sealed_seconds = clock.wall_seconds();
  header.max_write_seq = open.max_write_seq;
  header.descriptor_count = region.descriptor_count;
  header.dictionary_count = region.dictionary_count;
  format::encode_region_header(header, superblock.store_uuid, region.header_copy, {page.data(), kPageBytes});
  KVS_TRY(still_ours());
  KVS_TRY(io.write(0, geometry.header_offset(region.id, region.header_copy), page, kPageBytes, true));
  region.header_copy ^= 1;
  return {};
}

}  // namespace

Status recover_device(Catalog& catalog, SpaceRegistry& spaces, uint16_t device, const format::Superblock& superblock,
                      HeaderScan scan, IndexBuilder& builder, const MakeIo& make_io, uint32_t threads, bool read_only,
                      const StillOurs& still_ours, Clock& clock, RecoveryReport& report) {
  std::vector<uint32_t> used;
  for (uint32_t i = 0; i < superblock.geometry.region_count; ++i) {
    Region& region = catalog.region(catalog.region_number(device, RegionId{i}));
    const format::RegionHeader& header = scan.headers[i];
    region.generation = header.generation;
    region.extent_bytes = header.extent_bytes;
    region.slot_count = header.slot_count;
    region.header_sequence = scan.header_sequences[i];
    region.header_copy = scan.header_copies[i];
    const bool empty = header.generation.value == 0 || header.state == RegionState::kFree;
    if (scan.unreadable[i] || !empty) used.push_back(i);
  }
  // I12: where not all blocks find room it is the oldest regions that go without.
  const bool crowded = catalog.index().size() + scan.descriptors_max > catalog.index().blocks_max();
  if (crowded && KVS_RULE(I12_a_full_index_drops_the_oldest)) {
    const auto age = [&scan](uint32_t region) {
      const format::RegionHeader& header = scan.headers[region];
      return header.state == RegionState::kSealed ? header.max_write_seq : UINT64_MAX;
    };
    std::stable_sort(used.begin(), used.end(), [&age](uint32_t a, uint32_t b) { return age(a) > age(b); });
  }

  threads = crowded ? 1 : std::clamp<uint32_t>(threads, 1, static_cast<uint32_t>(used.size() / 64 + 1));
  std::vector<Status> outcomes(threads);
  std::vector<RecoveryReport> reports(threads);
  std::vector<uint32_t> stuck(threads);
  const auto work = [&](uint32_t worker) {
    auto io = make_io();
    if (!io.ok()) {
      outcomes[worker] = io.status();
      return;
    }
    const size_t first = used.size() * worker / threads;
    const size_t end = used.size() * (worker + 1) / threads;
    RegionLoader loader(catalog, spaces, device, superblock, scan, builder, *io.value());
    outcomes[worker] = loader.load({used.data() + first, end - first});
    reports[worker] = loader.report();
    stuck[worker] = io.value()->stuck_requests();
  };
  std::vector<OwnThread> workers(threads);
  for (uint32_t worker = 1; worker < threads; ++worker) {
    // Slower, where no more threads can be had.
    if (!workers[worker].start([&work, worker] { work(worker); }).ok()) work(worker);
  }
  work(0);
  for (uint32_t worker = 1; worker < threads; ++worker) workers[worker].join([&] { return stuck[worker] != 0; });
  for (uint32_t worker = 0; worker < threads; ++worker) {
    if (!outcomes[worker].ok()) return outcomes[worker];
    report.bytes_read += reports[worker].bytes_read;
    report.blocks_skipped += reports[worker].blocks_skipped;
    report.copies_damaged += reports[worker].copies_damaged;
    report.regions_open_found += reports[worker].regions_open_found;
    report.regions_quarantined += reports[worker].regions_quarantined;
    report.refused += reports[worker].refused;
  }
  report.bytes_read += uint64_t{superblock.geometry.region_count} * kScanPages * kPageBytes;
  report.copies_damaged += scan.copies_damaged;

  if (report.regions_open_found == 0) return {};
  std::unique_ptr<device::BlockingIo> io;
  if (!read_only) {
    KVS_ASSIGN(io, make_io());
  }
  for (uint32_t i : used) {
    const uint32_t number = catalog.region_number(device, RegionId{i});
    if (!catalog.region(number).open) continue;
    // One that cannot be sealed (a full disk under a sparse file) is read as it stands, and not reclaimed.
    const Status seal = read_only ? Status() : seal_recovered(catalog, superblock, *io, still_ours, clock, number);
    if (seal.code() == Code::kFenced) return seal;
    const bool sealed = !read_only && seal.ok();
    if (!read_only && !sealed) catalog.region(number).quarantined_until_ns = UINT64_MAX;
    catalog.region(number).unsealed_on_device = !sealed;
    catalog.region(number).open.reset();
  }
  return {};
}

void finish_recovery(Catalog& catalog, IndexBuilder& builder, RecoveryReport& report) {
  uint64_t live_bytes = 0;
  catalog.index().for_each([&](const IndexEntry& entry) {
    ++catalog.region(entry.region).live;
    live_bytes += entry.payload_bytes;
  });
  std::vector<RegionAge> ages;
  for (uint32_t number = 0; number < catalog.region_count(); ++number) {
    if (catalog.region(number).state == RegionState::kSealed) {
      ages.push_back({number, catalog.region(number).last_use_tick});
    }
  }
  std::sort(ages.begin(), ages.end(), [](const RegionAge& a, const RegionAge& b) { return a.write_seq < b.write_seq; });
  for (size_t rank = 0; rank < ages.size(); ++rank) catalog.region(ages[rank].number).last_use_tick = rank + 1;
  std::vector<IndexBuilder::Candidate> superseded = builder.take_superseded();
  // The next best first: revival takes them in this order.
  std::sort(superseded.begin(), superseded.end(),
            [](const auto& a, const auto& b) { return a.write_seq < b.write_seq; });
  report.duplicates = superseded.size();
  report.blocks = catalog.index().size();
  catalog.recovered(std::move(superseded), live_bytes);
}

}  // namespace kvstore::store
