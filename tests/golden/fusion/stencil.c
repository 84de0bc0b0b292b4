#include <math.h>
#include <stdbool.h>
#include <stdint.h>
static inline float max_f32(float a, float b) { return a > b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

void stencil_fused(const float *restrict B, float *restrict mid, float *restrict out, const int64_t B_shape_1, const int64_t *restrict schedule_first, const int32_t *restrict schedule_second, const int64_t *restrict schedule_second_ptr, const int64_t schedule_tiles_0, const int64_t schedule_tiles_1)
{
    #pragma omp parallel for schedule(dynamic, 1)
    for (int64_t tile = 0; tile < schedule_tiles_0; ++tile) {
        for (int64_t at_1 = schedule_first[tile], at_1__end = schedule_first[tile + 1]; at_1 < at_1__end; ++at_1) {
            const int64_t i = 1 + at_1;
            double x = 0.0;
            x = (double)B[i * B_shape_1 + 0];
            if (x < 0.0) {
                x = 0.5 * x;
            }
            mid[i] = (float)tanh(x);
        }
        for (int64_t at_2 = schedule_second_ptr[tile], at_2__end = schedule_second_ptr[tile + 1]; at_2 < at_2__end; ++at_2) {
            const int64_t j = 1 + (int64_t)schedule_second[at_2];
            out[j] = max_f32(mid[j], mid[j - 1]) - mid[j + 1];
        }
    }
    {
        const int64_t tile__end = schedule_tiles_0 + schedule_tiles_1;
        #pragma omp parallel for schedule(dynamic, 1)
        for (int64_t tile = schedule_tiles_0; tile < tile__end; ++tile) {
            for (int64_t at_2 = schedule_second_ptr[tile], at_2__end = schedule_second_ptr[tile + 1]; at_2 < at_2__end; ++at_2) {
                const int64_t j = 1 + (int64_t)schedule_second[at_2];
                out[j] = max_f32(mid[j], mid[j - 1]) - mid[j + 1];
            }
        }
    }
}

void stencil_unfused(const float *restrict B, float *restrict mid, float *restrict out, const int64_t B_shape_1, const int64_t n)
{
    {
        const int64_t i__end = n - 1;
        #pragma omp parallel for schedule(dynamic, 64)
        for (int64_t i = 1; i < i__end; ++i) {
            double x = 0.0;
            x = (double)B[i * B_shape_1 + 0];
            if (x < 0.0) {
                x = 0.5 * x;
            }
            mid[i] = (float)tanh(x);
        }
    }
    {
        const int64_t j__end = n - 1;
        #pragma omp parallel for schedule(dynamic, 64)
        for (int64_t j = 1; j < j__end; ++j) {
            out[j] = max_f32(mid[j], mid[j - 1]) - mid[j + 1];
        }
    }
}

void stencil_sizes(const int64_t B_shape_0, const int64_t B_shape_1, const int64_t n, int64_t *restrict sizes)
{
    sizes[0] = max_i64(n - 1 - 1, 0);
    sizes[1] = max_i64(n - 1 - 1, 0);
    sizes[2] = n;
    sizes[3] = n;
    sizes[4] = 1;
    sizes[5] = n - 2;
    sizes[6] = B_shape_0;
    sizes[7] = 0;
    sizes[8] = 0;
    sizes[9] = B_shape_1;
}
