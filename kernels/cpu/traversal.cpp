// Sorts the rows of a pattern by their middle column, and finds rows with the same columns as the previous row.
//
// The pattern is read about once: a sort by counting, which takes a counter for each column; copies of whole rows;
// comparisons of neighbours.
//
// Preconditions (checked in Python): a valid pattern; results overlap nothing.

#include <algorithm>
#include <cstdint>
#include <cstring>

extern "C" {

struct Pattern {
    const int64_t* indptr;   // (rows + 1)
    const int32_t* indices;  // (nnz)
    int64_t rows;
};

struct Traversal {
    int64_t* indptr;   // (rows + 1)
    int32_t* indices;  // (nnz)
    int64_t* source;   // (rows) old position of the nonzeros of each row
    int32_t* place;    // (rows) old index of each row
    int32_t* next;     // (cols + 2) zeros: becomes the index of the next row with each middle column
};

}  // extern "C"

// Sorts rows by their middle column; equal ones keep their order, empty ones come last.
extern "C" void sparloom_by_column(const Pattern* from, int64_t cols, const Traversal* to) {
    const int64_t* indptr = from->indptr;
    const auto middle = [&](int64_t row) -> int64_t {
        const int64_t length = indptr[row + 1] - indptr[row];
        return length == 0 ? cols : from->indices[indptr[row] + length / 2];
    };
    int32_t* next = to->next;
    for (int64_t row = 0; row < from->rows; ++row) ++next[middle(row) + 1];
    for (int64_t col = 0; col <= cols; ++col) next[col + 1] += next[col];
    for (int64_t row = 0; row < from->rows; ++row) to->place[next[middle(row)]++] = static_cast<int32_t>(row);
    int64_t begin = 0;
    for (int64_t k = 0; k < from->rows; ++k) {
        const int64_t source = indptr[to->place[k]], length = indptr[to->place[k] + 1] - source;
        to->source[k] = source;
        to->indptr[k] = begin;
        std::copy_n(from->indices + source, length, to->indices + begin);
        begin += length;
    }
    to->indptr[from->rows] = begin;
}

// Counts the rows, from each one on and at most `most`, with the same columns; an empty row counts alone.
extern "C" void sparloom_equal_rows(const Pattern* pattern, int64_t most, uint8_t* count) {
    const int64_t* indptr = pattern->indptr;
    for (int64_t row = pattern->rows - 1; row >= 0; --row) {
        count[row] = 1;
        if (row + 1 == pattern->rows) continue;
        const int64_t length = indptr[row + 1] - indptr[row];
        const int32_t* columns = pattern->indices + indptr[row];
        if (length == 0 || indptr[row + 2] - indptr[row + 1] != length) continue;
        if (std::memcmp(columns, columns + length, length * sizeof(int32_t)) != 0) continue;
        count[row] = static_cast<uint8_t>(std::min<int64_t>(count[row + 1] + 1, most));
    }
}
