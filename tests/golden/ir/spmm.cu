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

extern "C" __global__ void spmm(const int64_t *__restrict__ indptr, const int32_t *__restrict__ indices, const float *__restrict__ values, const float *__restrict__ B, float *__restrict__ D, const int64_t rows)
{
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x); i < rows; i += (int64_t)gridDim.x * blockDim.x) {
        f32x8 acc0 = broadcast_f32x8(0.0f);
        f32x8 acc1 = broadcast_f32x8(0.0f);
        float rest[4];
        for (int64_t k = 0; k < 4; ++k) {
            rest[k] = 0.0f;
        }
        for (int64_t p = indptr[i], p__end = indptr[i + 1]; p < p__end; ++p) {
            const int64_t b = (int64_t)indices[p] * 20;
            const f32x8 a = broadcast_f32x8(values[p]);
            acc0 = acc0 + a * *(const f32x8 *)(B + (b + 0));
            acc1 = acc1 + a * *(const f32x8 *)(B + (b + 8));
            for (int64_t k = 0; k < 4; ++k) {
                rest[k] += values[p] * B[b + 16 + k];
            }
        }
        *(f32x8 *)(D + (i * 20 + 0)) = acc0;
        *(f32x8 *)(D + (i * 20 + 8)) = acc1;
        for (int64_t k = 0; k < 4; ++k) {
            D[i * 20 + 16 + k] = rest[k];
        }
    }
}
