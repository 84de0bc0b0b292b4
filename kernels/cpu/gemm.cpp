// C = A B in float32, C (m, n) row-major without gaps: A (m, k) and B (k, n), or stored transposed, (k, m) and (n, k).
//
//   for jc: columns of B, tile_n at a time
//     for pc: k, tile_k at a time                                 [pack B: its block -> panels of `columns`]
//       for ic: rows of A, tile_m at a time                       [pack A: its block -> panels of `rows`]
//         for jr: columns of the block, `columns` at a time
//           for ir: rows of the block, `rows` at a time           register tile, gemm_tiles.hpp
//
// A packed panel of B holds `columns` floats per k, one of A `rows` floats per k (the last panel as many as are left).
// Persistent threads have no blocks: each goes through all register tiles, of which every `threads`-th is its own.
//
// A transposed B that is not packed is read along k: a register tile has `rows` x `columns` / 16 inner products. A
// transposed A is copied as (m, k) for that.
//
// With `split_k` > 1 a register tile has several sums; if there are fewer register tiles than threads, each thread adds
// up a part of k.
//
// Preconditions (checked in Python): extents and tiles are at least 1; (rows, columns), unroll and split_k are among
// those below; only what is not packed is prefetched, or has persistent threads; `workspace` has the floats that
// sparloom_gemm_prepare asks for; C overlaps nothing else.

#include <algorithm>
#include <utility>

#include "gemm_tiles.hpp"
#include "team.hpp"

extern "C" {

struct Gemm {
    const float *a, *b;
    float *c, *workspace;
    int64_t m, n, k, tile_m, tile_n, tile_k;
    int32_t rows, columns, unroll, pack, split_k, prefetch, persistent, a_transposed, b_transposed, threads;
    void (*tile)();  // set by sparloom_gemm_prepare
};

}  // extern "C"

namespace sparloom::gemm {
namespace {

using Tile = void (*)(int64_t, const float*, int64_t, const float*, int64_t, float*, int64_t, bool, int64_t);
using Dots = void (*)(int64_t, const float*, int64_t, const float*, int64_t, float*, int64_t, bool);

constexpr int kPackB = 1, kPackAB = 2;  // values of Gemm::pack; 0: nothing is packed
constexpr int kUnroll = 4;
constexpr int kWidest = 256;       // columns of the widest register tile
constexpr int kColumnsPerDot = 16; // columns of a register tile for each inner product of a row
constexpr int kSplitFloats = 256;  // most floats of the sums of a register tile that are split

constexpr int kParts = 3;  // numbers of sums of a register tile: 1, 2, 4

struct Micro {
    int rows, columns;
    Tile rolled[3];             // by RowsOf: k advances by one
    Tile unrolled[3][kParts];   // by RowsOf
    Tile prefetches[2][kParts];  // by RowsOf
    Dots dots[kParts];
};

template <int Rows, int Columns, int Split>
constexpr bool fits() {
    return Split == 1 || Split * Rows * Columns <= kSplitFloats;
}

template <int Rows, int Columns, int Split, RowsOf Left, bool Prefetches>
constexpr Tile unrolled() {
    if constexpr (fits<Rows, Columns, Split>()) {
        return tile_of<Rows, Columns / kLanes<float>, kUnroll, Split, Left, Prefetches>;
    }
    return nullptr;
}

template <int Rows, int Columns, int Split>
constexpr Dots inner_products() {
    if constexpr (fits<Rows, Columns, Split>()) return dots<Rows, Columns / kColumnsPerDot, Split>;
    return nullptr;
}

template <int Rows, int Columns>
constexpr Micro micro() {
    constexpr int v = Columns / kLanes<float>;
    constexpr auto stored = RowsOf::kStored, transposed = RowsOf::kTransposed, interleaved = RowsOf::kInterleaved;
    return {Rows,
            Columns,
            {tile_of<Rows, v, 1, 1, stored, false>, tile_of<Rows, v, 1, 1, transposed, false>,
             tile_of<Rows, v, 1, 1, interleaved, false>},
            {{unrolled<Rows, Columns, 1, stored, false>(), unrolled<Rows, Columns, 2, stored, false>(),
              unrolled<Rows, Columns, 4, stored, false>()},
             {unrolled<Rows, Columns, 1, transposed, false>(), unrolled<Rows, Columns, 2, transposed, false>(),
              unrolled<Rows, Columns, 4, transposed, false>()},
             {unrolled<Rows, Columns, 1, interleaved, false>(), unrolled<Rows, Columns, 2, interleaved, false>(),
              unrolled<Rows, Columns, 4, interleaved, false>()}},
            {{unrolled<Rows, Columns, 1, stored, true>(), unrolled<Rows, Columns, 2, stored, true>(),
              unrolled<Rows, Columns, 4, stored, true>()},
             {unrolled<Rows, Columns, 1, transposed, true>(), unrolled<Rows, Columns, 2, transposed, true>(),
              unrolled<Rows, Columns, 4, transposed, true>()}},
            {inner_products<Rows, Columns, 1>(), inner_products<Rows, Columns, 2>(),
             inner_products<Rows, Columns, 4>()}};
}

constexpr Micro kMicros[] = {micro<1, 64>(), micro<1, 256>(), micro<4, 16>(), micro<6, 64>(),
                             micro<8, 16>(), micro<8, 32>(),  micro<8, 48>(), micro<12, 32>()};

constexpr Borders<float, kWidest / kLanes<float>> kBorders;

bool packs_a(const Gemm& g) { return g.pack == kPackAB; }

bool packs_b(const Gemm& g) { return g.pack >= kPackB; }

bool copies_a(const Gemm& g) { return g.a_transposed && g.b_transposed && !packs_b(g); }

bool reads_dots(const Gemm& g) { return g.b_transposed && !packs_b(g); }

void (*choose(const Gemm& g))() {
    const int part = g.split_k == 1 ? 0 : g.split_k == 2 ? 1 : 2;
    const RowsOf left = packs_a(g) ? RowsOf::kInterleaved : g.a_transposed ? RowsOf::kTransposed : RowsOf::kStored;
    const int from = static_cast<int>(left);
    for (const Micro& m : kMicros) {
        if (m.rows != g.rows || m.columns != g.columns) continue;
        if (reads_dots(g)) return reinterpret_cast<void (*)()>(m.dots[part]);
        if (g.unroll == 1) return g.split_k == 1 ? reinterpret_cast<void (*)()>(m.rolled[from]) : nullptr;
        const bool prefetches = g.prefetch > 0 && !packs_b(g);
        return reinterpret_cast<void (*)()>(prefetches ? m.prefetches[from][part] : m.unrolled[from][part]);
    }
    return nullptr;
}

int64_t round_up(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

int64_t packed_b(const Gemm& g) {
    return packs_b(g) ? round_up(std::min(g.tile_n, g.n), g.columns) * std::min(g.tile_k, g.k) : 0;
}

int64_t packed_a(const Gemm& g) {
    return packs_a(g) ? round_up(std::min(g.tile_m, g.m), 16) * std::min(g.tile_k, g.k) : 0;
}

int64_t register_tiles(const Gemm& g) {
    return round_up(g.m, g.rows) / g.rows * (round_up(g.n, g.columns) / g.columns);
}

bool small(const Gemm& g) { return g.threads == 1 || g.m * g.n * g.k < sparloom::kGrain * sparloom::kDenseRate; }

// Whether threads share k; each but the first has a result of its own.
bool shares_k(const Gemm& g) { return g.split_k > 1 && !small(g) && register_tiles(g) < g.threads; }

int64_t workspace(const Gemm& g) {  // floats per thread
    return round_up(packed_b(g) + packed_a(g), kLine<float>) + (shares_k(g) ? round_up(g.m * g.n, kLine<float>) : 0);
}

int64_t a_row(const Gemm& g) { return g.a_transposed ? 1 : g.k; }
int64_t a_column(const Gemm& g) { return g.a_transposed ? g.m : 1; }
int64_t b_row(const Gemm& g) { return g.b_transposed ? 1 : g.n; }
int64_t b_column(const Gemm& g) { return g.b_transposed ? g.k : 1; }

// Copies squares: each line of `from` is read once, and each line of `to` written once, while both are in the L1 cache.
void transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to, int64_t to_row) {
    constexpr int64_t side = 16;
    for (int64_t i = 0; i < rows; i += side) {
        for (int64_t j = 0; j < columns; j += side) {
            const int64_t last = std::min(rows, i + side), right = std::min(columns, j + side);
            float square[side][side];
            for (int64_t r = i; r < last; ++r) {
                for (int64_t s = j; s < right; ++s) square[s - j][r - i] = from[r * from_row + s];
            }
            for (int64_t s = j; s < right; ++s) std::copy_n(square[s - j], last - i, to + s * to_row + i);
        }
    }
}

void copy(const float* from, float* to, int64_t count) {
    int64_t v = 0;
    for (; v + kLanes<float> <= count; v += kLanes<float>) store(to + v, load(from + v));
    if (v < count) {
        const Lanes<float> part(count - v);
        part.store(to + v, part.load(from + v));
    }
}

void pack_b(const Gemm& g, const float* b, int64_t depth, int64_t width, float* to) {
    for (int64_t j = 0; j < width; j += g.columns, to += g.columns * depth) {
        const int64_t filled = std::min<int64_t>(g.columns, width - j);
        if (g.b_transposed) {
            transpose(b + j * g.k, g.k, filled, depth, to, g.columns);
        } else {
            for (int64_t k = 0; k < depth; ++k) copy(b + k * g.n + j, to + k * g.columns, filled);
        }
    }
}

void pack_a(const Gemm& g, const float* a, int64_t height, int64_t depth, float* to) {
    for (int64_t i = 0; i < height; i += g.rows) {
        const int64_t filled = std::min<int64_t>(g.rows, height - i);
        for (int64_t k = 0; k < depth; ++k, to += filled) {
            if (g.a_transposed) {
                std::copy_n(a + k * g.m + i, filled, to);
            } else {
                for (int64_t r = 0; r < filled; ++r) to[r] = a[(i + r) * g.k + k];
            }
        }
    }
}

// The loops jr and ir: `height` x `width` of C, with k over one block; A and B packed, or as they lie. Only every
// `step`-th register tile, from number `first` on.
void block(const Gemm& g, const float* a, const float* b, float* c, int64_t height, int64_t width, int64_t depth,
           bool add, int64_t first = 0, int64_t step = 1) {
    const bool has_dots = reads_dots(g);
    const int64_t right_row = packs_b(g) ? g.columns : has_dots ? g.k : g.n;
    const int64_t left_row = g.a_transposed ? g.m : g.k;
    int64_t number = 0;
    for (int64_t jr = 0; jr < width; jr += g.columns) {
        const int64_t columns = std::min<int64_t>(g.columns, width - jr);
        const float* right = packs_b(g) ? b + jr * depth : b + jr * b_column(g);
        for (int64_t ir = 0; ir < height; ir += g.rows, ++number) {
            if (step > 1 && number % step != first) continue;
            const int64_t rows = std::min<int64_t>(g.rows, height - ir);
            const float* left = packs_a(g) ? a + ir * depth : a + ir * a_row(g);
            float* to = c + ir * g.n + jr;
            if (has_dots) {
                const int64_t wide = g.columns / kColumnsPerDot;
                int64_t j = 0;
                if (rows == g.rows) {
                    const Dots whole = reinterpret_cast<Dots>(g.tile);
                    for (; j + wide <= columns; j += wide) {
                        whole(depth, left, g.k, right + j * g.k, g.k, to + j, g.n, add);
                    }
                }
                cover_dots(depth, rows, columns - j, left, g.k, right + j * g.k, g.k, to + j, g.n, add);
            } else if (rows == g.rows && columns == g.columns) {
                reinterpret_cast<Tile>(g.tile)(depth, left, left_row, right, right_row, to, g.n, add, g.prefetch);
            } else if (packs_a(g)) {
                kBorders.cover(depth, rows, columns, left, 1, rows, right, right_row, to, g.n, add);
            } else {
                kBorders.cover(depth, rows, columns, left, a_row(g), a_column(g), right, right_row, to, g.n, add);
            }
        }
    }
}

// The loops jc, pc and ic for `m` rows and `n` columns of the whole, and `k` terms.
void multiply(const Gemm& g, const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k,
              float* workspace) {
    float* const packed_right = workspace;
    float* const packed_left = workspace + packed_b(g);
    for (int64_t jc = 0; jc < n; jc += g.tile_n) {
        const int64_t width = std::min(g.tile_n, n - jc);
        for (int64_t pc = 0; pc < k; pc += g.tile_k) {
            const int64_t depth = std::min(g.tile_k, k - pc);
            const float* right = b + pc * b_row(g) + jc * b_column(g);
            if (packs_b(g)) {
                pack_b(g, right, depth, width, packed_right);
                right = packed_right;
            }
            for (int64_t ic = 0; ic < m; ic += g.tile_m) {
                const int64_t height = std::min(g.tile_m, m - ic);
                const float* left = a + ic * a_row(g) + pc * a_column(g);
                if (packs_a(g)) {
                    pack_a(g, left, height, depth, packed_left);
                    left = packed_left;
                }
                block(g, left, right, c + ic * g.n + jc, height, width, depth, pc > 0);
            }
        }
    }
}

// Every thread adds up a part of k, the first one in C.
void multiply_parts(const Gemm& g) {
    const int64_t part = (g.k + g.threads - 1) / g.threads, size = g.m * g.n;
    const auto own = [&](int64_t t) { return g.workspace + t * workspace(g); };
    const auto sums = [&](int64_t t) { return t == 0 ? g.c : own(t) + workspace(g) - round_up(size, kLine<float>); };
    sparloom::share(g.threads, g.threads, [&](int64_t t, int32_t) {
        const int64_t begin = std::min(g.k, t * part), depth = std::min(g.k, begin + part) - begin;
        if (depth == 0) return std::fill_n(sums(t), size, 0.0f), void();
        multiply(g, g.a + begin * a_column(g), g.b + begin * b_row(g), sums(t), g.m, g.n, depth, own(t));
    });
    for (int32_t t = 1; t < g.threads; ++t) {
        const float* more = sums(t);
        for (int64_t i = 0; i < size; ++i) g.c[i] += more[i];
    }
}

}  // namespace
}  // namespace sparloom::gemm

extern "C" {

// Chooses the register tile; returns the floats of workspace that the product needs, or -1 if there is no such tile.
int64_t sparloom_gemm_prepare(Gemm* g) {
    using namespace sparloom::gemm;
    if (g->m == 1) g->a_transposed = 0;  // it is stored alike
    g->tile = choose(*g);
    if (g->tile == nullptr) return -1;
    return g->threads * workspace(*g) + (copies_a(*g) ? g->m * g->k : 0);
}

// Every piece is a range of rows or of columns, whichever has more register tiles, and has its own workspace.
void sparloom_gemm(const void* arguments) {
    using namespace sparloom::gemm;
    Gemm g = *static_cast<const Gemm*>(arguments);
    if (copies_a(g)) {
        float* const stored = g.workspace + g.threads * workspace(g);
        transpose(g.a, g.m, g.k, g.m, stored, g.k);
        g.a = stored;
        g.a_transposed = 0;
    }
    if (shares_k(g)) return multiply_parts(g);
    const bool persistent = g.persistent && !packs_b(g);
    if (small(g)) {
        if (persistent) return block(g, g.a, g.b, g.c, g.m, g.n, g.k, false);
        return multiply(g, g.a, g.b, g.c, g.m, g.n, g.k, g.workspace);
    }
    const bool by_rows = g.m / g.rows >= g.n / g.columns;
    const int64_t step = by_rows ? g.rows : g.columns, extent = by_rows ? g.m : g.n;
    const int64_t part = round_up((extent + g.threads - 1) / g.threads, step);
    sparloom::share(g.threads, g.threads, [&](int64_t t, int32_t) {
        if (persistent) return block(g, g.a, g.b, g.c, g.m, g.n, g.k, false, t, g.threads);
        const int64_t begin = std::min(extent, t * part), count = std::min(extent, begin + part) - begin;
        float* own = g.workspace + t * workspace(g);
        if (count == 0) return;
        if (by_rows) {
            multiply(g, g.a + begin * a_row(g), g.b, g.c + begin * g.n, count, g.n, g.k, own);
        } else {
            multiply(g, g.a, g.b + begin * b_column(g), g.c + begin, g.m, count, g.k, own);
        }
    });
}

}  // extern "C"
