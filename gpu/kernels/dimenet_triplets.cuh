// Shared by the two sums over triplets k -> j -> i of DimeNet++. A block has one node j, its in-edges f = (k -> j) and its
// out-edges e = (j -> i), and a tile of channels c, with CHANNELS in each lane.
//
// In-edge f has feature_f[l,c] = x_f[c] q_f[l,c], q_f[l,c] = sum_m projected_f[m,l] up[m,c], where projected_f[m,l] =
// norm of Y_l * sum_n sbf_rad_f[l,n] W1[l,n,m] comes from dimenet_project (padded by zeros to DEGREES) and up is W2 transposed.
// Names ending in _dot are derivatives along the cotangents of gradients: feature_dot = x_dot q + x q_dot, q_dot =
// projected_dot up + projected up_dot. Without unit_dot, terms with derivatives of directions are left out, because multiplying by
// zero would spread a NaN.
//
// By the addition theorem a node's sum over all edges has a form linear in edges, from which the terms of left-out edges are
// subtracted. That is accurate unless they are most of the sum or not finite: see Balance.
//
// S is the number of degrees that the code is unrolled for: num_spherical itself, or DEGREES for any num_spherical up to it. In the
// latter case the linear form has zeros for degrees >= num_spherical, and sums over pairs end there.
//
// up consists of tiles (n_mid rounded up to DEGREES, PAD channels), padded by zeros.
#pragma once
#include "constants.cuh"
#include "dimenet_harmonics.cuh"

constexpr int LANES = 32, WARPS = THREADS / LANES;
constexpr int CHUNK = 256;  // most terms of a sum over channels or edges that a thread makes at once
constexpr int RUN = 16;     // longest sum over edges in one accumulator
constexpr unsigned FULL = 0xffffffffu;

template <bool second> constexpr int ORDERS = second ? 2 : 1;
// Number of channels of a lane, and of a tile.
template <class T, bool second> constexpr int CHANNELS = sizeof(T) * ORDERS<second> == 4 ? 2 : 1;
template <class T, bool second> constexpr int TILE = LANES * CHANNELS<T, second>;
// Distance of the rows of a tile in shared memory, such that reads of 16 bytes along rows or columns have no bank conflicts.
template <class T, bool second> constexpr int STRIDE = TILE<T, second> + 16 / int(sizeof(T));
// Distance of the harmonics of two edges, chosen likewise.
template <int S> constexpr int HARMONICS = S * S / 8 * 8 + 4;
// Number of edges with features, and with harmonics, in shared memory at a time, such that all stays below 48 KB.
template <class T, bool second, int S>
constexpr int STAGED = second ? (sizeof(T) == 8 ? 2 : 8) : (S == DEGREES ? 4 : 8);
template <class T, bool second> constexpr int HARMONIC = second ? (sizeof(T) == 8 ? 4 : 16) : 128 / int(sizeof(T));
// Minimum number of resident blocks per multiprocessor, which limits the registers of a thread.
template <class T, bool second> constexpr int BLOCKS = sizeof(T) == 4 ? (second ? 3 : 4) : 2;

// The rows of harmonics that a warp sums: the same number for each warp, a multiple of four, and the rest for the last.
template <int S> struct Rows {
    static constexpr int COUNT = S * S, STEP = COUNT / (4 * WARPS) * 4, MOST = COUNT - (WARPS - 1) * STEP;

    __device__ static constexpr int begin(int warp) { return warp * STEP; }
    __device__ static constexpr int end(int warp) { return warp == WARPS - 1 ? COUNT : (warp + 1) * STEP; }
};

// Degree of a row of harmonics, at compile time.
__device__ constexpr int row_degree(int row) {
    int l = 0;
    while ((l + 1) * (l + 1) <= row) {
        l++;
    }
    return l;
}

// The same at run time, for rows below S * S.
template <int S> __device__ int find_degree(int row) {
    int degree = 0;
#pragma unroll
    for (int l = 1; l < S; l++) {
        degree += row >= l * l;
    }
    return degree;
}

template <int N> struct Constant {
    static constexpr int value = N;
};

// Calls f with the number of the warp as a compile-time constant.
template <class F> __device__ __forceinline__ void for_warp(int warp, const F& f) {
    static_assert(WARPS == 4, "one call for each warp");
    if (warp == 0) {
        f(Constant<0>());
    } else if (warp == 1) {
        f(Constant<1>());
    } else if (warp == 2) {
        f(Constant<2>());
    } else {
        f(Constant<3>());
    }
}

// Copies `count` numbers from an address that is a multiple of 16 bytes, 16 bytes at a time and the rest one by one.
template <int count> __device__ __forceinline__ void load(const float* from, float* to) {
#pragma unroll
    for (int i = 0; i + 4 <= count; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + i);
        to[i] = four.x;
        to[i + 1] = four.y;
        to[i + 2] = four.z;
        to[i + 3] = four.w;
    }
#pragma unroll
    for (int i = count / 4 * 4; i < count; i++) {
        to[i] = from[i];
    }
}
template <int count> __device__ __forceinline__ void load(const double* from, double* to) {
#pragma unroll
    for (int i = 0; i + 2 <= count; i += 2) {
        const double2 two = *reinterpret_cast<const double2*>(from + i);
        to[i] = two.x;
        to[i + 1] = two.y;
    }
#pragma unroll
    for (int i = count / 2 * 2; i < count; i++) {
        to[i] = from[i];
    }
}

// Loads `size` numbers starting at i, or the rest of `count`. i must be a multiple of size, and constant in an unrolled loop.
template <int count, int size, class T> __device__ __forceinline__ void load_held(const T* from, int i, T (&to)[size]) {
    constexpr int last = count % size == 0 ? size : count % size;
    if (i + size <= count) {
        load<size>(from + i, to);
    } else {
        load<last>(from + i, to);
    }
}

// The channels of a lane in a row of a tile: two float32 at once.
template <class T> __device__ __forceinline__ void load_channels(const T* from, T (&to)[1]) { to[0] = *from; }
__device__ __forceinline__ void load_channels(const float* from, float (&to)[2]) {
    const float2 pair = *reinterpret_cast<const float2*>(from);
    to[0] = pair.x;
    to[1] = pair.y;
}
template <class T> __device__ __forceinline__ void store_channels(T* to, const T (&from)[1]) { *to = from[0]; }
__device__ __forceinline__ void store_channels(float* to, const float (&from)[2]) {
    *reinterpret_cast<float2*>(to) = {from[0], from[1]};
}

template <class I> struct Node {
    I in_begin, out_begin;  // a position in dst_edge_index, and an edge
    int num_in, num_out;    // 32 bits each: registers are scarce

    __device__ Node(const I* src_offsets, const I* dst_offsets, I node)
        : in_begin(dst_offsets[node]),
          out_begin(src_offsets[node]),
          num_in(int(dst_offsets[node + 1] - in_begin)),
          num_out(int(src_offsets[node + 1] - out_begin)) {}

    __device__ I in_end() const { return in_begin + num_in; }
    __device__ I out_end() const { return out_begin + num_out; }
};

// The W channels of a lane starting at `first`. Channels beyond the last one read as zero.
template <int W> struct Channels {
    int lane, warp, first, num_channels;

    __device__ Channels(int tile, int n_emb)
        : lane(threadIdx.x % LANES),
          warp(threadIdx.x / LANES),
          first((tile * LANES + int(threadIdx.x % LANES)) * W),
          num_channels(n_emb) {}

    __device__ bool inside(int w) const { return first + w < num_channels; }
    // to[w] = channel `first + w` of row i of an array (rows, num_channels); 0 beyond the last channel.
    template <class T> __device__ void read(const T* array, long long i, T (&to)[W]) const {
#pragma unroll
        for (int w = 0; w < W; w++) {
            to[w] = inside(w) ? array[i * num_channels + first + w] : T(0);
        }
    }
    // Stores values[w] in channel `first + w` of row i if `fresh`, else adds it.
    template <class T> __device__ void write(T* array, long long i, const T (&values)[W], bool fresh) const {
#pragma unroll
        for (int w = 0; w < W; w++) {
            if (inside(w)) {
                T* const at = array + i * num_channels + first + w;
                *at = fresh ? values[w] : *at + values[w];
            }
        }
    }
};

template <class T> struct EdgeInputs {
    const T *projected, *projected_dot, *embedding, *embedding_dot, *up, *up_dot;
    int n_emb, n_mid, num_spherical;

    // Offset of a channel's numbers in up, which are PAD apart.
    __device__ long long up_at(int channel) const {
        return (long long)(channel / PAD) * ((n_mid + DEGREES - 1) / DEGREES * DEGREES * PAD) + channel % PAD;
    }
};

// q_f of E edges f, and its derivative.
template <class T, bool second, int S, int E> struct Projection {
    static constexpr int W = CHANNELS<T, second>;
    T q[E][S][W] = {}, q_dot[E][S][W] = {};

    // Adds to q and q_dot the sum over the rows begin .. end - 1 of `up`.
    template <class I>
    __device__ void add(const EdgeInputs<T>& inputs, const I (&f)[E], const Channels<W>& channels, int begin, int end) {
        const T* row[E];
        long long dot = inputs.projected_dot - inputs.projected;
        const T *up = inputs.up + inputs.up_at(channels.first) + begin * PAD, *up_dot = inputs.up_dot;
#pragma unroll
        for (int k = 0; k < E; k++) {
            row[k] = inputs.projected + ((long long)(f[k]) * inputs.n_mid + begin) * DEGREES;
        }
#pragma unroll 1
        for (int m = begin; m < end; m++) {
            T here[W], here_dot[W];
            load_channels(up, here);
            if (second && up_dot != nullptr) {
                load_channels(up + (up_dot - inputs.up), here_dot);
            }
#pragma unroll
            for (int k = 0; k < E; k++) {
                T projected[DEGREES], projected_dot[DEGREES];
                load<DEGREES>(row[k], projected);
                if (second) {
                    load<DEGREES>(row[k] + dot, projected_dot);
                }
#pragma unroll
                for (int l = 0; l < S; l++) {
#pragma unroll
                    for (int w = 0; w < W; w++) {
                        q[k][l][w] += projected[l] * here[w];
                        if (second) {
                            q_dot[k][l][w] += projected_dot[l] * here[w];
                        }
                        if (second && up_dot != nullptr) {
                            q_dot[k][l][w] += projected[l] * here_dot[w];
                        }
                    }
                }
                row[k] += DEGREES;
            }
            up += PAD;
        }
        if (!channels.inside(W - 1)) {  // The terms beyond the last channel are zero, but for NaN.
#pragma unroll
            for (int k = 0; k < E; k++) {
#pragma unroll
                for (int l = 0; l < S; l++) {
#pragma unroll
                    for (int w = 0; w < W; w++) {
                        q[k][l][w] = channels.inside(w) ? q[k][l][w] : T(0);
                        q_dot[k][l][w] = channels.inside(w) ? q_dot[k][l][w] : T(0);
                    }
                }
            }
        }
    }
};

// The embeddings x_f[c] of E edges f and their q_f[l, c] (see Projection) for the channels c of a lane, and their derivatives.
template <class T, bool second, int S, int E> struct EdgeChannels {
    static constexpr int W = CHANNELS<T, second>;
    T x[E][W], x_dot[E][W] = {};
    Projection<T, second, S, E> projection;

    template <class I> __device__ EdgeChannels(const EdgeInputs<T>& inputs, const I (&f)[E], const Channels<W>& channels) {
#pragma unroll
        for (int k = 0; k < E; k++) {
            channels.read(inputs.embedding, f[k], x[k]);
            if (second && inputs.embedding_dot != nullptr) {
                channels.read(inputs.embedding_dot, f[k], x_dot[k]);
            }
        }
        projection.add(inputs, f, channels, 0, min(CHUNK, inputs.n_mid));
#pragma unroll 1
        for (int m = CHUNK; m < inputs.n_mid; m += CHUNK) {
            Projection<T, second, S, E> part;
            part.add(inputs, f, channels, m, min(m + CHUNK, inputs.n_mid));
#pragma unroll
            for (int k = 0; k < E; k++) {
#pragma unroll
                for (int l = 0; l < S; l++) {
#pragma unroll
                    for (int w = 0; w < W; w++) {
                        projection.q[k][l][w] += part.q[k][l][w];
                        projection.q_dot[k][l][w] += part.q_dot[k][l][w];
                    }
                }
            }
        }
    }

    __device__ T q(int k, int l, int w) const { return projection.q[k][l][w]; }
    __device__ T q_dot(int k, int l, int w) const { return projection.q_dot[k][l][w]; }
    __device__ T feature(int k, int l, int w) const { return x[k][w] * q(k, l, w); }
    __device__ T feature_dot(int k, int l, int w) const { return x_dot[k][w] * q(k, l, w) + x[k][w] * q_dot(k, l, w); }
};

template <class T> __device__ T size(const Vec<T>& v) { return fabs(v.x) + fabs(v.y) + fabs(v.z); }

template <class T> __device__ bool finite(T x) { return x - x == T(0); }

// Decides whether left-out terms may be subtracted from the sum over all terms: no group of terms that is left out together may
// exceed 3/4 of the sum of sizes (docs/design.md gives the reason), and all must be finite. Stores for each sum the total, the
// largest group, and the group of the last term.
template <class T> struct Balance {
    T *total, *largest, *group;

    __device__ static bool is_balanced(T total, T part) { return part <= T(0.75) * total && finite(total); }
};

// The sums of Balance for a lane's channels, while terms are added.
template <class T, int W> struct BalanceSums {
    T total[W] = {}, largest[W] = {}, group[W] = {};

    __device__ void read(const Balance<T>& balance, int i, bool fresh) {
        *this = BalanceSums();
        if (!fresh) {
            load_channels(balance.total + i, total);
            load_channels(balance.largest + i, largest);
            load_channels(balance.group + i, group);
        }
    }
    // join: the term is left out together with the one before it; any_joined: whether `join` can be true.
    template <bool any_joined> __device__ __forceinline__ void add(int w, T size, bool join) {
        total[w] += size;
        group[w] = any_joined && join ? group[w] + size : size;
    }
    // The last term is left out of some sum.
    __device__ __forceinline__ void leave() {
#pragma unroll
        for (int w = 0; w < W; w++) {
            largest[w] = max(largest[w], group[w]);
        }
    }
    __device__ bool is_balanced() const {
        bool all = true;
#pragma unroll
        for (int w = 0; w < W; w++) {
            all = all && Balance<T>::is_balanced(total[w], largest[w]);
        }
        return all;
    }
    __device__ void write(const Balance<T>& balance, int i) const {
        store_channels(balance.total + i, total);
        store_channels(balance.largest + i, largest);
        store_channels(balance.group + i, group);
    }
};

// Adds the sum of a run of terms to the total, and keeps the rounding error of the addition in `run`, where the next run begins
// (Kahan summation), so that the error of many runs is little more than that of one.
template <class T> __device__ __forceinline__ void add_run(T& run, T& total, bool first) {
    const T before = first ? T(0) : total, after = before + run;
    run -= after - before;
    total = after;
}

// Sum over the lanes of a warp, as a binary tree; every lane gets it.
template <class T> __device__ T warp_sum(T value) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(FULL, value, step);
    }
    return value;
}

// The sum over the lanes of a warp of values[lane % count], which is overwritten; `count` is a power of two.
template <class T, int count> __device__ T sum_for_lane(T (&values)[count]) {
#pragma unroll
    for (int step = count / 2; step > 0; step /= 2) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (int i = 0; i < step; i++) {
            const T given = upper ? values[i] : values[i + step], kept = upper ? values[i + step] : values[i];
            values[i] = kept + __shfl_xor_sync(FULL, given, step);
        }
    }
#pragma unroll
    for (int step = count; step < LANES; step *= 2) {
        values[0] += __shfl_xor_sync(FULL, values[0], step);
    }
    return values[0];
}

template <class T> __device__ void add_scaled(Vec<T>& sum, T factor, const Vec<T>& v) {
    sum.x += factor * v.x;
    sum.y += factor * v.y;
    sum.z += factor * v.z;
}

template <class T> __device__ void store_sum(T* vectors, long long e, const Vec<T>& v, bool fresh) {
    T* const at = vectors + 3 * e;
    at[0] = fresh ? v.x : at[0] + v.x;
    at[1] = fresh ? v.y : at[1] + v.y;
    at[2] = fresh ? v.z : at[2] + v.z;
}

// The in-edges of a node, and the edges that each edge leaves out: see trigraph.EdgeGraph.
template <class I> struct Graph {
    const I *dst_edge_index, *left_start, *left_stop;

    __device__ bool leaves_out(I e, I position) const { return position >= left_start[e] && position < left_stop[e]; }
    // 0 if an in-edge is never left out, 1 if it is, 2 if together with the one before; whoever leaves it out leaves out the same.
    __device__ int place(I position, I f) const {
        const I back = left_start[f];
        return back == left_stop[f] ? 0 : left_start[dst_edge_index[back]] == position ? 1 : 2;
    }
};

// Whether `mine` holds in any thread of the block. Another barrier is needed before `votes` is used again.
__device__ __forceinline__ bool any_of_block(bool mine, int* votes) {
    const int any = __any_sync(FULL, mine);
    if (threadIdx.x % LANES == 0) {
        votes[threadIdx.x / LANES] = any;
    }
    __syncthreads();
    int all = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) {
        all |= votes[warp];
    }
    return all != 0;
}

// Whether the directions of edges (and their derivatives, if given) are finite. The edges are index[begin], ..., index[end - 1],
// or begin, ..., end - 1 if there is no index.
template <class T, class I, bool second>
__device__ bool all_finite(const T* unit, const T* unit_dot, const I* index, I begin, I end, int* votes) {
    bool sound = true;
#pragma unroll 1
    for (I i = begin + I(threadIdx.x); i < end; i += THREADS) {
        const I e = index != nullptr ? index[i] : i;
        sound = sound && finite(size(load_vec(unit, e)));
        sound = sound && !(second && unit_dot != nullptr && !finite(size(load_vec(unit_dot, e))));
    }
    return !any_of_block(!sound, votes);
}

// Harmonics (and their derivatives along unit_dot, if given) of `count` edges, HARMONICS apart, times their weights if `weighed`. The edges are index[first], ..., or
// first, ... if there is no index. Each lane has one edge, and warps share the orders. Lanes beyond `count` repeat the last edge.
template <class T, class I, bool second, int S, bool weighed>
__device__ void stage_harmonics(const T* unit, const T* unit_dot, const I* index, I first, int count, T* rows) {
    const int k = threadIdx.x % LANES;
    if (k >= HARMONIC<T, second>) {
        return;
    }
    const I position = first + min(k, count - 1), e = index != nullptr ? index[position] : position;
    const Vec<T> u = load_vec(unit, e);
    T* const here = rows + k * HARMONICS<S>;
    if (second && unit_dot != nullptr) {
        const Vec<T> along = load_vec(unit_dot, e);
        for_warp(threadIdx.x / LANES, [&](auto warp) {
            harmonics_along<S, decltype(warp)::value, WARPS, weighed>(u, along, here, here + HARMONIC<T, second> * HARMONICS<S>);
        });
    } else {
        for_warp(threadIdx.x / LANES, [&](auto warp) { harmonics<S, decltype(warp)::value, WARPS, weighed>(u, here); });
    }
}

// The rows of a warp of a node's state, summed over edges.
template <class T, bool second, int S> struct StateRows {
    static constexpr int W = CHANNELS<T, second>, MOST = Rows<S>::MOST;
    T sum[MOST][W] = {}, sum_dot[MOST][W] = {};

    // Adds the current run to the state.
    template <int warp> __device__ void flush(int lane, T* state, T* state_dot, bool first) {
#pragma unroll
        for (int row = Rows<S>::begin(warp); row < Rows<S>::end(warp); row++) {
            const int i = row - Rows<S>::begin(warp), at = row * STRIDE<T, second> + lane * W;
            flush(sum[i], state + at, first);
            if (second) {
                flush(sum_dot[i], state_dot + at, first);
            }
        }
    }

  private:
    __device__ static void flush(T (&run)[W], T* to, bool first) {
        T total[W] = {};
        if (!first) {
            load_channels(to, total);
        }
#pragma unroll
        for (int w = 0; w < W; w++) {
            add_run(run[w], total[w], false);
        }
        store_channels(to, total);
    }
};

// A power of two, 1 / 2^n with 2^n about the largest component of v, so that squares of scaled components neither overflow nor
// vanish. Subnormal numbers are treated as the smallest normal one, whose inverse is finite.
template <class T> __device__ T factor_of(const Vec<T>& v) {
    int n;
    frexp(max(max(fabs(v.x), fabs(v.y)), fabs(v.z)), &n);
    return ldexp(T(1), -max(n, sizeof(T) == 4 ? -125 : -1021));
}

template <class T> __device__ Vec<T> times(T factor, const Vec<T>& v) { return {factor * v.x, factor * v.y, factor * v.z}; }

// Norms of Y_l: sqrt((2l+1) / 4pi), by Newton's method.
template <class T> struct AngularNorms {
    T degree[DEGREES];

    __device__ constexpr AngularNorms() : degree() {
        for (int l = 0; l < DEGREES; l++) {
            const double square = (2 * l + 1) * 0.079577471545947667884;
            double root = 1;
            for (int i = 0; i < 8; i++) {
                root = (root + square / root) / 2;
            }
            degree[l] = T(root);
        }
    }
};
__constant__ AngularNorms<float> angular_norms_float;
__constant__ AngularNorms<double> angular_norms_double;
__device__ __forceinline__ float angular_norm(float, int l) { return angular_norms_float.degree[l]; }
__device__ __forceinline__ double angular_norm(double, int l) { return angular_norms_double.degree[l]; }
