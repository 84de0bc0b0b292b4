// Deals the pieces of parallel loops to workers, region by region, in their order: each region begins when the one
// before has ended. Dynamic dealing gives the next piece to the worker that is free first, as OpenMP's schedule(dynamic)
// does; static dealing gives piece p of a region to worker p modulo the workers, as schedule(static, 1) does.
//
// Preconditions (checked in Python): workers >= 1; 0 = region[0] <= region[1] <= ... <= region[regions].

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "memory.hpp"

extern "C" {

struct Dealing {
    const double* work;     // (pieces) of each piece, in any unit
    const int64_t* region;  // (regions + 1) first piece of each region
    int64_t regions, workers, dynamic;
    double* ends;           // (regions) result: work of the worker that ends last
};

}  // extern "C"

namespace {

// Work until the last worker ends. `load` is a heap whose front is the worker that is free first.
double dynamic_end(const double* begin, const double* end, std::vector<double>& load) {
    std::fill(load.begin(), load.end(), 0.0);
    for (const double* piece = begin; piece < end; ++piece) {
        std::pop_heap(load.begin(), load.end(), std::greater<>());
        load.back() += *piece;
        std::push_heap(load.begin(), load.end(), std::greater<>());
    }
    return *std::max_element(load.begin(), load.end());
}

double static_end(const double* begin, const double* end, std::vector<double>& load) {
    std::fill(load.begin(), load.end(), 0.0);
    size_t worker = 0;
    for (const double* piece = begin; piece < end; ++piece) {
        load[worker] += *piece;
        worker = worker + 1 == load.size() ? 0 : worker + 1;
    }
    return *std::max_element(load.begin(), load.end());
}

}  // namespace

extern "C" int32_t sparloom_deal(const Dealing* dealing) {
    const Dealing& d = *dealing;
    return sparloom::out_of_memory([&] {
        std::vector<double> load(d.workers);
        for (int64_t r = 0; r < d.regions; ++r) {
            const double *begin = d.work + d.region[r], *end = d.work + d.region[r + 1];
            d.ends[r] = d.dynamic ? dynamic_end(begin, end, load) : static_end(begin, end, load);
        }
    });
}
