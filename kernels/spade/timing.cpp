// Time from counters (level T1): per phase a fluid makespan over the processing elements (PEs), which share the DRAM
// bandwidth; each PE has a time it would take alone, a smooth maximum of what can limit it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <vector>

namespace spade {

// Order of the double arguments; see Machine.rates in machine.py. Seconds, hertz, bytes per second.
struct Rates {
    double clock, bandwidth, l1, l2, llc, dram, victim, parallel_lines, sparse_lines, exponent;
    double forwarding_cycles, tile, instruction, barrier, channels;
};

struct Shape {
    int64_t phases, pes, row_lines, reservation, passes;
    int64_t written;   // 1: r is written (SpMM); 0: r is read, output lines are written (SDDMM)
    int64_t barrier;
};

constexpr double LINE_BYTES = 64;
constexpr int64_t WORK_COUNTS = 6, MEMORY_COUNTS = 12;

inline double power(double base, double exponent) {
    return exponent == 3 ? base * base * base : std::pow(base, exponent);
}

inline double root(double value, double exponent) {
    return exponent == 3 ? std::cbrt(value) : std::pow(value, 1 / exponent);
}

struct Load {
    double alone, bytes;
};

// All unfinished PEs advance at the same rate, min(1, bandwidth / demand) made smooth; so they end in order of `alone`.
double makespan(std::vector<Load>& loads, const Rates& rates) {
    std::sort(loads.begin(), loads.end(), [](const Load& a, const Load& b) { return a.alone < b.alone; });
    double demand = 0;
    for (const Load& load : loads) demand += load.bytes / load.alone;
    double time = 0, before = 0;
    for (const Load& load : loads) {
        const double pressure = std::max(0.0, demand) / rates.bandwidth;
        time += (load.alone - before) * root(1 + power(pressure, rates.exponent), rates.exponent);
        demand -= load.bytes / load.alone;
        before = load.alone;
    }
    return time;
}

class Timing {
public:
    Timing(const Shape& shape, const Rates& rates, const int64_t* work, const int64_t* served)
        : shape_(shape), rates_(rates), work_(work), served_(served) {}

    double total(double flush_rows) {
        double time = 0, tiles = 0;
        for (int64_t phase = 0; phase < shape_.phases; ++phase) {
            time += phase_time(phase) + (shape_.barrier ? rates_.barrier : 0);
            for (int64_t pe = 0; pe < shape_.pes; ++pe) tiles += count(phase, pe)[2];
        }
        if (shape_.written) time += flush_rows * shape_.row_lines * LINE_BYTES / rates_.bandwidth;
        time = std::max(time, tiles * rates_.instruction);
        return shape_.passes * time + shape_.pes * rates_.instruction;
    }

private:
    const int64_t* count(int64_t phase, int64_t pe) const { return work_ + (phase * shape_.pes + pe) * WORK_COUNTS; }

    // Waiting for a channel, as in a queue with a fixed service time, lengthens the DRAM latency once.
    double phase_time(int64_t phase) {
        double bytes = 0;
        fill(phase, rates_.dram);
        for (const Load& load : loads_) bytes += load.bytes;
        if (loads_.empty()) return 0;
        const double first = makespan(loads_, rates_);
        const double busy = std::min(0.95, bytes / (first * rates_.bandwidth));
        const double service = LINE_BYTES * rates_.channels / rates_.bandwidth;
        fill(phase, rates_.dram + service * busy * busy / (2 * (1 - busy)));
        return makespan(loads_, rates_);
    }

    // What one PE would take alone, and what it moves.
    void fill(int64_t phase, double dram) {
        loads_.clear();
        const double lines = shape_.row_lines, q = rates_.exponent;
        for (int64_t pe = 0; pe < shape_.pes; ++pe) {
            const int64_t* work = count(phase, pe);
            if (work[0] == 0) continue;
            const int64_t* served = served_ + (phase * shape_.pes + pe) * MEMORY_COUNTS;
            const double core = work[0] * lines / rates_.clock + stalled(served, 0, rates_.l2) +
                                stalled(served, 1, rates_.llc) + stalled(served, 2, dram);
            const double dense = lines * (served[0] * rates_.l1 + served[1] * rates_.l2 + served[2] * rates_.llc +
                                          served[3] * dram + served[4] * rates_.victim) / rates_.parallel_lines;
            const double sparse = work[4] * dram / rates_.sparse_lines;
            const bool chained = shape_.written && lines < rates_.forwarding_cycles;
            const double chain = chained ? work[3] * rates_.forwarding_cycles / shape_.reservation / rates_.clock : 0;
            const double alone = root(power(std::max(core, dense), q) + power(sparse, q) + power(chain, q), q);
            const double rows = served[3] + (shape_.written ? served[5] : 0);
            const double moved = rows * lines + work[4] + (shape_.written ? 0 : work[5]);
            loads_.push_back({alone + work[2] * rates_.tile, moved * LINE_BYTES});
        }
    }

    // Time that windows wait for a level beyond the time of their own operations.
    double stalled(const int64_t* served, int level, double latency) const {
        const double busy = served[9 + level] * static_cast<double>(shape_.row_lines) / rates_.clock;
        return std::max(0.0, served[6 + level] * latency - busy);
    }

    const Shape& shape_;
    const Rates& rates_;
    const int64_t* work_;
    const int64_t* served_;
    std::vector<Load> loads_;
};

}  // namespace spade

extern "C" {

// Returns -1 where there is no memory, which is all that can be thrown; else what is said here, or 0.

// shape: see struct Shape. rates (machines, 15): see struct Rates. work (phases, pes, 6), served (phases, pes, 12) and
// flush_rows as from spade_trace. Out: seconds (machines,).
int64_t spade_time(const int64_t* shape, int64_t machines, const double* rates, const int64_t* work,
                   const int64_t* served, int64_t flush_rows, double* seconds) try {
    const auto& given = *reinterpret_cast<const spade::Shape*>(shape);
    const auto* all = reinterpret_cast<const spade::Rates*>(rates);
    for (int64_t machine = 0; machine < machines; ++machine)
        seconds[machine] =
            spade::Timing(given, all[machine], work, served).total(static_cast<double>(flush_rows));
    return 0;
} catch (const std::exception&) {
    return -1;
}

}  // extern "C"
