// gno_message and the gradient of V^ on tensor cores, by slabs of 16 hidden units and 32 features as in
// gno_message.cuh.
#pragma once

#include "gno_tensor.cuh"

// ---- moments --------------------------------------------------------------------------------------------------------

// A slab of 16 units, and in the one with the first units a row for b_v, the sums of features.
template <int pad> struct TensorSlabShape {
    using Base = SlabShape<float>;
    static constexpr int units = Base::units, features = Base::features, pieces = Base::pieces;
    // Padded so that accesses to neighbouring pieces are in different banks.
    static constexpr int piece_stride = (units + 1) * features + pad;
};

template <class I> struct TensorMomentCalculator {
    const KernelNetwork<float>& network;
    const I* indices;
    const I* edge_ids;
    const float* h_by_a;  // null omits a term
    const float* h_by_a_dot;
    const int* parts_by_a;
    const int* parts_by_a_dot;
    int f_in;

    // Computes t[k, f] as MomentCalculator::compute_piece_moments does. If k0 is 0, row 16 becomes the sums of h_by_a.
    __device__ void compute_piece_moments(const RowPiece<I>& piece, int k0, int f0, float* t) const {
        float sum[4][4] = {};
        if (h_by_a != nullptr) {
            add_edge_products<false>(parts_by_a, piece, k0, f0, sum);
        }
        if (h_by_a_dot != nullptr) {
            add_edge_products<true>(parts_by_a_dot, piece, k0, f0, sum);
        }
        const int row = lane_of_warp() / 4, col = lane_of_warp() % 4 * 8;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float run[4] = {sum[0][i], sum[1][i], sum[2][i], sum[3][i]};
            write(t + (row + i / 2 * 8) * 32 + col + i % 2 * 4, run);
        }
        if (any_not_finite(sum)) {
            __syncwarp();
            recompute_moments(piece, k0, f0, t);
        }
        if (k0 == 0 && h_by_a != nullptr) {
            sum_features(piece, f0, t + 16 * 32);
        } else {
            t[16 * 32 + lane_of_warp()] = 0.0f;  // read by gno_grad_v_tensor, although its products are zero
        }
    }

private:
    // Adds to sum[j] the products of 16 units with the features 4 col + j. The depth of a tile is 16 edges of the
    // piece, of which a lane has four consecutive ones.
    template <bool dot>
    __device__ void add_edge_products(const int* parts, const RowPiece<I>& piece, int k0, int f0,
                                      float (&sum)[4][4]) const {
        const int lane_e = lane_of_warp() % 4 * 4;
        parts += (f0 / 4 + lane_of_warp() / 4) * group_words;
        const I* const rows = edge_ids + piece.begin;
        const I* const sources = indices + piece.begin;
#pragma unroll 1
        for (int e = lane_e; e < piece.size + lane_e; e += 16) {
            I row[4], source[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = min(e + i, piece.size - 1);  // Beyond the last edge, units are zero.
                row[i] = rows[at];
                source[i] = sources[at];
            }
            float units[2][4];
            compute_hidden_units<dot>(row, k0, units);
            if (e - lane_e + 16 > piece.size) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    units[i / 4][i % 4] = e + i % 4 < piece.size ? units[i / 4][i % 4] : 0.0f;
                }
            }
            RightParts right[4];
            load_feature_tiles(parts, source, right);
            const LeftParts left = split_rows_of_lane(units);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                multiply_add(left, right[j], sum[j]);
            }
        }
    }

    // Loads right tiles of the features 4 col + j of four edges; `group` is the address of the lane's group in row 0.
    __device__ void load_feature_tiles(const int* group, const I (&source)[4], RightParts (&right)[4]) const {
        const int stride = groups_of(f_in) * group_words;
        const int* at[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            at[i] = row_at(group, source[i], stride);
        }
#pragma unroll
        for (int p = 0; p < 3; p++) {
            Pack<int, 2> words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                words[i] = load_pack<2>(at[i] + p * 2);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int j = i / 2, pair = i % 2 * 2;
                right[j].at[p][i % 2] = join_halves(unsigned(words[pair].at[j / 2]),
                                                    unsigned(words[pair + 1].at[j / 2]), j % 2);
            }
        }
    }

    // Computes a or a_dot of the units k0 + lane / 4 + 8 u of four edges as KernelNetwork::compute_hidden_units does.
    // Indices beyond the last unit are replaced by the last one.
    template <bool dot> __device__ void compute_hidden_units(const I (&row)[4], int k0, float (&units)[2][4]) const {
        const int last = network.hidden - 1, k = k0 + lane_of_warp() / 4, unit[2] = {min(k, last), min(k + 8, last)};
        float z[2][4];
        load_bias(network.params, unit, z);
        add_weighted_coords(network.params, network.coords, row, unit, z);
        float a_dot[2][4] = {};
        if constexpr (dot) {
            if (network.params_dot != nullptr) {
                load_bias(network.params_dot, unit, a_dot);
                add_weighted_coords(network.params_dot, network.coords, row, unit, a_dot);
            }
            if (network.coords_dot != nullptr) {
                add_weighted_coords(network.params, network.coords_dot, row, unit, a_dot);
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float value = dot ? a_dot[i / 4][i % 4] : z[i / 4][i % 4];
            units[i / 4][i % 4] = KernelNetwork<float>::active(z[i / 4][i % 4]) ? value : 0.0f;
        }
    }

    __device__ void load_bias(const float* weights, const int (&unit)[2], float (&bias)[2][4]) const {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            bias[i / 4][i % 4] = weights[(long long)(network.d) * network.hidden + unit[i / 4]];
        }
    }

    __device__ void add_weighted_coords(const float* weights, const float* xi, const I (&row)[4], const int (&unit)[2],
                                        float (&sum)[2][4]) const {
        const float* of_edge[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            of_edge[i] = row_at(xi, row[i], network.d);
        }
#pragma unroll 1
        for (int c = 0; c < network.d; c++, weights += network.hidden) {
            const float of_unit[2] = {weights[unit[0]], weights[unit[1]]};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum[i / 4][i % 4] += of_unit[i / 4] * of_edge[i % 4][c];
            }
        }
    }

    // Recomputes moments of the slab that are not finite, without tensor cores.
    __device__ void recompute_moments(const RowPiece<I>& piece, int k0, int f0, float* t) const {
#pragma unroll 1
        for (int i = lane_of_warp(); i < 16 * 32; i += 32) {
            const int k = k0 + i / 32, f = f0 + i % 32;
            if (is_finite(t[i])) {
                continue;
            }
            TreeSum<float, 3, 4> total;
            int terms = 0;
            const int end = k >= network.hidden || f >= f_in ? 0 : h_by_a_dot == nullptr ? 1 : 2;
            for (int dot = h_by_a == nullptr; dot < end; dot++) {
                const float* const h = dot ? h_by_a_dot : h_by_a;
                for (int e = 0; e < piece.size; e++) {
                    float unit[1];
                    network.compute_hidden_units(dot, edge_ids[piece.begin + I(e)], k, unit);
                    total.add(unit[0] * h[(long long)(indices[piece.begin + I(e)]) * f_in + f], terms++);
                }
            }
            t[i] = total.value();
        }
    }

    // sums[f] = sum over the edges of h_by_a[f0 + f].
    __device__ void sum_features(const RowPiece<I>& piece, int f0, float* sums) const {
        const int f = lane_of_warp() % 8 * 4, count = f_in - f0 - f;
        float total[1][4] = {};
#pragma unroll 1
        for (int e0 = lane_of_warp() / 8; e0 < piece.size; e0 += 64) {
            float part[1][4] = {};
            const int end = min(e0 + 64, piece.size);
            const I* source = indices + piece.begin + e0;
#pragma unroll 1
            for (int e = e0; e < end; e += 4, source += 4) {
                float run[4];
                load_run(row_at(h_by_a + f0 + f, *source, f_in), count, f_in % 4 == 0, run);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    part[0][j] += run[j];
                }
            }
            add_elementwise(total, part);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            total[0][j] += __shfl_xor_sync(0xffffffffu, total[0][j], 8);
            total[0][j] += __shfl_xor_sync(0xffffffffu, total[0][j], 16);
        }
        if (lane_of_warp() < 8) {
            write(sums + f, total[0]);
        }
    }
};

// The rows of a slab: one for each of `units` units and, if `bias`, one for b_v. of_v() and of_slab() return the rows'
// numbers in V^ and in the slab.
struct SlabRows {
    int k0;
    int units;
    int hidden;
    bool bias;

    __device__ SlabRows(int k0, int hidden, bool bias)
        : k0(k0), units(min(16, hidden - k0)), hidden(hidden), bias(bias && k0 == 0) {}
    __device__ int count() const { return units + bias; }
    __device__ int of_v(int i) const { return i < units ? k0 + i : hidden; }
    __device__ int of_slab(int i) const { return i < units ? i : 16; }
};

// ---- message --------------------------------------------------------------------------------------------------------

// Adds to sum[q] the products of this warp's rows of a slab with V^, for 16 columns from o0 + 16 q on. The rows of left
// tiles are pieces.
template <int stride>
__device__ void multiply_slab_by_v(const float* t, const int* v_parts, const SlabRows& rows, int f0, int f_in, int o0,
                                   int f_out, float (&sum)[2][2][4]) {
    const int steps = (f_in + 15) / 16, pairs = (f_out + 15) / 16, row = lane_of_warp() / 4;
    for (int i = warp_of_block(); i < rows.count(); i += THREADS / 32) {
        const float* from = t + row * stride + rows.of_slab(i) * 32 + lane_of_warp() % 4 * 4;
        const int* v = v_parts + (((long long)(rows.of_v(i)) * steps + f0 / 16) * pairs + o0 / 16) * pair_words;
        for (int f = f0; f < min(f0 + 32, f_in); f += 16, from += 16, v += pairs * pair_words) {
            float x[2][4];
            read(from, x[0]);
            read(from + 8 * stride, x[1]);
            const LeftParts left = split_rows_of_lane(x);
            multiply_add_pair(left, v, sum[0]);
            if (o0 + 16 < f_out) {
                multiply_add_pair(left, v + pair_words, sum[1]);
            }
        }
    }
}

// total[j] = sum over the warps of the numbers that they stored, 16 rows of 32 columns each.
__device__ inline void sum_over_warps(const float* sums, float (&total)[4]) {
    float of_warp[THREADS / 32][4];
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) {
        read(sums + i * 16 * 32, of_warp[i]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        total[j] = (of_warp[0][j] + of_warp[1][j]) + (of_warp[2][j] + of_warp[3][j]);
    }
}

// Recomputes sums that are not finite: sum[j] is the product of a piece's slab with V^ for column o + j.
__device__ inline void recompute_row_product(const float* t, const float* v_hat, const SlabRows& rows, int f0, int f_in,
                                             int o, int f_out, float (&sum)[4]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        TreeSum<float, 3, 4> total;
        int terms = 0;
        for (int i = 0; i < (is_finite(sum[j]) || o + j >= f_out ? 0 : rows.count()); i++) {
            for (int f = 0; f < min(32, f_in - f0); f++) {
                const float factor = v_hat[((long long)(rows.of_v(i)) * f_in + f0 + f) * f_out + o + j];
                total.add(t[rows.of_slab(i) * 32 + f] * factor, terms++);
            }
        }
        sum[j] = is_finite(sum[j]) ? sum[j] : total.value();
    }
}

template <class T, class I>
__device__ void compute_message_tensor(const TensorMomentCalculator<I>& moments, const T* v_hat, const int* v_parts,
                                       const RowPartition<I>& partition, int f_out, int add, T* out, T* overflow) {
    using S = TensorSlabShape<16>;
    __shared__ __align__(16) T slabs[S::pieces * S::piece_stride];
    __shared__ __align__(16) T sums[THREADS / 32 * S::pieces * 32];
    const int f_in = moments.f_in, hidden = moments.network.hidden;
    const long long s0 = (long long)(blockIdx.x) * S::pieces;
    const WarpPieces<I> pieces(partition, s0, S::pieces);
    const int own = int(threadIdx.x) / 8, column = int(threadIdx.x) % 8 * 4;  // A thread has four sums.
    const bool has_edges = pieces.at(own).size > 0;
    T* const target =
        s0 + own < partition.num_pieces ? partition.output_address(s0 + own, f_out, out, overflow) : nullptr;
    const bool wide = f_out % 4 == 0 && is_aligned(target);
    for (int f0 = 0; f0 < f_in; f0 += S::features) {
        for (int k0 = 0; k0 < hidden; k0 += S::units) {
            const SlabRows rows(k0, hidden, moments.h_by_a != nullptr);
            for (int p = warp_of_block(); p < S::pieces; p += THREADS / 32) {
                moments.compute_piece_moments(pieces.at(p), k0, f0, slabs + p * S::piece_stride);
            }
            __syncthreads();
            for (int o0 = 0; o0 < f_out; o0 += 32) {
                float sum[2][2][4] = {};
                multiply_slab_by_v<S::piece_stride>(slabs, v_parts, rows, f0, f_in, o0, f_out, sum);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float row[4];
                    extract_pair_row(sum[i / 2], i % 2, row);
                    const int p = warp_of_block() * S::pieces + lane_of_warp() / 4 + i % 2 * 8;
                    write(sums + p * 32 + i / 2 * 16 + lane_of_warp() % 4 * 4, row);
                }
                __syncthreads();
                const int o = o0 + column;
                if (target != nullptr && o < f_out) {
                    float total[4] = {}, before[4] = {};
                    if (has_edges) {
                        sum_over_warps(sums + own * 32 + column, total);
                        if ((total[0] + total[1]) * 0.0f + (total[2] + total[3]) * 0.0f != 0.0f) {  // NaN
                            recompute_row_product(slabs + own * S::piece_stride, v_hat, rows, f0, f_in, o, f_out,
                                                  total);
                        }
                    }
                    if (add || k0 > 0 || f0 > 0) {
                        load_run(target + o, f_out - o, wide, before);
                    }
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        total[j] += before[j];
                    }
                    store_run(target + o, f_out - o, wide, total);
                }
                __syncthreads();
            }
        }
    }
}

// gno_message on tensor cores, with the parts of v_hat and of the rows of h_by_a and h_by_a_dot.
template <class T, class I>
__global__ void __launch_bounds__(THREADS, tensor_blocks_per_sm<I>)
gno_message_tensor(const KernelNetwork<T> network, const T* __restrict__ v_hat, const int* __restrict__ v_parts,
                   const T* __restrict__ h_by_a, const T* __restrict__ h_by_a_dot, const int* __restrict__ parts_by_a,
                   const int* __restrict__ parts_by_a_dot, const RowPartition<I> partition,
                   const I* __restrict__ indices, const I* __restrict__ edge_ids, int f_in, int f_out, int add, T* out,
                   T* overflow) {
    if constexpr (has_tensor_cores) {
        const TensorMomentCalculator<I> moments{network, indices, edge_ids, h_by_a, h_by_a_dot,
                                                parts_by_a, parts_by_a_dot, f_in};
        compute_message_tensor(moments, v_hat, v_parts, partition, f_out, add, out, overflow);
    } else {
        compute_message(network, v_hat, h_by_a, h_by_a_dot, partition, indices, edge_ids, f_in, f_out, add, out,
                        overflow);
    }
}

// ---- gradient of V^ -------------------------------------------------------------------------------------------------

// A block of pieces: g[p, o], zero beyond the last piece and column.
struct PieceGradients {
    const float* g;
    int pieces;
    int f_out;

    __device__ float at(int p, int o) const { return p < pieces && o < f_out ? g[p * f_out + o] : 0.0f; }

    // Splits right tiles of the columns o0 + tensor_pair_col(col, t). Along the depth, a lane has the pieces
    // lane % 4 + 4 x.
    __device__ void split_tiles(int o0, RightParts (&right)[2]) const {
        const int p = lane_of_warp() % 4;
#pragma unroll
        for (int t = 0; t < 2; t++) {
            const int o = o0 + tensor_pair_col(lane_of_warp() / 4, t);
            right[t] = RightParts({at(p, o), at(p + 4, o), at(p + 8, o), at(p + 12, o)});
        }
    }
};

// Adds a pair's sums for the features f and f + 1 to products[f, o], or stores them if `fresh`; `t` are the moments of
// a row of the slab.
template <int stride, bool whole>
__device__ void add_grad_v_pair_terms(const float* t, const PieceGradients& of, int f, int width, int o, bool fresh,
                                      float (&sum)[2][4], float* products) {
    unsigned again = 0;  // bit i: feature f + i / 4, column o + i % 4
    if (any_not_finite(sum)) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float& x = sum[i % 4 / 2][i / 4 * 2 + i % 2];
            again |= unsigned(!is_finite(x)) << i;
            x = is_finite(x) ? x : 0.0f;
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int count = whole || f + half < width ? of.f_out - o : 0;
        float row[4], before[4] = {};
        extract_pair_row(sum, half, row);
        float* const target = products + (f + half) * of.f_out + o;
        if (!fresh) {
            load_run<whole>(target, count, of.f_out % 4 == 0, before);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            row[j] += before[j];
        }
        store_run<whole>(target, count, of.f_out % 4 == 0, row);
    }
#pragma unroll 1
    for (int i = 0; again >> i != 0; i++) {
        const int row = f + i / 4, column = o + i % 4;
        if ((again >> i & 1) != 0 && row < width && column < of.f_out) {
            float total = 0.0f;
            for (int p = 0; p < of.pieces; p++) {
                total += t[p * stride + row] * of.at(p, column);
            }
            products[row * of.f_out + column] += total;
        }
    }
}

// products[k, f, o] (+)= sum over the pieces p of t[p, k, f] g[p, o] for the rows of a slab, whose features are the
// rows of left tiles. The row of b_v is zero if `no_bias`.
template <int stride, bool whole>
__device__ void add_grad_v_terms_tensor(const float* t, const PieceGradients& of, const SlabRows& rows, bool no_bias,
                                        int width, bool fresh, long long row_stride, float* products) {
    const int p = lane_of_warp() % 4, f = lane_of_warp() / 4 * 4;
    for (int o0 = 0; o0 < of.f_out; o0 += 32) {
        RightParts right[2][2];
#pragma unroll
        for (int q = 0; q < 2; q++) {
            of.split_tiles(o0 + q * 16, right[q]);
        }
        for (int i = warp_of_block(); i < rows.count(); i += THREADS / 32) {
            const float* const from = t + rows.of_slab(i) * 32;
            float x[4][4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                read(from + (p + 4 * j) * stride + f, x[j]);
            }
#pragma unroll
            for (int u = 0; u < 4; u += 2) {  // features f + u and f + u + 1
                float sum[2][2][4] = {};
                if (!no_bias || i < rows.units) {
                    const LeftParts left = split_rows_of_lane({{x[0][u], x[1][u], x[2][u], x[3][u]},
                                                               {x[0][u + 1], x[1][u + 1], x[2][u + 1], x[3][u + 1]}});
#pragma unroll
                    for (int n = 0; n < 4; n++) {
                        multiply_add(left, right[n / 2][n % 2], sum[n / 2][n % 2]);
                    }
                }
#pragma unroll
                for (int q = 0; q < 2; q++) {
                    add_grad_v_pair_terms<stride, whole>(from, of, f + u, width, o0 + q * 16 + p * 4, fresh, sum[q],
                                              products + (long long)(rows.of_v(i)) * row_stride);
                }
            }
        }
    }
}

template <class I>
__device__ void compute_grad_v_tensor(const TensorMomentCalculator<I>& moments, const float* g,
                                      const RowPartition<I>& partition, long long first, long long count, int f_out,
                                      float* products) {
    using S = TensorSlabShape<8>;
    __shared__ __align__(16) float slabs[S::pieces * S::piece_stride];
    const int f_in = moments.f_in, hidden = moments.network.hidden;
    const unsigned unit_tiles = (hidden + S::units) / S::units;
    const unsigned feature_tiles = (f_in + S::features - 1) / S::features;
    const int k0 = int(blockIdx.x / feature_tiles % unit_tiles) * S::units;
    const int f0 = int(blockIdx.x % feature_tiles) * S::features;
    const long long chunk = blockIdx.x / (unit_tiles * feature_tiles), begin = chunk * 16 * S::pieces;
    if (k0 >= hidden) {
        return;  // gno_grad_v has one more tile, for b_v
    }
    const SlabRows rows(k0, hidden, true);
    const long long row_stride = (long long)(f_in) * f_out;
    float* const target = products + chunk * (hidden + 1) * row_stride + (long long)(f0) * f_out;
#pragma unroll 1
    for (long long s0 = begin; s0 < min(begin + 16 * S::pieces, count); s0 += S::pieces) {
        const int pieces = count - s0 < S::pieces ? int(count - s0) : S::pieces;
        const WarpPieces<I> of_warp(partition, first + s0, pieces);
        for (int p = warp_of_block(); p < S::pieces; p += THREADS / 32) {
            moments.compute_piece_moments(of_warp.at(p), k0, f0, slabs + p * S::piece_stride);
        }
        __syncthreads();
        const PieceGradients of{g + s0 * f_out, pieces, f_out};
        const bool no_bias = moments.h_by_a == nullptr;
        const int width = min(S::features, f_in - f0);
        if (width == S::features && f_out % 32 == 0) {
            add_grad_v_terms_tensor<S::piece_stride, true>(slabs, of, rows, no_bias, width, s0 == begin, row_stride,
                                                           target);
        } else {
            add_grad_v_terms_tensor<S::piece_stride, false>(slabs, of, rows, no_bias, width, s0 == begin, row_stride,
                                                            target);
        }
        __syncthreads();
    }
}

// gno_grad_v on tensor cores.
template <class T, class I>
__global__ void __launch_bounds__(THREADS, tensor_blocks_per_sm<I>)
gno_grad_v_tensor(const KernelNetwork<T> network, const T* __restrict__ h_by_a, const T* __restrict__ h_by_a_dot,
                  const int* __restrict__ parts_by_a, const int* __restrict__ parts_by_a_dot, const T* __restrict__ g,
                  const RowPartition<I> partition, const I* __restrict__ indices, const I* __restrict__ edge_ids,
                  long long first, long long count, int f_in, int f_out, T* products) {
    if constexpr (has_tensor_cores) {
        const TensorMomentCalculator<I> moments{network, indices, edge_ids, h_by_a, h_by_a_dot,
                                                parts_by_a, parts_by_a_dot, f_in};
        compute_grad_v_tensor(moments, g, partition, first, count, f_out, products);
    } else {
        compute_grad_v(network, h_by_a, h_by_a_dot, g, partition, indices, edge_ids, first, count, f_in, f_out,
                       products);
    }
}
