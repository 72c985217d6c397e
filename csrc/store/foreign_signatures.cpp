// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/foreign_signatures.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "base/aligned.h"
#include "base/units.h"

namespace kvstore::store {
namespace {

using std::string_view_literals::operator""sv;

// A magic at a fixed place, counted from the start of the device.
struct Signature {
  uint64_t offset_bytes;
  std::string_view magic;
  const char* what;
};

// Order matters where two can be true at once: a file system's boot sector also looks like an MBR.
constexpr Signature kSignatures[] = {
    {512, "EFI PART"sv, "GPT partition table"},
    {4096, "EFI PART"sv, "GPT partition table"},
    {0, "LUKS\xba\xbe"sv, "LUKS encrypted volume"},
    {16384, "SKUL\xba\xbe"sv, "LUKS encrypted volume"},
    {0, "XFSB"sv, "xfs file system"},
    {1080, "\x53\xef"sv, "ext2/3/4 file system"},
    {65536 + 64, "_BHRfS_M"sv, "btrfs file system"},
    {4096 + 24, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"sv, "bcachefs file system"},
    {4096 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"sv, "bcache or bcachefs device"},
    {3, "NTFS    "sv, "ntfs file system"},
    {3, "EXFAT   "sv, "exfat file system"},
    {54, "FAT12   "sv, "vfat file system"},
    {54, "FAT16   "sv, "vfat file system"},
    {82, "FAT32   "sv, "vfat file system"},
    {1024, "\x10\x20\xf5\xf2"sv, "f2fs file system"},
    {1024, "\xe2\xe1\xf5\xe0"sv, "erofs file system"},
    {0, "hsqs"sv, "squashfs file system"},
    {32769, "CD001"sv, "iso9660 file system"},
    {65536 + 52, "ReIsEr"sv, "reiserfs file system"},
    {32768, "JFS1"sv, "jfs file system"},
    {0, "bluestore block device"sv, "Ceph BlueStore device"},
    {0, "dmvdo001"sv, "VDO volume"},
    {4096 - 10, "SWAPSPACE2"sv, "swap area"},
    {4096 - 10, "SWAP-SPACE"sv, "swap area"},
    {8192 - 10, "SWAPSPACE2"sv, "swap area"},
    {16384 - 10, "SWAPSPACE2"sv, "swap area"},
    {65536 - 10, "SWAPSPACE2"sv, "swap area"},
};

class Windows {
 public:
  Windows(std::span<const uint8_t> head, std::span<const uint8_t> tail, uint64_t device_bytes)
      : head_(head), tail_(tail), device_bytes_(device_bytes) {}

  // The bytes there, or nothing when they are in neither window.
  std::span<const uint8_t> at(uint64_t offset_bytes, size_t bytes) const {
    if (offset_bytes <= head_.size() && bytes <= head_.size() - offset_bytes) return head_.subspan(offset_bytes, bytes);
    const uint64_t tail_start = device_bytes_ - std::min<uint64_t>(device_bytes_, tail_.size());
    if (offset_bytes < tail_start) return {};
    const uint64_t in_tail = offset_bytes - tail_start;
    if (in_tail <= tail_.size() && bytes <= tail_.size() - in_tail) return tail_.subspan(in_tail, bytes);
    return {};
  }

  bool has(uint64_t offset_bytes, std::string_view magic) const {
    const std::span<const uint8_t> bytes = at(offset_bytes, magic.size());
    return !bytes.empty() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
  }

  template <typename Number>
  bool has_number(uint64_t offset_bytes, Number number) const {
    return has(offset_bytes, {reinterpret_cast<const char*>(&number), sizeof(number)});
  }

  uint64_t device_bytes() const { return device_bytes_; }

 private:
  std::span<const uint8_t> head_;
  std::span<const uint8_t> tail_;
  uint64_t device_bytes_;
};

bool has_lvm2_label(const Windows& windows) {
  // In any of the first four sectors.
  for (uint64_t sector = 0; sector < 2048; sector += 512) {
    if (windows.has(sector, "LABELONE") && windows.has(sector + 24, "LVM2 001")) return true;
  }
  return false;
}

bool has_md_superblock(const Windows& windows) {
  constexpr uint32_t kMdMagic = 0xa92b4efc;
  const uint64_t size = windows.device_bytes();
  if (windows.has_number(0, kMdMagic) || windows.has_number(4096, kMdMagic)) return true;  // 1.1, 1.2
  if (size < 128 * kKiB) return false;
  const uint64_t sectors = size / 512;
  const uint64_t version_1_0 = ((sectors - 16) & ~uint64_t{7}) * 512;
  const uint64_t version_0_90 = align_down(size, 64 * kKiB) - 64 * kKiB;
  return windows.has_number(version_1_0, kMdMagic) || windows.has_number(version_0_90, kMdMagic);
}

bool has_zfs_label(const Windows& windows) {
  // Two labels of 256 KiB at each end, each with uberblocks in its second half.
  constexpr uint64_t kUberblockMagic = 0x00bab10c;
  const uint64_t end = align_down(windows.device_bytes(), 256 * kKiB);
  for (const uint64_t label : {uint64_t{0}, 256 * kKiB, end - 512 * kKiB, end - 256 * kKiB}) {
    if (label >= windows.device_bytes()) continue;
    for (uint64_t offset = 128 * kKiB; offset < 256 * kKiB; offset += kKiB) {
      if (windows.has_number(label + offset, kUberblockMagic)) return true;
    }
  }
  return false;
}

bool has_mbr(const Windows& windows) {
  if (!windows.has(510, "\x55\xaa"sv)) return false;
  const std::span<const uint8_t> entries = windows.at(446, 64);
  for (size_t i = 0; i + 16 <= entries.size(); i += 16) {
    const std::span<const uint8_t> entry = entries.subspan(i, 16);
    uint32_t first_sector = 0, sector_count = 0;
    std::memcpy(&first_sector, entry.data() + 8, sizeof(first_sector));
    std::memcpy(&sector_count, entry.data() + 12, sizeof(sector_count));
    const bool plausible_status = entry[0] == 0x00 || entry[0] == 0x80;
    if (plausible_status && entry[4] != 0 && first_sector != 0 && sector_count != 0) return true;
  }
  return false;
}

bool has_backup_gpt(const Windows& windows) {
  for (const uint64_t sector_bytes : {uint64_t{512}, uint64_t{4096}}) {
    if (windows.device_bytes() >= sector_bytes && windows.has(windows.device_bytes() - sector_bytes, "EFI PART")) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string find_signature(std::span<const uint8_t> head, std::span<const uint8_t> tail, uint64_t device_bytes) {
  const Windows windows(head, tail, device_bytes);
  for (const Signature& signature : kSignatures) {
    if (windows.has(signature.offset_bytes, signature.magic)) return signature.what;
  }
  if (has_lvm2_label(windows)) return "LVM2 physical volume";
  if (has_md_superblock(windows)) return "md RAID member";
  if (has_zfs_label(windows)) return "ZFS pool member";
  if (has_backup_gpt(windows)) return "GPT partition table (backup copy)";
  if (has_mbr(windows)) return "MBR partition table";
  return "";
}

Result<std::string> read_signature(device::BlockingIo& io, uint16_t device_index, uint64_t device_bytes) {
  // Direct reads are of whole pages: a few sectors behind the last one stay unseen.
  const uint64_t readable_bytes = align_down(device_bytes, kPageBytes);
  const uint64_t window_bytes = std::min(readable_bytes, kSignatureWindowBytes);
  if (window_bytes == 0) return std::string();
  AlignedBuffer head(window_bytes), tail(window_bytes + kPageBytes);
  KVS_TRY(io.read(device_index, 0, head, window_bytes));
  KVS_TRY(io.read(device_index, readable_bytes - window_bytes, tail, window_bytes));
  // The last, unreadable part counts as zeros, so that offsets from the end stay right.
  const uint64_t tail_bytes = window_bytes + (device_bytes - readable_bytes);
  return find_signature({head.data(), window_bytes}, {tail.data(), tail_bytes}, device_bytes);
}

}  // namespace kvstore::store
