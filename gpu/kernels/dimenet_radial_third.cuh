// Third derivatives of the radial basis, from first derivatives evaluated with hyper-dual numbers (see hyper_dual.cuh).
#pragma once
#include "dimenet_bessel.cuh"
#include "hyper_dual.cuh"
#include "sums.cuh"

// One thread per (edge, k), with THREADS / num_radial edges per block. gg_freq_parts and freq_parts (blocks, num_radial) are sums
// over the edges of each block.
template <class T>
__global__ void __launch_bounds__(THREADS, 4)
dimenet_radial_third(const T* __restrict__ dist, const T* __restrict__ gg_dist, const T* __restrict__ ggg_dist,
                     const T* __restrict__ freq, const T* __restrict__ gg_freq, const T* __restrict__ ggg_freq,
                     const T* __restrict__ grad_rbf, const T* __restrict__ ggg_grad_rbf, const T* __restrict__ grad_sbf_rad,
                     const T* __restrict__ ggg_grad_sbf_rad, T* __restrict__ out_gg_dist, T* __restrict__ out_dist,
                     T* __restrict__ out_grad_rbf, T* __restrict__ out_grad_sbf_rad, T* __restrict__ gg_freq_parts,
                     T* __restrict__ freq_parts, long long num_edges, int num_radial, int num_spherical,
                     int envelope_exponent) {
    __shared__ T of_gg_dist[THREADS];
    __shared__ T of_dist[THREADS];
    __shared__ T of_gg_freq[THREADS];
    __shared__ T of_freq[THREADS];
    const int edges = THREADS / num_radial, local = int(threadIdx.x) / num_radial, k = int(threadIdx.x) - local * num_radial;
    const long long e = (long long)(blockIdx.x) * edges + local;
    const bool active = local < edges && e < num_edges;
    HyperDual<T> by_dist, by_freq;
    if (active && dist[e] >= T(1)) {  // all results are zero beyond the cutoff
        if (out_grad_rbf != nullptr) {
            out_grad_rbf[e * num_radial + k] = T(0);
        }
        for (int l = 0; l < num_spherical && out_grad_sbf_rad != nullptr; l++) {
            out_grad_sbf_rad[(e * num_spherical + l) * num_radial + k] = T(0);
        }
    } else if (active) {
        const HyperDual<T> x = load_input(dist, gg_dist, ggg_dist, e), f = load_input(freq, gg_freq, ggg_freq, k), angle = f * x;
        T d3;
        const Jet<T> env = envelope(x.value, envelope_exponent, &d3);
        const HyperDual<T> factor = apply_function(x, env.value, env.d1, env.d2),
                           d_factor = apply_function(x, env.d1, env.d2, d3);
        const T s = sin(angle.value), c = cos(angle.value);
        const HyperDual<T> sine = apply_function(angle, s, c, -s), cosine = apply_function(angle, c, -s, -c);
        const long long of_rbf = e * num_radial + k;
        const HyperDual<T> g = load_gradient(grad_rbf, ggg_grad_rbf, of_rbf);
        by_dist = g * (d_factor * sine + factor * (f * cosine));
        by_freq = g * (factor * (x * cosine));
        if (out_grad_rbf != nullptr) {
            out_grad_rbf[of_rbf] = (factor * sine).both;
        }
        if (out_gg_dist != nullptr || out_dist != nullptr || out_grad_sbf_rad != nullptr) {
#pragma unroll 1
            for (int l = 0; l < num_spherical; l++) {
                const Jet<T> j = bessel_basis(l, k, x.value, &d3);
                const HyperDual<T> bessel = apply_function(x, j.value, j.d1, j.d2),
                                   d_bessel = apply_function(x, j.d1, j.d2, d3);
                const long long at = (e * num_spherical + l) * num_radial + k;
                const HyperDual<T> grad = load_gradient(grad_sbf_rad, ggg_grad_sbf_rad, at);
                by_dist = by_dist + grad * (d_factor * bessel + factor * d_bessel);
                if (out_grad_sbf_rad != nullptr) {
                    out_grad_sbf_rad[at] = (factor * bessel).both;
                }
            }
        }
    }
    of_gg_dist[threadIdx.x] = by_dist.along_c;
    of_dist[threadIdx.x] = by_dist.both;
    of_gg_freq[threadIdx.x] = by_freq.along_c;
    of_freq[threadIdx.x] = by_freq.both;
    __syncthreads();
    if (active && k == 0) {
        T sum = T(0), sum_both = T(0);
        for (int i = 0; i < num_radial; i++) {
            sum += of_gg_dist[threadIdx.x + i];
            sum_both += of_dist[threadIdx.x + i];
        }
        if (out_gg_dist != nullptr) {
            out_gg_dist[e] = sum;
        }
        if (out_dist != nullptr) {
            out_dist[e] = sum_both;
        }
    }
    if (local == 0) {
        Sum<T> sum, sum_both;
        for (int i = 0; i < edges; i++) {
            sum.add(of_gg_freq[i * num_radial + k], i);
            sum_both.add(of_freq[i * num_radial + k], i);
        }
        const long long at = (long long)(blockIdx.x) * num_radial + k;
        if (gg_freq_parts != nullptr) {
            gg_freq_parts[at] = sum.value();
        }
        if (freq_parts != nullptr) {
            freq_parts[at] = sum_both.value();
        }
    }
}
