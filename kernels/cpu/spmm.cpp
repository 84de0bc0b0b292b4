// D = A B: A (rows, cols) sparse, B (cols, width) and D (rows, width) row-major without gaps. All numbers are of type
// ELEMENT, float unless it is defined as double, Half or Bfloat; halves are added up in float.
//
//   for pieces of the rows of A                                   in parallel, rows.hpp
//     for blocks of 64 rows
//       for strips of columns, `strip` wide                       as many as half of the registers hold, at most
//         for rows of the block                                   row kernel, spmm.hpp
//
// A B with one column, of floats or doubles, has sums of its own: vectors would hold one number each.
// Pieces that share a row write the sums of their parts to `carries`; those are added up when all pieces are done.
// Preconditions (checked in Python): columns are in range; `carries` has 2 * width sums per piece if one is cut; D
// overlaps nothing else; ahead >= 0, strip >= 1.

#include <algorithm>
#include <type_traits>
#include <utility>

#include "arguments.hpp"
#include "spmm.hpp"

#ifndef ELEMENT
#define ELEMENT float
#endif

namespace sparloom::spmm {
namespace {

using T = ELEMENT;
using Carry = Sum<T>;

constexpr int64_t kBlock = 64;  // rows whose indices stay in the first cache from strip to strip

// The rows of struct Rows, as the kernels ask for them.
struct Ordered {
    using Element = T;
    Rows rows;
    bool mean;

    const int32_t* columns(int64_t k) const { return rows.indices + rows.indptr[k]; }
    const T* values(int64_t k) const { return values_of<T>(rows, k); }
    int64_t count(int64_t k) const { return rows.indptr[k + 1] - rows.indptr[k]; }
    int64_t place(int64_t k) const { return rows.place[k]; }
    Carry factor(int64_t k) const { return mean && count(k) != 0 ? Carry{1} / count(k) : Carry{1}; }
    const T* addend(int64_t) const { return nullptr; }
    int64_t equal(int64_t k, int64_t end) const { return std::min<int64_t>(end - k, rows.equal[k]); }
    bool follow(int64_t k, int64_t ahead) const { return rows.indptr[k + 1] + ahead <= rows.nnz; }
};

// Nonzeros begin .. end of one row, to any place.
template <int V, Store kStore>
void part(const Rows& rows, int64_t row, int64_t begin, int64_t end, const Strip<T>& strip, Carry* out) {
    const T* values = values_of<T>(rows, row) + (begin - rows.indptr[row]);
    const bool inside = end + strip.ahead <= rows.nnz;
    sum<T, 1, V, kStore, T, Carry>(rows.indices + begin, end - begin, inside ? strip.ahead : 0, {values}, strip, {out});
}

struct Kernel {
    void (*one_by_one)(Ordered, int64_t, int64_t, Strip<T>);
    void (*side_by_side)(Ordered, int64_t, int64_t, Strip<T>);
    void (*part)(const Rows&, int64_t, int64_t, int64_t, const Strip<T>&, Carry*);
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
        if constexpr (has_kernel<T>(V)) {
            return {one_by_one<V, kStore, Ordered>, side_by_side<V, kStore, Ordered>, spmm::part<V, kStore>};
        } else {
            return {};
        }
    }

    const Kernel& operator()(Store store, int64_t vectors) const {
        return by_vectors[static_cast<int>(store)][vectors - 1];
    }
};

constexpr Kernels kKernels{std::make_integer_sequence<int, kVectors>{}};

#if defined(__AVX512F__)

// The sum of `dot` by gathers, which are slower than single loads for doubles.
[[maybe_unused]] float gather_dot(const int32_t* columns, const float* values, int64_t count, const float* dense) {
    __m512 sums = _mm512_setzero_ps();
    for (int64_t n = 0; n < count; n += 16) {
        const __mmask16 mask = count - n >= 16 ? 0xffff : static_cast<__mmask16>((1u << (count - n)) - 1);
        const __m512i places = _mm512_maskz_loadu_epi32(mask, columns + n);
        const __m512 right = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask, places, dense, 4);
        sums = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, values + n), right, sums);
    }
    return _mm512_reduce_add_ps(sums);
}

#endif

// The sum of values[n] * dense[columns[n]]. Long ones are four sums that do not wait for each other; sums of short rows
// overlap, and a second loop for the rest would be mispredicted in every row.
template <typename Element>
Carry dot(const int32_t* columns, const Element* values, int64_t count, const Element* dense) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<Element, float>) return gather_dot(columns, values, count, dense);
#endif
    const auto product = [&](int64_t n) { return widen(values[n]) * widen(dense[columns[n]]); };
    Carry sums[4] = {};
    int64_t n = 0;
    if (count >= 64) {
        for (; n + 4 <= count; n += 4) {
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) sums[i] += product(n + i);
        }
    }
    Carry sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    for (; n < count; ++n) sum += product(n);
    return sum;
}

class Product {
   public:
    explicit Product(const Spmm& s)
        : s_(s),
          rows_{s.rows, s.mean != 0},
          columns_{s.width, std::min<int64_t>(s.strip, kVectors * kLanes<T>), s.ahead,
                   s.stream && can_stream(result(), s.width)} {}

    void piece(int32_t p) const {
        const Rows& rows = s_.rows;
        int64_t first = rows.piece_rows[p];
        const int64_t last = rows.piece_rows[p + 1], begin = rows.piece_nonzeros[p], end = rows.piece_nonzeros[p + 1];
        if (is_cut(rows, p)) {
            part(first, begin, std::min(rows.indptr[first + 1], end), carry(2 * p));
            ++first;
        }
        for (int64_t row = first; row < last; row += kBlock) block(row, std::min(row + kBlock, last));
        if (begins_next(rows, p)) part(last, rows.indptr[last], end, carry(2 * p + 1));
        if (columns_.streams) fence();
    }

    void add_carries() const {
        each_shared_row(s_.rows, [&](int64_t row, int32_t p, int32_t end) {
            Carry* const sums = carry(2 * p + 1);
            for (int32_t q = p + 1; q < end; ++q) {
                const Carry* from = carry(2 * q);
                for (int64_t column = 0; column < s_.width; ++column) sums[column] += from[column];
            }
            T* const to = result() + s_.rows.place[row] * s_.width;
            const Carry factor = rows_.factor(row);
            for (int64_t column = 0; column < s_.width; ++column) to[column] = narrow<T>(sums[column] * factor);
        });
    }

   private:
    T* result() const { return static_cast<T*>(s_.result); }
    Carry* carry(int64_t number) const { return static_cast<Carry*>(s_.carries) + number * s_.width; }

    template <typename Work>
    void strips(const Work& work) const {
        each_strip<kAnyVectors<T>>(columns_, static_cast<const T*>(s_.dense), result(), work);
    }

    void block(int64_t first, int64_t last) const {
        if (s_.width == 1) {
            const T* const dense = static_cast<const T*>(s_.dense);
            for (int64_t k = first; k < last; ++k) {
                const Carry sum = dot(rows_.columns(k), rows_.values(k), rows_.count(k), dense);
                result()[rows_.place(k)] = narrow<T>(std::is_same_v<T, Carry> ? sum : sum * rows_.factor(k));
            }
            return;
        }
        strips([&](Store store, int64_t vectors, const Strip<T>& strip, int64_t) {
            const Kernel& kernel = kKernels(store, vectors);
            (s_.together ? kernel.side_by_side : kernel.one_by_one)(rows_, first, last, strip);
        });
    }

    void part(int64_t row, int64_t begin, int64_t end, Carry* out) const {
        if (s_.width == 1) {
            *out = dot(s_.rows.indices + begin, values_of<T>(s_.rows, row) + (begin - s_.rows.indptr[row]), end - begin,
                       static_cast<const T*>(s_.dense));
            return;
        }
        strips([&](Store store, int64_t vectors, const Strip<T>& strip, int64_t column) {
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
