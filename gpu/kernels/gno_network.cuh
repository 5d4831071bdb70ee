// The first layer of the graph neural operator's kernel network, and accesses of a few consecutive values.
#pragma once

#include "products.cuh"

// Returns the 64-bit product by one instruction. The compiler multiplies 64-bit numbers if it moves the conversion of a
// factor out of a loop.
__device__ inline long long multiply_to_int64(int x, int y) {
#ifdef __CUDA_ARCH__
    long long product;
    asm("mul.wide.s32 %0, %1, %2;" : "=l"(product) : "r"(x), "r"(y));
    return product;
#else
    return (long long)(x) * y;
#endif
}
__device__ inline long long multiply_to_int64(long long x, int y) { return x * y; }

template <class T, class I> __device__ const T* row_at(const T* rows, I row, int width) {
    const long long offset = multiply_to_int64(row, width * int(sizeof(T)));
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(rows) + offset);
}

// Returns whether 16 bytes can be read at once.
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
template <class T, int n> __device__ void add_row_product(const T (&left)[n], const T (&right)[n][n], T (&sum)[n]) {
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
template <class T> struct KernelNetwork {
    const T* coords;
    const T* params;
    const T* coords_dot;
    const T* params_dot;
    int d;
    int hidden;

    // sum[i][j] += sum over c of weights[c, k + j] xi[rows[i], c], for existing units only.
    template <bool whole, class I, int m, int n>
    __device__ void add_weighted_coords(const T* weights, const T* xi, const I (&rows)[m], int k,
                                        T (&sum)[m][n]) const {
        const bool wide = hidden % n == 0 && is_aligned(weights);
        const T* of_row[m];
#pragma unroll
        for (int i = 0; i < m; i++) {
            of_row[i] = row_at(xi, rows[i], d);
        }
        weights += k;
#pragma unroll 1
        for (const T* const end = of_row[0] + d; of_row[0] != end; weights += hidden) {
            T of_units[n];
            load_run<whole>(weights, hidden - k, wide, of_units);
#pragma unroll
            for (int i = 0; i < m; i++) {
#pragma unroll
                for (int j = 0; j < n; j++) {
                    sum[i][j] += of_units[j] * *of_row[i];
                }
                of_row[i]++;
            }
        }
    }
    // Loads the biases from unit k on; they follow the rows of weights.
    template <bool whole, int m, int n> __device__ void load_bias(const T* weights, int k, T (&bias)[m][n]) const {
        const bool wide = hidden % n == 0 && is_aligned(weights);
        load_run<whole>(weights + (long long)(d) * hidden + k, hidden - k, wide, bias[0]);
#pragma unroll
        for (int i = 1; i < m; i++) {
#pragma unroll
            for (int j = 0; j < n; j++) {
                bias[i][j] = bias[0][j];
            }
        }
    }
    // Returns whether units can be read 16 bytes at a time.
    __device__ bool allows_wide_access() const {
        return hidden % 8 == 0 && is_aligned(params) && (params_dot == nullptr || is_aligned(params_dot));
    }
    static __device__ bool active(T z) { return !(z <= T(0)); }

    // out[i] = a or, with `dot`, a_dot of the units k .. k + n - 1 of rows[i], zero beyond the last unit. Bit n i + j
    // of the result says whether unit k + j of rows[i] is active.
    template <bool whole = false, class I, int m, int n>
    __device__ unsigned compute_hidden_units(bool dot, const I (&rows)[m], int k, T (&out)[m][n]) const {
        T z[m][n], a_dot[m][n] = {};
        unsigned bits = 0;
        load_bias<whole>(params, k, z);
        add_weighted_coords<whole>(params, coords, rows, k, z);
        if (dot && params_dot != nullptr) {
            load_bias<whole>(params_dot, k, a_dot);
            add_weighted_coords<whole>(params_dot, coords, rows, k, a_dot);
        }
        if (dot && coords_dot != nullptr) {
            add_weighted_coords<whole>(params, coords_dot, rows, k, a_dot);
        }
#pragma unroll
        for (int i = 0; i < m * n; i++) {
            const T value = z[i / n][i % n];
            const bool used = (whole || k + i % n < hidden) && active(value);
            out[i / n][i % n] = !used ? T(0) : dot ? a_dot[i / n][i % n] : value;
            bits |= unsigned(used) << i;
        }
        return bits;
    }
    // The same for one row.
    template <bool whole = false, class I, int n>
    __device__ unsigned compute_hidden_units(bool dot, I row, int k, T (&out)[n]) const {
        const I rows[1] = {row};
        T units_of_row[1][n];
        const unsigned bits = compute_hidden_units<whole>(dot, rows, k, units_of_row);
#pragma unroll
        for (int j = 0; j < n; j++) {
            out[j] = units_of_row[0][j];
        }
        return bits;
    }
};
