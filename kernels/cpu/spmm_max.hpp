// Row kernels of the maximum of products: a strip of columns of the result stays in registers while the nonzeros of a
// row go by, and optionally the argmax, the index of the nonzero that each element comes from.
//
// T is the type of numbers in memory; products of halves are compared as floats. NaN counts as larger than all
// numbers, so an element is NaN if one of its products is. Of equal products the first one is taken: neither results
// nor places depend on how a row is cut.

#pragma once

#include <cstdint>

#include "spmm.hpp"

namespace sparloom::spmm_max {

using spmm::Strip;

// Of the widest strip: the argmax takes as many registers as the result.
template <bool kPlaces>
constexpr int kVectors = kRegisters / (kPlaces ? 4 : 2);

// Integers that are as wide as the products: places, and masks of comparisons.
template <typename T>
using Ints = decltype(Vec<T>{} == Vec<T>{});

// Some nonzeros of one row, at least one.
template <typename T>
struct Nonzeros {
    const int32_t* columns;
    const T* values;
    int64_t count;
    int64_t place;  // of the first one in the matrix
    int64_t ahead;  // nonzeros between the one being multiplied and the one whose row is prefetched; 0: none is
};

// Destination of one row of the result and of its argmax; null if it is not requested.
template <typename T>
struct Out {
    T* result;
    int32_t* places;

    Out operator+(int64_t elements) const {
        return {result + elements, places == nullptr ? nullptr : places + elements};
    }
};

// Whether a product replaces the maximum so far.
template <typename T, typename Mask = decltype(T{} == T{})>
inline Mask exceeds(T product, T peak) {
    return ~(product <= peak) & (peak == peak);
}
inline bool exceeds(float product, float peak) { return !(product <= peak) && peak == peak; }
inline bool exceeds(double product, double peak) { return !(product <= peak) && peak == peak; }

template <int V, bool kPart, typename T, typename To>
[[gnu::always_inline]] inline void put(const Vec<T>* values, const Lanes<T>& last, To* to) {
#pragma GCC unroll 32
    for (int v = 0; v < V; ++v) {
        if (kPart && v == V - 1) {
            last.store(to + v * kLanes<T>, values[v]);
        } else {
            store(to + v * kLanes<T>, values[v]);
        }
    }
}

template <int V, bool kPart, typename T>
[[gnu::always_inline]] inline void put_places(const Ints<T>* places, const Lanes<T>& last, int32_t* to) {
    if constexpr (sizeof(Sum<T>) == sizeof(int32_t)) {
        Vec<float> bits[V];
#pragma GCC unroll 32
        for (int v = 0; v < V; ++v) bits[v] = reinterpret_cast<Vec<float>>(places[v]);
        put<V, kPart, T>(bits, last, reinterpret_cast<float*>(to));
    } else {
        for (int64_t v = 0; v < V; ++v) {
            const int64_t count = kPart && v == V - 1 ? last.count() : kLanes<T>;
            int32_t* const part = to + v * kLanes<T>;
            for (int64_t lane = 0; lane < count; ++lane) part[lane] = static_cast<int32_t>(places[v][lane]);
        }
    }
}

template <int V, bool kPart, bool kPlaces, typename T, typename To>
[[gnu::always_inline]] inline void put_both(const Vec<T>* peaks, const Ints<T>* places, const Lanes<T>& last,
                                            Out<To> out) {
    put<V, kPart, T>(peaks, last, out.result);
    if constexpr (kPlaces) put_places<V, kPart, T>(places, last, out.places);
}

// out = the largest of values[n] * dense[columns[n]].
template <int V, bool kPart, bool kPlaces, typename T, typename To>
[[gnu::always_inline]] inline void largest(const Nonzeros<T>& of, const Strip<T>& strip, Out<To> out) {
    Vec<T> peaks[V];
    Ints<T> places[V];
    const auto product = [&](int64_t n, int v) __attribute__((always_inline)) {
        const T* from = strip.dense + of.columns[n] * strip.lead + v * kLanes<T>;
        return broadcast(of.values[n]) * (kPart && v == V - 1 ? strip.last.load(from) : load(from));
    };
    const auto prefetch = [&](int64_t n) __attribute__((always_inline)) {
        const T* next = strip.dense + of.columns[n] * strip.lead;
#pragma GCC unroll 32
        for (int c = 0; c < V * kLanes<T>; c += kLine<T>) __builtin_prefetch(next + c);
    };
    const auto step = [&](int64_t n) __attribute__((always_inline)) {
        const Ints<T> now = Ints<T>{} + static_cast<int32_t>(of.place + n);
#pragma GCC unroll 32
        for (int v = 0; v < V; ++v) {
            const Vec<T> next = product(n, v);
            const Ints<T> taken = exceeds(next, peaks[v]);
            peaks[v] = taken ? next : peaks[v];
            if constexpr (kPlaces) places[v] = taken ? now : places[v];
        }
    };
    if (of.ahead != 0) prefetch(of.ahead);
#pragma GCC unroll 32
    for (int v = 0; v < V; ++v) {
        peaks[v] = product(0, v);
        places[v] = Ints<T>{} + static_cast<int32_t>(of.place);
    }
    if (of.ahead != 0) {
        for (int64_t n = 1; n < of.count; ++n) {
            prefetch(n + of.ahead);
            step(n);
        }
    } else {
        for (int64_t n = 1; n < of.count; ++n) step(n);
    }
    put_both<V, kPart, kPlaces, T>(peaks, places, strip.last, out);
}

// Nonzeros begin .. end of one row, at least one, to any destination.
template <int V, bool kPart, bool kPlaces, typename T, typename To>
[[gnu::always_inline]] inline void part(const Rows& rows, int64_t row, int64_t begin, int64_t end,
                                        const Strip<T>& strip, Out<To> out) {
    const int64_t within = begin - rows.indptr[row], ahead = end + strip.ahead <= rows.nnz ? strip.ahead : 0;
    largest<V, kPart, kPlaces, T>({rows.indices + begin, values_of<T>(rows, row) + within, end - begin,
                                   rows.source[row] + within, ahead}, strip, out);
}

// Rows first .. last; `out` and the strip begin at the same column. The arguments are copies: a store of vectors may
// alias whatever a reference points to.
template <int V, bool kPart, bool kPlaces, typename T>
void whole_rows(Rows rows, int64_t first, int64_t last, Strip<T> strip, Out<T> out) {
    for (int64_t row = first; row < last; ++row) {
        const int64_t begin = rows.indptr[row], end = rows.indptr[row + 1];
        const Out<T> to = out + rows.place[row] * strip.lead;
        if (begin < end) {
            part<V, kPart, kPlaces>(rows, row, begin, end, strip, to);
        } else {
            const Vec<T> zeros[V] = {};
            Ints<T> none[V];
#pragma GCC unroll 32
            for (int v = 0; v < V; ++v) none[v] = ~Ints<T>{};
            put_both<V, kPart, kPlaces, T>(zeros, none, strip.last, to);
        }
    }
}

// Merges the maximum of later nonzeros of the same row.
template <typename T>
void merge(Out<T> out, Out<T> from, int64_t width) {
    for (int64_t c = 0; c < width; ++c) {
        if (!exceeds(from.result[c], out.result[c])) continue;
        out.result[c] = from.result[c];
        if (out.places != nullptr) out.places[c] = from.places[c];
    }
}

}  // namespace sparloom::spmm_max
