// Register tiles of GEMM: `Rows` x `Vectors` vectors of C stay in registers while k runs over one block.
//
// C (rows, columns) is overwritten, or added to where k runs over several blocks. B has its columns side by side,
// `b_row` elements from one k to the next. A is read element by element: (r, k) at a[r * a_row + k * a_column].

#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "vector.hpp"

namespace sparloom::gemm {

// Bytes between the rows of B that a tile reads and those that it prefetches, where rows and panels of B follow each
// other in memory: with less, few rows of A times much of B wait for the memory.
constexpr int64_t kAhead = 4096;

// Where a tile prefetches B to: kFar, of what is in memory, to the L2 cache, whose queue of misses is the longer one;
// kNear, of what tiles before it have brought there, to the L1 cache.
enum class Ahead { kNothing, kNear, kFar };

// A full register tile. With PackedA, the rows of A are interleaved: a_row = 1 and a_column = Rows, at compile time.
// With Streams, C is overwritten past the caches; its vectors are aligned.
// `prefetch` is called with the first k of every group of Unroll.
template <typename T, int Rows, int Vectors, int Unroll, bool PackedA, bool Streams, Ahead AheadB, typename Prefetch>
inline __attribute__((always_inline)) void tile_with(int64_t depth, const T* a, int64_t a_row, const T* b,
                                                     int64_t b_row, T* c, int64_t c_row, bool add,
                                                     Prefetch prefetch) {
    Vec<T> sums[Rows][Vectors] = {};
    const auto step = [&](int64_t k) __attribute__((always_inline)) {
        Vec<T> right[Vectors];
#pragma GCC unroll 64
        for (int v = 0; v < Vectors; ++v) right[v] = load(b + k * b_row + v * kLanes<T>);
#pragma GCC unroll 64
        for (int r = 0; r < Rows; ++r) {
            const Vec<T> left = broadcast(PackedA ? a[k * Rows + r] : a[r * a_row + k]);
#pragma GCC unroll 64
            for (int v = 0; v < Vectors; ++v) sums[r][v] += left * right[v];
        }
    };
    int64_t k = 0;
    for (; k + Unroll <= depth; k += Unroll) {
        prefetch(k);
        if constexpr (AheadB != Ahead::kNothing) {
#pragma GCC unroll 64
            for (int line = 0; line < Unroll * Vectors * kLanes<T>; line += kLine<T>) {
                __builtin_prefetch(b + k * b_row + kAhead / sizeof(T) + line, 0, AheadB == Ahead::kFar ? 2 : 3);
            }
        }
#pragma GCC unroll 64
        for (int u = 0; u < Unroll; ++u) step(k + u);
    }
    for (; k < depth; ++k) step(k);
#pragma GCC unroll 64
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 64
        for (int v = 0; v < Vectors; ++v) {
            T* to = c + r * c_row + v * kLanes<T>;
            if constexpr (Streams) {
                stream(to, sums[r][v]);
            } else {
                store(to, add ? load(to) + sums[r][v] : sums[r][v]);
            }
        }
    }
}

// With AheadA, the rows of A that follow those of the tile are prefetched.
template <typename T, int Rows, int Vectors, int Unroll, bool PackedA, bool AheadA = false, bool Streams = false>
void tile(int64_t depth, const T* a, int64_t a_row, const T* b, int64_t b_row, T* c, int64_t c_row, bool add) {
    const auto rows_ahead = [=](int64_t k) {
        if (AheadA && k % kLine<T> == 0) {
#pragma GCC unroll 64
            for (int r = 0; r < Rows; ++r) __builtin_prefetch(a + (Rows + r) * a_row + k);
        }
    };
    tile_with<T, Rows, Vectors, Unroll, PackedA, Streams, Ahead::kNothing>(depth, a, a_row, b, b_row, c, c_row, add,
                                                                           rows_ahead);
}

// A tile that prefetches its part of C, what follows in B, and, into a farther cache, a line of `next` for every group
// of Unroll: what the caller meets later.
template <typename T, int Rows, int Vectors, int Unroll, Ahead AheadB>
void tile_ahead(int64_t depth, const T* a, int64_t a_row, const T* b, int64_t b_row, T* c, int64_t c_row, bool add,
                const T* next) {
#pragma GCC unroll 64
    for (int r = 0; r < Rows; ++r) __builtin_prefetch(c + r * c_row, 1);
    tile_with<T, Rows, Vectors, Unroll, false, false, AheadB>(
        depth, a, a_row, b, b_row, c, c_row, add,
        [=](int64_t k) { __builtin_prefetch(next + k / Unroll * kLine<T>, 0, 2); });
}

// A tile at the right or lower border: the last vector of each row holds `last` columns, 1 .. kLanes.
template <typename T, int Rows, int Vectors>
void edge(int64_t depth, const T* a, int64_t a_row, int64_t a_column, const T* b, int64_t b_row, T* c, int64_t c_row,
          int64_t last, bool add) {
    const Lanes<T> part(last);
    Vec<T> sums[Rows][Vectors] = {};
    for (int64_t k = 0; k < depth; ++k) {
        Vec<T> right[Vectors];
#pragma GCC unroll 64
        for (int v = 0; v < Vectors - 1; ++v) right[v] = load(b + k * b_row + v * kLanes<T>);
        right[Vectors - 1] = part.load(b + k * b_row + (Vectors - 1) * kLanes<T>);
#pragma GCC unroll 64
        for (int r = 0; r < Rows; ++r) {
            const Vec<T> left = broadcast(a[r * a_row + k * a_column]);
#pragma GCC unroll 64
            for (int v = 0; v < Vectors; ++v) sums[r][v] += left * right[v];
        }
    }
#pragma GCC unroll 64
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 64
        for (int v = 0; v < Vectors; ++v) {
            T* to = c + r * c_row + v * kLanes<T>;
            if (v < Vectors - 1) {
                store(to, add ? load(to) + sums[r][v] : sums[r][v]);
            } else {
                part.store(to, add ? part.load(to) + sums[r][v] : sums[r][v]);
            }
        }
    }
}

// Border tiles of 1, 2, 4 and 8 rows and up to kMost vectors, as far as they fit into the registers.
template <typename T, int kMost>
class Borders {
   public:
    constexpr Borders() : by_height_{row<1>(kVectors), row<2>(kVectors), row<4>(kVectors), row<8>(kVectors)} {}

    // Covers `rows` x `columns` at the border of C with the tallest tiles that fit.
    void cover(int64_t depth, int64_t rows, int64_t columns, const T* a, int64_t a_row, int64_t a_column, const T* b,
               int64_t b_row, T* c, int64_t c_row, bool add) const {
        const int64_t vectors = (columns + kLanes<T> - 1) / kLanes<T>, last = columns - (vectors - 1) * kLanes<T>;
        int height = kHeights - 1;
        for (int64_t r = 0; r < rows; r += 1 << height) {
            while (rows - r < 1 << height || by_height_[height][vectors - 1] == nullptr) --height;
            by_height_[height][vectors - 1](depth, a + r * a_row, a_row, a_column, b, b_row, c + r * c_row, c_row, last,
                                            add);
        }
    }

   private:
    static constexpr int kHeights = 4;
    static constexpr auto kVectors = std::make_integer_sequence<int, kMost>{};

    using Edge = void (*)(int64_t, const T*, int64_t, int64_t, const T*, int64_t, T*, int64_t, int64_t, bool);
    using Row = std::array<Edge, kMost>;  // by number of vectors

    template <int Rows, int Vectors>
    static constexpr Edge edge_or_none() {
        if constexpr (Rows == 1 || (Rows + 1) * Vectors + 1 <= kRegisters) return edge<T, Rows, Vectors>;
        return nullptr;
    }

    template <int Rows, int... V>
    static constexpr Row row(std::integer_sequence<int, V...>) {
        return {edge_or_none<Rows, V + 1>()...};
    }

    Row by_height_[kHeights];
};

}  // namespace sparloom::gemm
