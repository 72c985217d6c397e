// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Opening a store.
//
//   devices -> superblocks (quorum, identity, members) -> claim -> headers -> index -> engines, keepers
//
// Nothing is written before the claim, and nothing but the claim before the whole pool was found good.

#include <malloc.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "base/mutation.h"
#include "device/fork_guard.h"
#include "store/store_core.h"
#include "store/superblock_io.h"

namespace kvstore::store {

namespace {

constexpr uint32_t kMetadataQueueDepth = 64;
constexpr uint32_t kPayloadQueueDepth = 256;
constexpr uint32_t kRecoveryThreads = 2;
constexpr uint64_t kIndexBlocksMax = uint64_t{1} << 32;  // 256 GiB of index
constexpr uint64_t kIndexBytesPerBlock = 64;
constexpr uint64_t kIoTimeoutNsMin = 10'000'000;
constexpr int kClaimRounds = 3;  // of a pool whose members somebody else claims too
constexpr uint64_t kTrimFromBytes = 16 * kMiB;
constexpr uint64_t kLeaseNsMin = 100'000'000;
constexpr uint64_t kLeasesToJoin = 3;                 // one may be waited for by a rebuild (S7)
constexpr uint64_t kClaimNs = 500'000'000;            // for who holds the pool to have written its claim
constexpr uint64_t kBecomeSharedNs = 10'000'000'000;  // as much as a large pool takes to be opened and closed
constexpr uint64_t kAloneNs = 100'000'000;            // for who looked at the pool at the same moment to go away

// This host, in every store it opens: from /etc/machine-id, hashed so that the id itself is not published.
format::Uuid host_uuid() {
  std::string id = "no machine id";
  if (FILE* file = std::fopen("/etc/machine-id", "re")) {
    char text[64] = {};
    if (std::fgets(text, sizeof text, file) != nullptr) id = text;
    std::fclose(file);
  }
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return blake2b<16>("kvstore host " + id + " " + name);
}

// Refused here, by name, what no memory can be had for, instead of by an allocation that fails or is killed for later.
Status check_memory(const char* name, uint64_t bytes, uint64_t given) {
  const auto machine_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes <= machine_bytes) return {};
  return Status(Code::kInvalid,
                format_text("%s is %llu: that takes %llu bytes of memory, this machine has %llu", name,
                            static_cast<unsigned long long>(given), static_cast<unsigned long long>(bytes),
                            static_cast<unsigned long long>(machine_bytes)));
}

Status check_options(const StoreOptions& options) {
  if (options.window_bytes < kPieceBytes) {
    return Status(Code::kInvalid, format_text("window_bytes is %llu: at least 1 MiB",
                                              static_cast<unsigned long long>(options.window_bytes)));
  }
  if (options.staging_bytes < 4 * kPieceBytes) {
    return Status(Code::kInvalid, format_text("staging_bytes is %llu: at least 4 MiB",
                                              static_cast<unsigned long long>(options.staging_bytes)));
  }
  if (options.index_blocks_max > kIndexBlocksMax) {
    return Status(Code::kInvalid, format_text("index_blocks_max is %llu: at most %llu",
                                              static_cast<unsigned long long>(options.index_blocks_max),
                                              static_cast<unsigned long long>(kIndexBlocksMax)));
  }
  KVS_TRY(check_memory("staging_bytes", options.staging_bytes, options.staging_bytes));
  KVS_TRY(check_memory("prefetch_bytes", options.prefetch_bytes, options.prefetch_bytes));
  KVS_TRY(check_memory("index_blocks_max", options.index_blocks_max * kIndexBytesPerBlock, options.index_blocks_max));
  if (options.io_timeout_ns < kIoTimeoutNsMin) {
    return Status(Code::kInvalid, "io_timeout must be at least 10 ms");
  }
  if (options.jobs_max == 0 || options.commit_interval_ns == 0 || options.heartbeat_ns == 0) {
    return Status(Code::kInvalid, "jobs_max, commit_interval and heartbeat must not be 0");
  }
  return {};
}

// The superblock of every device, and that together they are one whole pool.
Result<std::vector<format::Superblock>> read_pool(StoreCore& core) {
  std::vector<format::Superblock> superblocks(core.devices.size());
  std::vector<bool> seen(core.devices.size());
  std::vector<std::unique_ptr<device::Device>> ordered(core.devices.size());
  for (uint16_t i = 0; i < core.devices.size(); ++i) {
    const device::DeviceInfo& info = core.devices[i]->info();
    KVS_ASSIGN(auto io, core.make_io(i));
    Result<format::Quorum> quorum = read_superblock(*io, 0, info.size_bytes);
    if (!quorum.ok()) {
      return Status(quorum.status().code(), info.path + ": " + quorum.status().message(), quorum.status().io_errno());
    }
    const format::Superblock& superblock = quorum.value().superblock;
    for (const bool damaged : quorum.value().repair) core.recovery.superblock_copies_damaged += damaged ? 1 : 0;
    KVS_TRY(check_device(superblock, info));
    if (superblock.owner.epoch >= kEpochMax) {
      return Status(Code::kCorrupt,
                    format_text("%s: epoch %llu is beyond what write_seq can hold: format it anew", info.path.c_str(),
                                static_cast<unsigned long long>(superblock.owner.epoch)));
    }
    const bool takes_part = core.options.shared.on() || core.options.read_only || core.options.becomes_shared == false;
    if (superblock.shared_mode && !takes_part) {
      return Status(Code::kFenced, info.path +
                                       ": the pool is in shared mode, and owner mode and shared mode refuse each "
                                       "other: open it with mode=\"shared\", or end that with `kvstore unshare`");
    }
    if (!superblock.shared_mode && core.options.shared.on()) {
      return Status(Code::kStale, info.path + ": the pool is in owner mode");  // Store::open() makes it shared
    }
    if (superblock.members.size() != core.devices.size() || superblock.member_index >= superblock.members.size()) {
      return Status(
          Code::kInvalid,
          format_text("%s is member %u of a pool of %zu devices, %zu were given: name all of them", info.path.c_str(),
                      superblock.member_index, superblock.members.size(), core.devices.size()));
    }
    const uint32_t place = superblock.member_index;
    if (seen[place]) {
      return Status(Code::kOtherStore,
                    format_text("%s: member %u of the pool was given twice", info.path.c_str(), place));
    }
    seen[place] = true;
    superblocks[place] = superblock;
    ordered[place] = std::move(core.devices[i]);
    core.devices[i] = nullptr;
    if (i + 1u < core.devices.size()) continue;
    core.devices = std::move(ordered);
    break;
  }
  for (size_t i = 1; i < superblocks.size(); ++i) {
    if (superblocks[i].pool_uuid != superblocks[0].pool_uuid) {
      return Status(
          Code::kOtherStore,
          format_text("%s is of pool %s, %s of pool %s", core.devices[0]->info().path.c_str(),
                      format::uuid_text(superblocks[0].pool_uuid).c_str(), core.devices[i]->info().path.c_str(),
                      format::uuid_text(superblocks[i].pool_uuid).c_str()));
    }
  }
  return superblocks;
}

Status claim_pool(StoreCore& core) {
  ClaimOptions claim;
  claim.host = core.options.host;
  core.random->fill(claim.nonce.data(), claim.nonce.size());
  claim.heartbeat_ns = core.options.heartbeat_ns;
  core.confirmed_ns.resize(core.devices.size());
  for (const format::Superblock& superblock : core.superblocks) {
    claim.above_epoch = std::max(claim.above_epoch, superblock.owner.epoch);
  }
  // One epoch for the whole pool, so that write_seq orders copies of a block on different devices. A member that
  // somebody else was claiming too gets a higher one: then those before it are claimed again.
  for (int round = 0; round < kClaimRounds; ++round) {
    for (uint16_t i = 0; i < core.devices.size(); ++i) {
      if (core.superblocks[i].owner == format::OwnerRecord{claim.above_epoch + 1, claim.host, claim.nonce}) continue;
      KVS_ASSIGN(auto io, core.make_io(i));
      core.confirmed_ns[i] = core.clock->monotonic_ns();  // before it waits, if it does: then it is not fresh
      KVS_ASSIGN(core.superblocks[i], claim_device(*io, 0, core.superblocks[i], claim, *core.clock));
      claim.above_epoch = std::max(claim.above_epoch, core.superblocks[i].owner.epoch - 1);
    }
    const bool one_epoch = std::all_of(core.superblocks.begin(), core.superblocks.end(), [&](const auto& superblock) {
      return superblock.owner.epoch == claim.above_epoch + 1;
    });
    if (one_epoch) return {};
  }
  return Status(Code::kFenced, "other openers keep claiming members of the pool");
}

// Shared mode: becomes an opener by the metadata engine's word; nothing on the device is claimed.
Status join_pool(StoreCore& core) {
  const uint64_t lease_ns = core.options.shared.lease_ns;
  if (core.options.read_only) return Status(Code::kInvalid, "read_only looks on: it needs no mode=\"shared\"");
  if (core.options.verify != Verify::kAlways && KVS_RULE(S8_always_verified)) {
    return Status(Code::kInvalid, "verify must be \"always\" in shared mode");
  }
  if (lease_ns < kLeaseNsMin) return Status(Code::kInvalid, "the lease must be at least 100 ms");
  for (format::Superblock& superblock : core.superblocks) superblock.owner.host = core.options.host;
  SharedPool::Setup setup;
  setup.superblocks = core.superblocks;
  setup.make_io = [&core](uint16_t device) { return core.make_io(device); };
  setup.first_ever = core.options.becomes_shared.value_or(false);
  core.shared = std::make_unique<SharedPool>(core.options, std::move(setup), *core.clock, *core.random);
  return core.shared->join(core.clock->monotonic_ns() + std::max(core.options.wait_ns, kLeasesToJoin * lease_ns));
}

// As many blocks as a full pool holds, of the mean extent found, or of min_block_bytes while it is empty; and room to
// spare, or a nearly full index would have regions reclaimed that the device does not need.
uint64_t index_size(const StoreCore& core, const std::vector<HeaderScan>& scans) {
  if (core.options.index_blocks_max != 0) return core.options.index_blocks_max;
  uint64_t blocks = 0;
  uint64_t found = 0;
  for (size_t i = 0; i < scans.size(); ++i) {
    const format::Geometry& geometry = core.superblocks[i].geometry;
    // Few regions say little of what the rest will hold: one large block must not shrink the index to a handful.
    const bool representative = scans[i].regions_used >= geometry.region_count / 2 + 1;
    const uint64_t extent_bytes =
        representative ? scans[i].extent_bytes_sum / scans[i].regions_used : geometry.min_block_bytes;
    blocks += geometry.memory_bytes() / std::max<uint64_t>(extent_bytes, kPageBytes);
    found += scans[i].descriptors_max;
  }
  return Index::blocks_max_for(std::max<uint64_t>({blocks, found, 1024}));
}

Status recover(StoreCore& core) {
  const uint64_t started_ns = core.clock->monotonic_ns();
  std::vector<HeaderScan> scans;
  std::vector<Catalog::DeviceShape> shapes;
  uint64_t epoch = core.shared ? core.shared->epoch() : 0;
  for (uint16_t i = 0; i < core.devices.size(); ++i) {
    KVS_ASSIGN(auto io, core.make_io(i));
    // What a killed opener's last writes left in the device's cache is read below like all else, and then vouched for:
    // by the seal of its region, or by "present" to a durable put. So it must not go with the next power cut.
    if (!core.options.read_only && core.devices[i]->info().volatile_cache) KVS_TRY(io->flush(0));
    KVS_ASSIGN(HeaderScan scan, scan_headers(*io, core.superblocks[i]));
    if (core.shared) {
      ignore_lives(scan, [&](const format::RegionHeader& header) { return core.shared->is_over(i, header); });
    }
    scans.push_back(std::move(scan));
    shapes.push_back({core.superblocks[i].geometry, core.superblocks[i].store_uuid});
    if (!core.shared) epoch = std::max(epoch, core.superblocks[i].owner.epoch);
  }
  core.catalog = std::make_unique<Catalog>(core.options, std::move(shapes), epoch, index_size(core, scans), core.spaces,
                                           core.counters, core.evictions, *core.clock);
  IndexBuilder builder(core.catalog->index());
  for (uint16_t i = 0; i < core.devices.size(); ++i) {
    KVS_TRY(recover_device(
        *core.catalog, core.spaces, i, core.superblocks[i], std::move(scans[i]), builder,
        [&core, i] { return core.make_io(i); }, core.options.threaded ? kRecoveryThreads : 1,
        core.options.read_only || core.shared != nullptr,  // what is open is its owner's to seal
        [&core, i] { return core.still_ours(i); }, *core.clock, core.recovery));
  }
  finish_recovery(*core.catalog, builder, core.recovery);
  for (const auto& [region, dead] : core.options.deleted_before) {
    if (region.device >= core.devices.size()) continue;
    if (region.region >= core.superblocks[region.device].geometry.region_count) continue;
    const uint32_t number = core.catalog->region_number(region.device, RegionId{region.region});
    (void)core.catalog->mark_deleted(number, dead.generation, dead.slots);  // unless it is of another life
  }
  // What the readers needed is not given back by itself, and is a quarter of the index. A small pool is not worth a
  // walk over the whole heap of the process.
  if (core.recovery.bytes_read >= kTrimFromBytes) malloc_trim(0);
  add(core.counters.bytes_read_metadata, core.recovery.bytes_read);
  core.recovery.seconds = static_cast<double>(core.clock->monotonic_ns() - started_ns) / 1e9;
  return {};
}

Status start_threads(StoreCore& core) {
  const uint32_t engine_count =
      core.options.engine_threads != 0
          ? std::min<uint32_t>(core.options.engine_threads, static_cast<uint32_t>(core.devices.size()))
          : std::min<uint32_t>(4, static_cast<uint32_t>(core.devices.size()));
  for (uint32_t e = 0; e < engine_count; ++e) {
    Engine::Setup setup;
    for (uint16_t i = static_cast<uint16_t>(e); i < core.devices.size(); i = static_cast<uint16_t>(i + engine_count)) {
      setup.devices.push_back(core.devices[i].get());
      setup.device_numbers.push_back(i);
    }
    const std::vector<device::Device*> served = setup.devices;
    setup.make_queue = [served] {
      return served[0]->make_queue(served, {.depth = kPayloadQueueDepth, .single_issuer = true});
    };
    core.engines.push_back(
        std::make_unique<Engine>(core.options, std::move(setup), *core.catalog, core.counters, *core.clock));
  }
  core.catalog->space_changed = [&core](uint16_t device) { core.engine_of(device).space_changed(); };
  core.catalog->wake_keeper = [&core](uint16_t device) {
    if (device < core.keepers.size()) core.keepers[device]->wake();
  };
  if (core.shared) core.catalog->missed = [&core] { core.shared->missed(); };
  for (auto& engine : core.engines) KVS_TRY(engine->start());
  if (core.options.read_only) {
    core.catalog->set_read_only("it was opened with read_only");
    return {};
  }
  for (uint16_t i = 0; i < core.devices.size(); ++i) {
    Keeper::Setup setup;
    setup.device_number = i;
    setup.device = core.devices[i].get();
    setup.superblock = core.superblocks[i];
    setup.make_io = [&core, i] { return core.make_io(i); };
    core.keepers.push_back(std::make_unique<Keeper>(core.options, std::move(setup), *core.catalog, core.spaces,
                                                    core.counters, core.evictions, *core.clock));
    if (!core.shared) core.catalog->confirmed(i, core.confirmed_ns[i]);
  }
  for (auto& keeper : core.keepers) KVS_TRY(keeper->start());
  if (core.shared) KVS_TRY(core.shared->start(*core.catalog, core.spaces, core.counters, core.evictions));
  return {};
}

}  // namespace

bool StoreCore::forked() const { return fork_generation != device::fork_generation(); }

Status StoreCore::check_open() const {
  if (forked()) {
    return Status(Code::kClosed,
                  "this process was forked from the one that opened the store: open a store of its own, "
                  "after the parent has closed it");
  }
  if (!open.load()) return Status(Code::kClosed, "the store is closed");
  return {};
}

Result<std::unique_ptr<device::BlockingIo>> StoreCore::make_io(uint16_t device) {
  device::Device* const one = devices[device].get();
  KVS_ASSIGN(auto queue, one->make_queue({&one, 1}, {.depth = kMetadataQueueDepth, .single_issuer = false}));
  return std::make_unique<device::BlockingIo>(std::move(queue), std::vector<device::Device*>{one},
                                              options.io_timeout_ns);
}

Status StoreCore::still_ours(uint16_t device) {
  const uint64_t now_ns = clock->monotonic_ns();
  if (options.read_only || shared || now_ns - confirmed_ns[device] <= claim_fresh_ns(options.heartbeat_ns)) return {};
  KVS_ASSIGN(auto io, make_io(device));
  KVS_TRY(confirm_ownership(*io, 0, superblocks[device].geometry.device_bytes, superblocks[device].owner));
  confirmed_ns[device] = now_ns;
  return {};
}

namespace {

Result<std::unique_ptr<Store>> open_paths(const std::vector<std::string>& paths, const StoreOptions& options) {
  Clock& clock = options.clock != nullptr ? *options.clock : system_clock();
  std::vector<std::unique_ptr<device::Device>> devices;
  for (const std::string& path : paths) {
    device::OpenOptions how;
    how.kind = options.device_kind;
    how.read_only = options.read_only;
    how.holding = options.shared.on() ? device::Holding::kShared : device::Holding::kExclusive;
    how.wait_ns = options.wait_ns;
    KVS_ASSIGN(auto device, device::open_device(path, how, clock));
    devices.push_back(std::move(device));
  }
  return Store::open_devices(std::move(devices), options);
}

// Opened once as its only owner, so that nobody else is there, and closed again.
Status become_shared(const std::vector<std::string>& paths, const StoreOptions& options) {
  StoreOptions alone = options;
  alone.shared = {};
  alone.becomes_shared = true;
  alone.wait_ns = kAloneNs;
  KVS_ASSIGN(auto store, open_paths(paths, alone));
  return store->close(kBecomeSharedNs);
}

// Whether an owner opened it so short a time ago that it may be making it a shared one. Whatever cannot be read: not.
bool is_opened_just_now(const std::string& path, Clock& clock) {
  auto device = device::open_device(path, {.kind = "threads", .read_only = true}, clock);
  if (!device.ok()) return false;
  device::Device* const one = device.value().get();
  auto queue = one->make_queue({&one, 1}, {.depth = kMetadataQueueDepth, .single_issuer = false});
  if (!queue.ok()) return false;
  device::BlockingIo io(std::move(queue).value(), {one}, StoreOptions().io_timeout_ns);
  const auto found = read_superblock(io, 0, one->info().size_bytes);
  if (!found.ok()) return false;
  const format::Superblock& superblock = found.value().superblock;
  return !superblock.clean && clock.wall_seconds() < superblock.opened_seconds + kBecomeSharedNs / 1'000'000'000;
}

Result<std::unique_ptr<Store>> open_shared(const std::vector<std::string>& paths, const StoreOptions& options) {
  Clock& clock = options.clock != nullptr ? *options.clock : system_clock();
  const uint64_t until_ns = clock.monotonic_ns() + std::max(options.wait_ns, kBecomeSharedNs);
  StoreOptions shared = options;
  // Who opens the pool at the same moment may be making it a shared one, alone.
  shared.wait_ns = std::max(options.wait_ns, kClaimNs);
  Result<std::unique_ptr<Store>> store = open_paths(paths, shared);
  while (store.status().code() == Code::kBusy && clock.monotonic_ns() < until_ns &&
         is_opened_just_now(paths[0], clock)) {
    store = open_paths(paths, shared);
  }
  while (store.status().code() == Code::kStale) {
    const Status changed = become_shared(paths, options);
    // Somebody else just did the same, or is about to find that the pool is not shared, as we did.
    const bool others_do = changed.code() == Code::kFenced || changed.code() == Code::kBusy;
    if (!changed.ok() && (!others_do || clock.monotonic_ns() >= until_ns)) return changed;
    shared.becomes_shared = changed.ok();
    store = open_paths(paths, shared);
  }
  return store;
}

}  // namespace

Result<std::unique_ptr<Store>> Store::open(const std::vector<std::string>& paths, const StoreOptions& options) {
  if (paths.empty()) return Status(Code::kInvalid, "no device was named");
  const auto attempt = options.shared.on() ? open_shared : open_paths;
  Result<std::unique_ptr<Store>> store = attempt(paths, options);
  // A ring can be had, but not as many as are needed: the memlock limit, which all processes of a user share.
  const bool rings_do_not_fit = store.status().code() == Code::kUnsupported && store.status().io_errno() == ENOMEM;
  if (options.device_kind != "auto" || !rings_do_not_fit) return store;
  StoreOptions without_rings = options;
  without_rings.device_kind = "threads";
  return attempt(paths, without_rings);
}

Result<std::unique_ptr<Store>> Store::open_devices(std::vector<std::unique_ptr<device::Device>> devices,
                                                   const StoreOptions& options) {
  KVS_TRY(check_options(options));
  auto core = std::make_unique<StoreCore>();
  core->options = options;
  if (core->options.host == format::Uuid{}) core->options.host = host_uuid();
  core->clock = options.clock != nullptr ? options.clock : &system_clock();
  core->random = options.random != nullptr ? options.random : &system_random();
  core->fork_generation = device::fork_generation();
  core->devices = std::move(devices);
  KVS_ASSIGN(core->superblocks, read_pool(*core));
  for (const auto& device : core->devices) {
    // I5: on a fabric a late write may land after a read was verified once.
    if (device->info().is_fabric && options.verify != Verify::kAlways && KVS_RULE(I5_always_on_a_fabric)) {
      return Status(Code::kInvalid, device->info().path + ": verify must be \"always\" on a fabric");
    }
  }
  if (options.shared.on()) KVS_TRY(join_pool(*core));
  if (!options.read_only && !options.shared.on()) KVS_TRY(claim_pool(*core));
  KVS_TRY(recover(*core));
  for (uint16_t i = 0; i < core->devices.size(); ++i) KVS_TRY(core->still_ours(i));
  core->prefetched = std::make_unique<PrefetchCache>(options.prefetch_bytes);
  std::vector<device::Device*> all;
  for (const auto& device : core->devices) all.push_back(device.get());
  core->inline_readers = std::make_unique<InlineReaders>(std::move(all), core->counters);
  std::unique_ptr<Store> store(new Store(std::move(core)));
  KVS_TRY(start_threads(*store->core_));
  store->core_->open.store(true, std::memory_order_release);
  return store;
}

Store::Store(std::unique_ptr<StoreCore> core) : core_(std::move(core)) {}

Store::~Store() {
  if (core_ == nullptr) return;
  if (core_->forked()) {
    (void)core_.release();  // nothing here can be torn down
    return;
  }
  if (core_->open.load()) {
    const Status status = close(0);
    if (!status.ok()) std::fprintf(stderr, "kvstore: closing: %s\n", status.to_string().c_str());
  }
  if (!core_->leaked) return;
  // I11: the kernel may still write what the pieces in flight point to. Everything they hang on is leaked, into a list
  // that is never freed, so that a leak checker counts it as what it is.
  static std::mutex mutex;
  static auto* const leaked = new std::vector<std::unique_ptr<StoreCore>>;  // NOLINT
  const std::lock_guard lock(mutex);
  leaked->push_back(std::move(core_));
}

bool Store::is_open() const { return core_->check_open().ok(); }

}  // namespace kvstore::store
