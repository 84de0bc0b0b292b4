// Row kernels of SpMM: a strip of columns of the result stays in registers while the nonzeros of a row go by.
//
// Up to four rows that have the same columns are summed together: each row of the dense operand is loaded once for all.

#pragma once

#include <array>
#include <cstdint>

#include "rows.hpp"
#include "vector.hpp"

namespace sparloom::spmm {

constexpr int kVectors = kRegisters / 2;  // of the widest strip
constexpr int kTogether = 4;              // rows

// Rows that are summed together if the strip has `vectors`; some registers are left for the dense operand.
constexpr int together(int vectors) {
    const int rows = (kRegisters - 4) / vectors;
    return rows < 1 ? 1 : rows < kTogether ? rows : kTogether;
}

struct Strip {
    const float* dense;  // from its first column on
    float* result;       // likewise
    int64_t lead;        // floats from one row to the next, of both
    Lanes last;          // columns in the last vector
    int64_t ahead;       // nonzeros between the one being summed and the one whose row is prefetched; 0: none is
};

enum class Store { kWhole, kPart, kStream };  // how the last vector is written; kStream: past the caches, aligned

// out[r] = sum over n of values[r][n] * dense[columns[n]], for R rows. `ahead` is 0 or at most what follows `columns`.
template <int R, int V, Store kStore>
[[gnu::always_inline]] inline void sum(const int32_t* columns, int64_t count, int64_t ahead,
                                       const std::array<const float*, R>& values, const Strip& strip,
                                       const std::array<float*, R>& out) {
    Vec sums[R][V] = {};
    const auto step = [&](int64_t n, int64_t distance) __attribute__((always_inline)) {
        const float* row = strip.dense + columns[n] * strip.lead;
        if (distance != 0) {
            const float* next = strip.dense + columns[n + distance] * strip.lead;
#pragma GCC unroll 32
            for (int c = 0; c < V * kLanes; c += kLineFloats) __builtin_prefetch(next + c);
        }
#pragma GCC unroll 32
        for (int v = 0; v < V; ++v) {
            const bool partial = kStore == Store::kPart && v == V - 1;
            const Vec right = partial ? strip.last.load(row + v * kLanes) : load(row + v * kLanes);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) sums[r][v] += values[r][n] * right;
        }
    };
    if (ahead != 0) {
        for (int64_t n = 0; n < count; ++n) step(n, ahead);
    } else {
        for (int64_t n = 0; n < count; ++n) step(n, 0);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 32
        for (int v = 0; v < V; ++v) {
            float* to = out[r] + v * kLanes;
            if (kStore == Store::kStream) {
                stream(to, sums[r][v]);
            } else if (kStore == Store::kPart && v == V - 1) {
                strip.last.store(to, sums[r][v]);
            } else {
                store(to, sums[r][v]);
            }
        }
    }
}

// R whole rows with equal columns, from `row` on.
template <int R, int V, Store kStore>
[[gnu::always_inline]] inline void sum_rows(const Rows& rows, int64_t row, const Strip& strip) {
    const int64_t begin = rows.indptr[row], count = rows.indptr[row + 1] - begin;
    std::array<const float*, R> values;
    std::array<float*, R> out;
    for (int r = 0; r < R; ++r) {
        values[r] = rows.values + rows.source[row + r];
        out[r] = strip.result + rows.place[row + r] * strip.lead;
    }
    const bool inside = begin + count + strip.ahead <= rows.nnz;
    sum<R, V, kStore>(rows.indices + begin, count, inside ? strip.ahead : 0, values, strip, out);
}

// Rows first .. last one by one.
template <int V, Store kStore>
void one_by_one(const Rows& rows, int64_t first, int64_t last, const Strip& strip) {
    for (int64_t row = first; row < last; ++row) sum_rows<1, V, kStore>(rows, row, strip);
}

// Rows first .. last, those with equal columns together.
template <int V, Store kStore>
void side_by_side(const Rows& rows, int64_t first, int64_t last, const Strip& strip) {
    constexpr int most = together(V);
    for (int64_t row = first; row < last;) {
        const int64_t equal = last - row < rows.equal[row] ? last - row : rows.equal[row];
        const int count = equal < most ? static_cast<int>(equal) : most;
        switch (count) {
            case 4: sum_rows<most < 4 ? 1 : 4, V, kStore>(rows, row, strip); break;
            case 3: sum_rows<most < 3 ? 1 : 3, V, kStore>(rows, row, strip); break;
            case 2: sum_rows<most < 2 ? 1 : 2, V, kStore>(rows, row, strip); break;
            default: sum_rows<1, V, kStore>(rows, row, strip);
        }
        row += count;
    }
}

// Nonzeros begin .. end of one row, to any place.
template <int V, Store kStore>
void part(const Rows& rows, int64_t row, int64_t begin, int64_t end, const Strip& strip, float* out) {
    const float* values = rows.values + rows.source[row] + (begin - rows.indptr[row]);
    const bool inside = end + strip.ahead <= rows.nnz;
    sum<1, V, kStore>(rows.indices + begin, end - begin, inside ? strip.ahead : 0, {values}, strip, {out});
}

}  // namespace sparloom::spmm
