// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: format never overwrites what somebody may want, and whenever it dies, every device holds the old store, the
// new one, or none.
// Method: simulated devices with a crash at every operation; files in a temporary folder, filled by the real mkfs
// programs where they are installed.

#include "store/format_device.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "store/one_sim_device.h"
#include "store/superblock_io.h"

namespace kvstore::store {
namespace {

using device::SimDisk;
using format::Superblock;

constexpr uint64_t kDeviceBytes = 40 * kMiB;

FormatOptions small_regions() {
  FormatOptions options;
  options.region_bytes = kMiB;
  return options;
}

// ---- simulated devices --------------------------------------------------------------------------------

class FormatDevices : public ::testing::Test {
 protected:
  Result<std::vector<Superblock>> format(SimDisk& disk, const FormatOptions& options = small_regions()) {
    OneSimDevice sim(disk, clock_);
    return format_devices({sim.device.get()}, options, clock_, random_);
  }
  Result<format::Quorum> read(SimDisk& disk) {
    OneSimDevice sim(disk, clock_);
    return read_superblock(*sim.io, 0, disk.size_bytes());
  }

  ManualClock clock_;
  SeededRandom random_{11};
};

TEST_F(FormatDevices, AFormattedDeviceHoldsWhatWasReturned) {
  SimDisk disk(kDeviceBytes, 1);
  const Superblock superblock = format(disk).value()[0];
  EXPECT_EQ(read(disk).value().superblock, superblock);
  EXPECT_EQ(superblock.sequence, 1u);
  EXPECT_EQ(superblock.owner.epoch, 0u);
  EXPECT_TRUE(superblock.clean);
  EXPECT_EQ(superblock.geometry.region_bytes, kMiB);
  EXPECT_EQ(superblock.incompat_flags, format::kIncompatExperimental);
  EXPECT_EQ(superblock.serial, "SIM0000000000000001");
  EXPECT_EQ(superblock.store_uuid[6] >> 4, 4);  // a random uuid, RFC 9562
}

TEST_F(FormatDevices, MembersOfAPoolKnowEachOtherAndShareTheSecret) {
  SimDisk first(kDeviceBytes, 1), second(2 * kDeviceBytes, 2);
  OneSimDevice a(first, clock_), b(second, clock_);
  const auto superblocks = format_devices({a.device.get(), b.device.get()}, small_regions(), clock_, random_).value();
  ASSERT_EQ(superblocks.size(), 2u);
  EXPECT_EQ(superblocks[0].members, superblocks[1].members);
  EXPECT_EQ(superblocks[0].pool_uuid, superblocks[1].pool_uuid);
  EXPECT_EQ(superblocks[0].fingerprint_secret, superblocks[1].fingerprint_secret);
  EXPECT_NE(superblocks[0].store_uuid, superblocks[1].store_uuid);
  EXPECT_EQ(superblocks[1].member_index, 1u);
  EXPECT_EQ(read(first).value().superblock, superblocks[0]);
  EXPECT_EQ(read(second).value().superblock, superblocks[1]);
}

TEST_F(FormatDevices, APoolHasAtMostThirtyTwoMembers) {
  EXPECT_EQ(format_devices({}, small_regions(), clock_, random_).status().code(), Code::kInvalid);
  SimDisk disk(kDeviceBytes, 1);
  OneSimDevice sim(disk, clock_);
  const std::vector<device::Device*> many(33, sim.device.get());
  EXPECT_EQ(format_devices(many, small_regions(), clock_, random_).status().code(), Code::kInvalid);
}

TEST_F(FormatDevices, AnExistingStoreIsRefusedByUuidAndDateUnlessForced) {
  SimDisk disk(kDeviceBytes, 1);
  const Superblock old = format(disk).value()[0];
  const Status refused = format(disk).status();
  EXPECT_EQ(refused.code(), Code::kOtherStore);
  EXPECT_NE(refused.message().find(format::uuid_text(old.store_uuid)), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("2023-11-14"), std::string::npos) << refused.message();
  EXPECT_EQ(read(disk).value().superblock, old);

  FormatOptions forced = small_regions();
  forced.force = true;
  const Superblock replaced = format(disk, forced).value()[0];
  EXPECT_NE(replaced.store_uuid, old.store_uuid);
  EXPECT_EQ(read(disk).value().superblock, replaced);
}

TEST_F(FormatDevices, ADamagedStoreIsRefusedToo) {
  SimDisk disk(kDeviceBytes, 1);
  ASSERT_TRUE(format(disk).ok());
  for (const uint64_t offset : {uint64_t{0}, 8 * kMiB, 24 * kMiB}) {
    const uint8_t noise = 0x77;
    disk.poke(offset + 400, &noise, 1);
  }
  EXPECT_EQ(format(disk).status().code(), Code::kOtherStore);
}

TEST_F(FormatDevices, AStoreOfALaterVersionIsRefusedUnlessForced) {
  SimDisk disk(kDeviceBytes, 1);
  Superblock later = format(disk).value()[0];
  later.incompat_flags |= uint64_t{1} << 40;
  OneSimDevice sim(disk, clock_);
  ASSERT_TRUE(update_superblock(*sim.io, 0, later).ok());
  const Status refused = format(disk).status();
  EXPECT_EQ(refused.code(), Code::kOtherStore);
  EXPECT_NE(refused.message().find("later version"), std::string::npos) << refused.message();
  FormatOptions forced = small_regions();
  forced.force = true;
  EXPECT_TRUE(format(disk, forced).ok());
}

// What they hold may be a store.
TEST_F(FormatDevices, SuperblockPlacesThatCannotBeReadAreNotOverwritten) {
  SimDisk disk(kDeviceBytes, 1);
  const Superblock superblock = format(disk).value()[0];
  for (const uint64_t offset : superblock.geometry.superblock_offsets()) {
    disk.add_rule(rule_at(device::SimFault::kError, device::IoOp::kRead, offset, kEveryTime));
  }
  const uint64_t operations = disk.operations();
  EXPECT_EQ(format(disk).status().code(), Code::kIo);
  EXPECT_EQ(disk.operations(), operations) << "writes and flushes";
  disk.clear_rules();
  EXPECT_EQ(read(disk).value().superblock, superblock);
}

TEST_F(FormatDevices, CopiesOfAnOlderGeometryAreErasedToo) {
  SimDisk disk(kDeviceBytes, 1);
  ASSERT_TRUE(format(disk).ok());
  disk.resize(2 * kDeviceBytes);
  FormatOptions forced = small_regions();
  forced.force = true;
  ASSERT_TRUE(format(disk, forced).ok());
  std::array<uint8_t, kPageBytes> old_last_copy;
  disk.peek(kDeviceBytes - kPageBytes, old_last_copy.data(), old_last_copy.size());
  EXPECT_TRUE(std::all_of(old_last_copy.begin(), old_last_copy.end(), [](uint8_t byte) { return byte == 0; }));
}

TEST_F(FormatDevices, NothingIsWrittenUnlessEveryDevicePassedEveryCheck) {
  SimDisk blank(kDeviceBytes, 1), used(kDeviceBytes, 2), small(20 * kMiB, 3);
  ASSERT_TRUE(format(used).ok());
  OneSimDevice a(blank, clock_), b(used, clock_), c(small, clock_);
  EXPECT_EQ(format_devices({a.device.get(), b.device.get()}, small_regions(), clock_, random_).status().code(),
            Code::kOtherStore);
  EXPECT_EQ(format_devices({a.device.get(), c.device.get()}, small_regions(), clock_, random_).status().code(),
            Code::kInvalid);
  EXPECT_EQ(blank.operations(), 0u);
}

TEST_F(FormatDevices, AForeignSignatureIsRefusedAndGoneAfterForce) {
  SimDisk disk(kDeviceBytes, 1);
  disk.poke(65536 + 64, "_BHRfS_M", 8);
  disk.poke(kDeviceBytes - 512, "EFI PART", 8);
  const Status refused = format(disk).status();
  EXPECT_EQ(refused.code(), Code::kForeign);
  EXPECT_NE(refused.message().find("btrfs"), std::string::npos) << refused.message();
  EXPECT_EQ(disk.operations(), 0u);

  FormatOptions forced = small_regions();
  forced.force = true;
  ASSERT_TRUE(format(disk, forced).ok());
  OneSimDevice sim(disk, clock_);
  EXPECT_EQ(probe_foreign(*sim.device).value(), "");
}

// Forces a format over `disk` that dies after each number of operations; every state that is found must be one of the
// three. The disk is brought back to its old store in between; 0 members: to none.
void crash_everywhere(uint32_t old_members, bool cache_survives, uint64_t seed) {
  ManualClock clock;
  SeededRandom random(seed);
  SimDisk disk(kDeviceBytes, seed);
  FormatOptions forced = small_regions();
  forced.force = true;
  int none = 0;
  for (uint64_t operations = 0;; ++operations) {
    ASSERT_LT(operations, 100u);
    const std::array<uint8_t, kPageBytes> zeros{};
    for (const uint64_t offset : format::superblock_offsets(kDeviceBytes)) disk.poke(offset, zeros.data(), kPageBytes);
    format::Uuid old_uuid{};
    if (old_members > 0) {
      OneSimDevice sim(disk, clock);
      Superblock old = format_devices({sim.device.get()}, forced, clock, random).value()[0];
      old.clean = false;
      old.members.resize(old_members, uuid_of(0x99));
      ASSERT_TRUE(update_superblock(*sim.io, 0, old).ok());
      old_uuid = old.store_uuid;
    }
    bool formatted = false;
    {
      OneSimDevice sim(disk, clock);
      disk.stop_after(operations);
      formatted = format_devices({sim.device.get()}, forced, clock, random).ok();
    }
    disk.power_cut(cache_survives);
    OneSimDevice sim(disk, clock);
    const auto found = read_superblock(*sim.io, 0, kDeviceBytes);
    if (found.ok()) {
      const bool is_old = found.value().superblock.store_uuid == old_uuid;
      if (formatted) {
        ASSERT_FALSE(is_old);
      }
    } else {
      ASSERT_EQ(found.status().code(), Code::kNotFound)
          << found.status().to_string() << " after " << operations << " seed " << seed;
      ASSERT_FALSE(formatted);
      ++none;
    }
    if (formatted) break;
  }
  ASSERT_GT(none, 0);
}

TEST_F(FormatDevices, KilledAtAnyOperationItLeavesTheOldStoreTheNewOneOrNone) {
  crash_everywhere(1, true, 1);
  crash_everywhere(0, true, 2);
}

TEST_F(FormatDevices, APowerCutAtAnyOperationLeavesTheOldStoreTheNewOneOrNone) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    crash_everywhere(1, false, seed);
    crash_everywhere(0, false, seed);
  }
}

TEST_F(FormatDevices, APowerCutDoesNotTearTheSuperblocksOfALargePoolIntoCorruption) {
  // More than twelve members reach into a second sector, so that a copy that is being zeroed can be torn.
  for (uint64_t seed = 0; seed < 30; ++seed) crash_everywhere(format::kMembersMax, false, seed);
}

TEST_F(FormatDevices, APoolIsNeverPartlyTheOldAndPartlyTheNewOne) {
  FormatOptions forced = small_regions();
  forced.force = true;
  const auto format_both = [&](SimDisk& first, SimDisk& second) {
    OneSimDevice a(first, clock_), b(second, clock_);
    return format_devices({a.device.get(), b.device.get()}, forced, clock_, random_);
  };
  for (size_t dying = 0; dying < 2; ++dying) {
    std::array<SimDisk, 2> disks{SimDisk(kDeviceBytes, 1), SimDisk(kDeviceBytes, 2)};
    bool formatted = false;
    for (uint64_t operations = 0; !formatted; ++operations) {
      ASSERT_LT(operations, 100u);
      const auto old = format_both(disks[0], disks[1]).value();
      disks[dying].stop_after(operations);
      formatted = format_both(disks[0], disks[1]).ok();
      disks[dying].power_cut(true);
      bool any_old = false, any_new = false;
      for (size_t i = 0; i < disks.size(); ++i) {
        const auto found = read(disks[i]);
        if (!found.ok()) continue;
        const bool is_old = found.value().superblock.store_uuid == old[i].store_uuid;
        any_old |= is_old;
        any_new |= !is_old;
      }
      ASSERT_FALSE(any_old && any_new) << "device " << dying << " after " << operations;
    }
  }
}

TEST_F(FormatDevices, AfterAnInterruptedFormatTheNextNeedsNoForce) {
  SimDisk disk(kDeviceBytes, 1);
  {
    OneSimDevice sim(disk, clock_);
    disk.stop_after(8);  // copies zeroed, ends wiped, flushed, one copy written
    ASSERT_FALSE(format_devices({sim.device.get()}, small_regions(), clock_, random_).ok());
  }
  disk.power_cut(true);
  EXPECT_TRUE(format(disk).ok());
}

// ---- files --------------------------------------------------------------------------------------------

class FormatPool : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "kvstore-format-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    const int fd = open((folder_ / "probe").c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0) GTEST_SKIP() << name << " is on a file system without O_DIRECT; set TMPDIR to another";
    close(fd);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string make_file(uint64_t bytes, const std::string& name = "pool.img") {
    const std::string path = (folder_ / name).string();
    std::ofstream(path).close();
    std::filesystem::resize_file(path, bytes);
    return path;
  }
  static void write_at(const std::string& path, uint64_t offset, const std::string& text) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << text;
  }
  Status format(const std::string& path, bool force = false) {
    FormatOptions options = small_regions();
    options.force = force;
    return format_pool({path}, options, clock_, random_).status();
  }

  // Runs a program of util-linux or a mkfs; false when it is not installed. Fails the test when it fails.
  static bool run(std::vector<std::string> arguments, const std::string& input = "") {
    std::string program;
    for (const char* folder : {"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"}) {
      if (program.empty() && access((folder + arguments[0]).c_str(), X_OK) == 0) program = folder + arguments[0];
    }
    if (program.empty()) return false;
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int pipe_fds[2];
    EXPECT_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_fds[0], STDIN_FILENO);
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
      posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_WRONLY, 0);
    }
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_fds[0]);
    EXPECT_EQ(write(pipe_fds[1], input.data(), input.size()), static_cast<ssize_t>(input.size()));
    close(pipe_fds[1]);
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0) << program;
    return true;
  }

  void expect_refused_as(const std::string& path, const std::string& what) {
    const Status refused = format(path);
    EXPECT_EQ(refused.code(), Code::kForeign) << refused.to_string();
    EXPECT_NE(refused.message().find(what), std::string::npos) << refused.message();
    EXPECT_TRUE(format(path, true).ok());
    EXPECT_EQ(format(path).code(), Code::kOtherStore);  // ours now, and nothing of the other is left to be found
  }

  ManualClock clock_;
  SeededRandom random_{12};
  std::filesystem::path folder_;
};

TEST_F(FormatPool, AMissingFileIsMadeSparseAndPrivateWhenItsSizeIsGiven) {
  const std::string path = (folder_ / "made.img").string();
  FormatOptions options = small_regions();
  EXPECT_EQ(format_pool({path}, options, clock_, random_).status().code(), Code::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(path));

  options.file_bytes = 200 * kMiB;
  const auto superblocks = format_pool({path}, options, clock_, random_);
  ASSERT_TRUE(superblocks.ok()) << superblocks.status().to_string();
  struct stat facts{};
  ASSERT_EQ(stat(path.c_str(), &facts), 0);
  EXPECT_EQ(static_cast<uint64_t>(facts.st_size), 200 * kMiB);
  EXPECT_LT(facts.st_blocks * 512, static_cast<off_t>(10 * kMiB));
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  EXPECT_EQ(superblocks.value()[0].geometry.device_bytes, 200 * kMiB);
}

TEST_F(FormatPool, AnEmptyFileGrowsAndALargerOneIsNeverCut) {
  const std::string path = make_file(0);
  FormatOptions options = small_regions();
  options.file_bytes = 64 * kMiB;
  ASSERT_TRUE(format_pool({path}, options, clock_, random_).ok());
  EXPECT_EQ(std::filesystem::file_size(path), 64 * kMiB);
  options.file_bytes = 50 * kMiB;
  options.force = true;
  EXPECT_EQ(format_pool({path}, options, clock_, random_).status().code(), Code::kInvalid);
  EXPECT_EQ(std::filesystem::file_size(path), 64 * kMiB);
}

TEST_F(FormatPool, AFileWithAnyDataIsRefusedAndLeftAlone) {
  const std::string path = make_file(0);
  write_at(path, 0, "notes\n");
  FormatOptions options = small_regions();
  options.file_bytes = 64 * kMiB;
  const Status refused = format_pool({path}, options, clock_, random_).status();
  EXPECT_EQ(refused.code(), Code::kForeign);
  EXPECT_NE(refused.message().find("holds data"), std::string::npos) << refused.message();
  EXPECT_EQ(std::filesystem::file_size(path), 6u);
}

TEST_F(FormatPool, DataAtAnySuperblockPlaceOfAFileIsSeen) {
  for (const uint64_t offset : {kMiB - 1, 8 * kMiB + 4095, 24 * kMiB, 40 * kMiB - 1}) {
    const std::string path = make_file(40 * kMiB);
    write_at(path, offset, "x");
    EXPECT_EQ(format(path).code(), Code::kForeign) << offset;
  }
}

TEST_F(FormatPool, AHeldFileIsBusyEvenWithForce) {
  const std::string path = make_file(40 * kMiB);
  const auto held = device::open_device(path, {}, clock_);
  ASSERT_TRUE(held.ok()) << held.status().to_string();
  EXPECT_EQ(format(path, true).code(), Code::kBusy);
}

TEST_F(FormatPool, TheSamePathTwiceIsRefused) {
  const std::string path = make_file(40 * kMiB);
  FormatOptions options = small_regions();
  EXPECT_EQ(format_pool({path, path}, options, clock_, random_).status().code(), Code::kBusy);
  options.file_bytes = 40 * kMiB;
  const std::string missing = (folder_ / "missing.img").string();
  EXPECT_EQ(format_pool({missing, missing}, options, clock_, random_).status().code(), Code::kInvalid);
  EXPECT_FALSE(std::filesystem::exists(missing));
}

TEST_F(FormatPool, SomethingElseThanADeviceOrFileIsRefused) {
  EXPECT_EQ(format(folder_.string()).code(), Code::kInvalid);
  EXPECT_EQ(format("/dev/null", true).code(), Code::kInvalid);
}

TEST_F(FormatPool, APlanWritesNothingAndSaysWhatIsThere) {
  const std::string path = make_file(40 * kMiB);
  FormatOptions options = small_regions();
  auto plans = plan_format({path}, options, clock_).value();
  ASSERT_EQ(plans.size(), 1u);
  EXPECT_EQ(plans[0].found, "");
  EXPECT_EQ(plans[0].geometry.region_bytes, kMiB);
  EXPECT_TRUE(format(path).ok());
  plans = plan_format({path}, options, clock_).value();
  EXPECT_EQ(plans[0].found.substr(0, 13), "kvstore store");
  options.file_bytes = 64 * kMiB;
  plans = plan_format({(folder_ / "missing.img").string()}, options, clock_).value();
  EXPECT_EQ(plans[0].geometry.device_bytes, 64 * kMiB);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "missing.img"));
}

TEST_F(FormatPool, ARealExt4IsRefused) {
  const std::string path = make_file(64 * kMiB);
  if (!run({"mkfs.ext4", "-q", "-F", path})) GTEST_SKIP() << "mkfs.ext4 is not installed";
  expect_refused_as(path, "ext");
}

TEST_F(FormatPool, ARealXfsIsRefused) {
  const std::string path = make_file(400 * kMiB);
  if (!run({"mkfs.xfs", "-q", "-f", path})) GTEST_SKIP() << "mkfs.xfs is not installed";
  expect_refused_as(path, "xfs");
}

TEST_F(FormatPool, ARealSwapAreaIsRefused) {
  const std::string path = make_file(64 * kMiB);
  chmod(path.c_str(), 0600);
  if (!run({"mkswap", path})) GTEST_SKIP() << "mkswap is not installed";
  expect_refused_as(path, "swap");
}

TEST_F(FormatPool, ARealGptIsRefusedAlsoWhenOnlyItsBackupIsLeft) {
  const std::string path = make_file(64 * kMiB);
  if (!run({"sfdisk", "-q", path}, "label: gpt\n,10M\n")) GTEST_SKIP() << "sfdisk is not installed";
  expect_refused_as(path, "partition table");
  ASSERT_TRUE(run({"sfdisk", "-q", "--force", path}, "label: gpt\n,10M\n"));
  write_at(path, 0, std::string(kMiB, '\0'));
  EXPECT_EQ(format(path).code(), Code::kForeign);
}

TEST_F(FormatPool, ARealMbrIsRefused) {
  const std::string path = make_file(64 * kMiB);
  if (!run({"sfdisk", "-q", path}, "label: dos\n,10M\n")) GTEST_SKIP() << "sfdisk is not installed";
  expect_refused_as(path, "partition table");
}

}  // namespace
}  // namespace kvstore::store
