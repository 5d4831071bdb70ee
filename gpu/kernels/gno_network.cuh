// The first layer of the graph neural operator's kernel network, and accesses of a few consecutive values.
#pragma once

#include "products.cuh"

// Whether 16 bytes can be read at once.
__device__ inline bool is_aligned(const void* address) {
    return reinterpret_cast<unsigned long long>(address) % 16 == 0;
}

// The first `count` of consecutive values, zero beyond, read 16 bytes at a time if their addresses are `wide`. If the
// caller knows that there are n values with such addresses (`whole`), nothing is checked.
template <bool whole = false, class T, int n>
__device__ void load_run(const T* from, int count, bool wide, T (&run)[n]) {
    if (whole || (wide && count >= n)) {
        read(from, run);
        return;
    }
#pragma unroll
    for (int j = 0; j < n; j++) {
        run[j] = j < count ? from[j] : T(0);
    }
}

template <bool whole = false, class T, int n>
__device__ void store_run(T* to, int count, bool wide, const T (&run)[n]) {
    if (whole || (wide && count >= n)) {
        write(to, run);
        return;
    }
#pragma unroll
    for (int j = 0; j < n; j++) {
        if (j < count) {
            to[j] = run[j];
        }
    }
}

// sum += left . right.
template <class T, int n> __device__ void add_dot(const T (&left)[n], const T (&right)[n], T& sum) {
#pragma unroll
    for (int x = 0; x < n; x++) {
        sum += left[x] * right[x];
    }
}

// sum[j] += sum over x of left[x] right[x][j].
template <class T, int n> __device__ void add_row(const T (&left)[n], const T (&right)[n][n], T (&sum)[n]) {
#pragma unroll
    for (int x = 0; x < n; x++) {
#pragma unroll
        for (int j = 0; j < n; j++) {
            sum[j] += left[x] * right[x][j];
        }
    }
}

// The hidden layer a of an edge row, and its tangent a_dot = U xi_dot + U_dot xi + b_u_dot where the layer is active;
// xi are the coords, and U_dot, b_u_dot are of params_dot.
template <class T> struct Network {
    const T* coords;
    const T* params;
    const T* coords_dot;
    const T* params_dot;
    int d;
    int hidden;

    // sum[j] += sum over c of weights[c, k + j] xi[row, c], for existing units only.
    template <bool whole, int n>
    __device__ void add_linear(const T* weights, const T* xi, long long row, int k, T (&sum)[n]) const {
        const bool wide = hidden % n == 0 && is_aligned(weights);
        xi += row * d;
        weights += k;
#pragma unroll 1
        for (const T* const end = xi + d; xi != end; xi++, weights += hidden) {
            T of_row[n];
            load_run<whole>(weights, hidden - k, wide, of_row);
#pragma unroll
            for (int j = 0; j < n; j++) {
                sum[j] += of_row[j] * *xi;
            }
        }
    }
    // The biases from unit k on, which follow the rows of weights.
    template <bool whole, int n> __device__ void load_bias(const T* weights, int k, T (&bias)[n]) const {
        const bool wide = hidden % n == 0 && is_aligned(weights);
        load_run<whole>(weights + (long long)(d) * hidden + k, hidden - k, wide, bias);
    }
    // Whether units can be read 16 bytes at a time.
    __device__ bool is_wide() const {
        return hidden % 8 == 0 && is_aligned(params) && (params_dot == nullptr || is_aligned(params_dot));
    }
    static __device__ bool active(T z) { return !(z <= T(0)); }

    // a or, with `dot`, a_dot of the units k .. k + n - 1, zero beyond the last; returns bits of the active ones.
    template <bool whole = false, int n> __device__ unsigned units(bool dot, long long row, int k, T (&out)[n]) const {
        T z[n], a_dot[n] = {};
        unsigned bits = 0;
        load_bias<whole>(params, k, z);
        add_linear<whole>(params, coords, row, k, z);
        if (dot && params_dot != nullptr) {
            load_bias<whole>(params_dot, k, a_dot);
            add_linear<whole>(params_dot, coords, row, k, a_dot);
        }
        if (dot && coords_dot != nullptr) {
            add_linear<whole>(params, coords_dot, row, k, a_dot);
        }
#pragma unroll
        for (int j = 0; j < n; j++) {
            const bool used = (whole || k + j < hidden) && active(z[j]);
            out[j] = !used ? T(0) : dot ? a_dot[j] : z[j];
            bits |= unsigned(used) << j;
        }
        return bits;
    }
};
