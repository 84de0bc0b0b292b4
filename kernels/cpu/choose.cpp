// Chooses a kernel for a pattern at once: statistics of the pattern, features, a few small trees, and a rule.
//
// The trees (choice_tables.hpp, written by `python run.py experiment=choose_kernels`) predict the logarithm of the
// seconds of a configuration, up to a number that all configurations of a problem share. They replace the rule's
// configuration if they expect another one to be clearly faster. The rule decides alone
//   - for operations without trees,
//   - for problems with fewer than kGrain elements of dense rows, which run on one thread: it reads only the sizes, so
//     these need no statistics,
//   - for problems far outside of the training matrices, see `within_limits`.
//
// Preconditions (not checked): a valid pattern, arrays of the stated lengths. Nothing depends on time or on chance.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "choice.hpp"
#include "choice_tables.hpp"

namespace {

using sparloom::choice::Model;

enum Op : int32_t { kSpmm, kSddmm, kAttention, kSpmmMax };  // as in kernels/native/patterns.hpp
enum Setting : int32_t { kDirect, kPrepared };
enum Balance : int32_t { kRows, kNonzeros, kDynamic };

constexpr int64_t kBlockRows = 32;        // of a block
constexpr int64_t kLengthBlocks = 64;     // of which lengths are read
constexpr int64_t kColumnBlocks = 16;     // of which columns are read, ...
constexpr int64_t kColumnShare = 64;      // ... about one nonzero in so many, ...
constexpr int64_t kFewestNonzeros = 256;  // ... but at least so many
constexpr int64_t kRowNonzeros = 128;     // of a row that are read
constexpr int kHashBits = 13;

constexpr int64_t kGrain = 3 << 17;      // elements of dense rows, as GRAIN in cpu_kernels/row_pieces.py
constexpr double kOverflowFactor = 3.0;  // as in measure/machine.py: results better bypass the caches above
constexpr double kSharedFraction = 0.25;  // likewise: dense rows are better prefetched above
constexpr int32_t kPrefetch = 8;
constexpr int64_t kLongRows = 12;       // mean nonzeros of a row, from which on groups are of one row ...
constexpr int64_t kMaxGroupWidth = 128;  // ... unless dense rows have more columns
constexpr int64_t kMaxFlatWidth = 48;    // columns up to which group=1 reads both dense rows of each nonzero

constexpr double kSlack = 3;  // bits: sizes may differ from those of the training matrices by a factor of 8

int bits(int64_t distance) {
    return distance == 0 ? 0 : 64 - __builtin_clzll(static_cast<uint64_t>(distance < 0 ? -distance : distance));
}

// Columns of sampled rows, added up.
struct Sample {
    int64_t nonzeros = 0, distinct = 0, equal = 0, adjacent = 0, rows = 0, pairs = 0;
    double span = 0, jump = 0;

    void add_block(const int64_t* indptr, const int32_t* indices, int64_t begin, int64_t end) {
        uint64_t seen[(1 << kHashBits) / 64] = {};
        for (int64_t row = begin; row < end; ++row) {
            const int64_t length = indptr[row + 1] - indptr[row], count = std::min(length, kRowNonzeros);
            if (length == 0) continue;
            const int32_t* columns = indices + indptr[row];
            for (int64_t n = 0; n < count; ++n) {
                const uint32_t place = static_cast<uint32_t>(columns[n]) * 2654435761u >> (32 - kHashBits);
                const uint64_t bit = uint64_t{1} << (place % 64);
                distinct += (seen[place / 64] & bit) == 0;
                seen[place / 64] |= bit;
            }
            for (int64_t n = 1; n < count; ++n) adjacent += columns[n] == columns[n - 1] + 1;
            nonzeros += count;
            span += bits(int64_t{columns[length - 1]} - columns[0]);
            ++rows;
            const int64_t before = row == 0 ? 0 : indptr[row] - indptr[row - 1];
            if (before == 0) continue;
            const int32_t* previous = indices + indptr[row - 1];
            jump += bits(int64_t{columns[0]} - previous[0]);
            ++pairs;
            if (before == length && std::memcmp(columns, previous, count * sizeof(int32_t)) == 0) equal += count;
        }
    }
};

// The first row of block `index` of `count`, evenly over all rows.
int64_t block_begin(int64_t rows, int64_t index, int64_t count) {
    if (count * kBlockRows >= rows) return index * kBlockRows;
    return count == 1 ? 0 : (rows - kBlockRows) * index / (count - 1);
}

void measure_lengths(const int64_t* indptr, PatternStatistics* out) {
    const int64_t blocks = std::min((out->rows + kBlockRows - 1) / kBlockRows, kLengthBlocks);
    int64_t rows = 0, sum = 0, in4 = 0;
    double squares = 0;
    for (int64_t block = 0; block < blocks; ++block) {
        const int64_t begin = block_begin(out->rows, block, blocks), end = std::min(begin + kBlockRows, out->rows);
        for (int64_t row = begin; row < end; ++row) {
            const int64_t length = indptr[row + 1] - indptr[row];
            out->longest = std::max(out->longest, length);
            sum += length;
            in4 += length & ~int64_t{3};
            squares += static_cast<double>(length) * static_cast<double>(length);
        }
        rows += end - begin;
    }
    const double mean = static_cast<double>(sum) / rows;
    out->variance = std::max(0.0, squares / rows - mean * mean);
    out->groups4 = sum == 0 ? 0 : static_cast<double>(in4) / sum;
}

void measure_shares(const int64_t* indptr, PatternStatistics* out) {
    for (int level = 0; level < 7; ++level) {
        const int64_t parts = int64_t{2} << level;
        int64_t most = 0;
        for (int64_t part = 0; part < parts; ++part) {
            most = std::max(most, indptr[out->rows * (part + 1) / parts] - indptr[out->rows * part / parts]);
        }
        out->imbalance[level] = out->nnz == 0 ? 1.0 : static_cast<double>(most) * parts / out->nnz;
    }
}

void measure_columns(const int64_t* indptr, const int32_t* indices, PatternStatistics* out) {
    const int64_t wanted = std::max(kFewestNonzeros, out->nnz / kColumnShare);
    const int64_t of_block = std::max<int64_t>(1, static_cast<int64_t>(std::min<double>(out->mean, kRowNonzeros) *
                                                                      kBlockRows));
    const int64_t all = (out->rows + kBlockRows - 1) / kBlockRows;
    const int64_t blocks = std::clamp<int64_t>(wanted / of_block, 1, std::min(all, kColumnBlocks));
    Sample sample;
    for (int64_t block = 0; block < blocks; ++block) {
        const int64_t begin = block_begin(out->rows, block, blocks);
        sample.add_block(indptr, indices, begin, std::min(begin + kBlockRows, out->rows));
    }
    const double nonzeros = std::max<int64_t>(1, sample.nonzeros);
    out->equal = sample.equal / nonzeros;
    out->adjacent = sample.adjacent / nonzeros;
    out->reuse = nonzeros / std::max<int64_t>(1, sample.distinct);
    out->span = sample.span / std::max<int64_t>(1, sample.rows);
    out->jump = sample.jump / std::max<int64_t>(1, sample.pairs);
}

int operand_count(int32_t op) { return op == kSddmm ? 2 : op == kAttention ? 3 : 1; }

bool is_small(int32_t op, const PatternStatistics& of, const ChoiceCase& in) {
    return static_cast<double>(of.nnz + of.rows) * in.width * operand_count(op) < kGrain;
}

double dense_bytes(const PatternStatistics& of, const ChoiceCase& in) {
    return static_cast<double>(in.value_bytes) * in.width * (of.rows + of.cols);
}

// The rule needs no statistics but rows, columns and nonzeros.
Choice by_rule(int32_t op, const PatternStatistics& of, const ChoiceCase& in) {
    const bool distant = dense_bytes(of, in) > kSharedFraction * in.far_bytes;
    Choice choice = {0, kNonzeros, distant ? kPrefetch : 0, 0, 1, 0, 16};
    if (op == kSpmm) choice.stream = dense_bytes(of, in) > kOverflowFactor * in.near_bytes * in.threads;
    if (op == kSddmm && of.nnz >= kLongRows * of.rows) {
        choice.group = in.width <= kMaxGroupWidth ? 4 : 1;
    } else if (op == kSddmm) {
        choice.group = distant || in.width <= kMaxFlatWidth ? 1 : 16;
    }
    return choice;
}

double log2_of(double value) { return std::log2(std::max(value, 1e-9)); }

// Features of a problem, then of a configuration; experiments/autosage/kernel_choice.py names them in the same order.
// The first kSizes are sizes, which the limits are for.
constexpr int kSizes = 5, kProblem = 14, kFeatures = kProblem + 5;

void describe_problem(int32_t op, const PatternStatistics& of, const ChoiceCase& in, double* out) {
    const double dense = dense_bytes(of, in), row = static_cast<double>(in.value_bytes) * in.width;
    const double work = static_cast<double>(of.nnz + of.rows) * row * operand_count(op) / sizeof(float);
    const int level = std::clamp(bits(in.threads - 1) - 1, 0, 6);
    const double problem[kProblem] = {
        log2_of(dense / (in.near_bytes * in.threads)), log2_of(dense / in.far_bytes), log2_of(row),
        log2_of(work / in.threads), log2_of(of.mean),
        std::sqrt(of.variance) / std::max(of.mean, 1e-9), of.equal, log2_of(of.reuse), of.adjacent,
        of.span + log2_of(row / in.near_bytes), of.jump + log2_of(row / in.near_bytes),
        in.threads == 1 ? 1.0 : of.imbalance[level], of.groups4,
        log2_of(static_cast<double>(of.rows) / std::max<int64_t>(1, of.cols))};
    std::copy_n(problem, kProblem, out);
}

void describe_choice(const Choice& choice, double* out) {
    const double described[] = {double(choice.order), double(choice.prefetch), double(choice.together),
                                double(choice.stream), double(choice.group)};
    std::copy_n(described, kFeatures - kProblem, out);
}

// Whether the sizes are at most kSlack bits outside of those of the training matrices.
bool within_limits(const Model& model, const double* features) {
    for (int n = 0; n < kSizes; ++n) {
        if (!(features[n] >= model.lowest[n] - kSlack && features[n] <= model.highest[n] + kSlack)) return false;
    }
    return true;
}

// Adds up the leaves of all trees, in 1/32768. A tree is stored in preorder. Inner node: 5 bits of the feature, 5 of
// the threshold, 5 of the distance to the right child; the left child follows. Leaf: the highest bit, and 15 bits.
double predict(const Model& model, const double* features) {
    int64_t sum = 0;
    for (int tree = 0; tree < model.trees; ++tree) {
        const uint16_t* node = model.nodes + model.roots[tree];
        while ((*node & 0x8000) == 0) {
            const int feature = *node >> 10, threshold = *node >> 5 & 31;
            node += features[feature] <= model.thresholds[model.first[feature] + threshold] ? 1 : *node & 31;
        }
        sum += (*node & 0x7fff) - 0x4000;
    }
    return sum / 32768.0;
}

const Model* model_of(int32_t op, int32_t setting) {
    const int index = 2 * op + setting;
    return index < 2 * (kSddmm + 1) && sparloom::choice::kModels[index].trees > 0 ? &sparloom::choice::kModels[index]
                                                                                  : nullptr;
}

// Calls `visit` with each configuration that may be chosen: equal shares of nonzeros, all columns at once, and results
// that bypass the caches only where they do so by the rule, as whoever reads them next must wait for memory.
template <typename Visit>
void each_candidate(int32_t op, int32_t setting, const Choice& rule, Visit visit) {
    const int most_together = setting == kPrepared && op == kSpmm ? 4 : 1;
    Choice choice = rule;
    for (choice.order = 0; choice.order <= (setting == kPrepared); ++choice.order)
        for (choice.together = 1; choice.together <= most_together; choice.together += 3)
            for (choice.stream = 0; choice.stream <= rule.stream; ++choice.stream)
                for (choice.group = op == kSddmm ? 1 : rule.group; choice.group <= 16; choice.group *= 4)
                    for (choice.prefetch = 0; choice.prefetch <= 8; choice.prefetch += 4) visit(choice);
}

// Ranks without trees: the rule's configuration first, then those that differ in few parameters.
double distance(const Choice& one, const Choice& rule) {
    return 0.05 * ((one.order != rule.order) + (one.together != rule.together) + (one.strip != rule.strip)) +
           0.03 * ((one.balance != rule.balance) + (one.prefetch != rule.prefetch)) +
           0.1 * ((one.stream != rule.stream) + (one.group != rule.group)) +
           0.1 * ((one.prefetch > 0) != (rule.prefetch > 0));
}

}  // namespace

// Samples whole blocks of neighbouring rows at fixed places: the statistics depend on the pattern alone.
extern "C" void sparloom_statistics(const int64_t* indptr, const int32_t* indices, int64_t rows, int64_t cols,
                                    PatternStatistics* out) {
    *out = {};
    out->rows = rows;
    out->cols = cols;
    out->nnz = rows == 0 ? 0 : indptr[rows];
    out->reuse = 1;
    std::fill_n(out->imbalance, 7, 1.0);
    if (out->nnz == 0) return;
    out->mean = static_cast<double>(out->nnz) / rows;
    measure_lengths(indptr, out);
    measure_shares(indptr, out);
    measure_columns(indptr, indices, out);
}

// The features that trees read, (count, kFeatures); for training and tests.
extern "C" void sparloom_choice_features(int32_t op, const PatternStatistics* of, const ChoiceCase* in,
                                         const Choice* choices, int64_t count, double* out) {
    for (int64_t n = 0; n < count; ++n) {
        describe_problem(op, *of, *in, out + n * kFeatures);
        describe_choice(choices[n], out + n * kFeatures + kProblem);
    }
}

// The configuration of the rule alone, to which trees are compared.
extern "C" void sparloom_choice_rule(int32_t op, const PatternStatistics* of, const ChoiceCase* in, Choice* out) {
    *out = by_rule(op, *of, *in);
}

// Chooses without or with preparation of the pattern (setting). For small problems, statistics other than the sizes are
// not read.
extern "C" void sparloom_choose(int32_t op, int32_t setting, const PatternStatistics* of, const ChoiceCase* in,
                                Choice* out) {
    const Choice rule = by_rule(op, *of, *in);
    *out = rule;
    const Model* model = model_of(op, setting);
    if (model == nullptr || of->nnz == 0 || is_small(op, *of, *in)) return;
    double features[kFeatures];
    describe_problem(op, *of, *in, features);
    if (!within_limits(*model, features)) return;
    describe_choice(rule, features + kProblem);
    double best = predict(*model, features) - sparloom::choice::kMargin;
    each_candidate(op, setting, rule, [&](const Choice& choice) {
        describe_choice(choice, features + kProblem);
        const bool prepares = choice.order != 0 || choice.together != 1;
        const double seconds = predict(*model, features) + (prepares ? sparloom::choice::kPreparation : 0);
        if (seconds < best) {
            best = seconds;
            *out = choice;
        }
    });
}

// Scores configurations of one problem, low is fast: logarithms of the predicted seconds, up to a common number.
extern "C" void sparloom_scores(int32_t op, const PatternStatistics* of, const ChoiceCase* in, const Choice* choices,
                                int64_t count, double* out) {
    const Choice rule = by_rule(op, *of, *in);
    const Model* model = model_of(op, kPrepared);
    double features[kFeatures];
    describe_problem(op, *of, *in, features);
    const bool learned = model != nullptr && of->nnz > 0 && !is_small(op, *of, *in) && within_limits(*model, features);
    for (int64_t n = 0; n < count; ++n) {
        const Choice& choice = choices[n];
        if (!learned) {
            out[n] = distance(choice, rule);
            continue;
        }
        describe_choice(choice, features + kProblem);
        out[n] = predict(*model, features) + (choice.balance == kRows ? model->rows : 0) +
                 (choice.balance == kDynamic ? model->dynamic : 0) + (choice.strip != 0 ? model->strip : 0);
    }
}
