// Sampled dense times dense on a GPU as templates: D(i,j) = A(i,j) * <B(i), C(j)> on the pattern of A, B (rows, width) and
// C (cols, width) row-major without gaps, D the values of the result in CSR order. sddmm.cu makes kernels of them.

#include "lanes.cuh"

enum Unroll { kNone, kExplicit, kImplicit };

// kLanes threads form a dot product, kVector columns of it at once.
template <int kLanes_, int kVector_>
struct Dot {
    static constexpr int kLanes = kLanes_, kVector = kVector_;

    typedef Group<kLanes> Lanes;

    // This lane's part of kCount dot products, side by side: their loads are under way together.
    template <int kCount>
    __device__ static void parts(const Element* const (&left)[kCount], const Element* const (&right)[kCount], int width,
                                 Sum (&sums)[kCount]) {
#pragma unroll
        for (int c = 0; c < kCount; ++c) sums[c] = 0;
#pragma unroll 1
        for (int column = pack_column(0, Lanes::lane(), kLanes, kVector); column < width;
             column += pack_stride(kLanes, kVector)) {
#pragma unroll
            for (int c = 0; c < kCount; ++c) {
                const Pack<kVector> a = pack_at<kVector>(left[c] + column), b = pack_at<kVector>(right[c] + column);
#pragma unroll
                for (int v = 0; v < kVector; ++v) sums[c] += Sum(a.at[v]) * Sum(b.at[v]);
            }
        }
    }
};

struct Dense {
    const Element *left, *right;
    int width;
};

// By one group: nonzero n of a row.
template <class Dot>
__device__ inline void sddmm_one(const Csr& a, Offset row, Offset n, const Dense& dense, Element* out) {
    const Element* const left[1] = {dense.left + row_start(row, dense.width)};
    const Element* const right[1] = {dense.right + row_start(a.indices[n], dense.width)};
    Sum sums[1];
    Dot::parts(left, right, dense.width, sums);
    const Sum sum = Dot::Lanes::total(sums[0]);
    if (Dot::Lanes::lane() == 0) out[n] = Sum(a.values[n]) * sum;
}

// By one group: nonzeros first .. first + kCount, of which those from `end` on do not exist, side by side.
template <class Dot, int kCount>
__device__ inline void sddmm_together(const Csr& a, Offset row, Offset first, Offset end, const Dense& dense,
                                      Element* out) {
    const Element *left[kCount], *right[kCount];
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
        const Offset n = existing<kCount>(first, c, end);
        row = row_from(a.indptr, row, n);
        left[c] = dense.left + row_start(row, dense.width);
        right[c] = dense.right + row_start(a.indices[n], dense.width);
    }
    Sum sums[kCount];
    Dot::template parts<kCount>(left, right, dense.width, sums);
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
        const Sum sum = Dot::Lanes::total(sums[c]);
        if (Dot::Lanes::lane() == 0 && first + c < end) out[first + c] = Sum(a.values[first + c]) * sum;
    }
}

// A group takes `share` nonzeros, whatever their rows, and finds the row of the first one by a search. It takes kCount of
// them at a time: side by side (kExplicit) or one after the other, in a loop that the compiler unrolls (kImplicit) or
// leaves (kNone).
template <class Dot, int kCount, Unroll kUnroll>
__device__ inline void sddmm_nonzeros_of(const Csr& a, Offset rows, Offset share, const Dense& dense, Element* out) {
    const Range mine = piece_of(Dot::Lanes::number(), share, a.indptr[rows]);
    if (mine.empty()) return;
    Offset row = row_of(a.indptr, rows, mine.begin);
#pragma unroll 1
    for (Offset first = mine.begin; first < mine.end; first += kCount) {
        if (kUnroll == kExplicit) {
            row = row_from(a.indptr, row, first);
            sddmm_together<Dot, kCount>(a, row, first, mine.end, dense, out);
            continue;
        }
#pragma unroll (kUnroll == kImplicit ? kCount : 1)
        for (int c = 0; c < kCount; ++c) {
            if (first + c >= mine.end) break;
            row = row_from(a.indptr, row, first + c);
            sddmm_one<Dot>(a, row, first + c, dense, out);
        }
    }
}

// By one group: a part of a row's nonzeros, kCount side by side.
template <class Dot, int kCount>
__device__ inline void sddmm_range(const Csr& a, Offset row, Range nonzeros, const Dense& dense, Element* out) {
#pragma unroll 1
    for (Offset n = nonzeros.begin; n < nonzeros.end; n += kCount) {
        sddmm_together<Dot, kCount>(a, row, n, nonzeros.end, dense, out);
    }
}

// A group per row; rows of `hub_degree` nonzeros or more are left out.
template <class Dot, int kCount>
__device__ inline void sddmm_rows_of(const Csr& a, Offset rows, Offset hub_degree, const Dense& dense, Element* out) {
    const Offset row = Dot::Lanes::number();
    if (row >= rows) return;
    const Range nonzeros = row_range(a.indptr, row);
    if (nonzeros.length() >= hub_degree) return;
    sddmm_range<Dot, kCount>(a, row, nonzeros, dense, out);
}

// A block per hub row: its groups share the nonzeros.
template <class Dot, int kCount>
__device__ inline void sddmm_hub_of(const Csr& a, const int* hubs, const Dense& dense, Element* out) {
    const Offset row = hubs[blockIdx.x];
    const Range mine = row_range(a.indptr, row).part(Dot::Lanes::place(), Dot::Lanes::per_block());
    sddmm_range<Dot, kCount>(a, row, mine, dense, out);
}
