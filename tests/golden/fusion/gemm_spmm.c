#include <math.h>
#include <stdbool.h>
#include <stdint.h>
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

void gemm_spmm_fused(const float *restrict B, const float *restrict C, float *restrict D1, float *restrict D, const int64_t *restrict A_p, const float *restrict A_x, const int32_t *restrict A_i, const int64_t B_shape_1, const int64_t C_shape_1, const int64_t bCol, const int64_t cCol, const int64_t *restrict schedule_first, const int32_t *restrict schedule_second, const int64_t *restrict schedule_second_ptr, const int64_t schedule_tiles_0, const int64_t schedule_tiles_1)
{
    #pragma omp parallel for schedule(dynamic, 1)
    for (int64_t tile = 0; tile < schedule_tiles_0; ++tile) {
        for (int64_t i1 = schedule_first[tile], i1__end = schedule_first[tile + 1]; i1 < i1__end; ++i1) {
            for (int64_t i2 = 0; i2 < bCol; ++i2) {
                for (int64_t i3 = 0; i3 < cCol; ++i3) {
                    D1[i1 * cCol + i3] += B[i1 * B_shape_1 + i2] * C[i2 * C_shape_1 + i3];
                }
            }
        }
        for (int64_t at_2 = schedule_second_ptr[tile], at_2__end = schedule_second_ptr[tile + 1]; at_2 < at_2__end; ++at_2) {
            const int64_t j1 = (int64_t)schedule_second[at_2];
            for (int64_t j2 = A_p[j1], j2__end = A_p[j1 + 1]; j2 < j2__end; ++j2) {
                for (int64_t j3 = 0; j3 < cCol; ++j3) {
                    D[j1 * cCol + j3] += A_x[j2] * D1[(int64_t)A_i[j2] * cCol + j3];
                }
            }
        }
    }
    {
        const int64_t tile__end = schedule_tiles_0 + schedule_tiles_1;
        #pragma omp parallel for schedule(dynamic, 1)
        for (int64_t tile = schedule_tiles_0; tile < tile__end; ++tile) {
            for (int64_t at_2 = schedule_second_ptr[tile], at_2__end = schedule_second_ptr[tile + 1]; at_2 < at_2__end; ++at_2) {
                const int64_t j1 = (int64_t)schedule_second[at_2];
                for (int64_t j2 = A_p[j1], j2__end = A_p[j1 + 1]; j2 < j2__end; ++j2) {
                    for (int64_t j3 = 0; j3 < cCol; ++j3) {
                        D[j1 * cCol + j3] += A_x[j2] * D1[(int64_t)A_i[j2] * cCol + j3];
                    }
                }
            }
        }
    }
}

void gemm_spmm_unfused(const float *restrict B, const float *restrict C, float *restrict D1, float *restrict D, const int64_t *restrict A_p, const float *restrict A_x, const int32_t *restrict A_i, const int64_t B_shape_1, const int64_t C_shape_1, const int64_t n, const int64_t bCol, const int64_t cCol)
{
    #pragma omp parallel for schedule(dynamic, 64)
    for (int64_t i1 = 0; i1 < n; ++i1) {
        for (int64_t i2 = 0; i2 < bCol; ++i2) {
            for (int64_t i3 = 0; i3 < cCol; ++i3) {
                D1[i1 * cCol + i3] += B[i1 * B_shape_1 + i2] * C[i2 * C_shape_1 + i3];
            }
        }
    }
    #pragma omp parallel for schedule(dynamic, 64)
    for (int64_t j1 = 0; j1 < n; ++j1) {
        for (int64_t j2 = A_p[j1], j2__end = A_p[j1 + 1]; j2 < j2__end; ++j2) {
            for (int64_t j3 = 0; j3 < cCol; ++j3) {
                D[j1 * cCol + j3] += A_x[j2] * D1[(int64_t)A_i[j2] * cCol + j3];
            }
        }
    }
}

void gemm_spmm_graph_0_count(const int64_t *restrict A_p, const int64_t n, int64_t *restrict graph_indptr)
{
    int64_t edges = 0;
    for (int64_t j1 = 0; j1 < n; ++j1) {
        for (int64_t j2 = A_p[j1], j2__end = A_p[j1 + 1]; j2 < j2__end; ++j2) {
            edges = edges + 1;
        }
        graph_indptr[j1 + 1] = edges;
    }
}

void gemm_spmm_graph_0_fill(const int64_t *restrict A_p, const int32_t *restrict A_i, const int64_t n, int32_t *restrict graph_indices)
{
    int64_t edges = 0;
    for (int64_t j1 = 0; j1 < n; ++j1) {
        for (int64_t j2 = A_p[j1], j2__end = A_p[j1 + 1]; j2 < j2__end; ++j2) {
            graph_indices[edges] = (int32_t)(int64_t)A_i[j2];
            edges = edges + 1;
        }
    }
}

void gemm_spmm_sizes(const int64_t B_shape_0, const int64_t B_shape_1, const int64_t C_shape_0, const int64_t C_shape_1, const int64_t n, const int64_t bCol, const int64_t cCol, const int64_t A_shape_0, const int64_t A_shape_1, const int64_t A_i_shape_0, const int64_t A_p_shape_0, const int64_t A_x_shape_0, int64_t *restrict sizes)
{
    sizes[0] = max_i64(n - 0, 0);
    sizes[1] = max_i64(n - 0, 0);
    sizes[2] = n;
    sizes[3] = cCol;
    sizes[4] = n;
    sizes[5] = cCol;
    sizes[6] = 0;
    sizes[7] = n - 1;
    sizes[8] = B_shape_0;
    sizes[9] = 0;
    sizes[10] = bCol - 1;
    sizes[11] = B_shape_1;
    sizes[12] = 0;
    sizes[13] = bCol - 1;
    sizes[14] = C_shape_0;
    sizes[15] = 0;
    sizes[16] = cCol - 1;
    sizes[17] = C_shape_1;
    sizes[18] = 0;
    sizes[19] = n - 1;
    sizes[20] = A_p_shape_0;
    sizes[21] = 1;
    sizes[22] = n;
    sizes[23] = A_p_shape_0;
    sizes[24] = 0;
    sizes[25] = A_i_shape_0 - 1;
    sizes[26] = A_x_shape_0;
    sizes[27] = 0;
    sizes[28] = A_shape_1 - 1;
    sizes[29] = n;
    sizes[30] = n - n;
    sizes[31] = cCol - cCol;
    sizes[32] = n - B_shape_0;
    sizes[33] = bCol - B_shape_1;
    sizes[34] = bCol - C_shape_0;
    sizes[35] = cCol - C_shape_1;
    sizes[36] = n - n;
    sizes[37] = cCol - cCol;
    sizes[38] = n - A_shape_0;
    sizes[39] = A_shape_1 - n;
    sizes[40] = cCol - cCol;
}
