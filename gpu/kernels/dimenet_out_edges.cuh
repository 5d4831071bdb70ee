// Sums over the in-edges of a node for each of its out-edges.
#pragma once
#include "dimenet_pull.cuh"

// Values of `order`, which selects the results to compute.
constexpr int VALUES = 0, DIRECTIONS = 1, SECOND = 2;

// Minimum number of resident blocks per multiprocessor, which limits the registers per thread.
template <class T, int order, int S> constexpr int OUT_BLOCKS = sizeof(T) == 8 ? 2 : S == DEGREES ? (order == SECOND ? 3 : 4) : (order == SECOND ? 4 : 5);

// The node and the tile of channels that a block processes, the arguments of the kernel, and arrays in shared memory.
template <class T, class I, int order, int S> struct OutEdgeSumBlock {
    static constexpr bool second = order == SECOND;
    static constexpr int W = CHANNELS<T, second>, TILE_STRIDE = STRIDE<T, second>;
    static constexpr int EDGES = STAGED<T, second, S>, BATCH = HARMONIC<T, second>;
    static constexpr int QUAD = 16 / int(sizeof(T));  // numbers per 16-byte read
    static constexpr int GROUP = BATCH / WARPS;       // out-edges that a warp processes at once
    // Numbers of edges (AT_ONCE) and of harmonics per edge (HELD) that fit into a thread's registers.
    static constexpr int AT_ONCE = second ? 1 : 2, HELD = second ? QUAD : 16;
    NodeEdges<I> node;
    LaneChannels<W> channels;
    TripletGraph<I> graph;
    EdgeFeatureInputs<T> inputs;
    const T *unit, *unit_dot, *grad_out;
    T *out, *grad_unit, *grad_unit_dot;  // grad_unit and grad_unit_dot point to the arrays of this tile
    T* state;                            // state of the node (row of harmonics, channel), followed by its derivative
    T* features;                         // features of the staged edges (edge, degree, channel), followed by their derivatives
    T* rows;                             // harmonics of the staged edges, followed by their derivatives
    ExclusionTotals<T> balance;          // arrays (degree, channel), not used for second derivatives
    int *place, *votes;

    struct WarpSums {
        WarpStateSums<T, second, S> rows;
        LaneExclusionTotals<T, W> sizes[(S + 1) / 2], sizes_dot[(S + 1) / 2];  // for the degrees of this warp
    };

    __device__ T* state_dot() const { return state + S * S * TILE_STRIDE; }
    __device__ bool has_unit_tangent() const { return second && unit_dot != nullptr; }
    __device__ bool valued() const { return order == VALUES || (second && out != nullptr); }
    __device__ bool pulled() const { return order == DIRECTIONS || (second && grad_unit != nullptr); }
    __device__ int degrees() const { return S < DEGREES ? S : inputs.num_spherical; }
    __device__ T* feature_at(int k, int l) const { return features + (k * S + l) * TILE_STRIDE + channels.lane * W; }

    // Computes feature and feature_dot of E staged edges starting at k from rows begin, ..., end - 1 of `up`. Results for begin >
    // 0 are added to the previous values.
    template <int E>
    __device__ void stage_partial_features(I edge, int at, int k, int count, int begin, int end) const {
        I f[E];
#pragma unroll
        for (int i = 0; i < E; i++) {
            f[i] = __shfl_sync(FULL, edge, at + min(k + i, count - 1));
        }
        EdgeProjections<T, second, S, E> projection;
        projection.add_up_weight_terms(inputs, f, channels, begin, end);
#pragma unroll
        for (int i = 0; i < E; i++) {
            if (k + i < count) {
                T x[W], x_dot[W] = {};
                channels.read_row(inputs.embedding, f[i], x);
                if (second && inputs.embedding_dot != nullptr) {
                    channels.read_row(inputs.embedding_dot, f[i], x_dot);
                }
#pragma unroll
                for (int l = 0; l < S; l++) {
                    T here[W] = {}, here_dot[W] = {};
                    if (begin > 0) {
                        load_channels(feature_at(k + i, l), here);
                        if (second) {
                            load_channels(feature_at(k + i, l) + EDGES * S * TILE_STRIDE, here_dot);
                        }
                    }
#pragma unroll
                    for (int w = 0; w < W; w++) {
                        const T q = projection.q[i][l][w];
                        here[w] += x[w] * q;
                        here_dot[w] += x_dot[w] * q + x[w] * projection.q_dot[i][l][w];
                    }
                    store_channels(feature_at(k + i, l), here);
                    if (second) {
                        store_channels(feature_at(k + i, l) + EDGES * S * TILE_STRIDE, here_dot);
                    }
                }
            }
        }
    }

    // Stages the features of `count` edges; in lane `at + i`, `edge` is the index of staged edge i.
    __device__ void stage_features(I edge, int at, int count) const {
#pragma unroll 1
        for (int m = 0; m < inputs.n_mid; m += CHUNK) {
#pragma unroll 1
            for (int k = channels.warp * AT_ONCE; k < count; k += WARPS * AT_ONCE) {
                stage_partial_features<AT_ONCE>(edge, at, k, count, m, min(m + CHUNK, inputs.n_mid));
            }
        }
    }

    // Adds the staged edges to the sums of this warp, and to the balance of degrees whose last row belongs to this warp. Bit k of
    // `leavable` is set if any sum excludes edge k, and bit k of `joined` if edges k - 1 and k are excluded together.
    template <int warp, bool any_joined>
    __device__ void add_in_edges_to_sums(I first, int count, const T* harmonics, unsigned leavable, unsigned joined,
                                         bool fresh, WarpSums& sums) const {
        constexpr int begin = WarpHarmonicRows<S>::begin(warp), end = WarpHarmonicRows<S>::end(warp);
        constexpr int lowest = row_degree(begin), beyond = row_degree(end);
#pragma unroll
        for (int l = lowest; l < beyond && !second; l++) {
            sums.sizes[l - lowest].read(balance, l * TILE_STRIDE + channels.lane * W, fresh);
        }
        // Do not unroll the loop for parallel edges, which are rare: unrolling would take a third of NVRTC's compile time.
#pragma unroll(any_joined ? 1 : AT_ONCE)
        for (int k = 0; k < count; k++) {
            const T *const s = harmonics + k * HARMONICS<S> + begin, *const s_dot = s + BATCH * HARMONICS<S>;
            T held[HELD], held_dot[HELD];
            const T along = has_unit_tangent() ? size(load_vec(unit_dot, graph.dst_edge_index[first + k])) : T(0);
            const bool join = any_joined && (joined >> k & 1);
            T feature[W], feature_dot[W];
#pragma unroll
            for (int row = begin; row < end; row++) {
                const int i = row - begin, l = row_degree(row);
                if (i % HELD == 0) {
                    load_register_chunk<end - begin>(s, i, held);
                    if (has_unit_tangent()) {
                        load_register_chunk<end - begin>(s_dot, i, held_dot);
                    }
                }
                if (i == 0 || row == l * l) {
                    load_channels(feature_at(k, l), feature);
                    if (second) {
                        load_channels(feature_at(k, l) + EDGES * S * TILE_STRIDE, feature_dot);
                    }
                }
#pragma unroll
                for (int w = 0; w < W; w++) {
                    sums.rows.sum[i][w] += held[i % HELD] * feature[w];
                    if (second) {
                        sums.rows.sum_dot[i][w] += held[i % HELD] * feature_dot[w];
                    }
                    if (has_unit_tangent()) {
                        sums.rows.sum_dot[i][w] += held_dot[i % HELD] * feature[w];
                    }
                    if (row + 1 == (l + 1) * (l + 1)) {
                        sums.sizes[l - lowest].template add<any_joined>(w, fabs(feature[w]), join);
                        if (second) {
                            const T size_dot = fabs(feature_dot[w]) + along * fabs(feature[w]);
                            sums.sizes_dot[l - lowest].template add<any_joined>(w, size_dot, join);
                        }
                    }
                }
            }
            if (leavable >> k & 1) {
#pragma unroll
                for (int l = lowest; l < beyond; l++) {
                    sums.sizes[l - lowest].update_largest_group();
                    if (second) {
                        sums.sizes_dot[l - lowest].update_largest_group();
                    }
                }
            }
        }
#pragma unroll
        for (int l = lowest; l < beyond && !second; l++) {
            sums.sizes[l - lowest].write(balance, l * TILE_STRIDE + channels.lane * W);
        }
    }

    // Adds the staged edges to the state of the node.
    __device__ void add_staged_edges_to_state(I first, int at, int count, WarpSums& sums) const {
        const T* const harmonics = rows + at * HARMONICS<S>;
        const int where = channels.lane < count ? place[at + channels.lane] : 0;
        const unsigned leavable = __ballot_sync(FULL, where > 0), joined = __ballot_sync(FULL, where == 2);
        const bool fresh = first == node.in_begin;
        const I done = first + EDGES - node.in_begin;
        call_with_constant_warp(channels.warp, [&](auto warp) {
            if (joined != 0) {
                add_in_edges_to_sums<decltype(warp)::value, true>(first, count, harmonics, leavable, joined, fresh,
                                                                  sums);
            } else {
                add_in_edges_to_sums<decltype(warp)::value, false>(first, count, harmonics, leavable, joined, fresh,
                                                                   sums);
            }
            if (done % RUN == 0 || first + EDGES >= node.in_end()) {
                sums.rows.template flush_to_state<decltype(warp)::value>(channels.lane, state, state_dot(),
                                                                         done <= RUN);
            }
        });
    }

    // Returns whether excluded terms may be subtracted (see ExclusionTotals) for all degrees of this warp.
    __device__ bool may_subtract_excluded(WarpSums& sums) const {
        bool all = true;
        call_with_constant_warp(channels.warp, [&](auto warp) {
            constexpr int lowest = row_degree(WarpHarmonicRows<S>::begin(decltype(warp)::value));
            constexpr int beyond = row_degree(WarpHarmonicRows<S>::end(decltype(warp)::value));
#pragma unroll
            for (int l = lowest; l < beyond; l++) {
                LaneExclusionTotals<T, W> here;
                if (!second) {
                    here.read(balance, l * TILE_STRIDE + channels.lane * W, false);
                }
                const int i = l - lowest;
                all = all && (second ? sums.sizes[i].may_subtract_excluded() &&
                                           sums.sizes_dot[i].may_subtract_excluded()
                                     : here.may_subtract_excluded());
            }
        });
        return all;
    }

    // Computes the state of the node by a loop over its in-edges, and returns whether the state may be used. With `direct`,
    // computes and stores sums over pairs of edges instead of the state, and returns false.
    __device__ bool compute_state_or_pair_sums(bool direct) const {
        WarpSums sums;
        I first = node.in_begin, edge = I(0);  // this lane's edge of the current batch
#pragma unroll 1
        do {
            const int count = int(min(I(EDGES), node.in_end() - first));
            const int at = int((first - node.in_begin) % BATCH);  // index of position `first` in its batch
            if (at == 0 && count > 0) {
                // These loads are slow, because each depends on the previous one. Do them once per batch, not once per stage.
                const int batch = int(min(I(BATCH), node.in_end() - first)), lane = min(channels.lane, batch - 1);
                edge = graph.dst_edge_index[first + lane];
                if (!direct) {
                    stage_harmonics<T, I, second, S, true>(unit, unit_dot, graph.dst_edge_index, first, batch, rows);
                    if (channels.warp == 0 && channels.lane < batch) {
                        place[lane] = graph.classify_exclusion(first + lane, edge);
                    }
                }
            }
            stage_features(edge, at, count);
            __syncthreads();
            if (direct) {
                add_staged_pairs(first, count);
            } else {
                add_staged_edges_to_state(first, at, count, sums);
            }
            __syncthreads();
            first += EDGES;
        } while (first < node.in_end());
        return !direct && !any_in_block(!may_subtract_excluded(sums), votes);
    }

    // Adds sign times the term of out-edge `edge` and of the in-edge at `position` in dst_edge_index.
    template <class F, class Fdot>
    __device__ void add_pair_terms(I position, const Direction<T, second>& edge, T sign, const T (&grad)[W],
                                   const F& feature, const Fdot& feature_dot, T (&value)[W],
                                   DirectionCotangent<T, second>& pull) const {
        const Direction<T, second> other(unit, unit_dot, graph.dst_edge_index[position]);
        const T cosine_dot = edge.cosine_dot(other);
        Legendre<T> legendre(dot(edge.unit, other.unit));
        PairTerm<T, second> pair[W];
#pragma unroll
        for (int l = 0; l < S; l++) {
            if (l < degrees()) {
#pragma unroll
                for (int w = 0; w < W; w++) {
                    pair[w].add_degree_term(l, legendre, has_unit_tangent(), cosine_dot, feature(l, w),
                                            second ? feature_dot(l, w) : T(0));
                }
                legendre.advance_degree(l);
            }
        }
        T grad_cosine = T(0), grad_cosine_dot = T(0);
#pragma unroll
        for (int w = 0; w < W; w++) {
            value[w] += sign * pair[w].value;
            grad_cosine += sign * grad[w] * pair[w].by_cosine;
            grad_cosine_dot += sign * grad[w] * pair[w].by_cosine_dot;
        }
        pull.add_cosine_cotangents(grad_cosine, grad_cosine_dot, other);
    }

    __device__ void read_grad_out(I e, T (&grad)[W]) const {
        if (pulled()) {
            channels.read_row(grad_out, e, grad);
        }
    }

    __device__ void store_results(I e, const T (&value)[W], const DirectionCotangent<T, second>& pull,
                                  bool fresh) const {
        if (valued()) {
            channels.write_or_add_row(out, e, value, fresh);
        }
        if (pulled()) {
            pull.store_warp_sum(grad_unit, grad_unit_dot, e, fresh);
        }
    }

    // Computes the sums over all in-edges from the state, for GROUP out-edges whose harmonics are staged at k, k + 1, ...
    __device__ void compute_sums_from_state(int k, T (&value)[GROUP][W]) const {
        const T* const s = rows + k * HARMONICS<S>;
        const T* const z = state + channels.lane * W;
#pragma unroll
        for (int row = 0; row < S * S; row += QUAD) {
            T here[QUAD][W], here_dot[QUAD][W];
#pragma unroll
            for (int j = 0; j < QUAD; j++) {
                if (row + j < S * S) {
                    load_channels(z + (row + j) * TILE_STRIDE, here[j]);
                    if (second) {
                        load_channels(z + (S * S + row + j) * TILE_STRIDE, here_dot[j]);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                T held[QUAD], held_dot[QUAD];
                load_register_chunk<S * S>(s + i * HARMONICS<S>, row, held);
                if (has_unit_tangent()) {
                    load_register_chunk<S * S>(s + (BATCH + i) * HARMONICS<S>, row, held_dot);
                }
#pragma unroll
                for (int j = 0; j < QUAD; j++) {
#pragma unroll
                    for (int w = 0; w < W; w++) {
                        if (row + j < S * S) {
                            value[i][w] += held[j] * (second ? here_dot[j][w] : here[j][w]);
                            if (has_unit_tangent()) {
                                value[i][w] += held_dot[j] * here[j][w];
                            }
                        }
                    }
                }
            }
        }
    }

    // Subtracts excluded in-edges from the sums of `count` out-edges starting at `first`, which are staged at k, k + 1, ... A
    // term is x[c] sum_m b_m up[m,c] with b_m = sum_l P_l projected[m,l]. For DIRECTIONS, P_l is differentiated with respect to
    // the cosine, and each lane adds the cotangent of its edge's direction to `grad`. P_l and b_m overwrite the harmonics.
    __device__ void subtract_excluded_in_edges(I first, int k, int count, T (&value)[GROUP][W], Vec<T>& grad) const {
        const I e = first + min(channels.lane, count - 1);
        const int lefts = channels.lane < count ? int(graph.left_stop[e] - graph.left_start[e]) : 0;
        T* const here = rows + k * HARMONICS<S>;
        unsigned left = __ballot_sync(FULL, lefts > 0);  // bit i is set if edge i excludes an in-edge in this round
#pragma unroll 1
        for (int round = 0; left != 0; left = __ballot_sync(FULL, ++round < lefts)) {
            const I f = round < lefts ? graph.dst_edge_index[graph.left_start[e] + round] : e;
            const Vec<T> other = load_vec(unit, f);
            Legendre<T> legendre(dot(load_vec(unit, e), other));
            __syncwarp();
            if (channels.lane < GROUP) {
#pragma unroll
                for (int l = 0; l < S; l++) {
                    here[channels.lane * HARMONICS<S> + l] = order == DIRECTIONS ? legendre.d1 : legendre.p;
                    legendre.advance_degree(l);
                }
            }
            __syncwarp();
#pragma unroll
            for (int part = 0; part < GROUP; part += LANES / DEGREES) {
                subtract_excluded_terms<LANES / DEGREES>(f, left, part, here + part * HARMONICS<S>, &value[part]);
            }
            if constexpr (order == DIRECTIONS) {
                T by_cosine[GROUP];
#pragma unroll
                for (int i = 0; i < GROUP; i++) {
                    T g[W];
                    load_channels(features + (k + i) * TILE_STRIDE + channels.lane * W, g);
                    by_cosine[i] = T(0);
#pragma unroll
                    for (int w = 0; w < W; w++) {
                        by_cosine[i] += g[w] * value[i][w];
                        value[i][w] = T(0);
                    }
                }
                const T own = reduce_scatter_over_warp(by_cosine);
                if (left >> channels.lane & 1) {
                    add_scaled(grad, own, other);
                }
            }
        }
    }

    // Implements subtract_excluded_in_edges for `count` edges, starting with number `part`; each lane computes one b_m at
    // a time.
    template <int count>
    __device__ void subtract_excluded_terms(I f, unsigned left, int part, T* here, T (*value)[W]) const {
        const int own = channels.lane / DEGREES, column = channels.lane % DEGREES;
        const T* const from = inputs.projected + (long long)(__shfl_sync(FULL, f, part + own)) * inputs.n_mid * DEGREES;
        const T* up = inputs.up + inputs.up_offset(channels.first);
        T term[count][W] = {};
#pragma unroll 1
        for (int m = 0; m < inputs.n_mid; m += DEGREES) {
            T projected[DEGREES], p[DEGREES], b = T(0);
            load_aligned<DEGREES>(from + min(m + column, inputs.n_mid - 1) * DEGREES, projected);
            load_aligned<DEGREES>(here + own * HARMONICS<S>, p);
#pragma unroll
            for (int l = 0; l < S; l++) {
                b += p[l] * projected[l];
            }
            here[own * HARMONICS<S> + DEGREES + column] = (left >> (part + own) & 1) && m + column < inputs.n_mid ? b : T(0);
            __syncwarp();
#pragma unroll
            for (int j = 0; j < DEGREES; j += QUAD) {
                T row[QUAD][W];
#pragma unroll
                for (int n = 0; n < QUAD; n++) {
                    load_channels(up + (j + n) * PAD, row[n]);
                }
#pragma unroll
                for (int i = 0; i < count; i++) {
                    T factors[QUAD];
                    load_aligned<QUAD>(here + i * HARMONICS<S> + DEGREES + j, factors);
#pragma unroll
                    for (int n = 0; n < QUAD; n++) {
#pragma unroll
                        for (int w = 0; w < W; w++) {
                            term[i][w] += factors[n] * row[n][w];
                        }
                    }
                }
            }
            __syncwarp();
            up += DEGREES * PAD;
        }
#pragma unroll
        for (int i = 0; i < count; i++) {
            T x[W];
            channels.read_row(inputs.embedding, __shfl_sync(FULL, f, part + i), x);
#pragma unroll
            for (int w = 0; w < W; w++) {
                value[i][w] -= (left >> (part + i) & 1) ? x[w] * term[i][w] : T(0);
            }
        }
    }

    // Stages grad_out of `count` out-edges starting at `first` in rows k, k + 1, ... of `features`.
    __device__ void stage_grad_out(I first, int k, int count) const {
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            T grad[W];
            channels.read_row(grad_out, first + min(i, count - 1), grad);
            store_channels(features + (k + i) * TILE_STRIDE + channels.lane * W, grad);
        }
        __syncwarp();
    }

    // Computes cotangents of harmonics for add_direction_cotangents, and stores the cotangents of directions from
    // excluded edges.
    __device__ void compute_harmonic_cotangents(I first, int k, int count) const {
        Vec<T> grad = {T(0), T(0), T(0)};
        stage_grad_out(first, k, count);
        if constexpr (order == DIRECTIONS) {
            T value[GROUP][W] = {};
            subtract_excluded_in_edges(first, k, count, value, grad);
        }
        contract_state_to_cotangents<T, second, S, GROUP>(
            state, second, [&](int) { return features + k * TILE_STRIDE; }, TILE_STRIDE, 0, rows + k * HARMONICS<S>);
        if (channels.lane < count) {
            store_or_add_vec(grad_unit, first + channels.lane, grad, true);
            if (second) {
                store_or_add_vec(grad_unit_dot, first + channels.lane, grad, true);
            }
        }
        __syncwarp();
    }

    // Computes all results of `count` out-edges starting at `first`, which are staged at k, k + 1, ..., from the state.
    __device__ void compute_group_results_from_state(I first, int k, int count) const {
        if (valued()) {
            T value[GROUP][W] = {};
            compute_sums_from_state(k, value);
            if constexpr (order == VALUES) {
                Vec<T> none;
                subtract_excluded_in_edges(first, k, count, value, none);
            }
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                if (i < count) {
                    channels.write_or_add_row(out, first + i, value[i], true);
                }
            }
        }
        if (pulled()) {
            compute_harmonic_cotangents(first, k, count);
        }
        if (!second) {
            return;
        }
#pragma unroll 1
        for (I e = first; e < first + count; e++) {
            T value[W] = {}, grad[W] = {};
            DirectionCotangent<T, second> pull;
            if (graph.left_start[e] < graph.left_stop[e]) {
                const Direction<T, second> edge(unit, unit_dot, e);
                read_grad_out(e, grad);
#pragma unroll 1
                for (I position = graph.left_start[e]; position < graph.left_stop[e]; position++) {
                    const EdgeFeatures<T, second, S, 1> left(inputs, {graph.dst_edge_index[position]}, channels);
                    add_pair_terms(position, edge, T(-1), grad, [&](int l, int w) { return left.feature(0, l, w); },
                                   [&](int l, int w) { return left.feature_dot(0, l, w); }, value, pull);
                }
                store_results(e, value, pull, false);
            }
        }
    }

    __device__ void compute_results_from_state() const {
#pragma unroll 1
        for (I first = node.out_begin; first < node.out_end(); first += BATCH) {
            const int count = int(min(I(BATCH), node.out_end() - first)), k = channels.warp * GROUP;
            if (valued()) {
                stage_harmonics<T, I, second, S, false>(unit, unit_dot, nullptr, first, count, rows);
                __syncthreads();
            }
            if (k < count) {
                compute_group_results_from_state(first + k, k, min(GROUP, count - k));
            }
            __syncthreads();
            if (pulled()) {
                add_direction_cotangents<T, I, second, S>(unit, unit_dot, nullptr, first, count, degrees(), rows,
                                                          [](int) { return true; }, features, grad_unit, grad_unit_dot);
            }
        }
    }

    // Adds the staged in-edges to the results of all out-edges, pair by pair.
    __device__ void add_staged_pairs(I first, int count) const {
#pragma unroll 1
        for (I e = node.out_begin + channels.warp; e < node.out_end(); e += WARPS) {
            const Direction<T, second> edge(unit, unit_dot, e);
            T value[W] = {}, grad[W] = {};
            read_grad_out(e, grad);
            DirectionCotangent<T, second> pull;
#pragma unroll 1
            for (int k = 0; k < count; k++) {
                if (!graph.excludes(e, first + k)) {
                    const T* const feature = feature_at(k, 0);
                    const T* const feature_dot = feature + EDGES * S * TILE_STRIDE;
                    add_pair_terms(first + k, edge, T(1), grad,
                                   [&](int l, int w) { return feature[l * TILE_STRIDE + w]; },
                                   [&](int l, int w) { return feature_dot[l * TILE_STRIDE + w]; }, value, pull);
                }
            }
            store_results(e, value, pull, first == node.in_begin);
        }
    }
};

// One block per node and tile of channels. VALUES: out = the sum. DIRECTIONS: grad_unit (tiles, num_edges, 3) = the cotangents of
// the out-edges' directions, given grad_out. SECOND: out = the derivative of the sum along the cotangents of gradients; grad_unit
// and grad_unit_dot = the cotangents of directions and of their derivatives.
template <class T, class I, int order, int S>
__global__ void __launch_bounds__(THREADS, OUT_BLOCKS<T, order, S>)
dimenet_out_edges(const I* __restrict__ src_offsets, const I* __restrict__ dst_offsets, const I* __restrict__ dst_edge_index,
                  const I* __restrict__ left_start, const I* __restrict__ left_stop, const T* __restrict__ unit,
                  const T* __restrict__ unit_dot, const T* __restrict__ projected, const T* __restrict__ projected_dot,
                  const T* __restrict__ embedding, const T* __restrict__ embedding_dot, const T* __restrict__ up,
                  const T* __restrict__ up_dot, const T* __restrict__ grad_out, T* __restrict__ out, T* __restrict__ grad_unit,
                  T* __restrict__ grad_unit_dot, long long num_edges, int n_emb, int n_mid, int num_spherical) {
    constexpr bool second = order == SECOND;
    constexpr int orders = ORDERS<second>, edges = STAGED<T, second, S>, stride = STRIDE<T, second>;
    __shared__ __align__(16) T state[orders * S * S * stride];
    __shared__ __align__(16) T features[orders * edges * S * stride];
    __shared__ __align__(16) T rows[orders * HARMONIC<T, second> * HARMONICS<S>];
    __shared__ __align__(16) T totals[second ? 1 : S * stride];
    __shared__ __align__(16) T largest[second ? 1 : S * stride];
    __shared__ __align__(16) T group[second ? 1 : S * stride];
    __shared__ int place[HARMONIC<T, second>];
    __shared__ int votes[WARPS];
    const NodeEdges<I> node(src_offsets, dst_offsets, I(blockIdx.x));
    if (node.num_out == 0) {
        return;
    }
    const long long tile = (long long)(blockIdx.y) * num_edges * 3;
    const OutEdgeSumBlock<T, I, order, S> sum = {
        node,      LaneChannels<CHANNELS<T, second>>(blockIdx.y, n_emb),
        {dst_edge_index, left_start, left_stop},
        {projected, projected_dot, embedding, embedding_dot, up, up_dot, n_emb, n_mid, num_spherical},
        unit,      unit_dot,
        grad_out,  out,
        grad_unit != nullptr ? grad_unit + tile : nullptr,
        grad_unit_dot != nullptr ? grad_unit_dot + tile : nullptr,
        state,     features,
        rows,      {totals, largest, group},
        place,     votes};
    // If a node has few in-edges, sum over pairs of edges: the state would be as large as the terms of that sum.
    bool direct = node.num_in <= num_spherical;
    if (!direct) {
        direct = !all_directions_finite<T, I, second>(unit, unit_dot, dst_edge_index, node.in_begin, node.in_end(),
                                                      votes) ||
                 !sum.compute_state_or_pair_sums(false);
    }
    if (direct) {
        sum.compute_state_or_pair_sums(true);
    } else {
        sum.compute_results_from_state();
    }
}
