// Register tiles of the GEMM kernels that are tuned: sums over k in several parts, operands in any layout.
//
// `tile_of` computes outer products: B has its columns side by side, `b_row` elements from one k to the next, and A is
// read element by element. `dots` computes inner products of rows of A and rows of a transposed B, both along k.

#pragma once

#include "gemm.hpp"

namespace sparloom::gemm {

// Where element (r, k) of A lies: at a[r * a_row + k], as it is stored; at a[r + k * a_row] of a transposed A; at
// a[r + k * Rows], interleaved by packing.
enum class RowsOf { kStored, kTransposed, kInterleaved };

// A full tile of Rows x Vectors vectors. Sum s of Split adds up every Split-th k, in registers, so that more additions
// are in flight; they are added at the end. With Prefetches, the rows of B that follow `ahead` later are prefetched.
// k advances by Unroll, a multiple of Split, at a time.
template <int Rows, int Vectors, int Unroll, int Split, RowsOf Left, bool Prefetches>
void tile_of(int64_t depth, const float* a, int64_t a_row, const float* b, int64_t b_row, float* c, int64_t c_row,
             bool add, int64_t ahead) {
    constexpr int lanes = kLanes<float>;
    Vec<float> sums[Split][Rows][Vectors] = {};
    const auto step = [&](int64_t k, int s) __attribute__((always_inline)) {
        Vec<float> right[Vectors];
#pragma GCC unroll 64
        for (int v = 0; v < Vectors; ++v) right[v] = load(b + k * b_row + v * lanes);
#pragma GCC unroll 64
        for (int r = 0; r < Rows; ++r) {
            const Vec<float> left = broadcast(Left == RowsOf::kStored       ? a[r * a_row + k]
                                              : Left == RowsOf::kTransposed ? a[k * a_row + r]
                                                                            : a[k * Rows + r]);
#pragma GCC unroll 64
            for (int v = 0; v < Vectors; ++v) sums[s][r][v] += left * right[v];
        }
    };
    int64_t k = 0;
    for (; k + Unroll <= depth; k += Unroll) {
        if constexpr (Prefetches) {
#pragma GCC unroll 64
            for (int u = 0; u < Unroll; ++u) {
#pragma GCC unroll 64
                for (int line = 0; line < Vectors * lanes; line += kLine<float>) {
                    __builtin_prefetch(b + (k + u + ahead) * b_row + line);
                }
            }
        }
#pragma GCC unroll 64
        for (int u = 0; u < Unroll; ++u) step(k + u, u % Split);
    }
    for (; k < depth; ++k) step(k, 0);
#pragma GCC unroll 64
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 64
        for (int v = 0; v < Vectors; ++v) {
            Vec<float> sum = sums[0][r][v];
#pragma GCC unroll 64
            for (int s = 1; s < Split; ++s) sum += sums[s][r][v];
            float* to = c + r * c_row + v * lanes;
            store(to, add ? load(to) + sum : sum);
        }
    }
}

inline float total(Vec<float> value) {
    float sum = 0;
    for (int lane = 0; lane < kLanes<float>; ++lane) sum += value[lane];
    return sum;
}

// Rows x Columns inner products of rows of A, `a_row` apart, and rows of B, `b_row` apart; Split vectors of k at a time.
template <int Rows, int Columns, int Split>
void dots(int64_t depth, const float* a, int64_t a_row, const float* b, int64_t b_row, float* c, int64_t c_row,
          bool add) {
    constexpr int lanes = kLanes<float>;
    Vec<float> sums[Split][Rows][Columns] = {};
    const auto step = [&](int s, auto&& read) __attribute__((always_inline)) {
        Vec<float> right[Columns];
#pragma GCC unroll 64
        for (int j = 0; j < Columns; ++j) right[j] = read(b + j * b_row);
#pragma GCC unroll 64
        for (int r = 0; r < Rows; ++r) {
            const Vec<float> left = read(a + r * a_row);
#pragma GCC unroll 64
            for (int j = 0; j < Columns; ++j) sums[s][r][j] += left * right[j];
        }
    };
    int64_t k = 0;
    for (; k + Split * lanes <= depth; k += Split * lanes) {
#pragma GCC unroll 64
        for (int s = 0; s < Split; ++s) {
            step(s, [=](const float* row) __attribute__((always_inline)) { return load(row + k + s * lanes); });
        }
    }
    for (; k + lanes <= depth; k += lanes) {
        step(0, [=](const float* row) __attribute__((always_inline)) { return load(row + k); });
    }
    if (k < depth) {
        const Lanes<float> part(depth - k);
        step(0, [=](const float* row) __attribute__((always_inline)) { return part.load(row + k); });
    }
#pragma GCC unroll 64
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 64
        for (int j = 0; j < Columns; ++j) {
            Vec<float> sum = sums[0][r][j];
#pragma GCC unroll 64
            for (int s = 1; s < Split; ++s) sum += sums[s][r][j];
            float& to = c[r * c_row + j];
            to = add ? to + total(sum) : total(sum);
        }
    }
}

// Inner products at the border of C: tiles of 4 and 1 rows and columns cover `rows` x `columns`.
inline void cover_dots(int64_t depth, int64_t rows, int64_t columns, const float* a, int64_t a_row, const float* b,
                       int64_t b_row, float* c, int64_t c_row, bool add) {
    for (int64_t r = 0, height; r < rows; r += height) {
        height = rows - r >= 4 ? 4 : 1;
        for (int64_t j = 0, width; j < columns; j += width) {
            width = columns - j >= 4 ? 4 : 1;
            const auto tile = height == 4 ? width == 4 ? dots<4, 4, 1> : dots<4, 1, 2>
                              : width == 4 ? dots<1, 4, 2> : dots<1, 1, 4>;
            tile(depth, a + r * a_row, a_row, b + j * b_row, b_row, c + r * c_row + j, c_row, add);
        }
    }
}

}  // namespace sparloom::gemm
