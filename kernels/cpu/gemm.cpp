// C = A B in float32: A (m, k), B (k, n), C (m, n), row-major without gaps.
//
//   for jc: columns of B, tile_n at a time
//     for pc: k, tile_k at a time                                 [pack B: its block -> panels of `columns`]
//       for ic: rows of A, tile_m at a time                       [pack A: its block -> panels of `rows`]
//         for jr: columns of the block, `columns` at a time
//           for ir: rows of the block, `rows` at a time           register tile, gemm.hpp
//
// A packed panel of B holds `columns` floats per k, one of A `rows` floats per k (the last panel as many as are left).
// Preconditions (checked in Python): extents and tiles are at least 1; (rows, columns) and unroll are among those
// below; `workspace` has the floats that sparloom_gemm_prepare asks for; C overlaps nothing else.

#include <algorithm>
#include <utility>

#include "gemm.hpp"
#include "team.hpp"

extern "C" {

struct Gemm {
    const float *a, *b;
    float *c, *workspace;
    int64_t m, n, k, tile_m, tile_n, tile_k;
    int32_t rows, columns, unroll, pack, threads;
    void (*tile)();  // set by sparloom_gemm_prepare
};

}  // extern "C"

namespace sparloom::gemm {
namespace {

using Tile = void (*)(int64_t, const float*, int64_t, const float*, int64_t, float*, int64_t, bool);

constexpr int kPackB = 1, kPackAB = 2;  // values of Gemm::pack; 0: nothing is packed
constexpr int kUnroll = 4;
constexpr int kWidest = 256;  // columns of the widest register tile

struct Micro {
    int rows, columns;
    Tile plain, unrolled, packed, packed_unrolled;
};

template <int Rows, int Columns>
constexpr Micro micro() {
    constexpr int v = Columns / kLanes<float>;
    return {Rows,
            Columns,
            tile<float, Rows, v, 1, false>,
            tile<float, Rows, v, kUnroll, false>,
            tile<float, Rows, v, 1, true>,
            tile<float, Rows, v, kUnroll, true>};
}

constexpr Micro kMicros[] = {micro<1, 64>(), micro<1, 256>(), micro<4, 16>(), micro<6, 64>(),
                             micro<8, 16>(), micro<8, 32>(),  micro<8, 48>(), micro<12, 32>()};

constexpr Borders<float, kWidest / kLanes<float>> kBorders;

Tile choose(const Gemm& g) {
    for (const Micro& m : kMicros) {
        if (m.rows != g.rows || m.columns != g.columns) continue;
        if (g.pack == kPackAB) return g.unroll == 1 ? m.packed : m.packed_unrolled;
        return g.unroll == 1 ? m.plain : m.unrolled;
    }
    return nullptr;
}

int64_t round_up(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

int64_t packed_b(const Gemm& g) {
    return g.pack >= kPackB ? round_up(std::min(g.tile_n, g.n), g.columns) * std::min(g.tile_k, g.k) : 0;
}

int64_t packed_a(const Gemm& g) {
    return g.pack == kPackAB ? round_up(std::min(g.tile_m, g.m), 16) * std::min(g.tile_k, g.k) : 0;
}

int64_t workspace(const Gemm& g) { return packed_b(g) + packed_a(g); }  // floats per thread

void pack_b(const float* b, int64_t n, int64_t depth, int64_t width, int64_t columns, float* to) {
    for (int64_t j = 0; j < width; j += columns, to += columns * depth) {
        const int64_t filled = std::min(columns, width - j);
        for (int64_t k = 0; k < depth; ++k) {
            const float* from = b + k * n + j;
            int64_t v = 0;
            for (; v + kLanes<float> <= filled; v += kLanes<float>) store(to + k * columns + v, load(from + v));
            if (v < filled) {
                const Lanes<float> part(filled - v);
                part.store(to + k * columns + v, part.load(from + v));
            }
        }
    }
}

void pack_a(const float* a, int64_t lead, int64_t height, int64_t depth, int64_t rows, float* to) {
    for (int64_t i = 0; i < height; i += rows) {
        const int64_t filled = std::min(rows, height - i);
        for (int64_t k = 0; k < depth; ++k) {
            for (int64_t r = 0; r < filled; ++r) *to++ = a[(i + r) * lead + k];
        }
    }
}

// The loops jr and ir: `height` x `width` of C, with k over one block; A and B packed, or as they lie.
void block(const Gemm& g, const float* a, const float* b, float* c, int64_t height, int64_t width, int64_t depth,
           bool add) {
    const Tile whole = reinterpret_cast<Tile>(g.tile);
    const int64_t b_row = g.pack >= kPackB ? g.columns : g.n;
    for (int64_t jr = 0; jr < width; jr += g.columns) {
        const int64_t columns = std::min<int64_t>(g.columns, width - jr);
        const float* right = g.pack >= kPackB ? b + jr * depth : b + jr;
        for (int64_t ir = 0; ir < height; ir += g.rows) {
            const int64_t rows = std::min<int64_t>(g.rows, height - ir);
            const float* left = g.pack == kPackAB ? a + ir * depth : a + ir * g.k;
            float* to = c + ir * g.n + jr;
            if (rows == g.rows && columns == g.columns) {
                whole(depth, left, g.k, right, b_row, to, g.n, add);
            } else if (g.pack == kPackAB) {
                kBorders.cover(depth, rows, columns, left, 1, rows, right, b_row, to, g.n, add);
            } else {
                kBorders.cover(depth, rows, columns, left, g.k, 1, right, b_row, to, g.n, add);
            }
        }
    }
}

// The loops jc, pc and ic for `m` rows and `n` columns of the whole.
void multiply(const Gemm& g, const float* a, const float* b, float* c, int64_t m, int64_t n, float* workspace) {
    float* const right = workspace;
    float* const left = workspace + packed_b(g);
    for (int64_t jc = 0; jc < n; jc += g.tile_n) {
        const int64_t width = std::min(g.tile_n, n - jc);
        for (int64_t pc = 0; pc < g.k; pc += g.tile_k) {
            const int64_t depth = std::min(g.tile_k, g.k - pc);
            const float* b_block = b + pc * g.n + jc;
            if (g.pack >= kPackB) pack_b(b_block, g.n, depth, width, g.columns, right);
            for (int64_t ic = 0; ic < m; ic += g.tile_m) {
                const int64_t height = std::min(g.tile_m, m - ic);
                const float* a_block = a + ic * g.k + pc;
                if (g.pack == kPackAB) pack_a(a_block, g.k, height, depth, g.rows, left);
                block(g, g.pack == kPackAB ? left : a_block, g.pack >= kPackB ? right : b_block, c + ic * g.n + jc,
                      height, width, depth, pc > 0);
            }
        }
    }
}

}  // namespace
}  // namespace sparloom::gemm

extern "C" {

// Chooses the register tile; returns the floats of workspace that the product needs, or -1 if there is no such tile.
int64_t sparloom_gemm_prepare(Gemm* g) {
    g->tile = reinterpret_cast<void (*)()>(sparloom::gemm::choose(*g));
    return g->tile == nullptr ? -1 : g->threads * sparloom::gemm::workspace(*g);
}

// Every piece is a range of rows or of columns, whichever has more register tiles, and has its own workspace.
void sparloom_gemm(const void* arguments) {
    using namespace sparloom::gemm;
    const Gemm& g = *static_cast<const Gemm*>(arguments);
    const bool small = g.m * g.n * g.k < sparloom::kGrain * sparloom::kDenseRate;
    if (g.threads == 1 || small) return multiply(g, g.a, g.b, g.c, g.m, g.n, g.workspace);
    const bool by_rows = g.m / g.rows >= g.n / g.columns;
    const int64_t step = by_rows ? g.rows : g.columns, extent = by_rows ? g.m : g.n;
    const int64_t part = round_up((extent + g.threads - 1) / g.threads, step);
    sparloom::share(g.threads, g.threads, [&](int64_t t, int32_t) {
        const int64_t begin = std::min(extent, t * part), count = std::min(extent, begin + part) - begin;
        float* own = g.workspace + t * workspace(g);
        if (count == 0) return;
        if (by_rows) {
            multiply(g, g.a + begin * g.k, g.b, g.c + begin * g.n, count, g.n, own);
        } else {
            multiply(g, g.a, g.b + begin, g.c + begin, g.m, count, own);
        }
    });
}

}  // extern "C"
