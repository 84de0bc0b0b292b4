// Numbers of 16 bits, for ELEMENT: memory holds them, sums are float. Without headers of CUDA, so that any compiler
// takes the text; a host has its own conversions of Half.

// The same 32 bits as a float.
union Word {
    unsigned bits;
    float value;
};

// IEEE binary16; a float becomes the nearest one, halfway the even one.
struct Half {
    unsigned short bits;

    Half() = default;
#ifdef __CUDACC__
    __device__ Half(float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
    __device__ operator float() const {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    }
#else
    Half(float value) : bits(__builtin_bit_cast(unsigned short, _Float16(value))) {}
    operator float() const { return __builtin_bit_cast(_Float16, bits); }
#endif
};

// The upper half of a float; a float becomes the nearest one, halfway the even one.
struct Bfloat {
    unsigned short bits;

    Bfloat() = default;
    __device__ Bfloat(float value) {
        Word word;
        word.value = value;
        const bool nan = (word.bits & 0x7fffffffu) > 0x7f800000u;
        const unsigned nearest = nan ? word.bits | 0x400000u : word.bits + 0x7fffu + (word.bits >> 16 & 1u);
        bits = static_cast<unsigned short>(nearest >> 16);
    }
    __device__ operator float() const {
        Word word;
        word.bits = unsigned(bits) << 16;
        return word.value;
    }
};
