// Asynchronous copies from global to shared memory (cp.async), which are synchronous on devices of compute capability
// 7.5. In gpu-host, `wait` performs the copies, so that a kernel that fails to wait reads old values.
#pragma once

#include "rows.cuh"

struct AsyncCopies {
#ifdef TRIGRAPH_GPU_HOST
    struct PendingCopy {
        char* to;
        const char* from;
        int bytes;
        bool any;
    };
    PendingCopy pending[64];
    int count = 0;
#endif

    // Begins to set to[i], for i < n, to from[i] if `any`, else to 0. The n values have 4, 8 or 16 bytes in total, and
    // are aligned to their total size.
    template <int n, class T> __device__ void begin_copy(T* to, const T* from, bool any) {
        constexpr int bytes = n * int(sizeof(T));
#if defined(TRIGRAPH_GPU_HOST)
        pending[count++] = {reinterpret_cast<char*>(to), reinterpret_cast<const char*>(from), bytes, any};
#elif __CUDA_ARCH__ >= 800
        const unsigned target = unsigned(__cvta_generic_to_shared(to));
        const int read = any ? bytes : 0;
        if (bytes == 16) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(from), "r"(read) : "memory");
        } else {
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(from), "n"(bytes), "r"(read)
                         : "memory");
        }
#else
        store_pack(to, any ? load_pack<n>(from) : Pack<T, n>{});
#endif
    }

    // Waits for the copies of this thread; call __syncthreads() as well to wait for the copies of all threads.
    __device__ void wait() {
#if defined(TRIGRAPH_GPU_HOST)
        for (int i = 0; i < count; i++) {
            for (int b = 0; b < pending[i].bytes; b += 4) {  // in the 4-byte units of the race detector
                unsigned word = 0;
                if (pending[i].any) {
                    memcpy(&word, pending[i].from + b, 4);
                }
                memcpy(pending[i].to + b, &word, 4);
            }
        }
        count = 0;
#elif __CUDA_ARCH__ >= 800
        asm volatile("cp.async.wait_all;" ::: "memory");
#endif
    }
};

// Begins to fill `lines` lines of `length` values in shared memory. The first `num` values of the first `num_lines`
// lines are copied, 16 bytes at a time if `wide`; all other values are set to zero. Lines are `pitch` elements apart in
// global memory and `stride` elements apart in shared memory.
template <int lines, int length, int stride, class T>
__device__ void begin_line_copies(AsyncCopies& copies, const T* from, long long pitch, int num_lines, int num,
                                  bool wide, T* to) {
    constexpr int pack = 16 / int(sizeof(T)), packs = length / pack;
    if (wide) {
#pragma unroll
        for (int i = 0; i < lines * packs; i += THREADS) {
            const int line = (i + int(threadIdx.x)) / packs, x = (i + int(threadIdx.x)) % packs * pack;
            if (lines * packs % THREADS == 0 || line < lines) {
                const bool any = line < num_lines && x < num;
                copies.begin_copy<pack>(to + line * stride + x, any ? from + line * pitch + x : from, any);
            }
        }
    } else {
#pragma unroll 1
        for (int i = int(threadIdx.x); i < lines * length; i += THREADS) {
            const int line = i / length, x = i % length;
            const bool any = line < num_lines && x < num;
            copies.begin_copy<1>(to + line * stride + x, any ? from + line * pitch + x : from, any);
        }
    }
}
