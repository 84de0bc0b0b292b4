// Sums of the lanes of several vectors of float at once: N vectors become one vector of N lanes.

#pragma once

#include <array>
#include <utility>

#include "vector.hpp"

namespace sparloom {

template <int N>
struct Floats {
    typedef float type __attribute__((vector_size(4 * N)));
    typedef float unaligned __attribute__((vector_size(4 * N), aligned(4), may_alias));
};

// Each vector holds partial sums in blocks of `Block` lanes, one block per result: [x0 x0 x1 x1] with blocks of two.
namespace lane_sums {

// The lane from which lane `to` of a vector with half as large blocks is taken; the other half of its block is Block / 2
// lanes further on.
constexpr int lane(int block, int to) { return to / (block / 2) * block + to % (block / 2); }

// [x x x x], [y y y y] -> [x x y y]
template <int Block, int... To>
[[gnu::always_inline]] inline Vec<float> join(Vec<float> x, Vec<float> y, std::integer_sequence<int, To...>) {
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

template <int Block, int N>
[[gnu::always_inline]] inline auto reduce(const std::array<Vec<float>, N>& parts) {
    if constexpr (N == 1) {
        return shrink<Block, kLanes<float>>(parts[0]);
    } else {
        std::array<Vec<float>, N / 2> joined;
#pragma GCC unroll 16
        for (int n = 0; n < N / 2; ++n) {
            joined[n] = join<Block>(parts[2 * n], parts[2 * n + 1], std::make_integer_sequence<int, kLanes<float>>{});
        }
        return reduce<Block / 2, N / 2>(joined);
    }
}

}  // namespace lane_sums

// N: a power of two, at most kLanes.
template <int N>
[[gnu::always_inline]] inline typename Floats<N>::type sum_lanes(const std::array<Vec<float>, N>& vectors) {
    return lane_sums::reduce<kLanes<float>, N>(vectors);
}

}  // namespace sparloom
