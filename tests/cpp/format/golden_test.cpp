// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the bytes on a device never change unnoticed: a store that was written yesterday opens today.
// Method: each struct is encoded from a fixed value and compared with golden/<name>_v<version>.hex; that the same
// values are decoded from the same bytes is what the round trips of the other tests show. With
// KVSTORE_WRITE_GOLDEN=1 files that do not exist are written; existing ones never are.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <string>
#include <vector>

#include "format/samples.h"

namespace kvstore::format {
namespace {

constexpr size_t kLineBytes = 32;

// "<offset>: <32 bytes>" in hex; lines of zeros are left out.
std::string to_hex(std::span<const uint8_t> bytes) {
  std::ostringstream text;
  text << std::hex << std::setfill('0');
  text << "bytes " << std::setw(4) << bytes.size() << "\n";
  for (size_t start = 0; start < bytes.size(); start += kLineBytes) {
    const auto line = bytes.subspan(start, std::min(kLineBytes, bytes.size() - start));
    if (std::all_of(line.begin(), line.end(), [](uint8_t byte) { return byte == 0; })) continue;
    text << std::setw(4) << start << ": ";
    for (const uint8_t byte : line) text << std::setw(2) << static_cast<unsigned>(byte);
    text << "\n";
  }
  return text.str();
}

std::filesystem::path golden_path(const std::string& name) {
  const std::string file = name + "_v" + std::to_string(kFormatVersion) + ".hex";
  return std::filesystem::path(__FILE__).parent_path() / "golden" / file;
}

void expect_golden(const std::string& name, std::span<const uint8_t> bytes) {
  const std::filesystem::path path = golden_path(name);
  const std::string found = to_hex(bytes);
  if (!std::filesystem::exists(path) && std::getenv("KVSTORE_WRITE_GOLDEN") != nullptr) std::ofstream(path) << found;
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing. After a change of the format: raise kFormatVersion (format/superblock.h), "
                    << "run this test once with KVSTORE_WRITE_GOLDEN=1, commit the file, and add a line to the "
                    << "version history of docs/on_disk_format.md.";
  std::ostringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(found, golden.str()) << "The bytes of " << name
                                 << " on the device have changed: stores made before would be "
                                 << "misread. If that is meant, kFormatVersion (format/superblock.h) must be raised.";
}

TEST(GoldenBytes, Superblock) {
  samples::Pages page;
  encode_superblock(samples::superblock(), 2, page);
  expect_golden("superblock", page);
}

TEST(GoldenBytes, RegionHeader) {
  samples::Pages page;
  encode_region_header(samples::region_header(), samples::uuid(0x20), 1, page);
  expect_golden("region_header", page);
}

TEST(GoldenBytes, DescriptorBlock) {
  samples::Pages page;
  std::vector<Descriptor> descriptors = samples::descriptors(3);
  const StoredKey digest = make_stored_key(std::string(100, 'k'));
  std::memcpy(descriptors[2].key, digest.bytes, sizeof(digest.bytes));
  descriptors[2].key_bytes = digest.size;
  descriptors[2].flags = kDescriptorValid | kDescriptorKeyIsDigest | kDescriptorPageHashes;
  encode_descriptor_block(BlockKind::kDescriptors, samples::identity(), descriptors, page);
  expect_golden("descriptor_block", page);
}

TEST(GoldenBytes, TailBlock) {
  samples::Pages page;
  encode_descriptor_block(BlockKind::kTail, samples::identity(), samples::descriptors(2), page);
  expect_golden("tail_block", page);
}

TEST(GoldenBytes, Dictionary) {
  DictionaryWriter writer(1);
  writer.add(DictionaryKind::kSpace, R"({"engine":"vllm","model":"m"})");
  writer.add(DictionaryKind::kSalt, "user-7");
  writer.add(DictionaryKind::kSalt, "");
  expect_golden("dictionary", writer.take_blocks(samples::identity()).at(0).page);
}

TEST(GoldenBytes, Bitmap) {
  samples::Pages copy;
  encode_bitmap(samples::bitmap(), samples::identity(), copy);
  expect_golden("bitmap", copy);
}

// Where everything is, for a geometry that is given (how one is chosen may change freely).
TEST(GoldenBytes, Layout) {
  const Geometry g = samples::geometry();
  std::vector<uint64_t> offsets;
  for (const uint64_t offset : g.superblock_offsets()) offsets.push_back(offset);
  for (const uint32_t region : {0u, 5u}) {
    const RegionId id(region);
    for (uint32_t copy = 0; copy < 2; ++copy) {
      offsets.push_back(g.header_offset(id, copy));
      offsets.push_back(g.dictionary_offset(id, copy));
      offsets.push_back(g.bitmap_offset(id, copy));
      offsets.push_back(g.tail_offset(id, copy));
      offsets.push_back(g.descriptor_block_offset(id, copy));
    }
    offsets.push_back(g.region_offset(id));
    offsets.push_back(g.extent_offset(id, 12 * kKiB, SlotIndex(3)));
  }
  expect_golden("layout", {reinterpret_cast<const uint8_t*>(offsets.data()), offsets.size() * sizeof(uint64_t)});
}

}  // namespace
}  // namespace kvstore::format
