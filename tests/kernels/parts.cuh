// Included by primitives.cu, to show that an included file is rewritten too.
#pragma once

#include "parts_table.cuh"

template <typename T>
__device__ __forceinline__ T tail_of_block(T value) {
    __shared__ T last;  // a scalar, in a device function
    if (threadIdx.x == blockDim.x - 1) {
        last = value;
    }
    __syncthreads();
    return last;
}
