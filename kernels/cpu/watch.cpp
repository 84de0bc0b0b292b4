// Detects changes of arrays that must not change, by comparing their windows with stored checksums.
//
// Each array is divided into windows of WINDOW words of 4 bytes; the last one may be shorter. A call checks a part of the
// windows, a different part each time, and alternately the first or the last window of every array. The first calls
// check more, and after a difference every call checks all windows until there is none.
//
// Macros: none.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "arguments.hpp"

namespace {

constexpr int64_t WINDOW = 1024;
constexpr int LANES = 32;
constexpr int64_t WHOLE = 128;  // windows of an array that the first calls look at as a whole
constexpr int64_t FIRST = 4;    // calls, which look at a quarter of the windows of longer arrays each
constexpr int64_t SHARE = 32;   // calls after these in which every window is seen

// Depends on the position of every word: each lane has a sum, and a sum of its partial sums.
uint64_t sum_of(const uint32_t* words, int64_t count) {
    uint32_t once[LANES] = {}, twice[LANES] = {};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; ++lane) {
            once[lane] += words[i + lane];
            twice[lane] += once[lane];
        }
    for (int lane = 0; i < count; ++i, ++lane) {
        once[lane] += words[i];
        twice[lane] += once[lane];
    }
    uint64_t sum = static_cast<uint64_t>(count);
    for (int lane = 0; lane < LANES; ++lane)
        sum = (sum * 0x9E3779B97F4A7C15ull) ^ ((static_cast<uint64_t>(twice[lane]) << 32) | once[lane]);
    return sum;
}

}  // namespace

extern "C" {

static int64_t windows_of(const Watched& array) { return (array.count + WINDOW - 1) / WINDOW; }

static uint64_t window_sum(const Watched& array, int64_t window) {
    return sum_of(array.words + window * WINDOW, std::min(WINDOW, array.count - window * WINDOW));
}

// Whether windows begin .. end are unchanged.
static bool same(const Watched& array, int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w)
        if (window_sum(array, w) != array.sums[w]) return false;
    return true;
}

// Computes the checksums.
void sparloom_watch(const void* given) {
    const Watch& watch = *static_cast<const Watch*>(given);
    for (int64_t a = 0; a < watch.count; ++a)
        for (int64_t w = 0; w < windows_of(watch.arrays[a]); ++w) watch.arrays[a].sums[w] = window_sum(watch.arrays[a], w);
}

// Returns 0, or 1 + the index of a changed array.
int32_t sparloom_changed(void* given) {
    Watch& watch = *static_cast<Watch*>(given);
    const int64_t call = __atomic_fetch_add(&watch.calls, 1, __ATOMIC_RELAXED);
    for (int64_t a = 0; a < watch.count; ++a) {
        const Watched& array = watch.arrays[a];
        const int64_t windows = windows_of(array);
        if (windows == 0) continue;
        const bool early = call < FIRST;
        const int64_t parts = watch.differs || (early && windows <= WHOLE) ? 1 : early ? FIRST : SHARE;
        const int64_t step = (windows + parts - 1) / parts, begin = call % ((windows + step - 1) / step) * step;
        const int64_t edge = call % 2 ? windows - 1 : 0;
        if (!same(array, begin, std::min(windows, begin + step)) || !same(array, edge, edge + 1)) {
            watch.differs = 1;
            return static_cast<int32_t>(a + 1);
        }
    }
    watch.differs = 0;
    return 0;
}

}  // extern "C"
