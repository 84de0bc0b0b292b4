// Line-accurate, event-driven simulation (level T0): one pass over the tiles, every vector operation and every line.
//
// Requests to shared caches and DRAM channels are made in the order of time: the PE with the earliest next request goes
// first; operations that ask for nothing and write nothing run ahead. Meant for at most 200,000 nonzeros.
#include "element.hpp"
#include "memory.hpp"

#include <exception>

namespace spade {

// Order of the double arguments; see t0.py. Nanoseconds and bytes per nanosecond.
struct LineRates {
    double cycle, forwarding, l1, l2, llc, dram, channels, bandwidth, port, instruction, barrier;
};

// Order of the int64 arguments; see t0.py.
struct LineShape {
    int64_t row_lines, row_stride, registers, reservation, dense_loads, sparse_loads, store_queue, tile_queue;
    int64_t written, bypass, dirty_high, dirty_low;
};

enum LineCount { OPERATIONS, VR_HITS, LOADS, SPARSE_LINES, OUTPUT_LINES, TILES_RUN, LINE_COUNTS };

struct Element {
    Registers registers;
    Ring stations, loads, stores;
    Loader loader;
    int64_t tile = 0, last_tile = 0, nonzero = 0, end = 0, lane = 0, outputs = 0, dirty = 0;
    double issue = NEVER, posted = 0, previous = 0, drained = 0, finish = 0;
    bool stalled = false;
    int c = 0, r = 0;                 // registers of the pending operation
    bool c_missing = false, r_missing = false;
    size_t c_load = 0, r_load = 0;    // their entries of the load queue
    uint32_t evicted[2];
    int evictions = 0;

    Element(const LineShape& s, double cycle)
        : registers(static_cast<int>(s.registers)), stations(s.reservation), loads(s.dense_loads),
          stores(s.store_queue), loader(s.sparse_loads, s.tile_queue, cycle) {}
};

class LineSimulator {
public:
    LineSimulator(const Geometry& g, const LineShape& s, const LineRates& t, int64_t rows, int64_t cols,
                  const Tiles& tiles, const Schedule& schedule)
        : g_(g), s_(s), t_(t), cols_(cols), tiles_(tiles), schedule_(schedule), memory_(g),
          elements_(static_cast<size_t>(g.pes), Element(s, t.cycle)), served_(SERVED_COUNTS, 0), count_(LINE_COUNTS, 0),
          channel_(static_cast<size_t>(t.channels), 0.0),
          l2_port_(static_cast<size_t>((g.pes + g.pes_per_l2 - 1) / g.pes_per_l2), 0.0), llc_port_(l2_port_),
          arrives_(static_cast<size_t>((rows + cols) * s.row_stride), 0.0) {}

    // Out: busy and waiting (pes,) nanoseconds. Returns the time of the pass, without the flush.
    double run(double* busy, double* waiting) {
        double now = 0;
        for (int64_t phase = 0; phase < schedule_.phases; ++phase) {
            const double began = now;
            post_first(phase, began);
            while (step()) {}
            double end = began;
            for (const Element& pe : elements_) end = std::max(end, pe.finish);
            for (int64_t p = 0; p < g_.pes; ++p) {
                busy[p] += elements_[p].finish - began;
                waiting[p] += end - elements_[p].finish;
            }
            now = end + t_.barrier;
        }
        return now;
    }

    int64_t flush() {
        for (Element& pe : elements_)
            for (int index = 0; index < pe.registers.count(); ++index)
                if (pe.registers[index].dirty) write_line(pe, pe.registers.tag(index), 0);
        return memory_.flush();
    }

    const int64_t* served() const { return served_.data(); }
    const int64_t* count() const { return count_.data(); }

private:
    // The control processor fills the registers of all PEs one after the other; a PE reads its first tile when posted.
    void post_first(int64_t phase, double now) {
        processor_ = now;
        for (int64_t p = 0; p < g_.pes; ++p) {
            Element& pe = elements_[p];
            pe.tile = schedule_.start[phase * g_.pes + p];
            pe.last_tile = schedule_.start[phase * g_.pes + p + 1];
            pe.finish = now;
            pe.issue = NEVER;
            if (pe.tile < pe.last_tile) pe.posted = processor_ += t_.instruction;
        }
        for (Element& pe : elements_)
            if (pe.tile < pe.last_tile) start_tile(pe, pe.posted);
    }

    // Reading an instruction frees the register for the next one.
    void start_tile(Element& pe, double now) {
        ++count_[TILES_RUN];
        pe.posted = processor_ = std::max(processor_, now) + t_.instruction;
        const int32_t tile = schedule_.order[pe.tile];
        pe.nonzero = tiles_.begin[tile];
        pe.end = tiles_.begin[tile + 1];
        pe.lane = pe.outputs = 0;
        pe.previous = pe.drained = now;
        pe.loader.start(pe.nonzero, pe.end, now);
        prepare(pe);
    }

    // Handle the earliest event; false when there is none.
    bool step() {
        double earliest = NEVER;
        Element* next = nullptr;
        bool load = false;
        for (Element& pe : elements_) {
            const double request = pe.tile < pe.last_tile ? pe.loader.next_request() : NEVER;
            if (request < earliest) earliest = request, next = &pe, load = true;
            if (pe.issue < earliest) earliest = pe.issue, next = &pe, load = false;
        }
        if (!next) return false;
        if (load) {
            ++count_[SPARSE_LINES];
            next->loader.request(earliest, from_dram(next->loader.next_line(), earliest));
            if (next->stalled) prepare(*next);
        } else {
            issue(*next);
            prepare(*next);
        }
        return true;
    }

    // Run ahead to the next operation that concerns the memory, and leave it pending in `issue`.
    void prepare(Element& pe) {
        pe.issue = NEVER;
        while (true) {
            if (pe.nonzero == pe.end) {
                finish_tile(pe);
                return;
            }
            pe.stalled = !pe.loader.has(pe.nonzero);
            if (pe.stalled) return;
            const double time = claim(pe);
            if (pe.c_missing || pe.r_missing || pe.evictions || writes(pe)) {
                pe.issue = time;
                return;
            }
            complete(pe, time);
        }
    }

    // The pending operation fills an output line, or makes the write-back manager start.
    bool writes(Element& pe) {
        if (s_.written) return pe.dirty + !pe.registers[pe.r].dirty > s_.dirty_high;
        return pe.lane + 1 == s_.row_lines &&
               ((pe.outputs + 1) % LINE_NONZEROS == 0 || pe.nonzero + 1 == pe.end);
    }

    // Find or allocate the two registers of the next operation; returns when it can issue.
    double claim(Element& pe) {
        double time = std::max({pe.previous + t_.cycle, pe.loader.entry(pe.nonzero), pe.stations.free_at()});
        const uint32_t c = tag_of(tiles_.column[pe.nonzero] * s_.row_stride + pe.lane);
        const uint32_t r = tag_of((cols_ + tiles_.row[pe.nonzero]) * s_.row_stride + pe.lane);
        pe.c = pe.registers.find(c);
        pe.r = pe.registers.find(r);
        pe.c_missing = pe.c < 0;
        pe.r_missing = pe.r < 0;
        pe.evictions = 0;
        if (!pe.c_missing) pe.registers.touch(pe.c);
        if (!pe.r_missing) pe.registers.touch(pe.r);
        if (pe.c_missing) pe.c = allocate(pe, c, &time, &pe.c_load);
        if (pe.r_missing) pe.r = allocate(pe, r, &time, &pe.r_load);
        pe.registers.touch(pe.r);
        return time;
    }

    int allocate(Element& pe, uint32_t tag, double* time, size_t* load) {
        const int index = pe.registers.oldest();
        Register& line = pe.registers[index];
        *time = std::max({*time, line.busy, pe.loads.free_at()});
        if (line.dirty) {
            *time = std::max(*time, pe.stores.free_at());
            pe.stores.take(*time + t_.l1);
            pe.evicted[pe.evictions++] = pe.registers.tag(index);
            line.dirty = false;
            --pe.dirty;
        }
        *load = pe.loads.take(NEVER);  // until the request is made
        pe.registers.rename(index, tag);
        pe.registers.touch(index);
        return index;
    }

    void issue(Element& pe) {
        for (int k = 0; k < pe.evictions; ++k) write_line(pe, pe.evicted[k], pe.issue);
        if (pe.c_missing) pe.loads.set(pe.c_load, fill(pe, pe.c, false));
        if (pe.r_missing) pe.loads.set(pe.r_load, fill(pe, pe.r, s_.bypass != 0));
        complete(pe, pe.issue);
    }

    double fill(Element& pe, int index, bool bypassed) {
        ++count_[LOADS];
        const uint32_t tag = pe.registers.tag(index);
        Register& line = pe.registers[index];
        line.ready = bypassed ? read_bypassed(pe, tag, pe.issue) : read_cached(pe, tag, pe.issue);
        line.chain = line.busy = 0;
        return line.ready;
    }

    void complete(Element& pe, double now) {
        Register& c = pe.registers[pe.c];
        Register& r = pe.registers[pe.r];
        const double done = std::max({now, c.ready, r.ready, r.chain}) + t_.forwarding;
        count_[VR_HITS] += !pe.c_missing + !pe.r_missing;
        ++count_[OPERATIONS];
        c.busy = std::max(c.busy, done);
        r.busy = std::max(r.busy, done);
        pe.stations.take(done);
        pe.previous = now;
        pe.drained = std::max(pe.drained, done);
        if (s_.written) {
            r.chain = done;
            pe.dirty += !r.dirty;
            r.dirty = true;
            if (pe.dirty > s_.dirty_high) clean(pe, now);
        }
        if (pe.lane == 0) pe.loader.leave(pe.nonzero, now);
        if (++pe.lane < s_.row_lines) return;
        pe.lane = 0;
        ++pe.nonzero;
        if (!s_.written && (++pe.outputs % LINE_NONZEROS == 0 || pe.nonzero == pe.end)) {
            ++count_[OUTPUT_LINES];
            occupy(count_[OUTPUT_LINES], now);
        }
    }

    // The write-back manager: oldest dirty lines first, those of the current row stay.
    void clean(Element& pe, double now) {
        const uint32_t row = tag_of((cols_ + tiles_.row[pe.nonzero]) * s_.row_stride);
        for (int index = pe.registers.oldest(); index >= 0 && pe.dirty > s_.dirty_low;
             index = pe.registers[index].newer) {
            Register& line = pe.registers[index];
            const uint32_t tag = pe.registers.tag(index);
            if (!line.dirty || (tag >= row && tag < row + 2 * static_cast<uint32_t>(s_.row_lines))) continue;
            line.dirty = false;
            --pe.dirty;
            pe.stores.take(std::max({now, pe.stores.free_at(), line.chain}) + t_.l1);
            write_line(pe, tag, now);
        }
    }

    void finish_tile(Element& pe) {
        pe.stalled = false;
        if (++pe.tile == pe.last_tile) {
            pe.finish = pe.drained;
            return;
        }
        start_tile(pe, std::max(pe.drained, pe.posted));
    }

    double read_cached(Element& pe, uint32_t tag, double now) {
        const int64_t p = &pe - elements_.data();
        const int64_t writes = served_[WRITES];
        const Served level = memory_.read(p, tag, 0, served_.data());
        for (int64_t k = writes; k < served_[WRITES]; ++k) occupy(tag >> 1, now);
        if (level == L1) return std::max(now + t_.l1, arrives_[tag >> 1]);
        const int64_t cluster = p / g_.pes_per_l2;
        if (g_.l2_sets) now = through(&l2_port_[cluster], now);
        if (level == L2) return std::max(now + t_.l2, arrives_[tag >> 1]);
        if (g_.llc_sets) now = through(&llc_port_[(tag >> 1) % llc_port_.size()], now);
        if (level == LLC) return std::max(now + t_.llc, arrives_[tag >> 1]);
        return arrives_[tag >> 1] = from_dram(tag >> 1, now);
    }

    double read_bypassed(Element& pe, uint32_t tag, double now) {
        const int64_t writes = served_[WRITES];
        const Served level = memory_.read_bypassed(&pe - elements_.data(), tag, 0, served_.data());
        for (int64_t k = writes; k < served_[WRITES]; ++k) occupy(tag >> 1, now);
        return level == VICTIM ? now + t_.l1 : from_dram(tag >> 1, now);
    }

    void write_line(Element& pe, uint32_t tag, double now) {
        const int64_t p = &pe - elements_.data();
        const int64_t writes = served_[WRITES];
        if (s_.bypass) memory_.write_bypassed(p, tag, served_.data());
        else memory_.write(p, tag, served_.data());
        for (int64_t k = writes; k < served_[WRITES]; ++k) occupy(tag >> 1, now);
    }

    static double through(double* port, double now, double service) {
        const double start = std::max(*port, now);
        *port = start + service;
        return start;
    }
    double through(double* port, double now) const { return through(port, now, t_.port); }

    // A line through its DRAM channel; returns when its turn comes.
    double occupy(int64_t line, double now) {
        return through(&channel_[line % static_cast<int64_t>(channel_.size())], now,
                       64 * t_.channels / t_.bandwidth);
    }

    double from_dram(int64_t line, double now) { return occupy(line, now) + t_.dram; }

    const Geometry& g_;
    const LineShape& s_;
    const LineRates& t_;
    int64_t cols_;
    const Tiles& tiles_;
    const Schedule& schedule_;
    Memory memory_;
    std::vector<Element> elements_;
    std::vector<int64_t> served_, count_;
    std::vector<double> channel_, l2_port_, llc_port_, arrives_;
    double processor_ = 0;
};

}  // namespace spade

extern "C" {

// Returns -1 where there is no memory, which is all that can be thrown; else what is said here, or 0.

// geometry: struct Geometry in units of lines; shape: struct LineShape; rates: struct LineRates. row, column, begin:
// tiles; order, start: schedule. Out, all zero on entry: busy and waiting (pes,) nanoseconds; served (6,) as enum Served,
// in lines; count (6,) as enum LineCount; result (2,): nanoseconds of the pass, and dirty lines left at its end.
int64_t spade_lines(const int64_t* geometry, const int64_t* shape, const double* rates, int64_t rows, int64_t cols,
                    int64_t tile_count, const int32_t* row, const int32_t* column, const int64_t* begin, int64_t phases,
                    const int32_t* order, const int64_t* start, double* busy, double* waiting, int64_t* served,
                    int64_t* count, double* result) try {
    const auto& g = *reinterpret_cast<const spade::Geometry*>(geometry);
    const spade::Tiles tiles{tile_count, row, column, begin};
    const spade::Schedule schedule{phases, g.pes, order, start};
    spade::LineSimulator simulator(g, *reinterpret_cast<const spade::LineShape*>(shape),
                                   *reinterpret_cast<const spade::LineRates*>(rates), rows, cols, tiles, schedule);
    result[0] = simulator.run(busy, waiting);
    std::copy_n(simulator.served(), static_cast<int>(spade::SERVED_COUNTS), served);
    std::copy_n(simulator.count(), static_cast<int>(spade::LINE_COUNTS), count);
    result[1] = static_cast<double>(simulator.flush());
    return 0;
} catch (const std::exception&) {
    return -1;
}

}  // extern "C"
