// Binds the OpenMP threads of the caller to processors. The binding holds for all parallel loops until the next one.

#include <cstdint>

#include "team.hpp"

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

extern "C" {

// Thread t runs on cpus[t] only; with `anywhere`, on any of the `count` processors. Has an effect on Linux only.
void sparloom_pin(int32_t threads, const int32_t* cpus, int32_t count, int32_t anywhere) {
#if defined(__linux__) && defined(_OPENMP)
#pragma omp parallel num_threads(sparloom::team(threads))
    {
        cpu_set_t chosen;
        CPU_ZERO(&chosen);
        const int32_t thread = omp_get_thread_num();
        for (int32_t c = anywhere ? 0 : thread; c < (anywhere ? count : thread + 1); ++c) CPU_SET(cpus[c], &chosen);
        sched_setaffinity(0, sizeof(chosen), &chosen);
    }
#endif
}

}  // extern "C"
