// Attention on the pattern of a sparse matrix A (rows, cols) in CSR on a GPU: D(i,h) = sum over j of softmax over j of
// (Q(i,h) . K(j,h) / sqrt(width)) V(j,h), j over the columns of row i. Q (rows, heads, width), K (cols, heads, width),
// V (cols, heads, value_width) and D (rows, heads, value_width) row-major without gaps. Rows without nonzeros give 0.
// The values of A are not read, and no score is stored.
//
//   attention_rows   a group of LANES threads per head of a row that has fewer than hub_degree nonzeros
//   attention_hubs   a block per head of a row listed in `hubs`
//
// Launch shape: blocks of THREADS, a multiple of LANES. grid.x: rows * heads groups over THREADS / LANES, rounded up;
// hubs: a block for each and each head. grid.y: value_width over LANES * VECTOR * PACKS, rounded up; each computes all
// scores. Dynamic shared memory of attention_hubs: (LANES * VECTOR * PACKS + 2) * THREADS / LANES floats.
// Macros: LANES 8, 16 or 32; VECTOR, columns per load; PACKS, loads of a thread per row of V; GROUP, nonzeros side by
// side; THREADS; and those of lanes.cuh. scale: log2(e) / sqrt(width).
// Preconditions (checked by the caller): width and value_width are multiples of VECTOR, at most 2^31 - 1024, and the
// matrices are aligned to VECTOR elements; hub_degree and `hubs` agree; D overlaps nothing else.

#include "attention.cuh"

typedef Tile<LANES, VECTOR, PACKS, GROUP> Tiled;

extern __shared__ __align__(16) unsigned char shared_bytes[];

extern "C" __global__ void __launch_bounds__(THREADS)
attention_rows(const Offset* indptr, const Index* indices, Offset rows, Offset hub_degree, const Element* queries,
               const Element* keys, const Element* values, int heads, int width, int value_width, float scale,
               Element* out) {
    const Heads dense{queries, keys, values, heads, width, value_width, scale};
    attention_rows_of<Tiled>(Csr{indptr, indices, nullptr}, rows, hub_degree, dense, out);
}

extern "C" __global__ void __launch_bounds__(THREADS)
attention_hubs(const Offset* indptr, const Index* indices, const int* hubs, const Element* queries, const Element* keys,
               const Element* values, int heads, int width, int value_width, float scale, Element* out) {
    const Heads dense{queries, keys, values, heads, width, value_width, scale};
    Sum* const shared = reinterpret_cast<Sum*>(shared_bytes);
    attention_hub_of<Tiled>(Csr{indptr, indices, nullptr}, hubs, dense, out, shared);
}
