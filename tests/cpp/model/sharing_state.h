// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The state of the model of docs/sharing.md: what the metadata engine holds, what each opener believes and does, what
// is on the device. Everything is a byte, so that a state is a string of bytes. What the protocol does not know but the
// properties need (who ever had leave to write, what was acknowledged) is marked "ghost".

#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <type_traits>

namespace kvstore::model {

using Byte = uint8_t;
constexpr Byte byte_of(int value) { return static_cast<Byte>(value); }

inline constexpr int kOpenersMax = 3;
inline constexpr int kRegionsMax = 2;
inline constexpr int kEpochsMax = 5;
inline constexpr int kGenerationsMax = 7;
inline constexpr int kUnsettledMax = 3;  // transactions that a failover can still forget
inline constexpr int kFlightMax = 2;     // payload writes of one region on their way

enum Hold : Byte { kAbsent, kFree, kOwned, kSealed, kRetiring };

// r/<device>/<region>. `stamp` is different for every value ever written; `revision` is the engine's, and is not.
struct Record {
  Byte hold = kAbsent;
  Byte generation = 0;
  Byte epoch = 0;
  Byte stamp = 0;
  Byte revision = 0;
  Byte rebuilt = 0;  // S7: made from a header
  auto operator<=>(const Record&) const = default;
  bool same_value(const Record& other) const {
    return hold == other.hold && generation == other.generation && epoch == other.epoch && stamp == other.stamp;
  }
};

// opener/<epoch>, live/<epoch> and read/<epoch>.
struct EpochKeys {
  Byte who = 0;  // opener + 1: the identity, and the nonce of the live key
  Byte live = 0;
  Byte gone = 0;  // it said so itself, or its quarantine is over
  Byte read = 0;
};

struct Engine {
  Byte format = 0;  // the incarnation; 0: wiped
  Byte revision = 0;
  Byte epoch = 0;
  std::array<Byte, kRegionsMax> floors{};      // S7: no life that begins has a lower generation; drawn at random
  std::array<EpochKeys, kEpochsMax> epochs{};  // of epoch e at e - 1
  std::array<Record, kRegionsMax> regions{};
};

// How far an opener is with a region of its own. In this order.
enum Phase : Byte {
  kNone,
  kRetired,       // its record of `retiring` is ours
  kDrained,       // all live openers have let go
  kTaken,         // owned, not read back yet
  kReused,        // the same, after a retiring
  kGranted,       // read back when it could not be forgotten any more
  kHeadersRead,   // the device bears no generation as high
  kHalfOpen,      // H0 is written
  kOpen,          // H0 and H1 are
  kIssued,        // the payload write was issued
  kDescribed,     // the descriptor is on the device: acknowledged
  kHeaderSealed,  // the header says sealed, the record does not yet
};

struct View {
  Record believed;  // the record as it was seen last
  Record own;       // the record as we wrote it last, while `phase`
  Byte phase = kNone;
  Byte unsettled = 0;      // taken over, not read back yet (S6, S2)
  Byte came_back = 0;      // by a failover: its life may have been lived
  Byte entry = 0;          // in the index: the generation; 0: none
  Byte pin = 0;            // a read in flight: the generation it began with
  Byte pin_protected = 0;  // ghost: it began while live and in step
};

enum Write : Byte { kNoWrite, kWriteH0, kWriteH1, kWritePayload, kWriteDescriptor, kWriteSeal };

struct Opener {
  Byte crashed = 0;
  Byte joined = 0;
  Byte in_step = 0;  // has applied a snapshot since it joined
  Byte fresh = 0;    // physical: at most half a lease since the confirmed renewal was asked for
  Byte epoch = 0;
  Byte format = 0;
  Byte seen = 0;         // revision
  Byte last_region = 0;  // the last change seen: region + 1
  Byte last_stamp = 0;   // and its stamp
  Byte watch_broke = 0;
  Byte checked = kNoWrite;  // a write between its check (S3) and its issue, when pauses are modelled
  Byte checked_region = 0;
  Byte checked_generation = 0;
  Byte checked_epoch = 0;
  std::array<View, kRegionsMax> views{};
};

struct Header {
  Byte generation = 0;  // 0: never written, or torn
  Byte epoch = 0;
  Byte owner = 0;  // opener + 1
  Byte sealed = 0;
  auto operator<=>(const Header&) const = default;
};

struct Payload {
  Byte generation = 0;
  Byte owner = 0;
  auto operator<=>(const Payload&) const = default;
};

struct Region {
  std::array<Header, 2> headers{};
  Byte described = 0;  // generation of the descriptor that is there
  Payload content;     // of the slot
  std::array<Payload, kFlightMax> flight{};
  Byte late = kNoWrite;  // a metadata write that a crash left on its way
  Byte late_copy = 0;
  Header late_header;
  // ghosts
  Byte acknowledged = 0;                              // generation
  Byte retired = 0;                                   // highest generation retired by the rules
  Byte in_use = 0;                                    // highest generation a payload write was issued for
  Byte highest = 0;                                   // generation ever in a record
  Byte damaged = 0;                                   // generation that a ghost write of an earlier one hit
  std::array<Byte, kGenerationsMax + 1> writer_of{};  // opener + 1 that had leave to write this generation
};

struct State {
  Byte crashes = 0, failovers = 0, wipes = 0, replies_lost = 0;
  Byte stamps = 0;  // highest in use
  Byte incarnations = 1;
  Byte epochs_given = 0;  // ghost: the highest epoch ever given
  Byte unsettled = 0;     // transactions that can be forgotten
  Engine engine;
  std::array<Engine, kUnsettledMax> before{};  // the engine before each of them, oldest first
  std::array<Opener, kOpenersMax> openers{};
  std::array<Region, kRegionsMax> regions{};
};

static_assert(std::is_trivially_copyable_v<State>);

}  // namespace kvstore::model
