// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// A metadata engine in Python (kvstore/cluster/engine.py) as the store's threads see it. They are not Python's: each
// call takes the GIL, and gives it back.
//
// Guarantees: no exception comes out: EngineError is kTimeout (outcome unknown), LeaseEnded kNotFound, StaleError
// kStale, anything else kFailed with its text. Once the interpreter exits, and in a forked child, calls are kClosed and
// Python objects are left alone. A poll that waits does so in Python, which gives the GIL up. A call that is kTimeout
// took 50 ms at least, so that who asks again at once does not ask a dead engine a thousand times a second. A call
// waits for the GIL first: time it from before. Make none with a lock held that somebody with the GIL waits for.

#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "cluster/metadata_engine.h"

namespace kvstore::binding {

// Holds the engine, and does not close it. With the GIL.
std::unique_ptr<cluster::MetadataEngine> bridge_engine(nanobind::object engine);

}  // namespace kvstore::binding
