// The rows of a sparse operand in the order in which they are processed, cut into pieces of about equal work.
//
// A piece goes from (row, nonzero) to the (row, nonzero) of the next; nonzeros count along `indptr`. A piece that begins
// inside a row is called cut: another piece begins that row.

#pragma once

#include <algorithm>
#include <cstdint>

#include "arguments.hpp"
#include "team.hpp"

namespace sparloom {

inline bool is_cut(const Rows& rows, int32_t piece) {
    return rows.piece_nonzeros[piece] > rows.indptr[rows.piece_rows[piece]];
}

// Whether a piece has the beginning of a row whose rest the next one has.
inline bool begins_next(const Rows& rows, int32_t piece) {
    const int64_t row = rows.piece_rows[piece + 1];
    return rows.piece_nonzeros[piece + 1] > rows.indptr[row] && rows.piece_nonzeros[piece] <= rows.indptr[row];
}

// Calls work(row, p, end) for every row that pieces p .. end share: p begins it, the others are cut.
template <typename Work>
void each_shared_row(const Rows& rows, const Work& work) {
    for (int32_t p = 0; p < rows.pieces; ++p) {
        if (!begins_next(rows, p)) continue;
        const int64_t row = rows.piece_rows[p + 1];
        int32_t end = p + 1;
        while (end < rows.pieces && is_cut(rows, end) && rows.piece_rows[end] == row) ++end;
        work(row, p, end);
    }
}

// The values of row k, of the type in memory.
template <typename T>
inline const T* values_of(const Rows& rows, int64_t k) {
    return static_cast<const T*>(rows.values) + rows.source[k];
}

// Dense rows of `row_bytes` each that fill so many bytes, at least one; 0 for 0.
inline int64_t rows_ahead(int64_t bytes, int64_t row_bytes) {
    return bytes == 0 ? 0 : std::max<int64_t>(1, bytes / row_bytes);
}

// Calls work(piece) for every piece.
template <typename Work>
void each_piece(const Rows& rows, const Work& work) {
    share(rows.pieces, rows.threads, [&](int64_t piece, int32_t) { work(static_cast<int32_t>(piece)); }, rows.dynamic);
}

}  // namespace sparloom
