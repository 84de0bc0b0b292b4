// Squared distance between rows of a product and rows of another matrix, by column, while they are in a cache.

#pragma once

#include <algorithm>
#include <cstdint>

#include "vector.hpp"

namespace sparloom::change {

// Adds (left - right)^2 over `rows` rows to sums, for V vectors of columns of which the last has so many lanes. Rows of
// both are `lead` elements apart; row k of `right` is row places[k], or k.
template <typename T, int V>
void add_strip(const T* left, const T* right, const int32_t* places, int64_t rows, int64_t lead, const Lanes<T>& last,
               T* sums) {
    Vec<T> total[V];
    const auto read = [&](const T* from, int v) { return v < V - 1 ? load(from) : last.load(from); };
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) total[v] = read(sums + v * kLanes<T>, v);
    for (int64_t k = 0; k < rows; ++k) {
        const T *a = left + k * lead, *b = right + (places == nullptr ? k : places[k]) * lead;
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            const Vec<T> difference = read(a + v * kLanes<T>, v) - read(b + v * kLanes<T>, v);
            total[v] += difference * difference;
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < V - 1; ++v) store(sums + v * kLanes<T>, total[v]);
    last.store(sums + (V - 1) * kLanes<T>, total[V - 1]);
}

// The same for all `width` columns of rows without gaps.
template <typename T>
void add_squares(const T* left, const T* right, const int32_t* places, int64_t rows, int64_t width, T* sums) {
    constexpr int kWide = 8;
    constexpr int64_t lanes = kLanes<T>;
    int64_t column = 0;
    for (; column + kWide * lanes <= width; column += kWide * lanes) {
        add_strip<T, kWide>(left + column, right + column, places, rows, width, Lanes<T>(lanes), sums + column);
    }
    for (; column < width; column += lanes) {
        const Lanes<T> last(std::min(lanes, width - column));
        add_strip<T, 1>(left + column, right + column, places, rows, width, last, sums + column);
    }
}

}  // namespace sparloom::change
