// Sums in a fixed order, for every family: over the rows of a CSR array, cut into pieces, and over the rows of a matrix.
//
// Row i has the positions offsets[i]..offsets[i+1]-1. Every row is cut where a multiple of `chunk` falls inside it, so a
// piece lies within one row and within one tile t of `chunk` positions, and a long row is many pieces: work is even,
// and no sum is longer than `chunk`. Piece s = i + t: that number is free of gaps and needs no scan, since tile and row
// both only grow. There are num_rows + num_positions / chunk pieces, a number the host knows; a row without positions
// has one empty piece, and a row that ends at a multiple of `chunk` an empty one more.
//
// The first piece of a row writes the row's result, each other one row t of an overflow array, and add_overflow adds
// those in a tree whose shape depends on their number alone.
//
// Where all terms are alike, all roundings of a chain of additions go the same way: 4 equal terms err by nothing, 16 by 2.3
// eps, 256 by 32 eps. So no chain has more than 16 terms, and there are few levels of those.
#pragma once

// A sum in runs of 16 terms, for up to 256 of them.
template <class T> struct Sum {
    T total = T(0);
    T run = T(0);

    // Adds term number i, counted from 0.
    __device__ void add(T term, int i) {
        run += term;
        if (i % 16 == 15) {
            total += run;
            run = T(0);
        }
    }
    __device__ T value() const { return total + run; }
};

// A sum in runs of 2^run_bits terms, whose sums are summed alike, and so on; at the last level, in one chain.
template <class T, int levels, int run_bits> struct TreeSum {
    T sums[levels] = {};

    // Adds term number i, counted from 0.
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

// For sums of any length.
template <class T> using LongSum = TreeSum<T, 6, 3>;

// What a thread knows of its piece.
template <class I> struct Piece {
    I row;
    I begin;   // first position
    int size;  // number of positions
};

// The row of piece s: the last i with i + offsets[i] / chunk <= s.
template <class I> __device__ I piece_row(const I* offsets, long long num_rows, int chunk, long long s) {
    long long low = 0, high = num_rows - 1;
    while (low < high) {
        const long long middle = (low + high + 1) / 2;
        if (middle + offsets[middle] / chunk <= s) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return I(low);
}

// Piece s of the table (row, begin, end; each num_pieces long) that cut_rows wrote; an empty one beyond its end.
template <class I> __device__ Piece<I> load_piece(const I* table, long long num_pieces, long long s) {
    if (s >= num_pieces) {
        return {I(0), I(0), 0};
    }
    const I begin = table[num_pieces + s];
    return {table[s], begin, int(table[2 * num_pieces + s] - begin)};
}

// The longest of `count` pieces from s on.
template <class I> __device__ int longest_piece(const I* table, long long num_pieces, long long s, int count) {
    int longest = 0;
    for (int i = 0; i < count; i++) {
        longest = max(longest, load_piece(table, num_pieces, s + i).size);
    }
    return longest;
}

// Where piece s writes its `width` sums.
template <class T, class I>
__device__ T* piece_target(const Piece<I>& piece, const I* offsets, long long s, int width, T* out, T* overflow) {
    const bool first = piece.begin == offsets[piece.row];
    return first ? out + (long long)(piece.row) * width : overflow + (s - piece.row) * width;
}

// table (3, num_pieces): row, begin and end of every piece.
template <class I>
__global__ void __launch_bounds__(128)
cut_rows(const I* __restrict__ offsets, long long num_rows, int chunk, long long num_pieces, I* __restrict__ table) {
    const long long s = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (s < num_pieces) {
        const I row = piece_row(offsets, num_rows, chunk, s);
        const I tile = I(s - row);
        const I low = offsets[row], high = offsets[row + 1];
        table[s] = row;
        table[num_pieces + s] = tile > low / chunk ? tile * chunk : low;
        table[2 * num_pieces + s] = tile < high / chunk ? (tile + 1) * chunk : high;
    }
}

// Sum over the y of a block of 32 by 8 threads, pairwise; the result is with y = 0.
template <class T> __device__ T sum_over_y(T sum, T (*sums)[32]) {
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0) {
        const int x = threadIdx.x;
        sum = ((sum + sums[1][x]) + (sums[2][x] + sums[3][x])) + ((sums[4][x] + sums[5][x]) + (sums[6][x] + sums[7][x]));
    }
    return sum;
}

// The row whose first cut is where tile `tile` >= 1 begins, and the tiles of its pieces beyond the first one; none, first >
// last, if that tile begins with no row's first cut.
struct CutRow {
    long long row;
    long long first;
    long long last;
};

template <class I> __device__ CutRow cut_row(const I* offsets, long long num_rows, int chunk, long long tile) {
    // The last row that begins before the tile: the one that is cut, if any.
    long long low = 0, high = num_rows - 1;
    while (low < high) {
        const long long middle = (low + high + 1) / 2;
        if (offsets[middle] < tile * chunk) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    const long long begin = offsets[low], end = offsets[low + 1];
    const bool none = end <= tile * chunk || begin / chunk != tile - 1;
    return {low, tile, none ? tile - 1 : (end - 1) / chunk};
}

// out[row] += the sum of the overflow rows of a row's pieces beyond its head; 32 columns to a block. The block of tile
// t >= 1 works if the first cut of a row is where t begins. Piece (row, t) has overflow row t + by_piece * row.
template <class T, class I>
__global__ void __launch_bounds__(256)
add_overflow(const T* __restrict__ overflow, const I* __restrict__ offsets, long long num_rows, int chunk, int by_piece,
             int width, T* __restrict__ out) {
    __shared__ T sums[8][32];
    const unsigned col_tiles = (width + 31) / 32;
    const CutRow cut = cut_row(offsets, num_rows, chunk, (long long)(blockIdx.x / col_tiles) + 1);
    if (cut.first > cut.last) {
        return;
    }
    const int j = int(blockIdx.x % col_tiles) * 32 + threadIdx.x;
    LongSum<T> terms;
    if (j < width) {
        int i = 0;
        for (long long t = cut.first + threadIdx.y; t <= cut.last; t += 8) {
            terms.add(overflow[(t + by_piece * cut.row) * width + j], i++);
        }
    }
    const T sum = sum_over_y(terms.value(), sums);
    if (threadIdx.y == 0 && j < width) {
        out[cut.row * width + j] += sum;
    }
}

// out[row] = sum over its positions of values[order[position]].
template <class T, class I>
__global__ void __launch_bounds__(128)
gather_rows(const T* __restrict__ values, const I* __restrict__ order, const I* __restrict__ table,
            const I* __restrict__ offsets, long long num_pieces, int width, int lane_bits, T* __restrict__ out,
            T* __restrict__ overflow) {
    const long long s = (long long)(blockIdx.x) * (128 >> lane_bits) + (threadIdx.x >> lane_bits);
    const Piece<I> piece = load_piece(table, num_pieces, s);
    if (s < num_pieces) {
        T* const target = piece_target(piece, offsets, s, width, out, overflow);
        for (int j = threadIdx.x & ((1 << lane_bits) - 1); j < width; j += 1 << lane_bits) {
            Sum<T> sum;
            for (int e = 0; e < piece.size; e++) {
                sum.add(values[(long long)(order[piece.begin + e]) * width + j], e);
            }
            target[j] = sum.value();
        }
    }
}

// The piece's row of values; zero where the piece is empty: what no edge reads must leave no trace, NaN or not.
template <class T, class I>
__global__ void __launch_bounds__(128)
spread_rows(const T* __restrict__ values, const I* __restrict__ table, long long num_pieces, int width, T* __restrict__ out) {
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < num_pieces * width) {
        const long long s = i / width;
        const Piece<I> piece = load_piece(table, num_pieces, s);
        out[i] = piece.size > 0 ? values[(long long)(piece.row) * width + i - s * width] : T(0);
    }
}

// out[row] = row of `first` (plus that of `second`) that belongs to its first piece, zero for a row without positions.
template <class T, class I>
__global__ void __launch_bounds__(128)
first_pieces(const T* __restrict__ first, const T* __restrict__ second, const I* __restrict__ offsets, long long num_rows,
             int chunk, int width, T* __restrict__ out) {
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < num_rows * width) {
        const long long row = i / width;
        const long long from = i + offsets[row] / chunk * (long long)(width);
        const bool empty = offsets[row] == offsets[row + 1];
        out[i] = empty ? T(0) : second == nullptr ? first[from] : first[from] + second[from];
    }
}

// sums[y] = sum of rows y * chunk.. of values, `chunk` of them or what is left, then plus the rows of `earlier`, the last
// one first, then plus what was there if `accumulate`. Each row is a matrix (outer, width / outer), written transposed.
template <class T>
__global__ void __launch_bounds__(256)
sum_rows(const T* __restrict__ values, long long num_rows, long long width, int chunk, long long outer, const T* earlier,
         int num_earlier, int accumulate, T* sums) {
    __shared__ T parts[8][32];
    const long long j = (long long)(blockIdx.x) * 32 + threadIdx.x;
    const long long begin = (long long)(blockIdx.y) * chunk;
    const long long end = begin + chunk < num_rows ? begin + chunk : num_rows;
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
