// Tiled products of a tall matrix with a small one, and of a transposed tall matrix with a tall one.
//
// A block of THREADS threads computes `rows` by `cols` elements. It loops over the depth in steps of 16: shared memory
// contains both factors of a step, while the next factors are being copied. A thread keeps 8 by `lane_cols` sums
// in registers. The sum of a step is rounded separately, to avoid long chains of additions. Each element depends
// bitwise only on its row of `left` and its column of `right`; unlike in BLAS, the number of rows has no effect.
#pragma once

#include "copies.cuh"
#include "products.cuh"
#include "tensor.cuh"

constexpr int matrix_depth = tensor_depth;  // depth of a step

// Minimum number of resident blocks per multiprocessor (__launch_bounds__), a limit on registers that causes no spills.
template <class T> constexpr int matrix_blocks_per_sm = 2;

// Number of rows in a tile of `multiply`.
template <class T> constexpr int matrix_rows = MATRIX_ROWS * 4 / int(sizeof(T));

// The part of a matrix that starts at the first element of a tile. Rows are contiguous and `pitch` elements apart.
// Elements beyond `rows` and `cols` are not read and are treated as zero.
template <class T> struct TileSource {
    const T* at;
    long long pitch;
    int rows;
    int cols;

    // Returns whether 16 bytes can be copied at a time.
    __device__ bool allows_wide_access() const {
        constexpr int pack = 16 / int(sizeof(T));
        return reinterpret_cast<size_t>(at) % 16 == 0 && pitch % pack == 0 && cols % pack == 0;
    }
};

// The destination of the elements of a tile; see `TileSource`.
template <class T> struct TileTarget {
    T* at;
    long long pitch;
    int rows;
    int cols;
    bool add;   // whether to add to the elements instead of replacing them
    bool wide;  // whether 16 bytes can be accessed at a time

    __device__ TileTarget(T* at, long long pitch, int rows, int cols, bool add)
        : at(at), pitch(pitch), rows(rows), cols(cols), add(add),
          wide(TileSource<T>{at, pitch, rows, cols}.allows_wide_access()) {}

    // Stores consecutive elements of a row.
    template <int n> __device__ void store_or_add(int y, int z, T (&values)[n]) const {
        T* const to = at + y * pitch + z;
        if (y < rows && wide && z + n <= cols) {
            T before[n] = {};
            if (add) {
                read(to, before);
#pragma unroll
                for (int i = 0; i < n; i++) {
                    values[i] += before[i];
                }
            }
            write(to, values);
        } else if (y < rows) {
#pragma unroll
            for (int i = 0; i < n; i++) {
                if (z + i < cols) {
                    to[i] = add ? to[i] + values[i] : values[i];
                }
            }
        }
    }
};

// Number of words in shared memory for the parts of `right` that all lanes of a warp read.
constexpr int right_words = 192;
__device__ inline void store_right_parts(const RightParts& parts, unsigned* to) {
#pragma unroll
    for (int p = 0; p < 3; p++) {
        store_pack(to + (p * 32 + int(threadIdx.x) % 32) * 2, Pack<unsigned, 2>{{parts.at[p][0], parts.at[p][1]}});
    }
}
__device__ inline RightParts load_right_parts(const unsigned* from) {
    RightParts parts;
#pragma unroll
    for (int p = 0; p < 3; p++) {
        const Pack<unsigned, 2> pack = load_pack<2>(from + (p * 32 + int(threadIdx.x) % 32) * 2);
        parts.at[p][0] = pack.at[0];
        parts.at[p][1] = pack.at[1];
    }
    return parts;
}

// If `transposed`, the rows of the left factor run over the depth instead of the rows of the product.
template <class T, int rows, int cols, bool transposed> struct TileProduct {
    static constexpr int lane_rows = 8, lanes_m = rows / lane_rows, lanes_n = THREADS / lanes_m;
    static constexpr int lane_cols = cols / lanes_n, run = lane_cols < 4 ? lane_cols : 4;
    static constexpr int pack = 16 / int(sizeof(T));
    // Strides in shared memory that spread the accesses of a warp over different banks, also for tensor cores.
    static constexpr int left_stride = transposed ? rows + 4 : matrix_depth + (sizeof(T) == 4 ? 8 : 2);
    static constexpr int right_stride = cols + 4;
    static constexpr int left_elements = left_stride * (transposed ? matrix_depth : rows);
    static constexpr int stage_elements = left_elements + right_stride * matrix_depth;
    // With tensor cores, a warp computes 32 rows and `warp_cols` columns.
    static constexpr int warp_tiles_m = 2, warps_n = THREADS / rows, warp_cols = cols / warps_n;
    static constexpr int warp_tiles_n = warp_cols / tensor_cols;

    static __device__ int row(int i) {
        const int lane = int(threadIdx.x) / lanes_n;
        return transposed ? lane * 4 + i % 4 + i / 4 * (rows / 2) : lane + i * lanes_m;
    }
    static __device__ int col(int j) {
        return int(threadIdx.x) % lanes_n * run + j % run + j / run * (lanes_n * run);
    }

    // Computes to(y, z) = sum over x of left(y, x) right(x, z). Shared memory: `stage` contains 2 * stage_elements
    // numbers and, for tensor cores, `parts` contains `right_words` words for each group of `tensor_cols` columns.
    template <bool tensor>
    static __device__ void compute(const TileSource<T>& left, const TileSource<T>& right, T* stage, unsigned* parts,
                                   const TileTarget<T>& to) {
        if constexpr (tensor && has_tensor_cores) {
            float sum[warp_tiles_m][warp_tiles_n][4] = {};
            for_each_depth_step(left, right, stage,
                                [&](const T* l, const T* r, int) { add_step_product_tensor(l, r, parts, sum); });
            store_or_recompute_sums(left, right, sum, to);
        } else {
            T total[lane_rows][lane_cols] = {};
            for_each_depth_step(left, right, stage,
                                [&](const T* l, const T* r, int depth) { add_step_product(l, r, depth, total); });
#pragma unroll
            for (int i = 0; i < lane_rows; i++) {
#pragma unroll
                for (int j = 0; j < lane_cols; j += run) {
                    T values[run];
#pragma unroll
                    for (int k = 0; k < run; k++) {
                        values[k] = total[i][j + k];
                    }
                    to.store_or_add(row(i), col(j), values);
                }
            }
        }
    }

private:
    // Calls step(left, right, depth) with both factors of each step in shared memory.
    template <class Step>
    static __device__ void for_each_depth_step(TileSource<T> left, TileSource<T> right, T* stage, const Step& step) {
        const int depth = right.rows;
        const bool left_wide = left.allows_wide_access(), right_wide = right.allows_wide_access();
        AsyncCopies copies;
        const auto begin = [&](int x0, T* to) {
            const int here = min(matrix_depth, depth - x0);
            if constexpr (transposed) {
                begin_line_copies<matrix_depth, rows, left_stride>(copies, left.at, left.pitch, here, left.cols,
                                                                   left_wide, to);
                left.at += matrix_depth * left.pitch;
            } else {
                begin_line_copies<rows, matrix_depth, left_stride>(copies, left.at, left.pitch, left.rows, here,
                                                                   left_wide, to);
                left.at += matrix_depth;
            }
            begin_line_copies<matrix_depth, cols, right_stride>(copies, right.at, right.pitch, here, right.cols,
                                                                right_wide, to + left_elements);
            right.at += matrix_depth * right.pitch;
        };
        begin(0, stage);
        T* other = stage + stage_elements;
        for (int x0 = 0; x0 < depth; x0 += matrix_depth) {
            copies.wait();
            __syncthreads();  // the step is complete, and no thread still reads the other stage
            if (x0 + matrix_depth < depth) {
                begin(x0 + matrix_depth, other);
            }
            step(stage, stage + left_elements, min(matrix_depth, depth - x0));
            T* const next = other;
            other = stage;
            stage = next;
        }
    }

    // Adds the product of a step, a chain of at most 16 terms in order of depth, to `total`.
    static __device__ void add_step_product(const T* left, const T* right, int depth,
                                            T (&total)[lane_rows][lane_cols]) {
        T part[lane_rows][lane_cols] = {};
#pragma unroll 2
        for (int x0 = 0; x0 < depth; x0 += pack) {  // elements beyond the depth are zeros
            T l[lane_rows][pack];
            if constexpr (!transposed) {
#pragma unroll
                for (int i = 0; i < lane_rows; i++) {
                    read(left + row(i) * left_stride + x0, l[i]);
                }
            }
#pragma unroll
            for (int x = 0; x < pack; x++) {
                T column[lane_rows], r[lane_cols];
                if constexpr (transposed) {
                    read_runs<lane_rows>(left + (x0 + x) * left_stride, [](int i) { return row(i); }, column);
                } else {
#pragma unroll
                    for (int i = 0; i < lane_rows; i++) {
                        column[i] = l[i][x];
                    }
                }
                read_runs<lane_cols>(right + (x0 + x) * right_stride, [](int j) { return col(j); }, r);
                add_outer(column, r, part);
            }
        }
        add_elementwise(total, part);
    }

    // Sets to[i] = from[at(i)], where runs of up to 4 elements are contiguous.
    template <int n, class At> static __device__ void read_runs(const T* from, const At& at, T (&to)[n]) {
        constexpr int run = n < 4 ? n : 4;
#pragma unroll
        for (int i = 0; i < n; i += run) {
            T values[run];
            read(from + at(i), values);
#pragma unroll
            for (int k = 0; k < run; k++) {
                to[i + k] = values[k];
            }
        }
    }

    static __device__ int warp_row() { return int(threadIdx.x) / 32 / warps_n * 32; }
    static __device__ int warp_col() { return int(threadIdx.x) / 32 % warps_n * warp_cols; }

    // Each warp splits its own rows of `left`, and some columns of `right` for all warps, into bfloat16 parts.
    static __device__ void add_step_product_tensor(const T* left, const T* right, unsigned* parts,
                                                   float (&sum)[warp_tiles_m][warp_tiles_n][4]) {
#pragma unroll
        for (int j = 0; j < cols / tensor_cols; j += THREADS / 32) {
            const int tile = j + int(threadIdx.x) / 32;
            if (cols / tensor_cols % (THREADS / 32) == 0 || tile < cols / tensor_cols) {
                const T* const from = right + tile * tensor_cols;
                store_right_parts(split_right_tile([&](int x, int z) { return from[x * right_stride + z]; }),
                                  parts + tile * right_words);
            }
        }
        LeftParts l[warp_tiles_m];
#pragma unroll
        for (int i = 0; i < warp_tiles_m; i++) {
            const int first = warp_row() + i * tensor_rows;
            l[i] = split_left_tile([&](int y, int x) {
                return transposed ? left[x * left_stride + first + y] : left[(first + y) * left_stride + x];
            });
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < warp_tiles_n; j++) {
            const RightParts r = load_right_parts(parts + (warp_col() / tensor_cols + j) * right_words);
#pragma unroll
            for (int i = 0; i < warp_tiles_m; i++) {
                multiply_add(l[i], r, sum[i][j]);
            }
        }
    }

    // Stores the sums; non-finite sums are first recomputed in the order of `add_step_product`.
    static __device__ void store_or_recompute_sums(const TileSource<T>& left, const TileSource<T>& right,
                                                   const float (&sum)[warp_tiles_m][warp_tiles_n][4],
                                                   const TileTarget<T>& to) {
        unsigned long long again = 0;
#pragma unroll
        for (int i = 0; i < warp_tiles_m; i++) {
#pragma unroll
            for (int j = 0; j < warp_tiles_n; j++) {
#pragma unroll
                for (int k = 0; k < 4; k += 2) {
                    const int y = warp_row() + i * tensor_rows + sum_row(k);
                    const int z = warp_col() + j * tensor_cols + sum_col(k);
                    T low[1] = {sum[i][j][k]}, high[1] = {sum[i][j][k + 1]}, both[2] = {low[0], high[0]};
                    const unsigned long long bit = 1ull << ((i * warp_tiles_n + j) * 4 + k);
                    if (is_finite(low[0]) && is_finite(high[0])) {
                        to.store_or_add(y, z, both);
                    } else if (is_finite(low[0])) {
                        to.store_or_add(y, z, low);
                        again |= 2 * bit;
                    } else if (is_finite(high[0])) {
                        to.store_or_add(y, z + 1, high);
                        again |= bit;
                    } else {
                        again |= 3 * bit;
                    }
                }
            }
        }
#pragma unroll 1
        for (int n = 0; again != 0; n++, again >>= 1) {
            const int y = warp_row() + n / 4 / warp_tiles_n * tensor_rows + sum_row(n % 4);
            const int z = warp_col() + n / 4 % warp_tiles_n * tensor_cols + sum_col(n % 4);
            if ((again & 1) != 0 && y < to.rows && z < to.cols) {
                Sum<T> terms;
                for (int x = 0; x < right.rows; x++) {
                    const T factor = transposed ? left.at[x * left.pitch + y] : left.at[y * left.pitch + x];
                    terms.add(factor * right.at[x * right.pitch + z], x);
                }
                T sums[1] = {terms.value()};
                to.store_or_add(y, z, sums);
            }
        }
    }
};

// out[m, n] = sum over k < depth of left[m, k] right[k, n], added to `out` if `add`.
template <class T, int cols, bool tensor>
__device__ void compute_tile(const T* left, const T* right, long long num_rows, int depth, int width, int add,
                                 T* out) {
    constexpr int rows = matrix_rows<T>;
    using Tile = TileProduct<T, rows, cols, false>;
    __shared__ __align__(16) T stage[2 * Tile::stage_elements];
    __shared__ __align__(16) unsigned parts[tensor ? cols / tensor_cols * right_words : 1];
    const unsigned col_tiles = (width + cols - 1) / cols;
    const long long m0 = (long long)(blockIdx.x / col_tiles) * rows;
    const int n0 = int(blockIdx.x % col_tiles) * cols;
    const int here = num_rows - m0 < rows ? int(num_rows - m0) : rows, columns = min(cols, width - n0);
    Tile::template compute<tensor>({left + m0 * depth, depth, here, depth}, {right + n0, width, depth, columns}, stage,
                                   parts, {out + m0 * width + n0, width, here, columns, add != 0});
}

template <class T, int cols>
__global__ void __launch_bounds__(THREADS, matrix_blocks_per_sm<T>)
multiply(const T* __restrict__ left, const T* __restrict__ right, long long num_rows, int depth, int width, int add,
         T* __restrict__ out) {
    compute_tile<T, cols, false>(left, right, num_rows, depth, width, add, out);
}

template <class T, int cols>
__global__ void __launch_bounds__(THREADS, matrix_blocks_per_sm<T>)
multiply_tensor(const T* __restrict__ left, const T* __restrict__ right, long long num_rows, int depth, int width,
                int add, T* __restrict__ out) {
    compute_tile<T, cols, true>(left, right, num_rows, depth, width, add, out);
}

// Computes products[c, y, z] of `multiply_chunks` in products.cuh, for wide matrices.
template <class T, int rows, int cols, bool tensor>
__device__ void compute_chunk_tile(const T* left, long long left_stride, int left_first, const T* right,
                                   long long right_stride, int right_first, long long num_rows, int chunk, int num_y,
                                   int num_z, T* products) {
    using Tile = TileProduct<T, rows, cols, true>;
    __shared__ __align__(16) T stage[2 * Tile::stage_elements];
    __shared__ __align__(16) unsigned parts[tensor ? cols / tensor_cols * right_words : 1];
    const unsigned col_tiles = (num_z + cols - 1) / cols, tiles = col_tiles * ((num_y + rows - 1) / rows);
    const int y0 = int(blockIdx.x % tiles / col_tiles) * rows, z0 = int(blockIdx.x % col_tiles) * cols;
    const long long c = blockIdx.x / tiles, first = c * chunk;
    const int here = min(rows, num_y - y0), columns = min(cols, num_z - z0);
    const int depth = int(num_rows - first < chunk ? num_rows - first : chunk);
    Tile::template compute<tensor>({left + first * left_stride + left_first + y0, left_stride, depth, here},
                                   {right + first * right_stride + right_first + z0, right_stride, depth, columns},
                                   stage, parts, {products + (c * num_y + y0) * num_z + z0, num_z, here, columns, false});
}

template <class T, int rows, int cols>
__global__ void __launch_bounds__(THREADS, matrix_blocks_per_sm<T>)
multiply_chunks_tiled(const T* __restrict__ left, long long left_stride, int left_first, const T* __restrict__ right,
                      long long right_stride, int right_first, long long num_rows, int chunk, int num_y, int num_z,
                      T* __restrict__ products) {
    compute_chunk_tile<T, rows, cols, false>(left, left_stride, left_first, right, right_stride, right_first, num_rows,
                                             chunk, num_y, num_z, products);
}

template <class T, int rows, int cols>
__global__ void __launch_bounds__(THREADS, matrix_blocks_per_sm<T>)
multiply_chunks_tiled_tensor(const T* __restrict__ left, long long left_stride, int left_first,
                             const T* __restrict__ right, long long right_stride, int right_first, long long num_rows,
                             int chunk, int num_y, int num_z, T* __restrict__ products) {
    compute_chunk_tile<T, rows, cols, true>(left, left_stride, left_first, right, right_stride, right_first, num_rows,
                                            chunk, num_y, num_z, products);
}
