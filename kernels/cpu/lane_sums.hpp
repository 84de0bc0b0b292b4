// Sums of the lanes of several vectors at once: N vectors become one vector of N lanes. T is float or double.

#pragma once

#include <array>
#include <utility>

#include "vector.hpp"

namespace sparloom {

template <typename T, int N>
struct Numbers {
    typedef T type __attribute__((vector_size(sizeof(T) * N)));
    typedef T unaligned __attribute__((vector_size(sizeof(T) * N), aligned(sizeof(T)), may_alias));
};

// Each vector holds partial sums in blocks of `Block` lanes, one block per result: [x0 x0 x1 x1] with blocks of two.
namespace lane_sums {

// The lane from which lane `to` of a vector with half as large blocks is taken; the other half of its block is Block / 2
// lanes further on.
constexpr int lane(int block, int to) { return to / (block / 2) * block + to % (block / 2); }

// [x x x x], [y y y y] -> [x x y y]
template <int Block, typename Wide, int... To>
[[gnu::always_inline]] inline Wide join(Wide x, Wide y, std::integer_sequence<int, To...>) {
    return __builtin_shufflevector(x, y, lane(Block, To)...) + __builtin_shufflevector(x, y, lane(Block, To) + Block / 2 ...);
}

// [x x y y] -> [x y]
template <int Block, typename Wide, int... To>
[[gnu::always_inline]] inline auto halve(Wide x, std::integer_sequence<int, To...>) {
    return __builtin_shufflevector(x, x, lane(Block, To)...) + __builtin_shufflevector(x, x, lane(Block, To) + Block / 2 ...);
}

template <int Block, int Width, typename Wide>
[[gnu::always_inline]] inline auto shrink(Wide x) {
    if constexpr (Block == 1) {
        return x;
    } else {
        return shrink<Block / 2, Width / 2>(halve<Block>(x, std::make_integer_sequence<int, Width / 2>{}));
    }
}

template <typename T, int Block, int N>
[[gnu::always_inline]] inline auto reduce(const std::array<Vec<T>, N>& parts) {
    if constexpr (N == 1) {
        return shrink<Block, kLanes<T>>(parts[0]);
    } else {
        std::array<Vec<T>, N / 2> joined;
#pragma GCC unroll 16
        for (int n = 0; n < N / 2; ++n) {
            joined[n] = join<Block>(parts[2 * n], parts[2 * n + 1], std::make_integer_sequence<int, kLanes<T>>{});
        }
        return reduce<T, Block / 2, N / 2>(joined);
    }
}

}  // namespace lane_sums

// N: a power of two, at most kLanes.
template <typename T, int N>
[[gnu::always_inline]] inline typename Numbers<T, N>::type sum_lanes(const std::array<Vec<T>, N>& vectors) {
    return lane_sums::reduce<T, kLanes<T>, N>(vectors);
}

}  // namespace sparloom
