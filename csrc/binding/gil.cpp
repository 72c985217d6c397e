// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "binding/gil.h"

#include <nanobind/nanobind.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace kvstore::binding {
namespace {

std::atomic<bool> exiting{false};
std::atomic<uint32_t> exposed{0};  // threads in an Exposed scope, or between their look at `exiting` and the GIL
std::atomic<pid_t> exiting_thread{0};

pid_t thread_id() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

bool must_park() { return exiting.load(std::memory_order_seq_cst) && exiting_thread.load() != thread_id(); }

}  // namespace

void park() {
  for (;;) ::pause();
}

bool enter_python() {
  exposed.fetch_add(1, std::memory_order_seq_cst);
  if (!must_park()) return true;
  leave_python();
  return false;
}

void leave_python() { exposed.fetch_sub(1, std::memory_order_seq_cst); }

void take_gil(PyThreadState* state) {
  if (!enter_python()) park();
  PyEval_RestoreThread(state);
  leave_python();
}

void park_if_exiting() {
  if (!must_park()) return;
  PyEval_SaveThread();
  park();
}

Exposed::Exposed() { exposed.fetch_add(1, std::memory_order_seq_cst); }
Exposed::~Exposed() { leave_python(); }

void begin_exit() {
  exiting_thread.store(thread_id());
  exiting.store(true, std::memory_order_seq_cst);
  // Those who looked before the store get their turn now, while the interpreter is whole.
  for (int attempt = 0; attempt < 1000 && exposed.load(std::memory_order_seq_cst) != 0; ++attempt) {
    PyThreadState* const state = PyEval_SaveThread();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    PyEval_RestoreThread(state);
  }
}

bool on_main_thread() { return thread_id() == ::getpid(); }

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
}

}  // namespace kvstore::binding
