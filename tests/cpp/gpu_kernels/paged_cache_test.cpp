// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a transfer between extents and a paged cache keeps to its stream, and memory that is not the GPU's is refused
// before a kernel meets it; streams of ours are ordered with others by marks; an arena is aligned and given back.
// Method: the fake libcuda, whose streams run late, with this build's kernels or, without nvcc, its copies.

#include "gpu/paged_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "gpu/device_arena.h"
#include "gpu/fake_driver.h"
#include "gpu/stream_order.h"

namespace kvstore::gpu {
namespace {

constexpr uint64_t kHeadBytes = 256;
constexpr uint64_t kBlockBytes = 4 * 2 * kHeadBytes;  // of one plane: four tokens of two heads

class PagedCacheOnTheFake : public testing::Test {
 protected:
  void TearDown() override { fake.reset(); }

  // [block][kv][token][head], one tensor for each of two layers.
  PagedLayout layout() const {
    const CacheShape shape = {.layers = 2, .cache_blocks = 8, .block_tokens = 4, .heads = 2, .head_bytes = kHeadBytes};
    const DeviceSpan tensors[] = {{memory.pointer(), 16 * kBlockBytes},
                                  {memory.pointer() + 16 * kBlockBytes, 16 * kBlockBytes}};
    return block_first(shape, tensors).value();
  }
  static std::string refused(const Status& status) {
    EXPECT_EQ(status.code(), Code::kInvalid);
    return status.message();
  }

  FakeDriver& fake = FakeDriver::get();
  const GpuMemory memory{0, 32 * kBlockBytes};
  const std::vector<int64_t> block = {5};
};

TEST_F(PagedCacheOnTheFake, MovesInTheOrderOfItsStream) {
  const auto cache = PagedCache::make(layout()).value();
  const auto arena = DeviceArena::make(0, 4 * kBlockBytes).value();
  const auto own = OwnStream::make(0).value();
  cu::Stream const engine = fake.make_stream(0);
  const uint64_t gate = fake.gate(engine);
  fake.fill(0, engine, memory.pointer(), 0x55, memory.size());
  const auto mark = StreamMark::make(0, reinterpret_cast<uint64_t>(engine)).value();
  ASSERT_TRUE(mark->hold_back(own->handle()).ok());
  const ExtentMove move = {{arena->address(), 4 * kBlockBytes}, 4, block};
  ASSERT_TRUE(cache->move(Direction::kGather, {&move, 1}, {}, own->handle()).ok());
  const auto moved = StreamMark::make(0, own->handle()).value();
  EXPECT_FALSE(mark->has_happened().value());
  EXPECT_FALSE(moved->has_happened().value());
  fake.open_gate(gate);
  fake.synchronize(0, reinterpret_cast<cu::Stream>(own->handle()));
  EXPECT_TRUE(moved->has_happened().value());
  const auto* const bytes = static_cast<const uint8_t*>(fake.view(arena->address()));
  EXPECT_EQ(std::count(bytes, bytes + 4 * kBlockBytes, 0x55), static_cast<std::ptrdiff_t>(4 * kBlockBytes));
}

TEST_F(PagedCacheOnTheFake, ScattersOneLayerAlone) {
  const auto cache = PagedCache::make(layout()).value();
  const GpuMemory extent(0, 4 * kBlockBytes);
  std::memset(extent.bytes(), 0x77, extent.size());
  cu::Stream const stream = fake.make_stream(0);
  const ExtentMove move = {{extent.pointer(), extent.size()}, 4, block};
  ASSERT_TRUE(cache->move(Direction::kScatter, {&move, 1}, {1, 1}, reinterpret_cast<uint64_t>(stream)).ok());
  fake.synchronize(0, stream);
  const uint8_t* const layer = memory.bytes() + 16 * kBlockBytes;
  EXPECT_EQ(std::count(layer + 10 * kBlockBytes, layer + 12 * kBlockBytes, 0x77),
            static_cast<std::ptrdiff_t>(2 * kBlockBytes));
  EXPECT_EQ(std::count(memory.bytes(), memory.bytes() + memory.size(), 0x77),
            static_cast<std::ptrdiff_t>(2 * kBlockBytes));
}

TEST_F(PagedCacheOnTheFake, MemoryThatIsNotTheGpusIsRefusedWithItsPlace) {
  PagedLayout beyond = layout();
  beyond.planes[3] += 64 * 1024;
  EXPECT_NE(refused(PagedCache::make(beyond).status()).find("layer 1, kv 1 of the paged cache"), std::string::npos);
  const auto cache = PagedCache::make(layout()).value();
  alignas(16) static uint8_t host[4 * kBlockBytes];
  const ExtentMove on_host = {{reinterpret_cast<uint64_t>(host), sizeof(host)}, 4, block};
  EXPECT_NE(refused(cache->move(Direction::kGather, {&on_host, 1}, {}, 2)).find("extent 0 of the transfer"),
            std::string::npos);
  const GpuMemory elsewhere(1, 4 * kBlockBytes);
  const ExtentMove other = {{elsewhere.pointer(), elsewhere.size()}, 4, block};
  EXPECT_NE(refused(cache->move(Direction::kGather, {&other, 1}, {}, 2)).find("is on GPU 1, the paged cache on GPU 0"),
            std::string::npos);
}

TEST_F(PagedCacheOnTheFake, AMarkTellsTheErrorThatItsStreamRanInto) {
  const auto own = OwnStream::make(0).value();
  const auto mark = StreamMark::make(0, own->handle()).value();
  fake.break_context(719);
  EXPECT_NE(refused(mark->has_happened().status()).find("(719)"), std::string::npos);
  fake.break_context(0);
}

TEST_F(PagedCacheOnTheFake, AnArenaIsAlignedAndGivenBackUnlessItIsLeaked) {
  auto arena = DeviceArena::make(0, 100).value();
  EXPECT_EQ(arena->address() % kDevicePageBytes, 0u);
  const uint64_t address = arena->address();
  EXPECT_NE(fake.view(address), nullptr);
  arena.reset();
  EXPECT_EQ(fake.view(address), nullptr);
  arena = DeviceArena::make(0, 100).value();
  const uint64_t leaked = arena->address();
  arena->leak();
  arena.reset();
  EXPECT_NE(fake.view(leaked), nullptr);
  fake.fail("cuMemAlloc_v2", 2, 0, 1);
  EXPECT_NE(refused(DeviceArena::make(0, 100).status()).find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos);
  EXPECT_EQ(DeviceArena::make(7, 100).status().code(), Code::kInvalid);
}

}  // namespace
}  // namespace kvstore::gpu
