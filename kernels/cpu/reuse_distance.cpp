// Reuse distances of a sequence of columns that is repeated for ever: what is met from the access before to a column to
// this one, by every access of one repetition. A cache with LRU replacement serves an access if all that was met, the
// column itself included, fits into it, whatever its size.
//
// Source: the stack algorithm of Mattson et al. 1970, with a Fenwick tree in place of the stack (Bennett and Kruskal
// 1975). The latest access to each column is marked on an axis of time, and marks after an access are counted. The axis
// has room for twice as many accesses as there are columns; when it is full, the marks move together at its beginning.
//
// Preconditions (checked in Python): fewer than 2^30 columns and 2^31 accesses.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "memory.hpp"

extern "C" {

struct ReuseDistances {
    const int32_t* indices;  // (count) columns below `cols`
    const int32_t* rows;     // (count) the number of the row of each, from 0 on without gaps
    int64_t count, cols, all_rows;
    int32_t* columns;        // (count) result: distinct columns met, this one included
    int32_t* nonzeros;       // (count) result: accesses since
    int32_t* begun;          // (count) result: rows begun since
};

}  // extern "C"

namespace {

class Times {
   public:
    explicit Times(int64_t cols) : latest_(cols, 0), owner_(2 * cols + 2), tree_(2 * cols + 2) {}

    // Distinct columns since the access before to a column, itself included; 0 where there was none.
    int64_t distance_to(int32_t column) {
        if (now_ + 1 == static_cast<int64_t>(owner_.size())) move_together();
        const int32_t before = latest_[column];
        int64_t distance = 0;
        if (before != 0) {
            distance = marks_ - marks_up_to(before) + 1;
            add(before, -1);
            owner_[before] = -1;
        } else {
            ++marks_;
        }
        latest_[column] = static_cast<int32_t>(++now_);
        owner_[now_] = column;
        add(now_, 1);
        return distance;
    }

   private:
    int64_t marks_up_to(int64_t time) const {
        int64_t sum = 0;
        for (; time > 0; time &= time - 1) sum += tree_[time];
        return sum;
    }

    void add(int64_t time, int32_t marks) {
        const int64_t size = static_cast<int64_t>(tree_.size());
        for (; time < size; time += time & -time) tree_[time] += marks;
    }

    void move_together() {
        int64_t to = 0;
        for (int64_t time = 1; time <= now_; ++time) {
            if (owner_[time] < 0) continue;
            owner_[++to] = owner_[time];
            latest_[owner_[to]] = static_cast<int32_t>(to);
        }
        now_ = to;
        const int64_t size = static_cast<int64_t>(tree_.size());
        std::fill(tree_.begin(), tree_.end(), 0);
        for (int64_t time = 1; time < size; ++time) {
            tree_[time] += time <= now_;
            const int64_t parent = time + (time & -time);
            if (parent < size) tree_[parent] += tree_[time];
        }
    }

    std::vector<int32_t> latest_, owner_, tree_;  // times begin at 1
    int64_t now_ = 0, marks_ = 0;
};

}  // namespace

// Returns 1 if memory ran out, else 0.
extern "C" int32_t sparloom_reuse_distances(const void* problem) {
    const ReuseDistances& p = *static_cast<const ReuseDistances*>(problem);
    return sparloom::out_of_memory([&] {
        Times times(p.cols);
        std::vector<int64_t> before(p.cols);  // the latest access to each column
        for (int64_t n = 0; n < p.count; ++n) {
            times.distance_to(p.indices[n]);
            before[p.indices[n]] = n - p.count;
        }
        for (int64_t n = 0; n < p.count; ++n) {
            int64_t& last = before[p.indices[n]];
            const int64_t row = last < 0 ? p.rows[last + p.count] - p.all_rows : p.rows[last];
            p.columns[n] = static_cast<int32_t>(times.distance_to(p.indices[n]));
            p.nonzeros[n] = static_cast<int32_t>(n - last);
            p.begun[n] = static_cast<int32_t>(p.rows[n] - row);
            last = n;
        }
    });
}
