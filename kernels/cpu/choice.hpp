// What is known of a sparse operation, and the configuration that is chosen for it by choose.cpp.

#pragma once

#include <cstdint>

extern "C" {

// What one pass over a pattern gives. Numbers after `imbalance` are means over sampled blocks of rows.
struct PatternStatistics {
    int64_t rows, cols, nnz;
    int64_t longest;      // nonzeros of the longest row that was looked at
    double mean;          // nonzeros of a row
    double variance;      // of the nonzeros of a row
    double imbalance[7];  // largest of 2, 4 .. 128 equal shares of the rows over the mean share, in nonzeros
    double equal;         // share of the nonzeros in rows with the columns of their predecessor
    double reuse;         // nonzeros per distinct column in a block
    double span;          // bits of the distance from the first to the last column of a row
    double jump;          // bits of the distance between the first columns of a row and of its predecessor
    double adjacent;      // share of the nonzeros whose predecessor in the row is in the column before
    double groups4;       // share of the nonzeros in full groups of 4 nonzeros of a row
};

struct ChoiceCase {
    int64_t width;        // columns of a dense operand, all heads together
    int32_t value_bytes;  // of a number
    int32_t threads;
    double near_bytes;  // cache of one core
    double far_bytes;   // cache of all threads together
};

struct Choice {
    int32_t order;     // 0: natural, 1: column
    int32_t balance;   // 0: rows, 1: nonzeros, 2: dynamic
    int32_t prefetch;  // distance in units of 1024 nonzeros, 0: none
    int32_t strip;     // columns, 0: all
    int32_t together;  // rows with equal columns that are processed at once
    int32_t stream;    // whether results bypass the caches
    int32_t group;     // nonzeros that SDDMM takes at once
};

}  // extern "C"
