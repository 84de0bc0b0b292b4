// Dense products of tiles, called by rendered loop nests: C (rows, cols) = or += A (rows, depth) B (depth, cols).
//
// Types are float, double, bfloat16 in float, and bytes by signed bytes in int32, see narrow_gemm.hpp. Of float and double,
// A may have any strides; columns of B and C are contiguous. Rows of A that are not contiguous, and panels of B that
// many rows use, are packed first if there is enough memory.
//
//   for blocks of k
//     for chunks of rows                                            A packed, if its columns are not contiguous
//       for panels of columns                                       B packed, if its rows are distant and used often
//         register tiles, gemm.hpp                                  they prefetch what follows in B

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include "narrow_gemm.hpp"
#include "tall_gemm.hpp"

namespace sparloom::gemm {

constexpr int64_t kPackRows = 24;  // with this many rows or more, packing a panel pays off

template <typename T>
class Product {
   public:
    Product(const T* b, int64_t b_row, T* c, int64_t c_row, int64_t cols)
        : b_(b), b_row_(b_row), c_(c), c_row_(c_row), cols_(cols) {}

    void run(int64_t rows, int64_t depth, const T* a, int64_t a_row, int64_t a_column, bool add) const {
        if (depth == 0 && !add) {
            for (int64_t r = 0; r < rows; ++r) std::fill(c_ + r * c_row_, c_ + r * c_row_ + cols_, T{0});
        }
        for (int64_t k = 0; k < depth; k += kDepth) {
            const int64_t last = std::min(kDepth, depth - k);
            for (int64_t row = 0; row < rows; row += kChunk) {
                const int64_t count = std::min(kChunk, rows - row);
                const T* from = a + row * a_row + k * a_column;
                const T* const packed = a_column == 1 ? nullptr : side_by_side(from, count, last, a_row, a_column);
                if (packed == nullptr) {
                    panels(row, count, k, last, from, a_row, a_column, add || k > 0);
                } else {
                    panels(row, count, k, last, packed, last, 1, add || k > 0);
                }
            }
        }
    }

   private:
    static constexpr int kVectors = 2;  // as many as `sparloom.ragged` stores side by side
    static constexpr int64_t kPanel = kVectors * kLanes<T>;
    static constexpr int kUnroll = 8;
    using Tile = void (*)(int64_t, const T*, int64_t, const T*, int64_t, T*, int64_t, bool, const T*);
    using Tiles = std::array<Tile, tall_rows(1)>;  // by height

    // Tiles after the first have at least half the height of the tallest.
    template <Ahead B, int Vectors, int Height>
    static constexpr Tile tile_or_none() {
        if constexpr (B == Ahead::kNear && 2 * Height < tall_rows(Vectors)) return nullptr;
        else return tile_ahead<T, Height, Vectors, kUnroll, B>;
    }

    template <Ahead B, int Vectors, int... R>
    static constexpr Tiles by_height(std::integer_sequence<int, R...>) {
        return {tile_or_none<B, Vectors, R + 1>()...};
    }

    template <Ahead B, int... V>
    static constexpr std::array<Tiles, kVectors> all(std::integer_sequence<int, V...>) {
        return {by_height<B, V + 1>(std::make_integer_sequence<int, tall_rows(V + 1)>{})...};
    }

    static constexpr auto kSizes = std::make_integer_sequence<int, kVectors>{};
    static constexpr std::array<Tiles, kVectors> kFirst = all<Ahead::kFar>(kSizes), kLater = all<Ahead::kNear>(kSizes);
    static constexpr Borders<T, kVectors> kBorders{};

    // Returns a buffer of this thread, one for each use; null if memory ran out.
    template <int Use>
    static T* buffer(int64_t size) {
        static thread_local std::unique_ptr<T[]> kept;
        if (kept == nullptr) kept.reset(new (std::nothrow) T[static_cast<size_t>(size)]);
        return kept.get();
    }

    static const T* side_by_side(const T* a, int64_t rows, int64_t depth, int64_t a_row, int64_t a_column) {
        T* const to = buffer<0>(kChunk * kDepth);
        if (to == nullptr) return nullptr;
        if (a_row == 1) {
            for (int64_t k = 0; k < depth; ++k) {
                for (int64_t r = 0; r < rows; ++r) to[r * depth + k] = a[r + k * a_column];
            }
        } else {
            for (int64_t r = 0; r < rows; ++r) {
                for (int64_t k = 0; k < depth; ++k) to[r * depth + k] = a[r * a_row + k * a_column];
            }
        }
        return to;
    }

    void panels(int64_t row, int64_t rows, int64_t k, int64_t depth, const T* a, int64_t a_row, int64_t a_column,
                bool add) const {
        for (int64_t column = 0; column < cols_; column += kPanel) {
            const int64_t columns = std::min(kPanel, cols_ - column);
            const T* panel = b_ + k * b_row_ + column;
            int64_t lead = b_row_;
            T* const to = lead > kPanel && rows >= kPackRows ? buffer<1>(kDepth * kPanel) : nullptr;
            if (to != nullptr) {
                for (int64_t i = 0; i < depth; ++i) {
                    for (int64_t c = 0; c < columns; ++c) to[i * kPanel + c] = panel[i * b_row_ + c];
                }
                panel = to;
                lead = kPanel;
            }
            strip(rows, depth, a, a_row, a_column, panel, lead, columns, c_ + row * c_row_ + column, add);
        }
    }

    void strip(int64_t rows, int64_t depth, const T* a, int64_t a_row, int64_t a_column, const T* panel, int64_t lead,
               int64_t columns, T* c, bool add) const {
        const int64_t vectors = (columns + kLanes<T> - 1) / kLanes<T>;
        if (a_column != 1 || columns != vectors * kLanes<T>) {
            kBorders.cover(depth, rows, columns, a, a_row, a_column, panel, lead, c, c_row_, add);
            return;
        }
        const T* next = panel + depth * lead;
        const int64_t tall = tall_rows(static_cast<int>(vectors));
        for (int64_t left = (rows + tall - 1) / tall, row = 0; left > 0; --left) {  // tiles of nearly one height
            const int64_t height = (rows - row + left - 1) / left;
            (row == 0 ? kFirst : kLater)[vectors - 1][height - 1](depth, a + row * a_row, a_row, panel, lead,
                                                                  c + row * c_row_, c_row_, add, next);
            row += height;
            next += depth / kUnroll * kLine<T>;
        }
    }

    const T* b_;
    int64_t b_row_;
    T* c_;
    int64_t c_row_, cols_;
};

}  // namespace sparloom::gemm

#define SPARLOOM_MULTIPLY(name, T)                                                                                   \
    void name(int64_t rows, int64_t cols, int64_t depth, const T* a, int64_t a_row, int64_t a_column, const T* b,    \
              int64_t b_row, T* c, int64_t c_row, bool add) {                                                        \
        sparloom::gemm::Product<T>(b, b_row, c, c_row, cols).run(rows, depth, a, a_row, a_column, add);              \
    }

// a_column is 1
#define SPARLOOM_MULTIPLY_NARROW(name, P)                                                                           \
    void name(int64_t rows, int64_t cols, int64_t depth, const P::Left* a, int64_t a_row, int64_t, const P::Right* b, \
              int64_t b_row, P::Total* c, int64_t c_row, bool add) {                                                 \
        sparloom::narrow::Product<P>::run(rows, cols, depth, a, a_row, b, b_row, c, c_row, add);                     \
    }

extern "C" {

SPARLOOM_MULTIPLY(sparloom_multiply_f32, float)
SPARLOOM_MULTIPLY(sparloom_multiply_f64, double)
SPARLOOM_MULTIPLY_NARROW(sparloom_multiply_bf16, sparloom::narrow::BfloatPairs)
SPARLOOM_MULTIPLY_NARROW(sparloom_multiply_u8, sparloom::narrow::Bytes)

}  // extern "C"
