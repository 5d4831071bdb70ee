// Small matrix products by all 32, 64 or 128 threads of a block, with functions that return the elements of the
// factors. A lane has 4 by 2 sums in registers. Lanes that a tile does not need split the depth, and their sums are
// added in order at the end. The depth is at most 256, to avoid long chains of additions.
#pragma once

#include "rows.cuh"

constexpr int lane_rows = 4;
constexpr int lane_cols = 2;
constexpr int product_depth = 16;  // depth that is loaded at a time
constexpr int product_side = 32;   // most rows and columns of a tile
// Stride of rows in shared memory: a multiple of a lane's access, with columns in different banks.
constexpr int product_stride = product_side + 4;
constexpr int product_elements = 2 * product_stride * product_depth;

// Minimum of resident blocks per multiprocessor (__launch_bounds__); the resulting register limit causes no spills.
template <class T> constexpr int product_blocks_per_sm = sizeof(T) == 4 ? 5 : 4;

// Lanes of a tile, as exponents of two.
struct TileLanes {
    int row_bits;
    int col_bits;

    __device__ int rows() const { return lane_rows << row_bits; }
    __device__ int cols() const { return lane_cols << col_bits; }
    __device__ int row() const { return (threadIdx.x >> col_bits & ((1 << row_bits) - 1)) * lane_rows; }
    __device__ int col() const { return (threadIdx.x & ((1 << col_bits) - 1)) * lane_cols; }
    __device__ int slices() const { return blockDim.x >> (row_bits + col_bits); }
    __device__ int slice() const { return threadIdx.x >> (row_bits + col_bits); }
};

// Consecutive values, up to 16 bytes at a time.
template <class T, int n> __device__ void read(const T* from, T (&to)[n]) {
    constexpr int step = n * int(sizeof(T)) < 16 ? n : 16 / int(sizeof(T));
#pragma unroll
    for (int i = 0; i < n; i += step) {
        const Pack<T, step> pack = load_pack<step>(from + i);
#pragma unroll
        for (int k = 0; k < step; k++) {
            to[i + k] = pack.at[k];
        }
    }
}

template <class T, int n> __device__ void write(T* to, const T (&from)[n]) {
    constexpr int step = n * int(sizeof(T)) < 16 ? n : 16 / int(sizeof(T));
#pragma unroll
    for (int i = 0; i < n; i += step) {
        Pack<T, step> pack;
#pragma unroll
        for (int k = 0; k < step; k++) {
            pack.at[k] = from[i + k];
        }
        store_pack(to + i, pack);
    }
}

// sum[i][j] += left[i] right[j].
template <class T, int m, int n> __device__ void add_outer(const T (&left)[m], const T (&right)[n], T (&sum)[m][n]) {
#pragma unroll
    for (int i = 0; i < m; i++) {
#pragma unroll
        for (int j = 0; j < n; j++) {
            sum[i][j] += left[i] * right[j];
        }
    }
}

template <class T, int m, int n> __device__ void add_elementwise(T (&sum)[m][n], const T (&part)[m][n]) {
#pragma unroll
    for (int i = 0; i < m; i++) {
#pragma unroll
        for (int j = 0; j < n; j++) {
            sum[i][j] += part[i][j];
        }
    }
}

template <class T> struct BlockProduct {
    TileLanes tile;
    T* buffer;  // product_elements in shared memory, aligned to 16 bytes
    T sum[lane_rows][lane_cols];

    __device__ BlockProduct(const TileLanes& tile, T* buffer) : tile(tile), buffer(buffer), sum{} {}

    // sum(y, z) += sum over x < depth of left(x, y) right(x, z), y < rows and z < cols. All threads must call this;
    // values that they stored before are not yet visible.
    template <class Left, class Right>
    __device__ void add(int rows, int cols, int depth, const Left& left, const Right& right) {
        T* const other = buffer + product_depth * product_stride;
        for (int x0 = 0; x0 < depth; x0 += product_depth) {
            const int here = min(product_depth, depth - x0);
            load_factor(x0, here, rows, tile.row_bits + 2, buffer, left);
            load_factor(x0, here, cols, tile.col_bits + 1, other, right);
            __syncthreads();
            add_slice_product(other, here);
            __syncthreads();
        }
    }

    // The threads of the first slice receive the complete sums; the buffer must not be used again.
    __device__ void reduce_slices() {
        const int slices = tile.slices(), size = tile.rows() * tile.cols();
        const int place = tile.row() * tile.cols() + tile.col();
        if (slices == 1) {
            return;
        }
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
#pragma unroll
            for (int j = 0; j < lane_cols; j++) {
                buffer[tile.slice() * size + place + i * tile.cols() + j] = sum[i][j];
            }
        }
        __syncthreads();
        for (int slice = 1; slice < slices && tile.slice() == 0; slice++) {
#pragma unroll
            for (int i = 0; i < lane_rows; i++) {
#pragma unroll
                for (int j = 0; j < lane_cols; j++) {
                    sum[i][j] += buffer[slice * size + place + i * tile.cols() + j];
                }
            }
        }
    }

    // Calls to(y, z, sum(y, z)) for every complete sum, each by one thread.
    template <class To> __device__ void for_each_element(int rows, int cols, const To& to) const {
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
#pragma unroll
            for (int j = 0; j < lane_cols; j++) {
                const int y = tile.row() + i, z = tile.col() + j;
                if (tile.slice() == 0 && y < rows && z < cols) {
                    to(y, z, sum[i][j]);
                }
            }
        }
    }

private:
    // to[x][y] = from(x0 + x, y), zero outside of x < depth and y < width.
    template <class From>
    __device__ void load_factor(int x0, int depth, int width, int y_bits, T* to, const From& from) const {
        for (int i = threadIdx.x; i < product_depth << y_bits; i += blockDim.x) {
            const int x = i >> y_bits, y = i & ((1 << y_bits) - 1);
            to[x * product_stride + y] = x < depth && y < width ? from(x0 + x, y) : T(0);
        }
    }

    // The slice's share of the loaded depth, rounded separately to avoid long chains of additions.
    __device__ void add_slice_product(const T* other, int depth) {
        const int share = product_depth / tile.slices(), begin = tile.slice() * share;
        const T* left = buffer + begin * product_stride + tile.row();
        const T* right = other + begin * product_stride + tile.col();
        T part[lane_rows][lane_cols] = {};
#pragma unroll 2
        for (int x = begin; x < min(begin + share, depth); x++) {
            T l[lane_rows], r[lane_cols];
            read(left, l);
            read(right, r);
            add_outer(l, r, part);
            left += product_stride;
            right += product_stride;
        }
        add_elementwise(sum, part);
    }
};

// products[c, y, z] = sum over the rows x of chunk c (`chunk` rows, the last may have fewer) of left[x, left_first + y]
// right[x, right_first + z]; rows of left and right are `left_stride` and `right_stride` apart. One block per tile.
template <class T>
__global__ void __launch_bounds__(THREADS, product_blocks_per_sm<T>)
multiply_chunks(const T* __restrict__ left, long long left_stride, int left_first, const T* __restrict__ right,
                long long right_stride, int right_first, long long num_rows, int chunk, int num_y, int num_z,
                int row_bits, int col_bits, T* __restrict__ products) {
    __shared__ __align__(16) T factors[product_elements];
    const TileLanes tile{row_bits, col_bits};
    const unsigned col_tiles = (num_z + tile.cols() - 1) / tile.cols();
    const unsigned tiles = col_tiles * ((num_y + tile.rows() - 1) / tile.rows());
    const int y0 = int(blockIdx.x % tiles / col_tiles) * tile.rows(), z0 = int(blockIdx.x % col_tiles) * tile.cols();
    const int num_rows_y = min(tile.rows(), num_y - y0), num_cols_z = min(tile.cols(), num_z - z0);
    const long long c = blockIdx.x / tiles, first = c * chunk;
    const int depth = int(num_rows - first < chunk ? num_rows - first : chunk);
    const T* const left_tile = left + first * left_stride + left_first + y0;
    const T* const right_tile = right + first * right_stride + right_first + z0;
    BlockProduct<T> product(tile, factors);
    product.add(
        num_rows_y, num_cols_z, depth, [&](int x, int y) { return left_tile[x * left_stride + y]; },
        [&](int x, int z) { return right_tile[x * right_stride + z]; });
    product.reduce_slices();
    T* const target = products + (c * num_y + y0) * num_z + z0;
    product.for_each_element(num_rows_y, num_cols_z,
                             [&](int y, int z, T sum) { target[(long long)(y) * num_z + z] = sum; });
}
