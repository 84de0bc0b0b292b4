// Runs a kernel once on CSR arrays as they come: checks them, converts them to what the kernel reads, cuts the rows for
// the threads. Nothing is kept, so a pattern that is seen once costs little more than its kernel.
//
//   indptr       int32 or int64, (rows + 1): must rise from 0 to nnz; int32 is widened to a copy
//   indices      int32 or int64, (nnz): must be in 0 .. cols - 1; int64 is narrowed to a copy
//
// Both are read in a few vectorised passes before anything is read through them. Columns of a row may have to ascend;
// that holds if all places where a column does not exceed its predecessor are first nonzeros of a row, so two counts are
// compared. Where a row is cut the kernel needs its workspace, as for pieces made in Python.
//
// Preconditions (checked in Python): the arrays have those sizes and are aligned; place is 0, 1, 2, ..; arguments begin
// with Rows, whose values are set; its workspace has room for eight pieces for each thread; threads >= 1.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <type_traits>

#include "rows.hpp"

extern "C" {

struct Direct {
    const void *indptr, *indices;
    const int32_t* place;               // at least `rows`
    void (*run)(const void*);
    Rows* arguments;
    int64_t rows, cols, nnz;
    int32_t indptr_bytes, index_bytes;  // of an element: 4 or 8
    int32_t ascending;                  // flag: columns must ascend
    int32_t mean;                       // bytes of values, float or double, to divide by the nonzeros of their row; or 0
    int32_t threads;
    uint32_t checksum;                  // set: of indptr and indices, to guess whether they are those of another call
};

}  // extern "C"

namespace sparloom::direct {
namespace {

constexpr int64_t kRowWork = 4;           // starting a row costs as much as so many nonzeros
constexpr int64_t kSlack = 16;            // a cut may move by 1 / kSlack of a piece to fall between two rows
constexpr int64_t kChecked = 1 << 16;     // nonzeros that are checked as one piece
constexpr int32_t kPieces = 8;            // of each thread, if there are several
constexpr int64_t kBlock = 1 << 12;       // nonzeros that stay in the first cache from pass to pass
enum Fault : int32_t { kNone, kMemory, kPointers, kRange, kOrder };

// Widens `from`; tells whether it rises from 0 to `last`.
template <typename I>
bool rises(const I* from, int64_t rows, int64_t last, int64_t* to) {
    I falls = 0;
    for (int64_t r = 0; r < rows; ++r) falls |= from[r + 1] < from[r];
    if constexpr (sizeof(I) == 4) std::copy(from, from + rows + 1, to);
    return falls == 0 && from[0] == 0 && from[rows] == last;
}

constexpr uint32_t kFactor = 2654435761u;  // of a position in a checksum; odd

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

// Nonzeros begin .. end; narrows them.
template <typename I>
Part part(const I* from, int64_t begin, int64_t end, int32_t* to) {
    using Unsigned = std::make_unsigned_t<I>;
    Unsigned highest = 0;
    int64_t descents = 0;
    uint32_t checksum = 0;
    for (int64_t block = begin; block < end; block += kBlock) {
        const int64_t last = std::min(block + kBlock, end);
        int32_t found = 0;
        for (int64_t n = block; n < last; ++n) {
            const Unsigned column = static_cast<Unsigned>(from[n]);
            highest = column > highest ? column : highest;
        }
        if constexpr (sizeof(I) == 8) {
            for (int64_t n = block; n < last; ++n) to[n] = static_cast<int32_t>(from[n]);
        }
        for (int64_t n = std::max<int64_t>(block, 1); n < last; ++n) found += from[n] <= from[n - 1];
        descents += found;
        checksum += checksum_of(from, block, last);
    }
    return {highest, descents, checksum};
}

template <typename I>
Part all(const I* from, int64_t nnz, int32_t threads, int32_t* to) {
    const int64_t parts = nnz / kChecked + 1;
    if (parts == 1) return part(from, 0, nnz, to);
    std::atomic<uint64_t> highest{0};
    std::atomic<int64_t> descents{0};
    std::atomic<uint32_t> checksum{0};
    share(parts, threads, [&](int64_t p, int32_t) {
        const Part found = part(from, nnz * p / parts, nnz * (p + 1) / parts, to);
        uint64_t seen = highest.load();
        while (seen < found.highest && !highest.compare_exchange_weak(seen, found.highest)) {
        }
        descents += found.descents;
        checksum += found.checksum;
    });
    return {highest, descents, checksum};
}

// Nonzeros that begin a row and whose column does not exceed the one before.
int64_t descents_between_rows(const int64_t* indptr, const int32_t* indices, int64_t rows) {
    int64_t found = 0;
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t begin = indptr[r];
        if (begin > 0 && begin < indptr[r + 1]) found += indices[begin] <= indices[begin - 1];
    }
    return found;
}

// Cuts the rows into pieces of equal work, as Traversal.pieces of Python does.
void cut(const int64_t* indptr, int64_t rows, int32_t pieces, int64_t* piece_rows, int64_t* piece_nonzeros) {
    const auto work = [&](int64_t row) { return indptr[row] + kRowWork * row; };
    const int64_t total = work(rows), slack = total / pieces / kSlack;
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
    }
    piece_rows[pieces] = rows;
    piece_nonzeros[pieces] = indptr[rows];
}

// to[n] = values[n] / nonzeros of its row, by the same two roundings as in Python.
template <typename T>
void divide(const int64_t* indptr, int64_t rows, const void* from, T* to) {
    const T* const values = static_cast<const T*>(from);
    for (int64_t r = 0; r < rows; ++r) {
        const T share = 1 / static_cast<T>(std::max<int64_t>(1, indptr[r + 1] - indptr[r]));
        for (int64_t n = indptr[r]; n < indptr[r + 1]; ++n) to[n] = values[n] * share;
    }
}

// Memory for one call.
class Scratch {
   public:
    explicit Scratch(int64_t bytes) : at_(static_cast<char*>(std::malloc(bytes))), next_(at_) {}
    ~Scratch() { std::free(at_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    explicit operator bool() const { return at_ != nullptr; }

    template <typename T>
    T* take(int64_t count) {
        T* const taken = reinterpret_cast<T*>(next_);
        next_ += count * sizeof(T);
        return taken;
    }

   private:
    char *at_, *next_;
};

int32_t run(Direct& d) {
    Rows& rows = *d.arguments;
    const bool widen = d.indptr_bytes == 4, narrow = d.index_bytes == 8;
    const int32_t pieces = d.rows == 0 || d.threads == 1 ? 1 : kPieces * d.threads;
    Scratch scratch(8 * (2 * (pieces + 1) + (widen ? d.rows + 1 : 0)) + d.nnz * (4 * narrow + d.mean) + 4);
    if (!scratch) return kMemory;
    int64_t *const piece_rows = scratch.take<int64_t>(pieces + 1), *const piece_nonzeros = scratch.take<int64_t>(pieces + 1);
    int64_t* const wide = scratch.take<int64_t>(widen ? d.rows + 1 : 0);
    int32_t* const narrowed = scratch.take<int32_t>(narrow ? d.nnz + d.nnz % 2 : 0);  // doubles may follow
    if (!(widen ? rises(static_cast<const int32_t*>(d.indptr), d.rows, d.nnz, wide)
                : rises(static_cast<const int64_t*>(d.indptr), d.rows, d.nnz, wide))) {
        return kPointers;
    }
    const int64_t* const indptr = widen ? wide : static_cast<const int64_t*>(d.indptr);
    const int32_t* const indices = narrow ? narrowed : static_cast<const int32_t*>(d.indices);
    const Part found = narrow ? all(static_cast<const int64_t*>(d.indices), d.nnz, d.threads, narrowed)
                              : all(indices, d.nnz, d.threads, narrowed);
    if (d.nnz > 0 && found.highest >= static_cast<uint64_t>(d.cols)) return kRange;
    if (d.ascending && found.descents != descents_between_rows(indptr, indices, d.rows)) return kOrder;
    d.checksum = found.checksum + checksum_of(indptr, 0, d.rows + 1);
    cut(indptr, d.rows, pieces, piece_rows, piece_nonzeros);
    if (d.mean) {
        void* const divided = scratch.take<char>(d.mean * d.nnz);
        if (d.mean == 8) {
            divide(indptr, d.rows, rows.values, static_cast<double*>(divided));
        } else {
            divide(indptr, d.rows, rows.values, static_cast<float*>(divided));
        }
        rows.values = divided;
    }
    rows.indptr = rows.source = indptr;
    rows.indices = indices;
    rows.place = d.place;
    rows.equal = nullptr;
    rows.piece_rows = piece_rows;
    rows.piece_nonzeros = piece_nonzeros;
    rows.nnz = d.nnz;
    rows.pieces = pieces;
    rows.dynamic = 0;
    rows.threads = d.threads;
    d.run(d.arguments);
    return kNone;
}

}  // namespace
}  // namespace sparloom::direct

// Returns 0, or why nothing was computed: 1 no memory, 2 indptr, 3 a column, 4 the order of columns.
extern "C" int32_t sparloom_direct(void* arguments) {
    return sparloom::direct::run(*static_cast<Direct*>(arguments));
}
