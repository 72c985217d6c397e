// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what sysfs says about caches, alignment, identity and fabrics is understood on hardware that no test
// machine has. Method: small sysfs trees in a temporary folder, laid out as the kernel lays them out.

#include "device/block_facts.h"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace kvstore::device {
namespace {

namespace fs = std::filesystem;

class BlockFactsTest : public ::testing::Test {
 protected:
  BlockFactsTest() {
    std::string pattern = ::testing::TempDir() + "/kvstore-sysfs-XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  ~BlockFactsTest() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  void link(const std::string& path, const std::string& target) {
    fs::create_directories((root_ / path).parent_path());
    fs::create_directory_symlink(root_ / target, root_ / path);
  }
  // A disk 259:0 at devices/<name>.
  void put_disk(const std::string& folder) {
    put(folder + "/dev", "259:0");
    put(folder + "/queue/write_cache", "write back");
    put(folder + "/queue/dma_alignment", "3");
    put(folder + "/queue/max_sectors_kb", "128");
    link("dev/block/259:0", folder);
  }
  BlockFacts facts(unsigned minor_number = 0) { return read_block_facts(root_.string(), makedev(259, minor_number)); }

  fs::path root_;
};

TEST_F(BlockFactsTest, AnUnknownDeviceIsTakenForTheWorst) {
  const BlockFacts unknown = facts();
  EXPECT_TRUE(unknown.volatile_cache);
  EXPECT_EQ(unknown.dma_alignment_bytes, 0u);
  EXPECT_EQ(unknown.related_devices.size(), 1u);
}

TEST_F(BlockFactsTest, ALocalNvmeDrive) {
  put_disk("devices/nvme0n1");
  put("devices/nvme0n1/nguid", "36434630-5260-1A2B-0025-384100000001");
  put("devices/nvme0n1/eui", "00 25 38 b1 11 50 c2 d5");
  put("devices/nvme0n1/device/serial", "S64GNE0R500001      ");
  put("devices/nvme0n1/device/transport", "pcie");
  const BlockFacts drive = facts();
  EXPECT_TRUE(drive.volatile_cache);
  EXPECT_EQ(drive.dma_alignment_bytes, 4u);
  EXPECT_EQ(drive.max_transfer_bytes, 128 * kKiB);
  EXPECT_FALSE(drive.is_fabric);
  EXPECT_EQ(drive.identity.nguid, "3643463052601a2b0025384100000001");
  EXPECT_EQ(drive.identity.eui64, "002538b11150c2d5");
  EXPECT_EQ(drive.identity.serial, "S64GNE0R500001");
}

TEST_F(BlockFactsTest, WriteThroughAndIdentifiersOfZeros) {
  put_disk("devices/nvme0n1");
  put("devices/nvme0n1/queue/write_cache", "write through");
  put("devices/nvme0n1/queue/dma_alignment", "511");
  put("devices/nvme0n1/nguid", "00000000-0000-0000-0000-000000000000");
  const BlockFacts drive = facts();
  EXPECT_FALSE(drive.volatile_cache);
  EXPECT_EQ(drive.dma_alignment_bytes, 512u);
  EXPECT_EQ(drive.identity.nguid, "");
}

TEST_F(BlockFactsTest, APartitionHasItsDisksFacts) {
  put_disk("devices/nvme0n1");
  put("devices/nvme0n1/device/serial", "ABC");
  put("devices/nvme0n1/nvme0n1p1/partition", "1");
  put("devices/nvme0n1/nvme0n1p1/dev", "259:1");
  link("dev/block/259:1", "devices/nvme0n1/nvme0n1p1");
  const BlockFacts partition = facts(1);
  EXPECT_EQ(partition.identity.serial, "ABC");
  EXPECT_EQ(partition.dma_alignment_bytes, 4u);
  EXPECT_EQ(partition.related_devices, (std::vector<dev_t>{makedev(259, 1), makedev(259, 0)}));
  EXPECT_EQ(facts(0).related_devices, (std::vector<dev_t>{makedev(259, 0), makedev(259, 1)}));
}

TEST_F(BlockFactsTest, AFabricNamespaceIsSeenDirectly) {
  put_disk("devices/nvme1n1");
  put("devices/nvme1n1/device/transport", "rdma");
  EXPECT_TRUE(facts().is_fabric);
}

TEST_F(BlockFactsTest, AFabricNamespaceIsSeenBehindMultipath) {
  put_disk("devices/nvme1n1");
  put("subsystem/nvme-subsys1/serial", "TARGET1");
  put("subsystem/nvme-subsys1/nvme1/transport", "tcp");
  put("subsystem/nvme-subsys1/nvme2/transport", "tcp");
  link("devices/nvme1n1/device", "subsystem/nvme-subsys1");
  EXPECT_TRUE(facts().is_fabric);
  EXPECT_EQ(facts().identity.serial, "TARGET1");
}

TEST_F(BlockFactsTest, AFabricNamespaceIsSeenUnderDeviceMapperOnAPartition) {
  put("devices/nvme1n1/device/transport", "tcp");
  put("devices/nvme1n1/nvme1n1p1/partition", "1");
  put_disk("devices/dm-0");
  link("devices/dm-0/slaves/nvme1n1p1", "devices/nvme1n1/nvme1n1p1");
  EXPECT_TRUE(facts().is_fabric);
}

TEST_F(BlockFactsTest, HoldersAndBackingFilesAreNamed) {
  put_disk("devices/loop0");
  put("devices/loop0/loop/backing_file", "/srv/pool with blanks.img");
  link("devices/loop0/holders/dm-3", "devices/loop0");
  EXPECT_EQ(facts().loop_backing_file, "/srv/pool with blanks.img");
  EXPECT_EQ(facts().holder_names, std::vector<std::string>{"dm-3"});
}

}  // namespace
}  // namespace kvstore::device
