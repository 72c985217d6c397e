// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "binding/buffers.h"

#include <algorithm>
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

[[noreturn]] void raise_device_memory(const std::string& place, const std::string& device, const std::string& why) {
  throw StatusError(Status(Code::kUnsupported, place + " is in device memory (" + device + "): " + why +
                                                   "; or copy to host memory (pinned is fine) and pass that"));
}

// Before anything is asked of an object in GPU memory.
void need_cuda(const std::string& place, const std::string& device) {
  const auto driver = gpu::CudaDriver::get();
  if (!driver.ok()) raise_device_memory(place, device, driver.status().message());
}

bool is_cuda(int64_t dlpack_type) { return dlpack_type == dlpack::kCuda || dlpack_type == dlpack::kCudaManaged; }

bool is_host(int64_t dlpack_type) {
  return dlpack_type == dlpack::kCpu || dlpack_type == dlpack::kCudaHost || dlpack_type == dlpack::kRocmHost;
}

// A field of __cuda_array_interface__; None where it is missing.
nb::object field(nb::handle interface, const char* name) {
  nb::object found = nb::borrow(PyDict_GetItemString(interface.ptr(), name));
  return found.is_valid() ? found : nb::none();
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
      place_of_segment_ = kHost;
      add_segment(part, access, where, static_cast<Py_ssize_t>(i));
      if (i != 0 && place_of_segment_ != block.memory_place) {
        raise_invalid(place(where, static_cast<Py_ssize_t>(i)) +
                      " is in other memory, or on another stream, than the segments before it");
      }
      block.memory_place = place_of_segment_;
    }
  } else {
    place_of_segment_ = kHost;
    add_segment(object, access, where, -1);
    block.memory_place = place_of_segment_;
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
  if (const nb::object interface = attribute(object, "__cuda_array_interface__"); interface.is_valid()) {
    return add_cuda_array(interface, object, access, where, segment);
  }
  if (attribute(object, "__dlpack__").is_valid()) return add_dlpack(object, access, where, segment);
  raise_type_error(place(where, segment) + " is a " + name_of_type(object) +
                   ", not a buffer: pass bytes, bytearray, memoryview, a numpy or cupy array, a torch tensor, a DLPack "
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
  // Without a stream it is host memory: nobody says what the bytes of a GPU would wait for.
  if (stream_) return add_device_memory({pointer, bytes, {}, {}, false}, where, segment);
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
  bool is_on_gpu = false;
  if (device.is_valid()) {
    const nb::object type = attribute(device, "type");
    is_on_gpu = type.is_valid() && PyUnicode_CompareWithASCIIString(type.ptr(), "cuda") == 0;
    if (is_on_gpu) {
      need_cuda(text, message_text(device));
    } else if (type.is_valid() && PyUnicode_CompareWithASCIIString(type.ptr(), "cpu") != 0) {
      raise_device_memory(text, message_text(device), "only CUDA devices are reached");
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
  if (is_on_gpu && !stream_) {  // torch knows what its bytes wait for, and lets a stream of ours wait for it
    if (attribute(object, "__dlpack__").is_valid()) return add_dlpack(object, Access::kRead, where, segment);
    raise_device_memory(text, message_text(device), "give stream=, the CUDA stream that it is used on");
  }
  const nb::object pointer = attribute(object, "data_ptr")();
  const std::string pointer_name = text + " data_ptr()";
  const std::string bytes_name = text + " nbytes";
  const uint64_t address = parse_u64(pointer, {pointer_name.c_str()});
  const uint64_t length = parse_u64(bytes, {bytes_name.c_str()}, INT64_MAX);
  objects_.push_back(nb::borrow(object).release().ptr());
  if (is_on_gpu) return add_device_memory({address, length, {}, {}, false}, where, segment);
  add_memory(reinterpret_cast<const void*>(address), length, where, segment);
}

// https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html, versions 0 to 3.
void Buffers::add_cuda_array(nb::handle interface, nb::handle object, Access access, const Where& where,
                             Py_ssize_t segment) {
  const std::string text = place(where, segment);
  need_cuda(text, "__cuda_array_interface__");
  const auto refuse = [&text](const char* what) { raise_invalid(text + ": its __cuda_array_interface__ " + what); };
  if (!PyDict_Check(interface.ptr())) refuse("is no dict");
  const nb::object data = field(interface, "data");
  const nb::object shape = field(interface, "shape");
  const nb::object type = field(interface, "typestr");
  if (!PyTuple_Check(data.ptr()) || PyTuple_Size(data.ptr()) != 2) refuse("has no data of (pointer, read-only)");
  if (!PyTuple_Check(shape.ptr())) refuse("has no shape");
  if (!PyUnicode_Check(type.ptr()) || PyUnicode_GetLength(type.ptr()) < 3) refuse("has no typestr");
  if (!field(interface, "mask").is_none()) refuse("has a mask: store the array without");
  if (access == Access::kWrite && is_true(data[1])) {
    raise_invalid(text + " (" + name_of_type(object) + ") is read-only: nothing can be read into it");
  }
  const std::string type_text = parse_text(type, {"typestr"});
  if (type_text[1] == 'O') refuse("is of Python objects");
  DevicePart part;
  uint64_t item_bytes = 0;
  for (size_t i = 2; i < type_text.size(); ++i) {
    if (type_text[i] < '0' || type_text[i] > '9' || i > 10) refuse("has a typestr that is not understood");
    item_bytes = item_bytes * 10 + static_cast<uint64_t>(type_text[i] - '0');
  }
  part.bytes = item_bytes;
  const nb::object strides = field(interface, "strides");
  bool contiguous = true;
  for (Py_ssize_t i = PyTuple_Size(shape.ptr()); i-- > 0;) {
    const uint64_t extent = parse_u64(PyTuple_GetItem(shape.ptr(), i), {"shape"}, INT64_MAX);
    if (!strides.is_none() && extent != 1 &&
        parse_u64(nb::object(strides[static_cast<size_t>(i)]), {"strides"}) != part.bytes) {
      contiguous = false;
    }
    if (__builtin_mul_overflow(part.bytes, extent, &part.bytes)) refuse("has a shape that overflows");
  }
  if (!contiguous && part.bytes != 0) raise_not_contiguous(text);
  part.pointer = parse_u64(data[0], {"data"});
  if (const nb::object stream = field(interface, "stream"); !stream.is_none()) {
    part.stream = parse_u64(stream, {"stream"});
    if (*part.stream == 0) refuse("has stream 0, which the interface does not allow: 1 is the legacy default stream");
  }
  objects_.push_back(nb::borrow(object).release().ptr());
  add_device_memory(part, where, segment);
}

void Buffers::add_device_memory(const DevicePart& part, const Where& where, Py_ssize_t segment) {
  if (part.bytes == 0) return;
  const std::string text = place(where, segment);
  const auto checked = [&text](auto result) {
    if (!result.ok()) throw StatusError(Status(result.status().code(), text + ": " + result.status().message()));
    return std::move(result).value();
  };
  const int device = checked(gpu::device_of_pointer(part.pointer));
  if (device < 0) return add_memory(reinterpret_cast<const void*>(part.pointer), part.bytes, where, segment);
  if (part.device && *part.device != device) {
    raise_invalid(text + " says that it is on GPU " + std::to_string(*part.device) + ", CUDA that it is on GPU " +
                  std::to_string(device));
  }
  if (!device_memory_) device_memory_ = std::make_shared<gpu::DeviceMemory>(direct_);
  const bool is_ours = part.is_ordered_by_us && !stream_;
  place_of_segment_ =
      static_cast<int32_t>(checked(device_memory_->place_of(device, stream_ ? stream_ : part.stream, !is_ours)));
  segments_.push_back({reinterpret_cast<void*>(part.pointer), static_cast<size_t>(part.bytes)});
}

std::shared_ptr<store::MemoryMover> Buffers::begin_device_memory(store::Store& store, bool holds) {
  if (!device_memory_) return nullptr;
  check(without_gil([&]() -> Status {
    KVS_TRY(store.prepare_mover(*device_memory_));  // may wait for all streams, so before one of them is held
    return device_memory_->begin(holds);
  }));
  return std::move(device_memory_);
}

Status Buffers::register_device_memory(store::Store& store) {
  if (direct_ == nullptr) return Status(Code::kUnsupported, "gpu_direct is off: GPU memory is used as it is");
  const iovec memory = segments_.front();
  return without_gil([&]() -> Status {
    KVS_TRY(store.prepare_mover(*device_memory_));
    KVS_ASSIGN(const int gpu, gpu::device_of_pointer(reinterpret_cast<uint64_t>(memory.iov_base)));
    const std::shared_ptr<gpu::DirectReads> reads = direct_->reads_of(gpu);
    if (reads == nullptr) return Status(Code::kUnsupported, direct_->state());
    return reads->register_memory(memory.iov_base, memory.iov_len);
  });
}

void Buffers::unregister_device_memory() {
  void* const base = segments_.front().iov_base;
  without_gil([&] {
    const Result<int> gpu = gpu::device_of_pointer(reinterpret_cast<uint64_t>(base));
    const std::shared_ptr<gpu::DirectReads> reads = gpu.ok() && direct_ ? direct_->reads_of(gpu.value()) : nullptr;
    if (reads != nullptr) reads->unregister_memory(base);
  });
}

void Buffers::add_dlpack(nb::handle object, Access access, const Where& where, Py_ssize_t segment) {
  const std::string text = place(where, segment);
  DevicePart part;
  const nb::object device_of = attribute(object, "__dlpack_device__");
  if (device_of.is_valid()) {
    const nb::object device = device_of();
    const auto type = nb::cast<int64_t>(device[0]);
    const std::string device_text = "DLPack device type " + std::to_string(type);
    if (is_cuda(type)) {
      need_cuda(text, device_text);
      // The exporter lets this stream wait for what its bytes wait for.
      const auto number = nb::cast<int>(device[1]);
      part.is_ordered_by_us = !stream_;
      part.stream = stream_ ? *stream_ : unwrap(gpu::order_stream(number));
    } else if (!is_host(type)) {
      raise_device_memory(text, device_text, "only CUDA devices are reached");
    }
  }
  nb::object exporter = attribute(object, "__dlpack__");
  nb::object capsule;
  nb::dict arguments;
  // 1 is the legacy default stream, which CUDA also knows as 0.
  if (part.stream) arguments["stream"] = std::max<uint64_t>(*part.stream, 1);
  try {
    // Version 1 says whether the memory is read-only; exporters of before do not know the argument.
    capsule = exporter(nb::arg("max_version") = nb::make_tuple(1, 0), **arguments);
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = exporter(**arguments);
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
  if (!is_host(device) && !(is_cuda(device) && part.stream)) {
    raise_device_memory(text, "DLPack device type " + std::to_string(device), "only CUDA devices are reached");
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
  const char* const data = static_cast<const char*>(tensor->data) + tensor->offset_bytes;
  if (is_host(device)) return add_memory(data, (bits + 7) / 8, where, segment);
  part.pointer = reinterpret_cast<uint64_t>(data);
  part.bytes = (bits + 7) / 8;
  part.device = tensor->device.id;
  add_device_memory(part, where, segment);
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
