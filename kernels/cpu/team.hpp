// The threads of parallel loops: a team of this process for loops over pieces.
//
// `share` cuts the pieces of a loop into equal parts, one for each thread: from call to call a thread finds its rows in
// its caches. Who has finished takes pieces of others from their end. So a thread that starts late, or waits for a
// processor, holds up the loop by no more than the piece that it has begun; the caller does all the work if nobody comes.
// Idle threads spin for some microseconds, then sleep; a caller that waits for the last pieces likewise, as the system
// moves a thread that waits for a processor to one that sleeps. If a caller has waited for long, since a helper
// was preempted, all work alone for a while. All libraries of a process have one team.
//
// OpenMP's threads spin for milliseconds after each of its loops. In a program that has such loops, those of PyTorch say,
// the threads of the team would have to wait for the processors that these occupy. If helpers come late, the caller
// therefore tries OpenMP's own threads, and keeps to them as long as they are prompt: OpenMP waits for all of them.
//
// Forks: a child has no threads, and starts new ones on demand. Threads that cannot be created are done without.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>
#include <utility>

#include "arguments.hpp"
#include "openmp.hpp"

#if defined(__linux__)
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace sparloom {

// Multiply-adds of a dense product in the time of one element of dense rows, as kGrain counts them.
constexpr int64_t kDenseRate = 16;

#if defined(__linux__)

namespace threads {

constexpr int32_t kMost = 256;            // threads of the team, the caller included
constexpr int32_t kJobs = 16;             // callers at a time; others work alone
constexpr int64_t kSpin = 30'000;         // nanoseconds that a thread waits before it sleeps
constexpr int64_t kHeldUp = 500'000;      // nanoseconds of waiting for preempted helpers, then callers work alone ...
constexpr int64_t kAlone = 4;             // ... for so many times as long, ...
constexpr int64_t kMostAlone = 50'000'000;  // ... but no longer than this
constexpr int64_t kLate = 40'000;         // nanoseconds after which a helper is late
constexpr int32_t kLateCalls = 3;         // calls in a row with a late helper until others are tried
constexpr int64_t kBackoff = 10'000'000;  // nanoseconds until OpenMP's threads are tried again; doubled each time
constexpr int64_t kMostBackoff = 10'000'000'000;
constexpr int32_t kTrusted = 1000;        // calls in a row with prompt threads, after which it is kBackoff again
constexpr int32_t kPause = 32;            // looks between two readings of the clock
constexpr int32_t kRetry = 1000;          // calls until a thread that could not be created is tried again

inline int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

inline void sleep_while(std::atomic<int32_t>& word, int32_t value) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

inline void wake(std::atomic<int32_t>& word, int32_t count) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

// Spins until ready() holds or the time is over; gives what it last was.
template <typename Ready>
bool spin(int64_t nanoseconds, const Ready& ready) {
    const int64_t end = now() + nanoseconds;
    do {
        for (int32_t i = 0; i < kPause; ++i) {
            if (ready()) return true;
            relax();
        }
    } while (now() < end);
    return ready();
}

// Pieces begin .. end that nobody has taken yet. Owners take the first, others the last.
struct alignas(64) Part {
    std::atomic<uint64_t> left;  // begin below, end above; not initialised

    void set(uint32_t begin, uint32_t end) { left.store(uint64_t{end} << 32 | begin, std::memory_order_relaxed); }

    // Takes a piece; -1 if there is none.
    int64_t take(bool first) {
        uint64_t seen = left.load(std::memory_order_relaxed);
        while (true) {
            const uint32_t begin = static_cast<uint32_t>(seen), end = static_cast<uint32_t>(seen >> 32);
            if (begin >= end) return -1;
            const uint64_t rest = first ? seen + 1 : seen - (uint64_t{1} << 32);
            if (left.compare_exchange_weak(seen, rest, std::memory_order_relaxed)) return first ? begin : end - 1;
        }
    }
};

struct Job {
    void (*work)(const void* context, int64_t piece, int32_t thread);
    const void* context;
    Part* parts;
    int32_t threads;
    bool common;                        // all take the first piece of one part
    std::atomic<int32_t> helpers{0};    // that have begun and not ended
    std::atomic<bool> begun{false};     // every piece has been taken
    std::atomic<int64_t> helped{0};     // when the first helper began; of OpenMP the last one, it waits for all
    uint64_t taken[kMost / 64] = {1};   // numbers of threads; guarded by the team's lock

    void run(int32_t thread) {
        run_part(parts[common ? 0 : thread], true, thread);
        for (int32_t t = 1; t < threads && !common; ++t) run_part(parts[(thread + t) % threads], false, thread);
        begun.store(true, std::memory_order_relaxed);
    }

    void run_part(Part& part, bool first, int32_t thread) const {
        for (int64_t piece = part.take(first); piece >= 0; piece = part.take(first)) work(context, piece, thread);
    }

    // A number for a helper, `wanted` if that is free; -1 if there is none.
    int32_t number(int32_t wanted) {
        if (wanted < threads && take_number(wanted)) return wanted;
        for (int32_t t = 1; t < threads; ++t) {
            if (take_number(t)) return t;
        }
        return -1;
    }

    bool take_number(int32_t t) {
        const uint64_t bit = uint64_t{1} << t % 64;
        const bool free = (taken[t / 64] & bit) == 0;
        taken[t / 64] |= bit;
        return free;
    }
};

// Whether a caller uses the threads of OpenMP. One does at a time: each has threads of its own there.
class Borrowing {
 public:
    bool used(const Job& job) const {
        return caller_.load(std::memory_order_relaxed) == pthread_self() && openmp_.most_threads() >= job.threads;
    }

    // After a call with the team's own threads, whose helpers came late or not; whether OpenMP's will be tried.
    bool consider(bool late, int64_t time) {
        late_calls_ = late ? late_calls_ + 1 : 0;
        if (late_calls_ < kLateCalls || time < not_before_ || !openmp_.found()) return false;
        late_calls_ = 0;
        caller_.store(pthread_self());
        return true;
    }

    // Runs a job with as many threads as OpenMP has anyway: it would end those that one loop does not need.
    void run(Job& job, int64_t begin) {
        struct Call {
            Job& job;
            int (*thread)();
            int64_t done;  // by the caller
        } call{job, openmp_.thread, 0};
        openmp_.parallel([](void* given) {
            Call& call = *static_cast<Call*>(given);
            const int32_t thread = call.thread();
            if (thread == 0) {
                call.job.run(0);
                call.done = now();
                return;
            }
            call.job.helped.store(now(), std::memory_order_relaxed);
            if (thread < call.job.threads) call.job.run(thread);
        }, &call, team(openmp_.most_threads()), 0);
        const int64_t end = now(), waited = end - call.done;
        const int64_t helped = job.helped.load();
        const bool late = helped == 0 || helped - begin > kLate || (waited > kHeldUp && waited > (end - begin) / 4);
        late_calls_ = late ? late_calls_ + 1 : 0;
        prompt_calls_ = late ? 0 : std::min(prompt_calls_ + 1, kTrusted);
        if (prompt_calls_ == kTrusted) backoff_ = kBackoff;
        if (late_calls_ < kLateCalls && !(late && waited > kHeldUp)) return;
        late_calls_ = 0;
        not_before_ = end + backoff_;
        backoff_ = std::min(2 * backoff_, kMostBackoff);
        forget();
    }

    void forget() { caller_.store(pthread_t{}); }

 private:
    OpenMp openmp_;
    std::atomic<pthread_t> caller_{};
    std::atomic<int64_t> not_before_{0}, backoff_{kBackoff};
    std::atomic<int32_t> late_calls_{0}, prompt_calls_{0};
};

// Never destroyed: its threads may outlive static objects.
class Team {
 public:
    // Runs a job with the help of threads 1 .. threads - 1.
    void run(Job& job) {
        const int64_t begin = now();
        if (borrowing_.used(job)) {
            borrowing_.run(job, begin);
            return;
        }
        if (begin < alone_until_.load(std::memory_order_relaxed) || !open(job)) {
            job.run(0);
            return;
        }
        job.run(0);
        close(job);
        const int64_t start = now(), helped = job.helped.load(std::memory_order_relaxed);
        const bool borrows = borrowing_.consider((helped == 0 ? start : helped) - begin > kLate, start);
        const auto ended = [&] { return job.helpers.load(std::memory_order_acquire) == 0; };
        if (ended() || spin(kSpin, ended)) return;
        ++waiting_;
        while (!ended()) {
            const int32_t seen = ended_.load();
            if (ended()) break;
            sleep_while(ended_, seen);
        }
        --waiting_;
        const int64_t end = now(), waited = end - start;
        // a helper with a long row is no reason, unless that row is nearly all of the work
        const bool held_up = preempted_.load() >= start || waited > kAlone * (start - begin);
        if (waited > kHeldUp && held_up && !borrows) alone_until_.store(end + std::min(kAlone * waited, kMostAlone));
    }

    // Calls work(thread number, thread) for every thread but the callers'.
    template <typename Work>
    void each_thread(int32_t wanted, const Work& work) {
        pthread_mutex_lock(&lock_);
        create(wanted);
        for (int32_t t = 1; t <= std::min(created_, wanted - 1); ++t) work(t, handles_[t]);
        pthread_mutex_unlock(&lock_);
    }

    // In a child that was forked: no thread of the team exists, and no job has a caller.
    void forget() {
        pthread_mutex_init(&lock_, nullptr);
        std::fill_n(jobs_, kJobs, nullptr);
        created_ = tries_left_ = 0;
        borrowing_.forget();
        sleeping_ = waiting_ = 0;
    }

 private:
    bool open(Job& job) {
        pthread_mutex_lock(&lock_);
        create(job.threads);
        Job** const place = std::find(jobs_, jobs_ + kJobs, nullptr);
        const bool found = place != jobs_ + kJobs && created_ > 0;
        if (found) {
            *place = &job;
            calls_.fetch_add(1);
        }
        pthread_mutex_unlock(&lock_);
        if (found && sleeping_.load() > 0) wake(calls_, job.threads - 1);
        return found;
    }

    void close(Job& job) {
        pthread_mutex_lock(&lock_);
        std::replace(jobs_, jobs_ + kJobs, &job, static_cast<Job*>(nullptr));
        pthread_mutex_unlock(&lock_);
    }

    // Helps with one job; false if there is none.
    bool help_once(int32_t wanted, int64_t& switches) {
        pthread_mutex_lock(&lock_);
        Job* job = nullptr;
        int32_t thread = -1;
        for (Job* each : jobs_) {
            if (each == nullptr || each->begun.load(std::memory_order_relaxed)) continue;
            thread = each->number(wanted);
            if (thread < 0) continue;
            job = each;
            if (job->helpers.fetch_add(1, std::memory_order_relaxed) == 0 && job->helped.load() == 0) {
                job->helped.store(now(), std::memory_order_relaxed);
            }
            break;
        }
        pthread_mutex_unlock(&lock_);
        if (job == nullptr) return false;
        const int64_t start = now();
        job->run(thread);
        const int64_t end = now();
        if (end - start > kHeldUp && switched_out(switches)) preempted_.store(end);
        job->helpers.fetch_sub(1, std::memory_order_release);  // the job may be gone now
        ended_.fetch_add(1);
        if (waiting_.load() > 0) wake(ended_, kJobs);
        return true;
    }

    // Creates threads until there are `wanted`, the caller included, as far as the system allows it.
    void create(int32_t wanted) {
        if (created_ >= wanted - 1 || (tries_left_ > 0 && --tries_left_ > 0)) return;
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for threads of the program
        while (created_ < wanted - 1) {
            struct Start* const start = new (std::nothrow) Start{this, created_ + 1};
            if (start == nullptr || pthread_create(&handles_[created_ + 1], nullptr, help, start) != 0) {
                delete start;
                tries_left_ = kRetry;
                break;
            }
            pthread_detach(handles_[++created_]);
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    // Whether this thread had to leave its processor since the last time.
    static bool switched_out(int64_t& switches) {
        rusage usage;
        const bool known = getrusage(RUSAGE_THREAD, &usage) == 0;
        return known && std::exchange(switches, usage.ru_nivcsw) != usage.ru_nivcsw;
    }

    struct Start {
        Team* team;
        int32_t thread;
    };

    static void* help(void* given) {
        const Start start = *static_cast<Start*>(given);
        delete static_cast<Start*>(given);
        start.team->help(start.thread);
        return nullptr;
    }

    [[noreturn]] void help(int32_t thread) {
        int32_t seen = calls_.load() - 1;
        int64_t switches = 0;
        while (true) {
            const auto called = [&] { return calls_.load(std::memory_order_acquire) != seen; };
            if (!called() && !spin(kSpin, called)) {
                ++sleeping_;
                while (!called()) sleep_while(calls_, seen);
                --sleeping_;
            }
            seen = calls_.load();
            while (help_once(thread, switches)) {
            }
        }
    }

    pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
    Job* jobs_[kJobs] = {};
    pthread_t handles_[kMost] = {};
    int32_t created_ = 0, tries_left_ = 0;  // threads; calls until threads are created again
    Borrowing borrowing_;
    std::atomic<int64_t> alone_until_{0}, preempted_{0};  // when a helper had last lost its processor for long
    alignas(64) std::atomic<int32_t> calls_{0};
    alignas(64) std::atomic<int32_t> ended_{0};
    std::atomic<int32_t> sleeping_{0}, waiting_{0};
};

inline Team* const kTeam = new Team;

inline void forget_all() { kTeam->forget(); }

inline const int kForks = pthread_atfork(end_all, nullptr, forget_all);  // once, in whatever libraries this is

}  // namespace threads

#endif

// Calls work(piece, thread) for pieces 0 .. pieces - 1 on up to `threads` threads, numbered from 0, which is the caller.
// common: pieces are begun in their order, by whoever is free, instead of in parts of threads.
template <typename Work>
void share(int64_t pieces, int32_t threads, const Work& work, bool common = false) {
#if defined(__linux__)
    const int32_t used = static_cast<int32_t>(std::min<int64_t>({pieces, threads, threads::kMost}));
    if (used > 1) {
        threads::Part parts[threads::kMost];
        if (common) {
            parts[0].set(0, static_cast<uint32_t>(pieces));
        } else {
            for (int64_t t = 0; t < used; ++t) {
                parts[t].set(static_cast<uint32_t>(pieces * t / used), static_cast<uint32_t>(pieces * (t + 1) / used));
            }
        }
        threads::Job job{[](const void* context, int64_t piece, int32_t thread) {
                             (*static_cast<const Work*>(context))(piece, thread);
                         },
                         &work, parts, used, common};
        threads::kTeam->run(job);
        return;
    }
#elif defined(_OPENMP)
    if (std::min<int64_t>(pieces, threads) > 1) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
        for (int64_t piece = 0; piece < pieces; ++piece) work(piece, omp_get_thread_num());
        return;
    }
#endif
    for (int64_t piece = 0; piece < pieces; ++piece) work(piece, 0);
}

}  // namespace sparloom
