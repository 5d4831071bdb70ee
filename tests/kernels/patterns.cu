// The usual patterns of kernels, each with its barriers numbered: `without` leaves one of them out (0: none).
//
// With all barriers the race build must be silent and the result right; without any one of them it must speak up.

#define BARRIER(number)        \
    if (without != (number)) { \
        __syncthreads();       \
    }
#define WARP_BARRIER(number)   \
    if (without != (number)) { \
        __syncwarp();          \
    }

// c = a b, square of side n, tiles of 8 by 8; threads (8, 8), so that a warp spans four rows.
__global__ void matrix_product(const float* __restrict__ a, const float* __restrict__ b, float* c, int n, int without) {
    __shared__ float tile_a[8][8];
    __shared__ float tile_b[8][8 + 1];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * 8 + y, column = blockIdx.x * 8 + x;
    float sum = 0.0f;
    for (int k = 0; k < n; k += 8) {
        tile_a[y][x] = row < n && k + x < n ? a[row * n + k + x] : 0.0f;
        tile_b[y][x] = k + y < n && column < n ? b[(k + y) * n + column] : 0.0f;
        BARRIER(1)
        for (int i = 0; i < 8; i++) {
            sum += tile_a[y][i] * tile_b[i][x];
        }
        BARRIER(2)
    }
    if (row < n && column < n) {
        c[row * n + column] = sum;
    }
}

// The same with two buffers: one barrier for each round is enough.
__global__ void double_buffer(const double* __restrict__ x, double* y, int rounds, int without) {
    __shared__ double buffer[2][64];
    const int thread = threadIdx.x;
    double sum = 0.0;
    buffer[0][thread] = x[thread];
    for (int round = 0; round < rounds; round++) {
        BARRIER(1)
        sum += buffer[round % 2][63 - thread];
        if (round + 1 < rounds) {
            buffer[(round + 1) % 2][thread] = x[64 * (round + 1) + thread];
        }
    }
    y[thread] = sum;
}

// Inclusive sum over 128 elements of a block, in place.
__global__ void scan(int* x, int without) {
    __shared__ int sums[128];
    sums[threadIdx.x] = x[128 * blockIdx.x + threadIdx.x];
    BARRIER(1)
    for (int step = 1; step < 128; step *= 2) {
        const int before = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
        BARRIER(2)
        sums[threadIdx.x] += before;
        BARRIER(3)
    }
    x[128 * blockIdx.x + threadIdx.x] = sums[threadIdx.x];
}

// A segment for each warp, its lanes over the segment, partial sums through shared memory.
template <typename I>
__global__ void segment_sums(const float* x, const I* offsets, float* sums, I num_segments, int without) {
    __shared__ float parts[4][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (I segment = I(blockIdx.x) * 4 + warp; segment < num_segments; segment += I(gridDim.x) * 4) {
        float sum = 0.0f;
        for (I i = offsets[segment] + lane; i < offsets[segment + 1]; i += 32) {
            sum += x[i];
        }
        parts[warp][lane] = sum;
        WARP_BARRIER(1)
        for (int step = 16; step > 0; step /= 2) {
            if (lane < step) {
                parts[warp][lane] += parts[warp][lane + step];
            }
            WARP_BARRIER(2)
        }
        if (lane == 31) {
            sums[segment] = parts[warp][0];
        }
        WARP_BARRIER(3)
    }
}

// One dynamic buffer cut into arrays of two types; four floats at a time in, single ones out.
__global__ void cut_buffer(const float4* x, float* y, double* z, int without) {
    extern __shared__ unsigned char buffer[];
    double* const wide = reinterpret_cast<double*>(buffer);
    float* const narrow = reinterpret_cast<float*>(buffer + 64 * sizeof(double));
    reinterpret_cast<float4*>(narrow)[threadIdx.x] = x[threadIdx.x];
    wide[threadIdx.x] = double(x[threadIdx.x].w);
    BARRIER(1)
    for (int i = threadIdx.x; i < 256; i += 64) {
        y[i] = narrow[255 - i];
    }
    z[threadIdx.x] = wide[63 - threadIdx.x];
}

// The first warp makes, the second one takes.
__global__ void two_roles(float* y, int rounds, int without) {
    __shared__ float box[32];
    float sum = 0.0f;
    for (int round = 0; round < rounds; round++) {
        if (threadIdx.x < 32) {
            box[threadIdx.x] = float(round);
        }
        BARRIER(1)
        if (threadIdx.x >= 32) {
            sum += box[63 - threadIdx.x];
        }
        BARRIER(2)
    }
    if (threadIdx.x >= 32) {
        y[threadIdx.x - 32] = sum;
    }
}

// Integer histogram: atomics in shared memory, then on the device's.
__global__ void histogram(const int* x, int* counts, int n, int without) {
    __shared__ int local[16];
    if (threadIdx.x < 16) {
        local[threadIdx.x] = 0;
    }
    BARRIER(1)
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        atomicAdd(&local[x[i]], 1);
    }
    BARRIER(2)
    if (threadIdx.x < 16) {
        atomicAdd(&counts[threadIdx.x], local[threadIdx.x]);
    }
}

// A tree over threads in global memory: barriers order that too, within a block.
__global__ void tree_in_global(float* x, int without) {
    float* const mine = x + 64 * blockIdx.x;
    for (int step = 32; step > 0; step /= 2) {
        if (threadIdx.x < step) {
            mine[threadIdx.x] += mine[threadIdx.x + step];
        }
        BARRIER(1)
    }
}
