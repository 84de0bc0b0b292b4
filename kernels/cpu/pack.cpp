// Packs a sparse matrix into four storage levels, each dense or compressed.
//
// Coordinates: i = io << shift_i | ii, j = jo << shift_j | ji. `order` lists the four levels outer to inner as
// 0 = io, 1 = ii, 2 = jo, 3 = ji, with io before ii and jo before ji. Positions: a dense level of extent e has
// p = parent * e + coordinate; a compressed level keeps pos[parent] .. pos[parent + 1] and one coordinate per position.
// The last level's positions index `values`; positions of dense levels without a nonzero hold 0.
//
// Entries travel as keys i << 32 | j with their index in CSR order; all passes are stable counting sorts, O(nnz).
// Preconditions (checked in Python): rows, cols, nnz and the positions of every level are below 2^31.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "memory.hpp"

namespace {

constexpr int kIo = 0, kIi = 1, kJo = 2, kJi = 3, kLevels = 4;

int64_t row_of(int64_t key) { return key >> 32; }
int64_t col_of(int64_t key) { return key & 0xffffffff; }

int64_t coordinate(int level, int64_t key, int shift_i, int shift_j) {
    switch (level) {
        case kIo: return row_of(key) >> shift_i;
        case kIi: return row_of(key) & ((int64_t{1} << shift_i) - 1);
        case kJo: return col_of(key) >> shift_j;
        default: return col_of(key) & ((int64_t{1} << shift_j) - 1);
    }
}

struct Entries {
    const int64_t* keys;
    const int32_t* sources;
};

// Stable counting sort of entries by the outer coordinate of rows (level io) or columns (level jo).
void sort_by(int level, int64_t extent, int shift, int64_t nnz, Entries from, int64_t* keys, int32_t* sources) {
    const int low = level == kIo ? 32 + shift : shift;
    const uint64_t mask = level == kIo ? ~uint64_t{0} : 0xffffffffu;
    std::vector<int32_t> next(extent + 1, 0);
    for (int64_t n = 0; n < nnz; ++n) ++next[((from.keys[n] & mask) >> low) + 1];
    for (int64_t b = 0; b < extent; ++b) next[b + 1] += next[b];
    for (int64_t n = 0; n < nnz; ++n) {
        const int64_t key = from.keys[n];
        const int32_t place = next[(key & mask) >> low]++;
        keys[place] = key;
        sources[place] = from.sources[n];
    }
}

// One pass over sorted entries; Compressed is a bit mask over storage levels, bit l for the l-th from outside.
template <int Compressed>
void build(int64_t nnz, Entries sorted, const int32_t* order, const int64_t* extents, int shift_i, int shift_j,
           const float* source_values, int32_t* const* pos, int32_t* const* crd, float* values, int32_t* where) {
    int64_t last[kLevels] = {-1, -1, -1, -1};
    int64_t count[kLevels] = {0, 0, 0, 0};
    for (int64_t n = 0; n < nnz; ++n) {
        const int64_t key = sorted.keys[n];
        int64_t parent = 0;
        bool fresh = false;
#pragma GCC unroll 4
        for (int l = 0; l < kLevels; ++l) {
            const int64_t c = coordinate(order[l], key, shift_i, shift_j);
            fresh |= c != last[l];
            last[l] = c;
            if (Compressed >> l & 1) {
                if (fresh) {
                    crd[l][count[l]] = static_cast<int32_t>(c);
                    pos[l][parent + 1] = static_cast<int32_t>(++count[l]);
                }
                parent = count[l] - 1;
            } else {
                parent = parent * extents[l] + c;
            }
        }
        const int32_t source = sorted.sources[n];
        values[parent] = source_values[source];
        if (where) where[source] = static_cast<int32_t>(parent);
    }
}

using Build = void (*)(int64_t, Entries, const int32_t*, const int64_t*, int, int, const float*, int32_t* const*,
                       int32_t* const*, float*, int32_t*);

constexpr Build kBuild[16] = {build<0>, build<1>, build<2>,  build<3>,  build<4>,  build<5>,  build<6>,  build<7>,
                              build<8>, build<9>, build<10>, build<11>, build<12>, build<13>, build<14>, build<15>};

// Number of distinct prefixes of depth 1 .. 4 among the nonzeros, by stamping; entries come in CSR order.
int64_t distinct(int seen, int64_t nnz, const int64_t* keys, int64_t cols, int shift_i, int shift_j) {
    const bool io = seen >> kIo & 1, ii = seen >> kIi & 1, jo = seen >> kJo & 1, ji = seen >> kJi & 1;
    if (ii && ji) return nnz;
    int64_t total = 0;
    if (!jo) {  // (io) or (io, ii): rows come in order
        int64_t last = -1;
        for (int64_t n = 0; n < nnz; ++n) {
            const int64_t id = ii ? row_of(keys[n]) : row_of(keys[n]) >> shift_i;
            total += id != last;
            last = id;
        }
        return total;
    }
    const int shift = ji ? 0 : shift_j;
    if (ii) {  // (i, jo): columns come in order within a row
        int64_t last = -1;
        for (int64_t n = 0; n < nnz; ++n) {
            const int64_t id = row_of(keys[n]) << 32 | col_of(keys[n]) >> shift;
            total += id != last;
            last = id;
        }
        return total;
    }
    std::vector<int32_t> stamp((cols >> shift) + 1, -1);
    for (int64_t n = 0; n < nnz; ++n) {
        const int32_t id = io ? static_cast<int32_t>(row_of(keys[n]) >> shift_i) : 0;
        int32_t& mark = stamp[col_of(keys[n]) >> shift];
        total += mark != id;
        mark = id;
    }
    return total;
}

}  // namespace

extern "C" {

// All of these return 1, sparloom_pack_count -2, if there was no memory, else what is said here or 0.

// Writes the keys of a CSR pattern in row order, and keys and CSR indices in column order.
int32_t sparloom_pack_prepare(int64_t rows, int64_t cols, const int64_t* indptr, const int32_t* indices, int64_t* row_keys,
                           int32_t* row_sources, int64_t* col_keys, int32_t* col_sources) {
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t n = indptr[i]; n < indptr[i + 1]; ++n) {
            row_keys[n] = i << 32 | indices[n];
            row_sources[n] = static_cast<int32_t>(n);
        }
    }
    return sparloom::out_of_memory(
        [&] { sort_by(kJo, cols, 0, indptr[rows], {row_keys, row_sources}, col_keys, col_sources); });
}

// Writes the number of positions of each storage level; stops at the first above `limit` and returns its index, else -1.
int sparloom_pack_count(int64_t cols, int64_t nnz, const int64_t* row_keys, int shift_i, int shift_j,
                        const int32_t* order, const int32_t* compressed, const int64_t* extents, const int64_t* limits,
                        int64_t* positions) {
    int64_t parents = 1;
    int seen = 0;
    for (int l = 0; l < kLevels; ++l) {
        seen |= 1 << order[l];
        const auto count = [&] { parents = distinct(seen, nnz, row_keys, cols, shift_i, shift_j); };
        if (!compressed[l]) {
            parents *= extents[l];
        } else if (sparloom::out_of_memory(count)) {
            return -2;
        }
        positions[l] = parents;
        if (parents > limits[l]) return l;
    }
    return -1;
}

// Fills pos, crd (null where a level is dense), values and, unless null, `where`: CSR index -> position. Work arrays
// hold nnz elements each. pos and values come zeroed.
int32_t sparloom_pack(int64_t nnz, const float* source_values, const int64_t* row_keys, const int32_t* row_sources,
                   const int64_t* col_keys, const int32_t* col_sources, int shift_i, int shift_j, const int32_t* order,
                   const int32_t* compressed, const int64_t* extents, const int64_t* positions, int64_t* work_keys0,
                   int32_t* work_sources0, int64_t* work_keys1, int32_t* work_sources1, int32_t* const* pos,
                   int32_t* const* crd, float* values, int32_t* where) {
    int place[kLevels];
    int mask = 0;
    for (int l = 0; l < kLevels; ++l) {
        place[order[l]] = l;
        mask |= compressed[l] << l;
    }
    const int64_t row_tiles = extents[place[kIo]], col_tiles = extents[place[kJo]];
    Entries now = place[kIi] < place[kJi] ? Entries{row_keys, row_sources} : Entries{col_keys, col_sources};
    // Row order is (io, ii, j) and column order is (jo, ji, i): what lies outside of them is sorted by, inner first.
    const bool rows_inside = place[kIi] < place[kJi];
    int passes[2] = {-1, -1};
    if (rows_inside && place[kJo] < place[kIi]) {
        passes[0] = kJo;
        if (place[kIo] < place[kJo]) passes[1] = kIo;
    } else if (!rows_inside && place[kIo] < place[kJi]) {
        passes[0] = kIo;
        if (place[kJo] < place[kIo]) passes[1] = kJo;
    }
    int64_t* keys[2] = {work_keys0, work_keys1};
    int32_t* sources[2] = {work_sources0, work_sources1};
    for (int pass = 0; pass < 2 && passes[pass] >= 0; ++pass) {
        if (rows_inside && col_tiles == 1) break;  // already in order
        const bool by_rows = passes[pass] == kIo;
        if ((by_rows ? row_tiles : col_tiles) == 1) continue;
        if (sparloom::out_of_memory([&] {
                sort_by(passes[pass], by_rows ? row_tiles : col_tiles, by_rows ? shift_i : shift_j, nnz, now,
                        keys[pass], sources[pass]);
            })) {
            return 1;
        }
        now = {keys[pass], sources[pass]};
    }
    kBuild[mask](nnz, now, order, extents, shift_i, shift_j, source_values, pos, crd, values, where);
    for (int l = 0; l < kLevels; ++l) {  // parents without children repeat the end of their left neighbour
        if (!compressed[l]) continue;
        const int64_t parents = l == 0 ? 1 : positions[l - 1];
        for (int64_t p = 0; p < parents; ++p) pos[l][p + 1] = std::max(pos[l][p + 1], pos[l][p]);
    }
    return 0;
}

}  // extern "C"
