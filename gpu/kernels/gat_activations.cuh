// Activations of attention scores and their first two derivatives. Comparisons treat NaN as positive; derivatives at 0
// are taken from the left. Differences such as 1 - tanh^2 are computed without cancellation.
#pragma once

#include "constants.cuh"

template <class T> struct Activation {
    int kind;  // activation_linear, activation_relu, ... of constants.cuh
    T negative_slope;

    __device__ static bool positive(T x) { return !(x <= T(0)); }
    // First and second derivatives of the sigmoid s: sigmoid_slope = s (1 - s) and sigmoid_curvature = -sigmoid_slope
    // (2 s - 1).
    __device__ static T sigmoid_slope(T x) {
        const T e = exp(-fabs(x));
        return e / ((T(1) + e) * (T(1) + e));
    }
    __device__ static T sigmoid_curvature(T x) { return -sigmoid_slope(x) * tanh(x / T(2)); }

    __device__ T value(T x) const {
        switch (kind) {
        case activation_relu:
            return positive(x) ? x : T(0);
        case activation_leakyrelu:
            return positive(x) ? x : negative_slope * x;
        case activation_elu:
            return positive(x) ? x : expm1(x);
        case activation_sigmoid: {
            const T e = exp(-fabs(x));
            return (x < T(0) ? e : T(1)) / (T(1) + e);
        }
        case activation_tanh:
            return tanh(x);
        default:
            return x;
        }
    }

    // Returns the first derivative at x times t.
    __device__ T slope_times(T x, T t) const {
        switch (kind) {
        case activation_relu:
            return positive(x) ? t : T(0);
        case activation_leakyrelu:
            return positive(x) ? t : negative_slope * t;
        case activation_elu:
            return positive(x) ? t : exp(x) * t;
        case activation_sigmoid:
            return sigmoid_slope(x) * t;
        case activation_tanh:
            return T(4) * sigmoid_slope(T(2) * x) * t;
        default:
            return t;
        }
    }

    // Returns the second derivative at x times t.
    __device__ T curvature_times(T x, T t) const {
        switch (kind) {
        case activation_elu:
            return positive(x) ? T(0) : exp(x) * t;
        case activation_sigmoid:
            return sigmoid_curvature(x) * t;
        case activation_tanh:
            return T(8) * sigmoid_curvature(T(2) * x) * t;
        default:
            return T(0);
        }
    }
};
