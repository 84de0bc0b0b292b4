#include <math.h>
#include <stdbool.h>
#include <stdint.h>

typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));
static inline f32x8 broadcast_f32x8(float a) { return a - (f32x8){0}; }

void spmm(const int64_t *restrict indptr, const int32_t *restrict indices, const float *restrict values, const float *restrict B, float *restrict D, const int64_t rows)
{
    #pragma omp parallel for schedule(dynamic, 4)
    for (int64_t i = 0; i < rows; ++i) {
        f32x8 acc0 = broadcast_f32x8(0.0f);
        f32x8 acc1 = broadcast_f32x8(0.0f);
        float rest[4] __attribute__((aligned(64)));
        for (int64_t k = 0; k < 4; ++k) {
            rest[k] = 0.0f;
        }
        for (int64_t p = indptr[i], p__end = indptr[i + 1]; p < p__end; ++p) {
            __builtin_prefetch(indices + (p + 16));
            const int64_t b = (int64_t)indices[p] * 20;
            const f32x8 a = broadcast_f32x8(values[p]);
            acc0 = acc0 + a * *(const f32x8 *)(B + (b + 0));
            acc1 = acc1 + a * *(const f32x8 *)(B + (b + 8));
            #pragma omp simd
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
