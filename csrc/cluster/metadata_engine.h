// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// MetadataEngine: the small key-value service through which the openers of one pool agree who writes where.
//
// It holds O(regions + hosts) keys and is never asked on the data path: a block is found and read without it. What an
// engine guarantees, and tests/python/test_engines.py demands of every one:
//   * transactions are atomic and linearizable; each that changes something has a revision of its own, higher than
//     any before;
//   * a watch gives every change after a revision, once, in order, or says that it cannot (kStale): never a gap;
//   * a key bound to a lease is erased, as a change like any other, when the lease ends; a lease does not end before
//     its time, as the engine counts it.
// After an error of a call that changes something the outcome is unknown: it was done, was not, or will be. Look first.
// Thread-safe. Calls block, for as long as the engine's own time limit.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvstore::cluster {

using Revision = uint64_t;
using LeaseId = uint64_t;
inline constexpr LeaseId kNoLease = 0;

struct KeyValue {
  std::string key;
  std::string value;
  Revision modified = 0;
  LeaseId lease = kNoLease;
};

// Holds when the key has this whole value; nullopt: when it is absent. Not a revision: an engine that forgot may hand
// the same one out again, for another value (S1).
struct Compare {
  std::string key;
  std::optional<std::string> value;
};

// Compares, and operations, of one transaction: what etcd takes as it is set up by default.
inline constexpr size_t kTxnMax = 128;

struct Operation {
  std::string key;
  std::string value;
  LeaseId lease = kNoLease;
  bool erase = false;
};

struct TxnOutcome {
  bool applied = false;   // false: a compare did not hold, and nothing was changed
  Revision revision = 0;  // of this transaction when it changed something, else of the store as it was
};

struct Snapshot {
  std::vector<KeyValue> items;  // by key
  Revision revision = 0;
};

struct Change {
  KeyValue item;  // the value is empty when erased
  bool erased = false;
};

class Watch {
 public:
  virtual ~Watch() = default;
  // The changes since the last call, waiting at most this long for the first. kStale: some are not kept any more; make
  // a range and a watch anew.
  virtual Result<std::vector<Change>> poll(uint64_t timeout_ns) = 0;
};

class MetadataEngine {
 public:
  virtual ~MetadataEngine() = default;
  // Does all operations if all compares hold; kTxnMax of each at most. No key twice. An operation with a lease that has
  // ended fails the whole (kNotFound).
  virtual Result<TxnOutcome> txn(std::span<const Compare> compares, std::span<const Operation> operations) = 0;
  virtual Result<Snapshot> range(std::string_view prefix) = 0;
  virtual Result<std::unique_ptr<Watch>> watch(std::string_view prefix, Revision after) = 0;
  virtual Result<LeaseId> grant(uint64_t ttl_ns) = 0;
  // Begins its time anew, counted from before the call. kNotFound: it has ended.
  virtual Status renew(LeaseId lease) = 0;
  // Ends it now, with its keys. Of one that has ended: ok.
  virtual Status revoke(LeaseId lease) = 0;
  // A failover of the service may forget what it acknowledged in the time before, up to this much of it (S2).
  virtual uint64_t forgets_ns() const = 0;
};

}  // namespace kvstore::cluster
