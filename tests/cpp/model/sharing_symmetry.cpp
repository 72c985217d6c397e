// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// One state for all that differ only in names: which opener, which region, which stamp, and values that nothing will
// ever look at. Openers and regions are alike, stamps are only compared for equality. It need not be the smallest such
// state, just the same for most of them: two that are left apart cost time and nothing else.

#include <algorithm>
#include <cstring>
#include <numeric>

#include "model/sharing_model.h"

namespace kvstore::model {

namespace {

constexpr Byte kDeadStamp = 255;  // is nowhere in the engine, and equals nothing that ever will be

template <typename Function>
void for_each_engine(State& state, Function function) {
  function(state.engine);
  for (Byte i = 0; i < state.unsettled; ++i) function(state.before[i]);
}

bool is_recorded(const Engine& engine, Byte epoch) {
  return std::any_of(engine.regions.begin(), engine.regions.end(),
                     [epoch](const Record& record) { return record.epoch == epoch; });
}

// An epoch without a live key gets no record any more (S1). If it has none, all that is known of it is of no use.
void forget_epochs(State& state, const Bounds& bounds) {
  for_each_engine(state, [&bounds](Engine& engine) {
    for (Byte epoch = 1; epoch <= bounds.epochs; ++epoch) {
      EpochKeys& keys = engine.epochs[epoch - 1u];
      if (!keys.live && (keys.gone || !is_recorded(engine, epoch))) keys = {.gone = 1};
    }
  });
}

void forget_writer_of_what_has_none(Record& record) {
  if (record.hold == kFree || record.hold == kSealed) record.epoch = 0;
}

void forget_in_opener(Opener& opener, const Rules& rules) {
  if (!opener.in_step && rules.s4_live_first) opener.seen = opener.last_region = opener.watch_broke = 0;
  if (opener.last_region == 0) opener.last_stamp = 0;
  bool holds = false;
  for (View& view : opener.views) {
    if (!opener.in_step && rules.s4_live_first) view.believed = Record{};
    if (rules.s1_whole_value) view.believed.revision = 0;
    if (view.phase == kNone) view.unsettled = 0;
    if (view.phase == kNone) view.own = Record{};
    if (view.phase == kNone || view.phase >= kHeadersRead) view.came_back = 0;
    forget_writer_of_what_has_none(view.believed);
    if (rules.s1_whole_value && view.phase != kRetired && view.phase != kReused) view.own.revision = 0;
    // What becomes of a read that nothing but the checksum protects is known: it is verified.
    if (rules.s8_verify && !view.pin_protected) view.pin = 0;
    if (view.phase != kNone) holds = true;
  }
  if (!opener.joined && !holds && opener.checked == kNoWrite) opener.epoch = opener.format = 0;
}

// Who wrote a generation that nothing names any more.
void forget_writers(State& state, size_t r) {
  Region& region = state.regions[r];
  Byte lowest = kGenerationsMax;
  const auto names = [&lowest](Byte generation) {
    if (generation != 0) lowest = std::min(lowest, generation);
  };
  for_each_engine(state, [&](const Engine& engine) { names(engine.regions[r].generation); });
  for (const Opener& opener : state.openers) {
    const View& view = opener.views[r];
    names(view.entry);
    names(view.pin);
    names(view.own.generation);
    names(opener.checked_generation);
  }
  for (const Header& header : region.headers) names(header.generation);
  for (const Payload& payload : region.flight) names(payload.generation);
  names(region.content.generation);
  names(region.acknowledged);
  names(region.late_header.generation);
  for (Byte generation = 0; generation < lowest; ++generation) region.writer_of[generation] = 0;
}

void forget_what_does_not_matter(State& state, const Rules& rules, const Bounds& bounds) {
  if (state.failovers == bounds.failovers) {
    state.before = {};
    state.unsettled = 0;
  }
  for_each_engine(state, [](Engine& engine) {
    for (Record& record : engine.regions) forget_writer_of_what_has_none(record);
    for (EpochKeys& keys : engine.epochs) {
      if (!keys.live) keys.read = 0;
    }
  });
  if (rules.s1_live) forget_epochs(state, bounds);
  for (Opener& opener : state.openers) forget_in_opener(opener, rules);
  for (size_t r = 0; r < kRegionsMax; ++r) {
    Region& region = state.regions[r];
    if (region.acknowledged <= region.retired) region.acknowledged = 0;
    forget_writers(state, r);
  }
}

// Revisions are only compared. Between two that are in use any number may have been given to what the model leaves out;
// above the engine's, which a failover leaves behind, two still are two changes that a watch would miss.
void rename_revisions(State& state) {
  std::array<bool, 256> used{};
  const auto for_each = [&state](auto function) {
    for_each_engine(state, [&](Engine& engine) {
      function(engine.revision);
      for (Record& record : engine.regions) function(record.revision);
      for (EpochKeys& keys : engine.epochs) function(keys.read);
    });
    for (Opener& opener : state.openers) {
      function(opener.seen);
      for (View& view : opener.views) {
        function(view.believed.revision);
        function(view.own.revision);
      }
    }
  };
  for_each([&used](Byte& revision) { used[revision] = true; });
  std::array<Byte, 256> names{};
  Byte name = 0;
  size_t last = 0;
  for (size_t revision = 1; revision < used.size(); ++revision) {
    if (!used[revision]) continue;
    name = byte_of(name + (last >= state.engine.revision && revision - last > 1 ? 2 : 1));
    names[revision] = name;
    last = revision;
  }
  for_each([&names](Byte& revision) { revision = names[revision]; });
}

void rename_stamps(State& state) {
  std::array<Byte, 256> names{};
  names.fill(kDeadStamp);
  names[0] = 0;
  Byte used = 0;
  for_each_engine(state, [&](Engine& engine) {
    for (Record& record : engine.regions) {
      Byte& name = names[record.stamp];
      if (name == kDeadStamp) name = ++used;
      record.stamp = name;
    }
  });
  for (Opener& opener : state.openers) {
    opener.last_stamp = names[opener.last_stamp];
    for (View& view : opener.views) {
      view.believed.stamp = names[view.believed.stamp];
      view.own.stamp = names[view.own.stamp];
    }
  }
  state.stamps = used;
}

template <typename T>
bool less_bytes(const T& left, const T& right) {
  return std::memcmp(&left, &right, sizeof(T)) < 0;
}

void order_openers(State& state, int count) {
  std::array<size_t, kOpenersMax> order{};
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.begin() + count,
                   [&](size_t left, size_t right) { return less_bytes(state.openers[left], state.openers[right]); });
  std::array<Byte, kOpenersMax + 1> names{};  // by opener + 1
  std::array<Opener, kOpenersMax> openers{};
  for (size_t i = 0; i < kOpenersMax; ++i) {
    openers[i] = state.openers[order[i]];
    names[order[i] + 1] = byte_of(static_cast<int>(i) + 1);
  }
  state.openers = openers;
  for_each_engine(state, [&](Engine& engine) {
    for (EpochKeys& keys : engine.epochs) keys.who = names[keys.who];
  });
  for (Region& region : state.regions) {
    for (Header& header : region.headers) header.owner = names[header.owner];
    region.content.owner = names[region.content.owner];
    region.late_header.owner = names[region.late_header.owner];
    for (Payload& payload : region.flight) payload.owner = names[payload.owner];
    std::sort(region.flight.begin(), region.flight.end());
    for (Byte& writer : region.writer_of) writer = names[writer];
  }
}

State with_regions_swapped(const State& state) {
  State next = state;
  for_each_engine(next, [](Engine& engine) { std::swap(engine.regions[0], engine.regions[1]); });
  std::swap(next.regions[0], next.regions[1]);
  for (Opener& opener : next.openers) {
    std::swap(opener.views[0], opener.views[1]);
    if (opener.last_region != 0) opener.last_region = byte_of(3 - opener.last_region);
    if (opener.checked != kNoWrite) opener.checked_region ^= 1;
  }
  return next;
}

}  // namespace

State SharingModel::canonical(const State& state) const {
  State one = state;
  forget_what_does_not_matter(one, rules_, bounds_);
  rename_revisions(one);
  State other = one;
  rename_stamps(one);
  order_openers(one, bounds_.openers);
  if (bounds_.regions < 2 || bounds_.generations_of_the_second > 0) return one;
  other = with_regions_swapped(other);
  rename_stamps(other);
  order_openers(other, bounds_.openers);
  return less_bytes(other, one) ? other : one;
}

}  // namespace kvstore::model
