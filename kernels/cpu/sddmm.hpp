// Row kernels of SDDMM: a strip of the row's left factor stays in registers while the nonzeros of the row go by.
//
// The dot products of a group of nonzeros are kept as vectors, whose lanes are then added up together. At the end of a
// row smaller groups are taken; one that is not full repeats its last nonzero.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "lane_sums.hpp"
#include "rows.hpp"
#include "vector.hpp"

namespace sparloom::sddmm {

constexpr int kVectors = kRegisters / 2;  // of the widest strip
constexpr int kGroup = kLanes<float>;            // the largest
constexpr int kRowsAhead = 2;             // whose left factor is prefetched

// The largest group, up to `wanted`, for which strip and partial sums fit into the registers.
constexpr int group(int wanted, int vectors) {
    int size = wanted < kGroup ? wanted : kGroup;
    while (size > 1 && size + vectors + 2 > kRegisters) size /= 2;
    return size;
}

struct Strip {
    const float *left, *right;  // from its first column on
    int64_t lead;               // floats from one row to the next, of both
    Lanes<float> last;                 // columns in the last vector
    int64_t ahead;              // nonzeros between the one being multiplied and the one being prefetched; 0: none is
    bool first_strip, last_strip;
};

// Nonzeros of one row from some place on, and what belongs to them.
struct Nonzeros {
    const int32_t* columns;
    const float* values;
    float* result;
};

template <int V, bool kPart>
[[gnu::always_inline]] inline Vec<float> read(const float* from, int v, const Lanes<float>& last) {
    return kPart && v == V - 1 ? last.load(from + v * kLanes<float>) : load(from + v * kLanes<float>);
}

inline const float* left_of(const Rows& rows, int64_t row, const Strip& strip) {
    return strip.left + rows.place[row] * strip.lead;
}

template <int V>
[[gnu::always_inline]] inline void prefetch(const float* from) {
#pragma GCC unroll 32
    for (int c = 0; c < V * kLanes<float>; c += kLine<float>) __builtin_prefetch(from + c);
}

// result[n] = (what earlier strips gave + left . right[columns[n]]) * values[n] for n < count <= U.
template <int V, bool kPart, int U>
[[gnu::always_inline]] inline void dots(const Nonzeros& at, int64_t count, const std::array<Vec<float>, V>& left,
                                        const Strip& strip) {
    using Group = typename Floats<U>::unaligned;
    std::array<Vec<float>, U> parts;
#pragma GCC unroll 16
    for (int u = 0; u < U; ++u) {
        const int64_t n = u < count ? u : count - 1;
        const float* right = strip.right + at.columns[n] * strip.lead;
        Vec<float> sum{};
#pragma GCC unroll 32
        for (int v = 0; v < V; ++v) sum += left[v] * read<V, kPart>(right, v, strip.last);
        parts[u] = sum;
    }
    auto sums = sum_lanes<U>(parts);
    if (count == U) {
        Group& result = *reinterpret_cast<Group*>(at.result);
        if (!strip.first_strip) sums += result;
        if (strip.last_strip) sums *= *reinterpret_cast<const Group*>(at.values);
        result = sums;
        return;
    }
    for (int64_t n = 0; n < count; ++n) {
        const float sum = strip.first_strip ? sums[n] : at.result[n] + sums[n];
        at.result[n] = strip.last_strip ? sum * at.values[n] : sum;
    }
}

// The last nonzeros of a row, at most U.
template <int V, bool kPart, int U>
[[gnu::always_inline]] inline void rest(const Nonzeros& at, int64_t count, const std::array<Vec<float>, V>& left,
                                        const Strip& strip) {
    if constexpr (U == 1) {
        dots<V, kPart, 1>(at, 1, left, strip);
    } else if (count > U / 2) {
        dots<V, kPart, U>(at, count, left, strip);
    } else {
        rest<V, kPart, U / 2>(at, count, left, strip);
    }
}

// Nonzeros begin .. end of the rows first .. last; the first and the last nonzero may lie inside a row.
template <int V, bool kPart, int kWanted>
void rows(const Rows& rows, int64_t first, int64_t last, int64_t begin, int64_t end, const Strip& strip,
          float* result) {
    constexpr int U = group(kWanted, V);
    for (int64_t row = first; row < last; ++row) {
        const int64_t from = std::max(rows.indptr[row], begin), to = std::min(rows.indptr[row + 1], end);
        if (strip.ahead != 0 && row + kRowsAhead < last) prefetch<V>(left_of(rows, row + kRowsAhead, strip));
        std::array<Vec<float>, V> left;
        const float* factor = left_of(rows, row, strip);
#pragma GCC unroll 32
        for (int v = 0; v < V; ++v) left[v] = read<V, kPart>(factor, v, strip.last);
        const int64_t stored = rows.source[row] - rows.indptr[row];
        const auto at = [&](int64_t n) {
            return Nonzeros{rows.indices + n, rows.values + stored + n, result + stored + n};
        };
        const int64_t ahead = to + strip.ahead <= rows.nnz ? strip.ahead : 0;
        for (int64_t n = from; n < to; n += U) {
            const int64_t count = std::min<int64_t>(U, to - n);
            if (ahead != 0) {
                for (int64_t m = n + ahead; m < n + ahead + count; ++m) {
                    prefetch<V>(strip.right + rows.indices[m] * strip.lead);
                }
            }
            if (count == U) {
                dots<V, kPart, U>(at(n), U, left, strip);
            } else {
                rest<V, kPart, U>(at(n), count, left, strip);
            }
        }
    }
}

// Factors that are too wide for the registers: the left one is read again for every group, from the first cache, and
// rows of the right one are read from end to end.
struct Long {
    const float *left, *right;
    int64_t width;
    int64_t ahead;  // as in Strip
};

// result[n] = (left . right[columns[n]]) * values[n] for n < count <= U.
template <int U>
[[gnu::always_inline]] inline void long_dots(const Nonzeros& at, int64_t count, const float* left, const Long& factors) {
    constexpr int kChains = U < 8 ? 8 / U : 1;  // sums of a nonzero, so that additions do not wait for each other
    std::array<const float*, U> right;
    for (int u = 0; u < U; ++u) right[u] = factors.right + at.columns[u < count ? u : count - 1] * factors.width;
    Vec<float> parts[U][kChains] = {};
    int64_t k = 0;
    for (; k + kChains * kLanes<float> <= factors.width; k += kChains * kLanes<float>) {
#pragma GCC unroll 8
        for (int c = 0; c < kChains; ++c) {
            const Vec<float> strip = load(left + k + c * kLanes<float>);
#pragma GCC unroll 16
            for (int u = 0; u < U; ++u) {
                parts[u][c] = multiply_add<float>(strip, load(right[u] + k + c * kLanes<float>), parts[u][c]);
            }
        }
    }
    for (; k < factors.width; k += kLanes<float>) {
        const Lanes<float> last(std::min<int64_t>(kLanes<float>, factors.width - k));
        const Vec<float> strip = last.load(left + k);
#pragma GCC unroll 16
        for (int u = 0; u < U; ++u) parts[u][0] = multiply_add<float>(strip, last.load(right[u] + k), parts[u][0]);
    }
    std::array<Vec<float>, U> whole;
#pragma GCC unroll 16
    for (int u = 0; u < U; ++u) {
        whole[u] = parts[u][0];
#pragma GCC unroll 8
        for (int c = 1; c < kChains; ++c) whole[u] += parts[u][c];
    }
    const auto sums = sum_lanes<U>(whole);
    for (int64_t n = 0; n < count; ++n) at.result[n] = sums[n] * at.values[n];
}

// The last nonzeros of a row, at most U.
template <int U>
[[gnu::always_inline]] inline void long_rest(const Nonzeros& at, int64_t count, const float* left,
                                             const Long& factors) {
    if constexpr (U == 1) {
        long_dots<1>(at, 1, left, factors);
    } else if (count > U / 2) {
        long_dots<U>(at, count, left, factors);
    } else {
        long_rest<U / 2>(at, count, left, factors);
    }
}

// Nonzeros begin .. end of the rows first .. last, as `rows`.
template <int U>
void long_rows(const Rows& rows, int64_t first, int64_t last, int64_t begin, int64_t end, const Long& factors,
               float* result) {
    for (int64_t row = first; row < last; ++row) {
        const int64_t from = std::max(rows.indptr[row], begin), to = std::min(rows.indptr[row + 1], end);
        const float* left = factors.left + rows.place[row] * factors.width;
        const int64_t stored = rows.source[row] - rows.indptr[row];
        const int64_t ahead = to + factors.ahead <= rows.nnz ? factors.ahead : 0;
        for (int64_t n = from; n < to; n += U) {
            const int64_t count = std::min<int64_t>(U, to - n);
            if (ahead != 0) {
                for (int64_t m = n + ahead; m < n + ahead + count; ++m) {
                    const float* next = factors.right + rows.indices[m] * factors.width;
                    for (int64_t k = 0; k < factors.width; k += kLine<float>) __builtin_prefetch(next + k);
                }
            }
            const Nonzeros at{rows.indices + n, rows.values + stored + n, result + stored + n};
            if (count == U) {
                long_dots<U>(at, U, left, factors);
            } else {
                long_rest<U>(at, count, left, factors);
            }
        }
    }
}

}  // namespace sparloom::sddmm
