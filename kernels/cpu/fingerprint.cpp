// Fingerprints memory: 122 bits that differ after any change of the bytes read, except with a probability below 2^-50, if
// the key is random and unknown to the writer.
//
// Blocks of 4 KiB are hashed by NH (Black et al., UMAC: Fast and Secure Message Authentication, section 4), twice, with
// shifted keys; the hashes of blocks are coefficients of two polynomials modulo 2^61 - 1, evaluated at random points.
// One thread already reads at the rate of memory, and more threads would have to be woken up.
// Preconditions (checked in Python): key holds kKeyWords random words.

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t kBlock = 4096, kVector = 64;  // bytes
constexpr int64_t kVectors = kBlock / kVector, kVectorWords = kVector / 4;
constexpr int64_t kKeyWords = (kVectors + 1) * kVectorWords + 4;
constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint64_t Sums __attribute__((vector_size(64)));

struct Pair {
    uint64_t first, second;
};

uint64_t folded(uint64_t value) {
    value = (value & kPrime) + (value >> 61);
    return value >= kPrime ? value - kPrime : value;
}

uint64_t step(uint64_t hash, uint64_t at, uint64_t coefficient) {
    const unsigned __int128 sum = static_cast<unsigned __int128>(hash) * at + folded(coefficient);
    return folded((static_cast<uint64_t>(sum) & kPrime) + static_cast<uint64_t>(sum >> 61));
}

Pair block_hash(const char* block, const uint32_t* key) {
    Sums first{}, second{};
    for (int64_t v = 0; v < kVectors; ++v) {
        Words words, here, next;
        std::memcpy(&words, block + v * kVector, kVector);
        std::memcpy(&here, key + v * kVectorWords, kVector);
        std::memcpy(&next, key + (v + 1) * kVectorWords, kVector);
        const Sums a = reinterpret_cast<Sums>(words + here), b = reinterpret_cast<Sums>(words + next);
        first += (a & 0xffffffffu) * (a >> 32);
        second += (b & 0xffffffffu) * (b >> 32);
    }
    Pair sum{0, 0};
    for (int64_t lane = 0; lane < kVector / 8; ++lane) {
        sum.first += first[lane];
        sum.second += second[lane];
    }
    return sum;
}

}  // namespace

// Writes the fingerprint to result (2). parts (2 * count) are the address and the bytes of each part, key (kKeyWords);
// of a part with more than `sample` whole blocks about `sample` blocks are read, evenly spaced; 0: all.
extern "C" void sparloom_fingerprint(const int64_t* parts, int64_t count, int64_t sample, const uint32_t* key,
                                     uint64_t* result) {
    uint64_t at[2];
    std::memcpy(at, key + kKeyWords - 4, sizeof at);
    at[0] = folded(at[0]);
    at[1] = folded(at[1]);
    Pair hash{1, 1};
    const auto add = [&](const Pair& value) {
        hash = {step(hash.first, at[0], value.first), step(hash.second, at[1], value.second)};
    };
    for (int64_t p = 0; p < count; ++p) {
        const char* part = reinterpret_cast<const char*>(parts[2 * p]);
        const int64_t whole = parts[2 * p + 1] / kBlock, rest = parts[2 * p + 1] % kBlock;
        const int64_t stride = sample && whole > sample ? (whole + sample - 1) / sample : 1;
        for (int64_t n = 0; n < whole; n += stride) add(block_hash(part + n * kBlock, key));
        if (rest) {
            char padded[kBlock] = {};
            std::memcpy(padded, part + whole * kBlock, rest);
            add(block_hash(padded, key));
        }
        const auto bytes = static_cast<uint64_t>(parts[2 * p + 1]);  // so that the boundaries of parts count
        add({bytes, bytes});
    }
    result[0] = hash.first;
    result[1] = hash.second;
}
