// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/reference.h"

#include "base/checksum.h"
#include "base/units.h"

namespace kvstore::gpu {
namespace {

Status no_memory(uint64_t address, uint64_t bytes) {
  return Status(Code::kInvalid,
                format_text("no device memory of %llu bytes at 0x%llx", static_cast<unsigned long long>(bytes),
                            static_cast<unsigned long long>(address)));
}

}  // namespace

uint8_t* same_address(uint64_t address, uint64_t) { return reinterpret_cast<uint8_t*>(address); }

Status reference_page_nodes(const PageNodesArguments& arguments, const AddressMap& map) {
  for (uint32_t i = 0; i < arguments.run_count; ++i) {
    const PageRun& run = arguments.runs[i];
    const uint64_t nodes_bytes = ceil_div(run.bytes, kPageBytes) * sizeof(uint64_t);
    const uint8_t* payload = map(run.address, run.bytes);
    if (payload == nullptr) return no_memory(run.address, run.bytes);
    uint8_t* nodes = map(run.nodes_address, nodes_bytes);
    if (nodes == nullptr) return no_memory(run.nodes_address, nodes_bytes);
    page_nodes(payload, run.bytes, reinterpret_cast<uint64_t*>(nodes));
  }
  return {};
}

}  // namespace kvstore::gpu
