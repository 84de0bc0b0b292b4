// The vector register file of one processing element (T0): lines found by tag, replaced in order of use.
#pragma once

#include "lru.hpp"

#include <cstdint>
#include <vector>

namespace spade {

struct Register {
    double ready = 0;     // data have arrived
    double busy = 0;      // its last user has completed
    double chain = 0;     // its last accumulation has completed
    bool dirty = false;
    int newer = -1, older = -1;
};

class Registers {
public:
    explicit Registers(int count) : tags_(static_cast<size_t>(count), EMPTY), file_(static_cast<size_t>(count)) {
        for (int index = 0; index < count; ++index) {
            file_[index].newer = index - 1;
            file_[index].older = index + 1 < count ? index + 1 : -1;
        }
        oldest_ = count - 1;
    }

    Register& operator[](int index) { return file_[index]; }
    uint32_t tag(int index) const { return tags_[index]; }
    int oldest() const { return oldest_; }
    int count() const { return static_cast<int>(tags_.size()); }

    // Index of a line, or -1.
    int find(uint32_t tag) const {
        int found = -1;
        for (int index = 0; index < count(); ++index) found = tags_[index] == tag ? index : found;
        return found;
    }

    void rename(int index, uint32_t tag) { tags_[index] = tag; }

    void touch(int index) {
        if (index == newest_) return;
        Register& moved = file_[index];
        file_[moved.newer].older = moved.older;
        if (moved.older >= 0) file_[moved.older].newer = moved.newer;
        else oldest_ = moved.newer;
        moved.newer = -1;
        moved.older = newest_;
        file_[newest_].newer = index;
        newest_ = index;
    }

private:
    std::vector<uint32_t> tags_;
    std::vector<Register> file_;
    int newest_ = 0, oldest_ = 0;
};

}  // namespace spade
