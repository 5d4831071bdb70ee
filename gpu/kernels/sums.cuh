// Sums in a fixed order, for all families: over rows of a CSR array, cut into pieces, and over rows of a matrix.
//
// Row i has the positions offsets[i]..offsets[i+1]-1. A row with at most `PART_SIZE` positions is one piece, numbered
// like the row. A longer row is cut into parts of `PART_SIZE` positions, counted from its start; the graph contains a
// list of all parts, and part t is piece num_rows + t. Therefore the sums of a row depend only on that row.
//
// The piece of a whole row writes the result of the row. A part writes a row of an overflow array, which
// sum_long_row_parts adds in a tree whose shape depends only on the number of parts. For a long row, the piece numbered
// like the row is empty; sum_long_row_parts overwrites its result.
//
// If all terms are equal, the roundings in a chain of additions have the same direction: the error is 0 for 4 terms,
// 2.3 eps for 16, and 32 eps for 256. Therefore no chain has more than 16 terms, and sums have few levels of chains.
#pragma once

#include "constants.cuh"

// A sum of up to 256 terms in runs of 16.
template <class T> struct Sum {
    T total = T(0);
    T chunk = T(0);

    // Adds term number i, counted from 0.
    __device__ void add(T term, int i) {
        chunk += term;
        if ((i & 15) == 15) {
            total += chunk;
            chunk = T(0);
        }
    }
    __device__ T value() const { return total + chunk; }
};

// A sum in runs of 2^run_bits terms, applied recursively to the sums of runs; the last level is a single chain.
template <class T, int levels, int run_bits> struct TreeSum {
    T sums[levels] = {};

    __device__ void add(T term, int i) {
#pragma unroll
        for (int level = 0; level < levels; level++) {
            sums[level] += term;
            if (level == levels - 1 || (i + 1) & ((1 << run_bits * (level + 1)) - 1)) {
                return;
            }
            term = sums[level];
            sums[level] = T(0);
        }
    }
    __device__ T value() const {
        T sum = sums[0];
#pragma unroll
        for (int level = 1; level < levels; level++) {
            sum = sums[level] + sum;
        }
        return sum;
    }
};

// A sum of any number of terms.
template <class T> using LongSum = TreeSum<T, 6, 3>;

// A piece: the consecutive positions of a row that a thread or a group of lanes sums.
template <class I> struct RowPiece {
    I row;
    I begin;   // first position
    int size;  // number of positions
};

// Rows and their pieces. If `offsets` is null, row i has the single position i. `parts` contains the row of every part,
// then the first position of every part: 2 * (num_pieces - num_rows) numbers. If `parts` is null, no row is cut.
template <class I> struct RowPartition {
    const I* offsets;
    const I* parts;
    long long num_rows;
    long long num_pieces;

    __device__ bool is_row(long long s) const { return s < num_rows; }

    // Returns piece number s, or an empty piece beyond the last.
    __device__ RowPiece<I> piece(long long s) const {
        if (s >= num_pieces) {
            return {I(0), I(0), 0};
        }
        if (offsets == nullptr) {
            return {I(s), I(s), 1};
        }
        const I row = is_row(s) ? I(s) : parts[s - num_rows];
        const I begin = is_row(s) ? offsets[row] : parts[num_pieces - num_rows + s - num_rows];
        const I size = offsets[row + 1] - begin;
        return {row, begin, parts == nullptr || size <= I(PART_SIZE) ? int(size) : is_row(s) ? 0 : PART_SIZE};
    }

    // Returns the address for the `width` sums of piece s: a row of `out`, or a row of `overflow` for a part.
    template <class T> __device__ T* output_address(long long s, int width, T* out, T* overflow) const {
        return is_row(s) ? out + s * width : overflow + (s - num_rows) * width;
    }
};

// Sums pairwise over threadIdx.y in a block of 32 by 8 threads; only threads with threadIdx.y = 0 return the result.
template <class T> __device__ T sum_over_y(T sum, T (*sums)[32]) {
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0) {
        const int x = threadIdx.x;
        const T second_half = (sums[4][x] + sums[5][x]) + (sums[6][x] + sums[7][x]);
        sum = ((sum + sums[1][x]) + (sums[2][x] + sums[3][x])) + second_half;
    }
    return sum;
}

// The long row of a block; there is a block for each long row and tile of 32 columns. `long_rows` contains the
// `num_long` rows, then the first part of each row, then the part after the last part of each row.
template <class I> struct LongRow {
    long long row;
    long long first;
    long long end;
    int column;

    __device__ LongRow(const I* long_rows, long long num_long, int width) {
        const unsigned col_tiles = (width + 31) / 32;
        const long long i = blockIdx.x / col_tiles;
        row = long_rows[i];
        first = long_rows[num_long + i];
        end = long_rows[2 * num_long + i];
        column = int(blockIdx.x % col_tiles) * 32 + int(threadIdx.x);
    }

    // Sums this column over the overflow rows of the parts; only threads with threadIdx.y = 0 return the result.
    template <class T> __device__ T sum_parts(const T* overflow, int width, T (*sums)[32]) const {
        LongSum<T> terms;
        if (column < width) {
            int i = 0;
            for (long long t = first + threadIdx.y; t < end; t += 8) {
                terms.add(overflow[t * width + column], i++);
            }
        }
        return sum_over_y(terms.value(), sums);
    }
};

// For every long row, out[row] = sum of the overflow rows of its parts, divided by divisor[row] unless null.
template <class T, class I>
__global__ void __launch_bounds__(256)
sum_long_row_parts(const T* __restrict__ overflow, const I* __restrict__ long_rows, long long num_long, int width,
                   const T* __restrict__ divisor, T* __restrict__ out) {
    __shared__ T sums[8][32];
    const LongRow<I> long_row(long_rows, num_long, width);
    const T sum = long_row.sum_parts(overflow, width, sums);
    if (threadIdx.y == 0 && long_row.column < width) {
        out[long_row.row * width + long_row.column] = divisor == nullptr ? sum : sum / divisor[long_row.row];
    }
}

// out[row] = sum over its positions of values[order[position]].
template <class T, class I>
__global__ void __launch_bounds__(THREADS)
sum_gathered_rows(const T* __restrict__ values, const I* __restrict__ order, const RowPartition<I> partition, int width,
                  int lane_bits, T* __restrict__ out, T* __restrict__ overflow) {
    const long long s = (long long)(blockIdx.x) * (THREADS >> lane_bits) + (threadIdx.x >> lane_bits);
    const RowPiece<I> piece = partition.piece(s);
    if (s < partition.num_pieces) {
        T* const target = partition.output_address(s, width, out, overflow);
        for (int j = threadIdx.x & ((1 << lane_bits) - 1); j < width; j += 1 << lane_bits) {
            Sum<T> sum;
            for (int e = 0; e < piece.size; e++) {
                sum.add(values[(long long)(order[piece.begin + e]) * width + j], e);
            }
            target[j] = sum.value();
        }
    }
}

// Copies the row of `values` for each piece, or zeros for empty pieces, so that values without edges have no effect.
template <class T, class I>
__global__ void __launch_bounds__(THREADS)
copy_rows_to_pieces(const T* __restrict__ values, const RowPartition<I> partition, int width, T* __restrict__ out) {
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < partition.num_pieces * width) {
        const long long s = i / width;
        const RowPiece<I> piece = partition.piece(s);
        out[i] = piece.size > 0 ? values[(long long)(piece.row) * width + i - s * width] : T(0);
    }
}

// out[row] = values[row], zero for a row without positions.
template <class T, class I>
__global__ void __launch_bounds__(THREADS)
copy_nonempty_rows(const T* __restrict__ values, const I* __restrict__ offsets, long long num_rows, int width,
                   T* __restrict__ out) {
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < num_rows * width) {
        const long long row = i / width;
        out[i] = offsets[row] == offsets[row + 1] ? T(0) : values[i];
    }
}

// sums[y] = sum of up to `block_rows` rows of `values`, starting at row y * block_rows, plus the rows of `earlier` in
// reverse order, plus the old sums[y] if `accumulate`. Each row is a matrix (outer, width / outer), written transposed.
template <class T>
__global__ void __launch_bounds__(256)
sum_rows(const T* __restrict__ values, long long num_rows, long long width, int block_rows, long long outer,
         const T* earlier, int num_earlier, int accumulate, T* sums) {
    __shared__ T parts[8][32];
    const long long j = (long long)(blockIdx.x) * 32 + threadIdx.x;
    const long long begin = (long long)(blockIdx.y) * block_rows;
    const long long end = begin + block_rows < num_rows ? begin + block_rows : num_rows;
    TreeSum<T, 3, 2> terms;
    if (j < width) {
        int i = 0;
        for (long long row = begin + threadIdx.y; row < end; row += 8) {
            terms.add(values[row * width + j], i++);
        }
    }
    T sum = sum_over_y(terms.value(), parts);
    if (threadIdx.y == 0 && j < width) {
        for (int row = num_earlier - 1; row >= 0; row--) {
            sum += earlier[row * width + j];
        }
        const long long inner = width / outer;
        T* const target = sums + blockIdx.y * width + j % inner * outer + j / inner;
        *target = accumulate ? *target + sum : sum;
    }
}
