// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "model/sharing_model.h"

#include <algorithm>
#include <cstdio>

namespace kvstore::model {

namespace {

EpochKeys& keys_of(Engine& engine, Byte epoch) { return engine.epochs[epoch - 1u]; }
const EpochKeys& keys_of(const Engine& engine, Byte epoch) { return engine.epochs[epoch - 1u]; }

// Of a pair the one that counts (docs/on_disk_format.md).
const Header& newest(const Region& region) {
  const Header& h0 = region.headers[0];
  const Header& h1 = region.headers[1];
  if (h0.generation != h1.generation) return h0.generation > h1.generation ? h0 : h1;
  if (h0.epoch != h1.epoch) return h0.epoch > h1.epoch ? h0 : h1;
  return h0.sealed >= h1.sealed ? h0 : h1;
}

bool is_on_its_way(const Region& region, const Payload& payload) {
  return std::find(region.flight.begin(), region.flight.end(), payload) != region.flight.end();
}

bool has_payload_on_its_way(const Region& region, int o) {
  return std::any_of(region.flight.begin(), region.flight.end(),
                     [o](const Payload& payload) { return payload.owner == o + 1; });
}

Phase phase_after(Write kind) {
  switch (kind) {
    case kWriteH0: return kHalfOpen;
    case kWriteH1: return kOpen;
    case kWritePayload: return kIssued;
    case kWriteDescriptor: return kDescribed;
    case kWriteSeal: return kHeaderSealed;
    case kNoWrite: break;
  }
  return kNone;
}

bool phase_allows(Byte phase, Write kind) {
  switch (kind) {
    case kWriteH0: return phase == kHeadersRead;
    case kWriteH1: return phase == kHalfOpen;
    case kWritePayload: return phase == kOpen;
    case kWriteDescriptor: return phase == kIssued;
    case kWriteSeal: return phase == kOpen || phase == kIssued || phase == kDescribed;
    case kNoWrite: break;
  }
  return false;
}

}  // namespace

State SharingModel::initial() const {
  State state;
  state.engine.format = 1;
  if (bounds_.start == Start::kNobody) return state;
  const bool sealed = bounds_.start == Start::kSealedRegion;
  state.engine.epoch = state.epochs_given = byte_of(bounds_.openers);
  put_record(state, 0, {.hold = sealed ? kSealed : kOwned, .generation = 1, .epoch = 1});
  const Record record = state.engine.regions[0];
  Region& region = state.regions[0];
  for (Header& header : region.headers) header = {.generation = 1, .epoch = 1, .owner = 1, .sealed = sealed};
  region.writer_of[1] = 1;
  if (sealed) {
    region.described = region.acknowledged = region.in_use = 1;
    region.content = {1, 1};
  }
  for (int o = 0; o < bounds_.openers; ++o) {
    Opener& opener = state.openers[static_cast<size_t>(o)];
    opener.joined = opener.in_step = opener.fresh = opener.format = 1;
    opener.epoch = byte_of(o + 1);
    keys_of(state.engine, opener.epoch) = {.who = byte_of(o + 1), .live = 1};
    opener.seen = record.revision;
    opener.last_region = 1;
    opener.last_stamp = record.stamp;
    opener.views[0].believed = record;
    opener.views[0].entry = sealed && bounds_.reads;
  }
  if (!sealed) {
    state.openers[0].views[0].own = record;
    state.openers[0].views[0].phase = kOpen;
  }
  return state;
}

// ---- what the steps share ----------------------------------------------------------------------------------------

// The engine has its live key, with its nonce, in the incarnation that it joined.
bool SharingModel::lives(const State& state, int o) const {
  const Opener& opener = state.openers[static_cast<size_t>(o)];
  if (opener.crashed || !opener.joined || opener.format != state.engine.format) return false;
  const EpochKeys& keys = keys_of(state.engine, opener.epoch);
  return keys.live && keys.who == o + 1;
}

// S1: what every transaction of an opener compares beside what it changes.
bool SharingModel::guard(const State& state, int o) const {
  const Opener& opener = state.openers[static_cast<size_t>(o)];
  if (opener.crashed || !opener.joined) return false;
  return !rules_.s1_live || lives(state, o);
}

// S1: the compare of a transaction that changes a record.
bool SharingModel::unchanged(const Record& current, const Record& expected) const {
  return rules_.s1_whole_value ? current.same_value(expected) : current.revision == expected.revision;
}

// S5: known to be gone.
bool SharingModel::is_gone(const State& state, Byte epoch) const {
  const EpochKeys& keys = keys_of(state.engine, epoch);
  if (keys.live) return false;
  if (!rules_.s5_proof || keys.gone) return true;
  return keys.who != 0 && state.openers[keys.who - 1u].crashed;
}

bool SharingModel::all_have_read(const State& state, Byte revision) const {
  return std::all_of(state.engine.epochs.begin(), state.engine.epochs.end(),
                     [revision](const EpochKeys& keys) { return !keys.live || keys.read >= revision; });
}

// The same, counting those as living whose end can still be forgotten.
bool SharingModel::all_have_surely_read(const State& state, Byte revision) const {
  for (Byte epoch = 1; epoch <= bounds_.epochs && rules_.s4_ends_settle; ++epoch) {
    const EpochKeys& now = keys_of(state.engine, epoch);
    const auto lived = [epoch](const Engine& engine) { return keys_of(engine, epoch).live != 0; };
    const auto last = state.before.begin() + state.unsettled;
    if (!now.live && std::any_of(state.before.begin(), last, lived)) return false;
  }
  return all_have_read(state, revision);
}

// S3, and S2 for what was taken over.
bool SharingModel::may_write(const State& state, int o, int r) const {
  const Opener& opener = state.openers[static_cast<size_t>(o)];
  const View& view = opener.views[static_cast<size_t>(r)];
  return opener.joined && view.own.epoch == opener.epoch && !view.unsettled && (opener.fresh || !rules_.s3_fresh);
}

Byte SharingModel::next_generation(const State& state, int r, const Record& record) const {
  return std::max(byte_of(record.generation + 1), state.engine.floors[static_cast<size_t>(r)]);
}

void SharingModel::begin_transaction(State& state) const {
  if (bounds_.unsettled == 0) return;
  if (state.unsettled == bounds_.unsettled) {
    std::copy(state.before.begin() + 1, state.before.begin() + state.unsettled, state.before.begin());
    --state.unsettled;
  }
  state.before[state.unsettled++] = state.engine;
}

void SharingModel::put_record(State& state, int r, Record record) const {
  record.stamp = ++state.stamps;
  record.revision = ++state.engine.revision;
  state.engine.regions[static_cast<size_t>(r)] = record;
  Byte& highest = state.regions[static_cast<size_t>(r)].highest;
  highest = std::max(highest, record.generation);
}

// The opener learns what a record says: entries of lower generations go, and what it holds no more.
void SharingModel::see(State& state, int o, int r) const {
  Opener& opener = state.openers[static_cast<size_t>(o)];
  View& view = opener.views[static_cast<size_t>(r)];
  const Record& record = state.engine.regions[static_cast<size_t>(r)];
  view.believed = record;
  if (record.generation > view.entry) view.entry = 0;
  if (view.phase == kNone || record.same_value(view.own)) return;
  const bool taken_over = record.hold == kOwned && record.epoch == opener.epoch && view.own.epoch != opener.epoch &&
                          record.generation == view.own.generation;
  if (taken_over && view.phase >= kTaken) {  // by us: its reply was lost
    view.own = record;
    view.unsettled = rules_.s2_take_over;
    return;
  }
  const bool rebuilt_as_ours = record.rebuilt && record.hold == kOwned && record.generation == view.own.generation;
  if (rebuilt_as_ours && opener.epoch != view.own.epoch) return;  // S6: it will be taken over
  if (!rules_.s6_compare) return;
  view.phase = kNone;
  view.unsettled = 0;
}

void SharingModel::snapshot(State& state, int o) const {
  Opener& opener = state.openers[static_cast<size_t>(o)];
  opener.in_step = 1;
  opener.watch_broke = 0;
  opener.seen = state.engine.revision;
  opener.last_region = 0;
  for (int r = 0; r < bounds_.regions; ++r) {
    see(state, o, r);
    const Record& record = state.engine.regions[static_cast<size_t>(r)];
    if (record.hold == kAbsent || record.revision != state.engine.revision) continue;
    opener.last_region = byte_of(r + 1);
    opener.last_stamp = record.stamp;
  }
}

// What is learnt of a transaction that was done: its reply, or, if that is lost, nothing. What was to be given up by it
// is given up then all the same.
void SharingModel::transacted(const State& before, const State& after, const Step& step, const Emit& emit) const {
  emit(after, step);
  if (before.replies_lost >= bounds_.replies_lost) return;
  const auto o = static_cast<size_t>(step.opener);
  State next = after;
  ++next.replies_lost;
  next.openers[o] = before.openers[o];
  if (after.openers[o].views[static_cast<size_t>(step.region)].phase == kNone && rules_.s1_given_up) {
    next.openers[o].views[static_cast<size_t>(step.region)].phase = kNone;
  }
  Step lost = step;
  lost.reply_lost = lost.fault = true;
  emit(next, lost);
}

// ---- the world -----------------------------------------------------------------------------------------------------

void SharingModel::steps(const State& state, const Emit& emit) const {
  engine_steps(state, emit);
  device_steps(state, emit);
  for (int o = 0; o < bounds_.openers; ++o) {
    if (state.openers[static_cast<size_t>(o)].crashed) continue;
    crash_steps(state, o, emit);
    lease_steps(state, o, emit);
    rejoin_steps(state, o, emit);
    watch_steps(state, o, emit);
    for (int r = 0; r < bounds_.regions; ++r) {
      if (bounds_.reads) read_steps(state, o, r, emit);
      own_steps(state, o, r, emit);
      reclaim_steps(state, o, r, emit);
      write_steps(state, o, r, emit);
    }
  }
}

void SharingModel::engine_steps(const State& state, const Emit& emit) const {
  if (state.unsettled > 0) {
    State next = state;
    std::copy(next.before.begin() + 1, next.before.begin() + next.unsettled, next.before.begin());
    next.before[--next.unsettled] = Engine{};
    emit(next, {.what = "time passes: the engine cannot forget its oldest transaction any more"});
  }
  if (state.failovers < bounds_.failovers) {
    for (Byte kept = 0; kept < state.unsettled; ++kept) {
      State next = state;
      ++next.failovers;
      next.engine = state.before[kept];
      for (Byte i = kept; i < state.unsettled; ++i) next.before[i] = Engine{};
      next.unsettled = kept;
      for (Opener& opener : next.openers) opener.watch_broke = opener.in_step;
      emit(next, {.what = "failover: the engine forgets its last transactions", .fault = true});
    }
  }
  if (state.wipes < bounds_.wipes && state.engine.format != 0) {
    State next = state;
    ++next.wipes;
    next.engine = Engine{};
    next.before = {};
    next.unsettled = 0;
    emit(next, {.what = "the engine is wiped", .fault = true});
  }
  for (Byte epoch = 1; epoch <= bounds_.epochs; ++epoch) {
    const EpochKeys& keys = keys_of(state.engine, epoch);
    if (keys.live) {
      // A lease lasts: the opener's last confirmed renewal was asked for longer than half of it ago.
      const Opener& owner = state.openers[keys.who - 1u];
      if (!owner.crashed && owner.joined && owner.epoch == epoch && owner.fresh && lives(state, keys.who - 1)) continue;
      State next = state;
      begin_transaction(next);
      keys_of(next.engine, epoch).live = 0;
      emit(next, {.what = "a lease ends", .opener = keys.who - 1});
    } else if (bounds_.quarantine && !keys.gone && state.engine.format != 0 && epoch <= state.epochs_given) {
      State next = state;
      begin_transaction(next);
      keys_of(next.engine, epoch).gone = 1;
      emit(next, {.what = "the quarantine of an epoch is over", .opener = keys.who - 1});
    }
  }
}

void SharingModel::device_steps(const State& state, const Emit& emit) const {
  for (int r = 0; r < bounds_.regions; ++r) {
    const Region& region = state.regions[static_cast<size_t>(r)];
    for (size_t i = 0; i < region.flight.size(); ++i) {
      if (region.flight[i].generation == 0) continue;
      if (i > 0 && region.flight[i] == region.flight[i - 1]) continue;
      State next = state;
      Region& there = next.regions[static_cast<size_t>(r)];
      if (region.content.generation > region.flight[i].generation) there.damaged = region.content.generation;
      there.content = region.flight[i];
      there.flight[i] = Payload{};
      std::sort(there.flight.begin(), there.flight.end());
      emit(next, {.what = "a payload write lands", .opener = region.flight[i].owner - 1, .region = r});
    }
    if (region.late == kNoWrite) continue;
    State next = state;
    Region& there = next.regions[static_cast<size_t>(r)];
    if (region.late == kWriteDescriptor) {
      if (region.described > region.late_header.generation) there.damaged = region.described;
      there.described = region.late_header.generation;
    } else {
      there.headers[region.late_copy] = region.late_header;
    }
    there.late = kNoWrite;
    there.late_copy = 0;
    there.late_header = Header{};
    emit(next, {.what = "a late metadata write lands", .opener = region.late_header.owner - 1, .region = r});
  }
}

// ---- an opener and the engine ------------------------------------------------------------------------------------

void SharingModel::crash_steps(const State& state, int o, const Emit& emit) const {
  if (state.crashes >= bounds_.crashes) return;
  const Opener& opener = state.openers[static_cast<size_t>(o)];
  if (opener.epoch == 0) return;  // nobody would notice
  State plain = state;
  ++plain.crashes;
  plain.openers[static_cast<size_t>(o)] = Opener{};
  plain.openers[static_cast<size_t>(o)].crashed = 1;
  emit(plain, {.what = "crashes", .opener = o, .fault = true});
  // With a metadata write under way: torn, or to land who knows when.
  for (int r = 0; r < bounds_.regions; ++r) {
    for (const bool seal : {false, true}) {
      const Write kind = next_write(state, o, r, seal);
      if (kind == kNoWrite || kind == kWritePayload || !may_write(state, o, r)) continue;
      const View& view = opener.views[static_cast<size_t>(r)];
      const Region& region = state.regions[static_cast<size_t>(r)];
      Byte copy = kind == kWriteH1 ? 1 : 0;
      if (kind == kWriteSeal && rules_.s1_foreign_copy_first) {
        copy = region.headers[1].generation == view.own.generation ? 0 : 1;
      }
      if (kind != kWriteDescriptor) {
        State torn = plain;
        torn.regions[static_cast<size_t>(r)].headers[copy] = Header{};
        emit(torn, {.what = "crashes and tears a header", .opener = o, .region = r, .fault = true});
      }
      if (region.late != kNoWrite) continue;
      State late = plain;
      Region& there = late.regions[static_cast<size_t>(r)];
      there.late = kind;
      there.late_copy = copy;
      there.late_header = {.generation = view.own.generation,
                           .epoch = view.own.epoch,
                           .owner = byte_of(o + 1),
                           .sealed = byte_of(kind == kWriteSeal)};
      emit(late, {.what = "crashes with a metadata write under way", .opener = o, .region = r, .fault = true});
    }
  }
}

void SharingModel::lease_steps(const State& state, int o, const Emit& emit) const {
  const Opener& opener = state.openers[static_cast<size_t>(o)];
  if (!opener.joined) return;
  if (opener.fresh && bounds_.leases_end) {
    State next = state;
    next.openers[static_cast<size_t>(o)].fresh = 0;
    emit(next, {.what = "has not renewed for half a lease", .opener = o, .fault = true});
  }
  if (!opener.fresh && lives(state, o)) {
    State next = state;
    next.openers[static_cast<size_t>(o)].fresh = 1;
    emit(next, {.what = "renews its lease", .opener = o});
  }
  if (!lives(state, o)) {
    State next = state;
    Opener& there = next.openers[static_cast<size_t>(o)];
    there.joined = there.fresh = 0;
    if (rules_.s4_live_first) there.in_step = 0;
    for (View& view : there.views) view.pin_protected = 0;
    emit(next, {.what = "learns that it lives no more", .opener = o});
  }
}

void SharingModel::rejoin_steps(const State& state, int o, const Emit& emit) const {
  const Opener& opener = state.openers[static_cast<size_t>(o)];
  const size_t self = static_cast<size_t>(o);
  if (!opener.joined && state.engine.format != 0 && state.engine.epoch < bounds_.epochs) {
    State next = state;
    begin_transaction(next);
    Opener& there = next.openers[self];
    there.epoch = ++next.engine.epoch;
    next.epochs_given = std::max(next.epochs_given, there.epoch);
    keys_of(next.engine, there.epoch) = {.who = byte_of(o + 1), .live = 1};
    there.joined = there.fresh = 1;
    if (rules_.s4_live_first) there.in_step = 0;
    there.format = next.engine.format;
    for (View& view : there.views) {
      view.pin_protected = 0;
      if (view.phase == kRetired || view.phase == kDrained) view.phase = kNone;
      if (!rules_.s6_compare && view.phase != kNone) view.own.epoch = there.epoch;
    }
    emit(next, {.what = "joins with the next epoch", .opener = o});
  }
  if (!opener.joined && state.engine.format == 0) {
    // S7. All that waited, read the headers and wrote the records is one step: its lock sees to it.
    const bool waited = std::none_of(state.openers.begin(), state.openers.end(),
                                     [](const Opener& other) { return !other.crashed && other.fresh; });
    if (waited || !rules_.s7_wait) {
      State next = state;
      next.engine.format = ++next.incarnations;
      next.engine.epoch = state.epochs_given;
      next.engine.epochs = {};  // whoever wrote before is not known to be gone
      for (int r = 0; r < bounds_.regions; ++r) {
        const Header& header = newest(state.regions[static_cast<size_t>(r)]);
        Record record{.hold = kFree, .generation = header.generation, .epoch = header.epoch, .rebuilt = 1};
        if (header.generation > 0) record.hold = header.sealed || !rules_.s7_open_is_owned ? kSealed : kOwned;
        const Byte highest = state.regions[static_cast<size_t>(r)].highest;
        next.engine.floors[static_cast<size_t>(r)] = byte_of(rules_.s7_skip ? highest + 1 : header.generation + 2);
        put_record(next, r, record);
      }
      emit(next, {.what = "rebuilds the engine from the headers", .opener = o});
    }
  }
  if (!guard(state, o)) return;
  for (Byte epoch = 1; epoch <= state.epochs_given; ++epoch) {
    const EpochKeys& keys = keys_of(state.engine, epoch);
    if (keys.who != o + 1 || epoch == opener.epoch || keys.live || keys.gone) continue;
    bool drained = opener.checked == kNoWrite;
    for (int r = 0; r < bounds_.regions; ++r) {
      const View& view = opener.views[static_cast<size_t>(r)];
      const bool kept = view.phase != kNone && view.own.epoch == opener.epoch;
      if (!kept && has_payload_on_its_way(state.regions[static_cast<size_t>(r)], o)) drained = false;
    }
    if (!drained && rules_.s5_drained) continue;
    State next = state;
    begin_transaction(next);
    keys_of(next.engine, epoch).gone = 1;
    for (View& view : next.openers[self].views) {
      if (rules_.s6_gives_up && view.own.epoch == epoch) view.phase = kNone;
    }
    emit(next, {.what = "says that its former epoch is gone", .opener = o});
  }
}

void SharingModel::watch_steps(const State& state, int o, const Emit& emit) const {
  const Opener& opener = state.openers[static_cast<size_t>(o)];
  const size_t self = static_cast<size_t>(o);
  const bool same = state.engine.format == opener.format;
  // A snapshot is taken when the watch broke, which it may do at any time.
  const bool broke = !opener.in_step || opener.watch_broke;
  const bool may_snapshot = opener.joined ? same && broke : !rules_.s4_live_first && state.engine.format != 0;
  if (may_snapshot) {
    State next = state;
    snapshot(next, o);
    emit(next, {.what = "takes a snapshot", .opener = o});
  }
  if (!opener.joined || !opener.in_step || !same) return;
  // The watch: in order, of what is younger than what it saw. It does not go on over a failover.
  int next_region = -1;
  for (int r = 0; r < bounds_.regions && !opener.watch_broke; ++r) {
    const Record& record = state.engine.regions[static_cast<size_t>(r)];
    if (record.hold == kAbsent || record.revision <= opener.seen) continue;
    if (next_region >= 0 && record.revision > state.engine.regions[static_cast<size_t>(next_region)].revision) {
      continue;
    }
    next_region = r;
  }
  if (next_region >= 0) {
    State next = state;
    const Record& record = state.engine.regions[static_cast<size_t>(next_region)];
    Opener& there = next.openers[self];
    there.seen = record.revision;
    there.last_region = byte_of(next_region + 1);
    there.last_stamp = record.stamp;
    see(next, o, next_region);
    emit(next, {.what = "sees a change", .opener = o, .region = next_region});
  }
  // S4: what it has seen, and has no reader left of.
  if (!guard(state, o) || keys_of(state.engine, opener.epoch).read >= opener.seen) return;
  for (const View& view : opener.views) {
    if (rules_.s4_drain && view.pin != 0 && view.pin < view.believed.generation) return;
  }
  if (rules_.s4_history && opener.last_region != 0 &&
      state.engine.regions[opener.last_region - 1u].stamp != opener.last_stamp) {
    return;
  }
  State next = state;
  begin_transaction(next);
  keys_of(next.engine, opener.epoch).read = opener.seen;
  emit(next, {.what = "publishes what it has read", .opener = o});
}

// ---- reading -----------------------------------------------------------------------------------------------------

void SharingModel::read_steps(const State& state, int o, int r, const Emit& emit) const {
  const Opener& opener = state.openers[static_cast<size_t>(o)];
  const View& view = opener.views[static_cast<size_t>(r)];
  const Region& region = state.regions[static_cast<size_t>(r)];
  const size_t self = static_cast<size_t>(o);
  const auto at = static_cast<size_t>(r);
  if (opener.joined && opener.in_step) {
    // The follower reads header and descriptor, and believes no record that is higher.
    const Byte generation = newest(region).generation;
    const bool readable = generation != 0 && region.described == generation && generation >= view.believed.generation;
    if (readable && view.entry < generation) {
      State next = state;
      next.openers[self].views[at].entry = generation;
      emit(next, {.what = "finds the block on the device", .opener = o, .region = r});
    }
  }
  if (view.entry != 0 && view.pin == 0) {
    State next = state;
    next.openers[self].views[at].pin = view.entry;
    next.openers[self].views[at].pin_protected = byte_of(opener.joined && opener.in_step);
    emit(next, {.what = "begins to read", .opener = o, .region = r});
  }
  if (view.pin != 0) {
    State next = state;
    next.openers[self].views[at].pin = 0;
    next.openers[self].views[at].pin_protected = 0;
    const Payload expected{view.pin, region.writer_of[view.pin]};
    const bool right = region.content == expected;
    if (!right && view.entry == view.pin) next.openers[self].views[at].entry = 0;
    const bool wrong = !right && !rules_.s8_verify;
    emit(next, {.what = right ? "ends a read: a hit" : "ends a read: a miss",
                .opener = o,
                .region = r,
                .violation = wrong ? "P1: a read returned another block" : nullptr});
  }
}

// ---- owning ------------------------------------------------------------------------------------------------------

void SharingModel::own_steps(const State& state, int o, int r, const Emit& emit) const {
  const Opener& opener = state.openers[static_cast<size_t>(o)];
  const View& view = opener.views[static_cast<size_t>(r)];
  const Record& record = state.engine.regions[static_cast<size_t>(r)];
  const Region& region = state.regions[static_cast<size_t>(r)];
  const size_t self = static_cast<size_t>(o);
  const auto at = static_cast<size_t>(r);
  const auto transact = [&](const char* what, Record wanted, Byte phase, Byte unsettled) {
    State next = state;
    begin_transaction(next);
    put_record(next, r, wanted);
    View& there = next.openers[self].views[at];
    there.believed = there.own = next.engine.regions[at];
    there.phase = phase;
    there.unsettled = unsettled;
    if (wanted.generation > there.entry) there.entry = 0;
    transacted(state, next, {.what = what, .opener = o, .region = r}, emit);
  };

  // take
  const bool takes = view.phase == kNone && opener.in_step && guard(state, o) && unchanged(record, view.believed);
  if (takes && (view.believed.hold == kFree || (view.believed.hold == kAbsent && newest(region).generation == 0))) {
    const Byte generation = next_generation(state, r, view.believed);
    if (generation <= generations_of(r)) {
      transact("takes the region", {.hold = kOwned, .generation = generation, .epoch = opener.epoch}, kTaken, 0);
    }
  }
  if (view.phase == kNone || !opener.joined) return;

  // S6: own regions are taken over with the epoch that an opener has now.
  if (view.phase >= kTaken && view.own.epoch != opener.epoch) {
    const bool rebuilt_as_ours = record.rebuilt && record.hold == kOwned && record.generation == view.own.generation;
    if (guard(state, o) && opener.in_step && (record.same_value(view.own) || rebuilt_as_ours)) {
      transact("takes its region over", {.hold = kOwned, .generation = record.generation, .epoch = opener.epoch},
               view.phase, rules_.s2_take_over);
    }
    return;
  }

  // S2: read back when it could not be forgotten any more.
  const bool to_read_back = view.phase == kTaken || view.phase == kReused || view.unsettled;
  if (to_read_back) {
    const Record& settled = state.unsettled == 0 ? record : state.before[0].regions[at];
    const bool stands =
        record.same_value(view.own) && settled.same_value(view.own) && opener.format == state.engine.format;
    const bool waits =
        view.phase == kReused && rules_.s4_check_again && !all_have_surely_read(state, view.own.revision);
    if ((stands && !waits) || !rules_.s2_take) {
      State next = state;
      View& there = next.openers[self].views[at];
      if (there.phase < kGranted) there.phase = kGranted;
      there.unsettled = 0;
      Byte& writer = next.regions[at].writer_of[view.own.generation];
      const bool second = writer != 0 && writer != o + 1;
      writer = byte_of(o + 1);
      emit(next, {.what = "reads its record back: it may write",
                  .opener = o,
                  .region = r,
                  .violation = second ? "P2: two openers may write one generation of a region" : nullptr});
    } else if (!record.same_value(view.own)) {
      State next = state;
      next.openers[self].views[at].phase = kNone;
      next.openers[self].views[at].unsettled = 0;
      emit(next, {.what = "reads its record back: it is another", .opener = o, .region = r});
    }
  }

  // S1: the headers before the first write.
  if (view.phase == kGranted && view.unsettled == 0) {
    const Header header = newest(region);
    if (header.generation < view.own.generation || !rules_.s1_headers_first) {
      State next = state;
      next.openers[self].views[at].phase = kHeadersRead;
      emit(next, {.what = "reads the headers: lower generations", .opener = o, .region = r});
    } else if (guard(state, o) && record.same_value(view.own) && opener.checked == kNoWrite &&
               !has_payload_on_its_way(region, o)) {
      const bool is_over = header.sealed || header.owner == o + 1;
      transact("reads the headers: as high a generation; corrects the engine",
               {.hold = is_over ? kSealed : kOwned, .generation = header.generation, .epoch = header.epoch}, kNone, 0);
    }
  }

  const bool own = guard(state, o) && unchanged(record, view.own) && opener.checked == kNoWrite;
  if (own && bounds_.releases && !view.came_back &&
      (view.phase == kTaken || view.phase == kReused || view.phase == kGranted || view.phase == kHeadersRead)) {
    const Byte generation = byte_of(view.own.generation - (rules_.s1_release_spends ? 0 : 1));
    transact("releases the region", {.hold = kFree, .generation = generation, .epoch = opener.epoch}, kNone, 0);
  }
  if (own && view.phase == kHeaderSealed) {
    transact("seals the record", {.hold = kSealed, .generation = view.own.generation, .epoch = opener.epoch}, kNone, 0);
  }
}

// ---- reclaiming (S4, S5) -----------------------------------------------------------------------------------------

void SharingModel::reclaim_steps(const State& state, int o, int r, const Emit& emit) const {
  const Opener& opener = state.openers[static_cast<size_t>(o)];
  const View& view = opener.views[static_cast<size_t>(r)];
  const Record& record = state.engine.regions[static_cast<size_t>(r)];
  const size_t self = static_cast<size_t>(o);
  const auto at = static_cast<size_t>(r);
  if (!guard(state, o) || !opener.in_step) return;

  const Record& seen = view.believed;
  const bool own = seen.epoch == opener.epoch;
  if (view.phase == kNone && record.same_value(seen) && own && rules_.s2_own_records &&
      (seen.hold == kOwned || seen.hold == kRetiring)) {
    State next = state;
    View& there = next.openers[self].views[at];
    there.own = record;
    there.phase = seen.hold == kOwned ? kReused : kRetired;
    there.came_back = rules_.s2_no_release;
    emit(next, {.what = "finds a record of its own that it does not hold", .opener = o, .region = r});
  }
  if (view.phase == kNone && unchanged(record, seen) && seen.hold == kRetiring && !own &&
      !keys_of(state.engine, seen.epoch).live) {
    State next = state;
    begin_transaction(next);
    put_record(next, r, {.hold = kRetiring, .generation = seen.generation, .epoch = opener.epoch});
    View& there = next.openers[self].views[at];
    there.believed = there.own = next.engine.regions[at];
    there.phase = kRetired;
    transacted(state, next, {.what = "goes on with a retiring", .opener = o, .region = r}, emit);
  }
  const bool orphan = seen.hold == kOwned && !own && is_gone(state, seen.epoch);
  if (view.phase == kNone && unchanged(record, seen) && (seen.hold == kSealed || orphan)) {
    const Byte generation = next_generation(state, r, seen);
    if (generation <= generations_of(r)) {
      State next = state;
      begin_transaction(next);
      put_record(next, r, {.hold = kRetiring, .generation = generation, .epoch = opener.epoch});
      View& there = next.openers[self].views[at];
      there.believed = there.own = next.engine.regions[at];
      there.phase = kRetired;
      there.entry = 0;
      // By the rules: of what is sealed, or of somebody who is really gone.
      const EpochKeys keys = seen.epoch == 0 ? EpochKeys{} : keys_of(state.engine, seen.epoch);
      const bool by_the_rules = record.same_value(seen) && (seen.hold == kSealed || keys.gone ||
                                                            (keys.who != 0 && state.openers[keys.who - 1u].crashed));
      if (by_the_rules) next.regions[at].retired = std::max(next.regions[at].retired, seen.generation);
      transacted(state, next, {.what = orphan ? "retires an orphan" : "retires the region", .opener = o, .region = r},
                 emit);
    }
  }
  if (view.phase == kRetired && (!rules_.s4_wait || all_have_read(state, view.own.revision))) {
    State next = state;
    next.openers[self].views[at].phase = kDrained;
    emit(next, {.what = "finds that all live openers have read it", .opener = o, .region = r});
  }
  if (view.phase == kDrained && unchanged(record, view.own)) {
    State next = state;
    begin_transaction(next);
    put_record(next, r, {.hold = kOwned, .generation = view.own.generation, .epoch = opener.epoch});
    View& there = next.openers[self].views[at];
    there.believed = there.own = next.engine.regions[at];
    there.phase = kReused;
    transacted(state, next, {.what = "reuses the region", .opener = o, .region = r}, emit);
  }
}

// ---- writing -----------------------------------------------------------------------------------------------------

// What the opener would write next to a region of its own.
Write SharingModel::next_write(const State& state, int o, int r, bool seal) const {
  const View& view = state.openers[static_cast<size_t>(o)].views[static_cast<size_t>(r)];
  const Region& region = state.regions[static_cast<size_t>(r)];
  const bool landed = !is_on_its_way(region, {view.own.generation, byte_of(o + 1)});
  if (seal)
    return view.phase == kOpen || (view.phase == kIssued && landed) || view.phase == kDescribed ? kWriteSeal : kNoWrite;
  switch (view.phase) {
    case kHeadersRead: return kWriteH0;
    case kHalfOpen: return kWriteH1;
    case kOpen: return region.flight[0].generation == 0 ? kWritePayload : kNoWrite;
    case kIssued: return landed ? kWriteDescriptor : kNoWrite;
    default: return kNoWrite;
  }
}

void SharingModel::write_steps(const State& state, int o, int r, const Emit& emit) const {
  const Opener& opener = state.openers[static_cast<size_t>(o)];
  const View& view = opener.views[static_cast<size_t>(r)];
  if (opener.checked != kNoWrite) {
    if (opener.checked_region != r) return;
    write(state, o, r, static_cast<Write>(opener.checked), opener.checked_generation, opener.checked_epoch, emit);
    return;
  }
  if (view.phase == kNone || !may_write(state, o, r)) return;
  for (const bool seal : {false, true}) {
    const Write kind = next_write(state, o, r, seal);
    if (kind == kNoWrite) continue;
    if (!bounds_.pauses) {
      write(state, o, r, kind, view.own.generation, view.own.epoch, emit);
      continue;
    }
    State next = state;
    Opener& there = next.openers[static_cast<size_t>(o)];
    there.checked = kind;
    there.checked_region = byte_of(r);
    there.checked_generation = view.own.generation;
    there.checked_epoch = view.own.epoch;
    emit(next, {.what = "checks that it may write", .opener = o, .region = r});
  }
}

void SharingModel::write(const State& state, int o, int r, Write kind, Byte generation, Byte epoch,
                         const Emit& emit) const {
  State next = state;
  Opener& opener = next.openers[static_cast<size_t>(o)];
  View& view = opener.views[static_cast<size_t>(r)];
  Region& region = next.regions[static_cast<size_t>(r)];
  const Byte self = byte_of(o + 1);
  const bool holds = view.own.generation == generation && phase_allows(view.phase, kind);
  opener.checked = opener.checked_region = opener.checked_generation = opener.checked_epoch = 0;
  Step step{.what = "", .opener = o, .region = r};
  Header header{.generation = generation, .epoch = epoch, .owner = self, .sealed = 0};
  switch (kind) {
    case kWriteH0:
      step.what = "writes H0";
      if (holds && next.engine.regions[static_cast<size_t>(r)].same_value(view.own) && lives(state, o) &&
          newest(region).generation >= generation) {
        step.violation = "P2: a generation begins a second time";
      }
      region.headers[0] = header;
      break;
    case kWriteH1:
      step.what = "writes H1";
      region.headers[1] = header;
      break;
    case kWritePayload: {
      step.what = "issues a payload write";
      const Header& now = newest(region);
      if (now.generation != generation || now.owner != self) step.violation = "P2: a payload write of another's region";
      if (region.writer_of[generation] != self) step.violation = "P2: a payload write without leave";
      if (region.flight[0].generation != 0) return;  // bound
      region.flight[0] = {generation, self};
      std::sort(region.flight.begin(), region.flight.end());
      region.in_use = std::max(region.in_use, generation);
      break;
    }
    case kWriteDescriptor:
      step.what = "writes the descriptor: acknowledged";
      region.described = generation;
      region.acknowledged = std::max(region.acknowledged, generation);
      break;
    case kWriteSeal: {
      step.what = "seals the header";
      header.sealed = 1;
      const bool second = rules_.s1_foreign_copy_first && region.headers[1].generation != generation;
      region.headers[second ? 1 : 0] = header;
      break;
    }
    case kNoWrite: break;
  }
  if (holds) view.phase = phase_after(kind);
  emit(next, step);
}

// ---- properties --------------------------------------------------------------------------------------------------

const char* SharingModel::violation(const State& state) const {
  for (int r = 0; r < bounds_.regions; ++r) {
    const Region& region = state.regions[static_cast<size_t>(r)];
    const Record& record = state.engine.regions[static_cast<size_t>(r)];
    const Byte generation = region.acknowledged;
    if (generation != 0 && generation > region.retired && region.damaged != generation) {
      if (newest(region).generation != generation) return "P3: the header of an acknowledged block is gone";
      if (region.described != generation) return "P3: the descriptor of an acknowledged block is gone";
      if (region.content != Payload{generation, region.writer_of[generation]})
        return "P3: an acknowledged block is gone";
      const bool shown = record.hold == kOwned || record.hold == kSealed;
      if (record.hold != kAbsent && (!shown || record.generation != generation)) {
        return "P3: an acknowledged block's region was given up";
      }
    }
    for (int o = 0; o < bounds_.openers; ++o) {
      const View& view = state.openers[static_cast<size_t>(o)].views[static_cast<size_t>(r)];
      if (view.pin_protected && view.pin < region.in_use && lives(state, o)) {
        return "P4: a region was reused under a live opener's reader";
      }
    }
  }
  return nullptr;
}

bool SharingModel::can_put(const State& state) const {
  bool generations_left = false;
  for (int r = 0; r < bounds_.regions; ++r) {
    if (state.regions[static_cast<size_t>(r)].highest < generations_of(r)) generations_left = true;
    for (int o = 0; o < bounds_.openers; ++o) {
      if (state.openers[static_cast<size_t>(o)].views[static_cast<size_t>(r)].phase >= kOpen &&
          may_write(state, o, r) && lives(state, o)) {
        return true;
      }
    }
  }
  if (!generations_left) return true;
  bool all_crashed = true;
  for (int o = 0; o < bounds_.openers; ++o) {
    if (state.openers[static_cast<size_t>(o)].crashed) continue;
    all_crashed = false;
    if (!lives(state, o) && state.epochs_given >= bounds_.epochs) return true;  // it cannot join
  }
  return all_crashed;
}

// ---- traces ------------------------------------------------------------------------------------------------------

std::string describe(const State& state, const Bounds& bounds) {
  static constexpr const char* kHolds[] = {"absent", "free", "owned", "sealed", "retiring"};
  static constexpr const char* kPhases[] = {"-",      "retired", "drained",     "taken",
                                            "reused", "granted", "headersread", "halfopen",
                                            "open",   "issued",  "described",   "headersealed"};
  std::string text;
  char line[256];
  const auto add = [&](auto... values) {
    std::snprintf(line, sizeof line, values...);
    text += line;
  };
  const Engine& engine = state.engine;
  add("engine format %d revision %d unsettled %d;", engine.format, engine.revision, state.unsettled);
  for (int e = 0; e < bounds.epochs; ++e) {
    const EpochKeys& keys = engine.epochs[static_cast<size_t>(e)];
    if (keys.who == 0 && !keys.gone) continue;
    add(" epoch %d=opener %d%s%s read %d;", e + 1, keys.who - 1, keys.live ? " live" : "", keys.gone ? " gone" : "",
        keys.read);
  }
  for (int r = 0; r < bounds.regions; ++r) {
    const Record& record = engine.regions[static_cast<size_t>(r)];
    const Region& region = state.regions[static_cast<size_t>(r)];
    add(" r%d=%s(%d,e%d)#%d@%d", r, kHolds[record.hold], record.generation, record.epoch, record.stamp,
        record.revision);
    for (const Header& header : region.headers) {
      add(" H(%d,o%d%s)", header.generation, header.owner - 1, header.sealed ? ",sealed" : "");
    }
    add(" D(%d) slot(%d,o%d);", region.described, region.content.generation, region.content.owner - 1);
  }
  for (int o = 0; o < bounds.openers; ++o) {
    const Opener& opener = state.openers[static_cast<size_t>(o)];
    if (opener.crashed || opener.epoch == 0) continue;
    add(" o%d: epoch %d%s%s seen %d", o, opener.epoch, opener.joined ? " joined" : "", opener.fresh ? " fresh" : "",
        opener.seen);
    for (int r = 0; r < bounds.regions; ++r) {
      const View& view = opener.views[static_cast<size_t>(r)];
      add(" [r%d %s entry %d pin %d]", r, kPhases[view.phase], view.entry, view.pin);
    }
    text += ";";
  }
  return text;
}

}  // namespace kvstore::model
