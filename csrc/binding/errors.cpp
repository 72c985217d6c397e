// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "binding/errors.h"

#include <nanobind/stl/string.h>

#include <array>
#include <string>

namespace kvstore::binding {
namespace {

// errors._CLASSES, by code. Leaked: exceptions are made until the very end of the interpreter.
std::array<PyObject*, static_cast<size_t>(Code::kCanceled) + 1> exception_classes{};

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const StatusError& error) {
    const Status& status = error.status();
    const nb::object exception = make_exception(status.code(), status.io_errno(), status.message());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  }
}

}  // namespace

void raise_type_error(const std::string& message) {
  PyErr_SetString(PyExc_TypeError, message.c_str());
  throw nb::python_error();
}

const char* code_word(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kNotFound: return "not_found";
    case Code::kCorrupt: return "corrupt";
    case Code::kStale: return "stale";
    case Code::kBusy: return "busy";
    case Code::kNoSpace: return "no_space";
    case Code::kFenced: return "fenced";
    case Code::kInvalid: return "invalid";
    case Code::kUnsupported: return "unsupported";
    case Code::kIo: return "io";
    case Code::kTimeout: return "timeout";
    case Code::kClosed: return "closed";
    case Code::kForeign: return "foreign";
    case Code::kOtherStore: return "other_store";
    case Code::kDurabilityLost: return "durability_lost";
    case Code::kFailed: return "failed";
    case Code::kCanceled: return "canceled";
  }
  return "failed";
}

nb::object make_exception(Code code, int io_errno, const std::string& message) {
  // A path that is not there: the operating system's answer rather than "no store here".
  const Code classified = code == Code::kNotFound && io_errno != 0 ? Code::kIo : code;
  const nb::handle type = exception_classes[static_cast<size_t>(classified)];
  if (!type.is_valid()) {
    PyErr_SetString(PyExc_ImportError, ("kvstore._core is used without the package kvstore: " + message).c_str());
    throw nb::python_error();
  }
  const bool is_os_error = PyObject_IsSubclass(type.ptr(), PyExc_OSError) == 1;
  nb::object exception = is_os_error && io_errno != 0 ? type(io_errno, message) : type(message);
  nb::setattr(exception, "code", nb::str(code_word(code)));
  if (io_errno != 0) nb::setattr(exception, "errno", nb::int_(io_errno));
  return exception;
}

namespace {

Code code_of(const std::string& word) {
  for (size_t code = 0; code < exception_classes.size(); ++code) {
    if (word == code_word(static_cast<Code>(code))) return static_cast<Code>(code);
  }
  raise_type_error("there is no code " + word);
}

}  // namespace

void bind_errors(nb::module_& module) {
  nb::register_exception_translator(translate);
  module.def("_set_exception_classes", [](nb::dict classes) {
    for (auto [word, type] : classes) {
      PyObject*& place = exception_classes[static_cast<size_t>(code_of(nb::cast<std::string>(word)))];
      PyObject* const previous = place;
      place = nb::borrow(type).release().ptr();
      Py_XDECREF(previous);
    }
  });
  module.def("_make_exception", [](const std::string& code, int io_errno, const std::string& message) {
    return make_exception(code_of(code), io_errno, message);
  });
}

}  // namespace kvstore::binding
