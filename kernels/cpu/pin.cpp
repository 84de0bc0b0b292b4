// Binds the threads of parallel loops to processors: those of the team, and the OpenMP threads of the caller. The binding
// holds for all parallel loops until the next one.

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
#if defined(__linux__)
    const auto chosen = [&](int32_t thread) {
        cpu_set_t set;
        CPU_ZERO(&set);
        for (int32_t c = anywhere ? 0 : thread; c < (anywhere ? count : thread + 1); ++c) CPU_SET(cpus[c], &set);
        return set;
    };
    sparloom::threads::kTeam->each_thread(threads, [&](int32_t thread, pthread_t handle) {
        const cpu_set_t set = chosen(thread);
        pthread_setaffinity_np(handle, sizeof(set), &set);
    });
#if defined(_OPENMP)
#pragma omp parallel num_threads(sparloom::team(threads))
    {
        const cpu_set_t set = chosen(omp_get_thread_num());
        sched_setaffinity(0, sizeof(set), &set);
    }
#else
    const cpu_set_t set = chosen(0);
    sched_setaffinity(0, sizeof(set), &set);
#endif
#endif
}

}  // extern "C"
