// Products with the first weights W1 (num_spherical, num_radial, n_mid), which contain one matrix for each degree l. Each thread
// handles one degree and keeps a tile of sums in registers.
#pragma once
#include "dimenet_triplets.cuh"

constexpr int GROUPS = THREADS / DEGREES;     // thread groups per block; a group has one thread per degree
constexpr int WARP_GROUPS = LANES / DEGREES;  // thread groups per warp, which process consecutive edges
constexpr int TOGETHER = PROJECTED / GROUPS;  // edges per thread
constexpr int MOST_ROWS = 16;                 // maximum number of radial functions, and of rows per degree in shared memory
template <class T> constexpr int MIDS = 32 / int(sizeof(T));  // columns m per thread
// Stride between degrees in shared memory, chosen so that 16-byte reads have no bank conflicts.
template <class T> constexpr int DEGREE_STRIDE = MOST_ROWS * DEGREES + 16 / int(sizeof(T));

template <class T, int count> using EdgeSums = T[TOGETHER][count];
template <class T> using EdgeRows = const T* [TOGETHER];

// Padded row length of grad_projected; the padding columns may contain arbitrary values.
template <class T> __device__ __forceinline__ int padded(int n_mid) { return (n_mid + MIDS<T> - 1) / MIDS<T> * MIDS<T>; }

template <class T, int rows, int count>
__device__ __forceinline__ void add_elementwise(T (&sums)[rows][count], const T (&part)[rows][count]) {
#pragma unroll
    for (int i = 0; i < rows; i++) {
#pragma unroll
        for (int j = 0; j < count; j++) {
            sums[i][j] += part[i][j];
        }
    }
}

// Stores from(l, row, column) in to[l, row, column] for rows of DEGREES columns.
template <class T, class From> __device__ void stage_degree_matrices(T* to, int degrees, int rows, const From& from) {
    const int l = int(threadIdx.x) % DEGREES;
    for (int i = int(threadIdx.x) / DEGREES; i < rows * DEGREES && l < degrees; i += GROUPS) {
        to[l * DEGREE_STRIDE<T> + i] = from(l, i / DEGREES, i % DEGREES);
    }
}

// The TOGETHER edges that a thread processes, which are WARP_GROUPS apart.
struct ThreadEdges {
    long long first, num_edges;

    __device__ ThreadEdges(long long num_edges) : num_edges(num_edges) {
        const int group = int(threadIdx.x) / DEGREES, in_warp = group % WARP_GROUPS;
        first = (long long)(blockIdx.x) * PROJECTED + (group - in_warp) * TOGETHER + in_warp;
    }
    __device__ long long edge(int k) const { return first + k * WARP_GROUPS; }
    __device__ bool exists(int k) const { return edge(k) < num_edges; }
    // Sets rows[k] to the row of edge(k), or of the last edge if edge(k) does not exist. Rows of `array` have `stride` elements.
    template <class T>
    __device__ __forceinline__ void set_row_pointers(const T* array, int stride, EdgeRows<T>& rows) const {
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            rows[k] = array + min(edge(k), num_edges - 1) * stride;
        }
    }
};

// Adds sum_i rows[k][i] right[i, c] for begin <= i < end to sums[k][c], loading `step` elements of each row at a time.
template <int step, class T, int count>
__device__ __forceinline__ void add_rows_times_matrix(const EdgeRows<T>& rows, const T* right, int begin, int end,
                                                      EdgeSums<T, count>& sums) {
#pragma unroll 1
    for (int i = begin; i < end; i += step) {
        T left[TOGETHER][step];
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            load_aligned<step>(rows[k] + i, left[k]);
        }
#pragma unroll
        for (int j = 0; j < step; j++) {
            T here[count];
            load_aligned<count>(right + (i + j) * DEGREES, here);
#pragma unroll
            for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
                for (int c = 0; c < count; c++) {
                    sums[k][c] += left[k][j] * here[c];
                }
            }
        }
    }
}

// Computes projected[e,m,l] = norm_l sum_n sbf_rad[e,l,n] weights[l,n,m], padded with zeros to 8 degrees. projected_dot is the
// derivative of `projected` along sbf_rad_dot and weights_dot. A block handles PROJECTED edges and MIDS columns m.
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_project(const T* __restrict__ sbf_rad, const T* __restrict__ sbf_rad_dot, const T* __restrict__ weights,
                const T* __restrict__ weights_dot, T* __restrict__ projected, T* __restrict__ projected_dot, long long num_edges,
                int n_mid, int num_spherical, int num_radial) {
    constexpr int count = MIDS<T>, stride = DEGREE_STRIDE<T>;
    __shared__ __align__(16) T tile[DEGREES * stride];
    __shared__ __align__(16) T tile_dot[DEGREES * stride];
    const int l = int(threadIdx.x) % DEGREES, degree = min(l, num_spherical - 1), width = num_spherical * num_radial;
    const int m0 = int(blockIdx.y) * count, mids = min(count, n_mid - m0);
    const auto stage = [&](T* to, const T* from) {
        stage_degree_matrices(to, num_spherical, num_radial, [&](int l, int n, int m) {
            return m < mids ? angular_norm(T(0), l) * from[(long long)(l * num_radial + n) * n_mid + m0 + m] : T(0);
        });
    };
    stage(tile, weights);
    if (projected_dot != nullptr && weights_dot != nullptr) {
        stage(tile_dot, weights_dot);
    }
    __syncthreads();
    const ThreadEdges edges(num_edges);
    const auto store = [&](T* to, const EdgeSums<T, count>& sums) {
        T* const first = to + (edges.first * n_mid + m0) * DEGREES + l;
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            const int last = edges.exists(k) ? mids : 0;
#pragma unroll
            for (int m = 0; m < count; m++) {
                if (m < last) {
                    first[((long long)(k) * WARP_GROUPS * n_mid + m) * DEGREES] = l < num_spherical ? sums[k][m] : T(0);
                }
            }
        }
    };
    EdgeRows<T> rows;
    edges.set_row_pointers(sbf_rad + degree * num_radial, width, rows);
    EdgeSums<T, count> sums = {};
    add_rows_times_matrix<1>(rows, tile + degree * stride, 0, num_radial, sums);
    store(projected, sums);
    if (projected_dot != nullptr) {
        EdgeSums<T, count> sums_dot = {}, by_weights = {};
        if (weights_dot != nullptr) {
            add_rows_times_matrix<1>(rows, tile_dot + degree * stride, 0, num_radial, by_weights);
        }
        if (sbf_rad_dot != nullptr) {
            edges.set_row_pointers(sbf_rad_dot + degree * num_radial, width, rows);
            add_rows_times_matrix<1>(rows, tile + degree * stride, 0, num_radial, sums_dot);
        }
        add_elementwise(sums_dot, by_weights);
        store(projected_dot, sums_dot);
    }
}

// Computes out[e,l,n] = norm_l sum_m (weights[l,n,m] grad_projected[e,l,m] + weights_dot[l,n,m] grad_projected_dot[e,l,m]), or
// zero for an edge in no triplet. A block handles PROJECTED edges and RADIALS radial functions n.
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_sbf_rad_gradient(const T* __restrict__ grad_projected, const T* __restrict__ grad_projected_dot,
                         const T* __restrict__ weights, const T* __restrict__ weights_dot, const int* __restrict__ alone,
                         T* __restrict__ out, long long num_edges, int n_mid, int num_spherical, int num_radial) {
    constexpr int step = 4;
    __shared__ __align__(16) T tile[DEGREES * DEGREE_STRIDE<T>];
    const int l = int(threadIdx.x) % DEGREES, degree = min(l, num_spherical - 1);
    const int n0 = int(blockIdx.y) * RADIALS, radials = min(RADIALS, num_radial - n0);
    const ThreadEdges edges(num_edges);
    EdgeSums<T, RADIALS> sums = {};
#pragma unroll 1
    for (int order = 0; order < (weights_dot == nullptr ? 1 : 2); order++) {
        const T* const from = order == 0 ? weights : weights_dot;
        EdgeRows<T> rows;
        edges.set_row_pointers((order == 0 ? grad_projected : grad_projected_dot) + degree * padded<T>(n_mid),
                               num_spherical * padded<T>(n_mid), rows);
#pragma unroll 1
        for (int chunk = 0; chunk < n_mid; chunk += CHUNK) {
            EdgeSums<T, RADIALS> part = {};
#pragma unroll 1
            for (int m0 = chunk; m0 < min(chunk + CHUNK, n_mid); m0 += MOST_ROWS) {
                const int mids = min(MOST_ROWS, n_mid - m0), steps = mids / step * step;
                const T* const here = tile + degree * DEGREE_STRIDE<T> - m0 * DEGREES;
                __syncthreads();
                stage_degree_matrices(tile, num_spherical, mids, [&](int l, int m, int n) {
                    return n < radials ? angular_norm(T(0), l) * from[(long long)(l * num_radial + n0 + n) * n_mid + m0 + m] : T(0);
                });
                __syncthreads();
                add_rows_times_matrix<step>(rows, here, m0, m0 + steps, part);
                add_rows_times_matrix<1>(rows, here, m0 + steps, m0 + mids, part);
            }
            add_elementwise(sums, part);
        }
    }
    // Transpose the sums of a warp in shared memory, so that adjacent lanes write adjacent elements.
    const int lane = int(threadIdx.x) % LANES, in_warp = lane / DEGREES, n = lane % DEGREES;
    T* const rows = tile + int(threadIdx.x) / LANES * LANES * DEGREES;
    const long long left = (num_edges - edges.first + in_warp) * num_spherical;  // number of remaining rows (edge, l)
    T* to = out + ((edges.first - in_warp) * num_spherical + in_warp) * num_radial + n0 + n;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
        const bool none = !edges.exists(k) || alone[edges.edge(k)] != 0;
#pragma unroll
        for (int i = 0; i < RADIALS && l < num_spherical; i++) {
            rows[(in_warp * num_spherical + l) * DEGREES + i] = none ? T(0) : sums[k][i];
        }
        __syncwarp();
        const int end = n < radials ? int(min(left - k * WARP_GROUPS * num_spherical, (long long)(WARP_GROUPS) * num_spherical)) : 0;
        for (int row = in_warp; row < end; row += WARP_GROUPS, to += WARP_GROUPS * num_radial) {
            *to = rows[row * DEGREES + n];
        }
        __syncwarp();
    }
}

// parts[chunk,l,n,m] = norm_l sum over the chunk's edges of sbf_rad[e,l,n] grad_projected[e,l,m] + sbf_rad_dot[e,l,n]
// grad_projected_dot[e,l,m], skipping edges in no triplet. A block handles CHUNK edges, RADIALS functions n and MIDS columns m.
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_weight_gradient_parts(const T* __restrict__ sbf_rad, const T* __restrict__ sbf_rad_dot,
                              const T* __restrict__ grad_projected, const T* __restrict__ grad_projected_dot,
                              const int* __restrict__ alone, T* __restrict__ parts, long long num_edges, int n_mid,
                              int num_spherical, int num_radial) {
    constexpr int count = MIDS<T>, size = RADIALS * count, run = 4;  // run: number of terms per partial sum
    __shared__ T totals[GROUPS * DEGREES * size];
    const int l = int(threadIdx.x) % DEGREES, group = int(threadIdx.x) / DEGREES;
    const int tiles = (n_mid + count - 1) / count, n0 = int(blockIdx.y) / tiles * RADIALS, m0 = int(blockIdx.y) % tiles * count;
    const int radials = min(RADIALS, num_radial - n0), mids = min(count, n_mid - m0);
    T total[RADIALS][count] = {};
#pragma unroll 1
    for (int i = 0; i < (sbf_rad_dot == nullptr ? CHUNK : 2 * CHUNK) && l < num_spherical; i += run * GROUPS) {
        const T *const left = i < CHUNK ? sbf_rad : sbf_rad_dot, *const right = i < CHUNK ? grad_projected : grad_projected_dot;
        const long long first = (long long)(blockIdx.x) * CHUNK + i % CHUNK + group;
        T part[RADIALS][count] = {};
#pragma unroll 2
        for (int k = 0; k < run; k++) {
            const long long e = min(first + k * GROUPS, num_edges - 1), row = e * num_spherical + l;
            const bool none = first + k * GROUPS >= num_edges || alone[e] != 0;
            T grad[count];
            load_aligned<count>(right + row * padded<T>(n_mid) + m0, grad);
#pragma unroll
            for (int m = 0; m < count; m++) {
                grad[m] = none ? T(0) : grad[m];
            }
#pragma unroll
            for (int n = 0; n < RADIALS; n++) {
                const T here = left[row * num_radial + n0 + min(n, radials - 1)], factor = none ? T(0) : here;
#pragma unroll
                for (int m = 0; m < count; m++) {
                    part[n][m] += factor * grad[m];
                }
            }
        }
        add_elementwise(total, part);
    }
#pragma unroll
    for (int i = 0; i < size; i++) {
        totals[(i * GROUPS + group) * DEGREES + l] = total[i / count][i % count];
    }
    __syncthreads();
    for (int i = int(threadIdx.x); i < size * DEGREES; i += THREADS) {
        const int n = i / DEGREES / count, m = i / DEGREES % count;
        const T* const from = totals + i / DEGREES * GROUPS * DEGREES + l;
        T sum = T(0);
#pragma unroll
        for (int j = 0; j < GROUPS; j += run) {
            T quarter = T(0);
#pragma unroll
            for (int k = j; k < j + run; k++) {
                quarter += from[k * DEGREES];
            }
            sum += quarter;
        }
        if (l < num_spherical && n < radials && m < mids) {
            const long long row = ((long long)(blockIdx.x) * num_spherical + l) * num_radial + n0 + n;
            parts[row * n_mid + m0 + m] = angular_norm(T(0), l) * sum;
        }
    }
}
