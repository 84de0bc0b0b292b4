// D(i, h) = sum over j of softmax over j of (scale * Q(i, h) . K(j, h)) * V(j, h) in float32, j over the columns of row i
// of A (rows, cols); Q (rows, heads, width), K (cols, heads, width), V (cols, heads, value_width) and
// D (rows, heads, value_width) row-major without gaps. Rows without nonzeros give 0.
//
//   for pieces of the rows of A                                   in parallel, rows.hpp
//     for rows of a block of nonzeros, or one long row, for heads   attention.hpp
//
// A row that is cut is attended to in parts, which are put together when all pieces are done.
// Preconditions (checked in Python): columns are in range; `parts` has 2 * heads * (value_width + 2) floats per piece if
// one is cut; D overlaps nothing else; ahead >= 0.

#include <numeric>

#include "attention.hpp"

extern "C" {

struct Attention {
    Rows rows;  // its values are not read
    const float *queries, *keys, *values;
    float *result, *parts;
    int64_t heads, width, value_width;
    float scale;
    int32_t ahead;  // bytes of K that are prefetched
};

}  // extern "C"

namespace sparloom::attention {
namespace {

class Layer {
   public:
    explicit Layer(const Attention& a) : a_(a) {}

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
            if (end == row) {
                whole(end++);
            } else {
                block(row, end);
            }
        }
        if (begins_next(p)) part(last, rows.indptr[last], end, slot(2 * p + 1));
    }

    // Puts the parts of rows together that pieces share.
    void join() const {
        const Rows& rows = a_.rows;
        for (int32_t p = 0; p < rows.pieces; ++p) {
            if (!begins_next(p)) continue;
            const int64_t row = rows.piece_rows[p + 1];
            for (int64_t h = 0; h < a_.heads; ++h) {
                const float* from = slot(2 * p + 1) + h * stride();
                float* const out = result(row, h);
                std::copy_n(from + 2, a_.value_width, out);
                State state{from[0], from[1]};
                for (int32_t q = p + 1; q < rows.pieces && is_cut(rows, q) && rows.piece_rows[q] == row; ++q) {
                    const float* other = slot(2 * q) + h * stride();
                    merge(state, out, {other[0], other[1]}, other + 2, a_.value_width);
                }
                finish(row, h, state);
            }
        }
    }

   private:
    int64_t stride() const { return a_.value_width + 2; }
    float* slot(int64_t number) const { return a_.parts + number * a_.heads * stride(); }

    float* result(int64_t row, int64_t h) const {
        return a_.result + (a_.rows.place[row] * a_.heads + h) * a_.value_width;
    }

    // Whether a piece has the beginning of a row whose rest the next one has.
    bool begins_next(int32_t p) const {
        const Rows& rows = a_.rows;
        const int64_t row = rows.piece_rows[p + 1];
        return rows.piece_nonzeros[p + 1] > rows.indptr[row] && rows.piece_nonzeros[p] <= rows.indptr[row];
    }

    Head head(int64_t h) const {
        return {a_.keys + h * a_.width, a_.values + h * a_.value_width, a_.heads * a_.width, a_.heads * a_.value_width,
                a_.width, a_.value_width, a_.scale, rows_ahead(a_.ahead, sizeof(float) * a_.width)};
    }

    const float* query(int64_t row, int64_t h) const {
        return a_.queries + (a_.rows.place[row] * a_.heads + h) * a_.width;
    }

    // Nonzeros of rows that share a block.
    int64_t room() const { return std::min(kBlock, kScores / a_.heads); }

    // Rows first .. last, which have no more nonzeros than room(). All heads of a row follow each other, since what they
    // read does.
    void block(int64_t first, int64_t last) const {
        const Rows& rows = a_.rows;
        const int64_t begin = rows.indptr[first], count = rows.indptr[last] - begin;
        float scores[kScores];
        const auto each = [&](auto&& work) {
            for (int64_t row = first; row < last; ++row) {
                const int64_t at = rows.indptr[row], some = rows.indptr[row + 1] - at;
                for (int64_t h = 0; h < a_.heads; ++h) {
                    const Head seen = head(h);
                    const int64_t ahead = at + some + seen.ahead <= rows.nnz ? seen.ahead : 0;
                    work(row, h, seen, rows.indices + at, some, ahead, scores + h * count + at - begin);
                }
            }
        };
        each([&](int64_t row, int64_t h, const Head& seen, const int32_t* columns, int64_t some, int64_t ahead,
                 float* own) {
            const float peak = score(seen, columns, some, query(row, h), ahead, kNothing, own), base = base_of(peak);
            for (int64_t n = 0; n < some; ++n) own[n] -= base;
        });
#pragma omp simd
        for (int64_t n = 0; n < a_.heads * count; ++n) scores[n] = exponential(scores[n]);
        each([&](int64_t row, int64_t h, const Head& seen, const int32_t* columns, int64_t some, int64_t ahead,
                 float* own) {
            float* const out = result(row, h);
            if (some == 0) {
                std::fill_n(out, a_.value_width, 0.0f);
                return;
            }
            const float share = 1 / std::accumulate(own, own + some, 0.0f);
            for (int64_t n = 0; n < some; ++n) own[n] *= share;
            mix_all(seen, columns, some, ahead, own, nullptr, out);
        });
    }

    void whole(int64_t row) const {
        for (int64_t h = 0; h < a_.heads; ++h) {
            finish(row, h, attend_part(row, h, a_.rows.indptr[row], a_.rows.indptr[row + 1], result(row, h)));
        }
    }

    State attend_part(int64_t row, int64_t h, int64_t begin, int64_t end, float* out) const {
        return attend(head(h), a_.rows.indices + begin, end - begin, a_.rows.nnz - end, query(row, h), out);
    }

    void part(int64_t row, int64_t begin, int64_t end, float* to) const {
        for (int64_t h = 0; h < a_.heads; ++h, to += stride()) {
            const State state = attend_part(row, h, begin, end, to + 2);
            to[0] = state.peak;
            to[1] = state.total;
        }
    }

    void finish(int64_t row, int64_t h, const State& state) const {
        scale_row(result(row, h), a_.value_width, 1 / state.total);
    }

    const Attention& a_;
};

}  // namespace
}  // namespace sparloom::attention

extern "C" void sparloom_attention(const void* arguments) {
    const Attention& a = *static_cast<const Attention*>(arguments);
    const sparloom::attention::Layer layer(a);
    sparloom::each_piece(a.rows, [&](int32_t piece) { layer.piece(piece); });
    layer.join();
}
