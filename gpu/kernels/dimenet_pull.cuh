// Terms of pairs of edges, and cotangents of directions.
#pragma once
#include "dimenet_triplets.cuh"

// Term of a pair of edges for one channel: `value` is sum_l P_l(cosine) feature[l] or, for second derivatives, its directional
// derivative. by_cosine and by_cosine_dot are derivatives of `value` with respect to the cosine and the cosine's derivative.
template <class T, bool second> struct PairTerm {
    T value = T(0), by_cosine = T(0), by_cosine_dot = T(0);

    // Adds the term of degree l. P_0 is constant, so degree 0 has no derivatives.
    __device__ void add_degree_term(int l, const Legendre<T>& legendre, bool has_unit_tangent, T cosine_dot, T feature,
                                    T feature_dot) {
        value += legendre.p * (second ? feature_dot : feature);
        if (l == 0) {
            return;
        }
        by_cosine += legendre.d1 * (second ? feature_dot : feature);
        if (second) {
            by_cosine_dot += legendre.d1 * feature;
            if (has_unit_tangent) {
                value += legendre.d1 * cosine_dot * feature;
                by_cosine += legendre.d2 * cosine_dot * feature;
            }
        }
    }
};

// Unit vector of an edge and its directional derivative, which is zero if not given.
template <class T, bool second> struct Direction {
    Vec<T> unit, unit_dot;

    __device__ Direction(const T* units, const T* units_dot, long long e)
        : unit(load_vec(units, e)), unit_dot{T(0), T(0), T(0)} {
        if (second && units_dot != nullptr) {
            unit_dot = load_vec(units_dot, e);
        }
    }
    __device__ T cosine_dot(const Direction& other) const {
        return second ? dot(unit_dot, other.unit) + dot(unit, other.unit_dot) : T(0);
    }
};

// Cotangents of a unit vector and of its directional derivative.
template <class T, bool second> struct DirectionCotangent {
    Vec<T> grad_unit = {T(0), T(0), T(0)}, grad_unit_dot = {T(0), T(0), T(0)};

    __device__ void add_cosine_cotangents(T grad_cosine, T grad_cosine_dot, const Direction<T, second>& other) {
        add_scaled(grad_unit, grad_cosine, other.unit);
        if (second) {
            add_scaled(grad_unit, grad_cosine_dot, other.unit_dot);
            add_scaled(grad_unit_dot, grad_cosine_dot, other.unit);
        }
    }
    // Adds a warp's part of the gradient of sum_r coef_r s_r(u); if `second`, of sum_r (coef_dot_r s_r(u) + coef_r s_r'(u)
    // u_dot).
    template <int S, int warp>
    __device__ void add_harmonic_gradients(int degrees, const Direction<T, second>& edge, const T* coef,
                                           const T* coef_dot) {
        if (second) {
            add_harmonics_gradient<S, warp, WARPS>(degrees, edge.unit, coef_dot, grad_unit);
            add_harmonics_hessian_product<S, warp, WARPS>(degrees, edge.unit, edge.unit_dot, coef, grad_unit);
            add_harmonics_gradient<S, warp, WARPS>(degrees, edge.unit, coef, grad_unit_dot);
        } else {
            add_harmonics_gradient<S, warp, WARPS>(degrees, edge.unit, coef, grad_unit);
        }
    }
    // Stores the sums over the lanes as the results of edge e if `fresh`, otherwise adds them to the present results.
    __device__ void store_warp_sum(T* grad_unit_to, T* grad_unit_dot_to, long long e, bool fresh) const {
        store_vector_sum(grad_unit, grad_unit_to, e, fresh);
        if (second) {
            store_vector_sum(grad_unit_dot, grad_unit_dot_to, e, fresh);
        }
    }

  private:
    __device__ static void store_vector_sum(const Vec<T>& v, T* to, long long e, bool fresh) {
        T components[4] = {v.x, v.y, v.z, T(0)};
        const T sum = reduce_scatter_over_warp(components);
        if (threadIdx.x % LANES < 3) {
            T* const at = to + 3 * e + threadIdx.x % LANES;
            *at = fresh ? sum : *at + sum;
        }
    }
};

// Overwrites the harmonics of `count` edges at `coef` with their cotangents, in one warp. The cotangent of a row is the sum over
// channels of the state times the factors at from(row) + i * stride for edge i; it is zero for row 0, which is constant. Unless
// from_dot is 0, the derivatives of the factors are from_dot elements behind them. `state_dot`: whether the state has derivatives.
template <class T, bool second, int S, int count, class From>
__device__ __forceinline__ void contract_state_to_cotangents(const T* state, bool state_dot, const From& from,
                                                             int stride, int from_dot, T* coef) {
    constexpr int QUAD = 16 / int(sizeof(T));
#pragma unroll 1
    for (int row = int(threadIdx.x) % LANES; row < S * S; row += LANES) {
        const T *const z = state + row * STRIDE<T, second>, *const z_dot = z + S * S * STRIDE<T, second>, *const first = from(row);
        T sum[count] = {}, sum_dot[count] = {};
#pragma unroll 1
        for (int run = 0; run < TILE<T, second>; run += RUN) {
            T part[count] = {}, part_dot[count] = {};
#pragma unroll
            for (int c = run; c < run + RUN; c += QUAD) {
                T here[QUAD], here_dot[QUAD];
                load_aligned<QUAD>(z + c, here);
                if (second && state_dot) {
                    load_aligned<QUAD>(z_dot + c, here_dot);
                }
#pragma unroll
                for (int i = 0; i < count; i++) {
                    T factor[QUAD], factor_dot[QUAD];
                    load_aligned<QUAD>(first + i * stride + c, factor);
                    if (second && from_dot > 0) {
                        load_aligned<QUAD>(first + from_dot + i * stride + c, factor_dot);
                    }
#pragma unroll
                    for (int n = 0; n < QUAD; n++) {
                        part[i] += factor[n] * here[n];
                        if (second && from_dot > 0) {
                            part_dot[i] += factor_dot[n] * here[n];
                        }
                        if (second && state_dot) {
                            part_dot[i] += factor[n] * here_dot[n];
                        }
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < count; i++) {
                sum[i] += part[i];
                sum_dot[i] += part_dot[i];
            }
        }
#pragma unroll
        for (int i = 0; i < count; i++) {
            coef[i * HARMONICS<S> + row] = row > 0 ? sum[i] : T(0);
            if (second) {
                coef[(HARMONIC<T, second> + i) * HARMONICS<S> + row] = row > 0 ? sum_dot[i] : T(0);
            }
        }
    }
}

// Converts the cotangents of harmonics at `rows` to cotangents of directions and adds them, for all edges k < count (numbered as
// in stage_harmonics) for which used(k) is true. All threads of the block must call this; `sums` is in shared memory.
template <class T, class I, bool second, int S, class Used>
__device__ __forceinline__ void add_direction_cotangents(const T* unit, const T* unit_dot, const I* index, I first,
                                                         int count, int degrees, const T* rows, const Used& used,
                                                         T* sums, T* grad_unit, T* grad_unit_dot) {
    constexpr int BATCH = HARMONIC<T, second>, SIZE = 3 * ORDERS<second> * BATCH;
    const int k = int(threadIdx.x) % LANES, warp = int(threadIdx.x) / LANES;
    if (k < count) {
        const Direction<T, second> edge(unit, unit_dot, index != nullptr ? index[first + k] : first + k);
        const T* const coef = rows + k * HARMONICS<S>;
        DirectionCotangent<T, second> pull;
        call_with_constant_warp(warp, [&](auto warp) {
            pull.template add_harmonic_gradients<S, decltype(warp)::value>(degrees, edge, coef,
                                                                           coef + BATCH * HARMONICS<S>);
        });
        T* const to = sums + warp * SIZE + k;
        to[0] = pull.grad_unit.x;
        to[BATCH] = pull.grad_unit.y;
        to[2 * BATCH] = pull.grad_unit.z;
        if (second) {
            to[3 * BATCH] = pull.grad_unit_dot.x;
            to[4 * BATCH] = pull.grad_unit_dot.y;
            to[5 * BATCH] = pull.grad_unit_dot.z;
        }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = int(threadIdx.x); i < SIZE; i += THREADS) {
        const int edge = i % BATCH, component = i / BATCH;
        if (edge < count && used(edge)) {
            const long long e = index != nullptr ? index[first + edge] : first + edge;
            T* const to = (component < 3 ? grad_unit : grad_unit_dot) + 3 * e + component % 3;
            *to += (sums[i] + sums[SIZE + i]) + (sums[2 * SIZE + i] + sums[3 * SIZE + i]);
        }
    }
    __syncthreads();
}
