// Runs a kernel repeatedly between two readings of the clocks, for kernels that are faster than a reading.
//
// A kernel is `run(arguments)`. Clocks are numbers for clock_gettime, one per thread whose processor time counts; none
// means the clock of the whole process.

#include <algorithm>
#include <cstdint>
#include <ctime>

namespace {

double read(clockid_t clock) {
    timespec now{};
    if (clock_gettime(clock, &now) != 0) return 0;  // that thread has ended
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double processor(const int32_t* clocks, int32_t count) {
    if (count == 0) return read(CLOCK_PROCESS_CPUTIME_ID);
    double spent = 0;
    for (int32_t c = 0; c < count; ++c) spent += read(clocks[c]);
    return spent;
}

}  // namespace

extern "C" {

struct Spent {
    double wall, processor;  // seconds of all runs together
    int64_t runs;
};

// Runs once; while a series takes less than `seconds`, runs a longer one. Reports only the last series.
void sparloom_repeat(void (*run)(const void*), const void* arguments, double seconds, const int32_t* clocks,
                     int32_t count, Spent* spent) {
    for (int64_t runs = 1;;) {
        const double busy = processor(clocks, count), start = read(CLOCK_MONOTONIC);
        for (int64_t r = 0; r < runs; ++r) run(arguments);
        const double wall = read(CLOCK_MONOTONIC) - start;
        *spent = {wall, processor(clocks, count) - busy, runs};
        if (wall >= seconds) return;
        const double wanted = 1.05 * static_cast<double>(runs) * seconds / std::max(wall, 1e-9);
        runs = std::clamp(static_cast<int64_t>(wanted), 2 * runs, 16 * runs);
    }
}

}  // extern "C"
