// D(i, j) = A(i, j) * sum over k of B(i, k) C(j, k) in float32, on the pattern of A (rows, cols); B (rows, width) and
// C (cols, width) row-major without gaps; D as values in the order of those of A.
//
//   for pieces of the rows of A                                   in parallel, rows.hpp
//     for rows of the piece, for groups of nonzeros               row kernel, sddmm.hpp
//
// Preconditions (checked in Python): columns are in range; D overlaps nothing else; ahead >= 0; group is 1, 4
// or 16.

#include <array>
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

constexpr int kGroups = 3;  // 1, 4, 16

using Kernel = void (*)(const Rows&, int64_t, int64_t, int64_t, int64_t, const Factors&, float*);

struct Kernels {
    std::array<Kernel, kGroups> whole, part;
};

template <typename Left, int V>
constexpr std::array<Kernel, kGroups> by_group() {
    return {rows_on<Left>, rows<Left, group(4, V)>, rows<Left, group(16, V)>};
}

struct Table {
    Kernels by_vectors[kVectors];
    template <int... V>
    constexpr explicit Table(std::integer_sequence<int, V...>)
        : by_vectors{Kernels{by_group<Held<V + 1, false>, V + 1>(), by_group<Held<V + 1, true>, V + 1>()}...} {}
};

constexpr Table kTable{std::make_integer_sequence<int, kVectors>{}};
constexpr std::array<Kernel, kGroups> kLong = by_group<Long, 0>();

void piece(const Sddmm& s, int32_t p) {
    const Rows& rows = s.rows;
    const int wanted = __builtin_ctz(s.group) / 2;
    const int64_t vectors = (s.width + kLanes<float> - 1) / kLanes<float>;
    const Lanes<float> rest(s.width - (vectors - 1) * kLanes<float>);
    const Factors factors{s.left, s.right, s.width, rest, rows_ahead(s.ahead, 4 * s.width)};
    const int64_t begin = rows.piece_nonzeros[p], end = rows.piece_nonzeros[p + 1];
    const int64_t last = rows.piece_rows[p + 1] + (end > rows.indptr[rows.piece_rows[p + 1]]);  // one more if it is cut
    Kernel kernel = kLong[wanted];
    if (vectors <= kVectors) {
        const Kernels& kernels = kTable.by_vectors[vectors - 1];
        kernel = (s.width % kLanes<float> != 0 ? kernels.part : kernels.whole)[wanted];
    }
    kernel(rows, rows.piece_rows[p], last, begin, end, factors, s.result);
}

}  // namespace
}  // namespace sparloom::sddmm

extern "C" void sparloom_sddmm(const void* arguments) {
    const Sddmm& s = *static_cast<const Sddmm*>(arguments);
    sparloom::each_piece(s.rows, [&](int32_t p) { sparloom::sddmm::piece(s, p); });
}
