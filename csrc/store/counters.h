// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Counters: everything the store counts, by name. Relaxed atomics: read any time, exact when idle.

#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvstore::store {

struct Counters {
  using Counter = std::atomic<uint64_t>;
  Counter hits{0};
  Counter misses{0};
  Counter puts_stored{0};
  Counter puts_present{0};
  Counter puts_joined{0};
  Counter puts_failed{0};
  Counter puts_busy{0};
  Counter deletes{0};
  Counter bytes_put{0};
  Counter bytes_got{0};
  Counter bytes_written_payload{0};
  Counter bytes_written_metadata{0};
  Counter bytes_read_payload{0};
  Counter bytes_read_metadata{0};
  Counter bytes_staged{0};         // moved through staging instead of in place
  Counter bytes_bounced{0};        // of those, between staging and memory that the CPU does not reach
  Counter bytes_direct{0};         // read by a mover straight into such memory
  Counter bytes_compat{0};         // the same in name: its library copied them through host memory
  Counter pieces_fixed{0};         // of registered memory
  Counter reads_inline{0};         // on the caller's own thread
  Counter checksum_mismatches{0};  // first attempts that did not verify
  Counter checksum_misses{0};      // blocks removed after the second
  Counter read_errors{0};
  Counter write_errors{0};
  Counter flush_errors{0};
  Counter io_retries{0};  // short, EAGAIN
  Counter io_stuck{0};    // past io_timeout_ns
  Counter deadline_misses{0};
  Counter canceled{0};
  Counter commits{0};
  Counter flushes{0};
  Counter region_opens{0};
  Counter region_seals{0};
  Counter regions_reclaimed{0};
  Counter blocks_evicted{0};
  Counter blocks_lost{0};  // reported written, gone before their descriptor was (I6)
  Counter prefetch_hits{0};
  Counter prefetch_refused{0};
  Counter pins_expired{0};
  Counter ownership_checks{0};
  Counter heartbeats_late{0};
  Counter peer_looks{0};  // rounds of reading what other openers wrote
  Counter peer_reads{0};  // device reads of those rounds
  Counter blocks_learnt{0};

  std::vector<std::pair<std::string, double>> list() const;
};

inline void add(Counters::Counter& counter, uint64_t amount = 1) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}

}  // namespace kvstore::store
