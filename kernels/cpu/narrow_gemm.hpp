// Products of numbers of 16 and 8 bits, added up in 32 bits: C (rows, cols) = or += A (rows, depth) B (depth, cols).
//
// A lane of 32 bits of B holds kGroup successive rows of one column: element (k, c) is at
// b[k / kGroup * b_row + c * kGroup + k % kGroup]. As many successive numbers of a row of A are copied to all lanes.
// Sums of a register tile stay in registers while k runs over the whole depth, a multiple of kGroup.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "gemm.hpp"
#include "vector.hpp"

namespace sparloom::narrow {

using Bits = Vec<int32_t>;  // kGroup numbers in every lane

// Pairs of bfloat16, added up as float.
struct BfloatPairs {
    using Left = uint16_t;
    using Right = uint16_t;
    using Total = float;
    static constexpr int kGroup = 2;
#if defined(__AVX512BF16__)
    static constexpr bool kNative = true;
    using Factor = __m512bh;
    static Factor left(Bits bits) { return reinterpret_cast<Factor>(bits); }
    static Factor right(Bits bits) { return reinterpret_cast<Factor>(bits); }
    static Vec<float> add(Vec<float> sum, Factor a, Factor b) { return _mm512_dpbf16_ps(sum, a, b); }
#else
    static constexpr bool kNative = false;
    struct Factor {
        Vec<float> even, odd;
    };
    static Factor left(Bits bits) {
        const Bits upper = bits & static_cast<int32_t>(0xffff0000);
        return {reinterpret_cast<Vec<float>>(bits << 16), reinterpret_cast<Vec<float>>(upper)};
    }
    static Factor right(Bits bits) { return left(bits); }
    static Vec<float> add(Vec<float> sum, const Factor& a, const Factor& b) {
        return multiply_add<float>(a.odd, b.odd, multiply_add<float>(a.even, b.even, sum));
    }
#endif
};

// Four bytes by four signed bytes, added up as int32.
struct Bytes {
    using Left = uint8_t;
    using Right = int8_t;
    using Total = int32_t;
    static constexpr int kGroup = 4;
#if defined(__AVX512VNNI__)
    static constexpr bool kNative = true;
    using Factor = Bits;
    static Factor left(Bits bits) { return bits; }
    static Factor right(Bits bits) { return bits; }
    static Bits add(Bits sum, Factor a, Factor b) {
        return reinterpret_cast<Bits>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(a),
                                                          reinterpret_cast<__m512i>(b)));
    }
#elif defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))
    // Bytes at even and at odd places as numbers of 16 bits, of which neighbours are multiplied and added.
    static constexpr bool kNative = false;
    struct Factor {
        Bits even, odd;
    };
    static Factor left(Bits bits) { return {bits & 0x00ff00ff, (bits >> 8) & 0x00ff00ff}; }
    static Factor right(Bits bits) {
        typedef int16_t Words __attribute__((vector_size(kVectorBytes)));
        const Words words = reinterpret_cast<Words>(bits);
        return {reinterpret_cast<Bits>((words << 8) >> 8), reinterpret_cast<Bits>(words >> 8)};
    }
    static Bits add(Bits sum, const Factor& a, const Factor& b) {
        return sum + pairs(a.even, b.even) + pairs(a.odd, b.odd);
    }
#if defined(__AVX512BW__)
    static Bits pairs(Bits a, Bits b) {
        return reinterpret_cast<Bits>(_mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
    }
#else
    static Bits pairs(Bits a, Bits b) {
        return reinterpret_cast<Bits>(_mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
    }
#endif
#else
    static constexpr bool kNative = false;
    struct Factor {
        Bits bytes[4];
    };
    static Factor left(Bits bits) { return {{bits & 255, (bits >> 8) & 255, (bits >> 16) & 255, (bits >> 24) & 255}}; }
    static Factor right(Bits bits) {
        return {{(bits << 24) >> 24, (bits << 16) >> 24, (bits << 8) >> 24, bits >> 24}};
    }
    static Bits add(Bits sum, const Factor& a, const Factor& b) {
        for (int byte = 0; byte < 4; ++byte) sum += a.bytes[byte] * b.bytes[byte];
        return sum;
    }
#endif
};

template <typename P>
using Totals = Vec<typename P::Total>;

// Rows x Vectors sums. Without Whole, the last vector of each row holds `last` columns.
template <typename P, int Rows, int Vectors, bool Whole, gemm::Ahead AheadB>
void tile(int64_t groups, const typename P::Left* a, int64_t a_row, const typename P::Right* b, int64_t b_row,
          typename P::Total* c, int64_t c_row, int64_t last, bool add) {
    constexpr int kLanes32 = kLanes<float>;
    const Lanes<float> part(last);
    Totals<P> sums[Rows][Vectors] = {};
    const typename P::Left* third[(Rows + 2) / 3];  // every third row
#pragma GCC unroll 4
    for (int r = 0; r < Rows; r += 3) third[r / 3] = a + r * a_row;
    for (int64_t g = 0; g < groups; ++g) {
        typename P::Factor right[Vectors];
        const auto* from = reinterpret_cast<const float*>(b + g * b_row);
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
            right[v] = P::right(reinterpret_cast<Bits>(Whole || v < Vectors - 1 ? load(from + v * kLanes32)
                                                                                : part.load(from + v * kLanes32)));
            if (v * kLanes32 % kLine<float> == 0) {
                __builtin_prefetch(from + gemm::kAhead / sizeof(float) + v * kLanes32, 0,
                                   AheadB == gemm::Ahead::kFar ? 2 : 3);
            }
        }
#pragma GCC unroll 64
        for (int r = 0; r < Rows; ++r) {
            int32_t numbers;
            std::memcpy(&numbers, third[r / 3] + r % 3 * a_row, sizeof numbers);
            const typename P::Factor left = P::left(broadcast(numbers));
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v) sums[r][v] = P::add(sums[r][v], left, right[v]);
        }
#pragma GCC unroll 4
        for (auto*& row : third) {
            row += P::kGroup;
            asm("" : "+r"(row));  // else compilers make a pointer of each row, more than there are registers
        }
    }
#pragma GCC unroll 64
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
            typename P::Total* to = c + r * c_row + v * kLanes32;
            const bool whole = Whole || v < Vectors - 1;
            if (add) {
                Totals<P> before;
                if (whole) {
                    before = load(to);
                } else {
                    before = reinterpret_cast<Totals<P>>(part.load(reinterpret_cast<const float*>(to)));
                }
                sums[r][v] += before;
            }
            if (whole) {
                store(to, sums[r][v]);
            } else {
                part.store(reinterpret_cast<float*>(to), reinterpret_cast<Vec<float>>(sums[r][v]));
            }
        }
    }
}

template <typename P>
class Product {
   public:
    static void run(int64_t rows, int64_t cols, int64_t depth, const typename P::Left* a, int64_t a_row,
                    const typename P::Right* b, int64_t b_row, typename P::Total* c, int64_t c_row, bool add) {
        for (int64_t column = 0; column < cols; column += kPanel) {
            const int64_t columns = std::min(kPanel, cols - column);
            const int64_t vectors = (columns + kLanes<float> - 1) / kLanes<float>;
            const int64_t last = columns - (vectors - 1) * kLanes<float>;
            const bool whole = last == kLanes<float>;
            const int64_t tall = whole ? kTall : kShort;
            for (int64_t left = (rows + tall - 1) / tall, row = 0; left > 0; --left) {  // tiles of nearly one height
                const int64_t height = (rows - row + left - 1) / left;
                const Tile* const tiles = (whole ? row == 0 ? kFirst : kLater : kPart)[vectors - 1].data();
                tiles[height - 1](depth / P::kGroup, a + row * a_row, a_row, b + column * P::kGroup, b_row,
                                  c + row * c_row + column, c_row, last, add);
                row += height;
            }
        }
    }

   private:
    using Tile = void (*)(int64_t, const typename P::Left*, int64_t, const typename P::Right*, int64_t,
                          typename P::Total*, int64_t, int64_t, bool);

    // Rows of the tallest tile: so many that its sums, two vectors of B and one of A fit into the registers. Where numbers
    // are converted, each of these vectors takes two registers. Tiles at the right border are short.
    static constexpr int kTall = kRegisters == 16 ? (P::kNative ? 6 : 4) : 12, kShort = 4, kVectors = 2;
    static constexpr int64_t kPanel = kVectors * kLanes<float>;

    template <int Vectors, bool Whole, gemm::Ahead B, int... R>
    static constexpr std::array<Tile, kTall> by_height(std::integer_sequence<int, R...>) {
        return {tile<P, R + 1, Vectors, Whole, B>...};
    }

    using Tiles = std::array<std::array<Tile, kTall>, kVectors>;

    template <bool Whole, gemm::Ahead B>
    static constexpr Tiles all() {
        constexpr auto heights = std::make_integer_sequence<int, Whole ? kTall : kShort>{};
        return {by_height<1, Whole, B>(heights), by_height<2, Whole, B>(heights)};
    }

    static constexpr Tiles kFirst = all<true, gemm::Ahead::kFar>(), kLater = all<true, gemm::Ahead::kNear>();
    static constexpr Tiles kPart = all<false, gemm::Ahead::kNear>();  // up to kShort rows
};

}  // namespace sparloom::narrow
