// One processing element (PE) of the line-accurate level T0: times of its queues, not of its pipeline stages.
//
// The sparse loader fetches three coordinate arrays line by line through the bypass buffer; a line keeps its slot in the
// sparse queue until its nonzeros have entered the queue of tile operations (tOps). Vector operations issue in order, at
// most one per cycle, and complete out of order within the reservation stations.
#pragma once

#include "registers.hpp"
#include "tiling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace spade {

constexpr double NEVER = std::numeric_limits<double>::infinity();

// Completion times of the last n users of a queue of n entries.
class Ring {
public:
    explicit Ring(int64_t entries) : times_(static_cast<size_t>(entries), 0.0) {}
    double free_at() const { return times_[next_]; }
    // Returns the entry, whose time may be corrected by `set`.
    size_t take(double until) {
        const size_t entry = next_;
        times_[entry] = until;
        next_ = next_ + 1 == times_.size() ? 0 : next_ + 1;
        return entry;
    }
    void set(size_t entry, double until) { times_[entry] = until; }

private:
    std::vector<double> times_;
    size_t next_ = 0;
};

// From sparse lines to tOps: which nonzeros of the current tile have entered the tOp queue, and when.
class Loader {
public:
    Loader(int64_t slots, int64_t queue, double cycle)
        : slots_(slots), queue_(queue), cycle_(cycle), released_(static_cast<size_t>(slots)),
          entry_(static_cast<size_t>(queue)), left_(static_cast<size_t>(queue)), arrival_(64) {}

    void start(int64_t begin, int64_t end, double now) {
        begin_ = entered_ = gone_ = begin;
        end_ = end;
        first_group_ = begin / LINE_NONZEROS;
        const bool kept = first_group_ == last_group_;  // the bypass buffer still holds it
        lines_ = ARRAYS * ((end - 1) / LINE_NONZEROS - first_group_ + 1);
        requested_ = freed_ = kept ? ARRAYS : 0;
        last_entry_ = last_request_ = now - cycle_;
        started_ = now;
        for (double& time : arrival_) time = now;
        last_group_ = (end - 1) / LINE_NONZEROS;
        advance();
    }

    // When the next line can be requested; NEVER while it depends on operations that have not issued.
    double next_request() const {
        if (requested_ == lines_) return NEVER;
        const double paced = std::max(last_request_ + cycle_, started_);
        if (requested_ < slots_) return paced;
        if (requested_ - slots_ >= freed_) return NEVER;
        return std::max(paced, released_[requested_ % slots_]);
    }

    // Number of the next line in the stream; the lines of the three arrays alternate.
    int64_t next_line() const { return ARRAYS * first_group_ + requested_; }

    void request(double now, double arrives) {
        last_request_ = now;
        double& group = arrival_[(requested_ / ARRAYS) % 64];
        group = requested_ % ARRAYS == 0 ? arrives : std::max(group, arrives);
        ++requested_;
        advance();
    }

    bool has(int64_t nonzero) const { return nonzero < entered_; }
    double entry(int64_t nonzero) const { return entry_[nonzero % queue_]; }

    // The first vector operation of a nonzero has issued.
    void leave(int64_t nonzero, double now) {
        left_[nonzero % queue_] = now;
        gone_ = nonzero + 1;
        advance();
    }

private:
    void advance() {
        while (entered_ < end_) {
            const int64_t group = entered_ / LINE_NONZEROS - first_group_;
            if ((group + 1) * ARRAYS > requested_) return;
            if (entered_ - begin_ >= queue_ && gone_ <= entered_ - queue_) return;
            double time = std::max(arrival_[group % 64], last_entry_);
            if (entered_ - begin_ >= queue_) time = std::max(time, left_[entered_ % queue_]);
            entry_[entered_ % queue_] = last_entry_ = time;
            ++entered_;
            if (entered_ % LINE_NONZEROS == 0 || entered_ == end_)
                for (; freed_ < (group + 1) * ARRAYS; ++freed_) released_[freed_ % slots_] = time;
        }
    }

    int64_t slots_, queue_;
    double cycle_;
    std::vector<double> released_, entry_, left_, arrival_;
    int64_t begin_ = 0, end_ = 0, entered_ = 0, gone_ = 0, first_group_ = 0, last_group_ = -1;
    int64_t lines_ = 0, requested_ = 0, freed_ = 0;
    double last_entry_ = 0, last_request_ = 0, started_ = 0;
};

}  // namespace spade
