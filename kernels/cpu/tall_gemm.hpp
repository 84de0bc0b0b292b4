// A tall matrix times a small one: rows of X (rows, depth) times Y (depth, width), where Y is packed once for all rows.
//
//   for chunks of rows of X                                       gathered, if the rows are chosen by a list
//     for blocks of k                                             one, unless Y is large
//       for panels of Y, kPanel columns wide
//         for rows of the chunk                                   register tile, gemm.hpp
//
// A panel stores the vectors of its columns contiguously for each k of its block; columns past the last are zeros.

#pragma once

#include <algorithm>
#include <cstdint>

#include "gemm.hpp"

namespace sparloom::gemm {

constexpr int64_t kDepth = 512;  // of a block of k: its panel and the rows that meet it fill half of a second cache
constexpr int64_t kChunk = 48;   // rows that are multiplied by all panels before the next rows
constexpr int kPanelVectors = kRegisters / 8;

// Rows of the register tile with this many vectors: three quarters of the registers are sums.
constexpr int tall_rows(int vectors) {
    const int rows = kRegisters * 3 / 4 / vectors;
    return rows < 12 ? rows : 12;
}

constexpr int64_t whole_vectors(int64_t columns, int64_t lanes) { return (columns + lanes - 1) / lanes * lanes; }

// Elements of Y when it is packed.
template <typename T>
constexpr int64_t packed_size(int64_t depth, int64_t width) {
    return depth * whole_vectors(width, kLanes<T>);
}

// Packs Y, given as it is or as its transpose (width, depth).
template <typename T>
void pack(const T* y, int64_t depth, int64_t width, bool transposed, T* to) {
    constexpr int64_t panel = kPanelVectors * kLanes<T>;
    for (int64_t k = 0; k < depth; k += kDepth) {
        const int64_t last = std::min(k + kDepth, depth);
        for (int64_t column = 0; column < width; column += panel) {
            const int64_t columns = std::min(panel, width - column), padded = whole_vectors(columns, kLanes<T>);
            for (int64_t row = k; row < last; ++row, to += padded) {
                std::fill(to + columns, to + padded, T{0});
                for (int64_t c = 0; c < columns; ++c) {
                    to[c] = transposed ? y[(column + c) * depth + row] : y[row * width + column + c];
                }
            }
        }
    }
}

template <typename T>
class TallGemm {
   public:
    // list: row i of X is x[list[i]], null: x[i]; streams: whether results are streamed past the caches if possible;
    // adds: to what is in the result, which is then not streamed.
    TallGemm(const T* x, const int32_t* list, int64_t depth, const T* packed, int64_t width, bool streams,
             bool adds = false)
        : x_(x), list_(list), packed_(packed), depth_(depth), width_(width), streams_(streams && !adds), adds_(adds) {}

    // Elements of the buffer that `multiply` needs.
    static int64_t buffer_size(int64_t depth, bool listed) { return listed ? kChunk * depth : 0; }

    // Rows begin .. end; row i of the result is at result + i * width.
    void multiply(int64_t begin, int64_t end, T* result, T* buffer) const {
        for (int64_t row = begin; row < end; row += kChunk) {
            const int64_t count = std::min(kChunk, end - row);
            const T* x = list_ == nullptr ? x_ + row * depth_ : gathered(row, count, buffer);
            chunk(x, count, result + row * width_);
        }
    }

   private:
    static constexpr int64_t kPanel = kPanelVectors * kLanes<T>;
    static constexpr int kUnroll = 4;
    static constexpr int64_t kRowsAhead = 256;  // bytes of a row of X from which on the next rows are prefetched

    using Tile = void (*)(int64_t, const T*, int64_t, const T*, int64_t, T*, int64_t, bool);

    template <bool Ahead, bool Streams>
    struct Tiles {
        Tile by_vectors[kPanelVectors];
        template <int... V>
        constexpr explicit Tiles(std::integer_sequence<int, V...>)
            : by_vectors{tile<T, tall_rows(V + 1), V + 1, kUnroll, false, Ahead, Streams>...} {}
    };

    static constexpr auto kVectors = std::make_integer_sequence<int, kPanelVectors>{};
    static constexpr Tiles<false, false> kPlain{kVectors};
    static constexpr Tiles<true, false> kAhead{kVectors};
    static constexpr Tiles<false, true> kStream{kVectors};
    static constexpr Tiles<true, true> kAheadStream{kVectors};
    static constexpr Borders<T, kPanelVectors> kBorders{};

    // Blocks of k after the first are added, which needs the result.
    bool streams(const T* result) const {
        return streams_ && depth_ <= kDepth && width_ % kLanes<T> == 0 &&
               reinterpret_cast<uintptr_t>(result) % kVectorBytes == 0;
    }

    const T* gathered(int64_t row, int64_t count, T* buffer) const {
        for (int64_t r = 0; r < count; ++r) {
            const T* from = x_ + list_[row + r] * depth_;
            std::copy(from, from + depth_, buffer + r * depth_);
        }
        return buffer;
    }

    void chunk(const T* x, int64_t rows, T* result) const {
        const T* panel = packed_;
        for (int64_t k = 0; k < depth_; k += kDepth) {
            const int64_t depth = std::min(kDepth, depth_ - k);
            for (int64_t column = 0; column < width_; column += kPanel) {
                const int64_t columns = std::min(kPanel, width_ - column);
                const bool ahead = column == 0 && list_ == nullptr && depth * int64_t{sizeof(T)} >= kRowsAhead;
                strip(x + k, rows, depth, panel, columns, ahead, result + column, adds_ || k > 0);
                panel += depth * whole_vectors(columns, kLanes<T>);
            }
        }
    }

    // All rows of a chunk times one panel.
    void strip(const T* x, int64_t rows, int64_t depth, const T* panel, int64_t columns, bool ahead, T* result,
               bool add) const {
        const int64_t lead = whole_vectors(columns, kLanes<T>), vectors = lead / kLanes<T>;
        const int64_t step = tall_rows(static_cast<int>(vectors));
        const Tile whole = choose(ahead, streams(result), vectors);
        int64_t row = 0;
        if (columns == lead) {
            for (; row + step <= rows; row += step) {
                whole(depth, x + row * depth_, depth_, panel, lead, result + row * width_, width_, add);
            }
        }
        kBorders.cover(depth, rows - row, columns, x + row * depth_, depth_, 1, panel, lead, result + row * width_,
                       width_, add);
    }

    static Tile choose(bool ahead, bool streams, int64_t vectors) {
        if (streams) return ahead ? kAheadStream.by_vectors[vectors - 1] : kStream.by_vectors[vectors - 1];
        return ahead ? kAhead.by_vectors[vectors - 1] : kPlain.by_vectors[vectors - 1];
    }

    const T* x_;
    const int32_t* list_;
    const T* packed_;
    int64_t depth_, width_;
    bool streams_, adds_;
};

}  // namespace sparloom::gemm
