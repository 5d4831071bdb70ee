// The sum from the in-edges of a node to its out-edges.
#pragma once
#include "triplets.cuh"

// A block's node, tile of channels, arguments and shared arrays.
template <class T, class I, bool second> struct OutEdges {
    static constexpr int EDGES = STAGED<T, second>;
    Node<I> node;
    Channel channel;
    Graph<I> graph;
    Carried<T> carried;
    const T *unit, *unit_dot, *grad_out;
    T *out, *grad_unit, *grad_unit_dot;  // the latter two of this tile
    T* state;                            // Z of the node: row of harmonics, lane; its derivative follows
    T* features;                         // F of the staged edges: edge, degree, lane; Fdot follows
    T* rows;                             // harmonics of the staged edges, then their derivatives
    int *place, *distrust;

    struct Sums {
        StateRows<T, second> rows;
        Balance<T> balance[DEGREES / WARPS], balance_dot[DEGREES / WARPS];
    };

    __device__ T* state_dot() const { return state + ROWS * STRIDE; }
    __device__ T* features_dot() const { return features + EDGES * DEGREES * STRIDE; }
    __device__ T* rows_dot() const { return rows + EDGES * ROWS; }
    __device__ bool turning() const { return second && unit_dot != nullptr; }
    __device__ int num_rows() const { return carried.degrees * carried.degrees; }

    __device__ void stage_features(I first, int count) const {
#pragma unroll 1
        for (int k = channel.warp; k < count; k += WARPS) {
            const EdgeChannel<T, second> edge(carried, graph.dst_edge_index[first + k], channel);
#pragma unroll
            for (int l = 0; l < DEGREES; l++) {
                if (l < carried.degrees) {
                    const int at = (k * DEGREES + l) * STRIDE + channel.lane;
                    features[at] = edge.f(l);
                    if (second) {
                        features_dot()[at] = edge.fdot(l);
                    }
                }
            }
        }
        for (int k = threadIdx.x; k < count; k += THREADS) {
            place[k] = graph.place(first + k);
        }
    }

    // Adds the staged edges to the rows of this thread.
    __device__ void add_edges(int count, StateRows<T, second>& sums) const {
#pragma unroll 1
        for (int k = 0; k < count; k++) {
#pragma unroll
            for (int i = 0; i < ROWS_PER_THREAD; i++) {
                const int row = channel.warp + i * WARPS;
                if (row < num_rows()) {
                    const int at = (k * DEGREES + row_degree(row)) * STRIDE + channel.lane;
                    const T h = rows[k * ROWS + row];
                    sums.sum[i] += h * features[at];
                    sums.sum_dot[i] += second ? h * features_dot()[at] : T(0);
                    sums.sum_dot[i] += turning() ? rows_dot()[k * ROWS + row] * features[at] : T(0);
                }
            }
        }
    }

    // What the staged edges give to the state.
    __device__ void add_chunk(I first, int count, Sums& sums) const {
        add_edges(count, sums.rows);
        const I done = first + EDGES - node.in_begin;
        if (done % RUN == 0 || first + EDGES >= node.in_end) {
            sums.rows.flush(channel, num_rows(), state, state_dot(), done <= RUN);
        }
#pragma unroll 1
        for (int k = 0; k < count; k++) {
            const T along = turning() ? size(load_vec(unit_dot, graph.dst_edge_index[first + k])) : T(0);
#pragma unroll
            for (int i = 0; i < DEGREES / WARPS; i++) {
                const int l = channel.warp + i * WARPS, at = (k * DEGREES + l) * STRIDE + channel.lane;
                if (l < carried.degrees) {
                    const T here = fabs(features[at]);
                    sums.balance[i].add(here, place[k]);
                    if (second) {
                        sums.balance_dot[i].add(fabs(features_dot()[at]) + along * here, place[k]);
                    }
                }
            }
        }
    }

    // Goes through the in-edges: makes the state of the node, without weights, and returns whether it is fit for use, or (direct) serves the
    // out-edges pair by pair.
    __device__ bool gather(bool direct) const {
        Sums sums;
        I first = node.in_begin;
#pragma unroll 1
        do {
            const int count = int(min(I(EDGES), node.in_end - first));
            stage_features(first, count);
            if (!direct) {
                stage_harmonics<T, I, second>(unit, unit_dot, graph.dst_edge_index, first, count, carried.degrees, rows, distrust);
            }
            __syncthreads();
            if (direct) {
                serve_pairs(first, count);
            } else {
                add_chunk(first, count, sums);
            }
            __syncthreads();
            first += EDGES;
        } while (first < node.in_end);
#pragma unroll
        for (int i = 0; i < DEGREES / WARPS; i++) {
            if (!sums.balance[i].fair() || !sums.balance_dot[i].fair()) {
                atomicOr(distrust, 1);
            }
        }
        __syncthreads();
        return *distrust == 0;
    }

    // What the in-edge at a position has to do with out-edge e: adds sign times its term.
    template <class F, class Fdot>
    __device__ void add_pair(I position, const Direction<T, second>& edge, T sign, T grad, const F& f, const Fdot& fdot,
                             T& value, Pull<T, second>& pull) const {
        const Direction<T, second> other(unit, unit_dot, graph.dst_edge_index[position]);
        const T cosine_dot = edge.cosine_dot(other);
        Legendre<T> legendre(dot(edge.u, other.u));
        Pair<T, second> pair;
#pragma unroll
        for (int l = 0; l < DEGREES; l++) {
            if (l < carried.degrees) {
                pair.add(l, legendre, turning(), cosine_dot, f(l), second ? fdot(l) : T(0));
                legendre.climb(l);
            }
        }
        value += sign * pair.value;
        pull.add(sign * grad * pair.by_cosine, sign * grad * pair.by_cosine_dot, other);
    }

    __device__ T gradient(I e) const {
        const bool read = grad_unit != nullptr && channel.inside;
        return read ? grad_out[(long long)(e) * carried.n_emb + channel.index] : T(0);
    }

    __device__ void store(I e, T value, const Pull<T, second>& pull, bool fresh) const {
        if (out != nullptr && channel.inside) {
            T* const at = out + (long long)(e) * carried.n_emb + channel.index;
            *at = fresh ? value : *at + value;
        }
        if (grad_unit != nullptr) {
            pull.store(grad_unit, grad_unit_dot, e, fresh);
        }
    }

    // Replaces the staged rows of an edge by the cotangents of its harmonics: sum over channels of grad times state, and zero
    // for row 0, a constant.
    __device__ void contract(T grad, T* along, T* along_dot) const {
        T sum[2] = {}, sum_dot[2] = {};
        for (int c = 0; c < channel.width; c++) {
            const T g = __shfl_sync(FULL, grad, c);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = channel.lane + i * LANES;
                if (row < num_rows()) {
                    sum[i] += g * state[row * STRIDE + c];
                    sum_dot[i] += second ? g * state_dot()[row * STRIDE + c] : T(0);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = channel.lane + i * LANES;
            if (row < num_rows()) {
                along[row] = row > 0 ? sum[i] : T(0);
                if (second) {
                    along_dot[row] = row > 0 ? sum_dot[i] : T(0);
                }
            }
        }
    }

    // One out-edge, staged at k, from the state.
    __device__ void serve(I e, int k) const {
        T value = T(0);
        T* const h = rows + k * ROWS;
        T* const hdot = rows_dot() + k * ROWS;
        if (out != nullptr) {
            for (int row = 0; row < num_rows(); row++) {
                const int at = row * STRIDE + channel.lane;
                value += second ? h[row] * state_dot()[at] : h[row] * state[at];
                value += turning() ? hdot[row] * state[at] : T(0);
            }
        }
        const Direction<T, second> edge(unit, unit_dot, e);
        const T grad = gradient(e);
        Pull<T, second> pull;
        if (grad_unit != nullptr) {
            __syncwarp();
            contract(grad, h, hdot);
            __syncwarp();
            if (channel.lane < carried.degrees) {
                pull.add_harmonics(carried.degrees, channel.lane, edge, h, hdot);
            }
        }
#pragma unroll 1
        for (I position = graph.left_start[e]; position < graph.left_stop[e]; position++) {
            const EdgeChannel<T, second> left(carried, graph.dst_edge_index[position], channel);
            add_pair(position, edge, T(-1), grad, [&](int l) { return left.f(l); }, [&](int l) { return left.fdot(l); }, value, pull);
        }
        store(e, value, pull, true);
    }

    __device__ void serve_linear() const {
        weigh_state<T, second>(channel, num_rows(), state, state_dot());
#pragma unroll 1
        for (I first = node.out_begin; first < node.out_end; first += EDGES) {
            const int count = int(min(I(EDGES), node.out_end - first));
            stage_harmonics<T, I, second>(unit, unit_dot, nullptr, first, count, carried.degrees, rows, nullptr);
            __syncthreads();
#pragma unroll 1
            for (int k = channel.warp; k < count; k += WARPS) {
                serve(first + k, k);
            }
            __syncthreads();
        }
    }

    // Adds the terms of the staged edges to the out-edges.
    __device__ void serve_pairs(I first, int count) const {
#pragma unroll 1
        for (I e = node.out_begin + channel.warp; e < node.out_end; e += WARPS) {
            const Direction<T, second> edge(unit, unit_dot, e);
            const T grad = gradient(e);
            T value = T(0);
            Pull<T, second> pull;
#pragma unroll 1
            for (int k = 0; k < count; k++) {
                if (!graph.leaves_out(e, first + k)) {
                    const T* const f = features + k * DEGREES * STRIDE + channel.lane;
                    const T* const fdot = features_dot() + k * DEGREES * STRIDE + channel.lane;
                    add_pair(first + k, edge, T(1), grad, [&](int l) { return f[l * STRIDE]; },
                             [&](int l) { return fdot[l * STRIDE]; }, value, pull);
                }
            }
            store(e, value, pull, first == node.in_begin);
        }
    }
};

// One block for each node and tile of channels. First order: out = the sum; grad_unit (tiles, num_edges, 3) = the cotangents
// of the out-edges' directions, from grad_out. Second order: out = the sum's derivative along the cotangents of gradients;
// grad_unit, grad_unit_dot = the cotangents of directions and of their derivatives.
template <class T, class I, bool second>
__global__ void __launch_bounds__(THREADS, BLOCKS<T, second>)
dimenet_out_edges(const I* __restrict__ src_offsets, const I* __restrict__ dst_offsets, const I* __restrict__ dst_edge_index,
                  const I* __restrict__ left_start, const I* __restrict__ left_stop, const T* __restrict__ unit,
                  const T* __restrict__ unit_dot, const T* __restrict__ projected, const T* __restrict__ projected_dot,
                  const T* __restrict__ embedding, const T* __restrict__ embedding_dot, const T* __restrict__ up,
                  const T* __restrict__ up_dot, const T* __restrict__ grad_out, T* __restrict__ out, T* __restrict__ grad_unit,
                  T* __restrict__ grad_unit_dot, long long num_edges, int n_emb, int n_mid, int n_spherical) {
    constexpr int orders = ORDERS<second>, edges = STAGED<T, second>;
    __shared__ T state[orders * ROWS * STRIDE];
    __shared__ T features[orders * edges * DEGREES * STRIDE];
    __shared__ T rows[orders * edges * ROWS];
    __shared__ int place[edges];
    __shared__ int distrust;
    const Node<I> node(src_offsets, dst_offsets, I(blockIdx.x));
    if (node.out_begin == node.out_end) {
        return;
    }
    if (threadIdx.x == 0) {
        distrust = 0;
    }
    const long long tile = (long long)(blockIdx.y) * num_edges * 3;
    const OutEdges<T, I, second> sum = {
        node,      Channel(blockIdx.y, n_emb),
        {dst_edge_index, left_start, left_stop},
        {projected, projected_dot, embedding, embedding_dot, up, up_dot, n_emb, n_mid, n_spherical},
        unit,      unit_dot,
        grad_out,  out,
        grad_unit != nullptr ? grad_unit + tile : nullptr,
        grad_unit_dot != nullptr ? grad_unit_dot + tile : nullptr,
        state,     features,
        rows,      place,
        &distrust};
    // Pair by pair for a node with few in-edges, whose state would be as large as what it sums up.
    bool direct = node.in_end - node.in_begin <= I(n_spherical);
    if (!direct) {
        direct = !sum.gather(false);
    }
    if (direct) {
        sum.gather(true);
    } else {
        sum.serve_linear();
    }
}
