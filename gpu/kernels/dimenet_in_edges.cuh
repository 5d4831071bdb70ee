// Sums over the out-edges of a node for each of its in-edges f = (k -> j): the gradients of f from the sum over triplets.
//
// All gradients of f follow from h_f[l,c] = sum over e of P_l(u_e.u_f) grad_out[e,c], the gradient of feature_f[l,c]. The sum
// skips the out-edges e whose forward sum excludes f; by symmetry, f excludes the same edges (trigraph.EdgeGraph).
#pragma once
#include "dimenet_first_weights.cuh"
#include "dimenet_pull.cuh"

template <class T> struct InEdgeOutputs {
    T *embedding, *projected, *projected_dot, *unit, *unit_dot;  // gradients; unit and unit_dot have one array per tile
    T *parts, *totals;  // partial gradients of W2 (blocks, n_mid, n_emb): `parts` of the current run, `totals` of previous runs
    int* alone;         // 1 for edges in no triplet, otherwise 0
};

// The node and the tile of channels that a block is processing, the arguments of the kernel, and arrays in shared memory.
template <class T, class I, bool second, int S> struct InEdgeGradientBlock {
    static constexpr int W = CHANNELS<T, second>, TILE_STRIDE = STRIDE<T, second>;
    static constexpr int EDGES = STAGED<T, second, S>, BATCH = HARMONIC<T, second>;
    static constexpr int SERVED = second ? 1 : EDGES / WARPS;  // in-edges that a warp processes at once
    static constexpr int MIDS = 2;                             // rows m of the gradient of W2 that a warp computes at once
    static constexpr int QUAD = 16 / int(sizeof(T));           // numbers per 16-byte read
    // Numbers of edges (AT_ONCE) and of harmonics per edge (HELD) that fit into a thread's registers.
    static constexpr int AT_ONCE = second ? 1 : 2, HELD = second ? QUAD : 16;
    NodeEdges<I> node;
    LaneChannels<W> channels;
    TripletGraph<I> graph;
    EdgeFeatureInputs<T> inputs;
    const T *unit, *unit_dot, *grad_out;
    InEdgeOutputs<T> grads;
    int tile;
    long long num_edges;
    T* state;     // state of the node (row of harmonics, channel), followed by its derivative
    T* features;  // features of the staged edges, later cotangents of q (edge, degree, channel), followed by derivatives
    T* rows;      // harmonics of the staged edges and their derivatives, later overwritten by cotangents of harmonics
    int *votes, *linear;  // linear: whether the gradients of a staged edge use the state
    I* staged;            // indices of the staged edges, or -1 for edges in no triplet

    // Sums of |grad_out| and, in total_dot, of bounds on the derivatives of terms, for the channels of a lane (see
    // ExclusionTotals).
    struct MagnitudeSums {
        T total[W] = {}, total_dot[W] = {};
    };

    __device__ T* state_dot() const { return state + S * S * TILE_STRIDE; }
    __device__ T* features_dot() const { return features + EDGES * S * TILE_STRIDE; }
    __device__ bool has_unit_tangent() const { return second && unit_dot != nullptr; }
    __device__ int degrees() const { return S < DEGREES ? S : inputs.num_spherical; }
    __device__ int width() const { return min(TILE<T, second>, inputs.n_emb - tile * TILE<T, second>); }

    // Adds `count` out-edges starting at `first`, whose harmonics are staged at k, k + 1, ..., to the sums of this warp.
    template <int warp>
    __device__ void add_out_edges_to_sums(I first, int k, int count, WarpStateSums<T, second, S>& sums,
                                          MagnitudeSums& sizes) const {
        constexpr int begin = WarpHarmonicRows<S>::begin(warp), end = WarpHarmonicRows<S>::end(warp);
        const T* grad = grad_out + (long long)(first) * inputs.n_emb;
#pragma unroll AT_ONCE
        for (int i = 0; i < count; i++, grad += inputs.n_emb) {
            const T *const s = rows + (k + i) * HARMONICS<S> + begin, *const s_dot = s + BATCH * HARMONICS<S>;
            T g[W], held[HELD], held_dot[HELD];
            channels.read_row(grad, 0, g);
            const T along = has_unit_tangent() ? size(load_vec(unit_dot, first + i)) : T(0);
#pragma unroll
            for (int w = 0; w < W; w++) {
                sizes.total[w] += fabs(g[w]);
                sizes.total_dot[w] += has_unit_tangent() ? along * fabs(g[w]) : T(0);
            }
#pragma unroll
            for (int row = 0; row < end - begin; row++) {
                if (row % HELD == 0) {
                    load_register_chunk<end - begin>(s, row, held);
                    if (has_unit_tangent()) {
                        load_register_chunk<end - begin>(s_dot, row, held_dot);
                    }
                }
#pragma unroll
                for (int w = 0; w < W; w++) {
                    sums.sum[row][w] += held[row % HELD] * g[w];
                    if (has_unit_tangent()) {
                        sums.sum_dot[row][w] += held_dot[row % HELD] * g[w];
                    }
                }
            }
        }
    }

    // Computes the state of the node, and the sums in `sizes`.
    __device__ void compute_node_state(MagnitudeSums& sizes) const {
        WarpStateSums<T, second, S> sums;
#pragma unroll 1
        for (I first = node.out_begin; first < node.out_end(); first += BATCH) {
            const int batch = int(min(I(BATCH), node.out_end() - first));
            stage_harmonics<T, I, second, S, true>(unit, unit_dot, nullptr, first, batch, rows);
            __syncthreads();
#pragma unroll 1
            for (int k = 0; k < batch; k += RUN) {
                const I done = first - node.out_begin + min(k + RUN, BATCH);
                call_with_constant_warp(channels.warp, [&](auto warp) {
                    add_out_edges_to_sums<decltype(warp)::value>(first + k, k, min(RUN, batch - k), sums, sizes);
                    if (done % RUN == 0 || first + BATCH >= node.out_end()) {
                        sums.template flush_to_state<decltype(warp)::value>(channels.lane, state, state_dot(),
                                                                            done <= RUN);
                    }
                });
            }
            __syncthreads();
        }
    }

    // Out-edges that exclude an in-edge: positions start, ..., stop - 1 of dst_edge_index; `first` is the edge at `start`.
    struct ExcludedOutEdges {
        I start, stop, first;
    };

    __device__ I get_excluded_out_edge(const ExcludedOutEdges& left, I position) const {
        return position == left.start ? left.first : graph.dst_edge_index[position];
    }

    // Returns whether subtracting the excluded edges from the state's sums is accurate (see ExclusionTotals).
    __device__ bool may_subtract_excluded(const ExcludedOutEdges& left, const MagnitudeSums& sizes) const {
        MagnitudeSums part;
#pragma unroll 1
        for (I position = left.start; position < left.stop; position++) {
            const I e = get_excluded_out_edge(left, position);
            const T along = has_unit_tangent() ? size(load_vec(unit_dot, e)) : T(0);
            T grad[W];
            channels.read_row(grad_out, e, grad);
#pragma unroll
            for (int w = 0; w < W; w++) {
                part.total[w] += fabs(grad[w]);
                part.total_dot[w] += has_unit_tangent() ? fabs(grad[w]) * along : T(0);
            }
        }
        bool all = true;
#pragma unroll
        for (int w = 0; w < W; w++) {
            all = all && ExclusionTotals<T>::may_subtract_excluded(sizes.total[w], part.total[w]) &&
                  ExclusionTotals<T>::may_subtract_excluded(sizes.total_dot[w], part.total_dot[w]);
        }
        return __all_sync(FULL, all);
    }

    // Gradients of an in-edge for the channels of one lane.
    struct LaneGradients {
        T h[S][W] = {}, h_dot[S][W] = {};  // h: gradient of feature (if `second`, of feature_dot); h_dot: gradient of feature
        DirectionCotangent<T, second> pull;
    };

    using Carries = EdgeFeatures<T, second, S, SERVED>;

    // Adds sign times the term of out-edge e to the gradients of in-edge number i of `carries`.
    __device__ __forceinline__ void add_pair_gradients(I e, T sign, const Direction<T, second>& edge,
                                                       const Carries& carries, int i, LaneGradients& sums) const {
        const Direction<T, second> other(unit, unit_dot, e);
        const T cosine_dot = edge.cosine_dot(other);
        T grad[W];
        channels.read_row(grad_out, e, grad);
        Legendre<T> legendre(dot(edge.unit, other.unit));
        PairTerm<T, second> pair[W];
#pragma unroll
        for (int l = 0; l < S; l++) {
            if (l < degrees()) {
#pragma unroll
                for (int w = 0; w < W; w++) {
                    sums.h[l][w] += legendre.p * (sign * grad[w]);
                    if (has_unit_tangent() && l > 0) {
                        sums.h_dot[l][w] += legendre.d1 * cosine_dot * (sign * grad[w]);
                    }
                    if (grads.unit != nullptr) {
                        const T feature_dot = second ? carries.feature_dot(i, l, w) : T(0);
                        pair[w].add_degree_term(l, legendre, has_unit_tangent(), cosine_dot, carries.feature(i, l, w),
                                                feature_dot);
                    }
                }
                legendre.advance_degree(l);
            }
        }
        if (grads.unit != nullptr) {
            T grad_cosine = T(0), grad_cosine_dot = T(0);
#pragma unroll
            for (int w = 0; w < W; w++) {
                grad_cosine += sign * grad[w] * pair[w].by_cosine;
                grad_cosine_dot += sign * grad[w] * pair[w].by_cosine_dot;
            }
            sums.pull.add_cosine_cotangents(grad_cosine, grad_cosine_dot, other);
        }
    }

    // Computes h and h_dot from the state for the SERVED edges whose harmonics start at s.
    __device__ void compute_feature_gradients_from_state(const T* s, LaneGradients (&sums)[SERVED]) const {
        const T* const z = state + channels.lane * W;
#pragma unroll
        for (int row = 0; row < S * S; row += QUAD) {
            T held[SERVED][QUAD], held_dot[SERVED][QUAD];
#pragma unroll
            for (int i = 0; i < SERVED; i++) {
                load_register_chunk<S * S>(s + i * HARMONICS<S>, row, held[i]);
                if (has_unit_tangent()) {
                    load_register_chunk<S * S>(s + (BATCH + i) * HARMONICS<S>, row, held_dot[i]);
                }
            }
#pragma unroll
            for (int j = 0; j < QUAD && row + j < S * S; j++) {
                T here[W], here_dot[W];
                load_channels(z + (row + j) * TILE_STRIDE, here);
                if (has_unit_tangent()) {
                    load_channels(z + (S * S + row + j) * TILE_STRIDE, here_dot);
                }
#pragma unroll
                for (int i = 0; i < SERVED; i++) {
#pragma unroll
                    for (int w = 0; w < W; w++) {
                        sums[i].h[row_degree(row + j)][w] += held[i][j] * here[w];
                        if (has_unit_tangent()) {
                            sums[i].h_dot[row_degree(row + j)][w] += held_dot[i][j] * here[w] + held[i][j] * here_dot[w];
                        }
                    }
                }
            }
        }
    }

    template <class F, class Fdot>
    __device__ void stage_edge_values(int k, const F& value, const Fdot& value_dot) const {
#pragma unroll
        for (int l = 0; l < S; l++) {
            T here[W], here_dot[W];
#pragma unroll
            for (int w = 0; w < W; w++) {
                here[w] = value(l, w);
                here_dot[w] = second ? value_dot(l, w) : T(0);
            }
            const int at = (k * S + l) * TILE_STRIDE + channels.lane * W;
            store_channels(features + at, here);
            if (second) {
                store_channels(features_dot() + at, here_dot);
            }
        }
    }

    // Overwrites the harmonics at s with their cotangents, computed from the state, for SERVED edges staged at k, k + 1, ...
    __device__ void compute_harmonic_cotangents(int k, T* s, const Carries& carries) const {
#pragma unroll
        for (int i = 0; i < SERVED; i++) {
            stage_edge_values(k + i, [&](int l, int w) { return carries.feature(i, l, w); },
                              [&](int l, int w) { return carries.feature_dot(i, l, w); });
        }
        __syncwarp();
        contract_state_to_cotangents<T, second, S, SERVED>(
            state, has_unit_tangent(),
            [&](int row) { return features + (k * S + find_row_degree<S>(row)) * TILE_STRIDE; },
            S * TILE_STRIDE, second ? EDGES * S * TILE_STRIDE : 0, s);
        __syncwarp();
    }

    // Computes the gradients of in-edge f at `position` in dst_edge_index, which is staged at k and is number i of `carries`.
    // `sums` contains the sums from the state. The cotangents of q and q_dot are stored in `features`.
    __device__ __forceinline__ void compute_edge_gradients(I f, const ExcludedOutEdges& left, I position, int k,
                                                           bool stateful, const MagnitudeSums& sizes,
                                                           const Carries& carries, int i, LaneGradients& sums) const {
        // If all out-edges exclude f, set its gradients to zero explicitly, because products with its features may be NaN.
        const bool none = left.stop - left.start == node.num_out;
        const bool use_state = stateful && !none && may_subtract_excluded(left, sizes);
        if (channels.lane == 0) {
            staged[k] = none ? I(-1) : f;
            linear[(position - node.in_begin) % BATCH] = use_state;
            if (grads.alone != nullptr) {
                grads.alone[f] = none;
            }
        }
        if (none) {
            store_zero_gradients(f, k);
            return;
        }
        const Direction<T, second> edge(unit, unit_dot, f);
        if (!use_state) {
            sums = LaneGradients();
        }
        // Without the state, add all out-edges that do not exclude f; with the state, subtract all out-edges that exclude f.
        const I begin = use_state ? left.start : node.out_begin, end = use_state ? left.stop : node.out_end();
#pragma unroll 1
        for (I j = begin; j < end; j++) {
            const I e = use_state ? get_excluded_out_edge(left, j) : j;
            if (use_state || !graph.excludes(e, position)) {
                add_pair_gradients(e, use_state ? T(-1) : T(1), edge, carries, i, sums);
            }
        }
        if (grads.embedding != nullptr) {
            T sum[W] = {};
#pragma unroll
            for (int l = 0; l < S; l++) {
#pragma unroll
                for (int w = 0; w < W; w++) {
                    sum[w] += (second ? carries.q_dot(i, l, w) : carries.q(i, l, w)) * sums.h[l][w];
                    if (has_unit_tangent()) {
                        sum[w] += carries.q(i, l, w) * sums.h_dot[l][w];
                    }
                }
            }
            channels.write_or_add_row(grads.embedding, f, sum, true);
        }
        if (grads.unit != nullptr) {
            store_direction_gradients(sums.pull, f);
        }
        const auto grad_q_of = [&](int l, int w) {
            const T here = (second ? carries.x_dot[i][w] : carries.x[i][w]) * sums.h[l][w];
            return has_unit_tangent() ? here + carries.x[i][w] * sums.h_dot[l][w] : here;
        };
        stage_edge_values(k, grad_q_of, [&](int l, int w) { return carries.x[i][w] * sums.h[l][w]; });
    }

    __device__ void store_direction_gradients(const DirectionCotangent<T, second>& pull, I f) const {
        const long long vectors = tile * num_edges * 3;
        pull.store_warp_sum(grads.unit + vectors, second ? grads.unit_dot + vectors : nullptr, f, true);
    }

    // Stores zero gradients for in-edge f, which is staged at k and is in no triplet.
    __device__ void store_zero_gradients(I f, int k) const {
        if (grads.embedding != nullptr) {
            const T zero[W] = {};
            channels.write_or_add_row(grads.embedding, f, zero, true);
        }
        if (grads.unit != nullptr) {
            store_direction_gradients(DirectionCotangent<T, second>(), f);
        }
        stage_edge_values(k, [](int, int) { return T(0); }, [](int, int) { return T(0); });
    }

    // Stores (if `fresh`) or adds grad_projected[f,l,m] = sum over channels c of grad_q[l,c] W2[c,m] for the staged in-edges f. In
    // lane `at_stage + k`, `edge` is the index of staged edge k. Two threads share the channels of each (f, m).
    __device__ void add_projected_gradient(I edge, int at_stage, int count, bool fresh) const {
        constexpr int half = TILE<T, second> / 2, dot_at = EDGES * S * TILE_STRIDE;
        const T* const tile_up = inputs.up + inputs.up_offset(tile * TILE<T, second>);
#pragma unroll 1
        for (int begin = 0; begin < 2 * count * inputs.n_mid; begin += THREADS) {
            const int i = min((begin + int(threadIdx.x)) / 2, count * inputs.n_mid - 1), k = i / inputs.n_mid, m = i - k * inputs.n_mid;
            const int from = int(threadIdx.x) % 2 * half;
            const T *up = tile_up + m * PAD + from, *staged = features + k * S * TILE_STRIDE + from;
            T sum[S] = {}, sum_dot[S] = {};
#pragma unroll 1
            for (int run = 0; run < half; run += RUN) {
                T part[S] = {}, part_dot[S] = {};
#pragma unroll
                for (int c = 0; c < RUN; c += QUAD) {
                    T w2[QUAD], w2_dot[QUAD] = {};
                    load_aligned<QUAD>(up + run + c, w2);
                    if (second && inputs.up_dot != nullptr) {
                        load_aligned<QUAD>(up + (inputs.up_dot - inputs.up) + run + c, w2_dot);
                    }
#pragma unroll
                    for (int l = 0; l < S; l++) {
                        T here[QUAD], here_dot[QUAD];
                        load_aligned<QUAD>(staged + l * TILE_STRIDE + run + c, here);
                        if (second) {
                            load_aligned<QUAD>(staged + dot_at + l * TILE_STRIDE + run + c, here_dot);
                        }
#pragma unroll
                        for (int n = 0; n < QUAD; n++) {
                            part[l] += here[n] * w2[n];
                            if (second) {
                                part_dot[l] += here_dot[n] * w2[n];
                            }
                            if (second && inputs.up_dot != nullptr) {
                                part[l] += here_dot[n] * w2_dot[n];
                            }
                        }
                    }
                }
#pragma unroll
                for (int l = 0; l < S; l++) {
                    sum[l] += part[l];
                    sum_dot[l] += part_dot[l];
                }
            }
            const I f = __shfl_sync(FULL, edge, at_stage + k);
            const long long at = (long long)(f) * degrees() * padded<T>(inputs.n_mid) + m;
            const bool write = threadIdx.x % 2 == 0 && begin + int(threadIdx.x) < 2 * count * inputs.n_mid;
#pragma unroll
            for (int l = 0; l < S; l++) {
                sum[l] += __shfl_xor_sync(FULL, sum[l], 1);
                if (second) {
                    sum_dot[l] += __shfl_xor_sync(FULL, sum_dot[l], 1);
                }
                if (write && l < degrees()) {
                    const long long to = at + l * padded<T>(inputs.n_mid);
                    grads.projected[to] = fresh ? sum[l] : grads.projected[to] + sum[l];
                    if (second) {
                        grads.projected_dot[to] = fresh ? sum_dot[l] : grads.projected_dot[to] + sum_dot[l];
                    }
                }
            }
        }
    }

    // Adds the staged in-edges to the gradient of W2; `added` is the number of previous calls. A warp computes MIDS rows m at a
    // time, to load the staged cotangents less often.
    __device__ void add_second_weight_gradient(int count, long long added) const {
#pragma unroll 1
        for (int m = channels.warp * MIDS; m < inputs.n_mid; m += WARPS * MIDS) {
            T sum[MIDS][W] = {}, before[MIDS][W] = {};
            const long long row_0 = (long long)(blockIdx.x) * inputs.n_mid + m, at_0 = row_0 * inputs.n_emb + channels.first;
#pragma unroll
            for (int i = 0; i < MIDS; i++) {
#pragma unroll
                for (int w = 0; w < W; w++) {
                    if (added > 0 && channels.inside(w) && m + i < inputs.n_mid) {
                        before[i][w] = grads.parts[at_0 + i * inputs.n_emb + w];
                    }
                }
            }
#pragma unroll 1
            for (int k = 0; k < count; k++) {
                const I f = staged[k];
                if (f < 0) {
                    continue;
                }
                const T* const row = inputs.projected + ((long long)(f) * inputs.n_mid + m) * DEGREES;
                T grad_q[S][W], grad_q_dot[S][W];
#pragma unroll
                for (int l = 0; l < S; l++) {
                    const int at = (k * S + l) * TILE_STRIDE + channels.lane * W;
                    load_channels(features + at, grad_q[l]);
                    if (second) {
                        load_channels(features_dot() + at, grad_q_dot[l]);
                    }
                }
#pragma unroll
                for (int i = 0; i < MIDS; i++) {
                    const T* const here_row = row + (m + i < inputs.n_mid ? i * DEGREES : 0);
                    T projected[DEGREES], projected_dot[DEGREES], here[W] = {};
                    load_aligned<DEGREES>(here_row, projected);
                    if (second) {
                        load_aligned<DEGREES>(here_row + (inputs.projected_dot - inputs.projected), projected_dot);
                    }
#pragma unroll
                    for (int l = 0; l < S; l++) {
#pragma unroll
                        for (int w = 0; w < W && l < degrees(); w++) {
                            here[w] += grad_q[l][w] * projected[l];
                            if (second) {
                                here[w] += grad_q_dot[l][w] * projected_dot[l];
                            }
                        }
                    }
#pragma unroll
                    for (int w = 0; w < W; w++) {
                        sum[i][w] += here[w];
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < MIDS; i++) {
#pragma unroll
                for (int w = 0; w < W; w++) {
                    if (channels.inside(w) && m + i < inputs.n_mid) {
                        const long long at = at_0 + i * inputs.n_emb + w;
                        T part = before[i][w] + sum[i][w];
                        if ((added + 1) % RUN == 0) {
                            add_run_compensated(part, grads.totals[at], added + 1 == RUN);
                        }
                        grads.parts[at] = part;
                    }
                }
            }
        }
    }

    __device__ void compute_all_in_edge_gradients(bool fresh, long long added) const {
        MagnitudeSums sizes;
        // If a node has few out-edges, sum over pairs of edges: the state would be as large as the terms of that sum.
        const bool stateful = node.num_out > inputs.num_spherical && node.num_in > 0 &&
                              all_directions_finite<T, I, second>(unit, unit_dot, nullptr, node.out_begin,
                                                                  node.out_end(), votes);
        if (stateful) {
            compute_node_state(sizes);
        }
        I edge = I(0);  // this lane's edge of the current batch
#pragma unroll 1
        for (I first = node.in_begin; first < node.in_end(); first += EDGES) {
            const int count = int(min(I(EDGES), node.in_end() - first)), at = int((first - node.in_begin) % BATCH);
            if (at == 0) {
                const int batch = int(min(I(BATCH), node.in_end() - first));
                edge = graph.dst_edge_index[first + min(channels.lane, batch - 1)];
                if (stateful) {
                    stage_harmonics<T, I, second, S, false>(unit, unit_dot, graph.dst_edge_index, first, batch, rows);
                    __syncthreads();
                }
            }
#pragma unroll 1
            for (int k = channels.warp * SERVED; k < count; k += WARPS * SERVED) {
                T* const s = rows + (at + k) * HARMONICS<S>;
                I f[SERVED];
#pragma unroll
                for (int i = 0; i < SERVED; i++) {
                    f[i] = __shfl_sync(FULL, edge, at + min(k + i, count - 1));
                }
                // Lane i prefetches the range of out-edges that exclude edge i.
                const I own = __shfl_sync(FULL, edge, at + min(k + channels.lane % SERVED, count - 1));
                const I own_start = graph.left_start[own], own_stop = graph.left_stop[own];
                const Carries carries(inputs, f, channels);
                const I own_first = own_start < own_stop ? graph.dst_edge_index[own_start] : I(0);
                LaneGradients from_state[SERVED];
                if (stateful) {
                    compute_feature_gradients_from_state(s, from_state);
                }
                if (stateful && grads.unit != nullptr) {
                    compute_harmonic_cotangents(k, s, carries);
                }
#pragma unroll
                for (int i = 0; i < SERVED; i++) {
                    if (k + i < count) {
                        const ExcludedOutEdges left = {__shfl_sync(FULL, own_start, i), __shfl_sync(FULL, own_stop, i),
                                                       __shfl_sync(FULL, own_first, i)};
                        compute_edge_gradients(f[i], left, first + k + i, k + i, stateful, sizes, carries, i,
                                               from_state[i]);
                    }
                }
            }
            __syncthreads();
            if (grads.projected != nullptr) {
                add_projected_gradient(edge, at, count, fresh);
            }
            if (grads.parts != nullptr) {
                add_second_weight_gradient(count, added++);
            }
            __syncthreads();
            if (stateful && grads.unit != nullptr && (at + EDGES == BATCH || first + EDGES >= node.in_end())) {
                const long long vectors = tile * num_edges * 3;
                add_direction_cotangents<T, I, second, S>(unit, unit_dot, graph.dst_edge_index, first - at, at + count,
                                                          degrees(), rows, [&](int k) { return linear[k] != 0; },
                                                          features, grads.unit + vectors,
                                                          second ? grads.unit_dot + vectors : nullptr);
            }
        }
    }
};

// A block processes nodes_per_block nodes, starting at blockIdx.x * nodes_per_block. First derivatives, with h as above:
//     grad_embedding[f,c] = sum_l q h;   grad_projected[f,l,m] = sum_c W2[c,m] x_f[c] h;   grad_unit (tiles, num_edges, 3) = the
//     cotangents of the in-edges' directions;   totals[block,m,c] = sum over f, l of projected[f,m,l] x_f[c] h.
// Second derivatives, with the derivative h_dot of h along the cotangents of gradients:
//     grad_embedding = sum_l (q h_dot + q_dot h);   the cotangents of q and q_dot are x h_dot + x_dot h and x h, from which
//     grad_projected, grad_projected_dot and totals follow as above.
// edge_alone is 1 for edges in no triplet, otherwise 0.
template <class T, class I, bool second, int S>
__global__ void __launch_bounds__(THREADS, BLOCKS<T, second>)
dimenet_in_edges(const I* __restrict__ src_offsets, const I* __restrict__ dst_offsets, const I* __restrict__ dst_edge_index,
                 const I* __restrict__ left_start, const I* __restrict__ left_stop, const T* __restrict__ unit,
                 const T* __restrict__ unit_dot, const T* __restrict__ projected, const T* __restrict__ projected_dot,
                 const T* __restrict__ embedding, const T* __restrict__ embedding_dot, const T* __restrict__ up,
                 const T* __restrict__ up_dot,
                 const T* __restrict__ grad_out, T* __restrict__ grad_embedding, T* __restrict__ grad_projected,
                 T* __restrict__ grad_projected_dot, T* __restrict__ grad_unit, T* __restrict__ grad_unit_dot,
                 T* __restrict__ parts, T* __restrict__ totals, int* __restrict__ edge_alone, long long num_edges,
                 long long num_nodes, long long nodes_per_block, int n_emb, int n_mid, int num_spherical) {
    constexpr int orders = ORDERS<second>, edges = STAGED<T, second, S>, stride = STRIDE<T, second>;
    __shared__ __align__(16) T state[orders * S * S * stride];
    __shared__ __align__(16) T features[orders * edges * S * stride];
    __shared__ __align__(16) T rows[orders * HARMONIC<T, second> * HARMONICS<S>];
    __shared__ int votes[WARPS];
    __shared__ I staged[edges];
    __shared__ int linear[HARMONIC<T, second>];
    const long long begin = blockIdx.x * nodes_per_block, end = min(begin + nodes_per_block, num_nodes);
    long long added = 0;
    for (long long j = begin; j < end; j++) {
        const NodeEdges<I> node(src_offsets, dst_offsets, I(j));
        for (int tile = 0; tile * TILE<T, second> < n_emb; tile++) {
            const InEdgeGradientBlock<T, I, second, S> sum = {
                node, LaneChannels<CHANNELS<T, second>>(tile, n_emb), {dst_edge_index, left_start, left_stop},
                {projected, projected_dot, embedding, embedding_dot, up, up_dot, n_emb, n_mid, num_spherical},
                unit, unit_dot, grad_out,
                {grad_embedding, grad_projected, grad_projected_dot, grad_unit, grad_unit_dot, parts, totals, edge_alone},
                tile, num_edges, state, features, rows, votes, linear, staged};
            sum.compute_all_in_edge_gradients(tile == 0, added);
        }
        added += (node.in_end() - node.in_begin + edges - 1) / edges;
    }
    if (parts != nullptr) {
        const long long weights = (long long)(n_mid) * n_emb * blockIdx.x;
        for (long long i = weights + threadIdx.x; i < weights + n_mid * n_emb; i += THREADS) {
            const T before = added >= RUN ? totals[i] : T(0);
            totals[i] = before + (added > 0 ? parts[i] : T(0));
        }
    }
}
