// Products of A (rows, cols) by dense operands of `width` columns in float32, of which every element of a row has one
// nonzero of A only, the one at its place: what gradients of the maximum of products are made of. places (rows, width)
// count nonzeros in A's order, those of row i of A in row i; a row without nonzeros has -1 in all of its places.
// p = places(i, f), j = the column of nonzero p:
//
//   sparloom_spmm_at              D(i, f)  = values(p) * right(j, f)      D, left (rows, width), right (cols, width)
//   sparloom_spmm_transposed_at   D(j, f) += values(p) * left(i, f)       D (cols, width)
//   sparloom_sddmm_at             D(p)    += left(i, f) * right(j, f)     D (nnz)
//
// Each visits rows * width elements, however many nonzeros there are. Threads share the rows of A; for the second,
// where rows of A meet in one of D, strips of columns that are whole cache lines, and ranges of rows of D where there
// are more threads than lines. Sums are in the order of i, then f, whatever the threads.
// Preconditions (checked in Python): places and columns are in range; dense operands are row-major without gaps; D is 0
// where it is added to, and overlaps nothing else.

#include <algorithm>
#include <cstdint>

#include "team.hpp"

extern "C" {

struct AtPlaces {
    const int32_t *places, *indices;  // indices (nnz): columns
    const float *values, *left, *right;
    float* result;
    int64_t rows, cols, width;
    int32_t threads;
};

}  // extern "C"

namespace sparloom::at_places {
namespace {

constexpr int64_t kLineFloats = 64 / sizeof(float);
constexpr int64_t kNear = int64_t{1} << 20;  // bytes of (cols, width) that stay in a near cache: nothing is prefetched
constexpr int64_t kAhead = 2;                // rows of A between the one at work and the one that is prefetched for

bool is_far(const AtPlaces& s) { return s.cols * s.width * static_cast<int64_t>(sizeof(float)) > kNear; }

// Asks for what row i of A, if there is one with nonzeros, reads or writes in `dense` (cols, width). GCC leaves out
// calls of a function that does nothing else, unless they are inlined first.
[[gnu::always_inline]] inline void prefetch(const AtPlaces& s, const float* dense, int64_t i, int64_t begin,
                                            int64_t end) {
    if (i >= s.rows || s.places[i * s.width] < 0) return;
    for (int64_t f = begin; f < end; ++f) {
        __builtin_prefetch(dense + s.indices[s.places[i * s.width + f]] * s.width + f);
    }
}

// Calls work(i) for every row of A that has nonzeros, and none(i) for the others.
template <typename Work, typename None>
void each_row(const AtPlaces& s, const Work& work, const None& none) {
    const bool far = is_far(s);
#pragma omp parallel for num_threads(sparloom::team(s.threads)) schedule(static) if (s.threads > 1)
    for (int64_t i = 0; i < s.rows; ++i) {
        if (far) prefetch(s, s.right, i + kAhead, 0, s.width);
        if (s.places[i * s.width] < 0) {
            none(i);
        } else {
            work(i);
        }
    }
}

// Of D (cols, width): rows first .. last, columns begin .. end.
struct Part {
    int64_t first, last, begin, end;
};

template <bool kAllRows>
void scatter(const AtPlaces& s, const Part& part) {
    const int32_t* const indices = s.indices;
    const float* const values = s.values;
    const bool far = kAllRows && is_far(s);  // else most of it is not this thread's
    for (int64_t i = 0; i < s.rows; ++i) {
        const int32_t* const places = s.places + i * s.width;
        const float* const left = s.left + i * s.width;
        if (far) prefetch(s, s.result, i + kAhead, part.begin, part.end);
        if (places[0] < 0) continue;
        for (int64_t f = part.begin; f < part.end; ++f) {
            const int64_t j = indices[places[f]];
            if (!kAllRows && (j < part.first || j >= part.last)) continue;
            s.result[j * s.width + f] += values[places[f]] * left[f];
        }
    }
}

}  // namespace
}  // namespace sparloom::at_places

extern "C" void sparloom_spmm_at(const void* arguments) {
    const AtPlaces& s = *static_cast<const AtPlaces*>(arguments);
    sparloom::at_places::each_row(
        s,
        [&](int64_t i) {
            const int32_t* const places = s.places + i * s.width;
            float* const to = s.result + i * s.width;
            for (int64_t f = 0; f < s.width; ++f) {
                to[f] = s.values[places[f]] * s.right[s.indices[places[f]] * s.width + f];
            }
        },
        [&](int64_t i) { std::fill_n(s.result + i * s.width, s.width, 0.0f); });
}

extern "C" void sparloom_spmm_transposed_at(const void* arguments) {
    const AtPlaces& s = *static_cast<const AtPlaces*>(arguments);
    constexpr int64_t line = sparloom::at_places::kLineFloats;
    const int64_t lines = (s.width + line - 1) / line, strips = std::min<int64_t>(s.threads, lines);
    const int64_t ranges = s.threads / strips;
#pragma omp parallel for num_threads(sparloom::team(s.threads)) schedule(static, 1) collapse(2) if (s.threads > 1)
    for (int64_t strip = 0; strip < strips; ++strip) {
        for (int64_t range = 0; range < ranges; ++range) {
            const sparloom::at_places::Part part{range * s.cols / ranges, (range + 1) * s.cols / ranges,
                                                 strip * lines / strips * line,
                                                 std::min((strip + 1) * lines / strips * line, s.width)};
            (ranges == 1 ? sparloom::at_places::scatter<true> : sparloom::at_places::scatter<false>)(s, part);
        }
    }
}

extern "C" void sparloom_sddmm_at(const void* arguments) {
    const AtPlaces& s = *static_cast<const AtPlaces*>(arguments);
    sparloom::at_places::each_row(
        s,
        [&](int64_t i) {
            const int32_t* const places = s.places + i * s.width;
            const float* const left = s.left + i * s.width;
            for (int64_t f = 0; f < s.width; ++f) {
                s.result[places[f]] += left[f] * s.right[s.indices[places[f]] * s.width + f];
            }
        },
        [](int64_t) {});
}
