// Functions that the kernels of gno_message on tensor cores share: they split float32 arrays into bfloat16 parts and
// multiply these as in tensor.cuh.
//
// V^, features and g are split once for all kernels of a call; the hidden layer, moments and Q are split where they are
// used. The depth of a product may be permuted if both factors use the same permutation. Therefore a lane's four
// numbers along a depth or along columns are consecutive in memory.
//
// Each sum that is not finite is recomputed without tensor cores.
#pragma once

#include "gno_message.cuh"
#include "tensor.cuh"

// Minimum of resident blocks per multiprocessor (__launch_bounds__); the resulting register limit causes no spills.
template <class I> constexpr int tensor_blocks_per_sm = sizeof(I) == 4 ? 4 : 3;
constexpr int tensor_edge_blocks_per_sm = 3;

// ---- parts in global memory -----------------------------------------------------------------------------------------

// A group holds four consecutive numbers of a row. Each of the three parts has two words, with the first number in the
// lower half of the first word. Rows are padded with zeros to a multiple of 8 groups, the features of a slab.
constexpr int group_words = 6;

__device__ inline int groups_of(int width) { return (width + 31) / 32 * 8; }

// The parts of two numbers, NaN if three parts do not hold them.
__device__ inline PairParts split_pair_or_nan(float low, float high) {
    PairParts parts;
    if (split_pair(low, high, parts) != 0) {
        parts.at[0] = nan_parts;
    }
    return parts;
}

// Splits the numbers values[row, 4 group + i] into parts[row, group]. Each number is split separately, so that a number
// that three parts do not hold affects no other.
__global__ void __launch_bounds__(THREADS)
gno_split_rows_tensor(const float* __restrict__ values, long long num_rows, int width, int* __restrict__ parts) {
    const int groups = groups_of(width);
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x, row = i / groups;
    const int column = int(i - row * groups) * 4;
    if (row < num_rows) {
        PairParts of[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            of[j] = split_pair_or_nan(column + j < width ? values[row * width + column + j] : 0.0f, 0.0f);
        }
#pragma unroll
        for (int p = 0; p < 3; p++) {
            parts[i * group_words + p * 2] = int(join_halves(of[0].at[p], of[1].at[p], false));
            parts[i * group_words + p * 2 + 1] = int(join_halves(of[2].at[p], of[3].at[p], false));
        }
    }
}

// A pair of right tiles: depth 16 and 16 columns, (part, lane, 4 words).
constexpr int pair_words = 3 * 32 * 4;

// parts[k, step, pair] of the right tiles v[k, 16 step .., 16 pair ..], where numbers are depth_stride apart along the
// depth and col_stride along columns. A lane has the depths 4 (lane % 4) + 2 i, + 1 in word i of a tile, and column
// tensor_pair_col(lane / 4, t) of tile t.
__device__ inline int tensor_pair_col(int col, int t) { return col / 2 * 4 + t * 2 + col % 2; }

__global__ void __launch_bounds__(THREADS)
gno_split_v_tensor(const float* __restrict__ v, int num_k, int depth, int cols, int depth_stride, int col_stride,
                   int* __restrict__ parts) {
    const int steps = (depth + 15) / 16, pairs = (cols + 15) / 16;
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x, tile = i / 128;
    const int word = int(i % 4), lane = int(i / 4 % 32);
    const int pair = int(tile % pairs), step = int(tile / pairs % steps);
    const long long k = tile / pairs / steps;
    if (k < num_k) {
        const int x = step * 16 + lane % 4 * 4 + word % 2 * 2;
        const int z = pair * 16 + tensor_pair_col(lane / 4, word / 2);
        const float* const from = v + k * depth * cols + (long long)(x) * depth_stride + (long long)(z) * col_stride;
        const PairParts of = split_pair_or_nan(z < cols && x < depth ? from[0] : 0.0f,
                                               z < cols && x + 1 < depth ? from[depth_stride] : 0.0f);
#pragma unroll
        for (int p = 0; p < 3; p++) {
            parts[tile * pair_words + p * 128 + lane * 4 + word] = int(of.at[p]);
        }
    }
}

// ---- operands of products -------------------------------------------------------------------------------------------

// Splits a left tile, where x[0] and x[1] are the lane's numbers in the rows lane / 4 and lane / 4 + 8.
__device__ inline LeftParts split_rows_of_lane(const float (&x)[2][4]) {
    LeftParts parts;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        parts.set_row(i, {x[i][0], x[i][1], x[i][2], x[i][3]});
    }
    return parts;
}

// Loads a left tile from groups of rows that are already split.
__device__ inline LeftParts load_left_parts(const int* first, const int* second) {
    LeftParts parts;
#pragma unroll
    for (int p = 0; p < 3; p++) {
        const Pack<int, 2> of[2] = {load_pack<2>(first + p * 2), load_pack<2>(second + p * 2)};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            parts.at[p][i] = unsigned(of[i % 2].at[i / 2]);
        }
    }
    return parts;
}

// sum[t] += left right for the tiles t of a pair.
__device__ inline void multiply_add_pair(const LeftParts& left, const int* pair, float (&sum)[2][4]) {
    RightParts right[2];
#pragma unroll
    for (int p = 0; p < 3; p++) {
        const Pack<int, 4> words = load_pack<4>(pair + (p * 32 + lane_of_warp()) * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            right[i / 2].at[p][i % 2] = unsigned(words.at[i]);
        }
    }
#pragma unroll
    for (int t = 0; t < 2; t++) {
        multiply_add(left, right[t], sum[t]);
    }
}

// The lane's sums of a pair in row lane / 4 + 8 half, columns 4 (lane % 4) ...
__device__ inline void extract_pair_row(const float (&sum)[2][4], int half, float (&row)[4]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        row[j] = sum[j / 2][half * 2 + j % 2];
    }
}

template <int m> __device__ bool any_not_finite(const float (&sums)[m][4]) {
    float zero = 0.0f;  // NaN if any is not finite
#pragma unroll
    for (int i = 0; i < m; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            zero += sums[i][j] * 0.0f;
        }
    }
    return __any_sync(0xffffffffu, zero != 0.0f);
}
