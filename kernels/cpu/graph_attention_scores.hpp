// The edges of rows, a chunk at a time, and their scores: what the passes of graph_attention_pass.hpp have in common.

#pragma once

#include <cstring>

#include "graph_attention.hpp"
#include "team.hpp"

extern "C" {

struct Incidence {
    const int64_t* indptr;           // (rows + 1)
    const int32_t *others, *edges;   // (nnz) node at the other end, and which edge it is; of a row in any order
    int64_t rows;
};

struct GraphAttention {
    Incidence receivers, senders;     // senders: for gradients only
    int64_t heads, width, edge_width;
    const void *targets, *sources;    // (receivers, heads, width), (senders, heads, width); see the kinds
    const void* values;               // (senders, heads, width)
    const void* edge_scores;          // (edges, heads) or null
    const void* edge_features;        // (edges, edge_width), unless edge_width is 0
    const void* edge_weight;          // (edge_width, heads, width)
    const void* edge_queries;         // (receivers, edge_width, heads)
    const void* factors;              // (sets, heads, width); additive: of sources and, if there are two, of targets
    const void* bias;                 // (heads, width), which is added to the result; or null
    void* scores;                     // additive: of nodes, (senders, heads), then (receivers, heads) if sets is 2
    void* result;                     // (receivers, heads, width)
    void* sums;                       // the result without bias, for gradients; or null
    void* edge_result;                // (receivers, edge_width, heads)
    void* statistics;                 // (receivers, 3, heads): largest score, 1 / sum of exp, room for sum of P dP
    void* coefficients;               // (edges, heads) or null
    const void *grad, *grad_edge_result, *grad_coefficients;  // the last may be null
    void *grad_targets, *grad_sources, *grad_values;
    void *grad_edge_scores, *grad_edge_features, *grad_edge_queries;
    void *grad_factors, *grad_edge_weight;                    // in parts, one for each slice
    void* scratch;                                            // of each thread, see sparloom_graph_attention_scratch
    double slope, dropout;
    uint32_t seed[2];
    int32_t kind, threads, slices, sets;
    int32_t dropped;                                          // coefficients are A, otherwise P
    int32_t to_senders, to_receivers;                         // which gradients are wanted
};

}  // extern "C"

namespace sparloom::graph_attention {

enum Kind { kAdditive, kLeaky, kDot };

constexpr int64_t kAhead = 12;       // edges between the one in work and the one whose rows are prefetched
constexpr int64_t kFarLines = 4;     // cache lines of a row that are prefetched; the processor fetches those that follow

inline int64_t chunk_of(int64_t stride) { return std::clamp<int64_t>(1024 / stride, 16, 64); }

template <typename T>
struct Scratch {
    T *scores, *raw, *shares, *changes, *largest, *inverse, *sums;  // numbers of a chunk
    T *peak, *total, *kept;                                         // numbers of a row, as often as a vector holds them
    T *row;                                                         // (heads * width)
    T *messages, *slopes;                                           // (chunk, heads * width)
    const T **near, **far;                                          // (chunk) rows
    uint32_t* places;                                               // of the numbers of a chunk
};

template <typename T, int Block>
class Edges {
   public:
    explicit Edges(const GraphAttention& a)
        : a_(a), heads_(a.heads, a.width), stride_(heads_.stride()), chunk_(chunk_of(stride_)),
          period_(std::max<int64_t>(stride_, kLanes<T>)), tail_(a.heads - (a.heads - 1) / kLanes<T> * kLanes<T>),
          total_(heads_.total()), slope_(static_cast<T>(a.slope)) {}

    // Bytes for one thread.
    int64_t scratch_size() const {
        const int64_t messages = a_.kind == kLeaky && a_.edge_width > 0 ? 2 * chunk_ * total_ : 0;
        const int64_t bytes = (kNumbers * numbers() + 3 * patterns() + total_ + messages) * sizeof(T) +
                              2 * chunk_ * sizeof(T*) + numbers() * sizeof(uint32_t);
        return (bytes / kCacheLine + 1) * kCacheLine;
    }

   protected:
    static constexpr int64_t kNumbers = 7;
    int64_t numbers() const { return chunk_ * stride_ + 2 * period_; }
    int64_t patterns() const { return 2 * period_; }

    // Edges of one row, from `first` on.
    struct Chunk {
        const int32_t *others, *edges;
        int64_t count;
    };

    // What the row in work has and what those at the other ends of its edges have.
    struct Side {
        const Incidence& rows;
        const T *own, *other;
        bool receivers;
    };

    Side receivers() const { return {a_.receivers, targets(), sources(), true}; }
    Side senders() const { return {a_.senders, sources(), targets(), false}; }

    const T* sources() const {
        return as(a_.kind == kAdditive ? a_.scores : a_.kind == kLeaky ? a_.values : a_.sources);
    }

    const T* targets() const {
        if (a_.kind != kAdditive) return as(a_.targets);
        return a_.sets == 1 ? nullptr : as(a_.scores) + a_.senders.rows * a_.heads;
    }

    // Features of receivers, additive: where they are not passed, those of senders.
    const T* received() const { return as(a_.targets == nullptr ? a_.values : a_.targets); }

    static const T* as(const void* array) { return static_cast<const T*>(array); }
    static T* as(void* array) { return static_cast<T*>(array); }
    const T* statistic(int64_t i, int64_t which) const { return as(a_.statistics) + (3 * i + which) * a_.heads; }

    template <typename Work>
    void each_row(const Incidence& rows, const Work& work) const {
        const auto begin = [&](int64_t slice) {  // the first row before which there is enough
            const int64_t wanted = slice * ((rows.rows + rows.indptr[rows.rows]) / a_.slices + 1);
            int64_t low = 0, high = rows.rows;
            while (low < high) {
                const int64_t middle = (low + high) / 2;
                if (middle + rows.indptr[middle] >= wanted) high = middle; else low = middle + 1;
            }
            return low;
        };
        share(a_.slices, a_.threads, [&](int64_t slice, int32_t thread) {
            const Scratch<T> m = scratch(thread);
            const int64_t end = begin(slice + 1);
            for (int64_t row = begin(slice); row < end; ++row) work(row, slice, m);
        });
    }

    // scores(n, h) = row n of `dense` . factors(h).
    void score_nodes(int64_t nodes, const T* dense, const T* factors, T* scores) const {
        share(a_.slices, a_.threads, [&](int64_t slice, int32_t thread) {
            const Scratch<T> m = scratch(thread);
            const int64_t end = nodes * (slice + 1) / a_.slices;
            for (int64_t first = nodes * slice / a_.slices; first < end; first += chunk_) {
                const int64_t count = std::min(chunk_, end - first);
                for (int64_t n = 0; n < count; ++n) m.near[n] = dense + (first + n) * total_;
                heads_.dots({m.near, count}, factors, m.scores);
                for (int64_t n = 0; n < count; ++n) {
                    std::copy_n(m.scores + n * stride_, a_.heads, scores + (first + n) * a_.heads);
                }
            }
        });
    }

    Scratch<T> scratch(int64_t thread) const {
        char* next = static_cast<char*>(a_.scratch) + thread * scratch_size();
        const auto take = [&](int64_t bytes) {
            char* const from = next;
            next += bytes;
            return from;
        };
        const auto some = [&](int64_t count) { return reinterpret_cast<T*>(take(count * sizeof(T))); };
        Scratch<T> m;
        m.near = reinterpret_cast<const T**>(take(chunk_ * sizeof(T*)));
        m.far = reinterpret_cast<const T**>(take(chunk_ * sizeof(T*)));
        for (T** each : {&m.scores, &m.raw, &m.shares, &m.changes, &m.largest, &m.inverse, &m.sums}) *each = some(numbers());
        for (T** each : {&m.peak, &m.total, &m.kept}) *each = some(patterns());
        m.places = reinterpret_cast<uint32_t*>(take(numbers() * sizeof(uint32_t)));
        m.row = some(total_);
        m.messages = some(0);
        m.slopes = m.messages + chunk_ * total_;
        return m;
    }

    // Calls work(chunk) for the edges of a row; prefetches the rows (width) of `first` and `second` that follow.
    template <typename Work>
    void each_chunk(const Side& side, int64_t row, const T* first, const T* second, const Work& work) const {
        const Incidence& rows = side.rows;
        const int64_t end = rows.indptr[row + 1], all = rows.indptr[rows.rows];
        const int64_t lines = std::min<int64_t>(kFarLines, (total_ + kLine<T> - 1) / kLine<T>);
        for (int64_t at = rows.indptr[row]; at < end; at += chunk_) {
            const Chunk chunk{rows.others + at, rows.edges + at, std::min(chunk_, end - at)};
            const int64_t last = std::min(at + chunk.count + kAhead, all);
            for (int64_t n = at + kAhead; n < last; ++n) {
                for (const T* dense : {first, second}) {
                    if (dense == nullptr) continue;
                    const T* next = dense + rows.others[n] * total_;
                    for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(next + line * kLine<T>);
                }
            }
            work(chunk);
        }
    }

    // numbers(n, h) = value(n, load), where load(from) reads the numbers of some heads.
    template <typename Value>
    void each_number(int64_t count, T* numbers, const Value& value) const {
        if (a_.heads == 1) {
            for (int64_t n = 0; n < count; ++n) numbers[n] = value(n, [](const T* from) { return *from; });
            return;
        }
        for (int64_t n = 0; n < count; ++n) {
            each_vector([&](int64_t at, const Tail<T>& tail) {  // what it writes of the next edge is overwritten
                store(numbers + n * stride_ + at, value(n, [&](const T* from) { return tail.load(from + at); }));
            });
        }
    }

    template <typename Work>
    void each_vector(const Work& work) const {
        int64_t at = 0;
        for (; at + kLanes<T> < a_.heads; at += kLanes<T>) work(at, Tail<T>(kLanes<T>));
        work(at, tail_);
    }

    // Numbers of a chunk, and those up to whole vectors.
    int64_t flat(const Chunk& chunk) const { return (chunk.count * stride_ + kLanes<T> - 1) / kLanes<T> * kLanes<T>; }

    void fill_up(const Chunk& chunk, T value, T* numbers) const {
        std::fill(numbers + chunk.count * stride_, numbers + flat(chunk), value);
    }

    template <typename Change>
    void each_flat(const Chunk& chunk, const Change& change) const {
        const int64_t end = flat(chunk);
        for (int64_t q = 0; q < end; q += kLanes<T>) change(q);
    }

    // Combines the lanes of one head, which are `stride` apart.
    template <int From, typename Combine>
    static Vec<T> fold(Vec<T> x, int64_t stride, const Combine& combine) {
        if constexpr (From >= kLanes<T>) {
            return x;
        } else {
            if (stride <= From) x = combine(x, swapped<From>(x, std::make_integer_sequence<int, kLanes<T>>{}));
            return fold<2 * From>(x, stride, combine);
        }
    }

    template <int Distance, int... To>
    static Vec<T> swapped(Vec<T> x, std::integer_sequence<int, To...>) {
        return __builtin_shufflevector(x, x, (To ^ Distance)...);
    }

    static Vec<T> larger(Vec<T> x, Vec<T> y) { return x > y ? x : y; }
    static Vec<T> added(Vec<T> x, Vec<T> y) { return x + y; }

    // m.scores of a chunk; of additive ones, m.raw is what they were before `leaky`.
    void score(const Side& side, int64_t row, const Chunk& chunk, const Scratch<T>& m) const {
        if (a_.kind == kAdditive) {
            add_scores(side, row, chunk, m);
        } else if (a_.kind == kLeaky) {
            gather(chunk, side.other, m.near);
            add_edges(chunk, m);
            heads_.leaky_dots({m.near, chunk.count}, side.own + row * total_, as(a_.factors), slope_, m.scores);
        } else {
            gather(chunk, side.other, m.near);
            heads_.dots({m.near, chunk.count}, side.own + row * total_, m.scores);
            add_edge_dots(side, row, chunk, as(a_.edge_queries), m.scores);
        }
        fill_up(chunk, kMinusInfinity<T>, m.scores);
    }

    void gather(const Chunk& chunk, const T* dense, const T** rows) const {
        for (int64_t n = 0; n < chunk.count; ++n) rows[n] = dense + chunk.others[n] * total_;
    }

    void add_scores(const Side& side, int64_t row, const Chunk& chunk, const Scratch<T>& m) const {
        const int64_t heads = a_.heads;
        const T *own = side.own == nullptr ? nullptr : side.own + row * heads, *other = side.other;
        const T* edges = as(a_.edge_scores);
        if (own != nullptr && other != nullptr && edges == nullptr) {
            each_number(chunk.count, m.raw, [&](int64_t n, const auto& load) {
                return load(own) + load(other + chunk.others[n] * heads);
            });
        } else {
            each_number(chunk.count, m.raw, [&](int64_t n, const auto& load) {
                auto sum = other == nullptr ? load(own) : load(other + chunk.others[n] * heads);
                if (own != nullptr && other != nullptr) sum += load(own);
                return edges == nullptr ? sum : sum + load(edges + chunk.edges[n] * heads);
            });
        }
        each_flat(chunk, [&](int64_t q) {
            const Vec<T> x = load(m.raw + q);
            store(m.scores + q, x > 0 ? x : x * slope_);
        });
    }

    // Adds the transformed features of edges to the rows of m.near, which then are copies.
    void add_edges(const Chunk& chunk, const Scratch<T>& m) const {
        if (a_.edge_width == 0) return;
        for (int64_t n = 0; n < chunk.count; ++n) {
            T* const to = m.messages + n * total_;
            heads_.transform(m.near[n], features(chunk, n), a_.edge_width, as(a_.edge_weight), to);
            m.near[n] = to;
        }
    }

    const T* features(const Chunk& chunk, int64_t n) const {
        return as(a_.edge_features) + chunk.edges[n] * a_.edge_width;
    }

    static void add_scaled(const T* from, T factor, int64_t count, T* to) {
#pragma omp simd
        for (int64_t c = 0; c < count; ++c) to[c] += factor * from[c];
    }

    // numbers(n, h) += sum over k of edge_features(e, k) matrix(i, k, h).
    void add_edge_dots(const Side& side, int64_t row, const Chunk& chunk, const T* matrix, T* numbers) const {
        const int64_t heads = a_.heads, width = a_.edge_width;
        if (width == 0) return;
        for (int64_t n = 0; n < chunk.count; ++n) {
            const T* const edge = features(chunk, n);
            const T* const own = matrix + (side.receivers ? row : chunk.others[n]) * width * heads;
            T* const to = numbers + n * stride_;
            if (heads == 1) {
                to[0] += dot(edge, own, width);
            } else {
                for (int64_t k = 0; k < width; ++k) add_scaled(own + k * heads, edge[k], heads, to);
            }
        }
    }

    static T dot(const T* left, const T* right, int64_t count) {
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < count; ++c) sum += left[c] * right[c];
        return sum;
    }

    // m.shares = what A is over P: 0 or 1 / (1 - dropout), by two rounds of a hash of the edge, the head and the seed.
    void drop(const Chunk& chunk, const Scratch<T>& m) const {
        for (int64_t n = 0; n < chunk.count; ++n) {
            for (int64_t h = 0; h < stride_; ++h) {
                m.places[n * stride_ + h] = static_cast<uint32_t>(chunk.edges[n] * a_.heads + h);
            }
        }
        const T kept = static_cast<T>(a_.dropout < 1 ? 1 / (1 - a_.dropout) : 0);
        const auto limit = static_cast<uint32_t>(std::min(a_.dropout * 4294967296.0, 4294967295.0));
        const int64_t end = chunk.count * stride_;
#pragma omp simd
        for (int64_t q = 0; q < end; ++q) {
            m.shares[q] = hash(hash(m.places[q] ^ a_.seed[0]) + a_.seed[1]) >= limit ? kept : T(0);
        }
        fill_up(chunk, 0, m.shares);
    }

    static uint32_t hash(uint32_t x) {  // lowbias32 of Wellons, every bit of x changes about half of the result
        x = (x ^ (x >> 16)) * 0x7feb352du;
        x = (x ^ (x >> 15)) * 0x846ca68bu;
        return x ^ (x >> 16);
    }

    // m.scores = P.
    void probabilities(const Side& side, int64_t row, const Chunk& chunk, const Scratch<T>& m) const {
        score(side, row, chunk, m);
        gather_statistic(side, row, chunk, 0, m.largest);
        gather_statistic(side, row, chunk, 1, m.inverse);
        each_flat(chunk, [&](int64_t q) {
            store(m.scores + q, exponential<T>(load(m.scores + q) - load(m.largest + q)) * load(m.inverse + q));
        });
    }

    void gather_statistic(const Side& side, int64_t row, const Chunk& chunk, int64_t which, T* numbers) const {
        if (side.receivers) {
            const T* const own = statistic(row, which);
            each_number(chunk.count, numbers, [&](int64_t, const auto& load) { return load(own); });
        } else {
            each_number(chunk.count, numbers, [&](int64_t n, const auto& load) {
                return load(statistic(chunk.others[n], which));
            });
        }
        fill_up(chunk, 0, numbers);
    }

    void write_numbers(const Chunk& chunk, const T* numbers, T* to) const {
        for (int64_t n = 0; n < chunk.count; ++n) {
            std::copy_n(numbers + n * stride_, a_.heads, to + chunk.edges[n] * a_.heads);
        }
    }

    const GraphAttention& a_;
    const Heads<T, Block> heads_;
    const int64_t stride_, chunk_, period_;
    const Tail<T> tail_;  // of the numbers of an edge
    const int64_t total_;
    const T slope_;
};

}  // namespace sparloom::graph_attention
