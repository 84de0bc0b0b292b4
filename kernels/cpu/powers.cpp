// Steps y_p = alpha_p A y_{p-1} + beta_p y_{p-1} + gamma_p y_{p-2} + delta_p g with a square sparse matrix A and few
// columns, in an order of blocks of rows in which the steps of a block follow each other while it is in a cache.
//
//   for phases                                    a barrier between two of them
//     for the lists of a phase                    in parallel, on demand
//       for tasks of a list: (chunks of rows, step)
//         y[rows] = alpha (A x)[rows] + beta x[rows] + gamma previous[rows] + delta addend[rows]
//         sum[rows] = (first ? start x[rows] : sum[rows]) + weight y[rows]
//         out[place[rows]] = y[rows] or sum[rows]
//
// Dense arrays of a step are row-major (rows, M) without gaps, M = 1, 2, 4 or 8; `in` and `out` have `lead` columns, of
// which `columns` (at most M) are read or written from the address on. A step without `x` copies: y[rows] =
// in[place[rows]], columns beyond `columns` become 0.
//
// A is in CSR, or packed as in packed_rows.hpp if sparloom_powers_packs(). A task counts rows in chunks of 64 bytes of
// values: 8 of double, 16 of float.
// Preconditions (checked in Python): columns are in range; within a phase no list reads what another one writes; y
// may be `previous` of the same step and overlaps nothing else that a task of its phase reads.

#include <atomic>
#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(_OPENMP)
#include <omp.h>
#include <sched.h>
#endif

#include "memory.hpp"
#include "packed_rows.hpp"
#include "team.hpp"
#include "vector.hpp"

extern "C" {

struct PowersTask {
    int32_t begin, end, step;
};

struct PowersStep {
    const void *x, *previous, *addend;
    void *y, *sum;
    const void* in;
    void* out;
    double alpha, beta, gamma, delta, start, weight;
    int32_t first, out_is_sum;
};

struct Powers {
    const int64_t* indptr;    // (rows + 1), or null
    const int32_t* indices;   // (nnz)
    const void* values;       // (nnz)
    const int64_t* chunks;    // (chunks) where a packed chunk begins in `stream`, if not null
    const char* stream;
    const int32_t* place;     // (rows) row of `in` and `out`; null: the same
    const PowersStep* steps;
    const PowersTask* tasks;
    const int64_t* bounds;    // (phases * lists + 1) of the tasks of each list
    int64_t rows, phases, lists, columns, lead;
    int32_t threads, width;   // width: M
};

struct PackProblem {
    const int64_t* indptr;
    const int32_t* indices;
    const void* values;
    int64_t* chunks;  // (chunks + 1): becomes where each chunk begins
    char* stream;     // null: only `chunks` is computed
    int64_t rows;
    int32_t threads, doubles;
};

}  // extern "C"

namespace sparloom::powers {

using packed::Head;
using packed::kRows;
using packed::Run;
using packed::Tail;

template <typename T, int M>
struct RowOf {
    typedef T type __attribute__((vector_size(M * sizeof(T))));
    typedef T unaligned __attribute__((vector_size(M * sizeof(T)), aligned(sizeof(T)), may_alias));
};
template <typename T>
struct RowOf<T, 1> {
    using type = T;
    using unaligned = T;
};

// Dot products of one row with M columns, added to `to`.
template <typename T, int M>
inline void add_row(const int32_t* columns, const T* values, int64_t count, const T* x, T* to) {
    using Row = typename RowOf<T, M>::type;
    using Unaligned = typename RowOf<T, M>::unaligned;
    constexpr int kChains = 4;
    const auto row = [&](int64_t n) -> Row { return *reinterpret_cast<const Unaligned*>(x + int64_t{columns[n]} * M); };
    Row sums[kChains] = {};
    int64_t n = 0;
    for (; n + kChains <= count; n += kChains) {
#pragma GCC unroll 4
        for (int chain = 0; chain < kChains; ++chain) sums[chain] += values[n + chain] * row(n + chain);
    }
    for (; n < count; ++n) sums[0] += values[n] * row(n);
    Unaligned& all = *reinterpret_cast<Unaligned*>(to);
    all += (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <typename T, int M>
class CsrSource {
   public:
    explicit CsrSource(const Powers& p)
        : indptr_(p.indptr), indices_(p.indices), values_(static_cast<const T*>(p.values)), rows_(p.rows) {}

    // Products of the rows of a chunk: sums[(row - first) * M + column].
    void sum(int64_t chunk, const T* x, T* sums) const {
        const int64_t first = chunk * kRows<T>, lanes = std::min<int64_t>(kRows<T>, rows_ - first);
        for (int64_t lane = 0; lane < lanes; ++lane, sums += M) {
            std::fill_n(sums, M, T{0});
            const int64_t start = indptr_[first + lane];
            add_row<T, M>(indices_ + start, values_ + start, indptr_[first + lane + 1] - start, x, sums);
        }
    }

   private:
    const int64_t* indptr_;
    const int32_t* indices_;
    const T* values_;
    int64_t rows_;
};

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#define SPARLOOM_PACKS 1

template <typename T>
inline Vec<T> expand(uint32_t mask, Vec<T> packed) {
    if constexpr (sizeof(T) == 4) {
        return _mm512_maskz_expand_ps(static_cast<__mmask16>(mask), packed);
    } else {
        return _mm512_maskz_expand_pd(static_cast<__mmask8>(mask), packed);
    }
}

// Numbers of lanes that lane l of vector v of a chunk belongs to: (v * lanes + l) / M.
template <typename T, int M, int V>
inline __m512i owners() {
    if constexpr (sizeof(T) == 4) {
        return _mm512_setr_epi32((16 * V + 0) / M, (16 * V + 1) / M, (16 * V + 2) / M, (16 * V + 3) / M, (16 * V + 4) / M,
                                 (16 * V + 5) / M, (16 * V + 6) / M, (16 * V + 7) / M, (16 * V + 8) / M, (16 * V + 9) / M,
                                 (16 * V + 10) / M, (16 * V + 11) / M, (16 * V + 12) / M, (16 * V + 13) / M,
                                 (16 * V + 14) / M, (16 * V + 15) / M);
    } else {
        return _mm512_setr_epi64((8 * V + 0) / M, (8 * V + 1) / M, (8 * V + 2) / M, (8 * V + 3) / M, (8 * V + 4) / M,
                                 (8 * V + 5) / M, (8 * V + 6) / M, (8 * V + 7) / M);
    }
}

// Values of vector v: that of its row in every lane.
template <typename T, int M, int V>
inline Vec<T> spread(Vec<T> values) {
    if constexpr (M == 1) {
        return values;
    } else if constexpr (sizeof(T) == 4) {
        return _mm512_permutexvar_ps(owners<T, M, V>(), values);
    } else {
        return _mm512_permutexvar_pd(owners<T, M, V>(), values);
    }
}

// Lanes of vector v whose rows are in the mask.
template <typename T, int M, int V>
inline auto spread_mask(uint32_t mask) {
    if constexpr (sizeof(T) == 4) {
        if constexpr (M == 1) return static_cast<__mmask16>(mask);
        const __m512i bits = _mm512_sllv_epi32(_mm512_set1_epi32(1), owners<T, M, V>());
        return _mm512_test_epi32_mask(_mm512_set1_epi32(static_cast<int>(mask)), bits);
    } else {
        if constexpr (M == 1) return static_cast<__mmask8>(mask);
        const __m512i bits = _mm512_sllv_epi64(_mm512_set1_epi64(1), owners<T, M, V>());
        return _mm512_test_epi64_mask(_mm512_set1_epi64(mask), bits);
    }
}

template <typename T, typename Mask>
inline Vec<T> masked_load(Mask mask, const T* from) {
    if constexpr (sizeof(T) == 4) {
        return _mm512_maskz_loadu_ps(mask, from);
    } else {
        return _mm512_maskz_loadu_pd(mask, from);
    }
}

template <typename T, typename Mask>
inline Vec<T> masked_multiply_add(Vec<T> a, Vec<T> b, Vec<T> c, Mask mask) {
    if constexpr (sizeof(T) == 4) {
        return _mm512_mask3_fmadd_ps(a, b, c, mask);
    } else {
        return _mm512_mask3_fmadd_pd(a, b, c, mask);
    }
}

inline __m128 four(const float* x, const int32_t* at) {
    __m128 found = _mm_load_ss(x + at[0]);
    found = _mm_insert_ps(found, _mm_load_ss(x + at[1]), 0x10);
    found = _mm_insert_ps(found, _mm_load_ss(x + at[2]), 0x20);
    return _mm_insert_ps(found, _mm_load_ss(x + at[3]), 0x30);
}

inline __m128d two(const char* x, int64_t first, int64_t second) {
    return _mm_loadh_pd(_mm_load_sd(reinterpret_cast<const double*>(x + 8 * first)),
                        reinterpret_cast<const double*>(x + 8 * second));
}

inline __m512d join(__m128d a, __m128d b, __m128d c, __m128d d) {
    const __m256d low = _mm256_insertf128_pd(_mm256_castpd128_pd256(a), b, 1);
    const __m256d high = _mm256_insertf128_pd(_mm256_castpd128_pd256(c), d, 1);
    return _mm512_insertf64x4(_mm512_castpd256_pd512(low), high, 1);
}

// Rows of `kBytes` of x side by side in a vector.
template <int kBytes>
inline __m512d gathered(const char* x, const int32_t* at) {
    if constexpr (kBytes == 4) {
        const float* const from = reinterpret_cast<const float*>(x);
        return join(_mm_castps_pd(four(from, at)), _mm_castps_pd(four(from, at + 4)), _mm_castps_pd(four(from, at + 8)),
                    _mm_castps_pd(four(from, at + 12)));
    } else if constexpr (kBytes == 8) {
        return join(two(x, at[0], at[1]), two(x, at[2], at[3]), two(x, at[4], at[5]), two(x, at[6], at[7]));
    } else if constexpr (kBytes == 16) {
        const auto row = [&](int n) { return _mm_loadu_pd(reinterpret_cast<const double*>(x + int64_t{16} * at[n])); };
        return join(row(0), row(1), row(2), row(3));
    } else if constexpr (kBytes == 32) {
        const auto row = [&](int n) { return _mm256_loadu_pd(reinterpret_cast<const double*>(x + int64_t{32} * at[n])); };
        return _mm512_insertf64x4(_mm512_castpd256_pd512(row(0)), row(1), 1);
    } else {
        static_assert(kBytes == 64);
        return _mm512_loadu_pd(reinterpret_cast<const double*>(x + int64_t{64} * at[0]));
    }
}

template <typename T>
inline Vec<T> as_vector(__m512d bits) {
    if constexpr (sizeof(T) == 4) {
        return _mm512_castpd_ps(bits);
    } else {
        return bits;
    }
}

template <typename T, int M>
class PackedSource {
   public:
    explicit PackedSource(const Powers& p) : chunks_(p.chunks), stream_(p.stream) {}

    // Products of the rows of a chunk, whole vectors. Chunks are found by `chunks`, not where the previous one ends, so
    // that the processor can read ahead.
    void sum(int64_t chunk, const T* x, T* to) const {
        sum(stream_ + chunks_[chunk], x, to, std::make_integer_sequence<int, M>{});
    }

   private:
    static constexpr int C = kRows<T>;
    static constexpr uint32_t kAll = (1u << C) - 1;

    template <int... V>
    [[gnu::always_inline]] void sum(const char* at, const T* x, T* to,
                                    std::integer_sequence<int, V...>) const {
        const Head head = read<Head>(at);
        const int32_t* const full = reinterpret_cast<const int32_t*>(at + sizeof(Head));
        const Run* const runs = reinterpret_cast<const Run*>(full + (head.full + 1) / 2 * 2);
        const uint32_t* const masks = reinterpret_cast<const uint32_t*>(runs + head.runs);
        const int32_t* columns = reinterpret_cast<const int32_t*>(masks + (head.gathers + 1) / 2 * 2);
        const int32_t* const tails = columns + int64_t{C} * head.gathers;
        const int32_t* end = tails;
        for (int t = 0; t < head.tails; ++t) end += 2 + (end[1] + 1) / 2 * 2;
        const T* values = reinterpret_cast<const T*>(end);
        Vec<T> sums[M] = {};
        add_full<V...>(full, head.full, values, x, sums);
        values += int64_t{C} * head.full;
        for (int r = 0; r < head.runs; ++r) {
            const uint32_t mask = runs[r].mask;
            const T* const from = x + int64_t{runs[r].first} * M;
            const Vec<T> value = expand<T>(mask, load(values));
            ((sums[V] = multiply_add<T>(spread<T, M, V>(value),
                                        masked_load<T>(spread_mask<T, M, V>(mask), from + V * C), sums[V])), ...);
            values += __builtin_popcount(mask);
        }
        const char* const bytes = reinterpret_cast<const char*>(x);
        for (int g = 0; g < head.gathers; ++g, columns += C) {
            const uint32_t mask = masks[g];
            if (mask == kAll) {
                const Vec<T> value = load(values);
                ((sums[V] = multiply_add<T>(spread<T, M, V>(value), rows<V>(bytes, columns), sums[V])), ...);
                values += C;
            } else {
                const Vec<T> value = expand<T>(mask, load(values));
                ((sums[V] = masked_multiply_add<T>(spread<T, M, V>(value), rows<V>(bytes, columns), sums[V],
                                                   spread_mask<T, M, V>(mask))), ...);
                values += __builtin_popcount(mask);
            }
        }
        (store(to + V * C, sums[V]), ...);
        const int32_t* tail = tails;
        for (int t = 0; t < head.tails; ++t) {
            const int32_t lane = tail[0], count = tail[1];
            add_row<T, M>(tail + 2, values, count, x, to + lane * M);
            values += count;
            tail += 2 + (count + 1) / 2 * 2;
        }
    }

    // Several runs at a time have sums of their own, so that additions need not wait for each other.
    template <int... V>
    [[gnu::always_inline]] static void add_full(const int32_t* first, int64_t count, const T* values, const T* x,
                                                Vec<T>* sums) {
        constexpr int kChains = 4;
        const auto add = [&](int64_t run, Vec<T>* to) __attribute__((always_inline)) {
            const Vec<T> value = load(values + run * C);
            const T* const from = x + int64_t{first[run]} * M;
            ((to[V] = multiply_add<T>(spread<T, M, V>(value), load(from + V * C), to[V])), ...);
        };
        int64_t run = 0;
        if (M == 1 && count >= 2 * kChains) {
            Vec<T> more[kChains][M] = {};
            for (; run + kChains <= count; run += kChains) {
#pragma GCC unroll 4
                for (int chain = 0; chain < kChains; ++chain) add(run + chain, more[chain]);
            }
#pragma GCC unroll 4
            for (int chain = 0; chain < kChains; ++chain) ((sums[V] += more[chain][V]), ...);
        }
        for (; run < count; ++run) add(run, sums);
    }

    template <int V>
    static Vec<T> rows(const char* x, const int32_t* columns) {
        return as_vector<T>(gathered<static_cast<int>(M * sizeof(T))>(x, columns + V * C / M));
    }

    template <typename Item>
    static Item read(const char* from) {
        Item item;
        std::memcpy(&item, from, sizeof(Item));
        return item;
    }

    const int64_t* chunks_;
    const char* stream_;
};
#endif

// A barrier whose waiting threads give their processor away after a while.
class Barrier {
   public:
    explicit Barrier(int32_t threads) : threads_(threads), waiting_(threads) {}

    void wait() {
        const int64_t round = round_.load(std::memory_order_relaxed);
        if (waiting_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            waiting_.store(threads_, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        for (int64_t spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
            if (spins < kSpins) {
#if defined(__x86_64__)
                __builtin_ia32_pause();
#endif
            } else {
#if defined(_OPENMP)
                sched_yield();
#endif
            }
        }
    }

   private:
    static constexpr int64_t kSpins = 2000;
    int32_t threads_;
    alignas(64) std::atomic<int32_t> waiting_;
    alignas(64) std::atomic<int64_t> round_{0};
};

template <typename T, int M, typename Source>
class Traversal {
   public:
    explicit Traversal(const Powers& p) : p_(p) {}

    void run() const {
#if defined(_OPENMP)
        if (p_.threads > 1 && p_.lists > 1) {
            const int32_t team = sparloom::team(p_.threads);
            std::atomic<Barrier*> shared{nullptr};
            std::atomic<int64_t> next{0};  // list that no thread has taken, counted through all phases
            alignas(64) char storage[sizeof(Barrier)];
#pragma omp parallel num_threads(team)
            {
#pragma omp single
                {
                    shared = new (storage) Barrier(omp_get_num_threads());
                    next = omp_get_num_threads();
                }
                int64_t list = omp_get_thread_num();  // a thread keeps one that belongs to a later phase
                for (int64_t phase = 0; phase < p_.phases; ++phase) {
                    for (; list < (phase + 1) * p_.lists; list = next.fetch_add(1, std::memory_order_relaxed)) {
                        run_list(list);
                    }
                    if (phase + 1 < p_.phases) shared.load(std::memory_order_relaxed)->wait();
                }
            }
            return;
        }
#endif
        for (int64_t list = 0; list < p_.phases * p_.lists; ++list) run_list(list);
    }

   private:
    static constexpr int C = kRows<T>;

    void run_list(int64_t list) const {
        for (int64_t t = p_.bounds[list]; t < p_.bounds[list + 1]; ++t) {
            const PowersTask task = p_.tasks[t];
            const PowersStep step = p_.steps[task.step];
            if (step.x == nullptr) {
                copy(task, step);
            } else if (step.previous == nullptr && step.addend == nullptr && step.sum == nullptr && step.alpha == 1 &&
                       step.beta == 0) {
                products<false>(task, step);
            } else {
                products<true>(task, step);
            }
        }
    }

    int64_t place(int64_t row) const { return p_.place == nullptr ? row : p_.place[row]; }

    void copy(const PowersTask& task, const PowersStep& step) const {
        const int64_t end = std::min<int64_t>(int64_t{task.end} * C, p_.rows);
        for (int64_t row = int64_t{task.begin} * C; row < end; ++row) {
            const T* const from = static_cast<const T*>(step.in) + place(row) * p_.lead;
            T* const to = static_cast<T*>(step.y) + row * M;
            for (int c = 0; c < M; ++c) to[c] = c < p_.columns ? from[c] : T{0};
        }
    }

    template <bool kTerms>
    void products(const PowersTask& task, const PowersStep& step) const {
        const Source source(p_);
        const T* const x = static_cast<const T*>(step.x);
        T* const y = static_cast<T*>(step.y);
        alignas(64) T sums[C * M];
        for (int64_t chunk = task.begin; chunk < task.end; ++chunk) {
            const int64_t first = chunk * C * M, count = std::min<int64_t>(C, p_.rows - chunk * C) * M;
            const bool is_whole = count == C * M;
            T* const to = kTerms || !is_whole ? sums : y + first;
            source.sum(chunk, x, to);
            if (kTerms && is_whole) {
                finish(step, first, std::integral_constant<int64_t, C * M>{}, sums);
            } else if (kTerms) {
                finish(step, first, count, sums);
            } else if (!is_whole) {
                std::copy_n(sums, count, y + first);
            }
            if (step.out != nullptr) put(step, chunk);
        }
    }

    template <typename Count>
    [[gnu::always_inline]] static void finish(const PowersStep& step, int64_t first, Count count, const T* sums) {
        T* const y = static_cast<T*>(step.y) + first;
        const T* const x = static_cast<const T*>(step.x) + first;
        alignas(64) T found[C * M];
        const T alpha = static_cast<T>(step.alpha), beta = static_cast<T>(step.beta);
        for (int64_t i = 0; i < count; ++i) found[i] = alpha * sums[i];
        if (beta != 0) {
            for (int64_t i = 0; i < count; ++i) found[i] += beta * x[i];
        }
        if (step.previous != nullptr) {
            const T* const from = static_cast<const T*>(step.previous) + first;
            const T gamma = static_cast<T>(step.gamma);
            for (int64_t i = 0; i < count; ++i) found[i] += gamma * from[i];
        }
        if (step.addend != nullptr) {
            const T* const from = static_cast<const T*>(step.addend) + first;
            const T delta = static_cast<T>(step.delta);
            for (int64_t i = 0; i < count; ++i) found[i] += delta * from[i];
        }
        for (int64_t i = 0; i < count; ++i) y[i] = found[i];
        if (step.sum != nullptr) {
            T* const sum = static_cast<T*>(step.sum) + first;
            const T start = static_cast<T>(step.start), weight = static_cast<T>(step.weight);
            if (step.first) {
                for (int64_t i = 0; i < count; ++i) sum[i] = start * x[i] + weight * found[i];
            } else {
                for (int64_t i = 0; i < count; ++i) sum[i] += weight * found[i];
            }
        }
    }

    void put(const PowersStep& step, int64_t chunk) const {
        const T* const from = static_cast<const T*>(step.out_is_sum ? step.sum : step.y);
        const int64_t end = std::min<int64_t>((chunk + 1) * C, p_.rows);
        for (int64_t row = chunk * C; row < end; ++row) {
            T* const to = static_cast<T*>(step.out) + place(row) * p_.lead;
            for (int64_t c = 0; c < p_.columns; ++c) to[c] = from[row * M + c];
        }
    }

    const Powers& p_;
};

template <typename T, int M>
void run(const Powers& p) {
#if defined(SPARLOOM_PACKS)
    if (p.stream != nullptr) return Traversal<T, M, PackedSource<T, M>>(p).run();
#endif
    Traversal<T, M, CsrSource<T, M>>(p).run();
}

template <typename T>
void run_width(const Powers& p) {
    switch (p.width) {
        case 1: return run<T, 1>(p);
        case 2: return run<T, 2>(p);
        case 4: return run<T, 4>(p);
        default: return run<T, 8>(p);
    }
}

// Chunks are sized or written in parallel; a thread that gets no memory ends all of them.
template <typename T>
int32_t pack(const PackProblem& p) {
    const int64_t chunks = (p.rows + kRows<T> - 1) / kRows<T>;
    std::atomic<int32_t> failed{0};
#pragma omp parallel num_threads(sparloom::team(p.threads))
    {
        const int32_t status = out_of_memory([&] {
            packed::Chunk<T> chunk;
#pragma omp for schedule(static) nowait
            for (int64_t c = 0; c < chunks; ++c) {
                const int64_t first = c * kRows<T>;
                chunk.sort(p.indptr, p.indices, first, std::min<int64_t>(kRows<T>, p.rows - first));
                if (p.stream == nullptr) {
                    p.chunks[c + 1] = chunk.bytes();
                } else {
                    chunk.write(p.indices, static_cast<const T*>(p.values), p.stream + p.chunks[c]);
                }
            }
        });
        if (status) failed = 1;
    }
    if (failed) return 1;
    if (p.stream == nullptr) {
        p.chunks[0] = 0;
        for (int64_t c = 0; c < chunks; ++c) p.chunks[c + 1] += p.chunks[c];
    }
    return 0;
}

}  // namespace sparloom::powers

extern "C" {

void sparloom_powers_f32(const void* p) { sparloom::powers::run_width<float>(*static_cast<const Powers*>(p)); }
void sparloom_powers_f64(const void* p) { sparloom::powers::run_width<double>(*static_cast<const Powers*>(p)); }

int32_t sparloom_powers_packs() {
#if defined(SPARLOOM_PACKS)
    return 1;
#else
    return 0;
#endif
}

// Called twice, first without `stream`. Returns 1 if there is no memory.
int32_t sparloom_powers_pack(const PackProblem* p) {
    return p->doubles ? sparloom::powers::pack<double>(*p) : sparloom::powers::pack<float>(*p);
}

}  // extern "C"
