// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What is on the device, and what left it: BlockInfo, BlockIterator, Eviction, EvictionFeed.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <deque>
#include <optional>

#include "binding/gil.h"
#include "binding/pool.h"
#include "device/fork_guard.h"

namespace kvstore::binding {
namespace {

nb::bytes to_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

nb::object parse_json(const std::string& text) {
  park_if_exiting();
  const Exposed exposed;
  return nb::module_::import_("json").attr("loads")(text);
}

const char* reason_word(store::EvictionReason reason) {
  switch (reason) {
    case store::EvictionReason::kReclaimed: return "reclaimed";
    case store::EvictionReason::kDeleted: return "deleted";
    case store::EvictionReason::kCorrupt: return "corrupt";
    case store::EvictionReason::kLost: return "lost";
  }
  return "lost";
}

// ---- blocks ----

struct ListedBlock {
  store::BlockInfo info;
  std::shared_ptr<const std::string> space_json;
};

// Fetches one step of the listing at a time, outside the GIL, so that whoever iterates may delete blocks or close the
// pool in between.
class BlockIterator {
 public:
  BlockIterator(std::shared_ptr<PoolHandle> pool, std::optional<std::string> space_json)
      : pool_(std::move(pool)), space_json_(std::move(space_json)) {
    (void)pool_->store();  // a closed pool is refused here rather than at the first step
  }

  ListedBlock next() {
    while (fetched_.empty() && cursor_ != UINT64_MAX) fetch();
    if (fetched_.empty()) throw nb::stop_iteration();
    ListedBlock block = std::move(fetched_.front());
    fetched_.pop_front();
    return block;
  }

 private:
  void fetch() {
    const std::shared_ptr<store::Store> store = pool_->store();
    // On locals while the GIL is away, so that another thread's next() sees this object whole.
    uint64_t cursor = cursor_;
    std::deque<ListedBlock> fetched;
    std::shared_ptr<const std::string> current;
    const Status listed = without_gil([&] {
      return store->list_some_blocks(cursor, [&](const std::string& space, const store::BlockInfo& info) {
        if (space_json_ && space != *space_json_) return true;
        if (!current || *current != space) current = std::make_shared<const std::string>(space);
        fetched.push_back({info, current});
        return true;
      });
    });
    check(listed);
    cursor_ = cursor;
    fetched_ = std::move(fetched);
  }

  std::shared_ptr<PoolHandle> pool_;
  std::optional<std::string> space_json_;
  uint64_t cursor_ = 0;
  std::deque<ListedBlock> fetched_;
};

nb::list describe(PoolHandle& pool, uint32_t space, const std::string& space_json, nb::object keys_given,
                  nb::object salts_given) {
  const std::shared_ptr<store::Store> store = pool.store();
  const Texts keys = Texts::of_sequence(keys_given, "keys", kKeyLimits);
  const Texts salts = Texts::of_optional(salts_given, "salts", kSaltLimits, keys.size());
  std::vector<store::KeyRef> refs(keys.size());
  for (size_t i = 0; i < refs.size(); ++i) refs[i] = {store::SpaceId{space}, salts[i], keys[i]};
  auto described = without_gil([&] { return store->describe(refs); });
  const auto json = std::make_shared<const std::string>(space_json);
  nb::list blocks;
  for (store::BlockInfo& info : unwrap(std::move(described))) {
    if (info.payload_bytes == 0) {
      blocks.append(nb::none());
    } else {
      blocks.append(ListedBlock{std::move(info), json});
    }
  }
  return blocks;
}

// "ok", "corrupt" or "stale"; everything else is an exception.
const char* verify_block(PoolHandle& pool, const ListedBlock& block) {
  const std::shared_ptr<store::Store> store = pool.store();
  Status status = without_gil([&] { return store->verify_block(block.info, *block.space_json); });
  if (status.code() != Code::kCorrupt && status.code() != Code::kStale) check(status);
  return code_word(status.code());
}

void drop_block(PoolHandle& pool, const ListedBlock& block) {
  const std::shared_ptr<store::Store> store = pool.store();
  check(without_gil([&] { return store->drop_block(block.info, *block.space_json); }));
}

std::string checksum_hex(const ListedBlock& block) {
  return format_text("%016llx%016llx", static_cast<unsigned long long>(block.info.checksum.high),
                     static_cast<unsigned long long>(block.info.checksum.low));
}

void bind_blocks(nb::module_& module, nb::class_<PoolHandle>& pool) {
  nb::class_<ListedBlock> block(module, "BlockInfo", nb::is_final(), R"(One block on the device, as its descriptor says.

Immutable; a picture of the moment it was taken.

Attributes
----------
space : dict, the identity; ``space_json`` is its canonical text.
salt, key : bytes. ``key_is_digest``: the key is longer than 48 bytes and ``key`` is its BLAKE2b-384 digest.
nbytes : of the payload; ``extent_bytes`` is what it occupies.
parent : first 8 bytes of the digest of the parent's key, as an int (a hint); ``depth``: its place in the chain.
meta : bytes, the caller's own, at most 28.
write_seq : order of writing; ``generation``: of its region.
device, region, slot, offset_bytes : where it is.
checksum : 32 hex digits; ``page_hashes``: whether parts of it can be read and verified alone.

Examples
--------
>>> pool = kvstore.open(example_pool)
>>> space = pool.space(engine="example", model="none")
>>> _ = space.put(b"info-1", b"abc", depth=7, durable=True)
>>> block = space.describe([b"info-1"])[0]
>>> block.key, block.nbytes, block.depth, block.space["engine"]
(b'info-1', 3, 7, 'example')
>>> pool.close()
)");
  block.def_prop_ro("space", [](const ListedBlock& self) { return parse_json(*self.space_json); })
      .def_prop_ro("space_json", [](const ListedBlock& self) { return *self.space_json; })
      .def_prop_ro("salt", [](const ListedBlock& self) { return to_bytes(self.info.salt); })
      .def_prop_ro("key", [](const ListedBlock& self) { return to_bytes(self.info.key); })
      .def_prop_ro("meta", [](const ListedBlock& self) { return to_bytes(self.info.meta); })
      .def_prop_ro("checksum", checksum_hex)
      .def("__repr__", [](const ListedBlock& self) {
        return format_text("BlockInfo(nbytes=%llu, device=%u, region=%u, slot=%u)",
                           static_cast<unsigned long long>(self.info.payload_bytes), unsigned{self.info.device},
                           self.info.region, self.info.slot);
      });
  const auto number = [&block](const char* name, auto member) {
    block.def_prop_ro(name, [member](const ListedBlock& self) { return self.info.*member; });
  };
  number("key_is_digest", &store::BlockInfo::key_is_digest);
  number("nbytes", &store::BlockInfo::payload_bytes);
  number("extent_bytes", &store::BlockInfo::extent_bytes);
  number("write_seq", &store::BlockInfo::write_seq);
  number("parent", &store::BlockInfo::parent);
  number("depth", &store::BlockInfo::depth);
  number("device", &store::BlockInfo::device);
  number("region", &store::BlockInfo::region);
  number("slot", &store::BlockInfo::slot);
  number("generation", &store::BlockInfo::generation);
  number("offset_bytes", &store::BlockInfo::offset_bytes);
  number("page_hashes", &store::BlockInfo::page_hashes);

  nb::class_<BlockIterator>(module, "BlockIterator", nb::is_final())
      .def("__iter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__next__", &BlockIterator::next);

  pool.def(
          "blocks",
          [](std::shared_ptr<PoolHandle> self, std::optional<std::string> space_json) {
            return std::make_shared<BlockIterator>(std::move(self), std::move(space_json));
          },
          nb::arg("space_json").none())
      .def("describe", describe, nb::arg("space"), nb::arg("space_json"), nb::arg("keys").none(),
           nb::arg("salts").none())
      .def("verify_block", verify_block, nb::arg("block"))
      .def("drop_block", drop_block, nb::arg("block"));
}

// ---- evictions ----

class FeedHandle {
 public:
  FeedHandle(std::shared_ptr<store::Store> store, uint32_t limit)
      : store_(std::move(store)),
        feed_(store_->subscribe_evictions(limit)),
        fork_generation_(device::fork_generation()) {}
  FeedHandle(const FeedHandle&) = delete;
  FeedHandle& operator=(const FeedHandle&) = delete;
  ~FeedHandle() {
    if (fork_generation_ == device::fork_generation()) return;
    leak_value(store_);  // the child must not run its end
    (void)feed_.release();
  }
  store::EvictionFeed& feed() {
    refuse_forked_child(fork_generation_, "this eviction feed");
    return *feed_;
  }

 private:
  std::shared_ptr<store::Store> store_;  // outlives the feed
  std::unique_ptr<store::EvictionFeed> feed_;
  uint64_t fork_generation_;
};

void bind_evictions(nb::module_& module, nb::class_<PoolHandle>& pool) {
  using store::Eviction;
  nb::class_<Eviction>(module, "Eviction", nb::is_final(), R"(One block that became a miss.

Attributes
----------
space : dict, the identity; ``space_json`` is its canonical text.
salt, key : bytes. ``key_is_digest``: the key is longer than 48 bytes and ``key`` is its BLAKE2b-384 digest.
nbytes : of the payload.
reason : ``"reclaimed"`` (its region was the one used longest ago), ``"deleted"``, ``"corrupt"`` or ``"lost"``.

Examples
--------
>>> pool = kvstore.open(example_pool)
>>> feed = pool.evictions()
>>> space = pool.space(engine="example", model="none")
>>> _ = space.put(b"eviction-1", b"abc")
>>> _ = space.delete([b"eviction-1"])
>>> [(eviction.key, eviction.nbytes, eviction.reason) for eviction in feed.drain()]
[(b'eviction-1', 3, 'deleted')]
>>> pool.close()
)")
      .def_prop_ro("space", [](const Eviction& self) { return parse_json(self.space); })
      .def_ro("space_json", &Eviction::space)
      .def_prop_ro("salt", [](const Eviction& self) { return to_bytes(self.salt); })
      .def_prop_ro("key", [](const Eviction& self) { return to_bytes(self.key); })
      .def_ro("key_is_digest", &Eviction::key_is_digest)
      .def_ro("nbytes", &Eviction::payload_bytes)
      .def_prop_ro("reason", [](const Eviction& self) { return reason_word(self.reason); })
      .def("__repr__", [](const Eviction& self) {
        return std::string("Eviction(reason='") + reason_word(self.reason) +
               "', nbytes=" + std::to_string(self.payload_bytes) + ")";
      });

  nb::class_<FeedHandle>(module, "FeedHandle", nb::is_final())
      .def("fileno", [](FeedHandle& self) { return self.feed().event_fd(); })
      .def(
          "drain",
          [](FeedHandle& self, nb::object limit) {
            nb::list evictions;
            for (store::Eviction& eviction : self.feed().drain(parse_limit(limit))) {
              evictions.append(std::move(eviction));
            }
            return evictions;
          },
          nb::arg("limit").none())
      .def("take_overflowed", [](FeedHandle& self) { return self.feed().take_overflowed(); });

  pool.def(
      "evictions",
      [](PoolHandle& self, nb::object limit) {
        const uint32_t undelivered = parse_limit(limit);
        if (undelivered == 0) raise_invalid("limit is 0: such a feed would tell nothing");
        return std::make_shared<FeedHandle>(self.store(), undelivered);
      },
      nb::arg("limit"));
}

}  // namespace

void bind_listing(nb::module_& module, nb::class_<PoolHandle>& pool) {
  bind_blocks(module, pool);
  bind_evictions(module, pool);
}

}  // namespace kvstore::binding
