// Kernels launched by test_gpu_launcher.py.
/* The word __shared__ in a comment, and a second time: extern __shared__ nothing[]; */
#include "parts_table.cuh"

template <typename T>
__global__ void reverse_in_dynamic_memory(T* out) {
    extern __shared__ __align__(16) unsigned char buffer[];
    T* tile = reinterpret_cast<T*>(buffer);
    tile[threadIdx.x] = T(threadIdx.x + blockIdx.x);
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

template <typename T>
struct MixedStruct {
    bool flag;  // padding follows this member
    int i;
    long long wide;
    T* nothing;
};

__global__ void copy_scalars(double* out, const MixedStruct<const double> given, float x, double y) {
    out[0] = double(given.flag);
    out[1] = double(given.i);
    out[2] = double(given.wide);
    out[3] = given.nothing == nullptr ? 1.0 : 0.0;
    out[4] = double(x);
    out[5] = y;
}

template <typename T>
__global__ void scale(const T* __restrict__ x, T* __restrict__ y, T factor, long long n) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = factor * x[i];
    }
}
