// Sampled dense times dense on a GPU: D(i,j) = A(i,j) * <B(i), C(j)> on the pattern of A, B (rows, width) and C (cols, width)
// row-major without gaps, D the values of the result in CSR order.
//
//   sddmm_nonzeros   `share` nonzeros per group of LANES threads, whatever their rows, GROUP of them at a time
//   sddmm_rows       a group per row that has fewer than hub_degree nonzeros, GROUP of them side by side
//   sddmm_hubs       a block per row listed in `hubs`
//
// Launch shape: blocks of THREADS, a multiple of LANES. grid.x: groups over THREADS / LANES, rounded up; hubs: one block
// each. No shared memory.
// Macros: LANES 8, 16 or 32; VECTOR, columns per load; GROUP; UNROLL kNone, kExplicit or kImplicit (sddmm_nonzeros);
// THREADS; and those of lanes.cuh.
// Preconditions (checked by the caller): width is a multiple of VECTOR, at most 2^31 - 1024, and the matrices are aligned
// to VECTOR elements; hub_degree and `hubs` agree; D overlaps nothing else.

#include "sddmm.cuh"

typedef Dot<LANES, VECTOR> Dots;

extern "C" __global__ void __launch_bounds__(THREADS)
sddmm_nonzeros(const Offset* indptr, const Index* indices, const Element* values, Offset rows, Offset share,
               const Element* left, const Element* right, int width, Element* out) {
    sddmm_nonzeros_of<Dots, GROUP, UNROLL>(Csr{indptr, indices, values}, rows, share, Dense{left, right, width}, out);
}

extern "C" __global__ void __launch_bounds__(THREADS)
sddmm_rows(const Offset* indptr, const Index* indices, const Element* values, Offset rows, Offset hub_degree,
           const Element* left, const Element* right, int width, Element* out) {
    sddmm_rows_of<Dots, GROUP>(Csr{indptr, indices, values}, rows, hub_degree, Dense{left, right, width}, out);
}

extern "C" __global__ void __launch_bounds__(THREADS)
sddmm_hubs(const Offset* indptr, const Index* indices, const Element* values, const int* hubs, const Element* left,
           const Element* right, int width, Element* out) {
    sddmm_hub_of<Dots, GROUP>(Csr{indptr, indices, values}, hubs, Dense{left, right, width}, out);
}
