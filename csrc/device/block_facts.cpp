// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "device/block_facts.h"

#include <sys/sysmacros.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/mutation.h"
#include "base/small_file.h"

namespace kvstore::device {
namespace {

namespace fs = std::filesystem;

constexpr int kStackDepthMax = 8;  // of dm on md on dm ..; a loop in sysfs must not become one here

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    entries.push_back(entry->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool file_exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

uint64_t read_number(const fs::path& path) {
  const std::string text = read_line(path.string());
  return text.empty() ? 0 : std::strtoull(text.c_str(), nullptr, 10);
}

bool read_device_number(const fs::path& folder, dev_t& device) {
  const std::string text = read_line((folder / "dev").string());
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return false;
  device = makedev(static_cast<unsigned>(std::strtoul(text.c_str(), nullptr, 10)),
                   static_cast<unsigned>(std::strtoul(text.c_str() + colon + 1, nullptr, 10)));
  return true;
}

// "00000000-0000-.." and "0000 0000 .." both mean that the device has none.
std::string hex_identifier(const std::string& text) {
  std::string digits;
  for (const char c : text) {
    if (std::isxdigit(static_cast<unsigned char>(c))) {
      digits += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return digits.find_first_not_of('0') == std::string::npos ? "" : digits;
}

// The unit serial number page of SCSI: four bytes of header, then text.
std::string scsi_serial(const fs::path& disk) {
  const std::string page = read_small_file(disk / "device" / "vpd_pg80");
  if (page.size() <= 4) return "";
  std::string serial;
  for (const char c : page.substr(4)) {
    if (std::isgraph(static_cast<unsigned char>(c))) serial += c;
  }
  return serial;
}

DeviceIdentity read_identity(const fs::path& disk) {
  DeviceIdentity identity;
  identity.nguid = hex_identifier(read_line((disk / "nguid").string()));
  identity.eui64 = hex_identifier(read_line((disk / "eui").string()));
  identity.serial = read_line((disk / "device" / "serial").string());                    // NVMe
  if (identity.serial.empty()) identity.serial = read_line((disk / "serial").string());  // virtio
  if (identity.serial.empty()) identity.serial = scsi_serial(disk);
  return identity;
}

bool is_fabric_transport(const std::string& transport) {
  return transport == "rdma" || transport == "tcp" || transport == "fc" || transport == "loop";
}

bool is_fabric_disk(const fs::path& disk, int depth_left) {
  if (is_fabric_transport(read_line((disk / "device" / "transport").string()))) return true;
  // A multipath head's device is the subsystem; its controllers are folders nvme<n> in there.
  for (const fs::path& controller : entries_of(disk / "device")) {
    if (controller.filename().string().rfind("nvme", 0) != 0) continue;
    if (is_fabric_transport(read_line((controller / "transport").string()))) return true;
  }
  if (depth_left == 0) return false;
  for (const fs::path& slave : entries_of(disk / "slaves")) {
    const fs::path lower = file_exists(slave / "partition") ? slave / ".." : slave;
    if (is_fabric_disk(lower, depth_left - 1)) return true;
  }
  return false;
}

// sysfs shows the mask of older kernels (511) or an alignment (512).
uint32_t alignment_of(uint64_t value) {
  if (value >= kPageBytes) return 0;
  const uint64_t alignment = (value & (value + 1)) == 0 ? value + 1 : value;
  return (alignment & (alignment - 1)) == 0 ? static_cast<uint32_t>(alignment) : 0;
}

}  // namespace

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const size_t first = line.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

BlockFacts read_block_facts(const std::string& sysfs_root, dev_t device) {
  BlockFacts facts;
  facts.related_devices.push_back(device);
  std::error_code error;
  // The entry is a link; resolved, so that ".." of a partition is its disk.
  const fs::path folder =
      fs::canonical(fs::path(sysfs_root) / "dev" / "block" / format_text("%u:%u", major(device), minor(device)), error);
  if (error) return facts;

  const bool is_partition = file_exists(folder / "partition");
  const fs::path disk = is_partition ? folder.parent_path() : folder;
  dev_t number = 0;
  if (is_partition && read_device_number(disk, number)) facts.related_devices.push_back(number);
  for (const fs::path& entry : entries_of(folder)) {
    if (file_exists(entry / "partition") && read_device_number(entry, number)) facts.related_devices.push_back(number);
  }
  for (const fs::path& holder : entries_of(folder / "holders")) facts.holder_names.push_back(holder.filename());

  const bool write_through = read_line((disk / "queue" / "write_cache").string()) == "write through";
  facts.volatile_cache = !write_through && KVS_RULE(I1_a_volatile_cache_is_flushed);
  if (file_exists(disk / "queue" / "dma_alignment")) {
    facts.dma_alignment_bytes = alignment_of(read_number(disk / "queue" / "dma_alignment"));
  }
  facts.max_transfer_bytes = read_number(disk / "queue" / "max_sectors_kb") * kKiB;
  facts.identity = read_identity(disk);
  facts.is_fabric = is_fabric_disk(disk, kStackDepthMax);
  facts.loop_backing_file = read_line((disk / "loop" / "backing_file").string());
  return facts;
}

}  // namespace kvstore::device
