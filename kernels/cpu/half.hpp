// Numbers of 16 bits in memory, Half (IEEE float16) and Bfloat (the upper half of a float32): kernels read and write
// them as vectors of float, and add up in float.
//
// Everything that vector.hpp has for float and double is here for both under the same names, so a kernel is a template
// of the type in memory: Vec<Half> is a vector of float, and kLanes<Half> counts its lanes. Results are rounded to the
// nearest number, ties to even; float16 overflows to infinity; NaN stays NaN, and subnormal numbers are kept.

#pragma once

#include "vector.hpp"

namespace sparloom {

struct Half {
    uint16_t bits;
};

struct Bfloat {
    uint16_t bits;
};

template <>
struct SumOf<Half> {
    using type = float;
};
template <>
struct SumOf<Bfloat> {
    using type = float;
};
template <>
struct VectorOf<Half> : VectorOf<float> {};
template <>
struct VectorOf<Bfloat> : VectorOf<float> {};
template <>
constexpr int kLanes<Half> = kLanes<float>;
template <>
constexpr int kLanes<Bfloat> = kLanes<float>;

inline float from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// One number as it is added up, and back.
inline float widen(float value) { return value; }
inline double widen(double value) { return value; }
inline float widen(Bfloat value) { return from_bits(uint32_t{value.bits} << 16); }

inline float widen(Half value) {
    const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16, rest = value.bits & 0x7fffu;
    if (rest >= 0x7c00) return from_bits(sign | 0x7f800000 | rest << 13);  // infinity, NaN
    // the exponent is 112 too small; as a factor, 2^112 also normalises subnormal numbers
    return from_bits(sign | bits_of(from_bits(rest << 13) * from_bits((127 + 112) << 23)));
}

template <typename S>
inline S narrow(Sum<S> value) {
    return value;
}

template <>
inline Bfloat narrow<Bfloat>(float value) {
    const uint32_t bits = bits_of(value);
    if (value != value) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
    return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

template <>
inline Half narrow<Half>(float value) {
    const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    const auto with_sign = [&](uint32_t rest) { return Half{static_cast<uint16_t>(sign | rest)}; };
    if (magnitude > 0x7f800000) return with_sign(0x7e00 | (magnitude >> 13 & 0x1ff));
    if (magnitude >= 0x47800000) return with_sign(0x7c00);  // 65536 and above, infinity
    if (magnitude < 0x38800000) {  // below 2^-14: adding 1/2 rounds to a multiple of 2^-24
        return with_sign(bits_of(from_bits(magnitude) + 0.5f) - bits_of(0.5f));
    }
    return with_sign((magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

inline Vec<float> broadcast(Half value) { return broadcast(widen(value)); }
inline Vec<float> broadcast(Bfloat value) { return broadcast(widen(value)); }

// Whole vectors.

#if defined(__AVX512F__)
using HalfBits = __m256i;
inline HalfBits load_bits(const void* from) { return _mm256_loadu_si256(static_cast<const HalfBits*>(from)); }
inline void store_bits(void* to, HalfBits bits) { _mm256_storeu_si256(static_cast<HalfBits*>(to), bits); }
inline void stream_bits(void* to, HalfBits bits) { _mm256_stream_si256(static_cast<HalfBits*>(to), bits); }

template <typename S>
inline Vec<float> widen_bits(HalfBits bits) {
    if constexpr (std::is_same_v<S, Half>) {
        return _mm512_cvtph_ps(bits);
    } else {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
}

template <typename S>
inline HalfBits narrow_bits(Vec<float> value) {
    if constexpr (std::is_same_v<S, Half>) {
        return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    } else {
        const __m512i bits = _mm512_castps_si512(value);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
        return _mm512_cvtepi32_epi16(_mm512_srli_epi32(
            _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000)), 16));
    }
}
#elif defined(__AVX2__) && defined(__F16C__)
using HalfBits = __m128i;
inline HalfBits load_bits(const void* from) { return _mm_loadu_si128(static_cast<const HalfBits*>(from)); }
inline void store_bits(void* to, HalfBits bits) { _mm_storeu_si128(static_cast<HalfBits*>(to), bits); }
inline void stream_bits(void* to, HalfBits bits) { _mm_stream_si128(static_cast<HalfBits*>(to), bits); }

template <typename S>
inline Vec<float> widen_bits(HalfBits bits) {
    if constexpr (std::is_same_v<S, Half>) {
        return _mm256_cvtph_ps(bits);
    } else {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
}

template <typename S>
inline HalfBits narrow_bits(Vec<float> value) {
    if constexpr (std::is_same_v<S, Half>) {
        return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    } else {
        const __m256i bits = _mm256_castps_si256(value);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
        const __m256i kept = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
        const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, kept, nan), 16);
        return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
    }
}
#else
struct HalfBits {
    uint16_t lanes[kLanes<float>];
};

inline HalfBits load_bits(const void* from) {
    HalfBits bits;
    std::memcpy(&bits, from, sizeof bits);
    return bits;
}

inline void store_bits(void* to, const HalfBits& bits) { std::memcpy(to, &bits, sizeof bits); }
inline void stream_bits(void* to, const HalfBits& bits) { store_bits(to, bits); }

template <typename S>
inline Vec<float> widen_bits(const HalfBits& bits) {
    Vec<float> value;
    for (int lane = 0; lane < kLanes<float>; ++lane) value[lane] = widen(S{bits.lanes[lane]});
    return value;
}

template <typename S>
inline HalfBits narrow_bits(Vec<float> value) {
    HalfBits bits;
    for (int lane = 0; lane < kLanes<float>; ++lane) bits.lanes[lane] = narrow<S>(value[lane]).bits;
    return bits;
}
#endif

inline Vec<float> load(const Half* from) { return widen_bits<Half>(load_bits(from)); }
inline Vec<float> load(const Bfloat* from) { return widen_bits<Bfloat>(load_bits(from)); }
inline void store(Half* to, Vec<float> value) { store_bits(to, narrow_bits<Half>(value)); }
inline void store(Bfloat* to, Vec<float> value) { store_bits(to, narrow_bits<Bfloat>(value)); }
inline void stream(Half* to, Vec<float> value) { stream_bits(to, narrow_bits<Half>(value)); }
inline void stream(Bfloat* to, Vec<float> value) { stream_bits(to, narrow_bits<Bfloat>(value)); }

// The first lanes of a vector, in memory as floats too.
template <typename S>
class HalfLanes : public Lanes<float> {
   public:
    using Lanes<float>::Lanes, Lanes<float>::load, Lanes<float>::store;

#if defined(__AVX512BW__) && defined(__AVX512VL__)
    Vec<float> load(const S* from) const { return widen_bits<S>(_mm256_maskz_loadu_epi16(mask_, from)); }
    void store(S* to, Vec<float> value) const { _mm256_mask_storeu_epi16(to, mask_, narrow_bits<S>(value)); }
#else
    Vec<float> load(const S* from) const {
        S lanes[kLanes<float>] = {};
        std::memcpy(lanes, from, count() * sizeof(S));
        return sparloom::load(lanes);
    }

    void store(S* to, Vec<float> value) const {
        S lanes[kLanes<float>];
        sparloom::store(lanes, value);
        std::memcpy(to, lanes, count() * sizeof(S));
    }
#endif
};

// Two vectors of numbers at once, if that takes less: those at even places and those at odd places.

#if defined(__AVX512BW__)
template <typename S>
constexpr bool kReadsPairs = std::is_same_v<S, Bfloat>;
#else
template <typename S>
constexpr bool kReadsPairs = false;
#endif

struct Pair {
    Vec<float> even, odd;
};

#if defined(__AVX512BW__)
inline Pair pair_of(__m512i bits) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
}

inline Pair load_pair(const Bfloat* from) { return pair_of(_mm512_loadu_si512(from)); }

// Rounded, back to where they were in memory. Sums of numbers that were read as Bfloat may be NaN, but then their lower
// bits are zero, so rounding leaves them NaN.
inline __m512i narrow_pair(const Pair& pair) {
    const auto rounded = [](Vec<float> value) {
        const __m512i bits = _mm512_castps_si512(value);
        const __m512i raised = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
        const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
        return _mm512_mask_add_epi32(raised, odd, raised, _mm512_set1_epi32(1));
    };
    const __m512i even = _mm512_srli_epi32(rounded(pair.even), 16);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, even, rounded(pair.odd));
}

inline void store_pair(Bfloat* to, const Pair& pair) { _mm512_storeu_si512(to, narrow_pair(pair)); }

// The place need not begin a cache line.
inline void stream_pair(Bfloat* to, const Pair& pair) {
    const __m512i bits = narrow_pair(pair);
    stream_bits(to, _mm512_castsi512_si256(bits));
    stream_bits(to + kLanes<Bfloat>, _mm512_extracti64x4_epi64(bits, 1));
}

// Puts the numbers in their order.
inline void in_order(Vec<float>& first, Vec<float>& second) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const Vec<float> even = first, odd = second;
    first = _mm512_permutex2var_ps(even, low, odd);
    second = _mm512_permutex2var_ps(even, high, odd);
}

// The opposite.
inline void by_parity(Vec<float>& first, Vec<float>& second) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const Vec<float> left = first, right = second;
    first = _mm512_permutex2var_ps(left, even, right);
    second = _mm512_permutex2var_ps(left, _mm512_add_epi32(even, _mm512_set1_epi32(1)), right);
}
#endif

template <>
class Lanes<Half> : public HalfLanes<Half> {
   public:
    using HalfLanes<Half>::HalfLanes;
};

template <>
class Lanes<Bfloat> : public HalfLanes<Bfloat> {
   public:
    using HalfLanes<Bfloat>::HalfLanes;

#if defined(__AVX512BW__)
    // A whole vector and the first lanes of a second one.
    Pair load_pair(const Bfloat* from) const { return pair_of(_mm512_maskz_loadu_epi16(pair_mask(), from)); }
    void store_pair(Bfloat* to, const Pair& pair) const { _mm512_mask_storeu_epi16(to, pair_mask(), narrow_pair(pair)); }

   private:
    __mmask32 pair_mask() const { return static_cast<__mmask32>(mask_) << 16 | 0xffff; }
#endif
};

}  // namespace sparloom
