// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0

#include "device/uring_queue.h"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "device/fork_guard.h"

namespace kvstore::device {
namespace {

constexpr uint64_t kNanosecondsPerSecond = 1'000'000'000;
constexpr uint64_t kRegisteredBufferBytesMax = kGiB;  // more gives EFAULT
constexpr uint64_t kTransferBytesMax = 0x7ffff000;    // the kernel's MAX_RW_COUNT; a longer request is short
constexpr uint64_t kRetryPauseNs = 100'000;
constexpr uint64_t kForeverNs = 1'000'000'000 * kNanosecondsPerSecond;
// Marks the completion of the poll on the eventfd; no request has this address.
constexpr uint64_t kWakeMark = 1;
constexpr uint32_t kProbeEntries = 512;

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kNanosecondsPerSecond + static_cast<uint64_t>(now.tv_nsec);
}

__kernel_timespec kernel_timespec(uint64_t duration_ns) {
  __kernel_timespec time{};
  time.tv_sec = static_cast<decltype(time.tv_sec)>(duration_ns / kNanosecondsPerSecond);
  time.tv_nsec = static_cast<decltype(time.tv_nsec)>(duration_ns % kNanosecondsPerSecond);
  return time;
}

Status unsupported_ring(int error) {
  const char* mend = "use the \"threads\" kind";
  if (error == EPERM || error == EACCES) {
    mend =
        "sysctl kernel.io_uring_disabled or the container's seccomp profile forbids it: allow io_uring_setup, "
        "io_uring_enter and io_uring_register, or use the \"threads\" kind";
  } else if (error == ENOSYS) {
    mend = "this kernel has none: use the \"threads\" kind";
  } else if (error == ENOMEM) {
    mend = "raise the memlock limit (ulimit -l), or use the \"threads\" kind";
  }
  return Status(Code::kUnsupported, Status::from_errno(error, "io_uring cannot be set up").message() + "; " + mend,
                error);
}

// Flag sets from best to plainest; the first that this kernel takes is used. SQPOLL is never among them: it
// excludes DEFER_TASKRUN and burns a core. R_DISABLED lets the ring be made in one thread and belong to another,
// the one that enables it.
constexpr unsigned kSingleIssuerFlags[] = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
        IORING_SETUP_SUBMIT_ALL | IORING_SETUP_R_DISABLED,  // 6.1
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL |
        IORING_SETUP_R_DISABLED,                                                      // 6.0
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL,  // 5.19
    0,
};
// No COOP_TASKRUN: a completion must not wait for the thread that submitted, which may be elsewhere by then.
constexpr unsigned kSharedFlags[] = {IORING_SETUP_SUBMIT_ALL, 0};

// 0, or -errno. The ring's descriptor is registered with the fork guard.
int set_up_ring(io_uring& ring, uint32_t entries, bool single_issuer) {
  const std::span<const unsigned> candidates =
      single_issuer ? std::span<const unsigned>(kSingleIssuerFlags) : std::span<const unsigned>(kSharedFlags);
  const ForkBarrier barrier;
  int error = -EINVAL;
  for (const unsigned flags : candidates) {
    io_uring_params params{};
    params.flags = flags | IORING_SETUP_CLAMP;
    error = io_uring_queue_init_params(entries, &ring, &params);
    if (error == 0) {
      register_descriptor(ring.ring_fd, barrier);
      // A child's copy of the mappings would keep the ring, and so its registered files, alive.
      io_uring_ring_dontfork(&ring);
      return 0;
    }
    if (error != -EINVAL) return error;
  }
  return error;
}

void tear_down_ring(io_uring& ring) {
  unregister_descriptor(ring.ring_fd);
  io_uring_queue_exit(&ring);
}

Status probe_ring() {
  io_uring ring{};
  // As large as the store's largest: rings are charged to the memlock limit, and a small one may fit where ours do not.
  const int error = set_up_ring(ring, kProbeEntries, true);
  if (error != 0) return unsupported_ring(-error);
  Status status;
  // EXT_ARG (5.11): a wait with a timeout that costs no request of its own.
  if ((ring.features & IORING_FEAT_EXT_ARG) == 0 || (ring.features & IORING_FEAT_NODROP) == 0) {
    status = Status(Code::kUnsupported, "io_uring of this kernel is too old (before 5.11): use the \"threads\" kind");
  }
  tear_down_ring(ring);
  return status;
}

Status closed_in_child() { return Status(Code::kClosed, "the I/O queue belongs to the parent of this forked process"); }

class UringQueue final : public IoQueue {
 public:
  UringQueue(const QueueOptions& options, std::vector<int> fds)
      : depth_(options.depth), fds_(std::move(fds)), generation_(fork_generation()) {}

  ~UringQueue() override {
    // In a forked child the descriptors are closed and the mappings were never inherited.
    if (!ring_made_ || forked()) return;
    // Without this the kernel drops its references some time after close(), and an open that follows at once finds
    // the device busy. With requests in flight it would wait for them, and in another thread it is refused.
    if (in_flight_ == 0) {
      if (has_buffers_) io_uring_unregister_buffers(&ring_);
      if (has_files_) io_uring_unregister_files(&ring_);
    }
    tear_down_ring(ring_);
  }

  Status set_up(bool single_issuer) {
    {
      const ForkBarrier barrier;
      const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
      if (fd < 0) return Status::from_errno(errno, "eventfd");
      wake_fd_ = GuardedFd(fd, barrier);
    }
    // One entry more than requests, for the poll on the eventfd, so that submit() always finds one. The completion
    // ring is twice as large, so it cannot overflow.
    if (const int error = set_up_ring(ring_, depth_ + 1, single_issuer); error != 0) return unsupported_ring(-error);
    ring_made_ = true;
    enabled_ = (ring_.flags & IORING_SETUP_R_DISABLED) == 0;
    if ((ring_.features & IORING_FEAT_EXT_ARG) == 0) return unsupported_ring(ENOSYS);
    // Spares an atomic reference on the file per request. Refused (no memory, an old limit) is not a failure.
    has_files_ = io_uring_register_files(&ring_, fds_.data(), static_cast<unsigned>(fds_.size())) == 0;
    return {};
  }

  bool submit(IoRequest* request) override {
    if (in_flight_ >= depth_ || forked()) return false;
    if (request->device_index >= fds_.size() || (request->op != IoOp::kFlush && request->segment_count == 0)) {
      request->result = -EINVAL;
      request->next = std::exchange(refused_, request);
      ++in_flight_;
      return true;
    }
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) return false;
    prepare(sqe, *request);
    ++in_flight_;
    return true;
  }

  Status kick() override {
    if (forked()) return closed_in_child();
    KVS_TRY(enable());
    if (io_uring_sq_ready(&ring_) == 0) return {};
    const int submitted = io_uring_submit(&ring_);
    if (submitted >= 0 || is_transient(submitted)) return {};
    return Status::from_errno(-submitted, "io_uring_enter");
  }

  Result<uint32_t> poll(std::span<IoRequest*> completed, uint64_t timeout_ns, uint32_t wait_for) override {
    if (forked()) return closed_in_child();
    KVS_TRY(enable());
    arm_wake();
    uint32_t count = take_refused(completed);
    if (timeout_ns == 0 || count > 0 || woken_ || io_uring_cq_ready(&ring_) > 0) {
      KVS_TRY(enter_without_waiting());
      count += reap(completed.subspan(count));
      if (timeout_ns == 0) return count;
      if (count > 0 || std::exchange(woken_, false)) {
        woken_ = false;
        return count;
      }
    }
    const uint64_t bounded_ns = std::min(timeout_ns, kForeverNs);
    const uint64_t deadline_ns = now_ns() + bounded_ns;
    uint64_t left_ns = bounded_ns;
    while (true) {
      arm_wake();
      KVS_TRY(wait(left_ns, std::max<uint32_t>(1, std::min(wait_for, in_flight_))));
      count = reap(completed);
      if (std::exchange(woken_, false) || count > 0) return count;
      const uint64_t now = now_ns();
      if (now >= deadline_ns) return 0u;
      left_ns = deadline_ns - now;
    }
  }

  void wake() override {
    const int fd = wake_fd_.get();
    if (fd < 0) return;
    const uint64_t one = 1;
    // Fails only when the counter is full, and then the wake-up is pending anyway.
    [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof(one));
  }

  Status register_buffers(std::span<const iovec> buffers) override {
    if (forked()) return closed_in_child();
    // Kernels before 6.15 wait inside the call for requests that use the old ones.
    if (in_flight_ > 0) {
      return Status(Code::kBusy, format_text("buffers cannot be registered with %u requests in flight", in_flight_));
    }
    for (const iovec& buffer : buffers) {
      if (buffer.iov_len > kRegisteredBufferBytesMax) {
        return Status(Code::kInvalid,
                      format_text("a registered buffer of %zu bytes: at most 1 GiB each, split it", buffer.iov_len));
      }
    }
    if (has_buffers_) {
      if (const int error = io_uring_unregister_buffers(&ring_); error != 0) {
        return Status::from_errno(-error, "buffers cannot be unregistered");
      }
      has_buffers_ = false;
    }
    if (buffers.empty()) return {};
    const int error = io_uring_register_buffers(&ring_, buffers.data(), static_cast<unsigned>(buffers.size()));
    if (error == -ENOMEM) {
      return Status::from_errno(ENOMEM, "buffers stay unregistered: raise the memlock limit (ulimit -l)");
    }
    if (error != 0) return Status::from_errno(-error, "buffers cannot be registered");
    has_buffers_ = true;
    return {};
  }

  uint32_t in_flight() const override { return in_flight_; }
  uint32_t depth() const override { return depth_; }

 private:
  bool forked() const { return generation_ != fork_generation(); }
  // No memory for a request, or completions to collect first: what was not taken stays in the ring.
  static bool is_transient(int error) { return error == -EAGAIN || error == -EBUSY || error == -EINTR; }

  Status enable() {
    if (enabled_) return {};
    // By system call: liburing 2.3 declares io_uring_enable_rings() and does not export it.
    if (syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0) != 0) {
      return Status::from_errno(errno, "the I/O ring cannot be enabled");
    }
    enabled_ = true;
    return {};
  }

  void prepare(io_uring_sqe* sqe, const IoRequest& request) {
    const int file = has_files_ ? request.device_index : fds_[request.device_index];
    const iovec* segments = request.segments;
    const bool is_read = request.op == IoOp::kRead;
    if (request.op == IoOp::kFlush) {
      io_uring_prep_fsync(sqe, file, IORING_FSYNC_DATASYNC);
    } else if (request.segment_count == 1) {
      const bool fixed = request.buffer_index >= 0;
      const int opcode =
          is_read ? (fixed ? IORING_OP_READ_FIXED : IORING_OP_READ) : (fixed ? IORING_OP_WRITE_FIXED : IORING_OP_WRITE);
      io_uring_prep_rw(opcode, sqe, file, segments->iov_base,
                       static_cast<unsigned>(std::min<uint64_t>(segments->iov_len, kTransferBytesMax)),
                       request.offset_bytes);
      if (fixed) sqe->buf_index = static_cast<uint16_t>(request.buffer_index);
    } else {
      io_uring_prep_rw(is_read ? IORING_OP_READV : IORING_OP_WRITEV, sqe, file, segments, request.segment_count,
                       request.offset_bytes);
    }
    if (request.op == IoOp::kWrite && request.durable) sqe->rw_flags = RWF_DSYNC;
    if (has_files_) sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(sqe, const_cast<IoRequest*>(&request));
  }

  // Costs no system call of its own: it goes with the next one.
  void arm_wake() {
    if (wake_armed_) return;
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) return;  // the ring is full of requests; the next poll() arms it
    io_uring_prep_poll_add(sqe, wake_fd_.get(), POLLIN);
    io_uring_sqe_set_data64(sqe, kWakeMark);
    wake_armed_ = true;
  }

  uint32_t take_refused(std::span<IoRequest*> completed) {
    uint32_t count = 0;
    while (refused_ != nullptr && count < completed.size()) {
      completed[count++] = refused_;
      refused_ = std::exchange(refused_->next, nullptr);
      --in_flight_;
    }
    return count;
  }

  Status enter_without_waiting() {
    int error = 0;
    if (io_uring_sq_ready(&ring_) > 0) {
      error = io_uring_submit_and_get_events(&ring_);
    } else if ((IO_URING_READ_ONCE(*ring_.sq.kflags) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0) {
      error = io_uring_get_events(&ring_);
    }
    if (error >= 0 || is_transient(error)) return {};
    return Status::from_errno(-error, "io_uring_enter");
  }

  // Hands over and waits for completions, in one system call. The wake-up counts as one of them.
  Status wait(uint64_t left_ns, uint32_t wait_for) {
    __kernel_timespec timeout = kernel_timespec(left_ns);
    io_uring_cqe* first = nullptr;
    const int error = io_uring_submit_and_wait_timeout(&ring_, &first, wait_for, &timeout, nullptr);
    if (error >= 0 || error == -ETIME || error == -EINTR) return {};
    if (!is_transient(error)) return Status::from_errno(-error, "io_uring_enter");
    // The kernel is short of memory: completions free some, so look for them, at a pace that leaves it the core.
    io_uring_get_events(&ring_);
    if (io_uring_cq_ready(&ring_) == 0) {
      const timespec pause{0, static_cast<long>(std::min(left_ns, kRetryPauseNs))};
      nanosleep(&pause, nullptr);
    }
    return {};
  }

  uint32_t reap(std::span<IoRequest*> completed) {
    uint32_t count = 0;
    unsigned head = 0;
    unsigned seen = 0;
    io_uring_cqe* cqe = nullptr;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      if (cqe->user_data == kWakeMark) {
        take_wake(cqe->res);
      } else {
        if (count == completed.size()) break;
        IoRequest* request = reinterpret_cast<IoRequest*>(cqe->user_data);
        request->result = cqe->res;
        completed[count++] = request;
      }
      ++seen;
    }
    io_uring_cq_advance(&ring_, seen);
    in_flight_ -= count;
    return count;
  }

  void take_wake(int32_t poll_result) {
    wake_armed_ = false;
    if (poll_result < 0) return;  // canceled because the thread that armed it has exited
    uint64_t wakes = 0;
    if (::read(wake_fd_.get(), &wakes, sizeof(wakes)) > 0) woken_ = true;
  }

  const uint32_t depth_;
  const std::vector<int> fds_;
  const uint64_t generation_;
  io_uring ring_{};
  GuardedFd wake_fd_;
  bool ring_made_ = false;
  bool enabled_ = false;
  bool has_files_ = false;
  bool has_buffers_ = false;
  bool wake_armed_ = false;
  bool woken_ = false;
  uint32_t in_flight_ = 0;
  IoRequest* refused_ = nullptr;  // never reached the ring; completed by the next poll()
};

}  // namespace

Result<std::unique_ptr<IoQueue>> make_uring_queue(const std::vector<int>& fds, const QueueOptions& options) {
  KVS_TRY(uring_available());
  auto queue = std::make_unique<UringQueue>(options, fds);
  KVS_TRY(queue->set_up(options.single_issuer));
  return std::unique_ptr<IoQueue>(std::move(queue));
}

Status uring_available() {
  static const Status probed = probe_ring();
  return probed;
}

}  // namespace kvstore::device
