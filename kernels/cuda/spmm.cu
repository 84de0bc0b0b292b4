// Sparse times dense on a GPU: D = A B, A (rows, cols) in CSR, B (cols, width) and D (rows, width) row-major without gaps.
// With COMBINE, an element is the mean of the products of its row, or the largest one, in place of their sum; rows without
// nonzeros give 0, and an element is NaN if one of its products is.
//
//   spmm_rows      a group of LANES threads per row that has fewer than hub_degree nonzeros
//   spmm_hubs      a block per row listed in `hubs`
//   spmm_shares    equal shares of nonzeros and row ends per group; then
//   spmm_carries   rows that several groups hold parts of are put together
//
// Launch shape: blocks of THREADS, a multiple of LANES. grid.x: groups (of rows, shares or carries) over THREADS / LANES,
// rounded up; hubs: one block each. grid.y: width over LANES * COLUMNS, rounded up. Dynamic shared memory of spmm_hubs:
// THREADS * COLUMNS floats. carries and rests: (groups, width); carry_rows: (groups,), all written.
// Macros: LANES 8, 16 or 32; COLUMNS of a thread; VECTOR, adjacent ones among them; REDUCTION kOutside or kInside; UNROLL,
// nonzeros at once; THREADS; COMBINE kAdd (unless given), kMean or kLargest; and those of lanes.cuh.
// Preconditions (checked by the caller): width is a multiple of VECTOR, at most 2^31 - 1024, and the matrices are aligned
// to VECTOR elements; hub_degree and `hubs` agree; rows < 2^31; D overlaps nothing else.

#include "spmm.cuh"

#ifndef COMBINE
#define COMBINE kAdd
#endif

typedef Tile<LANES, COLUMNS, VECTOR, REDUCTION, UNROLL, COMBINE> Tiled;

extern __shared__ __align__(16) unsigned char shared_bytes[];

extern "C" __global__ void __launch_bounds__(THREADS)
spmm_rows(const Offset* indptr, const Index* indices, const Element* values, Offset rows, Offset hub_degree,
          const Element* dense, int width, Element* out) {
    spmm_rows_of<Tiled>(Csr{indptr, indices, values}, rows, hub_degree, dense, width, out);
}

extern "C" __global__ void __launch_bounds__(THREADS)
spmm_hubs(const Offset* indptr, const Index* indices, const Element* values, const int* hubs, const Element* dense,
          int width, Element* out) {
    Sum* const found = reinterpret_cast<Sum*>(shared_bytes);
    spmm_hub_of<Tiled>(Csr{indptr, indices, values}, hubs, dense, width, out, found);
}

extern "C" __global__ void __launch_bounds__(THREADS)
spmm_shares(const Offset* indptr, const Index* indices, const Element* values, Offset rows, Offset share,
            const Element* dense, int width, Element* out, int* carry_rows, Sum* carries, Sum* rests) {
    spmm_share_of<Tiled>(Csr{indptr, indices, values}, rows, share, dense, width, out, Parts{carry_rows, carries, rests});
}

extern "C" __global__ void __launch_bounds__(THREADS)
spmm_carries(const Offset* indptr, Offset groups, int width, int* carry_rows, Sum* carries, Sum* rests, Element* out) {
    spmm_carries_of<Tiled>(indptr, groups, width, Parts{carry_rows, carries, rests}, out);
}
