// Computes SpMM or SDDMM in the order of the simulated tiles, PE after PE within a phase, one K slice after the other.
//
// Layouts: row-major float32; row, column, source (nnz,) and begin (tiles + 1,) from spade_tile with source; order, start
// from spade_schedule; values (nnz,) in CSR order. A slice is `slice` columns of `width`; slice divides width.
#include <cstdint>

extern "C" {

// Both return 0.

// b (cols, width); result (rows, width), zero on entry.
int64_t spade_spmm(int64_t width, int64_t slice, int64_t tiles, const int32_t* row, const int32_t* column,
                   const int64_t* source, const int64_t* begin, const int32_t* order, const float* values, const float* b,
                   float* result) {
    for (int64_t first = 0; first < width; first += slice)
        for (int64_t t = 0; t < tiles; ++t)
            for (int64_t k = begin[order[t]]; k < begin[order[t] + 1]; ++k) {
                const float value = values[source[k]];
                const float* in = b + column[k] * width + first;
                float* out = result + row[k] * width + first;
                for (int64_t lane = 0; lane < slice; ++lane) out[lane] += value * in[lane];
            }
    return 0;
}

// b (rows, width), c (cols, width); result (nnz,) in CSR order, zero on entry.
int64_t spade_sddmm(int64_t width, int64_t slice, int64_t tiles, const int32_t* row, const int32_t* column,
                    const int64_t* source, const int64_t* begin, const int32_t* order, const float* values, const float* b,
                    const float* c, float* result) {
    for (int64_t first = 0; first < width; first += slice)
        for (int64_t t = 0; t < tiles; ++t)
            for (int64_t k = begin[order[t]]; k < begin[order[t] + 1]; ++k) {
                const float* left = b + row[k] * width + first;
                const float* right = c + column[k] * width + first;
                float sum = 0;
                for (int64_t lane = 0; lane < slice; ++lane) sum += left[lane] * right[lane];
                result[source[k]] += values[source[k]] * sum;
            }
    return 0;
}

}  // extern "C"
