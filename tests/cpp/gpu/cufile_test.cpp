// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: cuFile's driver is opened only where that is known to end, never for ever, and never leaves its log in the
// working directory; each refusal says why and what to do.
// Method: the fake libcufile.so.0 with faults.

#include "gpu/cufile.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "gpu/cufile_library.h"

namespace kvstore::gpu {
namespace {

class CuFileOpening : public testing::Test {
 protected:
  void TearDown() override { fake.reset(); }
  Status open(const CuFileOptions& options) { return CuFile::open(fake.gpu.driver, options).status(); }
  FakeCuFile& fake = FakeCuFile::get();
};

TEST_F(CuFileOpening, AnAbsentLibraryIsAValueThatNamesTheMend) {
  CuFileOptions options = fake_cufile_options();
  options.library = "libcufile-of-nobody.so.0";
  const Status status = open(options);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("libcufile-of-nobody.so.0"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("nvidia-cufile"), std::string::npos) << status.message();
}

TEST_F(CuFileOpening, ALibraryThatIsNotItSaysWhatItLacks) {
  CuFileOptions options = fake_cufile_options();
  options.library = "libdl.so.2";
  EXPECT_NE(open(options).message().find("has no cuFileDriverOpen"), std::string::npos);
}

// Every libcufile from 1.16 to 1.20 spins for ever in cuFileDriverOpen there.
TEST_F(CuFileOpening, WithoutProcModulesTheDriverIsNotOpened) {
  const uint64_t before = fake.calls("cuFileDriverOpen");
  CuFileOptions options = fake_cufile_options();
  options.modules_path = testing::TempDir() + "/no-such-modules";
  const Status status = open(options);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("no-such-modules cannot be read"), std::string::npos) << status.message();
  EXPECT_EQ(fake.calls("cuFileDriverOpen"), before);
}

TEST_F(CuFileOpening, AnOpeningThatDoesNotReturnIsGivenUp) {
  fake.hang("cuFileDriverOpen", true);
  CuFileOptions options = fake_cufile_options();
  options.open_timeout_ns = 20'000'000;
  const Status status = open(options);
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_NE(status.message().find("did not return"), std::string::npos) << status.message();
}

TEST_F(CuFileOpening, AnErrorOfTheDriverIsToldWithItsMeaning) {
  fake.fail("cuFileDriverOpen", 5033, 0, 1);
  const Status status = open(fake_cufile_options());
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("cuFileDriverOpen gave 5033, nvidia-fs"), std::string::npos) << status.message();
}

// The folder of a test, in which libcufile's log may be, and the environment without what an earlier opening left in
// it.
class CuFileLog : public CuFileOpening {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_);
    unsetenv("CUFILE_LOGFILE_PATH");
  }
  void TearDown() override {
    CuFileOpening::TearDown();
    unsetenv("CUFILE_LOGFILE_PATH");
    std::filesystem::remove_all(folder_);
  }
  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("cufile-log-" + std::to_string(getpid()));
};

TEST_F(CuFileLog, GoesWhereItWasToldAndNotIntoTheWorkingDirectory) {
  CuFileOptions options = fake_cufile_options();
  options.log_folder = folder_.string();
  EXPECT_TRUE(open(options).ok());
  EXPECT_TRUE(std::filesystem::exists(folder_ / "cufile.log"));
  EXPECT_FALSE(std::filesystem::exists("cufile.log"));
}

TEST_F(CuFileLog, GoesWhereTheEnvironmentSays) {
  setenv("CUFILE_LOGFILE_PATH", (folder_ / "theirs.log").c_str(), 1);
  EXPECT_TRUE(open(fake_cufile_options()).ok());
  EXPECT_TRUE(std::filesystem::exists(folder_ / "theirs.log"));
}

TEST(CuFileErrors, WhatIsNoErrnoIsAnIoError) {
  EXPECT_EQ(CuFile::errno_of(-1, EINVAL), -EINVAL);
  EXPECT_EQ(CuFile::errno_of(-1, 0), -EIO);
  EXPECT_EQ(CuFile::errno_of(-5030, 0), -EIO);
}

}  // namespace
}  // namespace kvstore::gpu
