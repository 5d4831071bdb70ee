// Storage types of arrays: a kernel with storage type S computes in Compute<S>, reads with `value` and writes with
// `rounded`. The 16-bit types contain only bits, because not every host compiler supports them; kernels compute in
// float and round to nearest, ties to even.
#pragma once

struct float16 {
    unsigned short bits;
};

struct bfloat16 {
    unsigned short bits;
};

__device__ inline float to_float32(bfloat16 stored) { return __uint_as_float((unsigned)(stored.bits) << 16); }

__device__ inline bfloat16 round_to_bfloat16(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    bfloat16 rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
    return rounded;
#else
    const unsigned bits = __float_as_uint(value);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return {(unsigned short)(nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
#endif
}

__device__ inline float to_float32(float16 stored) {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(stored.bits));
    return value;
#else
    const unsigned sign = (stored.bits & 0x8000u) << 16, magnitude = stored.bits & 0x7fffu;
    if (magnitude < 0x400u) {  // subnormal: a multiple of 2^-24
        return __uint_as_float(sign | __float_as_uint(float(magnitude) * 5.9604644775390625e-8f));
    }
    const unsigned bias = magnitude < 0x7c00u ? 112u << 23 : 224u << 23;  // 224 for infinity and NaN
    return __uint_as_float(sign | ((magnitude << 13) + bias));
#endif
}

__device__ inline float16 round_to_float16(float value) {
#if defined(__CUDA_ARCH__)
    float16 rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
    return rounded;
#else
    const unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return {(unsigned short)(sign | 0x7e00u)};  // NaN
    }
    if (magnitude >= 0x47800000u) {  // 65536 and above round to infinity
        return {(unsigned short)(sign | 0x7c00u)};
    }
    // Round to a subnormal float16 number by adding 0.5: float numbers from 0.5 to 1 have the same spacing.
    if (magnitude < 0x38800000u) {
        const float shifted = __uint_as_float(magnitude) + 0.5f;
        return {(unsigned short)(sign | (__float_as_uint(shifted) - 0x3f000000u))};
    }
    return {(unsigned short)(sign | ((magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13))};
#endif
}

template <class S> struct Storage {
    using Compute = S;
    static __device__ S value(S stored) { return stored; }
    static __device__ S rounded(S value) { return value; }
};

template <> struct Storage<float16> {
    using Compute = float;
    static __device__ float value(float16 stored) { return to_float32(stored); }
    static __device__ float16 rounded(float value) { return round_to_float16(value); }
};

template <> struct Storage<bfloat16> {
    using Compute = float;
    static __device__ float value(bfloat16 stored) { return to_float32(stored); }
    static __device__ bfloat16 rounded(float value) { return round_to_bfloat16(value); }
};

template <class S> using Compute = typename Storage<S>::Compute;

#ifdef TRIGRAPH_GPU_HOST
template <> struct cuda_host::TypeName<float16> {
    static std::string text() { return "float16"; }
};
template <> struct cuda_host::TypeName<bfloat16> {
    static std::string text() { return "bfloat16"; }
};
#endif
