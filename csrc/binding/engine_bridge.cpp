// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "binding/engine_bridge.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "binding/arguments.h"
#include "binding/errors.h"
#include "binding/gil.h"
#include "device/fork_guard.h"

namespace kvstore::binding {
namespace {

using cluster::Change;
using cluster::Compare;
using cluster::KeyValue;
using cluster::LeaseId;
using cluster::Operation;
using cluster::Revision;
using cluster::Snapshot;
using cluster::TxnOutcome;

// What a refused connection costs no time for.
constexpr std::chrono::milliseconds kFailureTakes{50};

// What a call makes and catches.
struct Classes {
  Classes()
      : compare(of("kvstore.cluster.engine", "Compare")),
        put(of("kvstore.cluster.engine", "Put")),
        erase(of("kvstore.cluster.engine", "Erase")),
        engine_error(of("kvstore.errors", "EngineError")),
        lease_ended(of("kvstore.errors", "LeaseEnded")),
        stale_error(of("kvstore.errors", "StaleError")) {}

  static nb::object of(const char* module, const char* name) { return nb::module_::import_(module).attr(name); }

  const nb::object compare, put, erase, engine_error, lease_ended, stale_error;
};

// A Python object that threads of the store hold, with what calls of it need.
class Callee {
 public:
  Callee(nb::object object, std::shared_ptr<const Classes> classes)
      : fork_generation_(device::fork_generation()), held_(new Held{std::move(object), std::move(classes)}) {}
  Callee(const Callee&) = delete;
  Callee& operator=(const Callee&) = delete;

  // Leaks the object once the interpreter exits, which could not take it back, and in a forked child.
  ~Callee() {
    if (fork_generation_ != device::fork_generation()) return;
    (void)with_gil([this] { delete held_; });
  }

  const nb::object& object() const { return held_->object; }
  const std::shared_ptr<const Classes>& classes() const { return held_->classes; }

  // f() with the GIL; what it throws becomes a Status.
  template <typename F>
  auto call(F&& f) const -> Result<decltype(f())> {
    if (fork_generation_ != device::fork_generation()) {
      return Status(Code::kClosed, "the metadata engine belongs to the parent process: open the pool after fork");
    }
    const auto paced_until = std::chrono::steady_clock::now() + kFailureTakes;
    Result<decltype(f())> result = Status(Code::kClosed, "the interpreter exits");
    (void)with_gil([&] {
      try {
        result = f();
      } catch (const nb::python_error& error) {
        result = status_of(error);
      } catch (const std::exception& error) {
        result = Status(Code::kFailed, std::string("the metadata engine gave what it should not: ") + error.what());
      }
    });
    if (result.status().code() == Code::kTimeout) std::this_thread::sleep_until(paced_until);
    return result;
  }

 private:
  struct Held {
    nb::object object;
    std::shared_ptr<const Classes> classes;
  };

  Status status_of(const nb::python_error& error) const {
    const Classes& known = *held_->classes;
    std::string text = message_text(error.value());
    if (error.matches(known.lease_ended)) return Status(Code::kNotFound, std::move(text));
    if (error.matches(known.engine_error)) return Status(Code::kTimeout, std::move(text));
    if (error.matches(known.stale_error)) return Status(Code::kStale, std::move(text));
    return Status(Code::kFailed, name_of_type(error.value()) + " in the metadata engine: " + text);
  }

  const uint64_t fork_generation_;
  Held* const held_;
};

// What Python can wait for, too: a poll that ends early is one without changes.
constexpr uint64_t kDurationNsMax = 86'400'000'000'000;

double seconds(uint64_t duration_ns) { return static_cast<double>(std::min(duration_ns, kDurationNsMax)) / 1e9; }

nb::bytes bytes_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

std::string text_of(nb::handle given) {
  const auto value = nb::cast<nb::bytes>(given);
  return {value.c_str(), value.size()};
}

KeyValue key_value(nb::handle item) {
  return {nb::cast<std::string>(item.attr("key")), text_of(item.attr("value")),
          nb::cast<Revision>(item.attr("modified")), nb::cast<LeaseId>(item.attr("lease"))};
}

// What may wait, and so find the interpreter gone when it comes back.
template <typename... Args>
nb::object call_method(nb::handle object, const char* name, Args&&... args) {
  const nb::object method = object.attr(name);
  const nb::tuple given = nb::make_tuple(std::forward<Args>(args)...);
  ParkWhenUnwound here;
  PyObject* const result = PyObject_Call(method.ptr(), given.ptr(), nullptr);
  here.pass();
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

// The value of a call that has none.
struct Nothing {};

class BridgedWatch final : public cluster::Watch {
 public:
  BridgedWatch(nb::object watch, std::shared_ptr<const Classes> classes)
      : callee_(std::move(watch), std::move(classes)) {}

  // A watch that cannot be closed is given up all the same.
  ~BridgedWatch() override {
    (void)callee_.call([this] {
      call_method(callee_.object(), "close");
      return Nothing{};
    });
  }

  Result<std::vector<Change>> poll(uint64_t timeout_ns) override {
    return callee_.call([&] {
      std::vector<Change> changes;
      for (nb::handle change : call_method(callee_.object(), "poll", seconds(timeout_ns))) {
        changes.push_back({key_value(change.attr("item")), nb::cast<bool>(change.attr("erased"))});
      }
      return changes;
    });
  }

 private:
  const Callee callee_;
};

class BridgedEngine final : public cluster::MetadataEngine {
 public:
  explicit BridgedEngine(nb::object engine)
      : forgets_ns_(parse_duration_ns(engine.attr("forgets_s"), "forgets_s", 1e9, 0)),
        callee_(std::move(engine), std::make_shared<const Classes>()) {}

  Result<TxnOutcome> txn(std::span<const Compare> compares, std::span<const Operation> operations) override {
    return callee_.call([&] {
      const Classes& classes = *callee_.classes();
      nb::list asked, wanted;
      for (const Compare& compare : compares) {
        const nb::object value = compare.value ? nb::object(bytes_of(*compare.value)) : nb::none();
        asked.append(classes.compare(compare.key, value));
      }
      for (const Operation& operation : operations) {
        wanted.append(operation.erase ? classes.erase(operation.key)
                                      : classes.put(operation.key, bytes_of(operation.value), operation.lease));
      }
      const nb::object done = call_method(callee_.object(), "txn", asked, wanted);
      return TxnOutcome{nb::cast<bool>(done.attr("applied")), nb::cast<Revision>(done.attr("revision"))};
    });
  }

  Result<Snapshot> range(std::string_view prefix) override {
    return callee_.call([&] {
      const nb::object found = call_method(callee_.object(), "range", std::string(prefix));
      Snapshot snapshot;
      for (nb::handle item : found.attr("items")) snapshot.items.push_back(key_value(item));
      snapshot.revision = nb::cast<Revision>(found.attr("revision"));
      return snapshot;
    });
  }

  Result<std::unique_ptr<cluster::Watch>> watch(std::string_view prefix, Revision after) override {
    return callee_.call([&] {
      return std::unique_ptr<cluster::Watch>(
          new BridgedWatch(call_method(callee_.object(), "watch", std::string(prefix), after), callee_.classes()));
    });
  }

  Result<LeaseId> grant(uint64_t ttl_ns) override {
    return callee_.call([&] { return nb::cast<LeaseId>(call_method(callee_.object(), "grant", seconds(ttl_ns))); });
  }

  Status renew(LeaseId lease) override { return call_of_lease("renew", lease); }
  Status revoke(LeaseId lease) override { return call_of_lease("revoke", lease); }
  uint64_t forgets_ns() const override { return forgets_ns_; }

 private:
  Status call_of_lease(const char* method, LeaseId lease) {
    return callee_
        .call([&] {
          call_method(callee_.object(), method, lease);
          return Nothing{};
        })
        .status();
  }

  const uint64_t forgets_ns_;
  const Callee callee_;
};

}  // namespace

std::unique_ptr<cluster::MetadataEngine> bridge_engine(nb::object engine) {
  return std::make_unique<BridgedEngine>(std::move(engine));
}

}  // namespace kvstore::binding
