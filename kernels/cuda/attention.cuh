// Attention on the pattern of a sparse matrix A on a GPU as templates. attention.cu says what is computed, makes
// kernels of them and says how they are launched.
//
// One pass over the nonzeros of a row: sums are relative to the largest score so far, the peak, and shrink when it
// rises (online softmax, Milakov and Gimelshein 2018). Scores are exponents of two: their scale includes log2(e).

#include "lanes.cuh"

constexpr Sum kLowest = -3.402823466e+38f;  // the peak before any score; finite, so that no difference of peaks is NaN

// Dense operands with a row per row or column of A, each of `heads` vectors side by side.
struct Heads {
    const Element *queries, *keys, *values;
    int heads, width, value_width;
    Sum scale;
};

// One head of a row of A and the columns it attends to.
struct Attender {
    const Element *query, *keys, *values;  // keys and values: of this head, in row 0
    Offset keys_lead, values_lead;         // elements from one row to the next
    int width, value_width;
    Sum scale;

    __device__ Attender(const Heads& heads, Offset row, int head)
        : query(heads.queries + row_start(vector_number(row, head, heads.heads), heads.width)),
          keys(heads.keys + row_start(head, heads.width)),
          values(heads.values + row_start(head, heads.value_width)),
          keys_lead(row_start(heads.heads, heads.width)),
          values_lead(row_start(heads.heads, heads.value_width)),
          width(heads.width),
          value_width(heads.value_width),
          scale(heads.scale) {}
};

// A tile of columns of V, kLanes * kVector * kPacks wide, and the nonzeros that a group takes side by side.
template <int kLanes_, int kVector_, int kPacks_, int kTogether_>
struct Tile {
    static constexpr int kLanes = kLanes_, kVector = kVector_, kPacks = kPacks_, kTogether = kTogether_;
    static constexpr int kWidth = kLanes * kVector * kPacks;

    typedef Group<kLanes> Lanes;

    __device__ static int origin() { return tile_origin(blockIdx.y, kWidth); }
    __device__ static int place(int pack) { return pack_column(pack, Lanes::lane(), kLanes, kVector); }
    __device__ static int column(int pack) { return origin() + place(pack); }
};

// What a group has of a row: the peak, and sums of 2 ^ (score - peak), alone and times the columns of a tile.
template <class Tile>
struct Attended {
    static constexpr int kVector = Tile::kVector, kPacks = Tile::kPacks, kTogether = Tile::kTogether;

    Sum peak, total, at[kPacks][kVector];

    __device__ Attended() : peak(kLowest), total(0) {
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
#pragma unroll
            for (int v = 0; v < kVector; ++v) at[p][v] = 0;
        }
    }

    __device__ void add_all(const Attender& row, const Index* indices, Range nonzeros) {
#pragma unroll 1
        for (Offset n = nonzeros.begin; n < nonzeros.end; n += kTogether) add(row, indices, n, nonzeros.end);
    }

    // Add nonzeros n .. n + kTogether, of which those from `end` on do not exist; their loads are under way together.
    __device__ void add(const Attender& row, const Index* indices, Offset n, Offset end) {
        Offset columns[kTogether];
#pragma unroll
        for (int c = 0; c < kTogether; ++c) columns[c] = indices[existing<kTogether>(n, c, end)];
        Sum scores[kTogether];
        parts(row, columns, scores);
        Pack<kVector> loaded[kTogether][kPacks];
#pragma unroll
        for (int c = 0; c < kTogether; ++c) {
            const Element* const values = row.values + row_start(columns[c], row.values_lead);
#pragma unroll
            for (int p = 0; p < kPacks; ++p) {
                if (Tile::column(p) < row.value_width) loaded[c][p] = pack_at<kVector>(values + Tile::column(p));
            }
        }
        Sum highest = peak;
#pragma unroll
        for (int c = 0; c < kTogether; ++c) {
            scores[c] = row.scale * Tile::Lanes::total(scores[c]);
            if (n + c < end) highest = fmaxf(highest, scores[c]);
        }
        rise(highest);
#pragma unroll
        for (int c = 0; c < kTogether; ++c) {
            if (n + c < end) weigh(exp2f(scores[c] - peak), loaded[c], row.value_width);
        }
    }

    // This lane's part of query . key.
    __device__ static void parts(const Attender& row, const Offset (&columns)[kTogether], Sum (&sums)[kTogether]) {
        const Element* keys[kTogether];
#pragma unroll
        for (int c = 0; c < kTogether; ++c) {
            keys[c] = row.keys + row_start(columns[c], row.keys_lead);
            sums[c] = 0;
        }
#pragma unroll 1
        for (int k = Tile::place(0); k < row.width; k += pack_stride(Tile::kLanes, kVector)) {
            const Pack<kVector> query = pack_at<kVector>(row.query + k);
#pragma unroll
            for (int c = 0; c < kTogether; ++c) {
                const Pack<kVector> key = pack_at<kVector>(keys[c] + k);
#pragma unroll
                for (int v = 0; v < kVector; ++v) sums[c] += Sum(query.at[v]) * Sum(key.at[v]);
            }
        }
    }

    // Take a new peak, no lower than the one there was.
    __device__ void rise(Sum highest) {
        const Sum kept = exp2f(peak - highest);
        peak = highest;
        total *= kept;
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
#pragma unroll
            for (int v = 0; v < kVector; ++v) at[p][v] *= kept;
        }
    }

    __device__ void weigh(Sum weight, const Pack<kVector> (&values)[kPacks], int value_width) {
        total += weight;
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
            if (Tile::column(p) < value_width) {
#pragma unroll
                for (int v = 0; v < kVector; ++v) at[p][v] += weight * Sum(values[p].at[v]);
            }
        }
    }

    __device__ void store(Element* out, int value_width, Sum factor) const {
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
            if (Tile::column(p) >= value_width) continue;
            Pack<kVector> pack;
#pragma unroll
            for (int v = 0; v < kVector; ++v) pack.at[v] = factor * at[p][v];
            pack_at<kVector>(out + Tile::column(p)) = pack;
        }
    }
};

// A group per row and head; rows of `hub_degree` nonzeros or more are left out, rows without nonzeros give 0.
template <class Tile>
__device__ inline void attention_rows_of(const Csr& a, Offset rows, Offset hub_degree, const Heads& heads,
                                         Element* out) {
    const Offset number = Tile::Lanes::number(), row = row_of_vector(number, heads.heads);
    if (row >= rows) return;
    const Range nonzeros = row_range(a.indptr, row);
    if (nonzeros.length() >= hub_degree) return;
    Attended<Tile> found;
    found.add_all(Attender(heads, row, head_of_vector(number, heads.heads)), a.indices, nonzeros);
    const Sum factor = nonzeros.empty() ? 0 : 1 / found.total;
    found.store(out + row_start(number, heads.value_width), heads.value_width, factor);
}

// What the groups of a block have of one row, in shared memory.
template <class Tile>
struct Found {
    Sum *peaks, *totals, *sums;  // (groups,), (groups,), (groups, width of the tile)

    __device__ Found(Sum* shared, int groups) : peaks(shared), totals(shared + groups), sums(shared + 2 * groups) {}

    __device__ void put(int group, const Attended<Tile>& mine) const {
        if (Tile::Lanes::lane() == 0) {
            peaks[group] = mine.peak;
            totals[group] = mine.total;
        }
#pragma unroll
        for (int p = 0; p < Tile::kPacks; ++p) {
#pragma unroll
            for (int v = 0; v < Tile::kVector; ++v) {
                sums[slot_of(group, Tile::kWidth, Tile::place(p) + v)] = mine.at[p][v];
            }
        }
    }

    // The result in one column of the tile.
    __device__ Sum merged(int place, int groups) const {
        Sum peak = kLowest, total = 0, sum = 0;
        for (int group = 0; group < groups; ++group) peak = fmaxf(peak, peaks[group]);
        for (int group = 0; group < groups; ++group) {
            const Sum kept = exp2f(peaks[group] - peak);
            total += kept * totals[group];
            sum += kept * sums[slot_of(group, Tile::kWidth, place)];
        }
        return sum / total;
    }
};

// A block per hub row and head: its groups share the nonzeros, then its threads put together what the groups found.
template <class Tile>
__device__ inline void attention_hub_of(const Csr& a, const int* hubs, const Heads& heads, Element* out, Sum* shared) {
    typedef typename Tile::Lanes Lanes;
    const Offset row = hubs[row_of_vector(blockIdx.x, heads.heads)];
    const int head = head_of_vector(blockIdx.x, heads.heads), groups = Lanes::per_block();
    Attended<Tile> mine;
    mine.add_all(Attender(heads, row, head), a.indices, row_range(a.indptr, row).part(Lanes::place(), groups));
    const Found<Tile> found(shared, groups);
    found.put(Lanes::place(), mine);
    __syncthreads();
    Element* const result =
        out + row_start(vector_number(row, head, heads.heads), heads.value_width) + Tile::origin();
    const int columns = tile_columns(Tile::origin(), Tile::kWidth, heads.value_width);
    for (int place = threadIdx.x; place < columns; place += blockDim.x) result[place] = found.merged(place, groups);
}
