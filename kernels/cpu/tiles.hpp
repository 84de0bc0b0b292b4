// Runs two loops by a tile schedule: two wavefronts of tiles with a barrier between them.
//
//   for tiles v of wavefront 0                                    in parallel, on demand
//     loop one: iterations first[v] .. first[v + 1]               rows of D1
//     loop two: iterations second[second_ptr[v] .. ]              rows of D that depend only on these
//   barrier
//   for tiles v of wavefront 1                                    in parallel, on demand
//     loop two: the other iterations
//
// D1 is either completely in memory, or every thread buffers the rows of its tile and writes to memory only those that
// wavefront 1 reads.

#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "team.hpp"
#include "vector.hpp"

extern "C" {

struct Tiles {
    const int64_t* first;       // (count[0] + 1)
    const int32_t* second;      // iterations of loop two in order of execution; null: 0, 1, 2, ...
    const int64_t* second_ptr;  // (count[0] + count[1] + 1)
    const uint8_t* needed;      // rows of D1 that wavefront 1 reads
    int64_t count[2];           // tiles of the wavefronts
    double* seconds;            // (2, threads) that each thread worked in each wavefront, or null
    int32_t threads, local;     // local: threads keep D1
};

}  // extern "C"

namespace sparloom::tiles {

// Adds the time of a tile to that of the thread that works on it; reads no clock unless the time is requested.
class Timer {
   public:
    Timer(const Tiles& tiles, int wavefront, int32_t thread)
        : seconds_(tiles.seconds == nullptr ? nullptr : tiles.seconds + wavefront * tiles.threads + thread) {
        if (seconds_ != nullptr) started_ = Clock::now();
    }

    ~Timer() {
        if (seconds_ != nullptr) *seconds_ += std::chrono::duration<double>(Clock::now() - started_).count();
    }

    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    using Clock = std::chrono::steady_clock;
    double* const seconds_;
    Clock::time_point started_;
};

// Matrix of `lead` columns of which only the rows from `row` on exist; `rows` is the address that row 0 would have.
template <typename T>
T* without_rows_before(int64_t row, T* rows, int64_t lead) {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(rows) - row * lead * sizeof(T));
}

template <typename T>
void write_needed(const Tiles& tiles, int64_t begin, int64_t end, const T* from, T* to, int64_t lead) {
    for (int64_t row = begin; row < end; ++row) {
        if (tiles.needed[row]) std::copy(from + row * lead, from + (row + 1) * lead, to + row * lead);
    }
}

// Buffers of one thread: for the rows of D1 in a tile, and for loop one and loop two.
template <typename T>
struct Buffers {
    T *tile, *loops;
};

// one(begin, end, d1, buffer) computes rows begin .. end of D1; two(list, begin, end, d1, near, buffer) computes the
// rows of D in the list, `near` saying whether D1 is in a cache; row i of D1 is at d1 + i * lead. buffers(thread) gives
// the Buffers of a thread.
template <typename T, typename One, typename Two, typename Each>
void run(const Tiles& tiles, T* d1, int64_t lead, const Each& buffers, const One& one, const Two& two) {
    const int64_t late = tiles.count[0];
    constexpr bool common = true;  // tiles are begun in their order
    if (tiles.seconds != nullptr) std::fill_n(tiles.seconds, 2 * tiles.threads, 0.0);
    const auto first = [&](int64_t v, int32_t thread) {
        const Timer timer(tiles, 0, thread);
        const Buffers<T> own = buffers(thread);
        const int64_t begin = tiles.first[v], end = tiles.first[v + 1];
        T* const rows = tiles.local ? without_rows_before(begin, own.tile, lead) : d1;
        one(begin, end, rows, own.loops);
        two(tiles.second, tiles.second_ptr[v], tiles.second_ptr[v + 1], rows, true, own.loops);
        if (tiles.local) write_needed(tiles, begin, end, rows, d1, lead);
        fence();
    };
    const auto second = [&](int64_t v, int32_t thread) {
        const Timer timer(tiles, 1, thread);
        two(tiles.second, tiles.second_ptr[late + v], tiles.second_ptr[late + v + 1], d1, false, buffers(thread).loops);
        fence();
    };
    share(late, tiles.threads, first, common);
    share(tiles.count[1], tiles.threads, second, common);
}

}  // namespace sparloom::tiles
