// D(i, j) = A(i, j) * sum over k of B(i, k) C(j, k), on the pattern of A (rows, cols); B (rows, width) and
// C (cols, width) row-major without gaps; D as values in the order of those of A. Numbers are of type ELEMENT, as in
// spmm.cpp.
//
//   for pieces of the rows of A                                   in parallel, rows.hpp
//     for rows of the piece, for groups of nonzeros               row kernel, sddmm.hpp
//
// Preconditions (checked in Python): columns are in range; D overlaps nothing else; ahead >= 0; group is 1, 4
// or 16.

#include <array>
#include <utility>

#include "arguments.hpp"
#include "sddmm.hpp"
#include "spmm.hpp"

#ifndef ELEMENT
#define ELEMENT float
#endif

namespace sparloom::sddmm {
namespace {

using T = ELEMENT;

constexpr int kGroups = 3;  // 1, 4, 16

using Kernel = void (*)(const Rows&, int64_t, int64_t, int64_t, int64_t, const Factors<T>&, T*);

struct Kernels {
    std::array<Kernel, kGroups> whole, part;
    Kernel flat_whole, flat_part;  // null where rows are too wide for them
};

template <typename Left, int V>
constexpr std::array<Kernel, kGroups> by_group() {
    return {rows_on<T, Left>, rows<T, Left, group<T>(4, V)>, rows<T, Left, group<T>(16, V)>};
}

struct Table {
    Kernels by_vectors[kVectors];
    template <int... V>
    constexpr explicit Table(std::integer_sequence<int, V...>)
        : by_vectors{kernels<V + 1>()...} {}

    template <int V>
    static constexpr Kernels kernels() {
        if constexpr (!spmm::has_kernel<T>(V)) {
            return {by_group<Long<T>, 0>(), by_group<Long<T>, 0>(), nullptr, nullptr};
        } else if constexpr (V > kFlatVectors) {
            return {by_group<Held<T, V, false>, V>(), by_group<Held<T, V, true>, V>(), nullptr, nullptr};
        } else {
            return {by_group<Held<T, V, false>, V>(), by_group<Held<T, V, true>, V>(), flat<T, Held<T, V, false>>,
                    flat<T, Held<T, V, true>>};
        }
    }
};

constexpr Table kTable{std::make_integer_sequence<int, kVectors>{}};
constexpr std::array<Kernel, kGroups> kLong = by_group<Long<T>, 0>();

void piece(const Sddmm& s, int32_t p) {
    const Rows& rows = s.rows;
    const int wanted = __builtin_ctz(s.group) / 2;
    const int64_t vectors = (s.width + kLanes<T> - 1) / kLanes<T>;
    const Lanes<T> rest(s.width - (vectors - 1) * kLanes<T>);
    const Factors<T> factors{static_cast<const T*>(s.left), static_cast<const T*>(s.right), s.width, rest,
                             rows_ahead(s.ahead, sizeof(T) * s.width)};
    const int64_t begin = rows.piece_nonzeros[p], end = rows.piece_nonzeros[p + 1];
    const int64_t last = rows.piece_rows[p + 1] + (end > rows.indptr[rows.piece_rows[p + 1]]);  // one more if it is cut
    Kernel kernel = kLong[wanted];
    if (vectors <= kVectors) {
        const Kernels& kernels = kTable.by_vectors[vectors - 1];
        const bool part = s.width % kLanes<T> != 0, stored = rows.source == rows.indptr;
        const Kernel flat = part ? kernels.flat_part : kernels.flat_whole;
        kernel = wanted == 0 && stored && flat != nullptr ? flat : (part ? kernels.part : kernels.whole)[wanted];
    }
    kernel(rows, rows.piece_rows[p], last, begin, end, factors, static_cast<T*>(s.result));
}

}  // namespace
}  // namespace sparloom::sddmm

extern "C" void sparloom_sddmm(const void* arguments) {
    const Sddmm& s = *static_cast<const Sddmm*>(arguments);
    sparloom::each_piece(s.rows, [&](int32_t p) { sparloom::sddmm::piece(s, p); });
}
