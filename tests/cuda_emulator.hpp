// CUDA kernels on the host, to test what they compute: every thread of a block is a fibre, resumed in random order; it
// runs until it meets a barrier or a shuffle and goes on when the others have come there. A thread that waits for one
// that never comes is a fault, and so is a shuffle with a lane that has ended. Says nothing of speed or memory order.

#undef _FORTIFY_SOURCE  // longjmp goes from one stack to another

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads)

struct Dim {
    unsigned x, y;
};
static Dim threadIdx, blockIdx, blockDim, gridDim;

alignas(16) unsigned char shared_bytes[1 << 18];

namespace emulator {

constexpr std::size_t kStack = 64 << 10;
constexpr unsigned kWarp = 32;

// A fibre begins by setcontext, and is left and resumed by _longjmp, which asks the kernel for nothing.
struct Fibre {
    ucontext_t context;
    jmp_buf resumed;
    std::vector<char> stack = std::vector<char>(kStack);
    bool begun, ended;
    long barriers, shuffles;
    float given[2];  // of the last two shuffles: nobody is further ahead
};

static std::vector<Fibre> fibres;
static jmp_buf scheduler;
static unsigned current, alive;
static long progress, met;  // met: the last barrier to which all threads are known to have come
static const char* fault;
static void (*body)(const void*);
static const void* body_state;

static void leave() {
    if (!_setjmp(fibres[current].resumed)) _longjmp(scheduler, 1);
}

static void resume() {
    Fibre& fibre = fibres[current];
    if (_setjmp(scheduler)) return;
    if (fibre.begun) _longjmp(fibre.resumed, 1);
    fibre.begun = true;
    setcontext(&fibre.context);
}

template <typename Ready>
static void wait(const Ready& ready) {
    ++progress;
    while (!ready() && !fault) leave();
    if (fault) leave();
}

// What a fibre does: the body, once in every block.
static void enter() {
    for (;;) {
        body(body_state);
        fibres[current].ended = true;
        ++progress;
        --alive;
        leave();
    }
}

static void make_fibres(unsigned count) {
    fibres = std::vector<Fibre>(count);
    for (Fibre& fibre : fibres) {
        getcontext(&fibre.context);
        fibre.context.uc_stack.ss_sp = fibre.stack.data();
        fibre.context.uc_stack.ss_size = kStack;
        fibre.begun = false;
        makecontext(&fibre.context, enter, 0);
    }
}

static void shuffle(std::vector<unsigned>& order) {
    static std::uint64_t state = 88172645463325252u;
    for (std::size_t left = order.size(); left > 1; --left) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        std::swap(order[left - 1], order[state % left]);
    }
}

static void run_block() {
    met = 0;
    for (unsigned t = 0; t < blockDim.x; ++t) {
        Fibre& fibre = fibres[t];
        fibre.ended = false;
        fibre.barriers = fibre.shuffles = 0;
    }
    std::vector<unsigned> order(blockDim.x);
    for (unsigned t = 0; t < blockDim.x; ++t) order[t] = t;
    for (alive = blockDim.x; alive && !fault;) {
        const long before = progress;
        shuffle(order);
        for (unsigned t : order) {
            if (fibres[t].ended || fault) continue;
            current = t;
            threadIdx = Dim{t, 0};
            resume();
        }
        if (progress == before && !fault) fault = "threads wait for others that never come";
    }
}

// Run a kernel; returns what went wrong, or null. Shared memory begins as NaN in every block.
template <typename Kernel>
static const char* launch(unsigned x, unsigned y, unsigned threads, unsigned shared, const Kernel& kernel) {
    if (fibres.size() < threads) make_fibres(threads);
    fault = shared > sizeof(shared_bytes) ? "more shared memory than the emulator has" : nullptr;
    body = [](const void* state) { (*static_cast<const Kernel*>(state))(); };
    body_state = &kernel;
    blockDim = Dim{threads, 1};
    gridDim = Dim{x, y};
    for (blockIdx.y = 0; blockIdx.y < y; ++blockIdx.y) {
        for (blockIdx.x = 0; blockIdx.x < x && !fault; ++blockIdx.x) {
            std::memset(shared_bytes, 0xff, sizeof(shared_bytes));
            run_block();
        }
    }
    if (fault) fibres.clear();  // they stand inside the body
    return fault;
}

template <typename... P, std::size_t... I>
static void call(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_const_t<P>*>(arguments[I])...);
}

// Run a kernel whose arguments are given by their places.
template <typename... P>
static const char* launch(void (*kernel)(P...), unsigned grid, unsigned threads, unsigned shared, void** arguments) {
    return launch(grid, 1, threads, shared, [=] { call(kernel, arguments, std::index_sequence_for<P...>()); });
}

static bool all_at_barrier(long count) {
    if (met >= count) return true;
    for (const Fibre *other = fibres.data(), *end = other + blockDim.x; other < end; ++other) {
        if (!other->ended && other->barriers < count) return false;
    }
    met = count;
    return true;
}

}  // namespace emulator

static void __syncthreads() {
    using namespace emulator;
    const long mine = ++fibres[current].barriers;
    wait([mine] { return all_at_barrier(mine); });
}

static float __int_as_float(int bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

static float __shfl_xor_sync(unsigned lanes, float given, int step) {
    using namespace emulator;
    const unsigned first = current / kWarp * kWarp, self = current;
    if (!(lanes >> (current - first) & 1)) fault = "a lane shuffles that is not in its own mask";
    const auto come = [lanes, first](long count) {
        for (unsigned lane = 0; lane < kWarp; ++lane) {
            if (!(lanes >> lane & 1)) continue;
            const Fibre* const other = first + lane < blockDim.x ? &fibres[first + lane] : nullptr;
            if (other && other->shuffles >= count) continue;
            if (!other || other->ended) fault = "a shuffle with a lane that has ended";
            return false;
        }
        return true;
    };
    const long mine = ++fibres[self].shuffles;
    fibres[self].given[mine % 2] = given;
    wait([&] { return come(mine); });
    return fibres[first + ((self - first) ^ step)].given[mine % 2];
}
