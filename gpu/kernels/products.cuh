// Small matrix products by all threads of a block, 32, 64 or 128 of them, of factors that functions give element by
// element. The lanes of a tile (see tiles.cuh) that are left over split the depth; their sums meet at the end, in order.
#pragma once

#include "tiles.cuh"

constexpr int product_depth_bits = 4;
constexpr int product_side = 32;                 // rows and columns of a tile at most
constexpr int product_stride = product_side + 1;  // of rows that stay in shared memory: columns fall into different banks
constexpr int product_elements = 2 * product_stride << product_depth_bits;

__device__ inline int bits(int number) { return number <= 1 ? 0 : 32 - __clz(number - 1); }

// The tile for a product of so many rows and columns; it may have fewer of either, or more.
__device__ inline Tile product_tile(int rows, int cols) {
    const int lane_bits = bits(blockDim.x);
    const int col_bits = min(bits((cols + lane_cols - 1) / lane_cols), 4);
    const int row_bits = min(bits((rows + lane_rows - 1) / lane_rows), min(3, lane_bits - col_bits));
    return {max(row_bits, lane_bits - col_bits - product_depth_bits), col_bits, product_depth_bits};
}

template <class T> struct Product {
    Tile tile;
    T* buffer;  // product_elements in shared memory
    T sum[lane_rows][lane_cols];

    __device__ Product(const Tile& tile, T* buffer) : tile(tile), buffer(buffer) { clear(); }

    __device__ void clear() {
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
#pragma unroll
            for (int j = 0; j < lane_cols; j++) {
                sum[i][j] = T(0);
            }
        }
    }

    // total += sum; sum = 0: chains of roundings stay short.
    __device__ void move_to(T (&total)[lane_rows][lane_cols]) {
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
#pragma unroll
            for (int j = 0; j < lane_cols; j++) {
                total[i][j] += sum[i][j];
                sum[i][j] = T(0);
            }
        }
    }

    // sum(y, z) += sum over x < depth of left(x, y) right(x, z), y < rows and z < cols. Neighbouring threads load neighbours
    // along x where `left_x` or `right_x` says so. All threads have to come; what they have stored before is not yet seen.
    template <class Left, class Right>
    __device__ void add(int rows, int cols, int depth, bool left_x, bool right_x, const Left& left, const Right& right) {
        T* const other = buffer + (tile.row_stride() << product_depth_bits);
        const int slice_bits = product_depth_bits + tile.row_bits + tile.col_bits - bits(blockDim.x);
        const int begin = tile.group() << slice_bits;
        for (int x0 = 0; x0 < depth; x0 += tile.depth()) {
            const int here = min(tile.depth(), depth - x0);
            load(x0, here, rows, tile.row_bits + 2, left_x, buffer, left);
            load(x0, here, cols, tile.col_bits + 1, right_x, other, right);
            __syncthreads();
            multiply_tile(tile, buffer + begin * tile.row_stride(), other + begin * tile.col_stride(),
                          min(1 << slice_bits, here - begin), sum);
            __syncthreads();
        }
    }

    // Leave the whole sums with the threads of the first slice.
    __device__ void reduce() {
        const int slices = blockDim.x >> (tile.row_bits + tile.col_bits), size = tile.rows() * tile.cols();
        if (slices == 1) {
            return;
        }
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
#pragma unroll
            for (int j = 0; j < lane_cols; j++) {
                buffer[tile.group() * size + tile.row(i) * tile.cols() + tile.col(j)] = sum[i][j];
            }
        }
        __syncthreads();
        for (int slice = 1; slice < slices && tile.group() == 0; slice++) {
#pragma unroll
            for (int i = 0; i < lane_rows; i++) {
#pragma unroll
                for (int j = 0; j < lane_cols; j++) {
                    sum[i][j] += buffer[slice * size + tile.row(i) * tile.cols() + tile.col(j)];
                }
            }
        }
        __syncthreads();
    }

    // to(y, z, sum(y, z)) of every whole sum, each by one thread.
    template <class To> __device__ void each(int rows, int cols, const To& to) const {
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
#pragma unroll
            for (int j = 0; j < lane_cols; j++) {
                const int y = tile.row(i), z = tile.col(j);
                if (tile.group() == 0 && y < rows && z < cols) {
                    to(y, z, sum[i][j]);
                }
            }
        }
    }

private:
    // to[x][y] = from(x0 + x, y), zero outside of x < depth and y < width.
    template <class From>
    __device__ void load(int x0, int depth, int width, int y_bits, bool x_fast, T* to, const From& from) const {
        const int stride = (1 << y_bits) + 1;
        for (int i = threadIdx.x; i < 1 << (y_bits + product_depth_bits); i += blockDim.x) {
            const int x = x_fast ? i & ((1 << product_depth_bits) - 1) : i >> y_bits;
            const int y = x_fast ? i >> product_depth_bits : i & ((1 << y_bits) - 1);
            to[x * stride + y] = x < depth && y < width ? from(x0 + x, y) : T(0);
        }
    }
};
