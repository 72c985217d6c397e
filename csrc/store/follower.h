// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Follower: learns what the other openers of a shared pool do on one device (docs/sharing.md). It reads their open
// regions on a timer and soon after a lookup has missed, reads a sealed region once more, and drops what was retired or
// deleted. On a thread of its own: no put, get or commit waits for it.
//
// Guarantees: a retired life's entries are gone and its last reader has ended before settled() says so (S4); at most
// refresh_reads_per_s device reads a second, whatever misses; what cannot be read is a miss and is tried again.

#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "cluster/agent.h"
#include "device/blocking_io.h"
#include "format/superblock.h"
#include "store/catalog.h"
#include "store/device_worker.h"
#include "store/region_reader.h"
#include "store/tickets.h"

namespace kvstore::store {

class Follower : public DeviceWorker {
 public:
  struct Setup {
    uint16_t device_number = 0;
    format::Superblock superblock;
    std::function<Result<std::unique_ptr<device::BlockingIo>>()> make_io;
  };
  Follower(const StoreOptions& options, Setup setup, Catalog& catalog, SpaceRegistry& spaces, Counters& counters,
           EvictionHub& evictions, Clock& clock);
  ~Follower();

  Status start();

  // The agent's thread: what the engine says of a region, by its number in the pool.
  void tell(uint32_t number, const cluster::RegionView& view);
  void tell_deleted(uint32_t number, const cluster::DeadSlots& dead);
  // All that was told of the region is done; of what was retired there is no entry and no reader left.
  bool settled(uint32_t number);
  bool settled_all();

  // Any thread; cheap. Looks as soon as its bounds allow.
  void look_soon();
  // Any thread: everything that was on the device before the call, in regions that were told before it, is known when
  // it returns. kTimeout: it is not asked for any more.
  Status refresh(uint64_t timeout_ns, const Interrupted& interrupted);

  bool turn();

 private:
  enum class Stage : uint8_t {
    kHeader,  // its life is not on the device yet, or not known
    kOpen,    // its descriptors are followed
    kSealed,  // to be read once more, whole
  };
  struct Followed {
    cluster::RegionView view;
    Stage stage = Stage::kHeader;
    bool last_look = false;  // its owner has no lease any more: looked at once, then by refresh() only
    format::RegionHeader header;
    RegionCursor cursor;
  };
  struct News {
    uint32_t number = 0;
    cluster::RegionView view;
    bool deleted = false;
    cluster::DeadSlots dead;
  };

  void broken(const char* condition, const char* file, int line) noexcept { catalog_.broken(condition, file, line); }
  void run();
  uint64_t next_wait_ns();
  bool take_news();
  void take_view(uint32_t number, const cluster::RegionView& view);
  bool drop_retired();
  bool may_look();
  Status look();
  Status look_at_headers(std::vector<uint32_t>& numbers);
  Status look_at_open(const std::vector<uint32_t>& numbers);
  Status read_sealed(uint32_t number);
  void learn(uint32_t number, const RegionContents& contents, const std::vector<format::Descriptor>& descriptors,
             Generation generation);
  void begin_life(uint32_t number, Followed& followed, const format::RegionHeader& header);
  void retire(uint32_t number, Generation below);
  void spend(uint64_t reads);
  void leave_alone(uint32_t number);
  RegionId id_of(uint32_t number) const { return RegionId{number - first_region_}; }

  const StoreOptions& options_;
  Setup setup_;
  Catalog& catalog_;
  SpaceRegistry& spaces_;
  Counters& counters_;
  EvictionHub& evictions_;
  const uint32_t first_region_;

  std::unique_ptr<RegionReader> reader_;
  std::map<uint32_t, Followed> followed_;
  // What openers that are gone had open. A write of theirs may still land (S5): refresh() looks again.
  std::map<uint32_t, cluster::RegionView> left_open_;
  uint64_t looked_again_for_ = 0;           // the ticket of a refresh
  std::map<uint32_t, Generation> retired_;  // below which generation
  std::map<uint32_t, cluster::DeadSlots> dead_;
  uint64_t last_look_ns_ = 0;
  uint64_t reads_left_ = 0;  // until the next second's
  uint64_t reads_refilled_ns_ = 0;
  uint32_t next_followed_ = 0;  // where the next look begins
  bool put_off_ = false;        // the last look left something that it will find

  std::deque<News> news_;
  std::set<uint32_t> unsettled_;
  std::atomic<bool> look_wanted_{false};
  Tickets refreshes_;
};

}  // namespace kvstore::store
