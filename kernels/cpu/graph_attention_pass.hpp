// Attention of the receivers of a graph over the edges that arrive, and its gradients, under names that C knows.
// Expects the macro ELEMENT, float or double. Included once per library.
//
//   P(e, h)  softmax over the edges e from j to i of the score of e in head h
//   A(e, h)  P(e, h), dropped (0) with probability `dropout`, otherwise divided by 1 - dropout
//   D(i, h)  sum over e of A(e, h) values(j, h)
//
//   kind        score                                                              source
//   kAdditive   leaky(factors(0, h) . values(j, h) + factors(1, h) . targets(i, h)  GAT
//                     + edge_scores(e, h))
//   kLeaky      factors(h) . leaky(targets(i, h) + values(j, h) + W(h) edge(e))    GATv2
//   kDot        targets(i, h) . sources(j, h) + edge_queries(i, h) . edge(e)       graph transformers
//
// kDot also gives edge_result(i, h) = sum over e of A(e, h) edge(e), where a linear transformation of the features of
// edges, which is linear in the score, too, is applied by the caller.
//
// Scores are computed a chunk of edges at a time, in the forward pass with a running maximum, and again in the backward
// pass, which visits the edges by sender for the gradients of what senders have, and by receiver for the others:
//
//   dA = dD(i) . values(j);  dP = dA, dropped like A;  dScore = P (dP - sum over e of P dP);  the sum is dD(i) . D(i)
//
// D(i) is read from `sums`, not from the result, which the caller may have changed in place.
//
// Only the gradients of additive scores are stored per edge, one number per head. Slices of rows have about equal numbers
// of nonzeros; neither they nor the results depend on the number of threads.
// Preconditions (checked in Python): indices are in range; matrices are row-major without gaps; results overlap nothing.

#pragma once

#include "graph_attention_scores.hpp"

namespace sparloom::graph_attention {

template <typename T, int Block>
class Pass : private Edges<T, Block> {
   public:
    using Base = Edges<T, Block>;
    using Base::Base;
    using Base::scratch_size;

    void forward() const {
        if (a_.kind == kAdditive) {
            score_nodes(a_.senders.rows, as(a_.values), as(a_.factors), as(a_.scores));
            if (a_.sets == 2) {
                score_nodes(a_.receivers.rows, received(), as(a_.factors) + total_,
                            as(a_.scores) + a_.senders.rows * a_.heads);
            }
        }
        each_row(a_.receivers, [&](int64_t i, int64_t, const Scratch<T>& m) { attend(i, m); });
    }

    void backward() const {
        each_row(a_.receivers, [&](int64_t i, int64_t, const Scratch<T>& m) { sum_changes(i, m); });
        if (a_.to_senders) {
            each_row(a_.senders, [&](int64_t j, int64_t slice, const Scratch<T>& m) { send_back(j, slice, m); });
        }
        if (!a_.to_receivers) return;
        each_row(a_.receivers, [&](int64_t i, int64_t slice, const Scratch<T>& m) {
            if (a_.kind == kAdditive) {
                receive_sums(i, slice, m);
            } else {
                receive_back(i, slice, m);
            }
        });
    }

   private:
    using typename Base::Chunk;
    using typename Base::Side;
    using Base::a_;
    using Base::heads_;
    using Base::stride_;
    using Base::chunk_;
    using Base::period_;
    using Base::total_;
    using Base::slope_;
    using Base::as;
    using Base::receivers;
    using Base::received;
    using Base::score_nodes;
    using Base::senders;
    using Base::each_row;
    using Base::each_chunk;
    using Base::each_number;
    using Base::flat;
    using Base::fill_up;
    using Base::each_flat;
    using Base::larger;
    using Base::added;
    using Base::score;
    using Base::gather;
    using Base::features;
    using Base::add_edge_dots;
    using Base::add_scaled;
    using Base::dot;
    using Base::drop;
    using Base::probabilities;
    using Base::gather_statistic;
    using Base::write_numbers;

    void attend(int64_t i, const Scratch<T>& m) const {
        const Side side = receivers();
        T* const result = as(a_.result) + i * total_;
        T* const edge_result = as(a_.edge_result) + i * a_.edge_width * a_.heads;
        const bool edges = a_.kind == kDot && a_.edge_width > 0;
        std::fill_n(result, total_, T(0));
        if (edges) std::fill_n(edge_result, a_.edge_width * a_.heads, T(0));
        std::fill_n(m.peak, period_, kMinusInfinity<T>);
        std::fill_n(m.total, period_, T(0));
        const int64_t begin = a_.receivers.indptr[i], end = a_.receivers.indptr[i + 1];
        each_chunk(side, i, a_.kind == kDot ? as(a_.sources) : nullptr, as(a_.values), [&](const Chunk& chunk) {
            score(side, i, chunk, m);
            weigh(chunk, m);
            if (chunk.others != a_.receivers.others + begin) {
                heads_.scale(m.kept, result);
                if (edges) scale_edges(m.kept, edge_result);
            }
            if (a_.dropout > 0) {
                drop(chunk, m);
                each_flat(chunk, [&](int64_t q) { store(m.scores + q, load(m.scores + q) * load(m.shares + q)); });
            }
            gather(chunk, as(a_.values), m.far);
            heads_.mix({m.far, chunk.count}, m.scores, result);
            if (edges) mix_edges(chunk, m.scores, edge_result);
        });
        T* const largest = as(a_.statistics) + 3 * i * a_.heads;
        for (int64_t v = 0; v < period_; v += kLanes<T>) store(m.kept + v, T(1) / load(m.total + v));
        if (begin == end) {
            std::fill_n(largest, 3 * a_.heads, T(0));
            if (a_.sums != nullptr) std::fill_n(as(a_.sums) + i * total_, total_, T(0));
            if (a_.bias != nullptr) add_scaled(as(a_.bias), T(1), total_, result);
            return;
        }
        heads_.scale(m.kept, result);
        if (a_.sums != nullptr) std::copy_n(result, total_, as(a_.sums) + i * total_);
        if (a_.bias != nullptr) add_scaled(as(a_.bias), T(1), total_, result);
        if (edges) scale_edges(m.kept, edge_result);
        std::copy_n(m.peak, a_.heads, largest);
        std::copy_n(m.kept, a_.heads, largest + a_.heads);
        std::fill_n(largest + 2 * a_.heads, a_.heads, T(0));
        if (a_.coefficients != nullptr) write_coefficients(i, m);
    }

    // m.scores = exp(score - the new peak); m.kept is what is left of earlier sums under it.
    void weigh(const Chunk& chunk, const Scratch<T>& m) const {
        const int64_t end = flat(chunk);
        for (int64_t v = 0; v < period_; v += kLanes<T>) {
            const Vec<T> old = load(m.peak + v);
            Vec<T> peak = old, sum{};
            for (int64_t q = v; q < end; q += period_) peak = larger(load(m.scores + q), peak);
            peak = Base::template fold<1>(peak, stride_, larger);
            for (int64_t q = v; q < end; q += period_) {
                const Vec<T> weight = exponential<T>(load(m.scores + q) - peak);
                store(m.scores + q, weight);
                sum += weight;
            }
            const Vec<T> kept = exponential<T>(old - peak);
            store(m.kept + v, kept);
            store(m.total + v, load(m.total + v) * kept + Base::template fold<1>(sum, stride_, added));
            store(m.peak + v, peak);
        }
    }

    void mix_edges(const Chunk& chunk, const T* weights, T* out) const {
        for (int64_t n = 0; n < chunk.count; ++n) {
            const T* const edge = features(chunk, n);
            for (int64_t k = 0; k < a_.edge_width; ++k) {
                add_scaled(weights + n * stride_, edge[k], a_.heads, out + k * a_.heads);
            }
        }
    }

    void scale_edges(const T* factors, T* out) const {
        for (int64_t k = 0; k < a_.edge_width; ++k) {
            for (int64_t h = 0; h < a_.heads; ++h) out[k * a_.heads + h] *= factors[h];
        }
    }

    void write_coefficients(int64_t i, const Scratch<T>& m) const {
        each_chunk(receivers(), i, nullptr, nullptr, [&](const Chunk& chunk) {
            probabilities(receivers(), i, chunk, m);
            if (a_.dropout > 0 && a_.dropped) {
                drop(chunk, m);
                each_flat(chunk, [&](int64_t q) { store(m.scores + q, load(m.scores + q) * load(m.shares + q)); });
            }
            write_numbers(chunk, m.scores, as(a_.coefficients));
        });
    }

    // m.scores = A and m.changes = the gradients of the scores; m.near and m.far are as in `score`, and gradients of
    // results or values.
    void differentiate(const Side& side, int64_t row, const Chunk& chunk, const Scratch<T>& m) const {
        probabilities(side, row, chunk, m);
        const T* const grad = as(a_.grad), *values = as(a_.values);
        gather(chunk, side.receivers ? values : grad, m.far);
        heads_.dots({m.far, chunk.count}, (side.receivers ? grad : values) + row * total_, m.changes);
        if (a_.kind == kDot) add_edge_dots(side, row, chunk, as(a_.grad_edge_result), m.changes);
        if (a_.dropout > 0) drop(chunk, m);
        if (a_.grad_coefficients != nullptr && a_.dropped) add_given(chunk, m.changes);
        if (a_.dropout > 0) {
            each_flat(chunk, [&](int64_t q) { store(m.changes + q, load(m.changes + q) * load(m.shares + q)); });
        }
        if (a_.grad_coefficients != nullptr && !a_.dropped) add_given(chunk, m.changes);
        gather_statistic(side, row, chunk, 2, m.sums);
        each_flat(chunk, [&](int64_t q) {
            const Vec<T> p = load(m.scores + q);
            store(m.changes + q, p * (load(m.changes + q) - load(m.sums + q)));
            if (a_.dropout > 0) store(m.scores + q, p * load(m.shares + q));
        });
    }

    void add_given(const Chunk& chunk, T* numbers) const {
        const T* const given = as(a_.grad_coefficients);
        for (int64_t n = 0; n < chunk.count; ++n) {
            const T* const from = given + chunk.edges[n] * a_.heads;
            for (int64_t h = 0; h < a_.heads; ++h) numbers[n * stride_ + h] += from[h];
        }
    }

    // The sum of P dP of each head of a receiver.
    void sum_changes(int64_t i, const Scratch<T>& m) const {
        const T* const grad = as(a_.grad) + i * total_;
        T* const sums = as(a_.statistics) + (3 * i + 2) * a_.heads;
        const T* const row = as(a_.sums) + i * total_;
        heads_.dots({&row, 1}, grad, m.changes);
        if (a_.kind == kDot) {
            const int64_t count = a_.edge_width * a_.heads;
            const T *left = as(a_.grad_edge_result) + i * count, *right = as(a_.edge_result) + i * count;
            for (int64_t q = 0; q < count; ++q) m.changes[q % a_.heads] += left[q] * right[q];
        }
        std::copy_n(m.changes, a_.heads, sums);
        if (a_.grad_coefficients == nullptr) return;
        each_chunk(receivers(), i, nullptr, nullptr, [&](const Chunk& chunk) {
            probabilities(receivers(), i, chunk, m);
            if (a_.dropout > 0 && a_.dropped) {
                drop(chunk, m);
                each_flat(chunk, [&](int64_t q) { store(m.scores + q, load(m.scores + q) * load(m.shares + q)); });
            }
            const T* const given = as(a_.grad_coefficients);
            for (int64_t n = 0; n < chunk.count; ++n) {
                const T* const from = given + chunk.edges[n] * a_.heads;
                for (int64_t h = 0; h < a_.heads; ++h) sums[h] += m.scores[n * stride_ + h] * from[h];
            }
        });
    }

    void send_back(int64_t j, int64_t slice, const Scratch<T>& m) const {
        const Side side = senders();
        T* const values = a_.grad_values == nullptr ? nullptr : as(a_.grad_values) + j * total_;
        T* const sources = a_.grad_sources == nullptr ? nullptr : as(a_.grad_sources) + j * total_;
        if (values != nullptr) std::fill_n(values, total_, T(0));
        if (sources != nullptr) std::fill_n(sources, total_, T(0));
        std::fill_n(m.total, period_, T(0));
        const T* const second = a_.kind == kAdditive ? nullptr : as(a_.targets);
        if (a_.senders.indptr[j] == a_.senders.indptr[j + 1]) return;
        if (a_.kind == kLeaky) std::fill_n(m.row, total_, T(0));
        each_chunk(side, j, as(a_.grad), second, [&](const Chunk& chunk) {
            differentiate(side, j, chunk, m);
            if (a_.kind == kAdditive) {
                through_leaky(chunk, m);
                if (a_.grad_edge_scores != nullptr) write_numbers(chunk, m.changes, as(a_.grad_edge_scores));
            } else if (a_.kind == kLeaky) {
                heads_.mix_slopes({m.near, chunk.count}, side.own + j * total_, m.changes, slope_, m.row, nullptr);
            } else if (sources != nullptr) {
                heads_.mix({m.near, chunk.count}, m.changes, sources);
            }
            if (values != nullptr) heads_.mix({m.far, chunk.count}, m.scores, values);
        });
        if (a_.kind == kLeaky) add_products(as(a_.factors), m.row, values);
        if (a_.kind == kAdditive) to_features(m.total, 0, slice, as(a_.values) + j * total_, values);
    }

    void add_products(const T* left, const T* right, T* to) const {
#pragma omp simd
        for (int64_t c = 0; c < total_; ++c) to[c] += left[c] * right[c];
    }

    // m.changes become gradients of what `leaky` was applied to; m.total sums them.
    void through_leaky(const Chunk& chunk, const Scratch<T>& m) const {
        const int64_t end = flat(chunk);
        fill_up(chunk, 0, m.changes);
        for (int64_t v = 0; v < period_; v += kLanes<T>) {
            Vec<T> sum{};
            for (int64_t q = v; q < end; q += period_) {
                const Vec<T> change = load(m.changes + q);
                const Vec<T> own = load(m.raw + q) > 0 ? change : change * slope_;
                store(m.changes + q, own);
                sum += own;
            }
            store(m.total + v, load(m.total + v) + Base::template fold<1>(sum, stride_, added));
        }
    }

    // Takes gradients of the scores of a node, for which a set of factors was used, to its features and to the factors.
    void to_features(const T* changes, int64_t set, int64_t slice, const T* features, T* grad) const {
        const T* const factors = as(a_.factors) + set * total_;
        heads_.mix({&factors, 1}, changes, grad);
        heads_.mix({&features, 1}, changes, as(a_.grad_factors) + (slice * a_.sets + set) * total_);
    }

    void receive_sums(int64_t i, int64_t slice, const Scratch<T>& m) const {
        const T* const from = as(a_.grad_edge_scores);
        std::fill_n(m.total, period_, T(0));
        for (int64_t p = a_.receivers.indptr[i]; p < a_.receivers.indptr[i + 1]; ++p) {
            const T* const edge = from + a_.receivers.edges[p] * a_.heads;
            for (int64_t h = 0; h < a_.heads; ++h) m.total[h] += edge[h];
        }
        T* const own = as(a_.targets == nullptr ? a_.grad_values : a_.grad_targets) + i * total_;
        if (a_.targets != nullptr) std::fill_n(own, total_, T(0));
        to_features(m.total, 1, slice, received() + i * total_, own);
    }

    void receive_back(int64_t i, int64_t slice, const Scratch<T>& m) const {
        const Side side = receivers();
        const int64_t edges = a_.edge_width * a_.heads;
        T* const targets = as(a_.grad_targets) + i * total_;
        T* const queries = as(a_.grad_edge_queries) + i * edges;
        T* const factors = as(a_.grad_factors) + slice * total_;
        std::fill_n(targets, total_, T(0));
        if (a_.kind == kLeaky) std::fill_n(m.row, total_, T(0));
        if (a_.kind == kDot && edges > 0) std::fill_n(queries, edges, T(0));
        each_chunk(side, i, a_.kind == kDot ? as(a_.sources) : nullptr, as(a_.values), [&](const Chunk& chunk) {
            differentiate(side, i, chunk, m);
            if (a_.kind == kLeaky) {
                const Gathered<T> near{m.near, chunk.count};
                heads_.mix_slopes(near, side.own + i * total_, m.changes, slope_, m.row, factors);
                if (edges > 0) edges_of_leaky(near, side.own + i * total_, chunk, slice, m);
            } else {
                heads_.mix({m.near, chunk.count}, m.changes, targets);
                if (edges > 0) edges_of_dots(i, chunk, queries, m);
            }
        });
        if (a_.kind == kLeaky) add_products(as(a_.factors), m.row, targets);
    }

    void edges_of_leaky(const Gathered<T>& near, const T* own, const Chunk& chunk, int64_t slice,
                        const Scratch<T>& m) const {
        const T* const weight = as(a_.edge_weight);
        T* const grad_weight = as(a_.grad_edge_weight) + slice * a_.edge_width * total_;
        heads_.slopes(near, own, as(a_.factors), m.changes, slope_, m.slopes);
        for (int64_t k = 0; k < a_.edge_width; ++k) {
            heads_.combine(chunk.count, m.slopes, [&](int64_t n) { return features(chunk, n)[k]; },
                           grad_weight + k * total_);
        }
        for (int64_t n = 0; n < chunk.count; ++n) {
            T* const to = as(a_.grad_edge_features) + chunk.edges[n] * a_.edge_width;
            for (int64_t k = 0; k < a_.edge_width; ++k) {
                to[k] = dot(weight + k * total_, m.slopes + n * total_, total_);
            }
        }
    }

    void edges_of_dots(int64_t i, const Chunk& chunk, T* queries, const Scratch<T>& m) const {
        mix_edges(chunk, m.changes, queries);
        const int64_t heads = a_.heads, edges = a_.edge_width * heads;
        const T *own = as(a_.edge_queries) + i * edges, *grad = as(a_.grad_edge_result) + i * edges;
        for (int64_t n = 0; n < chunk.count; ++n) {
            T* const to = as(a_.grad_edge_features) + chunk.edges[n] * a_.edge_width;
            const T *changes = m.changes + n * stride_, *weights = m.scores + n * stride_;
            for (int64_t k = 0; k < a_.edge_width; ++k) {
                to[k] = dot(changes, own + k * heads, heads) + dot(weights, grad + k * heads, heads);
            }
        }
    }
};

// Calls work(pass) for the rows of this call.
template <typename T, typename Work>
auto with_pass(const GraphAttention& a, const Work& work) {
    const int block = block_of<T>(a.heads, a.width);
    if constexpr (kLanes<T> > 4) {
        if (block == 4) return work(Pass<T, 4>(a));
    }
    if constexpr (kLanes<T> > 8) {
        if (block == 8) return work(Pass<T, 8>(a));
    }
    return work(Pass<T, kLanes<T>>(a));
}

}  // namespace sparloom::graph_attention

extern "C" {

// Bytes of `GraphAttention::scratch` for each thread.
int64_t sparloom_graph_attention_scratch(const void* arguments) {
    return sparloom::graph_attention::with_pass<ELEMENT>(*static_cast<const GraphAttention*>(arguments),
                                                         [](const auto& pass) { return pass.scratch_size(); });
}

void sparloom_graph_attention(const void* arguments) {
    sparloom::graph_attention::with_pass<ELEMENT>(*static_cast<const GraphAttention*>(arguments),
                                                  [](const auto& pass) { pass.forward(); });
}

void sparloom_graph_attention_backward(const void* arguments) {
    sparloom::graph_attention::with_pass<ELEMENT>(*static_cast<const GraphAttention*>(arguments),
                                                  [](const auto& pass) { pass.backward(); });
}

}  // extern "C"
