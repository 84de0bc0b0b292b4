// Rows of a sparse matrix packed for products with few columns: entries on a common diagonal are multiplied by vectors,
// without gathers and with one index for all of them.
//
// A chunk is kRows consecutive rows, one per lane. Its entries are of three kinds:
//   run      entries of several lanes whose columns rise with the lanes: one column, that of lane 0; a full run has an
//            entry in every lane, another one has a mask of lanes
//   gather   one entry from most lanes: a mask of lanes, and kRows columns; lanes that are not in the mask have a valid one
//   tail     what is left over of a row, if few rows have so many entries
//
// A chunk is stored as Head; columns int32[full runs, rounded up to even]; Run[other runs]; masks uint32[gathers, rounded
// up to even]; columns int32[gathers][kRows]; per tail Tail and columns int32[count, rounded up to even]; values of all
// entries in this order, without gaps, rounded up to 8 bytes. Reading values by whole vectors needs kSlack bytes after the
// last chunk.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace sparloom::packed {

constexpr int64_t kSlack = 64;
template <typename T>
constexpr int kRows = 64 / static_cast<int>(sizeof(T));
template <typename T>
constexpr int kLeastRun = 4;  // entries of a run; fewer are cheaper to gather
template <typename T>
constexpr int kLeastGather = kRows<T> / 4;

struct Head {
    uint16_t full, runs, gathers, tails;  // runs: those that are not full
};
struct Run {
    int32_t first;  // column of lane 0, which may be outside of the matrix if the mask lacks that lane
    uint32_t mask;
};
struct Tail {
    int32_t lane, count;
};

// Sorts the entries of a chunk by kind; used for one chunk after the other. Columns rise within each row.
template <typename T>
class Chunk {
   public:
    void sort(const int64_t* indptr, const int32_t* indices, int64_t first_row, int64_t lanes) {
        clear();
        int64_t at[kRows<T>], end[kRows<T>];
        alignas(64) int32_t diagonals[kLanes];  // of the next entry of each lane: column - lane
        for (int lane = 0; lane < kLanes; ++lane) {
            diagonals[lane] = kNone;
            if (lane >= lanes) continue;
            at[lane] = indptr[first_row + lane];
            end[lane] = indptr[first_row + lane + 1];
            if (at[lane] < end[lane]) diagonals[lane] = indices[at[lane]] - lane;
        }
        for (;;) {
            int32_t least = kNone;
            for (int lane = 0; lane < kLanes; ++lane) least = std::min(least, diagonals[lane]);
            if (least == kNone) break;
            uint32_t mask = 0;
            for (int lane = 0; lane < kLanes; ++lane) mask |= static_cast<uint32_t>(diagonals[lane] == least) << lane;
            const bool is_full = mask == kAll && full_.size() < UINT16_MAX;
            const bool is_run = !is_full && __builtin_popcount(mask) >= kLeastRun<T> && runs_.size() < UINT16_MAX;
            if (is_full) full_.push_back(least);
            if (is_run) runs_.push_back({least, mask});
            for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
                const int lane = __builtin_ctz(rest);
                (is_full ? full_entries_ : is_run ? run_entries_ : left_[lane]).push_back(at[lane]++);
                diagonals[lane] = at[lane] < end[lane] ? indices[at[lane]] - lane : kNone;
            }
        }
        size_t slot = 0;
        for (;; ++slot) {
            uint32_t mask = 0;
            for (int64_t lane = 0; lane < lanes; ++lane) mask |= uint32_t{left_[lane].size() > slot} << lane;
            if (__builtin_popcount(mask) < kLeastGather<T> || masks_.size() == UINT16_MAX) break;
            masks_.push_back(mask);
        }
        for (int64_t lane = 0; lane < lanes; ++lane) {
            if (left_[lane].size() > slot) {
                tails_.push_back({static_cast<int32_t>(lane), static_cast<int32_t>(left_[lane].size() - slot)});
            }
        }
    }

    int64_t bytes() const {
        int64_t values = full_entries_.size() + run_entries_.size();
        int64_t total = sizeof(Head) + 4 * even(full_.size()) + sizeof(Run) * runs_.size();
        for (const uint32_t mask : masks_) values += __builtin_popcount(mask);
        total += 4 * even(masks_.size()) + 4 * kRows<T> * masks_.size();
        for (const Tail& tail : tails_) {
            total += sizeof(Tail) + 4 * even(tail.count);
            values += tail.count;
        }
        return total + (values * sizeof(T) + 7) / 8 * 8;
    }

    void write(const int32_t* indices, const T* values, char* to) const {
        const Head head{static_cast<uint16_t>(full_.size()), static_cast<uint16_t>(runs_.size()),
                        static_cast<uint16_t>(masks_.size()), static_cast<uint16_t>(tails_.size())};
        to = put(&head, 1, to);
        put(full_.data(), full_.size(), to);
        to += 4 * even(full_.size());
        to = put(runs_.data(), runs_.size(), to);
        put(masks_.data(), masks_.size(), to);
        to += 4 * even(masks_.size());
        for (size_t slot = 0; slot < masks_.size(); ++slot) {
            const int32_t spare = indices[left_[__builtin_ctz(masks_[slot])][slot]];
            for (int lane = 0; lane < kRows<T>; ++lane) {
                const int32_t column = masks_[slot] >> lane & 1 ? indices[left_[lane][slot]] : spare;
                to = put(&column, 1, to);
            }
        }
        for (const Tail& tail : tails_) {
            to = put(&tail, 1, to);
            for (int32_t n = 0; n < tail.count; ++n) put(&indices[left_[tail.lane][masks_.size() + n]], 1, to + 4 * n);
            to += 4 * even(tail.count);
        }
        for (const int64_t entry : full_entries_) to = put(&values[entry], 1, to);
        for (const int64_t entry : run_entries_) to = put(&values[entry], 1, to);
        for (size_t slot = 0; slot < masks_.size(); ++slot) {
            for (int lane = 0; lane < kRows<T>; ++lane) {
                if (masks_[slot] >> lane & 1) to = put(&values[left_[lane][slot]], 1, to);
            }
        }
        for (const Tail& tail : tails_) {
            for (int32_t n = 0; n < tail.count; ++n) to = put(&values[left_[tail.lane][masks_.size() + n]], 1, to);
        }
    }

    static int64_t even(int64_t count) { return (count + 1) / 2 * 2; }

   private:
    static constexpr int kLanes = 16;
    static constexpr uint32_t kAll = (1u << kRows<T>) - 1;
    static constexpr int32_t kNone = INT32_MAX;

    void clear() {
        full_.clear();
        full_entries_.clear();
        runs_.clear();
        masks_.clear();
        tails_.clear();
        run_entries_.clear();
        for (auto& lane : left_) lane.clear();
    }

    template <typename Item>
    static char* put(const Item* items, size_t count, char* to) {
        if (count > 0) std::memcpy(to, items, count * sizeof(Item));
        return to + count * sizeof(Item);
    }

    std::vector<int32_t> full_;  // columns of lane 0
    std::vector<Run> runs_;
    std::vector<uint32_t> masks_;
    std::vector<Tail> tails_;
    std::vector<int64_t> full_entries_, run_entries_;  // positions of entries, by runs and then by lanes
    std::vector<int64_t> left_[kRows<T>];  // positions of the entries of each lane that are in no run
};

}  // namespace sparloom::packed
