// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory and streams of a GPU that are ours, and transfers between extents there and an engine's paged KV cache:
// what kvstore/gpu.py is made on. Numbers in, numbers out: it holds no object of the caller's.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <optional>
#include <vector>

#include "binding/arguments.h"
#include "binding/gil.h"
#include "binding/pool.h"
#include "gpu/device_arena.h"
#include "gpu/paged_cache.h"
#include "gpu/stream_order.h"

namespace kvstore::binding {
namespace {

using gpu::DeviceArena;
using gpu::Direction;
using gpu::ExtentMove;
using gpu::OwnStream;
using gpu::PagedCache;
using gpu::PagedLayout;
using gpu::StreamMark;

constexpr uint64_t kDevicesMax = 1024;

int parse_device(nb::handle device) { return static_cast<int>(parse_u64(device, {"device"}, kDevicesMax)); }

uint32_t parse_u32(nb::handle number, const char* name) {
  return static_cast<uint32_t>(parse_u64(number, {name}, UINT32_MAX));
}

std::unique_ptr<PagedCache> make_cache(nb::object planes_given, nb::object kv_count, nb::object cache_blocks,
                                       nb::object block_tokens, nb::object heads, nb::object head_bytes,
                                       nb::object block_stride, nb::object token_stride, nb::object head_stride) {
  const Sequence planes(planes_given, "planes");
  PagedLayout layout;
  layout.kv_count = parse_u32(kv_count, "kv_count");
  layout.cache_blocks = parse_u32(cache_blocks, "cache_blocks");
  layout.block_tokens = parse_u32(block_tokens, "block_tokens");
  layout.heads = parse_u32(heads, "heads");
  layout.head_bytes = parse_u32(head_bytes, "head_bytes");
  layout.block_stride_bytes = parse_u64(block_stride, {"block_stride"});
  layout.token_stride_bytes = parse_u64(token_stride, {"token_stride"});
  layout.head_stride_bytes = parse_u64(head_stride, {"head_stride"});
  for (size_t i = 0; i < planes.size(); ++i) {
    layout.planes.push_back(parse_u64(planes[i], {"planes", static_cast<Py_ssize_t>(i)}));
  }
  if (layout.kv_count == 0 || planes.size() % layout.kv_count != 0) {
    raise_invalid("planes has " + number_text(planes.size()) + " addresses, kv_count is " +
                  number_text(layout.kv_count) + ": give kv_count of them for each layer");
  }
  layout.layers = static_cast<uint32_t>(planes.size() / layout.kv_count);
  return unwrap(without_gil([&] { return PagedCache::make(std::move(layout)); }));
}

struct Extents {
  std::vector<std::vector<int64_t>> blocks;
  std::vector<ExtentMove> moves;  // point into `blocks`
};

gpu::DeviceSpan parse_extent(nb::handle pair, const Where& where) {
  if (!PyTuple_Check(pair.ptr()) || PyTuple_Size(pair.ptr()) != 2) {
    raise_type_error(where.text() + " is not (pointer, nbytes)");
  }
  return {parse_u64(PyTuple_GetItem(pair.ptr(), 0), where), parse_u64(PyTuple_GetItem(pair.ptr(), 1), where)};
}

// None: the engine has these tokens already.
int64_t parse_block(nb::handle block, const Where& where) {
  if (block.is_none()) return gpu::kNoCacheBlock;
  return static_cast<int64_t>(parse_u64(block, where, INT64_MAX));
}

Extents parse_extents(nb::handle extents_given, nb::handle tokens_given, nb::handle blocks_given) {
  const Sequence extents(extents_given, "extents"), tokens(tokens_given, "tokens"), blocks(blocks_given, "blocks");
  if (extents.size() != tokens.size() || extents.size() != blocks.size()) {
    raise_invalid(number_text(extents.size()) + " extents, tokens of " + number_text(tokens.size()) + ", blocks of " +
                  number_text(blocks.size()) + ": give as many of each");
  }
  Extents parsed;
  parsed.blocks.resize(extents.size());
  for (size_t i = 0; i < extents.size(); ++i) {
    const Py_ssize_t index = static_cast<Py_ssize_t>(i);
    const nb::object numbers_given = blocks[i];
    const Sequence numbers(numbers_given, "blocks");
    for (size_t j = 0; j < numbers.size(); ++j) {
      parsed.blocks[i].push_back(parse_block(numbers[j], {"blocks", index}));
    }
    ExtentMove move;
    move.extent = parse_extent(extents[i], {"extents", index});
    move.tokens = static_cast<uint32_t>(parse_u64(tokens[i], {"tokens", index}, UINT32_MAX));
    move.cache_blocks = parsed.blocks[i];
    parsed.moves.push_back(move);
  }
  return parsed;
}

void move(const PagedCache& cache, bool to_cache, nb::object extents, nb::object tokens, nb::object blocks,
          nb::object first_layer, nb::object layer_count, nb::object stream_given) {
  const Extents parsed = parse_extents(extents, tokens, blocks);
  gpu::LayerRange layers;
  layers.first = parse_u32(first_layer, "first layer");
  if (!layer_count.is_none()) layers.count = parse_u32(layer_count, "count of layers");
  const uint64_t stream = parse_u64(stream_given, {"stream"});
  check(without_gil(
      [&] { return cache.move(to_cache ? Direction::kScatter : Direction::kGather, parsed.moves, layers, stream); }));
}

void bind_paged_cache(nb::module_& module) {
  nb::class_<PagedCache>(module, "PagedCache", nb::is_final())
      .def(nb::new_(&make_cache), nb::arg("planes"), nb::arg("kv_count"), nb::arg("cache_blocks"),
           nb::arg("block_tokens"), nb::arg("heads"), nb::arg("head_bytes"), nb::arg("block_stride"),
           nb::arg("token_stride"), nb::arg("head_stride"))
      .def("move", move, nb::arg("to_cache"), nb::arg("extents"), nb::arg("tokens"), nb::arg("blocks"),
           nb::arg("first_layer"), nb::arg("layer_count").none(), nb::arg("stream"))
      .def("extent_bytes", [](const PagedCache& cache,
                              nb::object tokens) { return cache.layout().extent_bytes(parse_u32(tokens, "tokens")); })
      .def("way",
           [](const PagedCache& cache, nb::object stream) {
             return std::string(gpu::move_way_name(cache.way(parse_u64(stream, {"stream"}))));
           })
      .def_prop_ro("device", &PagedCache::device)
      .def_prop_ro("block_tokens", [](const PagedCache& cache) { return cache.layout().block_tokens; })
      .def_prop_ro("run_bytes", [](const PagedCache& cache) { return cache.layout().run_bytes(); })
      .def_prop_ro("kernels_missing", &PagedCache::kernels_missing);
}

}  // namespace

void bind_gpu(nb::module_& module) {
  bind_paged_cache(module);
  nb::class_<DeviceArena>(module, "DeviceArena", nb::is_final())
      .def(nb::new_([](nb::object device, nb::object nbytes) {
             const int number = parse_device(device);
             const uint64_t bytes = parse_u64(nbytes, {"nbytes"}, INT64_MAX);
             return unwrap(without_gil([&] { return DeviceArena::make(number, bytes); }));
           }),
           nb::arg("device"), nb::arg("nbytes"))
      .def("leak", &DeviceArena::leak)
      .def_prop_ro("device", &DeviceArena::device)
      .def_prop_ro("ptr", &DeviceArena::address)
      .def_prop_ro("nbytes", &DeviceArena::bytes);
  nb::class_<OwnStream>(module, "OwnStream", nb::is_final())
      .def(nb::new_([](nb::object device) { return unwrap(OwnStream::make(parse_device(device))); }), nb::arg("device"))
      .def_prop_ro("device", &OwnStream::device)
      .def_prop_ro("handle", &OwnStream::handle);
  nb::class_<StreamMark>(module, "StreamMark", nb::is_final())
      .def(nb::new_([](nb::object device, nb::object stream) {
             return unwrap(StreamMark::make(parse_device(device), parse_u64(stream, {"stream"})));
           }),
           nb::arg("device"), nb::arg("stream"))
      .def("has_happened", [](const StreamMark& mark) { return unwrap(mark.has_happened()); })
      .def("hold_back",
           [](const StreamMark& mark, nb::object stream) { check(mark.hold_back(parse_u64(stream, {"stream"}))); });
  module.def("gpu_of_pointer",
             [](nb::object pointer) { return unwrap(gpu::device_of_pointer(parse_u64(pointer, {"pointer"}))); });
}

}  // namespace kvstore::binding
