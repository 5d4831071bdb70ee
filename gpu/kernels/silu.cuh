// Derivatives of SiLU, f(x) = x s(x) with the logistic function s, by the formulas of fortran/fast/silu.fypp.
#pragma once

#include "constants.cuh"

// With t = 1 - s and p = s t, f' = s + x p, f'' = p (2 + x (t - s)) and f''' = p (3 (t - s) + x (1 - 6 p)). Both s and
// t are computed from exp(-|x|), so that neither loses digits where the other is nearly 1.
template <class T> struct SiluDerivatives {
    T first, second, third;

    __device__ explicit SiluDerivatives(T x) {
        const T power = exp(-fabs(x)), whole = T(1) / (T(1) + power), rest = power * whole;
        const T s = x < T(0) ? rest : whole, t = x < T(0) ? whole : rest, p = s * t;
        first = s + x * p;
        second = p * (T(2) + x * (t - s));
        third = p * (T(3) * (t - s) + x * (T(1) - T(6) * p));
    }
};

// Computes the gradients of grad f'(x) with respect to grad and x, given its cotangent gg.
template <class T>
__global__ void __launch_bounds__(THREADS)
silu_bwd2(const T* __restrict__ gg, const T* __restrict__ grad, const T* __restrict__ x, T* __restrict__ out_grad,
          T* __restrict__ out_x, long long size) {
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < size) {
        const SiluDerivatives<T> f(x[i]);
        out_grad[i] = gg[i] * f.first;
        out_x[i] = gg[i] * grad[i] * f.second;
    }
}

// Computes the gradients with respect to the arguments of silu_bwd2, given the cotangents ggg_grad and ggg_x of its results.
template <class T>
__global__ void __launch_bounds__(THREADS)
silu_bwd3(const T* __restrict__ ggg_grad, const T* __restrict__ ggg_x, const T* __restrict__ gg, const T* __restrict__ grad,
          const T* __restrict__ x, T* __restrict__ out_gg, T* __restrict__ out_grad, T* __restrict__ out_x, long long size) {
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < size) {
        const SiluDerivatives<T> f(x[i]);
        out_gg[i] = ggg_grad[i] * f.first + ggg_x[i] * grad[i] * f.second;
        out_grad[i] = ggg_x[i] * gg[i] * f.second;
        out_x[i] = gg[i] * (ggg_grad[i] * f.second + ggg_x[i] * grad[i] * f.third);
    }
}
