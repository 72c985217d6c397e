// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Visits every state of the model that can be reached, breadth first, so that the trace of a violation is a shortest
// one. A state is kept once, as the bytes of it that the bounds use. Deterministic; one thread.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/sharing_model.h"

namespace kvstore::model {

struct Exploration {
  uint64_t states = 0;
  uint64_t steps = 0;
  uint64_t depth = 0;     // of the longest shortest way
  bool complete = false;  // all that can be reached was visited
  std::string violation;  // the property; empty: none
  std::string trace;      // a line for each step to it
};

struct ExploreOptions {
  uint64_t states_max = UINT64_MAX;
  bool ways_out = false;  // also P5, which takes memory for every step
};

Exploration explore(const SharingModel& model, const ExploreOptions& options = {});

}  // namespace kvstore::model
