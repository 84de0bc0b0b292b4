// Products over the heads of dense rows, which graph attention is made of.
//
// A dense row has `heads` parts of `width` columns. Numbers per edge and head (scores, weights) are stored edge after edge
// with `stride` numbers for each: a power of two up to a vector, or whole vectors, so that loops over them need no
// masks. A row is read in units whose products are summed to one vector each:
//
//   width 4, 8 ... below a vector     a unit is one vector of several heads; Block = width lanes belong to each
//   any other width                   a unit is one head, the last vector of which may be part of one; Block = all lanes

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "vector.hpp"

namespace sparloom::graph_attention {

template <typename T>
struct IntsOf {
    using Int = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
    typedef Int type __attribute__((vector_size(kVectorBytes)));
};
template <typename T>
using Ints = typename IntsOf<T>::type;

template <typename T>
constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();

// exp(x) for x <= 0 in every lane; 0 where the result is no normal number.
template <typename T>
inline Vec<T> exponential(Vec<T> x) {
    constexpr bool kFloat = sizeof(T) == 4;
    constexpr T kLeast = kFloat ? T(-87.3) : T(-708.3), kLog2E = T(1.4426950408889634);
    constexpr T kRound = kFloat ? T(12582912.0) : T(6755399441055744.0);  // adding 1.5 * 2^23 or 2^52 rounds to whole
    constexpr T kLog2Large = kFloat ? T(0.693359375) : T(6.93145751953125e-1);  // log(2) in two parts
    constexpr T kLog2Small = kFloat ? T(-2.12194440e-4) : T(1.42860682030941723212e-6);
    const Vec<T> in = x < kLeast ? broadcast(kLeast) : x;
    const Vec<T> shifted = in * kLog2E + kRound, whole = shifted - kRound;
    const Vec<T> rest = (in - whole * kLog2Large) - whole * kLog2Small;
    Vec<T> p;
    if constexpr (kFloat) {  // Cephes, as in exponential.hpp
        p = broadcast(T(1.9875691500e-4));
        for (const T c : {T(1.3981999507e-3), T(8.3334519073e-3), T(4.1665795894e-2), T(1.6666665459e-1),
                          T(5.0000001201e-1)}) {
            p = p * rest + c;
        }
    } else {  // the series of (exp(x) - 1 - x) / x^2, |x| <= log(2) / 2
        p = broadcast(T(1.0 / 6227020800.0));
        for (const T c : {T(1.0 / 479001600.0), T(1.0 / 39916800.0), T(1.0 / 3628800.0), T(1.0 / 362880.0),
                          T(1.0 / 40320.0), T(1.0 / 5040.0), T(1.0 / 720.0), T(1.0 / 120.0), T(1.0 / 24.0),
                          T(1.0 / 6.0), T(0.5)}) {
            p = p * rest + c;
        }
    }
    // the low bits of `shifted` are the whole number: put it into the exponent of 1
    const Ints<T> number = reinterpret_cast<Ints<T>>(shifted) - reinterpret_cast<Ints<T>>(broadcast(kRound));
    const Ints<T> bits = (number + (kFloat ? 127 : 1023)) << (kFloat ? 23 : 52);
    const Vec<T> result = (p * (rest * rest) + rest + T(1)) * reinterpret_cast<Vec<T>>(bits);
    return x < kLeast ? Vec<T>{} : result;
}

// Some vectors become one: blocks of `Block` lanes are summed, and lane n * (L / Block) + b holds block b of vector n.
namespace lanes {

template <typename T, int Block, int... To>
[[gnu::always_inline]] inline Vec<T> join(Vec<T> x, Vec<T> y, std::integer_sequence<int, To...>) {
    constexpr int half = Block / 2;
    return __builtin_shufflevector(x, y, (To / half * Block + To % half)...) +
           __builtin_shufflevector(x, y, (To / half * Block + To % half + half)...);
}

template <typename T, int Block, int N>
[[gnu::always_inline]] inline Vec<T> sum(const std::array<Vec<T>, N>& parts) {
    if constexpr (N == 1) {
        return parts[0];
    } else {
        std::array<Vec<T>, N / 2> joined;
#pragma GCC unroll 16
        for (int n = 0; n < N / 2; ++n) {
            joined[n] = join<T, Block>(parts[2 * n], parts[2 * n + 1], std::make_integer_sequence<int, kLanes<T>>{});
        }
        return sum<T, Block / 2, N / 2>(joined);
    }
}

template <typename T, int Block, int... To>
[[gnu::always_inline]] inline Vec<T> spread(Vec<T> x, std::integer_sequence<int, To...>) {
    return __builtin_shufflevector(x, x, (To / Block)...);
}

}  // namespace lanes

// Vectors at the end of a unit, of which some lanes may belong to no column.
template <typename T>
class Tail {
   public:
    explicit Tail(int64_t count) : whole_(count == kLanes<T>), lanes_(count) {}

    Vec<T> load(const T* from) const { return whole_ ? sparloom::load(from) : lanes_.load(from); }

    void store(T* to, Vec<T> value) const {
        if (whole_) {
            sparloom::store(to, value);
        } else {
            lanes_.store(to, value);
        }
    }

   private:
    bool whole_;
    Lanes<T> lanes_;
};

// Lanes of a unit for rows of this shape.
template <typename T>
int block_of(int64_t heads, int64_t width) {
    const bool several = width >= 4 && width < kLanes<T> && (width & (width - 1)) == 0 && heads * width >= kLanes<T>;
    return several ? static_cast<int>(width) : kLanes<T>;
}

// Numbers per edge.
template <typename T>
int64_t stride_of(int64_t heads) {
    if (heads > kLanes<T>) return (heads + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
    int64_t stride = 1;
    while (stride < heads) stride *= 2;
    return stride;
}

// Some rows, `count` of them, anywhere in memory.
template <typename T>
struct Gathered {
    const T* const* rows;
    int64_t count;
};

template <typename T, int Block>
class Heads {
   public:
    static constexpr int kEach = kLanes<T> / Block;  // heads of a unit

    Heads(int64_t heads, int64_t width)
        : total_(heads * width), stride_(std::max<int64_t>(stride_of<T>(heads), kEach)),
          units_((heads + kEach - 1) / kEach), step_(kEach > 1 ? kLanes<T> : width),
          vectors_(kEach > 1 ? 1 : (width + kLanes<T> - 1) / kLanes<T>),
          tail_(kEach > 1 ? total_ - (units_ - 1) * kLanes<T> : width - (vectors_ - 1) * kLanes<T>) {}

    int64_t total() const { return total_; }
    int64_t stride() const { return stride_; }

    // numbers(n, h) = row n . fixed, over the columns of head h.
    void dots(const Gathered<T>& of, const T* fixed, T* numbers) const {
        products(of.count, numbers, [&](int64_t n, int64_t at, const auto& tail, Vec<T> sum) {
            return multiply_add<T>(tail.load(of.rows[n] + at), tail.load(fixed + at), sum);
        });
    }

    // numbers(n, h) = factors . leaky(row n + fixed), leaky(x) = x or slope * x if x <= 0.
    void leaky_dots(const Gathered<T>& of, const T* fixed, const T* factors, T slope, T* numbers) const {
        products(of.count, numbers, [&](int64_t n, int64_t at, const auto& tail, Vec<T> sum) {
            const Vec<T> x = tail.load(of.rows[n] + at) + tail.load(fixed + at);
            return multiply_add<T>(x > 0 ? x : x * slope, tail.load(factors + at), sum);
        });
    }

    // out += sum over n of weights(n, h) * row n.
    void mix(const Gathered<T>& of, const T* weights, T* out) const {
        each_strip([&](auto vectors, int64_t first, int64_t at, const Tail<T>& tail) {
            constexpr int V = decltype(vectors)::value;
            std::array<Vec<T>, V> sums;
            load_strip<V>(out + at, tail, sums);
            for (int64_t n = 0; n < of.count; ++n) {
                std::array<Vec<T>, V> weight, row;
                spread_strip<V>(weights + n * stride_ + first, weight);
                load_strip<V>(of.rows[n] + at, tail, row);
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) sums[v] = multiply_add<T>(weight[v], row[v], sums[v]);
            }
            store_strip<V>(out + at, tail, sums);
        });
    }

    // With x = row n + fixed and its slope s, 1 or `slope` if x <= 0: out += sum over n of weights(n, h) * s, and
    // leaky += sum over n of weights(n, h) * s * x, unless that is null.
    void mix_slopes(const Gathered<T>& of, const T* fixed, const T* weights, T slope, T* out, T* leaky) const {
        each_strip([&](auto vectors, int64_t first, int64_t at, const Tail<T>& tail) {
            constexpr int V = decltype(vectors)::value;
            std::array<Vec<T>, V> sums, products, own;
            load_strip<V>(out + at, tail, sums);
            load_strip<V>(leaky == nullptr ? out + at : leaky + at, tail, products);
            load_strip<V>(fixed + at, tail, own);
            for (int64_t n = 0; n < of.count; ++n) {
                std::array<Vec<T>, V> weight, row;
                spread_strip<V>(weights + n * stride_ + first, weight);
                load_strip<V>(of.rows[n] + at, tail, row);
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) {
                    const Vec<T> x = row[v] + own[v], share = x > 0 ? weight[v] : weight[v] * slope;
                    sums[v] += share;
                    products[v] = multiply_add<T>(share, x, products[v]);
                }
            }
            store_strip<V>(out + at, tail, sums);
            if (leaky != nullptr) store_strip<V>(leaky + at, tail, products);
        });
    }

    // out(n) = factors * weights(n, h) * s, with s as above: rows of `total` columns, one after the other.
    void slopes(const Gathered<T>& of, const T* fixed, const T* factors, const T* weights, T slope, T* out) const {
        each_strip([&](auto vectors, int64_t first, int64_t at, const Tail<T>& tail) {
            constexpr int V = decltype(vectors)::value;
            std::array<Vec<T>, V> own, factor;
            load_strip<V>(fixed + at, tail, own);
            load_strip<V>(factors + at, tail, factor);
            for (int64_t n = 0; n < of.count; ++n) {
                std::array<Vec<T>, V> weight, row;
                spread_strip<V>(weights + n * stride_ + first, weight);
                load_strip<V>(of.rows[n] + at, tail, row);
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) {
                    row[v] = (row[v] + own[v] > 0 ? weight[v] : weight[v] * slope) * factor[v];
                }
                store_strip<V>(out + n * total_ + at, tail, row);
            }
        });
    }

    // out = row + sum over k of numbers[k] * row k of a matrix.
    void transform(const T* row, const T* numbers, int64_t count, const T* matrix, T* out) const {
        each_strip([&](auto vectors, int64_t, int64_t at, const Tail<T>& tail) {
            constexpr int V = decltype(vectors)::value;
            std::array<Vec<T>, V> sums;
            load_strip<V>(row + at, tail, sums);
            for (int64_t k = 0; k < count; ++k) {
                std::array<Vec<T>, V> other;
                load_strip<V>(matrix + k * total_ + at, tail, other);
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) sums[v] = multiply_add<T>(broadcast(numbers[k]), other[v], sums[v]);
            }
            store_strip<V>(out + at, tail, sums);
        });
    }

    // out += sum over n < count of number(n) * row n of a matrix.
    template <typename Number>
    void combine(int64_t count, const T* matrix, const Number& number, T* out) const {
        each_strip([&](auto vectors, int64_t, int64_t at, const Tail<T>& tail) {
            constexpr int V = decltype(vectors)::value;
            std::array<Vec<T>, V> sums;
            load_strip<V>(out + at, tail, sums);
            for (int64_t n = 0; n < count; ++n) {
                std::array<Vec<T>, V> row;
                load_strip<V>(matrix + n * total_ + at, tail, row);
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) sums[v] = multiply_add<T>(broadcast(number(n)), row[v], sums[v]);
            }
            store_strip<V>(out + at, tail, sums);
        });
    }

    // row = factors(h) * row.
    void scale(const T* factors, T* row) const {
        each_strip([&](auto vectors, int64_t first, int64_t at, const Tail<T>& tail) {
            constexpr int V = decltype(vectors)::value;
            std::array<Vec<T>, V> factor, held;
            spread_strip<V>(factors + first, factor);
            load_strip<V>(row + at, tail, held);
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) held[v] *= factor[v];
            store_strip<V>(row + at, tail, held);
        });
    }

   private:
    static constexpr auto kSequence = std::make_integer_sequence<int, kLanes<T>>{};

    // Sums product(n, column, tail, sum so far) over the vectors of each unit, then over the lanes of each head.
    template <typename Product>
    void products(int64_t count, T* numbers, const Product& product) const {
        std::array<Vec<T>, Block> parts;
        const Tail<T> whole(kLanes<T>);
        const int64_t padded = stride_ / kEach;
        int filled = 0;
        const auto put = [&](Vec<T> part) {
            parts[filled++] = part;
            if (filled < Block) return;
            store(numbers, lanes::sum<T, Block, Block>(parts));
            numbers += kLanes<T>;
            filled = 0;
        };
        for (int64_t n = 0; n < count; ++n) {
            for (int64_t u = 0; u < units_; ++u) {
                Vec<T> sum{};
                int64_t at = u * step_;
                for (int64_t v = 1; v < vectors_; ++v, at += kLanes<T>) sum = product(n, at, whole, sum);
                put(product(n, at, kEach > 1 && u + 1 < units_ ? whole : tail_, sum));
            }
            for (int64_t u = units_; u < padded; ++u) put(Vec<T>{});
        }
        while (filled != 0) put(Vec<T>{});
    }

    // Calls work(vectors, first head, first column, tail) for parts of a row whose sums fit into registers.
    template <typename Work>
    void each_strip(const Work& work) const {
        const int64_t outer = kEach > 1 ? 1 : units_, inner = kEach > 1 ? units_ : vectors_;
        for (int64_t u = 0; u < outer; ++u) {
            for (int64_t v = 0; v < inner;) {
                const int64_t left = inner - v, some = left >= 4 ? 4 : left >= 2 ? 2 : 1;
                const int64_t first = kEach > 1 ? v * kEach : u, at = u * step_ + v * kLanes<T>;
                const Tail<T> tail = v + some == inner ? tail_ : Tail<T>(kLanes<T>);
                if (some == 4) {
                    work(std::integral_constant<int, 4>{}, first, at, tail);
                } else if (some == 2) {
                    work(std::integral_constant<int, 2>{}, first, at, tail);
                } else {
                    work(std::integral_constant<int, 1>{}, first, at, tail);
                }
                v += some;
            }
        }
    }

    template <int V>
    [[gnu::always_inline]] static void load_strip(const T* from, const Tail<T>& tail, std::array<Vec<T>, V>& to) {
#pragma GCC unroll 8
        for (int v = 0; v < V - 1; ++v) to[v] = load(from + v * kLanes<T>);
        to[V - 1] = tail.load(from + (V - 1) * kLanes<T>);
    }

    template <int V>
    [[gnu::always_inline]] static void store_strip(T* to, const Tail<T>& tail, const std::array<Vec<T>, V>& from) {
#pragma GCC unroll 8
        for (int v = 0; v < V - 1; ++v) store(to + v * kLanes<T>, from[v]);
        tail.store(to + (V - 1) * kLanes<T>, from[V - 1]);
    }

    // The numbers of the heads of a strip in the lanes of their columns.
    template <int V>
    [[gnu::always_inline]] static void spread_strip(const T* numbers, std::array<Vec<T>, V>& to) {
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            to[v] = kEach > 1 ? lanes::spread<T, Block>(load(numbers + v * kEach), kSequence) : broadcast(*numbers);
        }
    }

    const int64_t total_, stride_, units_, step_, vectors_;
    const Tail<T> tail_;
};

}  // namespace sparloom::graph_attention
