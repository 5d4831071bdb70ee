// DimeNet++: radial basis, and the sum over triplets k -> j -> i in a form linear in edges. gpu/dimenet.py calls the kernels.
// An input that is a null pointer is absent; an output that is one is not computed.
#include "dimenet_bessel.cuh"
#include "dimenet_in_edges.cuh"
#include "dimenet_out_edges.cuh"
#include "dimenet_radial_third.cuh"
#include "dimenet_third.cuh"
#include "silu.cuh"

// ---- radial basis ---------------------------------------------------------------------------------------------------

// One thread for each (edge, degree, k), where one more "degree" stands for the sines.
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

// d/dx of env x cos(freq x), the derivative with respect to the frequency.
template <class T> __device__ T radial_mixed(const Jet<T>& env, T freq, T x) {
    return env.d1 * x * cos(freq * x) + env.value * cos(freq * x) - env.value * freq * x * sin(freq * x);
}

// Derivatives by edge, one thread for each (edge, k), 128 / num_radial edges in a block. First order: out_dist = sum grad_rbf
// rbf' + sum grad_sbf_rad sbf_rad'. Second order: out_rbf, out_sbf_rad and out_dist are the gradients of out_dist along
// gg_dist plus the frequency's gradient along gg_freq.
template <class T, bool second>
__global__ void __launch_bounds__(THREADS)
dimenet_radial_edges(const T* __restrict__ gg_dist, const T* __restrict__ gg_freq, const T* __restrict__ grad_rbf,
                     const T* __restrict__ grad_sbf_rad, const T* __restrict__ dist, const T* __restrict__ freq,
                     T* __restrict__ out_rbf, T* __restrict__ out_sbf_rad, T* __restrict__ out_dist, long long num_edges,
                     int num_radial, int num_spherical, int envelope_exponent) {
    __shared__ T parts[THREADS];
    const int edges = int(blockDim.x) / num_radial, local = int(threadIdx.x) / num_radial;
    const int k = int(threadIdx.x) - local * num_radial;
    const long long e = (long long)(blockIdx.x) * edges + local;
    const bool active = local < edges && e < num_edges;
    if (active) {
        const T x = dist[e], x_dot = second ? (gg_dist != nullptr ? gg_dist[e] : T(0)) : T(1);
        const T freq_dot = second && gg_freq != nullptr ? gg_freq[k] : T(0);
        const bool beyond = x >= T(1);  // beyond the cutoff, select zero: multiplying by it would keep a NaN
        const Jet<T> env = envelope(x, envelope_exponent);
        const Jet<T> sine = product(env, sine_basis(freq[k], x));
        if (second && out_rbf != nullptr) {
            out_rbf[e * num_radial + k] = beyond ? T(0) : x_dot * sine.d1 + freq_dot * env.value * x * cos(freq[k] * x);
        }
        T sum = grad_rbf[e * num_radial + k] * (second ? x_dot * sine.d2 + freq_dot * radial_mixed(env, freq[k], x) : sine.d1);
        if (!second || out_sbf_rad != nullptr || out_dist != nullptr) {
            for (int l = 0; l < num_spherical; l++) {
                const Jet<T> bessel = product(env, bessel_basis(l, k, x));
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

// Derivatives with respect to the frequencies, summed over the 256 edges of a block: parts (blocks, R).
template <class T, bool second>
__global__ void __launch_bounds__(256)
dimenet_radial_freq(const T* __restrict__ gg_dist, const T* __restrict__ gg_freq, const T* __restrict__ grad_rbf,
                    const T* __restrict__ dist, const T* __restrict__ freq, T* __restrict__ parts, long long num_edges,
                    int num_radial, int envelope_exponent) {
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
                second ? x_dot * radial_mixed(env, freq[k], x) - freq_dot * env.value * x * x * sin(freq[k] * x)
                       : env.value * x * cos(freq[k] * x);
            value = grad_rbf[e * num_radial + k] * by_freq;
        }
        value = warp_sum(value);
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

// ---- before and after the triplets ----------------------------------------------------------------------------------

// unit = vec / |vec| and, if vec_dot is given, unit_dot, the derivative of unit along it.
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_directions(const T* __restrict__ vec, const T* __restrict__ vec_dot, T* __restrict__ unit, T* __restrict__ unit_dot,
                   long long num_edges) {
    const long long e = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (e < num_edges) {
        Vec<T> v = load_vec(vec, e);
        const T factor = factor_of(v);
        v = times(factor, v);
        const T length = sqrt(dot(v, v));
        const Vec<T> u = {v.x / length, v.y / length, v.z / length};
        store_sum(unit, e, u, true);
        if (unit_dot != nullptr) {
            const Vec<T> v_dot = times(factor, load_vec(vec_dot, e));
            const T along = dot(u, v_dot);
            const Vec<T> u_dot = {(v_dot.x - u.x * along) / length, (v_dot.y - u.y * along) / length,
                                  (v_dot.z - u.z * along) / length};
            store_sum(unit_dot, e, u_dot, true);
        }
    }
}

// Sum of `terms` products of numbers that are PAD apart with numbers that are `stride` apart.
template <class T>
__device__ T product_sum(const T* left, const T* right, long long at, long long from, int terms, int stride) {
    T sum = T(0);
    for (int n = 0; n < terms; n++) {
        sum += left[at + n * PAD] * right[from + (long long)(n) * stride];
    }
    return sum;
}

// Number of edges of a block of dimenet_project, and of a thread.
constexpr int TOGETHER = 4;

// sums[k] = sum_n sbf_rad[e+k,l,n] weights[l,n,m] for existing edges; sbf_rad points to [e,l] (edges `width` apart), weights to
// [l,:,m].
template <class T>
__device__ void project(const T* sbf_rad, const T* weights, int terms, int width, int n_mid, int count,
                        T (&sums)[TOGETHER]) {
#pragma unroll 2
    for (int n = 0; n < terms; n++) {
        const T weight = weights[(long long)(n) * n_mid];
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            sums[k] += sbf_rad[(long long)(min(k, count - 1)) * width + n] * weight;
        }
    }
}

// projected[e,m,l] = norm_l sum_n sbf_rad[e,l,n] weights[l,n,m], zero from l = num_spherical to 8; projected_dot from sbf_rad_dot
// and weights_dot.
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_project(const T* __restrict__ sbf_rad, const T* __restrict__ sbf_rad_dot, const T* __restrict__ weights,
                const T* __restrict__ weights_dot, T* __restrict__ projected, T* __restrict__ projected_dot, long long num_edges,
                int n_mid, int num_spherical, int num_radial) {
    const int columns = n_mid * DEGREES, width = num_spherical * num_radial;
    for (int i = int(threadIdx.x); i < PROJECTED / TOGETHER * columns; i += THREADS) {
        const int group = i / columns, column = i - group * columns, l = column % DEGREES, m = column / DEGREES;
        const long long e = (long long)(blockIdx.x) * PROJECTED + group * TOGETHER;
        if (e < num_edges) {
            const int count = int(min((long long)(TOGETHER), num_edges - e)), terms = l < num_spherical ? num_radial : 0;
            const long long at = e * width + l * num_radial, weight = (long long)(l) * num_radial * n_mid + m;
            const T norm = angular_norm(T(0), l);
            T sums[TOGETHER] = {}, by_sbf_rad[TOGETHER] = {}, by_weights[TOGETHER] = {};
            project(sbf_rad + at, weights + weight, terms, width, n_mid, count, sums);
            if (projected_dot != nullptr && sbf_rad_dot != nullptr) {
                project(sbf_rad_dot + at, weights + weight, terms, width, n_mid, count, by_sbf_rad);
            }
            if (projected_dot != nullptr && weights_dot != nullptr) {
                project(sbf_rad + at, weights_dot + weight, terms, width, n_mid, count, by_weights);
            }
#pragma unroll
            for (int k = 0; k < TOGETHER; k++) {
                if (k < count) {
                    projected[(e + k) * columns + column] = norm * sums[k];
                    if (projected_dot != nullptr) {
                        projected_dot[(e + k) * columns + column] = norm * (by_sbf_rad[k] + by_weights[k]);
                    }
                }
            }
        }
    }
}

// up = down (num_columns, n_mid) transposed, as tiles of `rows` rows and PAD columns, padded by zeros: see
// dimenet_triplets.cuh.
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

// The vector's gradient from the cotangents of its direction (and of the direction's derivative), summed over `parts` in order.
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
        // Divide once, because each division takes registers.
        Vec<T> v = load_vec(vec, e);
        const T factor = factor_of(v);
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
        store_sum(out, e, times(factor, {by_unit.x + by_length * u.x, by_unit.y + by_length * u.y, by_unit.z + by_length * u.z}), true);
    }
}

// sbf_rad[e,l,n] = norm_l sum_m (weights[l,n,m] grad_projected[e,m,l] + weights_dot[l,n,m] grad_projected_dot[e,m,l]), zero if
// the edge is in no triplet. The weights come from dimenet_transpose, so that neighbouring lanes read neighbouring numbers.
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_sbf_rad_gradient(const T* __restrict__ grad_projected, const T* __restrict__ grad_projected_dot,
                         const T* __restrict__ weights, const T* __restrict__ weights_dot, const int* __restrict__ alone,
                         T* __restrict__ out, long long num_edges, long long rows, int n_mid, int num_spherical,
                         int num_radial) {
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    const int width = num_spherical * num_radial;
    if (i < num_edges * width) {
        const long long e = i / width;
        const int column = int(i - e * width), l = column / num_radial, terms = alone[e] ? 0 : n_mid;
        const long long at = e * n_mid * num_spherical + l, weight = column / PAD * rows * PAD + column % PAD;
        T sum = T(0);
        for (int m = 0; m < terms; m += CHUNK) {
            const long long from = at + (long long)(m) * num_spherical, to = weight + (long long)(m) * PAD;
            const int count = min(CHUNK, terms - m);
            sum += product_sum(weights, grad_projected, to, from, count, num_spherical);
            if (weights_dot != nullptr) {
                sum += product_sum(weights_dot, grad_projected_dot, to, from, count, num_spherical);
            }
        }
        out[i] = angular_norm(T(0), l) * sum;
    }
}

// parts[chunk,l,n,m] = norm_l sum over the chunk's 256 edges of sbf_rad[e,l,n] grad_projected[e,m,l] + sbf_rad_dot
// grad_projected_dot, without edges in no triplet.
template <class T>
__global__ void __launch_bounds__(THREADS)
dimenet_weights_parts(const T* __restrict__ sbf_rad, const T* __restrict__ sbf_rad_dot, const T* __restrict__ grad_projected,
                      const T* __restrict__ grad_projected_dot, const int* __restrict__ alone, T* __restrict__ parts,
                      long long num_edges, int n_mid, int num_spherical, int num_radial) {
    const int i = int(blockIdx.y * blockDim.x + threadIdx.x), width = num_spherical * num_radial;
    if (i < width * n_mid) {
        const int column = i / n_mid, m = i - column * n_mid, l = column / num_radial;
        const long long begin = (long long)(blockIdx.x) * CHUNK;
        const int count = int(min((long long)(CHUNK), num_edges - begin));
        TreeSum<T, 4, 2> terms;
        for (int k = 0; k < count; k++) {
            const long long e = begin + k, at = (e * n_mid + m) * num_spherical + l;
            terms.add(alone[e] ? T(0) : sbf_rad[e * width + column] * grad_projected[at], k);
        }
        T sum = terms.value();
        if (sbf_rad_dot != nullptr) {
            TreeSum<T, 4, 2> terms_dot;
            for (int k = 0; k < count; k++) {
                const long long e = begin + k, at = (e * n_mid + m) * num_spherical + l;
                terms_dot.add(alone[e] ? T(0) : sbf_rad_dot[e * width + column] * grad_projected_dot[at], k);
            }
            sum += terms_dot.value();
        }
        parts[(long long)(blockIdx.x) * width * n_mid + i] = angular_norm(T(0), l) * sum;
    }
}
