// The sum from the out-edges of a node to its in-edges: what the triplets give to the gradients of f = (k -> j).
//
// D_f[l,c] = sum over e of Y_l(u_e.u_f) grad_out[e,c] is all an in-edge needs: the gradient in F_f[l,c]. What leaves out f is
// what f leaves out (trigraph.EdgeGraph).
#pragma once
#include "triplets.cuh"

template <class T> struct InEdgeOutputs {
    T *embedding, *projected, *projected_dot, *unit, *unit_dot;  // gradients; unit of every tile
    T *parts, *totals;  // of the second weights (blocks, n_mid, n_emb): current run, runs before
    int* alone;         // whether an edge is in no triplet
};

// A block's node, tile of channels, arguments and shared arrays.
template <class T, class I, bool second> struct InEdges {
    static constexpr int EDGES = STAGED<T, second>;
    Node<I> node;
    Channel channel;
    Graph<I> graph;
    Carried<T> carried;
    const T *down, *down_dot;  // W2 (n_emb, n_mid)
    const T *unit, *unit_dot, *grad_out;
    InEdgeOutputs<T> grads;
    int tile;
    long long num_edges;
    T* state;     // B of the node: row of harmonics, lane; its derivative follows
    T* features;  // of the staged edges: edge, degree, lane; derivatives follow
    T* rows;      // harmonics of the staged edges, then their derivatives
    int* distrust;

    __device__ T* state_dot() const { return state + ROWS * STRIDE; }
    __device__ T* features_dot() const { return features + EDGES * DEGREES * STRIDE; }
    __device__ T* rows_dot() const { return rows + EDGES * ROWS; }
    __device__ bool turning() const { return second && unit_dot != nullptr; }
    __device__ int num_rows() const { return carried.degrees * carried.degrees; }
    // Whether all out-edges leave out in-edge f: its gradients are zero by selection, since what it carries may be NaN.
    __device__ bool alone(I f) const { return graph.left_stop[f] - graph.left_start[f] == node.out_end - node.out_begin; }

    __device__ T gradient(I e) const {
        return channel.inside ? grad_out[(long long)(e) * carried.n_emb + channel.index] : T(0);
    }

    // The state of the node, and the sizes of its sums; whether it is fit for use.
    __device__ bool build(T& total, T& total_dot) const {
        StateRows<T, second> sums;
        total = total_dot = T(0);
#pragma unroll 1
        for (I first = node.out_begin; first < node.out_end; first += EDGES) {
            const int count = int(min(I(EDGES), node.out_end - first));
            stage_harmonics<T, I, second>(unit, unit_dot, nullptr, first, count, carried.degrees, rows, distrust);
            __syncthreads();
#pragma unroll 1
            for (int k = 0; k < count; k++) {
                const T g = gradient(first + k);
                const T* const h = rows + k * ROWS;
                const T* const hdot = rows_dot() + k * ROWS;
                total += fabs(g);
                total_dot += turning() ? size(load_vec(unit_dot, first + k)) * fabs(g) : T(0);
#pragma unroll
                for (int i = 0; i < ROWS_PER_THREAD; i++) {
                    const int row = channel.warp + i * WARPS;
                    if (row < num_rows()) {
                        sums.sum[i] += h[row] * g;
                        sums.sum_dot[i] += turning() ? hdot[row] * g : T(0);
                    }
                }
            }
            const I done = first + EDGES - node.out_begin;
            if (done % RUN == 0 || first + EDGES >= node.out_end) {
                sums.flush(channel, num_rows(), state, state_dot(), done <= RUN);
            }
            __syncthreads();
        }
        weigh_state<T, second>(channel, num_rows(), state, state_dot());
        return *distrust == 0;
    }

    // Whether in-edge f may use the state.
    __device__ bool fair(I f, T total, T total_dot) const {
        T part = T(0), part_dot = T(0);
#pragma unroll 1
        for (I position = graph.left_start[f]; position < graph.left_stop[f]; position++) {
            const I e = graph.dst_edge_index[position];
            const T grad = fabs(gradient(e));
            part += grad;
            part_dot += turning() ? grad * size(load_vec(unit_dot, e)) : T(0);
        }
        return __all_sync(FULL, Balance<T>::fair(total, part) && Balance<T>::fair(total_dot, part_dot));
    }

    // Gradients of one lane's part of an in-edge.
    struct Gradients {
        T d[DEGREES] = {}, ddot[DEGREES] = {};  // in F: of Fdot's and of F's derivative
        Pull<T, second> pull;
    };

    // Adds sign times the term of out-edge e.
    __device__ void add_pair(I e, T sign, const Direction<T, second>& edge, const EdgeChannel<T, second>& carries,
                             Gradients& sums) const {
        const Direction<T, second> other(unit, unit_dot, e);
        const T grad = sign * gradient(e), cosine_dot = edge.cosine_dot(other);
        Legendre<T> legendre(dot(edge.u, other.u));
        Pair<T, second> pair;
#pragma unroll
        for (int l = 0; l < DEGREES; l++) {
            if (l < carried.degrees) {
                sums.d[l] += legendre.p * grad;
                sums.ddot[l] += turning() && l > 0 ? legendre.d1 * cosine_dot * grad : T(0);
                pair.add(l, legendre, turning(), cosine_dot, carries.f(l), carries.fdot(l));
                legendre.climb(l);
            }
        }
        if (grads.unit != nullptr) {
            sums.pull.add(grad * pair.by_cosine, grad * pair.by_cosine_dot, other);
        }
    }

    // Adds what the state gives to the in-edge staged at k.
    __device__ void add_state(int k, const Direction<T, second>& edge, const EdgeChannel<T, second>& carries,
                              Gradients& sums) const {
        T* const h = rows + k * ROWS;
        T* const hdot = rows_dot() + k * ROWS;
#pragma unroll
        for (int l = 0; l < DEGREES; l++) {
            if (l < carried.degrees) {
                for (int row = l * l; row < (l + 1) * (l + 1); row++) {
                    const int at = row * STRIDE + channel.lane;
                    sums.d[l] += h[row] * state[at];
                    sums.ddot[l] += turning() ? hdot[row] * state[at] + h[row] * state_dot()[at] : T(0);
                }
            }
        }
        if (grads.unit == nullptr) {
            return;
        }
        stage(k, [&](int l) { return carries.f(l); }, [&](int l) { return carries.fdot(l); });
        __syncwarp();
        contract(k, h, hdot);
        __syncwarp();
        if (channel.lane < carried.degrees) {
            sums.pull.add_harmonics(carried.degrees, channel.lane, edge, h, hdot);
        }
    }

    template <class F, class Fdot> __device__ void stage(int k, const F& f, const Fdot& fdot) const {
#pragma unroll
        for (int l = 0; l < DEGREES; l++) {
            if (l < carried.degrees) {
                const int at = (k * DEGREES + l) * STRIDE + channel.lane;
                features[at] = f(l);
                if (second) {
                    features_dot()[at] = fdot(l);
                }
            }
        }
    }

    // Replaces the staged rows of an edge by the cotangents of its harmonics: sum over channels of staged F times state, and zero
    // for row 0, a constant.
    __device__ void contract(int k, T* along, T* along_dot) const {
#pragma unroll 1
        for (int row = channel.lane; row < num_rows(); row += LANES) {
            const int from = (k * DEGREES + row_degree(row)) * STRIDE;
            T sum = T(0), sum_dot = T(0);
            for (int c = 0; c < channel.width; c++) {
                const T f = features[from + c], at = state[row * STRIDE + c];
                sum += f * at;
                sum_dot += second ? features_dot()[from + c] * at : T(0);
                sum_dot += turning() ? f * state_dot()[row * STRIDE + c] : T(0);
            }
            along[row] = row > 0 ? sum : T(0);
            if (second) {
                along_dot[row] = row > 0 ? sum_dot : T(0);
            }
        }
    }

    // In-edge f at a position, staged at k. Leaves the cotangents of G and of Gdot in `features`.
    __device__ void serve(I position, int k, bool linear) const {
        const I f = graph.dst_edge_index[position];
        const Direction<T, second> edge(unit, unit_dot, f);
        const EdgeChannel<T, second> carries(carried, f, channel);
        Gradients sums;
        if (linear) {
            add_state(k, edge, carries, sums);
        }
        // All out-edges but those that leave out f, or these alone with the sign reversed.
        const I begin = linear ? graph.left_start[f] : node.out_begin, end = linear ? graph.left_stop[f] : node.out_end;
#pragma unroll 1
        for (I i = begin; i < end; i++) {
            const I e = linear ? graph.dst_edge_index[i] : i;
            if (linear || !graph.leaves_out(e, position)) {
                add_pair(e, linear ? T(-1) : T(1), edge, carries, sums);
            }
        }
        if (grads.embedding != nullptr && channel.inside) {
            T sum = T(0);
#pragma unroll
            for (int l = 0; l < DEGREES; l++) {
                sum += second ? carries.gdot[l] * sums.d[l] : carries.g[l] * sums.d[l];
                sum += turning() ? carries.g[l] * sums.ddot[l] : T(0);
            }
            grads.embedding[(long long)(f) * carried.n_emb + channel.index] = sum;
        }
        if (grads.unit != nullptr) {
            store(sums.pull, f);
        }
        const auto by_g = [&](int l) {
            const T here = second ? carries.xdot * sums.d[l] : carries.x * sums.d[l];
            return turning() ? here + carries.x * sums.ddot[l] : here;
        };
        stage(k, by_g, [&](int l) { return carries.x * sums.d[l]; });
    }

    __device__ void store(const Pull<T, second>& pull, I f) const {
        const long long vectors = tile * num_edges * 3;
        pull.store(grads.unit + vectors, second ? grads.unit_dot + vectors : nullptr, f, true);
    }

    // In-edge f, staged at k, is in no triplet.
    __device__ void serve_none(I f, int k) const {
        if (grads.embedding != nullptr && channel.inside) {
            grads.embedding[(long long)(f) * carried.n_emb + channel.index] = T(0);
        }
        if (grads.unit != nullptr) {
            store(Pull<T, second>(), f);
        }
        stage(k, [](int) { return T(0); }, [](int) { return T(0); });
    }

    // projected[f,m,l] (fresh, or add) = sum over channels of staged[l,c] W2[c,m], for the staged in-edges.
    __device__ void add_projected(I first, int count, bool fresh) const {
        const int width = carried.n_mid * carried.degrees;
#pragma unroll 1
        for (int i = threadIdx.x; i < count * width; i += THREADS) {
            const int k = i / width, column = i - k * width, m = column / carried.degrees;
            const int from = (k * DEGREES + column - m * carried.degrees) * STRIDE;
            const I f = graph.dst_edge_index[first + k];
            const int terms = alone(f) ? 0 : channel.width;
            T sum = T(0), sum_dot = T(0);
            for (int c = 0; c < terms; c++) {
                const long long weight = (long long)(tile * LANES + c) * carried.n_mid + m;
                sum += features[from + c] * down[weight];
                if (second) {
                    sum += down_dot != nullptr ? features_dot()[from + c] * down_dot[weight] : T(0);
                    sum_dot += features_dot()[from + c] * down[weight];
                }
            }
            const long long at = (long long)(f) * width + column;
            grads.projected[at] = fresh ? sum : grads.projected[at] + sum;
            if (second) {
                grads.projected_dot[at] = fresh ? sum_dot : grads.projected_dot[at] + sum_dot;
            }
        }
    }

    // Adds the staged in-edges to the second weights' gradient; `added` is how many times that has been done before.
    __device__ void add_weights(I first, int count, long long added) const {
#pragma unroll 1
        for (int m = channel.warp; m < carried.n_mid; m += WARPS) {
            T sum = T(0);
#pragma unroll 1
            for (int k = 0; k < count; k++) {
                const I f = graph.dst_edge_index[first + k];
                const long long row = ((long long)(f) * carried.n_mid + m) * DEGREES;
                const int terms = alone(f) ? 0 : carried.degrees;
                T here = T(0);
                for (int l = 0; l < terms; l++) {
                    const int at = (k * DEGREES + l) * STRIDE + channel.lane;
                    here += features[at] * carried.projected[row + l];
                    here += second ? features_dot()[at] * carried.projected_dot[row + l] : T(0);
                }
                sum += here;
            }
            if (channel.inside) {
                const long long at = ((long long)(blockIdx.x) * carried.n_mid + m) * carried.n_emb + channel.index;
                T part = added == 0 ? sum : grads.parts[at] + sum;
                if ((added + 1) % RUN == 0) {
                    add_run(part, grads.totals[at], added + 1 == RUN);
                }
                grads.parts[at] = part;
            }
        }
    }

    __device__ void run(bool fresh, long long added) const {
        bool stateful = node.out_end - node.out_begin > I(carried.degrees) && node.in_begin < node.in_end;
        T total = T(0), total_dot = T(0);
        if (stateful) {
            if (threadIdx.x == 0) {
                *distrust = 0;
            }
            __syncthreads();
            stateful = build(total, total_dot);
        }
#pragma unroll 1
        for (I first = node.in_begin; first < node.in_end; first += EDGES) {
            const int count = int(min(I(EDGES), node.in_end - first));
            if (stateful) {
                stage_harmonics<T, I, second>(unit, unit_dot, graph.dst_edge_index, first, count, carried.degrees, rows, nullptr);
                __syncthreads();
            }
#pragma unroll 1
            for (int k = channel.warp; k < count; k += WARPS) {
                const I f = graph.dst_edge_index[first + k];
                const bool none = alone(f);
                if (none) {
                    serve_none(f, k);
                } else {
                    serve(first + k, k, stateful && fair(f, total, total_dot));
                }
                if (grads.alone != nullptr && channel.lane == 0) {
                    grads.alone[f] = none;
                }
            }
            __syncthreads();
            if (grads.projected != nullptr) {
                add_projected(first, count, fresh);
            }
            if (grads.parts != nullptr) {
                add_weights(first, count, added++);
            }
            __syncthreads();
        }
    }
};

// Nodes blockIdx.x * nodes_per_block and following. First order, with F_f[l,c] = x_f[c] G_f[l,c]:
//     grad_embedding[f,c] = sum_l G D;   grad_projected[f,m,l] = sum_c W2[c,m] x_f[c] D;   grad_unit (tiles, num_edges, 3) = the
//     cotangents of the in-edges' directions;   totals[block,m,c] = sum over f, l of projected[f,m,l] x_f[c] D.
// Second order, of the derivative along the cotangents of gradients: with Ddot,
//     grad_embedding = sum_l G Ddot + Gdot D;   the cotangents of G and Gdot are x Ddot + xdot D and x D, from which
//     grad_projected, grad_projected_dot and totals follow as above.
// edge_alone tells the edges in no triplet.
template <class T, class I, bool second>
__global__ void __launch_bounds__(THREADS, BLOCKS<T, second>)
dimenet_in_edges(const I* __restrict__ src_offsets, const I* __restrict__ dst_offsets, const I* __restrict__ dst_edge_index,
                 const I* __restrict__ left_start, const I* __restrict__ left_stop, const T* __restrict__ unit,
                 const T* __restrict__ unit_dot, const T* __restrict__ projected, const T* __restrict__ projected_dot,
                 const T* __restrict__ embedding, const T* __restrict__ embedding_dot, const T* __restrict__ up,
                 const T* __restrict__ up_dot, const T* __restrict__ down, const T* __restrict__ down_dot,
                 const T* __restrict__ grad_out, T* __restrict__ grad_embedding, T* __restrict__ grad_projected,
                 T* __restrict__ grad_projected_dot, T* __restrict__ grad_unit, T* __restrict__ grad_unit_dot,
                 T* __restrict__ parts, T* __restrict__ totals, int* __restrict__ edge_alone, long long num_edges,
                 long long num_nodes, long long nodes_per_block, int n_emb, int n_mid, int n_spherical) {
    constexpr int orders = ORDERS<second>, edges = STAGED<T, second>;
    __shared__ T state[orders * ROWS * STRIDE];
    __shared__ T features[orders * edges * DEGREES * STRIDE];
    __shared__ T rows[orders * edges * ROWS];
    __shared__ int distrust;
    const long long begin = blockIdx.x * nodes_per_block, end = min(begin + nodes_per_block, num_nodes);
    long long added = 0;
    for (long long j = begin; j < end; j++) {
        const Node<I> node(src_offsets, dst_offsets, I(j));
        for (int tile = 0; tile * LANES < n_emb; tile++) {
            const InEdges<T, I, second> sum = {
                node, Channel(tile, n_emb), {dst_edge_index, left_start, left_stop},
                {projected, projected_dot, embedding, embedding_dot, up, up_dot, n_emb, n_mid, n_spherical},
                down, down_dot, unit, unit_dot, grad_out,
                {grad_embedding, grad_projected, grad_projected_dot, grad_unit, grad_unit_dot, parts, totals, edge_alone},
                tile, num_edges, state, features, rows, &distrust};
            sum.run(tile == 0, added);
        }
        added += (node.in_end - node.in_begin + edges - 1) / edges;
    }
    if (parts != nullptr) {
        const long long weights = (long long)(n_mid) * n_emb * blockIdx.x;
        for (long long i = weights + threadIdx.x; i < weights + n_mid * n_emb; i += THREADS) {
            const T before = added >= RUN ? totals[i] : T(0);
            totals[i] = before + (added > 0 ? parts[i] : T(0));
        }
    }
}
