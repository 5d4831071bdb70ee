// Rows of a CSR array by groups of lanes, for families that gather rows of columns: the lanes of a group, at most a warp,
// lie along the columns first, what is left of them along the positions of a piece (see sums.cuh).
//
// Lanes are runtime numbers, so that a width of 1 wastes no more than a width of 100. A lane has several columns where
// 16 bytes can be read at a time. Every thread of a block reaches the shuffles, also those beyond the last piece.
#pragma once

#include "sums.cuh"

constexpr int row_threads = 128;

// Blocks that a multiprocessor shall hold at a time: this sets the registers of a thread, here so that none spill.
constexpr int row_blocks = 8;
template <class T> constexpr int few_row_blocks = sizeof(T) <= 4 ? 6 : 5;

// Neighbours in memory, read and written as one.
template <class S, int n> struct alignas(sizeof(S) * n) Pack {
    S at[n];
};

template <class S, bool wide> constexpr int pack_elements = wide ? 16 / int(sizeof(S)) : 1;

template <int n, class S> __device__ Pack<S, n> load_pack(const S* from) {
    return *reinterpret_cast<const Pack<S, n>*>(from);
}

template <int n, class S> __device__ void store_pack(S* to, const Pack<S, n>& pack) {
    *reinterpret_cast<Pack<S, n>*>(to) = pack;
}

struct Lanes {
    int column_bits;
    int position_bits;

    __device__ int bits() const { return column_bits + position_bits; }
    __device__ int groups() const { return row_threads >> bits(); }
    __device__ int group() const { return threadIdx.x >> bits(); }
    __device__ int columns() const { return 1 << column_bits; }
    __device__ int column() const { return threadIdx.x & (columns() - 1); }
    __device__ int positions() const { return 1 << position_bits; }
    __device__ int position() const { return (threadIdx.x >> column_bits) & (positions() - 1); }
};

// Sum over the lanes of a group that share a column; all of them get it.
template <class T> __device__ T sum_over_positions(const Lanes& lanes, T sum) {
    for (int bit = lanes.column_bits; bit < lanes.bits(); bit++) {
        sum += __shfl_xor_sync(0xffffffffu, sum, 1 << bit);
    }
    return sum;
}

// Sum over the lanes of a group that share a position.
template <class T> __device__ T sum_over_columns(const Lanes& lanes, T sum) {
    for (int bit = 0; bit < lanes.column_bits; bit++) {
        sum += __shfl_xor_sync(0xffffffffu, sum, 1 << bit);
    }
    return sum;
}

// What a block of threads does: `tiles` tiles of columns for the same pieces, one group of lanes for each piece.
template <int n> struct Place {
    int column;       // the first of this lane's n columns
    long long piece;  // number of the piece

    __device__ Place(const Lanes& lanes, int width) {
        const int tile = n << lanes.column_bits;
        const unsigned tiles = (width + tile - 1) / tile;
        column = int(blockIdx.x % tiles) * tile + n * lanes.column();
        piece = (long long)(blockIdx.x / tiles) * lanes.groups() + lanes.group();
    }
};
