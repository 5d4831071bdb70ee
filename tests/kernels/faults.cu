// Faulty kernels; if the template argument is true, they are correct. Checks must distinguish the two versions.

template <bool right>
__global__ void missing_barrier(float* y) {
    __shared__ float tile[64];
    tile[threadIdx.x] = 0.0f;
    __syncthreads();
    tile[threadIdx.x] = float(threadIdx.x);
    if constexpr (right) {
        __syncthreads();
    }
    y[threadIdx.x] = tile[63 - threadIdx.x];
}

// A chain of barriers (lanes 16-31, 8-23, 0-15) orders lane 31's write before lane 0's read.
template <bool right>
__global__ void broken_syncwarp_chain(float* y) {
    __shared__ float cell;
    const unsigned int lane = threadIdx.x;
    if (lane == 31) {
        cell = 5.0f;
    }
    if (lane >= 16) {
        __syncwarp(0xffff0000u);
    }
    if (right && lane >= 8 && lane < 24) {
        __syncwarp(0x00ffff00u);
    }
    if (lane < 16) {
        __syncwarp(0x0000ffffu);
    }
    if (lane == 0) {
        y[0] = cell;
    }
}

template <bool right>
__global__ void race_between_blocks(float* y) {
    if (right || blockIdx.x == 0) {
        y[blockIdx.x] = 1.0f;
    }
    if (!right && blockIdx.x == 1) {
        y[1] = y[0];
    }
}

template <bool right>
__global__ void uninitialised_read(float* y) {
    __shared__ float tile[64];
    if (right || threadIdx.x != 5) {
        tile[threadIdx.x] = 1.0f;
    }
    y[threadIdx.x] = tile[threadIdx.x];
}

// Threads may write different bytes of the same word, but must not read them without a barrier.
template <bool right>
__global__ void unsynchronised_bytes(int* y) {
    extern __shared__ int words[];
    unsigned char* bytes = reinterpret_cast<unsigned char*>(words);
    bytes[threadIdx.x] = (unsigned char)(threadIdx.x);
    if constexpr (right) {
        __syncthreads();
    }
    y[threadIdx.x] = bytes[(threadIdx.x + 1) % blockDim.x];
}

template <bool right>
__global__ void read_outside_array(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x + (right ? 0 : 1)];
}

template <bool right>
__global__ void write_outside_array(float* y) {
    y[int(threadIdx.x) - (right ? 0 : 1)] = 1.0f;
}

// The caller passes `beyond`, so that the compiler cannot detect the invalid access.
template <bool right>
__global__ void read_outside_shared(float* y, int beyond) {
    __shared__ float tile[64];
    tile[threadIdx.x] = 1.0f;
    __syncthreads();
    const float* row = tile;
    y[threadIdx.x] = row[threadIdx.x + (right ? 0 : beyond)];
}

template <bool right>
__global__ void write_outside_dynamic(float* y) {
    extern __shared__ float buffer[];
    buffer[threadIdx.x + (right ? 0 : 1)] = 1.0f;
    __syncthreads();
    y[threadIdx.x] = buffer[threadIdx.x];
}

template <bool right>
__global__ void read_outside_local(float* y, int last) {
    float local[8];
    for (int i = 0; i < 8; i++) {
        local[i] = float(i);
    }
    __syncthreads();  // switches fibers, so that `local` is then on a resumed stack
    const float* row = local;
    y[threadIdx.x] = row[right ? last : last + 1];
}

template <bool right>
__global__ void misaligned_read(const float* x, float* y) {
    const float4 v = *reinterpret_cast<const float4*>(x + (right ? 4 : 1));
    y[threadIdx.x] = v.x + v.y + v.z + v.w;
}

template <bool right>
__global__ void null_pointer_read(const float* x, float* y) {
    y[threadIdx.x] = right && x == nullptr ? 0.0f : x[threadIdx.x];
}

// ---- faults that every build detects, because no thread can continue ------------------------------------------------

template <bool right>
__global__ void deadlock(float* y) {
    if (right || threadIdx.x < 40) {
        __syncthreads();
    }
    y[threadIdx.x] = 1.0f;
}

template <bool right>
__global__ void different_barriers(float* y) {
    if (!right && threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    y[threadIdx.x] = 1.0f;
}

template <bool right>
__global__ void different_collectives(int* y) {
    if (right || threadIdx.x < 16) {
        y[threadIdx.x] = __any_sync(0xffffffffu, 1);
    } else {
        y[threadIdx.x] = __all_sync(0xffffffffu, 1);
    }
}

template <bool right>
__global__ void returned_lane(float* y) {
    if (threadIdx.x >= 20) {
        return;
    }
    y[threadIdx.x] = __shfl_sync(right ? 0x000fffffu : 0xffffffffu, float(threadIdx.x), 0);
}

// Lane 31 returns while all other lanes wait for it.
template <bool right>
__global__ void lane_returning_during_wait(float* y) {
    if (!right && threadIdx.x == 31) {
        return;
    }
    __syncwarp(0xffffffffu);
    y[threadIdx.x] = 1.0f;
}

template <bool right>
__global__ void mask_beyond_block(int* y) {  // launched with 40 threads
    const unsigned int mask = right && threadIdx.x >= 32 ? 0x000000ffu : 0xffffffffu;
    y[threadIdx.x] = __any_sync(mask, 1);
}

template <bool right>
__global__ void caller_not_in_mask(int* y) {
    const unsigned int mask = 0x0000ffffu;
    if (!right || threadIdx.x < 16) {
        y[threadIdx.x] = __any_sync(mask, 1);
    }
}

template <bool right>
__global__ void source_not_in_mask(float* y) {
    const unsigned int mask = 0x0000ffffu;
    if (threadIdx.x < 16) {
        y[threadIdx.x] = __shfl_xor_sync(mask, float(threadIdx.x), 16, right ? 16 : 32);
    }
}

template <bool right>
__global__ void invalid_shuffle_width(float* y, int width) {
    y[threadIdx.x] = __shfl_sync(0xffffffffu, float(threadIdx.x), 0, right ? 32 : width);
}
