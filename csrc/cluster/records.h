// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The keys and values that the openers of a pool keep in the metadata engine (docs/sharing.md has the table). Text, so
// that `kvstore peers` and etcdctl show them as they are. Decoding takes hostile bytes: nothing, or a whole record.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/units.h"
#include "format/bitmap.h"
#include "format/superblock.h"

namespace kvstore::cluster {

// A region of one device of the pool.
struct RegionKey {
  uint16_t device = 0;
  uint32_t region = 0;
  auto operator<=>(const RegionKey&) const = default;
};

enum class Hold : uint8_t {
  kFree,      // nobody's; holds nothing
  kOwned,     // one opener writes it, or is about to
  kSealed,    // nobody writes it
  kRetiring,  // its entries and readers are going away (S4)
};

struct RegionRecord {
  Hold hold = Hold::kFree;
  // The highest that may be on the device: no header bears a higher one, and the next life takes the next.
  Generation generation;
  uint64_t epoch = 0;  // of the opener that wrote the record
  std::string stamp;   // no two values of the engine have the same (S1)
  bool operator==(const RegionRecord&) const = default;
};
std::string encode(const RegionRecord& record);
std::optional<RegionRecord> decode_region_record(std::string_view text);

// Who an opener is: enough for another one to say for certain that it is gone (S5).
struct Opener {
  format::Uuid host{};
  format::Uuid boot{};             // of the host's kernel
  uint64_t process_namespace = 0;  // inode of /proc/self/ns/pid: process ids mean nothing elsewhere
  uint64_t process_id = 0;
  uint64_t process_start = 0;  // in clock ticks since boot, as in /proc/<pid>/stat
  uint64_t lost_seconds = 0;   // wall clock; when somebody first found its lease gone, 0: it has one
  bool gone = false;           // it said itself that it writes no more under this epoch
  bool operator==(const Opener&) const = default;
};
std::string encode(const Opener& opener);
std::optional<Opener> decode_opener(std::string_view text);

// The slots that were deleted in one life of a region.
struct DeadSlots {
  Generation generation;
  format::DeadBitmap slots;
};
std::string encode(const DeadSlots& dead);
std::optional<DeadSlots> decode_dead_slots(std::string_view text);

std::optional<uint64_t> decode_number(std::string_view text);

// Keys, each behind the pool's prefix.
std::string pool_prefix(const format::Uuid& pool_uuid);
inline constexpr std::string_view kFormatKey = "format";
inline constexpr std::string_view kRebuildKey = "rebuild";
inline constexpr std::string_view kEpochKey = "epoch";
std::string opener_key(uint64_t epoch);
std::string live_key(uint64_t epoch);
std::string read_key(uint64_t epoch);
std::string hits_key(uint64_t epoch);
std::string region_key(const RegionKey& region);
std::string dead_key(const RegionKey& region);

// What stands behind `folder` ("opener/", ...) in a key without the prefix.
std::optional<uint64_t> parse_epoch_key(std::string_view key, std::string_view folder);
std::optional<RegionKey> parse_region_key(std::string_view key, std::string_view folder);

}  // namespace kvstore::cluster
