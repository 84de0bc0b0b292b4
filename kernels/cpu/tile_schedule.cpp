// Algorithm 1 of tile fusion: two loops of n iterations, where iteration j of loop two depends on the iterations
// indices[indptr[j]] .. of loop one (on j alone if the pointers are null), are cut into tiles of two wavefronts.
//
//   a range [begin, end) is a tile of wavefront 0: these iterations of loop one, and of loop two those j of the range
//   that depend on nothing outside of it
//
//   step 1   coarse ranges of at most ct_size iterations, even, a multiple of `threads` of them       in parallel
//   step 2   a range that moves more than the cache holds is halved, unless it is a single iteration   in parallel
//   rest     iterations in no range form wavefront 1: balanced by nonzeros over tiles of at most ct_size
//            iterations on average, a multiple of `threads` of them; halved as in step 2
//
// An iteration whose inputs are in both halves of a split range moves to wavefront 1. The result does not depend on the
// number of threads. O(nonzeros + n log ct_size); of rows with ascending columns only the ends are read.
//
// Preconditions (checked in Python): both loops have n iterations; two.columns = n; ct_size, threads >= 1. Columns of
// loops that are not `rising` are checked here.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "team.hpp"
#include "tile_cost.hpp"

extern "C" {

struct TileProblem {
    Loop one, two;
    int64_t cache_bytes, ct_size, threads;
};

struct TileResult {
    int64_t* first;       // room for n + 1
    int32_t* second;      // (n)
    int64_t* second_ptr;  // room for 2 n + 1
    uint8_t* needed;      // (n)
    int64_t tiles[2];
    int64_t fault_loop, fault_iteration;  // 0, or the loop, 1 or 2, and the iteration whose columns are out of range
};

}  // extern "C"

namespace sparloom {
namespace {

struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
};

using Cut = std::vector<Range>;

struct Reach {
    int32_t least, most;  // of an iteration of loop two and all that it depends on
    bool inside(Range range) const { return least >= range.begin && most < range.end; }
};

// The iterations of loop one in a range.
auto all_of(Range range) {
    return [=](const auto& visit) {
        for (int64_t i = range.begin; i < range.end; ++i) visit(i);
    };
}

// The iterations of loop two in a range that depend on nothing outside of it.
auto inside_of(Range range, const std::vector<Reach>& reach) {
    return [=, &reach](const auto& visit) {
        for (int64_t j = range.begin; j < range.end; ++j) {
            if (reach[j].inside(range)) visit(j);
        }
    };
}

// The iterations at a range of positions of a list.
auto listed(Range range, const int32_t* list) {
    return [=](const auto& visit) {
        for (int64_t k = range.begin; k < range.end; ++k) visit(list[k]);
    };
}

// Appends `range`, or recursively its halves while they exceed the cache and have at least two iterations.
template <typename Exceeds>
void split(Range range, const Exceeds& exceeds, Cut& cut) {
    if (range.size() > 1 && exceeds(range)) {
        const int64_t middle = range.begin + range.size() / 2;
        split({range.begin, middle}, exceeds, cut);
        split({middle, range.end}, exceeds, cut);
    } else {
        cut.push_back(range);
    }
}

// Parts of n iterations: at most ct_size each, a multiple of `threads`, but never more than n.
int64_t parts(int64_t n, int64_t ct_size, int64_t threads) {
    const int64_t round = threads * ct_size;
    return std::min(n, threads * ((n + round - 1) / round));
}

class Inspector {
   public:
    Inspector(const TileProblem& problem, TileResult& result) : p_(problem), r_(result), n_(problem.two.iterations) {}

    void run() {
        if (!find_reach() || !check(p_.one, 1)) return;
        const Cut tiles = split_each(coarse_ranges(), [&](Range range, TileCost& cost) {
            return cost.exceeds_cache(all_of(range), inside_of(range, reach_));
        });
        const int64_t fused = write_wavefront_0(tiles);
        mark_needed(fused);
        const Cut rest = split_each(balanced_ranges(fused), [&](Range range, TileCost& cost) {
            return cost.exceeds_cache(all_of({0, 0}), listed(range, r_.second));
        });
        int64_t* end = r_.second_ptr + tiles.size();
        for (const Range& range : rest) *++end = range.end;
        r_.tiles[0] = tiles.size();
        r_.tiles[1] = rest.size();
    }

   private:
    bool find_reach() {
        reach_.resize(n_);
        const auto keep = [&](int64_t j, int32_t least, int32_t most) {
            reach_[j] = {std::min(least, int32_t(j)), std::max(most, int32_t(j))};
        };
        if (p_.two.indptr) return check(p_.two, 2, keep);
        for (int64_t j = 0; j < n_; ++j) keep(j, j, j);
        return true;
    }

    // Passes minimum and maximum column of every row to `keep`; returns false if one is out of range.
    template <typename Keep>
    bool check(const Loop& loop, int64_t number, const Keep& keep) {
        int64_t fault = n_;
#pragma omp parallel for num_threads(sparloom::team(p_.threads)) schedule(static) reduction(min : fault)
        for (int64_t r = 0; r < loop.iterations; ++r) {
            int32_t least = INT32_MAX, most = -1;
            const int64_t begin = loop.indptr[r], end = loop.indptr[r + 1];
            if (loop.rising && begin < end) {
                least = loop.indices[begin], most = loop.indices[end - 1];
            } else {
                for (int64_t n = begin; n < end; ++n) {
                    least = std::min(least, loop.indices[n]);
                    most = std::max(most, loop.indices[n]);
                }
            }
            if (most >= loop.columns || (begin < end && least < 0)) fault = std::min(fault, r);
            keep(r, least, most);
        }
        if (fault < n_) r_.fault_loop = number, r_.fault_iteration = fault;
        return fault == n_;
    }

    bool check(const Loop& loop, int64_t number) {
        return !loop.indptr || loop.rising || check(loop, number, [](int64_t, int32_t, int32_t) {});
    }

    Cut coarse_ranges() const {
        const int64_t count = parts(n_, p_.ct_size, p_.threads);
        Cut cut(count);
        for (int64_t v = 0; v < count; ++v) cut[v] = {v * n_ / count, (v + 1) * n_ / count};
        return cut;
    }

    // Ranges of positions in `second`, each with its share of the nonzeros and at least one iteration.
    Cut balanced_ranges(int64_t fused) const {
        const auto weight = [&](int64_t k) { return 1 + nonzeros(p_.two, r_.second[k]); };
        int64_t left = 0;
        for (int64_t k = fused; k < n_; ++k) left += weight(k);
        Cut cut;
        int64_t begin = fused;
        for (int64_t tiles = parts(n_ - fused, p_.ct_size, p_.threads); tiles > 0; --tiles) {
            int64_t end = begin + 1, taken = weight(begin);
            for (; end < n_ - (tiles - 1); ++end) {
                const int64_t next = weight(end);
                if (tiles > 1 && (2 * taken + next) * tiles > 2 * left) break;  // less than half of it fits
                taken += next;
            }
            cut.push_back({begin, end});
            begin = end;
            left -= taken;
        }
        return cut;
    }

    template <typename Exceeds>
    Cut split_each(const Cut& ranges, const Exceeds& exceeds) const {
        std::vector<Cut> cuts(ranges.size());
        int32_t missing = 0;  // an exception must not leave the threads
#pragma omp parallel num_threads(sparloom::team(p_.threads)) reduction(| : missing)
        {
            TileCost cost(p_.one, p_.two, p_.cache_bytes);
#pragma omp for schedule(dynamic, 1)
            for (size_t v = 0; v < ranges.size(); ++v) {
                missing |= out_of_memory(
                    [&] { split(ranges[v], [&](Range range) { return exceeds(range, cost); }, cuts[v]); });
            }
        }
        if (missing) throw std::bad_alloc();
        Cut all;
        for (const Cut& cut : cuts) all.insert(all.end(), cut.begin(), cut.end());
        return all;
    }

    // Writes `first`, the part of `second_ptr` for these tiles, and all of `second`: fused iterations tile by tile, then
    // the others in their order. Returns the number of fused iterations.
    int64_t write_wavefront_0(const Cut& tiles) {
        const int64_t count = tiles.size();
        r_.first[0] = r_.second_ptr[0] = 0;
#pragma omp parallel for num_threads(sparloom::team(p_.threads)) schedule(static)
        for (int64_t v = 0; v < count; ++v) {
            int64_t members = 0;
            inside_of(tiles[v], reach_)([&](int64_t) { ++members; });
            r_.first[v + 1] = tiles[v].end;
            r_.second_ptr[v + 1] = members;
        }
        std::partial_sum(r_.second_ptr, r_.second_ptr + count + 1, r_.second_ptr);
        const int64_t fused = r_.second_ptr[count];
#pragma omp parallel for num_threads(sparloom::team(p_.threads)) schedule(static)
        for (int64_t v = 0; v < count; ++v) {
            const Range tile = tiles[v];
            int64_t now = r_.second_ptr[v], later = fused + tile.begin - now;  // tile.begin - now are unfused before it
            for (int64_t j = tile.begin; j < tile.end; ++j) r_.second[reach_[j].inside(tile) ? now++ : later++] = j;
        }
        return fused;
    }

    void mark_needed(int64_t fused) {
        std::fill_n(r_.needed, n_, 0);
        uint8_t* const needed = r_.needed;
        const int64_t rest = n_ - fused;
#pragma omp parallel for num_threads(sparloom::team(p_.threads)) schedule(static)
        for (int64_t t = 0; t < p_.threads; ++t) {
            const Range part{fused + t * rest / p_.threads, fused + (t + 1) * rest / p_.threads};
            each_run(p_.two, listed(part, r_.second), [=](const int32_t* i, const int32_t* end) {
                for (; i < end; ++i) __atomic_store_n(needed + *i, uint8_t{1}, __ATOMIC_RELAXED);
            });
        }
    }

    const TileProblem& p_;
    TileResult& r_;
    const int64_t n_;
    std::vector<Reach> reach_;
};

}  // namespace
}  // namespace sparloom

// Returns 1 if memory ran out, else 0.
extern "C" int32_t sparloom_tile_schedule(const TileProblem* problem, TileResult* result) {
    return sparloom::out_of_memory([&] { sparloom::Inspector(*problem, *result).run(); });
}
