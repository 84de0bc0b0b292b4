// Row-granular trace (level T1): counts, per phase and processing element (PE), what each memory level served.
//
// The cache unit is the slice of a dense row that one pass works on (n_l lines, contiguous and aligned, always touched
// whole), so a cache of S line sets behaves as S / n_l row sets. Rows of the c matrix (the one addressed by column) have
// the numbers 0 .. cols - 1, those of the r matrix (addressed by row) follow. Both settings of rMatrix bypass are traced
// together: the vector registers see the same stream.
//
// r rows become dirty in the level below the registers when a row begins. Since a dirty row that leaves a level changes
// no order of use below, one trace serves SpMM (r is written) and SDDMM (r is read) where the schedules are equal.
//
// A window is a stretch of nonzeros that fits the reservation stations and whose dense loads fit the load queue; it
// cannot end before its slowest load has come. Windows are counted by the level that served that load.
#include "memory.hpp"
#include "tiling.hpp"

#include <algorithm>
#include <exception>
#include <vector>

namespace spade {

enum Work { NONZEROS, RUNS, TILES, CHAIN, SPARSE_LINES, OUTPUT_LINES, WORK_COUNTS };

// Columns after those of enum Served: windows per slowest level, and the nonzeros in them.
enum { WINDOWS = SERVED_COUNTS, WINDOW_NONZEROS = WINDOWS + 3, MEMORY_COUNTS = WINDOW_NONZEROS + 3 };

// The window that is open on one PE; registers, L1 and victim cache are too near to be waited for.
struct Window {
    int64_t nonzeros = 0, loads = 0;
    int slowest = 0;  // 1: L2, 2: LLC, 3: DRAM

    void close(int64_t* counts) {
        if (slowest) {
            ++counts[WINDOWS + slowest - 1];
            counts[WINDOW_NONZEROS + slowest - 1] += nonzeros;
        }
        *this = Window();
    }
};

// What a PE is doing. `others` holds the rows in the vector registers besides the current r row, which each vector
// operation touches and which is therefore never the oldest.
struct Pe {
    Sets others;
    uint32_t r = EMPTY;
    int32_t row = -1;
    int64_t run = 0, group = -1;  // nonzeros in this row so far; sparse lines held by the bypass buffer
    int64_t tile, last_tile, nonzero, end;
    Window windows[2];
};

class Tracer {
public:
    Tracer(const Geometry& g, int64_t cols, const Tiles& tiles, const Schedule& schedule)
        : g_(g), cols_(cols), tiles_(tiles), schedule_(schedule), pes_(static_cast<size_t>(g.pes)),
          window_nonzeros_(std::max<int64_t>(1, g.reservation / g.row_lines)),
          window_loads_(std::max<int64_t>(1, g.dense_loads / g.row_lines)) {
        const auto rows = static_cast<int>(g.registers / g.row_lines);
        for (Pe& pe : pes_) pe.others.build(1, rows - 1);
    }

    // memories[0] serves r through the caches, memories[1] bypasses them; a null pointer leaves one out.
    template <bool CACHED, bool BYPASSED>
    void run(Memory* const* memories, int64_t* work, int64_t* const* counts) {
        std::vector<int64_t> active;
        for (int64_t phase = 0; phase < schedule_.phases; ++phase) {
            active.clear();
            for (int64_t p = 0; p < g_.pes; ++p) {
                const int64_t slot = phase * g_.pes + p;
                pes_[p].tile = schedule_.start[slot];
                pes_[p].last_tile = schedule_.start[slot + 1];
                if (pes_[p].tile == pes_[p].last_tile) continue;
                start_tile(pes_[p], work + slot * WORK_COUNTS);
                active.push_back(p);
            }
            while (!active.empty()) {
                size_t kept = 0;
                for (const int64_t p : active) {
                    const int64_t slot = phase * g_.pes + p;
                    int64_t* const served[2] = {counts[0] + slot * MEMORY_COUNTS, counts[1] + slot * MEMORY_COUNTS};
                    if (quantum<CACHED, BYPASSED>(p, memories, work + slot * WORK_COUNTS, served)) active[kept++] = p;
                }
                active.resize(kept);
            }
        }
    }

private:
    void start_tile(Pe& pe, int64_t* work) {
        const int32_t tile = schedule_.order[pe.tile];
        pe.nonzero = tiles_.begin[tile];
        pe.end = tiles_.begin[tile + 1];
        const int64_t first = pe.nonzero / LINE_NONZEROS, last = (pe.end - 1) / LINE_NONZEROS;
        ++work[TILES];
        work[SPARSE_LINES] += ARRAYS * (last - first + (first != pe.group));
        work[OUTPUT_LINES] += (pe.end - pe.nonzero + LINE_NONZEROS - 1) / LINE_NONZEROS;
        pe.group = last;
    }

    void end_run(Pe& pe, int64_t* work) {
        work[CHAIN] += pe.run * std::min(g_.reservation, pe.run * g_.row_lines);
        pe.run = 0;
    }

    void load(Window& window, Served level, int64_t* counts) const {
        if (window.loads == window_loads_) window.close(counts);
        ++window.loads;
        window.slowest = std::max(window.slowest, level <= DRAM ? static_cast<int>(level) : 0);
    }

    void begin_row(Pe& pe, int64_t* work, int32_t row) {
        end_run(pe, work);
        ++work[RUNS];
        pe.row = row;
    }

    // One turn of a PE; false when it has finished the phase.
    template <bool CACHED, bool BYPASSED>
    bool quantum(int64_t p, Memory* const* memories, int64_t* work, int64_t* const* served) {
        Pe& pe = pes_[p];
        Sets& registers = pe.others;
        uint32_t* const newest = registers.set(0);
        uint32_t unused;
        for (int64_t left = g_.quantum; left > 0;) {
            const int64_t stop = std::min(pe.end, pe.nonzero + left);
            left -= stop - pe.nonzero;
            work[NONZEROS] += stop - pe.nonzero;
            for (int64_t k = pe.nonzero; k < stop; ++k) {
                if (tiles_.row[k] != pe.row) {
                    begin_row(pe, work, tiles_.row[k]);
                    const uint32_t r = tag_of(cols_ + pe.row);
                    if (registers.exchange(newest, r, pe.r, &unused)) {
                        if (CACHED) memories[0]->write(p, r, served[0]);
                        if (BYPASSED) memories[1]->write_bypassed(p, r, served[1]);
                    } else {
                        if (CACHED) load(pe.windows[0], memories[0]->read(p, r, 1, served[0]), served[0]);
                        if (BYPASSED) load(pe.windows[1], memories[1]->read_bypassed(p, r, 1, served[1]), served[1]);
                    }
                    pe.r = r;
                }
                ++pe.run;
                const uint32_t c = tag_of(tiles_.column[k]);
                if (!registers.exchange(newest, c, c, &unused)) {
                    if (CACHED) load(pe.windows[0], memories[0]->read(p, c, 0, served[0]), served[0]);
                    if (BYPASSED) load(pe.windows[1], memories[1]->read(p, c, 0, served[1]), served[1]);
                }
                if (CACHED && ++pe.windows[0].nonzeros == window_nonzeros_) pe.windows[0].close(served[0]);
                if (BYPASSED && ++pe.windows[1].nonzeros == window_nonzeros_) pe.windows[1].close(served[1]);
            }
            pe.nonzero = stop;
            if (stop < pe.end) continue;
            if (++pe.tile == pe.last_tile) {
                end_run(pe, work);
                for (int which = 0; which < 2; ++which) pe.windows[which].close(served[which]);
                return false;
            }
            start_tile(pe, work);
        }
        return true;
    }

    const Geometry& g_;
    int64_t cols_;
    const Tiles& tiles_;
    const Schedule& schedule_;
    std::vector<Pe> pes_;
    int64_t window_nonzeros_, window_loads_;
};

}  // namespace spade

extern "C" {

// Returns -1 where there is no memory, which is all that can be thrown; else what is said here, or 0.

// geometry: see struct Geometry. row, column, begin: tiles; order, start: schedule. which: bit 0 traces rMatrix cached, bit
// 1 bypassed. Out, all zero on entry: work (phases, pes, 6) as enum Work, cached and bypassed (phases, pes, 12) as enum
// Served and the windows, flush (2,) dirty rows left at the end of the pass.
int64_t spade_trace(const int64_t* geometry, int64_t cols, int64_t tile_count, const int32_t* row,
                    const int32_t* column, const int64_t* begin, int64_t phases, const int32_t* order, const int64_t* start, int64_t which,
                    int64_t* work, int64_t* cached, int64_t* bypassed, int64_t* flush) try {
    const auto& g = *reinterpret_cast<const spade::Geometry*>(geometry);
    const spade::Tiles tiles{tile_count, row, column, begin};
    const spade::Schedule schedule{phases, g.pes, order, start};
    spade::Tracer tracer(g, cols, tiles, schedule);
    spade::Memory with_r(g), without_r(g);
    spade::Memory* const memories[2] = {&with_r, &without_r};
    int64_t* const counts[2] = {cached, bypassed};
    if (which == 3) tracer.run<true, true>(memories, work, counts);
    if (which == 2) tracer.run<false, true>(memories, work, counts);
    if (which == 1) tracer.run<true, false>(memories, work, counts);
    flush[0] = with_r.flush();
    flush[1] = without_r.flush();
    return 0;
} catch (const std::exception&) {
    return -1;
}

}  // extern "C"
