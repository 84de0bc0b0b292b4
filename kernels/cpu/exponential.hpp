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

}  // namespace sparloom
