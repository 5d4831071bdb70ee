// Every primitive that the host emulates, one kernel each; test_host_primitives.py knows the right answers.
/* The word __shared__ in a comment, and a second time: extern __shared__ nothing[]; */
#include "parts.cuh"  // rewritten too
#include "parts_table.cuh"

__global__ void geometry(int* out) {
    const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const int place = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
    out[3 * place] = block;
    out[3 * place + 1] = thread;
    out[3 * place + 2] = warpSize;
}

template <typename T>
__global__ void __launch_bounds__(64)
    shuffles(const T* __restrict__ x, T* out, unsigned int mask, int operand, int width) {
    const int lane = threadIdx.x % 32;
    T* row = out + 4 * threadIdx.x;
    if ((mask >> lane & 1) != 0) {
        row[0] = __shfl_sync(mask, x[threadIdx.x], operand, width);
        row[1] = __shfl_up_sync(mask, x[threadIdx.x], operand, width);
        row[2] = __shfl_down_sync(mask, x[threadIdx.x], operand, width);
        row[3] = __shfl_xor_sync(mask, x[threadIdx.x], operand, width);
    }
}

template <typename T>
__global__ void votes(const T* x, unsigned int* out, unsigned int mask) {
    const int lane = threadIdx.x % 32;
    unsigned int* row = out + 4 * threadIdx.x;
    if ((mask >> lane & 1) != 0) {
        row[0] = __ballot_sync(mask, x[threadIdx.x] > T(0));
        row[1] = __any_sync(mask, x[threadIdx.x] > T(0));
        row[2] = __all_sync(mask, x[threadIdx.x] > T(0));
        row[3] = __match_any_sync(mask, x[threadIdx.x]);
    }
}

// Two groups of lanes of one warp wait at different collectives at the same time.
__global__ void two_groups(int* out) {
    const unsigned int lane = threadIdx.x;
    const unsigned int mask = lane % 2 == 0 ? 0x55555555u : 0xaaaaaaaau;
    int sum = int(lane);
    for (int step = 16; step > 1; step /= 2) {
        sum += __shfl_xor_sync(mask, sum, step);
    }
    out[lane] = sum;
}

template <typename T>
__global__ void atomics(T* counters) {
    const T mine = T(threadIdx.x);
    atomicAdd(counters, T(1));
    atomicMax(counters + 1, mine);
    atomicMin(counters + 2, mine);
    atomicAnd(counters + 3, ~(T(1) << threadIdx.x));
    atomicOr(counters + 4, T(1) << threadIdx.x);
    atomicXor(counters + 5, T(1) << threadIdx.x);
    atomicCAS(counters + 6, T(0), T(5));
    atomicExch(counters + 7, T(7));
}

__global__ void subtraction(int* signed_count, unsigned int* unsigned_count) {
    if (signed_count != nullptr) {
        atomicSub(signed_count, threadIdx.x);
    } else {
        atomicSub(unsigned_count, threadIdx.x);
    }
}

__global__ void float_functions(const float* x, float* out) {
    const float v = x[threadIdx.x];
    float* row = out + 26 * threadIdx.x;
    row[0] = rsqrtf(v);
    row[1] = rsqrt(v);
    row[2] = __expf(v);
    row[3] = __logf(v);
    row[4] = __log2f(v);
    row[5] = __sinf(v);
    row[6] = __cosf(v);
    row[7] = __tanf(v);
    row[8] = __powf(v, 1.5f);
    __sincosf(v, row + 9, row + 10);
    row[11] = __fdividef(v, 3.0f);
    row[12] = __frcp_rn(v);
    row[13] = __fsqrt_rn(v);
    row[14] = __fadd_rn(v, 0.1f);
    row[15] = __fsub_rn(v, 0.1f);
    row[16] = __fmul_rn(v, 0.1f);
    row[17] = __fdiv_rn(v, 0.1f);
    row[18] = __fmaf_rn(v, v, -1.0f);
    row[19] = fmaf(v, v, -1.0f);
    row[20] = max(v, 1.0f);
    row[21] = min(v, 1.0f);
    row[22] = __int_as_float(__float_as_int(v));
    row[23] = __uint_as_float(__float_as_uint(v));
    row[24] = tanhf(v) + erff(v) + sqrt(v) + exp(v) + fabsf(-v) + abs(-v);
    row[25] = float(isnan(v)) + float(isfinite(v));
}

__global__ void double_functions(const double* x, double* out) {
    const double v = x[threadIdx.x];
    double* row = out + 10 * threadIdx.x;
    row[0] = rsqrt(v);
    row[1] = __dadd_rn(v, 0.1);
    row[2] = __dsub_rn(v, 0.1);
    row[3] = __dmul_rn(v, 0.1);
    row[4] = __ddiv_rn(v, 0.1);
    row[5] = __fma_rn(v, v, -1.0);
    row[6] = fma(v, v, -1.0);
    row[7] = max(v, 1.0);
    row[8] = min(v, 1.0);
    row[9] = __longlong_as_double(__double_as_longlong(v));
}

__global__ void integer_functions(const int* x, long long* out) {
    const int v = x[threadIdx.x];
    const long long wide = (long long)v << 20;
    long long* row = out + 10 * threadIdx.x;
    row[0] = __popc(v);
    row[1] = __popcll(wide);
    row[2] = __ffs(v);
    row[3] = __ffsll(wide);
    row[4] = __clz(v);
    row[5] = __clzll(wide);
    row[6] = min(v, 3);
    row[7] = max(v, 3);
    row[8] = max(wide, 3LL) + min(wide, 3LL);
    row[9] = min((unsigned int)v, 3u) + max((unsigned long long)wide, 3ull);
}

__global__ void vectors(const float4* __restrict__ x, float4* y, const double2* a, double2* b) {
    static_assert(alignof(float4) == 16 && alignof(float2) == 8 && alignof(double2) == 16 && sizeof(float3) == 12, "");
    static_assert(alignof(int4) == 16 && alignof(uint2) == 8 && alignof(longlong2) == 16 && sizeof(int3) == 12, "");
    const float4 v = __ldg(x + threadIdx.x);
    const int2 order = make_int2(1, 2);
    y[threadIdx.x] = make_float4(v.w, v.z * float(order.x), v.y, v.x * float(order.y));
    const double2 c = a[threadIdx.x];
    b[threadIdx.x] = make_double2(c.y, c.x);
}

template <typename T>
__global__ void cached(const T* x, T* y) {
    __stcs(y + threadIdx.x, T(__ldg(x + threadIdx.x) + __ldcs(x + threadIdx.x)));
}

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

// Block-wide sum: barriers, shuffles and shared memory together.
template <typename T>
__global__ void block_sum(const T* __restrict__ x, T* sums, int n) {
    __shared__ T parts[32];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    T sum = i < n ? x[i] : T(0);
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, step);
    }
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : T(0);
        for (int step = 16; step > 0; step /= 2) {
            sum += __shfl_down_sync(0xffffffffu, sum, step);
        }
        if (threadIdx.x == 0) {
            sums[blockIdx.x] = sum;
        }
    }
}

// A device-only instruction has a host branch: what the lanes do together is a finish function.
__device__ float4 warp_total(float4 mine) {
#ifdef TRIGRAPH_GPU_HOST
    const auto finish = [](cuda_host::Collective& warp) {
        float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int lane = 0; lane < 32; lane++) {
            const float4& v = *reinterpret_cast<const float4*>(warp.value[lane]);
            total = make_float4(total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w);
        }
        for (int lane = 0; lane < 32; lane++) {
            *reinterpret_cast<float4*>(warp.value[lane]) = total;
        }
    };
    const auto address = reinterpret_cast<cuda_host::Bits>(&mine);
    cuda_host::collective("warp_total", 0xffffffffu, finish, address, 0, {__FILE__, __LINE__});
    return mine;
#else
    for (int step = 16; step > 0; step /= 2) {
        mine.x += __shfl_xor_sync(0xffffffffu, mine.x, step);
        mine.y += __shfl_xor_sync(0xffffffffu, mine.y, step);
        mine.z += __shfl_xor_sync(0xffffffffu, mine.z, step);
        mine.w += __shfl_xor_sync(0xffffffffu, mine.w, step);
    }
    return mine;
#endif
}

__global__ void own_collective(const float4* x, float4* out) { out[threadIdx.x] = warp_total(x[threadIdx.x]); }

__global__ void scalars(double* out, bool flag, int i, long long wide, float x, double y, const double* nothing) {
    out[0] = double(flag);
    out[1] = double(i);
    out[2] = double(wide);
    out[3] = double(x);
    out[4] = y;
    out[5] = nothing == nullptr ? 1.0 : 0.0;
    __threadfence_block();
    __threadfence();
}

__global__ void no_arguments() { __syncthreads(); }

template <typename T>
__global__ void scale(const T* __restrict__ x, T* __restrict__ y, T factor, long long n) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = factor * x[i];
    }
}
