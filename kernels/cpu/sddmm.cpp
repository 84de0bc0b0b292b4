// D(i, j) = A(i, j) * sum over k of B(i, k) C(j, k) in float32, on the pattern of A (rows, cols); B (rows, width) and
// C (cols, width) row-major without gaps; D as values in the order of those of A.
//
//   for pieces of the rows of A                                   in parallel, rows.hpp
//     for blocks of 64 rows
//       for strips of columns                                     as many as half of the registers hold
//         for rows of the block, for groups of nonzeros           row kernel, sddmm.hpp
//
// Where one strip does not hold all columns, rows are not cut into strips: groups of nonzeros go over whole rows.
//
// Preconditions (checked in Python): columns are in range; D overlaps nothing else; ahead >= 0; group is 1, 4
// or 16.

#include <algorithm>
#include <utility>

#include "sddmm.hpp"

extern "C" {

struct Sddmm {
    Rows rows;
    const float *left, *right;
    float* result;
    int64_t width;
    int32_t ahead, group;  // bytes of C, nonzeros
};

}  // extern "C"

namespace sparloom::sddmm {
namespace {

constexpr int64_t kBlock = 64;  // rows whose indices stay in the first cache from strip to strip
constexpr int kGroups = 3;      // 1, 4, 16

using Kernel = void (*)(const Rows&, int64_t, int64_t, int64_t, int64_t, const Strip&, float*);

struct Kernels {
    Kernel whole[kGroups], part[kGroups];
};

template <int V, int... G>
constexpr Kernels kernels(std::integer_sequence<int, G...>) {
    return {{rows<V, false, 1 << 2 * G>...}, {rows<V, true, 1 << 2 * G>...}};
}

struct Table {
    Kernels by_vectors[kVectors];
    template <int... V>
    constexpr explicit Table(std::integer_sequence<int, V...>)
        : by_vectors{kernels<V + 1>(std::make_integer_sequence<int, kGroups>{})...} {}
};

constexpr Table kTable{std::make_integer_sequence<int, kVectors>{}};

using LongKernel = void (*)(const Rows&, int64_t, int64_t, int64_t, int64_t, const Long&, float*);

constexpr LongKernel kLong[kGroups] = {long_rows<group(1, 0)>, long_rows<group(4, 0)>, long_rows<group(16, 0)>};

void piece(const Sddmm& s, int32_t p) {
    const Rows& rows = s.rows;
    const int wanted = __builtin_ctz(s.group) / 2;
    const int64_t begin = rows.piece_nonzeros[p], end = rows.piece_nonzeros[p + 1], strip = kVectors * kLanes<float>;
    const int64_t last = rows.piece_rows[p + 1] + (end > rows.indptr[rows.piece_rows[p + 1]]);  // one more if it is cut
    if (s.width > strip) {
        const Long factors{s.left, s.right, s.width, rows_ahead(s.ahead, 4 * s.width)};
        kLong[wanted](rows, rows.piece_rows[p], last, begin, end, factors, s.result);
        return;
    }
    for (int64_t row = rows.piece_rows[p]; row < last; row += kBlock) {
        for (int64_t column = 0; column < s.width; column += strip) {
            const int64_t columns = std::min(strip, s.width - column);
            const int64_t vectors = (columns + kLanes<float> - 1) / kLanes<float>;
            const Strip at{s.left + column,
                           s.right + column,
                           s.width,
                           Lanes<float>(columns - (vectors - 1) * kLanes<float>),
                           rows_ahead(s.ahead, 4 * columns),
                           column == 0,
                           column + columns == s.width};
            const Kernels& kernels = kTable.by_vectors[vectors - 1];
            const Kernel kernel = (columns % kLanes<float> != 0 ? kernels.part : kernels.whole)[wanted];
            kernel(rows, row, std::min(row + kBlock, last), begin, end, at, s.result);
        }
    }
}

}  // namespace
}  // namespace sparloom::sddmm

extern "C" void sparloom_sddmm(const void* arguments) {
    const Sddmm& s = *static_cast<const Sddmm*>(arguments);
    sparloom::each_piece(s.rows, [&](int32_t p) { sparloom::sddmm::piece(s, p); });
}
