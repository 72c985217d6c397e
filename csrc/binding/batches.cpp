// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// put_many, get_many, prefetch, and the calls for one block. Arguments are parsed and objects held before the
// store sees anything, so a refused batch leaves nothing behind.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "binding/gil.h"
#include "binding/pool.h"

namespace kvstore::binding {
namespace {

using store::GetItem;
using store::KeyRef;
using store::PutItem;
using store::SpaceId;
using store::SubmitOptions;

Py_ssize_t as_index(size_t index) { return static_cast<Py_ssize_t>(index); }

// The number of a CUstream; None: what the objects say themselves.
std::optional<uint64_t> parse_stream(nb::handle stream) {
  if (stream.is_none()) return std::nullopt;
  return parse_u64(stream, {"stream"});
}

SubmitOptions parse_submit(nb::handle tag, nb::handle deadline_ms, nb::handle priority) {
  SubmitOptions options;
  options.tag = parse_u64(tag, {"tag"});
  options.priority = parse_i32(priority, {"priority"});
  if (!deadline_ms.is_none()) {
    options.deadline_ns = parse_duration_ns(deadline_ms, "deadline_ms", 1e6, 0);
    if (options.deadline_ns == 0) raise_invalid("deadline_ms is 0: nothing can be done by then; None is no deadline");
  }
  return options;
}

std::shared_ptr<store::CompletionQueue> queue_of(const QueueHandle* queue) {
  return queue == nullptr ? nullptr : queue->queue();
}

void check_batch(size_t keys, size_t others, const char* name) {
  if (keys == 0) raise_invalid("keys is empty: a job has 1 item or more");
  if (keys != others) {
    raise_invalid(std::string(name) + " has " + number_text(others) + " items for " + number_text(keys) + " keys");
  }
}

// Index -> segments, once all blocks were added and the table moves no more.
template <typename Item>
void set_segments(std::vector<Item>& items, const Buffers& buffers, const std::vector<Buffers::Block>& blocks) {
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].segments = buffers.segments(blocks[i]);
    items[i].segment_count = blocks[i].count;
    items[i].memory_place = blocks[i].memory_place;
  }
}

std::shared_ptr<JobHandle> put_many(PoolHandle& pool, uint32_t space, nb::object keys_given, nb::object values_given,
                                    nb::object parents_given, nb::object depths_given, nb::object salts_given,
                                    nb::object metas_given, bool chain, bool durable, bool page_hashes,
                                    const QueueHandle* queue, nb::object tag, nb::object deadline_ms,
                                    nb::object priority, nb::object stream) {
  std::shared_ptr<store::Store> store = pool.store();
  const Texts keys = Texts::of_sequence(keys_given, "keys", kKeyLimits);
  const Sequence values(values_given, "values");
  check_batch(keys.size(), values.size(), "values");
  const Texts parents = Texts::of_optional(parents_given, "parents", kParentLimits, keys.size());
  const Texts salts = Texts::of_optional(salts_given, "salts", kSaltLimits, keys.size());
  const Texts metas = Texts::of_optional(metas_given, "metas", kMetaLimits, keys.size());
  const std::vector<uint64_t> depths = parse_u64s(depths_given, "depths", keys.size(), 0, UINT32_MAX);
  if (chain && !(parents_given.is_none() && depths_given.is_none())) {
    raise_invalid("chain=True sets parents and depths itself: give one or the other");
  }
  SubmitOptions options = parse_submit(tag, deadline_ms, priority);
  options.durable = durable;

  auto buffers = std::make_unique<Buffers>(parse_stream(stream), pool.direct_path());
  std::vector<Buffers::Block> blocks;
  blocks.reserve(keys.size());
  std::vector<PutItem> items(keys.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const nb::object value = values[i];
    blocks.push_back(buffers->add(value, Access::kRead, {"values", as_index(i)}));
    PutItem& item = items[i];
    item.space = SpaceId{space};
    item.salt = salts[i];
    item.key = keys[i];
    item.parent = !chain ? parents[i] : i == 0 ? std::string_view() : keys[i - 1];
    item.depth = static_cast<uint32_t>(chain ? i : depths[i]);
    item.meta = metas[i];
    item.page_hashes = page_hashes;
  }
  set_segments(items, *buffers, blocks);
  options.mover = buffers->begin_device_memory(*store, false);
  auto job = without_gil_if(items.size() > kItemsWithGil, [&] { return store->put(items, options, queue_of(queue)); });
  return pool.keep(unwrap(std::move(job)), std::move(store), std::move(buffers));
}

std::shared_ptr<JobHandle> get_many(PoolHandle& pool, uint32_t space, nb::object keys_given, nb::object outs_given,
                                    nb::object salts_given, nb::object offsets_given, nb::object nbytes_given,
                                    const QueueHandle* queue, nb::object tag, nb::object deadline_ms,
                                    nb::object priority, nb::object stream) {
  std::shared_ptr<store::Store> store = pool.store();
  const Texts keys = Texts::of_sequence(keys_given, "keys", kKeyLimits);
  const Sequence outs(outs_given, "outs");
  check_batch(keys.size(), outs.size(), "outs");
  const Texts salts = Texts::of_optional(salts_given, "salts", kSaltLimits, keys.size());
  const std::vector<uint64_t> offsets = parse_u64s(offsets_given, "offsets", keys.size(), 0, INT64_MAX);
  const std::vector<uint64_t> lengths = parse_u64s(nbytes_given, "nbytes", keys.size(), store::kWholeBlock, INT64_MAX);
  SubmitOptions options = parse_submit(tag, deadline_ms, priority);

  auto buffers = std::make_unique<Buffers>(parse_stream(stream), pool.direct_path());
  std::vector<Buffers::Block> blocks;
  blocks.reserve(keys.size());
  std::vector<GetItem> items(keys.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const Where where{"outs", as_index(i)};
    const nb::object out = outs[i];
    blocks.push_back(buffers->add(out, Access::kWrite, where));
    GetItem& item = items[i];
    item.space = SpaceId{space};
    item.salt = salts[i];
    item.key = keys[i];
    item.offset_bytes = offsets[i];
    item.length_bytes = lengths[i];
    if (lengths[i] != store::kWholeBlock && blocks[i].bytes < lengths[i]) {
      raise_invalid(where.text() + " has room for " + number_text(blocks[i].bytes) + " bytes, nbytes asks for " +
                    number_text(lengths[i]));
    }
  }
  set_segments(items, *buffers, blocks);
  options.mover = buffers->begin_device_memory(*store, true);
  auto job = without_gil_if(items.size() > kItemsWithGil, [&] { return store->get(items, options, queue_of(queue)); });
  return pool.keep(unwrap(std::move(job)), std::move(store), std::move(buffers));
}

std::shared_ptr<JobHandle> prefetch(PoolHandle& pool, uint32_t space, nb::object keys_given, nb::object salts_given,
                                    const QueueHandle* queue, nb::object tag, nb::object deadline_ms,
                                    nb::object priority) {
  std::shared_ptr<store::Store> store = pool.store();
  const Texts keys = Texts::of_sequence(keys_given, "keys", kKeyLimits);
  check_batch(keys.size(), keys.size(), "keys");
  const Texts salts = Texts::of_optional(salts_given, "salts", kSaltLimits, keys.size());
  const SubmitOptions options = parse_submit(tag, deadline_ms, priority);
  std::vector<KeyRef> items(keys.size());
  for (size_t i = 0; i < items.size(); ++i) items[i] = {SpaceId{space}, salts[i], keys[i]};
  auto job =
      without_gil_if(items.size() > kItemsWithGil, [&] { return store->prefetch(items, options, queue_of(queue)); });
  return pool.keep(unwrap(std::move(job)), std::move(store), nullptr);
}

// put() of one block: submits and waits. A signal handler that raises ends the wait; the job goes on.
ItemOutcome put_one(PoolHandle& pool, uint32_t space, nb::object key_given, nb::object value, nb::object parent_given,
                    nb::object depth, nb::object salt_given, nb::object meta_given, bool durable, bool page_hashes,
                    nb::object stream) {
  std::shared_ptr<store::Store> store = pool.store();
  Texts texts;
  texts.add(key_given, {"key"}, kKeyLimits);
  texts.add(salt_given, {"salt"}, kSaltLimits);
  texts.add(meta_given, {"meta"}, kMetaLimits);
  if (parent_given.is_none()) {
    texts.add_empty();
  } else {
    texts.add(parent_given, {"parent"}, kParentLimits);
  }
  auto buffers = std::make_unique<Buffers>(parse_stream(stream), pool.direct_path());
  const Buffers::Block block = buffers->add(value, Access::kRead, {"value"});
  PutItem item;
  item.space = SpaceId{space};
  item.key = texts[0];
  item.salt = texts[1];
  item.meta = texts[2];
  item.parent = texts[3];
  item.depth = static_cast<uint32_t>(parse_u64(depth, {"depth"}, UINT32_MAX));
  item.page_hashes = page_hashes;
  item.segments = buffers->segments(block);
  item.segment_count = block.count;
  item.memory_place = block.memory_place;
  SubmitOptions options;
  options.durable = durable;
  options.mover = buffers->begin_device_memory(*store, false);
  auto submitted = store->put({&item, 1}, options, nullptr);
  const std::shared_ptr<JobHandle> job = pool.keep(unwrap(std::move(submitted)), std::move(store), std::move(buffers));
  job->wait(UINT64_MAX);
  ItemOutcome outcome = job->result(0);
  check(outcome.to_status());
  return outcome;
}

// get() of one block on this thread: bytes read, or None.
std::optional<uint64_t> get_one(PoolHandle& pool, uint32_t space, nb::object key_given, nb::object out,
                                nb::object salt_given, nb::object offset, nb::object nbytes, nb::object stream) {
  const std::shared_ptr<store::Store> store = pool.store();
  Texts texts;
  texts.add(key_given, {"key"}, kKeyLimits);
  texts.add(salt_given, {"salt"}, kSaltLimits);
  auto held = std::make_unique<Buffers>(parse_stream(stream), pool.direct_path());
  Buffers& buffers = *held;
  const Buffers::Block block = buffers.add(out, Access::kWrite, {"out"});
  GetItem item;
  item.space = SpaceId{space};
  item.key = texts[0];
  item.salt = texts[1];
  item.segments = buffers.segments(block);
  item.segment_count = block.count;
  item.memory_place = block.memory_place;
  item.offset_bytes = parse_u64(offset, {"offset"}, INT64_MAX);
  if (!nbytes.is_none()) {
    item.length_bytes = parse_u64(nbytes, {"nbytes"}, INT64_MAX);
    if (block.bytes < item.length_bytes) {
      raise_invalid("out has room for " + number_text(block.bytes) + " bytes, nbytes asks for " +
                    number_text(item.length_bytes));
    }
  }
  std::string text;
  store::ItemResult result;
  if (std::shared_ptr<store::MemoryMover> mover = buffers.begin_device_memory(*store, false)) {
    SubmitOptions options;
    options.mover = std::move(mover);
    auto submitted = store->get({&item, 1}, options, nullptr);
    const std::shared_ptr<JobHandle> job = pool.keep(unwrap(std::move(submitted)), store, std::move(held));
    job->wait(UINT64_MAX);
    const ItemOutcome outcome = job->result(0);
    check(outcome.to_status());
    result.status = outcome.status;
    result.bytes = outcome.bytes;
  } else {
    result = without_gil([&] { return store->get_one(item, &text); });
  }
  if (result.status == store::ItemStatus::kHit) return result.bytes;
  if (result.status == store::ItemStatus::kMiss) return std::nullopt;
  if (result.code == Code::kTimeout) buffers.leak();  // I11: the piece may still be in flight
  if (text.empty()) text = std::string("get of one block: ") + code_name(result.code);
  if (result.code == Code::kInvalid && result.io_errno != EFAULT) {
    const KeyRef ref{item.space, item.salt, item.key};
    int64_t payload_bytes = -1;
    store->lookup({&ref, 1}, false, {&payload_bytes, 1});
    text = "out has room for " + number_text(block.bytes) + " bytes; the block has " +
           number_text(static_cast<uint64_t>(std::max<int64_t>(payload_bytes, 0))) + ", asked for from byte " +
           number_text(item.offset_bytes) + (nbytes.is_none() ? " to the end" : ": " + number_text(item.length_bytes));
  }
  throw StatusError(Status(result.code, text, result.io_errno));
}

}  // namespace

void bind_batches(nb::class_<PoolHandle>& pool) {
  pool.def("put_many", put_many, nb::arg("space"), nb::arg("keys").none(), nb::arg("values").none(),
           nb::arg("parents").none(), nb::arg("depths").none(), nb::arg("salts").none(), nb::arg("metas").none(),
           nb::arg("chain"), nb::arg("durable"), nb::arg("page_hashes"), nb::arg("queue").none(), nb::arg("tag").none(),
           nb::arg("deadline_ms").none(), nb::arg("priority").none(), nb::arg("stream").none())
      .def("get_many", get_many, nb::arg("space"), nb::arg("keys").none(), nb::arg("outs").none(),
           nb::arg("salts").none(), nb::arg("offsets").none(), nb::arg("nbytes").none(), nb::arg("queue").none(),
           nb::arg("tag").none(), nb::arg("deadline_ms").none(), nb::arg("priority").none(), nb::arg("stream").none())
      .def("prefetch", prefetch, nb::arg("space"), nb::arg("keys").none(), nb::arg("salts").none(),
           nb::arg("queue").none(), nb::arg("tag").none(), nb::arg("deadline_ms").none(), nb::arg("priority").none())
      .def("put_one", put_one, nb::arg("space"), nb::arg("key").none(), nb::arg("value").none(),
           nb::arg("parent").none(), nb::arg("depth").none(), nb::arg("salt").none(), nb::arg("meta").none(),
           nb::arg("durable"), nb::arg("page_hashes"), nb::arg("stream").none())
      .def("get_one", get_one, nb::arg("space"), nb::arg("key").none(), nb::arg("out").none(), nb::arg("salt").none(),
           nb::arg("offset").none(), nb::arg("nbytes").none(), nb::arg("stream").none());
}

}  // namespace kvstore::binding
