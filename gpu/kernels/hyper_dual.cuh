// Hyper-dual numbers value + along_a e + along_c h + both e h, with e^2 = h^2 = 0, for automatic differentiation.
//
// Let a, c, g and c_g be the arguments with the prefixes gg_, ggg_, grad_ and ggg_grad_. Then bwd3 is the gradient of
// the coefficient of eh in <g + c_g h, F(x + a e + c h)>. If F and bwd are evaluated with hyper-dual numbers, the
// gradient with respect to g is the coefficient of eh in F, and the gradients with respect to x and a are the
// coefficients of eh and h in bwd.
#pragma once

template <class T> struct HyperDual {
    T value = T(0), along_a = T(0), along_c = T(0), both = T(0);
};

// Loads element i of an input and its two directions; a direction is zero if its pointer is null.
template <class T>
__device__ __forceinline__ HyperDual<T> load_input(const T* value, const T* along_a, const T* along_c, long long i) {
    return {value[i], along_a != nullptr ? along_a[i] : T(0), along_c != nullptr ? along_c[i] : T(0), T(0)};
}

// Loads element i of the gradient of an output, g + c_g h.
template <class T> __device__ __forceinline__ HyperDual<T> load_gradient(const T* value, const T* along_c, long long i) {
    return load_input<T>(value, nullptr, along_c, i);
}

template <class T> __device__ __forceinline__ HyperDual<T> operator+(const HyperDual<T>& x, const HyperDual<T>& y) {
    return {x.value + y.value, x.along_a + y.along_a, x.along_c + y.along_c, x.both + y.both};
}

template <class T> __device__ __forceinline__ HyperDual<T> operator-(const HyperDual<T>& x, const HyperDual<T>& y) {
    return {x.value - y.value, x.along_a - y.along_a, x.along_c - y.along_c, x.both - y.both};
}

template <class T> __device__ __forceinline__ HyperDual<T> operator*(const HyperDual<T>& x, const HyperDual<T>& y) {
    return {x.value * y.value, x.value * y.along_a + x.along_a * y.value, x.value * y.along_c + x.along_c * y.value,
            x.value * y.both + x.along_a * y.along_c + x.along_c * y.along_a + x.both * y.value};
}

template <class T> __device__ __forceinline__ HyperDual<T> operator*(T a, const HyperDual<T>& x) {
    return {a * x.value, a * x.along_a, a * x.along_c, a * x.both};
}

// Returns f(x), given f, f' and f'' at x.value.
template <class T> __device__ __forceinline__ HyperDual<T> apply_function(const HyperDual<T>& x, T f, T d1, T d2) {
    return {f, d1 * x.along_a, d1 * x.along_c, d1 * x.both + d2 * (x.along_a * x.along_c)};
}
