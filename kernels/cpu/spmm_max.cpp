// D(i, k) = max over j of A(i, j) B(j, k), j over the columns of row i of A (rows, cols); B (cols, width) and D (rows,
// width) row-major without gaps. Rows without nonzeros give 0. Optional: places (rows, width), the argmax, the index of
// the nonzero of A that each element comes from; -1 in rows without nonzeros. Numbers are of type ELEMENT, as in
// spmm.cpp; products of halves are compared as floats.
//
//   for pieces of the rows of A                                   in parallel, rows.hpp
//     for blocks of 64 rows
//       for strips of columns                                     as many as half of the registers hold
//         for rows of the block                                   row kernel, spmm_max.hpp
//
// Pieces that share a row write the maxima of their parts to `carries`; these are merged in the order of the nonzeros,
// when all pieces are done.
// Preconditions (checked in Python): columns are in range; `carries`, and `carried_places` if there are places, have
// 2 * width elements per piece if one is cut; there are less than 2^31 nonzeros if there are places; D overlaps nothing
// else; ahead >= 0.

#include <algorithm>
#include <utility>

#include "arguments.hpp"
#include "spmm_max.hpp"

#ifndef ELEMENT
#define ELEMENT float
#endif

namespace sparloom::spmm_max {
namespace {

using T = ELEMENT;
using Carry = Sum<T>;

constexpr int64_t kBlock = 64;  // rows whose indices stay in the first cache from strip to strip

// The first or last row of a piece that another piece continues.
template <int V, bool kPart, bool kPlaces>
void cut_row(const Rows& rows, int64_t row, int64_t begin, int64_t end, const Strip<T>& strip, Out<Carry> out) {
    part<V, kPart, kPlaces>(rows, row, begin, end, strip, out);
}

struct Kernel {
    void (*whole_rows)(Rows, int64_t, int64_t, Strip<T>, Out<T>);
    void (*cut_row)(const Rows&, int64_t, int64_t, int64_t, const Strip<T>&, Out<Carry>);
};

template <bool kPlaces>
struct Table {
    Kernel whole[kVectors<kPlaces>], part[kVectors<kPlaces>];

    template <int... V>
    constexpr explicit Table(std::integer_sequence<int, V...>)
        : whole{kernel<V + 1, false>()...}, part{kernel<V + 1, true>()...} {}

    template <int V, bool kPart>
    static constexpr Kernel kernel() {
        if constexpr (spmm::has_kernel<T>(V)) {
            return {spmm_max::whole_rows<V, kPart, kPlaces, T>, spmm_max::cut_row<V, kPart, kPlaces>};
        } else {
            return {};
        }
    }
};

template <bool kPlaces>
constexpr Table<kPlaces> kTable{std::make_integer_sequence<int, kVectors<kPlaces>>{}};

template <bool kPlaces>
class Product {
   public:
    explicit Product(const SpmmMax& s) : s_(s), columns_{s.width, kVectors<kPlaces> * kLanes<T>, s.ahead, false} {}

    void piece(int32_t p) const {
        const Rows& rows = s_.rows;
        int64_t first = rows.piece_rows[p];
        const int64_t last = rows.piece_rows[p + 1], begin = rows.piece_nonzeros[p], end = rows.piece_nonzeros[p + 1];
        if (is_cut(rows, p)) {
            if (begin < end_of_part(p)) cut_row(first, begin, end_of_part(p), carry(2 * p));
            ++first;
        }
        for (int64_t row = first; row < last; row += kBlock) whole_rows(row, std::min(row + kBlock, last));
        if (begins_next(rows, p)) cut_row(last, rows.indptr[last], end, carry(2 * p + 1));
    }

    void put_carries_in() const {
        const Rows& rows = s_.rows;
        each_shared_row(rows, [&](int64_t row, int32_t p, int32_t end) {
            const Out<Carry> found = carry(2 * p + 1);
            for (int32_t q = p + 1; q < end; ++q) {
                if (rows.piece_nonzeros[q] < end_of_part(q)) merge(found, carry(2 * q), s_.width);
            }
            const Out<T> to = Out<T>{result(), s_.places} + rows.place[row] * s_.width;
            for (int64_t c = 0; c < s_.width; ++c) to.result[c] = narrow<T>(found.result[c]);
            if (kPlaces) std::copy_n(found.places, s_.width, to.places);
        });
    }

   private:
    T* result() const { return static_cast<T*>(s_.result); }

    Out<Carry> carry(int64_t number) const {
        return Out<Carry>{static_cast<Carry*>(s_.carries), s_.carried_places} + number * s_.width;
    }

    // End of a cut piece's part of its first row; the part may be empty.
    int64_t end_of_part(int32_t p) const {
        const Rows& rows = s_.rows;
        return std::min(rows.indptr[rows.piece_rows[p] + 1], rows.piece_nonzeros[p + 1]);
    }

    // Calls work(kernel, strip) for every strip of columns.
    template <typename Work>
    void each_strip(const Work& work) const {
        spmm::each_strip<spmm::kAnyVectors<T>>(
            columns_, static_cast<const T*>(s_.dense), result(),
            [&](spmm::Store store, int64_t vectors, const Strip<T>& strip, int64_t) {
                const auto& table = kTable<kPlaces>;
                work((store == spmm::Store::kPart ? table.part : table.whole)[vectors - 1], strip);
            });
    }

    void whole_rows(int64_t first, int64_t last) const {
        each_strip([&](const Kernel& kernel, const Strip<T>& strip) {
            kernel.whole_rows(s_.rows, first, last, strip, Out<T>{result(), s_.places} + strip.column);
        });
    }

    void cut_row(int64_t row, int64_t begin, int64_t end, Out<Carry> out) const {
        each_strip([&](const Kernel& kernel, const Strip<T>& strip) {
            kernel.cut_row(s_.rows, row, begin, end, strip, out + strip.column);
        });
    }

    const SpmmMax& s_;
    const spmm::Columns columns_;
};

template <bool kPlaces>
void run(const SpmmMax& s) {
    const Product<kPlaces> product(s);
    each_piece(s.rows, [&](int32_t piece) { product.piece(piece); });
    product.put_carries_in();
}

}  // namespace
}  // namespace sparloom::spmm_max

extern "C" void sparloom_spmm_max(const void* arguments) {
    const SpmmMax& s = *static_cast<const SpmmMax*>(arguments);
    (s.places == nullptr ? sparloom::spmm_max::run<false> : sparloom::spmm_max::run<true>)(s);
}
