// Other ways to fuse the two products of gemm_spmm and spmm_spmm, with the row kernels of fused.hpp.
//
//   atomic tiling     tiles of loop one in parallel; each adds the contributions of its rows of D1 to all rows of D that
//                     read them, atomically if other tiles add to the same row (sparse tiling)
//   fused GeMV        rows of D in parallel; D1 does not exist: every nonzero of A multiplies a row of B by C
//                     (Listing 7 of the tile fusion paper, as tensor compilers generate it)
//
// Overlapped tiling needs no separate code: rows of D1 are computed by all tiles that read them (`Fused::read`).

#pragma once

#include <algorithm>

#include "fused.hpp"

extern "C" {

// Fused::a has an entry for every tile and every row of D to which the tile contributes, in the order of the tiles and
// those that need nothing else first; Fused::write is the row of each entry; tiles have no second wavefront.
struct Atomic {
    Fused pair;
    const uint8_t* crossing;  // (entries) whether other tiles contribute to the same row
    const int32_t* shared;    // (shared_rows) rows of D with crossing entries
    int64_t shared_rows;
};

}  // extern "C"

namespace sparloom::fused {

template <typename T>
void add_atomically(const T* from, int64_t width, T* to) {
    for (int64_t column = 0; column < width; ++column) {
#pragma omp atomic
        to[column] += from[column];
    }
}

template <typename T>
auto contributions(const Atomic& a) {
    const Fused& f = a.pair;
    const ChosenRows<T> whole(f.a, f.write, f.width, 0, f.together, f.stream);
    const ChosenRows<T> crossing(f.a, nullptr, f.width, 0, f.together, false);
    return [=, &a, &f](const int32_t*, int64_t begin, int64_t end, const T* d1, bool near, T* sums) {
        T* const d = static_cast<T*>(f.d);
        const int64_t middle = std::find(a.crossing + begin, a.crossing + end, 1) - a.crossing;
        whole.sum(nullptr, begin, middle, d1, d, near);
        for (int64_t k = middle; k < end; k += kAtomicRows) {
            const int64_t last = std::min(k + kAtomicRows, end);
            crossing.sum(nullptr, k, last, d1, tiles::without_rows_before(k, sums, f.width), near);
            for (int64_t e = k; e < last; ++e) {
                add_atomically(sums + (e - k) * f.width, f.width, d + f.write[e] * f.width);
            }
        }
    };
}

template <typename T>
void clear_shared(const Atomic& a) {
    T* const d = static_cast<T*>(a.pair.d);
#pragma omp parallel for num_threads(sparloom::team(a.pair.tiles.threads))
    for (int64_t n = 0; n < a.shared_rows; ++n) std::fill_n(d + a.shared[n] * a.pair.width, a.pair.width, T{0});
}

template <typename T>
void gemm_spmm_atomic(const Atomic& a) {
    clear_shared<T>(a);
    run<T>(a.pair, a.pair.width, product_b<T>(a.pair), contributions<T>(a));
}

template <typename T>
void spmm_spmm_atomic(const Atomic& a) {
    clear_shared<T>(a);
    run<T>(a.pair, a.pair.width, sparse_product_b<T>(a.pair), contributions<T>(a));
}

// The generated loops, except that the sum of a row starts at zero here.
template <typename T>
void gemm_spmm_listing(const Fused& f) {
    const T *values = static_cast<const T*>(f.a.values), *b = static_cast<const T*>(f.dense_b);
    const T* __restrict c = static_cast<const T*>(f.c);
#pragma omp parallel for num_threads(sparloom::team(f.tiles.threads)) schedule(dynamic, 64)
    for (int64_t i = 0; i < f.rows; ++i) {
        T* __restrict d = static_cast<T*>(f.d) + i * f.width;
        std::fill_n(d, f.width, T{0});
        for (int64_t j1 = f.a.begin[i]; j1 < f.a.end[i]; ++j1) {
            const int64_t j = f.a.indices[j1];
            for (int64_t k = 0; k < f.inner; ++k) {
                for (int64_t l = 0; l < f.width; ++l) d[l] += values[j1] * b[j * f.inner + k] * c[k * f.width + l];
            }
        }
    }
}

// The same with the GeMV of a BLAS instead of the two inner loops.
template <typename T>
void gemm_spmm_blas_gemv(const Fused& f) {
    const T *values = static_cast<const T*>(f.a.values), *b = static_cast<const T*>(f.dense_b);
    const auto gemv = reinterpret_cast<gemm::Gemv<T>>(f.blas);
    const int columns = static_cast<int>(f.width), depth = static_cast<int>(f.inner), step = 1;
    const T one = 1;
#pragma omp parallel for num_threads(sparloom::team(f.tiles.threads)) schedule(dynamic, 64)
    for (int64_t i = 0; i < f.rows; ++i) {
        T* const d = static_cast<T*>(f.d) + i * f.width;
        std::fill_n(d, f.width, T{0});
        for (int64_t n = f.a.begin[i]; n < f.a.end[i]; ++n) {
            gemv("N", &columns, &depth, values + n, static_cast<const T*>(f.c), &columns, b + f.a.indices[n] * f.inner,
                 &step, &one, d, &step);
        }
    }
}

// The same with the row of D in registers: V vectors of it, in U independent sums, to hide the latency of additions.
template <typename T, int V>
void gemv_row(const Fused& f, int64_t row, int64_t column, const Lanes<T>& last) {
    constexpr int U = V <= kRegisters / 8 ? 2 : 1;
    const T *values = static_cast<const T*>(f.a.values), *c = static_cast<const T*>(f.c) + column;
    Vec<T> sums[U][V] = {};
    const auto add = [&](int u, T left, const T* right) __attribute__((always_inline)) {
#pragma GCC unroll 32
        for (int v = 0; v < V - 1; ++v) sums[u][v] += broadcast(left) * load(right + v * kLanes<T>);
        sums[u][V - 1] += broadcast(left) * last.load(right + (V - 1) * kLanes<T>);
    };
    for (int64_t n = f.a.begin[row]; n < f.a.end[row]; ++n) {
        const T* b = static_cast<const T*>(f.dense_b) + f.a.indices[n] * f.inner;
        int64_t k = 0;
        for (; k + U <= f.inner; k += U) {
#pragma GCC unroll 2
            for (int u = 0; u < U; ++u) add(u, values[n] * b[k + u], c + (k + u) * f.width);
        }
        for (; k < f.inner; ++k) add(0, values[n] * b[k], c + k * f.width);
    }
    T* const d = static_cast<T*>(f.d) + row * f.width + column;
#pragma GCC unroll 32
    for (int v = 0; v < V; ++v) {
        const Vec<T> sum = U == 1 ? sums[0][v] : sums[0][v] + sums[U - 1][v];
        if (v < V - 1) {
            store(d + v * kLanes<T>, sum);
        } else {
            last.store(d + v * kLanes<T>, sum);
        }
    }
}

template <typename T, int... V>
void gemv_strip(const Fused& f, int64_t row, int64_t column, int64_t columns, std::integer_sequence<int, V...>) {
    constexpr void (*kRows[])(const Fused&, int64_t, int64_t, const Lanes<T>&) = {gemv_row<T, V + 1>...};
    const int64_t vectors = (columns + kLanes<T> - 1) / kLanes<T>;
    kRows[vectors - 1](f, row, column, Lanes<T>(columns - (vectors - 1) * kLanes<T>));
}

template <typename T>
void gemm_spmm_gemv(const Fused& f) {
    constexpr int widest = kRegisters / 4;
    constexpr int64_t strip = widest * kLanes<T>;
#pragma omp parallel for num_threads(sparloom::team(f.tiles.threads)) schedule(dynamic, 64)
    for (int64_t row = 0; row < f.rows; ++row) {
        for (int64_t column = 0; column < f.width; column += strip) {
            gemv_strip<T>(f, row, column, std::min(strip, f.width - column), std::make_integer_sequence<int, widest>{});
        }
    }
}

}  // namespace sparloom::fused
