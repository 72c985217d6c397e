// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "format/superblock.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "base/checksum.h"

namespace kvstore::format {
namespace {

constexpr size_t kSectorBytes = 512;

#pragma pack(push, 1)
struct SuperblockDisk {
  // Preamble: the same in every version, so that any build can say "too new" instead of "corrupt".
  Checksum128 checksum;      // 0    of bytes 20..4095
  uint32_t copy;             // 16
  uint32_t version;          // 20
  uint64_t magic;            // 24
  uint64_t compat_flags;     // 32
  uint64_t ro_compat_flags;  // 40
  uint64_t incompat_flags;   // 48
  Uuid store_uuid;           // 56
  Uuid pool_uuid;            // 72
  uint64_t sequence;         // 88

  uint64_t device_bytes;                 // 96
  uint64_t region_bytes;                 // 104
  uint64_t min_block_bytes;              // 112
  uint64_t entry_bytes;                  // 120
  uint64_t data_offset;                  // 128
  uint32_t region_count;                 // 136
  uint32_t dictionary_blocks;            // 140
  uint32_t logical_block_bytes;          // 144
  uint32_t member_index;                 // 148
  uint32_t member_count;                 // 152
  uint8_t clean;                         // 156
  uint8_t shared_mode;                   // 157
  uint8_t reserved0[2];                  // 158
  FingerprintSecret fingerprint_secret;  // 160
  uint64_t formatted_seconds;            // 176
  uint64_t opened_seconds;               // 184
  uint64_t owner_epoch;                  // 192
  Uuid owner_host;                       // 200
  Uuid owner_nonce;                      // 216
  char nguid[kNguidCharactersMax];       // 232
  char eui64[kEui64CharactersMax];       // 264
  char serial[kSerialCharactersMax];     // 280
  Uuid members[kMembersMax];             // 320
  uint8_t reserved1[3264];               // 832
};
#pragma pack(pop)
static_assert(sizeof(SuperblockDisk) == kPageBytes);
static_assert(std::is_trivially_copyable_v<SuperblockDisk>);
static_assert(offsetof(SuperblockDisk, version) == kSuperblockChecksumFrom);
static_assert(offsetof(SuperblockDisk, sequence) == 88);
static_assert(offsetof(SuperblockDisk, device_bytes) == 96);
static_assert(offsetof(SuperblockDisk, region_count) == 136);
static_assert(offsetof(SuperblockDisk, clean) == 156);
static_assert(offsetof(SuperblockDisk, owner_epoch) == 192);
static_assert(offsetof(SuperblockDisk, nguid) == 232);
static_assert(offsetof(SuperblockDisk, members) == 320);
// Whatever an update changes is in the first sector. A device writes a sector whole or not at all, so a power cut
// leaves a copy old or updated, never torn, and one copy that is bad for good does not cost the quorum.
static_assert(offsetof(SuperblockDisk, members) <= kSectorBytes);

Checksum128 checksum_of(std::span<const uint8_t> page) {
  return metadata_checksum(page.data() + kSuperblockChecksumFrom, page.size() - kSuperblockChecksumFrom);
}

void store_text(const std::string& text, std::span<char> field) {
  std::memcpy(field.data(), text.data(), std::min(text.size(), field.size()));
}

// Printable ASCII, zero padded: it ends up in terminals and log lines.
bool load_text(std::span<const char> field, std::string& text) {
  const size_t size = static_cast<size_t>(std::find(field.begin(), field.end(), '\0') - field.begin());
  const auto printable = [](char c) { return c >= 0x20 && c < 0x7f; };
  const auto zero = [](char c) { return c == '\0'; };
  const std::span<const char> used = field.first(size);
  const std::span<const char> padding = field.subspan(size);
  if (!std::all_of(used.begin(), used.end(), printable)) return false;
  if (!std::all_of(padding.begin(), padding.end(), zero)) return false;
  text.assign(used.begin(), used.end());
  return true;
}

bool is_known(const Superblock& superblock) {
  return superblock.version <= kFormatVersion && (superblock.incompat_flags & ~kIncompatKnown) == 0;
}

void load_preamble(const SuperblockDisk& disk, Superblock& out) {
  out.version = disk.version;
  out.compat_flags = disk.compat_flags;
  out.ro_compat_flags = disk.ro_compat_flags;
  out.incompat_flags = disk.incompat_flags;
  out.store_uuid = disk.store_uuid;
  out.pool_uuid = disk.pool_uuid;
  out.sequence = disk.sequence;
}

// Everything behind the preamble. The checksum holds, so this stops a hostile or buggy writer. Returns why not.
std::string load_body(const SuperblockDisk& disk, Superblock& out) {
  out.geometry.device_bytes = disk.device_bytes;
  out.geometry.region_bytes = disk.region_bytes;
  out.geometry.min_block_bytes = disk.min_block_bytes;
  out.geometry.entry_bytes = disk.entry_bytes;
  out.geometry.data_offset = disk.data_offset;
  out.geometry.region_count = disk.region_count;
  out.geometry.dictionary_blocks = disk.dictionary_blocks;
  if (const Status status = validate(out.geometry); !status.ok()) return status.message();

  const uint32_t block_bytes = disk.logical_block_bytes;
  if (block_bytes < kSectorBytes || block_bytes > kPageBytes || !std::has_single_bit(block_bytes)) {
    return format_text("logical_block_bytes is %u", block_bytes);
  }
  out.logical_block_bytes = block_bytes;

  const uint32_t member_count = disk.member_count;
  const uint32_t member_index = disk.member_index;
  if (member_count == 0 || member_count > kMembersMax || member_index >= member_count) {
    return format_text("member %u of %u", member_index, member_count);
  }
  out.member_index = member_index;
  out.members.assign(disk.members, disk.members + member_count);
  if (out.members[member_index] != out.store_uuid) return "the member list does not name this store in its place";

  if (disk.clean > 1 || disk.shared_mode > 1) return "a truth value is neither 0 nor 1";
  out.clean = disk.clean != 0;
  out.shared_mode = disk.shared_mode != 0;
  if (!load_text(disk.nguid, out.nguid) || !load_text(disk.eui64, out.eui64) || !load_text(disk.serial, out.serial)) {
    return "the device identity is not printable text";
  }
  out.fingerprint_secret = disk.fingerprint_secret;
  out.formatted_seconds = disk.formatted_seconds;
  out.opened_seconds = disk.opened_seconds;
  out.owner.epoch = disk.owner_epoch;
  out.owner.host = disk.owner_host;
  out.owner.nonce = disk.owner_nonce;
  return "";
}

// ---- quorum --------------------------------------------------------------------------------------------

struct Candidate {
  CopyState state = CopyState::kUnreadable;
  bool erased = false;    // the sector with the magic is all zero
  uint32_t agreeing = 0;  // copies equal to this one, itself included
  Superblock superblock;
  std::string why;
};
using Candidates = std::array<Candidate, kSuperblockCopies>;

// Equal but for `copy`.
bool agree(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  constexpr size_t kCopyAt = offsetof(SuperblockDisk, copy);
  return std::equal(a.begin(), a.begin() + kCopyAt, b.begin()) &&
         std::equal(a.begin() + kSuperblockChecksumFrom, a.end(), b.begin() + kSuperblockChecksumFrom);
}

Candidates examine(std::span<const CopyRead, kSuperblockCopies> copies) {
  Candidates candidates;
  for (uint32_t i = 0; i < kSuperblockCopies; ++i) {
    if (!copies[i].readable) continue;
    Candidate& candidate = candidates[i];
    candidate.state = decode_superblock(copies[i].page, i, candidate.superblock, candidate.why);
    const std::span<const uint8_t> sector = copies[i].page.first(std::min(copies[i].page.size(), kSectorBytes));
    candidate.erased = std::all_of(sector.begin(), sector.end(), [](uint8_t byte) { return byte == 0; });
  }
  for (uint32_t i = 0; i < kSuperblockCopies; ++i) {
    for (uint32_t j = 0; j < kSuperblockCopies; ++j) {
      const bool both = candidates[i].state == CopyState::kValid && candidates[j].state == CopyState::kValid;
      if (both && agree(copies[i].page, copies[j].page)) ++candidates[i].agreeing;
    }
  }
  return candidates;
}

// Total order of the quorums of one store. The owner record decides between two hosts that raised the same
// sequence at once and left two copies each: either is right, as neither of them verified three.
auto rank(const Superblock& superblock) {
  return std::make_tuple(superblock.sequence, superblock.owner.epoch, superblock.owner.nonce);
}

// Two quorums that no sequence of updates can have made.
bool contradict(const Superblock& a, const Superblock& b) {
  if (a.store_uuid != b.store_uuid) return true;
  if (!is_known(a) || !is_known(b)) return false;  // nothing behind the preamble was read
  return a.geometry != b.geometry || a.fingerprint_secret != b.fingerprint_secret;
}

std::string describe(const Candidates& candidates) {
  std::string text;
  for (uint32_t i = 0; i < kSuperblockCopies; ++i) {
    const Candidate& candidate = candidates[i];
    text += format_text("%scopy %u ", i == 0 ? "" : ", ", i);
    switch (candidate.state) {
      case CopyState::kAbsent: text += candidate.erased ? "zero" : "absent"; break;
      case CopyState::kValid:
        text += format_text("valid (store %s, sequence %llu)", uuid_text(candidate.superblock.store_uuid).c_str(),
                            static_cast<unsigned long long>(candidate.superblock.sequence));
        break;
      case CopyState::kDamaged: text += "damaged (" + candidate.why + ")"; break;
      case CopyState::kUnreadable: text += "unreadable"; break;
    }
  }
  return text;
}

// No two readable copies agree: what is the most that can be said?
QuorumVerdict verdict_without_quorum(const Candidates& candidates) {
  uint32_t valid = 0, damaged = 0, unreadable = 0, erased = 0;
  for (const Candidate& candidate : candidates) {
    if (candidate.state == CopyState::kValid) ++valid;
    if (candidate.state == CopyState::kDamaged) ++damaged;
    if (candidate.state == CopyState::kUnreadable) ++unreadable;
    if (candidate.erased) ++erased;
  }
  const bool may_hide_quorum = unreadable >= kSuperblocksToOpen || (unreadable == 1 && valid > 0);
  if (may_hide_quorum) return QuorumVerdict::kTryAgain;
  if (valid == 0 && damaged == 0) return QuorumVerdict::kNoStore;
  // A format that died zeroes the copies one by one and then writes them one by one: whenever no two agree, two
  // are zero. An update never zeroes any.
  if (erased >= 2) return QuorumVerdict::kNoStore;
  return QuorumVerdict::kCorrupt;
}

}  // namespace

void encode_superblock(const Superblock& superblock, uint32_t copy, std::span<uint8_t> page) {
  SuperblockDisk disk{};
  disk.copy = copy;
  disk.version = superblock.version;
  disk.magic = kSuperblockMagic;
  disk.compat_flags = superblock.compat_flags;
  disk.ro_compat_flags = superblock.ro_compat_flags;
  disk.incompat_flags = superblock.incompat_flags;
  disk.store_uuid = superblock.store_uuid;
  disk.pool_uuid = superblock.pool_uuid;
  disk.sequence = superblock.sequence;
  disk.device_bytes = superblock.geometry.device_bytes;
  disk.region_bytes = superblock.geometry.region_bytes;
  disk.min_block_bytes = superblock.geometry.min_block_bytes;
  disk.entry_bytes = superblock.geometry.entry_bytes;
  disk.data_offset = superblock.geometry.data_offset;
  disk.region_count = superblock.geometry.region_count;
  disk.dictionary_blocks = superblock.geometry.dictionary_blocks;
  disk.logical_block_bytes = superblock.logical_block_bytes;
  disk.member_index = superblock.member_index;
  disk.member_count = static_cast<uint32_t>(std::min<size_t>(superblock.members.size(), kMembersMax));
  disk.clean = superblock.clean ? 1 : 0;
  disk.shared_mode = superblock.shared_mode ? 1 : 0;
  disk.fingerprint_secret = superblock.fingerprint_secret;
  disk.formatted_seconds = superblock.formatted_seconds;
  disk.opened_seconds = superblock.opened_seconds;
  disk.owner_epoch = superblock.owner.epoch;
  disk.owner_host = superblock.owner.host;
  disk.owner_nonce = superblock.owner.nonce;
  store_text(superblock.nguid, disk.nguid);
  store_text(superblock.eui64, disk.eui64);
  store_text(superblock.serial, disk.serial);
  std::copy_n(superblock.members.begin(), disk.member_count, disk.members);
  std::memcpy(page.data(), &disk, sizeof(disk));
  const Checksum128 checksum = checksum_of(page.first(kPageBytes));
  std::memcpy(page.data(), &checksum, sizeof(checksum));
}

CopyState decode_superblock(std::span<const uint8_t> page, uint32_t copy, Superblock& out, std::string& why) {
  if (page.size() != kPageBytes) {
    why = format_text("%zu bytes, not 4096", page.size());
    return CopyState::kDamaged;
  }
  SuperblockDisk disk;
  std::memcpy(&disk, page.data(), sizeof(disk));
  if (disk.magic != kSuperblockMagic) {
    why = "no kvstore magic";
    return CopyState::kAbsent;
  }
  if (disk.checksum != checksum_of(page)) {
    why = "checksum mismatch";
    return CopyState::kDamaged;
  }
  if (disk.copy != copy) {
    why = format_text("is copy %u", disk.copy);  // a misdirected write or read
    return CopyState::kDamaged;
  }
  Superblock superblock;
  load_preamble(disk, superblock);
  why = is_known(superblock) ? load_body(disk, superblock) : "";
  if (!why.empty()) return CopyState::kDamaged;
  out = std::move(superblock);
  return CopyState::kValid;
}

Quorum choose_superblock(std::span<const CopyRead, kSuperblockCopies> copies) {
  const Candidates candidates = examine(copies);
  Quorum quorum;
  quorum.why = describe(candidates);
  std::optional<uint32_t> best;
  for (uint32_t i = 0; i < kSuperblockCopies; ++i) {
    if (candidates[i].agreeing < kSuperblocksToOpen) continue;
    if (best && contradict(candidates[i].superblock, candidates[*best].superblock)) {
      quorum.verdict = QuorumVerdict::kCorrupt;
      return quorum;
    }
    if (!best || rank(candidates[i].superblock) > rank(candidates[*best].superblock)) best = i;
  }
  if (!best) {
    quorum.verdict = verdict_without_quorum(candidates);
    return quorum;
  }
  quorum.superblock = candidates[*best].superblock;
  if (!is_known(quorum.superblock)) {
    quorum.verdict = QuorumVerdict::kUnsupported;
    quorum.why =
        format_text("format version %u with incompat flags 0x%llx; this build knows version %u and 0x%llx",
                    quorum.superblock.version, static_cast<unsigned long long>(quorum.superblock.incompat_flags),
                    kFormatVersion, static_cast<unsigned long long>(kIncompatKnown));
    return quorum;
  }
  quorum.verdict = QuorumVerdict::kOk;
  for (uint32_t i = 0; i < kSuperblockCopies; ++i) {
    const bool agrees = candidates[i].state == CopyState::kValid && agree(copies[i].page, copies[*best].page);
    quorum.repair[i] = !agrees;
  }
  return quorum;
}

std::string uuid_text(const Uuid& uuid) {
  std::string text;
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += format_text("%02x", uuid[i]);
  }
  return text;
}

std::optional<Uuid> parse_uuid(std::string_view text) {
  if (text.size() != 36) return std::nullopt;
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  Uuid uuid;
  size_t at = 0;
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) {
      if (text[at++] != '-') return std::nullopt;
    }
    const int high = digit(text[at++]);
    const int low = digit(text[at++]);
    if (high < 0 || low < 0) return std::nullopt;
    uuid[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return uuid;
}

}  // namespace kvstore::format
