// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// EvictionHub: tells subscribers which blocks became misses. Each feed is a bounded queue behind an eventfd; a feed
// that is not drained drops the newest and says so once, and its owner lists the store again.

#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "store/store.h"

namespace kvstore::store {

class EvictionHub {
 public:
  std::unique_ptr<EvictionFeed> subscribe(uint32_t limit);
  bool has_subscribers() const { return subscribers_.load(std::memory_order_relaxed) != 0; }
  void publish(std::vector<Eviction> evictions);
  // What could not be named (descriptors unreadable): every feed is marked overflowed.
  void publish_unnamed();

 private:
  class Feed;
  struct Shared {
    std::mutex mutex;
    std::vector<Feed*> feeds;
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::atomic<uint32_t> subscribers_{0};
};

}  // namespace kvstore::store
