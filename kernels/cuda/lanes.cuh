// What the sparse kernels share: types, loads of several elements at once, groups of threads that work on one row.
//
// Macros, all optional: ELEMENT, type of values and dense matrices (float; or Half, Bfloat, see element.cuh); INDEX, type
// of column numbers (int). Sums are float, offsets into nonzeros int64 (`Offset`).

#include "element.cuh"
#include "index.cuh"

#ifndef ELEMENT
#define ELEMENT float
#endif
#ifndef INDEX
#define INDEX int
#endif

typedef ELEMENT Element;
typedef INDEX Index;
typedef float Sum;

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
    __device__ static int lane() { return lane_of(threadIdx.x, kLanes); }
    __device__ static int place() { return group_of(threadIdx.x, kLanes); }
    __device__ static int per_block() { return groups_of(blockDim.x, kLanes); }
    __device__ static Offset number() { return group_number(blockIdx.x, per_block(), place()); }

    // Sum over the lanes, in all of them; every lane of the group calls it.
    __device__ static Sum total(Sum sum) {
        const unsigned lanes = lane_mask(threadIdx.x, kLanes);
#pragma unroll
        for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(lanes, sum, step);
        return sum;
    }
};
