// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What tests tell the fake libcuda.so.1 beyond CUDA's own functions: exported by it under these names, found by dlsym.

#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Memory as a kernel on the GPU would see it: where the fake keeps the bytes of a device pointer. Null: not one.
using FakeCudaView = void* (*)(uint64_t pointer);

// Of the calls of `function` from now on, after `passed` that work, `times` give `code`.
using FakeCudaFail = void (*)(const char* function, int code, uint64_t passed, uint64_t times);
// Until it is called with 0, what was begun on any stream ends with this error, and so do all later calls of copies,
// records and queries: a context that a crashed kernel has broken.
using FakeCudaBreak = void (*)(int code);
// Forgets the faults and the counts; devices, memory, streams and kernels stay.
using FakeCudaReset = void (*)();

// How long a copy lies on its stream before it is done.
using FakeCudaSetCopyDelay = void (*)(uint64_t microseconds);

// A stream does nothing more until the gate is opened: stands for a long kernel. Gates are never used twice.
using FakeCudaGate = uint64_t (*)(void* stream);
using FakeCudaOpenGate = void (*)(uint64_t gate);

// What cuModuleGetFunction finds under `name`, in any module, instead of the fake's own kernel of that name; run on the
// stream's thread with copies of the arguments.
using FakeCudaKernel = void (*)(void** arguments, const unsigned grid[3], const unsigned block[3]);
using FakeCudaAddKernel = void (*)(const char* name, FakeCudaKernel run, const size_t* argument_bytes, size_t count);

// How often a function was called, and how many bytes of host memory are registered.
using FakeCudaCalls = uint64_t (*)(const char* function);
using FakeCudaRegistered = uint64_t (*)();

}  // extern "C"
