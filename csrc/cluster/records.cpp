// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "cluster/records.h"

#include <array>
#include <charconv>
#include <vector>

#include "format/descriptor.h"

namespace kvstore::cluster {

namespace {

constexpr size_t kTextBytesMax = 8 * kMiB;  // etcd takes at most 1.5 MiB
constexpr size_t kStampBytesMax = 64;
constexpr uint32_t kSlotsMax = 1u << 24;
constexpr uint32_t kBitsPerDigit = 4;
constexpr std::array<std::string_view, 4> kHoldNames = {"free", "owned", "sealed", "retiring"};

std::string number_text(uint64_t number) { return std::to_string(number); }

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  if (text.size() > kTextBytesMax) return words;
  while (true) {
    const size_t end = text.find(' ');
    words.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return words;
    text.remove_prefix(end + 1);
  }
}

std::optional<uint32_t> digit_of(char character) {
  if (character >= '0' && character <= '9') return static_cast<uint32_t>(character - '0');
  if (character >= 'a' && character <= 'f') return static_cast<uint32_t>(character - 'a' + 10);
  return std::nullopt;
}

}  // namespace

std::optional<uint64_t> decode_number(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string encode(const RegionRecord& record) {
  return std::string(kHoldNames[static_cast<size_t>(record.hold)]) + " " + number_text(record.generation.value) + " " +
         number_text(record.epoch) + " " + record.stamp;
}

std::optional<RegionRecord> decode_region_record(std::string_view text) {
  const auto words = words_of(text);
  if (words.size() != 4 || words[3].size() > kStampBytesMax) return std::nullopt;
  RegionRecord record;
  size_t hold = 0;
  while (hold < kHoldNames.size() && kHoldNames[hold] != words[0]) ++hold;
  const auto generation = decode_number(words[1]);
  const auto epoch = decode_number(words[2]);
  if (hold == kHoldNames.size() || !generation || !epoch) return std::nullopt;
  record.hold = static_cast<Hold>(hold);
  record.generation = Generation{*generation};
  record.epoch = *epoch;
  record.stamp = words[3];
  return record;
}

std::string encode(const Opener& opener) {
  return format::uuid_text(opener.host) + " " + format::uuid_text(opener.boot) + " " +
         number_text(opener.process_namespace) + " " + number_text(opener.process_id) + " " +
         number_text(opener.process_start) + " " + number_text(opener.lost_seconds) + " " +
         (opener.gone ? "gone" : "-");
}

std::optional<Opener> decode_opener(std::string_view text) {
  const auto words = words_of(text);
  if (words.size() != 7) return std::nullopt;
  const auto host = format::parse_uuid(words[0]);
  const auto boot = format::parse_uuid(words[1]);
  std::array<uint64_t, 4> numbers{};
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto number = decode_number(words[i + 2]);
    if (!number) return std::nullopt;
    numbers[i] = *number;
  }
  if (!host || !boot) return std::nullopt;
  return Opener{.host = *host,
                .boot = *boot,
                .process_namespace = numbers[0],
                .process_id = numbers[1],
                .process_start = numbers[2],
                .lost_seconds = numbers[3],
                .gone = words[6] == "gone"};
}

std::string encode(const DeadSlots& dead) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = number_text(dead.generation.value) + " ";
  for (uint32_t first = 0; first < dead.slots.slot_count(); first += kBitsPerDigit) {
    uint32_t digit = 0;
    for (uint32_t bit = 0; bit < kBitsPerDigit; ++bit) {
      digit |= static_cast<uint32_t>(dead.slots.test(SlotIndex{first + bit})) << bit;
    }
    text += kDigits[digit];
  }
  return text;
}

std::optional<DeadSlots> decode_dead_slots(std::string_view text) {
  const auto words = words_of(text);
  if (words.size() != 2 || words[1].size() > kSlotsMax / kBitsPerDigit) return std::nullopt;
  const auto generation = decode_number(words[0]);
  if (!generation) return std::nullopt;
  DeadSlots dead{Generation{*generation}, format::DeadBitmap(static_cast<uint32_t>(words[1].size()) * kBitsPerDigit)};
  for (uint32_t i = 0; i < words[1].size(); ++i) {
    const auto digit = digit_of(words[1][i]);
    if (!digit) return std::nullopt;
    for (uint32_t bit = 0; bit < kBitsPerDigit; ++bit) {
      if ((*digit >> bit & 1) != 0) dead.slots.set(SlotIndex{i * kBitsPerDigit + bit});
    }
  }
  return dead;
}

std::string pool_prefix(const format::Uuid& pool_uuid) { return "kvstore/" + format::uuid_text(pool_uuid) + "/"; }

std::string opener_key(uint64_t epoch) { return "opener/" + number_text(epoch); }
std::string live_key(uint64_t epoch) { return "live/" + number_text(epoch); }
std::string read_key(uint64_t epoch) { return "read/" + number_text(epoch); }
std::string hits_key(uint64_t epoch) { return "hits/" + number_text(epoch); }

namespace {

std::string in_folder(std::string_view folder, const RegionKey& region) {
  return std::string(folder) + number_text(region.device) + "/" + number_text(region.region);
}

}  // namespace

std::string region_key(const RegionKey& region) { return in_folder("r/", region); }
std::string dead_key(const RegionKey& region) { return in_folder("dead/", region); }

std::optional<uint64_t> parse_epoch_key(std::string_view key, std::string_view folder) {
  if (!key.starts_with(folder)) return std::nullopt;
  return decode_number(key.substr(folder.size()));
}

std::optional<RegionKey> parse_region_key(std::string_view key, std::string_view folder) {
  if (!key.starts_with(folder)) return std::nullopt;
  key.remove_prefix(folder.size());
  const size_t slash = key.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const auto device = decode_number(key.substr(0, slash));
  const auto region = decode_number(key.substr(slash + 1));
  if (!device || !region || *device >= format::kMembersMax || *region >= format::kRegionsMax) return std::nullopt;
  return RegionKey{static_cast<uint16_t>(*device), static_cast<uint32_t>(*region)};
}

}  // namespace kvstore::cluster
