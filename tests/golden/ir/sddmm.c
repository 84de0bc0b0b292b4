#include <math.h>
#include <stdbool.h>
#include <stdint.h>

typedef float f32x2 __attribute__((vector_size(8), aligned(4), may_alias));
typedef float f32x4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));
static inline f32x8 broadcast_f32x8(float a) { return a - (f32x8){0}; }
static inline float sum_f32x2(f32x2 a) { return a[0] + a[1]; }
static inline float sum_f32x4(f32x4 a)
{
    const f32x2 low = __builtin_shufflevector(a, a, 0, 1);
    const f32x2 high = __builtin_shufflevector(a, a, 2, 3);
    return sum_f32x2(low + high);
}
static inline float sum_f32x8(f32x8 a)
{
    const f32x4 low = __builtin_shufflevector(a, a, 0, 1, 2, 3);
    const f32x4 high = __builtin_shufflevector(a, a, 4, 5, 6, 7);
    return sum_f32x4(low + high);
}

void sddmm(const int64_t *restrict indptr, const int32_t *restrict indices, const float *restrict values, const float *restrict B, const float *restrict C, float *restrict D, const int64_t rows)
{
    #pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t p = indptr[i], p__end = indptr[i + 1]; p < p__end; ++p) {
            f32x8 acc = broadcast_f32x8(0.0f);
            const int64_t c = (int64_t)indices[p] * 16;
            #pragma GCC unroll 2
            for (int64_t k = 0; k < 16; k += 8) {
                acc = acc + *(const f32x8 *)(B + (i * 16 + k)) * *(const f32x8 *)(C + (c + k));
            }
            D[p] = values[p] * sum_f32x8(acc);
        }
    }
}
