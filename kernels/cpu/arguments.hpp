// The arguments of the sparse kernels, as spmm.cpp, spmm_max.cpp, sddmm.cpp and attention.cpp read them, of passes over
// rows (row_pass.cpp), and of the functions that check index arrays (check_indices.cpp) and notice changes of them
// (watch.cpp). Python fills in the same structs in sparse_kernels.py; the native core does in kernels/native.

#pragma once

#include <cstdint>

namespace sparloom {

// Elements of dense rows that one thread reads and writes before a second one is worth waking, as GRAIN of Python.
constexpr int64_t kGrain = 3 << 17;

}  // namespace sparloom

extern "C" {

struct Rows {
    const int64_t* indptr;          // (rows + 1)
    const int32_t* indices;         // (nnz) columns, in this order of rows
    const void* values;             // (nnz) as the matrix stores them, of the type of the kernel
    const int64_t* source;          // (rows) where the values of a row begin
    const int32_t* place;           // (rows) which row of the matrix it is
    const uint8_t* equal;           // (rows) how many rows from this one on, 1 .. 4, have the same columns; or null
    const int64_t* piece_rows;      // (pieces + 1)
    const int64_t* piece_nonzeros;  // (pieces + 1)
    int64_t nnz;
    int32_t pieces, dynamic, threads;  // dynamic: pieces are begun in their order, else threads have parts of them, team.hpp
};

struct Spmm {
    Rows rows;
    const void* dense;
    void *result, *carries;
    int64_t width;
    int32_t strip, ahead, stream, together;  // columns, bytes of the dense operand, flag, flag
    int32_t mean;                            // flag, of halves: divide sums by the nonzeros of their row
};

struct SpmmMax {
    Rows rows;
    const void* dense;
    void *result, *carries;
    int32_t *places, *carried_places;  // null: not wanted
    int64_t width;
    int32_t ahead;  // bytes of the dense operand
};

struct Sddmm {
    Rows rows;
    const void *left, *right;
    void* result;
    int64_t width;
    int32_t ahead, group;  // bytes of C, nonzeros
};

struct Attention {
    Rows rows;  // its values are not read
    const void *queries, *keys, *values;
    void *result, *parts;
    int64_t heads, width, value_width;
    double scale;
    int32_t ahead;  // bytes of K that are prefetched
};

// The steps of row_pass.hpp over the rows of a matrix. All dense matrices are row-major without gaps.
struct RowPass {
    const int64_t* indptr;   // (rows + 1); null: G is given
    const int32_t* indices;  // (nnz)
    const void* values;      // (nnz)
    const void* y;           // (cols, width)
    void* g;                 // (rows, width): read without A, else written; null: not kept
    const void *c, *bias;    // c: (width, out), null: the identity; bias: (out), null: none
    const void *root, *root_c;  // (rows, root_columns) and (root_columns, out), unless root_columns is 0
    void* d;                    // (rows, out), unless out is 0
    const void *left, *right;   // left null: G; right: unless right_columns is 0
    void* s;                    // (left_columns, right_columns)
    const void* summed;         // (rows, summed_columns), unless that is 0
    void* sums;                 // (summed_columns)
    void* workspace;            // of sparloom_row_pass_room bytes, aligned to a cache line
    int64_t rows, nnz, width, out, root_columns, left_columns, right_columns, summed_columns;
    double cache_bytes;         // of all threads together; large results are stored past the caches
    int32_t threads, c_transposed, together;  // c_transposed: of C and of the C of the root; together: see csr.hpp
};

// Index arrays of a CSR matrix as a user passes them, and what kernels read instead.
struct Checked {
    const void *indptr, *indices;       // (rows + 1), (nnz), which nothing has checked
    int64_t rows, cols, nnz;
    int32_t indptr_bytes, index_bytes;  // of an element: 4 or 8
    int32_t threads, pieces;
    int64_t* wide;                      // (rows + 1), gets indptr; null: it is read in place, as it has 8 bytes
    int32_t* narrow;                    // (nnz), gets indices; null: they are read in place, as they have 4 bytes
    int64_t *piece_rows, *piece_nonzeros;  // (pieces + 1), get pieces of equal work
    uint32_t checksum;                  // set: of indptr and indices
    int32_t ascending, cut;             // set: columns ascend in every row; a piece begins inside a row
};

struct Watched {
    const uint32_t* words;
    int64_t count;   // of words
    uint64_t* sums;  // (windows)
};

struct Watch {
    Watched* arrays;
    int64_t count;    // of arrays
    int64_t calls;    // so far
    int32_t differs;  // whether the last check found a difference
};

}  // extern "C"
