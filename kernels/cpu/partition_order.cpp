// Numbers the vertices of an undirected graph so that consecutive ranges of equal size have few neighbours outside.
//
//   embed    every vertex gets its distances to a few pivots of its component; each pivot is farthest from earlier ones
//   halve    a range of parts is cut into two at the boundary between its middle parts, across the direction in which
//            its vertices spread most (the first principal component); recursively, down to kLeaf vertices
//
// A plane across a mesh cuts few edges, and the cuts fall where the tile scheduler has its boundaries: part v of `parts`
// ends at vertex v n / parts. Vertices of different components are not mixed; equal ones keep their order. O(edges *
// pivots + n log n), the same result on every run.
//
// Preconditions (checked in Python): the adjacency is symmetric; parts >= 1.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "memory.hpp"

extern "C" {

struct PartitionProblem {
    const int64_t* indptr;   // (n + 1)
    const int32_t* indices;  // neighbours
    int64_t n, parts;
    int32_t* order;  // (n) result: the old index of each new vertex
};

}  // extern "C"

namespace sparloom {
namespace {

constexpr int kPivots = 10;
constexpr int64_t kLeaf = 64;  // ranges of at most this many vertices keep their order

using Point = std::array<float, kPivots>;

// Distances within components; `order_` holds the components one after the other.
class Embedding {
   public:
    explicit Embedding(const PartitionProblem& problem)
        : p_(problem), points_(p_.n), components_(p_.n, -1), distance_(p_.n), queue_(p_.n) {
        int32_t component = 0;
        for (int64_t v = 0; v < p_.n; ++v) {
            if (components_[v] < 0) embed(v, component++);
        }
    }

    const Point& point(int32_t vertex) const { return points_[vertex]; }
    int32_t component(int32_t vertex) const { return components_[vertex]; }

   private:
    void embed(int32_t seed, int32_t component) {
        int64_t size = search(seed);
        for (int64_t k = 0; k < size; ++k) components_[queue_[k]] = component;
        if (size == 1) return;
        std::vector<int32_t> nearest(size, INT32_MAX), members(queue_.begin(), queue_.begin() + size);
        int32_t pivot = queue_[size - 1];  // the last vertex of a search has the maximum distance
        for (int axis = 0; axis < kPivots; ++axis) {
            search(pivot);
            int64_t farthest = 0;
            for (int64_t k = 0; k < size; ++k) {
                const int32_t distance = distance_[members[k]];
                points_[members[k]][axis] = distance;
                nearest[k] = std::min(nearest[k], distance);
                if (nearest[k] > nearest[farthest]) farthest = k;
            }
            pivot = members[farthest];
        }
    }

    // Breadth-first search; writes vertices to queue_ and distances to distance_. Returns the number of vertices.
    int64_t search(int32_t from) {
        ++round_;
        if (seen_.empty()) seen_.resize(p_.n);
        int64_t end = 0;
        const auto reach = [&](int32_t vertex, int32_t distance) {
            if (seen_[vertex] == round_) return;
            seen_[vertex] = round_;
            distance_[vertex] = distance;
            queue_[end++] = vertex;
        };
        reach(from, 0);
        for (int64_t k = 0; k < end; ++k) {
            const int32_t vertex = queue_[k], next = distance_[vertex] + 1;
            for (int64_t e = p_.indptr[vertex]; e < p_.indptr[vertex + 1]; ++e) reach(p_.indices[e], next);
        }
        return end;
    }

    const PartitionProblem& p_;
    std::vector<Point> points_;
    std::vector<int32_t> components_, distance_, queue_, seen_;
    int32_t round_ = 0;
};

// Direction of maximum variance, by power iteration on the covariances; all zero if there is no variance.
Point principal(const Embedding& embedding, const int32_t* begin, const int32_t* end) {
    std::array<double, kPivots> mean{}, direction;
    for (const int32_t* v = begin; v < end; ++v) {
        for (int a = 0; a < kPivots; ++a) mean[a] += embedding.point(*v)[a];
    }
    for (double& m : mean) m /= end - begin;
    double covariance[kPivots][kPivots] = {};
    for (const int32_t* v = begin; v < end; ++v) {
        double centred[kPivots];
        for (int a = 0; a < kPivots; ++a) centred[a] = embedding.point(*v)[a] - mean[a];
        for (int a = 0; a < kPivots; ++a) {
            for (int b = 0; b < kPivots; ++b) covariance[a][b] += centred[a] * centred[b];
        }
    }
    for (int a = 0; a < kPivots; ++a) direction[a] = 1.0 / (a + 1);
    for (int step = 0; step < 40; ++step) {
        std::array<double, kPivots> next{};
        double norm = 0;
        for (int a = 0; a < kPivots; ++a) {
            for (int b = 0; b < kPivots; ++b) next[a] += covariance[a][b] * direction[b];
            norm += next[a] * next[a];
        }
        if (norm == 0) return {};
        for (int a = 0; a < kPivots; ++a) direction[a] = next[a] / std::sqrt(norm);
    }
    Point result;
    for (int a = 0; a < kPivots; ++a) result[a] = static_cast<float>(direction[a]);
    return result;
}

class Bisection {
   public:
    explicit Bisection(const PartitionProblem& problem) : p_(problem), embedding_(problem), place_(p_.n) {}

    void run() {
        int32_t* const order = p_.order;
        std::iota(order, order + p_.n, 0);
        std::stable_sort(order, order + p_.n, [&](int32_t a, int32_t b) {
            return embedding_.component(a) < embedding_.component(b);
        });
        halve(0, p_.parts);
    }

   private:
    int64_t bound(int64_t part) const { return part * p_.n / p_.parts; }

    // Orders parts first .. last, then their halves; `halve_part` handles a single part.
    void halve(int64_t first, int64_t last) {
        if (last - first == 1) return halve_part(bound(first), bound(last));
        const int64_t middle = first + (last - first) / 2;
        cut(bound(first), bound(middle), bound(last));
        halve(first, middle);
        halve(middle, last);
    }

    void halve_part(int64_t begin, int64_t end) {
        if (end - begin <= kLeaf) {
            std::sort(p_.order + begin, p_.order + end);
            return;
        }
        const int64_t middle = begin + (end - begin) / 2;
        cut(begin, middle, end);
        halve_part(begin, middle);
        halve_part(middle, end);
    }

    // Puts the lower vertices of begin .. end before `middle`. Components lie one after the other before and after, so
    // only the one that `middle` is inside of must be divided.
    void cut(int64_t begin, int64_t middle, int64_t end) {
        int32_t *const order = p_.order, *first = order + middle, *last = first;
        if (first == order + begin || last == order + end) return;
        const int32_t component = embedding_.component(*first);
        while (first > order + begin && embedding_.component(first[-1]) == component) --first;
        while (last < order + end && embedding_.component(*last) == component) ++last;
        if (first == order + middle) return;
        const Point direction = principal(embedding_, first, last);
        for (const int32_t* v = first; v < last; ++v) {
            place_[*v] = std::inner_product(direction.begin(), direction.end(), embedding_.point(*v).begin(), 0.0f);
        }
        std::nth_element(first, order + middle, last, [&](int32_t a, int32_t b) {
            return place_[a] < place_[b] || (place_[a] == place_[b] && a < b);
        });
    }

    const PartitionProblem& p_;
    const Embedding embedding_;
    std::vector<float> place_;  // along the direction of the cut
};

}  // namespace
}  // namespace sparloom

// Returns 1 if there was no memory for it, else 0.
extern "C" int32_t sparloom_partition_order(const PartitionProblem* problem) {
    return sparloom::out_of_memory([&] { sparloom::Bisection(*problem).run(); });
}
