// Products of float32 matrices on tensor cores: each number is the sum of three bfloat16 parts, and six of the nine
// products of parts are added. The three that are left out are below 2^-24 of the product of the numbers.
//
// mma.sync.m16n8k16 multiplies a left tile of 16 rows and depth 16 by a right tile of 8 columns. A tensor core may
// truncate when it adds; how is not documented. Therefore the product of the leading parts starts at zero,
// and ordinary additions, which round to nearest, add it to the running sum. The five small products are at most 2^-7
// of it, so that truncation among them does no harm. An element of the result depends only on its row and its column.
//
// Three parts hold every float32 number exactly, except infinities, NaN, numbers next to the largest one, and numbers
// below 2^-110 in magnitude. All sums with one of these are NaN; the caller recomputes sums that are not finite without
// tensor cores.
#pragma once

#include "gat_storage.cuh"

// Whether the instance is compiled for a device with bfloat16 tensor cores. Others compile, but must not execute it.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool has_tensor_cores = false;
#else
constexpr bool has_tensor_cores = true;
#endif

constexpr int tensor_rows = 16, tensor_cols = 8, tensor_depth = 16;

// The bfloat16 parts of two numbers at consecutive depths, largest parts first. Each 32-bit word holds one part of each
// number, with the number at the smaller depth in the lower half.
struct PairParts {
    unsigned at[3];
};

__device__ inline unsigned round_to_bfloat16_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return unsigned(round_to_bfloat16(high).bits) << 16 | round_to_bfloat16(low).bits;
#endif
}

// The lower or upper halves of two words.
__device__ inline unsigned join_halves(unsigned low, unsigned high, bool upper) {
#ifdef __CUDA_ARCH__
    return __byte_perm(low, high, upper ? 0x7632 : 0x5410);
#else
    return upper ? (high & 0xffff0000u) | low >> 16 : high << 16 | (low & 0xffffu);
#endif
}

// Splits two numbers. Returns zero only if three parts hold both of them exactly.
__device__ inline unsigned split_pair(float low, float high, PairParts& parts) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
        parts.at[p] = round_to_bfloat16_pair(low, high);
        low -= __uint_as_float(parts.at[p] << 16);
        high -= __uint_as_float(parts.at[p] & 0xffff0000u);
    }
    // If three parts hold a number, its remainder has at most 8 significant bits and needs no rounding.
    const unsigned low_bits = __float_as_uint(low), high_bits = __float_as_uint(high);
    parts.at[2] = join_halves(low_bits, high_bits, true);
    return join_halves(low_bits, high_bits, false);
}

constexpr unsigned nan_parts = 0x7fff7fffu;  // two bfloat16 NaN

// The parts of four numbers in a row of a left tile or in a column of a right tile. If three parts do not hold all four
// numbers, all sums of the row or column become NaN.
struct QuadParts {
    PairParts pair[2];

    __device__ QuadParts(float low, float high, float next_low, float next_high) {
        const unsigned first = split_pair(low, high, pair[0]), second = split_pair(next_low, next_high, pair[1]);
        if ((first | second) != 0) {
            pair[0].at[0] = nan_parts;
        }
    }
};

// The parts of a left tile that a lane of a warp holds. Word i is in row left_row(i), at the depths left_depth(i) and
// left_depth(i) + 1.
struct LeftParts {
    unsigned at[3][4];

    // Sets the words i and i + 2, which belong to one row.
    __device__ void set_row(int i, const QuadParts& row) {
#pragma unroll
        for (int p = 0; p < 3; p++) {
            at[p][i] = row.pair[0].at[p];
            at[p][i + 2] = row.pair[1].at[p];
        }
    }
};
__device__ inline int left_row(int i) { return int(threadIdx.x) % 32 / 4 + i % 2 * 8; }
__device__ inline int left_depth(int i) { return int(threadIdx.x) % 4 * 2 + i / 2 * 8; }

// The parts of a right tile that a lane holds. Word i is in column right_col(), at the depths right_depth(i) and
// right_depth(i) + 1.
struct RightParts {
    unsigned at[3][2];

    RightParts() = default;
    __device__ explicit RightParts(const QuadParts& column) {
#pragma unroll
        for (int p = 0; p < 3; p++) {
            at[p][0] = column.pair[0].at[p];
            at[p][1] = column.pair[1].at[p];
        }
    }
};
__device__ inline int right_col() { return int(threadIdx.x) % 32 / 4; }
__device__ inline int right_depth(int i) { return int(threadIdx.x) % 4 * 2 + i * 8; }

// The row and column of a lane's sum number i.
__device__ inline int sum_row(int i) { return int(threadIdx.x) % 32 / 4 + i / 2 * 8; }
__device__ inline int sum_col(int i) { return int(threadIdx.x) % 4 * 2 + i % 2; }

// Splits a left tile with the elements left(row, depth).
template <class Left> __device__ LeftParts split_left_tile(const Left& left) {
    LeftParts parts;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = left_row(i), x = left_depth(i), next = left_depth(i + 2);
        parts.set_row(i, {left(row, x), left(row, x + 1), left(row, next), left(row, next + 1)});
    }
    return parts;
}

// Splits a right tile with the elements right(depth, col).
template <class Right> __device__ RightParts split_right_tile(const Right& right) {
    const int col = right_col(), x = right_depth(0), next = right_depth(1);
    return RightParts({right(x, col), right(x + 1, col), right(next, col), right(next + 1, col)});
}

struct TileSum {
    float at[4];
};

// before + left right for one part of each, by all lanes of a warp.
__device__ inline TileSum multiply_parts(const unsigned (&left)[4], const unsigned (&right)[2], const TileSum& before) {
    TileSum sum = before;
#ifdef TRIGRAPH_GPU_HOST
    cuda_host::multiply_add_tiles(left, right, sum.at);
#elif __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(sum.at[0]), "=f"(sum.at[1]), "=f"(sum.at[2]), "=f"(sum.at[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]), "f"(before.at[0]),
          "f"(before.at[1]), "f"(before.at[2]), "f"(before.at[3]));
#endif
    return sum;
}

// sum += left right for tiles of float32 numbers, by all lanes of a warp. The product of two tiles is rounded
// separately, as are 16 consecutive terms in other kernels (see sums.cuh).
__device__ inline void multiply_add(const LeftParts& left, const RightParts& right, float (&sum)[4]) {
    TileSum small = multiply_parts(left.at[2], right.at[0], {});
    small = multiply_parts(left.at[0], right.at[2], small);
    small = multiply_parts(left.at[1], right.at[1], small);
    small = multiply_parts(left.at[1], right.at[0], small);
    small = multiply_parts(left.at[0], right.at[1], small);
    const TileSum leading = multiply_parts(left.at[0], right.at[0], {});
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum[i] += leading.at[i] + small.at[i];
    }
}

__device__ inline bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

// Returns whether any lane of the warp has a sum that is not finite. Only these sums are recomputed without tensor
// cores, so that an element never depends on its neighbours.
template <int n> __device__ bool any_not_finite(const float (&sums)[n]) {
    bool finite = true;
#pragma unroll
    for (int i = 0; i < n; i++) {
        finite = finite && is_finite(sums[i]);
    }
    return __any_sync(0xffffffffu, !finite);
}
