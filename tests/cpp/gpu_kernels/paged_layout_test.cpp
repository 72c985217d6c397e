// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the strides of each engine's layout are those of its tensor, and nothing that wraps around, overlaps, is
// unaligned or ends outside a tensor is accepted; the message says what.
// Method: each layout against the row-major index of its tensor; random strides against a count of every byte; one
// wrong number at a time.

#include "gpu/paged_layout.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "gpu/move_plan.h"

namespace kvstore::gpu {
namespace {

constexpr CacheShape kShape = {.layers = 3, .cache_blocks = 5, .block_tokens = 4, .heads = 2, .head_bytes = 48};
constexpr uint64_t kPlaneBytes = 5 * 4 * 2 * 48;

struct Index {
  uint64_t size;
  uint64_t at;
};

// Of an element of a dense tensor, in bytes.
uint64_t row_major(std::initializer_list<Index> indices) {
  uint64_t element = 0;
  for (const Index& index : indices) element = element * index.size + index.at;
  return element * kShape.head_bytes;
}

uint64_t address_of(const PagedLayout& layout, uint64_t layer, uint64_t kv, uint64_t block, uint64_t token,
                    uint64_t head) {
  return layout.planes[layer * layout.kv_count + kv] + block * layout.block_stride_bytes +
         token * layout.token_stride_bytes + head * layout.head_stride_bytes;
}

std::vector<DeviceSpan> tensors(uint64_t count, uint64_t bytes) {
  std::vector<DeviceSpan> spans;
  for (uint64_t i = 0; i < count; ++i) spans.push_back({0x10000 + i * 0x10000, bytes});
  return spans;
}

// Calls `expect(layer, kv, block, token, head)` for all of them.
template <typename Expect>
void for_each_head(uint64_t kv_count, uint64_t heads, Expect expect) {
  for (uint64_t layer = 0; layer < 3; ++layer) {
    for (uint64_t kv = 0; kv < kv_count; ++kv) {
      for (uint64_t block = 0; block < 5; ++block) {
        for (uint64_t token = 0; token < 4; ++token) {
          for (uint64_t head = 0; head < heads; ++head) expect(layer, kv, block, token, head);
        }
      }
    }
  }
}

TEST(PagedLayout, LayerFirstHasATensorForKAndForVOfEachLayer) {
  const auto layout = layer_first(kShape, tensors(6, kPlaneBytes));
  ASSERT_TRUE(layout.ok()) << layout.status().to_string();
  for_each_head(2, 2, [&](uint64_t layer, uint64_t kv, uint64_t block, uint64_t token, uint64_t head) {
    ASSERT_EQ(address_of(layout.value(), layer, kv, block, token, head),
              0x10000 + (layer * 2 + kv) * 0x10000 + row_major({{5, block}, {4, token}, {2, head}}));
  });
  EXPECT_EQ(layout.value().run_bytes(), 4u * 2 * 48) << "a whole cache block";
}

TEST(PagedLayout, TwoMajorHasKBeforeV) {
  const auto layout = two_major(kShape, tensors(3, 2 * kPlaneBytes));
  ASSERT_TRUE(layout.ok()) << layout.status().to_string();
  for_each_head(2, 2, [&](uint64_t layer, uint64_t kv, uint64_t block, uint64_t token, uint64_t head) {
    ASSERT_EQ(address_of(layout.value(), layer, kv, block, token, head),
              0x10000 + layer * 0x10000 + row_major({{2, kv}, {5, block}, {4, token}, {2, head}}));
  });
}

TEST(PagedLayout, BlockFirstHasKAndVOfABlockTogether) {
  const auto layout = block_first(kShape, tensors(3, 2 * kPlaneBytes));
  ASSERT_TRUE(layout.ok()) << layout.status().to_string();
  for_each_head(2, 2, [&](uint64_t layer, uint64_t kv, uint64_t block, uint64_t token, uint64_t head) {
    ASSERT_EQ(address_of(layout.value(), layer, kv, block, token, head),
              0x10000 + layer * 0x10000 + row_major({{5, block}, {2, kv}, {4, token}, {2, head}}));
  });
}

TEST(PagedLayout, HeadsFirstPutsTheTokensOfAHeadTogether) {
  CacheShape shape = kShape;
  shape.heads_first = true;
  const auto layout = block_first(shape, tensors(3, 2 * kPlaneBytes));
  ASSERT_TRUE(layout.ok()) << layout.status().to_string();
  for_each_head(2, 2, [&](uint64_t layer, uint64_t kv, uint64_t block, uint64_t token, uint64_t head) {
    ASSERT_EQ(address_of(layout.value(), layer, kv, block, token, head),
              0x10000 + layer * 0x10000 + row_major({{5, block}, {2, kv}, {2, head}, {4, token}}));
  });
  EXPECT_EQ(layout.value().run_bytes(), 48u) << "one head of one token";
}

TEST(PagedLayout, CrossLayerHasAllLayersOfABlockTogether) {
  const auto layout = cross_layer(kShape, {0x10000, 6 * kPlaneBytes});
  ASSERT_TRUE(layout.ok()) << layout.status().to_string();
  for_each_head(2, 2, [&](uint64_t layer, uint64_t kv, uint64_t block, uint64_t token, uint64_t head) {
    ASSERT_EQ(address_of(layout.value(), layer, kv, block, token, head),
              0x10000 + row_major({{5, block}, {3, layer}, {2, kv}, {4, token}, {2, head}}));
  });
}

TEST(PagedLayout, MlaHasOneLatentAToken) {
  CacheShape shape = kShape;
  shape.heads = 1;
  const auto layout = mla(shape, tensors(3, kPlaneBytes / 2));
  ASSERT_TRUE(layout.ok()) << layout.status().to_string();
  for_each_head(1, 1, [&](uint64_t layer, uint64_t, uint64_t block, uint64_t token, uint64_t) {
    ASSERT_EQ(address_of(layout.value(), layer, 0, block, token, 0),
              0x10000 + layer * 0x10000 + row_major({{5, block}, {4, token}}));
  });
  EXPECT_EQ(mla(kShape, tensors(3, kPlaneBytes)).status().message(),
            "paged cache: MLA has one latent a token, not 2 heads");
}

TEST(PagedLayout, ATensorThatIsTooSmallOrMissingIsNamed) {
  EXPECT_EQ(layer_first(kShape, tensors(6, kPlaneBytes - 1)).status().message(),
            "paged cache: tensor 0 has 1919 bytes: the layout takes 1920");
  EXPECT_EQ(two_major(kShape, tensors(2, 2 * kPlaneBytes)).status().message(),
            "paged cache: 2 tensors: this layout has 3");
  EXPECT_EQ(cross_layer(kShape, {~uint64_t{0} - 100, 6 * kPlaneBytes}).status().message(),
            "paged cache: tensor 0: 11520 bytes at address 0xffffffffffffff9b leave the address space");
}

// Whether two of all the runs have a byte in common, by counting.
bool bytes_overlap(const PagedLayout& layout) {
  std::map<uint64_t, int> owners;
  for_each_head(layout.kv_count, layout.heads,
                [&](uint64_t layer, uint64_t kv, uint64_t block, uint64_t token, uint64_t head) {
                  if (layer >= layout.layers || block >= layout.cache_blocks || token >= layout.block_tokens) return;
                  const uint64_t address = address_of(layout, layer, kv, block, token, head);
                  for (uint64_t unit = 0; unit < layout.head_bytes; unit += kUnitBytes) ++owners[address + unit];
                });
  for (const auto& [address, count] : owners) {
    if (count > 1) return true;
  }
  return false;
}

// Nested strides without overlap are accepted, whatever the nesting; anything that overlaps is refused.
TEST(PagedLayout, RandomStridesAreAcceptedOnlyWithoutOverlap) {
  int accepted = 0, refused = 0;
  for (uint64_t seed = 0; seed < 20'000; ++seed) {
    SeededRandom random(seed);
    PagedLayout layout;
    layout.layers = static_cast<uint32_t>(1 + random.below(2));
    layout.kv_count = static_cast<uint32_t>(1 + random.below(2));
    layout.cache_blocks = static_cast<uint32_t>(1 + random.below(3));
    layout.block_tokens = static_cast<uint32_t>(1 + random.below(3));
    layout.heads = static_cast<uint32_t>(1 + random.below(2));
    layout.head_bytes = static_cast<uint32_t>(kUnitBytes * (1 + random.below(2)));
    layout.block_stride_bytes = kUnitBytes * random.below(20);
    layout.token_stride_bytes = kUnitBytes * random.below(10);
    layout.head_stride_bytes = kUnitBytes * random.below(6);
    for (uint64_t i = 0; i < layout.plane_count(); ++i) {
      layout.planes.push_back(0x1000 + kUnitBytes * random.below(40));
    }
    const Status status = layout.validate();
    if (status.ok()) {
      ++accepted;
      ASSERT_FALSE(bytes_overlap(layout)) << "seed " << seed;
    } else {
      ++refused;
      // Strides that are not nested are refused without a look at the bytes; of nested ones only overlap is.
      if (status.message().ends_with("bytes apart")) {
        ASSERT_TRUE(bytes_overlap(layout)) << "seed " << seed;
      }
    }
  }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(refused, 500);
}

TEST(PagedLayout, EachWrongNumberIsRefusedByName) {
  const PagedLayout good = layer_first(kShape, tensors(6, kPlaneBytes)).value();
  const auto message = [&good](auto change) {
    PagedLayout layout = good;
    change(layout);
    return layout.validate().message();
  };
  EXPECT_EQ(message([](PagedLayout&) {}), "");
  EXPECT_EQ(message([](PagedLayout& layout) { layout.head_bytes = 40; }),
            "paged cache: head_bytes is 40, not a multiple of 16 bytes: use the copies of the host path for it");
  EXPECT_EQ(message([](PagedLayout& layout) { layout.planes[3] += 8; }),
            "paged cache: address of layer 1, kv 1 is 262152, not a multiple of 16 bytes: use the copies of the host "
            "path for it");
  EXPECT_EQ(message([](PagedLayout& layout) { layout.token_stride_bytes = 80; }),
            "paged cache: token stride 80 is less than the 96 bytes that it steps over: they would overlap");
  EXPECT_EQ(message([](PagedLayout& layout) { layout.block_stride_bytes = uint64_t{1} << 62; }),
            "paged cache: 4 steps of the block stride 4611686018427387904 leave the address space");
  EXPECT_EQ(message([](PagedLayout& layout) { layout.planes[5] = layout.planes[0] + 384; }),
            "paged cache: layer 0, kv 0 and layer 2, kv 1 overlap: they are 384 bytes apart");
  EXPECT_EQ(message([](PagedLayout& layout) { layout.planes[0] = 0; }),
            "paged cache: layer 0, kv 0 at address 0x0 and 1920 bytes on: no such memory");
  EXPECT_EQ(message([](PagedLayout& layout) { layout.planes.pop_back(); }),
            "paged cache: 5 plane addresses for 3 layers of 2: give 6");
  EXPECT_EQ(message([](PagedLayout& layout) { layout.kv_count = 3; }),
            "paged cache: kv_count is 3: give 2 (keys and values) or 1 (MLA)");
  EXPECT_EQ(message([](PagedLayout& layout) { layout.block_tokens = 0; }),
            "paged cache: 3 layers, 5 cache blocks, 0 tokens a block, 2 heads of 48 bytes: none may be 0");
  EXPECT_EQ(message([](PagedLayout& layout) { layout.heads = layout.block_tokens = UINT32_MAX; }),
            "paged cache: a cache block has 4294967295 tokens of 206158430160 bytes a layer: at most 67108864 bytes "
            "together");
  EXPECT_EQ(message([](PagedLayout& layout) { layout.layers = 100'000; }), "paged cache: 100000 layers: at most 1024");
}

std::string plan_message(Direction direction, std::vector<ExtentMove> moves, LayerRange layers = {}) {
  static const PagedLayout layout = layer_first(kShape, tensors(6, kPlaneBytes)).value();
  MovePlan plan;
  return make_plan(layout, direction, moves, layers, plan).message();
}

TEST(MovePlan, EachWrongNumberIsRefusedByName) {
  constexpr Direction kIn = Direction::kScatter;
  const uint64_t bytes = 6 * 7 * 96;  // planes, tokens, bytes of a token
  const DeviceSpan extent = {0x100000, bytes};
  const std::vector<int64_t> blocks = {4, 0}, outside = {4, 5}, negative = {-2, 0}, twice = {3, 3}, one = {1};
  EXPECT_EQ(plan_message(kIn, {{extent, 7, blocks}}), "");
  EXPECT_EQ(plan_message(Direction::kGather, {{extent, 7, twice}}), "") << "reading twice is no race";
  EXPECT_EQ(plan_message(kIn, {{extent, 7, twice}}), "cache block 3 is written twice by one transfer");
  EXPECT_EQ(plan_message(kIn, {{extent, 7, blocks}, {{0x200000, 6 * 4 * 96}, 4, {blocks.data(), 1}}}),
            "cache block 4 is written twice by one transfer");
  EXPECT_EQ(plan_message(kIn, {{extent, 7, outside}}), "extent 0 of the transfer: cache block 5: the cache has 0 to 4");
  EXPECT_EQ(plan_message(kIn, {{extent, 7, negative}}),
            "extent 0 of the transfer: cache block -2: the cache has 0 to 4");
  EXPECT_EQ(plan_message(kIn, {{extent, 7, one}}),
            "extent 0 of the transfer: 1 cache blocks for 7 tokens: give 2, of 4 tokens each");
  EXPECT_EQ(plan_message(kIn, {{{0x100000, bytes - 1}, 7, blocks}}),
            "extent 0 of the transfer: 4031 bytes, but 7 tokens of 3 layers take 4032");
  EXPECT_EQ(plan_message(kIn, {{{0x100008, bytes}, 7, blocks}}),
            "extent 0 of the transfer: address 0x100008: give memory that is aligned to 16 bytes");
  EXPECT_EQ(plan_message(kIn, {{{0x20770, bytes}, 7, blocks}}),
            "extent 0 of the transfer: 0x20770 lies within the paged cache at 0x20000");
  EXPECT_EQ(plan_message(kIn, {{extent, 0, {}}}), "extent 0 of the transfer: it has no tokens");
  EXPECT_EQ(plan_message(kIn, {{extent, 7, blocks}}, {3, 1}),
            "layers from 3 on, 1 of them: the cache has layers 0 to 2");
}

}  // namespace
}  // namespace kvstore::gpu
