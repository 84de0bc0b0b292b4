// Loops that do one thing as fast as a core can: multiply and add in registers, read a buffer, copy one past the
// caches.

#include <cstdint>

#include "team.hpp"
#include "vector.hpp"

extern "C" {

struct PeakRate {
    float *from, *to;                 // (threads * count) at multiples of a vector; `to` is not read
    int64_t count, repeats, threads;  // floats of each thread, a multiple of 16 vectors
    int32_t kind;                     // 0: multiply and add, 16 vectors `count` times; 1: read; 2: copy
    float result;                     // of the arithmetic, so that it is not left out
};

}  // extern "C"

namespace sparloom {
namespace {

constexpr int kSums = 16;  // so that additions do not wait for each other
using F = Vec<float>;

template <typename Step>
float sums_of(const Step& step) {
    F sums[kSums] = {};
    step(sums);
    F all{};
    for (int s = 0; s < kSums; ++s) all += sums[s];
    float total = 0;
    for (int lane = 0; lane < kLanes<float>; ++lane) total += all[lane];
    return total;
}

float multiply(const PeakRate& p) {
    const F factor = broadcast<float>(p.from[0]), addend = broadcast<float>(p.from[1]);
    return sums_of([&](F* sums) {
        for (int s = 0; s < kSums; ++s) sums[s] = load(p.from + s * kLanes<float>);  // equal ones would be computed once
        for (int64_t n = 0; n < p.count; ++n) {
#pragma GCC unroll 16
            for (int s = 0; s < kSums; ++s) sums[s] = multiply_add<float>(sums[s], factor, addend);
        }
    });
}

float read(const PeakRate& p, const float* from) {
    return sums_of([&](F* sums) {
        for (int64_t repeat = 0; repeat < p.repeats; ++repeat) {
            for (int64_t n = 0; n < p.count; n += kSums * kLanes<float>) {
#pragma GCC unroll 16
                for (int s = 0; s < kSums; ++s) sums[s] += load(from + n + s * kLanes<float>);
            }
        }
    });
}

float copy(const PeakRate& p, const float* from, float* to) {
    for (int64_t repeat = 0; repeat < p.repeats; ++repeat) {
        for (int64_t n = 0; n < p.count; n += kSums * kLanes<float>) {
#pragma GCC unroll 16
            for (int s = 0; s < kSums; ++s) stream(to + n + s * kLanes<float>, load(from + n + s * kLanes<float>));
        }
    }
    fence();
    return 0;
}

float work_of(const PeakRate& p, int64_t thread) {
    const float* from = p.from + thread * p.count;
    if (p.kind == 0) return multiply(p);
    return p.kind == 1 ? read(p, from) : copy(p, from, p.to + thread * p.count);
}

}  // namespace
}  // namespace sparloom

extern "C" void sparloom_peak_rate(void* arguments) {
    PeakRate& p = *static_cast<PeakRate*>(arguments);
    const int32_t team = sparloom::team(static_cast<int32_t>(p.threads));
    float result = 0;
#pragma omp parallel for num_threads(team) schedule(static, 1) reduction(+ : result)
    for (int64_t t = 0; t < p.threads; ++t) result += sparloom::work_of(p, t);
    p.result = result;
}
