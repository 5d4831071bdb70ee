// Code shared by the two sums over triplets k -> j -> i of DimeNet++ (dimenet_in_edges.cuh and dimenet_out_edges.cuh). A block
// processes a node j with its in-edges f = (k -> j) and out-edges e = (j -> i), for a tile of channels c.
//
// In-edge f has the features feature_f[l,c] = x_f[c] q_f[l,c], where x_f is its embedding and q_f[l,c] = sum_m projected_f[m,l]
// up[m,c]. dimenet_project computes projected_f[m,l] = norm(Y_l) sum_n sbf_rad_f[l,n] W1[l,n,m], padded with zeros to DEGREES
// degrees; `up` is W2 transposed, in tiles (n_mid rounded up to a multiple of DEGREES, PAD channels), also padded.
// For second derivatives, names ending in _dot denote derivatives along the cotangents of gradients. If unit_dot is null, terms
// with derivatives of directions are skipped, because a product of zero and a NaN is NaN.
//
// By the addition theorem, a node's sum over all pairs of edges takes two steps whose cost is linear in the number of edges.
// First, the state of the node, state[r,c] = weight_r sum_f s_r(u_f) feature_f[l,c], is summed over its in-edges for the rows r
// of harmonics. The sum for out-edge e is then sum_r s_r(u_e) state[r,c] minus the excluded terms. The subtraction is accurate
// unless excluded terms dominate the sum or are not finite (see ExclusionTotals). Sums over out-edges use grad_out
// instead of features.
//
// S is the number of degrees for which loops are unrolled: num_spherical, or DEGREES for any num_spherical <= DEGREES. If S >
// num_spherical, the state is zero for the remaining degrees, and sums over pairs stop at num_spherical.
#pragma once
#include "constants.cuh"
#include "dimenet_harmonics.cuh"

constexpr int LANES = 32, WARPS = THREADS / LANES;
constexpr int CHUNK = 256;  // maximum number of channels or edges in a partial sum of a thread
constexpr int RUN = 16;     // maximum number of edges added to one accumulator
constexpr unsigned FULL = 0xffffffffu;

template <bool second> constexpr int ORDERS = second ? 2 : 1;
// Numbers of channels per lane (CHANNELS) and per tile (TILE).
template <class T, bool second> constexpr int CHANNELS = sizeof(T) * ORDERS<second> == 4 ? 2 : 1;
template <class T, bool second> constexpr int TILE = LANES * CHANNELS<T, second>;
// Row stride of a tile in shared memory, padded so that 16-byte reads along rows or columns have no bank conflicts.
template <class T, bool second> constexpr int STRIDE = TILE<T, second> + 16 / int(sizeof(T));
// Stride between the harmonics of two edges, padded to avoid bank conflicts.
template <int S> constexpr int HARMONICS = S * S / 8 * 8 + 4;
// Numbers of edges whose features (STAGED) and harmonics (HARMONIC) fit into 48 KB of shared memory at a time.
template <class T, bool second, int S>
constexpr int STAGED = second ? (sizeof(T) == 8 ? 2 : 8) : (S == DEGREES ? 4 : 8);
template <class T, bool second> constexpr int HARMONIC = second ? (sizeof(T) == 8 ? 4 : 16) : 128 / int(sizeof(T));
// Minimum number of resident blocks per multiprocessor, which limits the registers per thread.
template <class T, bool second> constexpr int BLOCKS = sizeof(T) == 4 ? (second ? 3 : 4) : 2;

// Rows of harmonics that a warp sums: STEP rows (a multiple of four) per warp, and the remaining rows for the last warp.
template <int S> struct WarpHarmonicRows {
    static constexpr int COUNT = S * S, STEP = COUNT / (4 * WARPS) * 4, MOST = COUNT - (WARPS - 1) * STEP;

    __device__ static constexpr int begin(int warp) { return warp * STEP; }
    __device__ static constexpr int end(int warp) { return warp == WARPS - 1 ? COUNT : (warp + 1) * STEP; }
};

// Returns the degree of a row of harmonics, at compile time.
__device__ constexpr int row_degree(int row) {
    int l = 0;
    while ((l + 1) * (l + 1) <= row) {
        l++;
    }
    return l;
}

// Returns the degree of a row of harmonics below S * S, at run time.
template <int S> __device__ int find_row_degree(int row) {
    int degree = 0;
#pragma unroll
    for (int l = 1; l < S; l++) {
        degree += row >= l * l;
    }
    return degree;
}

template <int N> struct CompileTimeInt {
    static constexpr int value = N;
};

// Calls f with the warp index as a compile-time constant.
template <class F> __device__ __forceinline__ void call_with_constant_warp(int warp, const F& f) {
    static_assert(WARPS == 4, "one call for each warp");
    if (warp == 0) {
        f(CompileTimeInt<0>());
    } else if (warp == 1) {
        f(CompileTimeInt<1>());
    } else if (warp == 2) {
        f(CompileTimeInt<2>());
    } else {
        f(CompileTimeInt<3>());
    }
}

// Copies `count` numbers from a 16-byte-aligned address, 16 bytes at a time; the remaining numbers are copied one by one.
template <int count> __device__ __forceinline__ void load_aligned(const float* from, float* to) {
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
template <int count> __device__ __forceinline__ void load_aligned(const double* from, double* to) {
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

// Loads elements i, ..., i + size - 1, up to element count - 1. i must be a multiple of size, and a constant after unrolling.
template <int count, int size, class T>
__device__ __forceinline__ void load_register_chunk(const T* from, int i, T (&to)[size]) {
    constexpr int last = count % size == 0 ? size : count % size;
    if (i + size <= count) {
        load_aligned<size>(from + i, to);
    } else {
        load_aligned<last>(from + i, to);
    }
}

// Loads a lane's channels from a row of a tile, two float32 channels with one instruction.
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

template <class I> struct NodeEdges {
    I in_begin, out_begin;  // first in-edge, as a position in dst_edge_index; first out-edge
    int num_in, num_out;    // numbers of in-edges and out-edges, with 32 bits to save registers

    __device__ NodeEdges(const I* src_offsets, const I* dst_offsets, I node)
        : in_begin(dst_offsets[node]),
          out_begin(src_offsets[node]),
          num_in(int(dst_offsets[node + 1] - in_begin)),
          num_out(int(src_offsets[node + 1] - out_begin)) {}

    __device__ I in_end() const { return in_begin + num_in; }
    __device__ I out_end() const { return out_begin + num_out; }
};

// The W channels of a lane, starting at `first`. Channels beyond the last one are read as zero.
template <int W> struct LaneChannels {
    int lane, warp, first, num_channels;

    __device__ LaneChannels(int tile, int n_emb)
        : lane(threadIdx.x % LANES),
          warp(threadIdx.x / LANES),
          first((tile * LANES + int(threadIdx.x % LANES)) * W),
          num_channels(n_emb) {}

    __device__ bool inside(int w) const { return first + w < num_channels; }
    // Loads channels first, ..., first + W - 1 of row i of `array` (rows, num_channels).
    template <class T> __device__ void read_row(const T* array, long long i, T (&to)[W]) const {
#pragma unroll
        for (int w = 0; w < W; w++) {
            to[w] = inside(w) ? array[i * num_channels + first + w] : T(0);
        }
    }
    // Stores values[w] in channel `first + w` of row i if `fresh`, otherwise adds it.
    template <class T> __device__ void write_or_add_row(T* array, long long i, const T (&values)[W], bool fresh) const {
#pragma unroll
        for (int w = 0; w < W; w++) {
            if (inside(w)) {
                T* const at = array + i * num_channels + first + w;
                *at = fresh ? values[w] : *at + values[w];
            }
        }
    }
};

template <class T> struct EdgeFeatureInputs {
    const T *projected, *projected_dot, *embedding, *embedding_dot, *up, *up_dot;
    int n_emb, n_mid, num_spherical;

    // Returns the offset of a channel in the first row of `up`; rows are PAD elements apart.
    __device__ long long up_offset(int channel) const {
        return (long long)(channel / PAD) * ((n_mid + DEGREES - 1) / DEGREES * DEGREES * PAD) + channel % PAD;
    }
};

// q_f[l,c] of E edges f for the channels of a lane, and the derivatives of q_f.
template <class T, bool second, int S, int E> struct EdgeProjections {
    static constexpr int W = CHANNELS<T, second>;
    T q[E][S][W] = {}, q_dot[E][S][W] = {};

    // Adds the terms of rows begin, ..., end - 1 of `up` to q and q_dot.
    template <class I>
    __device__ void add_up_weight_terms(const EdgeFeatureInputs<T>& inputs, const I (&f)[E],
                                        const LaneChannels<W>& channels, int begin, int end) {
        const T* row[E];
        long long dot = inputs.projected_dot - inputs.projected;
        const T *up = inputs.up + inputs.up_offset(channels.first) + begin * PAD, *up_dot = inputs.up_dot;
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
                load_aligned<DEGREES>(row[k], projected);
                if (second) {
                    load_aligned<DEGREES>(row[k] + dot, projected_dot);
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
        if (!channels.inside(W - 1)) {  // Sums of padding channels are NaN instead of zero if `projected` is not finite.
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

// Embeddings x_f[c] and projections q_f[l,c] of E edges f for the channels of a lane, with their derivatives.
template <class T, bool second, int S, int E> struct EdgeFeatures {
    static constexpr int W = CHANNELS<T, second>;
    T x[E][W], x_dot[E][W] = {};
    EdgeProjections<T, second, S, E> projection;

    template <class I>
    __device__ EdgeFeatures(const EdgeFeatureInputs<T>& inputs, const I (&f)[E], const LaneChannels<W>& channels) {
#pragma unroll
        for (int k = 0; k < E; k++) {
            channels.read_row(inputs.embedding, f[k], x[k]);
            if (second && inputs.embedding_dot != nullptr) {
                channels.read_row(inputs.embedding_dot, f[k], x_dot[k]);
            }
        }
        projection.add_up_weight_terms(inputs, f, channels, 0, min(CHUNK, inputs.n_mid));
#pragma unroll 1
        for (int m = CHUNK; m < inputs.n_mid; m += CHUNK) {
            EdgeProjections<T, second, S, E> part;
            part.add_up_weight_terms(inputs, f, channels, m, min(m + CHUNK, inputs.n_mid));
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

// Decides whether excluded terms may be subtracted from the sum over all terms. All terms must be finite, and no group of terms
// that are excluded together may exceed 3/4 of the total (see docs/design.md), measured by bounds on absolute values. For each
// sum, the arrays contain the total, the largest group, and the group of the last term.
template <class T> struct ExclusionTotals {
    T *total, *largest, *group;

    __device__ static bool may_subtract_excluded(T total, T part) { return part <= T(0.75) * total && finite(total); }
};

// Running values of ExclusionTotals for a lane's channels, kept in registers.
template <class T, int W> struct LaneExclusionTotals {
    T total[W] = {}, largest[W] = {}, group[W] = {};

    __device__ void read(const ExclusionTotals<T>& balance, int i, bool fresh) {
        *this = LaneExclusionTotals();
        if (!fresh) {
            load_channels(balance.total + i, total);
            load_channels(balance.largest + i, largest);
            load_channels(balance.group + i, group);
        }
    }
    // Adds a term. With any_joined and `join`, the term is excluded together with the previous term.
    template <bool any_joined> __device__ __forceinline__ void add(int w, T size, bool join) {
        total[w] += size;
        group[w] = any_joined && join ? group[w] + size : size;
    }
    // Updates the largest group. Call this after adding a term that some sum excludes.
    __device__ __forceinline__ void update_largest_group() {
#pragma unroll
        for (int w = 0; w < W; w++) {
            largest[w] = max(largest[w], group[w]);
        }
    }
    __device__ bool may_subtract_excluded() const {
        bool all = true;
#pragma unroll
        for (int w = 0; w < W; w++) {
            all = all && ExclusionTotals<T>::may_subtract_excluded(total[w], largest[w]);
        }
        return all;
    }
    __device__ void write(const ExclusionTotals<T>& balance, int i) const {
        store_channels(balance.total + i, total);
        store_channels(balance.largest + i, largest);
        store_channels(balance.group + i, group);
    }
};

// Adds a run of terms to the total, and stores the rounding error of this addition in `run`, to which the next run is added
// (Kahan summation). The error of many runs therefore barely exceeds the error of one run.
template <class T> __device__ __forceinline__ void add_run_compensated(T& run, T& total, bool first) {
    const T before = first ? T(0) : total, after = before + run;
    run -= after - before;
    total = after;
}

// Returns the sum over the lanes of a warp to every lane, added as a binary tree.
template <class T> __device__ T sum_over_warp(T value) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(FULL, value, step);
    }
    return value;
}

// Returns to each lane i the sum of values[i % count] over all lanes. Overwrites `values`; `count` must be a power of two.
template <class T, int count> __device__ T reduce_scatter_over_warp(T (&values)[count]) {
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

template <class T> __device__ void store_or_add_vec(T* vectors, long long e, const Vec<T>& v, bool fresh) {
    T* const at = vectors + 3 * e;
    at[0] = fresh ? v.x : at[0] + v.x;
    at[1] = fresh ? v.y : at[1] + v.y;
    at[2] = fresh ? v.z : at[2] + v.z;
}

// In-edges of all nodes, and the in-edges that the sum of each out-edge excludes (see trigraph.EdgeGraph).
template <class I> struct TripletGraph {
    const I *dst_edge_index, *left_start, *left_stop;

    __device__ bool excludes(I e, I position) const { return position >= left_start[e] && position < left_stop[e]; }
    // Returns 0 if no sum excludes in-edge f, 1 if f is the first in a group of edges that are excluded together, else 2.
    __device__ int classify_exclusion(I position, I f) const {
        const I back = left_start[f];
        return back == left_stop[f] ? 0 : left_start[dst_edge_index[back]] == position ? 1 : 2;
    }
};

// Returns whether `mine` is true in any thread of the block. Synchronize the block before using `votes` again.
__device__ __forceinline__ bool any_in_block(bool mine, int* votes) {
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

// Returns whether the directions of the edges, and their derivatives if given, are finite. The edges are index[begin], ...,
// index[end - 1], or begin, ..., end - 1 if `index` is null.
template <class T, class I, bool second>
__device__ bool all_directions_finite(const T* unit, const T* unit_dot, const I* index, I begin, I end, int* votes) {
    bool sound = true;
#pragma unroll 1
    for (I i = begin + I(threadIdx.x); i < end; i += THREADS) {
        const I e = index != nullptr ? index[i] : i;
        sound = sound && finite(size(load_vec(unit, e)));
        sound = sound && !(second && unit_dot != nullptr && !finite(size(load_vec(unit_dot, e))));
    }
    return !any_in_block(!sound, votes);
}

// Computes the harmonics of `count` edges and, if unit_dot is given, their derivatives, and multiplies them by weights if
// `weighed`. The rows of consecutive edges are HARMONICS elements apart. The edges are index[first], ..., or first, ... if `index`
// is null. Each lane handles one edge, the warps divide the orders, and lanes beyond `count` repeat the last edge.
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
        call_with_constant_warp(threadIdx.x / LANES, [&](auto warp) {
            compute_harmonics_and_tangents<S, decltype(warp)::value, WARPS, weighed>(
                u, along, here, here + HARMONIC<T, second> * HARMONICS<S>);
        });
    } else {
        call_with_constant_warp(threadIdx.x / LANES, [&](auto warp) {
            compute_harmonics<S, decltype(warp)::value, WARPS, weighed>(u, here);
        });
    }
}

// A warp's rows of a node's state, summed over edges in registers.
template <class T, bool second, int S> struct WarpStateSums {
    static constexpr int W = CHANNELS<T, second>, MOST = WarpHarmonicRows<S>::MOST;
    T sum[MOST][W] = {}, sum_dot[MOST][W] = {};

    // Adds the current run of edges to the state in shared memory.
    template <int warp> __device__ void flush_to_state(int lane, T* state, T* state_dot, bool first) {
#pragma unroll
        for (int row = WarpHarmonicRows<S>::begin(warp); row < WarpHarmonicRows<S>::end(warp); row++) {
            const int i = row - WarpHarmonicRows<S>::begin(warp), at = row * STRIDE<T, second> + lane * W;
            flush_row(sum[i], state + at, first);
            if (second) {
                flush_row(sum_dot[i], state_dot + at, first);
            }
        }
    }

  private:
    __device__ static void flush_row(T (&run)[W], T* to, bool first) {
        T total[W] = {};
        if (!first) {
            load_channels(to, total);
        }
#pragma unroll
        for (int w = 0; w < W; w++) {
            add_run_compensated(run[w], total[w], false);
        }
        store_channels(to, total);
    }
};

// Returns a power of two 1 / 2^n, with 2^n close to the largest component of v, so that squares of scaled components neither
// overflow nor all underflow. For subnormal vectors, returns the power for the smallest normal number, whose inverse is finite.
template <class T> __device__ T find_power_of_two_scale(const Vec<T>& v) {
    int n;
    frexp(max(max(fabs(v.x), fabs(v.y)), fabs(v.z)), &n);
    return ldexp(T(1), -max(n, sizeof(T) == 4 ? -125 : -1021));
}

template <class T> __device__ Vec<T> times(T factor, const Vec<T>& v) { return {factor * v.x, factor * v.y, factor * v.z}; }

// Norms sqrt((2l+1) / (4 pi)) of Y_l, computed by Newton's method at compile time.
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
