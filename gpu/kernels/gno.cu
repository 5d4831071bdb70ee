// Graph neural operator. Per edge z = U xi + b_u, a = z where not (z <= 0) else 0, kernel = V a + b_v; per destination
// message_i = sum over e into i of K_e h_src(e). gpu/gno.py states the formulas and launches the kernels.
//
// Packed parameters are row-major here: U (d, H) | b_u (H) | V (H, F) | b_v (F), F = (f_in, f_out), f_out fast. A
// kernel for a range of pieces has `first` and `count`; its arrays over pieces start at piece `first`. Null pointers
// omit a term or an output. Position p reads row edge_ids[p] of edge arrays.
#include "matrices.cuh"
#include "gno_tiles.cuh"

// The hidden layer a of an edge row, and its tangent a_dot = U xi_dot + U_dot xi + b_u_dot where the layer is active; xi
// are the coords, and U_dot, b_u_dot are of params_dot.
template <class T> struct Network {
    const T* coords;
    const T* params;
    const T* coords_dot;
    const T* params_dot;
    int d;
    int hidden;

    // sum[j] += sum over c of weights[c, k + j] xi[row, c], with xi[row, d] = 1 if `bias`, for existing units only.
    template <int n>
    __device__ void add_affine(const T* weights, const T* xi, bool bias, long long row, int k, T (&sum)[n]) const {
#pragma unroll 1
        for (int i = bias ? -1 : 0; i < d; i++) {
            const T value = i < 0 ? T(1) : xi[row * d + i];
            const T* const of_row = weights + (long long)(i < 0 ? d : i) * hidden + k;
#pragma unroll
            for (int j = 0; j < n; j++) {
                sum[j] += (k + j < hidden ? of_row[j] : T(0)) * value;
            }
        }
    }
    static __device__ bool active(T z) { return !(z <= T(0)); }

    // z += U^ xi^ for the units k .. k + n - 1; results beyond the last unit are undefined.
    template <int n> __device__ void add_z(long long row, int k, T (&z)[n]) const {
        add_affine(params, coords, true, row, k, z);
    }
    // a or, with `dot`, a_dot of these units.
    template <int n> __device__ void units(bool dot, long long row, int k, T (&out)[n]) const {
        T z[n] = {}, a_dot[n] = {};
        add_z(row, k, z);
        if (dot && params_dot != nullptr) {
            add_affine(params_dot, coords, true, row, k, a_dot);
        }
        if (dot && coords_dot != nullptr) {
            add_affine(params, coords_dot, false, row, k, a_dot);
        }
#pragma unroll
        for (int j = 0; j < n; j++) {
            out[j] = !active(z[j]) ? T(0) : dot ? a_dot[j] : z[j];
        }
    }
};

// ---- gno_kernel -----------------------------------------------------------------------------------------------------

// For edges first..first+count-1: a_dot (H), a^ = [a, 1] (H + 1), xi^ = [xi, 1] (d + 1); a_dot and a^ in rows `stride`
// apart.
template <class T>
__global__ void __launch_bounds__(THREADS)
gno_hidden(const Network<T> network, long long first, long long count, int stride, T* __restrict__ a_dot,
           T* __restrict__ a, T* __restrict__ xi) {
    const int d = network.d, hidden = network.hidden;
    const int width = max(d, hidden) + 1;
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long e = i / width;
    const int k = int(i - e * width);
    if (e < count) {
        T value[1];
        if (a_dot != nullptr && k < hidden) {
            network.units(true, first + e, k, value);
            a_dot[e * stride + k] = value[0];
        }
        if (a != nullptr && k <= hidden) {
            network.units(false, first + e, k, value);
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
gno_select(const Network<T> network, long long first, long long count, int copies, T* __restrict__ s) {
    const int hidden = network.hidden;
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long e = i / hidden;
    const int k = int(i - e * hidden);
    T z[1] = {};
    if (e < count) {
        network.add_z(first + e, k, z);
    }
    if (e < count && !network.active(z[0])) {
        for (int copy = 0; copy < copies; copy++) {
            s[(e * copies + copy) * hidden + k] = T(0);
        }
    }
}

// ---- gno_aggregate --------------------------------------------------------------------------------------------------

// Axes (y, x) of the matrices: extents, strides, one of which is 1, and lanes along them as exponents of two.
struct Axes {
    int num_y;
    int num_x;
    int y_stride;
    int x_stride;
    int y_bits;
    int x_bits;

    // What lanes along x exchange places by in shared memory, where they are consecutive: after it, the sums for
    // different y lie in different banks.
    __device__ int swizzle(int y) const {
        const int y_banks = min(y_bits, 5 - x_bits);  // bits of y that tell banks apart without it
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
             const I* __restrict__ edge_ids, const I* __restrict__ others, const Axes axes, int e_bits,
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
    const RowChunk<I> piece = partition.piece(s);
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
        T* const target = partition.target(s, num_y, out, overflow) + y0;
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
gno_outer(const T* __restrict__ g, const T* __restrict__ h, const RowPartition<I> partition,
          const I* __restrict__ row_positions, const I* __restrict__ destinations, const I* __restrict__ indices,
          int f_in, int f_out, int lane_bits, T* __restrict__ out, T* __restrict__ overflow) {
    constexpr int per_thread = 4;
    const int width = f_in * f_out;
    const unsigned tiles = (width + (per_thread << lane_bits) - 1) / (per_thread << lane_bits);
    const int j0 = int(blockIdx.x % tiles) * (per_thread << lane_bits) + int(threadIdx.x & ((1 << lane_bits) - 1));
    const long long s = (long long)(blockIdx.x / tiles) * (THREADS >> lane_bits) + (threadIdx.x >> lane_bits);
    const RowChunk<I> piece = partition.piece(s);
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
        T* const target = partition.target(s, width, out, overflow);
#pragma unroll
        for (int r = 0; r < per_thread; r++) {
            if (j0 + (r << lane_bits) < width) {
                target[j0 + (r << lane_bits)] = sum[r].value();
            }
        }
    }
}

// ---- gno_message ----------------------------------------------------------------------------------------------------

// moments[s, k, f] = sum over the piece's edges of a^[k] h_by_a[src, f] + a_dot[k] h_by_a_dot[src, f], k = 0..H,
// a^[H] = 1, a_dot[H] = 0. Tiles are hidden units by features, edges deep; the row k = H has separate sums, next to the
// first tile of hidden units.
template <class T, class I, int row_bits, int col_bits>
__global__ void __launch_bounds__(THREADS, tile_blocks_per_sm<T>)
gno_moments(const Network<T> network, const T* __restrict__ h_by_a, const T* __restrict__ h_by_a_dot,
            const RowPartition<I> partition, const I* __restrict__ indices, const I* __restrict__ edge_ids,
            long long first, long long count, int f_in, T* __restrict__ moments) {
    using Tile = PieceTile<row_bits, col_bits>;
    __shared__ __align__(16) T buffer[Tile::elements];
    T* const left = buffer + Tile::group() * Tile::group_elements;
    T* const right = left + Tile::depth * Tile::row_stride;
    const int hidden = network.hidden;
    const bool wide = f_in % tile_side == 0;
    const unsigned col_tiles = (f_in + Tile::cols - 1) / Tile::cols;
    const unsigned tiles = col_tiles * ((hidden + Tile::rows - 1) / Tile::rows);
    const int k0 = int(blockIdx.x % tiles / col_tiles) * Tile::rows, f0 = int(blockIdx.x % col_tiles) * Tile::cols;
    const long long block = (long long)(blockIdx.x / tiles) * Tile::groups, s = block + Tile::group();
    const RowChunk<I> piece = partition.piece(s < count ? first + s : partition.num_pieces);
    const int longest = partition.longest(first + block, Tile::groups);
    T sum[tile_side][tile_side] = {};
    Sum<T> ones;  // of column number lane
    for (int dot = h_by_a == nullptr; dot < (h_by_a_dot == nullptr ? 1 : 2); dot++) {
        const T* const h = (dot ? h_by_a_dot : h_by_a) + f0;
        for (int e0 = 0; e0 < longest; e0 += Tile::depth) {
            const int depth = min(Tile::depth, piece.size - e0);
            load_factor<Tile, Tile::rows, false>(left, [&](int e, int k, T(&run)[tile_side]) {
                if (e < depth) {
                    network.units(dot, edge_ids[piece.begin + e0 + e], k0 + k, run);
                }
            });
            load_factor<Tile, Tile::cols, false>(right, [&](int e, int f, T(&run)[tile_side]) {
                if (e < depth) {
                    load_run(h + (long long)(indices[piece.begin + e0 + e]) * f_in + f, f_in - f0 - f, wide, run);
                }
            });
            __syncthreads();
            multiply_tile<Tile>(left, right, depth, sum);
            for (int e = 0; e < depth && k0 == 0 && !dot && Tile::lane() < Tile::cols; e++) {
                ones.add(right[e * Tile::col_stride + Tile::lane()], e0 + e);
            }
            __syncthreads();
        }
    }
    if (s >= count) {
        return;
    }
    T* const target = moments + s * (hidden + 1) * f_in + f0;
#pragma unroll
    for (int i = 0; i < tile_side; i++) {
        const int k = k0 + Tile::row() + i;
        if (k < hidden) {
            store_run(target + (long long)(k) * f_in + Tile::col(), f_in - f0 - Tile::col(), wide, sum[i]);
        }
    }
    if (k0 == 0 && Tile::lane() < min(Tile::cols, f_in - f0)) {
        target[(long long)(hidden) * f_in + Tile::lane()] = ones.value();
    }
}

// to_source[p, f] = sum over k of a^[k] q_by_a[s, k, f] + a_dot[k] q_by_a_dot[s, k, f] for the positions p of a piece s.
// Tiles are edges by features, hidden units deep.
template <class T, class I, int row_bits, int col_bits>
__global__ void __launch_bounds__(THREADS, tile_blocks_per_sm<T>)
gno_to_source(const Network<T> network, const T* __restrict__ q_by_a, const T* __restrict__ q_by_a_dot,
              const RowPartition<I> partition, const I* __restrict__ edge_ids, long long first, long long count,
              int f_in, T* __restrict__ to_source) {
    using Tile = PieceTile<row_bits, col_bits>;
    __shared__ __align__(16) T buffer[Tile::elements];
    T* const left = buffer + Tile::group() * Tile::group_elements;
    T* const right = left + Tile::depth * Tile::row_stride;
    const int hidden = network.hidden;
    const bool wide = f_in % tile_side == 0;
    const unsigned tiles = (f_in + Tile::cols - 1) / Tile::cols;
    const int f0 = int(blockIdx.x % tiles) * Tile::cols;
    const long long block = (long long)(blockIdx.x / tiles) * Tile::groups, s = block + Tile::group();
    const RowChunk<I> piece = partition.piece(s < count ? first + s : partition.num_pieces);
    const int longest = partition.longest(first + block, Tile::groups);
    for (int e0 = 0; e0 < longest; e0 += Tile::rows) {
        const int edges = min(Tile::rows, piece.size - e0);
        T sum[tile_side][tile_side] = {};
        for (int dot = q_by_a == nullptr; dot < (q_by_a_dot == nullptr ? 1 : 2); dot++) {
            const T* const q = (dot ? q_by_a_dot : q_by_a) + s * (hidden + 1) * f_in + f0;
            const int units = hidden + 1 - dot;  // exclude a_dot[H] = 0 instead of multiplying: b_v may be NaN
            for (int k0 = 0; k0 < units; k0 += Tile::depth) {
                const int depth = edges > 0 ? min(Tile::depth, units - k0) : 0;
                load_factor<Tile, Tile::rows, true>(left, [&](int x, int e, T(&run)[tile_side]) {
                    if (e < edges) {
                        network.units(dot, edge_ids[piece.begin + e0 + e], k0 + x, run);
                    }
#pragma unroll
                    for (int j = 0; j < tile_side; j++) {  // a^[H]; there is no a_dot[H]
                        run[j] = k0 + x + j == hidden ? T(1) : run[j];
                    }
                });
                load_factor<Tile, Tile::cols, false>(right, [&](int k, int f, T(&run)[tile_side]) {
                    if (k < depth) {
                        load_run(q + (long long)(k0 + k) * f_in + f, f_in - f0 - f, wide, run);
                    }
                });
                __syncthreads();
                multiply_tile<Tile>(left, right, depth, sum);
                __syncthreads();
            }
        }
#pragma unroll
        for (int i = 0; i < tile_side; i++) {
            const int e = Tile::row() + i, f = f0 + Tile::col();
            if (e < edges) {
                store_run(to_source + ((long long)(piece.begin) + e0 + e) * f_in + f, f_in - f, wide, sum[i]);
            }
        }
    }
}

// Results of the tile s[e, k] of edges e < edges from position p on and hidden units k < units from k0 on:
// to_coords[p + e, c] (+)= sum over k of weights[c, k0 + k] s[e, k], added unless `fresh_coords`;
// to_params[c, k0 + k] (+)= sum over e of s[e, k] xi[row, c], with xi[row, d] = 1 if `bias`, added unless `fresh_params`.
// Every sum belongs to one lane throughout the kernel.
template <class Tile, class T, class I>
__device__ void first_layer_sums(const T* s, int edges, int units, const I* edge_ids, long long p, int k0,
                                 int d, int hidden, const T* weights, const T* xi, int bias, bool fresh_coords,
                                 bool fresh_params, T* to_coords, T* to_params) {
    for (int i = Tile::lane(); to_coords != nullptr && weights != nullptr && i < edges * d; i += Tile::lanes) {
        const int e = i / d, c = i - e * d;
        T sum = T(0);
        for (int k = 0; k < units; k++) {
            sum += weights[(long long)(c) * hidden + k0 + k] * s[e * Tile::col_stride + k];
        }
        T* const target = to_coords + (p + e) * d + c;
        *target = fresh_coords ? sum : *target + sum;
    }
    for (int i = Tile::lane(); to_params != nullptr && xi != nullptr && i < units * (d + bias); i += Tile::lanes) {
        const int c = i / units, k = i - c * units;
        Sum<T> sum;
        for (int e = 0; e < edges; e++) {
            const T value = s[e * Tile::col_stride + k];
            sum.add(c < d ? value * xi[(long long)(edge_ids[p + e]) * d + c] : value, e);
        }
        T* const target = to_params + (long long)(c) * hidden + k0 + k;
        *target = fresh_params ? sum.value() : *target + sum.value();
    }
}

// s[e, k] = sum over f of q_1[s, k, f] h_1[src, f] + q_2[s, k, f] h_2[src, f] where the hidden layer is active, else 0,
// and the results of first_layer_sums: to_coords (num_positions, d), to_params (count, d + 1, H). Tiles are edges by
// hidden units, features deep. With `add`, the sums are added to existing values.
template <class T, class I, int row_bits, int col_bits>
__global__ void __launch_bounds__(THREADS, tile_blocks_per_sm<T>)
gno_first_layer(const Network<T> network, const T* __restrict__ q_1, const T* __restrict__ h_1,
                const T* __restrict__ q_2, const T* __restrict__ h_2, const T* __restrict__ weights,
                const T* __restrict__ xi, const RowPartition<I> partition, const I* __restrict__ indices,
                const I* __restrict__ edge_ids, long long first, long long count, int f_in, int bias, int add,
                T* to_coords, T* to_params) {
    using Tile = PieceTile<row_bits, col_bits>;
    __shared__ __align__(16) T buffer[Tile::elements];
    T* const left = buffer + Tile::group() * Tile::group_elements;
    T* const right = left + Tile::depth * Tile::row_stride;
    T* const s_tile = left;  // reused once the factors are consumed
    const int d = network.d, hidden = network.hidden;
    const bool wide = f_in % tile_side == 0;
    const long long block = (long long)(blockIdx.x) * Tile::groups, s = block + Tile::group();
    const RowChunk<I> piece = partition.piece(s < count ? first + s : partition.num_pieces);
    const int longest = partition.longest(first + block, Tile::groups);
    for (int e0 = 0; e0 == 0 || e0 < longest; e0 += Tile::rows) {
        const int edges = max(0, min(Tile::rows, piece.size - e0));
        for (int k0 = 0; k0 < hidden; k0 += Tile::cols) {
            const int units = min(Tile::cols, hidden - k0);
            T sum[tile_side][tile_side] = {};
            for (int pair = 0; pair < 2; pair++) {
                const T* const h = pair == 0 ? h_1 : h_2;
                if (h == nullptr) {
                    continue;
                }
                const T* const q = (pair == 0 ? q_1 : q_2) + (s * (hidden + 1) + k0) * f_in;
                for (int f0 = 0; f0 < f_in; f0 += Tile::depth) {
                    const int depth = edges > 0 ? min(Tile::depth, f_in - f0) : 0;
                    load_factor<Tile, Tile::rows, true>(left, [&](int f, int e, T(&run)[tile_side]) {
                        if (e < edges) {
                            const long long row = indices[piece.begin + e0 + e];
                            load_run(h + row * f_in + f0 + f, depth - f, wide, run);
                        }
                    });
                    load_factor<Tile, Tile::cols, true>(right, [&](int f, int k, T(&run)[tile_side]) {
                        if (k < units) {
                            load_run(q + (long long)(k) * f_in + f0 + f, depth - f, wide, run);
                        }
                    });
                    __syncthreads();
                    multiply_tile<Tile>(left, right, depth, sum);
                    __syncthreads();
                }
            }
#pragma unroll
            for (int i = 0; i < tile_side; i++) {
                const int e = Tile::row() + i;
                T z[tile_side] = {};
                if (e < edges) {
                    network.add_z(edge_ids[piece.begin + e0 + e], k0 + Tile::col(), z);
                }
#pragma unroll
                for (int j = 0; j < tile_side && e < edges; j++) {
                    s_tile[e * Tile::col_stride + Tile::col() + j] = network.active(z[j]) ? sum[i][j] : T(0);
                }
            }
            __syncthreads();
            if (s < count) {
                T* const of_piece = to_params == nullptr ? nullptr : to_params + s * (d + 1) * hidden;
                first_layer_sums<Tile>(s_tile, edges, units, edge_ids, piece.begin + e0, k0, d, hidden, weights, xi,
                                       bias, !add && k0 == 0, !add && e0 == 0, to_coords, of_piece);
            }
            __syncthreads();
        }
    }
}
