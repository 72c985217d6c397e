// SPDX-FileCopyrightText: 2026 the kvstore authors
// SPDX-License-Identifier: Apache-2.0
//
// The parts of the DLPack ABI (versions 0.x and 1.x) that are read here. Layout fixed by the standard:
// https://dmlc.github.io/dlpack/latest/c_api.html

#pragma once

#include <cstdint>

namespace kvstore::binding::dlpack {

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kRocmHost = 11, kCudaManaged = 13 };

struct Device {
  int32_t type;
  int32_t id;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t dimensions;
  DataType type;
  int64_t* shape;
  int64_t* strides;  // in elements; null: C order
  uint64_t offset_bytes;
};

struct ManagedTensor {  // capsule "dltensor"
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

inline constexpr uint64_t kFlagReadOnly = 1;

struct ManagedTensorVersioned {  // capsule "dltensor_versioned"
  uint32_t major;
  uint32_t minor;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  uint64_t flags;
  Tensor tensor;
};

static_assert(sizeof(Tensor) == 48 && sizeof(ManagedTensor) == 64 && sizeof(ManagedTensorVersioned) == 80);

}  // namespace kvstore::binding::dlpack
