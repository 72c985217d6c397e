// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// CuFileDevice: a device::Device that moves bytes between the namespace and GPU memory by cuFile: the segments of its
// requests are device pointers. Host pointers work too.
//
// Guarantees: those of device/device.h (the same conformance suite runs on it). Its queues are threads in cuFileRead
// and cuFileWrite, at most 16 MiB a call; requests that are not aligned to 4 KiB are refused with EINVAL and never
// reach cuFile, which would copy them through memory of its own. A buffer's offset is always 0: with others cuFile has
// put bytes elsewhere. A short read is told as one. It opens and claims nothing: the device below does, and outlives
// it.

#pragma once

#include <memory>

#include "device/device.h"
#include "gpu/cuda_driver.h"
#include "gpu/cufile.h"

namespace kvstore::gpu {

// For the memory of one GPU, whose context this is. `threads` a queue, each in one call at a time. `device` is a
// "uring" or "threads" one. kUnsupported: cuFile refuses it; the message says why.
Result<std::unique_ptr<device::Device>> make_cufile_device(const CuFile& cufile, const CudaDriver& driver,
                                                           cu::Context context, device::Device& device,
                                                           uint32_t threads);

// Reads the same bytes of the device by `direct` into `gpu_memory`, whose every byte was something else before, and by
// `host`, and compares. Ok: they are equal. Else what is wrong: nothing may be read by `direct` then (I5); after
// kTimeout `gpu_memory` must never be freed (I11). `stream` is the context's; `bytes` a multiple of 4 KiB. Blocking.
Status check_direct_reads(const CudaDriver& driver, cu::Context context, cu::Stream stream, device::Device& direct,
                          device::Device& host, uint64_t offset_bytes, uint64_t bytes, cu::DevicePointer gpu_memory);

}  // namespace kvstore::gpu
