// Kernels that measure the rates of a GPU.
//
//   rates_copy       to[n] = from[n] for n < count
//   rates_multiply   every thread: CHAINS times `steps` steps x = a x + b that depend on each other; their sum goes to out
//
// Launch shape: any number of blocks of THREADS. No shared memory.
// Macros: THREADS, CHAINS.
// Preconditions (checked by the caller): count is a multiple of 4; from and to are aligned to 16 bytes and do not overlap;
// out: a float per thread.

#include "index.cuh"

struct alignas(16) Four {
    float at[4];
};

extern "C" __global__ void __launch_bounds__(THREADS)
rates_copy(const float* from, float* to, Offset count) {
    const Offset threads = group_number(gridDim.x, blockDim.x, 0);
    const Offset thread = group_number(blockIdx.x, blockDim.x, threadIdx.x);
    for (Offset n = 4 * thread; n < count; n += 4 * threads) {
        *reinterpret_cast<Four*>(to + n) = *reinterpret_cast<const Four*>(from + n);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
rates_multiply(float* out, int steps, float a, float b) {
    const Offset thread = group_number(blockIdx.x, blockDim.x, threadIdx.x);
    float chains[CHAINS], sum = 0;
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) chains[c] = c;
#pragma unroll 4
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) chains[c] = a * chains[c] + b;
    }
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) sum += chains[c];
    out[thread] = sum;
}
