// Caches of a SPADE machine, in units of rows (T1: a slice of a dense row) or of lines (T0).
//
// Not inclusive; a read fills every level on its way. A dirty row that leaves a level marks its copy in the nearest level
// below that has one, without touching it or making room, or is written to DRAM.
#pragma once

#include "lru.hpp"

#include <vector>

namespace spade {

// Order of the int64 arguments that describe the machine; see Geometry in machine.py.
struct Geometry {
    int64_t pes, pes_per_l2, quantum, reservation, dense_loads, row_lines, registers;
    int64_t l1_sets, l1_ways, l2_sets, l2_ways, llc_sets, llc_ways, victim_sets, victim_ways;
};

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

    // The level that had the row; it is brought into all levels above.
    Served read(int64_t pe, uint32_t tag, uint32_t dirty, int64_t* served) {
        uint32_t left;
        Sets& l2 = *cluster_[pe];
        if (l1_[pe].exists()) {
            if (l1_[pe].access(tag, dirty, &left)) {
                ++served[L1];
                return L1;
            }
            if (left & 1u) write_below_l1(pe, left & ~1u, served);
            dirty = 0;
        }
        if (l2.exists()) {
            if (l2.access(tag, dirty, &left)) {
                ++served[L2];
                return L2;
            }
            if (left & 1u) write_below_l2(left & ~1u, served);
            dirty = 0;
        }
        if (llc_.exists()) {
            if (llc_.access(tag, dirty, &left)) {
                ++served[LLC];
                return LLC;
            }
            if (left & 1u) ++served[WRITES];
            dirty = 0;
        }
        ++served[DRAM];
        served[WRITES] += dirty;  // no cache at all
        return DRAM;
    }

    // Make the copy nearest to the PE dirty, or write to DRAM.
    void write(int64_t pe, uint32_t tag, int64_t* served) {
        if (l1_[pe].exists() && l1_[pe].mark(tag)) return;
        write_below_l1(pe, tag, served);
    }

    Served read_bypassed(int64_t pe, uint32_t tag, uint32_t dirty, int64_t* served) {
        uint32_t left = dirty;  // without a victim cache the row itself goes back
        if (victim_[pe].exists() && victim_[pe].access(tag, dirty, &left)) {
            ++served[VICTIM];
            return VICTIM;
        }
        ++served[DRAM];
        served[WRITES] += left & 1u;
        return DRAM;
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

}  // namespace spade
