// Register tiles of GEMM: `Rows` x `Vectors` vectors of C stay in registers while k runs over one block.
//
// C (rows, columns) is overwritten, or added to where k runs over several blocks. B has its columns side by side,
// `b_row` floats from one k to the next. A is read element by element: (r, k) at a[r * a_row + k * a_column].

#pragma once

#include <cstdint>

#include "vector.hpp"

namespace sparloom::gemm {

// A full register tile. With PackedA, the rows of A are interleaved: a_row = 1 and a_column = Rows, at compile time.
template <int Rows, int Vectors, int Unroll, bool PackedA>
void tile(int64_t depth, const float* a, int64_t a_row, const float* b, int64_t b_row, float* c, int64_t c_row,
          bool add) {
    Vec sums[Rows][Vectors] = {};
    const auto step = [&](int64_t k) __attribute__((always_inline)) {
        Vec right[Vectors];
#pragma GCC unroll 64
        for (int v = 0; v < Vectors; ++v) right[v] = load(b + k * b_row + v * kLanes);
#pragma GCC unroll 64
        for (int r = 0; r < Rows; ++r) {
            const Vec left = broadcast(PackedA ? a[k * Rows + r] : a[r * a_row + k]);
#pragma GCC unroll 64
            for (int v = 0; v < Vectors; ++v) sums[r][v] += left * right[v];
        }
    };
    int64_t k = 0;
    for (; k + Unroll <= depth; k += Unroll) {
#pragma GCC unroll 64
        for (int u = 0; u < Unroll; ++u) step(k + u);
    }
    for (; k < depth; ++k) step(k);
#pragma GCC unroll 64
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 64
        for (int v = 0; v < Vectors; ++v) {
            float* to = c + r * c_row + v * kLanes;
            store(to, add ? load(to) + sums[r][v] : sums[r][v]);
        }
    }
}

// A tile at the right or lower border: the last vector of each row holds `last` columns, 1 .. kLanes.
template <int Rows, int Vectors>
void edge(int64_t depth, const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row, float* c,
          int64_t c_row, int64_t last, bool add) {
    const Lanes part(last);
    Vec sums[Rows][Vectors] = {};
    for (int64_t k = 0; k < depth; ++k) {
        Vec right[Vectors];
#pragma GCC unroll 64
        for (int v = 0; v < Vectors - 1; ++v) right[v] = load(b + k * b_row + v * kLanes);
        right[Vectors - 1] = part.load(b + k * b_row + (Vectors - 1) * kLanes);
#pragma GCC unroll 64
        for (int r = 0; r < Rows; ++r) {
            const Vec left = broadcast(a[r * a_row + k * a_column]);
#pragma GCC unroll 64
            for (int v = 0; v < Vectors; ++v) sums[r][v] += left * right[v];
        }
    }
#pragma GCC unroll 64
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 64
        for (int v = 0; v < Vectors; ++v) {
            float* to = c + r * c_row + v * kLanes;
            if (v < Vectors - 1) {
                store(to, add ? load(to) + sums[r][v] : sums[r][v]);
            } else {
                part.store(to, add ? part.load(to) + sums[r][v] : sums[r][v]);
            }
        }
    }
}

}  // namespace sparloom::gemm
