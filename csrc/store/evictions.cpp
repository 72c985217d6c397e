// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/evictions.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>

namespace kvstore::store {

class EvictionHub::Feed final : public EvictionFeed {
 public:
  Feed(std::shared_ptr<Shared> shared, uint32_t limit) : shared_(std::move(shared)), limit_(limit) {
    event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    std::lock_guard lock(shared_->mutex);
    shared_->feeds.push_back(this);
  }
  ~Feed() override {
    {
      std::lock_guard lock(shared_->mutex);
      std::erase(shared_->feeds, this);
    }
    if (event_fd_ >= 0) close(event_fd_);
  }

  int event_fd() const override { return event_fd_; }

  std::vector<Eviction> drain(uint32_t limit) override {
    std::lock_guard lock(shared_->mutex);
    const size_t count = std::min<size_t>(limit, waiting_.size());
    std::vector<Eviction> taken(std::make_move_iterator(waiting_.begin()),
                                std::make_move_iterator(waiting_.begin() + static_cast<std::ptrdiff_t>(count)));
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
    eventfd_t value = 0;
    if (waiting_.empty()) eventfd_read(event_fd_, &value);
    return taken;
  }

  bool take_overflowed() override {
    std::lock_guard lock(shared_->mutex);
    return std::exchange(overflowed_, false);
  }

  void push_locked(const std::vector<Eviction>& evictions) {
    for (const Eviction& eviction : evictions) {
      if (waiting_.size() >= limit_) {
        overflowed_ = true;
        break;
      }
      waiting_.push_back(eviction);
    }
    eventfd_write(event_fd_, 1);
  }

  void overflow_locked() {
    overflowed_ = true;
    eventfd_write(event_fd_, 1);
  }

 private:
  std::shared_ptr<Shared> shared_;
  uint32_t limit_;
  int event_fd_ = -1;
  std::deque<Eviction> waiting_;
  bool overflowed_ = false;
};

std::unique_ptr<EvictionFeed> EvictionHub::subscribe(uint32_t limit) {
  auto feed = std::make_unique<Feed>(shared_, limit);
  subscribers_.store(1, std::memory_order_relaxed);
  return feed;
}

void EvictionHub::publish(std::vector<Eviction> evictions) {
  if (evictions.empty()) return;
  std::lock_guard lock(shared_->mutex);
  for (Feed* feed : shared_->feeds) feed->push_locked(evictions);
}

void EvictionHub::publish_unnamed() {
  std::lock_guard lock(shared_->mutex);
  for (Feed* feed : shared_->feeds) feed->overflow_locked();
}

}  // namespace kvstore::store
