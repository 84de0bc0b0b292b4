// Checks the index arrays of a CSR matrix as users pass them, converts them to what kernels read, and cuts the rows
// into pieces for the threads. Nothing is read through the arrays before they are checked.
//
//   indptr       int32 or int64, (rows + 1): must rise from 0 to nnz; widened to `wide`
//   indices      int32 or int64, (nnz): must be in 0 .. cols - 1; narrowed to `narrow`
//
// Both are read in a few vectorised passes. Columns ascend if every place where a column does not exceed its predecessor
// is the first nonzero of a row, so two counts are compared.
//
// Preconditions (checked by the caller): the arrays have those sizes and are aligned; what is null is read in place and
// has the type of `wide` or `narrow`; threads >= 1, pieces >= 1.

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "arguments.hpp"
#include "team.hpp"

namespace sparloom::check_indices {
namespace {

constexpr int64_t kRowWork = 4;        // starting a row costs as much as so many nonzeros
constexpr int64_t kSlack = 16;         // a cut may move by 1 / kSlack of a piece to fall between two rows
constexpr int64_t kPart = 1 << 16;     // nonzeros that one thread checks at a time
constexpr int64_t kBlock = 1 << 12;    // nonzeros that stay in the first cache from pass to pass
constexpr uint32_t kFactor = 2654435761u;  // of a position in a checksum; odd
enum Fault : int32_t { kNone, kPointers, kRange };

// Copies `from` to `to` unless that is null; tells whether it rises from 0 to `last`.
template <typename I>
bool rises(const I* from, int64_t rows, int64_t last, int64_t* to) {
    I falls = 0;
    for (int64_t r = 0; r < rows; ++r) falls |= from[r + 1] < from[r];
    if (to != nullptr) std::copy(from, from + rows + 1, to);
    return falls == 0 && from[0] == 0 && from[rows] == last;
}

template <typename I>
uint32_t checksum_of(const I* from, int64_t begin, int64_t end) {
    uint32_t sum = 0;
    for (int64_t n = begin; n < end; ++n) {
        sum += static_cast<uint32_t>(from[n]) * (static_cast<uint32_t>(n) * kFactor ^ kFactor);
    }
    return sum;
}

// What a part of the nonzeros looks like.
struct Part {
    uint64_t highest;   // column; a negative one counts as a high one
    int64_t descents;   // nonzeros whose column does not exceed the previous one
    uint32_t checksum;
};

// Nonzeros begin .. end, copied to `to` unless that is null.
template <typename I>
Part part(const I* from, int64_t begin, int64_t end, int32_t* to) {
    using Unsigned = std::make_unsigned_t<I>;
    Unsigned highest = 0;
    int64_t descents = 0;
    uint32_t checksum = 0;
    for (int64_t block = begin; block < end; block += kBlock) {
        const int64_t last = std::min(block + kBlock, end);
        int32_t in_block = 0;
        for (int64_t n = block; n < last; ++n) {
            const Unsigned column = static_cast<Unsigned>(from[n]);
            highest = column > highest ? column : highest;
        }
        if (to != nullptr) {
            for (int64_t n = block; n < last; ++n) to[n] = static_cast<int32_t>(from[n]);
        }
        for (int64_t n = std::max<int64_t>(block, 1); n < last; ++n) in_block += from[n] <= from[n - 1];
        descents += in_block;
        checksum += checksum_of(from, block, last);
    }
    return {highest, descents, checksum};
}

template <typename I>
Part all_parts(const I* from, int64_t nnz, int32_t threads, int32_t* to) {
    const int64_t parts = nnz / kPart + 1;
    if (parts == 1) return part(from, 0, nnz, to);
    std::atomic<uint64_t> highest{0};
    std::atomic<int64_t> descents{0};
    std::atomic<uint32_t> checksum{0};
    share(parts, threads, [&](int64_t p, int32_t) {
        const Part one = part(from, nnz * p / parts, nnz * (p + 1) / parts, to);
        uint64_t seen = highest.load();
        while (seen < one.highest && !highest.compare_exchange_weak(seen, one.highest)) {
        }
        descents += one.descents;
        checksum += one.checksum;
    });
    return {highest, descents, checksum};
}

// Nonzeros that begin a row and whose column does not exceed the one before.
int64_t descents_between_rows(const int64_t* indptr, const int32_t* indices, int64_t rows) {
    int64_t descents = 0;
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t begin = indptr[r];
        if (begin > 0 && begin < indptr[r + 1]) descents += indices[begin] <= indices[begin - 1];
    }
    return descents;
}

// Cuts the rows into pieces of equal work, as Traversal.pieces of Python does; tells whether one begins inside a row.
bool cut(const int64_t* indptr, int64_t rows, int32_t pieces, int64_t* piece_rows, int64_t* piece_nonzeros) {
    const auto work = [&](int64_t row) { return indptr[row] + kRowWork * row; };
    const int64_t total = work(rows), slack = total / pieces / kSlack;
    bool any = false;
    piece_rows[0] = piece_nonzeros[0] = 0;
    for (int32_t p = 1; p < pieces; ++p) {
        const int64_t target = total * p / pieces;
        int64_t low = 0, high = rows;  // the last row that begins at the target or before
        while (low + 1 < high) {
            const int64_t middle = (low + high) / 2;
            (work(middle) <= target ? low : high) = middle;
        }
        const int64_t past = target - work(low), left = work(low + 1) - target;
        piece_rows[p] = left <= slack ? low + 1 : low;
        piece_nonzeros[p] = std::min(past, left) <= slack ? indptr[piece_rows[p]]
                                                          : std::min(indptr[low] + past, indptr[low + 1]);
        any |= piece_nonzeros[p] > indptr[piece_rows[p]];
    }
    piece_rows[pieces] = rows;
    piece_nonzeros[pieces] = indptr[rows];
    return any;
}

int32_t run(Checked& c) {
    const bool pointers_fit = c.indptr_bytes == 4
        ? rises(static_cast<const int32_t*>(c.indptr), c.rows, c.nnz, c.wide)
        : rises(static_cast<const int64_t*>(c.indptr), c.rows, c.nnz, c.wide);
    if (!pointers_fit) return kPointers;
    const int64_t* const indptr = c.wide != nullptr ? c.wide : static_cast<const int64_t*>(c.indptr);
    const int32_t* const indices = c.narrow != nullptr ? c.narrow : static_cast<const int32_t*>(c.indices);
    const Part columns = c.index_bytes == 8
        ? all_parts(static_cast<const int64_t*>(c.indices), c.nnz, c.threads, c.narrow)
        : all_parts(static_cast<const int32_t*>(c.indices), c.nnz, c.threads, c.narrow);
    if (c.nnz > 0 && columns.highest >= static_cast<uint64_t>(c.cols)) return kRange;
    c.ascending = columns.descents == descents_between_rows(indptr, indices, c.rows);
    c.checksum = columns.checksum + checksum_of(indptr, 0, c.rows + 1);
    c.cut = c.rows > 0 && cut(indptr, c.rows, c.pieces, c.piece_rows, c.piece_nonzeros);
    if (c.rows == 0) {
        std::fill(c.piece_rows, c.piece_rows + c.pieces + 1, 0);
        std::fill(c.piece_nonzeros, c.piece_nonzeros + c.pieces + 1, 0);
    }
    return kNone;
}

// to[n] = values[n] / nonzeros of its row, by the same two roundings as in Python.
template <typename T>
void divide(const Rows& rows, int64_t count, T* to) {
    const T* const values = static_cast<const T*>(rows.values);
    for (int64_t r = 0; r < count; ++r) {
        const int64_t nonzeros = rows.indptr[r + 1] - rows.indptr[r], begin = rows.source[r];
        const T share = 1 / static_cast<T>(std::max<int64_t>(1, nonzeros));
        for (int64_t n = begin; n < begin + nonzeros; ++n) to[n] = values[n] * share;
    }
}

}  // namespace
}  // namespace sparloom::check_indices

extern "C" {

// Returns 0, or what is wrong: 1 indptr, 2 a column; then the arrays of `checked` are undefined.
int32_t sparloom_check_indices(Checked* checked) { return sparloom::check_indices::run(*checked); }

// Cuts rows again, into another number of pieces; tells whether one begins inside a row.
int32_t sparloom_cut_rows(const int64_t* indptr, int64_t rows, int32_t pieces, int64_t* piece_rows,
                          int64_t* piece_nonzeros) {
    return sparloom::check_indices::cut(indptr, rows, pieces, piece_rows, piece_nonzeros);
}

// Divides the values of `rows`, floats (4 bytes) or doubles (8), by the nonzeros of their rows.
void sparloom_divide_by_row(const Rows* rows, int64_t count, int32_t bytes, void* to) {
    using sparloom::check_indices::divide;
    if (bytes == 8) {
        divide(*rows, count, static_cast<double*>(to));
    } else {
        divide(*rows, count, static_cast<float*>(to));
    }
}

}  // extern "C"
