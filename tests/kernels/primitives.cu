// Primitives that the host emulates, one kernel each; test_host_primitives.py knows the right answers.
/* The word __shared__ in a comment, and a second time: extern __shared__ nothing[]; */
#include "parts.cuh"  // rewritten too
#include "parts_table.cuh"

// Static shared memory of all forms, refilled for each block: a block must not see what the one before left.
template <typename T, int rows>
__global__ void static_memory(T* out, int* fresh) {
    __shared__ T tile[rows][8 + 1];
    __shared__ __align__(16) T line[rows];
    __shared__ int count;
    fresh[blockIdx.x * blockDim.x + threadIdx.x] = count == -1 && tile[0][0] != tile[0][0] && line[0] != line[0];
    __syncthreads();
    tile[threadIdx.x % rows][threadIdx.x / rows] = T(threadIdx.x);
    if (threadIdx.x < rows) {
        line[threadIdx.x] = T(100 * threadIdx.x);
    }
    if (threadIdx.x == 0) {
        count = thirds[3];
    }
    __syncthreads();
    const int other = blockDim.x - 1 - threadIdx.x;
    out[blockIdx.x * blockDim.x + threadIdx.x] =
        tile[other % rows][other / rows] + line[threadIdx.x % rows] + T(count) + tail_of_block(T(threadIdx.x) / T(2));
}

template <typename T>
__global__ void dynamic_memory(T* out) {
    extern __shared__ __align__(16) unsigned char buffer[];
    T* tile = reinterpret_cast<T*>(buffer);
    tile[threadIdx.x] = T(threadIdx.x + blockIdx.x);
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

template <typename T>
struct Given {
    bool flag;  // of another size than what follows
    int i;
    long long wide;
    T* nothing;
};

__global__ void scalars(double* out, const Given<const double> given, float x, double y) {
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
