// What the sparse kernels share: types, loads of several elements at once, groups of threads that work on one row.
//
// Macros, all optional: ELEMENT, type of values and dense matrices (float; or Half, Bfloat, see element.cuh); INDEX, type
// of column numbers (int). Sums are float, offsets into nonzeros int64 (`Offset`).

#include "element.cuh"

#ifndef ELEMENT
#define ELEMENT float
#endif
#ifndef INDEX
#define INDEX int
#endif

typedef ELEMENT Element;
typedef INDEX Index;
typedef float Sum;
typedef long long Offset;

struct Csr {
    const Offset* indptr;
    const Index* indices;
    const Element* values;
};

// kCount adjacent elements, loaded and stored by one instruction.
template <int kCount, class Number = Element>
struct alignas(kCount * sizeof(Number)) Pack {
    Number at[kCount];
};

template <int kCount, class Number>
__device__ inline const Pack<kCount, Number>& pack_at(const Number* place) {
    return *reinterpret_cast<const Pack<kCount, Number>*>(place);
}

template <int kCount, class Number>
__device__ inline Pack<kCount, Number>& pack_at(Number* place) {
    return *reinterpret_cast<Pack<kCount, Number>*>(place);
}

// kLanes threads of one warp, a power of two; a block is blockDim.x / kLanes groups.
template <int kLanes>
struct Group {
    __device__ static int lane() { return threadIdx.x % kLanes; }
    __device__ static int place() { return threadIdx.x / kLanes; }
    __device__ static int per_block() { return blockDim.x / kLanes; }
    __device__ static Offset number() { return Offset(blockIdx.x) * per_block() + place(); }

    // Sum over the lanes, in all of them; every lane of the group calls it.
    __device__ static Sum total(Sum sum) {
        const unsigned first = threadIdx.x % 32 / kLanes * kLanes;
        const unsigned lanes = kLanes == 32 ? 0xffffffffu : ((1u << (kLanes % 32)) - 1) << first;
#pragma unroll
        for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(lanes, sum, step);
        return sum;
    }
};

// Part `part` of `parts` equal ones of begin .. end.
struct Range {
    Offset begin, end;

    __device__ Range part(int part, int parts) const {
        const Offset length = end - begin;
        return Range{begin + length * part / parts, begin + length * (part + 1) / parts};
    }
};

__device__ inline Range row_range(const Csr& a, Offset row) { return Range{a.indptr[row], a.indptr[row + 1]}; }

// The row of nonzero n: indptr[row] <= n < indptr[row + 1].
__device__ inline Offset row_of(const Offset* indptr, Offset rows, Offset n) {
    Offset low = 0, high = rows - 1;
    while (low < high) {
        const Offset middle = (low + high) / 2;
        if (indptr[middle + 1] <= n) low = middle + 1;
        else high = middle;
    }
    return low;
}

// How many row ends are among the first `diagonal` items, when the nonzeros are merged with the ends of their rows and
// an end follows the nonzeros of its row (Merrill and Garland, SC 2016).
__device__ inline Offset ends_before(const Offset* indptr, Offset rows, Offset diagonal) {
    const Offset nonzeros = indptr[rows];
    Offset low = diagonal > nonzeros ? diagonal - nonzeros : 0, high = diagonal < rows ? diagonal : rows;
    while (low < high) {
        const Offset middle = (low + high) / 2;
        if (indptr[middle + 1] < diagonal - middle) low = middle + 1;
        else high = middle;
    }
    return low;
}
