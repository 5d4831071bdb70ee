// Third derivatives of the sum over triplets, from first derivatives evaluated with hyper-dual numbers (see hyper_dual.cuh).
//
// With K_ln,c = norm(Y_l) sum_m W1[l,n,m] W2[c,m], each in-edge f has q_lc = sum_n K_ln,c sbf_rad_f[l,n] and feature_lc = x_c
// q_lc, and out_e[c] = sum over f and l of P_l(u_e.u_f) feature_lc(f). Arrays of hyper-dual numbers, which have four parts: unit
// vectors (edge, xyz, part), K (l, n, part, c), features (edge, l, part, c).
//
// Each warp has its own edge. It multiplies the rows (features or gradients) of the edges on the other side of the node by P_l, and
// by P_l' times the directions of these edges. The sum with P_l is the gradient of the row of the warp's own edge; the three sums
// with P_l' and a component of the direction, times this row, are the gradient of this edge's direction.
#pragma once
#include "dimenet_triplets.cuh"
#include "hyper_dual.cuh"

constexpr int PARTS = 4;  // components of a hyper-dual number
// Minimum number of resident blocks per multiprocessor, which limits the registers per thread.
template <class T> constexpr int THIRD_BLOCKS = sizeof(T) == 4 ? 4 : 2;
// Factors of a pair in shared memory: P_l, and P_l' times the other edge's direction. Padding avoids bank conflicts.
constexpr int PAIR = 4 * PARTS, PAIR_STRIDE = PAIR + 4;

template <class T> __device__ __forceinline__ HyperDual<T> load_hyper_dual(const T* from) {
    T parts[PARTS];
    load_aligned<PARTS>(from, parts);
    return {parts[0], parts[1], parts[2], parts[3]};
}

// Loads a hyper-dual number whose parts are `stride` elements apart.
template <class T> __device__ __forceinline__ HyperDual<T> load_strided_hyper_dual(const T* from, long long stride) {
    return {from[0], from[stride], from[2 * stride], from[3 * stride]};
}

template <class T> __device__ __forceinline__ void store_hyper_dual(T* to, long long stride, const HyperDual<T>& x) {
    to[0] = x.value;
    to[stride] = x.along_a;
    to[2 * stride] = x.along_c;
    to[3 * stride] = x.both;
}

template <class T> struct HyperDualWeights {
    const T* value;
    const T* along_a;
    const T* along_c;
    int n_emb;
    int n_mid;
    int num_radial;
    int num_spherical;

    // load_first_weight() returns norm(Y_l) W1[l,n,m] for row l * num_radial + n, and load_second_weight() returns
    // W2[c,m].
    __device__ HyperDual<T> load_first_weight(int row, int m) const {
        return angular_norm(T(0), row / num_radial) * load_input(value, along_a, along_c, (long long)(row) * n_mid + m);
    }
    __device__ HyperDual<T> load_second_weight(int c, int m) const {
        return load_input(value, along_a, along_c, (long long)(num_spherical * num_radial + c) * n_mid + m);
    }
};

template <class T> struct HyperDualRadialBasis {
    const T* value;
    const T* along_a;
    const T* along_c;

    __device__ HyperDual<T> at(long long i) const { return load_input(value, along_a, along_c, i); }
};

// Returns q_lc of edge e.
template <class T>
__device__ HyperDual<T> project_sbf_rad(const T* products, const HyperDualRadialBasis<T>& sbf_rad, long long e, int l,
                                        int c, int n_emb, int num_spherical, int num_radial) {
    HyperDual<T> q;
#pragma unroll 1
    for (int n = 0; n < num_radial; n++) {
        const int row = l * num_radial + n;
        const HyperDual<T> factor = load_strided_hyper_dual(products + (long long)(row) * PARTS * n_emb + c, n_emb);
        q = q + factor * sbf_rad.at(e * num_spherical * num_radial + row);
    }
    return q;
}

// Direction of a vector, and the inverse length of scale * vector. The power of two `scale` prevents overflow and underflow.
template <class T> struct UnitVector {
    HyperDual<T> unit[3], inverse;
    T scale;

    __device__ UnitVector(const T* vec, const T* gg_vec, const T* ggg_vec, long long e)
        : scale(find_power_of_two_scale(load_vec(vec, e))) {
        HyperDual<T> v[3], square;
#pragma unroll
        for (int i = 0; i < 3; i++) {
            v[i] = scale * load_input(vec, gg_vec, ggg_vec, 3 * e + i);
            square = square + v[i] * v[i];
        }
        const T one = T(1) / sqrt(square.value), third = one / square.value;
        inverse = apply_function(square, one, T(-0.5) * third, T(0.75) * third / square.value);
#pragma unroll
        for (int i = 0; i < 3; i++) {
            unit[i] = inverse * v[i];
        }
    }
};

template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_third_directions(const T* __restrict__ vec, const T* __restrict__ gg_vec, const T* __restrict__ ggg_vec,
                         T* __restrict__ unit, long long num_edges) {
    const long long e = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (e < num_edges) {
        const UnitVector<T> direction(vec, gg_vec, ggg_vec, e);
#pragma unroll
        for (int i = 0; i < 3; i++) {
            store_hyper_dual(unit + (3 * e + i) * PARTS, 1, direction.unit[i]);
        }
    }
}

// Computes gradients of vectors from gradients of directions, which are sums of `parts` arrays, added in order.
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_third_vec_gradient(const T* __restrict__ grad_unit, const T* __restrict__ vec, const T* __restrict__ gg_vec,
                           const T* __restrict__ ggg_vec, T* __restrict__ out_gg_vec, T* __restrict__ out_vec,
                           long long num_edges, int parts) {
    const long long e = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (e < num_edges) {
        const UnitVector<T> direction(vec, gg_vec, ggg_vec, e);
        HyperDual<T> grad[3], along;
#pragma unroll
        for (int i = 0; i < 3; i++) {
            for (int part = 0; part < parts; part++) {
                grad[i] = grad[i] + load_hyper_dual(grad_unit + ((part * num_edges + e) * 3 + i) * PARTS);
            }
            along = along + direction.unit[i] * grad[i];
        }
#pragma unroll
        for (int i = 0; i < 3; i++) {
            const HyperDual<T> of_vec = direction.inverse * (grad[i] - along * direction.unit[i]);
            if (out_gg_vec != nullptr) {
                out_gg_vec[3 * e + i] = direction.scale * of_vec.along_c;
            }
            if (out_vec != nullptr) {
                out_vec[3 * e + i] = direction.scale * of_vec.both;
            }
        }
    }
}

// Computes K, with one thread per (l, n, c).
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_third_products(const HyperDualWeights<T> weights, T* __restrict__ products) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x), n_emb = weights.n_emb, row = i / n_emb, c = i - row * n_emb;
    if (row < weights.num_spherical * weights.num_radial) {
        HyperDual<T> total;
        for (int begin = 0; begin < weights.n_mid; begin += RUN) {
            HyperDual<T> sum;
            for (int m = begin; m < min(begin + RUN, weights.n_mid); m++) {
                sum = sum + weights.load_first_weight(row, m) * weights.load_second_weight(c, m);
            }
            total = total + sum;
        }
        store_hyper_dual(products + (long long)(row) * PARTS * n_emb + c, n_emb, total);
    }
}

// Computes the features, with one thread per (edge, l, c).
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_third_features(const T* __restrict__ products, const HyperDualRadialBasis<T> sbf_rad,
                       const T* __restrict__ embedding, const T* __restrict__ gg_embedding,
                       const T* __restrict__ ggg_embedding, T* __restrict__ features, long long num_edges, int n_emb,
                       int num_spherical, int num_radial) {
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x, pair = i / n_emb, e = pair / num_spherical;
    const int c = int(i - pair * n_emb), l = int(pair - e * num_spherical);
    if (e < num_edges) {
        const HyperDual<T> q = project_sbf_rad(products, sbf_rad, e, l, c, n_emb, num_spherical, num_radial);
        const HyperDual<T> x = load_input(embedding, gg_embedding, ggg_embedding, e * n_emb + c);
        store_hyper_dual(features + pair * PARTS * n_emb + c, n_emb, x * q);
    }
}

// Stores P_l of a pair's cosine, and P_l' times the other edge's direction.
template <class T> __device__ void store_pair_factors(const HyperDual<T> (&own)[3], const T* other, int l, T* to) {
    HyperDual<T> direction[3], cosine, p = {T(1)}, d, below, d_below;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        direction[k] = load_hyper_dual(other + k * PARTS);
        cosine = cosine + own[k] * direction[k];
    }
#pragma unroll 1
    for (int n = 0; n < l; n++) {
        const HyperDual<T> next = (T(1) / T(n + 1)) * (T(2 * n + 1) * (cosine * p) - T(n) * below);
        const HyperDual<T> d_next = d_below + T(2 * n + 1) * p;
        below = p;
        d_below = d;
        p = next;
        d = d_next;
    }
    store_hyper_dual(to, 1, p);
#pragma unroll
    for (int k = 0; k < 3; k++) {
        store_hyper_dual(to + (k + 1) * PARTS, 1, d * direction[k]);
    }
}

// Sums of a lane: factors of pairs times rows of the other edges, with compensated summation (see add_run_compensated).
template <class T> struct HyperDualSums {
    T run[PAIR] = {}, total[PAIR] = {};

    // Adds the term of a pair to all sums if `all`, otherwise only to the sum with P_l.
    __device__ __forceinline__ void add(const T* pair, const HyperDual<T>& row, bool all) {
#pragma unroll
        for (int i = 0; i < PAIR; i += PARTS) {
            if (i == 0 || all) {
                const HyperDual<T> term = load_hyper_dual(pair + i) * row;
                run[i] += term.value;
                run[i + 1] += term.along_a;
                run[i + 2] += term.along_c;
                run[i + 3] += term.both;
            }
        }
    }
    __device__ __forceinline__ void flush_run() {
#pragma unroll
        for (int i = 0; i < PAIR; i++) {
            add_run_compensated(run[i], total[i], false);
            run[i] = finite(total[i]) ? run[i] : T(0);
        }
    }
    __device__ __forceinline__ HyperDual<T> get_sum(int i) const {
        return {total[PARTS * i], total[PARTS * i + 1], total[PARTS * i + 2], total[PARTS * i + 3]};
    }
};

// A warp's own edge, and the range of edges on the other side of their common node (in-edges: positions in dst_edge_index).
template <class I, bool to_in> struct OppositeEdges {
    I own, begin, end, position;

    __device__ OppositeEdges(const I* src_offsets, const I* dst_offsets, const I* ends, const I* dst_edge_index,
                             long long i)
        : own(to_in ? dst_edge_index[i] : I(i)), position(I(i)) {
        const I node = ends[own];
        const I* const offsets = to_in ? src_offsets : dst_offsets;
        begin = offsets[node];
        end = offsets[node + 1];
    }
    __device__ I edge(const I* dst_edge_index, I other) const { return to_in ? other : dst_edge_index[other]; }
    // Returns whether the warp's own edge and edge `other` form a triplet.
    __device__ bool forms_triplet(const I* left_start, const I* left_stop, I other) const {
        const I e = to_in ? other : own, f = to_in ? position : other;
        return f < left_start[e] || f >= left_stop[e];
    }
};

// One warp per edge and tile of 32 channels sums over the edges on the other side of node ends[edge]. Out-edges (not
// `to_in`): out_grad_out = the sum. In-edges, with the gradients h of features: out_gg_embedding and out_embedding = sum_l q h;
// grad_q = x h, which overwrites the features; edge_alone = whether the edge is in no triplet. In either case, grad_unit (tiles,
// edge, xyz, part) = the gradients of directions.
template <class T, class I, bool to_in>
__global__ void __launch_bounds__(THREADS, THIRD_BLOCKS<T>)
dimenet_third_triplet_sums(const I* __restrict__ src_offsets, const I* __restrict__ dst_offsets,
                           const I* __restrict__ ends, const I* __restrict__ dst_edge_index,
                           const I* __restrict__ left_start, const I* __restrict__ left_stop,
                           const T* __restrict__ unit, const T* __restrict__ grad_out,
                           const T* __restrict__ ggg_grad_out, const T* __restrict__ products,
                           const HyperDualRadialBasis<T> sbf_rad, const T* __restrict__ embedding,
                           const T* __restrict__ gg_embedding, const T* __restrict__ ggg_embedding, const T* features,
                           T* grad_q, T* __restrict__ out_grad_out, T* __restrict__ out_gg_embedding,
                           T* __restrict__ out_embedding, T* __restrict__ grad_unit, int* __restrict__ edge_alone,
                           long long num_edges, int n_emb, int num_spherical, int num_radial) {
    __shared__ __align__(16) T pairs[WARPS * LANES * PAIR_STRIDE];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, c = blockIdx.y * LANES + lane;
    const long long i = (long long)(blockIdx.x) * WARPS + warp;
    if (i >= num_edges) {
        return;
    }
    const OppositeEdges<I, to_in> sides(src_offsets, dst_offsets, ends, dst_edge_index, i);
    const long long own = sides.own;
    T* const rows = pairs + warp * LANES * PAIR_STRIDE;
    const bool inside = c < n_emb, pulled = grad_unit != nullptr;
    HyperDual<T> own_unit[3], pull[3], grad_x;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        own_unit[k] = load_hyper_dual(unit + (3 * own + k) * PARTS);
    }
    unsigned any = 0;
    HyperDualSums<T> sums;
#pragma unroll 1
    for (int l = 0; l < num_spherical; l++) {
#pragma unroll 1
        for (I first = sides.begin; first < sides.end; first += LANES) {
            // Each lane computes the factors of one pair.
            const I other = first + lane;
            const bool admitted = other < sides.end && sides.forms_triplet(left_start, left_stop, other);
            if (admitted) {
                store_pair_factors(own_unit, unit + 3LL * PARTS * sides.edge(dst_edge_index, other), l,
                                   rows + lane * PAIR_STRIDE);
            }
            const unsigned triplets = __ballot_sync(FULL, admitted);
            any |= triplets;
            __syncwarp();
#pragma unroll 1
            for (int begin = 0; begin < LANES && inside; begin += RUN) {
#pragma unroll 1
                for (int k = begin; k < begin + RUN; k++) {
                    if (triplets >> k & 1) {
                        const long long e = sides.edge(dst_edge_index, first + k);
                        const HyperDual<T> row =
                            to_in ? load_gradient(grad_out, ggg_grad_out, e * n_emb + c)
                                  : load_strided_hyper_dual(features + (e * num_spherical + l) * PARTS * n_emb + c,
                                                            n_emb);
                        sums.add(rows + k * PAIR_STRIDE, row, pulled);
                    }
                }
                sums.flush_run();
            }
            __syncwarp();
        }
        if (to_in && inside && any != 0) {
            const HyperDual<T> q = project_sbf_rad(products, sbf_rad, own, l, c, n_emb, num_spherical, num_radial);
            const HyperDual<T> x = load_input(embedding, gg_embedding, ggg_embedding, own * n_emb + c);
            const HyperDual<T> feature = x * q;
            grad_x = grad_x + q * sums.get_sum(0);
#pragma unroll
            for (int k = 0; k < 3; k++) {
                pull[k] = pull[k] + feature * sums.get_sum(k + 1);
            }
            if (grad_q != nullptr) {
                store_hyper_dual(grad_q + (own * num_spherical + l) * PARTS * n_emb + c, n_emb, x * sums.get_sum(0));
            }
            sums = HyperDualSums<T>();
        }
    }
    if (!to_in && inside && any != 0) {
        const HyperDual<T> g = load_gradient(grad_out, ggg_grad_out, own * n_emb + c);
#pragma unroll
        for (int k = 0; k < 3; k++) {
            pull[k] = g * sums.get_sum(k + 1);
        }
    }
    if (pulled) {
#pragma unroll
        for (int k = 0; k < 3; k++) {
            const HyperDual<T> total = {sum_over_warp(pull[k].value), sum_over_warp(pull[k].along_a),
                                        sum_over_warp(pull[k].along_c), sum_over_warp(pull[k].both)};
            if (lane == 0) {
                store_hyper_dual(grad_unit + ((blockIdx.y * num_edges + own) * 3 + k) * PARTS, 1, total);
            }
        }
    }
    if (!to_in && inside && out_grad_out != nullptr) {
        out_grad_out[own * n_emb + c] = sums.get_sum(0).both;
    }
    if (to_in && inside && out_gg_embedding != nullptr) {
        out_gg_embedding[own * n_emb + c] = grad_x.along_c;
    }
    if (to_in && inside && out_embedding != nullptr) {
        out_embedding[own * n_emb + c] = grad_x.both;
    }
    if (to_in && edge_alone != nullptr && blockIdx.y == 0 && lane == 0) {
        edge_alone[own] = any == 0;
    }
}

// Computes gradients of sbf_rad, with one warp per (edge, l).
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_third_sbf_rad_gradient(const T* __restrict__ products, const T* __restrict__ grad_q, const int* __restrict__ alone,
                               T* __restrict__ out_gg_sbf_rad, T* __restrict__ out_sbf_rad, long long num_edges, int n_emb,
                               int num_spherical, int num_radial) {
    const int lane = threadIdx.x % LANES;
    const long long i = (long long)(blockIdx.x) * WARPS + threadIdx.x / LANES, e = i / num_spherical;
    if (e >= num_edges) {
        return;
    }
    const int l = int(i - e * num_spherical), end = alone[e] ? 0 : n_emb;
#pragma unroll 1
    for (int n = 0; n < num_radial; n++) {
        const T* const factors = products + (long long)(l * num_radial + n) * PARTS * n_emb;
        HyperDual<T> sum;
        for (int c = lane; c < end; c += LANES) {
            sum = sum + load_strided_hyper_dual(factors + c, n_emb) *
                            load_strided_hyper_dual(grad_q + i * PARTS * n_emb + c, n_emb);
        }
        const T along_c = sum_over_warp(sum.along_c), both = sum_over_warp(sum.both);
        if (lane == 0 && out_gg_sbf_rad != nullptr) {
            out_gg_sbf_rad[i * num_radial + n] = along_c;
        }
        if (lane == 0 && out_sbf_rad != nullptr) {
            out_sbf_rad[i * num_radial + n] = both;
        }
    }
}

// Computes the gradient of K for each chunk of 256 edges. A row of `parts` ends with the number of edges in triplets.
template <class T>
__global__ void __launch_bounds__(THREADS, 4)
dimenet_third_products_gradient(const HyperDualRadialBasis<T> sbf_rad, const T* __restrict__ grad_q,
                                const int* __restrict__ alone, T* __restrict__ parts, long long num_edges, int n_emb,
                                int num_spherical, int num_radial) {
    const int i = int(blockIdx.y * blockDim.x + threadIdx.x), rows = num_spherical * num_radial;
    const int row = i / n_emb, c = i - row * n_emb, l = row / num_radial;
    const long long begin = (long long)(blockIdx.x) * CHUNK;
    T* const to = parts + blockIdx.x * ((long long)(rows) * PARTS * n_emb + 1);
    if (row > rows || (row == rows && c > 0)) {
        return;
    }
    TreeSum<T, 4, 2> sums[PARTS];
    int count = 0;
    for (int k = 0; k < int(min((long long)(CHUNK), num_edges - begin)); k++) {
        const long long e = begin + k;
        if (alone[e]) {
            continue;
        }
        if (row < rows) {
            const HyperDual<T> grad = load_strided_hyper_dual(grad_q + (e * num_spherical + l) * PARTS * n_emb + c,
                                                              n_emb);
            const HyperDual<T> term = sbf_rad.at(e * rows + row) * grad;
            sums[0].add(term.value, count);
            sums[1].add(term.along_a, count);
            sums[2].add(term.along_c, count);
            sums[3].add(term.both, count);
        }
        count++;
    }
    if (row == rows) {
        to[(long long)(rows) * PARTS * n_emb] = T(count);
    } else {
        const HyperDual<T> total = {sums[0].value(), sums[1].value(), sums[2].value(), sums[3].value()};
        store_hyper_dual(to + (long long)(row) * PARTS * n_emb + c, n_emb, total);
    }
}

// Computes gradients of W1 and W2 from the gradient of K, with one thread per element. Both gradients are zero without triplets.
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_third_weights_gradient(const HyperDualWeights<T> weights, const T* __restrict__ grad_products,
                               T* __restrict__ out_gg_weights, T* __restrict__ out_weights) {
    const int rows = weights.num_spherical * weights.num_radial, n_emb = weights.n_emb;
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x), row = i / weights.n_mid, m = i - row * weights.n_mid;
    if (row >= rows + n_emb) {
        return;
    }
    const bool first = row < rows, some = grad_products[(long long)(rows) * PARTS * n_emb] > T(0);
    LongSum<T> along_c, both;
    for (int k = 0; k < (first ? n_emb : rows) && some; k++) {
        const int at = first ? row : k, c = first ? k : row - rows;
        const HyperDual<T> grad = load_strided_hyper_dual(grad_products + (long long)(at) * PARTS * n_emb + c, n_emb);
        const HyperDual<T> term = (first ? weights.load_second_weight(c, m) : weights.load_first_weight(at, m)) * grad;
        along_c.add(term.along_c, k);
        both.add(term.both, k);
    }
    const T norm = first ? angular_norm(T(0), row / weights.num_radial) : T(1);
    if (out_gg_weights != nullptr) {
        out_gg_weights[i] = norm * along_c.value();
    }
    if (out_weights != nullptr) {
        out_weights[i] = norm * both.value();
    }
}
