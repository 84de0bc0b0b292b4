// Dense products by a BLAS of the machine, one call per tile: an alternative to tall_gemm.hpp if it is faster.

#pragma once

#include <cstdint>

namespace sparloom::gemm {

// Fortran's ?GEMM and ?GEMV: column-major, every argument by address.
template <typename T>
using Gemm = void (*)(const char*, const char*, const int*, const int*, const int*, const T*, const T*, const int*,
                      const T*, const int*, const T*, T*, const int*);
template <typename T>
using Gemv = void (*)(const char*, const int*, const int*, const T*, const T*, const int*, const T*, const int*,
                      const T*, T*, const int*);

// Rows begin .. end of X (rows, depth) times Y (depth, width), or its transpose; row i of the result is at
// result + i * width.
template <typename T>
void blas_multiply(Gemm<T> gemm, const T* x, int64_t begin, int64_t end, int64_t depth, const T* y, bool transposed,
                   int64_t width, T* result) {
    if (begin == end) return;
    const int rows = static_cast<int>(end - begin), k = static_cast<int>(depth), columns = static_cast<int>(width);
    const T one = 1, zero = 0;
    gemm(transposed ? "T" : "N", "N", &columns, &rows, &k, &one, y, transposed ? &k : &columns, x + begin * depth, &k,
         &zero, result + begin * width, &columns);
}

}  // namespace sparloom::gemm
