// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "gpu/cufile_device.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "device/fork_guard.h"
#include "device/threads_queue.h"

namespace kvstore::gpu {

namespace {

using device::IoOp;
using device::IoRequest;

constexpr uint64_t kBytesPerCall = 16 * kMiB;  // cuFile splits what is larger itself, one part after the other
constexpr uint64_t kCheckTimeoutNs = 30'000'000'000;
constexpr uint64_t kRegisteredBytesMax = kGiB;

bool is_aligned(const IoRequest& request) {
  uint64_t all = request.offset_bytes;
  for (uint32_t i = 0; i < request.segment_count; ++i) {
    all |= reinterpret_cast<uint64_t>(request.segments[i].iov_base) | request.segments[i].iov_len;
  }
  return all % kPageBytes == 0;
}

// A file as cuFile knows it. The descriptor is a duplicate: a thread that is left in a call must not find another file
// under the number.
class RegisteredFile {
 public:
  static Result<std::unique_ptr<RegisteredFile>> make(const CuFile& cufile, const device::Device& device) {
    if (device.descriptor() < 0) {
      return Status(Code::kUnsupported, device.info().path + " has no descriptor that cuFile could read from");
    }
    std::unique_ptr<RegisteredFile> file(new RegisteredFile(cufile));
    {
      const device::ForkBarrier barrier;
      const int duplicate = fcntl(device.descriptor(), F_DUPFD_CLOEXEC, 3);
      if (duplicate < 0) return Status::from_errno(errno, device.info().path + " cannot be duplicated");
      file->fd_ = device::GuardedFd(duplicate, barrier);
    }
    cufile::Description description;
    description.fd = file->fd_.get();
    KVS_TRY(CuFile::check(cufile.handle_register(&file->handle_, &description), "cuFileHandleRegister",
                          device.info().path));
    return file;
  }
  RegisteredFile(const RegisteredFile&) = delete;
  RegisteredFile& operator=(const RegisteredFile&) = delete;
  ~RegisteredFile() {
    if (handle_ != nullptr && fd_.get() >= 0) cufile_.handle_deregister(handle_);
  }

  // As much as can be, or -errno when nothing can.
  int64_t move(const IoRequest& request) const {
    if (request.op == IoOp::kFlush) return flush();
    if (!is_aligned(request)) return -EINVAL;
    int64_t moved = 0;
    for (uint32_t i = 0; i < request.segment_count; ++i) {
      const iovec& segment = request.segments[i];
      for (uint64_t done = 0; done < segment.iov_len;) {
        const uint64_t bytes = std::min(segment.iov_len - done, kBytesPerCall);
        const auto offset = static_cast<off_t>(request.offset_bytes + static_cast<uint64_t>(moved));
        uint8_t* const memory = static_cast<uint8_t*>(segment.iov_base) + done;
        errno = 0;
        const ssize_t returned = request.op == IoOp::kRead ? cufile_.read(handle_, memory, bytes, offset, 0)
                                                           : cufile_.write(handle_, memory, bytes, offset, 0);
        if (returned < 0) return moved != 0 ? moved : CuFile::errno_of(returned, errno);
        moved += returned;
        done += static_cast<uint64_t>(returned);
        if (static_cast<uint64_t>(returned) != bytes) return moved;
      }
    }
    if (!request.durable) return moved;
    const int64_t flushed = flush();
    return flushed < 0 ? flushed : moved;
  }

 private:
  explicit RegisteredFile(const CuFile& cufile) : cufile_(cufile) {}
  int64_t flush() const { return fdatasync(fd_.get()) == 0 ? 0 : -errno; }

  const CuFile& cufile_;
  device::GuardedFd fd_;
  cufile::Handle handle_ = nullptr;
};

class CuFileExecutor final : public device::RequestExecutor {
 public:
  CuFileExecutor(const CuFile& cufile, const CudaDriver& driver, std::vector<std::shared_ptr<RegisteredFile>> files,
                 cu::Context context)
      : cufile_(cufile), driver_(driver), files_(std::move(files)), context_(context) {}
  ~CuFileExecutor() override { (void)drop_buffers(); }

  int64_t execute(const IoRequest& request) override {
    if (request.device_index >= files_.size()) return -EINVAL;
    if (request.buffer_index >= 0 && !is_registered(request)) return -EFAULT;
    const ContextScope scope(driver_, context_);
    return scope.status().ok() ? files_[request.device_index]->move(request) : -EIO;
  }

  // All or nothing. Requests should begin where a buffer does, which is why a large arena is given as many buffers.
  Status register_buffers(std::span<const iovec> buffers) override {
    KVS_TRY(drop_buffers());
    for (const iovec& buffer : buffers) {
      if (buffer.iov_len > kRegisteredBytesMax) {
        return Status(Code::kInvalid,
                      format_text("a buffer of %zu bytes; at most 1 GiB is registered as one", buffer.iov_len));
      }
    }
    for (const iovec& buffer : buffers) {
      Status registered = CuFile::check(cufile_.buffer_register(buffer.iov_base, buffer.iov_len, 0),
                                        "cuFileBufRegister", format_text("a buffer of %zu bytes", buffer.iov_len));
      if (!registered.ok()) {
        (void)drop_buffers();
        return registered;
      }
      buffers_.push_back(buffer);
    }
    return {};
  }

 private:
  bool is_registered(const IoRequest& request) const {
    const auto index = static_cast<size_t>(request.buffer_index);
    if (index >= buffers_.size() || request.segment_count != 1) return false;
    const auto begin = reinterpret_cast<uint64_t>(request.segments[0].iov_base);
    const auto buffer = reinterpret_cast<uint64_t>(buffers_[index].iov_base);
    return begin >= buffer && begin + request.segments[0].iov_len <= buffer + buffers_[index].iov_len;
  }

  Status drop_buffers() {
    Status first;
    for (const iovec& buffer : std::exchange(buffers_, {})) {
      Status dropped =
          CuFile::check(cufile_.buffer_deregister(buffer.iov_base), "cuFileBufDeregister", "a registered buffer");
      if (first.ok()) first = std::move(dropped);
    }
    return first;
  }

  const CuFile& cufile_;
  const CudaDriver& driver_;
  const std::vector<std::shared_ptr<RegisteredFile>> files_;
  cu::Context const context_;
  std::vector<iovec> buffers_;  // changes only while nothing is in flight
};

class CuFileDevice final : public device::Device {
 public:
  CuFileDevice(const CuFile& cufile, const CudaDriver& driver, std::shared_ptr<RegisteredFile> file,
               device::DeviceInfo info, cu::Context context, uint32_t threads)
      : cufile_(cufile),
        driver_(driver),
        file_(std::move(file)),
        info_(std::move(info)),
        context_(context),
        threads_(threads) {}

  const device::DeviceInfo& info() const override { return info_; }

  Result<std::unique_ptr<device::IoQueue>> make_queue(std::span<device::Device* const> devices,
                                                      const device::QueueOptions& options) override {
    if (options.depth == 0) return Status(Code::kInvalid, "a queue of depth 0");
    std::vector<std::shared_ptr<RegisteredFile>> files;
    for (device::Device* const one : devices) {
      const auto* const cufile_device = dynamic_cast<CuFileDevice*>(one);
      if (cufile_device == nullptr) {
        return Status(Code::kInvalid, one->info().path + " is not a device of cuFile, as others of the queue are");
      }
      files.push_back(cufile_device->file_);
    }
    auto executor = std::make_shared<CuFileExecutor>(cufile_, driver_, std::move(files), context_);
    return device::make_threads_queue(std::move(executor), options, threads_);
  }

 private:
  const CuFile& cufile_;
  const CudaDriver& driver_;
  const std::shared_ptr<RegisteredFile> file_;
  const device::DeviceInfo info_;
  cu::Context const context_;
  const uint32_t threads_;
};

// One read of the self-test and all that the kernel, or cuFile, may use until it comes back.
struct CheckRead {
  explicit CheckRead(uint64_t bytes) : host_memory(bytes) {}
  AlignedBuffer host_memory;
  iovec segment{};
  IoRequest request;
};

// `gpu_memory` 0: into the host memory of `read`.
Status read_whole(device::Device& from, uint64_t offset_bytes, cu::DevicePointer gpu_memory,
                  std::unique_ptr<CheckRead>& read) {
  const uint64_t bytes = read->host_memory.size();
  device::Device* const devices[] = {&from};
  KVS_ASSIGN(const std::unique_ptr<device::IoQueue> queue, from.make_queue(devices, {.depth = 1}));
  read->segment = {gpu_memory == 0 ? read->host_memory.data() : reinterpret_cast<void*>(gpu_memory), bytes};
  read->request = {};
  read->request.offset_bytes = offset_bytes;
  read->request.segments = &read->segment;
  read->request.segment_count = 1;
  queue->submit(&read->request);
  IoRequest* completed[1];
  const Result<uint32_t> count = queue->poll(completed, kCheckTimeoutNs);
  if (!count.ok() || count.value() == 0) {
    (void)read.release();  // I11: for ever, it may come back yet
    if (!count.ok()) return count.status();
    return Status(Code::kTimeout, format_text("a read of %llu bytes of %s did not come back in 30 s",
                                              static_cast<unsigned long long>(bytes), from.info().path.c_str()));
  }
  const int64_t result = read->request.result;
  if (result < 0) return Status::from_errno(static_cast<int>(-result), from.info().path);
  if (static_cast<uint64_t>(result) == bytes) return {};
  return Status(Code::kIo, format_text("a read of %llu bytes of %s gave %lld", static_cast<unsigned long long>(bytes),
                                       from.info().path.c_str(), static_cast<long long>(result)));
}

}  // namespace

Result<std::unique_ptr<device::Device>> make_cufile_device(const CuFile& cufile, const CudaDriver& driver,
                                                           cu::Context context, device::Device& device,
                                                           uint32_t threads) {
  KVS_ASSIGN(std::unique_ptr<RegisteredFile> file, RegisteredFile::make(cufile, device));
  device::DeviceInfo info = device.info();
  info.kind = "cufile";
  info.dma_alignment_bytes = kPageBytes;
  info.max_transfer_bytes = kBytesPerCall;
  return std::unique_ptr<device::Device>(
      std::make_unique<CuFileDevice>(cufile, driver, std::move(file), std::move(info), context, threads));
}

Status check_direct_reads(const CudaDriver& driver, cu::Context context, cu::Stream stream, device::Device& direct,
                          device::Device& host, uint64_t offset_bytes, uint64_t bytes, cu::DevicePointer gpu_memory) {
  auto expected = std::make_unique<CheckRead>(bytes);
  KVS_TRY(read_whole(host, offset_bytes, 0, expected));
  const uint8_t* const right = expected->host_memory.data();
  const ContextScope scope(driver, context);
  KVS_TRY(scope.status());
  const auto finished = [&](cu::Code code, const char* call) {
    KVS_TRY(driver.check(code, call, "the self-test of direct reads"));
    return driver.check(driver.stream_synchronize(stream), "cuStreamSynchronize", "the self-test of direct reads");
  };
  // Inverted: a read that moves nothing, or moves it elsewhere, leaves no byte that is right by chance.
  AlignedBuffer found(bytes);
  for (uint64_t i = 0; i < bytes; ++i) found.data()[i] = static_cast<uint8_t>(~right[i]);
  KVS_TRY(finished(driver.copy_to_device(gpu_memory, found.data(), bytes, stream), "cuMemcpyHtoDAsync"));
  auto direct_read = std::make_unique<CheckRead>(bytes);
  KVS_TRY(read_whole(direct, offset_bytes, gpu_memory, direct_read));
  KVS_TRY(finished(driver.copy_to_host(found.data(), gpu_memory, bytes, stream), "cuMemcpyDtoHAsync"));
  if (std::memcmp(found.data(), right, bytes) == 0) return {};
  const auto differs = std::mismatch(found.data(), found.data() + bytes, right).first - found.data();
  return Status(Code::kCorrupt,
                format_text("cuFile read other bytes of %s than the kernel: at %llu, byte %lld of %llu and maybe more",
                            direct.info().path.c_str(), static_cast<unsigned long long>(offset_bytes),
                            static_cast<long long>(differs), static_cast<unsigned long long>(bytes)));
}

}  // namespace kvstore::gpu
