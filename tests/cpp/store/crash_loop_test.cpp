// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whenever the process dies or the power fails, the store opens again with everything that was acknowledged as
// durable, and with nothing wrong, deleted or never put.
// Method: each script is stopped at every one of its device operations, with the cache kept and lost, and recovery is
// stopped as well; see crash_loop.h for what is judged, sim_harness.h for the oracle.

#include "store/crash_loop.h"

#include <gtest/gtest.h>

namespace kvstore::store {
namespace {

// Few small regions, so that every script crosses their borders.
SimSetup small_regions() {
  SimSetup setup;
  setup.regions = 8;
  setup.region_bytes = 256 * kKiB;
  setup.min_block_bytes = 8 * kKiB;
  return setup;
}

Name key(const std::string& text, uint32_t space = 0, const std::string& salt = "") { return {text, salt, space}; }

TEST(CrashLoop, BatchOfPutsWithADuplicate) {
  const auto result = crash_at_every_operation(small_regions(), [](SimStore& sim) {
    if (!sim.open().ok()) return;
    std::vector<std::pair<Name, uint64_t>> blocks = {
        {key("a"), 1},        {key("b"), 4095}, {key("c"), 4096}, {key("a"), 1}, {key("d", 1, "s"), 64 * kKiB + 1},
        {key("e", 2), 30'000}};
    sim.put_all(blocks);
    sim.advance_ns(60'000'000);  // past the commit interval
    sim.run_idle();
    sim.put_all({{key("f"), 20'000}, {key("a", 1), 20'000}});
    sim.flush();
  });
  EXPECT_GT(result.operations, 20u);
}

TEST(CrashLoop, DurablePuts) {
  crash_at_every_operation(small_regions(), [](SimStore& sim) {
    if (!sim.open().ok()) return;
    for (int i = 0; i < 6 && !sim.stopped(); ++i) {
      sim.put(key("durable " + std::to_string(i), i % 2), 3'000 + i * 9'000, {.durable = true});
      sim.put(key("not " + std::to_string(i)), 5'000);
    }
    sim.put_all({{key("x"), 4'096}, {key("y"), 70'000}, {key("z"), 4'097}}, {.durable = true, .page_hashes = true});
  });
}

TEST(CrashLoop, DeletesAndPutsAgain) {
  crash_at_every_operation(small_regions(), [](SimStore& sim) {
    if (!sim.open().ok()) return;
    for (int i = 0; i < 5; ++i) sim.put(key("k" + std::to_string(i)), 6'000, {.durable = i % 2 == 0});
    sim.erase(key("k0"));
    sim.erase(key("k1"));
    sim.flush();
    if (sim.stopped()) return;
    sim.put(key("k0"), 7'000, {.durable = true, .version = 2});
    sim.erase(key("k2"));
    sim.put(key("k2"), 8'000, {.durable = true, .version = 2});
    sim.erase(key("k2"));
    sim.erase(key("k3"));
    sim.flush();
    sim.put(key("k3"), 9'000, {.version = 3});
  });
}

TEST(CrashLoop, RegionsWrapAround) {
  crash_at_every_operation(small_regions(), [](SimStore& sim) {
    if (!sim.open().ok()) return;
    // 8 regions of 4 such blocks: each region lives more than once.
    for (int i = 0; i < 14 && !sim.stopped(); ++i) {
      std::vector<std::pair<Name, uint64_t>> blocks;
      for (int j = 0; j < 4; ++j) blocks.emplace_back(key("w" + std::to_string(i) + "-" + std::to_string(j)), 60'000);
      sim.put_all(blocks, {.durable = i % 3 == 0});
      sim.get(key("w" + std::to_string(i / 2) + "-0"));
      if (i % 5 == 4) sim.flush();
    }
  });
}

TEST(CrashLoop, GetsUnderReclaim) {
  crash_at_every_operation(small_regions(), [](SimStore& sim) {
    if (!sim.open().ok()) return;
    for (int i = 0; i < 12 && !sim.stopped(); ++i) {
      auto put = sim.start_put({{key("p" + std::to_string(i)), 120'000}, {key("q" + std::to_string(i)), 100'000}});
      std::vector<Name> wanted;
      for (int j = std::max(0, i - 6); j < i; ++j) wanted.push_back(key("p" + std::to_string(j)));
      if (!wanted.empty()) sim.get_all(wanted);
      sim.finish(put);
    }
    sim.flush();
  });
}

TEST(CrashLoop, SeveralExtentSizesAndEarlySeals) {
  SimSetup setup = small_regions();
  setup.regions = 16;  // two regions open at a time
  crash_at_every_operation(setup, [](SimStore& sim) {
    if (!sim.open().ok()) return;
    const uint64_t sizes[] = {8'000, 30'000, 100'000, 16'000, 9'000};
    for (int i = 0; i < 15 && !sim.stopped(); ++i) {
      sim.put(key("s" + std::to_string(i), 0, "salt " + std::to_string(i % 4)), sizes[i % 5], {.durable = i % 4 == 1});
    }
    sim.flush();
  });
}

TEST(CrashLoop, MoreThanADescriptorBlock) {
  SimSetup setup = small_regions();
  setup.min_block_bytes = 4 * kKiB;  // 64 slots, three descriptor blocks
  crash_at_every_operation(setup, [](SimStore& sim) {
    if (!sim.open().ok()) return;
    for (int i = 0; i < 10 && !sim.stopped(); ++i) {
      std::vector<std::pair<Name, uint64_t>> blocks;
      for (int j = 0; j < 9; ++j) blocks.emplace_back(key("d" + std::to_string(i) + "-" + std::to_string(j)), 4'000);
      sim.put_all(blocks, {.durable = true});
    }
  });
}

TEST(CrashLoop, CleanCloseAndOpen) {
  crash_at_every_operation(small_regions(), [](SimStore& sim) {
    for (int life = 0; life < 3; ++life) {
      if (sim.stopped() || !sim.open().ok()) return;
      sim.judge_all();
      for (int i = 0; i < 3; ++i) sim.put(key("life " + std::to_string(life) + " " + std::to_string(i)), 40'000);
      sim.put(key("durable " + std::to_string(life)), 4'000, {.durable = true});
      if (life == 1) sim.erase(key("life 0 1"));
      (void)sim.close();
    }
  });
}

TEST(CrashLoop, OpenAfterACrash) {
  crash_at_every_operation(small_regions(), [](SimStore& sim) {
    if (!sim.open().ok()) return;
    for (int i = 0; i < 3; ++i) sim.put(key("a" + std::to_string(i)), 20'000, {.durable = true});
    sim.put(key("b"), 60'000, {.durable = true});
    sim.erase(key("a1"));
    sim.flush();
    if (sim.stopped()) return;
    sim.crash(false);
    if (!sim.open().ok()) return;
    sim.put(key("c"), 20'000, {.durable = true});
  });
}

// All that a store does in one life and the next, in one script: whatever one step leaves behind meets every other.
TEST(CrashLoop, AWholeLifeFromTheFirstPutToTheSecondOpening) {
  const auto result = crash_at_every_operation(small_regions(), [](SimStore& sim) {
    if (!sim.open().ok()) return;
    sim.put_all({{key("a"), 30'000}, {key("b", 1, "s"), 4'097}, {key("a"), 30'000}, {key("c"), 1}});
    for (int i = 0; i < 3; ++i) sim.put(key("durable " + std::to_string(i)), 20'000 + i, {.durable = true});
    sim.erase(key("b", 1, "s"));
    sim.erase(key("durable 1"));
    sim.flush();
    if (sim.stopped()) return;
    // Past the capacity of 8 regions, while what came before is being read.
    for (int i = 0; i < 10 && !sim.stopped(); ++i) {
      const std::string number = std::to_string(i);
      auto put = sim.start_put({{key("w" + number), 120'000}, {key("v" + number), 100'000}}, {.durable = i % 3 == 0});
      auto get = sim.start_get({key("a"), key("w" + std::to_string(i - 1)), key("v" + std::to_string(i - 4))});
      sim.finish(put);
      sim.finish(get);
      if (i == 5) sim.erase(key("w4"));
    }
    sim.flush();
    (void)sim.close();
    if (sim.stopped() || !sim.open().ok()) return;
    sim.judge_all();
    sim.put_all({{key("after"), 50'000}, {key("w4"), 60'000}}, {.durable = true, .version = 2});
    sim.erase(key("a"));
  });
  EXPECT_GT(result.operations, 100u);
  EXPECT_GT(result.recoveries_cut, result.stops / 2);
}

TEST(CrashLoop, WriteThroughDevice) {
  SimSetup setup = small_regions();
  setup.device.volatile_cache = false;
  crash_at_every_operation(setup, [](SimStore& sim) {
    if (!sim.open().ok()) return;
    for (int i = 0; i < 12 && !sim.stopped(); ++i) {
      sim.put_all({{key("w" + std::to_string(i)), 90'000}, {key("v" + std::to_string(i)), 80'000}},
                  {.durable = i % 2 == 0});
    }
    sim.erase(key("w11"));
    sim.flush();
  });
}

}  // namespace
}  // namespace kvstore::store
