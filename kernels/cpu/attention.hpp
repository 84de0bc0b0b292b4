// Attention of rows of a sparse matrix over their columns, a block of nonzeros at a time.
//
//   for blocks of a row's nonzeros
//     scores     query . keys[column]
//     weights    exp(score - peak); a higher peak scales down what there is already
//     result     += weights * values[column], spmm.hpp
//
// T is the type of numbers in memory; scores, weights and sums are of type Sum<T>. Scores of a block are all that is
// ever kept of them. Rows that fit a block together share one: exp is computed of
// all their scores at once. Source: online softmax, Milakov and Gimelshein 2018.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "exponential.hpp"
#include "sddmm.hpp"
#include "spmm.hpp"

namespace sparloom::attention {

constexpr int64_t kBlock = 128;   // nonzeros
constexpr int64_t kScores = 512;  // of rows that share a block, all heads
constexpr int kVectors = kRegisters / 2;
static_assert(kVectors == sddmm::kVectors && kVectors == spmm::kVectors);

template <typename F>
constexpr F kNothing = -std::numeric_limits<F>::infinity();  // the largest of no scores

// Softmax as far as it has come: the largest score, and the sum of exp(score - peak).
template <typename F>
struct State {
    F peak = kNothing<F>, total = 0;
};

// How much of a sum is left under a new peak; nothing where all scores were -infinity so far.
template <typename F>
inline F share_left(const State<F>& state, F peak) {
    return state.total == 0 ? 0 : exponential(state.peak - peak);
}

// As the kernels of sddmm.hpp, but for one row, in parts, without values: kept apart, as attention was slower with theirs.

// A part of a query that stays in registers, and the keys that it meets.
template <typename T>
struct Keys {
    const T* keys;  // from the first column of the part on
    int64_t lead;   // elements from one key to the next
    Lanes<T> last;  // columns in the last vector
    int64_t ahead;  // nonzeros between the one being multiplied and the one being prefetched; 0: none is
    bool first;     // part of the query
};

template <int V, bool kPart, typename T>
[[gnu::always_inline]] inline Vec<T> read(const T* from, int v, const Lanes<T>& last) {
    return kPart && v == V - 1 ? last.load(from + v * kLanes<T>) : load(from + v * kLanes<T>);
}

// scores[n] = what earlier parts gave + query . keys[columns[n]] for n < count <= U.
template <typename T, int V, bool kPart, int U>
[[gnu::always_inline]] inline void dots_of(const int32_t* columns, int64_t count, const std::array<Vec<T>, V>& query,
                                           const Keys<T>& at, Sum<T>* scores) {
    using Group = typename Numbers<Sum<T>, U>::unaligned;
    std::array<Vec<T>, U> parts;
#pragma GCC unroll 16
    for (int u = 0; u < U; ++u) {
        const T* key = at.keys + columns[u < count ? u : count - 1] * at.lead;
        Vec<T> sum{};
#pragma GCC unroll 32
        for (int v = 0; v < V; ++v) sum += query[v] * read<V, kPart>(key, v, at.last);
        parts[u] = sum;
    }
    auto sums = sum_lanes<Sum<T>, U>(parts);
    if (count == U) {
        Group& to = *reinterpret_cast<Group*>(scores);
        if (!at.first) sums += to;
        to = sums;
        return;
    }
    for (int64_t n = 0; n < count; ++n) scores[n] = at.first ? sums[n] : scores[n] + sums[n];
}

// The last nonzeros, at most U.
template <typename T, int V, bool kPart, int U>
[[gnu::always_inline]] inline void rest_of(const int32_t* columns, int64_t count, const std::array<Vec<T>, V>& query,
                                           const Keys<T>& at, Sum<T>* scores) {
    if constexpr (U == 1) {
        dots_of<T, V, kPart, 1>(columns, 1, query, at, scores);
    } else if (count > U / 2) {
        dots_of<T, V, kPart, U>(columns, count, query, at, scores);
    } else {
        rest_of<T, V, kPart, U / 2>(columns, count, query, at, scores);
    }
}

// scores[n] = what earlier parts gave + query . keys[columns[n]].
template <typename T, int V, bool kPart>
void dots(const int32_t* columns, int64_t count, const T* query, const Keys<T>& at, Sum<T>* scores) {
    constexpr int U = sddmm::group<T>(sddmm::kGroup<T>, V);
    std::array<Vec<T>, V> held;
#pragma GCC unroll 32
    for (int v = 0; v < V; ++v) held[v] = read<V, kPart>(query, v, at.last);
    int64_t n = 0;
    for (; n + U <= count; n += U) {
        if (at.ahead != 0) {
            for (int64_t m = n + at.ahead; m < n + at.ahead + U; ++m) {
                const T* key = at.keys + columns[m] * at.lead;
#pragma GCC unroll 32
                for (int c = 0; c < V * kLanes<T>; c += kLine<T>) __builtin_prefetch(key + c);
            }
        }
        dots_of<T, V, kPart, U>(columns + n, U, held, at, scores + n);
    }
    if (n < count) rest_of<T, V, kPart, U>(columns + n, count - n, held, at, scores + n);
}

// out = addend + sum over n of weights[n] * values[columns[n]]; a null addend is none.
template <typename T, int V, spmm::Store kStore>
void mix(const int32_t* columns, int64_t count, int64_t ahead, const Sum<T>* weights, const spmm::Strip<T>& strip,
         const Sum<T>* addend, Sum<T>* out) {
    spmm::sum<T, 1, V, kStore, Sum<T>, Sum<T>>(columns, count, ahead, {weights}, strip, {out}, {addend});
}

template <typename T>
struct Kernels {
    void (*dots)(const int32_t*, int64_t, const T*, const Keys<T>&, Sum<T>*);
    void (*mix)(const int32_t*, int64_t, int64_t, const Sum<T>*, const spmm::Strip<T>&, const Sum<T>*, Sum<T>*);
};

template <typename T>
struct Table {
    Kernels<T> whole[kVectors], part[kVectors];

    template <int... V>
    constexpr explicit Table(std::integer_sequence<int, V...>)
        : whole{kernels<V + 1, false>()...}, part{kernels<V + 1, true>()...} {}

    template <int V, bool kPart>
    static constexpr Kernels<T> kernels() {
        if constexpr (spmm::has_kernel<T>(V)) {
            return {dots<T, V, kPart>, mix<T, V, kPart ? spmm::Store::kPart : spmm::Store::kWhole>};
        } else {
            return {};
        }
    }
};

template <typename T>
constexpr Table<T> kTable{std::make_integer_sequence<int, kVectors>{}};

// Calls work(kernels, column, last) for every strip of `width` columns.
template <typename T, typename Work>
void each_strip(int64_t width, const Work& work) {
    for (int64_t column = 0, columns; column < width; column += columns) {
        columns = spmm::columns_with_kernel<T>(std::min<int64_t>(kVectors * kLanes<T>, width - column));
        const int64_t vectors = (columns + kLanes<T> - 1) / kLanes<T>;
        const auto& kernels = columns % kLanes<T> != 0 ? kTable<T>.part : kTable<T>.whole;
        work(kernels[vectors - 1], column, Lanes<T>(columns - (vectors - 1) * kLanes<T>));
    }
}

// Dense matrices with a row for each row or column of the sparse one: what one head sees of them.
template <typename T>
struct Head {
    const T *keys, *values;
    int64_t keys_lead, values_lead;  // elements from one row to the next
    int64_t width, value_width;
    Sum<T> scale;
    int64_t ahead;  // nonzeros whose rows are prefetched
};

// scores[n] = scale * query . keys[columns[n]]; gives the largest of them and `peak`.
template <typename T, typename F = Sum<T>>
inline F score(const Head<T>& head, const int32_t* columns, int64_t count, const T* query, int64_t ahead, F peak,
               F* scores) {
    each_strip<T>(head.width, [&](const Kernels<T>& kernels, int64_t column, Lanes<T> last) {
        const Keys<T> at{head.keys + column, head.keys_lead, last, ahead, column == 0};
        kernels.dots(columns, count, query + column, at, scores);
    });
#pragma omp simd reduction(max : peak)
    for (int64_t n = 0; n < count; ++n) {
        scores[n] *= head.scale;
        peak = scores[n] > peak ? scores[n] : peak;
    }
    return peak;
}

// What is taken off scores whose largest is `peak`.
template <typename F>
inline F base_of(F peak) {
    return peak == kNothing<F> ? 0 : peak;
}

// out = addend + sum over n of weights[n] * values[columns[n]]; a null addend is none.
template <typename T>
inline void mix_all(const Head<T>& head, const int32_t* columns, int64_t count, int64_t ahead, const Sum<T>* weights,
                    const Sum<T>* addend, Sum<T>* out) {
    each_strip<T>(head.value_width, [&](const Kernels<T>& kernels, int64_t column, Lanes<T> last) {
        const spmm::Strip<T> strip{head.values + column, nullptr, head.values_lead, column, last, ahead};
        kernels.mix(columns, count, ahead, weights, strip, addend == nullptr ? nullptr : addend + column, out + column);
    });
}

// scores[n] = exp(scale * query . keys[columns[n]] - the new peak), and the factor by which older ones shrink.
template <typename T, typename F = Sum<T>>
inline F weigh(const Head<T>& head, const int32_t* columns, int64_t count, const T* query, int64_t ahead,
               State<F>& state, F* scores) {
    const F peak = score(head, columns, count, query, ahead, state.peak, scores), base = base_of(peak);
    F sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t n = 0; n < count; ++n) {
        scores[n] = exponential(scores[n] - base);
        sum += scores[n];
    }
    const F kept = share_left(state, peak);
    state = {peak, state.total * kept + sum};
    return kept;
}

template <typename F>
inline void scale_row(F* row, int64_t width, F factor) {
    for (int64_t c = 0; c < width; ++c) row[c] *= factor;
}

// Attends to some nonzeros of a row, `follow` of which come after them in memory; out (value_width) is not divided by
// the total yet.
template <typename T, typename F = Sum<T>>
inline State<F> attend(const Head<T>& head, const int32_t* columns, int64_t count, int64_t follow, const T* query,
                       F* out) {
    State<F> state;
    F scores[kBlock];
    for (int64_t n = 0; n < count; n += kBlock) {
        const int64_t some = std::min(kBlock, count - n);
        const int64_t ahead = some + head.ahead <= count - n + follow ? head.ahead : 0;
        const F kept = weigh(head, columns + n, some, query, ahead, state, scores);
        if (n > 0 && kept != 1) scale_row(out, head.value_width, kept);
        mix_all(head, columns + n, some, ahead, scores, n > 0 ? out : nullptr, out);
    }
    if (count == 0) std::fill_n(out, head.value_width, F{0});
    return state;
}

// Where a row of the result is added up: in place, or in `spare` if its type is another than that of sums.
template <typename T>
inline Sum<T>* room_for_sums([[maybe_unused]] T* out, [[maybe_unused]] Sum<T>* spare) {
    if constexpr (std::is_same_v<T, Sum<T>>) {
        return out;
    } else {
        return spare;
    }
}

// Rounds a row of sums, or copies it unless it is in place.
template <typename T>
inline void put_row(const Sum<T>* sums, int64_t width, T* out) {
    if (static_cast<const void*>(sums) == out) return;
    int64_t c = 0;
    for (; c + kLanes<T> <= width; c += kLanes<T>) store(out + c, load(sums + c));
    for (; c < width; ++c) out[c] = narrow<T>(sums[c]);
}

// Adds what another part of the row came to.
template <typename F>
inline void merge(State<F>& state, F* out, const State<F>& other, const F* from, int64_t width) {
    const F peak = std::max(state.peak, other.peak);
    const F mine = share_left(state, peak), theirs = share_left(other, peak);
    for (int64_t c = 0; c < width; ++c) out[c] = out[c] * mine + from[c] * theirs;
    state = {peak, state.total * mine + other.total * theirs};
}

}  // namespace sparloom::attention
