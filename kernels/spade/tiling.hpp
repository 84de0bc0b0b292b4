// Tiles of a sparse matrix and their order on the processing elements (PEs); shared by every simulator level.
#pragma once

#include <cstdint>

namespace spade {

// Non-empty tiles, row panel by row panel and from left to right; nonzeros of a tile lie together, in row order.
struct Tiles {
    int64_t count;
    const int32_t* row;      // (nnz,) row of each nonzero, in tile order
    const int32_t* column;   // (nnz,)
    const int64_t* begin;    // (count + 1,) first nonzero of each tile
};

// Tiles in the order in which each PE takes them: those of PE p in phase f are order[start[f * pes + p]] up to
// order[start[f * pes + p + 1]].
struct Schedule {
    int64_t phases;
    int64_t pes;
    const int32_t* order;    // (tiles,)
    const int64_t* start;    // (phases * pes + 1,)
};

constexpr int64_t LINE_NONZEROS = 16;  // coordinates or values of 4 bytes per line
constexpr int64_t ARRAYS = 3;          // row, column, value; each starts on a line

}  // namespace spade
