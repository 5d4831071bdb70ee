// gno_grad_edges on tensor cores, which compute Q and its products with the units and features of edges.
#pragma once

#include "gno_grad_edges.cuh"
#include "gno_message_tensor.cuh"

// The distance between the pieces of a slab of Q, which is stored as by compute_moment_cotangents. In the slab
// with the first units, row 16 is for b_v.
constexpr int q_stride = 17 * 32 + 4;

// Recomputes elements of a row of the slab that are not finite, without tensor cores; `v` is the row of V^.
__device__ inline void recompute_moment_cotangents(const float* v, const float* g, int pieces, int k, int width,
                                                   int f_out, float* q) {
    __syncwarp();
#pragma unroll 1
    for (int i = lane_of_warp(); i < pieces * 32; i += 32) {
        const int f = i % 32, piece = i / 32;
        float& element = q[piece * q_stride + k * 32 + (f / 4 ^ k % 8) * 4 + f % 4];
        if (!is_finite(element)) {
            TreeSum<float, 3, 4> total;
            for (int o = 0; o < (f < width ? f_out : 0); o++) {
                total.add(g[piece * f_out + o] * v[f * f_out + o], o);
            }
            element = total.value();
        }
    }
}

// Computes the slab. The rows of left tiles are pieces, and `v_parts` are right tiles whose depth is o. The results for
// pieces beyond the last one are arbitrary.
__device__ inline void compute_moment_cotangents_tensor(const float* v, const int* v_parts, const float* g,
                                                        const int* g_parts, int pieces, const SlabRows& rows, int f0,
                                                        int f_in, int f_out, float* q) {
    const int steps = (f_out + 15) / 16, pairs = (f_in + 15) / 16, stride = groups_of(f_out) * group_words;
    const int p = lane_of_warp() / 4, group = lane_of_warp() % 4;
    const int* const first = g_parts + min(p, pieces - 1) * stride + group * group_words;
    const int* const second = g_parts + min(p + 8, pieces - 1) * stride + group * group_words;
#pragma unroll 1
    for (int k = warp_of_block(); k < (rows.bias ? 17 : 16); k += THREADS / 32) {
        const int of_v = k < 16 ? rows.k0 + k : rows.hidden;
        float sum[2][2][4] = {};
        const int* parts = v_parts + ((long long)(of_v) * steps * pairs + f0 / 16) * pair_words;
        for (int step = 0; step < (k < rows.units || k == 16 ? steps : 0); step++, parts += pairs * pair_words) {
            const int at = step * 4 * group_words;
            const LeftParts left = load_left_parts(first + at, second + at);
            multiply_add_pair(left, parts, sum[0]);
            if (f0 + 16 < f_in) {
                multiply_add_pair(left, parts + pair_words, sum[1]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float row[4];
            extract_pair_row(sum[i / 2], i % 2, row);
            write(q + (p + i % 2 * 8) * q_stride + k * 32 + ((i / 2 * 4 + group) ^ k % 8) * 4, row);
        }
        if (any_not_finite(sum[0]) || any_not_finite(sum[1])) {
            const float* const row = v + ((long long)(of_v) * f_in + f0) * f_out;
            recompute_moment_cotangents(row, g, pieces, k, min(32, f_in - f0), f_out, q);
        }
    }
}

// The slab of Q of one piece.
struct PieceMomentCotangents {
    const float* q;

    // Four features from number 4 group on.
    __device__ const float* at(int k, int group) const { return q + k * 32 + (group ^ k % 8) * 4; }
};

// Right tiles of the features 4 col + j; the depth are units, of which a lane has 4 (lane % 4) ...
struct CotangentTilesByUnit {
    RightParts right[4];

    __device__ explicit CotangentTilesByUnit(const PieceMomentCotangents& q) {
        float x[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            read(q.at(lane_of_warp() % 4 * 4 + i, lane_of_warp() / 4), x[i]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            right[j] = RightParts({x[0][j], x[1][j], x[2][j], x[3][j]});
        }
    }
};

// Right tiles of the units tensor_pair_col(col, t); the depth are features, of which a lane has 16 step +
// 4 (lane % 4) ...
struct CotangentTilesByFeature {
    RightParts right[2][2];

    __device__ explicit CotangentTilesByFeature(const PieceMomentCotangents& q) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int step = i / 2, t = i % 2;
            float x[4];
            read(q.at(tensor_pair_col(lane_of_warp() / 4, t), step * 4 + lane_of_warp() % 4), x);
            right[step][t] = RightParts({x[0], x[1], x[2], x[3]});
        }
    }
};

// Sixteen edges of a piece, the rows of left tiles. A lane has the edges lane / 4 and lane / 4 + 8.
template <class I> struct PieceEdges {
    const KernelNetwork<float>& network;
    EdgeChunk<I> chunk;

    __device__ int edge(int i) const { return lane_of_warp() / 4 + 8 * i; }
    // Returns the position of edge i, or of the last edge if there is no edge i.
    __device__ I position(int i) const { return chunk.position + I(min(edge(i), chunk.edges - 1)); }

    // to_source[p, f] (+)= sum over k of a[k] q[k, f], or of a_dot[k] q[k, f] if `dot`, + q[16, f] if `bias`; omitted
    // if to_source is null. Bit 4 i + j of the result says whether unit 4 (lane % 4) + j of edge i is active.
    __device__ unsigned add_source_gradients_and_get_active(bool dot, const I* edge_ids, const PieceMomentCotangents& q,
                                                            const CotangentTilesByUnit& of_q, bool bias, bool fresh,
                                                            float* to_source) const {
        const long long row[2] = {edge_ids[position(0)], edge_ids[position(1)]};
        float units[2][4], sum[4][4] = {};
        const unsigned active = network.compute_hidden_units(dot, row, chunk.k0 + lane_of_warp() % 4 * 4, units);
        if (to_source == nullptr) {
            return active;
        }
        const LeftParts left = split_rows_of_lane(units);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            multiply_add(left, of_q.right[j], sum[j]);
        }
        unsigned again = 0;  // bit 4 i + j: the sum j of run i below
        if (any_not_finite(sum)) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                float& x = sum[i % 4][i / 4];
                again |= unsigned(!is_finite(x)) << i;
                x = is_finite(x) ? x : 0.0f;
            }
        }
        const bool wide = chunk.f_in % 4 == 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {  // edge i / 2, features 8 (lane % 4) + 4 (i % 2) ...
            const int f = lane_of_warp() % 4 * 8 + i % 2 * 4, count = chunk.f_in - chunk.f0 - f;
            if (edge(i / 2) < chunk.edges) {
                float* const target = to_source + (long long)(chunk.position + I(edge(i / 2))) * chunk.f_in + chunk.f0;
                float total[4] = {sum[0][i], sum[1][i], sum[2][i], sum[3][i]}, before[4] = {};
                if (bias) {  // of the first sums that are stored
                    read(q.at(16, f / 4), before);
                } else if (!fresh) {
                    load_run(target + f, count, wide, before);
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    total[j] += before[j];
                }
                store_run(target + f, count, wide, total);
            }
        }
        add_recomputed_sums(again, dot, edge_ids, q, to_source);
        return active;
    }

    // s[e, k] = sum over f of q[k, f] h[e, f] if the unit is active, else 0; bit 4 i + j of `active` is of edge i and
    // unit 4 (lane % 4) + j. `stride` is between rows of s.
    __device__ void compute_unit_cotangents(const float* h, const int* h_parts, const I* indices,
                                            const PieceMomentCotangents& q, const CotangentTilesByFeature& of_q,
                                            unsigned active, int stride, float* s) const {
        if (chunk.edges <= 0) {
            zero_unit_cotangents(stride, s);
            return;
        }
        const I source[2] = {indices[position(0)], indices[position(1)]};
        const int words = groups_of(chunk.f_in) * group_words;
        h_parts += (chunk.f0 / 4 + lane_of_warp() % 4) * group_words;
        const int* const of_edge[2] = {row_at(h_parts, source[0], words), row_at(h_parts, source[1], words)};
        float sum[2][4] = {};
#pragma unroll
        for (int step = 0; step < 2; step++) {
            const int at = step * 4 * group_words;
            const LeftParts left = load_left_parts(of_edge[0] + at, of_edge[1] + at);
#pragma unroll
            for (int t = 0; t < 2; t++) {
                multiply_add(left, of_q.right[step][t], sum[t]);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float of_units[4];
            extract_pair_row(sum, i, of_units);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const bool used = (active >> (4 * i + j) & 1) != 0 && edge(i) < chunk.edges;
                of_units[j] = used ? of_units[j] : 0.0f;
            }
            write(s + edge(i) * stride + lane_of_warp() % 4 * 4, of_units);
        }
        __syncwarp();
        if (any_not_finite(sum)) {
            recompute_unit_cotangents(h, source, q, stride, s);
        }
    }

private:
    __device__ static void zero_unit_cotangents(int stride, float* s) {
        for (int i = lane_of_warp(); i < 16 * stride; i += 32) {
            s[i] = 0.0f;
        }
        __syncwarp();
    }

    // Adds the sums that were not finite, without tensor cores.
    __device__ void add_recomputed_sums(unsigned again, bool dot, const I* edge_ids, const PieceMomentCotangents& q,
                                        float* to_source) const {
#pragma unroll 1
        for (int n = 0; again >> n != 0; n++) {
            const int e = edge(n / 8), group = lane_of_warp() % 4 * 2 + n / 4 % 2, f = chunk.f0 + group * 4 + n % 4;
            if ((again >> n & 1) == 0 || e >= chunk.edges || f >= chunk.f_in) {
                continue;
            }
            const I position = chunk.position + I(e);
            float total = 0.0f;
            for (int k = 0; k < chunk.units; k++) {
                float unit[1];
                network.compute_hidden_units(dot, edge_ids[position], chunk.k0 + k, unit);
                total += unit[0] * q.at(k, group)[n % 4];
            }
            to_source[(long long)(position) * chunk.f_in + f] += total;
        }
    }

    // Recomputes the sums that are not finite, without tensor cores.
    __device__ void recompute_unit_cotangents(const float* h, const I (&source)[2], const PieceMomentCotangents& q,
                                              int stride, float* s) const {
#pragma unroll 1
        for (int i = 0; i < 8; i++) {
            const int k = lane_of_warp() % 4 * 4 + i % 4;
            float* const element = s + edge(i / 4) * stride + k;
            if (!is_finite(*element)) {
                const long long first = (long long)(i < 4 ? source[0] : source[1]) * chunk.f_in + chunk.f0;
                Sum<float> total;
                for (int f = 0; f < min(32, chunk.f_in - chunk.f0); f++) {
                    total.add(q.at(k, f / 4)[f % 4] * h[first + f], f);
                }
                *element = total.value();
            }
        }
        __syncwarp();
    }
};

// The same as compute_grad_edges, with the bfloat16 parts of v_hat and of the rows of g and h.
template <class T, class I>
__device__ void compute_grad_edges_tensor(const KernelNetwork<T>& network, const T* v_hat, const int* v_parts,
                                          const T* g, const int* g_parts, const T* h, const int* h_parts,
                                          const T* weights, const T* xi, const RowPartition<I>& partition,
                                          const I* indices, const I* edge_ids, long long first, long long count,
                                          int f_in, int f_out, int dot, int bias, int add_source, int add_coords,
                                          int add_params, T* to_source, T* to_coords, T* to_params) {
    using S = SlabShape<T>;
    __shared__ __align__(16) T slabs[S::pieces * q_stride];
    __shared__ __align__(16) T tiles[S::warps * S::depth * S::unit_stride];
    __shared__ T xi_tiles[S::warps * S::depth * 4];
    __shared__ unsigned char active_bits[PART_SIZE / 16 * THREADS];  // of each thread, for every 16 edges
    unsigned char* const active = active_bits + threadIdx.x;
    T* const s = tiles + warp_of_block() * S::depth * S::unit_stride;
    T* const xi_tile = xi_tiles + warp_of_block() * S::depth * 4;
    const int d = network.d, hidden = network.hidden;
    const long long s0 = (long long)(blockIdx.x) * S::pieces;
    const int pieces = count - s0 < S::pieces ? int(count - s0) : S::pieces;
    const WarpPieces<I> of_warp(partition, first + s0, pieces);
    g += s0 * f_out;
    g_parts += s0 * groups_of(f_out) * group_words;
    for (int f0 = 0; f0 < f_in; f0 += S::features) {
        for (int k0 = 0; k0 < hidden; k0 += S::units) {
            const SlabRows rows(k0, hidden, !dot && to_source != nullptr);
            compute_moment_cotangents_tensor(v_hat, v_parts, g, g_parts, pieces, rows, f0, f_in, f_out, slabs);
            __syncthreads();
            for (int p = warp_of_block(); p < pieces; p += S::warps) {
                const RowPiece<I> piece = of_warp.at(p);
                const PieceMomentCotangents q{slabs + p * q_stride};
                const auto edges = [&](int e0) -> PieceEdges<I> {
                    return {network, {piece.begin + I(e0), min(S::depth, piece.size - e0), k0, rows.units, f0, f_in}};
                };
                const CotangentTilesByUnit by_unit(q);
#pragma unroll 1
                for (int e0 = 0; e0 < piece.size; e0 += S::depth) {
                    active[e0 / 16 * THREADS] = (unsigned char)(edges(e0).add_source_gradients_and_get_active(
                        dot, edge_ids, q, by_unit, rows.bias, !add_source && k0 == 0, to_source));
                }
                if (h == nullptr) {
                    continue;
                }
                const CotangentTilesByFeature by_feature(q);
#pragma unroll 1
                for (int e0 = 0; e0 == 0 || e0 < piece.size; e0 += S::depth) {
                    const PieceEdges<I> of_chunk = edges(e0);
                    const unsigned of_units = e0 < piece.size ? active[e0 / 16 * THREADS] : 0;
                    of_chunk.compute_unit_cotangents(h, h_parts, indices, q, by_feature, of_units, S::unit_stride, s);
                    if (to_coords != nullptr) {
                        const bool fresh = !add_coords && k0 == 0 && f0 == 0;
                        add_coord_gradients<S>(of_chunk.chunk, s, weights, d, hidden, fresh, to_coords);
                    }
                    if (to_params != nullptr) {
                        T* const of_piece = to_params + (s0 + p) * (d + 1) * hidden;
                        const bool fresh = !add_params && e0 == 0 && f0 == 0;
                        add_param_gradients<S>(of_chunk.chunk, s, xi, edge_ids, d, hidden, bias, fresh, xi_tile,
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
__global__ void __launch_bounds__(THREADS, tensor_edge_blocks_per_sm)
gno_grad_edges_tensor(const KernelNetwork<T> network, const T* __restrict__ v_hat, const int* __restrict__ v_parts,
                      const T* __restrict__ g, const int* __restrict__ g_parts, const T* __restrict__ h,
                      const int* __restrict__ h_parts, const T* __restrict__ weights, const T* __restrict__ xi,
                      const RowPartition<I> partition, const I* __restrict__ indices, const I* __restrict__ edge_ids,
                      long long first, long long count, int f_in, int f_out, int dot, int bias, int add_source,
                      int add_coords, int add_params, T* to_source, T* to_coords, T* to_params) {
    if constexpr (has_tensor_cores) {
        compute_grad_edges_tensor(network, v_hat, v_parts, g, g_parts, h, h_parts, weights, xi, partition, indices,
                                  edge_ids, first, count, f_in, f_out, dot, bias, add_source, add_coords, add_params,
                                  to_source, to_coords, to_params);
    } else {
        compute_grad_edges(network, v_hat, g, h, weights, xi, partition, indices, edge_ids, first, count, f_in, f_out,
                           dot, bias, add_source, add_coords, add_params, to_source, to_coords, to_params);
    }
}
