// Graph neural operator. Per edge z = U dx + b_u, a = z where not (z <= 0) else 0, kernel = V a + b_v; per destination
// message_i = sum over e into i of K_e h_src(e). gpu/gno.py states the formulas and puts the kernels together.
//
// Packed parameters are row-major here: U (d, H) | b_u (H) | V (H, F) | b_v (F), F = (f_in, f_out), f_out fast. A kernel
// that takes a range of pieces has `first` and `count`; its arrays over pieces start at piece `first`. Null pointers
// leave out what they stand for. Edge arrays are read at row edge_ids[p] of position p.
#include "matrices.cuh"
#include "gno_tiles.cuh"

// The hidden layer of an edge row, and its tangent t = U c + Ugg dx + bgg_u where the layer is active, c = gg_coords.
template <class T> struct Network {
    const T* coords;
    const T* params;
    const T* gg_coords;
    const T* gg_params;
    int d;
    int hidden;

    __device__ T affine(const T* weights, const T* x, long long row, int k, T sum) const {
        weights += k;
        x += row * d;
        for (int c = 0; c < d; c++) {
            sum += weights[(long long)(c) * hidden] * x[c];
        }
        return sum;
    }
    __device__ T z(long long row, int k) const {
        return affine(params, coords, row, k, params[(long long)(d) * hidden + k]);
    }
    __device__ bool active(long long row, int k) const { return !(z(row, k) <= T(0)); }
    __device__ T a(long long row, int k) const {
        const T value = z(row, k);
        return !(value <= T(0)) ? value : T(0);
    }
    __device__ T t(long long row, int k) const {
        if (!active(row, k)) {
            return T(0);
        }
        T sum = gg_params != nullptr ? affine(gg_params, coords, row, k, gg_params[(long long)(d) * hidden + k]) : T(0);
        return gg_coords != nullptr ? affine(params, gg_coords, row, k, sum) : sum;
    }
};

// ---- gno_kernel -----------------------------------------------------------------------------------------------------

// For edges first..first+count-1: t (H), a^ = [a, 1] (H + 1), x^ = [dx, 1] (d + 1); t and a^ in rows `stride` apart.
template <class T>
__global__ void __launch_bounds__(128)
gno_hidden(const T* __restrict__ coords, const T* __restrict__ params, const T* __restrict__ gg_coords,
           const T* __restrict__ gg_params, long long first, long long count, int d, int hidden, int stride,
           T* __restrict__ t, T* __restrict__ a, T* __restrict__ x) {
    const Network<T> network{coords, params, gg_coords, gg_params, d, hidden};
    const int width = max(d, hidden) + 1;
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long e = i / width;
    const int k = int(i - e * width);
    if (e < count) {
        if (t != nullptr && k < hidden) {
            t[e * stride + k] = network.t(first + e, k);
        }
        if (a != nullptr && k <= hidden) {
            a[e * stride + k] = k < hidden ? network.a(first + e, k) : T(1);
        }
        if (x != nullptr && k <= d) {
            x[e * (d + 1) + k] = k < d ? coords[(first + e) * d + k] : T(1);
        }
    }
}

// s (count, copies, H) = s where the hidden layer of the edge is active, else 0.
template <class T>
__global__ void __launch_bounds__(128)
gno_select(const T* __restrict__ coords, const T* __restrict__ params, long long first, long long count, int d, int hidden,
           int copies, T* __restrict__ s) {
    const Network<T> network{coords, params, nullptr, nullptr, d, hidden};
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long e = i / hidden;
    const int k = int(i - e * hidden);
    if (e < count && !network.active(first + e, k)) {
        for (int copy = 0; copy < copies; copy++) {
            s[(e * copies + copy) * hidden + k] = T(0);
        }
    }
}

// ---- gno_aggregate --------------------------------------------------------------------------------------------------

// out[row, y] = sum over its positions p and over x of kernel[edge_ids[p], y, x] values[others[p], x], twice where there
// is a second pair. The kernel's axes (y, x) are (f_out, f_in) forward, (f_in, f_out) backward: hence the strides, one of
// which is 1; lanes along that axis are neighbours. Forward p is the position, backward order[position].
template <class T, class I>
__global__ void __launch_bounds__(128, many_blocks_per_sm<T>)
gno_contract(const T* __restrict__ kernel, const T* __restrict__ values, const T* __restrict__ kernel_2,
             const T* __restrict__ values_2, const I* __restrict__ offsets, const I* __restrict__ parts,
             long long num_rows, long long num_pieces, const I* __restrict__ order, const I* __restrict__ edge_ids,
             const I* __restrict__ others, int num_y, int num_x, int y_stride, int x_stride, int y_bits, int x_bits, int e_bits,
             T* __restrict__ out, T* __restrict__ overflow) {
    __shared__ T sums[4][128];
    const int lane_bits = y_bits + x_bits + e_bits, lane = threadIdx.x & ((1 << lane_bits) - 1);
    const int y_shift = y_stride == 1 ? 0 : x_bits, x_shift = y_stride == 1 ? y_bits : 0;
    const int y_lane = (lane >> y_shift) & ((1 << y_bits) - 1), x_lane = (lane >> x_shift) & ((1 << x_bits) - 1);
    const unsigned tiles = (num_y + (4 << y_bits) - 1) / (4 << y_bits);
    const int y0 = int(blockIdx.x % tiles) * (4 << y_bits);
    const long long s = (long long)(blockIdx.x / tiles) * (128 >> lane_bits) + (threadIdx.x >> lane_bits);
    const Cut<I> cut{offsets, parts, num_rows, num_pieces};
    const Piece<I> piece = cut.piece(s);
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
        sums[r][threadIdx.x] = total[r].value();
    }
    __syncthreads();
    if (s < num_pieces) {
        T* const target = cut.target(s, num_y, out, overflow) + y0;
        const int first = int(threadIdx.x) - lane;
        for (int y = lane; y < min(4 << y_bits, num_y - y0); y += 1 << lane_bits) {
            TreeSum<T, 4, 2> sum;
            for (int i = 0; i < 1 << (x_bits + e_bits); i++) {
                const int x = i & ((1 << x_bits) - 1), e = i >> x_bits;
                const int place = ((y & ((1 << y_bits) - 1)) << y_shift) + (x << x_shift) + (e << (y_bits + x_bits));
                sum.add(sums[y >> y_bits][first + place], i);
            }
            target[y] = sum.value();
        }
    }
}

// out[row] = sum over the positions p that share it of g[destinations[p]] h[indices[p]]^T, as (f_in, f_out).
template <class T, class I>
__global__ void __launch_bounds__(128, few_blocks_per_sm<T>)
gno_outer(const T* __restrict__ g, const T* __restrict__ h, const I* __restrict__ offsets, const I* __restrict__ parts,
          long long num_rows, long long num_pieces, const I* __restrict__ row_positions, const I* __restrict__ destinations,
          const I* __restrict__ indices, int f_in, int f_out, int lane_bits, T* __restrict__ out, T* __restrict__ overflow) {
    constexpr int per_thread = 4;
    const int width = f_in * f_out;
    const unsigned tiles = (width + (per_thread << lane_bits) - 1) / (per_thread << lane_bits);
    const int j0 = int(blockIdx.x % tiles) * (per_thread << lane_bits) + int(threadIdx.x & ((1 << lane_bits) - 1));
    const long long s = (long long)(blockIdx.x / tiles) * (128 >> lane_bits) + (threadIdx.x >> lane_bits);
    const Cut<I> cut{offsets, parts, num_rows, num_pieces};
    const Piece<I> piece = cut.piece(s);
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
    if (s < num_pieces) {
        T* const target = cut.target(s, width, out, overflow);
#pragma unroll
        for (int r = 0; r < per_thread; r++) {
            if (j0 + (r << lane_bits) < width) {
                target[j0 + (r << lane_bits)] = sum[r].value();
            }
        }
    }
}

// ---- gno_message ----------------------------------------------------------------------------------------------------

// One factor of a tile, loaded by the lanes of a group: to[x][y] = from(x, y), zero outside of x < depth and y < width.
// `y_bits` says how many y there are; with `x_fast` neighbouring lanes load neighbouring x instead of y.
template <class T, class From>
__device__ void load_factor(const PieceTile& tile, int y_bits, bool x_fast, int depth, int width, T* to, const From& from) {
    const int stride = (1 << y_bits) + 1;
    for (int i = tile.lane(); i < 1 << (y_bits + tile.depth_bits); i += tile.lanes()) {
        const int x = x_fast ? i & (tile.depth() - 1) : i >> y_bits;
        const int y = x_fast ? i >> tile.depth_bits : i & ((1 << y_bits) - 1);
        to[x * stride + y] = x < depth && y < width ? from(x, y) : T(0);
    }
}

// moments[s, k, f] = sum over the piece's edges of a^[k] h_a[src, f] + t[k] h_t[src, f], k = 0..H, a^[H] = 1, t[H] = 0.
// Tiles are hidden units by features, edges deep; the row k = H has sums of its own, with the first tile of hidden units.
template <class T, class I>
__global__ void __launch_bounds__(128, many_blocks_per_sm<T>)
gno_moments(const T* __restrict__ h_a, const T* __restrict__ h_t, const T* __restrict__ coords,
            const T* __restrict__ params, const T* __restrict__ gg_coords, const T* __restrict__ gg_params,
            const I* __restrict__ offsets, const I* __restrict__ parts, long long num_rows, long long num_pieces,
            const I* __restrict__ indices, const I* __restrict__ edge_ids, long long first, long long count, int d, int hidden, int f_in, int row_bits, int col_bits,
            int depth_bits, T* __restrict__ moments) {
    extern __shared__ double buffer[];
    const Network<T> network{coords, params, gg_coords, gg_params, d, hidden};
    const PieceTile tile{row_bits, col_bits, depth_bits};
    T* const left = reinterpret_cast<T*>(buffer) + tile.group() * tile.factor_elements();
    T* const right = left + tile.depth() * tile.row_stride();
    const unsigned col_tiles = (f_in + tile.cols() - 1) / tile.cols();
    const unsigned tiles = col_tiles * ((hidden + tile.rows() - 1) / tile.rows());
    const int k0 = int(blockIdx.x % tiles / col_tiles) * tile.rows(), f0 = int(blockIdx.x % col_tiles) * tile.cols();
    const long long block = (long long)(blockIdx.x / tiles) * tile.groups(), s = block + tile.group();
    const Cut<I> cut{offsets, parts, num_rows, num_pieces};
    const Piece<I> piece = cut.piece(s < count ? first + s : num_pieces);
    const int longest = cut.longest(first + block, tile.groups());
    T sum[lane_rows][lane_cols] = {};
    Sum<T> ones[lane_cols];
    for (int tangent = h_a == nullptr; tangent < (h_t == nullptr ? 1 : 2); tangent++) {
        const T* const h = (tangent ? h_t : h_a) + f0;
        for (int e0 = 0; e0 < longest; e0 += tile.depth()) {
            const int depth = min(tile.depth(), piece.size - e0);
            load_factor(tile, row_bits + 2, false, depth, hidden - k0, left, [&](int e, int k) {
                const long long row = edge_ids[piece.begin + e0 + e];
                return tangent ? network.t(row, k0 + k) : network.a(row, k0 + k);
            });
            load_factor(tile, col_bits + 1, false, depth, f_in - f0, right, [&](int e, int f) {
                return h[(long long)(indices[piece.begin + e0 + e]) * f_in + f];
            });
            __syncthreads();
            multiply_tile(tile, left, right, depth, sum);
            for (int e = 0; e < depth && k0 == 0 && !tangent; e++) {
#pragma unroll
                for (int j = 0; j < lane_cols; j++) {
                    ones[j].add(right[e * tile.col_stride() + tile.col(j)], e0 + e);
                }
            }
            __syncthreads();
        }
    }
    T* const target = moments + s * (hidden + 1) * f_in;
#pragma unroll
    for (int j = 0; j < lane_cols; j++) {
        const int f = f0 + tile.col(j);
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
            const int k = k0 + tile.row(i);
            if (s < count && f < f_in && k < hidden) {
                target[(long long)(k) * f_in + f] = sum[i][j];
            }
        }
        if (s < count && f < f_in && k0 + tile.row(0) == 0) {
            target[(long long)(hidden) * f_in + f] = ones[j].value();
        }
    }
}

// to_source[p, f] = sum over k = 0..H of a^[k] q_a[s, k, f] + t[k] q_t[s, k, f], for every position p of the pieces.
// Tiles are edges by features, hidden units deep.
template <class T, class I>
__global__ void __launch_bounds__(128, many_blocks_per_sm<T>)
gno_to_source(const T* __restrict__ q_a, const T* __restrict__ q_t, const T* __restrict__ coords,
              const T* __restrict__ params, const T* __restrict__ gg_coords, const T* __restrict__ gg_params,
              const I* __restrict__ offsets, const I* __restrict__ parts, long long num_rows, long long num_pieces,
              const I* __restrict__ edge_ids, long long first, long long count, int d, int hidden, int f_in, int row_bits, int col_bits, int depth_bits,
              T* __restrict__ to_source) {
    extern __shared__ double buffer[];
    const Network<T> network{coords, params, gg_coords, gg_params, d, hidden};
    const PieceTile tile{row_bits, col_bits, depth_bits};
    T* const left = reinterpret_cast<T*>(buffer) + tile.group() * tile.factor_elements();
    T* const right = left + tile.depth() * tile.row_stride();
    const unsigned tiles = (f_in + tile.cols() - 1) / tile.cols();
    const int f0 = int(blockIdx.x % tiles) * tile.cols();
    const long long block = (long long)(blockIdx.x / tiles) * tile.groups(), s = block + tile.group();
    const Cut<I> cut{offsets, parts, num_rows, num_pieces};
    const Piece<I> piece = cut.piece(s < count ? first + s : num_pieces);
    const int longest = cut.longest(first + block, tile.groups());
    for (int e0 = 0; e0 < longest; e0 += tile.rows()) {
        const int edges = min(tile.rows(), piece.size - e0);
        T sum[lane_rows][lane_cols] = {};
        for (int tangent = q_a == nullptr; tangent < (q_t == nullptr ? 1 : 2); tangent++) {
            const T* const q = (tangent ? q_t : q_a) + s * (hidden + 1) * f_in + f0;
            const int units = hidden + 1 - tangent;  // t^[H] = 0 selects: b_v may be anything
            for (int k0 = 0; k0 < units; k0 += tile.depth()) {
                const int depth = edges > 0 ? min(tile.depth(), units - k0) : 0;
                load_factor(tile, row_bits + 2, false, depth, edges, left, [&](int k, int e) {
                    const long long row = edge_ids[piece.begin + e0 + e];
                    return k0 + k == hidden ? T(1) : tangent ? network.t(row, k0 + k) : network.a(row, k0 + k);
                });
                load_factor(tile, col_bits + 1, false, depth, f_in - f0, right,
                            [&](int k, int f) { return q[(long long)(k0 + k) * f_in + f]; });
                __syncthreads();
                multiply_tile(tile, left, right, depth, sum);
                __syncthreads();
            }
        }
#pragma unroll
        for (int i = 0; i < lane_rows; i++) {
#pragma unroll
            for (int j = 0; j < lane_cols; j++) {
                const int e = tile.row(i), f = f0 + tile.col(j);
                if (e < edges && f < f_in) {
                    to_source[((long long)(piece.begin) + e0 + e) * f_in + f] = sum[i][j];
                }
            }
        }
    }
}

// What s gives, for the tile s[e, k] of edges e < edges from position p on and hidden units k < units from k0 on:
// to_coords[p + e, c] (+)= sum over k of weights[c, k0 + k] s[e, k], added unless `fresh_coords`;
// to_params[c, k0 + k] (+)= sum over e of s[e, k] x[row, c], with x[row, d] = 1 if `bias`, added unless `fresh_params`.
// Every sum belongs to one lane for as long as the kernel runs.
template <class T, class I>
__device__ void first_layer_sums(const PieceTile& tile, const T* s, int edges, int units, const I* edge_ids, long long p, int k0,
                                 int d, int hidden, const T* weights, const T* x, int bias, bool fresh_coords,
                                 bool fresh_params, T* to_coords, T* to_params) {
    for (int i = tile.lane(); to_coords != nullptr && weights != nullptr && i < edges * d; i += tile.lanes()) {
        const int e = i / d, c = i - e * d;
        T sum = T(0);
        for (int k = 0; k < units; k++) {
            sum += weights[(long long)(c) * hidden + k0 + k] * s[e * tile.col_stride() + k];
        }
        T* const target = to_coords + (p + e) * d + c;
        *target = fresh_coords ? sum : *target + sum;
    }
    for (int i = tile.lane(); to_params != nullptr && x != nullptr && i < units * (d + bias); i += tile.lanes()) {
        const int c = i / units, k = i - c * units;
        Sum<T> sum;
        for (int e = 0; e < edges; e++) {
            const T value = s[e * tile.col_stride() + k];
            sum.add(c < d ? value * x[(long long)(edge_ids[p + e]) * d + c] : value, e);
        }
        T* const target = to_params + (long long)(c) * hidden + k0 + k;
        *target = fresh_params ? sum.value() : *target + sum.value();
    }
}

// s[e, k] = sum over f of q_1[s, k, f] h_1[src, f] + q_2[s, k, f] h_2[src, f] where the hidden layer is active, else 0, and
// what first_layer_sums makes of it: to_coords (num_positions, d), to_params (count, d + 1, H). Tiles are edges by hidden
// units, features deep. With `add` the sums are added to what is there.
template <class T, class I>
__global__ void __launch_bounds__(128, few_blocks_per_sm<T>)
gno_first_layer(const T* __restrict__ q_1, const T* __restrict__ h_1, const T* __restrict__ q_2, const T* __restrict__ h_2,
                const T* __restrict__ coords, const T* __restrict__ params, const T* __restrict__ weights,
                const T* __restrict__ x, const I* __restrict__ offsets, const I* __restrict__ parts, long long num_rows,
                long long num_pieces, const I* __restrict__ indices, const I* __restrict__ edge_ids, long long first,
                long long count, int d, int hidden, int f_in, int bias, int add, int row_bits, int col_bits, int depth_bits, T* to_coords, T* to_params) {
    extern __shared__ double buffer[];
    const Network<T> network{coords, params, nullptr, nullptr, d, hidden};
    const PieceTile tile{row_bits, col_bits, depth_bits};
    T* const left = reinterpret_cast<T*>(buffer) +
                    tile.group() * (tile.factor_elements() + tile.rows() * tile.col_stride());
    T* const right = left + tile.depth() * tile.row_stride();
    T* const s_tile = right + tile.depth() * tile.col_stride();
    const long long block = (long long)(blockIdx.x) * tile.groups(), s = block + tile.group();
    const Cut<I> cut{offsets, parts, num_rows, num_pieces};
    const Piece<I> piece = cut.piece(s < count ? first + s : num_pieces);
    const int longest = cut.longest(first + block, tile.groups());
    for (int e0 = 0; e0 == 0 || e0 < longest; e0 += tile.rows()) {
        const int edges = max(0, min(tile.rows(), piece.size - e0));
        for (int k0 = 0; k0 < hidden; k0 += tile.cols()) {
            const int units = min(tile.cols(), hidden - k0);
            T sum[lane_rows][lane_cols] = {};
            for (int pair = 0; pair < 2; pair++) {
                const T* const q = pair == 0 ? q_1 : q_2;
                const T* const h = pair == 0 ? h_1 : h_2;
                const long long q0 = (s * (hidden + 1) + k0) * f_in;
                for (int f0 = 0; h != nullptr && f0 < f_in; f0 += tile.depth()) {
                    const int depth = edges > 0 ? min(tile.depth(), f_in - f0) : 0;
                    load_factor(tile, row_bits + 2, true, depth, edges, left, [&](int f, int e) {
                        return h[(long long)(indices[piece.begin + e0 + e]) * f_in + f0 + f];
                    });
                    load_factor(tile, col_bits + 1, true, depth, units, right,
                                [&](int f, int k) { return q[q0 + (long long)(k) * f_in + f0 + f]; });
                    __syncthreads();
                    multiply_tile(tile, left, right, depth, sum);
                    __syncthreads();
                }
            }
#pragma unroll
            for (int i = 0; i < lane_rows; i++) {
#pragma unroll
                for (int j = 0; j < lane_cols; j++) {
                    const int e = tile.row(i), k = tile.col(j);
                    if (e < edges && k < units) {
                        const bool active = network.active(edge_ids[piece.begin + e0 + e], k0 + k);
                        s_tile[e * tile.col_stride() + k] = active ? sum[i][j] : T(0);
                    }
                }
            }
            __syncthreads();
            if (s < count) {
                first_layer_sums(tile, s_tile, edges, units, edge_ids, piece.begin + e0, k0, d, hidden, weights, x, bias,
                                 !add && k0 == 0, !add && e0 == 0, to_coords,
                                 to_params == nullptr ? nullptr : to_params + s * (d + 1) * hidden);
            }
            __syncthreads();
        }
    }
}
