// CSR matrices of graphs that are seen for the first time: edges in any order become rows of receivers, with self-loops
// and normalisation, in two passes over the edges.
//
// Columns of a row are in the order of the edges, the self-loop first; duplicate edges stay. Sorting counts, so it takes
// a few nanoseconds for each edge.
// Preconditions (checked in Python): results have room for `edges` nonzeros, and `rows` more with self-loops; they
// overlap nothing. Everything else is checked here, before it is used as an index.

#include <cmath>
#include <cstdint>

extern "C" {

enum Loops : int32_t { kNoLoops, kReplaced, kAdded };      // replaced: those of the graph replace the added ones
enum Scaling : int32_t { kUnscaled, kSymmetric, kMean };  // D^-1/2 A D^-1/2 with row sums D; mean over edges of a row
enum Status : int32_t { kValid, kReceiverOutOfRange, kSenderOutOfRange, kNotCsr };

struct FreshGraph {
    const void *receivers, *senders;                   // (edges); receivers null: `begin` gives them
    const void* begin;                                 // (rows + 1) or null: where the edges of each receiver begin
    const void* weights;                               // (edges) or null: 1
    int64_t edges, receiver_step, sender_step, rows, cols;
    double loop;                                       // weight of self-loops
    int64_t* indptr;                                   // (rows + 1)
    int32_t* indices;
    void* values;                                      // null: not wanted
    int64_t* edge;                                     // edge of each nonzero, -1 for an added self-loop; null: not wanted
    void* scale;                                       // (rows) workspace
    void* diagonal;                                    // (rows) workspace, for kReplaced
    int32_t loops, scaling, wide, is_double;           // wide: indices of the graph are int64, else int32
};

}  // extern "C"

namespace sparloom::fresh {
namespace {

template <typename T>
T inverse_root(T sum) {
    const T root = T{1} / std::sqrt(sum);
    return std::isinf(root) ? T{0} : root;
}

// Turns counts of next[0] .. next[rows - 1] into where each row begins.
void begin_rows(int64_t* next, int64_t rows) {
    int64_t total = 0;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t count = next[row];
        next[row] = total;
        total += count;
    }
}

template <typename T, typename I>
class Sorting {
   public:
    explicit Sorting(const FreshGraph& g) : g_(g), next_(g.indptr + 1) {}

    Status run() const {
        g_.indptr[0] = 0;
        for (int64_t row = 0; row < g_.rows; ++row) next_[row] = g_.loops == kNoLoops ? 0 : 1;
        if (g_.loops == kReplaced) {
            for (int64_t row = 0; row < g_.rows; ++row) diagonal()[row] = static_cast<T>(g_.loop);
        }
        if (g_.scaling != kUnscaled) {
            for (int64_t row = 0; row < g_.rows; ++row) scale()[row] = T{0};
        }
        const Status status = count();
        if (status != kValid) return status;
        if (g_.scaling != kUnscaled) make_scale();
        begin_rows(next_, g_.rows);
        if (g_.loops != kNoLoops) place_loops();
        g_.values == nullptr ? place<false>() : place<true>();
        return kValid;
    }

   private:
    T* scale() const { return static_cast<T*>(g_.scale); }
    T* diagonal() const { return static_cast<T*>(g_.diagonal); }
    T* values() const { return static_cast<T*>(g_.values); }
    T weight(int64_t e) const { return g_.weights == nullptr ? T{1} : static_cast<const T*>(g_.weights)[e]; }
    bool replaces(int64_t receiver, int64_t sender) const { return g_.loops == kReplaced && receiver == sender; }

    // Calls work(receiver, sender, e) for every edge until it returns false.
    template <typename Work>
    bool each(const Work& work) const {
        const I* const senders = static_cast<const I*>(g_.senders);
        if (g_.begin == nullptr) {
            const I* const receivers = static_cast<const I*>(g_.receivers);
            for (int64_t e = 0; e < g_.edges; ++e) {
                if (!work(receivers[e * g_.receiver_step], senders[e * g_.sender_step], e)) return false;
            }
            return true;
        }
        const I* const begin = static_cast<const I*>(g_.begin);
        for (int64_t row = 0; row < g_.rows; ++row) {
            for (int64_t e = begin[row]; e < begin[row + 1]; ++e) {
                if (!work(row, senders[e * g_.sender_step], e)) return false;
            }
        }
        return true;
    }

    bool is_csr() const {
        const I* const begin = static_cast<const I*>(g_.begin);
        if (begin[0] != 0 || begin[g_.rows] != g_.edges) return false;
        for (int64_t row = 0; row < g_.rows; ++row) {
            if (begin[row] > begin[row + 1]) return false;
        }
        return true;
    }

    // Counts the nonzeros of each row and, if they are not equal to it, sums its weights.
    Status count() const {
        if (g_.begin != nullptr && !is_csr()) return kNotCsr;
        Status status = kValid;
        const bool sums = g_.scaling == kSymmetric && g_.weights != nullptr;
        each([&](int64_t receiver, int64_t sender, int64_t e) __attribute__((always_inline)) {
            if (static_cast<uint64_t>(receiver) >= static_cast<uint64_t>(g_.rows)) {
                status = kReceiverOutOfRange;
                return false;
            }
            if (static_cast<uint64_t>(sender) >= static_cast<uint64_t>(g_.cols)) {
                status = kSenderOutOfRange;
                return false;
            }
            if (replaces(receiver, sender)) {
                diagonal()[receiver] = weight(e);
                return true;
            }
            ++next_[receiver];
            if (sums) scale()[receiver] += weight(e);
            return true;
        });
        return status;
    }

    void make_scale() const {
        const int64_t added = g_.loops == kNoLoops ? 0 : 1;
        for (int64_t row = 0; row < g_.rows; ++row) {
            if (g_.scaling == kMean) {
                scale()[row] = T{1} / static_cast<T>(next_[row] > 1 ? next_[row] : 1);
                continue;
            }
            T sum = g_.weights == nullptr ? static_cast<T>(next_[row] - added) : scale()[row];
            if (added != 0) sum += loop(row);
            scale()[row] = inverse_root(sum);
        }
    }

    T loop(int64_t row) const { return g_.loops == kReplaced ? diagonal()[row] : static_cast<T>(g_.loop); }

    void place_loops() const {
        for (int64_t row = 0; row < g_.rows; ++row) {
            const int64_t at = next_[row]++;
            g_.indices[at] = static_cast<int32_t>(row);
            if (g_.edge != nullptr) g_.edge[at] = -1;
            if (g_.values != nullptr) values()[at] = scaled(loop(row), row, row);
        }
    }

    T scaled(T weight, int64_t receiver, int64_t sender) const {
        if (g_.scaling == kSymmetric) return scale()[receiver] * weight * scale()[sender];
        return g_.scaling == kMean ? scale()[receiver] * weight : weight;
    }

    template <bool kValues>
    void place() const {
        each([&](int64_t receiver, int64_t sender, int64_t e) __attribute__((always_inline)) {
            if (replaces(receiver, sender)) return true;
            const int64_t at = next_[receiver]++;
            g_.indices[at] = static_cast<int32_t>(sender);
            if (g_.edge != nullptr) g_.edge[at] = e;
            if (kValues) values()[at] = scaled(weight(e), receiver, sender);
            return true;
        });
    }

    const FreshGraph g_;
    int64_t* const next_;  // where the next nonzero of a row goes; where the next row begins when all are placed
};

template <typename T>
Status sort(const FreshGraph& g) {
    return g.wide ? Sorting<T, int64_t>(g).run() : Sorting<T, int32_t>(g).run();
}

}  // namespace
}  // namespace sparloom::fresh

// Returns a Status.
extern "C" int32_t sparloom_fresh_graph(const FreshGraph* g) {
    return g->is_double ? sparloom::fresh::sort<double>(*g) : sparloom::fresh::sort<float>(*g);
}
