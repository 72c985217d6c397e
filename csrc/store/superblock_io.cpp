// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/superblock_io.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "base/aligned.h"
#include "base/units.h"
#include "store/foreign_signatures.h"

namespace kvstore::store {
namespace {

using format::kSuperblockCopies;
using format::kSuperblocksToWrite;
using format::OwnerRecord;
using format::Quorum;
using format::QuorumVerdict;
using format::Superblock;

std::span<const uint8_t> page_of(const AlignedBuffer& buffer) { return {buffer.data(), kPageBytes}; }

bool lies_on(uint64_t offset_bytes, uint64_t device_bytes) {
  return device_bytes >= kPageBytes && offset_bytes <= device_bytes - kPageBytes;
}

Status status_of(const Quorum& quorum) {
  switch (quorum.verdict) {
    case QuorumVerdict::kOk: return Status();
    case QuorumVerdict::kNoStore: return Status(Code::kNotFound, "no kvstore store here: " + quorum.why);
    case QuorumVerdict::kCorrupt:
      return Status(Code::kCorrupt, "the superblock copies of this store contradict each other: " + quorum.why);
    case QuorumVerdict::kTryAgain:
      return Status(Code::kBusy, "unreadable superblock copies hide the answer, try again: " + quorum.why);
    case QuorumVerdict::kUnsupported: return Status(Code::kUnsupported, "made by a later kvstore: " + quorum.why);
  }
  return Status(Code::kCorrupt, quorum.why);
}

std::string describe(const OwnerRecord& record) {
  return format_text("epoch %llu of host %s", static_cast<unsigned long long>(record.epoch),
                     format::uuid_text(record.host).c_str());
}

bool holds(device::BlockingIo& io, uint16_t device_index, uint64_t offset_bytes, const AlignedBuffer& wanted) {
  AlignedBuffer found(kPageBytes);
  if (!io.read(device_index, offset_bytes, found, kPageBytes).ok()) return false;
  return std::memcmp(found.data(), wanted.data(), kPageBytes) == 0;
}

Status check_identity_field(const char* field, const std::string& formatted, const std::string& found,
                            const std::string& path) {
  // Empty: a kernel or a device that did not tell.
  if (formatted.empty() || found.empty() || formatted == found) return Status();
  return Status(Code::kOtherStore, format_text("%s is not the device that was formatted: its %s is %s, the superblock "
                                               "names %s (a copied store, or a path that leads elsewhere now)",
                                               path.c_str(), field, found.c_str(), formatted.c_str()));
}

// As the superblock can hold it: printable, and not longer than its field.
std::string identity_text(const std::string& text, size_t characters_max) {
  std::string cleaned = text.substr(0, characters_max);
  for (char& c : cleaned) {
    if (c < 0x20 || c >= 0x7f) c = '?';
  }
  return cleaned;
}

// A superblock copy as it is on the device; no bytes when it cannot be read.
struct CopyBytes {
  AlignedBuffer page;
  Status status;
  bool operator==(const CopyBytes& other) const {
    if (!status.ok() || !other.status.ok()) return status.ok() == other.status.ok();
    return std::memcmp(page.data(), other.page.data(), kPageBytes) == 0;
  }
};
using Copies = std::array<CopyBytes, kSuperblockCopies>;

CopyBytes read_copy(device::BlockingIo& io, uint16_t device_index, uint64_t offset_bytes, uint64_t device_bytes) {
  CopyBytes copy{AlignedBuffer(kPageBytes), {}};
  // Past the end of a small device nothing was ever written: zeros.
  if (lies_on(offset_bytes, device_bytes)) copy.status = io.read(device_index, offset_bytes, copy.page, kPageBytes);
  return copy;
}

// One read at a time, each into memory of its own, so that a copy that cannot be read costs that copy only.
Copies read_copies(device::BlockingIo& io, uint16_t device_index, uint64_t device_bytes) {
  Copies copies;
  const auto offsets = format::superblock_offsets(device_bytes);
  for (uint32_t i = 0; i < kSuperblockCopies; ++i) copies[i] = read_copy(io, device_index, offsets[i], device_bytes);
  return copies;
}

Quorum judge(const Copies& read) {
  std::array<format::CopyRead, kSuperblockCopies> copies;
  std::string errors;
  for (uint32_t i = 0; i < kSuperblockCopies; ++i) {
    copies[i].readable = read[i].status.ok();
    if (read[i].status.ok()) copies[i].page = page_of(read[i].page);
    if (!read[i].status.ok()) errors += "; " + read[i].status.message();
  }
  Quorum quorum = format::choose_superblock(copies);
  quorum.why += errors;
  return quorum;
}

// Of a file that lost its end the first copy may be all that is left: no quorum, but not the same as no store either.
Status check_not_cut_short(device::BlockingIo& io, uint16_t device_index, uint64_t device_bytes) {
  const CopyBytes first = read_copy(io, device_index, 0, device_bytes);
  Superblock superblock;
  std::string why;
  if (!first.status.ok() || decode_superblock(page_of(first.page), 0, superblock, why) != format::CopyState::kValid ||
      superblock.geometry.device_bytes <= device_bytes) {
    return Status();
  }
  return Status(Code::kInvalid, format_text("cut short: %llu bytes are left of store %s, which was formatted with %llu",
                                            static_cast<unsigned long long>(device_bytes),
                                            format::uuid_text(superblock.store_uuid).c_str(),
                                            static_cast<unsigned long long>(superblock.geometry.device_bytes)));
}

}  // namespace

Quorum read_quorum(device::BlockingIo& io, uint16_t device_index, uint64_t device_bytes) {
  return judge(read_copies(io, device_index, device_bytes));
}

Result<Quorum> read_superblock(device::BlockingIo& io, uint16_t device_index, uint64_t device_bytes) {
  Quorum quorum = read_quorum(io, device_index, device_bytes);
  if (quorum.verdict == QuorumVerdict::kNoStore) {
    const Result<std::string> foreign = read_signature(io, device_index, device_bytes);
    if (foreign.ok() && !foreign.value().empty()) {
      return Status(Code::kForeign, "no kvstore store here, but: " + foreign.value());
    }
    KVS_TRY(check_not_cut_short(io, device_index, device_bytes));
  }
  KVS_TRY(status_of(quorum));
  return quorum;
}

device::DeviceIdentity storable_identity(const device::DeviceIdentity& identity) {
  return {identity_text(identity.nguid, format::kNguidCharactersMax),
          identity_text(identity.eui64, format::kEui64CharactersMax),
          identity_text(identity.serial, format::kSerialCharactersMax)};
}

Status check_device(const Superblock& superblock, const device::DeviceInfo& info) {
  const device::DeviceIdentity found = storable_identity(info.identity);
  KVS_TRY(check_identity_field("NGUID", superblock.nguid, found.nguid, info.path));
  KVS_TRY(check_identity_field("EUI-64", superblock.eui64, found.eui64, info.path));
  KVS_TRY(check_identity_field("serial number", superblock.serial, found.serial, info.path));
  const uint64_t size_bytes = align_down(info.size_bytes, kPageBytes);
  if (size_bytes != superblock.geometry.device_bytes) {
    return Status(Code::kInvalid, format_text("%s was resized: %llu bytes now, %llu when it was formatted",
                                              info.path.c_str(), static_cast<unsigned long long>(size_bytes),
                                              static_cast<unsigned long long>(superblock.geometry.device_bytes)));
  }
  if (info.logical_block_bytes > kPageBytes) {
    return Status(Code::kInvalid, format_text("%s has logical blocks of %u bytes, more than 4096", info.path.c_str(),
                                              info.logical_block_bytes));
  }
  return Status();
}

// The copies in the order to write them. An update that was cut short may have left just two copies that agree: they
// are overwritten last, or three updates cut short one after the other would leave four copies of which no two agree.
static std::array<uint32_t, kSuperblockCopies> update_order(device::BlockingIo& io, uint16_t device_index,
                                                            const Superblock& superblock) {
  std::array<uint32_t, kSuperblockCopies> order = {0, 1, 2, 3};
  const Quorum found = read_quorum(io, device_index, superblock.geometry.device_bytes);
  // Of another store, about to be overwritten by format, nothing is to be kept.
  const bool is_ours = found.verdict == QuorumVerdict::kOk && found.superblock.store_uuid == superblock.store_uuid;
  if (is_ours) std::stable_partition(order.begin(), order.end(), [&](uint32_t copy) { return found.repair[copy]; });
  return order;
}

Status update_superblock(device::BlockingIo& io, uint16_t device_index, Superblock& superblock,
                         const MayWriteCopy& may_write) {
  const auto order = update_order(io, device_index, superblock);
  ++superblock.sequence;
  const auto offsets = superblock.geometry.superblock_offsets();
  std::array<AlignedBuffer, kSuperblockCopies> pages;
  Status first_error;
  uint32_t written = 0;
  for (uint32_t i = 0; i < kSuperblockCopies; ++i) {
    const uint32_t copy = order[i];
    if (may_write) KVS_TRY(may_write(copy));
    pages[copy] = AlignedBuffer(kPageBytes);
    format::encode_superblock(superblock, copy, {pages[copy].data(), kPageBytes});
    const Status status = io.write(device_index, offsets[copy], pages[copy], kPageBytes, true);
    if (status.ok()) ++written;
    if (!status.ok() && first_error.ok()) first_error = status;
    // The more old copies are left alone, the surer the old superblock is what the next open finds.
    const uint32_t still_possible = written + (kSuperblockCopies - 1 - i);
    if (still_possible < kSuperblocksToWrite) break;
  }
  uint32_t verified = 0;
  if (written >= kSuperblocksToWrite) {
    for (uint32_t i = 0; i < kSuperblockCopies; ++i) {
      if (holds(io, device_index, offsets[i], pages[i])) ++verified;
    }
  }
  if (verified >= kSuperblocksToWrite) return Status();
  const std::string what = format_text("superblock update %llu: %u copies written, %u read back equal, 3 are needed",
                                       static_cast<unsigned long long>(superblock.sequence), written, verified);
  if (first_error.ok()) return Status(Code::kIo, what);
  return Status(Code::kIo, what + ": " + first_error.message(), first_error.io_errno());
}

Result<Superblock> claim_device(device::BlockingIo& io, uint16_t device_index, Superblock superblock,
                                const ClaimOptions& options, Clock& clock) {
  if (const uint64_t unknown = superblock.ro_compat_flags & ~format::kRoCompatKnown; unknown != 0) {
    return Status(Code::kUnsupported, format_text("ro_compat flags 0x%llx are not known to this build: read only",
                                                  static_cast<unsigned long long>(unknown)));
  }
  // What each copy is before we write it. One that changes meanwhile is another opener's: then both have to wait.
  const uint64_t device_bytes = superblock.geometry.device_bytes;
  const Copies before = read_copies(io, device_index, device_bytes);
  Quorum quorum = judge(before);
  // Where they do not tell: the store was judged when it was found, a moment ago.
  const bool is_ours = quorum.verdict == QuorumVerdict::kOk && quorum.superblock.store_uuid == superblock.store_uuid;
  const Superblock found = is_ours ? std::move(quorum.superblock) : superblock;
  bool contended = !superblock.clean && superblock.owner.host != options.host;
  contended = contended || found.owner != superblock.owner || found.clean != superblock.clean;
  const auto offsets = superblock.geometry.superblock_offsets();
  const auto unchanged = [&](uint32_t copy) {
    if (read_copy(io, device_index, offsets[copy], device_bytes) == before[copy]) return Status();
    return Status(Code::kStale, "another opener is claiming the device");
  };
  superblock.sequence = std::max(superblock.sequence, found.sequence);
  const uint64_t epoch = std::max({superblock.owner.epoch, found.owner.epoch, options.above_epoch}) + 1;
  if (epoch > kEpochMax) return Status(Code::kUnsupported, "the store was opened 16 million times: format it anew");
  superblock.owner = {epoch, options.host, options.nonce};
  superblock.clean = false;
  superblock.opened_seconds = clock.wall_seconds();
  Status written = update_superblock(io, device_index, superblock, contended ? MayWriteCopy() : unchanged);
  if (written.code() == Code::kStale) {
    contended = true;
    ++superblock.owner.epoch;  // the other one may have taken this one, and not wait
    written = update_superblock(io, device_index, superblock);
  }
  KVS_TRY(std::move(written));
  // On one host O_EXCL and the file lock have settled it. A host that cannot see them gets time to notice our record
  // (it re-reads once a period, and then goes offline), and so does another contender.
  if (contended) clock.sleep_ns(contender_wait_ns(options.heartbeat_ns));
  KVS_TRY(confirm_ownership(io, device_index, device_bytes, superblock.owner));
  return superblock;
}

Status confirm_ownership(device::BlockingIo& io, uint16_t device_index, uint64_t device_bytes,
                         const OwnerRecord& mine) {
  const Quorum quorum = read_quorum(io, device_index, device_bytes);
  switch (quorum.verdict) {
    case QuorumVerdict::kOk: break;
    case QuorumVerdict::kNoStore: return Status(Code::kFenced, "the store was erased or formatted: " + quorum.why);
    case QuorumVerdict::kTryAgain: return Status(Code::kIo, "the owner record is unreadable: " + quorum.why);
    default: return status_of(quorum);
  }
  const OwnerRecord& found = quorum.superblock.owner;
  if (found == mine) return Status();
  return Status(Code::kFenced, "the device is owned by " + describe(found) + ", not by us, " + describe(mine));
}

}  // namespace kvstore::store
