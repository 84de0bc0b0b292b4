#ifdef __CUDACC_RTC__
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef signed char int8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
#else
#include <cstdint>
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif
template <typename T, int N> struct vec {
    T lane[N];
    __device__ T &operator[](int l) { return lane[l]; }
    __device__ T operator[](int l) const { return lane[l]; }
    __device__ vec &operator+=(const vec &b) { return *this = *this + b; }
};
template <typename T, int N, typename S> __device__ vec<S, N> convert(vec<T, N> a, vec<S, N> *)
{
    vec<S, N> r;
    for (int l = 0; l < N; ++l) r[l] = (S)a[l];
    return r;
}
#define LANEWISE(result, op) \
    template <typename T, int N> __device__ vec<result, N> operator op(vec<T, N> a, vec<T, N> b) \
    { \
        vec<result, N> r; \
        for (int l = 0; l < N; ++l) r[l] = OUTCOME(a[l] op b[l]); \
        return r; \
    }
#define OUTCOME(value) value
LANEWISE(T, +) LANEWISE(T, -) LANEWISE(T, *) LANEWISE(T, /) LANEWISE(T, %) LANEWISE(T, &) LANEWISE(T, |)
#undef OUTCOME
#define OUTCOME(value) -(int32_t)(value)
LANEWISE(int32_t, <) LANEWISE(int32_t, <=) LANEWISE(int32_t, >) LANEWISE(int32_t, >=)
LANEWISE(int32_t, ==) LANEWISE(int32_t, !=)
#undef OUTCOME
template <typename T, int N> __device__ vec<T, N> operator-(vec<T, N> a)
{
    for (int l = 0; l < N; ++l) a[l] = -a[l];
    return a;
}
template <typename T, int N> __device__ vec<T, N> operator~(vec<T, N> a)
{
    for (int l = 0; l < N; ++l) a[l] = ~a[l];
    return a;
}
typedef vec<float, 8> f32x8;
static __device__ f32x8 broadcast_f32x8(float a) { f32x8 r; for (int l = 0; l < 8; ++l) r[l] = a; return r; }
static __device__ float sum_f32x8(f32x8 a)
{
    for (int h = 4; h > 0; h /= 2)
        for (int l = 0; l < h; ++l) a[l] += a[l + h];
    return a[0];
}

extern "C" __global__ void sddmm(const int64_t *__restrict__ indptr, const int32_t *__restrict__ indices, const float *__restrict__ values, const float *__restrict__ B, const float *__restrict__ C, float *__restrict__ D, const int64_t rows)
{
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x); i < rows; i += (int64_t)gridDim.x * blockDim.x) {
        for (int64_t p = indptr[i], p__end = indptr[i + 1]; p < p__end; ++p) {
            f32x8 acc = broadcast_f32x8(0.0f);
            const int64_t c = (int64_t)indices[p] * 16;
            #pragma unroll
            for (int64_t k = 0; k < 16; k += 8) {
                acc = acc + *(const f32x8 *)(B + (i * 16 + k)) * *(const f32x8 *)(C + (c + k));
            }
            D[p] = values[p] * sum_f32x8(acc);
        }
    }
}
