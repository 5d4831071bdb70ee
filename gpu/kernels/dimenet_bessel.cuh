// Radial functions of DimeNet++ and their first two or three derivatives with respect to x = distance / cutoff.
#pragma once
#include "bessel_zeros.cuh"

// Value and first two derivatives of a function of x.
template <class T> struct Jet {
    T value, d1, d2;
};

template <class T> __device__ Jet<T> multiply_jets(const Jet<T>& f, const Jet<T>& g) {
    return {f.value * g.value, f.d1 * g.value + f.value * g.d1, f.d2 * g.value + T(2) * f.d1 * g.d1 + f.value * g.d2};
}

__device__ __forceinline__ float bessel_zero(float, int l, int k) { return bessel_zeros_float[l][k]; }
__device__ __forceinline__ double bessel_zero(double, int l, int k) { return bessel_zeros_double[l][k]; }
__device__ __forceinline__ float bessel_norm(float, int l, int k) { return bessel_norms_float[l][k]; }
__device__ __forceinline__ double bessel_norm(double, int l, int k) { return bessel_norms_double[l][k]; }

// Returns j_l(y) for 0 < y < 8 from the series y^l / (2l+1)!! (1 - h / (2l+3) (1 - h / (2 (2l+5)) (1 - ...))), h = y^2 / 2.
template <class T> __device__ T bessel_series(int l, T y) {
    constexpr int terms = sizeof(T) == 4 ? 12 : 20;  // enough for full precision if y < l
    const T h = T(0.5) * y * y;
    T sum = T(1);
#pragma unroll 1
    for (int k = terms; k > 0; k--) {
        sum = T(1) - h * sum / T(k * (2 * l + 2 * k + 1));
    }
    T power = T(1), divisor = T(1);
#pragma unroll 1
    for (int i = 1; i <= l; i++) {
        power *= y;
        divisor *= T(2 * i + 1);
    }
    return sum * (power / divisor);
}

// Computes here = j_l(y) and above = j_(l+1)(y) for y > 0, given inverse = 1 / y. The upward recurrence from j_0 = sin y / y is
// stable for y above the order. Below the order, its errors grow without bound, and the power series is used. At the transition,
// both methods have errors below 5 eps (|j| + |y j'|), comparable to the rounding of y; float needs no double arithmetic.
template <class T> __device__ void spherical_bessel(int l, T y, T inverse, T& here, T& above) {
    here = sin(y) * inverse;
    above = (here - cos(y)) * inverse;
#pragma unroll 1
    for (int n = 1; n <= l; n++) {
        const T next = T(2 * n + 1) * inverse * above - here;
        here = above;
        above = next;
    }
    if (y < T(l)) {
        here = bessel_series(l, y);
    }
    if (y < T(l + 1)) {
        above = bessel_series(l + 1, y);
    }
}

// Returns N_lk j_l(z_lk x), where z_lk is the k-th zero of j_l. The second and third derivatives follow from the Bessel equation.
template <class T> __device__ Jet<T> bessel_basis(int l, int k, T x, T* third = nullptr) {
    const T zero = bessel_zero(x, l, k), norm = bessel_norm(x, l, k), y = zero * x, inverse = T(1) / y;
    T here, above;
    spherical_bessel(l, y, inverse, here, above);
    const T ratio = here * inverse;
    if (third != nullptr) {
        const T square = inverse * inverse;
        *third = norm * zero * zero * zero *
                 (T(l - 2) * ratio * (T(l * l - l) * square - T(1)) + above * (T(1) - T(l * l + l + 6) * square));
    }
    return {norm * here, norm * zero * (T(l) * ratio - above),
            norm * zero * zero * (T(l * l - l) * ratio * inverse - here + T(2) * above * inverse)};
}

template <class T> __device__ Jet<T> sine_basis(T freq, T x) {
    const T s = sin(freq * x), c = cos(freq * x);
    return {s, freq * c, -(freq * freq * s)};
}

// Envelope 1/x - (q+1)(q+2)/2 x^(q-1) + q(q+2) x^q - q(q+1)/2 x^(q+1) for 0 < x < 1, with q = envelope_exponent + 1 >= 3.
// Returns zero for x >= 1 and NaN for x <= 0.
template <class T> __device__ Jet<T> envelope(T x, int envelope_exponent, T* third = nullptr) {
    if (third != nullptr) {
        *third = T(0);
    }
    if (x >= T(1)) {
        return {T(0), T(0), T(0)};
    }
    if (x <= T(0)) {
        const T none = (x - x) / (x - x);
        return {none, none, none};
    }
    const int q = envelope_exponent + 1;
    T power = T(1);  // becomes x^(q-3) in the loop
#pragma unroll 1
    for (int n = 3; n < q; n++) {
        power *= x;
    }
    const T inverse = T(1) / x, a = T((q + 1) * (q + 2) / 2), b = T(q * (q + 2)), c = T(q * (q + 1) / 2);
    const T p1 = power * x, p2 = p1 * x, p3 = p2 * x, p4 = p3 * x;
    if (third != nullptr) {
        const T square = inverse * inverse;
        *third = T(-6) * square * square - a * T((q - 1) * (q - 2)) * T(q - 3) * (power * inverse) +
                 b * T(q * (q - 1)) * T(q - 2) * power - c * T(q * (q + 1)) * T(q - 1) * p1;
    }
    return {inverse - a * p2 + b * p3 - c * p4,
            -inverse * inverse - a * T(q - 1) * p1 + b * T(q) * p2 - c * T(q + 1) * p3,
            T(2) * inverse * inverse * inverse - a * T((q - 1) * (q - 2)) * power + b * T(q * (q - 1)) * p1 -
                c * T(q * (q + 1)) * p2};
}
