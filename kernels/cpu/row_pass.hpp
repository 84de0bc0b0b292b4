// One pass over rows: a sparse product and the steps of a graph convolution on its rows while they are in cache. All
// dense matrices are row-major without gaps.
//
//   for slices of rows                                            in parallel, on demand
//     for pieces of a slice                                       G of a piece fills part of the second cache
//       G = A Y                                                   (rows, width), Y (cols, width); or G is given
//       D = G C + bias                                            (rows, out), C (width, out)
//       S += L^T R                                                (left, right), L (rows, left), R (rows, right); L may be G
//       sums += rows of L2                                        (summed)
//
// Every step may be omitted, but not both of the first two. Each slice sums a separate S; these are added in the order of
// the slices, so the result does not depend on the timing of threads.
// Preconditions (checked in Python): columns are in range; results overlap nothing else.

#pragma once

#include "csr.hpp"
#include "tall_gemm.hpp"
#include "tiles.hpp"

extern "C" {

struct RowPass {
    Csr a;              // begin null: G is given
    const void* y;      // (cols, width)
    void* g;            // (rows, width): read without A, else written; null: not kept
    const void *c, *bias;             // c: unless out is 0; bias null: none
    void *d, *packed;                 // packed: packed_size(width, out) elements
    const void *left, *right;         // left null: G; right: unless right_columns is 0
    void *s, *partials;               // partials: (slices, left_columns * right_columns)
    const void* summed;               // (rows, summed_columns), unless that is 0
    void *sums, *partial_sums;        // partial_sums: (slices, summed_columns)
    void* buffers;                    // of each thread, see sparloom_row_pass_buffer
    const int64_t* slices;            // (count + 1) rows
    int64_t count, piece, width, out, left_columns, right_columns, summed_columns, ahead;
    int32_t threads, c_transposed, together, stream_g, stream_d;
};

}  // extern "C"

namespace sparloom::row_pass {

using gemm::TallGemm;
using gemm::whole_vectors;
using spmm::ChosenRows;

// S (left, right) += L^T R: tiles of S stay in registers during the loop over rows. Eight columns of L at a time are
// contiguous in `packed`, which has rows * left_columns elements.
template <typename T>
class TransposedProduct {
   public:
    static void add(const T* left, int64_t left_columns, const T* right, int64_t right_columns, int64_t rows, T* s,
                    T* packed) {
        const int64_t whole = left_columns / kHeight * kHeight, vectors = right_columns / kLanes<T>;
        const int64_t strips = (vectors + kMost - 1) / kMost;
        for (int64_t block = 0; block < whole; block += kHeight) {
            for (int64_t row = 0; row < rows; ++row) {
                std::copy_n(left + row * left_columns + block, kHeight, packed + block * rows + row * kHeight);
            }
        }
        int64_t column = 0;
        for (int64_t strip = 0; strip < strips; ++strip) {
            const int64_t wide = (vectors - column / kLanes<T> + strips - strip - 1) / (strips - strip);
            for (int64_t block = 0; block < whole; block += kHeight) {
                kTiles.by_vectors[wide - 1](rows, packed + block * rows, 0, right + column, right_columns,
                                            s + block * right_columns + column, right_columns, true);
            }
            column += wide * kLanes<T>;
        }
        for (; column < right_columns; column += kLanes<T>) {
            border(left, whole, left_columns, right, column, std::min<int64_t>(right_columns - column, kLanes<T>),
                   right_columns, rows, s);
        }
        if (whole == left_columns) return;
        for (column = 0; column < right_columns; column += kMost * kLanes<T>) {
            border(left + whole, left_columns - whole, left_columns, right, column,
                   std::min<int64_t>(right_columns - column, kMost * kLanes<T>), right_columns, rows,
                   s + whole * right_columns);
        }
    }

   private:
    static constexpr int kHeight = 8, kMost = kRegisters / 10;  // rows and most vectors of a tile

    using Tile = void (*)(int64_t, const T*, int64_t, const T*, int64_t, T*, int64_t, bool);

    struct Tiles {
        Tile by_vectors[kMost];
        template <int... V>
        constexpr explicit Tiles(std::integer_sequence<int, V...>)
            : by_vectors{gemm::tile<T, kHeight, V + 1, 4, true>...} {}
    };

    static constexpr Tiles kTiles{std::make_integer_sequence<int, kMost>{}};
    static constexpr gemm::Borders<T, kMost> kBorders{};

    static void border(const T* left, int64_t columns_left, int64_t left_lead, const T* right, int64_t column,
                       int64_t columns, int64_t right_lead, int64_t rows, T* s) {
        kBorders.cover(rows, columns_left, columns, left, 1, left_lead, right + column, right_lead, s + column,
                       right_lead, true);
    }
};

// Copies contiguous rows, optionally adding a bias and optionally streaming past the caches.
template <typename T>
void copy_rows(const T* from, int64_t rows, int64_t columns, const T* bias, bool streams, T* to) {
    const bool past = streams && spmm::can_stream(to, columns);
    for (int64_t row = 0; row < rows; ++row, from += columns, to += columns) {
        int64_t c = 0;
        for (; c + kLanes<T> <= columns; c += kLanes<T>) {
            const Vec<T> sum = bias == nullptr ? load(from + c) : load(from + c) + load(bias + c);
            if (past) {
                stream(to + c, sum);
            } else {
                store(to + c, sum);
            }
        }
        for (; c < columns; ++c) to[c] = from[c] + (bias == nullptr ? T{0} : bias[c]);
    }
}

template <typename T>
void add_rows(const T* from, int64_t rows, int64_t columns, T* sums) {
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t c = 0; c < columns; ++c) sums[c] += from[row * columns + c];
    }
}

// Sums (parts, size) over the parts, in their order.
template <typename T>
void add_parts(const T* parts, int64_t count, int64_t size, int32_t threads, T* result) {
    constexpr int64_t block = 1024;
    share((size + block - 1) / block, threads, [&](int64_t number, int32_t) {
        const int64_t begin = number * block, end = std::min(begin + block, size);
        std::copy(parts + begin, parts + end, result + begin);
        for (int64_t part = 1; part < count; ++part) {
            for (int64_t i = begin; i < end; ++i) result[i] += parts[part * size + i];
        }
    });
}

template <typename T>
class Pass {
   public:
    explicit Pass(const RowPass& p)
        : p_(p), sparse_(p.a, nullptr, p.width, p.ahead, p.together, p.stream_g && p.g != nullptr && !uses(p)) {
        if (p.out > 0) {
            gemm::pack(static_cast<const T*>(p.c), p.width, p.out, p.c_transposed, static_cast<T*>(p.packed));
        }
    }

    // Elements of the buffer of a thread.
    static int64_t buffer_size(const RowPass& p) {
        return whole_vectors(p.piece * (p.width + p.out + p.left_columns), kLine<T>);
    }

    void run() const {
        const bool common = true;  // slices are begun in their order
        const int32_t threads = elements() < kGrain ? 1 : p_.threads;
        const auto work = [&](int64_t slice, int32_t thread) {
            run_slice(slice, static_cast<T*>(p_.buffers) + thread * buffer_size(p_));
            fence();
        };
        share(p_.count, threads, work, common);
        if (p_.right_columns > 0) add_parts(partial(0), p_.count, size(), threads, static_cast<T*>(p_.s));
        if (p_.summed_columns > 0) {
            add_parts(partial_sums(0), p_.count, p_.summed_columns, threads, static_cast<T*>(p_.sums));
        }
    }

   private:
    // Whether another step reads G.
    static bool uses(const RowPass& p) { return p.out > 0 || (p.right_columns > 0 && p.left == nullptr); }

    // Work of the pass in elements of dense rows that are read or written.
    int64_t elements() const {
        const int64_t rows = p_.slices[p_.count], nonzeros = p_.a.begin == nullptr ? 0 : p_.a.nnz;
        const int64_t columns = p_.width + p_.out + p_.left_columns + p_.right_columns + p_.summed_columns;
        const int64_t products = p_.width * p_.out + p_.left_columns * p_.right_columns;
        return nonzeros * p_.width + rows * (columns + products / kDenseRate);
    }

    int64_t size() const { return p_.left_columns * p_.right_columns; }
    T* partial(int64_t slice) const { return static_cast<T*>(p_.partials) + slice * size(); }
    T* partial_sums(int64_t slice) const { return static_cast<T*>(p_.partial_sums) + slice * p_.summed_columns; }

    void run_slice(int64_t slice, T* buffer) const {
        const int64_t first = p_.slices[slice], last = p_.slices[slice + 1];
        if (p_.right_columns > 0) std::fill(partial(slice), partial(slice) + size(), T{0});
        if (p_.summed_columns > 0) std::fill(partial_sums(slice), partial_sums(slice + 1), T{0});
        for (int64_t row = first; row < last; row += p_.piece) {
            const int64_t end = std::min(row + p_.piece, last);
            T* const transformed = buffer + p_.piece * p_.width;
            const T* g = nullptr;
            if (p_.a.begin != nullptr || p_.g != nullptr) g = product(row, end, buffer);
            if (p_.out > 0) transform(g, row, end, transformed);
            if (p_.right_columns > 0) {
                const T* left = p_.left == nullptr ? g : static_cast<const T*>(p_.left) + row * p_.left_columns;
                TransposedProduct<T>::add(left, p_.left_columns,
                                          static_cast<const T*>(p_.right) + row * p_.right_columns, p_.right_columns,
                                          end - row, partial(slice), transformed + p_.piece * p_.out);
            }
            if (g == buffer && p_.g != nullptr) {
                copy_rows<T>(g, end - row, p_.width, nullptr, p_.stream_g, static_cast<T*>(p_.g) + row * p_.width);
            }
            if (p_.summed_columns > 0) {
                add_rows(static_cast<const T*>(p_.summed) + row * p_.summed_columns, end - row, p_.summed_columns,
                         partial_sums(slice));
            }
        }
    }

    // Returns G of rows begin .. end: in the buffer if only this pass uses it, else in its array.
    const T* product(int64_t begin, int64_t end, T* buffer) const {
        const bool here = p_.a.begin != nullptr && (uses(p_) || p_.g == nullptr);
        T* const rows = here ? buffer : static_cast<T*>(p_.g) + begin * p_.width;
        if (p_.a.begin != nullptr) {
            sparse_.sum(nullptr, begin, end, static_cast<const T*>(p_.y),
                        tiles::without_rows_before(begin, rows, p_.width), false);
        }
        return rows;
    }

    void transform(const T* g, int64_t begin, int64_t end, T* buffer) const {
        T* const d = static_cast<T*>(p_.d) + begin * p_.out;
        const TallGemm<T> product(g, nullptr, p_.width, static_cast<const T*>(p_.packed), p_.out, p_.stream_d);
        product.multiply(0, end - begin, p_.bias == nullptr ? d : buffer, nullptr);
        if (p_.bias != nullptr) {
            copy_rows(buffer, end - begin, p_.out, static_cast<const T*>(p_.bias), p_.stream_d, d);
        }
    }

    const RowPass& p_;
    ChosenRows<T> sparse_;
};

template <typename T>
void run(const RowPass& p) {
    Pass<T>(p).run();
}

}  // namespace sparloom::row_pass
