// What the two sums over triplets k -> j -> i of DimeNet++ share. A block has one node j, its in-edges f = (k -> j) and its
// out-edges e = (j -> i), and a tile of 32 channels c, one to a lane.
//
// In-edge f carries F_f[l,c] = x_f[c] G_f[l,c], G_f[l,c] = sum_m projected_f[m,l] up[m,c]; projected_f[m,l] =
// norm of Y_l * sum_n rbf_f[l,n] W1[l,n,m] was made by dimenet_project (zero up to DEGREES) and up is W2 transposed. Names ending in dot are derivatives
// along the cotangents of gradients: Fdot = xdot G + x Gdot, Gdot = projected_dot up + projected up_dot. Where the directions do not turn (no
// unit_dot) the terms with their derivatives are left out, not multiplied by zero: NaN stays where it belongs.
//
// By the addition theorem a node's sum has a form linear in edges, which is right but for the edges that an edge leaves out:
// their terms are subtracted. That is accurate unless they are most of the sum, and NaN would stay: see Balance.
#pragma once
#include "spherical_harmonics.cuh"

constexpr int THREADS = 128, LANES = 32, WARPS = THREADS / LANES;
constexpr int DEGREES = 8, ROWS = DEGREES * DEGREES, ROWS_PER_THREAD = ROWS / WARPS;
constexpr int STRIDE = LANES + 1;  // of a tile row in shared memory: no bank conflicts along rows or columns
constexpr int CHUNK = 256;         // most terms of a sum over channels or edges that a thread makes at once
constexpr int RUN = 16;            // longest sum over edges in one accumulator
constexpr unsigned FULL = 0xffffffffu;

// Edges in shared memory at a time: with the states of one node they stay below 48 KB.
template <class T, bool second> constexpr int STAGED = 32 / (int(sizeof(T)) * (second ? 2 : 1));
// Blocks on a multiprocessor: what bounds the registers of a thread.
template <class T, bool second> constexpr int BLOCKS = sizeof(T) == 4 ? (second ? 3 : 5) : 2;
template <bool second> constexpr int ORDERS = second ? 2 : 1;

template <class I> struct Node {
    I in_begin, in_end, out_begin, out_end;  // positions in dst_edge_index, and edges

    __device__ Node(const I* src_offsets, const I* dst_offsets, I node)
        : in_begin(dst_offsets[node]),
          in_end(dst_offsets[node + 1]),
          out_begin(src_offsets[node]),
          out_end(src_offsets[node + 1]) {}
};

// The channel of a lane. A lane beyond the last channel reads that one and counts as zero.
struct Channel {
    int lane, warp, index, width;
    bool inside;

    __device__ Channel(int tile, int n_emb)
        : lane(threadIdx.x % LANES),
          warp(threadIdx.x / LANES),
          index(min(tile * LANES + int(threadIdx.x % LANES), n_emb - 1)),
          width(min(LANES, n_emb - tile * LANES)),
          inside(tile * LANES + int(threadIdx.x % LANES) < n_emb) {}
};

// One number for each degree, DEGREES of them in memory, read in pieces of 16 bytes.
template <class T> struct Degrees {
    T at[DEGREES];

    __device__ explicit Degrees(const float* from) {
#pragma unroll
        for (int i = 0; i < DEGREES / 4; i++) {
            const float4 piece = reinterpret_cast<const float4*>(from)[i];
            at[4 * i] = piece.x;
            at[4 * i + 1] = piece.y;
            at[4 * i + 2] = piece.z;
            at[4 * i + 3] = piece.w;
        }
    }
    __device__ explicit Degrees(const double* from) {
#pragma unroll
        for (int i = 0; i < DEGREES / 2; i++) {
            const double2 piece = reinterpret_cast<const double2*>(from)[i];
            at[2 * i] = piece.x;
            at[2 * i + 1] = piece.y;
        }
    }
};

template <class T> struct Carried {
    const T *projected, *projected_dot, *embedding, *embedding_dot, *up, *up_dot;
    int n_emb, n_mid, degrees;
};

// x_f[c] and G_f[:,c], and their derivatives.
template <class T, bool second> struct EdgeChannel {
    T x, xdot, g[DEGREES], gdot[DEGREES];

    __device__ EdgeChannel(const Carried<T>& carried, long long f, const Channel& channel) {
        const long long at = f * carried.n_emb + channel.index;
        x = channel.inside ? carried.embedding[at] : T(0);
        xdot = second && channel.inside && carried.embedding_dot != nullptr ? carried.embedding_dot[at] : T(0);
#pragma unroll
        for (int l = 0; l < DEGREES; l++) {
            g[l] = gdot[l] = T(0);
        }
#pragma unroll 1
        for (int m = 0; m < carried.n_mid; m += CHUNK) {
            add(carried, f, channel, m, min(m + CHUNK, carried.n_mid));
        }
#pragma unroll
        for (int l = 0; l < DEGREES; l++) {
            g[l] = channel.inside ? g[l] : T(0);
            gdot[l] = channel.inside ? gdot[l] : T(0);
        }
    }

    __device__ T f(int l) const { return x * g[l]; }
    __device__ T fdot(int l) const { return xdot * g[l] + x * gdot[l]; }

  private:
    __device__ void add(const Carried<T>& carried, long long f, const Channel& channel, int begin, int end) {
        T part[DEGREES] = {}, part_dot[DEGREES] = {};
#pragma unroll 1
        for (int m = begin; m < end; m++) {
            const long long at = (long long)(m) * carried.n_emb + channel.index, row = (f * carried.n_mid + m) * DEGREES;
            const T up = carried.up[at];
            const Degrees<T> projected(carried.projected + row);
#pragma unroll
            for (int l = 0; l < DEGREES; l++) {
                part[l] += projected.at[l] * up;
            }
            if (second) {
                const Degrees<T> projected_dot(carried.projected_dot + row);
#pragma unroll
                for (int l = 0; l < DEGREES; l++) {
                    part_dot[l] += projected_dot.at[l] * up;
                }
            }
            if (second && carried.up_dot != nullptr) {
#pragma unroll
                for (int l = 0; l < DEGREES; l++) {
                    part_dot[l] += projected.at[l] * carried.up_dot[at];
                }
            }
        }
#pragma unroll
        for (int l = 0; l < DEGREES; l++) {
            g[l] += part[l];
            gdot[l] += part_dot[l];
        }
    }
};

template <class T> __device__ T size(const Vec<T>& v) { return fabs(v.x) + fabs(v.y) + fabs(v.z); }

template <class T> __device__ bool finite(T x) { return x - x == T(0); }

// Whether a sum may be had as the sum over all less what is left out: no group of terms that is left out together makes up
// most of it, by sizes, and all is finite.
template <class T> struct Balance {
    T total = T(0), largest = T(0), group = T(0);

    // `place`: 0 if the term is never left out, 1 if it begins a group, 2 if it belongs to that of the term before.
    __device__ void add(T size, int place) {
        total += size;
        group = place == 2 ? group + size : size;
        largest = place > 0 && group > largest ? group : largest;
    }
    __device__ bool fair() const { return fair(total, largest); }
    __device__ static bool fair(T total, T part) { return part <= T(0.75) * total && finite(total); }
};

// Adds the sum of a run of terms to the total before, and leaves in it what that addition rounded off: the next run begins with
// it (Kahan), so that any number of runs errs little more than one of them.
template <class T> __device__ __forceinline__ void add_run(T& run, T& total, bool first) {
    const T before = first ? T(0) : total, after = before + run;
    run -= after - before;
    total = after;
}

// Degree of a row of harmonics.
__device__ __forceinline__ int row_degree(int row) {
    return (row >= 1) + (row >= 4) + (row >= 9) + (row >= 16) + (row >= 25) + (row >= 36) + (row >= 49);
}

// Sum over the lanes of a warp, in the order of a tree; every lane gets it.
template <class T> __device__ T warp_sum(T value) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(FULL, value, step);
    }
    return value;
}

template <class T> __device__ Vec<T> warp_sum(const Vec<T>& v) { return {warp_sum(v.x), warp_sum(v.y), warp_sum(v.z)}; }

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

// The in-edges of a node and what each edge leaves out: see trigraph.EdgeGraph.
template <class I> struct Graph {
    const I *dst_edge_index, *left_start, *left_stop;

    __device__ bool leaves_out(I e, I position) const { return position >= left_start[e] && position < left_stop[e]; }
    // See Balance::add. The edges that leave out the in-edge at a position all leave out the same ones.
    __device__ int place(I position) const {
        const I f = dst_edge_index[position], back = left_start[f];
        return back == left_stop[f] ? 0 : left_start[dst_edge_index[back]] == position ? 1 : 2;
    }
};

// Harmonics (and their derivatives along unit_dot, if given) of `count` edges, ROWS apart; sets distrust, if given,
// where a direction is not finite. The edges are index[first], ..., or without index first, ....
template <class T, class I, bool second>
__device__ void stage_harmonics(const T* unit, const T* unit_dot, const I* index, I first, int count, int degrees, T* rows,
                                int* distrust) {
#pragma unroll 1
    for (int i = threadIdx.x; i < count * degrees; i += THREADS) {
        const int k = i / degrees, m = i - k * degrees;
        const I e = index != nullptr ? index[first + k] : first + k;
        const Vec<T> u = load_vec(unit, e);
        bool sound = finite(size(u));
        if (second && unit_dot != nullptr) {
            const Vec<T> along = load_vec(unit_dot, e);
            sound = sound && finite(size(along));
            harmonics_along(degrees, m, u, along, rows + k * ROWS, rows + (STAGED<T, second> + k) * ROWS);
        } else {
            harmonics(degrees, m, u, rows + k * ROWS);
        }
        if (!sound && distrust != nullptr) {
            atomicOr(distrust, 1);
        }
    }
}

// The rows of a thread of a node's state, summed over edges.
template <class T, bool second> struct StateRows {
    T sum[ROWS_PER_THREAD] = {}, sum_dot[ROWS_PER_THREAD] = {};

    // Adds the current run to the state, which has `num_rows` rows.
    __device__ void flush(const Channel& channel, int num_rows, T* state, T* state_dot, bool first) {
#pragma unroll
        for (int i = 0; i < ROWS_PER_THREAD; i++) {
            const int row = channel.warp + i * WARPS, at = row * STRIDE + channel.lane;
            if (row < num_rows) {
                add_run(sum[i], state[at], first);
                if (second) {
                    add_run(sum_dot[i], state_dot[at], first);
                }
            }
        }
    }
};

// Multiplies the rows of a thread of the state by the weights of the harmonics.
template <class T, bool second>
__device__ void weigh_state(const Channel& channel, int num_rows, T* state, T* state_dot) {
#pragma unroll 1
    for (int row = channel.warp; row < num_rows; row += WARPS) {
        const int at = row * STRIDE + channel.lane;
        state[at] *= harmonic_weight(T(0), row);
        if (second) {
            state_dot[at] *= harmonic_weight(T(0), row);
        }
    }
}

// One pair of edges as a lane sees it: with s = sum_l Y_l F[l] of the term of channel c, s (first) or its derivative along
// the cotangents (second); and the derivatives of that in the cosine and in the cosine's derivative.
template <class T, bool second> struct Pair {
    T value = T(0), by_cosine = T(0), by_cosine_dot = T(0);

    // Degree l, whose value changes with the cosine from l = 1 on.
    __device__ void add(int l, const Legendre<T>& legendre, bool turning, T cosine_dot, T f, T fdot) {
        value += legendre.p * (second ? fdot : f);
        if (l == 0) {
            return;
        }
        by_cosine += legendre.d1 * (second ? fdot : f);
        if (second) {
            by_cosine_dot += legendre.d1 * f;
            if (turning) {
                value += legendre.d1 * cosine_dot * f;
                by_cosine += legendre.d2 * cosine_dot * f;
            }
        }
    }
};

// Unit vector of an edge, and its derivative, zero if not given.
template <class T, bool second> struct Direction {
    Vec<T> u, udot;

    __device__ Direction(const T* unit, const T* unit_dot, long long e) : u(load_vec(unit, e)), udot{T(0), T(0), T(0)} {
        if (second && unit_dot != nullptr) {
            udot = load_vec(unit_dot, e);
        }
    }
    __device__ T cosine_dot(const Direction& other) const { return second ? dot(udot, other.u) + dot(u, other.udot) : T(0); }
};

// Cotangents of a unit vector and of its derivative.
template <class T, bool second> struct Pull {
    Vec<T> u = {T(0), T(0), T(0)}, udot = {T(0), T(0), T(0)};

    __device__ void add(T by_cosine, T by_cosine_dot, const Direction<T, second>& other) {
        add_scaled(u, by_cosine, other.u);
        if (second) {
            add_scaled(u, by_cosine_dot, other.udot);
            add_scaled(udot, by_cosine_dot, other.u);
        }
    }
    // The part of order m of sum_r (along_r h_r(u) + factors_r h_r(u)'udot); without second order of sum_r factors_r h_r.
    __device__ void add_harmonics(int degrees, int m, const Direction<T, second>& edge, const T* factors, const T* along) {
        const Vec<T> gradient = harmonics_gradient(degrees, m, edge.u, factors);
        if (second) {
            add_scaled(u, T(1), harmonics_gradient(degrees, m, edge.u, along));
            add_scaled(u, T(1), harmonics_hessian(degrees, m, edge.u, edge.udot, factors));
            add_scaled(udot, T(1), gradient);
        } else {
            add_scaled(u, T(1), gradient);
        }
    }
    // Writes (fresh) or adds the sum over the lanes.
    __device__ void store(T* grad_unit, T* grad_unit_dot, long long e, bool fresh) const {
        const Vec<T> total = warp_sum(u);
        const Vec<T> total_dot = second ? warp_sum(udot) : udot;
        if (threadIdx.x % LANES == 0) {
            store_sum(grad_unit, e, total, fresh);
            if (second) {
                store_sum(grad_unit_dot, e, total_dot, fresh);
            }
        }
    }
};
