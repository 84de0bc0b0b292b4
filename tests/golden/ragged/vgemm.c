#include <math.h>
#include <stdbool.h>
#include <stdint.h>

void vgemm_c(const float *restrict a, const float *restrict b, float *restrict c, const int32_t *restrict order, const int32_t *restrict fused_outer, const int32_t *restrict fused_inner, const int64_t *restrict offsets, const int32_t *restrict inners, const int64_t *restrict offsets_1, const int32_t *restrict cols, const int64_t *restrict offsets_2, const int64_t *restrict offsets_3, const int64_t products)
{
    const int64_t offsets_3_entry = offsets_3[products];
    #pragma omp parallel for schedule(dynamic, 1)
    for (int64_t item_row_outer_th = 0; item_row_outer_th < offsets_3_entry; ++item_row_outer_th) {
        const int64_t item_row_outer = (int64_t)order[item_row_outer_th];
        const int64_t item = (int64_t)fused_outer[item_row_outer];
        const int64_t row_outer = (int64_t)fused_inner[item_row_outer];
        const int32_t inners_entry = inners[item];
        const int64_t offsets_entry = offsets[item];
        const int64_t offsets_1_entry = offsets_1[item];
        const int32_t cols_entry = cols[item];
        const int64_t offsets_2_entry = offsets_2[item];
        for (int64_t col_outer = 0, col_outer__end = ((int64_t)cols_entry + 31) / 32; col_outer < col_outer__end; ++col_outer) {
            float c_acc[256] __attribute__((aligned(64)));
            #pragma GCC unroll 8
            for (int64_t row_inner = 0; row_inner < 8; ++row_inner) {
                const int64_t row = row_outer * 8 + row_inner;
                #pragma omp simd
                for (int64_t col_inner = 0; col_inner < 32; ++col_inner) {
                    const int64_t col = col_outer * 32 + col_inner;
                    c_acc[row_inner * 32 + col_inner] = 0.0f;
                }
            }
            for (int64_t inner = 0, inner__end = (int64_t)inners_entry; inner < inner__end; ++inner) {
                #pragma GCC unroll 8
                for (int64_t row_inner = 0; row_inner < 8; ++row_inner) {
                    const int64_t row = row_outer * 8 + row_inner;
                    #pragma omp simd
                    for (int64_t col_inner = 0; col_inner < 32; ++col_inner) {
                        const int64_t col = col_outer * 32 + col_inner;
                        c_acc[row_inner * 32 + col_inner] = c_acc[row_inner * 32 + col_inner] + a[offsets_entry + inner + row * (int64_t)inners_entry] * b[offsets_1_entry + col + inner * (((int64_t)cols_entry + 31) / 32 * 32)];
                    }
                }
            }
            #pragma GCC unroll 8
            for (int64_t row_inner = 0; row_inner < 8; ++row_inner) {
                const int64_t row = row_outer * 8 + row_inner;
                #pragma omp simd
                for (int64_t col_inner = 0; col_inner < 32; ++col_inner) {
                    const int64_t col = col_outer * 32 + col_inner;
                    c[offsets_2_entry + col + row * (((int64_t)cols_entry + 31) / 32 * 32)] = c_acc[row_inner * 32 + col_inner];
                }
            }
        }
    }
}
