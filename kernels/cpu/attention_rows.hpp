// Attention of rows with all heads at once, for heads of equal widths that fill whole vectors: the query of a row stays
// in registers, and each key and each value is read once as a whole.
//
//   for rows of a block
//     scores     of all heads of a nonzero, next to each other; minus the peak of their head
//   exp          of all scores of the block
//   for rows of a block
//     result     sum over n of scores[n] * values[columns[n]], over the total of each head
//
// V vectors hold a row of all heads; H heads. Both are powers of two, so that a vector of scores has the same head in
// every H-th lane. T is the type of numbers in memory.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "exponential.hpp"
#include "sddmm.hpp"
#include "spmm.hpp"

namespace sparloom::attention {

constexpr int64_t kRowScores = 4096;  // of the rows of a block, all heads

// What `heads_of_rows` reads and writes; rows of all heads follow each other without gaps.
template <typename T>
struct RowHeads {
    const Rows& rows;
    const T *queries, *keys, *values;
    T* result;
    Sum<T> scale;
    int64_t ahead;  // bytes of keys, then of values, that are prefetched
};

namespace row_heads {

// Every lane gets the result of its head: lanes whose numbers differ by a multiple of H are combined.
template <int H, typename W, typename Combine, int... Lane>
[[gnu::always_inline]] inline W fold(W x, const Combine& combine, std::integer_sequence<int, Lane...>) {
    constexpr int kCount = sizeof...(Lane);
    if constexpr (H < kCount) x = combine(x, W(__builtin_shufflevector(x, x, (Lane ^ H)...)));
    if constexpr (2 * H < kCount) x = combine(x, W(__builtin_shufflevector(x, x, (Lane ^ (2 * H))...)));
    if constexpr (4 * H < kCount) x = combine(x, W(__builtin_shufflevector(x, x, (Lane ^ (4 * H))...)));
    if constexpr (8 * H < kCount) x = combine(x, W(__builtin_shufflevector(x, x, (Lane ^ (8 * H))...)));
    return x;
}

// The numbers of the heads in vector v of a row, each as often as its head has lanes there; reads a whole vector.
template <typename F, int V, int H, int... Lane>
[[gnu::always_inline]] inline Vec<F> spread(const F* heads, int v, std::integer_sequence<int, Lane...>) {
    if constexpr (H <= V) {
        return broadcast(heads[v / (V / H)]);
    } else {
        constexpr int kEach = kLanes<F> / (H / V);  // lanes of a head
        const Vec<F> x = load(heads + v * (H / V));
        return __builtin_shufflevector(x, x, (Lane / kEach)...);
    }
}

// scores[u * H + h] of U nonzeros.
template <typename T, int V, int H, int U>
[[gnu::always_inline]] inline void score(const int32_t* columns, const std::array<Vec<T>, V>& query, const T* keys,
                                         Sum<T> scale, Sum<T>* scores) {
    using F = Sum<T>;
    using Group = typename Numbers<F, U * H>::unaligned;
    constexpr int kParts = H < V ? H : V;  // vectors of partial sums of a nonzero
    std::array<Vec<F>, U * kParts> parts;
#pragma GCC unroll 16
    for (int u = 0; u < U; ++u) {
        const T* key = keys + int64_t{columns[u]} * (V * kLanes<T>);
#pragma GCC unroll 16
        for (int p = 0; p < kParts; ++p) {
            constexpr int kEach = V / kParts;
            Vec<F> sum = query[p * kEach] * load(key + p * kEach * kLanes<T>);
#pragma GCC unroll 16
            for (int v = p * kEach + 1; v < (p + 1) * kEach; ++v) {
                sum = multiply_add<F>(query[v], load(key + v * kLanes<T>), sum);
            }
            parts[u * kParts + p] = sum;
        }
    }
    const auto sums = lane_sums::reduce<F, kLanes<F> / (H / kParts), U * kParts>(parts);
    *reinterpret_cast<Group*>(scores) = sums * scale;
}

template <int V, typename T>
[[gnu::always_inline]] inline void prefetch(const T* from) {
#pragma GCC unroll 16
    for (int c = 0; c < V * kLanes<T>; c += kLine<T>) __builtin_prefetch(from + c);
}

// Scores of a row, minus the peak of their head.
template <typename T, int V, int H>
[[gnu::always_inline]] inline void scores_of(const RowHeads<T>& a, const int32_t* columns, int64_t count, int64_t ahead,
                                             const T* query, Sum<T>* scores) {
    using F = Sum<T>;
    constexpr auto kEvery = std::make_integer_sequence<int, kLanes<F>>{};
    constexpr int kMost = sddmm::group<T>(kLanes<F>, V), U = kMost > H ? kMost / H : 1;
    std::array<Vec<T>, V> held;
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) held[v] = load(query + v * kLanes<T>);
    if (ahead != 0) {
        for (int64_t n = 0; n < count; ++n) prefetch<V>(a.keys + int64_t{columns[n + ahead]} * (V * kLanes<T>));
    }
    int64_t n = 0;
    for (; n + U <= count; n += U) score<T, V, H, U>(columns + n, held, a.keys, a.scale, scores + n * H);
    if constexpr (U > 4) {
        for (; n + U / 4 <= count; n += U / 4) {
            score<T, V, H, U / 4>(columns + n, held, a.keys, a.scale, scores + n * H);
        }
    }
    for (; n < count; ++n) score<T, V, H, 1>(columns + n, held, a.keys, a.scale, scores + n * H);

    const int64_t all = count * H, whole = all / kLanes<F> * kLanes<F>;
    const auto larger = [](Vec<F> x, Vec<F> y) { return Vec<F>(x > y ? x : y); };
    Vec<F> peak = broadcast(-std::numeric_limits<F>::infinity());
    const Vec<F> nothing = peak;
    for (int64_t s = 0; s < whole; s += kLanes<F>) peak = larger(load(scores + s), peak);
    const Lanes<F> rest(all - whole);
    Vec<F> place{};
    for (int lane = 0; lane < kLanes<F>; ++lane) place[lane] = static_cast<F>(lane);
    const auto inside = place < broadcast(static_cast<F>(all - whole));
    const Vec<F> last = rest.load(scores + whole);
    peak = larger(inside ? last : nothing, peak);
    peak = fold<H>(peak, larger, kEvery);
    const Vec<F> base = peak == nothing ? Vec<F>{} : peak;
    for (int64_t s = 0; s < whole; s += kLanes<F>) store(scores + s, load(scores + s) - base);
    rest.store(scores + whole, last - base);
}

// The result of a row by the exp of its scores.
template <typename T, int V, int H>
[[gnu::always_inline]] inline void mix(const RowHeads<T>& a, const int32_t* columns, int64_t count, int64_t ahead,
                                       const Sum<T>* weights, T* out) {
    using F = Sum<T>;
    constexpr auto kEvery = std::make_integer_sequence<int, kLanes<F>>{};
    Vec<F> sums[V] = {};
    if (ahead != 0) {
        for (int64_t n = 0; n < count; ++n) prefetch<V>(a.values + int64_t{columns[n + ahead]} * (V * kLanes<T>));
    }
    for (int64_t n = 0; n < count; ++n) {
        const T* value = a.values + int64_t{columns[n]} * (V * kLanes<T>);
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            const Vec<F> weight = spread<F, V, H>(weights + n * H, v, kEvery);
            sums[v] = multiply_add<F>(weight, load(value + v * kLanes<T>), sums[v]);
        }
    }
    const int64_t all = count * H, whole = all / kLanes<F> * kLanes<F>;
    Vec<F> total = Lanes<F>(all - whole).load(weights + whole);
    for (int64_t s = 0; s < whole; s += kLanes<F>) total += load(weights + s);
    total = fold<H>(total, [](Vec<F> x, Vec<F> y) { return x + y; }, kEvery);
    F shares[2 * kLanes<F>];
    store(shares, count == 0 ? Vec<F>{} : 1 / total);
    store(shares + kLanes<F>, Vec<F>{});
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) store(out + v * kLanes<T>, sums[v] * spread<F, V, H>(shares, v, kEvery));
}

}  // namespace row_heads

// Attends to the nonzeros of the rows first .. last, which have no more than kRowScores scores.
template <typename T, int V, int H>
void heads_of_rows(const RowHeads<T>& a, int64_t first, int64_t last) {
    using F = Sum<T>;
    constexpr int64_t kRow = V * kLanes<T>;
    const Rows& rows = a.rows;
    const int64_t begin = rows.indptr[first], wanted = rows_ahead(a.ahead, sizeof(T) * kRow);
    F scores[kRowScores + kLanes<F>];  // whole vectors are read
    const auto each = [&](auto&& work) __attribute__((always_inline)) {
        for (int64_t row = first; row < last; ++row) {
            const int64_t at = rows.indptr[row], next = rows.indptr[row + 1];
            work(rows.indices + at, next - at, next + wanted <= rows.nnz ? wanted : 0, rows.place[row] * kRow,
                 scores + (at - begin) * H);
        }
    };
    each([&](const int32_t* columns, int64_t count, int64_t ahead, int64_t place, F* own)
             __attribute__((always_inline)) {
        row_heads::scores_of<T, V, H>(a, columns, count, ahead, a.queries + place, own);
    });
    const int64_t all = (rows.indptr[last] - begin) * H;
#pragma omp simd
    for (int64_t s = 0; s < all; ++s) scores[s] = exponential(scores[s]);
    each([&](const int32_t* columns, int64_t count, int64_t ahead, int64_t place, const F* own)
             __attribute__((always_inline)) {
        row_heads::mix<T, V, H>(a, columns, count, ahead, own, a.result + place);
    });
}

template <typename T>
using HeadsOfRows = void (*)(const RowHeads<T>&, int64_t, int64_t);

// The kernel for so many heads of `width` columns, keys and values alike; null if there is none.
template <typename T, int V = 2, int H = 1>
HeadsOfRows<T> heads_of_rows_kernel(int64_t heads, int64_t width) {
    if constexpr (V > sddmm::kVectors) {
        return nullptr;
    } else if constexpr (H > 8 || H > kLanes<T>) {
        return heads_of_rows_kernel<T, 2 * V, 1>(heads, width);
    } else {
        if constexpr (spmm::has_kernel<T>(V)) {
            if (heads == H && heads * width == V * kLanes<T>) return heads_of_rows<T, V, H>;
        }
        return heads_of_rows_kernel<T, V, 2 * H>(heads, width);
    }
}

}  // namespace sparloom::attention
