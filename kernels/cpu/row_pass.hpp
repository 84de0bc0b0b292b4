// One pass over rows: a sparse product and the steps of a graph layer on its rows while they are in cache. All dense
// matrices are row-major without gaps.
//
//   for slices of rows                                            in parallel, on demand
//     for pieces of a slice                                       G of a piece fills part of the second cache
//       G = A Y                                                   (rows, width), Y (cols, width); or G is given
//       D = G C + R C2 + bias                                     (rows, out), C (width, out); without C: G + ..
//       S += L^T R2                                               (left, right), L (rows, left), R2 (rows, right)
//       sums += rows of L2                                        (summed)
//
// Every step may be omitted, but not both of the first two; L may be G. Each slice sums a separate S; these are added in
// the order of the slices, so the result does not depend on the timing of threads.
// Preconditions (checked by the native core): columns are in range; results overlap nothing else.

#pragma once

#include "arguments.hpp"
#include "csr.hpp"
#include "tall_gemm.hpp"
#include "tiles.hpp"

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

// Slices of the rows, pieces of a slice, and where everything is in the workspace.
template <typename T>
struct Plan {
    int64_t elements;  // work in elements of dense rows that are read or written
    int64_t count, piece, partial_size;
    int64_t buffer_size;  // of each thread, in elements
    int64_t slices, partials, partial_sums, packed, root_packed, buffers, room;  // in bytes

    explicit Plan(const RowPass& p) : partial_size(p.left_columns * p.right_columns) {
        const int64_t nonzeros = p.indptr == nullptr ? 0 : p.nnz;
        const int64_t columns =
            p.width + p.out + p.root_columns + p.left_columns + p.right_columns + p.summed_columns;
        const int64_t products = (p.c == nullptr ? 0 : p.width * p.out) + p.root_columns * p.out + partial_size;
        elements = nonzeros * p.width + p.rows * (columns + products / kDenseRate);
        const int64_t partial_bytes = std::max<int64_t>(1, partial_size * sizeof(T));
        count = elements < kGrain || p.threads == 1
            ? 1
            : std::min(std::max<int64_t>(p.threads, std::min(kSlices * p.threads, kPartialBytes / partial_bytes)),
                       std::max<int64_t>(1, p.rows));
        const int64_t widest = std::max({int64_t{1}, p.width, p.out, p.left_columns, p.right_columns});
        piece = std::min(std::max<int64_t>(16, kPieceBytes / (widest * int64_t{sizeof(T)})), int64_t{512});
        buffer_size = whole_vectors(piece * (p.width + p.out + p.left_columns), kLine<T>);
        room = 0;
        slices = take<int64_t>(count + 1);
        partials = count == 1 ? 0 : take<T>(count * partial_size);
        partial_sums = count == 1 ? 0 : take<T>(count * p.summed_columns);
        packed = take<T>(p.c == nullptr ? 0 : gemm::packed_size<T>(p.width, p.out));
        root_packed = take<T>(gemm::packed_size<T>(p.root_columns, p.out));
        buffers = take<T>((count == 1 ? 1 : p.threads) * buffer_size);
    }

   private:
    static constexpr int64_t kSlices = 8;                // of each thread
    static constexpr int64_t kPartialBytes = 4 << 20;    // of the partial S of all slices
    static constexpr int64_t kPieceBytes = 1 << 16;      // of G: a few times the first cache

    template <typename U>
    int64_t take(int64_t size) {
        const int64_t at = room;
        room += whole_vectors(size * int64_t{sizeof(U)}, 64);
        return at;
    }
};

template <typename T>
class Pass {
   public:
    explicit Pass(const RowPass& p)
        : p_(p), plan_(p), a_{p.indptr, p.indptr == nullptr ? nullptr : p.indptr + 1, p.indices, p.values, p.nnz},
          sparse_(a_, nullptr, p.width, kAhead, p.together, streams(p.g, p.width) && !uses()) {
        auto* const slices = at<int64_t>(plan_.slices);
        slices[0] = 0;
        for (int64_t slice = 1; slice < plan_.count; ++slice) slices[slice] = end_of(slice);
        slices[plan_.count] = p.rows;
        if (p.out > 0 && p.c != nullptr) pack(p.c, p.width, plan_.packed);
        if (p.root_columns > 0) pack(p.root_c, p.root_columns, plan_.root_packed);
    }

    void run() const {
        const bool common = true;  // slices are begun in their order
        const auto work = [&](int64_t slice, int32_t thread) {
            run_slice(slice, at<T>(plan_.buffers) + thread * plan_.buffer_size);
            fence();
        };
        share(plan_.count, plan_.count == 1 ? 1 : p_.threads, work, common);
        if (plan_.count == 1) return;
        if (p_.right_columns > 0) add_parts(partial(0), plan_.count, plan_.partial_size, p_.threads, static_cast<T*>(p_.s));
        if (p_.summed_columns > 0) {
            add_parts(partial_sums(0), plan_.count, p_.summed_columns, p_.threads, static_cast<T*>(p_.sums));
        }
    }

   private:
    static constexpr int64_t kAhead = 4096;  // bytes of Y that are prefetched
    static constexpr double kStreamShare = 0.25;  // of the caches, above which a result is stored past them
    static constexpr int64_t kRowWork = 4;     // of starting a row, in nonzeros
    static constexpr int64_t kDenseShare = 8;  // dense multiplications that cost as much as one nonzero

    // Whether another step reads G.
    bool uses() const { return p_.out > 0 || (p_.right_columns > 0 && p_.left == nullptr); }

    bool streams(const void* result, int64_t columns) const {
        return result != nullptr && static_cast<double>(p_.rows * columns * int64_t{sizeof(T)}) > kStreamShare * p_.cache_bytes;
    }

    template <typename U>
    U* at(int64_t offset) const {
        return reinterpret_cast<U*>(static_cast<char*>(p_.workspace) + offset);
    }

    void pack(const void* c, int64_t depth, int64_t to) const {
        gemm::pack(static_cast<const T*>(c), depth, p_.out, p_.c_transposed, at<T>(to));
    }

    // The first row of the next slice, so that slices have about equal work.
    int64_t end_of(int64_t slice) const {
        const int64_t dense = p_.out + p_.left_columns * p_.right_columns / std::max<int64_t>(1, p_.width);
        const int64_t row_work = kRowWork + dense / kDenseShare;
        const auto work = [&](int64_t row) { return row_work * row + (p_.indptr == nullptr ? 0 : p_.indptr[row]); };
        const double wanted = static_cast<double>(work(p_.rows)) * static_cast<double>(slice) / static_cast<double>(plan_.count);
        int64_t low = 0, high = p_.rows;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (static_cast<double>(work(middle)) < wanted) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }

    T* partial(int64_t slice) const {
        return plan_.count == 1 ? static_cast<T*>(p_.s) : at<T>(plan_.partials) + slice * plan_.partial_size;
    }
    T* partial_sums(int64_t slice) const {
        return plan_.count == 1 ? static_cast<T*>(p_.sums) : at<T>(plan_.partial_sums) + slice * p_.summed_columns;
    }

    void run_slice(int64_t slice, T* buffer) const {
        const int64_t first = at<int64_t>(plan_.slices)[slice], last = at<int64_t>(plan_.slices)[slice + 1];
        if (p_.right_columns > 0) std::fill_n(partial(slice), plan_.partial_size, T{0});
        if (p_.summed_columns > 0) std::fill_n(partial_sums(slice), p_.summed_columns, T{0});
        for (int64_t row = first; row < last; row += plan_.piece) {
            const int64_t end = std::min(row + plan_.piece, last);
            T* const transformed = buffer + plan_.piece * p_.width;
            T* g = nullptr;
            if (p_.indptr != nullptr || p_.g != nullptr) g = product(row, end, buffer);
            if (p_.out > 0) transform(g, row, end, transformed);
            if (p_.right_columns > 0) {
                const T* left = p_.left == nullptr ? g : static_cast<const T*>(p_.left) + row * p_.left_columns;
                TransposedProduct<T>::add(left, p_.left_columns,
                                          static_cast<const T*>(p_.right) + row * p_.right_columns, p_.right_columns,
                                          end - row, partial(slice), transformed + plan_.piece * p_.out);
            }
            if (g == buffer && p_.g != nullptr) {
                copy_rows<T>(g, end - row, p_.width, nullptr, streams(p_.g, p_.width),
                             static_cast<T*>(p_.g) + row * p_.width);
            }
            if (p_.summed_columns > 0) {
                add_rows(static_cast<const T*>(p_.summed) + row * p_.summed_columns, end - row, p_.summed_columns,
                         partial_sums(slice));
            }
        }
    }

    // Returns G of rows begin .. end: in the buffer if only this pass uses it, else in its array.
    T* product(int64_t begin, int64_t end, T* buffer) const {
        const bool here = p_.indptr != nullptr && (uses() || p_.g == nullptr);
        T* const rows = here ? buffer : static_cast<T*>(p_.g) + begin * p_.width;
        if (p_.indptr != nullptr) {
            sparse_.sum(nullptr, begin, end, static_cast<const T*>(p_.y),
                        tiles::without_rows_before(begin, rows, p_.width), false);
        }
        return rows;
    }

    // Rows begin .. end of D. Without C, those of G are D before the other terms are added.
    void transform(const T* g, int64_t begin, int64_t end, T* buffer) const {
        T* const d = static_cast<T*>(p_.d) + begin * p_.out;
        const int64_t rows = end - begin;
        const bool has_root = p_.root_columns > 0, past = streams(p_.d, p_.out);
        T* sums = p_.bias == nullptr ? d : buffer;
        if (has_root) {
            const T* const root = static_cast<const T*>(p_.root) + begin * p_.root_columns;
            TallGemm<T>(root, nullptr, p_.root_columns, at<T>(plan_.root_packed), p_.out, false)
                .multiply(0, rows, sums, nullptr);
        }
        if (p_.c != nullptr) {
            TallGemm<T>(g, nullptr, p_.width, at<T>(plan_.packed), p_.out, past, has_root).multiply(0, rows, sums, nullptr);
        } else if (has_root) {
            for (int64_t i = 0; i < rows * p_.out; ++i) sums[i] += g[i];
        }
        const T* const source = p_.c == nullptr && !has_root ? g : sums;
        if (source != d) copy_rows(source, rows, p_.out, static_cast<const T*>(p_.bias), past, d);
    }

    const RowPass p_;
    const Plan<T> plan_;
    const Csr a_;
    const ChosenRows<T> sparse_;
};

template <typename T>
void run(const RowPass& p) {
    Pass<T>(p).run();
}

}  // namespace sparloom::row_pass
