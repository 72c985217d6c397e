// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "binding/python_reader.h"

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "binding/gil.h"
#include "device/threads_queue.h"

namespace kvstore::binding {
namespace {

// A reference that may be copied and dropped by threads without the GIL.
using Held = std::shared_ptr<PyObject>;

Held hold(nb::object object) {
  return Held(object.release().ptr(), [](PyObject* held) {
    if (PyGILState_Check() != 0) return Py_DECREF(held);
    (void)with_gil([held] { Py_DECREF(held); });  // else the interpreter ends, and takes it along
  });
}

class PythonReads final : public device::RequestExecutor {
 public:
  PythonReads(const gpu::CudaDriver& driver, gpu::cu::Context context, Held reader, std::vector<Held> files)
      : driver_(driver), context_(context), reader_(std::move(reader)), files_(std::move(files)) {}

  int64_t execute(const device::IoRequest& request) override {
    if (request.op != device::IoOp::kRead || request.device_index >= files_.size()) return -EINVAL;
    const gpu::ContextScope scope(driver_, context_);
    if (!scope.status().ok()) return -EIO;
    int64_t moved = -EIO;
    (void)with_gil([&] { moved = read_all(request); });
    return moved;
  }

 private:
  int64_t read_all(const device::IoRequest& request) {
    int64_t moved = 0;
    for (uint32_t i = 0; i < request.segment_count; ++i) {
      const iovec& segment = request.segments[i];
      const int64_t read = read_one(request.device_index, segment, request.offset_bytes + static_cast<uint64_t>(moved));
      if (read < 0) return moved != 0 ? moved : read;
      moved += read;
      if (static_cast<uint64_t>(read) != segment.iov_len) return moved;
    }
    return moved;
  }

  int64_t read_one(size_t file, const iovec& segment, uint64_t offset_bytes) {
    try {
      const nb::object read =
          nb::borrow(reader_.get())
              .attr("read")(nb::handle(files_[file].get()), reinterpret_cast<uint64_t>(segment.iov_base),
                            segment.iov_len, offset_bytes);
      const auto moved = nb::cast<int64_t>(read);
      return moved < 0 || static_cast<uint64_t>(moved) > segment.iov_len ? -EIO : moved;
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("reading into GPU memory");
      return -EIO;
    } catch (const std::exception&) {
      return -EIO;  // no number
    }
  }

  const gpu::CudaDriver& driver_;
  gpu::cu::Context const context_;
  const Held reader_;
  const std::vector<Held> files_;
};

class PythonReadDevice final : public device::Device {
 public:
  PythonReadDevice(const gpu::DirectDeviceSetup& setup, Held reader, Held file)
      : setup_(setup), info_(setup.host->info()), reader_(std::move(reader)), file_(std::move(file)) {}

  const device::DeviceInfo& info() const override { return info_; }
  Result<std::unique_ptr<device::IoQueue>> make_queue(std::span<device::Device* const> devices,
                                                      const device::QueueOptions& options) override {
    std::vector<Held> files;
    for (device::Device* const one : devices) files.push_back(static_cast<PythonReadDevice*>(one)->file_);
    return device::make_threads_queue(
        std::make_shared<PythonReads>(*setup_.driver, setup_.context, reader_, std::move(files)), options,
        setup_.threads);
  }

 private:
  const gpu::DirectDeviceSetup setup_;  // `host` is used in the constructor only
  const device::DeviceInfo info_;
  const Held reader_;
  const Held file_;
};

}  // namespace

gpu::MakeDirectDevice python_reader(nb::object reader) {
  return
      [held = hold(std::move(reader))](const gpu::DirectDeviceSetup& setup) -> Result<std::unique_ptr<device::Device>> {
        Held file;
        std::string refusal = "the interpreter ends";
        (void)with_gil([&] {
          try {
            file = hold(nb::borrow(held.get()).attr("open")(setup.host->descriptor()));
          } catch (const nb::python_error& error) {
            refusal = error.what();
          }
        });
        if (!file) return Status(Code::kUnsupported, setup.host->info().path + ": " + refusal);
        return std::unique_ptr<device::Device>(std::make_unique<PythonReadDevice>(setup, held, std::move(file)));
      };
}

}  // namespace kvstore::binding
