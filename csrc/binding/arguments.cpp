// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "binding/arguments.h"

#include <cmath>

namespace kvstore::binding {

std::string number_text(uint64_t number) {
  std::string digits = std::to_string(number);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string Where::text() const {
  return index < 0 ? std::string(name) : std::string(name) + "[" + std::to_string(index) + "]";
}

std::string name_of_type(nb::handle object) {
  const nb::object name =
      nb::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())), "__name__"));
  if (!name.is_valid()) throw nb::python_error();
  return message_text(name);
}

std::string message_text(nb::handle object) {
  const nb::object text = nb::steal(PyObject_Str(object.ptr()));
  const nb::object encoded =
      nb::steal(text.is_valid() ? PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace") : nullptr);
  char* data = nullptr;
  Py_ssize_t bytes = 0;
  if (!encoded.is_valid() || PyBytes_AsStringAndSize(encoded.ptr(), &data, &bytes) != 0) {
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw nb::python_error();  // such as Ctrl-C
    PyErr_Clear();
    return "(no text)";
  }
  return {data, static_cast<size_t>(bytes)};
}

namespace {

// One value, where a sequence could stand: arrays have a buffer too, and are sequences.
bool is_bytes_like(nb::handle object) {
  PyObject* const given = object.ptr();
  return PyBytes_Check(given) || PyByteArray_Check(given) || PyMemoryView_Check(given);
}

bool is_iterable(nb::handle object) { return nb::hasattr(object, "__iter__") || PySequence_Check(object.ptr()) != 0; }

}  // namespace

Sequence::Sequence(nb::handle object, const char* name) : name_(name) {
  PyObject* const given = object.ptr();
  if (PyBytes_Check(given) || PyUnicode_Check(given) || PyByteArray_Check(given)) {
    raise_type_error(std::string(name) + " is a sequence, not one " + name_of_type(object) + ": put it into a list");
  }
  if (PyList_Check(given) || PyTuple_Check(given)) {
    items_ = nb::borrow(object);
  } else {
    if (!is_iterable(object)) {
      raise_type_error(std::string(name) + " is a " + name_of_type(object) + ", not a sequence");
    }
    items_ = nb::steal(PySequence_List(given));
    if (!items_.is_valid()) throw nb::python_error();
  }
  is_list_ = PyList_Check(items_.ptr());
  size_ = static_cast<size_t>(is_list_ ? PyList_Size(items_.ptr()) : PyTuple_Size(items_.ptr()));
}

nb::object Sequence::operator[](size_t index) const {
  // Checked: the list may shrink when looking at an item runs Python code.
  const auto position = static_cast<Py_ssize_t>(index);
  PyObject* const item = is_list_ ? PyList_GetItem(items_.ptr(), position) : PyTuple_GetItem(items_.ptr(), position);
  if (item == nullptr) throw nb::python_error();
  return nb::borrow(item);
}

void Texts::reserve(size_t count) {
  held_.reserve(count);
  views_.reserve(count);
}

void Texts::add(nb::handle object, const Where& where, ByteLimits limits) {
  PyObject* const given = object.ptr();
  std::string_view view;
  if (PyBytes_Check(given)) {
    char* data = nullptr;
    Py_ssize_t bytes = 0;
    PyBytes_AsStringAndSize(given, &data, &bytes);
    view = {data, static_cast<size_t>(bytes)};
    held_.push_back(nb::borrow(object));
  } else if (PyUnicode_Check(given)) {
    raise_type_error(where.text() + " is a str: keys, parents, salts and meta are bytes, so encode it");
  } else if (PyObject_CheckBuffer(given)) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(given, &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
    view = copies_.emplace_back(static_cast<const char*>(buffer.buf), static_cast<size_t>(buffer.len));
    PyBuffer_Release(&buffer);
  } else {
    raise_type_error(where.text() + " is a " + name_of_type(object) + ", not bytes");
  }
  if (view.size() < limits.min_bytes || view.size() > limits.max_bytes) {
    raise_invalid(where.text() + " is " + number_text(view.size()) + " bytes long, allowed are " +
                  number_text(limits.min_bytes) + " to " + number_text(limits.max_bytes));
  }
  views_.push_back(view);
}

Texts Texts::of_sequence(nb::handle object, const char* name, ByteLimits limits) {
  const Sequence items(object, name);
  Texts texts;
  texts.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) texts.add(items[i], {name, static_cast<Py_ssize_t>(i)}, limits);
  return texts;
}

Texts Texts::of_optional(nb::handle object, const char* name, ByteLimits limits, size_t count) {
  Texts texts;
  if (object.is_none()) {
    texts.views_.resize(count);
    return texts;
  }
  if (is_bytes_like(object)) {
    texts.add(object, {name}, limits);
    const std::string_view view = texts.views_.front();
    texts.views_.assign(count, view);
    return texts;
  }
  const Sequence items(object, name);
  if (items.size() != count) {
    raise_invalid(std::string(name) + " has " + number_text(items.size()) + " items for " + number_text(count) +
                  " keys");
  }
  texts.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const nb::object item = items[i];
    if (item.is_none()) {
      texts.add_empty();
    } else {
      texts.add(item, {name, static_cast<Py_ssize_t>(i)}, limits);
    }
  }
  return texts;
}

namespace {

// An invalid object for what is no int. A bool is none here: as a pointer it is 1, and read it crashes the process.
nb::object as_int(nb::handle object) {
  if (PyBool_Check(object.ptr())) return {};
  nb::object number = nb::steal(PyNumber_Index(object.ptr()));
  if (!number.is_valid()) PyErr_Clear();
  return number;
}

}  // namespace

std::string parse_text(nb::handle object, const Where& where) {
  if (PyUnicode_Check(object.ptr()) == 0) {
    raise_type_error(where.text() + " is a " + name_of_type(object) + ", not a str");
  }
  Py_ssize_t bytes = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object.ptr(), &bytes);
  if (text == nullptr) {
    PyErr_Clear();
    raise_invalid(where.text() + " is '" + message_text(object) + "', which UTF-8 cannot hold");
  }
  return {text, static_cast<size_t>(bytes)};
}

uint64_t parse_u64(nb::handle object, const Where& where, uint64_t max) {
  const nb::object number = as_int(object);
  if (!number.is_valid()) {
    raise_type_error(where.text() + " is a " + name_of_type(object) + ", not an int");
  }
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
  const bool out_of_range = PyErr_Occurred() != nullptr;
  PyErr_Clear();
  if (out_of_range || value > max) {
    raise_invalid(where.text() + " is " + message_text(number) + ", allowed are 0 to " + number_text(max));
  }
  return value;
}

uint32_t parse_limit(nb::handle object) {
  return object.is_none() ? UINT32_MAX : static_cast<uint32_t>(parse_u64(object, {"limit"}, UINT32_MAX));
}

int32_t parse_i32(nb::handle object, const Where& where) {
  const nb::object number = as_int(object);
  if (!number.is_valid()) {
    raise_type_error(where.text() + " is a " + name_of_type(object) + ", not an int");
  }
  const long value = PyLong_AsLong(number.ptr());
  const bool out_of_range = PyErr_Occurred() != nullptr;
  PyErr_Clear();
  if (out_of_range || value < INT32_MIN || value > INT32_MAX) {
    raise_invalid(where.text() + " is " + message_text(number) + ", allowed are -2^31 to 2^31 - 1");
  }
  return static_cast<int32_t>(value);
}

std::vector<uint64_t> parse_u64s(nb::handle object, const char* name, size_t count, uint64_t fallback, uint64_t max) {
  std::vector<uint64_t> numbers(count, fallback);
  if (object.is_none()) return numbers;
  if (PyIndex_Check(object.ptr()) && !PySequence_Check(object.ptr())) {
    numbers.assign(count, parse_u64(object, {name}, max));
    return numbers;
  }
  const Sequence items(object, name);
  if (items.size() != count) {
    raise_invalid(std::string(name) + " has " + number_text(items.size()) + " items for " + number_text(count) +
                  " keys");
  }
  for (size_t i = 0; i < count; ++i) {
    const nb::object item = items[i];
    if (!item.is_none()) numbers[i] = parse_u64(item, {name, static_cast<Py_ssize_t>(i)}, max);
  }
  return numbers;
}

uint64_t parse_duration_ns(nb::handle object, const char* name, double unit_ns, uint64_t none) {
  if (object.is_none()) return none;
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    raise_type_error(std::string(name) + " is a " + name_of_type(object) + ", not a number or None");
  }
  if (std::isnan(value) || value < 0) {
    raise_invalid(std::string(name) + " is " + message_text(object) + ", allowed are 0 and more");
  }
  const double ns = value * unit_ns;
  return ns >= 4e18 ? UINT64_MAX : static_cast<uint64_t>(ns);
}

}  // namespace kvstore::binding
