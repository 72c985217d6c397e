// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Superblock: what the store is, which device this is, and who opened it last. Four 4 KiB copies, byte for byte
// equal but for `copy`, which the checksum leaves out, so that a misdirected copy is noticed.
//
// Each field and what it defends against: docs/on_disk_format.md. An update is good when >= 3 copies are written
// and read back; open takes the highest sequence that >= 2 copies agree on. The quorum logic over bytes is here
// (no I/O); reading and writing the copies is store/superblock_io.h.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "format/block_header.h"
#include "format/geometry.h"

namespace kvstore::format {

inline constexpr uint64_t kSuperblockMagic = 0x0045524f5453564bULL;  // "KVSTORE\0" little endian
inline constexpr uint32_t kSuperblockChecksumFrom = 20;              // checksum (16 bytes) and copy (4) come before
inline constexpr uint32_t kFormatVersion = 0;
inline constexpr uint64_t kIncompatExperimental = 1;  // set while the version is 0
inline constexpr uint64_t kIncompatKnown = kIncompatExperimental;
inline constexpr uint64_t kRoCompatKnown = 0;
inline constexpr uint32_t kMembersMax = 32;
inline constexpr uint32_t kNguidCharactersMax = 32;
inline constexpr uint32_t kEui64CharactersMax = 16;
inline constexpr uint32_t kSerialCharactersMax = 40;
inline constexpr uint32_t kSuperblocksToWrite = 3;
inline constexpr uint32_t kSuperblocksToOpen = 2;

// Who holds or last held the store: compared whole by a contender that waits (owner mode across hosts).
struct OwnerRecord {
  uint64_t epoch = 0;  // raised by each open before any other write
  Uuid host{};
  Uuid nonce{};  // of this opening
  bool operator==(const OwnerRecord&) const = default;
};

struct Superblock {
  uint32_t version = kFormatVersion;
  uint64_t compat_flags = 0;
  uint64_t ro_compat_flags = 0;
  uint64_t incompat_flags = kIncompatExperimental;
  Uuid store_uuid{};                 // of this device's store; generations never restart within it
  Uuid pool_uuid{};                  // of the set of devices opened together
  uint32_t member_index = 0;         // this device's place in members
  std::vector<Uuid> members;         // store uuids of the pool, in order; members[member_index] == store_uuid
  std::string nguid, eui64, serial;  // of the device at format, printable; empty: unknown
  uint32_t logical_block_bytes = 0;
  Geometry geometry;
  FingerprintSecret fingerprint_secret{};
  uint64_t formatted_seconds = 0;
  OwnerRecord owner;
  uint64_t opened_seconds = 0;
  bool clean = true;         // cleared by open, set by close
  bool shared_mode = false;  // owner mode and shared mode refuse each other
  uint64_t sequence = 0;     // +1 per update

  bool operator==(const Superblock&) const = default;
};

void encode_superblock(const Superblock& superblock, uint32_t copy, std::span<uint8_t> page);  // page: 4096 bytes

enum class CopyState : uint8_t { kAbsent, kValid, kDamaged, kUnreadable };

// One copy's bytes -> its state; never undefined behaviour on hostile bytes. `out` is set when kValid: whole for a
// version and incompat flags that this build knows, else version, flags, uuids and sequence only.
CopyState decode_superblock(std::span<const uint8_t> page, uint32_t copy, Superblock& out, std::string& why);

enum class QuorumVerdict : uint8_t {
  kOk,
  kNoStore,      // no copy bears our magic, or a format was cut short (two copies zero, no two agree)
  kCorrupt,      // ours, but no two copies agree, or two uuids have a quorum each
  kTryAgain,     // unreadable copies hide the answer
  kUnsupported,  // a version or incompat flag this build does not know
};

struct Quorum {
  QuorumVerdict verdict = QuorumVerdict::kNoStore;
  std::string why;
  Superblock superblock;                         // when kOk; its first fields when kUnsupported
  std::array<bool, kSuperblockCopies> repair{};  // copies to rewrite
};

struct CopyRead {
  bool readable = false;
  std::span<const uint8_t> page;
};
Quorum choose_superblock(std::span<const CopyRead, kSuperblockCopies> copies);

std::string uuid_text(const Uuid& uuid);  // 8-4-4-4-12
std::optional<Uuid> parse_uuid(std::string_view text);

}  // namespace kvstore::format
