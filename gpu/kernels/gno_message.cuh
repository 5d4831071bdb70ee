// gno_message and its derivatives. Moments of pieces and their cotangents stay in shared memory.
//
// A block of threads processes the same few pieces for one slab of their moments after another: 16 hidden units by 32
// features. A warp computes the moments of one piece at a time from its edges, whose hidden units and features it
// stages in shared memory; then all warps multiply the slabs of all pieces by the slab of V^, which they read from
// global memory, once for all pieces. The second-order kernels are those of the first order, launched with cotangents.
//
// A chain of additions has at most 16 terms, then as many sums of chains. Sums of a piece depend only on its edges.
#pragma once

#include "gno_network.cuh"

// Minimum of resident blocks per multiprocessor (__launch_bounds__); the resulting register limit causes no spills.
template <class T> constexpr int message_blocks_per_sm = sizeof(T) == 4 ? 4 : 3;

// Extents of slabs; every kernel needs less than 48 KB of shared memory.
template <class T> struct Slab {
    static constexpr int warps = THREADS / 32, units = 16, features = 32;
    static constexpr int pieces = 64 / int(sizeof(T));                    // of a block
    static constexpr int lane_pieces = pieces / 4;                        // of a lane, for products of slabs with V^
    static constexpr int depth = 64 / int(sizeof(T));                     // edges of a warp at a time
    static constexpr int slots = 32 / depth, lane_units = units / slots;  // lanes and their units of an edge
    // Padded by one access, so that neighbouring rows are in different banks.
    static constexpr int pad = 16 / int(sizeof(T));
    static constexpr int unit_stride = units + pad, feature_stride = features + pad;
    static constexpr int piece_stride = units * features + pad;
    static constexpr int edge_elements = depth * (unit_stride + feature_stride);
};

__device__ inline int lane_of_warp() { return threadIdx.x % 32; }
__device__ inline int warp_of_block() { return threadIdx.x / 32; }

// Consecutive edges of a piece, and a slab.
template <class I> struct EdgeChunk {
    I position;  // of the first edge
    int edges;
    int k0;
    int units;
    int f0;
    int f_in;
};

// A warp's edges in shared memory.
template <class S, class T> struct EdgeTile {
    T* units;     // a or a_dot, (depth, unit_stride)
    T* features;  // (depth, feature_stride)

    __device__ explicit EdgeTile(T* buffer)
        : units(buffer + warp_of_block() * S::edge_elements), features(units + S::depth * S::unit_stride) {}

    // Units k0 .. k0 + 15 of the edges, zero beyond the last unit or edge; returns the bits of active ones among those
    // of edge lane % depth from number lane / depth * lane_units on.
    template <bool whole, class I>
    __device__ unsigned load_units(const Network<T>& network, bool dot, const I* edge_ids,
                                   const EdgeChunk<I>& chunk) const {
        const int e = lane_of_warp() % S::depth, k = lane_of_warp() / S::depth * S::lane_units;
        T run[S::lane_units] = {};
        unsigned bits = 0;
        if (e < chunk.edges) {
            bits = network.template units<whole>(dot, edge_ids[chunk.position + I(e)], chunk.k0 + k, run);
        }
        write(units + e * S::unit_stride + k, run);
        return bits;
    }

    // Features f0 .. f0 + 31 of their sources, zero beyond the last feature or edge.
    template <bool whole, class I>
    __device__ void load_features(const T* h, const I* indices, const EdgeChunk<I>& chunk) const {
        const int f = lane_of_warp() % 8 * 4, count = chunk.f_in - chunk.f0 - f;
#pragma unroll
        for (int i = 0; i < S::depth; i += 4) {
            const int e = lane_of_warp() / 8 + i;
            T run[4] = {};
            if (e < chunk.edges) {
                const T* const row = h + (long long)(indices[chunk.position + I(e)]) * chunk.f_in;
                load_run<whole>(row + chunk.f0 + f, count, chunk.f_in % 4 == 0, run);
            }
            write(features + e * S::feature_stride + f, run);
        }
    }
};

// Whether all units and features of a slab exist and can be read 16 bytes at a time.
template <class S, class T> __device__ bool is_whole(const Network<T>& network, int k0, int f0, int f_in) {
    return k0 + S::units <= network.hidden && f0 + S::features <= f_in && f_in % 4 == 0 && network.is_wide();
}

// Moments of pieces. Null pointers omit a term.
template <class S, class T, class I> struct Moments {
    const Network<T>& network;
    const I* indices;
    const I* edge_ids;
    const T* h_by_a;
    const T* h_by_a_dot;
    int f_in;
    EdgeTile<S, T> tile;

    // t[k, f] = sum over the edges of a piece of a^[k0 + k] h_by_a[f0 + f] + a_dot[k0 + k] h_by_a_dot[f0 + f], by a warp.
    __device__ void compute(const RowChunk<I>& piece, int k0, int f0, T* t) const {
        if (is_whole<S>(network, k0, f0, f_in)) {
            compute_slab<true>(piece, k0, f0, t);
        } else {
            compute_slab<false>(piece, k0, f0, t);
        }
    }

private:
    template <bool whole> __device__ void compute_slab(const RowChunk<I>& piece, int k0, int f0, T* t) const {
        const int lane = lane_of_warp(), row = lane / 8 * 4, col = lane % 8 * 4;
        const int units = whole ? S::units : min(S::units, network.hidden - k0);
        const int width = whole ? S::features : min(S::features, f_in - f0);
        T part[4][4] = {}, ones = T(0);  // of feature number lane, if b_v is in the slab; a_dot has no such unit
        bool fresh = true;
        for (int dot = h_by_a == nullptr; dot < (h_by_a_dot == nullptr ? 1 : 2); dot++) {
            const T* const h = dot ? h_by_a_dot : h_by_a;
            for (int e0 = 0; e0 < piece.size; e0 += S::depth) {
                const int edges = min(S::depth, piece.size - e0);
                const EdgeChunk<I> chunk{piece.begin + I(e0), edges, k0, units, f0, f_in};
                if (units > 0) {
                    tile.template load_units<whole>(network, dot, edge_ids, chunk);
                }
                tile.template load_features<whole>(h, indices, chunk);
                __syncwarp();
                if (units > 0) {
                    add_edges(edges, row, col, part);
                    if ((e0 + S::depth) % 16 == 0 || e0 + S::depth >= piece.size) {
                        add_part(part, fresh, units - row, width - col, t + row * S::features + col);
                        fresh = false;
                    }
                }
                if (units < S::units && !dot) {
                    ones += sum_features(edges, lane);
                }
                __syncwarp();
            }
        }
        if (fresh) {
            add_part(part, fresh, units - row, width - col, t + row * S::features + col);
        }
        if (units < S::units) {
            t[units * S::features + lane] = lane < width ? ones : T(0);
        }
    }

    // part[i][j] += sum over the edges of units[row + i] features[col + j]; zeros follow the last edge.
    __device__ void add_edges(int edges, int row, int col, T (&part)[4][4]) const {
#pragma unroll
        for (int e = 0; e < S::depth; e += 4) {
            if (e >= edges) {
                break;
            }
#pragma unroll
            for (int x = e; x < e + 4; x++) {
                T l[4], r[4];
                read(tile.units + x * S::unit_stride + row, l);
                read(tile.features + x * S::feature_stride + col, r);
                add_outer(l, r, part);
            }
        }
    }

    // Sum over the edges of feature number f.
    __device__ T sum_features(int edges, int f) const {
        T sum = T(0);
#pragma unroll 1
        for (int e = 0; e < edges; e += 4) {
#pragma unroll
            for (int x = e; x < e + 4; x++) {
                sum += tile.features[x * S::feature_stride + f];
            }
        }
        return sum;
    }

    // Adds a part to the first rows and columns of a matrix in shared memory, zero beyond columns, and clears it.
    static __device__ void add_part(T (&part)[4][4], bool fresh, int rows, int cols, T* t) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            T before[4] = {};
            if (!fresh && i < rows) {
                read(t + i * S::features, before);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                before[j] = j < cols ? before[j] + part[i][j] : T(0);
                part[i][j] = T(0);
            }
            if (i < rows) {
                write(t + i * S::features, before);
            }
        }
    }
};

// total[i][j] += sum over the rows k < `rows` of this warp and over f of t[p, k, f] V^[k0 + k, f0 + f, o + j] for the pieces
// p = lane / 8 + 4 i and columns from o = o0 + lane % 8 * 4 on.
template <class S, bool whole, class T>
__device__ void multiply_by_v(const T* t, const T* v_hat, int rows, int k0, int f0, int f_in, int o0, int f_out,
                              bool wide, T (&total)[S::lane_pieces][4]) {
    const int p = lane_of_warp() / 8, o = o0 + lane_of_warp() % 8 * 4;
    const int width = whole ? S::features : min(S::features, f_in - f0);
    for (int k = warp_of_block(); k < rows; k += S::warps) {
        const T* const v = v_hat + ((long long)(k0 + k) * f_in + f0) * f_out + o;
        const T* const of_row = t + p * S::piece_stride + k * S::features;
        for (int f0 = 0; f0 < width; f0 += 16) {
            T part[S::lane_pieces][4] = {};
#pragma unroll 1
            for (int f = f0; f < min(f0 + 16, width); f += 4) {
                T right[4][4] = {};
#pragma unroll
                for (int x = 0; x < 4; x++) {
                    load_run<whole>(v + (f + x) * f_out, f + x < width ? f_out - o : 0, wide, right[x]);
                }
#pragma unroll
                for (int i = 0; i < S::lane_pieces; i++) {
                    T left[4];
                    read(of_row + i * 4 * S::piece_stride + f, left);
                    add_row(left, right, part[i]);
                }
            }
            add_to(total, part);
        }
    }
}

// out_i (+)= sum over i's pieces of T V^, with the moments T; zero for rows without edges, even if
// V^ is NaN. Parts of long rows write to `overflow`.
template <class T, class I>
__global__ void __launch_bounds__(THREADS, message_blocks_per_sm<T>)
gno_message(const Network<T> network, const T* __restrict__ v_hat, const T* __restrict__ h_by_a,
            const T* __restrict__ h_by_a_dot, const RowPartition<I> partition, const I* __restrict__ indices,
            const I* __restrict__ edge_ids, int f_in, int f_out, int add, T* out, T* overflow) {
    using S = Slab<T>;
    __shared__ __align__(16) T slabs[S::pieces * S::piece_stride];
    __shared__ __align__(16) T buffer[S::warps * S::edge_elements];
    const Moments<S, T, I> moments{network, indices, edge_ids, h_by_a, h_by_a_dot, f_in, EdgeTile<S, T>(buffer)};
    const long long s0 = (long long)(blockIdx.x) * S::pieces;
    const int last_row = network.hidden + (h_by_a != nullptr);  // after b_v
    const bool wide = f_out % 4 == 0 && is_aligned(v_hat);
    constexpr int lane_columns = S::pieces * 32 / THREADS;
    const int own = int(threadIdx.x) * lane_columns / 32, column = int(threadIdx.x) * lane_columns % 32;
    const long long s = s0 + own;
    const bool has_edges = partition.piece(s).size > 0;
    T* const target = s < partition.num_pieces ? partition.target(s, f_out, out, overflow) : nullptr;
    for (int f0 = 0; f0 < f_in; f0 += S::features) {
        for (int k0 = 0; k0 < last_row; k0 += S::units) {
            const int rows = min(S::units, last_row - k0);
            for (int p = warp_of_block(); p < S::pieces; p += S::warps) {
                moments.compute(partition.piece(s0 + p), k0, f0, slabs + p * S::piece_stride);
            }
            __syncthreads();
            for (int o0 = 0; o0 < f_out; o0 += 32) {
                T total[S::lane_pieces][4] = {};
                if (wide && f0 + S::features <= f_in && o0 + 32 <= f_out) {
                    multiply_by_v<S, true>(slabs, v_hat, rows, k0, f0, f_in, o0, f_out, wide, total);
                } else {
                    multiply_by_v<S, false>(slabs, v_hat, rows, k0, f0, f_in, o0, f_out, wide, total);
                }
#pragma unroll
                for (int i = 0; i < S::lane_pieces; i++) {
                    const int p = warp_of_block() * S::pieces + lane_of_warp() / 8 + 4 * i;
                    write(buffer + p * 32 + lane_of_warp() % 8 * 4, total[i]);
                }
                __syncthreads();
                const bool fresh = !add && k0 == 0 && f0 == 0;
#pragma unroll
                for (int j = 0; j < lane_columns; j++) {
                    const T* const sums = buffer + own * 32 + column + j;
                    constexpr int stride = S::pieces * 32;
                    const T sum = (sums[0] + sums[stride]) + (sums[2 * stride] + sums[3 * stride]);
                    const int o = o0 + column + j;
                    if (target != nullptr && o < f_out) {
                        target[o] = fresh ? (has_edges ? sum : T(0)) : has_edges ? target[o] + sum : target[o];
                    }
                }
                __syncthreads();
            }
        }
    }
}

// products[k, f, o] (+)= sum over the pieces p of t[p, k, f] g[p, o] for the rows k < `rows` of a slab; rows from `used`
// on have no moments. Every sum belongs to one lane for all blocks of pieces.
template <class S, bool whole, class T>
__device__ void add_products(const T* t, const T* g, int pieces, int rows, int used, int width, int f_out, bool wide,
                             bool fresh, long long row_stride, T* products) {
    const int f = lane_of_warp() / 4 * 4, o = lane_of_warp() % 4 * 4;
    for (int k = warp_of_block(); k < rows; k += S::warps) {
        for (int o0 = o; o0 < f_out; o0 += 32) {
            T part[2][4][4] = {};
            const T* from = g + o0;
            const T* of_row = t + k * S::features + f;
#pragma unroll 2
            for (int p = 0; p < (k < used ? pieces : 0); p++, from += f_out, of_row += S::piece_stride) {
                T left[4], right[4];
                read(of_row, left);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    load_run<whole>(from + half * 16, f_out - o0 - half * 16, wide, right);
                    add_outer(left, right, part[half]);
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                T* const target = products + k * row_stride + (f + i) * f_out + o0;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int count = whole || f + i < width ? f_out - o0 - half * 16 : 0;
                    T sum[4] = {};
                    if (!fresh) {
                        load_run<whole>(target + half * 16, count, wide, sum);
                    }
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        sum[j] += part[half][i][j];
                    }
                    store_run<whole>(target + half * 16, count, wide, sum);
                }
            }
        }
    }
}

// products[c, k, f, o] = sum over the pieces of chunk c of T[k, f] g[o]; a chunk has 16 times the pieces of a block.
template <class T, class I>
__global__ void __launch_bounds__(THREADS, message_blocks_per_sm<T>)
gno_grad_v(const Network<T> network, const T* __restrict__ h_by_a, const T* __restrict__ h_by_a_dot,
           const T* __restrict__ g, const RowPartition<I> partition, const I* __restrict__ indices,
           const I* __restrict__ edge_ids, long long first, long long count, int f_in, int f_out, T* products) {
    using S = Slab<T>;
    __shared__ __align__(16) T slabs[S::pieces * S::piece_stride];
    __shared__ __align__(16) T buffer[S::warps * S::edge_elements];
    const Moments<S, T, I> moments{network, indices, edge_ids, h_by_a, h_by_a_dot, f_in, EdgeTile<S, T>(buffer)};
    const unsigned unit_tiles = (network.hidden + S::units) / S::units;  // of H + 1 rows
    const unsigned feature_tiles = (f_in + S::features - 1) / S::features;
    const int k0 = int(blockIdx.x / feature_tiles % unit_tiles) * S::units;
    const int f0 = int(blockIdx.x % feature_tiles) * S::features;
    const long long chunk = blockIdx.x / (unit_tiles * feature_tiles), begin = chunk * 16 * S::pieces;
    const int rows = min(S::units, network.hidden + 1 - k0), width = min(S::features, f_in - f0);
    const int used = min(rows, network.hidden + (h_by_a != nullptr) - k0);  // a_dot has no unit H
    const bool wide = f_out % 4 == 0, whole = wide && f_out % 32 == 0 && width == S::features;
    T* const target = products + ((chunk * (network.hidden + 1) + k0) * f_in + f0) * f_out;
    const long long row_stride = (long long)(f_in) * f_out;
#pragma unroll 1
    for (long long s0 = begin; s0 < min(begin + 16 * S::pieces, count); s0 += S::pieces) {
        const int pieces = count - s0 < S::pieces ? int(count - s0) : S::pieces;
        for (int p = warp_of_block(); p < pieces; p += S::warps) {
            moments.compute(partition.piece(first + s0 + p), k0, f0, slabs + p * S::piece_stride);
        }
        __syncthreads();
        const T* const of_pieces = g + s0 * f_out;
        if (whole) {
            add_products<S, true>(slabs, of_pieces, pieces, rows, used, width, f_out, wide, s0 == begin, row_stride,
                                  target);
        } else {
            add_products<S, false>(slabs, of_pieces, pieces, rows, used, width, f_out, wide, s0 == begin, row_stride,
                                   target);
        }
        __syncthreads();
    }
}

// q[p, k, f] = sum over o of g[p, o] v[k0 + k, f0 + f, o] for the pieces of a block, zero beyond the last unit, feature
// or piece. Four features with number f / 4 are at number f / 4 ^ k % 8 of row k, so that neither rows nor columns
// share a bank.
template <class S, bool whole, class T>
__device__ void compute_q(const T* v, const T* g, int pieces, int units, int k0, int f0, int f_in, int f_out,
                          bool wide, T* q) {
    const int p = lane_of_warp() / 8, f = lane_of_warp() % 8, width = whole ? S::features : min(S::features, f_in - f0);
    for (int k = warp_of_block(); k < S::units; k += S::warps) {
        const T* const of_unit = v + ((long long)(k0 + k) * f_in + f0) * f_out;
        T total[S::lane_pieces][4] = {};
        for (int o0 = 0; o0 < f_out && k < units; o0 += 16) {
            T part[S::lane_pieces][4] = {};
#pragma unroll 1
            for (int o = o0; o < min(o0 + 16, f_out); o += 4) {
                T left[S::lane_pieces][4], right[4];
#pragma unroll
                for (int i = 0; i < S::lane_pieces; i++) {
                    const int row = p + 4 * i;
                    load_run<whole>(g + row * f_out + o, row < pieces ? f_out - o : 0, wide, left[i]);
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int column = f + 8 * j;
                    load_run<whole>(of_unit + column * f_out + o, column < width ? f_out - o : 0, wide, right);
#pragma unroll
                    for (int i = 0; i < S::lane_pieces; i++) {
                        add_dot(left[i], right, part[i][j]);
                    }
                }
            }
            add_to(total, part);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int column = f + 8 * j;
#pragma unroll
            for (int i = 0; i < S::lane_pieces; i++) {
                T* const row = q + (p + 4 * i) * S::piece_stride + k * S::features;
                row[(column / 4 ^ k % 8) * 4 + column % 4] = column < width ? total[i][j] : T(0);
            }
        }
    }
}

// to_source[p, f] (+)= sum over k of a[k] q[k, f], plus bias[f] if `has_bias`, for a warp's edges.
template <class S, bool whole, class T, class I>
__device__ void add_to_source(const EdgeChunk<I>& chunk, const EdgeTile<S, T>& tile, const T* q,
                              bool has_bias, const T* bias, bool fresh, T* to_source) {
    const int e = lane_of_warp() / 8, group = lane_of_warp() % 8, f = chunk.f0 + group * 4;
    T sum[S::depth / 4][4] = {}, of_bias[4] = {};
#pragma unroll
    for (int k = 0; k < S::units; k += 4) {
        T right[4][4];
#pragma unroll
        for (int x = 0; x < 4; x++) {
            read(q + (k + x) * S::features + (group ^ (k + x) % 8) * 4, right[x]);
        }
#pragma unroll
        for (int i = 0; i < S::depth / 4; i++) {
            T left[4];
            read(tile.units + (e + 4 * i) * S::unit_stride + k, left);
            add_row(left, right, sum[i]);
        }
    }
    if (has_bias) {
        read(bias + group * 4, of_bias);
    }
#pragma unroll
    for (int i = 0; i < S::depth / 4; i++) {
        if (e + 4 * i < chunk.edges) {
            T* const target = to_source + (long long)(chunk.position + I(e + 4 * i)) * chunk.f_in + f;
            T before[4] = {};
            if (!fresh) {
                load_run<whole>(target, chunk.f_in - f, chunk.f_in % 4 == 0, before);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sum[i][j] = before[j] + (sum[i][j] + of_bias[j]);
            }
            store_run<whole>(target, chunk.f_in - f, chunk.f_in % 4 == 0, sum[i]);
        }
    }
}

// s[e, k] = sum over f of q[k, f] h[e, f] where the unit is active, else 0, for a warp's edges; s replaces the units.
template <class S, class T>
__device__ void compute_s(const EdgeTile<S, T>& tile, const T* q, const unsigned char* active, int width) {
    const int e = lane_of_warp() / 8, k = lane_of_warp() % 8;
    T s[S::depth / 4][2] = {};
    for (int f0 = 0; f0 < width; f0 += 16) {
        T part[S::depth / 4][2] = {};
#pragma unroll
        for (int f = f0; f < f0 + 16; f += 4) {
            T right[2][4];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                read(q + (k + 8 * j) * S::features + (f / 4 ^ k) * 4, right[j]);
            }
#pragma unroll
            for (int i = 0; i < S::depth / 4; i++) {
                T left[4];
                read(tile.features + (e + 4 * i) * S::feature_stride + f, left);
                add_dot(left, right[0], part[i][0]);
                add_dot(left, right[1], part[i][1]);
            }
        }
        add_to(s, part);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < S::depth / 4; i++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int row = e + 4 * i, unit = k + 8 * j;
            const bool bit = active[unit / S::lane_units * S::depth + row] >> unit % S::lane_units & 1;
            tile.units[row * S::unit_stride + unit] = bit ? s[i][j] : T(0);
        }
    }
    __syncwarp();
}

// to_coords[p, c] (+)= sum over k of weights[c, k0 + k] s[e, k] for a warp's edges.
template <class S, class T, class I>
__device__ void add_to_coords(const EdgeChunk<I>& chunk, const T* s, const T* weights, int d, int hidden, bool fresh,
                              T* to_coords) {
    const bool wide = hidden % 4 == 0 && is_aligned(weights);
    const int e = lane_of_warp() % S::depth;
    for (int c = lane_of_warp() / S::depth; c < d; c += S::slots) {
        const T* const of_row = weights + (long long)(c) * hidden + chunk.k0;
        T sum = T(0);
#pragma unroll
        for (int k = 0; k < S::units; k += 4) {
            T left[4], right[4];
            read(s + e * S::unit_stride + k, left);
            load_run(of_row + k, chunk.units - k, wide, right);
            add_dot(left, right, sum);
        }
        if (e < chunk.edges) {
            T* const target = to_coords + (long long)(chunk.position + I(e)) * d + c;
            *target = fresh ? sum : *target + sum;
        }
    }
}

// to_params[c, k0 + k] (+)= sum over e of s[e, k] xi[row, c] for a warp's edges; xi[row, d] is 1, or absent without
// `bias`.
template <class S, class T, class I>
__device__ void add_to_params(const EdgeChunk<I>& chunk, const T* s, const T* xi, const I* edge_ids, int d,
                              int hidden, int bias, bool fresh, T* xi_tile, T* to_params) {
    const int lane = lane_of_warp(), k = lane % 8 * 2;
    for (int c0 = 0; c0 <= d; c0 += 4) {
        for (int i = lane; i < S::depth * 4; i += 32) {
            const int e = i / 4, c = c0 + i % 4;
            xi_tile[i] = e < chunk.edges && c == d ? T(1) : T(0);
            if (e < chunk.edges && c < d) {
                xi_tile[i] = xi[(long long)(edge_ids[chunk.position + I(e)]) * d + c];
            }
        }
        __syncwarp();
        T sum[2] = {};
#pragma unroll 4
        for (int e = 0; e < S::depth; e++) {
            T values[2];
            read(s + e * S::unit_stride + k, values);
            const T x = xi_tile[e * 4 + lane / 8];
            sum[0] += values[0] * x;
            sum[1] += values[1] * x;
        }
        const int c = c0 + lane / 8;
        T* const target = to_params + (long long)(c) * hidden + chunk.k0 + k;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (c <= d && k + j < chunk.units) {
                const T value = c < d || bias ? sum[j] : T(0);
                target[j] = fresh ? value : target[j] + value;
            }
        }
        __syncwarp();
    }
}

// q[f] = sum over o of g[o] b_v[f0 + f, o] for the features of a slab, by a warp.
template <class S, class T>
__device__ void multiply_by_bias(const T* g, const T* b_v, int f0, int f_in, int f_out, bool wide, T* q) {
    const int f = f0 + lane_of_warp() % 8 * 4;
    T sum[4] = {};
    for (int o = lane_of_warp() / 8 * 4; o < f_out; o += 16) {
        T left[4], right[4];
        load_run(g + o, f_out - o, wide, left);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            load_run(b_v + (long long)(f + j) * f_out + o, f + j < f_in ? f_out - o : 0, wide, right);
            add_dot(left, right, sum[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], 8);
        sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], 16);
    }
    if (lane_of_warp() < 8) {
        write(q + lane_of_warp() * 4, sum);
    }
}

// With Q = g V^^T of each piece and s[e, k] = sum over f of Q[k, f] h[src, f] where the hidden layer is active, else 0:
// to_source[p, f] (+)= sum over k of a^[k] Q[k, f], or of a_dot[k] Q[k, f] if `dot`; to_coords[p] (+)= weights^T s;
// to_params (+)= sum of s xi^^T over the edges of each piece, each if not null, and added to what is there if add_.
// Every sum belongs to one lane throughout the kernel.
template <class T, class I>
__global__ void __launch_bounds__(THREADS, message_blocks_per_sm<T>)
gno_grad_edges(const Network<T> network, const T* __restrict__ v_hat, const T* __restrict__ g,
               const T* __restrict__ h, const T* __restrict__ weights, const T* __restrict__ xi,
               const RowPartition<I> partition, const I* __restrict__ indices, const I* __restrict__ edge_ids,
               long long first, long long count, int f_in, int f_out, int dot, int bias, int add_source, int add_coords,
               int add_params, T* to_source, T* to_coords, T* to_params) {
    using S = Slab<T>;
    __shared__ __align__(16) T slabs[S::pieces * S::piece_stride];
    __shared__ __align__(16) T buffer[S::warps * S::edge_elements];
    __shared__ T xi_tiles[S::warps * S::depth * 4];
    __shared__ __align__(16) T biases[S::warps * S::features];  // Q[H]
    __shared__ unsigned char active_bits[THREADS];
    const EdgeTile<S, T> tile(buffer);
    unsigned char* const active = active_bits + warp_of_block() * 32;
    T* const of_bias = biases + warp_of_block() * S::features;
    const int d = network.d, hidden = network.hidden;
    const long long s0 = (long long)(blockIdx.x) * S::pieces;
    const int pieces = count - s0 < S::pieces ? int(count - s0) : S::pieces;
    const bool wide = f_out % 4 == 0 && is_aligned(v_hat);
    g += s0 * f_out;
    for (int f0 = 0; f0 < f_in; f0 += S::features) {
        for (int k0 = 0; k0 < hidden; k0 += S::units) {
            const int units = min(S::units, hidden - k0), width = min(S::features, f_in - f0);
            const bool whole = is_whole<S>(network, k0, f0, f_in);
            if (whole && wide && pieces == S::pieces) {
                compute_q<S, true>(v_hat, g, pieces, units, k0, f0, f_in, f_out, wide, slabs);
            } else {
                compute_q<S, false>(v_hat, g, pieces, units, k0, f0, f_in, f_out, wide, slabs);
            }
            __syncthreads();
            for (int p = warp_of_block(); p < pieces; p += S::warps) {
                const RowChunk<I> piece = partition.piece(first + s0 + p);
                const T* const q = slabs + p * S::piece_stride;
                const bool has_bias = !dot && k0 == 0;
                if (to_source != nullptr && has_bias) {
                    const T* const b_v = v_hat + (long long)(hidden) * f_in * f_out;
                    multiply_by_bias<S>(g + p * f_out, b_v, f0, f_in, f_out, wide, of_bias);
                }
                for (int e0 = 0; e0 == 0 || e0 < piece.size; e0 += S::depth) {
                    const int edges = min(S::depth, piece.size - e0);
                    const EdgeChunk<I> chunk{piece.begin + I(e0), edges, k0, units, f0, f_in};
                    active[lane_of_warp()] = (unsigned char)(
                        whole ? tile.template load_units<true>(network, dot, edge_ids, chunk)
                              : tile.template load_units<false>(network, dot, edge_ids, chunk));
                    if (h != nullptr && whole) {
                        tile.template load_features<true>(h, indices, chunk);
                    } else if (h != nullptr) {
                        tile.template load_features<false>(h, indices, chunk);
                    }
                    __syncwarp();
                    const bool fresh = !add_source && k0 == 0;
                    if (to_source != nullptr && whole) {
                        add_to_source<S, true>(chunk, tile, q, has_bias, of_bias, fresh, to_source);
                    } else if (to_source != nullptr) {
                        add_to_source<S, false>(chunk, tile, q, has_bias, of_bias, fresh, to_source);
                    }
                    if (h != nullptr) {
                        compute_s<S>(tile, q, active, width);
                    }
                    if (to_coords != nullptr) {
                        const bool fresh = !add_coords && k0 == 0 && f0 == 0;
                        add_to_coords<S>(chunk, tile.units, weights, d, hidden, fresh, to_coords);
                    }
                    if (to_params != nullptr) {
                        T* const of_piece = to_params + (s0 + p) * (d + 1) * hidden;
                        T* const xi_tile = xi_tiles + warp_of_block() * S::depth * 4;
                        const bool fresh = !add_params && e0 == 0 && f0 == 0;
                        add_to_params<S>(chunk, tile.units, xi, edge_ids, d, hidden, bias, fresh, xi_tile, of_piece);
                    }
                    __syncwarp();
                }
            }
            __syncthreads();
        }
    }
}
