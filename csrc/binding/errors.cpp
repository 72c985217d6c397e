// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "binding/errors.h"

#include <nanobind/stl/string.h>

#include <string>

namespace kvstore::binding {
namespace {

// errors.from_core, set once at import. Leaked: exceptions are made until the very end of the interpreter.
PyObject* exception_factory = nullptr;

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
  if (exception_factory == nullptr) {
    PyErr_SetString(PyExc_ImportError, ("kvstore._core is used without the package kvstore: " + message).c_str());
    throw nb::python_error();
  }
  return nb::handle(exception_factory)(code_word(code), io_errno, message);
}

void bind_errors(nb::module_& module) {
  nb::register_exception_translator(translate);
  module.def("_set_exception_factory", [](nb::callable factory) {
    PyObject* const previous = exception_factory;
    exception_factory = factory.release().ptr();
    Py_XDECREF(previous);
  });
}

}  // namespace kvstore::binding
