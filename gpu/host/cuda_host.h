// Emulation of CUDA C++ in a single OS thread. The host build includes this header before each kernel source.
//
// The same .cu file is compiled by NVRTC for the device and, with this header, by a C++17 compiler for the host. Blocks
// run one after another; the threads of a block are fibers (runtime.cpp), which switch only at barriers and warp
// collectives. Where the behaviour of CUDA is undefined, so that a device might hang or compute garbage (a barrier that
// some threads do not reach, a shuffle from a missing lane), the launch fails with an error that names the source line.
//
// The header provides only the features that kernels use. Atomics are omitted on purpose, because results must not
// depend on the schedule, and __activemask, because masks must be explicit.
#pragma once

// Standard headers must precede the macros below, because libstdc++ uses names such as __noinline__ in its attributes.
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <string>
#include <type_traits>
#include <utility>

// Symbols are hidden, because a process may load several libraries, each with its own threadIdx and shared arrays.
#pragma GCC visibility push(hidden)

#define TRIGRAPH_GPU_HOST 1

#define __global__
#define __device__
#define __constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((align(bytes)))

// ---------------------------------------------------------------------------------------------------------------------
// Vector types, aligned as on the device (the asan build reports misaligned accesses)
// ---------------------------------------------------------------------------------------------------------------------
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};

struct uint3 {
    unsigned int x, y, z;
};

// The scheduler updates these variables when it switches threads, so that each thread reads its own indices.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern uint3 blockDim;
extern uint3 gridDim;

// ---------------------------------------------------------------------------------------------------------------------
// Functions that the runtime provides for this header
// ---------------------------------------------------------------------------------------------------------------------
namespace cuda_host {

using Bits = unsigned long long;

struct CallSite {
    const char* file;
    int line;
};

// A collective operation of a warp. Once every lane of `mask` has stored its value and argument, `finish` computes the
// results of all lanes.
struct WarpCollective {
    const char* name;
    unsigned int mask;
    Bits value[32];
    Bits argument[32];
    Bits result[32];
};
using Finish = void (*)(WarpCollective&);

// Waits for all lanes of `mask`; the last lane to arrive calls `finish` for all of them.
Bits execute_collective(const char* name, unsigned int mask, Finish finish, Bits value, Bits argument, CallSite site);

void wait_at_barrier(CallSite site);

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

void finish_syncwarp(WarpCollective& warp);
void finish_ballot(WarpCollective& warp);
void finish_shuffle_index(WarpCollective& warp);
void finish_shuffle_xor(WarpCollective& warp);
void finish_multiply_add_tiles(WarpCollective& warp);

// Operands that a lane passes to mma.sync.m16n8k16 with bfloat16 numbers, and the sums that it receives.
struct TileOperands {
    const unsigned (&left)[4];
    const unsigned (&right)[2];
    float (&sum)[4];
};

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
T execute_shuffle(const char* name, Finish finish, unsigned int mask, T value, int lane, int width, CallSite site) {
    const Bits argument = (Bits(unsigned(width)) << 32) | unsigned(lane);
    return from_bits<T>(execute_collective(name, mask, finish, to_bits(value), argument, site));
}

// A __shared__ array: a separate heap allocation, so that sanitizers detect overruns; filled with 0xFF for each block.
struct SharedArray {
    size_t bytes;
    size_t element_bytes;
    void* data;
    Bits block;
};
extern Bits block_serial;
void refill_shared_array(SharedArray& array, const char* name);
void* get_dynamic_shared_buffer(const char* name, size_t element_bytes);

// build.py turns each `__shared__ T x[n];` into a reference to this function's result; `declaration` numbers the
// declarations in the source.
template <class Array, int declaration>
Array& get_static_shared_array(const char* name) {
    static SharedArray array{sizeof(Array), sizeof(std::remove_all_extents_t<Array>), nullptr, 0};
    if (array.block != block_serial) {
        refill_shared_array(array, name);
    }
    return *static_cast<Array*>(array.data);
}

}  // namespace cuda_host

// ---------------------------------------------------------------------------------------------------------------------
// Barriers, warp collectives, fences
// ---------------------------------------------------------------------------------------------------------------------
#define CUDA_HOST_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(CUDA_HOST_SITE) { cuda_host::wait_at_barrier({file, line}); }

inline void __syncwarp(unsigned int mask = 0xffffffffu, CUDA_HOST_SITE) {
    cuda_host::execute_collective("__syncwarp", mask, cuda_host::finish_syncwarp, 0, 0, {file, line});
}

template <class T>
T __shfl_sync(unsigned int mask, T value, int lane, int width = 32, CUDA_HOST_SITE) {
    return cuda_host::execute_shuffle("__shfl_sync", cuda_host::finish_shuffle_index, mask, value, lane, width,
                                      {file, line});
}

template <class T>
T __shfl_xor_sync(unsigned int mask, T value, int lane_mask, int width = 32, CUDA_HOST_SITE) {
    return cuda_host::execute_shuffle("__shfl_xor_sync", cuda_host::finish_shuffle_xor, mask, value, lane_mask, width,
                                      {file, line});
}

inline unsigned int __ballot_sync(unsigned int mask, int predicate, CUDA_HOST_SITE) {
    return unsigned(cuda_host::execute_collective("__ballot_sync", mask, cuda_host::finish_ballot, predicate != 0, 0,
                                                  {file, line}));
}

inline int __any_sync(unsigned int mask, int predicate, CUDA_HOST_SITE) {
    return cuda_host::execute_collective("__any_sync", mask, cuda_host::finish_ballot, predicate != 0, 0,
                                         {file, line}) != 0;
}

inline int __all_sync(unsigned int mask, int predicate, CUDA_HOST_SITE) {
    return cuda_host::execute_collective("__all_sync", mask, cuda_host::finish_ballot, predicate != 0, 0,
                                         {file, line}) == mask;
}

namespace cuda_host {
inline void multiply_add_tiles(const unsigned (&left)[4], const unsigned (&right)[2], float (&sum)[4], CUDA_HOST_SITE) {
    TileOperands operands{left, right, sum};  // `operands` exists while the lane waits
    execute_collective("mma.sync", 0xffffffffu, finish_multiply_add_tiles, to_bits(size_t(&operands)), 0, {file, line});
}
}  // namespace cuda_host

#undef CUDA_HOST_SITE

// ---------------------------------------------------------------------------------------------------------------------
// Bit casts
// ---------------------------------------------------------------------------------------------------------------------
inline unsigned int __float_as_uint(float x) { return cuda_host::bit_cast<unsigned int>(x); }
inline float __int_as_float(int x) { return cuda_host::bit_cast<float>(x); }
inline float __uint_as_float(unsigned int x) { return cuda_host::bit_cast<float>(x); }

// min and max as on the device; for floating-point numbers, these are fmin and fmax, which prefer a number to NaN.
constexpr int min(int a, int b) { return b < a ? b : a; }
constexpr int max(int a, int b) { return a < b ? b : a; }
constexpr long long min(long long a, long long b) { return b < a ? b : a; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// ---------------------------------------------------------------------------------------------------------------------
// Kernel table: build.py ends the generated source with one entry per template instance
// ---------------------------------------------------------------------------------------------------------------------
namespace cuda_host {

// One argument of a launch: a value, or the address and extent of an array.
struct LaunchArgument {
    Bits bits;
    Bits bytes;
    Bits element_bytes;
};

struct Kernel {
    const char* name;        // the name expression, such as gno_hidden<float>
    const char* parameters;  // parameter names, separated by commas
    std::string (*signature)();
    void (*run)(const LaunchArgument* arguments);
};

template <class T>
struct TypeName;
#define CUDA_HOST_TYPE(T)                        \
    template <>                                  \
    struct TypeName<T> {                         \
        static std::string text() { return #T; } \
    };
CUDA_HOST_TYPE(bool)
CUDA_HOST_TYPE(int)
CUDA_HOST_TYPE(long long)
CUDA_HOST_TYPE(float)
CUDA_HOST_TYPE(double)
#undef CUDA_HOST_TYPE
template <class T>
struct TypeName<const T> {
    static std::string text() { return "const " + TypeName<T>::text(); }
};
template <class T>
struct TypeName<T*> {
    static std::string text() { return TypeName<T>::text() + "*"; }
};

// One argument of a launch: a parameter, or a member of a struct parameter. It converts to any requested type, and
// appends this type to `types`.
struct ConvertibleArgument {
    const LaunchArgument* argument;
    std::string* types;

    template <class M>
    operator M() const {
        if (types != nullptr) {
            *types += (types->empty() || types->back() == '{' ? "" : ",") + TypeName<M>::text();
        }
        return argument != nullptr ? from_bits<M>(argument->bits) : M();
    }
};

template <class P, class Members, class = void>
struct AcceptsArguments : std::false_type {};
template <class P, size_t... i>
struct AcceptsArguments<P, std::index_sequence<i...>, std::void_t<decltype(P{(void(i), ConvertibleArgument())...})>>
    : std::true_type {};

// Number of arguments for a parameter: 1, or the number of members of a struct.
template <class P, size_t most = 16>
constexpr size_t count_parameter_arguments() {
    if constexpr (AcceptsArguments<P, std::make_index_sequence<most>>::value) {
        return most;
    } else {
        return count_parameter_arguments<P, most - 1>();
    }
}

// Makes a parameter from its arguments, or from zeros if `arguments` is null.
template <class P, size_t... i>
P make_parameter(const LaunchArgument* arguments, std::string* types, std::index_sequence<i...>) {
    return P{ConvertibleArgument{arguments == nullptr ? nullptr : arguments + i, types}...};
}

template <auto kernel>
struct KernelAdapter;
template <class... P, void (*kernel)(P...)>
struct KernelAdapter<kernel> {
    static std::string signature() {
        std::string text;
        (append_parameter_type<P>(text), ...);
        return text;
    }
    static void run(const LaunchArgument* arguments) { call_kernel(arguments, std::index_sequence_for<P...>()); }

  private:
    template <class Parameter>
    using Members = std::make_index_sequence<count_parameter_arguments<Parameter>()>;

    template <class Parameter>
    static void append_parameter_type(std::string& text) {
        const bool is_struct = std::is_class_v<Parameter>;
        text += !is_struct ? "" : text.empty() ? "{" : ",{";
        make_parameter<Parameter>(nullptr, &text, Members<Parameter>());
        text += is_struct ? "}" : "";
    }
    // The number of arguments before parameter number `count`.
    static constexpr size_t count_arguments_before(size_t count) {
        const size_t numbers[] = {count_parameter_arguments<P>()..., 0};
        size_t sum = 0;
        for (size_t i = 0; i < count; i++) {
            sum += numbers[i];
        }
        return sum;
    }
    template <size_t... i>
    static void call_kernel([[maybe_unused]] const LaunchArgument* arguments, std::index_sequence<i...>) {
        kernel(make_parameter<P>(arguments + count_arguments_before(i), nullptr, Members<P>())...);
    }
};

extern const char* const family;
extern const Kernel kernels[];
extern const int num_kernels;

}  // namespace cuda_host
