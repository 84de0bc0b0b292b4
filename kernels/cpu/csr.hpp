// Multiplies selected rows of a CSR operand by a dense one: fused loops read their rows through lists.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "spmm.hpp"

extern "C" {

struct Csr {
    const int64_t *begin, *end;  // (rows) begin and end of the nonzeros of a row
    const int32_t* indices;      // (nnz) columns, of a row in any order
    const void* values;          // (nnz)
    int64_t nnz;
};

}  // extern "C"

namespace sparloom::spmm {

// What is added to a product: row places[r], or r, to that of row r of the operand; nothing if `rows` is null.
template <typename T>
struct Addend {
    const T* rows;
    const int32_t* places;
};

// Rows list[k], or rows k without a list; row r of the operand is row places[r] of the result, or r. See spmm.hpp.
template <typename T>
struct Chosen {
    using Element = T;
    Csr matrix;
    const int32_t *list, *places;
    Addend<T> added;
    int64_t width;
    int64_t most;  // rows that are summed together if they have the same columns

    int64_t row(int64_t k) const { return list == nullptr ? k : list[k]; }
    const int32_t* columns(int64_t k) const { return matrix.indices + matrix.begin[row(k)]; }
    const T* values(int64_t k) const { return static_cast<const T*>(matrix.values) + matrix.begin[row(k)]; }
    int64_t count(int64_t k) const { return matrix.end[row(k)] - matrix.begin[row(k)]; }
    int64_t place(int64_t k) const { return at(places, row(k)); }
    bool follow(int64_t k, int64_t ahead) const { return matrix.end[row(k)] + ahead <= matrix.nnz; }

    const T* addend(int64_t k) const {
        return added.rows == nullptr ? nullptr : added.rows + at(added.places, row(k)) * width;
    }

    int64_t equal(int64_t k, int64_t end) const {
        int64_t found = 1;
        while (found < most && k + found < end && same_columns(k, k + found)) ++found;
        return found;
    }

    bool same_columns(int64_t k, int64_t other) const {
        const int64_t nonzeros = count(k);
        if (nonzeros != count(other) || nonzeros == 0) return false;
        const int32_t *left = columns(k), *right = columns(other);
        return left[0] == right[0] && std::memcmp(left, right, nonzeros * sizeof(int32_t)) == 0;
    }

    static int64_t at(const int32_t* places, int64_t row) { return places == nullptr ? row : places[row]; }
};

// Products of one CSR operand, with any dense operand of `width` columns.
template <typename T>
class ChosenRows {
   public:
    // ahead: bytes of the dense operand that are prefetched; together: whether rows with equal columns are; streams:
    // whether results go past the caches, where they can.
    ChosenRows(const Csr& matrix, const int32_t* places, int64_t width, int64_t ahead, bool together, bool streams,
               const Addend<T>& added = {})
        : matrix_(matrix), places_(places), added_(added), width_(width), ahead_(ahead),
          most_(together ? kTogether : 1), streams_(streams) {}

    // Rows list[begin] .. list[end] of the operand, or rows begin .. end without a list. Row r of the dense operand is
    // at dense + r * width, likewise the result. `near`: the dense operand is in a cache, nothing is prefetched.
    void sum(const int32_t* list, int64_t begin, int64_t end, const T* dense, T* result, bool near) const {
        const Chosen<T> rows{matrix_, list, places_, added_, width_, most_};
        const Columns columns{width_, kWidest * kLanes<T>, near ? 0 : ahead_, streams_ && can_stream(result, width_)};
        for (int64_t k = begin; k < end; k += kBlock) {
            const int64_t last = std::min(k + kBlock, end);
            each_strip(columns, dense, result, [&](Store store, int64_t vectors, const Strip<T>& strip, int64_t) {
                kKernels.by_vectors[static_cast<int>(store)][vectors - 1](rows, k, last, strip);
            });
        }
    }

   private:
    static constexpr int64_t kBlock = 64;            // rows whose indices stay in the first cache from strip to strip
    static constexpr int kWidest = kRegisters / 4;   // vectors of a strip; for rows that are summed together

    using Kernel = void (*)(Chosen<T>, int64_t, int64_t, Strip<T>);

    struct Kernels {
        Kernel by_vectors[kStores][kWidest];
        template <int... V>
        constexpr explicit Kernels(std::integer_sequence<int, V...>)
            : by_vectors{{side_by_side<V + 1, Store::kWhole, Chosen<T>>...},
                         {side_by_side<V + 1, Store::kPart, Chosen<T>>...},
                         {side_by_side<V + 1, Store::kStream, Chosen<T>>...}} {}
    };

    static constexpr Kernels kKernels{std::make_integer_sequence<int, kWidest>{}};

    const Csr& matrix_;
    const int32_t* places_;
    const Addend<T> added_;
    int64_t width_, ahead_, most_;
    bool streams_;
};

}  // namespace sparloom::spmm
