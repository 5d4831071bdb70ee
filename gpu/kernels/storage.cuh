// Types that arrays are stored in, and the type that is computed in: a kernel that takes a storage type S computes in
// Compute<S>, reads with `value` and writes with `rounded`.
#pragma once

template <class S> struct Storage {
    using Compute = S;
    static __device__ S value(S stored) { return stored; }
    static __device__ S rounded(S value) { return value; }
};

template <class S> using Compute = typename Storage<S>::Compute;
