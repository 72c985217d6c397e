// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// A device that a Python object reads: for libraries that move bytes into GPU memory and are reached from Python only,
// such as KvikIO. The object has open(descriptor) -> file and read(file, pointer, nbytes, offset_bytes) -> bytes read.
//
// Guarantees: read() is called from threads of ours, with the GIL and with the context of the GPU current; what it
// raises is told to sys.unraisablehook and is EIO. Once the interpreter ends (gil.h) nothing of it is called any more.

#pragma once

#include <nanobind/nanobind.h>

#include "gpu/direct_reads.h"

namespace kvstore::binding {

namespace nb = nanobind;

gpu::MakeDirectDevice python_reader(nb::object reader);

}  // namespace kvstore::binding
