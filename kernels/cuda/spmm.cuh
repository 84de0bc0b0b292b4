// Sparse times dense on a GPU as templates: D = A B, A (rows, cols) in CSR, B (cols, width) and D (rows, width) row-major
// without gaps. spmm.cu makes kernels of them and says how they are launched.

#include "lanes.cuh"

enum Reduction { kOutside, kInside };  // the loop over nonzeros outside or inside that over the packs of a thread
enum Combine { kAdd, kMean, kLargest };  // what an element of D is of its products: their sum, mean or largest

// A tile of columns, kLanes * kColumns wide: pack p of a lane begins at column (p * kLanes + lane) * kVector of it.
template <int kLanes_, int kColumns, int kVector_, Reduction kReduction_, int kUnroll_, Combine kCombine = kAdd>
struct Tile {
    static constexpr int kLanes = kLanes_, kVector = kVector_, kPacks = kColumns / kVector_, kUnroll = kUnroll_;
    static constexpr int kWidth = kLanes_ * kColumns;
    static constexpr Reduction kReduction = kReduction_;
    static_assert(kColumns % kVector_ == 0, "packs must fill the columns of a thread");

    typedef Group<kLanes> Lanes;

    __device__ static int origin() { return tile_origin(blockIdx.y, kWidth); }
    __device__ static int place(int pack) { return pack_column(pack, Lanes::lane(), kLanes, kVector); }
    __device__ static int column(int pack) { return origin() + place(pack); }

    // What no products are together, and what two parts of a row are, in the order of the nonzeros. NaN counts as larger
    // than all numbers; of equal ones the first stays.
    __device__ static Sum nothing() { return kCombine == kLargest ? -__int_as_float(0x7f800000) : 0.0f; }
    __device__ static Sum combined(Sum first, Sum second) {
        if (kCombine != kLargest) return first + second;
        return second <= first || first != first ? first : second;
    }

    // The element whose products are `all` together, in a row of so many nonzeros; 0 where there are none.
    __device__ static Sum finished(Sum all, Offset nonzeros) {
        if (kCombine == kMean) return nonzeros > 0 ? all / Sum(nonzeros) : 0.0f;
        return kCombine == kAdd || nonzeros > 0 ? all : 0.0f;
    }
};

// Sums of kCount packs of a thread, those from pack `first` on.
template <class Tile, int kCount>
struct Sums {
    static constexpr int kVector = Tile::kVector;

    int first;
    Sum at[kCount][kVector];

    __device__ explicit Sums(int first) : first(first) {
#pragma unroll
        for (int p = 0; p < kCount; ++p) {
#pragma unroll
            for (int v = 0; v < kVector; ++v) at[p][v] = Tile::nothing();
        }
    }

    // Add nonzeros n .. n + kNonzeros; all their loads are under way before the first sum waits.
    template <int kNonzeros>
    __device__ void add(const Csr& a, Offset n, const Element* dense, int width) {
        Pack<kVector> loaded[kNonzeros][kCount];
        Sum values[kNonzeros];
#pragma unroll
        for (int u = 0; u < kNonzeros; ++u) {
            const Element* const row = dense + row_start(a.indices[n + u], width);
            values[u] = a.values[n + u];
#pragma unroll
            for (int p = 0; p < kCount; ++p) {
                if (Tile::column(first + p) < width) loaded[u][p] = pack_at<kVector>(row + Tile::column(first + p));
            }
        }
#pragma unroll
        for (int u = 0; u < kNonzeros; ++u) {
#pragma unroll
            for (int p = 0; p < kCount; ++p) {
                if (Tile::column(first + p) < width) {
#pragma unroll
                    for (int v = 0; v < kVector; ++v) {
                        at[p][v] = Tile::combined(at[p][v], values[u] * Sum(loaded[u][p].at[v]));
                    }
                }
            }
        }
    }

    __device__ void add_all(const Csr& a, Range nonzeros, const Element* dense, int width) {
        Offset n = nonzeros.begin;
#pragma unroll 1
        for (; n + Tile::kUnroll <= nonzeros.end; n += Tile::kUnroll) add<Tile::kUnroll>(a, n, dense, width);
#pragma unroll 1
        for (; n < nonzeros.end; ++n) add<1>(a, n, dense, width);
    }

    // Make elements of a row of D that has so many nonzeros.
    __device__ void finish(Offset nonzeros) {
#pragma unroll
        for (int p = 0; p < kCount; ++p) {
#pragma unroll
            for (int v = 0; v < kVector; ++v) at[p][v] = Tile::finished(at[p][v], nonzeros);
        }
    }

    template <class Number>
    __device__ void store(Number* row, int width) const {
#pragma unroll
        for (int p = 0; p < kCount; ++p) {
            const int column = Tile::column(first + p);
            if (column >= width) continue;
            Pack<kVector, Number> pack;
#pragma unroll
            for (int v = 0; v < kVector; ++v) pack.at[v] = at[p][v];
            pack_at<kVector>(row + column) = pack;
        }
    }
};

// By one group: the tile of a row's result from all its nonzeros, or, unless kWhole, what a part of them is together.
template <class Tile, bool kWhole, class Number>
__device__ inline void spmm_range(const Csr& a, Range nonzeros, const Element* dense, int width, Number* out) {
    constexpr int kCount = Tile::kReduction == kOutside ? Tile::kPacks : 1;
#pragma unroll
    for (int first = 0; first < Tile::kPacks; first += kCount) {
        Sums<Tile, kCount> sums(first);
        sums.add_all(a, nonzeros, dense, width);
        if (kWhole) sums.finish(nonzeros.length());
        sums.store(out, width);
    }
}

// A group per row; rows of `hub_degree` nonzeros or more are left out.
template <class Tile>
__device__ inline void spmm_rows_of(const Csr& a, Offset rows, Offset hub_degree, const Element* dense, int width,
                                    Element* out) {
    const Offset row = Tile::Lanes::number();
    if (row >= rows) return;
    const Range nonzeros = row_range(a.indptr, row);
    if (nonzeros.length() >= hub_degree) return;
    spmm_range<Tile, true>(a, nonzeros, dense, width, out + row_start(row, width));
}

// A block per hub row: its groups share the nonzeros, then its threads combine what the groups found. `found`: as many
// elements as the block's groups times the width of the tile.
template <class Tile>
__device__ inline void spmm_hub_of(const Csr& a, const int* hubs, const Element* dense, int width, Element* out,
                                   Sum* found) {
    typedef typename Tile::Lanes Lanes;
    const Offset row = hubs[blockIdx.x];
    const Range nonzeros = row_range(a.indptr, row);
    Sums<Tile, Tile::kPacks> sums(0);
    sums.add_all(a, nonzeros.part(Lanes::place(), Lanes::per_block()), dense, width);
#pragma unroll
    for (int p = 0; p < Tile::kPacks; ++p) {
#pragma unroll
        for (int v = 0; v < Tile::kVector; ++v) {
            found[slot_of(Lanes::place(), Tile::kWidth, Tile::place(p) + v)] = sums.at[p][v];
        }
    }
    __syncthreads();
    Element* const result = out + row_start(row, width) + Tile::origin();
    const int columns = tile_columns(Tile::origin(), Tile::kWidth, width);
    for (int place = threadIdx.x; place < columns; place += blockDim.x) {
        Sum all = Tile::nothing();
        for (int group = 0; group < Lanes::per_block(); ++group) {
            all = Tile::combined(all, found[slot_of(group, Tile::kWidth, place)]);
        }
        result[place] = Tile::finished(all, nonzeros.length());
    }
}

// What groups have of rows that begin or end in another group's share; Element would round these sums once more.
struct Parts {
    int* rows;     // (groups,): the row that a group begins and does not end, or goes through; -1 where there is none
    Sum* carries;  // (groups, width): what it has of that row
    Sum* rests;    // (groups, width): what it has of a row that it ends and did not begin
};

// Group g takes `share` items of the nonzeros merged with the ends of their rows. It writes the rows that lie in its
// share as a whole; what it has of others goes to `parts`.
template <class Tile>
__device__ inline void spmm_share_of(const Csr& a, Offset rows, Offset share, const Element* dense, int width,
                                     Element* out, const Parts& parts) {
    const Offset group = Tile::Lanes::number();
    const Range items = piece_of(group, share, rows + a.indptr[rows]);
    if (items.empty()) return;
    Walk walk = walk_of(a.indptr, rows, items);
    if (walk.ends_row() && !walk.began_row(a.indptr)) {
        spmm_range<Tile, false>(a, walk.rest_of_row(a.indptr), dense, width, parts.rests + row_start(group, width));
        walk.next_row(a.indptr);
    }
    for (; walk.ends_row(); walk.next_row(a.indptr)) {
        spmm_range<Tile, true>(a, walk.rest_of_row(a.indptr), dense, width, out + row_start(walk.row, width));
    }
    const Range carry = walk.carry();
    if (!carry.empty()) spmm_range<Tile, false>(a, carry, dense, width, parts.carries + row_start(group, width));
    if (blockIdx.y == 0 && Tile::Lanes::lane() == 0) parts.rows[group] = carry.empty() ? -1 : int(walk.last);
}

// After spmm_share_of: the group that begins a row and does not end it combines what all groups have of it.
template <class Tile>
__device__ inline void spmm_carries_of(const Offset* indptr, Offset groups, int width, const Parts& parts,
                                       Element* out) {
    const Offset group = Tile::Lanes::number();
    if (group >= groups || !begins_carry(parts.rows, group)) return;
    const Offset row = parts.rows[group], ending = ending_group(parts.rows, group);
    for (int p = 0; p < Tile::kPacks; ++p) {
        for (int v = 0; v < Tile::kVector; ++v) {
            const int column = Tile::column(p) + v;
            if (column >= width) continue;
            Sum all = Tile::nothing();
#pragma unroll 1
            for (Offset next = group; next < ending; ++next) {
                all = Tile::combined(all, parts.carries[row_start(next, width) + column]);
            }
            all = Tile::combined(all, parts.rests[row_start(ending, width) + column]);
            out[row_start(row, width) + column] = Tile::finished(all, row_range(indptr, row).length());
        }
    }
}
