// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// Leaving and re-entering the interpreter around calls that block, and the end of the interpreter.
//
// Python up to 3.13 ends a thread that asks for the GIL after the interpreter has begun to finalize with pthread_exit,
// whose forced unwinding through C++ frames aborts the process (bpo-42969). Daemon threads are still there then.
// Guarantees: once begin_exit() has returned, no thread but the exiting one runs in this module: those that come back
// from a blocking call, and those that enter, sleep until the process is gone, as Python 3.14 makes them do itself.

#pragma once

#include <Python.h>

#include <type_traits>
#include <utility>

namespace kvstore::binding {

// Gives the GIL back to `state`, or never returns once exit has begun (but on the thread that exits).
void take_gil(PyThreadState* state);

// From now on other threads are parked. Waits, bounded, for those that are in an Exposed scope.
void begin_exit();

// Called first in every call from Python, with the GIL: gives it up and parks once exit has begun.
void park_if_exiting();

// Between these begin_exit() waits for this thread. False: exit has begun, do not take the GIL.
bool enter_python();
void leave_python();
[[noreturn]] void park();

// Around what may take the GIL on a thread of the core: if Python ends the thread there, it sleeps instead, before
// anything that was made earlier is destroyed without the GIL. A destructor, since what unwinds then is no exception.
class ParkWhenUnwound {
 public:
  ParkWhenUnwound() = default;
  ParkWhenUnwound(const ParkWhenUnwound&) = delete;
  ParkWhenUnwound& operator=(const ParkWhenUnwound&) = delete;
  ~ParkWhenUnwound() {
    if (!passed_) park();
  }
  void pass() { passed_ = true; }

 private:
  bool passed_ = false;
};

// A scope in which Python code may run, and so the GIL may be lost and asked for again, below C++ frames.
class Exposed {
 public:
  Exposed();
  ~Exposed();
  Exposed(const Exposed&) = delete;
  Exposed& operator=(const Exposed&) = delete;
};

// f() with the GIL, on a thread that is not Python's. False, and f was not called, once exit has begun. f must not
// throw. A thread that Python ends within f, because the interpreter began to finalize meanwhile, sleeps instead.
template <typename F>
[[nodiscard]] bool with_gil(F&& f) {
  if (Py_IsInitialized() == 0 || !enter_python()) return false;
  ParkWhenUnwound here;
  const PyGILState_STATE state = PyGILState_Ensure();
  std::forward<F>(f)();
  PyGILState_Release(state);
  here.pass();
  leave_python();
  return true;
}

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
