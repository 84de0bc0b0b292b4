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

extern "C" __global__ void gemm_spmm_wavefront_0(const float *__restrict__ B, const float *__restrict__ C, float *__restrict__ D1, float *__restrict__ D, const int64_t *__restrict__ A_p, const float *__restrict__ A_x, const int32_t *__restrict__ A_i, const int64_t B_shape_1, const int64_t C_shape_1, const int64_t bCol, const int64_t cCol, const int64_t *__restrict__ schedule_first, const int32_t *__restrict__ schedule_second, const int64_t *__restrict__ schedule_second_ptr, const int64_t schedule_tiles_0, const int64_t schedule_tiles_1)
{
    for (int64_t tile = (int64_t)blockIdx.x; tile < schedule_tiles_0; tile += (int64_t)gridDim.x) {
        for (int64_t i1 = (schedule_first[tile]) + (int64_t)threadIdx.x, i1__end = schedule_first[tile + 1]; i1 < i1__end; i1 += (int64_t)blockDim.x) {
            for (int64_t i2 = 0; i2 < bCol; ++i2) {
                for (int64_t i3 = 0; i3 < cCol; ++i3) {
                    D1[i1 * cCol + i3] += B[i1 * B_shape_1 + i2] * C[i2 * C_shape_1 + i3];
                }
            }
        }
        __syncthreads();
        for (int64_t at_2 = (schedule_second_ptr[tile]) + (int64_t)threadIdx.x, at_2__end = schedule_second_ptr[tile + 1]; at_2 < at_2__end; at_2 += (int64_t)blockDim.x) {
            const int64_t j1 = (int64_t)schedule_second[at_2];
            for (int64_t j2 = A_p[j1], j2__end = A_p[j1 + 1]; j2 < j2__end; ++j2) {
                for (int64_t j3 = 0; j3 < cCol; ++j3) {
                    D[j1 * cCol + j3] += A_x[j2] * D1[(int64_t)A_i[j2] * cCol + j3];
                }
            }
        }
        __syncthreads();
    }
}

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

extern "C" __global__ void gemm_spmm_wavefront_1(float *__restrict__ D1, float *__restrict__ D, const int64_t *__restrict__ A_p, const float *__restrict__ A_x, const int32_t *__restrict__ A_i, const int64_t cCol, const int64_t *__restrict__ schedule_first, const int32_t *__restrict__ schedule_second, const int64_t *__restrict__ schedule_second_ptr, const int64_t schedule_tiles_0, const int64_t schedule_tiles_1)
{
    {
        const int64_t tile__end = schedule_tiles_0 + schedule_tiles_1;
        for (int64_t tile = (schedule_tiles_0) + (int64_t)blockIdx.x; tile < tile__end; tile += (int64_t)gridDim.x) {
            for (int64_t at_2 = (schedule_second_ptr[tile]) + (int64_t)threadIdx.x, at_2__end = schedule_second_ptr[tile + 1]; at_2 < at_2__end; at_2 += (int64_t)blockDim.x) {
                const int64_t j1 = (int64_t)schedule_second[at_2];
                for (int64_t j2 = A_p[j1], j2__end = A_p[j1 + 1]; j2 < j2__end; ++j2) {
                    for (int64_t j3 = 0; j3 < cCol; ++j3) {
                        D[j1 * cCol + j3] += A_x[j2] * D1[(int64_t)A_i[j2] * cCol + j3];
                    }
                }
            }
            __syncthreads();
        }
    }
}
