// Bytes that a fused tile moves (Equation 4 of tile fusion), for two loops, each of which may read sparse rows.
//
//   cost = over both loops: iterations * iteration_bytes + nonzeros * nonzero_bytes + distinct columns * column_bytes
//
// The first two terms come from row pointers. Distinct columns are counted, O(nonzeros), only if their lower and upper
// bounds do not decide the comparison.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

extern "C" {

// A parallel loop. Iteration r reads the rows indices[indptr[r]] .. indices[indptr[r + 1] - 1] of a dense array; a loop
// that reads no rows through indices has null pointers. Field for field a struct of fusion/inspector.py.
struct Loop {
    const int64_t* indptr;   // (iterations + 1) or null
    const int32_t* indices;  // (nonzeros) below `columns`, in any order and repeated, unless `rising`
    int64_t iterations, columns, rising;
    int64_t iteration_bytes, nonzero_bytes, column_bytes;
};

}  // extern "C"

namespace sparloom {

inline int64_t nonzeros(const Loop& loop, int64_t iteration) {
    return loop.indptr ? loop.indptr[iteration + 1] - loop.indptr[iteration] : 0;
}

// A set of iterations is given by `each`: each(visit) calls visit(iteration) for all of them.

// Calls run(begin, end) for the columns that they read, those of successive iterations at once.
template <typename Each, typename Run>
void each_run(const Loop& loop, const Each& each, const Run& run) {
    int64_t begin = 0, end = 0;
    each([&](int64_t iteration) {
        if (loop.indptr[iteration] != end) {
            run(loop.indices + begin, loop.indices + end);
            begin = loop.indptr[iteration];
        }
        end = loop.indptr[iteration + 1];
    });
    run(loop.indices + begin, loop.indices + end);
}

// Bounds of the reads of a set of iterations without reading every index: all columns are in least .. most.
struct Extent {
    int64_t iterations = 0, nonzeros = 0, least = INT32_MAX, most = -1;
    int64_t span() const { return std::max<int64_t>(0, most - least + 1); }
    int64_t most_columns() const { return std::min(nonzeros, span()); }
};

template <typename Each>
Extent extent(const Loop& loop, const Each& each) {
    Extent all;
    each([&](int64_t iteration) {
        ++all.iterations;
        const int64_t count = nonzeros(loop, iteration);
        if (count == 0) return;
        all.nonzeros += count;
        const int32_t* row = loop.indices + loop.indptr[iteration];
        all.least = loop.rising ? std::min<int64_t>(all.least, row[0]) : 0;
        all.most = loop.rising ? std::max<int64_t>(all.most, row[count - 1]) : loop.columns - 1;
    });
    return all;
}

// Counts the distinct columns of sets of iterations of one loop, O(nonzeros).
class Distinct {
   public:
    explicit Distinct(const Loop& loop) : loop_(loop) {}

    // Returns the count, or any number above `limit` if the count is above it.
    template <typename Each>
    int64_t operator()(const Each& each, const Extent& all, int64_t limit) {
        if (all.nonzeros == 0) return 0;
        if (marks_.empty()) marks_.resize(loop_.columns);
        return all.span() <= kDense * all.nonzeros ? by_span(each, all) : by_index(each, limit);
    }

   private:
    static constexpr int64_t kDense = 4;  // columns per nonzero up to which adding up all marks is cheap

    template <typename Each>
    int64_t by_span(const Each& each, const Extent& all) {
        uint8_t* const marks = marks_.data();  // a local: what is written through uint8_t* may be any member
        each_run(loop_, each, [=](const int32_t* column, const int32_t* end) {
            for (; column < end; ++column) marks[*column] = 1;
        });
        uint8_t *const first = marks + all.least, *const last = first + all.span();
        const int64_t count = std::count(first, last, 1);
        std::fill(first, last, 0);
        return count;
    }

    template <typename Each>
    int64_t by_index(const Each& each, int64_t limit) {
        uint8_t* const marks = marks_.data();
        int64_t count = 0, marked = 0;
        each([&](int64_t iteration) {
            if (count > limit) return;
            ++marked;
            for (const int32_t *column = begin(iteration), *stop = end(iteration); column < stop; ++column) {
                count += 1 - marks[*column];
                marks[*column] = 1;
            }
        });
        each([&](int64_t iteration) {
            if (marked-- > 0) std::for_each(begin(iteration), end(iteration), [=](int32_t c) { marks[c] = 0; });
        });
        return count;
    }

    const int32_t* begin(int64_t iteration) const { return loop_.indices + loop_.indptr[iteration]; }
    const int32_t* end(int64_t iteration) const { return begin(iteration + 1); }

    const Loop& loop_;
    std::vector<uint8_t> marks_;  // zero between calls
};

// Compares tiles with the cache. One object per thread.
class TileCost {
   public:
    TileCost(const Loop& one, const Loop& two, int64_t cache_bytes)
        : one_(one), two_(two), distinct_one_(one), distinct_two_(two), cache_bytes_(cache_bytes) {}

    // `ones` and `twos` visit the iterations of either loop in the tile.
    template <typename Ones, typename Twos>
    bool exceeds_cache(const Ones& ones, const Twos& twos) {
        const Extent a = extent(one_, ones), b = extent(two_, twos);
        const int64_t room = cache_bytes_ - without_columns(one_, a) - without_columns(two_, b);
        if (room < 0) return true;
        if (a.most_columns() * one_.column_bytes + b.most_columns() * two_.column_bytes <= room) return false;
        const int64_t rest = room - distinct_bytes(one_, distinct_one_, ones, a, room);
        return rest < 0 || distinct_bytes(two_, distinct_two_, twos, b, rest) > rest;
    }

   private:
    static int64_t without_columns(const Loop& loop, const Extent& all) {
        return all.iterations * loop.iteration_bytes + all.nonzeros * loop.nonzero_bytes;
    }

    template <typename Each>
    static int64_t distinct_bytes(const Loop& loop, Distinct& distinct, const Each& each, const Extent& all,
                                  int64_t room) {
        return loop.column_bytes == 0 ? 0 : loop.column_bytes * distinct(each, all, room / loop.column_bytes);
    }

    const Loop &one_, &two_;
    Distinct distinct_one_, distinct_two_;
    const int64_t cache_bytes_;
};

}  // namespace sparloom
