// Small matrix products of the edges of pieces in shared memory, several of them side by side in a block of 128 threads.
//
// A product is done by 2^row_bits times 2^col_bits lanes, each with 4 by 2 sums in registers: a tile of 4 * 2^row_bits
// rows and 2 * 2^col_bits columns. What remains of the 128 threads makes further groups, each with a product of its own.
// Lanes are runtime numbers, so that a width of 1 wastes no more than a width of 100. Both factors lie depth first.
#pragma once

#include "products.cuh"

constexpr int tile_threads = 128;

// Blocks that a multiprocessor shall hold at a time: this sets the registers of a thread, here so that none spill.
template <class T> constexpr int many_blocks_per_sm = sizeof(T) == 4 ? 8 : 5;
template <class T> constexpr int few_blocks_per_sm = sizeof(T) == 4 ? 5 : 4;

struct PieceTile {
    int row_bits;
    int col_bits;
    int depth_bits;

    __device__ int rows() const { return lane_rows << row_bits; }
    __device__ int cols() const { return lane_cols << col_bits; }
    __device__ int depth() const { return 1 << depth_bits; }
    __device__ int lanes() const { return 1 << (row_bits + col_bits); }
    __device__ int groups() const { return tile_threads >> (row_bits + col_bits); }
    __device__ int group() const { return threadIdx.x >> (row_bits + col_bits); }
    __device__ int lane() const { return threadIdx.x & (lanes() - 1); }
    __device__ int row(int i) const { return (lane() >> col_bits) + (i << row_bits); }
    __device__ int col(int j) const { return (lane() & ((1 << col_bits) - 1)) + (j << col_bits); }
    // One element more than the tile has: a column of it then falls into different banks.
    __device__ int row_stride() const { return rows() + 1; }
    __device__ int col_stride() const { return cols() + 1; }
    __device__ int factor_elements() const { return (row_stride() + col_stride()) << depth_bits; }
};

// sum[i][j] += sum over x < depth of left[x][row(i)] right[x][col(j)]; that sum is rounded on its own, so that chains of
// roundings stay as short as a tile is deep.
template <class T>
__device__ void multiply_tile(
    const PieceTile& tile, const T* left, const T* right, int depth, T (&sum)[lane_rows][lane_cols]) {
    const int row_step = 1 << tile.row_bits, col_step = 1 << tile.col_bits;
    left += tile.row(0);
    right += tile.col(0);
    T part[lane_rows][lane_cols] = {};
    for (int x = 0; x < depth; x++) {
        T l[lane_rows], r[lane_cols];
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
            l[i] = left[i * row_step];
        }
#pragma unroll
        for (int j = 0; j < lane_cols; j++) {
            r[j] = right[j * col_step];
        }
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
#pragma unroll
            for (int j = 0; j < lane_cols; j++) {
                part[i][j] += l[i] * r[j];
            }
        }
        left += tile.row_stride();
        right += tile.col_stride();
    }
#pragma unroll
    for (int i = 0; i < lane_rows; i++) {
#pragma unroll
        for (int j = 0; j < lane_cols; j++) {
            sum[i][j] += part[i][j];
        }
    }
}
