// Argmax of the products of sparse times dense on a GPU: places(i, k) = the first nonzero n of row i of A (rows, cols)
// in CSR for which values(n) B(indices(n), k) is the largest, or NaN; -1 in rows without nonzeros. B (cols, width) and places
// (rows, width) row-major without gaps.
//
//   spmm_places   a thread per element of places
//
// Launch shape: blocks of THREADS. grid.x: rows * width over THREADS, rounded up. No shared memory.
// Macros: THREADS, and those of lanes.cuh.
// Preconditions (checked by the caller): width is at most 2^31 - 1024; less than 2^31 nonzeros; `places` overlaps nothing
// else.

#include "lanes.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
spmm_places(const Offset* indptr, const Index* indices, const Element* values, Offset rows, const Element* dense,
            int width, int* places) {
    const Offset element = Group<1>::number(), row = row_of_element(element, width);
    if (row >= rows) return;
    const int column = column_of_element(element, width);
    const Range nonzeros = row_range(indptr, row);
    int place = -1;
    Sum peak = 0;
#pragma unroll 1
    for (Offset n = nonzeros.begin; n < nonzeros.end; ++n) {
        const Sum product = Sum(values[n]) * Sum(dense[row_start(indices[n], width) + column]);
        if (place < 0 || (!(product <= peak) && peak == peak)) {
            peak = product;
            place = int(n);
        }
    }
    places[element] = place;
}
