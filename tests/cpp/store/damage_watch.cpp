// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/damage_watch.h"

#include <algorithm>
#include <cstring>

#include "store/piece.h"

namespace kvstore::store {

namespace {

using device::SimFault;

constexpr std::array<const char*, kSimFaults> kFaultNames = {
    "none",   "error", "error after write", "short",   "again", "again after part",
    "stuck",  "lost",  "misdirected",       "bit rot", "rot",   "stale",
    "latent", "ghost", "flush fails"};

}  // namespace

const char* text_of(SimFault fault) { return kFaultNames[static_cast<size_t>(fault)]; }

bool is_of_the_medium(SimFault fault) {
  switch (fault) {
    case SimFault::kLost:
    case SimFault::kMisdirected:
    case SimFault::kBitRot:
    case SimFault::kRot:
    case SimFault::kStale:
    case SimFault::kLatent:
    case SimFault::kGhost: return true;
    default: return false;
  }
}

DamageWatch::DamageWatch(device::SimDisk& disk, const format::Geometry& geometry) : disk_(disk), geometry_(geometry) {
  disk_.set_observer([this](const device::IoRequest& request) { observe(request); });
}

DamageWatch::~DamageWatch() { disk_.set_observer(nullptr); }

void DamageWatch::observe(const device::IoRequest& request) {
  if (request.op != device::IoOp::kWrite || request.offset_bytes < geometry_.data_offset) return;
  Place place{request.offset_bytes, 0, disk_.ticks(), 0};
  for (uint32_t i = 0; i < request.segment_count; ++i) place.bytes += request.segments[i].iov_len;
  place.bytes += align_up(page_table_bytes(place.bytes), kPageBytes);  // of page hashes, should it carry any
  uint64_t first_bytes = 0;
  std::memcpy(&first_bytes, request.segments[0].iov_base, sizeof first_bytes);
  places_[first_bytes].push_back(place);
}

void DamageWatch::take_hits() {
  for (const device::SimHit& hit : disk_.take_hits()) {
    ++counts_[static_cast<size_t>(hit.fault)];
    if (!is_of_the_medium(hit.fault)) continue;
    damage(hit.offset_bytes, hit.bytes, hit.tick);
    damage(hit.other_offset_bytes, hit.bytes, hit.tick);
  }
}

void DamageWatch::damage(uint64_t offset_bytes, uint64_t bytes, uint64_t tick) {
  const uint64_t end = offset_bytes + bytes;
  if (end > geometry_.data_offset) payload_ranges_.push_back({offset_bytes, end, tick});
  for (uint64_t number = 0; number < geometry_.region_count; ++number) {
    const uint64_t entry = geometry_.entry_offset(RegionId{static_cast<uint32_t>(number)});
    if (offset_bytes < entry + geometry_.entry_bytes && end > entry) regions_.insert(number);
  }
}

bool DamageWatch::is_hit(const Place& place) const {
  if (regions_.contains((place.offset_bytes - geometry_.data_offset) / geometry_.region_bytes)) return true;
  return std::any_of(payload_ranges_.begin(), payload_ranges_.end(), [&](const Range& range) {
    return range.tick >= place.tick && range.first_byte < place.offset_bytes + place.bytes &&
           range.last_byte > place.offset_bytes;
  });
}

bool DamageWatch::was_hit(uint64_t first_bytes) {
  take_hits();
  const auto found = places_.find(first_bytes);
  if (found == places_.end()) return false;
  const std::vector<Place>& places = found->second;
  return std::any_of(places.begin(), places.end(),
                     [this](const Place& place) { return place.superseded_in_life != life_ && is_hit(place); });
}

void DamageWatch::stored(uint64_t first_bytes) {
  const auto found = places_.find(first_bytes);
  if (found == places_.end() || found->second.size() <= 2) return;
  std::for_each(found->second.begin(), found->second.end() - 2,
                [this](Place& place) { place.superseded_in_life = life_; });
}

const FaultCounts& DamageWatch::counts() {
  take_hits();
  return counts_;
}

}  // namespace kvstore::store
