// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls that only look at the index: lookup, match_prefix, unpin, touch; and delete.

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "binding/gil.h"
#include "binding/pool.h"

namespace kvstore::binding {
namespace {

// Keys and salts of one call, as the store wants them. The views live as long as this.
class KeyRefs {
 public:
  KeyRefs(uint32_t space, nb::object keys, nb::object salts)
      : keys_(Texts::of_sequence(keys, "keys", kKeyLimits)),
        salts_(Texts::of_optional(salts, "salts", kSaltLimits, keys_.size())),
        refs_(keys_.size()) {
    for (size_t i = 0; i < refs_.size(); ++i) refs_[i] = {store::SpaceId{space}, salts_[i], keys_[i]};
  }
  std::span<const store::KeyRef> refs() const { return refs_; }
  size_t size() const { return refs_.size(); }
  bool many() const { return refs_.size() > kItemsWithGil; }

 private:
  Texts keys_;
  Texts salts_;
  std::vector<store::KeyRef> refs_;
};

std::vector<int64_t> payload_bytes(PoolHandle& pool, uint32_t space, nb::object keys, nb::object salts, bool pin) {
  const std::shared_ptr<store::Store> store = pool.store();
  const KeyRefs refs(space, keys, salts);
  std::vector<int64_t> bytes(refs.size(), -1);
  without_gil_if(refs.many(), [&] { store->lookup(refs.refs(), pin, bytes); });
  return bytes;
}

nb::list contains(PoolHandle& pool, uint32_t space, nb::object keys, nb::object salts, bool pin) {
  nb::list present;
  for (const int64_t bytes : payload_bytes(pool, space, keys, salts, pin)) present.append(bytes >= 0);
  return present;
}

uint64_t match_prefix(PoolHandle& pool, uint32_t space, nb::object keys, nb::object salts, bool pin) {
  const std::shared_ptr<store::Store> store = pool.store();
  const KeyRefs refs(space, keys, salts);
  return without_gil_if(refs.many(), [&] { return store->match_prefix(refs.refs(), pin); });
}

void unpin(PoolHandle& pool, uint32_t space, nb::object keys, nb::object salts) {
  const std::shared_ptr<store::Store> store = pool.store();
  const KeyRefs refs(space, keys, salts);
  without_gil_if(refs.many(), [&] { store->unpin(refs.refs()); });
}

void touch(PoolHandle& pool, uint32_t space, nb::object keys, nb::object salts) {
  const std::shared_ptr<store::Store> store = pool.store();
  const KeyRefs refs(space, keys, salts);
  without_gil_if(refs.many(), [&] { store->touch(refs.refs()); });
}

nb::list erase(PoolHandle& pool, uint32_t space, nb::object keys, nb::object salts) {
  const std::shared_ptr<store::Store> store = pool.store();
  const KeyRefs refs(space, keys, salts);
  auto erased = without_gil([&] { return store->erase(refs.refs()); });
  nb::list results;
  for (const store::ItemResult& result : unwrap(std::move(erased))) {
    std::string text;
    if (result.status == store::ItemStatus::kError) {
      text = result.code == Code::kBusy ? "the block is pinned: unpin it, or wait for its lease to end"
                                        : store->write_refusal();
    }
    results.append(ItemOutcome::of(result, std::move(text)));
  }
  return results;
}

}  // namespace

void bind_index(nb::class_<PoolHandle>& pool) {
  pool.def("lookup", payload_bytes, nb::arg("space"), nb::arg("keys").none(), nb::arg("salts").none(), nb::arg("pin"))
      .def("contains", contains, nb::arg("space"), nb::arg("keys").none(), nb::arg("salts").none(), nb::arg("pin"))
      .def("match_prefix", match_prefix, nb::arg("space"), nb::arg("keys").none(), nb::arg("salts").none(),
           nb::arg("pin"))
      .def("unpin", unpin, nb::arg("space"), nb::arg("keys").none(), nb::arg("salts").none())
      .def("touch", touch, nb::arg("space"), nb::arg("keys").none(), nb::arg("salts").none())
      .def("delete", erase, nb::arg("space"), nb::arg("keys").none(), nb::arg("salts").none());
}

}  // namespace kvstore::binding
