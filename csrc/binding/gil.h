// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Leaving and re-entering the interpreter around calls that block.
//
// Guarantees: while the interpreter exits, a thread that comes back from a blocking call never asks for the GIL
// again. Python up to 3.13 would end such a thread with pthread_exit, whose forced unwinding through C++ frames
// aborts the process (bpo-42969); it sleeps instead until the process is gone, as Python 3.14 does itself.

#pragma once

#include <Python.h>

#include <type_traits>
#include <utility>

namespace kvstore::binding {

// Gives the GIL back to `state`, or never returns once exit has begun (but on the thread that exits).
void take_gil(PyThreadState* state);

// From now on take_gil() parks other threads. Waits, bounded, until none is between its check and its GIL.
void begin_exit();

// Runs Python's signal handlers when this is the main thread; throws what they raised.
void check_signals();
bool on_main_thread();

// f() without the GIL. It must not touch Python.
template <typename F>
auto without_gil(F&& f) {
  PyThreadState* const state = PyEval_SaveThread();
  try {
    if constexpr (std::is_void_v<decltype(f())>) {
      std::forward<F>(f)();
      take_gil(state);
    } else {
      auto result = std::forward<F>(f)();
      take_gil(state);
      return result;
    }
  } catch (const std::bad_alloc&) {
    take_gil(state);
    throw;
  }
}

// Index operations cost well under a microsecond a key. Short ones keep the GIL: giving it up in a process with a
// busy Python thread costs up to 5 ms (the switch interval) to get back.
inline constexpr size_t kItemsWithGil = 64;

template <typename F>
auto without_gil_if(bool release, F&& f) {
  return release ? without_gil(std::forward<F>(f)) : std::forward<F>(f)();
}

}  // namespace kvstore::binding
