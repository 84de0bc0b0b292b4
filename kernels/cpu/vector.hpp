// Vectors of float as wide as the registers of the machine that compiles this, and access to the first lanes of one.
//
// The vectors are GCC's (also clang's) vector extension, so + and * work on them and a * b + c becomes one instruction.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace sparloom {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kRegisters = 16;
#else
constexpr int kLanes = 4, kRegisters = 32;
#endif

constexpr int kLineFloats = 16;  // of a cache line

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef float Unaligned __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline Vec broadcast(float value) { return value - Vec{}; }
inline Vec load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
inline void store(float* to, Vec value) { *reinterpret_cast<Unaligned*>(to) = value; }

// Writes past the caches, to an address that is a multiple of the vector's size; others see it after `fence`.
inline void stream(float* to, Vec value) {
#if defined(__AVX512F__)
    _mm512_stream_ps(to, reinterpret_cast<__m512>(value));
#elif defined(__AVX2__)
    _mm256_stream_ps(to, reinterpret_cast<__m256>(value));
#else
    store(to, value);
#endif
}

inline void fence() {
#if defined(__AVX512F__) || defined(__AVX2__)
    _mm_sfence();
#endif
}

// The first `count` lanes, 0 .. kLanes; the others read as 0 and are not written, wherever they are in memory.
class Lanes {
   public:
    explicit Lanes(int64_t count)
#if defined(__AVX512F__)
        : mask_(static_cast<__mmask16>((1u << count) - 1)) {}
#elif defined(__AVX2__)
        : mask_(_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                                   _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))) {}
#else
        : count_(count) {}
#endif

    Vec load(const float* from) const {
#if defined(__AVX512F__)
        return _mm512_maskz_loadu_ps(mask_, from);
#elif defined(__AVX2__)
        return _mm256_maskload_ps(from, mask_);
#else
        Vec value{};
        std::memcpy(&value, from, 4 * count_);
        return value;
#endif
    }

    void store(float* to, Vec value) const {
#if defined(__AVX512F__)
        _mm512_mask_storeu_ps(to, mask_, value);
#elif defined(__AVX2__)
        _mm256_maskstore_ps(to, mask_, value);
#else
        std::memcpy(to, &value, 4 * count_);
#endif
    }

   private:
#if defined(__AVX512F__)
    __mmask16 mask_;
#elif defined(__AVX2__)
    __m256i mask_;
#else
    int64_t count_;
#endif
};

}  // namespace sparloom
