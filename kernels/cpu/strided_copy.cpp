// Copies a strided array to a contiguous one, for storage in another order of dimensions, such as panels of weights.
//
// The plane of two dimensions, the one that is contiguous in the source and the last one, is copied in squares: each
// line of the source is read once, and each line of the result written once, while both are in the L1 cache.
// Preconditions (checked in Python): arrays do not overlap; all extents are at least 1; `along` is not the last one.

#include <algorithm>
#include <cstdint>

namespace {

constexpr int64_t kSquare = 32;

template <typename Word>
void copy_plane(const Word* from, Word* to, int64_t rows, int64_t row_step, int64_t row_stride, int64_t cols,
                int64_t col_step) {
    for (int64_t first = 0; first < rows; first += kSquare)
        for (int64_t left = 0; left < cols; left += kSquare) {
            const int64_t last = std::min(rows, first + kSquare), right = std::min(cols, left + kSquare);
            Word square[kSquare][kSquare];
            for (int64_t col = left; col < right; ++col)
                for (int64_t row = first; row < last; ++row)
                    square[row - first][col - left] = from[row * row_step + col * col_step];
            for (int64_t row = first; row < last; ++row)
                std::copy_n(square[row - first], right - left, to + row * row_stride + left);
        }
}

template <typename Word>
void copy(const Word* from, Word* to, const int64_t* extents, const int64_t* steps, const int64_t* strides, int64_t dims,
          int64_t along) {
    int64_t place[16] = {};
    const int64_t last = dims - 1;
    for (;;) {
        int64_t here = 0, there = 0;
        for (int64_t dim = 0; dim < last; ++dim) {
            here += place[dim] * steps[dim];
            there += place[dim] * strides[dim];
        }
        copy_plane(from + here, to + there, extents[along], steps[along], strides[along], extents[last], steps[last]);
        int64_t dim = last - 1;
        for (; dim >= 0; --dim) {
            if (dim == along) continue;
            if (++place[dim] < extents[dim]) break;
            place[dim] = 0;
        }
        if (dim < 0) return;
    }
}

}  // namespace

// from, with `steps` between elements, and to, with `strides`, have `dims` <= 16 dimensions and elements of `size` bytes:
// 1, 2 or 4.
extern "C" void sparloom_strided_copy(const void* from, void* to, int64_t size, const int64_t* extents,
                                      const int64_t* steps, const int64_t* strides, int64_t dims, int64_t along) {
    if (size == 1)
        copy(static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to), extents, steps, strides, dims, along);
    else if (size == 2)
        copy(static_cast<const uint16_t*>(from), static_cast<uint16_t*>(to), extents, steps, strides, dims, along);
    else
        copy(static_cast<const uint32_t*>(from), static_cast<uint32_t*>(to), extents, steps, strides, dims, along);
}
