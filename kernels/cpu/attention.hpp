// Attention of rows of a sparse matrix over their columns, a block of nonzeros at a time.
//
//   for blocks of a row's nonzeros
//     scores     query . keys[column]
//     weights    exp(score - peak); a higher peak scales down what there is already
//     result     += weights * values[column], spmm.hpp
//
// So scores of a block are all that is ever kept of them. Rows that fit a block together share one: exp is computed of
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

constexpr float kNothing = -std::numeric_limits<float>::infinity();  // the largest of no scores

// Softmax as far as it has come: the largest score, and the sum of exp(score - peak).
struct State {
    float peak = kNothing, total = 0.0f;
};

// How much of a sum is left under a new peak; nothing where all scores were -infinity so far.
inline float share_left(const State& state, float peak) {
    return state.total == 0.0f ? 0.0f : exponential(state.peak - peak);
}

// As the kernels of sddmm.hpp, but for one row, in parts, without values: kept apart, as attention was slower with theirs.

// A part of a query that stays in registers, and the keys that it meets.
struct Keys {
    const float* keys;  // from the first column of the part on
    int64_t lead;       // floats from one key to the next
    Lanes<float> last;  // columns in the last vector
    int64_t ahead;      // nonzeros between the one being multiplied and the one being prefetched; 0: none is
    bool first;         // part of the query
};

template <int V, bool kPart>
[[gnu::always_inline]] inline Vec<float> read(const float* from, int v, const Lanes<float>& last) {
    return kPart && v == V - 1 ? last.load(from + v * kLanes<float>) : load(from + v * kLanes<float>);
}

// scores[n] = what earlier parts gave + query . keys[columns[n]] for n < count <= U.
template <int V, bool kPart, int U>
[[gnu::always_inline]] inline void dots_of(const int32_t* columns, int64_t count,
                                           const std::array<Vec<float>, V>& query, const Keys& at, float* scores) {
    using Group = typename Floats<U>::unaligned;
    std::array<Vec<float>, U> parts;
#pragma GCC unroll 16
    for (int u = 0; u < U; ++u) {
        const float* key = at.keys + columns[u < count ? u : count - 1] * at.lead;
        Vec<float> sum{};
#pragma GCC unroll 32
        for (int v = 0; v < V; ++v) sum += query[v] * read<V, kPart>(key, v, at.last);
        parts[u] = sum;
    }
    auto sums = sum_lanes<U>(parts);
    if (count == U) {
        Group& to = *reinterpret_cast<Group*>(scores);
        if (!at.first) sums += to;
        to = sums;
        return;
    }
    for (int64_t n = 0; n < count; ++n) scores[n] = at.first ? sums[n] : scores[n] + sums[n];
}

// The last nonzeros, at most U.
template <int V, bool kPart, int U>
[[gnu::always_inline]] inline void rest_of(const int32_t* columns, int64_t count,
                                           const std::array<Vec<float>, V>& query, const Keys& at, float* scores) {
    if constexpr (U == 1) {
        dots_of<V, kPart, 1>(columns, 1, query, at, scores);
    } else if (count > U / 2) {
        dots_of<V, kPart, U>(columns, count, query, at, scores);
    } else {
        rest_of<V, kPart, U / 2>(columns, count, query, at, scores);
    }
}

// scores[n] = what earlier parts gave + query . keys[columns[n]].
template <int V, bool kPart>
void dots(const int32_t* columns, int64_t count, const float* query, const Keys& at, float* scores) {
    constexpr int U = sddmm::group(sddmm::kGroup, V);
    std::array<Vec<float>, V> held;
#pragma GCC unroll 32
    for (int v = 0; v < V; ++v) held[v] = read<V, kPart>(query, v, at.last);
    int64_t n = 0;
    for (; n + U <= count; n += U) {
        if (at.ahead != 0) {
            for (int64_t m = n + at.ahead; m < n + at.ahead + U; ++m) {
                const float* key = at.keys + columns[m] * at.lead;
#pragma GCC unroll 32
                for (int c = 0; c < V * kLanes<float>; c += kLine<float>) __builtin_prefetch(key + c);
            }
        }
        dots_of<V, kPart, U>(columns + n, U, held, at, scores + n);
    }
    if (n < count) rest_of<V, kPart, U>(columns + n, count - n, held, at, scores + n);
}

// out = addend + sum over n of weights[n] * values[columns[n]]; a null addend is none.
template <int V, spmm::Store kStore>
void mix(const int32_t* columns, int64_t count, int64_t ahead, const float* weights, const spmm::Strip<float>& strip,
         const float* addend, float* out) {
    spmm::sum<float, 1, V, kStore>(columns, count, ahead, {weights}, strip, {out}, {addend});
}

struct Kernels {
    void (*dots)(const int32_t*, int64_t, const float*, const Keys&, float*);
    void (*mix)(const int32_t*, int64_t, int64_t, const float*, const spmm::Strip<float>&, const float*, float*);
};

struct Table {
    Kernels whole[kVectors], part[kVectors];

    template <int... V>
    constexpr explicit Table(std::integer_sequence<int, V...>)
        : whole{{dots<V + 1, false>, mix<V + 1, spmm::Store::kWhole>}...},
          part{{dots<V + 1, true>, mix<V + 1, spmm::Store::kPart>}...} {}
};

constexpr Table kTable{std::make_integer_sequence<int, kVectors>{}};

// Calls work(kernels, column, last) for every strip of `width` columns.
template <typename Work>
void each_strip(int64_t width, const Work& work) {
    constexpr int64_t strip = kVectors * kLanes<float>;
    for (int64_t column = 0; column < width; column += strip) {
        const int64_t columns = std::min(strip, width - column);
        const int64_t vectors = (columns + kLanes<float> - 1) / kLanes<float>;
        const auto& kernels = columns % kLanes<float> != 0 ? kTable.part : kTable.whole;
        work(kernels[vectors - 1], column, Lanes<float>(columns - (vectors - 1) * kLanes<float>));
    }
}

// Dense matrices with a row for each row or column of the sparse one: what one head sees of them.
struct Head {
    const float *keys, *values;
    int64_t keys_lead, values_lead;    // floats from one row to the next
    int64_t width, value_width;
    float scale;
    int64_t ahead;                     // nonzeros whose rows are prefetched
};

// scores[n] = scale * query . keys[columns[n]]; gives the largest of them and `peak`.
inline float score(const Head& head, const int32_t* columns, int64_t count, const float* query, int64_t ahead,
                   float peak, float* scores) {
    each_strip(head.width, [&](const Kernels& kernels, int64_t column, Lanes<float> last) {
        const Keys at{head.keys + column, head.keys_lead, last, ahead, column == 0};
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
inline float base_of(float peak) { return peak == kNothing ? 0.0f : peak; }

// out = addend + sum over n of weights[n] * values[columns[n]]; a null addend is none.
inline void mix_all(const Head& head, const int32_t* columns, int64_t count, int64_t ahead, const float* weights,
                    const float* addend, float* out) {
    each_strip(head.value_width, [&](const Kernels& kernels, int64_t column, Lanes<float> last) {
        const spmm::Strip<float> strip{head.values + column, out, head.values_lead, column, last, ahead};
        kernels.mix(columns, count, ahead, weights, strip, addend == nullptr ? nullptr : addend + column, out + column);
    });
}

// scores[n] = exp(scale * query . keys[columns[n]] - the new peak), and the factor by which older ones shrink.
inline float weigh(const Head& head, const int32_t* columns, int64_t count, const float* query, int64_t ahead,
                   State& state, float* scores) {
    const float peak = score(head, columns, count, query, ahead, state.peak, scores), base = base_of(peak);
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t n = 0; n < count; ++n) {
        scores[n] = exponential(scores[n] - base);
        sum += scores[n];
    }
    const float kept = share_left(state, peak);
    state = {peak, state.total * kept + sum};
    return kept;
}

inline void scale_row(float* row, int64_t width, float factor) {
    for (int64_t c = 0; c < width; ++c) row[c] *= factor;
}

// Attends to some nonzeros of a row, `follow` of which come after them in memory; out (value_width) is not divided by
// the total yet.
inline State attend(const Head& head, const int32_t* columns, int64_t count, int64_t follow, const float* query,
                    float* out) {
    State state;
    float scores[kBlock];
    for (int64_t n = 0; n < count; n += kBlock) {
        const int64_t some = std::min(kBlock, count - n);
        const int64_t ahead = some + head.ahead <= count - n + follow ? head.ahead : 0;
        const float kept = weigh(head, columns + n, some, query, ahead, state, scores);
        if (n > 0 && kept != 1.0f) scale_row(out, head.value_width, kept);
        mix_all(head, columns + n, some, ahead, scores, n > 0 ? out : nullptr, out);
    }
    if (count == 0) std::fill_n(out, head.value_width, 0.0f);
    return state;
}

// Adds what another part of the row came to.
inline void merge(State& state, float* out, const State& other, const float* from, int64_t width) {
    const float peak = std::max(state.peak, other.peak);
    const float mine = share_left(state, peak), theirs = share_left(other, peak);
    for (int64_t c = 0; c < width; ++c) out[c] = out[c] * mine + from[c] * theirs;
    state = {peak, state.total * mine + other.total * theirs};
}

}  // namespace sparloom::attention
