// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The steps of docs/sharing.md, as a state machine: every step that a process, a message, a crash or a pause can fall
// behind is one of its own. Rules can be dropped one clause at a time (Rules), and the world be made worse (Bounds).
//
// Left out: what a block is (one to a life of a region), the space it takes, deletes, hits, and the content of a torn
// payload, which the checksum finds like any other mismatch (S8).

#pragma once

#include <functional>
#include <string>

#include "model/sharing_state.h"

namespace kvstore::model {

// Each is a clause of a rule; false: it is not kept.
struct Rules {
  bool s1_whole_value = true;         // compares see the stamp; else only the revision
  bool s1_live = true;                // every transaction compares the opener's live key, with its nonce
  bool s1_headers_first = true;       // both headers are read before the first write of a life
  bool s1_release_spends = true;      // a generation that was owned is not given again
  bool s1_foreign_copy_first = true;  // a header write replaces the copy that is not of this life
  bool s1_given_up = true;            // what was asked to be released is not used, whatever the answer
  bool s2_take = true;                // used when read back after what can be forgotten
  bool s2_take_over = true;
  bool s2_own_records = true;  // a record of its own that a failover brought back is taken up again
  bool s2_no_release = true;   // and not released before the headers were read
  bool s3_fresh = true;
  bool s4_wait = true;           // reused when all live openers have read the retirement
  bool s4_drain = true;          // which they say when their last reader has gone
  bool s4_history = true;        // and only if the last change they saw is in this history
  bool s4_live_first = true;     // live key, then snapshot
  bool s4_check_again = true;    // of the live keys, when the reuse cannot be forgotten any more
  bool s4_ends_settle = true;    // and the end of a lease counts when it cannot be forgotten either
  bool s5_proof = true;          // the owner is known to be gone, not just without a lease
  bool s5_drained = true;        // an epoch is said to be gone when all its writes have ended
  bool s6_compare = true;        // own regions are taken over record by record
  bool s6_gives_up = true;       // what it has not taken over when it says that the former epoch is gone
  bool s7_wait = true;           // for a whole lease
  bool s7_skip = true;           // to a generation that none had; else one is skipped
  bool s7_open_is_owned = true;  // an open region stays its owner's
  bool s8_verify = true;
};

// Where it begins: nobody has joined; or all have, are in step, and region 0 has been lived in once by opener 0.
enum class Start { kNobody, kOpenRegion, kSealedRegion };

struct Bounds {
  Start start = Start::kNobody;
  int openers = 2;
  int regions = 1;
  int generations = 3;
  int generations_of_the_second = 0;  // region; 0: as many
  int epochs = 3;
  int unsettled = 0;  // 0: an engine that forgets nothing
  int failovers = 0;
  int crashes = 0;
  int wipes = 0;
  int replies_lost = 0;  // of transactions on a record, which were done
  bool reads = true;
  bool releases = true;
  bool leases_end = true;   // of openers that have not crashed
  bool pauses = false;      // a pause may fall between the check of S3 and the write
  bool quarantine = false;  // the quarantine of an orphan may end (S5)
};

// A step, for traces.
struct Step {
  const char* what = "";
  int opener = -1;
  int region = -1;
  const char* violation = nullptr;
  bool reply_lost = false;
  bool fault = false;  // nobody is obliged to do it: it does not count as a way out (P5)
};

using Emit = std::function<void(const State&, const Step&)>;

class SharingModel {
 public:
  SharingModel(const Rules& rules, const Bounds& bounds) : rules_(rules), bounds_(bounds) {}

  const Bounds& bounds() const { return bounds_; }
  State initial() const;
  void steps(const State& state, const Emit& emit) const;
  // Sets what does not matter any more to one value, and puts openers, regions and stamps in an order of their own.
  State canonical(const State& state) const;
  // Which of P3 and P4 it violates; nullptr: none. (P1 and P2 are violated by steps.)
  const char* violation(const State& state) const;
  // Somebody may write payload, or the bounds are what keeps everybody from it (P5).
  bool can_put(const State& state) const;

 private:
  void engine_steps(const State& state, const Emit& emit) const;
  void device_steps(const State& state, const Emit& emit) const;
  void crash_steps(const State& state, int o, const Emit& emit) const;
  void lease_steps(const State& state, int o, const Emit& emit) const;
  void rejoin_steps(const State& state, int o, const Emit& emit) const;
  void watch_steps(const State& state, int o, const Emit& emit) const;
  void read_steps(const State& state, int o, int r, const Emit& emit) const;
  void own_steps(const State& state, int o, int r, const Emit& emit) const;
  void reclaim_steps(const State& state, int o, int r, const Emit& emit) const;
  void write_steps(const State& state, int o, int r, const Emit& emit) const;
  void write(const State& state, int o, int r, Write kind, Byte generation, Byte epoch, const Emit& emit) const;

  const Rules rules_;
  const Bounds bounds_;

  int generations_of(int r) const {
    return r > 0 && bounds_.generations_of_the_second > 0 ? bounds_.generations_of_the_second : bounds_.generations;
  }
  bool lives(const State& state, int o) const;
  bool guard(const State& state, int o) const;
  bool unchanged(const Record& current, const Record& expected) const;
  bool is_gone(const State& state, Byte epoch) const;
  bool all_have_read(const State& state, Byte revision) const;
  bool all_have_surely_read(const State& state, Byte revision) const;
  bool may_write(const State& state, int o, int r) const;
  Byte next_generation(const State& state, int r, const Record& record) const;
  Write next_write(const State& state, int o, int r, bool seal) const;
  void begin_transaction(State& state) const;
  void put_record(State& state, int r, Record record) const;
  void see(State& state, int o, int r) const;
  void snapshot(State& state, int o) const;
  void transacted(const State& before, const State& after, const Step& step, const Emit& emit) const;
};

// For traces.
std::string describe(const State& state, const Bounds& bounds);

}  // namespace kvstore::model
