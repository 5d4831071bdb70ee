// Small matrix products for the edges of pieces in shared memory, several of them in a block of 128 threads.
//
// 2^row_bits times 2^col_bits lanes compute a product, each with 4 by 4 sums in registers for adjacent rows and
// columns. The remaining threads form further groups, each with a separate product. Both factors are stored depth
// first, and a lane reads 16 bytes of them at a time.
#pragma once

#include "products.cuh"

constexpr int tile_side = 4;  // rows and columns of a lane

// Minimum of resident blocks per multiprocessor (__launch_bounds__); the resulting register limit causes no spills.
template <class T> constexpr int many_blocks_per_sm = sizeof(T) == 4 ? 8 : 5;
template <class T> constexpr int tile_blocks_per_sm = sizeof(T) == 4 ? 4 : 3;
template <class T> constexpr int few_blocks_per_sm = sizeof(T) == 4 ? 5 : 4;

template <int row_bits, int col_bits> struct PieceTile {
    static constexpr int rows = tile_side << row_bits, cols = tile_side << col_bits, lanes = 1 << (row_bits + col_bits);
    static constexpr int groups = THREADS / lanes;
    static constexpr int depth = lanes < 32 ? 8 : 16;
    // Padded by one access, so that neighbours along the depth are in different banks.
    static constexpr int row_stride = rows + tile_side, col_stride = cols + tile_side;
    static constexpr int group_elements = depth * (row_stride + col_stride), elements = groups * group_elements;

    static __device__ int group() { return threadIdx.x / lanes; }
    static __device__ int lane() { return threadIdx.x % lanes; }
    static __device__ int row() { return (lane() >> col_bits) * tile_side; }
    static __device__ int col() { return lane() % (1 << col_bits) * tile_side; }
};

// The first `count` of consecutive values, read 16 bytes at a time if their addresses are `wide`.
template <class T> __device__ void load_run(const T* from, int count, bool wide, T (&run)[tile_side]) {
    if (wide && count >= tile_side) {
        read(from, run);
        return;
    }
#pragma unroll
    for (int j = 0; j < tile_side; j++) {
        run[j] = j < count ? from[j] : T(0);
    }
}

template <class T> __device__ void store_run(T* to, int count, bool wide, const T (&run)[tile_side]) {
    if (wide && count >= tile_side) {
        write(to, run);
        return;
    }
#pragma unroll
    for (int j = 0; j < tile_side; j++) {
        if (j < count) {
            to[j] = run[j];
        }
    }
}

// Loads one factor of a tile by the lanes of a group, 4 consecutive values at a time: from(x, y, run) returns
// to[x][y ..], or to[x ..][y] if values are consecutive `along_x`; it may leave unused values undefined.
template <class Tile, int width, bool along_x, class T, class From>
__device__ void load_factor(T* to, const From& from) {
    constexpr int stride = width + tile_side;
    for (int i = Tile::lane(); i < width * Tile::depth / tile_side; i += Tile::lanes) {
        const int x = along_x ? i / width * tile_side : i / (width / tile_side);
        const int y = along_x ? i % width : i % (width / tile_side) * tile_side;
        T run[tile_side] = {};
        from(x, y, run);
#pragma unroll
        for (int j = 0; j < tile_side && along_x; j++) {
            to[(x + j) * stride + y] = run[j];
        }
        if (!along_x) {
            write(to + x * stride + y, run);
        }
    }
}

// sum[i][j] += sum over x < depth of left[x][row + i] right[x][col + j]. This sum is rounded separately, so that chains
// of additions are no longer than the depth of a tile.
template <class Tile, class T>
__device__ void multiply_tile(const T* left, const T* right, int depth, T (&sum)[tile_side][tile_side]) {
    left += Tile::row();
    right += Tile::col();
    T part[tile_side][tile_side] = {};
#pragma unroll 4
    for (int x = 0; x < depth; x++) {
        T l[tile_side], r[tile_side];
        read(left + x * Tile::row_stride, l);
        read(right + x * Tile::col_stride, r);
        add_outer(l, r, part);
    }
    add_to(sum, part);
}
