// D(i, h) = sum over j of softmax over j of (scale * Q(i, h) . K(j, h)) * V(j, h), j over the columns of row i of
// A (rows, cols); Q (rows, heads, width), K (cols, heads, width), V (cols, heads, value_width) and
// D (rows, heads, value_width) row-major without gaps. Rows without nonzeros give 0.
// Numbers are of type ELEMENT, as in spmm.cpp.
//
//   for pieces of the rows of A                                   in parallel, rows.hpp
//     for rows of a block of nonzeros                               attention_rows.hpp, where it has a kernel
//     for rows of a block of nonzeros, or one long row, for heads   attention.hpp
//
// A row that is cut is attended to in parts, which are put together when all pieces are done. Sums of halves are in
// `parts` too, until they are rounded.
// Preconditions (checked in Python): columns are in range; `parts` has 2 * heads * (value_width + 2) sums per piece if
// one is cut or if ELEMENT is a half; D overlaps nothing else; ahead >= 0.

#include <numeric>

#include "arguments.hpp"
#include "attention.hpp"
#include "attention_rows.hpp"

#ifndef ELEMENT
#define ELEMENT float
#endif

namespace sparloom::attention {
namespace {

using T = ELEMENT;
using F = Sum<T>;

class Layer {
   public:
    explicit Layer(const Attention& a)
        : a_(a), together_(a.width == a.value_width ? heads_of_rows_kernel<T>(a.heads, a.width) : nullptr) {}

    void piece(int32_t p) const {
        const Rows& rows = a_.rows;
        int64_t first = rows.piece_rows[p];
        const int64_t last = rows.piece_rows[p + 1], begin = rows.piece_nonzeros[p], end = rows.piece_nonzeros[p + 1];
        if (is_cut(rows, p)) {
            part(first, begin, std::min(rows.indptr[first + 1], end), slot(2 * p));
            ++first;
        }
        for (int64_t row = first, end = first; row < last; row = end) {
            while (end < last && rows.indptr[end + 1] - rows.indptr[row] <= room()) ++end;
            if (together_ != nullptr && rows.indptr[row + 1] - rows.indptr[row] <= kRowScores / a_.heads) {
                end = std::max(end, row + 1);
                together_(together(), row, end);
            } else if (end == row) {
                whole(end++, p);
            } else {
                block(row, end, p);
            }
        }
        if (begins_next(rows, p)) part(last, rows.indptr[last], end, slot(2 * p + 1));
    }

    // Puts the parts of rows together that pieces share.
    void join() const {
        each_shared_row(a_.rows, [&](int64_t row, int32_t p, int32_t end) {
            for (int64_t h = 0; h < a_.heads; ++h) {
                F* const from = slot(2 * p + 1) + h * stride();
                State<F> state{from[0], from[1]};
                for (int32_t q = p + 1; q < end; ++q) {
                    const F* other = slot(2 * q) + h * stride();
                    merge(state, from + 2, {other[0], other[1]}, other + 2, a_.value_width);
                }
                finish(from + 2, state, result(row, h));
            }
        });
    }

   private:
    RowHeads<T> together() const {
        return {a_.rows, static_cast<const T*>(a_.queries), static_cast<const T*>(a_.keys),
                static_cast<const T*>(a_.values), static_cast<T*>(a_.result), static_cast<F>(a_.scale), a_.ahead};
    }

    int64_t stride() const { return a_.value_width + 2; }
    F* slot(int64_t number) const { return static_cast<F*>(a_.parts) + number * a_.heads * stride(); }

    T* result(int64_t row, int64_t h) const {
        return static_cast<T*>(a_.result) + (a_.rows.place[row] * a_.heads + h) * a_.value_width;
    }

    // Where piece p adds up a row of the result: in place, or in its last slot, which it fills at its end.
    F* sums(T* out, int32_t p) const { return room_for_sums<T>(out, slot(2 * p + 1)); }

    Head<T> head(int64_t h) const {
        return {static_cast<const T*>(a_.keys) + h * a_.width,
                static_cast<const T*>(a_.values) + h * a_.value_width,
                a_.heads * a_.width,
                a_.heads * a_.value_width,
                a_.width,
                a_.value_width,
                static_cast<F>(a_.scale),
                rows_ahead(a_.ahead, sizeof(T) * a_.width)};
    }

    const T* query(int64_t row, int64_t h) const {
        return static_cast<const T*>(a_.queries) + (a_.rows.place[row] * a_.heads + h) * a_.width;
    }

    // Nonzeros of rows that share a block.
    int64_t room() const { return std::min(kBlock, kScores / a_.heads); }

    // Rows first .. last, which have no more nonzeros than room(). All heads of a row follow each other, since what they
    // read does.
    void block(int64_t first, int64_t last, int32_t p) const {
        const Rows& rows = a_.rows;
        const int64_t begin = rows.indptr[first], count = rows.indptr[last] - begin;
        F scores[kScores];
        const auto each = [&](auto&& work) {
            for (int64_t row = first; row < last; ++row) {
                const int64_t at = rows.indptr[row], some = rows.indptr[row + 1] - at;
                for (int64_t h = 0; h < a_.heads; ++h) {
                    const Head<T> seen = head(h);
                    const int64_t ahead = at + some + seen.ahead <= rows.nnz ? seen.ahead : 0;
                    work(row, h, seen, rows.indices + at, some, ahead, scores + h * count + at - begin);
                }
            }
        };
        each([&](int64_t row, int64_t h, const Head<T>& seen, const int32_t* columns, int64_t some, int64_t ahead,
                 F* own) {
            const F peak = score(seen, columns, some, query(row, h), ahead, kNothing<F>, own), base = base_of(peak);
            for (int64_t n = 0; n < some; ++n) own[n] -= base;
        });
#pragma omp simd
        for (int64_t n = 0; n < a_.heads * count; ++n) scores[n] = exponential(scores[n]);
        each([&](int64_t row, int64_t h, const Head<T>& seen, const int32_t* columns, int64_t some, int64_t ahead,
                 F* own) {
            T* const out = result(row, h);
            if (some == 0) {
                std::fill_n(out, a_.value_width, T{});
                return;
            }
            const F share = 1 / std::accumulate(own, own + some, F{0});
            for (int64_t n = 0; n < some; ++n) own[n] *= share;
            F* const added = sums(out, p);
            mix_all(seen, columns, some, ahead, own, nullptr, added);
            put_row(added, a_.value_width, out);
        });
    }

    void whole(int64_t row, int32_t p) const {
        for (int64_t h = 0; h < a_.heads; ++h) {
            T* const out = result(row, h);
            F* const added = sums(out, p);
            finish(added, attend_part(row, h, a_.rows.indptr[row], a_.rows.indptr[row + 1], added), out);
        }
    }

    State<F> attend_part(int64_t row, int64_t h, int64_t begin, int64_t end, F* out) const {
        return attend<T>(head(h), a_.rows.indices + begin, end - begin, a_.rows.nnz - end, query(row, h), out);
    }

    void part(int64_t row, int64_t begin, int64_t end, F* to) const {
        for (int64_t h = 0; h < a_.heads; ++h, to += stride()) {
            const State<F> state = attend_part(row, h, begin, end, to + 2);
            to[0] = state.peak;
            to[1] = state.total;
        }
    }

    // Divides a row of sums by the total.
    void finish(F* sums, const State<F>& state, T* out) const {
        scale_row(sums, a_.value_width, 1 / state.total);
        put_row(sums, a_.value_width, out);
    }

    const Attention& a_;
    const HeadsOfRows<T> together_;
};

}  // namespace
}  // namespace sparloom::attention

extern "C" void sparloom_attention(const void* arguments) {
    const Attention& a = *static_cast<const Attention*>(arguments);
    const sparloom::attention::Layer layer(a);
    sparloom::each_piece(a.rows, [&](int32_t piece) { layer.piece(piece); });
    layer.join();
}
