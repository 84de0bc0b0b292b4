// Vectors of float or double as wide as the registers of the machine that compiles this, and access to the first lanes
// of one.
//
// The vectors are GCC's (also clang's) vector extension, so + and * work on them.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace sparloom {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32, kRegisters = 16;
#else
constexpr int kVectorBytes = 16, kRegisters = 32;
#endif

constexpr int kCacheLine = 64;  // bytes

template <typename T>
constexpr int kLanes = kVectorBytes / sizeof(T);
template <typename T>
constexpr int kLine = kCacheLine / sizeof(T);  // elements of a cache line

template <typename T>
struct VectorOf {
    typedef T type __attribute__((vector_size(kVectorBytes)));
    typedef T unaligned __attribute__((vector_size(kVectorBytes), aligned(sizeof(T)), may_alias));
};

template <typename T>
using Vec = typename VectorOf<T>::type;

// What products of numbers of a type are added up in: the type itself, float for those of half.hpp.
template <typename T>
struct SumOf {
    using type = T;
};

template <typename T>
using Sum = typename SumOf<T>::type;

template <typename T>
inline Vec<T> broadcast(T value) {
    return value - Vec<T>{};
}

template <typename T>
inline Vec<T> load(const T* from) {
    return *reinterpret_cast<const typename VectorOf<T>::unaligned*>(from);
}

template <typename T>
inline void store(T* to, Vec<T> value) {
    *reinterpret_cast<typename VectorOf<T>::unaligned*>(to) = value;
}

// a * b + c, rounded once where the machine can. Written as an expression, compilers fuse it in some loops and not in
// others (gcc for Zen avoids chains of it), and the same sum would differ between kernels.
template <typename T>
inline Vec<T> multiply_add(Vec<T> a, Vec<T> b, Vec<T> c) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        return _mm512_fmadd_ps(a, b, c);
    } else {
        return _mm512_fmadd_pd(a, b, c);
    }
#elif defined(__AVX2__) && defined(__FMA__)
    if constexpr (sizeof(T) == 4) {
        return _mm256_fmadd_ps(a, b, c);
    } else {
        return _mm256_fmadd_pd(a, b, c);
    }
#else
    return a * b + c;
#endif
}

// stream: writes past the caches, to an address that is a multiple of the vector's size; others see it after `fence`.
//
// Lanes: the first `count` lanes, 0 .. kLanes; the others read as 0 and are not written, wherever they are in memory.

#if defined(__AVX512F__)

template <typename T>
inline void stream(T* to, Vec<T> value) {
    if constexpr (sizeof(T) == 4) {
        _mm512_stream_ps(to, reinterpret_cast<__m512>(value));
    } else {
        _mm512_stream_pd(to, reinterpret_cast<__m512d>(value));
    }
}

inline void fence() { _mm_sfence(); }

template <typename T>
class Lanes {
   public:
    explicit Lanes(int64_t count) : mask_(static_cast<Mask>((1u << count) - 1)) {}

    Vec<T> load(const T* from) const {
        if constexpr (sizeof(T) == 4) {
            return _mm512_maskz_loadu_ps(mask_, from);
        } else {
            return _mm512_maskz_loadu_pd(mask_, from);
        }
    }

    void store(T* to, Vec<T> value) const {
        if constexpr (sizeof(T) == 4) {
            _mm512_mask_storeu_ps(to, mask_, value);
        } else {
            _mm512_mask_storeu_pd(to, mask_, value);
        }
    }

    int64_t count() const { return __builtin_popcount(mask_); }

   protected:
    using Mask = std::conditional_t<sizeof(T) == 4, __mmask16, __mmask8>;
    Mask mask_;
};

#elif defined(__AVX2__)

template <typename T>
inline void stream(T* to, Vec<T> value) {
    if constexpr (sizeof(T) == 4) {
        _mm256_stream_ps(to, reinterpret_cast<__m256>(value));
    } else {
        _mm256_stream_pd(to, reinterpret_cast<__m256d>(value));
    }
}

inline void fence() { _mm_sfence(); }

template <typename T>
class Lanes {
   public:
    explicit Lanes(int64_t count) {
        if constexpr (sizeof(T) == 4) {
            mask_ = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                                       _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        } else {
            mask_ = _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3));
        }
    }

    Vec<T> load(const T* from) const {
        if constexpr (sizeof(T) == 4) {
            return _mm256_maskload_ps(from, mask_);
        } else {
            return _mm256_maskload_pd(from, mask_);
        }
    }

    void store(T* to, Vec<T> value) const {
        if constexpr (sizeof(T) == 4) {
            _mm256_maskstore_ps(to, mask_, value);
        } else {
            _mm256_maskstore_pd(to, mask_, value);
        }
    }

    int64_t count() const { return __builtin_popcount(_mm256_movemask_epi8(mask_)) / sizeof(T); }

   private:
    __m256i mask_;
};

#else

template <typename T>
inline void stream(T* to, Vec<T> value) {
    store(to, value);
}

inline void fence() {}

template <typename T>
class Lanes {
   public:
    explicit Lanes(int64_t count) : bytes_(count * sizeof(T)) {}

    Vec<T> load(const T* from) const {
        Vec<T> value{};
        std::memcpy(&value, from, bytes_);
        return value;
    }

    void store(T* to, Vec<T> value) const { std::memcpy(to, &value, bytes_); }

    int64_t count() const { return bytes_ / sizeof(T); }

   private:
    size_t bytes_;
};

#endif

}  // namespace sparloom
