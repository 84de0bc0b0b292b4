// The OpenMP that kernels share with PyTorch: how many threads it may start, and its parallel regions.
//
// OpenMP of GCC ends the process if it cannot create a thread, so that is tried before, see `team`; and its threads end
// before this process forks: a child would wait for threads that it does not have. Python forks are looked after by
// sparloom.forks, with or without this.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#if defined(__linux__)
#include <dlfcn.h>
#include <pthread.h>
#endif

namespace sparloom {

#if defined(__linux__)

namespace threads {

// A function of the process's OpenMP by its name, or null. A link would keep a kernel from loading in a process that has
// loaded an OpenMP without it, older than GCC 9, such as the one in wheels of PyTorch.
template <typename Function>
Function find(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

inline const auto kPauseOpenMp = find<int (*)(int)>("omp_pause_resource_all");

inline void end_all() {
    if (kPauseOpenMp != nullptr) kPauseOpenMp(2);  // omp_pause_hard
}

// The parallel regions of the process's OpenMP; that of GCC has these functions, and others have them for its sake.
struct OpenMp {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
    int (*most_threads)() = nullptr;
    int (*thread)() = nullptr;

    // Whether there is one; it may be loaded later.
    bool found() {
        if (parallel != nullptr) return true;
        most_threads = find<int (*)()>("omp_get_max_threads");
        thread = find<int (*)()>("omp_get_thread_num");
        if (most_threads == nullptr || thread == nullptr) return false;
        parallel = find<decltype(parallel)>("GOMP_parallel");
        return parallel != nullptr;
    }
};

constexpr int32_t kMostTried = 1024;     // threads that are created to try
constexpr size_t kReserve = 100 * 1024;  // bytes that OpenMP may allocate for a loop, from the heap

inline void* pass(void* gate) {
    pthread_mutex_lock(static_cast<pthread_mutex_t*>(gate));
    pthread_mutex_unlock(static_cast<pthread_mutex_t*>(gate));
    return nullptr;
}

// How many of `wanted` threads can exist besides this one. Twice as many are created: some of those that have ended may
// still count when OpenMP creates its own.
[[gnu::noinline]] inline int32_t creatable(int32_t wanted) {
    void* const reserve = std::malloc(kReserve);
    if (reserve == nullptr) return 0;
    std::free(reserve);
    const int32_t tried = std::min(2 * std::min(wanted, kMostTried), kMostTried);
    pthread_t made[kMostTried];
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&gate);
    int32_t count = 0;
    while (count < tried && pthread_create(&made[count], nullptr, pass, &gate) == 0) ++count;
    pthread_mutex_unlock(&gate);
    for (int32_t t = 0; t < count; ++t) pthread_join(made[t], nullptr);
    return count == tried ? wanted : count / 2;
}

}  // namespace threads

// For loops of OpenMP: as many threads as are wanted, or as can be created.
inline int32_t team(int32_t wanted) {
    static thread_local int32_t proven __attribute__((tls_model("initial-exec"))) = 1;
    if (wanted <= proven) return wanted;
    const int32_t found = 1 + threads::creatable(wanted - 1);
    if (found == wanted) proven = wanted;
    return found;
}

#else

inline int32_t team(int32_t wanted) { return wanted; }

#endif

}  // namespace sparloom
