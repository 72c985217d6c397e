// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/format_device.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/aligned.h"
#include "base/units.h"
#include "device/blocking_io.h"
#include "store/blkid.h"
#include "store/foreign_signatures.h"
#include "store/superblock_io.h"

namespace kvstore::store {
namespace {

using device::BlockingIo;
using device::Device;
using format::Geometry;
using format::Quorum;
using format::QuorumVerdict;
using format::Superblock;

constexpr uint64_t kIoTimeoutNs = 30'000'000'000;
constexpr uint64_t kWipeBytes = kMiB;  // at each end: every place where a signature is looked for

unsigned long long number(uint64_t value) { return value; }

Result<std::unique_ptr<BlockingIo>> make_io(Device& device) {
  Device* const devices[] = {&device};
  KVS_ASSIGN(std::unique_ptr<device::IoQueue> queue, device.make_queue(devices, {}));
  return std::make_unique<BlockingIo>(std::move(queue), std::vector<Device*>{&device}, kIoTimeoutNs);
}

// ---- what is there -------------------------------------------------------------------------------------

// One device's answer to "may this be overwritten?".
struct Finding {
  bool is_store = false;
  std::string found;                // empty: nothing
  std::set<uint64_t> stale_copies;  // superblock places of older geometries
};

std::string date_text(uint64_t seconds) {
  const time_t time = static_cast<time_t>(seconds);
  std::tm parts{};
  char text[32] = "at an unknown time";
  if (gmtime_r(&time, &parts) != nullptr) std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

bool all_zero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

// Whatever is in a file may be valuable, whether or not anybody knows its format. Read through the page cache:
// direct reads would not see the end of a file that is no multiple of 4 KiB.
Result<bool> file_holds_data(const std::string& path, uint64_t size_bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Status::from_errno(errno, path);
  std::vector<std::pair<uint64_t, uint64_t>> places{{0, kMiB}};
  for (const uint64_t offset : format::superblock_offsets(std::max(size_bytes, kPageBytes))) {
    places.emplace_back(offset, kPageBytes);
  }
  std::vector<uint8_t> buffer(kMiB);
  bool data = false;
  Status status;
  for (const auto& [offset, bytes] : places) {
    const ssize_t count = pread(fd, buffer.data(), bytes, static_cast<off_t>(offset));
    if (count < 0) status = Status::from_errno(errno, path);
    if (count > 0 && !all_zero({buffer.data(), static_cast<size_t>(count)})) data = true;
  }
  close(fd);
  if (!status.ok()) return status;
  return data;
}

Result<std::string> find_foreign(Device& device, BlockingIo& io) {
  const device::DeviceInfo& info = device.info();
  const bool has_path = info.kind != "sim";
  if (has_path) {
    if (std::string found = ask_blkid(info.path); !found.empty()) return found;
  }
  return read_signature(io, 0, info.size_bytes);
}

// A store, or what is left of one. Also collects where copies of an older geometry may be.
Result<Finding> find_store(Device& device, BlockingIo& io) {
  Finding finding;
  const Quorum quorum = read_quorum(io, 0, device.info().size_bytes);
  switch (quorum.verdict) {
    case QuorumVerdict::kOk: {
      const Superblock& superblock = quorum.superblock;
      finding.is_store = true;
      finding.found = format_text("kvstore store %s, formatted %s", format::uuid_text(superblock.store_uuid).c_str(),
                                  date_text(superblock.formatted_seconds).c_str());
      for (const uint64_t offset : superblock.geometry.superblock_offsets()) finding.stale_copies.insert(offset);
      break;
    }
    case QuorumVerdict::kUnsupported:
      finding.is_store = true;
      finding.found = format_text("kvstore store %s of a later version (%s)",
                                  format::uuid_text(quorum.superblock.store_uuid).c_str(), quorum.why.c_str());
      break;
    case QuorumVerdict::kCorrupt:
      finding.is_store = true;
      finding.found = "damaged kvstore store (" + quorum.why + ")";
      break;
    case QuorumVerdict::kTryAgain:
      return Status(Code::kIo, device.info().path + ": its superblock places cannot be read: " + quorum.why);
    case QuorumVerdict::kNoStore: break;  // an interrupted format too: it held nothing yet
  }
  return finding;
}

Result<Finding> examine(Device& device, BlockingIo& io) {
  KVS_ASSIGN(std::string foreign, find_foreign(device, io));
  KVS_ASSIGN(Finding finding, find_store(device, io));
  if (!foreign.empty()) {
    finding.is_store = false;
    finding.found = std::move(foreign);
  } else if (finding.found.empty() && device.info().is_regular_file) {
    KVS_ASSIGN(const bool data, file_holds_data(device.info().path, device.info().size_bytes));
    if (data) finding.found = "holds data";
  }
  return finding;
}

Status refusal(const std::string& path, const Finding& finding) {
  if (finding.is_store) {
    return Status(Code::kOtherStore, path + " holds a store: " + finding.found +
                                         "; only force overwrites it, and every block in it is lost");
  }
  return Status(Code::kForeign, path + " is not empty: " + finding.found + "; only force (--force) overwrites it");
}

// ---- writing -------------------------------------------------------------------------------------------

// A device that passed every check.
struct Target {
  Device* device = nullptr;
  std::unique_ptr<BlockingIo> io;
  Geometry geometry;
  std::set<uint64_t> stale_copies;
};

Result<Geometry> geometry_for(const std::string& path, uint64_t device_bytes, const FormatOptions& options) {
  format::GeometryOptions wanted;
  wanted.device_bytes = device_bytes;
  wanted.region_bytes = options.region_bytes;
  wanted.block_bytes = options.block_bytes;
  wanted.min_block_bytes = options.min_block_bytes;
  Result<Geometry> geometry = choose_geometry(wanted);
  if (geometry.ok()) return geometry;
  return Status(geometry.status().code(), path + ": " + geometry.status().message());
}

Status check_count(size_t devices) {
  if (devices != 0 && devices <= format::kMembersMax) return Status();
  return Status(Code::kInvalid, format_text("a pool has 1 to %u devices, not %zu", format::kMembersMax, devices));
}

// Leaves no copy of any store, one durable write after the other. A crash in between leaves the old store while two of
// its copies are left, and then none: choose_superblock takes two zeroed copies for an interrupted format.
Status erase(Target& target) {
  const uint64_t device_bytes = target.geometry.device_bytes;
  AlignedBuffer zeros(kWipeBytes);
  std::set<uint64_t> copies = target.stale_copies;
  for (const uint64_t offset : target.geometry.superblock_offsets()) copies.insert(offset);
  for (const uint64_t offset : copies) {
    if (offset <= device_bytes - kPageBytes) KVS_TRY(target.io->write(0, offset, zeros, kPageBytes, true));
  }
  // With force: the signature of what was here would later say that it still is. Two places where they can be.
  KVS_TRY(target.io->write(0, 0, zeros, kWipeBytes, false));
  KVS_TRY(target.io->write(0, device_bytes - kWipeBytes, zeros, kWipeBytes, false));
  return target.io->flush(0);
}

format::Uuid random_uuid(Random& random) {
  format::Uuid uuid;
  random.fill(uuid.data(), uuid.size());
  uuid[6] = static_cast<uint8_t>((uuid[6] & 0x0f) | 0x40);  // version 4, RFC 9562
  uuid[8] = static_cast<uint8_t>((uuid[8] & 0x3f) | 0x80);
  return uuid;
}

std::vector<Superblock> make_superblocks(std::span<const Target> targets, Clock& clock, Random& random) {
  Superblock common;
  common.pool_uuid = random_uuid(random);
  random.fill(common.fingerprint_secret.data(), common.fingerprint_secret.size());
  common.formatted_seconds = clock.wall_seconds();
  for (size_t i = 0; i < targets.size(); ++i) common.members.push_back(random_uuid(random));

  std::vector<Superblock> superblocks;
  for (const Target& target : targets) {
    const device::DeviceInfo& info = target.device->info();
    device::DeviceIdentity identity = storable_identity(info.identity);
    Superblock superblock = common;
    superblock.member_index = static_cast<uint32_t>(superblocks.size());
    superblock.store_uuid = common.members[superblock.member_index];
    superblock.nguid = std::move(identity.nguid);
    superblock.eui64 = std::move(identity.eui64);
    superblock.serial = std::move(identity.serial);
    superblock.logical_block_bytes = info.logical_block_bytes;
    superblock.geometry = target.geometry;
    superblocks.push_back(std::move(superblock));
  }
  return superblocks;
}

Result<std::vector<Superblock>> write_stores(std::span<Target> targets, Clock& clock, Random& random) {
  std::vector<Superblock> superblocks = make_superblocks(targets, clock, random);
  // Every device first: a pool half of the old and half of the new store is never seen.
  for (Target& target : targets) KVS_TRY(erase(target));
  for (size_t i = 0; i < targets.size(); ++i) KVS_TRY(update_superblock(*targets[i].io, 0, superblocks[i]));
  return superblocks;
}

// Checks an open device; kForeign or kOtherStore unless `force`.
Result<Target> admit(Device& device, const FormatOptions& options) {
  Target target;
  target.device = &device;
  KVS_ASSIGN(target.geometry, geometry_for(device.info().path, device.info().size_bytes, options));
  KVS_ASSIGN(target.io, make_io(device));
  KVS_ASSIGN(Finding finding, examine(device, *target.io));
  if (!finding.found.empty() && !options.force) return refusal(device.info().path, finding);
  target.stale_copies = std::move(finding.stale_copies);
  return target;
}

// ---- paths ---------------------------------------------------------------------------------------------

// A path before anything is written. `device` is empty for a file that is yet to be made.
struct Candidate {
  std::string path;
  std::unique_ptr<Device> device;
  Finding finding;
  Geometry geometry;
  bool must_grow = false;  // create, or make larger
};

Result<std::unique_ptr<Device>> open_exclusive(const std::string& path, const FormatOptions& options, Clock& clock) {
  device::OpenOptions open_options;
  open_options.kind = options.device_kind;
  return open_device(path, open_options, clock);
}

Result<Candidate> examine_path(const std::string& path, const FormatOptions& options, Clock& clock) {
  Candidate candidate;
  candidate.path = path;
  struct stat facts{};
  if (stat(path.c_str(), &facts) != 0) {
    if (errno != ENOENT) return Status::from_errno(errno, path);
    if (options.file_bytes == 0) {
      return Status(Code::kNotFound, path + " does not exist; give a size to make a file of that name");
    }
    candidate.must_grow = true;
    KVS_ASSIGN(candidate.geometry, geometry_for(path, options.file_bytes, options));
    return candidate;
  }
  KVS_ASSIGN(candidate.device, open_exclusive(path, options, clock));
  const device::DeviceInfo& info = candidate.device->info();
  uint64_t device_bytes = info.size_bytes;
  if (options.file_bytes != 0) {
    if (!info.is_regular_file) {
      return Status(Code::kInvalid, path + " is a device: its size is its own, give none");
    }
    if (device_bytes > options.file_bytes) {
      return Status(Code::kInvalid, format_text("%s has %llu bytes, more than the %llu asked for: remove it first",
                                                path.c_str(), number(device_bytes), number(options.file_bytes)));
    }
    candidate.must_grow = device_bytes < options.file_bytes;
    device_bytes = options.file_bytes;
  }
  KVS_ASSIGN(std::unique_ptr<BlockingIo> io, make_io(*candidate.device));
  KVS_ASSIGN(candidate.finding, examine(*candidate.device, *io));
  KVS_ASSIGN(candidate.geometry, geometry_for(path, device_bytes, options));
  return candidate;
}

Result<std::vector<Candidate>> examine_paths(const std::vector<std::string>& paths, const FormatOptions& options,
                                             Clock& clock) {
  KVS_TRY(check_count(paths.size()));
  std::set<std::string> missing;  // those that exist are told apart by their locks, whatever they are called
  std::vector<Candidate> candidates;
  for (const std::string& path : paths) {
    KVS_ASSIGN(Candidate candidate, examine_path(path, options, clock));
    if (candidate.device == nullptr && !missing.insert(path).second) {
      return Status(Code::kInvalid, path + " is given twice");
    }
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

// A sparse file on a disk that fills up later may refuse payload, but must never refuse metadata: a store that cannot
// seal a region cannot be opened for writing again.
Status allocate_metadata(const std::string& path, const format::Geometry& geometry) {
  const uint64_t bytes = geometry.data_offset - format::kMetadataOffset;
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return Status::from_errno(errno, path);
  const int error =
      fallocate(fd, FALLOC_FL_KEEP_SIZE, format::kMetadataOffset, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  close(fd);
  if (error == 0 || error == EOPNOTSUPP) return Status();
  return Status::from_errno(error, format_text("%s: allocating %llu bytes of metadata", path.c_str(), number(bytes)));
}

// Sparse: a regular file only stands in for a device. Readable by its owner alone, as the keys and values are.
Status grow_file(const std::string& path, uint64_t bytes, bool create) {
  const int flags = O_WRONLY | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0);
  const int fd = open(path.c_str(), flags, 0600);
  if (fd < 0) return Status::from_errno(errno, path);
  const int error = ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  close(fd);
  if (error == 0) return Status();
  if (create) unlink(path.c_str());
  return Status::from_errno(error, format_text("%s: making it %llu bytes large", path.c_str(), number(bytes)));
}

}  // namespace

Result<std::string> probe_foreign(Device& device) {
  KVS_ASSIGN(std::unique_ptr<BlockingIo> io, make_io(device));
  return find_foreign(device, *io);
}

Result<std::vector<FormatPlan>> plan_format(const std::vector<std::string>& paths, const FormatOptions& options,
                                            Clock& clock) {
  KVS_ASSIGN(const std::vector<Candidate> candidates, examine_paths(paths, options, clock));
  std::vector<FormatPlan> plans;
  for (const Candidate& candidate : candidates) {
    plans.push_back({candidate.path, candidate.geometry, candidate.finding.found});
  }
  return plans;
}

Result<std::vector<Superblock>> format_pool(const std::vector<std::string>& paths, const FormatOptions& options,
                                            Clock& clock, Random& random) {
  KVS_ASSIGN(std::vector<Candidate> candidates, examine_paths(paths, options, clock));
  for (const Candidate& candidate : candidates) {
    if (!candidate.finding.found.empty() && !options.force) return refusal(candidate.path, candidate.finding);
  }
  std::vector<Target> targets;
  for (Candidate& candidate : candidates) {
    if (candidate.must_grow) {
      KVS_TRY(grow_file(candidate.path, options.file_bytes, candidate.device == nullptr));
      candidate.device.reset();  // it knows the old size, and holds the lock
      KVS_ASSIGN(candidate.device, open_exclusive(candidate.path, options, clock));
    }
    Target target;
    target.device = candidate.device.get();
    KVS_ASSIGN(target.io, make_io(*candidate.device));
    target.geometry = candidate.geometry;
    target.stale_copies = std::move(candidate.finding.stale_copies);
    if (align_down(candidate.device->info().size_bytes, kPageBytes) != target.geometry.device_bytes) {
      return Status(Code::kBusy, candidate.path + " changed its size meanwhile; try again");
    }
    if (candidate.device->info().is_regular_file) {
      KVS_TRY(allocate_metadata(candidate.path, target.geometry));
    }
    targets.push_back(std::move(target));
  }
  return write_stores(targets, clock, random);
}

Result<std::vector<Superblock>> format_devices(const std::vector<Device*>& devices, const FormatOptions& options,
                                               Clock& clock, Random& random) {
  KVS_TRY(check_count(devices.size()));
  std::vector<Target> targets;
  for (Device* device : devices) {
    KVS_ASSIGN(Target target, admit(*device, options));
    targets.push_back(std::move(target));
  }
  return write_stores(targets, clock, random);
}

}  // namespace kvstore::store
