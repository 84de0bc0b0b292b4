// Checks when a caller of the team uses the threads of OpenMP, and that they run every piece once. Prints what is wrong.

#include "team.hpp"

#include <atomic>
#include <cstdio>
#include <thread>

using namespace sparloom::threads;

int failures = 0;

void expect(bool held, const char* what) {
    if (held) return;
    ++failures;
    std::puts(what);
}

struct Work {
    std::atomic<int> runs[100] = {};
    int slow = 0;  // milliseconds that a piece takes on another thread than the caller, who waits until one has begun
    std::atomic<bool> begun{false};
};

Job job_of(Work& work, Part* parts, int32_t threads) {
    for (int32_t t = 0; t < threads; ++t) parts[t].set(100 * t / threads, 100 * (t + 1) / threads);
    return {[](const void* given, int64_t piece, int32_t thread) {
                Work& work = *static_cast<Work*>(const_cast<void*>(given));
                ++work.runs[piece];
                if (work.slow == 0) return;
                if (thread != 0) {
                    work.begun = true;
                    std::this_thread::sleep_for(std::chrono::milliseconds(work.slow));
                }
                while (!work.begun) std::this_thread::yield();
            }, &work, parts, threads, false};
}

bool uses(Borrowing& borrowing, int32_t threads = 2) {
    Part parts[4];
    Work work;
    return borrowing.used(job_of(work, parts, threads));
}

bool late(Borrowing& borrowing, int64_t time) {
    bool tried = borrowing.consider(false, time);
    for (int call = 0; call < kLateCalls; ++call) {
        expect(!tried, "tried too early");
        tried = borrowing.consider(true, time);
    }
    return tried;
}

void run(Borrowing& borrowing, int32_t threads, int slow) {
    Part parts[4];
    Work work;
    work.slow = slow;
    Job job = job_of(work, parts, threads);
    borrowing.run(job, now());
    for (std::atomic<int>& runs : work.runs) expect(runs == 1, "a piece did not run once");
}

int main() {
    omp_set_num_threads(3);
    Borrowing borrowing;
    expect(!uses(borrowing), "used at once");
    for (int call = 0; call < 2 * kLateCalls; ++call) {
        expect(!borrowing.consider(call % 2 == 0, now()), "tried though helpers came");
    }
    expect(late(borrowing, now()) && uses(borrowing) && uses(borrowing, 3), "not tried though helpers are late");
    expect(!uses(borrowing, 4), "used for more threads than there are");
    std::thread([&] { expect(!uses(borrowing), "used for another caller"); }).join();

    run(borrowing, 2, 0);  // the third thread of OpenMP has nothing to do
    run(borrowing, 3, 0);

    const int64_t begin = now();
    Borrowing waiting;
    late(waiting, begin);
    run(waiting, 2, 200);
    expect(!uses(waiting), "used though it had to be waited for");
    expect(!late(waiting, begin + kBackoff), "tried again too early");
    expect(late(waiting, now() + kBackoff) && uses(waiting), "not tried again");
    const int64_t again = now();
    run(waiting, 2, 200);
    expect(!late(waiting, again + 200'000'000 + kBackoff + kBackoff / 2), "tried again as early as before");
    expect(late(waiting, now() + 2 * kBackoff), "not tried a third time");
    return failures;
}
