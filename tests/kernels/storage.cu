// A kernel that rounds computed values to the storage type of arrays.
#include "../../gpu/kernels/gat_storage.cuh"

template <class S> __global__ void round_to_storage(const Compute<S>* values, S* stored, int count) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) {
        stored[i] = Storage<S>::rounded(values[i]);
    }
}
