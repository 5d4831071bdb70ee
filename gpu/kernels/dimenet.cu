// Kernels of gpu/dimenet.py for DimeNet++: the radial basis, and the sum over triplets k -> j -> i at a cost linear in the number
// of edges. A null input pointer means that the input is absent; an output whose pointer is null is not computed.
#include "dimenet_bessel.cuh"
#include "dimenet_first_weights.cuh"
#include "dimenet_in_edges.cuh"
#include "dimenet_out_edges.cuh"
#include "dimenet_radial_third.cuh"
#include "dimenet_third.cuh"
#include "neighbors.cuh"
#include "silu.cuh"

// ---- radial basis ---------------------------------------------------------------------------------------------------

// One thread per (edge, l, k) computes an element of sbf_rad if l < num_spherical, or of rbf if l = num_spherical.
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_radial(const T* __restrict__ dist, const T* __restrict__ freq, T* __restrict__ rbf, T* __restrict__ sbf_rad,
               long long num_edges, int num_radial, int num_spherical, int envelope_exponent) {
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < num_edges * (num_spherical + 1) * num_radial) {
        const long long pair = i / num_radial, e = pair / (num_spherical + 1);
        const int k = int(i - pair * num_radial), l = int(pair - e * (num_spherical + 1));
        const T x = dist[e], env = envelope(x, envelope_exponent).value;
        if (l < num_spherical) {
            sbf_rad[(e * num_spherical + l) * num_radial + k] = x >= T(1) ? T(0) : env * bessel_basis(l, k, x).value;
        } else {
            rbf[e * num_radial + k] = x >= T(1) ? T(0) : env * sin(freq[k] * x);
        }
    }
}

// Returns the mixed second derivative of env(x) sin(freq x) with respect to freq and x.
template <class T> __device__ T mixed_radial_derivative(const Jet<T>& env, T freq, T x) {
    return env.d1 * x * cos(freq * x) + env.value * cos(freq * x) - env.value * freq * x * sin(freq * x);
}

// Computes gradients of per-edge arrays, with one thread per (edge, k) and 128 / num_radial edges per block. First derivatives:
// out_dist = sum grad_rbf rbf' + sum grad_sbf_rad sbf_rad'. Second derivatives: out_rbf, out_sbf_rad and out_dist are the gradients
// of <gg_dist, grad_dist> + <gg_freq, grad_freq> with respect to grad_rbf, grad_sbf_rad and dist.
template <class T, bool second>
__global__ void __launch_bounds__(THREADS)
dimenet_radial_edge_gradients(const T* __restrict__ gg_dist, const T* __restrict__ gg_freq,
                              const T* __restrict__ grad_rbf, const T* __restrict__ grad_sbf_rad,
                              const T* __restrict__ dist, const T* __restrict__ freq, T* __restrict__ out_rbf,
                              T* __restrict__ out_sbf_rad, T* __restrict__ out_dist, long long num_edges,
                              int num_radial, int num_spherical, int envelope_exponent) {
    __shared__ T parts[THREADS];
    const int edges = int(blockDim.x) / num_radial, local = int(threadIdx.x) / num_radial;
    const int k = int(threadIdx.x) - local * num_radial;
    const long long e = (long long)(blockIdx.x) * edges + local;
    const bool active = local < edges && e < num_edges;
    if (active) {
        const T x = dist[e], x_dot = second ? (gg_dist != nullptr ? gg_dist[e] : T(0)) : T(1);
        const T freq_dot = second && gg_freq != nullptr ? gg_freq[k] : T(0);
        const bool beyond = x >= T(1);  // select zero beyond the cutoff, because zero times NaN is NaN
        const Jet<T> env = envelope(x, envelope_exponent);
        const Jet<T> sine = multiply_jets(env, sine_basis(freq[k], x));
        if (second && out_rbf != nullptr) {
            out_rbf[e * num_radial + k] = beyond ? T(0) : x_dot * sine.d1 + freq_dot * env.value * x * cos(freq[k] * x);
        }
        T sum = grad_rbf[e * num_radial + k] *
                (second ? x_dot * sine.d2 + freq_dot * mixed_radial_derivative(env, freq[k], x) : sine.d1);
        if (!second || out_sbf_rad != nullptr || out_dist != nullptr) {
            for (int l = 0; l < num_spherical; l++) {
                const Jet<T> bessel = multiply_jets(env, bessel_basis(l, k, x));
                const long long at = (e * num_spherical + l) * num_radial + k;
                if (second && out_sbf_rad != nullptr) {
                    out_sbf_rad[at] = beyond ? T(0) : x_dot * bessel.d1;
                }
                sum += grad_sbf_rad[at] * (second ? x_dot * bessel.d2 : bessel.d1);
            }
        }
        parts[threadIdx.x] = beyond ? T(0) : sum;
    }
    __syncthreads();
    if (active && k == 0 && out_dist != nullptr) {
        T sum = T(0);
        for (int i = 0; i < num_radial; i++) {
            sum += parts[threadIdx.x + i];
        }
        out_dist[e] = sum;
    }
}

// Computes `parts` (blocks, num_radial): gradients of the frequencies, summed over the 256 edges of each block.
template <class T, bool second>
__global__ void __launch_bounds__(256)
dimenet_radial_freq_gradient(const T* __restrict__ gg_dist, const T* __restrict__ gg_freq,
                             const T* __restrict__ grad_rbf, const T* __restrict__ dist, const T* __restrict__ freq,
                             T* __restrict__ parts, long long num_edges, int num_radial, int envelope_exponent) {
    __shared__ T sums[8][16];
    const long long e = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    const bool active = e < num_edges;
    const T x = active ? dist[e] : T(1);
    const T x_dot = second && active && gg_dist != nullptr ? gg_dist[e] : T(0);
    const Jet<T> env = envelope(x, envelope_exponent);
    for (int k = 0; k < num_radial; k++) {
        T value = T(0);
        if (active && !(x >= T(1))) {
            const T freq_dot = second && gg_freq != nullptr ? gg_freq[k] : T(0);
            const T by_freq =
                second ? x_dot * mixed_radial_derivative(env, freq[k], x) -
                             freq_dot * env.value * x * x * sin(freq[k] * x)
                       : env.value * x * cos(freq[k] * x);
            value = grad_rbf[e * num_radial + k] * by_freq;
        }
        value = sum_over_warp(value);
        if (threadIdx.x % LANES == 0) {
            sums[threadIdx.x / LANES][k] = value;
        }
    }
    __syncthreads();
    if (threadIdx.x < num_radial) {
        T sum = T(0);
        for (int i = 0; i < 8; i++) {
            sum += sums[i][threadIdx.x];
        }
        parts[(long long)(blockIdx.x) * num_radial + threadIdx.x] = sum;
    }
}

// ---- unit vectors, transposed weights and gradients of vectors ------------------------------------------------------

// Computes unit = vec / |vec| and, if unit_dot is not null, its directional derivative along vec_dot.
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_directions(const T* __restrict__ vec, const T* __restrict__ vec_dot, T* __restrict__ unit, T* __restrict__ unit_dot,
                   long long num_edges) {
    const long long e = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (e < num_edges) {
        Vec<T> v = load_vec(vec, e);
        const T factor = find_power_of_two_scale(v);
        v = times(factor, v);
        const T length = sqrt(dot(v, v));
        const Vec<T> u = {v.x / length, v.y / length, v.z / length};
        store_or_add_vec(unit, e, u, true);
        if (unit_dot != nullptr) {
            const Vec<T> v_dot = times(factor, load_vec(vec_dot, e));
            const T along = dot(u, v_dot);
            const Vec<T> u_dot = {(v_dot.x - u.x * along) / length, (v_dot.y - u.y * along) / length,
                                  (v_dot.z - u.z * along) / length};
            store_or_add_vec(unit_dot, e, u_dot, true);
        }
    }
}

// Transposes `down` (num_columns, n_mid) into `up`, which consists of tiles of `rows` rows and PAD columns, padded with zeros.
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_transpose(const T* __restrict__ down, T* __restrict__ up, long long size, long long rows, int num_columns,
                  int n_mid) {
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < size) {
        const long long row = i / PAD, tile = row / rows, m = row - tile * rows, c = tile * PAD + i % PAD;
        up[i] = m < n_mid && c < num_columns ? down[c * n_mid + m] : T(0);
    }
}

// Computes gradients of vectors from cotangents of unit vectors (and of their derivatives), adding the `parts` arrays in order.
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_vec_gradient(const T* __restrict__ grad_unit, const T* __restrict__ grad_unit_dot, const T* __restrict__ vec,
                     const T* __restrict__ vec_dot, T* __restrict__ out, long long num_edges, int parts) {
    const long long e = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (e < num_edges) {
        Vec<T> grad_u = {T(0), T(0), T(0)}, grad_u_dot = grad_u;
        for (int part = 0; part < parts; part++) {
            add_scaled(grad_u, T(1), load_vec(grad_unit, part * num_edges + e));
            if (grad_unit_dot != nullptr) {
                add_scaled(grad_u_dot, T(1), load_vec(grad_unit_dot, part * num_edges + e));
            }
        }
        // Divide only once, because each division needs additional registers.
        Vec<T> v = load_vec(vec, e);
        const T factor = find_power_of_two_scale(v);
        v = times(factor, v);
        const T inverse = T(1) / sqrt(dot(v, v));
        const Vec<T> u = {v.x * inverse, v.y * inverse, v.z * inverse};
        T by_length = T(0);
        if (grad_unit_dot != nullptr && vec_dot != nullptr) {
            const Vec<T> v_dot = times(factor, load_vec(vec_dot, e));
            const T along = dot(u, v_dot), across = dot(grad_u_dot, u);
            const Vec<T> u_dot = {(v_dot.x - u.x * along) * inverse, (v_dot.y - u.y * along) * inverse,
                                  (v_dot.z - u.z * along) * inverse};
            by_length = -dot(grad_u_dot, u_dot) * inverse;
            grad_u.x -= (along * grad_u_dot.x + across * v_dot.x) * inverse;
            grad_u.y -= (along * grad_u_dot.y + across * v_dot.y) * inverse;
            grad_u.z -= (along * grad_u_dot.z + across * v_dot.z) * inverse;
        }
        by_length -= dot(grad_u, u) * inverse;
        const Vec<T> by_unit = {grad_u.x * inverse, grad_u.y * inverse, grad_u.z * inverse};
        store_or_add_vec(
            out, e,
            times(factor, {by_unit.x + by_length * u.x, by_unit.y + by_length * u.y, by_unit.z + by_length * u.z}),
            true);
    }
}
