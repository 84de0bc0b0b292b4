// exp of numbers that are not positive, as softmax asks for it, written so that loops over it become vectors.

#pragma once

#include <cstdint>
#include <cstring>

namespace sparloom {

// exp(x) for x <= 0; 0 below -87.3, where results are no normal numbers. Polynomial and parts of log(2) are those of
// exp_f32 in sparloom.ir (from Cephes), which takes any x and needs two powers of two for it.
inline float exponential(float x) {
    constexpr float kLeast = -87.3f, kLog2E = 1.44269504f, kRound = 12582912.0f;  // adding 1.5 * 2^23 rounds to whole
    constexpr float kLog2Large = 0.693359375f, kLog2Small = -2.12194440e-4f;      // log(2) in two parts
    const float in = x < kLeast ? kLeast : x;
    const float whole = (in * kLog2E + kRound) - kRound;
    const float rest = (in - whole * kLog2Large) - whole * kLog2Small;
    float p = 1.9875691500e-4f;
    p = p * rest + 1.3981999507e-3f;
    p = p * rest + 8.3334519073e-3f;
    p = p * rest + 4.1665795894e-2f;
    p = p * rest + 1.6666665459e-1f;
    p = p * rest + 5.0000001201e-1f;
    const int32_t bits = (static_cast<int32_t>(whole) + 127) * (1 << 23);
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return x < kLeast ? 0.0f : (p * (rest * rest) + rest + 1.0f) * power;
}

// The same in double; 0 below -708.3. The polynomial is the series of exp up to rest^13: rest is at most log(2) / 2.
inline double exponential(double x) {
    constexpr double kLeast = -708.3, kLog2E = 1.4426950408889634, kRound = 6755399441055744.0;  // 1.5 * 2^52
    constexpr double kLog2Large = 0.6931471803691238, kLog2Small = 1.9082149292705877e-10;
    constexpr double kSeries[] = {1 / 6227020800.0, 1 / 479001600.0, 1 / 39916800.0, 1 / 3628800.0, 1 / 362880.0,
                                  1 / 40320.0,      1 / 5040.0,      1 / 720.0,      1 / 120.0,     1 / 24.0,
                                  1 / 6.0,          0.5};
    const double in = x < kLeast ? kLeast : x, rounded = in * kLog2E + kRound, whole = rounded - kRound;
    const double rest = (in - whole * kLog2Large) - whole * kLog2Small;
    double p = kSeries[0];
#pragma GCC unroll 12
    for (int n = 1; n < 12; ++n) p = p * rest + kSeries[n];
    int64_t bits;
    std::memcpy(&bits, &rounded, sizeof bits);  // its lowest bits are those of `whole`
    bits = static_cast<int64_t>((static_cast<uint64_t>(bits) + 1023) << 52);
    double power;
    std::memcpy(&power, &bits, sizeof power);
    return x < kLeast ? 0.0 : (p * (rest * rest) + rest + 1.0) * power;
}

}  // namespace sparloom
