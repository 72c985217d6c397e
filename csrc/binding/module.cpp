// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The Python module kvstore._core: what kvstore/*.py is made on. Thin: parses arguments, holds objects, gives up the
// GIL, turns a Status into an exception. Private: its names may change, those of the package kvstore do not.

#include <nanobind/nanobind.h>

#include "binding/errors.h"
#include "binding/gil.h"
#include "binding/job.h"
#include "binding/pool.h"

NB_MODULE(_core, module) {
  namespace binding = kvstore::binding;
  // Objects of this module are shared by threads of one interpreter, and its tables know one GIL.
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    throw nanobind::import_error("kvstore cannot be used in a subinterpreter: import it in the main interpreter");
  }
  nanobind::set_leak_warnings(false);  // what is in flight at exit is kept on purpose (I11)
  module.attr("__version__") = KVSTORE_VERSION;
  module.def("begin_exit", binding::begin_exit);
  binding::bind_errors(module);
  binding::bind_jobs(module);
  binding::bind_pool(module);
  binding::bind_gpu(module);
}
