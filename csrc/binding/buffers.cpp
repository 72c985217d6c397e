// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "binding/buffers.h"

#include <string>

#include "binding/dlpack.h"
#include "binding/gil.h"
#include "store/types.h"

namespace kvstore::binding {
namespace {

std::string place(const Where& where, Py_ssize_t segment) {
  return segment < 0 ? where.text() : where.text() + " segment " + std::to_string(segment);
}

// The attribute, or an invalid object when there is none.
nb::object attribute(nb::handle object, const char* name) {
  nb::object found = nb::steal(PyObject_GetAttrString(object.ptr(), name));
  if (!found.is_valid()) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw nb::python_error();
    PyErr_Clear();
  }
  return found;
}

bool is_true(nb::handle object) {
  const int truth = PyObject_IsTrue(object.ptr());
  if (truth < 0) throw nb::python_error();
  return truth != 0;
}

// The text of the exception that is set; clears it.
std::string take_error_text() {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  const nb::object owned_type = nb::steal(type);
  const nb::object owned_value = nb::steal(value);
  const nb::object owned_traceback = nb::steal(traceback);
  return message_text(owned_value.is_valid() ? owned_value : owned_type);
}

[[noreturn]] void raise_device_memory(const std::string& place, const std::string& device) {
  throw StatusError(Status(Code::kUnsupported, place + " is in device memory (" + device +
                                                   "): this build moves host memory only, it has no GPU path; copy "
                                                   "to host memory (pinned is fine) and pass that"));
}

[[noreturn]] void raise_not_contiguous(const std::string& place) {
  raise_invalid(place + " is not contiguous: pass a C-contiguous copy, or its contiguous parts as a list of segments");
}

// Whether a struct format has the letter O, outside of the names of its fields, which stand between colons.
bool holds_objects(const char* format) {
  bool in_name = false;
  for (const char* c = format; c != nullptr && *c != '\0'; ++c) {
    if (*c == ':') in_name = !in_name;
    if (*c == 'O' && !in_name) return true;
  }
  return false;
}

}  // namespace

Buffers::Block Buffers::add(nb::handle object, Access access, const Where& where) {
  const Exposed exposed;  // methods of tensors and exporters run
  Block block;
  block.first = segments_.size();
  PyObject* const given = object.ptr();
  const bool is_list = PyList_Check(given);
  // A tuple that starts with an int is one (pointer, nbytes); every other list or tuple is a list of segments.
  if (is_list || (PyTuple_Check(given) && !(PyTuple_Size(given) > 0 && PyLong_Check(PyTuple_GetItem(given, 0))))) {
    const Sequence parts(object, where.name);
    if (parts.size() == 0 || parts.size() > store::kSegmentsMax) {
      raise_invalid(where.text() + " has " + number_text(parts.size()) + " segments, allowed are 1 to " +
                    number_text(store::kSegmentsMax));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      const nb::object part = parts[i];
      add_segment(part, access, where, static_cast<Py_ssize_t>(i));
    }
  } else {
    add_segment(object, access, where, -1);
  }
  block.count = static_cast<uint32_t>(segments_.size() - block.first);
  for (size_t i = block.first; i < segments_.size(); ++i) {
    if (__builtin_add_overflow(block.bytes, segments_[i].iov_len, &block.bytes)) {
      raise_invalid(where.text() + ": the sizes of its segments overflow 64 bits");
    }
  }
  if (block.bytes == 0) {
    raise_invalid(where.text() + (access == Access::kRead ? " is empty: a block has 1 byte or more"
                                                          : " is empty: there is no room to read into"));
  }
  return block;
}

void Buffers::add_segment(nb::handle object, Access access, const Where& where, Py_ssize_t segment) {
  PyObject* const given = object.ptr();
  if (PyTuple_Check(given)) return add_pointer(object, where, segment);
  if (PyObject_CheckBuffer(given)) return add_export(object, access, where, segment);
  if (attribute(object, "data_ptr").is_valid()) return add_tensor(object, where, segment);
  if (attribute(object, "__cuda_array_interface__").is_valid()) {
    raise_device_memory(place(where, segment), "__cuda_array_interface__");
  }
  if (attribute(object, "__dlpack__").is_valid()) return add_dlpack(object, access, where, segment);
  raise_type_error(place(where, segment) + " is a " + name_of_type(object) +
                   ", not a buffer: pass bytes, bytearray, memoryview, a numpy array, a torch CPU tensor, a DLPack "
                   "object, (pointer, nbytes), or a list of such segments");
}

void Buffers::add_memory(const void* data, uint64_t bytes, const Where& where, Py_ssize_t segment) {
  if (bytes == 0) return;
  if (data == nullptr) raise_invalid(place(where, segment) + " has no memory (null pointer) for its bytes");
  segments_.push_back({const_cast<void*>(data), static_cast<size_t>(bytes)});
}

void Buffers::add_pointer(nb::handle pair, const Where& where, Py_ssize_t segment) {
  const std::string text = place(where, segment);
  if (PyTuple_Size(pair.ptr()) != 2 || !PyLong_Check(PyTuple_GetItem(pair.ptr(), 0))) {
    raise_type_error(text + " is a tuple, but not (pointer, nbytes) of two ints");
  }
  const std::string pointer_name = text + " pointer";
  const std::string bytes_name = text + " nbytes";
  const uint64_t pointer = parse_u64(PyTuple_GetItem(pair.ptr(), 0), {pointer_name.c_str()});
  const uint64_t bytes = parse_u64(PyTuple_GetItem(pair.ptr(), 1), {bytes_name.c_str()}, INT64_MAX);
  uint64_t end = 0;
  if (__builtin_add_overflow(pointer, bytes, &end)) raise_invalid(text + " ends beyond the address space");
  add_memory(reinterpret_cast<const void*>(pointer), bytes, where, segment);
}

void Buffers::add_export(nb::handle object, Access access, const Where& where, Py_ssize_t segment) {
  Py_buffer& view = exports_.emplace_back();
  bool given = PyObject_GetBuffer(object.ptr(), &view, PyBUF_STRIDES | PyBUF_FORMAT) == 0;
  if (!given) {
    // numpy has types without a format letter (bfloat16, datetime64), and exports them when not asked for one.
    PyErr_Clear();
    given = PyObject_GetBuffer(object.ptr(), &view, PyBUF_STRIDES) == 0;
  }
  if (given && holds_objects(view.format)) {
    raise_type_error(place(where, segment) + " (" + name_of_type(object) +
                     ") holds Python objects: their addresses are no bytes to store, and none to overwrite");
  }
  if (!given) {
    exports_.pop_back();
    const std::string why = take_error_text();
    raise_invalid(place(where, segment) + " (" + name_of_type(object) + ") gives no plain memory: " + why);
  }
  if (PyBuffer_IsContiguous(&view, 'C') == 0) raise_not_contiguous(place(where, segment));
  if (access == Access::kWrite && view.readonly != 0) {
    raise_invalid(place(where, segment) + " (" + name_of_type(object) + ") is read-only: nothing can be read into it");
  }
  add_memory(view.buf, static_cast<uint64_t>(view.len), where, segment);
}

// torch by its methods, without importing torch: is_contiguous(), device.type, data_ptr(), nbytes.
void Buffers::add_tensor(nb::handle object, const Where& where, Py_ssize_t segment) {
  const std::string text = place(where, segment);
  const nb::object device = attribute(object, "device");
  if (device.is_valid()) {
    const nb::object type = attribute(device, "type");
    if (type.is_valid() && PyUnicode_CompareWithASCIIString(type.ptr(), "cpu") != 0) {
      raise_device_memory(text, message_text(device));
    }
  }
  const nb::object is_contiguous = attribute(object, "is_contiguous");
  const nb::object bytes = attribute(object, "nbytes");
  if (!is_contiguous.is_valid() || !bytes.is_valid()) {
    raise_type_error(text + " (" + name_of_type(object) +
                     ") has data_ptr but not is_contiguous and nbytes: not a tensor");
  }
  if (!is_true(is_contiguous())) raise_not_contiguous(text);
  for (const char* lazy : {"is_conj", "is_neg"}) {
    const nb::object method = attribute(object, lazy);
    if (method.is_valid() && is_true(method())) {
      raise_invalid(text + " is a lazy view (" + lazy + "): its memory holds other numbers; resolve it first");
    }
  }
  const nb::object pointer = attribute(object, "data_ptr")();
  const std::string pointer_name = text + " data_ptr()";
  const std::string bytes_name = text + " nbytes";
  const uint64_t address = parse_u64(pointer, {pointer_name.c_str()});
  const uint64_t length = parse_u64(bytes, {bytes_name.c_str()}, INT64_MAX);
  objects_.push_back(nb::borrow(object).release().ptr());
  add_memory(reinterpret_cast<const void*>(address), length, where, segment);
}

void Buffers::add_dlpack(nb::handle object, Access access, const Where& where, Py_ssize_t segment) {
  const std::string text = place(where, segment);
  const nb::object device_of = attribute(object, "__dlpack_device__");
  if (device_of.is_valid()) {
    const nb::object device = device_of();
    const auto type = nb::cast<int64_t>(device[0]);
    if (type != dlpack::kCpu && type != dlpack::kCudaHost && type != dlpack::kRocmHost) {
      raise_device_memory(text, "DLPack device type " + std::to_string(type));
    }
  }
  nb::object exporter = attribute(object, "__dlpack__");
  nb::object capsule;
  try {
    // Version 1 says whether the memory is read-only; exporters of before do not know the argument.
    capsule = exporter(nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = exporter();
  }
  const dlpack::Tensor* tensor = nullptr;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto* managed =
        static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->major != 1) raise_invalid(text + ": DLPack version " + std::to_string(managed->major) + " is unknown");
    if (access == Access::kWrite && (managed->flags & dlpack::kFlagReadOnly) != 0) {
      raise_invalid(text + " (" + name_of_type(object) + ") is read-only: nothing can be read into it");
    }
    tensor = &managed->tensor;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    tensor = &static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor;
  } else {
    raise_type_error(text + ": __dlpack__() gave no DLPack capsule");
  }
  const int32_t device = tensor->device.type;
  if (device != dlpack::kCpu && device != dlpack::kCudaHost && device != dlpack::kRocmHost) {
    raise_device_memory(text, "DLPack device type " + std::to_string(device));
  }
  uint64_t elements = 1;
  bool contiguous = true;
  for (int32_t i = tensor->dimensions - 1; i >= 0; --i) {
    const int64_t extent = tensor->shape[i];
    if (extent != 1 && tensor->strides != nullptr && tensor->strides[i] != static_cast<int64_t>(elements)) {
      contiguous = false;
    }
    if (extent < 0 || __builtin_mul_overflow(elements, static_cast<uint64_t>(extent), &elements)) {
      raise_invalid(text + ": its DLPack shape is negative or overflows");
    }
  }
  if (!contiguous && elements != 0) raise_not_contiguous(text);
  uint64_t bits = 0;
  if (__builtin_mul_overflow(elements, static_cast<uint64_t>(tensor->type.bits) * tensor->type.lanes, &bits)) {
    raise_invalid(text + ": its DLPack shape overflows");
  }
  // The capsule is not consumed: its own destructor calls the exporter's deleter once it is let go.
  objects_.push_back(capsule.release().ptr());
  add_memory(static_cast<const char*>(tensor->data) + tensor->offset_bytes, (bits + 7) / 8, where, segment);
}

void Buffers::release() {
  const Exposed exposed;  // finalizers of the objects run
  // Taken out first: letting go may run Python code that comes back here.
  std::deque<Py_buffer> exports;
  std::vector<PyObject*> objects;
  exports.swap(exports_);
  objects.swap(objects_);
  for (Py_buffer& view : exports) PyBuffer_Release(&view);
  for (PyObject* const object : objects) Py_DECREF(object);
}

void Buffers::leak() {
  static auto* const leaked_exports = new std::deque<std::deque<Py_buffer>>;  // NOLINT: leaked on purpose (I11)
  static auto* const leaked_segments = new std::deque<std::vector<iovec>>;    // NOLINT
  leaked_exports->push_back(std::move(exports_));
  leaked_segments->push_back(std::move(segments_));
  exports_.clear();
  segments_.clear();
  objects_.clear();  // the references are not given back
}

}  // namespace kvstore::binding
