// Products of a sparse matrix A (rows, cols) with dense operands of `width` columns in which each element of the result
// uses one nonzero of its row of A: the building blocks for gradients of the maximum of products. Numbers are of type
// ELEMENT, as in spmm.cpp; results that are accumulated are sums, of halves float.
// argmax (rows, width) holds positions of nonzeros of A; entries of row i refer to row i of A. Rows without nonzeros
// hold -1. With p = argmax(i, f) and j = the column of nonzero p:
//
//   sparloom_spmm_at              D(i, f)  = values(p) * right(j, f)      D, left (rows, width), right (cols, width)
//   sparloom_spmm_transposed_at   D(j, f) += values(p) * left(i, f)       D (cols, width)
//   sparloom_sddmm_at             D(p)    += left(i, f) * right(j, f)     D (nnz)
//
// Each visits rows * width elements, however many nonzeros there are. Threads share the rows of A. In the second
// function several rows of A update the same row of D, so each thread takes a strip of columns (whole cache lines) and,
// if there are more threads than strips, a range of rows of D. Sums run over i, then f, for any number of threads.
// Preconditions (checked in Python): argmax and columns are in range; dense operands are row-major and contiguous; D is
// zero where it is accumulated into and overlaps no other operand.

#include <algorithm>
#include <cstdint>

#include "half.hpp"
#include "team.hpp"

#ifndef ELEMENT
#define ELEMENT float
#endif

extern "C" {

struct ArgmaxProducts {
    const int32_t *argmax, *indices;  // indices (nnz): columns
    const void *values, *left, *right;
    void* result;
    int64_t rows, cols, width;
    int32_t threads;
};

}  // extern "C"

namespace sparloom::argmax_products {
namespace {

using T = ELEMENT;

constexpr int64_t kLineElements = kLine<T>;
constexpr int64_t kNear = int64_t{1} << 20;  // bytes of (cols, width) that fit the L2 cache: no prefetching
constexpr int64_t kAhead = 2;                // prefetch distance in rows of A

bool is_far(const ArgmaxProducts& s) { return s.cols * s.width * static_cast<int64_t>(sizeof(T)) > kNear; }

// Prefetches the elements of `dense` (cols, width) that row i of A reads or writes. Inlined, because GCC drops calls of
// a function that only prefetches.
template <typename F>
[[gnu::always_inline]] inline void prefetch(const ArgmaxProducts& s, const F* dense, int64_t i, int64_t begin,
                                            int64_t end) {
    if (i >= s.rows || s.argmax[i * s.width] < 0) return;
    for (int64_t f = begin; f < end; ++f) {
        __builtin_prefetch(dense + s.indices[s.argmax[i * s.width + f]] * s.width + f);
    }
}

constexpr int64_t kPieces = 8;  // of each thread

int32_t threads_of(const ArgmaxProducts& s) { return s.rows * s.width < kGrain ? 1 : s.threads; }

// Calls work(i) for every row of A with nonzeros and none(i) for every empty row.
template <typename Work, typename None>
void each_row(const ArgmaxProducts& s, const Work& work, const None& none) {
    const bool far = is_far(s);
    const int64_t pieces = s.threads == 1 ? 1 : kPieces * s.threads;
    share(pieces, threads_of(s), [&](int64_t piece, int32_t) {
        for (int64_t i = s.rows * piece / pieces; i < s.rows * (piece + 1) / pieces; ++i) {
            if (far) prefetch(s, static_cast<const T*>(s.right), i + kAhead, 0, s.width);
            if (s.argmax[i * s.width] < 0) {
                none(i);
            } else {
                work(i);
            }
        }
    });
}

// Part of D (cols, width): rows [first, last), columns [begin, end).
struct Part {
    int64_t first, last, begin, end;
};

template <bool kAllRows>
void scatter(const ArgmaxProducts& s, const Part& part) {
    const int32_t* const indices = s.indices;
    const T* const values = static_cast<const T*>(s.values);
    Sum<T>* const result = static_cast<Sum<T>*>(s.result);
    const bool far = kAllRows && is_far(s);  // otherwise other threads own most of it
    for (int64_t i = 0; i < s.rows; ++i) {
        const int32_t* const argmax = s.argmax + i * s.width;
        const T* const left = static_cast<const T*>(s.left) + i * s.width;
        if (far) prefetch(s, result, i + kAhead, part.begin, part.end);
        if (argmax[0] < 0) continue;
        for (int64_t f = part.begin; f < part.end; ++f) {
            const int64_t j = indices[argmax[f]];
            if (!kAllRows && (j < part.first || j >= part.last)) continue;
            result[j * s.width + f] += widen(values[argmax[f]]) * widen(left[f]);
        }
    }
}

}  // namespace
}  // namespace sparloom::argmax_products

extern "C" void sparloom_spmm_at(const void* arguments) {
    const ArgmaxProducts& s = *static_cast<const ArgmaxProducts*>(arguments);
    using sparloom::narrow, sparloom::widen, sparloom::argmax_products::T;
    const T* const values = static_cast<const T*>(s.values);
    const T* const right = static_cast<const T*>(s.right);
    T* const result = static_cast<T*>(s.result);
    sparloom::argmax_products::each_row(
        s,
        [&](int64_t i) {
            const int32_t* const argmax = s.argmax + i * s.width;
            T* const to = result + i * s.width;
            for (int64_t f = 0; f < s.width; ++f) {
                to[f] = narrow<T>(widen(values[argmax[f]]) * widen(right[s.indices[argmax[f]] * s.width + f]));
            }
        },
        [&](int64_t i) { std::fill_n(result + i * s.width, s.width, T{}); });
}

extern "C" void sparloom_spmm_transposed_at(const void* arguments) {
    const ArgmaxProducts& s = *static_cast<const ArgmaxProducts*>(arguments);
    using sparloom::argmax_products::scatter;
    constexpr int64_t line = sparloom::argmax_products::kLineElements;
    const int64_t lines = (s.width + line - 1) / line, strips = std::min<int64_t>(s.threads, lines);
    const int64_t ranges = s.threads / strips;
    sparloom::share(strips * ranges, sparloom::argmax_products::threads_of(s), [&](int64_t piece, int32_t) {
        const int64_t strip = piece / ranges, range = piece % ranges;
        const sparloom::argmax_products::Part part{range * s.cols / ranges, (range + 1) * s.cols / ranges,
                                                   strip * lines / strips * line,
                                                   std::min((strip + 1) * lines / strips * line, s.width)};
        (ranges == 1 ? scatter<true> : scatter<false>)(s, part);
    });
}

extern "C" void sparloom_sddmm_at(const void* arguments) {
    const ArgmaxProducts& s = *static_cast<const ArgmaxProducts*>(arguments);
    using sparloom::widen, sparloom::argmax_products::T;
    const T* const right = static_cast<const T*>(s.right);
    sparloom::Sum<T>* const result = static_cast<sparloom::Sum<T>*>(s.result);
    sparloom::argmax_products::each_row(
        s,
        [&](int64_t i) {
            const int32_t* const argmax = s.argmax + i * s.width;
            const T* const left = static_cast<const T*>(s.left) + i * s.width;
            for (int64_t f = 0; f < s.width; ++f) {
                result[argmax[f]] += widen(left[f]) * widen(right[s.indices[argmax[f]] * s.width + f]);
            }
        },
        [](int64_t) {});
}
