// D = A B in float32: A (rows, cols) sparse, B (cols, width) and D (rows, width) row-major without gaps.
//
//   for pieces of the rows of A                                   in parallel, rows.hpp
//     for blocks of 64 rows
//       for strips of columns, `strip` wide                       as many as half of the registers hold, at most
//         for rows of the block                                   row kernel, spmm.hpp
//
// A cut piece sums its part of the shared row into `carries`; those are added up when all pieces are done.
// Preconditions (checked in Python): columns are in range; `carries` has width floats per piece if one is cut; D
// overlaps nothing else; ahead >= 0, strip >= 1.

#include <algorithm>
#include <utility>

#include "spmm.hpp"

extern "C" {

struct Spmm {
    Rows rows;
    const float* dense;
    float *result, *carries;
    int64_t width;
    int32_t strip, ahead, stream, together;  // columns, bytes of the dense operand, flag, flag
};

}  // extern "C"

namespace sparloom::spmm {
namespace {

constexpr int64_t kBlock = 64;  // rows whose indices stay in the first cache from strip to strip

using Whole = void (*)(const Rows&, int64_t, int64_t, const Strip&);
using Part = void (*)(const Rows&, int64_t, int64_t, int64_t, const Strip&, float*);

struct Kernel {
    Whole one_by_one, side_by_side;
    Part part;
};

template <Store kStore>
struct Kernels {
    Kernel by_vectors[kVectors];
    template <int... V>
    constexpr explicit Kernels(std::integer_sequence<int, V...>)
        : by_vectors{{one_by_one<V + 1, kStore>, side_by_side<V + 1, kStore>, part<V + 1, kStore>}...} {}
    const Kernel& operator[](int64_t vectors) const { return by_vectors[vectors - 1]; }
};

constexpr auto kSequence = std::make_integer_sequence<int, kVectors>{};
constexpr Kernels<Store::kWhole> kWhole{kSequence};
constexpr Kernels<Store::kPart> kPart{kSequence};
constexpr Kernels<Store::kStream> kStream{kSequence};

class Product {
   public:
    explicit Product(const Spmm& s)
        : s_(s),
          strip_(std::min<int64_t>(s.strip, kVectors * kLanes)),
          streams_(s.stream && s.width % kLanes == 0 && reinterpret_cast<uintptr_t>(s.result) % sizeof(Vec) == 0) {}

    void piece(int32_t p) const {
        const Rows& rows = s_.rows;
        int64_t first = rows.piece_rows[p];
        const int64_t last = rows.piece_rows[p + 1], begin = rows.piece_nonzeros[p], end = rows.piece_nonzeros[p + 1];
        if (is_cut(rows, p)) {
            part(first, begin, std::min(rows.indptr[first + 1], end), s_.carries + p * s_.width);
            ++first;
        }
        for (int64_t row = first; row < last; row += kBlock) block(row, std::min(row + kBlock, last));
        if (first <= last && end > rows.indptr[last]) {  // the next piece is cut, and this one begins its row
            part(last, rows.indptr[last], end, s_.result + rows.place[last] * s_.width);
        }
        if (streams_) fence();
    }

    void add_carries() const {
        const Rows& rows = s_.rows;
        for (int32_t p = 0; p < rows.pieces; ++p) {
            if (!is_cut(rows, p)) continue;
            float* to = s_.result + rows.place[rows.piece_rows[p]] * s_.width;
            const float* from = s_.carries + p * s_.width;
            for (int64_t column = 0; column < s_.width; ++column) to[column] += from[column];
        }
    }

   private:
    void block(int64_t first, int64_t last) const {
        each_strip([&](const Kernel& kernel, const Strip& strip, int64_t) {
            (s_.together ? kernel.side_by_side : kernel.one_by_one)(s_.rows, first, last, strip);
        });
    }

    void part(int64_t row, int64_t begin, int64_t end, float* out) const {
        each_strip([&](const Kernel& kernel, const Strip& strip, int64_t column) {
            kernel.part(s_.rows, row, begin, end, strip, out + column);
        });
    }

    template <typename Work>
    void each_strip(const Work& work) const {
        for (int64_t column = 0; column < s_.width; column += strip_) {
            const int64_t columns = std::min(strip_, s_.width - column), vectors = (columns + kLanes - 1) / kLanes;
            const Strip strip{s_.dense + column, s_.result + column, s_.width, Lanes(columns - (vectors - 1) * kLanes),
                              rows_ahead(s_.ahead, columns)};
            work(columns % kLanes != 0 ? kPart[vectors] : streams_ ? kStream[vectors] : kWhole[vectors], strip, column);
        }
    }

    const Spmm& s_;
    const int64_t strip_;
    const bool streams_;
};

}  // namespace
}  // namespace sparloom::spmm

extern "C" void sparloom_spmm(const void* arguments) {
    const Spmm& s = *static_cast<const Spmm*>(arguments);
    const sparloom::spmm::Product product(s);
    sparloom::each_piece(s.rows, [&](int32_t piece) { product.piece(piece); });
    product.add_carries();
}
