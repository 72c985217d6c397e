// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// A libcuda.so.1 that has functions and no GPU: each gives CUDA_ERROR_NOT_INITIALIZED. KvikIO asks the driver of whom
// memory is, also of host memory, and takes it for the host's where the driver does not know; without a libcuda.so.1 it
// can move nothing at all. The fake driver beside this lacks functions that KvikIO looks for, and would be a GPU to it.

namespace {

constexpr int kNotInitialized = 3;
constexpr int kVersion = 13000;

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
#define NONE(function) \
  EXPORT int function() { return kNotInitialized; }

EXPORT int cuDriverGetVersion(int* version) {
  *version = kVersion;
  return 0;
}

NONE(cuInit)
NONE(cuGetErrorName)
NONE(cuGetErrorString)
NONE(cuDeviceGet)
NONE(cuDeviceGetCount)
NONE(cuDeviceGetAttribute)
NONE(cuDevicePrimaryCtxGetState)
NONE(cuDevicePrimaryCtxRetain)
NONE(cuDevicePrimaryCtxRelease_v2)
NONE(cuCtxCreate_v2)
NONE(cuCtxCreate_v4)
NONE(cuCtxDestroy_v2)
NONE(cuCtxGetCurrent)
NONE(cuCtxGetDevice)
NONE(cuCtxPushCurrent_v2)
NONE(cuCtxPopCurrent_v2)
NONE(cuPointerGetAttribute)
NONE(cuPointerGetAttributes)
NONE(cuMemGetAddressRange_v2)
NONE(cuMemHostAlloc)
NONE(cuMemFreeHost)
NONE(cuMemHostRegister_v2)
NONE(cuMemHostUnregister)
NONE(cuMemcpyHtoD_v2)
NONE(cuMemcpyDtoH_v2)
NONE(cuMemcpyHtoDAsync_v2)
NONE(cuMemcpyDtoHAsync_v2)
NONE(cuMemcpyBatchAsync)
NONE(cuMemcpyBatchAsync_v2)
NONE(cuStreamCreate)
NONE(cuStreamDestroy_v2)
NONE(cuStreamSynchronize)
NONE(cuEventCreate)
NONE(cuEventDestroy_v2)
NONE(cuEventQuery)
NONE(cuEventRecord)
NONE(cuEventSynchronize)
NONE(cuMemcpyAsync)
NONE(cuLaunchHostFunc)
