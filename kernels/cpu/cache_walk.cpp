// Simulates the reads of the threads of a fused pair of loops, in the order of their iterations: two private caches per
// thread and one shared cache. Caches are set-associative with lines of 64 bytes and LRU replacement.
//
//   loop one, iteration i   reads a row of a dense operand, or its own nonzeros and a dense row for each of them;
//                           writes row i of D1
//   loop two, iteration j   reads its own nonzeros and a row of D1 for each of them; writes row j of D
//
// Only reads are counted. Writes are buffered, but written lines occupy the caches unless they are streamed. Tiles are
// assigned in order, the next one to a free thread; threads take turns, an iteration each. With `local`, the rows of D1
// of a tile are in a buffer of the thread, and loop two reads those of its own tile there.
//
// Preconditions (checked in Python): fewer than 2^31 lines in all; tiles as in tiles.hpp.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "../spade/lru.hpp"
#include "memory.hpp"

extern "C" {

struct WalkRows {
    const int64_t* indptr;
    const int32_t* indices;
};

struct Walk {
    const int64_t* first;
    const int32_t* second;
    const int64_t* second_ptr;
    const uint8_t* needed;
    WalkRows a, b;  // b.indptr null: the operand of loop one is dense
    int64_t tiles[2], threads;
    int64_t ones, right_rows;            // iterations of loop one; rows of C where b is sparse
    int64_t inner_lines, row_lines;      // of a row of B where it is dense; of C, D1 and D
    int64_t sets[3], ways[3];            // of each level
    int64_t local, stream;
    int64_t reads[4];                    // result: served by level 1, 2, 3 and by the memory
};

}  // extern "C"

namespace {

constexpr int64_t PER_LINE = 8;  // nonzeros: an index and a float each

// Addresses of all arrays, in lines.
struct Layout {
    explicit Layout(const Walk& walk)
        : c(0), b(c + (walk.b.indptr ? walk.right_rows * walk.row_lines : 0)),
          b_nonzeros(b + (walk.b.indptr ? 0 : walk.ones * walk.inner_lines)),
          a_nonzeros(b_nonzeros + (walk.b.indptr ? walk.b.indptr[walk.ones] / PER_LINE + 1 : 0)),
          d1(a_nonzeros + walk.a.indptr[walk.ones] / PER_LINE + 1), d(d1 + walk.ones * walk.row_lines),
          buffers(d + walk.ones * walk.row_lines) {}
    int64_t c, b, b_nonzeros, a_nonzeros, d1, d, buffers;
};

class Thread {
public:
    Thread(Walk& walk, const Layout& layout, spade::Sets& shared, int64_t number, int64_t largest_tile)
        : walk_(walk), layout_(layout), shared_(shared), buffer_(layout.buffers + number * largest_tile * walk.row_lines) {
        for (int level = 0; level < 2; ++level) own_[level].build(walk.sets[level], static_cast<int>(walk.ways[level]));
    }

    void begin(int64_t tile, bool fused) {
        fused_ = fused;
        one_ = fused ? walk_.first[tile] : 0;
        begin_ = one_;
        end_ = fused ? walk_.first[tile + 1] : 0;
        const int64_t place = fused ? tile : walk_.tiles[0] + tile;
        two_ = walk_.second_ptr[place];
        last_ = walk_.second_ptr[place + 1];
    }

    bool busy() const { return one_ < end_ || two_ < last_; }

    void step() {
        if (one_ < end_)
            first(one_++);
        else
            second(walk_.second[two_++]);
    }

private:
    void first(int64_t i) {
        if (walk_.b.indptr) {
            for (int64_t e = walk_.b.indptr[i]; e < walk_.b.indptr[i + 1]; ++e) {
                nonzero(layout_.b_nonzeros, e, walk_.b.indptr[i]);
                read(layout_.c + walk_.b.indices[e] * walk_.row_lines, walk_.row_lines);
            }
        } else {
            read(layout_.b + i * walk_.inner_lines, walk_.inner_lines);
        }
        if (walk_.local) write(buffer_ + (i - begin_) * walk_.row_lines);
        if (!walk_.local || walk_.needed[i]) write(layout_.d1 + i * walk_.row_lines);
    }

    void second(int64_t j) {
        for (int64_t e = walk_.a.indptr[j]; e < walk_.a.indptr[j + 1]; ++e) {
            nonzero(layout_.a_nonzeros, e, walk_.a.indptr[j]);
            const int64_t i = walk_.a.indices[e];
            const bool here = walk_.local && fused_ && i >= begin_ && i < end_;
            read(here ? buffer_ + (i - begin_) * walk_.row_lines : layout_.d1 + i * walk_.row_lines, walk_.row_lines);
        }
        if (!walk_.stream) write(layout_.d + j * walk_.row_lines);
    }

    // Reads each line of indices and values once.
    void nonzero(int64_t base, int64_t e, int64_t begin) {
        if (e == begin || e % PER_LINE == 0) read(base + e / PER_LINE, 1);
    }

    void read(int64_t line, int64_t count) {
        for (int64_t end = line + count; line < end; ++line) ++walk_.reads[level_of(line)];
    }

    void write(int64_t line) {
        for (int64_t end = line + walk_.row_lines; line < end; ++line) level_of(line);
    }

    // Returns the first level that holds a line; afterwards this level and all before it hold the line.
    int level_of(int64_t line) {
        const uint32_t tag = spade::tag_of(line);
        uint32_t left;
        if (own_[0].access(tag, 0, &left)) return 0;
        if (own_[1].access(tag, 0, &left)) return 1;
        return shared_.access(tag, 0, &left) ? 2 : 3;
    }

    Walk& walk_;
    const Layout& layout_;
    spade::Sets own_[2];
    spade::Sets& shared_;
    int64_t buffer_, begin_ = 0, one_ = 0, end_ = 0, two_ = 0, last_ = 0;
    bool fused_ = false;
};

void wavefront(std::vector<std::unique_ptr<Thread>>& threads, int64_t tiles, bool fused) {
    int64_t next = 0;
    for (bool busy = true; busy;) {
        busy = false;
        for (auto& thread : threads) {
            while (!thread->busy() && next < tiles) thread->begin(next++, fused);
            if (!thread->busy()) continue;
            thread->step();
            busy = true;
        }
    }
}

void run(Walk& walk) {
    std::fill(walk.reads, walk.reads + 4, 0);
    spade::Sets shared;
    shared.build(walk.sets[2], static_cast<int>(walk.ways[2]));
    int64_t largest = 0;
    for (int64_t v = 0; v < walk.tiles[0]; ++v) largest = std::max(largest, walk.first[v + 1] - walk.first[v]);
    const Layout layout(walk);
    std::vector<std::unique_ptr<Thread>> threads;
    for (int64_t t = 0; t < walk.threads; ++t)
        threads.push_back(std::make_unique<Thread>(walk, layout, shared, t, largest));
    wavefront(threads, walk.tiles[0], true);
    wavefront(threads, walk.tiles[1], false);
}

}  // namespace

// Returns 1 if memory ran out, else 0.
extern "C" int32_t sparloom_cache_walk(void* problem) {
    return sparloom::out_of_memory([&] { run(*static_cast<Walk*>(problem)); });
}
