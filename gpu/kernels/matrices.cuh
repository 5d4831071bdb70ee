// Products of tall matrices with small ones: out = left right, for any number of rows.
//
// A block computes a tile of `MATRIX_ROWS` rows and `cols` columns: wide tiles reuse loaded values more often, narrow
// ones waste less for few columns. It loops over the depth in steps of `matrix_depth`, with both factors in shared
// memory; a thread has MATRIX_ROWS * cols / MATRIX_THREADS sums in registers. The sum of a step is rounded separately,
// to avoid long chains of additions. A row of the result depends bitwise only on that row of `left`, not on the number
// of rows, as in a library's product.
#pragma once

#include "products.cuh"

constexpr int matrix_depth = 16;

// Minimum of resident blocks per multiprocessor (__launch_bounds__); the resulting register limit causes no spills.
template <class T> constexpr int matrix_blocks_per_sm = sizeof(T) == 4 ? 2 : 1;

// out[m, n] = sum over k < depth of left[m, k] right[k, n], added to `out` if `add`. Rows of `left` have `depth`
// elements, those of `out` `width`; right[k, n] is at k * k_stride + n * n_stride, one of which is 1.
template <class T, int cols>
__global__ void __launch_bounds__(MATRIX_THREADS, matrix_blocks_per_sm<T>)
multiply(const T* __restrict__ left, const T* __restrict__ right, long long num_rows, int depth, int width,
         long long k_stride, long long n_stride, int add, T* __restrict__ out) {
    constexpr int lane_n = 4, lanes_n = cols / lane_n;
    constexpr int lane_m = MATRIX_ROWS * lanes_n / MATRIX_THREADS;
    // Padded by one access, so that neighbours along the depth are in different banks.
    constexpr int left_stride = MATRIX_ROWS + 4, right_stride = cols + 4;
    __shared__ __align__(16) T left_tile[matrix_depth * left_stride];
    __shared__ __align__(16) T right_tile[matrix_depth * right_stride];
    const unsigned col_tiles = (width + cols - 1) / cols;
    const long long m0 = (long long)(blockIdx.x / col_tiles) * MATRIX_ROWS;
    const int n0 = int(blockIdx.x % col_tiles) * cols;
    const int rows = num_rows - m0 < MATRIX_ROWS ? int(num_rows - m0) : MATRIX_ROWS, columns = min(cols, width - n0);
    const int m = int(threadIdx.x) / lanes_n * lane_m, n = int(threadIdx.x) % lanes_n * lane_n;
    T total[lane_m][lane_n] = {};
    for (int k0 = 0; k0 < depth; k0 += matrix_depth) {
        const int here = min(matrix_depth, depth - k0);
        for (int i = threadIdx.x; i < MATRIX_ROWS * matrix_depth; i += MATRIX_THREADS) {
            const int k = i % matrix_depth, row = i / matrix_depth;
            const bool there = k < here && row < rows;
            left_tile[k * left_stride + row] = there ? left[(m0 + row) * depth + k0 + k] : T(0);
        }
        for (int i = threadIdx.x; i < cols * matrix_depth; i += MATRIX_THREADS) {
            const int k = k_stride == 1 ? i % matrix_depth : i / cols;
            const int col = k_stride == 1 ? i / matrix_depth : i % cols;
            const bool there = k < here && col < columns;
            right_tile[k * right_stride + col] = there ? right[(k0 + k) * k_stride + (n0 + col) * n_stride] : T(0);
        }
        __syncthreads();
        if (m < rows && n < columns) {
            T part[lane_m][lane_n] = {};
#pragma unroll 4
            for (int k = 0; k < here; k++) {
                T l[lane_m], r[lane_n];
                read(left_tile + k * left_stride + m, l);
                read(right_tile + k * right_stride + n, r);
                add_outer(l, r, part);
            }
            add_to(total, part);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < lane_m; i++) {
#pragma unroll
        for (int j = 0; j < lane_n; j++) {
            if (m + i < rows && n + j < columns) {
                T* const target = out + (m0 + m + i) * width + n0 + n + j;
                *target = add ? *target + total[i][j] : total[i][j];
            }
        }
    }
}
