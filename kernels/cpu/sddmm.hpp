// Row kernels of SDDMM: the left factor of a row stays in registers, where it fits, while its nonzeros go by.
//
// A dot product is a vector of partial sums first, whose lanes are added up together with those of other nonzeros.
// `rows` takes groups in one row, and pairs at its end. `rows_on` takes one nonzero at a time and puts the vector aside
// until a group is full, over the ends of rows: in long ones no more than one row of C is being read at once. `flat`
// takes groups without regard to rows and reads both factors of each nonzero, so that no branch depends on the lengths
// of rows: narrow factors are faster so where rows are short. T is the type of numbers in memory.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "half.hpp"
#include "lane_sums.hpp"
#include "rows.hpp"
#include "vector.hpp"

namespace sparloom::sddmm {

constexpr int kVectors = kRegisters / 2;  // of the widest left factor in registers
constexpr int kRowsAhead = 2;             // whose left factor is prefetched
constexpr int kFlatVectors = 3;           // of the widest factors for `flat`
constexpr int64_t kFlatBlock = 512;       // nonzeros whose rows are listed at a time

template <typename T>
constexpr int kGroup = kLanes<T>;  // the largest

// The largest group, up to `wanted`, for which left factor and partial sums fit into the registers.
template <typename T>
constexpr int group(int wanted, int vectors) {
    int size = wanted < kGroup<T> ? wanted : kGroup<T>;
    while (size > 1 && size + vectors + 2 > kRegisters) size /= 2;
    return size;
}

template <typename T>
struct Factors {
    const T *left, *right;
    int64_t width;  // elements from one row to the next
    Lanes<T> last;  // columns in the last vector
    int64_t ahead;  // nonzeros between the one being multiplied and the one being prefetched; 0: none is
};

// A left factor of V vectors in registers.
template <typename T, int V, bool kPart>
class Held {
   public:
    [[gnu::always_inline]] Held(const T* left, const Factors<T>& factors) : last_(factors.last) {
#pragma GCC unroll 32
        for (int v = 0; v < V; ++v) left_[v] = read(left, v);
    }

    // Even and odd vectors apart, so that additions do not wait for each other.
    [[gnu::always_inline]] Vec<T> dot(const T* right) const {
        Vec<T> even = left_[0] * read(right, 0), odd{};
#pragma GCC unroll 32
        for (int v = 1; v < V; ++v) {
            Vec<T>& sum = v % 2 ? odd : even;
            sum += left_[v] * read(right, v);
        }
        return V == 1 ? even : even + odd;
    }

    template <int U>
    [[gnu::always_inline]] std::array<Vec<T>, U> dots(const std::array<const T*, U>& right) const {
        std::array<Vec<T>, U> sums;
#pragma GCC unroll 16
        for (int u = 0; u < U; ++u) {
            sums[u] = left_[0] * read(right[u], 0);
#pragma GCC unroll 32
            for (int v = 1; v < V; ++v) sums[u] += left_[v] * read(right[u], v);
        }
        return sums;
    }

    [[gnu::always_inline]] static void prefetch(const T* from, const Factors<T>&) {
#pragma GCC unroll 32
        for (int c = 0; c < V * kLanes<T>; c += kLine<T>) __builtin_prefetch(from + c);
    }

   private:
    [[gnu::always_inline]] Vec<T> read(const T* from, int v) const {
        return kPart && v == V - 1 ? last_.load(from + v * kLanes<T>) : load(from + v * kLanes<T>);
    }

    std::array<Vec<T>, V> left_;
    Lanes<T> last_;
};

// A left factor that is too wide for the registers: it is read again for every group, from the first cache.
template <typename T>
class Long {
   public:
    Long(const T* left, const Factors<T>& factors) : left_(left), factors_(factors) {}

    [[gnu::always_inline]] Vec<T> dot(const T* right) const { return dots<1>({right})[0]; }

    template <int U>
    [[gnu::always_inline]] std::array<Vec<T>, U> dots(const std::array<const T*, U>& right) const {
        constexpr int kChains = U < 8 ? 8 / U : 1;  // sums of a nonzero, so that additions do not wait for each other
        Vec<T> parts[U][kChains] = {};
        int64_t k = 0;
        for (; k + kChains * kLanes<T> <= factors_.width; k += kChains * kLanes<T>) {
#pragma GCC unroll 8
            for (int c = 0; c < kChains; ++c) {
                const Vec<T> strip = load(left_ + k + c * kLanes<T>);
#pragma GCC unroll 16
                for (int u = 0; u < U; ++u) {
                    parts[u][c] = multiply_add<Sum<T>>(strip, load(right[u] + k + c * kLanes<T>), parts[u][c]);
                }
            }
        }
        for (; k < factors_.width; k += kLanes<T>) {
            const Lanes<T> rest(std::min<int64_t>(kLanes<T>, factors_.width - k));
            const Vec<T> strip = rest.load(left_ + k);
#pragma GCC unroll 16
            for (int u = 0; u < U; ++u) parts[u][0] = multiply_add<Sum<T>>(strip, rest.load(right[u] + k), parts[u][0]);
        }
        std::array<Vec<T>, U> sums;
#pragma GCC unroll 16
        for (int u = 0; u < U; ++u) {
            sums[u] = parts[u][0];
#pragma GCC unroll 8
            for (int c = 1; c < kChains; ++c) sums[u] += parts[u][c];
        }
        return sums;
    }

    static void prefetch(const T* from, const Factors<T>& factors) {
        for (int64_t k = 0; k < factors.width; k += kLine<T>) __builtin_prefetch(from + k);
    }

   private:
    const T* left_;
    const Factors<T>& factors_;
};

// Dot products put aside until there are as many as a vector has lanes. How many there are is a variable of the loop,
// as members stay in memory.
template <typename T>
struct Aside {
    std::array<Vec<T>, kGroup<T>> sums{};
    std::array<int64_t, 2 * kGroup<T>> places;  // in values and result; used where they do not follow each other

    // Those from `slot` on follow each other.
    void follow(int64_t slot, int64_t place) {
        for (int64_t u = 0; u < kGroup<T>; ++u) places[slot + u] = place + u;
    }

    // result[place] = sum of the lanes * values[place], as many as there can be, from one place on.
    [[gnu::always_inline]] void write(const T* values, T* result) const {
        store(result, sum_lanes<Sum<T>, kGroup<T>>(sums) * load(values));
    }

    void write_apart(int64_t count, const T* values, T* result) const {
        const Vec<T> whole = sum_lanes<Sum<T>, kGroup<T>>(sums);
        for (int64_t n = 0; n < count; ++n) result[places[n]] = narrow<T>(whole[n] * widen(values[places[n]]));
    }
};

// Gives the dot products of nonzeros n .. n + U to write(n, sums), a vector of U.
template <typename T, int U, typename Left, typename RightOf, typename Write>
[[gnu::always_inline]] inline void group_of(const Left& left, const RightOf& right_of, int64_t n, const Write& write) {
    std::array<const T*, U> right;
#pragma GCC unroll 16
    for (int u = 0; u < U; ++u) right[u] = right_of(n + u);
    write(n, sum_lanes<Sum<T>, U>(left.template dots<U>(right)));
}

// What the loops below need of Rows and Factors as variables, since the compiler believes that results may overwrite
// members.
template <typename T>
struct Walk {
    Walk(const Rows& rows, const Factors<T>& factors)
        : indptr(rows.indptr), source(rows.source), indices(rows.indices), place(rows.place),
          values(static_cast<const T*>(rows.values)), left(factors.left), right(factors.right),
          width(factors.width), ahead(factors.ahead), nnz(rows.nnz) {}

    const T* left_of(int64_t row) const { return left + place[row] * width; }
    const T* right_of(int64_t n) const { return right + indices[n] * width; }
    int64_t shift(int64_t row) const { return source[row] - indptr[row]; }  // from nonzeros here to those of the matrix

    // How far to prefetch in a row that ends there.
    int64_t ahead_of(int64_t to) const { return to + ahead <= nnz ? ahead : 0; }

    const int64_t *indptr, *source;
    const int32_t *indices, *place;
    const T *values, *left, *right;
    int64_t width, ahead, nnz;
};

// Nonzeros begin .. end of the rows first .. last; the first and the last nonzero may lie inside a row.
template <typename T, typename Left, int U>
void rows(const Rows& given, int64_t first, int64_t last, int64_t begin, int64_t end, const Factors<T>& factors,
          T* result) {
    const Walk<T> walk(given, factors);
    for (int64_t row = first; row < last; ++row) {
        const int64_t from = std::max(walk.indptr[row], begin), to = std::min(walk.indptr[row + 1], end);
        const int64_t shift = walk.shift(row), ahead = walk.ahead_of(to);
        if (walk.ahead != 0 && row + kRowsAhead < last) Left::prefetch(walk.left_of(row + kRowsAhead), factors);
        const Left left(walk.left_of(row), factors);
        const auto right_of = [&](int64_t n) { return walk.right_of(n); };
        const auto write = [&](int64_t n, auto sums) {
            constexpr int kSums = sizeof(sums) / sizeof(Sum<T>);
            using Group = typename Numbers<Sum<T>, kSums>::unaligned;
            const T* values = walk.values + n + shift;
            T* to = result + n + shift;
            if constexpr (std::is_same_v<T, Sum<T>>) {
                *reinterpret_cast<Group*>(to) = sums * *reinterpret_cast<const Group*>(values);
            } else if constexpr (kSums == kLanes<T>) {
                store(to, sums * load(values));
            } else {
                for (int u = 0; u < kSums; ++u) to[u] = narrow<T>(sums[u] * widen(values[u]));
            }
        };
        int64_t n = from;
        for (; n + U <= to; n += U) {
            if (ahead != 0) {
                for (int64_t m = n + ahead; m < n + ahead + U; ++m) Left::prefetch(walk.right_of(m), factors);
            }
            group_of<T, U>(left, right_of, n, write);
        }
        if (ahead != 0) {  // here, too: a function of its own that only prefetches is left out by gcc
            for (int64_t m = n + ahead; m < to + ahead; ++m) Left::prefetch(walk.right_of(m), factors);
        }
        if constexpr (U > 2) {
            for (; n + 2 <= to; n += 2) group_of<T, 2>(left, right_of, n, write);
        }
        for (; n < to; ++n) group_of<T, 1>(left, right_of, n, write);
    }
}

// As `rows`, with groups that go on over the ends of rows.
template <typename T, typename Left>
void rows_on(const Rows& given, int64_t first, int64_t last, int64_t begin, int64_t end, const Factors<T>& factors,
             T* result) {
    const Walk<T> walk(given, factors);
    Aside<T> aside;
    int64_t waiting = 0;  // dot products put aside
    int64_t next = 0;     // the place after the last of them
    bool apart = false;   // whether they do not follow each other
    for (int64_t row = first; row < last; ++row) {
        const int64_t from = std::max(walk.indptr[row], begin), to = std::min(walk.indptr[row + 1], end);
        const int64_t shift = walk.shift(row), ahead = walk.ahead_of(to);
        if (walk.ahead != 0 && row + kRowsAhead < last) Left::prefetch(walk.left_of(row + kRowsAhead), factors);
        const Left left(walk.left_of(row), factors);
        if (waiting != 0 && from + shift != next) {
            if (!apart) aside.follow(0, next - waiting);
            aside.follow(waiting, from + shift);
            apart = true;
        }
        next = to + shift;
        for (int64_t n = from; n < to; ++n) {
            if (ahead != 0) Left::prefetch(walk.right_of(n + ahead), factors);
            aside.sums[waiting] = left.dot(walk.right_of(n));
            if (++waiting < kGroup<T>) continue;
            if (apart) {
                aside.write_apart(kGroup<T>, walk.values, result);
            } else {
                const int64_t place = n + shift + 1 - kGroup<T>;
                aside.write(walk.values + place, result + place);
            }
            waiting = 0;
            apart = false;
        }
    }
    if (!apart) aside.follow(0, next - waiting);
    aside.write_apart(waiting, walk.values, result);
}

// owner[n - begin] = the row of nonzero n for begin <= n < end; gives the row that holds nonzero `end`, or ends there.
// Whole vectors are written, which the next row overwrites: short rows take one each, without a branch on their length.
inline int64_t list_rows(const int64_t* indptr, int64_t row, int64_t begin, int64_t end, int32_t* owner) {
    constexpr int kStep = kLanes<float>;
    using Group = typename Numbers<int32_t, kStep>::unaligned;
    for (int64_t from = begin;; ++row) {
        const int64_t to = indptr[row + 1], last = std::min(to, end);
        const Group same = static_cast<int32_t>(row) - Group{};
        do {
            *reinterpret_cast<Group*>(owner + from - begin) = same;
            from += kStep;
        } while (from < last);
        if (to >= end) return row;
        from = to;
    }
}

// As `rows_on`, for rows in stored order.
template <typename T, typename Left>
void flat(const Rows& given, int64_t first, int64_t, int64_t begin, int64_t end, const Factors<T>& factors,
           T* result) {
    constexpr int U = kGroup<T>;
    const Walk<T> walk(given, factors);
    int32_t owner[kFlatBlock + kLanes<float>];
    std::array<Vec<T>, U> sums{};
    const auto dot = [&](int64_t n, int32_t row) {
        return Left(walk.left + row * walk.width, factors).dot(walk.right_of(n));
    };
    for (int64_t from = begin, row = first; from < end; from += kFlatBlock) {
        const int64_t to = std::min(from + kFlatBlock, end);
        row = list_rows(walk.indptr, row, from, to, owner);
        int64_t n = from;
        for (; n + U <= to; n += U) {
            if (walk.ahead != 0 && n + walk.ahead + U <= walk.nnz) {
                for (int64_t m = n + walk.ahead; m < n + walk.ahead + U; ++m) Left::prefetch(walk.right_of(m), factors);
            }
#pragma GCC unroll 16
            for (int u = 0; u < U; ++u) sums[u] = dot(n + u, owner[n - from + u]);
            store(result + n, sum_lanes<Sum<T>, U>(sums) * load(walk.values + n));
        }
        if (n == to) continue;
        for (int64_t m = n; m < to; ++m) sums[m - n] = dot(m, owner[m - from]);
        const Vec<T> whole = sum_lanes<Sum<T>, U>(sums);
        for (int64_t m = n; m < to; ++m) result[m] = narrow<T>(whole[m - n] * widen(walk.values[m]));
    }
}

}  // namespace sparloom::sddmm
