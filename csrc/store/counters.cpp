// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "store/counters.h"

namespace kvstore::store {

std::vector<std::pair<std::string, double>> Counters::list() const {
  const std::pair<const char*, const Counter*> all[] = {
      {"hits", &hits},
      {"misses", &misses},
      {"puts_stored", &puts_stored},
      {"puts_present", &puts_present},
      {"puts_joined", &puts_joined},
      {"puts_failed", &puts_failed},
      {"puts_busy", &puts_busy},
      {"deletes", &deletes},
      {"bytes_put", &bytes_put},
      {"bytes_got", &bytes_got},
      {"bytes_written_payload", &bytes_written_payload},
      {"bytes_written_metadata", &bytes_written_metadata},
      {"bytes_read_payload", &bytes_read_payload},
      {"bytes_read_metadata", &bytes_read_metadata},
      {"bytes_staged", &bytes_staged},
      {"bytes_bounced", &bytes_bounced},
      {"bytes_direct", &bytes_direct},
      {"bytes_compat", &bytes_compat},
      {"pieces_fixed", &pieces_fixed},
      {"reads_inline", &reads_inline},
      {"checksum_mismatches", &checksum_mismatches},
      {"checksum_misses", &checksum_misses},
      {"read_errors", &read_errors},
      {"write_errors", &write_errors},
      {"flush_errors", &flush_errors},
      {"io_retries", &io_retries},
      {"io_stuck", &io_stuck},
      {"deadline_misses", &deadline_misses},
      {"canceled", &canceled},
      {"commits", &commits},
      {"flushes", &flushes},
      {"region_opens", &region_opens},
      {"region_seals", &region_seals},
      {"regions_reclaimed", &regions_reclaimed},
      {"blocks_evicted", &blocks_evicted},
      {"blocks_lost", &blocks_lost},
      {"prefetch_hits", &prefetch_hits},
      {"prefetch_refused", &prefetch_refused},
      {"pins_expired", &pins_expired},
      {"ownership_checks", &ownership_checks},
      {"heartbeats_late", &heartbeats_late},
      {"peer_looks", &peer_looks},
      {"peer_reads", &peer_reads},
      {"blocks_learnt", &blocks_learnt},
  };
  std::vector<std::pair<std::string, double>> listed;
  for (const auto& [name, counter] : all) {
    listed.emplace_back(name, static_cast<double>(counter->load(std::memory_order_relaxed)));
  }
  return listed;
}

}  // namespace kvstore::store
