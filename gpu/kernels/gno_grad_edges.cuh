// Gradients of gno_message with respect to features, coords and the first layer, by the slabs of gno_message.cuh. A
// block of threads computes a slab of Q, the cotangents of its pieces' moments, in shared memory. Then each warp
// processes the edges of one piece at a time. The results are linear in Q; therefore contributions of slabs are added.
#pragma once

#include "gno_message.cuh"

// q[p, k, f] = sum over o of g[p, o] v[k0 + k, f0 + f, o] for the pieces of a block, zero beyond the last unit, feature
// or piece. Four features with number f / 4 are at number f / 4 ^ k % 8 of row k, so that neither rows nor columns
// share a bank.
template <class S, bool whole, class T>
__device__ void compute_moment_cotangents(const T* v, const T* g, int pieces, int units, int k0, int f0, int f_in,
                                          int f_out, bool wide, T* q) {
    const int p = lane_of_warp() / 8, f = lane_of_warp() % 8, width = whole ? S::features : min(S::features, f_in - f0);
    for (int k = warp_of_block(); k < S::units; k += S::warps) {
        const T* of_feature = v + ((long long)(k0 + k) * f_in + f0 + f) * f_out;
        const T* of_piece = g + p * f_out;
        T total[S::lane_pieces][4] = {};
        for (int o0 = 0; o0 < f_out && k < units; o0 += 16) {
            T part[S::lane_pieces][4] = {};
#pragma unroll 1
            for (int o = o0; o < min(o0 + 16, f_out); o += 4, of_piece += 4, of_feature += 4) {
                T left[S::lane_pieces][4], right[4];
#pragma unroll
                for (int i = 0; i < S::lane_pieces; i++) {
                    const int count = p + 4 * i < pieces ? f_out - o : 0;
                    load_run<whole>(of_piece + i * 4 * f_out, count, wide, left[i]);
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int count = f + 8 * j < width ? f_out - o : 0;
                    load_run<whole>(of_feature + j * 8 * f_out, count, wide, right);
#pragma unroll
                    for (int i = 0; i < S::lane_pieces; i++) {
                        add_dot(left[i], right, part[i][j]);
                    }
                }
            }
            add_elementwise(total, part);
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

// to_source[p, f] (+)= sum over k of a[k] q[k, f] for a warp's edges; the first sums start with bias[f] if `has_bias`.
template <class S, bool whole, class T, class I>
__device__ void add_source_gradients(const EdgeChunk<I>& chunk, const EdgeTile<S, T>& tile, const T* q,
                                     bool has_bias, const T* bias, bool fresh, T* to_source) {
    const int e = lane_of_warp() / 8, group = lane_of_warp() % 8, f = chunk.f0 + group * 4;
    T sum[S::depth / 4][4] = {};
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
            add_row_product(left, right, sum[i]);
        }
    }
    T of_bias[4] = {};
    if (has_bias) {
        read(bias + group * 4, of_bias);
    }
#pragma unroll
    for (int i = 0; i < S::depth / 4; i++) {
        if (e + 4 * i < chunk.edges) {
            T* const target = to_source + (long long)(chunk.position + I(e + 4 * i)) * chunk.f_in + f;
            T before[4] = {of_bias[0], of_bias[1], of_bias[2], of_bias[3]};
            if (!fresh) {
                load_run<whole>(target, chunk.f_in - f, chunk.f_in % 4 == 0, before);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sum[i][j] += before[j];
            }
            store_run<whole>(target, chunk.f_in - f, chunk.f_in % 4 == 0, sum[i]);
        }
    }
}

// s[e, k] = sum over f of q[k, f] h[e, f] where the unit is active, else 0, for a warp's edges; s replaces the units.
template <class S, class T>
__device__ void compute_unit_cotangents(const EdgeTile<S, T>& tile, const T* q, const unsigned char* active,
                                        int width) {
    const int e = lane_of_warp() / 8, k = lane_of_warp() % 8;
    const T* const left_rows = tile.features + e * S::feature_stride;
    const T* const right_rows = q + k * S::features;
    T s[S::depth / 4][2] = {};
#pragma unroll
    for (int f0 = 0; f0 < S::features; f0 += 16) {
        if (f0 >= width) {
            break;
        }
        T part[S::depth / 4][2] = {};
#pragma unroll
        for (int f = f0; f < f0 + 16; f += 4) {
            T right[2][4];
            read(right_rows + (f / 4 ^ k) * 4, right[0]);
            read(right_rows + (f / 4 ^ k) * 4 + 8 * S::features, right[1]);
#pragma unroll
            for (int i = 0; i < S::depth / 4; i++) {
                T left[4];
                read(left_rows + i * 4 * S::feature_stride + f, left);
                add_dot(left, right[0], part[i][0]);
                add_dot(left, right[1], part[i][1]);
            }
        }
        add_elementwise(s, part);
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
__device__ void add_coord_gradients(const EdgeChunk<I>& chunk, const T* s, const T* weights, int d, int hidden,
                                    bool fresh, T* to_coords) {
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
__device__ void add_param_gradients(const EdgeChunk<I>& chunk, const T* s, const T* xi, const I* edge_ids, int d,
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
        const T* of_edge = s + k;
        const T* x = xi_tile + lane / 8;
#pragma unroll 1
        for (int e = 0; e < S::depth; e += 4, of_edge += 4 * S::unit_stride, x += 16) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                T values[2];
                read(of_edge + i * S::unit_stride, values);
                sum[0] += values[0] * x[i * 4];
                sum[1] += values[1] * x[i * 4];
            }
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
__device__ void multiply_gradients_by_bias(const T* g, const T* b_v, int f0, int f_in, int f_out, bool wide, T* q) {
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
// to_params (+)= sum of s xi^^T over the edges of each piece. Null pointers omit a result; results are added to
// previous values if add_source, add_coords or add_params is set. The same lane computes a sum throughout the kernel.
template <class T, class I>
__device__ void compute_grad_edges(const KernelNetwork<T>& network, const T* v_hat, const T* g, const T* h,
                                   const T* weights, const T* xi, const RowPartition<I>& partition, const I* indices,
                                   const I* edge_ids, long long first, long long count, int f_in, int f_out, int dot,
                                   int bias, int add_source, int add_coords, int add_params, T* to_source, T* to_coords,
                                   T* to_params) {
    using S = SlabShape<T>;
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
    const WarpPieces<I> of_warp(partition, first + s0, pieces);
    g += s0 * f_out;
    for (int f0 = 0; f0 < f_in; f0 += S::features) {
        for (int k0 = 0; k0 < hidden; k0 += S::units) {
            const int units = min(S::units, hidden - k0), width = min(S::features, f_in - f0);
            const bool whole = is_whole_slab<S>(network, k0, f0, f_in);
            if (whole && wide && pieces == S::pieces) {
                compute_moment_cotangents<S, true>(v_hat, g, pieces, units, k0, f0, f_in, f_out, wide, slabs);
            } else {
                compute_moment_cotangents<S, false>(v_hat, g, pieces, units, k0, f0, f_in, f_out, wide, slabs);
            }
            __syncthreads();
            for (int p = warp_of_block(); p < pieces; p += S::warps) {
                const RowPiece<I> piece = of_warp.at(p);
                const T* const q = slabs + p * S::piece_stride;
                const bool has_bias = !dot && k0 == 0;
                if (to_source != nullptr && has_bias) {
                    const T* const b_v = v_hat + (long long)(hidden) * f_in * f_out;
                    multiply_gradients_by_bias<S>(g + p * f_out, b_v, f0, f_in, f_out, wide, of_bias);
                }
                for (int e0 = 0; e0 == 0 || e0 < piece.size; e0 += S::depth) {
                    const int edges = min(S::depth, piece.size - e0);
                    const EdgeChunk<I> chunk{piece.begin + I(e0), edges, k0, units, f0, f_in};
                    const unsigned bits =
                        whole
                            ? tile.template stage_units_and_features<true>(network, dot, h, indices, edge_ids, chunk)
                            : tile.template stage_units_and_features<false>(network, dot, h, indices, edge_ids, chunk);
                    active[lane_of_warp()] = (unsigned char)(bits);
                    __syncwarp();
                    const bool fresh = !add_source && k0 == 0;
                    if (to_source != nullptr && whole) {
                        add_source_gradients<S, true>(chunk, tile, q, has_bias, of_bias, fresh, to_source);
                    } else if (to_source != nullptr) {
                        add_source_gradients<S, false>(chunk, tile, q, has_bias, of_bias, fresh, to_source);
                    }
                    if (h != nullptr) {
                        compute_unit_cotangents<S>(tile, q, active, width);
                    }
                    if (to_coords != nullptr) {
                        const bool fresh = !add_coords && k0 == 0 && f0 == 0;
                        add_coord_gradients<S>(chunk, tile.units, weights, d, hidden, fresh, to_coords);
                    }
                    if (to_params != nullptr) {
                        T* const of_piece = to_params + (s0 + p) * (d + 1) * hidden;
                        T* const xi_tile = xi_tiles + warp_of_block() * S::depth * 4;
                        const bool fresh = !add_params && e0 == 0 && f0 == 0;
                        add_param_gradients<S>(chunk, tile.units, xi, edge_ids, d, hidden, bias, fresh, xi_tile,
                                               of_piece);
                    }
                    __syncwarp();
                }
            }
            __syncthreads();
        }
    }
}

template <class T, class I>
__global__ void __launch_bounds__(THREADS, message_blocks_per_sm<T>)
gno_grad_edges(const KernelNetwork<T> network, const T* __restrict__ v_hat, const T* __restrict__ g,
               const T* __restrict__ h, const T* __restrict__ weights, const T* __restrict__ xi,
               const RowPartition<I> partition, const I* __restrict__ indices, const I* __restrict__ edge_ids,
               long long first, long long count, int f_in, int f_out, int dot, int bias, int add_source, int add_coords,
               int add_params, T* to_source, T* to_coords, T* to_params) {
    compute_grad_edges(network, v_hat, g, h, weights, xi, partition, indices, edge_ids, first, count, f_in, f_out, dot,
                       bias, add_source, add_coords, add_params, to_source, to_coords, to_params);
}
