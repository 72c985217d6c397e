// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "format/dictionary.h"

#include <cstring>
#include <iterator>

#include "base/mutation.h"
#include "format/descriptor.h"

namespace kvstore::format {
namespace {

constexpr size_t kPrefixBytes = 3;  // u8 kind, u16 length
constexpr size_t kBodyBytes = kPageBytes - sizeof(BlockHeader);
static_assert(kDictionaryTextBytesMax + kPrefixBytes == kBodyBytes);

size_t packed_bytes(std::string_view text) { return kPrefixBytes + text.size(); }

std::string known_name(DictionaryKind kind, std::string_view text) {
  std::string name(1, static_cast<char>(kind));
  name.append(text);
  return name;
}

}  // namespace

std::optional<uint16_t> DictionaryWriter::add(DictionaryKind kind, std::string_view text) {
  std::string name = known_name(kind, text);
  if (const auto found = known_.find(name); found != known_.end()) return found->second;
  if (text.size() > kDictionaryTextBytesMax || size_ >= kNoSalt) return std::nullopt;

  const bool fits_last = staged_blocks_ > 0 && staged_bytes_ + packed_bytes(text) <= kBodyBytes;
  if (!fits_last) {
    if (blocks_used_ + staged_blocks_ >= blocks_max_) return std::nullopt;
    ++staged_blocks_;
    staged_bytes_ = 0;
  }
  staged_bytes_ += static_cast<uint32_t>(packed_bytes(text));
  staged_.push_back({kind, std::string(text)});
  const auto index = static_cast<uint16_t>(size_++);
  known_.emplace(std::move(name), index);
  return index;
}

std::vector<DictionaryWriter::EncodedBlock> DictionaryWriter::take_blocks(const BlockHeader& identity) {
  std::vector<EncodedBlock> blocks;
  size_t next = 0;
  while (next < staged_.size()) {
    EncodedBlock block{blocks_used_++, std::vector<uint8_t>(kPageBytes)};
    uint8_t* const body = block.page.data() + sizeof(BlockHeader);
    size_t used = 0;
    BlockHeader header = identity;
    header.kind = BlockKind::kDictionary;
    header.number = block.number;
    header.count = 0;
    for (; next < staged_.size() && used + packed_bytes(staged_[next].text) <= kBodyBytes; ++next) {
      const DictionaryEntry& entry = staged_[next];
      const auto length = static_cast<uint16_t>(entry.text.size());
      body[used] = static_cast<uint8_t>(entry.kind);
      std::memcpy(body + used + 1, &length, sizeof(length));
      std::memcpy(body + used + kPrefixBytes, entry.text.data(), entry.text.size());
      used += packed_bytes(entry.text);
      ++header.count;
    }
    write_block_header(header, block.page);
    blocks.push_back(std::move(block));
  }
  staged_.clear();
  staged_blocks_ = 0;
  staged_bytes_ = 0;
  return blocks;
}

uint32_t DictionaryWriter::size() const { return size_; }

Status decode_dictionary_block(std::span<const uint8_t> page, const ExpectedBlock& expected, uint64_t generation,
                               std::vector<DictionaryEntry>& entries) {
  KVS_ASSIGN(const BlockHeader header, read_block_header(page, expected));
  if (header.generation != generation && KVS_RULE(I2_strings_of_earlier_lives_are_ignored)) {
    return Status(
        Code::kStale,
        format_text("region %u, dictionary block %u: of generation %llu, not %llu", header.region, header.number,
                    static_cast<unsigned long long>(header.generation), static_cast<unsigned long long>(generation)));
  }
  const std::span<const uint8_t> body = page.subspan(sizeof(BlockHeader));
  const auto corrupt = [&](uint32_t string) {
    return Status(Code::kCorrupt, format_text("region %u, dictionary block %u: string %u of %u does not parse",
                                              header.region, header.number, string, header.count));
  };
  std::vector<DictionaryEntry> parsed;  // appended whole or not at all
  size_t used = 0;
  for (uint32_t i = 0; i < header.count; ++i) {
    if (body.size() - used < kPrefixBytes) return corrupt(i);
    const auto kind = static_cast<DictionaryKind>(body[used]);
    uint16_t length = 0;
    std::memcpy(&length, body.data() + used + 1, sizeof(length));
    used += kPrefixBytes;
    if (kind != DictionaryKind::kSpace && kind != DictionaryKind::kSalt) return corrupt(i);
    if (length > body.size() - used) return corrupt(i);
    parsed.push_back({kind, std::string(reinterpret_cast<const char*>(body.data() + used), length)});
    used += length;
  }
  entries.insert(entries.end(), std::make_move_iterator(parsed.begin()), std::make_move_iterator(parsed.end()));
  return Status();
}

}  // namespace kvstore::format
