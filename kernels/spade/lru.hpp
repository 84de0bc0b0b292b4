// Sets of least-recently-used lines, each kept as an array in order of use (the first is the newest).
//
// A tag is (row number << 1 | dirty). `exchange` looks for one row and puts a row (the same, or another) in front: the
// found tag, or the oldest, leaves. With AVX-512 a set of up to 16 ways is one register and the move is one permutation;
// the scalar path gives the same result, bit by bit.
//
// Preconditions: row numbers below 2^31 - 1; at most 64 ways.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__AVX512F__) && defined(__AVX2__)
#include <immintrin.h>
#define SPADE_VECTOR_LRU 1
#endif

namespace spade {

constexpr uint32_t EMPTY = 0xFFFFFFFEu;  // no row, not dirty

inline uint32_t tag_of(int64_t row) { return static_cast<uint32_t>(row) << 1; }

#ifdef SPADE_VECTOR_LRU
struct MoveTable {
    alignas(64) int32_t to_front[16][16];  // lane p first, lanes before p one to the right
    constexpr MoveTable() : to_front() {
        for (int p = 0; p < 16; ++p)
            for (int lane = 0; lane < 16; ++lane) to_front[p][lane] = lane == 0 ? p : lane <= p ? lane - 1 : lane;
    }
};
inline constexpr MoveTable MOVES{};

inline __m512i move_in(__m512i set, unsigned position, uint32_t tag) {
    const __m512i moved = _mm512_permutexvar_epi32(_mm512_load_si512(MOVES.to_front[position]), set);
    return _mm512_mask_set1_epi32(moved, 1, static_cast<int>(tag));
}

inline uint32_t find(__m512i set, uint32_t tag) {
    const __m512i difference = _mm512_xor_si512(set, _mm512_set1_epi32(static_cast<int>(tag)));
    return _mm512_cmple_epu32_mask(difference, _mm512_set1_epi32(1));
}
#endif

class Sets {
public:
    // count == 0: the level does not exist.
    void build(int64_t count, int ways) {
        count_ = static_cast<uint32_t>(count);
        ways_ = ways;
        stride_ = ways <= 4 ? 4 : ways <= 8 ? 8 : ways <= 16 ? 16 : ways <= 32 ? 32 : 64;
        reciprocal_ = count_ ? UINT64_MAX / count_ + 1 : 0;
        store_.assign(static_cast<size_t>(count_) * stride_ + 16, EMPTY);
        const auto address = reinterpret_cast<uintptr_t>(store_.data());
        tags_ = store_.data() + ((64 - address % 64) % 64) / 4;
    }

    bool exists() const { return count_ != 0; }
    uint32_t count() const { return count_; }
    int ways() const { return ways_; }
    uint32_t* set(uint32_t index) { return tags_ + static_cast<size_t>(index) * stride_; }

    uint32_t* set_of(uint32_t tag) {
        if (count_ == 1) return tags_;
        const uint64_t fraction = reciprocal_ * (tag >> 1);  // row modulo count, by Lemire's multiplication
        return set(static_cast<uint32_t>((static_cast<unsigned __int128>(fraction) * count_) >> 64));
    }

    void prefetch(uint32_t tag) { __builtin_prefetch(set_of(tag)); }

    // Touch a row, optionally making it dirty; true on a hit. On a miss *victim is the tag that left.
    bool access(uint32_t tag, uint32_t dirty, uint32_t* victim) {
        return exchange(set_of(tag), tag, tag | dirty, victim);
    }

    // Make a row dirty without touching it; false when it is not here.
    bool mark(uint32_t tag) {
        uint32_t* line = set_of(tag);
        for (int way = 0; way < ways_; ++way)
            if ((line[way] & ~1u) == tag) {
                line[way] |= 1u;
                return true;
            }
        return false;
    }

    // Look for `wanted` in a set; put `entering` in front (dirty if it, or the same row found, is). True when found.
    bool exchange(uint32_t* line, uint32_t wanted, uint32_t entering, uint32_t* victim) {
#ifdef SPADE_VECTOR_LRU
        if (stride_ == 8) {
            const __m256i set = _mm256_load_si256(reinterpret_cast<__m256i*>(line));
            const __m256i one = _mm256_set1_epi32(1);
            const __m256i same = _mm256_cmpeq_epi32(_mm256_or_si256(set, one), _mm256_set1_epi32(int(wanted | 1u)));
            const auto mask = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(same)));
            const unsigned position = __builtin_ctz(mask | 1u << (ways_ - 1));
            const uint32_t left = line[position];
            const __m256i order = _mm256_load_si256(reinterpret_cast<const __m256i*>(MOVES.to_front[position]));
            const __m256i moved = _mm256_permutevar8x32_epi32(set, order);
            const __m256i front = _mm256_set1_epi32(int(kept(mask, wanted, entering, left)));
            _mm256_store_si256(reinterpret_cast<__m256i*>(line), _mm256_blend_epi32(moved, front, 1));
            *victim = left;
            return mask != 0;
        }
        if (stride_ == 16) {
            const __m512i set = _mm512_load_si512(line);
            const uint32_t mask = find(set, wanted);
            const unsigned position = __builtin_ctz(mask | 1u << (ways_ - 1));
            const uint32_t left = line[position];
            _mm512_store_si512(line, move_in(set, position, kept(mask, wanted, entering, left)));
            *victim = left;
            return mask != 0;
        }
        if (stride_ == 32) {
            const __m512i newer = _mm512_load_si512(line), older = _mm512_load_si512(line + 16);
            const uint32_t mask = find(newer, wanted) | find(older, wanted) << 16;
            const unsigned position = __builtin_ctz(mask | 1u << (ways_ - 1));
            const uint32_t left = line[position], between = line[15];
            const uint32_t front = kept(mask, wanted, entering, left);
            if (position < 16) {
                _mm512_store_si512(line, move_in(newer, position, front));
            } else {
                _mm512_store_si512(line + 16, move_in(older, position - 16, between));
                _mm512_store_si512(line, move_in(newer, 15, front));
            }
            *victim = left;
            return mask != 0;
        }
#endif
        int position = 0;
        while (position < ways_ - 1 && (line[position] & ~1u) != wanted) ++position;
        const uint32_t left = line[position];
        const bool hit = (left & ~1u) == wanted;
        const uint32_t front = kept(hit, wanted, entering, left);
        for (int way = position; way > 0; --way) line[way] = line[way - 1];
        line[0] = front;
        *victim = left;
        return hit;
    }

private:
    // A row that stays keeps its dirty flag.
    static uint32_t kept(uint32_t hit, uint32_t wanted, uint32_t entering, uint32_t left) {
        return hit && (entering & ~1u) == wanted ? entering | (left & 1u) : entering;
    }

    uint32_t count_ = 0;
    int ways_ = 0, stride_ = 0;
    uint64_t reciprocal_ = 0;
    std::vector<uint32_t> store_;
    uint32_t* tags_ = nullptr;
};

}  // namespace spade
