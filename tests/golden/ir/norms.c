#include <math.h>
#include <stdbool.h>
#include <stdint.h>

void norms(const float *restrict X, double *restrict D, int32_t *restrict counts, const int64_t m, const int64_t n, const int32_t limit)
{
    #pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < m; ++i) {
        double total = 0.0;
        int32_t below = 0;
        #pragma omp simd reduction(+:total, below)
        for (int64_t j = 0; j < n; ++j) {
            const double x = (double)X[i * n + j];
            total = total + x * x;
            below = below + (X[i * n + j] < 0.0f ? 1 : 0);
        }
        if (below > limit) {
            D[i] = -1.0;
        } else {
            D[i] = sqrt(total);
        }
        counts[i] = below;
    }
}
