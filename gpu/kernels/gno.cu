// Graph neural operator. Per edge z = U xi + b_u, a = z where not (z <= 0) else 0, kernel = V a + b_v; per destination
// message_i = sum over e into i of K_e h_src(e). gpu/gno.py states the formulas and launches the kernels.
//
// Packed parameters are row-major here: U (d, H) | b_u (H) | V (H, F) | b_v (F), F = (f_in, f_out), f_out fast. A
// kernel for a range of pieces has `first` and `count`; its arrays over pieces start at piece `first`. Null pointers
// omit a term or an output. Position p reads row edge_ids[p] of edge arrays.
#include "matrices.cuh"
#include "gno_grad_edges_tensor.cuh"

// Minimum of resident blocks per multiprocessor (__launch_bounds__); the resulting register limit causes no spills.
template <class T> constexpr int many_blocks_per_sm = sizeof(T) == 4 ? 8 : 5;
template <class T> constexpr int few_blocks_per_sm = sizeof(T) == 4 ? 5 : 4;

// ---- gno_kernel -----------------------------------------------------------------------------------------------------

// For edges first..first+count-1: a_dot (H), a^ = [a, 1] (H + 1), xi^ = [xi, 1] (d + 1); a_dot and a^ in rows `stride`
// apart.
template <class T>
__global__ void __launch_bounds__(THREADS)
gno_hidden(const KernelNetwork<T> network, long long first, long long count, int stride, T* __restrict__ a_dot,
           T* __restrict__ a, T* __restrict__ xi) {
    const int d = network.d, hidden = network.hidden;
    const int width = max(d, hidden) + 1;
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long e = i / width;
    const int k = int(i - e * width);
    if (e < count) {
        T value[1];
        if (a_dot != nullptr && k < hidden) {
            network.compute_hidden_units(true, first + e, k, value);
            a_dot[e * stride + k] = value[0];
        }
        if (a != nullptr && k <= hidden) {
            network.compute_hidden_units(false, first + e, k, value);
            a[e * stride + k] = k < hidden ? value[0] : T(1);
        }
        if (xi != nullptr && k <= d) {
            xi[e * (d + 1) + k] = k < d ? network.coords[(first + e) * d + k] : T(1);
        }
    }
}

// Sets s (count, copies, H) to 0 where the hidden layer of the edge is inactive.
template <class T>
__global__ void __launch_bounds__(THREADS)
gno_zero_inactive(const KernelNetwork<T> network, long long first, long long count, int copies, T* __restrict__ s) {
    const int hidden = network.hidden;
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long e = i / hidden;
    const int k = int(i - e * hidden);
    T z[1];
    if (e < count && network.compute_hidden_units(false, first + e, k, z) == 0) {
        for (int copy = 0; copy < copies; copy++) {
            s[(e * copies + copy) * hidden + k] = T(0);
        }
    }
}

// ---- gno_aggregate --------------------------------------------------------------------------------------------------

// Axes (y, x) of the matrices: extents, strides, one of which is 1, and lanes along them as exponents of two.
struct MatrixAxes {
    int num_y;
    int num_x;
    int y_stride;
    int x_stride;
    int y_bits;
    int x_bits;

    // Returns the number that is combined by XOR with the places of consecutive lanes along x in shared memory, so that
    // the sums for different y are in different banks.
    __device__ int swizzle(int y) const {
        const int y_banks = min(y_bits, 5 - x_bits);  // bits of y that already select different banks
        return y_stride == 1 ? 0 : (y >> y_banks) & ((1 << x_bits) - 1);
    }
};

// out[row, y] = sum over its positions p and over x of kernel[edge_ids[p], y, x] values[others[p], x], plus the same of
// a second pair, if any. The kernel's axes (y, x) are (f_out, f_in) forward and (f_in, f_out) backward; consecutive
// lanes lie along the axis of stride 1. Backward, p is order[position].
template <class T, class I>
__global__ void __launch_bounds__(THREADS, many_blocks_per_sm<T>)
gno_contract(const T* __restrict__ kernel, const T* __restrict__ values, const T* __restrict__ kernel_2,
             const T* __restrict__ values_2, const RowPartition<I> partition, const I* __restrict__ order,
             const I* __restrict__ edge_ids, const I* __restrict__ others, const MatrixAxes axes, int e_bits,
             T* __restrict__ out, T* __restrict__ overflow) {
    __shared__ T sums[4][THREADS];
    const int num_y = axes.num_y, num_x = axes.num_x, y_stride = axes.y_stride, x_stride = axes.x_stride;
    const int y_bits = axes.y_bits, x_bits = axes.x_bits;
    const int lane_bits = y_bits + x_bits + e_bits, lane = threadIdx.x & ((1 << lane_bits) - 1);
    const int y_shift = y_stride == 1 ? 0 : x_bits, x_shift = y_stride == 1 ? y_bits : 0;
    const int y_lane = (lane >> y_shift) & ((1 << y_bits) - 1), x_lane = (lane >> x_shift) & ((1 << x_bits) - 1);
    const unsigned tiles = (num_y + (4 << y_bits) - 1) / (4 << y_bits);
    const int y0 = int(blockIdx.x % tiles) * (4 << y_bits);
    const long long s = (long long)(blockIdx.x / tiles) * (THREADS >> lane_bits) + (threadIdx.x >> lane_bits);
    const RowPiece<I> piece = partition.piece(s);
    TreeSum<T, 3, 4> total[4];
    int terms = 0;
    for (int pair = 0; pair < 2; pair++) {
        const T* const matrices = pair == 0 ? kernel : kernel_2;
        const T* const vectors = pair == 0 ? values : values_2;
        for (int e = lane >> (y_bits + x_bits); matrices != nullptr && e < piece.size; e += 1 << e_bits) {
            const I p = order == nullptr ? piece.begin + e : order[piece.begin + e];
            const T* const matrix = matrices + (long long)(edge_ids[p]) * num_y * num_x + (long long)(y0) * y_stride;
            const T* const vector = vectors + (long long)(others[p]) * num_x;
            for (int x = x_lane; x < num_x; x += 1 << x_bits, terms++) {
                const T value = vector[x];
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    const int y = y_lane + (r << y_bits);
                    if (y0 + y < num_y) {
                        total[r].add(matrix[(long long)(y) * y_stride + (long long)(x) * x_stride] * value, terms);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
        sums[r][threadIdx.x ^ axes.swizzle(y_lane + (r << y_bits))] = total[r].value();
    }
    __syncthreads();
    if (s < partition.num_pieces) {
        T* const target = partition.output_address(s, num_y, out, overflow) + y0;
        const int first = int(threadIdx.x) - lane;
        for (int y = lane; y < min(4 << y_bits, num_y - y0); y += 1 << lane_bits) {
            const int swizzle = axes.swizzle(y);
            TreeSum<T, 4, 2> sum;
            for (int i = 0; i < 1 << (x_bits + e_bits); i++) {
                const int x = i & ((1 << x_bits) - 1), e = i >> x_bits;
                const int place = ((y & ((1 << y_bits) - 1)) << y_shift) + (x << x_shift) + (e << (y_bits + x_bits));
                sum.add(sums[y >> y_bits][first + (place ^ swizzle)], i);
            }
            target[y] = sum.value();
        }
    }
}

// out[row] = sum of g[destinations[p]] h[indices[p]]^T over the positions p that share the row, as (f_in, f_out).
template <class T, class I>
__global__ void __launch_bounds__(THREADS, few_blocks_per_sm<T>)
gno_sum_outer_products(const T* __restrict__ g, const T* __restrict__ h, const RowPartition<I> partition,
                       const I* __restrict__ row_positions, const I* __restrict__ destinations,
                       const I* __restrict__ indices, int f_in, int f_out, int lane_bits, T* __restrict__ out,
                       T* __restrict__ overflow) {
    constexpr int per_thread = 4;
    const int width = f_in * f_out;
    const unsigned tiles = (width + (per_thread << lane_bits) - 1) / (per_thread << lane_bits);
    const int j0 = int(blockIdx.x % tiles) * (per_thread << lane_bits) + int(threadIdx.x & ((1 << lane_bits) - 1));
    const long long s = (long long)(blockIdx.x / tiles) * (THREADS >> lane_bits) + (threadIdx.x >> lane_bits);
    const RowPiece<I> piece = partition.piece(s);
    Sum<T> sum[per_thread];
    int f[per_thread], o[per_thread];
#pragma unroll
    for (int r = 0; r < per_thread; r++) {
        const int j = min(j0 + (r << lane_bits), width - 1);
        f[r] = j / f_out;
        o[r] = j - f[r] * f_out;
    }
    for (int e = 0; e < piece.size; e++) {
        const I p = row_positions == nullptr ? piece.begin : row_positions[piece.begin + e];
        const T* const left = g + (long long)(destinations[p]) * f_out;
        const T* const right = h + (long long)(indices[p]) * f_in;
#pragma unroll
        for (int r = 0; r < per_thread; r++) {
            sum[r].add(left[o[r]] * right[f[r]], e);
        }
    }
    if (s < partition.num_pieces) {
        T* const target = partition.output_address(s, width, out, overflow);
#pragma unroll
        for (int r = 0; r < per_thread; r++) {
            if (j0 + (r << lane_bits) < width) {
                target[j0 + (r << lane_bits)] = sum[r].value();
            }
        }
    }
}
