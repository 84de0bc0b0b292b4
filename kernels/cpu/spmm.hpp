// Row kernels of SpMM: a strip of columns of the result stays in registers while the nonzeros of a row go by.
//
// T is the type of numbers in memory, those of half.hpp included. Up to four rows that have the same columns are
// summed together: each row of the dense operand is loaded once for all.
//
// What the kernels ask of `rows`, in the order in which they are summed, which may be another than that of the matrix:
//   Element              of the values
//   columns(k)           of the nonzeros of row k
//   values(k)
//   count(k)             of its nonzeros
//   place(k)             row of the result
//   addend(k)            row that is added to it, or null
//   equal(k, end)        rows from k on and before `end` that have the same columns, 1 .. kTogether
//   follow(k, ahead)     whether so many columns follow those of row k in memory
//   factor(k)            of its sums; of halves only

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "half.hpp"
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

template <typename T>
struct Strip {
    const T* dense;  // from its first column on
    T* result;       // likewise
    int64_t lead;    // elements from one row to the next, of both
    int64_t column;  // its first one
    Lanes<T> last;   // columns in the last vector
    int64_t ahead;   // nonzeros between the one being summed and the one whose row is prefetched; 0: none is
};

enum class Store { kWhole, kPart, kStream };  // how the last vector is written; kStream: past the caches, aligned
constexpr int kStores = 3;

// out[r] = addends[r] + sum over n of values[r][n] * dense[columns[n]], for R rows; a null addend is none. `ahead` is 0
// or at most what follows `columns`. Values and results may be of the type that sums have.
template <typename T, int R, int V, Store kStore, typename Value = T, typename Out = T>
[[gnu::always_inline]] inline void sum(const int32_t* columns, int64_t count, int64_t ahead,
                                       const std::array<const Value*, R>& values, const Strip<T>& strip,
                                       const std::array<Out*, R>& out,
                                       const std::array<const Out*, R>& addends = {},
                                       const std::array<Sum<T>, R>* factors = nullptr) {
    const auto partial = [](int v) { return kStore == Store::kPart && v == V - 1; };
    constexpr bool kPairs = kReadsPairs<T> && V % 2 == 0;
    Vec<T> sums[R][V] = {};
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        if (addends[r] == nullptr) continue;
#pragma GCC unroll 32
        for (int v = 0; v < V; ++v) {
            const Out* from = addends[r] + v * kLanes<T>;
            sums[r][v] = partial(v) ? strip.last.load(from) : load(from);
        }
        if constexpr (kPairs) {
            for (int v = 0; v < V; v += 2) by_parity(sums[r][v], sums[r][v + 1]);
        }
    }
    const auto step = [&](int64_t n, int64_t distance) __attribute__((always_inline)) {
        const T* row = strip.dense + columns[n] * strip.lead;
        if (distance != 0) {
            const T* next = strip.dense + columns[n + distance] * strip.lead;
#pragma GCC unroll 32
            for (int c = 0; c < V * kLanes<T>; c += kLine<T>) __builtin_prefetch(next + c);
            // a row that does not begin at a cache line has one more; that counts among as few as halves have
            if constexpr (!std::is_same_v<T, Sum<T>>) __builtin_prefetch(next + V * kLanes<T> - 1);
        }
        if constexpr (kPairs) {
#pragma GCC unroll 32
            for (int v = 0; v < V; v += 2) {
                const T* from = row + v * kLanes<T>;
                const Pair right = partial(v + 1) ? strip.last.load_pair(from) : load_pair(from);
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r) {
                    const Vec<T> value = broadcast(values[r][n]);
                    sums[r][v] = multiply_add<Sum<T>>(value, right.even, sums[r][v]);
                    sums[r][v + 1] = multiply_add<Sum<T>>(value, right.odd, sums[r][v + 1]);
                }
            }
            return;
        }
#pragma GCC unroll 32
        for (int v = 0; v < V; ++v) {
            const Vec<T> right = partial(v) ? strip.last.load(row + v * kLanes<T>) : load(row + v * kLanes<T>);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                sums[r][v] = multiply_add<Sum<T>>(broadcast(values[r][n]), right, sums[r][v]);
            }
        }
    };
    if (ahead != 0) {
        for (int64_t n = 0; n < count; ++n) step(n, ahead);
    } else {
        for (int64_t n = 0; n < count; ++n) step(n, 0);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        if constexpr (!std::is_same_v<T, Sum<T>>) {
#pragma GCC unroll 32
            for (int v = 0; factors != nullptr && v < V; ++v) sums[r][v] *= broadcast((*factors)[r]);
        }
        if constexpr (kPairs && std::is_same_v<T, Out>) {
#pragma GCC unroll 32
            for (int v = 0; v < V; v += 2) {
                T* to = out[r] + v * kLanes<T>;
                const Pair pair{sums[r][v], sums[r][v + 1]};
                if (kStore == Store::kStream) {
                    stream_pair(to, pair);
                } else if (partial(v + 1)) {
                    strip.last.store_pair(to, pair);
                } else {
                    store_pair(to, pair);
                }
            }
            continue;
        }
        if constexpr (kPairs) {
#pragma GCC unroll 32
            for (int v = 0; v < V; v += 2) in_order(sums[r][v], sums[r][v + 1]);
        }
#pragma GCC unroll 32
        for (int v = 0; v < V; ++v) {
            Out* to = out[r] + v * kLanes<T>;
            if (kStore == Store::kStream) {
                stream(to, sums[r][v]);
            } else if (partial(v)) {
                strip.last.store(to, sums[r][v]);
            } else {
                store(to, sums[r][v]);
            }
        }
    }
}

// R whole rows with equal columns, from row k on.
template <int R, int V, Store kStore, typename Rows>
[[gnu::always_inline]] inline void sum_rows(const Rows& rows, int64_t k, const Strip<typename Rows::Element>& strip) {
    using T = typename Rows::Element;
    std::array<const T*, R> values, addends;
    std::array<T*, R> out;
    for (int r = 0; r < R; ++r) {
        values[r] = rows.values(k + r);
        out[r] = strip.result + rows.place(k + r) * strip.lead;
        const T* const addend = rows.addend(k + r);
        addends[r] = addend == nullptr ? nullptr : addend + strip.column;
    }
    const int64_t ahead = rows.follow(k, strip.ahead) ? strip.ahead : 0;
    if constexpr (std::is_same_v<T, Sum<T>>) {
        sum<T, R, V, kStore>(rows.columns(k), rows.count(k), ahead, values, strip, out, addends);
    } else {
        std::array<Sum<T>, R> factors;
        for (int r = 0; r < R; ++r) factors[r] = rows.factor(k + r);
        sum<T, R, V, kStore>(rows.columns(k), rows.count(k), ahead, values, strip, out, addends, &factors);
    }
}

// The kernels take copies of what they read: a store of vectors may alias whatever a reference points to.

// Rows first .. last one by one.
template <int V, Store kStore, typename Rows>
void one_by_one(Rows rows, int64_t first, int64_t last, Strip<typename Rows::Element> strip) {
    for (int64_t k = first; k < last; ++k) sum_rows<1, V, kStore>(rows, k, strip);
}

// Out of line, so that rows that are summed alone keep the registers.
template <int R, int V, Store kStore, typename Rows>
[[gnu::noinline]] void sum_together(Rows rows, int64_t k, Strip<typename Rows::Element> strip) {
    sum_rows<R, V, kStore>(rows, k, strip);
}

// Rows first .. last, those with equal columns together.
template <int V, Store kStore, typename Rows>
void side_by_side(Rows rows, int64_t first, int64_t last, Strip<typename Rows::Element> strip) {
    constexpr int most = together(V);
    for (int64_t k = first; k < last;) {
        const int64_t equal = rows.equal(k, last);
        const int count = equal < most ? static_cast<int>(equal) : most;
        switch (count) {
            case 4: sum_together<most < 4 ? 1 : 4, V, kStore>(rows, k, strip); break;
            case 3: sum_together<most < 3 ? 1 : 3, V, kStore>(rows, k, strip); break;
            case 2: sum_together<most < 2 ? 1 : 2, V, kStore>(rows, k, strip); break;
            default: sum_rows<1, V, kStore>(rows, k, strip);
        }
        k += count;
    }
}

// The columns that the dense operand and the result have, and how they are cut into strips.
struct Columns {
    int64_t width;
    int64_t strip;   // columns at once
    int64_t ahead;   // bytes of the dense operand that are prefetched
    bool streams;    // whole vectors go past the caches
};

// Whether there are kernels for strips of any number of vectors: for float only, as those of other types would take
// long to compile. There, they are powers of two.
template <typename T>
constexpr bool kAnyVectors = std::is_same_v<T, float>;

template <typename T>
constexpr bool has_kernel(int vectors) {
    return kAnyVectors<T> || (vectors & (vectors - 1)) == 0;
}

// The columns of a strip, at most `wanted`, for which there is a kernel.
template <typename T>
inline int64_t columns_with_kernel(int64_t wanted) {
    if constexpr (kAnyVectors<T>) return wanted;
    const int64_t vectors = (wanted + kLanes<T> - 1) / kLanes<T>;
    const int64_t least = int64_t{1} << (63 - __builtin_clzll(vectors));
    return std::min(wanted, least * kLanes<T>);
}

// Calls work(store, vectors, strip, column) for every strip; it begins at `column` and has so many vectors, any number
// or as `columns_with_kernel` says.
template <bool kAny = true, typename T, typename Work>
[[gnu::always_inline]] inline void each_strip(const Columns& all, const T* dense, T* result, const Work& work) {
    for (int64_t column = 0, columns; column < all.width; column += columns) {
        columns = std::min(all.strip, all.width - column);
        if constexpr (!kAny) columns = columns_with_kernel<T>(columns);
        const int64_t vectors = (columns + kLanes<T> - 1) / kLanes<T>;
        const Strip<T> strip{dense + column, result + column, all.width, column,
                             Lanes<T>(columns - (vectors - 1) * kLanes<T>), rows_ahead(all.ahead, sizeof(T) * columns)};
        work(columns % kLanes<T> != 0 ? Store::kPart : all.streams ? Store::kStream : Store::kWhole, vectors, strip,
             column);
    }
}

// Whether a result with rows of `width` elements can be streamed: all rows begin at a multiple of a vector.
template <typename T>
bool can_stream(const T* result, int64_t width) {
    return width % kLanes<T> == 0 && reinterpret_cast<uintptr_t>(result) % (kLanes<T> * sizeof(T)) == 0;
}

}  // namespace sparloom::spmm
