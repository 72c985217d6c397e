// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/page_nodes.h"

#include <algorithm>
#include <vector>

#include "base/units.h"

namespace kvstore::gpu {
namespace {

// 256 GiB in one launch; whoever has more has it in more runs.
constexpr uint64_t kRunPagesMax = uint64_t{1} << 26;

Status check_run(size_t index, const PayloadRun& run) {
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  uint64_t end = 0;
  if (run.payload.bytes == 0 || run.payload.bytes > kRunPagesMax * kPageBytes || run.payload.address == 0 ||
      run.payload.address % kUnitBytes != 0 || __builtin_add_overflow(run.payload.address, run.payload.bytes, &end)) {
    return Status(Code::kInvalid,
                  format_text("payload %zu: %llu bytes at 0x%llx: give 1 byte to 256 GiB, aligned to "
                              "%llu bytes",
                              index, number(run.payload.bytes), number(run.payload.address), number(kUnitBytes)));
  }
  if (run.nodes_address == 0 || run.nodes_address % sizeof(uint64_t) != 0) {
    return Status(Code::kInvalid, format_text("payload %zu: page nodes at 0x%llx: give memory that is aligned to 8 "
                                              "bytes",
                                              index, number(run.nodes_address)));
  }
  return {};
}

}  // namespace

Status for_each_page_launch(std::span<const PayloadRun> runs,
                            const std::function<Status(const PageNodesArguments&)>& launch) {
  PageNodesArguments arguments = {};
  for (size_t i = 0; i < runs.size(); ++i) {
    KVS_TRY(check_run(i, runs[i]));
    const uint64_t pages = ceil_div(runs[i].payload.bytes, kPageBytes);
    if (arguments.run_count == kLaunchRuns || arguments.page_count + pages > kRunPagesMax) {
      KVS_TRY(launch(arguments));
      arguments = {};
    }
    arguments.runs[arguments.run_count++] = {runs[i].payload.address, runs[i].payload.bytes, runs[i].nodes_address,
                                             arguments.page_count, 0};
    arguments.page_count += static_cast<uint32_t>(pages);
  }
  return arguments.run_count == 0 ? Status() : launch(arguments);
}

Checksum128 root_of_page_nodes(const BlockIdentity& identity, uint64_t payload_bytes, std::span<const uint64_t> nodes) {
  constexpr size_t kPiecePages = kPieceBytes / kPageBytes;
  std::vector<uint64_t> pieces;
  pieces.reserve(ceil_div(nodes.size(), kPiecePages));
  for (size_t first = 0; first < nodes.size(); first += kPiecePages) {
    pieces.push_back(piece_node_of_pages(nodes.subspan(first, std::min(kPiecePages, nodes.size() - first))));
  }
  return root_checksum(identity, payload_bytes, pieces);
}

}  // namespace kvstore::gpu
