// Products of small matrices by a warp, for GemNet-OC: a lane computes either whole columns of the result, or a few
// elements of some rows.
//
// To compute whole columns, a lane keeps columns c, c + 32, ... of one factor, or of the result, in registers. The
// other factor is the same for all lanes, and shared memory contains `step` of its rows at a time.
#pragma once

#include "copies.cuh"
#include "products.cuh"

constexpr int step = 16;

// Returns the address `bytes` bytes after `from`. Offsets in bytes take one instruction less than offsets in elements.
template <class T> __device__ const T* offset_by_bytes(const T* from, long long bytes) {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(from) + bytes);
}
template <class T> __device__ T* offset_by_bytes(T* from, long long bytes) {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(from) + bytes);
}

// The `cols` columns first, first + 32, ... that a lane processes, in rows of `width` elements.
template <int cols> struct LaneColumns {
    int first;
    int width;

    __device__ bool has(int z) const { return first + 32 * z < width; }

    // Returns column number z of the lane, or the last column of the row if column number z is beyond it.
    __device__ int at(int z) const { return min(first + 32 * z, width - 1); }

    // Returns the first column of the warp.
    __device__ int begin() const { return first - int(threadIdx.x); }

    // Writes the lane's columns of `count` rows, or adds them if `add`. Row number u is `offset[u]` bytes after `to`.
    template <int count, class T>
    __device__ void store_or_add_rows(T* to, const long long (&offset)[count], bool add,
                                      T (&values)[count][cols]) const {
#pragma unroll
        for (int z = 0; z < cols; z++) {
            if (has(z)) {
                T* const column = to + first + 32 * z;
                if (add) {
#pragma unroll
                    for (int u = 0; u < count; u++) {
                        values[u][z] += *offset_by_bytes(column, offset[u]);
                    }
                }
#pragma unroll
                for (int u = 0; u < count; u++) {
                    *offset_by_bytes(column, offset[u]) = values[u][z];
                }
            }
        }
    }

    // Sets rows num_y, num_y + 1, ... and columns beyond the last one to zero.
    template <class T, int rows> __device__ void clear_padding(int num_y, T (&matrix)[rows][cols]) const {
#pragma unroll
        for (int y = 0; y < rows; y++) {
            if (y >= num_y) {
#pragma unroll
                for (int z = 0; z < cols; z++) {
                    matrix[y][z] = T(0);
                }
            }
        }
        if (begin() + 32 * cols > width) {
#pragma unroll
            for (int y = 0; y < rows; y++) {
#pragma unroll
                for (int z = 0; z < cols; z++) {
                    matrix[y][z] = has(z) ? matrix[y][z] : T(0);
                }
            }
        }
    }
};

// values[z] = sum over y of column[y] matrix[y][z].
template <class T, int rows, int cols>
__device__ void multiply_vector_by_matrix(const T* column, const T (&matrix)[rows][cols], T (&values)[cols]) {
    T factor[rows];
    read(column, factor);
#pragma unroll
    for (int z = 0; z < cols; z++) {
        values[z] = T(0);
    }
#pragma unroll
    for (int y = 0; y < rows; y++) {
#pragma unroll
        for (int z = 0; z < cols; z++) {
            values[z] += factor[y] * matrix[y][z];
        }
    }
}

// Rows of the factor that is the same for all lanes, and offsets of the corresponding rows of the other matrix.
template <class T, int rows> struct StagedRows {
    T* left;             // `step` rows of `rows` elements, aligned to 16 bytes
    long long* offsets;  // byte offsets of `step` rows of the factor, then of the other matrix, aligned to 16 bytes

    __device__ long long* right_offsets() const { return offsets + step; }

    // Loads num_y elements of each of num_x <= step rows, followed by zeros. Row x starts at from + left_offset(x), and
    // row x of the other matrix at offset right_offset(x). The remaining rows repeat row num_x - 1. If `from` is null,
    // loads only the offsets.
    template <class LeftOffset, class RightOffset>
    __device__ void load_rows_and_offsets(int num_x, int num_y, const T* from, const LeftOffset& left_offset,
                                          const RightOffset& right_offset) const {
        const int lane = int(threadIdx.x), row = min(lane, num_x - 1), y = lane % rows;
        __syncwarp();
        if (lane < step) {
            offsets[lane] = left_offset(row) * (long long)(sizeof(T));
            right_offsets()[lane] = right_offset(row) * (long long)(sizeof(T));
        }
        __syncwarp();
        if (from != nullptr) {
            const T* const column = from + min(y, num_y - 1);
#pragma unroll
            for (int k = 0; k < step * rows / 32; k++) {
                const T value = *offset_by_bytes(column, offsets[lane / rows + k * (32 / rows)]);
                left[lane + k * 32] = y < num_y ? value : T(0);
            }
            __syncwarp();
        }
    }

    // sum[y][z] += sum over rows i = x, ..., x + count - 1 of left[i, y] right[i, columns.at(z)].
    template <int count, int cols>
    __device__ void add_outer_products(int x, const T* right, const LaneColumns<cols>& columns,
                                       T (&sum)[rows][cols]) const {
        long long offset[count];
        T r[count][cols];
        read(right_offsets() + x, offset);
#pragma unroll
        for (int u = 0; u < count; u++) {
#pragma unroll
            for (int z = 0; z < cols; z++) {
                r[u][z] = *offset_by_bytes(right + columns.at(z), offset[u]);
            }
        }
#pragma unroll
        for (int u = 0; u < count; u++) {
            T l[rows];
            read(left + (x + u) * rows, l);
            add_outer(l, r[u], sum);
        }
    }

    // Calls use(x, values, offset) for groups of rows x, x + 1, ... < num_x: values[u] is the product of row x + u of
    // `left` and the matrix, and row x + u of the other matrix is at offset[u].
    template <int cols, class Use>
    __device__ void for_each_row_product(int num_x, const T (&matrix)[rows][cols], const Use& use) const {
        int x = 0;
#pragma unroll 1
        for (; x + unroll <= num_x; x += unroll) {
            multiply_rows<unroll>(x, matrix, use);
        }
#pragma unroll 1
        for (; x < num_x; x++) {
            multiply_rows<1>(x, matrix, use);
        }
    }

private:
    template <int count, int cols, class Use>
    __device__ void multiply_rows(int x, const T (&matrix)[rows][cols], const Use& use) const {
        long long offset[count];
        T values[count][cols];
        read(right_offsets() + x, offset);
#pragma unroll
        for (int u = 0; u < count; u++) {
            multiply_vector_by_matrix(left + (x + u) * rows, matrix, values[u]);
        }
        use(x, values, offset);
    }
};

// sum[y][z] += sum over x < num_x of left(x, y) right(x, columns.at(z)), with offsets as in
// StagedRows::load_rows_and_offsets. Rows num_y, num_y + 1, ... of `sum` and columns beyond the last one are undefined.
// Runs of `step` terms are summed separately, to avoid long chains of additions.
template <class T, int rows, int cols, class LeftOffset, class RightOffset>
__device__ void add_matrix_product(const StagedRows<T, rows>& stage, int num_x, int num_y, const T* left,
                                   const LeftOffset& left_offset, const T* right, const RightOffset& right_offset,
                                   const LaneColumns<cols>& columns, T (&sum)[rows][cols]) {
    for (int x0 = 0; x0 < num_x; x0 += step) {
        const int here = min(step, num_x - x0);
        stage.load_rows_and_offsets(
            here, num_y, left, [&](int x) { return left_offset(x0 + x); },
            [&](int x) { return right_offset(x0 + x); });
        T part[rows][cols] = {};
        int x = 0;
#pragma unroll 1
        for (; x + unroll <= here; x += unroll) {
            stage.template add_outer_products<unroll>(x, right, columns, part);
        }
#pragma unroll 1
        for (; x < here; x++) {
            stage.template add_outer_products<1>(x, right, columns, part);
        }
        add_elementwise(sum, part);
    }
}

// The product first second^T of two matrices in shared memory, which have `step` and `rows` rows of 32 * cols columns.
// A lane computes 2 by rows / 4 elements of the product.
template <class T, int rows, int cols> struct RowProduct {
    static constexpr int width = 32 * cols, pack = 16 / int(sizeof(T)), lane_rows = 2, lane_cols = rows / 4;
    static constexpr int chains = width / 16;  // number of separate chains of 16 additions
    static constexpr int pitch = width + pack;  // padded, so that rows start in different banks

    T sum[lane_rows][lane_cols];

    static __device__ int row(int i) { return int(threadIdx.x) / 4 + 8 * i; }
    static __device__ int col(int j) { return int(threadIdx.x) % 4 + 4 * j; }

    // Begins to copy columns begin, begin + 1, ... of `step` rows, with zeros beyond the last column. Row x starts
    // `offset(x)` bytes after `from`.
    template <class Offset>
    static __device__ void begin_first_factor_copy(AsyncCopies& copies, const T* from, int begin, int num_columns,
                                                   const Offset& offset, T* first) {
        constexpr int packs = width / pack;
        const int lane = int(threadIdx.x);
        if (reinterpret_cast<size_t>(from) % 16 == 0 && num_columns % pack == 0) {
            const int x = lane % packs * pack;
            const bool any = begin + x < num_columns;
            const T* const column = from + (any ? begin + x : 0);
#pragma unroll
            for (int k = 0; k < step * packs / 32; k++) {
                const int y = lane / packs + k * (32 / packs);
                copies.begin_copy<pack>(first + y * pitch + x, offset_by_bytes(column, offset(y)), any);
            }
        } else {
#pragma unroll 1
            for (int i = lane; i < step * width; i += 32) {
                const int y = i / width, x = i % width;
                const bool any = begin + x < num_columns;
                copies.begin_copy<1>(first + y * pitch + x, offset_by_bytes(from + (any ? begin + x : 0), offset(y)),
                                     any);
            }
        }
    }

    // Stores the lane's columns of the second matrix in shared memory.
    static __device__ void store_second_factor(const T (&matrix)[rows][cols], T* second) {
#pragma unroll
        for (int y = 0; y < rows; y++) {
#pragma unroll
            for (int z = 0; z < cols; z++) {
                second[y * pitch + int(threadIdx.x) + 32 * z] = matrix[y][z];
            }
        }
    }

    // sum = first second^T.
    __device__ void multiply(const T* first, const T* second) {
        T part[lane_rows][lane_cols][chains] = {};
#pragma unroll pack
        for (int x = 0; x < width; x += pack) {
            T a[lane_rows][pack], b[lane_cols][pack];
#pragma unroll
            for (int i = 0; i < lane_rows; i++) {
                read(first + row(i) * pitch + x, a[i]);
            }
#pragma unroll
            for (int j = 0; j < lane_cols; j++) {
                read(second + col(j) * pitch + x, b[j]);
            }
#pragma unroll
            for (int i = 0; i < lane_rows; i++) {
#pragma unroll
                for (int j = 0; j < lane_cols; j++) {
#pragma unroll
                    for (int k = 0; k < pack; k++) {
                        part[i][j][k % chains] += a[i][k] * b[j][k];
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
#pragma unroll
            for (int j = 0; j < lane_cols; j++) {
                const T half = part[i][j][0] + part[i][j][1];
                sum[i][j] = chains == 2 ? half : half + (part[i][j][chains - 2] + part[i][j][chains - 1]);
            }
        }
    }

    // Calls use(x, y, sum(x, y)) for the lane's elements with x < num_x and y < num_y.
    template <class Use> __device__ void for_each_element(int num_x, int num_y, const Use& use) const {
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
#pragma unroll
            for (int j = 0; j < lane_cols; j++) {
                if (row(i) < num_x && col(j) < num_y) {
                    use(row(i), col(j), sum[i][j]);
                }
            }
        }
    }
};
