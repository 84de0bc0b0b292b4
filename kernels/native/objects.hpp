// Python objects as the core sees them: owned references, and views of NumPy arrays and PyTorch tensors.
//
// A view is plain memory with a type and a shape. What is not an ordinary array on the processor has none, and the call
// goes to Python. Tensors are described by DLPack's exchange functions, so that PyTorch is not needed to build this.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL sparloom_numpy
#include <numpy/arrayobject.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "dlpack.hpp"

namespace sparloom::native {

// An owned reference.
class Ref {
   public:
    Ref() = default;
    explicit Ref(PyObject* owned) : object_(owned) {}
    Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Ref& operator=(Ref&& other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    ~Ref() { Py_XDECREF(object_); }

    static Ref borrowed(PyObject* object) {
        Py_XINCREF(object);
        return Ref(object);
    }

    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }
    explicit operator bool() const { return object_ != nullptr; }

   private:
    PyObject* object_ = nullptr;
};

enum Type : int8_t { kF32, kF64, kF16, kBF16, kI32, kI64, kOther };
constexpr int kFloatTypes = 4, kMaxAxes = 3;
enum class Home : int8_t { kNumpy, kTorch };

constexpr int64_t bytes_of(Type type) { return type == kF64 || type == kI64 ? 8 : type == kF16 || type == kBF16 ? 2 : 4; }
constexpr bool is_index(Type type) { return type == kI32 || type == kI64; }
constexpr bool is_float(Type type) { return type < kFloatTypes; }
constexpr bool is_half(Type type) { return type == kF16 || type == kBF16; }

// Memory of an array or tensor of at most three axes on the processor.
struct View {
    char* data = nullptr;
    int64_t shape[kMaxAxes] = {1, 1, 1};
    int32_t axes = 0;
    Type type = kOther;
    Home home = Home::kNumpy;
    bool contiguous = false;  // row-major without gaps, aligned, of native byte order
    bool writable = false;

    int64_t size() const { return shape[0] * shape[1] * shape[2]; }
    int64_t bytes() const { return size() * bytes_of(type); }
    bool overlaps(const View& other) const {
        return data < other.data + other.bytes() && other.data < data + bytes();
    }
};

// What Python says once: the classes of other packages, and how to exchange tensors.
struct Classes {
    PyObject *csr_matrix = nullptr, *csr_array = nullptr, *sparse_matrix = nullptr;
    PyObject* bfloat16 = nullptr;  // the NumPy type that holds the bits
    PyObject *tensor = nullptr, *parameter = nullptr;
    const dlpack::ExchangeApi* exchange = nullptr;
};

inline Classes& classes() {
    static Classes all;
    return all;
}

inline Type numpy_type(PyArrayObject* array) {
    switch (PyArray_TYPE(array)) {
        case NPY_FLOAT: return kF32;
        case NPY_DOUBLE: return kF64;
        case NPY_HALF: return kF16;
        case NPY_INT: return kI32;
        case NPY_LONG: return sizeof(long) == 8 ? kI64 : kI32;
        case NPY_LONGLONG: return kI64;
        case NPY_VOID: return reinterpret_cast<PyObject*>(PyArray_DESCR(array)) == classes().bfloat16 ? kBF16 : kOther;
        default: return kOther;
    }
}

inline bool view_array(PyObject* object, View& view) {
    auto* const array = reinterpret_cast<PyArrayObject*>(object);
    view.axes = PyArray_NDIM(array);
    view.type = numpy_type(array);
    if (view.axes > kMaxAxes || view.type == kOther) return false;
    for (int i = 0; i < view.axes; ++i) view.shape[i] = PyArray_DIM(array, i);
    const int flags = PyArray_FLAGS(array);
    view.data = static_cast<char*>(PyArray_DATA(array));
    view.home = Home::kNumpy;
    view.contiguous = (flags & NPY_ARRAY_C_CONTIGUOUS) != 0 && (flags & NPY_ARRAY_ALIGNED) != 0
        && PyArray_DESCR(array)->byteorder != '>';
    view.writable = (flags & NPY_ARRAY_WRITEABLE) != 0;
    return true;
}

inline Type tensor_type(const dlpack::DataType& type) {
    if (type.lanes != 1) return kOther;
    switch (type.code) {
        case dlpack::kFloat: return type.bits == 32 ? kF32 : type.bits == 64 ? kF64 : type.bits == 16 ? kF16 : kOther;
        case dlpack::kBfloat: return type.bits == 16 ? kBF16 : kOther;
        case dlpack::kInt: return type.bits == 32 ? kI32 : type.bits == 64 ? kI64 : kOther;
        default: return kOther;
    }
}

// Whether a tensor stands for the negative of what is in its memory, such as `z.conj().imag`.
inline bool is_negated(PyObject* tensor) {
    static PyObject* const kName = PyUnicode_InternFromString("is_neg");
    const Ref answer(PyObject_CallMethodObjArgs(tensor, kName, nullptr));
    if (!answer) PyErr_Clear();
    return answer.get() != Py_False;
}

inline bool view_tensor(PyObject* object, View& view) {
    dlpack::Tensor tensor;
    if (classes().exchange->describe(object, &tensor) != 0) {
        PyErr_Clear();
        return false;
    }
    view.axes = tensor.axes;
    view.type = tensor_type(tensor.type);
    if (tensor.device.type != dlpack::kCpu || view.axes > kMaxAxes || view.type == kOther) return false;
    int64_t step = 1;
    view.contiguous = true;
    for (int i = view.axes - 1; i >= 0; --i) {
        view.shape[i] = tensor.shape[i];
        if (tensor.strides != nullptr && tensor.shape[i] > 1 && tensor.strides[i] != step) view.contiguous = false;
        step *= tensor.shape[i];
    }
    view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
    view.contiguous = view.contiguous && reinterpret_cast<uintptr_t>(view.data) % bytes_of(view.type) == 0;
    view.home = Home::kTorch;
    view.writable = true;
    if (view.data == nullptr && view.size() > 0) return false;  // its memory was taken away, or it is all zeros
    return !is_float(view.type) || !is_negated(object);
}

inline bool is_tensor(PyObject* object) {
    auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    return classes().exchange != nullptr && (type == classes().tensor || type == classes().parameter);
}

// Views an array or tensor; false: it is neither, or none that kernels can read.
inline bool view_of(PyObject* object, View& view) {
    if (Py_TYPE(object) == &PyArray_Type) return view_array(object, view);
    return is_tensor(object) && view_tensor(object, view);
}

// A weak reference to the object that owns the memory of an array or tensor: while it lives, nothing else has the
// address. Null if there is none; no exception is set.
inline Ref owner_of(PyObject* object, Home home) {
    Ref owner;
    if (home == Home::kTorch) {
        owner = Ref(PyObject_CallMethod(object, "untyped_storage", nullptr));
    } else {
        while (PyArray_Check(object)) {
            PyObject* const base = PyArray_BASE(reinterpret_cast<PyArrayObject*>(object));
            if (base == nullptr || !PyArray_Check(base)) break;
            object = base;
        }
        owner = Ref::borrowed(object);
    }
    Ref reference(owner ? PyWeakref_NewRef(owner.get(), nullptr) : nullptr);
    if (!reference) PyErr_Clear();
    return reference;
}

inline bool is_alive(const Ref& reference) { return PyWeakref_GetObject(reference.get()) != Py_None; }

}  // namespace sparloom::native
