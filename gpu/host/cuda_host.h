// CUDA C++ as one operating-system thread of a CPU understands it: included before every kernel source of the host
// build.
//
// The same .cu file is compiled by NVRTC for the device and, behind this header, by a C++17 compiler for the host.
// Blocks run one after the other, the threads of a block as fibers (runtime.cpp); a thread gives way only at a barrier
// or at a warp collective. What CUDA leaves undefined and a device would answer with a hang or with garbage (a barrier
// not reached by all, a shuffle from a lane that is not there) ends the launch with an error that names the source
// line.
//
// Not here on purpose: floating-point atomics (results must not depend on the schedule) and __activemask (masks are
// explicit).
#pragma once

// The standard headers come first: libstdc++ uses names such as __noinline__ in its own attributes.
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <string>
#include <type_traits>
#include <utility>

// One process may load several of these libraries; none may see the other's threadIdx or shared arrays.
#pragma GCC visibility push(hidden)

#define TRIGRAPH_GPU_HOST 1

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))

// ---------------------------------------------------------------------------------------------------------------------
// Vector types, with the alignment the device asks for (the asan build reports a misaligned access)
// ---------------------------------------------------------------------------------------------------------------------
#define CUDA_HOST_VECTORS(T, name, align2, align4)                     \
    struct alignas(align2) name##2 { T x, y; };                        \
    struct name##3 { T x, y, z; };                                     \
    struct alignas(align4) name##4 { T x, y, z, w; };                  \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }         \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUDA_HOST_VECTORS(float, float, 8, 16)
CUDA_HOST_VECTORS(double, double, 16, 16)
CUDA_HOST_VECTORS(int, int, 8, 16)
CUDA_HOST_VECTORS(unsigned int, uint, 8, 16)
CUDA_HOST_VECTORS(long long, longlong, 16, 16)
#undef CUDA_HOST_VECTORS

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Set by the scheduler whenever another thread gets its turn. Each thread always finds its own values here.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
constexpr int warpSize = 32;

// ---------------------------------------------------------------------------------------------------------------------
// What the runtime offers to this header and to device wrappers of kernel sources (such as a host branch for mma)
// ---------------------------------------------------------------------------------------------------------------------
namespace cuda_host {

using Bits = unsigned long long;

struct Site {
    const char* file;
    int line;
};

// One warp operation: every lane of `mask` has left its value and argument; `finish` fills in every lane's result.
struct Collective {
    const char* name;
    unsigned int mask;
    Bits value[32];
    Bits argument[32];
    Bits result[32];
};
using Finish = void (*)(Collective&);

// Waits for every lane of `mask`; the last one to arrive runs `finish` for all. A value larger than 8 bytes goes as the
// address of the lane's local variable, which stays valid until the call returns.
Bits collective(const char* name, unsigned int mask, Finish finish, Bits value, Bits argument, Site site);

void barrier(Site site);

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

void finish_syncwarp(Collective& warp);
void finish_ballot(Collective& warp);
void finish_match_any(Collective& warp);
void finish_shuffle_index(Collective& warp);
void finish_shuffle_up(Collective& warp);
void finish_shuffle_down(Collective& warp);
void finish_shuffle_xor(Collective& warp);

template <class T>
Bits to_bits(T value) {
    static_assert(std::is_arithmetic<T>::value && sizeof(T) <= sizeof(Bits), "warp operations take arithmetic types");
    Bits bits = 0;
    memcpy(&bits, &value, sizeof(T));
    return bits;
}

template <class T>
T from_bits(Bits bits) {
    T value;
    memcpy(&value, &bits, sizeof(T));
    return value;
}

template <class To, class From>
To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

template <class T>
T shuffle(const char* name, Finish finish, unsigned int mask, T value, int lane, int width, Site site) {
    const Bits argument = (Bits(unsigned(width)) << 32) | unsigned(lane);
    return from_bits<T>(collective(name, mask, finish, to_bits(value), argument, site));
}

// A __shared__ array: its own heap allocation (so that a sanitizer sees its ends), refilled with 0xFF for each block.
struct SharedArray {
    size_t bytes;
    size_t element_bytes;
    void* data;
    Bits block;
};
extern Bits block_serial;
void refill(SharedArray& array, const char* name);
void* dynamic_shared(const char* name, size_t element_bytes);

// build.py turns each `__shared__ T x[n];` into a reference to this; `declaration` numbers the declarations of the
// source.
template <class Array, int declaration>
Array& static_shared(const char* name) {
    static SharedArray array{sizeof(Array), sizeof(std::remove_all_extents_t<Array>), nullptr, 0};
    if (array.block != block_serial) {
        refill(array, name);
    }
    return *static_cast<Array*>(array.data);
}

}  // namespace cuda_host

// ---------------------------------------------------------------------------------------------------------------------
// Barriers, warp collectives, fences
// ---------------------------------------------------------------------------------------------------------------------
#define CUDA_HOST_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(CUDA_HOST_SITE) { cuda_host::barrier({file, line}); }

inline void __syncwarp(unsigned int mask = 0xffffffffu, CUDA_HOST_SITE) {
    cuda_host::collective("__syncwarp", mask, cuda_host::finish_syncwarp, 0, 0, {file, line});
}

template <class T>
T __shfl_sync(unsigned int mask, T value, int lane, int width = 32, CUDA_HOST_SITE) {
    return cuda_host::shuffle("__shfl_sync", cuda_host::finish_shuffle_index, mask, value, lane, width, {file, line});
}

template <class T>
T __shfl_up_sync(unsigned int mask, T value, unsigned int delta, int width = 32, CUDA_HOST_SITE) {
    return cuda_host::shuffle("__shfl_up_sync", cuda_host::finish_shuffle_up, mask, value, int(delta), width,
                              {file, line});
}

template <class T>
T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = 32, CUDA_HOST_SITE) {
    return cuda_host::shuffle("__shfl_down_sync", cuda_host::finish_shuffle_down, mask, value, int(delta), width,
                              {file, line});
}

template <class T>
T __shfl_xor_sync(unsigned int mask, T value, int lane_mask, int width = 32, CUDA_HOST_SITE) {
    return cuda_host::shuffle("__shfl_xor_sync", cuda_host::finish_shuffle_xor, mask, value, lane_mask, width,
                              {file, line});
}

inline unsigned int __ballot_sync(unsigned int mask, int predicate, CUDA_HOST_SITE) {
    return unsigned(
        cuda_host::collective("__ballot_sync", mask, cuda_host::finish_ballot, predicate != 0, 0, {file, line}));
}

inline int __any_sync(unsigned int mask, int predicate, CUDA_HOST_SITE) {
    return cuda_host::collective("__any_sync", mask, cuda_host::finish_ballot, predicate != 0, 0, {file, line}) != 0;
}

inline int __all_sync(unsigned int mask, int predicate, CUDA_HOST_SITE) {
    return cuda_host::collective("__all_sync", mask, cuda_host::finish_ballot, predicate != 0, 0, {file, line}) == mask;
}

template <class T>
unsigned int __match_any_sync(unsigned int mask, T value, CUDA_HOST_SITE) {
    return unsigned(cuda_host::collective("__match_any_sync", mask, cuda_host::finish_match_any,
                                          cuda_host::to_bits(value), 0, {file, line}));
}

[[noreturn]] inline void __trap(CUDA_HOST_SITE) { cuda_host::fail("__trap() at %s:%d", file, line); }

// One OS thread runs everything, in program order: nothing to wait for.
inline void __threadfence() {}
inline void __threadfence_block() {}

#undef CUDA_HOST_SITE

// ---------------------------------------------------------------------------------------------------------------------
// Integer atomics, for the types that CUDA has them for. The relaxed builtins cost nothing here, and the race build
// sees that they are atomic.
// ---------------------------------------------------------------------------------------------------------------------
namespace cuda_host {
template <class T, class... Types>
using OneOf = std::enable_if_t<(std::is_same<T, Types>::value || ...), T>;
template <class T>
using Word = OneOf<T, int, unsigned int, unsigned long long>;
template <class T>
using Ordered = OneOf<T, int, unsigned int, long long, unsigned long long>;
template <class T>
using Value = std::common_type_t<T>;  // a value converts to what the pointer points to
}  // namespace cuda_host

template <class T>
cuda_host::Word<T> atomicAdd(T* address, cuda_host::Value<T> value) {
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
template <class T>
cuda_host::OneOf<T, int, unsigned int> atomicSub(T* address, cuda_host::Value<T> value) {
    return __atomic_fetch_sub(address, value, __ATOMIC_RELAXED);
}
template <class T>
cuda_host::Word<T> atomicAnd(T* address, cuda_host::Value<T> value) {
    return __atomic_fetch_and(address, value, __ATOMIC_RELAXED);
}
template <class T>
cuda_host::Word<T> atomicOr(T* address, cuda_host::Value<T> value) {
    return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);
}
template <class T>
cuda_host::Word<T> atomicXor(T* address, cuda_host::Value<T> value) {
    return __atomic_fetch_xor(address, value, __ATOMIC_RELAXED);
}
template <class T>
cuda_host::Word<T> atomicExch(T* address, cuda_host::Value<T> value) {
    return __atomic_exchange_n(address, value, __ATOMIC_RELAXED);
}
template <class T>
cuda_host::Word<T> atomicCAS(T* address, cuda_host::Value<T> expected, cuda_host::Value<T> desired) {
    T found = expected;
    __atomic_compare_exchange_n(address, &found, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return found;
}
template <class T>
cuda_host::Ordered<T> atomicMax(T* address, cuda_host::Value<T> value) {
    T old = __atomic_load_n(address, __ATOMIC_RELAXED);
    __atomic_store_n(address, old < value ? value : old, __ATOMIC_RELAXED);
    return old;
}
template <class T>
cuda_host::Ordered<T> atomicMin(T* address, cuda_host::Value<T> value) {
    T old = __atomic_load_n(address, __ATOMIC_RELAXED);
    __atomic_store_n(address, value < old ? value : old, __ATOMIC_RELAXED);
    return old;
}

// ---------------------------------------------------------------------------------------------------------------------
// Loads with a cache hint, bit casts, bit counts
// ---------------------------------------------------------------------------------------------------------------------
template <class T>
T __ldg(const T* address) {
    return *address;
}
template <class T>
T __ldcs(const T* address) {
    return *address;
}
template <class T>
void __stcs(T* address, T value) {
    *address = value;
}

inline int __float_as_int(float x) { return cuda_host::bit_cast<int>(x); }
inline unsigned int __float_as_uint(float x) { return cuda_host::bit_cast<unsigned int>(x); }
inline float __int_as_float(int x) { return cuda_host::bit_cast<float>(x); }
inline float __uint_as_float(unsigned int x) { return cuda_host::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return cuda_host::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return cuda_host::bit_cast<double>(x); }

inline int __popc(unsigned int x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)(x)); }

// ---------------------------------------------------------------------------------------------------------------------
// Mathematics that math.h lacks. The fast intrinsics are the accurate functions here: compare with tolerances.
// ---------------------------------------------------------------------------------------------------------------------
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline void __sincosf(float x, float* sine, float* cosine) {
    *sine = sinf(x);
    *cosine = cosf(x);
}
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

// The device's min and max of floating-point numbers are fmin and fmax: a NaN loses against a number.
#define CUDA_HOST_MINMAX(T)                             \
    constexpr T min(T a, T b) { return b < a ? b : a; } \
    constexpr T max(T a, T b) { return a < b ? b : a; }
CUDA_HOST_MINMAX(int)
CUDA_HOST_MINMAX(unsigned int)
CUDA_HOST_MINMAX(long)
CUDA_HOST_MINMAX(unsigned long)
CUDA_HOST_MINMAX(long long)
CUDA_HOST_MINMAX(unsigned long long)
#undef CUDA_HOST_MINMAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// ---------------------------------------------------------------------------------------------------------------------
// Kernel table: build.py ends the generated source with one entry per template instance
// ---------------------------------------------------------------------------------------------------------------------
namespace cuda_host {

// One argument of a launch: the value or the address, and for an array its extent.
struct Argument {
    Bits bits;
    Bits bytes;
    Bits element_bytes;
};

struct Kernel {
    const char* name;        // the name expression, such as gno_hidden<float>
    const char* parameters;  // parameter names, separated by commas
    std::string (*signature)();
    void (*run)(const Argument* arguments);
};

template <class T>
struct TypeName;
#define CUDA_HOST_TYPE(T)                        \
    template <>                                  \
    struct TypeName<T> {                         \
        static std::string text() { return #T; } \
    };
CUDA_HOST_TYPE(bool)
CUDA_HOST_TYPE(signed char)
CUDA_HOST_TYPE(unsigned char)
CUDA_HOST_TYPE(short)
CUDA_HOST_TYPE(unsigned short)
CUDA_HOST_TYPE(int)
CUDA_HOST_TYPE(unsigned int)
CUDA_HOST_TYPE(long long)
CUDA_HOST_TYPE(unsigned long long)
CUDA_HOST_TYPE(float)
CUDA_HOST_TYPE(double)
CUDA_HOST_TYPE(float2)
CUDA_HOST_TYPE(float4)
CUDA_HOST_TYPE(double2)
CUDA_HOST_TYPE(int2)
CUDA_HOST_TYPE(int4)
#undef CUDA_HOST_TYPE
template <class T>
struct TypeName<const T> {
    static std::string text() { return "const " + TypeName<T>::text(); }
};
template <class T>
struct TypeName<T*> {
    static std::string text() { return TypeName<T>::text() + "*"; }
};

template <auto kernel>
struct Entry;
template <class... P, void (*kernel)(P...)>
struct Entry<kernel> {
    static std::string signature() {
        std::string text;
        ((text += (text.empty() ? "" : ",") + TypeName<P>::text()), ...);
        return text;
    }
    static void run(const Argument* arguments) { call(arguments, std::index_sequence_for<P...>()); }

  private:
    template <size_t... i>
    static void call([[maybe_unused]] const Argument* arguments, std::index_sequence<i...>) {
        kernel(from_bits<P>(arguments[i].bits)...);
    }
};

extern const char* const family;
extern const Kernel kernels[];
extern const int num_kernels;

}  // namespace cuda_host
