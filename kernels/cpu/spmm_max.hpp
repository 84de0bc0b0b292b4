// Row kernels of the maximum of products: a strip of columns of the result stays in registers while the nonzeros of a
// row go by, and optionally the argmax, the index of the nonzero that each element comes from.
//
// NaN counts as larger than all numbers, so an element is NaN if one of its products is. Of equal products the first
// one is taken: neither results nor places depend on how a row is cut.

#pragma once

#include <cstdint>

#include "spmm.hpp"

namespace sparloom::spmm_max {

using spmm::Strip;

// Of the widest strip: the argmax takes as many registers as the result.
template <bool kPlaces>
constexpr int kVectors = kRegisters / (kPlaces ? 4 : 2);

typedef int32_t Ints __attribute__((vector_size(kVectorBytes)));

// Some nonzeros of one row, at least one.
struct Nonzeros {
    const int32_t* columns;
    const float* values;
    int64_t count;
    int64_t place;  // of the first one in the matrix
    int64_t ahead;  // nonzeros between the one being multiplied and the one whose row is prefetched; 0: none is
};

// Destination of one row of the result and of its argmax; null if it is not requested.
struct Out {
    float* result;
    int32_t* places;

    Out operator+(int64_t elements) const {
        return {result + elements, places == nullptr ? nullptr : places + elements};
    }
};

// Whether a product replaces the maximum so far.
inline Ints exceeds(Vec<float> product, Vec<float> peak) { return ~(product <= peak) & (peak == peak); }
inline bool exceeds(float product, float peak) { return !(product <= peak) && peak == peak; }

template <int V, bool kPart>
[[gnu::always_inline]] inline void put(const Vec<float>* values, const Lanes<float>& last, float* to) {
#pragma GCC unroll 32
    for (int v = 0; v < V; ++v) {
        if (kPart && v == V - 1) {
            last.store(to + v * kLanes<float>, values[v]);
        } else {
            store(to + v * kLanes<float>, values[v]);
        }
    }
}

template <int V, bool kPart, bool kPlaces>
[[gnu::always_inline]] inline void put(const Vec<float>* peaks, const Ints* places, const Lanes<float>& last, Out out) {
    put<V, kPart>(peaks, last, out.result);
    if constexpr (kPlaces) {
        Vec<float> bits[V];
#pragma GCC unroll 32
        for (int v = 0; v < V; ++v) bits[v] = reinterpret_cast<Vec<float>>(places[v]);
        put<V, kPart>(bits, last, reinterpret_cast<float*>(out.places));
    }
}

// out = the largest of values[n] * dense[columns[n]].
template <int V, bool kPart, bool kPlaces>
[[gnu::always_inline]] inline void largest(const Nonzeros& of, const Strip<float>& strip, Out out) {
    Vec<float> peaks[V];
    Ints places[V];
    const auto product = [&](int64_t n, int v) __attribute__((always_inline)) {
        const float* from = strip.dense + of.columns[n] * strip.lead + v * kLanes<float>;
        return broadcast(of.values[n]) * (kPart && v == V - 1 ? strip.last.load(from) : load(from));
    };
    const auto prefetch = [&](int64_t n) __attribute__((always_inline)) {
        const float* next = strip.dense + of.columns[n] * strip.lead;
#pragma GCC unroll 32
        for (int c = 0; c < V * kLanes<float>; c += kLine<float>) __builtin_prefetch(next + c);
    };
    const auto step = [&](int64_t n) __attribute__((always_inline)) {
        const Ints now = Ints{} + static_cast<int32_t>(of.place + n);
#pragma GCC unroll 32
        for (int v = 0; v < V; ++v) {
            const Vec<float> next = product(n, v);
            const Ints taken = exceeds(next, peaks[v]);
            peaks[v] = taken ? next : peaks[v];
            if constexpr (kPlaces) places[v] = taken ? now : places[v];
        }
    };
    if (of.ahead != 0) prefetch(of.ahead);
#pragma GCC unroll 32
    for (int v = 0; v < V; ++v) {
        peaks[v] = product(0, v);
        places[v] = Ints{} + static_cast<int32_t>(of.place);
    }
    if (of.ahead != 0) {
        for (int64_t n = 1; n < of.count; ++n) {
            prefetch(n + of.ahead);
            step(n);
        }
    } else {
        for (int64_t n = 1; n < of.count; ++n) step(n);
    }
    put<V, kPart, kPlaces>(peaks, places, strip.last, out);
}

// Nonzeros begin .. end of one row, at least one, to any destination.
template <int V, bool kPart, bool kPlaces>
[[gnu::always_inline]] inline void part(const Rows& rows, int64_t row, int64_t begin, int64_t end,
                                        const Strip<float>& strip, Out out) {
    const int64_t place = rows.source[row] + (begin - rows.indptr[row]);
    const int64_t ahead = end + strip.ahead <= rows.nnz ? strip.ahead : 0;
    largest<V, kPart, kPlaces>({rows.indices + begin, rows.values + place, end - begin, place, ahead}, strip, out);
}

// Rows first .. last; `out` and the strip begin at the same column. The arguments are copies: a store of vectors may
// alias whatever a reference points to.
template <int V, bool kPart, bool kPlaces>
void whole_rows(Rows rows, int64_t first, int64_t last, Strip<float> strip, Out out) {
    for (int64_t row = first; row < last; ++row) {
        const int64_t begin = rows.indptr[row], end = rows.indptr[row + 1];
        const Out to = out + rows.place[row] * strip.lead;
        if (begin < end) {
            part<V, kPart, kPlaces>(rows, row, begin, end, strip, to);
        } else {
            const Vec<float> zeros[V] = {};
            Ints none[V];
#pragma GCC unroll 32
            for (int v = 0; v < V; ++v) none[v] = ~Ints{};
            put<V, kPart, kPlaces>(zeros, none, strip.last, to);
        }
    }
}

// Merges the maximum of later nonzeros of the same row.
inline void merge(Out out, Out from, int64_t width) {
    for (int64_t c = 0; c < width; ++c) {
        if (!exceeds(from.result[c], out.result[c])) continue;
        out.result[c] = from.result[c];
        if (out.places != nullptr) out.places[c] = from.places[c];
    }
}

}  // namespace sparloom::spmm_max
