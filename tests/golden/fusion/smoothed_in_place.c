#include <math.h>
#include <stdbool.h>
#include <stdint.h>
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

void smoothed_in_place_fused(float *restrict X, float *restrict Y, const int64_t *restrict A_p, const float *restrict A_x, const int32_t *restrict A_i, const int64_t X_shape_1, const int64_t *restrict schedule_first, const int32_t *restrict schedule_second, const int64_t *restrict schedule_second_ptr, const int64_t schedule_tiles_0, const int64_t schedule_tiles_1)
{
    #pragma omp parallel for schedule(dynamic, 1)
    for (int64_t tile = 0; tile < schedule_tiles_0; ++tile) {
        for (int64_t i = schedule_first[tile], i__end = schedule_first[tile + 1]; i < i__end; ++i) {
            for (int64_t e = A_p[i], e__end = A_p[i + 1]; e < e__end; ++e) {
                Y[i] += A_x[e] * X[(int64_t)A_i[e] * X_shape_1 + 0];
            }
        }
        for (int64_t at_2 = schedule_second_ptr[tile], at_2__end = schedule_second_ptr[tile + 1]; at_2 < at_2__end; ++at_2) {
            const int64_t j = (int64_t)schedule_second[at_2];
            X[j * X_shape_1 + 0] = (float)((double)X[j * X_shape_1 + 0] + 0.5 * (double)Y[j]);
        }
    }
    {
        const int64_t tile__end = schedule_tiles_0 + schedule_tiles_1;
        #pragma omp parallel for schedule(dynamic, 1)
        for (int64_t tile = schedule_tiles_0; tile < tile__end; ++tile) {
            for (int64_t at_2 = schedule_second_ptr[tile], at_2__end = schedule_second_ptr[tile + 1]; at_2 < at_2__end; ++at_2) {
                const int64_t j = (int64_t)schedule_second[at_2];
                X[j * X_shape_1 + 0] = (float)((double)X[j * X_shape_1 + 0] + 0.5 * (double)Y[j]);
            }
        }
    }
}

void smoothed_in_place_unfused(float *restrict X, float *restrict Y, const int64_t *restrict A_p, const float *restrict A_x, const int32_t *restrict A_i, const int64_t X_shape_1, const int64_t n)
{
    #pragma omp parallel for schedule(dynamic, 64)
    for (int64_t i = 0; i < n; ++i) {
        for (int64_t e = A_p[i], e__end = A_p[i + 1]; e < e__end; ++e) {
            Y[i] += A_x[e] * X[(int64_t)A_i[e] * X_shape_1 + 0];
        }
    }
    #pragma omp parallel for schedule(dynamic, 64)
    for (int64_t j = 0; j < n; ++j) {
        X[j * X_shape_1 + 0] = (float)((double)X[j * X_shape_1 + 0] + 0.5 * (double)Y[j]);
    }
}

void smoothed_in_place_graph_0_count(const int64_t *restrict A_p, const int32_t *restrict A_i, const int64_t n, int64_t *restrict graph_indptr)
{
    int64_t edges = 0;
    for (int64_t i = 0; i < n; ++i) {
        for (int64_t e = A_p[i], e__end = A_p[i + 1]; e < e__end; ++e) {
            if ((int64_t)A_i[e] < n) {
                edges = edges + 1;
            }
        }
        graph_indptr[i + 1] = edges;
    }
}

void smoothed_in_place_graph_0_fill(const int64_t *restrict A_p, const int32_t *restrict A_i, const int64_t n, int32_t *restrict graph_indices)
{
    int64_t edges = 0;
    for (int64_t i = 0; i < n; ++i) {
        for (int64_t e = A_p[i], e__end = A_p[i + 1]; e < e__end; ++e) {
            if ((int64_t)A_i[e] < n) {
                graph_indices[edges] = (int32_t)(int64_t)A_i[e];
                edges = edges + 1;
            }
        }
    }
}

void smoothed_in_place_sizes(const int64_t X_shape_0, const int64_t X_shape_1, const int64_t n, const int64_t A_shape_1, const int64_t A_i_shape_0, const int64_t A_p_shape_0, const int64_t A_x_shape_0, int64_t *restrict sizes)
{
    sizes[0] = max_i64(n - 0, 0);
    sizes[1] = max_i64(n - 0, 0);
    sizes[2] = n;
    sizes[3] = 0;
    sizes[4] = n - 1;
    sizes[5] = A_p_shape_0;
    sizes[6] = 1;
    sizes[7] = n;
    sizes[8] = A_p_shape_0;
    sizes[9] = 0;
    sizes[10] = A_i_shape_0 - 1;
    sizes[11] = A_x_shape_0;
    sizes[12] = 0;
    sizes[13] = A_shape_1 - 1;
    sizes[14] = X_shape_0;
    sizes[15] = 0;
    sizes[16] = 0;
    sizes[17] = X_shape_1;
    sizes[18] = 0;
    sizes[19] = n - 1;
    sizes[20] = X_shape_0;
}
