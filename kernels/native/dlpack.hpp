// The part of DLPack's binary interface that the core uses: descriptions of tensors, and the functions by which a
// library exchanges them without Python calls (DLPack 1.2; PyTorch has them since 2.10).
// Source: the specification of DLPack, dmlc.github.io/dlpack.

#pragma once

#include <cstdint>

namespace sparloom::dlpack {

constexpr int32_t kCpu = 1;
constexpr uint32_t kMajor = 1, kMinor = 2;
enum Code : uint8_t { kInt = 0, kFloat = 2, kBfloat = 4 };

struct Version {
    uint32_t major, minor;
};

struct Device {
    int32_t type, id;
};

struct DataType {
    uint8_t code, bits;
    uint16_t lanes;
};

struct Tensor {
    void* data;
    Device device;
    int32_t axes;
    DataType type;
    int64_t *shape, *strides;  // strides in elements; null: contiguous
    uint64_t byte_offset;
};

struct ManagedTensor {
    Version version;
    void* context;
    void (*deleter)(ManagedTensor*);
    uint64_t flags;
    Tensor tensor;
};

struct ExchangeApi {
    Version version;
    ExchangeApi* previous;
    int (*allocate)(Tensor*, ManagedTensor**, void*, void (*)(void*, const char*, const char*));
    int (*from_object)(void*, ManagedTensor**);
    int (*to_object)(ManagedTensor*, void**);
    int (*describe)(void*, Tensor*);  // null: not offered
    int (*current_stream)(int32_t, int32_t, void**);
};

}  // namespace sparloom::dlpack
