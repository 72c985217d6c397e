// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "model/explorer.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

namespace kvstore::model {

namespace {

constexpr uint32_t kNowhere = UINT32_MAX;

// States by number, in the order they were found, and the number of each.
class StateSet {
 public:
  explicit StateSet(const Bounds& bounds) {
    const auto part = [this](size_t offset, size_t bytes) { parts_.emplace_back(offset, bytes); };
    const auto engine = [&](size_t offset) {
      part(offset, offsetof(Engine, epochs) + static_cast<size_t>(bounds.epochs) * sizeof(EpochKeys));
      part(offset + offsetof(Engine, regions), static_cast<size_t>(bounds.regions) * sizeof(Record));
    };
    part(0, offsetof(State, engine));
    engine(offsetof(State, engine));
    for (size_t i = 0; i < static_cast<size_t>(bounds.unsettled); ++i) {
      engine(offsetof(State, before) + i * sizeof(Engine));
    }
    for (size_t o = 0; o < static_cast<size_t>(bounds.openers); ++o) {
      part(offsetof(State, openers) + o * sizeof(Opener),
           offsetof(Opener, views) + static_cast<size_t>(bounds.regions) * sizeof(View));
    }
    part(offsetof(State, regions), static_cast<size_t>(bounds.regions) * sizeof(Region));
    for (const auto& [offset, bytes] : parts_) stride_ += bytes;
    slots_.assign(1 << 16, kNowhere);
  }

  uint32_t size() const { return static_cast<uint32_t>(parents_.size()); }
  uint32_t parent(uint32_t number) const { return parents_[number]; }

  State at(uint32_t number) const {
    State state;
    const Byte* from = bytes_.data() + static_cast<size_t>(number) * stride_;
    for (const auto& [offset, bytes] : parts_) {
      std::memcpy(reinterpret_cast<Byte*>(&state) + offset, from, bytes);
      from += bytes;
    }
    return state;
  }

  // Its number, and whether it was not there before.
  std::pair<uint32_t, bool> add(const State& state, uint32_t parent) {
    if (size() >= slots_.size() / 2) grow();
    const size_t start = bytes_.size();
    bytes_.resize(start + stride_);
    Byte* to = bytes_.data() + start;
    for (const auto& [offset, bytes] : parts_) {
      std::memcpy(to, reinterpret_cast<const Byte*>(&state) + offset, bytes);
      to += bytes;
    }
    size_t slot = hash(bytes_.data() + start) & (slots_.size() - 1);
    for (; slots_[slot] != kNowhere; slot = (slot + 1) & (slots_.size() - 1)) {
      const size_t there = static_cast<size_t>(slots_[slot]) * stride_;
      if (std::memcmp(bytes_.data() + there, bytes_.data() + start, stride_) != 0) continue;
      bytes_.resize(start);
      return {slots_[slot], false};
    }
    slots_[slot] = size();
    parents_.push_back(parent);
    return {slots_[slot], true};
  }

 private:
  uint64_t hash(const Byte* bytes) const {
    uint64_t sum = 0x9e3779b97f4a7c15u;
    size_t at = 0;
    for (; at + 8 <= stride_; at += 8) {
      uint64_t word;
      std::memcpy(&word, bytes + at, 8);
      sum = (sum ^ word) * 0xff51afd7ed558ccdu;
      sum ^= sum >> 32;
    }
    uint64_t rest = 0;
    std::memcpy(&rest, bytes + at, stride_ - at);
    sum = (sum ^ rest) * 0xc4ceb9fe1a85ec53u;
    return sum ^ sum >> 29;
  }

  void grow() {
    slots_.assign(slots_.size() * 2, kNowhere);
    for (uint32_t number = 0; number < size(); ++number) {
      size_t slot = hash(bytes_.data() + static_cast<size_t>(number) * stride_) & (slots_.size() - 1);
      while (slots_[slot] != kNowhere) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = number;
    }
  }

  std::vector<std::pair<size_t, size_t>> parts_;  // of State: offset and bytes
  size_t stride_ = 0;
  std::vector<Byte> bytes_;
  std::vector<uint32_t> parents_;
  std::vector<uint32_t> slots_;  // open addressing
};

bool same_state(const State& left, const State& right) { return std::memcmp(&left, &right, sizeof(State)) == 0; }

std::string line_of(const Step& step) {
  std::string text;
  if (step.opener >= 0) text += "opener " + std::to_string(step.opener) + ": ";
  text += step.what;
  if (step.reply_lost) text += ", and its reply is lost";
  if (step.region >= 0) text += " (region " + std::to_string(step.region) + ")";
  return text;
}

// The way to a state, walked again without renaming, so that an opener keeps its name from line to line.
std::string trace_to(const SharingModel& model, const StateSet& states, uint32_t number,
                     const std::string& last_violation) {
  std::vector<uint32_t> way;
  for (; number != kNowhere; number = states.parent(number)) way.push_back(number);
  std::reverse(way.begin(), way.end());
  State now = model.initial();
  std::string text;
  const auto add = [&](const Step& step, const State& state) {
    text += line_of(step) + "\n      " + describe(state, model.bounds()) + "\n";
  };
  for (size_t i = 1; i < way.size(); ++i) {
    const State wanted = states.at(way[i]);
    bool found = false;
    const State from = now;
    model.steps(from, [&](const State& next, const Step& step) {
      if (found || !same_state(model.canonical(next), wanted)) return;
      found = true;
      now = next;
      add(step, next);
    });
    if (found) continue;
    // Openers that were alike got other names here than in the search.
    now = wanted;
    text += "(openers renamed)\n      " + describe(now, model.bounds()) + "\n";
  }
  bool found = false;
  model.steps(State(now), [&](const State& next, const Step& step) {
    if (found || step.violation == nullptr || last_violation != step.violation) return;
    found = true;
    add(step, next);
  });
  return text;
}

// P5: which states have no way to one that satisfies it; steps as pairs (to, from). The first of them, or kNowhere.
uint32_t first_without_way_out(std::vector<std::pair<uint32_t, uint32_t>>& steps, std::vector<bool>& reaches) {
  std::sort(steps.begin(), steps.end());
  std::vector<uint32_t> queue;
  for (uint32_t number = 0; number < reaches.size(); ++number) {
    if (reaches[number]) queue.push_back(number);
  }
  while (!queue.empty()) {
    const uint32_t to = queue.back();
    queue.pop_back();
    for (auto step = std::lower_bound(steps.begin(), steps.end(), std::pair{to, 0u});
         step != steps.end() && step->first == to; ++step) {
      if (reaches[step->second]) continue;
      reaches[step->second] = true;
      queue.push_back(step->second);
    }
  }
  const auto stuck = std::find(reaches.begin(), reaches.end(), false);
  return stuck == reaches.end() ? kNowhere : static_cast<uint32_t>(stuck - reaches.begin());
}

}  // namespace

Exploration explore(const SharingModel& model, const ExploreOptions& options) {
  Exploration result;
  StateSet states(model.bounds());
  states.add(model.canonical(model.initial()), kNowhere);
  std::vector<std::pair<uint32_t, uint32_t>> ways;
  std::vector<bool> can_put;
  uint32_t level_end = 1;

  for (uint32_t number = 0; number < states.size() && result.violation.empty(); ++number) {
    if (number == level_end) {
      ++result.depth;
      level_end = states.size();
    }
    if (states.size() > options.states_max) {
      result.states = states.size();
      return result;
    }
    const State state = states.at(number);
    if (options.ways_out) can_put.push_back(model.can_put(state));
    model.steps(state, [&](const State& next, const Step& step) {
      if (!result.violation.empty()) return;
      ++result.steps;
      if (step.violation != nullptr) {
        result.violation = step.violation;
        result.trace = trace_to(model, states, number, step.violation);
        return;
      }
      const auto [found, is_new] = states.add(model.canonical(next), number);
      if (options.ways_out && !step.fault) ways.emplace_back(found, number);
      if (!is_new) return;
      if (const char* violation = model.violation(next)) {
        result.violation = violation;
        result.trace = trace_to(model, states, found, {});
      }
    });
  }
  result.states = states.size();
  result.complete = result.violation.empty();
  if (options.ways_out && result.complete) {
    const uint32_t stuck = first_without_way_out(ways, can_put);
    if (stuck != kNowhere) {
      result.violation = "P5: from here nobody will ever put again";
      result.trace = trace_to(model, states, stuck, {});
    }
  }
  return result;
}

}  // namespace kvstore::model
