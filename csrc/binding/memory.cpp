// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory for zero copy: pool.alloc()'s Buffer, and registering memory that others own.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "binding/gil.h"
#include "binding/pool.h"
#include "device/fork_guard.h"

namespace kvstore::binding {
namespace {

// Page-aligned memory of the store. Views of it hold this object, and this object holds the Store, so that a view that
// outlives pool.close() still points at memory.
class PoolBuffer {
 public:
  PoolBuffer(std::shared_ptr<store::Store> store, uint64_t bytes)
      : store_(std::move(store)), bytes_(bytes), fork_generation_(device::fork_generation()) {
    memory_ = unwrap(without_gil([&] { return store_->allocate(bytes_); }));
  }
  PoolBuffer(const PoolBuffer&) = delete;
  PoolBuffer& operator=(const PoolBuffer&) = delete;
  ~PoolBuffer() {
    if (fork_generation_ != device::fork_generation()) {
      leak_value(store_);  // the child must not run its end
      return;
    }
    const Status released = store_->release(memory_);
    (void)released;  // nobody to tell: the Store frees what is left when it ends
  }
  void* memory() const { return memory_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<store::Store> store_;
  uint64_t bytes_;
  void* memory_ = nullptr;
  uint64_t fork_generation_;
};

int export_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto* const buffer = nb::inst_ptr<PoolBuffer>(self);
  return PyBuffer_FillInfo(view, self, buffer->memory(), static_cast<Py_ssize_t>(buffer->bytes()), 0, flags);
}

PyType_Slot buffer_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(export_buffer)},
    {0, nullptr},
};

std::shared_ptr<PoolBuffer> allocate(PoolHandle& pool, nb::object nbytes) {
  const uint64_t bytes = parse_u64(nbytes, {"nbytes"}, 1ULL << 46);
  if (bytes == 0) raise_invalid("nbytes is 0, allowed are 1 and more");
  return std::make_shared<PoolBuffer>(pool.store(), bytes);
}

}  // namespace

void bind_memory(nb::module_& module, nb::class_<PoolHandle>& pool) {
  nb::class_<PoolBuffer>(module, "Buffer", nb::is_final(), nb::type_slots(buffer_slots), R"(Memory for zero copy.

Page-aligned, zeroed at first, registered with the device queues where the memory lock limit allows. Made by
:meth:`kvstore.Pool.alloc`. Gives a writable buffer: ``memoryview(buffer)``, ``numpy.frombuffer(buffer, dtype)``,
``torch.frombuffer(buffer, dtype=...)``. The memory is given back when this object and every view of it are gone; a view
stays valid after ``pool.close()``.

Attributes
----------
nbytes : its length.
ptr : its address, a multiple of 4096.

Examples
--------
>>> pool = kvstore.open(example_pool)
>>> buffer = pool.alloc(1 << 20)
>>> buffer.nbytes, buffer.ptr % 4096, memoryview(buffer).readonly
(1048576, 0, False)
>>> pool.close()
)")
      .def_prop_ro("nbytes", &PoolBuffer::bytes)
      .def_prop_ro("ptr", [](const PoolBuffer& buffer) { return reinterpret_cast<uintptr_t>(buffer.memory()); })
      .def("__len__", &PoolBuffer::bytes)
      .def("__repr__",
           [](const PoolBuffer& buffer) { return "Buffer(nbytes=" + std::to_string(buffer.bytes()) + ")"; });

  pool.def("alloc", allocate, nb::arg("nbytes").none())
      .def(
          "register",
          [](PoolHandle& self, nb::object buffer) {
            const Status status = self.register_buffer(std::move(buffer));
            return std::make_pair(status.ok(), status.message());
          },
          nb::arg("buffer").none())
      .def("unregister", &PoolHandle::unregister_buffer, nb::arg("buffer").none());
}

}  // namespace kvstore::binding
