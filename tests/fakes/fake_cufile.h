// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// What tests tell the fake libcufile.so.0 beyond cuFile's own functions: exported by it under these names, found by
// dlsym.

#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Of the calls of `function` from now on, after `passed` that work, `times` give this CUfileOpError (calls that return
// one), or -1 with this errno (cuFileRead and cuFileWrite).
using FakeCuFileFail = void (*)(const char* function, int code, uint64_t passed, uint64_t times);
// Every cuFileRead moves so many bytes less than it was asked for.
using FakeCuFileShortenReads = void (*)(uint64_t bytes);
// Every cuFileRead says it moved all and moves nothing.
using FakeCuFileMoveNothing = void (*)(bool on);
// cuFileDriverOpen, or every cuFileRead, does not return until it is called with false.
using FakeCuFileHang = void (*)(const char* function, bool on);
// Its properties say that storage is reached by DMA into the GPU; else it is in compat mode.
using FakeCuFileSayDirect = void (*)(bool on);
// Every cuFileRead gives other bytes, all of them read.
using FakeCuFileSpoilReads = void (*)(bool on);
// Calls of a function; the offsets into buffers that were other than 0; bytes of registered buffers; files registered.
using FakeCuFileCalls = uint64_t (*)(const char* function);
using FakeCuFileOffsets = uint64_t (*)();
using FakeCuFileRegistered = uint64_t (*)();
using FakeCuFileFiles = uint64_t (*)();
// Forgets faults, hangs and counts of calls.
using FakeCuFileReset = void (*)();

}  // extern "C"
