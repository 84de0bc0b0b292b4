// Products of three matrices by a tile schedule on a GPU, and the same products one after the other. All dense matrices
// are row-major without gaps.
//
//   gemm_spmm   D1 = B C (cols, width), B (cols, inner) dense;    D = A D1 (rows, width)
//   spmm_spmm   D1 = B C (cols, width), B sparse;                 D = A D1 (rows, width)
//
// Fused: one block per tile; <name>_wavefront0 runs loop one, then the rows of loop two that depend only on the tile;
// wavefront1, launched after it, runs the other rows. Unfused: gemm_rows or spmm_rows, then spmm_rows; blocks take
// `rows_per_block` rows each. Both kinds give a row to a warp and its columns to the lanes.
//
// Launch shape: blockDim.x a multiple of 32. Dynamic shared memory of wavefront 0: with `local`, rows of the largest
// tile * width * sizeof(Element), and D1 gets only the rows that wavefront 1 needs; without, none.
// Expects the macro ELEMENT, float or double; float unless given. Indices are int32, offsets into nonzeros int64.
// Preconditions (checked by the caller): the schedule is legal for A; width is at most 2^31 - 1024; D overlaps nothing
// else.

#include "index.cuh"

#ifndef ELEMENT
#define ELEMENT float
#endif

typedef ELEMENT Element;

struct Csr {
    const Offset* indptr;
    const int* indices;
    const Element* values;
};

struct Tiles {
    const Offset* first;          // iterations of loop one: first[v] .. first[v + 1]
    const int* second;            // iterations of loop two, those of tile v from second_ptr[v] on
    const Offset* second_ptr;
    const unsigned char* needed;  // rows of D1 that wavefront 1 reads
};

__device__ inline int lane() { return lane_of(threadIdx.x, kWarp); }
__device__ inline int warp() { return group_of(threadIdx.x, kWarp); }
__device__ inline int warps() { return groups_of(blockDim.x, kWarp); }

// Dense matrix whose rows from `origin` on are at `rows`.
struct Dense {
    const Element* rows;
    Offset origin;

    __device__ const Element* row(Offset index, int width) const { return rows + row_start(index - origin, width); }
};

// By one warp: out = row of A times a dense matrix.
__device__ inline void spmm_row(const Csr& a, Offset row, const Dense& dense, int width, Element* out) {
    const Range nonzeros = row_range(a.indptr, row);
    for (int column = lane(); column < width; column += kWarp) {
        Element sum = 0;
        for (Offset n = nonzeros.begin; n < nonzeros.end; ++n) {
            sum += a.values[n] * dense.row(a.indices[n], width)[column];
        }
        out[column] = sum;
    }
}

// By one warp: out = row of B times C.
__device__ inline void gemm_row(const Element* b, const Element* c, int inner, int width, Element* out) {
    for (int column = lane(); column < width; column += kWarp) {
        Element sum = 0;
        for (int k = 0; k < inner; ++k) sum += b[k] * c[row_start(k, width) + column];
        out[column] = sum;
    }
}

// Rows of loop one, as functions of their index and destination.
struct GemmRows {
    const Element *b, *c;
    int inner, width;

    __device__ void operator()(Offset row, Element* out) const {
        gemm_row(b + row_start(row, inner), c, inner, width, out);
    }
};

struct SpmmRows {
    Csr b;
    const Element* c;
    int width;

    __device__ void operator()(Offset row, Element* out) const { spmm_row(b, row, Dense{c, 0}, width, out); }
};

extern __shared__ __align__(16) unsigned char shared_bytes[];

__device__ inline void second_loop(const Tiles& tiles, Offset tile, const Csr& a, const Dense& d1, int width,
                                   Element* d) {
    const Range iterations = row_range(tiles.second_ptr, tile);
    for (Offset k = iterations.begin + warp(); k < iterations.end; k += warps()) {
        spmm_row(a, tiles.second[k], d1, width, d + row_start(tiles.second[k], width));
    }
}

template <typename First>
__device__ inline void wavefront0(const Tiles& tiles, const First& first, const Csr& a, int width, bool local,
                                  Element* d1, Element* d) {
    const Range mine = row_range(tiles.first, blockIdx.x);
    Element* const rows = local ? reinterpret_cast<Element*>(shared_bytes) : d1 + row_start(mine.begin, width);
    for (Offset row = mine.begin + warp(); row < mine.end; row += warps()) {
        Element* const out = rows + row_start(row - mine.begin, width);
        first(row, out);
        if (local && tiles.needed[row]) {
            for (int column = lane(); column < width; column += kWarp) d1[row_start(row, width) + column] = out[column];
        }
    }
    __syncthreads();
    second_loop(tiles, blockIdx.x, a, Dense{rows, mine.begin}, width, d);
}

extern "C" __global__ void gemm_spmm_wavefront0(Tiles tiles, Csr a, const Element* b, const Element* c, int inner,
                                                int width, int local, Element* d1, Element* d) {
    wavefront0(tiles, GemmRows{b, c, inner, width}, a, width, local != 0, d1, d);
}

extern "C" __global__ void spmm_spmm_wavefront0(Tiles tiles, Csr a, Csr b, const Element* c, int width, int local,
                                                Element* d1, Element* d) {
    wavefront0(tiles, SpmmRows{b, c, width}, a, width, local != 0, d1, d);
}

// Of both products; `tiles0`: tiles of wavefront 0.
extern "C" __global__ void wavefront1(Tiles tiles, Offset tiles0, Csr a, const Element* d1, int width, Element* d) {
    second_loop(tiles, tiles0 + blockIdx.x, a, Dense{d1, 0}, width, d);
}

extern "C" __global__ void gemm_rows(Offset count, int rows_per_block, const Element* b, const Element* c, int inner,
                                     int width, Element* out) {
    const Range mine = piece_of(blockIdx.x, rows_per_block, count);
    for (Offset row = mine.begin + warp(); row < mine.end; row += warps()) {
        gemm_row(b + row_start(row, inner), c, inner, width, out + row_start(row, width));
    }
}

extern "C" __global__ void spmm_rows(Offset count, int rows_per_block, Csr a, const Element* dense, int width,
                                     Element* out) {
    const Range mine = piece_of(blockIdx.x, rows_per_block, count);
    for (Offset row = mine.begin + warp(); row < mine.end; row += warps()) {
        spmm_row(a, row, Dense{dense, 0}, width, out + row_start(row, width));
    }
}
