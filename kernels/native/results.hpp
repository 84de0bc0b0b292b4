// New arrays and tensors for results, in memory that returns to a pool when the last reference to it is gone.
//
// Fresh memory costs a page fault and zeroing every 4096 bytes, which can take longer than computing a result.
// Deleters may run in any thread, with or without the interpreter's lock.

#pragma once

#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <unordered_map>
#include <vector>

#include "objects.hpp"

namespace sparloom::native {

class Pool {
 public:
    // Returns uninitialised memory, aligned to a cache line and, if it is large, to a page; null if there is none.
    void* take(int64_t bytes) {
        const int64_t room = (std::max<int64_t>(bytes, 1) + kPage - 1) / kPage * kPage;
        void* memory = nullptr;
        lock();
        const auto kept = free_.find(room);
        if (kept != free_.end() && !kept->second.empty()) {
            memory = kept->second.back();
            kept->second.pop_back();
            kept_bytes_ -= room;
        }
        unlock();
        return memory != nullptr ? memory : allocate(room);
    }

    void give(void* memory) {
        const int64_t room = room_of(memory);
        std::vector<void*> dropped;
        lock();
        if (kept_bytes_ + room > limit_) empty(dropped);
        const bool keeps = room <= limit_;
        if (keeps) {
            free_[room].push_back(memory);
            kept_bytes_ += room;
        }
        unlock();
        if (!keeps) dropped.push_back(memory);
        for (void* each : dropped) release(each);
    }

    void clear() {
        std::vector<void*> dropped;
        lock();
        empty(dropped);
        unlock();
        for (void* each : dropped) release(each);
    }

    void set_limit(int64_t bytes) { limit_ = bytes; }

 private:
    static constexpr int64_t kPage = 4096, kLine = 64, kLarge = 1 << 18, kHuge = 1 << 22;

    static int64_t alignment_of(int64_t room) { return room >= kLarge ? kPage : kLine; }
    static int64_t& room_of(void* memory) { return *reinterpret_cast<int64_t*>(static_cast<char*>(memory) - kLine); }

    static void* allocate(int64_t room) {
        const int64_t before = alignment_of(room);
        char* const raw = static_cast<char*>(std::aligned_alloc(before, room + before));
        if (raw == nullptr) return nullptr;
#if defined(MADV_HUGEPAGE)
        if (room >= kHuge) madvise(raw, room + before, MADV_HUGEPAGE);
#endif
        room_of(raw + before) = room;
        return raw + before;
    }

    static void release(void* memory) { std::free(static_cast<char*>(memory) - alignment_of(room_of(memory))); }

    void empty(std::vector<void*>& dropped) {
        for (auto& [room, blocks] : free_) dropped.insert(dropped.end(), blocks.begin(), blocks.end());
        free_.clear();
        kept_bytes_ = 0;
    }

    void lock() {
        while (busy_.test_and_set(std::memory_order_acquire)) {
        }
    }
    void unlock() { busy_.clear(std::memory_order_release); }

    std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
    std::unordered_map<int64_t, std::vector<void*>> free_;  // by room
    int64_t kept_bytes_ = 0, limit_ = int64_t{1} << 28;
};

inline Pool*& pool_of_process() {
    static Pool* pool = new Pool;
    return pool;
}

inline Pool& pool() { return *pool_of_process(); }

// A thread of the parent may hold the lock of its pool while it forks, so a child begins with an empty one.
inline void protect_forks() { pthread_atfork(nullptr, nullptr, [] { pool_of_process() = new Pool; }); }

// Memory of the pool for one call.
class Scratch {
   public:
    explicit Scratch(int64_t bytes) : memory_(bytes > 0 ? static_cast<char*>(pool().take(bytes)) : nullptr), next_(memory_) {}
    ~Scratch() {
        if (memory_ != nullptr) pool().give(memory_);
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    template <typename T>
    static constexpr int64_t room(int64_t count) {
        return (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    }

    template <typename T>
    T* take(int64_t count) {
        T* const taken = reinterpret_cast<T*>(next_);
        next_ += room<T>(count);
        return taken;
    }

    bool failed(int64_t bytes) const { return bytes > 0 && memory_ == nullptr; }

   private:
    char *memory_, *next_;
};

struct Shape {
    int32_t axes;
    int64_t extents[kMaxAxes];
};

inline Ref new_array(Type type, const Shape& shape, void* memory) {
    npy_intp extents[kMaxAxes];
    std::copy(shape.extents, shape.extents + kMaxAxes, extents);
    static constexpr int kTypes[] = {NPY_FLOAT, NPY_DOUBLE, NPY_HALF, NPY_VOID, NPY_INT32, NPY_INT64};
    PyArray_Descr* descr = nullptr;
    if (type == kBF16) {
        Py_INCREF(classes().bfloat16);
        descr = reinterpret_cast<PyArray_Descr*>(classes().bfloat16);
    } else {
        descr = PyArray_DescrFromType(kTypes[type]);
    }
    Ref array(PyArray_NewFromDescr(&PyArray_Type, descr, shape.axes, extents, nullptr, memory, NPY_ARRAY_CARRAY, nullptr));
    if (!array) {
        pool().give(memory);
        return {};
    }
    PyObject* const owner = PyCapsule_New(memory, nullptr, [](PyObject* capsule) {
        pool().give(PyCapsule_GetPointer(capsule, nullptr));
    });
    if (owner == nullptr) {
        pool().give(memory);
        return {};
    }
    if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array.get()), owner) != 0) return {};
    return array;
}

struct PooledTensor {
    dlpack::ManagedTensor managed;
    int64_t shape[kMaxAxes], strides[kMaxAxes];
};

inline Ref new_tensor(Type type, const Shape& shape, void* memory) {
    auto* const tensor = new PooledTensor{};
    int64_t step = 1;
    for (int i = shape.axes - 1; i >= 0; --i) {
        tensor->shape[i] = shape.extents[i];
        tensor->strides[i] = step;
        step *= shape.extents[i];
    }
    const bool integer = is_index(type);
    tensor->managed = {
        {dlpack::kMajor, dlpack::kMinor}, tensor,
        [](dlpack::ManagedTensor* managed) {
            auto* const pooled = static_cast<PooledTensor*>(managed->context);
            pool().give(managed->tensor.data);
            delete pooled;
        },
        0,
        {memory, {dlpack::kCpu, 0}, shape.axes,
         {static_cast<uint8_t>(integer ? dlpack::kInt : type == kBF16 ? dlpack::kBfloat : dlpack::kFloat),
          static_cast<uint8_t>(8 * bytes_of(type)), 1},
         tensor->shape, tensor->strides, 0}};
    void* object = nullptr;
    if (classes().exchange->to_object(&tensor->managed, &object) != 0) return {};
    return Ref(static_cast<PyObject*>(object));
}

// Makes an uninitialised array or tensor; null with an exception.
inline Ref new_result(Home home, Type type, const Shape& shape, char** data) {
    int64_t bytes = bytes_of(type);
    for (int i = 0; i < shape.axes; ++i) {
        if (__builtin_mul_overflow(bytes, shape.extents[i], &bytes)) return Ref(PyErr_NoMemory());
    }
    void* const memory = pool().take(bytes);
    if (memory == nullptr) return Ref(PyErr_NoMemory());
    *data = static_cast<char*>(memory);
    return home == Home::kNumpy ? new_array(type, shape, memory) : new_tensor(type, shape, memory);
}

}  // namespace sparloom::native
