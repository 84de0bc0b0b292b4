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

extern "C" __global__ void norms(const float *__restrict__ X, double *__restrict__ D, int32_t *__restrict__ counts, const int64_t m, const int64_t n, const int32_t limit)
{
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x); i < m; i += (int64_t)gridDim.x * blockDim.x) {
        double total = 0.0;
        int32_t below = 0;
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
