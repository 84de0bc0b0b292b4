// One pass over rows: a sparse product and what a graph convolution makes of its rows while they are in the cache. All
// dense matrices are row-major without gaps.
//
//   for slices of rows                                            in parallel, on demand
//     for pieces of a slice                                       G of a piece fills part of the second cache
//       G = A Y                                                   (rows, width), Y (cols, width); or G is given
//       D = G C + bias                                            (rows, out), C (width, out)
//       S += L^T R                                                (left, right), L (rows, left), R (rows, right); L may be G
//       sums += rows of L2                                        (summed)
//
// Every step but one of the first two may be missing. Each slice adds up S of its own; they are added in the order of
// the slices, so the result does not depend on which thread was faster.
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
    const void *c, *bias;             // null: no D; bias null: none
    void *d, *packed;                 // packed: packed_size(width, out) elements
    const void *left, *right;         // left null: G; right null: no S
    void *s, *partials;               // partials: (slices, left_columns * right_columns)
    const void* summed;               // (rows, summed_columns), null: no sums
    void *sums, *partial_sums;        // partial_sums: (slices, summed_columns)
    void* buffers;                    // (threads, piece * width) where G is not kept
    const int64_t* slices;            // (count + 1) rows
    int64_t count, piece, width, out, left_columns, right_columns, summed_columns, ahead;
    int32_t threads, c_transposed, together, stream_g, stream_d;
};

}  // extern "C"

namespace sparloom::row_pass {

using gemm::TallGemm;
using gemm::whole_vectors;
using spmm::ChosenRows;

// S (left, right) = L^T R, or added to S: tiles of S stay in registers while the rows run.
template <typename T>
void transposed_product(const T* left, int64_t left_columns, const T* right, int64_t right_columns, int64_t rows, T* s,
                        bool add) {
    constexpr int most = kRegisters / 10;  // vectors of a tile with eight rows
    static constexpr gemm::Borders<T, most> tiles{};
    const int64_t vectors = (right_columns + kLanes<T> - 1) / kLanes<T>, strips = (vectors + most - 1) / most;
    const int64_t wide = (vectors + strips - 1) / std::max<int64_t>(1, strips) * kLanes<T>;
    for (int64_t column = 0; column < right_columns; column += wide) {
        const int64_t columns = std::min(wide, right_columns - column);
        tiles.cover(rows, left_columns, columns, left, 1, left_columns, right + column, right_columns, s + column,
                    right_columns, add);
    }
}

template <typename T>
void add_rows(const T* from, int64_t rows, int64_t columns, T* sums) {
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t c = 0; c < columns; ++c) sums[c] += from[row * columns + c];
    }
}

// Adds up (parts, size) over the parts, in their order.
template <typename T>
void add_parts(const T* parts, int64_t count, int64_t size, T* result) {
    constexpr int64_t block = 1024;
#pragma omp for schedule(static)
    for (int64_t begin = 0; begin < size; begin += block) {
        const int64_t end = std::min(begin + block, size);
        std::copy(parts + begin, parts + end, result + begin);
        for (int64_t part = 1; part < count; ++part) {
            for (int64_t i = begin; i < end; ++i) result[i] += parts[part * size + i];
        }
    }
}

template <typename T>
class Pass {
   public:
    explicit Pass(const RowPass& p)
        : p_(p), sparse_(p.a, nullptr, p.width, p.ahead, p.together, p.stream_g && p.g != nullptr) {
        if (p.c != nullptr) {
            gemm::pack(static_cast<const T*>(p.c), p.width, p.out, p.c_transposed, static_cast<T*>(p.packed));
        }
    }

    void run() const {
#pragma omp parallel num_threads(p_.threads)
        {
            T* const buffer = static_cast<T*>(p_.buffers) + tiles::thread_number() * p_.piece * p_.width;
#pragma omp for schedule(dynamic, 1)
            for (int64_t slice = 0; slice < p_.count; ++slice) run_slice(slice, buffer);
            if (p_.right != nullptr) add_parts(partial(0), p_.count, size(), static_cast<T*>(p_.s));
            if (p_.summed != nullptr) add_parts(partial_sums(0), p_.count, p_.summed_columns, static_cast<T*>(p_.sums));
            fence();
        }
    }

   private:
    int64_t size() const { return p_.left_columns * p_.right_columns; }
    T* partial(int64_t slice) const { return static_cast<T*>(p_.partials) + slice * size(); }
    T* partial_sums(int64_t slice) const { return static_cast<T*>(p_.partial_sums) + slice * p_.summed_columns; }

    void run_slice(int64_t slice, T* buffer) const {
        const int64_t first = p_.slices[slice], last = p_.slices[slice + 1];
        if (p_.right != nullptr) std::fill(partial(slice), partial(slice) + size(), T{0});
        if (p_.summed != nullptr) std::fill(partial_sums(slice), partial_sums(slice + 1), T{0});
        for (int64_t row = first; row < last; row += p_.piece) {
            const int64_t end = std::min(row + p_.piece, last);
            const T* g = nullptr;
            if (p_.a.begin != nullptr || p_.g != nullptr) g = product(row, end, buffer);
            if (p_.c != nullptr) transform(g, row, end);
            if (p_.right != nullptr) {
                const T* left = p_.left == nullptr ? g : static_cast<const T*>(p_.left) + row * p_.left_columns;
                transposed_product(left, p_.left_columns, static_cast<const T*>(p_.right) + row * p_.right_columns,
                                   p_.right_columns, end - row, partial(slice), true);
            }
            if (p_.summed != nullptr) {
                add_rows(static_cast<const T*>(p_.summed) + row * p_.summed_columns, end - row, p_.summed_columns,
                         partial_sums(slice));
            }
        }
    }

    // Gives G of rows begin .. end.
    const T* product(int64_t begin, int64_t end, T* buffer) const {
        T* const rows = p_.g == nullptr ? buffer : static_cast<T*>(p_.g) + begin * p_.width;
        if (p_.a.begin != nullptr) {
            sparse_.sum(nullptr, begin, end, static_cast<const T*>(p_.y),
                        tiles::without_rows_before(begin, rows, p_.width), false);
        }
        return rows;
    }

    void transform(const T* g, int64_t begin, int64_t end) const {
        T* const d = static_cast<T*>(p_.d) + begin * p_.out;
        const bool streams = p_.stream_d && p_.bias == nullptr;
        const TallGemm<T> product(g, nullptr, p_.width, static_cast<const T*>(p_.packed), p_.out, streams);
        product.multiply(0, end - begin, d, nullptr);
        if (p_.bias == nullptr) return;
        const T* const bias = static_cast<const T*>(p_.bias);
        for (int64_t row = 0; row < end - begin; ++row) {
            for (int64_t c = 0; c < p_.out; ++c) d[row * p_.out + c] += bias[c];
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
