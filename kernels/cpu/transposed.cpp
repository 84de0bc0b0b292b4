// D = AT Y without a transposed copy of A: A (rows, cols) sparse in CSR, Y (rows, width), D (cols, width) row-major
// without gaps, in float32 or float64, with indices of 32 or 64 bits. Y has any strides.
//
//   for ranges of rows of about equal nonzeros, or strips of columns of D            in parallel
//     for tiles of kTile rows                                rows of Y that have gaps are copied
//       either for rows i: for nonzeros n:      D(indices[n], :) += values[n] Y(i, :)       Y(i, :) in registers
//       or for columns j:  for nonzeros n of j: D(j, :) += values[n] Y(row of n, :)         D(j, :) in registers
//
// The second way takes the nonzeros of a tile sorted by column: D is read and written once for all of a column in the
// tile, which pays if that are several. It needs an order that `sparloom_sort_tiles` makes once. Ranges of rows update
// the same rows of D, so every range but the first has a copy of D, and the copies are added up in the order of the
// ranges. Strips of columns share nothing, but each of them reads all of A.
// Columns may come in any order and more than once. indptr and indices are checked while they are read, and nothing
// outside the arrays is read or written if they are wrong. Preconditions (checked in Python): indptr has rows + 1
// elements, indices and values have nnz; `copies` has (items - 1) * cols * width elements if rows are split; an order
// was made of these very indices; D overlaps nothing else.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>

#include "team.hpp"
#include "vector.hpp"

extern "C" {

struct Transposed {
    const void *indptr, *indices, *values, *dense;
    void *result, *copies;
    int64_t rows, cols, width, nnz;
    int64_t row_stride, column_stride;   // elements of Y
    const int32_t* ends;                 // (tiles, cols) where the nonzeros of each column end in `order`, or null
    const int32_t* order;                // (nnz) position of each nonzero among those of its tile as stored
    const uint16_t* tile_rows;           // (nnz) its row in the tile
    int32_t items, by_rows, status;      // status: kWrong, kMemory or 0
};

struct Tiles {
    const void *indptr, *indices;
    int32_t *ends, *order;
    uint16_t* tile_rows;
    int64_t rows, cols, nnz;
    int32_t status;
};

}  // extern "C"

namespace sparloom::transposed {
namespace {

constexpr int kVectors = 8;
constexpr int64_t kTile = 1024;
constexpr int64_t kPieces = 8;  // of a shared loop, for each thread
constexpr int32_t kWrong = 1, kMemory = 2;

// Whether rows first .. end are rows of a CSR matrix with `nnz` nonzeros.
template <typename I>
bool rise(const I* indptr, int64_t first, int64_t end, int64_t nnz) {
    bool rises = indptr[first] >= 0 && indptr[end] <= nnz;
    for (int64_t row = first; row < end; ++row) rises &= indptr[row] <= indptr[row + 1];
    return rises;
}

template <typename T, typename I>
class Product {
   public:
    explicit Product(const Transposed& s)
        : s_(s), indptr_(static_cast<const I*>(s.indptr)), indices_(static_cast<const I*>(s.indices)),
          values_(static_cast<const T*>(s.values)), dense_(static_cast<const T*>(s.dense)) {}

    // Rows first .. end, columns begin .. stop of D; returns a status.
    int32_t part(int64_t first, int64_t end, int64_t begin, int64_t stop, T* to) {
        for (int64_t row = first; row < end;) {
            const int64_t last = std::min(row + kTile, end);
            if (!rise(indptr_, row, last, s_.nnz)) return kWrong;
            const bool packed = s_.column_stride != 1 || s_.row_stride != s_.width;
            const T* const from = packed ? pack(row, last) : dense_ + row * s_.width;
            const bool sorted = s_.ends != nullptr;
            if (sorted && indptr_[last] - indptr_[row] != s_.ends[(row / kTile + 1) * s_.cols - 1]) return kWrong;
            const int64_t step = sorted || s_.width > 1 ? kVectors * kLanes<T> : 1;
            for (int64_t column = begin; column < stop; column += step) {
                const Strip strip{from + column, to + column, std::min(stop - column, step)};
                if (!(sorted ? gather(strip, row) : scatter(strip, row, last))) return kWrong;
            }
            row = last;
        }
        return 0;
    }

   private:
    struct Strip {
        const T* dense;
        T* result;
        int64_t columns;
    };

    // Calls work.run<V>(last lanes) for the vectors that a strip has.
    template <typename Work>
    static bool by_vectors(const Strip& strip, const Work& work) {
        const int64_t count = (strip.columns + kLanes<T> - 1) / kLanes<T>;
        const Lanes<T> last(strip.columns - (count - 1) * kLanes<T>);
        switch (count) {
            case 1: return work.template run<1>(last);
            case 2: return work.template run<2>(last);
            case 3: return work.template run<3>(last);
            case 4: return work.template run<4>(last);
            case 5: return work.template run<5>(last);
            case 6: return work.template run<6>(last);
            case 7: return work.template run<7>(last);
            default: return work.template run<kVectors>(last);
        }
    }

    template <int V>
    [[gnu::always_inline]] static void load_strip(const T* from, Lanes<T> last, Vec<T> (&to)[V]) {
#pragma GCC unroll 8
        for (int v = 0; v < V - 1; ++v) to[v] = load(from + v * kLanes<T>);
        to[V - 1] = last.load(from + (V - 1) * kLanes<T>);
    }

    template <int V>
    [[gnu::always_inline]] static void store_strip(T* to, Lanes<T> last, const Vec<T> (&from)[V]) {
#pragma GCC unroll 8
        for (int v = 0; v < V - 1; ++v) store(to + v * kLanes<T>, from[v]);
        last.store(to + (V - 1) * kLanes<T>, from[V - 1]);
    }

    struct Scatter {
        const I *indptr, *indices;
        const T* values;
        int64_t first, end, cols, width;
        Strip strip;

        template <int V>
        [[gnu::noinline]] bool run(Lanes<T> last) const {
            for (int64_t row = first; row < end; ++row) {
                Vec<T> left[V], sums[V];
                load_strip<V>(strip.dense + (row - first) * width, last, left);
                for (int64_t n = indptr[row]; n < indptr[row + 1]; ++n) {
                    if (indices[n] < 0 || indices[n] >= cols) return false;
                    T* const out = strip.result + static_cast<int64_t>(indices[n]) * width;
                    const Vec<T> value = broadcast(values[n]);
                    load_strip<V>(out, last, sums);
#pragma GCC unroll 8
                    for (int v = 0; v < V; ++v) sums[v] = multiply_add<T>(value, left[v], sums[v]);
                    store_strip<V>(out, last, sums);
                }
            }
            return true;
        }
    };

    bool scatter(const Strip& strip, int64_t first, int64_t end) const {
        if (s_.width > 1) {
            return by_vectors(strip, Scatter{indptr_, indices_, values_, first, end, s_.cols, s_.width, strip});
        }
        for (int64_t row = first; row < end; ++row) {
            const T left = strip.dense[row - first];
            for (int64_t n = indptr_[row]; n < indptr_[row + 1]; ++n) {
                if (indices_[n] < 0 || indices_[n] >= s_.cols) return false;
                strip.result[indices_[n]] += values_[n] * left;
            }
        }
        return true;
    }

    struct Gather {
        const int32_t *ends, *order;
        const uint16_t* rows;
        const T* values;
        int64_t cols, width;
        Strip strip;

        template <int V>
        [[gnu::noinline]] bool run(Lanes<T> last) const {
            int64_t n = 0;
            for (int64_t column = 0; column < cols; ++column) {
                const int64_t end = ends[column];
                if (n == end) continue;
                Vec<T> sums[V], right[V];
                load_strip<V>(strip.result + column * width, last, sums);
                for (; n < end; ++n) {
                    load_strip<V>(strip.dense + rows[n] * width, last, right);
                    const Vec<T> value = broadcast(values[order[n]]);
#pragma GCC unroll 8
                    for (int v = 0; v < V; ++v) sums[v] = multiply_add<T>(value, right[v], sums[v]);
                }
                store_strip<V>(strip.result + column * width, last, sums);
            }
            return true;
        }
    };

    bool gather(const Strip& strip, int64_t first) const {
        const int64_t begin = indptr_[first];
        return by_vectors(strip, Gather{s_.ends + first / kTile * s_.cols, s_.order + begin, s_.tile_rows + begin,
                                        values_ + begin, s_.cols, s_.width, strip});
    }

    // Copies rows first .. end of Y, row-major.
    const T* pack(int64_t first, int64_t end) {
        constexpr int64_t kSide = 8;  // rows, so that lines of both are used whole
        if (packed_ == nullptr) packed_.reset(new T[kTile * s_.width]);
        T* const to = packed_.get();
        for (int64_t row = first; row < end; row += kSide) {
            const int64_t stop = std::min(row + kSide, end);
            for (int64_t column = 0; column < s_.width; ++column) {
                for (int64_t k = row; k < stop; ++k) {
                    to[(k - first) * s_.width + column] = dense_[k * s_.row_stride + column * s_.column_stride];
                }
            }
        }
        return to;
    }

    const Transposed s_;
    const I *const indptr_, *const indices_;
    const T *const values_, *const dense_;
    std::unique_ptr<T[]> packed_;
};

// The first row of range k of `items`: tiles of about equal nonzeros, wherever that is if indptr does not rise.
template <typename I>
int64_t range_begin(const Transposed& s, int32_t k) {
    if (k == 0 || k == s.items) return k == 0 ? 0 : s.rows;
    const I* const indptr = static_cast<const I*>(s.indptr);
    return (std::lower_bound(indptr, indptr + s.rows, static_cast<I>(s.nnz / s.items * k)) - indptr) / kTile * kTile;
}

template <typename T, typename I>
int32_t item(const Transposed& s, int32_t k) {
    const int64_t size = s.cols * s.width;
    T* const result = static_cast<T*>(s.result);
    try {
        Product<T, I> product(s);
        if (s.by_rows) {
            T* const to = k == 0 ? result : static_cast<T*>(s.copies) + (k - 1) * size;
            std::fill_n(to, size, T{0});
            const int64_t first = range_begin<I>(s, k);
            return product.part(first, std::max(first, range_begin<I>(s, k + 1)), 0, s.width, to);
        }
        const int64_t lines = (s.width + kLine<T> - 1) / kLine<T>;
        const int64_t begin = lines * k / s.items * kLine<T>;
        const int64_t stop = std::min(lines * (k + 1) / s.items * kLine<T>, s.width);
        for (int64_t row = 0; row < s.cols; ++row) {
            std::fill(result + row * s.width + begin, result + row * s.width + stop, T{0});
        }
        return product.part(0, s.rows, begin, stop, result);
    } catch (const std::bad_alloc&) {
        return kMemory;
    }
}

template <typename T, typename I>
void run(Transposed& s) {
    const I* const indptr = static_cast<const I*>(s.indptr);
    if (indptr[0] != 0 || indptr[s.rows] != static_cast<I>(s.nnz)) {
        s.status = kWrong;
    } else if (s.items == 1) {
        s.status = item<T, I>(s, 0);
    } else {
        std::atomic<int32_t> status{0};
        const int64_t size = s.cols * s.width;
        T* const result = static_cast<T*>(s.result);
        const T* const copies = static_cast<const T*>(s.copies);
        share(s.items, s.items, [&](int64_t k, int32_t) {
            const int32_t found = item<T, I>(s, static_cast<int32_t>(k));
            if (found != 0) status = found;
        });
        if (s.by_rows) {
            const int64_t pieces = std::min<int64_t>(kPieces * s.items, size);
            share(pieces, s.items, [&](int64_t piece, int32_t) {
                for (int64_t k = size * piece / pieces; k < size * (piece + 1) / pieces; ++k) {
                    T sum = result[k];
                    for (int32_t other = 1; other < s.items; ++other) sum += copies[(other - 1) * size + k];
                    result[k] = sum;
                }
            });
        }
        s.status = status;
    }
}

// Sorts the nonzeros of every tile by column.
template <typename I>
int32_t sort_tiles(const Tiles& s) {
    const I *const indptr = static_cast<const I*>(s.indptr), *const indices = static_cast<const I*>(s.indices);
    if (indptr[0] != 0 || indptr[s.rows] != static_cast<I>(s.nnz)) return kWrong;
    for (int64_t first = 0; first < s.rows; first += kTile) {
        const int64_t end = std::min(first + kTile, s.rows);
        if (!rise(indptr, first, end, s.nnz) || indptr[end] - indptr[first] > INT32_MAX) return kWrong;
        int32_t* const ends = s.ends + first / kTile * s.cols;
        std::fill_n(ends, s.cols, 0);
        for (int64_t n = indptr[first]; n < indptr[end]; ++n) {
            if (indices[n] < 0 || indices[n] >= s.cols) return kWrong;
            ++ends[indices[n]];
        }
        int32_t sum = 0;
        for (int64_t column = 0; column < s.cols; ++column) {
            const int32_t count = ends[column];
            ends[column] = sum;
            sum += count;
        }
        const int64_t begin = indptr[first];
        for (int64_t row = first; row < end; ++row) {
            for (int64_t n = indptr[row]; n < indptr[row + 1]; ++n) {
                const int32_t place = ends[indices[n]]++;
                s.order[begin + place] = static_cast<int32_t>(n - begin);
                s.tile_rows[begin + place] = static_cast<uint16_t>(row - first);
            }
        }
    }
    return 0;
}

}  // namespace
}  // namespace sparloom::transposed

extern "C" {

void sparloom_transposed_f32_i32(void* s) { sparloom::transposed::run<float, int32_t>(*static_cast<Transposed*>(s)); }
void sparloom_transposed_f32_i64(void* s) { sparloom::transposed::run<float, int64_t>(*static_cast<Transposed*>(s)); }
void sparloom_transposed_f64_i32(void* s) { sparloom::transposed::run<double, int32_t>(*static_cast<Transposed*>(s)); }
void sparloom_transposed_f64_i64(void* s) { sparloom::transposed::run<double, int64_t>(*static_cast<Transposed*>(s)); }

void sparloom_sort_tiles_i32(void* s) {
    static_cast<Tiles*>(s)->status = sparloom::transposed::sort_tiles<int32_t>(*static_cast<Tiles*>(s));
}
void sparloom_sort_tiles_i64(void* s) {
    static_cast<Tiles*>(s)->status = sparloom::transposed::sort_tiles<int64_t>(*static_cast<Tiles*>(s));
}

}  // extern "C"
