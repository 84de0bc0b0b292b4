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

// The rows of struct Rows, as the kernels ask for them.
struct Ordered {
    using Element = float;
    Rows rows;

    const int32_t* columns(int64_t k) const { return rows.indices + rows.indptr[k]; }
    const float* values(int64_t k) const { return rows.values + rows.source[k]; }
    int64_t count(int64_t k) const { return rows.indptr[k + 1] - rows.indptr[k]; }
    int64_t place(int64_t k) const { return rows.place[k]; }
    const float* addend(int64_t) const { return nullptr; }
    int64_t equal(int64_t k, int64_t end) const { return std::min<int64_t>(end - k, rows.equal[k]); }
    bool follow(int64_t k, int64_t ahead) const { return rows.indptr[k + 1] + ahead <= rows.nnz; }
};

// Nonzeros begin .. end of one row, to any place.
template <int V, Store kStore>
void part(const Rows& rows, int64_t row, int64_t begin, int64_t end, const Strip<float>& strip, float* out) {
    const float* values = rows.values + rows.source[row] + (begin - rows.indptr[row]);
    const bool inside = end + strip.ahead <= rows.nnz;
    sum<float, 1, V, kStore>(rows.indices + begin, end - begin, inside ? strip.ahead : 0, {values}, strip, {out});
}

struct Kernel {
    void (*one_by_one)(Ordered, int64_t, int64_t, Strip<float>);
    void (*side_by_side)(Ordered, int64_t, int64_t, Strip<float>);
    void (*part)(const Rows&, int64_t, int64_t, int64_t, const Strip<float>&, float*);
};

struct Kernels {
    Kernel by_vectors[kStores][kVectors];

    template <int... V>
    constexpr explicit Kernels(std::integer_sequence<int, V...>)
        : by_vectors{{kernel<V + 1, Store::kWhole>()...},
                     {kernel<V + 1, Store::kPart>()...},
                     {kernel<V + 1, Store::kStream>()...}} {}

    template <int V, Store kStore>
    static constexpr Kernel kernel() {
        return {one_by_one<V, kStore, Ordered>, side_by_side<V, kStore, Ordered>, spmm::part<V, kStore>};
    }

    const Kernel& operator()(Store store, int64_t vectors) const {
        return by_vectors[static_cast<int>(store)][vectors - 1];
    }
};

constexpr Kernels kKernels{std::make_integer_sequence<int, kVectors>{}};

class Product {
   public:
    explicit Product(const Spmm& s)
        : s_(s),
          rows_{s.rows},
          columns_{s.width, std::min<int64_t>(s.strip, kVectors * kLanes<float>), s.ahead,
                   s.stream && can_stream(s.result, s.width)} {}

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
        if (columns_.streams) fence();
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
        each_strip(columns_, s_.dense, s_.result,
                   [&](Store store, int64_t vectors, const Strip<float>& strip, int64_t) {
                       const Kernel& kernel = kKernels(store, vectors);
                       (s_.together ? kernel.side_by_side : kernel.one_by_one)(rows_, first, last, strip);
                   });
    }

    void part(int64_t row, int64_t begin, int64_t end, float* out) const {
        each_strip(columns_, s_.dense, s_.result,
                   [&](Store store, int64_t vectors, const Strip<float>& strip, int64_t column) {
                       kKernels(store, vectors).part(s_.rows, row, begin, end, strip, out + column);
                   });
    }

    const Spmm& s_;
    const Ordered rows_;
    const Columns columns_;
};

}  // namespace
}  // namespace sparloom::spmm

extern "C" void sparloom_spmm(const void* arguments) {
    const Spmm& s = *static_cast<const Spmm*>(arguments);
    const sparloom::spmm::Product product(s);
    sparloom::each_piece(s.rows, [&](int32_t piece) { product.piece(piece); });
    product.add_carries();
}
