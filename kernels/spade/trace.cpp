// Row-granular trace (level T1): counts, per phase and processing element (PE), what each memory level served.
//
// The cache unit is the slice of a dense row that one pass works on (n_l lines, contiguous and aligned, always touched
// whole), so a cache of S line sets behaves as S / n_l row sets. Rows of the c matrix (the one addressed by column) have
// the numbers 0 .. cols - 1, those of the r matrix (addressed by row) follow. Both settings of rMatrix bypass are traced
// together: the vector registers see the same stream.
//
// r rows become dirty in the level below the registers when a row begins; a dirty row that leaves a level marks its copy
// below, without touching it or making room, or is written to DRAM. So the order of use in every cache is the same
// whether r is written (SpMM) or only read (SDDMM), and one trace serves both where the schedules are equal.
#include "lru.hpp"
#include "tiling.hpp"

#include <algorithm>
#include <vector>

namespace spade {

// Order of the int64 arguments that describe the machine; see Geometry in machine.py.
struct Geometry {
    int64_t pes, pes_per_l2, quantum, reservation, row_lines, registers;
    int64_t l1_sets, l1_ways, l2_sets, l2_ways, llc_sets, llc_ways, victim_sets, victim_ways;
};

enum Work { NONZEROS, RUNS, TILES, CHAIN, WORK_COUNTS };
enum Served { L1, L2, LLC, DRAM, VICTIM, WRITES, SERVED_COUNTS };

// L1 per PE, L2 per cluster, one LLC, and the victim cache of the bypass buffer per PE.
class Memory {
public:
    explicit Memory(const Geometry& g)
        : l1_(static_cast<size_t>(g.pes)), victim_(static_cast<size_t>(g.pes)),
          l2_(static_cast<size_t>((g.pes + g.pes_per_l2 - 1) / g.pes_per_l2)) {
        for (Sets& cache : l1_) cache.build(g.l1_sets, static_cast<int>(g.l1_ways));
        for (Sets& cache : victim_) cache.build(g.victim_sets, static_cast<int>(g.victim_ways));
        for (Sets& cache : l2_) cache.build(g.l2_sets, static_cast<int>(g.l2_ways));
        llc_.build(g.llc_sets, static_cast<int>(g.llc_ways));
        cluster_.resize(static_cast<size_t>(g.pes));
        for (int64_t pe = 0; pe < g.pes; ++pe) cluster_[pe] = &l2_[pe / g.pes_per_l2];
    }

    void read(int64_t pe, uint32_t tag, uint32_t dirty, int64_t* served) {
        uint32_t left;
        Sets& l2 = *cluster_[pe];
        if (l1_[pe].exists()) {
            if (l1_[pe].access(tag, dirty, &left)) {
                ++served[L1];
                return;
            }
            if (left & 1u) write_below_l1(pe, left & ~1u, served);
            dirty = 0;
        }
        if (l2.exists()) {
            if (l2.access(tag, dirty, &left)) {
                ++served[L2];
                return;
            }
            if (left & 1u) write_below_l2(left & ~1u, served);
            dirty = 0;
        }
        if (llc_.exists()) {
            if (llc_.access(tag, dirty, &left)) {
                ++served[LLC];
                return;
            }
            if (left & 1u) ++served[WRITES];
            dirty = 0;
        }
        ++served[DRAM];
        served[WRITES] += dirty;  // no cache at all
    }

    void write(int64_t pe, uint32_t tag, int64_t* served) {
        if (l1_[pe].exists() && l1_[pe].mark(tag)) return;
        write_below_l1(pe, tag, served);
    }

    void read_bypassed(int64_t pe, uint32_t tag, int64_t* served) {
        if (!victim_[pe].exists()) {
            ++served[DRAM];
            ++served[WRITES];
            return;
        }
        uint32_t left;
        if (victim_[pe].access(tag, 1, &left)) {
            ++served[VICTIM];
            return;
        }
        ++served[DRAM];
        served[WRITES] += left & 1u;
    }

    void write_bypassed(int64_t pe, uint32_t tag, int64_t* served) {
        if (!victim_[pe].exists() || !victim_[pe].mark(tag)) ++served[WRITES];
    }

    // Distinct dirty rows at the end.
    int64_t flush() {
        int64_t served[SERVED_COUNTS] = {};
        for (size_t pe = 0; pe < l1_.size(); ++pe) {
            drain(l1_[pe], [&](uint32_t tag) { write_below_l1(static_cast<int64_t>(pe), tag, served); });
            drain(victim_[pe], [&](uint32_t) { ++served[WRITES]; });
        }
        for (Sets& cache : l2_) drain(cache, [&](uint32_t tag) { write_below_l2(tag, served); });
        drain(llc_, [&](uint32_t) { ++served[WRITES]; });
        return served[WRITES];
    }

private:
    void write_below_l1(int64_t pe, uint32_t tag, int64_t* served) {
        if (cluster_[pe]->exists() && cluster_[pe]->mark(tag)) return;
        write_below_l2(tag, served);
    }

    void write_below_l2(uint32_t tag, int64_t* served) {
        if (!llc_.exists() || !llc_.mark(tag)) ++served[WRITES];
    }

    template <class Write>
    static void drain(Sets& cache, Write write) {
        for (uint32_t index = 0; index < cache.count(); ++index)
            for (int way = 0; way < cache.ways(); ++way)
                if (cache.set(index)[way] & 1u) write(cache.set(index)[way] & ~1u);
    }

    std::vector<Sets> l1_, victim_, l2_;
    std::vector<Sets*> cluster_;
    Sets llc_;
};

// What a PE is doing. `others` holds the rows in the vector registers besides the current r row, which each vector
// operation touches and which is therefore never the oldest.
struct Pe {
    Sets others;
    uint32_t r = EMPTY;
    int32_t row = -1;
    int64_t run = 0;
    int64_t tile, last_tile, nonzero, end;
};

template <bool CACHED, bool BYPASSED>
void trace(const Geometry& g, int64_t cols, const Tiles& tiles, const Schedule& schedule, int64_t* work,
           int64_t* cached, int64_t* bypassed, int64_t* flush) {
    Memory with_r(g), without_r(g);
    std::vector<Pe> pes(static_cast<size_t>(g.pes));
    for (Pe& pe : pes) pe.others.build(1, static_cast<int>(std::max<int64_t>(1, g.registers / g.row_lines - 1)));
    const auto end_run = [&](Pe& pe, int64_t* count) {
        count[CHAIN] += pe.run * std::min(g.reservation, pe.run * g.row_lines);
        pe.run = 0;
    };
    std::vector<int64_t> active;
    for (int64_t phase = 0; phase < schedule.phases; ++phase) {
        active.clear();
        for (int64_t p = 0; p < g.pes; ++p) {
            Pe& pe = pes[p];
            const int64_t slot = phase * g.pes + p;
            pe.tile = schedule.start[slot];
            pe.last_tile = schedule.start[slot + 1];
            if (pe.tile == pe.last_tile) continue;
            work[slot * WORK_COUNTS + TILES] = pe.last_tile - pe.tile;
            pe.nonzero = tiles.begin[schedule.order[pe.tile]];
            pe.end = tiles.begin[schedule.order[pe.tile] + 1];
            active.push_back(p);
        }
        while (!active.empty()) {
            size_t kept = 0;
            for (const int64_t p : active) {
                Pe& pe = pes[p];
                const int64_t slot = phase * g.pes + p;
                int64_t* const count = work + slot * WORK_COUNTS;
                int64_t* const in = cached + slot * SERVED_COUNTS;
                int64_t* const out = bypassed + slot * SERVED_COUNTS;
                int64_t left = g.quantum;
                while (left > 0) {
                    const int64_t stop = std::min(pe.end, pe.nonzero + left);
                    left -= stop - pe.nonzero;
                    count[NONZEROS] += stop - pe.nonzero;
                    for (int64_t k = pe.nonzero; k < stop; ++k) {
                        uint32_t unused;
                        if (tiles.row[k] != pe.row) {
                            end_run(pe, count);
                            ++count[RUNS];
                            pe.row = tiles.row[k];
                            const uint32_t tag = tag_of(cols + pe.row);
                            if (pe.others.exchange(pe.others.set(0), tag, pe.r, &unused)) {
                                if (CACHED) with_r.write(p, tag, in);
                                if (BYPASSED) without_r.write_bypassed(p, tag, out);
                            } else {
                                if (CACHED) with_r.read(p, tag, 1, in);
                                if (BYPASSED) without_r.read_bypassed(p, tag, out);
                            }
                            pe.r = tag;
                        }
                        ++pe.run;
                        const uint32_t tag = tag_of(tiles.column[k]);
                        if (!pe.others.exchange(pe.others.set(0), tag, tag, &unused)) {
                            if (CACHED) with_r.read(p, tag, 0, in);
                            if (BYPASSED) without_r.read(p, tag, 0, out);
                        }
                    }
                    pe.nonzero = stop;
                    if (stop < pe.end) continue;
                    if (++pe.tile == pe.last_tile) break;
                    pe.nonzero = tiles.begin[schedule.order[pe.tile]];
                    pe.end = tiles.begin[schedule.order[pe.tile] + 1];
                }
                if (pe.tile < pe.last_tile) active[kept++] = p;
                else end_run(pe, count);
            }
            active.resize(kept);
        }
    }
    flush[0] = CACHED ? with_r.flush() : 0;
    flush[1] = BYPASSED ? without_r.flush() : 0;
}

}  // namespace spade

extern "C" {

// geometry: see struct Geometry. row, column, begin: tiles; order, start: schedule. which: bit 0 traces rMatrix cached, bit
// 1 bypassed. Out, all zero on entry: work (phases, pes, 4), cached and bypassed (phases, pes, 6), flush (2,) dirty rows
// left at the end of the pass.
void spade_trace(const int64_t* geometry, int64_t cols, int64_t tile_count, const int32_t* row, const int32_t* column,
                 const int64_t* begin, int64_t phases, const int32_t* order, const int64_t* start, int64_t which,
                 int64_t* work, int64_t* cached, int64_t* bypassed, int64_t* flush) {
    const auto& g = *reinterpret_cast<const spade::Geometry*>(geometry);
    const spade::Tiles tiles{tile_count, row, column, begin};
    const spade::Schedule schedule{phases, g.pes, order, start};
    if (which == 3) spade::trace<true, true>(g, cols, tiles, schedule, work, cached, bypassed, flush);
    if (which == 2) spade::trace<false, true>(g, cols, tiles, schedule, work, cached, bypassed, flush);
    if (which == 1) spade::trace<true, false>(g, cols, tiles, schedule, work, cached, bypassed, flush);
}

}  // extern "C"
