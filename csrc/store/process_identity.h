// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Which process an opener is, so that another can say for certain whether it is gone, and whether one is (S5). "Gone"
// is said only of the same host: when its kernel was started anew since, or, seen from the same process id namespace,
// no process has that id and start time. A process id in another container's namespace means nothing here, nor does a
// /proc that cannot be read.

#pragma once

#include "cluster/records.h"
#include "format/superblock.h"

namespace kvstore::store {

cluster::Opener this_process(const format::Uuid& host);
bool is_certainly_gone(const cluster::Opener& opener, const cluster::Opener& me);

}  // namespace kvstore::store
