// Products of three matrices as two loops over rows, executed by a tile schedule (tiles.hpp). All dense matrices are
// row-major without gaps.
//
//   gemm_spmm   D1 = B C (cols, width), B (cols, inner) dense;    D = A D1 (rows, width)
//   spmm_spmm   D1 = B C + F (cols, width), B sparse;             D = A D1 + G (rows, width)
//   spmm_gemm   D1 = A B (rows, inner), B (cols, inner) dense;    D = D1 C (rows, width)
//
// Iteration i of loop one is row i of D1. With `read` it uses row read[i] of B; iteration j of loop two is row write[j]
// of D, or row j. So operands may be stored in another order than the iterations.
// Preconditions (checked in Python, legality by the scheduler): the schedule is legal for A; columns are in range; no
// `read` with `blas`; D1, D and the buffers overlap nothing else; `packed` holds packed_size(inner, width) elements,
// `buffers` has the size that sparloom_fused_buffer returns.

#pragma once

#include "blas.hpp"
#include "change.hpp"
#include "csr.hpp"
#include "tall_gemm.hpp"
#include "tiles.hpp"

extern "C" {

struct Fused {
    Tiles tiles;
    Csr a, b;                     // b: of spmm_spmm
    const void *dense_b, *c;      // dense_b: of the others
    const void *f, *g;            // of spmm_spmm; null: nothing is added
    void* changes;                // of spmm_spmm: (count[0], width) sums of (D1 - C)^2 of each tile, or null
    const int32_t *read, *write;  // null: 0, 1, 2, ...
    void *d1, *d, *packed, *buffers;
    void (*blas)();                            // ?GEMM for the dense product, or null: kernels of this folder
    int64_t rows, inner, width, largest_tile;  // rows: of A; largest_tile: iterations of loop one
    int64_t ahead;                             // bytes of a gathered operand that are prefetched
    int32_t together, stream_first, stream, c_transposed;  // rows with equal columns; D1 or D past the caches
};

}  // extern "C"

namespace sparloom::fused {

using gemm::TallGemm;
using spmm::ChosenRows;

constexpr int64_t kAtomicRows = 64;  // entries that fused_baselines.hpp sums before they are added

// Offset of the second buffer of a thread, in elements.
template <typename T>
int64_t tile_size(const Fused& f, int64_t lead) {
    return f.tiles.local ? gemm::whole_vectors(f.largest_tile * lead, kLine<T>) : 0;
}

template <typename T>
int64_t buffer_size(const Fused& f, int64_t lead) {
    const int64_t gathered = TallGemm<T>::buffer_size(f.inner, f.dense_b != nullptr && f.read != nullptr);
    const int64_t summed = f.write != nullptr ? kAtomicRows * f.width : 0;
    return gemm::whole_vectors(tile_size<T>(f, lead) + std::max(gathered, summed), 4096 / sizeof(T));
}

template <typename T, typename One, typename Two>
void run(const Fused& f, int64_t lead, const One& one, const Two& two) {
    const auto buffers = [&](int64_t thread) {
        T* const own = static_cast<T*>(f.buffers) + thread * buffer_size<T>(f, lead);
        return tiles::Buffers<T>{own, own + tile_size<T>(f, lead)};
    };
    tiles::run(f.tiles, static_cast<T*>(f.d1), lead, buffers, one, two);
}

// Whether rows of D1 may be streamed past the caches: not if the next loop reads them in a cache.
inline bool streams_first(const Fused& f) { return f.stream_first && !f.tiles.local; }

template <typename T>
const T* pack_c(const Fused& f) {
    T* const packed = static_cast<T*>(f.packed);
    gemm::pack(static_cast<const T*>(f.c), f.inner, f.width, f.c_transposed, packed);
    return packed;
}

template <typename T>
auto product_b(const Fused& f) {
    const T* const b = static_cast<const T*>(f.dense_b);
    const TallGemm<T> product(b, f.read, f.inner, pack_c<T>(f), f.width, streams_first(f));
    const auto blas = reinterpret_cast<gemm::Gemm<T>>(f.blas);
    return [product, blas, b, &f](int64_t begin, int64_t end, T* d1, T* buffer) {
        if (blas == nullptr) {
            product.multiply(begin, end, d1, buffer);
        } else {
            gemm::blas_multiply(blas, b, begin, end, f.inner, static_cast<const T*>(f.c), f.c_transposed, f.width, d1);
        }
    };
}

// Computes rows begin .. end of a tile of D1, and their distance from the rows of C.
template <typename T>
void sum_and_compare(const ChosenRows<T>& product, const Fused& f, int64_t begin, int64_t end, const T* c, T* d1) {
    constexpr int64_t block = 64;  // rows that are compared while they are in the first caches
    const int64_t* const first = f.tiles.first;
    const int64_t tile = std::upper_bound(first, first + f.tiles.count[0] + 1, begin) - first - 1;
    T* const sums = static_cast<T*>(f.changes) + tile * f.width;
    std::fill_n(sums, f.width, T{0});
    for (int64_t row = begin; row < end; row += block) {
        const int64_t last = std::min(row + block, end);
        product.sum(nullptr, row, last, c, d1, false);
        const int32_t* const places = f.read == nullptr ? nullptr : f.read + row;
        const T* const before = f.read == nullptr ? c + row * f.width : c;
        change::add_squares(d1 + row * f.width, before, places, last - row, f.width, sums);
    }
}

template <typename T>
auto sparse_product_b(const Fused& f) {
    const spmm::Addend<T> added{static_cast<const T*>(f.f), f.read};
    const ChosenRows<T> product(f.b, nullptr, f.width, f.ahead, f.together, streams_first(f), added);
    const T* const c = static_cast<const T*>(f.c);
    return [product, c, &f](int64_t begin, int64_t end, T* d1, T*) {
        if (f.changes == nullptr) {
            product.sum(nullptr, begin, end, c, d1, false);
        } else {
            sum_and_compare(product, f, begin, end, c, d1);
        }
    };
}

template <typename T>
auto product_a(const Fused& f) {
    const spmm::Addend<T> added{static_cast<const T*>(f.g), f.write};
    const ChosenRows<T> product(f.a, f.write, f.width, f.ahead, f.together, f.stream, added);
    T* const d = static_cast<T*>(f.d);
    return [product, d](const int32_t* list, int64_t begin, int64_t end, const T* d1, bool near, T*) {
        product.sum(list, begin, end, d1, d, near);
    };
}

template <typename T>
void gemm_spmm(const Fused& f) {
    run<T>(f, f.width, product_b<T>(f), product_a<T>(f));
}

template <typename T>
void spmm_spmm(const Fused& f) {
    run<T>(f, f.width, sparse_product_b<T>(f), product_a<T>(f));
}

// Iteration j of loop two reads only iteration j of loop one: there is no list, and `read` and `write` are null.
template <typename T>
void spmm_gemm(const Fused& f) {
    const ChosenRows<T> first(f.a, nullptr, f.inner, f.ahead, f.together, streams_first(f));
    const T* const packed = pack_c<T>(f);
    const auto one = [&](int64_t begin, int64_t end, T* d1, T*) {
        first.sum(nullptr, begin, end, static_cast<const T*>(f.dense_b), d1, false);
    };
    const auto two = [&](const int32_t*, int64_t begin, int64_t end, const T* d1, bool, T* buffer) {
        T* const d = static_cast<T*>(f.d);
        if (f.blas == nullptr) {
            TallGemm<T>(d1, nullptr, f.inner, packed, f.width, f.stream).multiply(begin, end, d, buffer);
        } else {
            gemm::blas_multiply(reinterpret_cast<gemm::Gemm<T>>(f.blas), d1, begin, end, f.inner,
                                static_cast<const T*>(f.c), false, f.width, d);
        }
    };
    run<T>(f, f.inner, one, two);
}

}  // namespace sparloom::fused
