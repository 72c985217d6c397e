// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// MemoryMap: which memory is registered with a ring, and under which buffer number. Cut into pieces of at most 1 GiB
// (the kernel refuses more per buffer: EFAULT). A plain sorted list, copied whole when it changes.

#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/units.h"

namespace kvstore::store {

class MemoryMap {
 public:
  void add(void* base, uint64_t bytes) {
    for (uint64_t offset = 0; offset < bytes; offset += kGiB) {
      pieces_.push_back({static_cast<uint8_t*>(base) + offset, std::min(kGiB, bytes - offset)});
    }
    std::sort(pieces_.begin(), pieces_.end(), [](const iovec& a, const iovec& b) { return a.iov_base < b.iov_base; });
  }
  void remove(void* base, uint64_t bytes) {
    std::erase_if(pieces_, [&](const iovec& piece) {
      return piece.iov_base >= base && piece.iov_base < static_cast<uint8_t*>(base) + bytes;
    });
  }
  // Drops what is not in `other` too.
  void keep_only(const MemoryMap& other) {
    std::erase_if(pieces_, [&other](const iovec& piece) {
      return std::none_of(other.pieces_.begin(), other.pieces_.end(), [&piece](const iovec& kept) {
        return kept.iov_base == piece.iov_base && kept.iov_len == piece.iov_len;
      });
    });
  }
  // Number of the buffer that wholly holds the run, or -1.
  int32_t find(const void* base, uint64_t bytes) const {
    auto after = std::upper_bound(pieces_.begin(), pieces_.end(), base,
                                  [](const void* value, const iovec& piece) { return value < piece.iov_base; });
    if (after == pieces_.begin()) return -1;
    const iovec& piece = *std::prev(after);
    const auto first = static_cast<uint64_t>(static_cast<const uint8_t*>(base) - static_cast<uint8_t*>(piece.iov_base));
    return first + bytes <= piece.iov_len ? static_cast<int32_t>(std::prev(after) - pieces_.begin()) : -1;
  }
  const std::vector<iovec>& pieces() const { return pieces_; }

 private:
  std::vector<iovec> pieces_;
};

}  // namespace kvstore::store
