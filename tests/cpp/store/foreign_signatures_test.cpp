// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: each thing that is found on NVMe namespaces is recognised by the built-in list alone, as on a machine
// without blkid, and a blank or short device is not taken for anything.
// Method: the magic numbers where the formats' own documents put them; windows of every awkward size.

#include "store/foreign_signatures.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "store/blkid.h"

namespace kvstore::store {
namespace {

using std::string_view_literals::operator""sv;

constexpr uint64_t kDeviceBytes = 64 * kMiB;

// A blank device with bytes at some places.
class Image {
 public:
  Image& put(uint64_t offset, std::string_view bytes) {
    if (offset < kSignatureWindowBytes) {
      std::memcpy(head_.data() + offset, bytes.data(), bytes.size());
    } else {
      std::memcpy(tail_.data() + (offset - (kDeviceBytes - kSignatureWindowBytes)), bytes.data(), bytes.size());
    }
    return *this;
  }
  std::string found() const { return find_signature(head_, tail_, kDeviceBytes); }

 private:
  std::vector<uint8_t> head_ = std::vector<uint8_t>(kSignatureWindowBytes);
  std::vector<uint8_t> tail_ = std::vector<uint8_t>(kSignatureWindowBytes);
};

std::string partition_entry(char status, char type, char first_sector, char sector_count) {
  std::string entry(16, '\0');
  entry[0] = status;
  entry[4] = type;
  entry[8] = first_sector;
  entry[12] = sector_count;
  return entry;
}

TEST(ForeignSignatures, ABlankDeviceIsBlank) { EXPECT_EQ(Image().found(), ""); }

TEST(ForeignSignatures, EachIsRecognised) {
  EXPECT_EQ(Image().put(512, "EFI PART").found(), "GPT partition table");
  EXPECT_EQ(Image().put(4096, "EFI PART").found(), "GPT partition table");
  EXPECT_EQ(Image().put(kDeviceBytes - 512, "EFI PART").found(), "GPT partition table (backup copy)");
  EXPECT_EQ(Image().put(kDeviceBytes - 4096, "EFI PART").found(), "GPT partition table (backup copy)");
  EXPECT_EQ(Image().put(1080, "\x53\xef").found(), "ext2/3/4 file system");
  EXPECT_EQ(Image().put(0, "XFSB").found(), "xfs file system");
  EXPECT_EQ(Image().put(65600, "_BHRfS_M").found(), "btrfs file system");
  EXPECT_EQ(Image().put(4086, "SWAPSPACE2").found(), "swap area");
  EXPECT_EQ(Image().put(512, "LABELONE").put(536, "LVM2 001").found(), "LVM2 physical volume");
  EXPECT_EQ(Image().put(0, "LUKS\xba\xbe").found(), "LUKS encrypted volume");
  EXPECT_EQ(Image().put(3, "NTFS    ").found(), "ntfs file system");
  EXPECT_EQ(Image().put(82, "FAT32   ").put(510, "\x55\xaa").found(), "vfat file system");
  EXPECT_EQ(Image().put(4120, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef").found(),
            "bcachefs file system");
  EXPECT_EQ(Image().put(0, "bluestore block device").found(), "Ceph BlueStore device");
}

TEST(ForeignSignatures, MdIsRecognisedAtThePlaceOfEachVersion) {
  const std::string_view magic = "\xfc\x4e\x2b\xa9"sv;
  for (const uint64_t offset : {uint64_t{0}, uint64_t{4096}, kDeviceBytes - 64 * kKiB, kDeviceBytes - 8 * kKiB}) {
    EXPECT_EQ(Image().put(offset, magic).found(), "md RAID member") << offset;
  }
}

TEST(ForeignSignatures, ZfsIsRecognisedByAnyOfItsFourLabels) {
  const std::string_view magic = "\x0c\xb1\xba\x00\x00\x00\x00\x00"sv;
  for (const uint64_t label : {uint64_t{0}, 256 * kKiB, kDeviceBytes - 512 * kKiB, kDeviceBytes - 256 * kKiB}) {
    EXPECT_EQ(Image().put(label + 131 * kKiB, magic).found(), "ZFS pool member") << label;
  }
}

TEST(ForeignSignatures, AnMbrNeedsAPlausiblePartition) {
  const auto found = [](const std::string& entry) { return Image().put(510, "\x55\xaa").put(446, entry).found(); };
  EXPECT_EQ(found(partition_entry('\x80', '\x83', 1, 1)), "MBR partition table");
  EXPECT_EQ(found(partition_entry('\x00', '\xee', 1, 1)), "MBR partition table");
  EXPECT_EQ(found(partition_entry('\x33', '\x83', 1, 1)), "");
  EXPECT_EQ(found(partition_entry('\x80', '\x00', 1, 1)), "");
  EXPECT_EQ(found(partition_entry('\x80', '\x83', 0, 1)), "");
  EXPECT_EQ(found(partition_entry('\x80', '\x83', 1, 0)), "");
}

TEST(ForeignSignatures, NoWindowIsReadPastItsEnd) {
  const std::vector<uint8_t> bytes(kSignatureWindowBytes);
  for (const uint64_t size : {0u, 1u, 511u, 512u, 4095u, 4096u, 65536u, 131072u, 524287u, 524288u, 1048575u}) {
    EXPECT_EQ(find_signature({bytes.data(), size}, {bytes.data(), size}, size), "");
    EXPECT_EQ(find_signature({bytes.data(), size}, {bytes.data(), size}, UINT64_MAX), "");
    EXPECT_EQ(find_signature({bytes.data(), size}, {bytes.data(), size}, 0), "");
  }
}

TEST(Blkid, ItsOutputIsUnderstood) {
  EXPECT_EQ(parse_blkid_export(""), "");
  EXPECT_EQ(parse_blkid_export("DEVNAME=/dev/x\nTYPE=ext4\nUSAGE=filesystem\n"), "ext4 file system");
  EXPECT_EQ(parse_blkid_export("TYPE=crypto_LUKS\nUSAGE=crypto\n"), "crypto_LUKS (crypto)");
  EXPECT_EQ(parse_blkid_export("DEVNAME=/dev/x\nPTUUID=1\nPTTYPE=gpt"), "gpt partition table");
  EXPECT_EQ(parse_blkid_export("=\n==\nTYPE"), "");
  EXPECT_EQ(parse_blkid_export("TYPE=\x1b[2J\n"), "?[2J file system");
}

TEST(Blkid, APathItCannotReadHoldsNothingItKnows) { EXPECT_EQ(ask_blkid("/nonexistent/device"), ""); }

}  // namespace
}  // namespace kvstore::store
