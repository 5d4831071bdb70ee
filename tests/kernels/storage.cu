// Conversions between what arrays are stored in and what is computed in.
#include "../../gpu/kernels/gat_storage.cuh"

template <class S> __global__ void storage_read(const S* stored, Compute<S>* values, int count) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) {
        values[i] = Storage<S>::value(stored[i]);
    }
}

template <class S> __global__ void storage_round(const Compute<S>* values, S* stored, int count) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) {
        stored[i] = Storage<S>::rounded(values[i]);
    }
}
