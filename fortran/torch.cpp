// The operators trigraph_cpu::X_fwd, X_bwd, ... for torch's dispatcher, which call the C interface of the fast path.
//
// trigraph.torch and C++ programs can load this library. It uses torch's stable C interface, which was introduced in torch 2.9. The
// functions are declared below, so that the build requires neither torch nor its headers, and looked up in the libtorch_cpu of the
// process; no operator is registered if that library is missing or older. torch_operators.py writes the operators themselves. Invalid
// arguments raise RuntimeError, and trigraph.torch then calls its Python operators. Errors about elements and memory have the same
// type and text as in Python, because compiled programs call only these operators. Each operator has a second name,
// trigraph_cpu::eager_X, for use outside compiled programs. No derivative is registered for it: torch would look it up in Python.
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <initializer_list>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include "trigraph.h"

extern "C" void trigraph_skip_graph_checks(int trust);

namespace {

using i64 = int64_t;
using Value = uint64_t;  // torch's StableIValue: a number, a handle, or a pointer to an optional value, which the callee deletes
using Handle = void *;
using Kernel = void (*)(Value *, uint64_t, uint64_t);
enum { cpu = 0, int32 = 3, int64 = 4, float32 = 6, float64 = 7, success = 0 };

#define TORCH_FUNCTIONS(X)                                                                   \
    X(library_init_fragment, const char *, const char *, uint32_t, Handle *)                 \
    X(library_init_impl, const char *, const char *, const char *, uint32_t, Handle *)       \
    X(library_def, Handle, const char *)                                                     \
    X(library_impl, Handle, const char *, Kernel)                                            \
    X(call_dispatcher, const char *, const char *, Value *)                                  \
    X(delete_tensor_object, Handle)                                                          \
    X(empty_strided, i64, const i64 *, const i64 *, int32_t, int32_t, int32_t, Handle *)     \
    X(get_data_ptr, Handle, void **)                                                         \
    X(get_device_type, Handle, int32_t *)                                                    \
    X(get_dim, Handle, i64 *)                                                                \
    X(get_dtype, Handle, int32_t *)                                                          \
    X(get_sizes, Handle, i64 **)                                                             \
    X(get_storage_offset, Handle, i64 *)                                                     \
    X(get_storage_size, Handle, i64 *)                                                       \
    X(get_strides, Handle, i64 **)
#define DECLARE(name, ...) int32_t (*torch_##name)(__VA_ARGS__);
TORCH_FUNCTIONS(DECLARE)

struct OutOfMemory : std::bad_alloc {  // pybind11 converts it to MemoryError
    std::string text;
    explicit OutOfMemory(std::string words) : text(std::move(words)) {}
    const char *what() const noexcept override { return text.c_str(); }
};

template <class... Words> [[noreturn]] void refuse(const Words &...words)
{
    std::string text;
    auto add = [&](const auto &word) {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(word)>>)
            text += std::to_string(word);
        else
            text += word;
    };
    (add(words), ...);
    throw std::runtime_error(text);
}

void require_success(int32_t code, const char *op)
{
    if (code != success)
        refuse(op, ": torch refused a tensor");
}

// An owned tensor argument, which load_contiguous() makes contiguous; a null handle means that the argument is absent.
struct TensorArgument {
    const char *op, *name;
    Handle handle = nullptr;
    void *data = nullptr;
    const i64 *sizes = nullptr;
    i64 rank = 0;
    int32_t dtype = -1;
    bool column = false;  // whether the tensor has an additional trailing axis of size one
    std::unique_ptr<char[]> zeros;

    TensorArgument(const char *owner, const char *its_name, Handle given) : op(owner), name(its_name), handle(given) {}
    TensorArgument(const TensorArgument &) = delete;
    ~TensorArgument()
    {
        if (handle != nullptr)
            torch_delete_tensor_object(handle);
    }
    bool is_present() const { return handle != nullptr; }
    void load_contiguous();
    void read_metadata();
    // Replace an absent cotangent by zeros, with room for `numbers` elements of 8 bytes.
    void fill_with_zeros(double numbers)
    {
        auto bytes = static_cast<size_t>(8 * numbers);
        zeros.reset(new char[bytes]());
        data = zeros.get();
    }
};

void TensorArgument::read_metadata()
{
    i64 *n;

    require_success(torch_get_dim(handle, &rank), op);
    require_success(torch_get_sizes(handle, &n), op);
    require_success(torch_get_data_ptr(handle, &data), op);
    sizes = n;
}

void TensorArgument::load_contiguous()
{
    int32_t device;
    i64 *strides, offset, bytes, last = 0, next = 1;
    bool contiguous = true, empty = false;

    require_success(torch_get_device_type(handle, &device), op);
    require_success(torch_get_dtype(handle, &dtype), op);
    if (device != cpu || (dtype != float32 && dtype != float64 && dtype != int32 && dtype != int64))
        refuse(op, ": ", name, " has another device or dtype; expected the CPU and float32 or float64");
    read_metadata();
    require_success(torch_get_strides(handle, &strides), op);
    require_success(torch_get_storage_offset(handle, &offset), op);
    require_success(torch_get_storage_size(handle, &bytes), op);
    for (i64 k = rank; k-- > 0; next *= sizes[k]) {
        contiguous = contiguous && (sizes[k] == 1 || strides[k] == next);
        empty = empty || sizes[k] == 0;
        last += (sizes[k] - 1) * strides[k];
    }
    const i64 size = dtype == float32 || dtype == int32 ? 4 : 8;
    if (!empty && bytes < (offset + last + 1) * size)
        refuse(op, ": ", name, " has a storage of ", bytes, " bytes, which is too small");
    if (!contiguous && !empty) {
        Value stack[2] = {reinterpret_cast<Value>(handle), 0};  // 0: contiguous memory format; torch takes ownership of the handle
        handle = nullptr;
        require_success(torch_call_dispatcher("aten::contiguous", "", stack), op);
        handle = reinterpret_cast<Handle>(stack[0]);
        read_metadata();
    }
    if (reinterpret_cast<uintptr_t>(data) % size != 0 || (data == nullptr && !empty))
        refuse(op, ": ", name, " is not aligned, or has no memory");
}

Handle read_tensor(Value value) { return reinterpret_cast<Handle>(value); }

Handle read_optional_tensor(Value value)
{
    if (value == 0)
        return nullptr;
    std::unique_ptr<Value> held(reinterpret_cast<Value *>(value));
    return read_tensor(*held);
}

i64 read_integer(Value value) { return static_cast<i64>(value); }

double read_number(Value value)
{
    double number;
    std::memcpy(&number, &value, sizeof number);
    return number;
}

void check_rank(TensorArgument &a, i64 rank)
{
    if (a.rank != rank)
        refuse(a.op, ": ", a.name, " has rank ", a.rank, "; expected ", rank);
}

// Check the rank of an argument that may have an additional trailing axis of size one.
void check_column(TensorArgument &a, i64 rank)
{
    a.column = a.rank == rank + 1 && a.sizes[rank] == 1;
    check_rank(a, rank + a.column);
}

void check_size(const TensorArgument &a, int axis, i64 expected)
{
    if (a.sizes[axis] != expected)
        refuse(a.op, ": ", a.name, " has size ", a.sizes[axis], " in axis ", axis, "; expected ", expected);
}

void check_dtype(const TensorArgument &a, int32_t expected)
{
    if (a.dtype != expected)
        refuse(a.op, ": ", a.name, " has a different dtype from the first input or the first array of the graph");
}

void check_integer_range(const char *op, const char *name, i64 value, i64 least, i64 most)
{
    if (value < least || value > most)
        refuse(op, ": ", name, " is ", value, "; expected ", least, " .. ", most);
}

void check_finite_nonnegative(const char *op, const char *name, double value, int32_t real)
{
    if (!(value >= 0 && value <= (real == float32 ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max())))
        refuse(op, ": ", name, " is ", value, "; expected a finite number >= 0");
}

// Determine a symbol from the size of an axis, which is a linear function of the symbol.
i64 solve_for_symbol(const TensorArgument &a, int axis, i64 at_zero, i64 at_one, i64 least, i64 most, const char *symbol)
{
    const i64 slope = at_one - at_zero, rest = a.sizes[axis] - at_zero;

    if (slope == 0 || rest % slope != 0 || rest / slope < least || rest / slope > most)
        refuse(a.op, ": ", a.name, " has size ", a.sizes[axis], " in axis ", axis, "; expected a whole ", symbol);
    return rest / slope;
}

// Format a number as NumPy does.
template <class Real> std::string format_number(Real x)
{
    char text[40];
    int digits = 1;

    while (std::snprintf(text, sizeof text, "%.*g", digits, x), Real(std::strtod(text, nullptr)) != x && digits < 17)
        digits++;
    if (std::fabs(x) >= 1 && std::fabs(x) < Real(1e16))
        std::snprintf(text, sizeof text, "%.*g", std::max(digits, 1 + int(std::log10(std::fabs(x)))), x);
    const std::string number = text;
    return number.find_first_of(".en") == std::string::npos ? number + ".0" : number;
}

// Raise ValueError unless all numbers are positive or NaN. The text is the same as in trigraph.checks.
template <class Real> void check_positive(const TensorArgument &a, i64 number)
{
    const auto *x = static_cast<const Real *>(a.data);
    for (i64 k = 0; k < number; k++)
        if (x[k] <= 0)
            throw std::invalid_argument(
                std::string(a.op) + ": " + a.name + "[" + std::to_string(k) + "] is " + format_number(x[k]) + "; expected a number > 0");
}

// Raise the same error as trigraph.checks for the first location that is not an in-edge of its destination.
template <class Index> [[noreturn]] void refuse_location(const TensorArgument &a, const TensorArgument &offsets)
{
    const auto *p = static_cast<const Index *>(offsets.data), *location = static_cast<const Index *>(a.data);
    for (i64 i = 0; i < a.sizes[0]; i++)
        for (i64 j = 0; j < a.sizes[1]; j++) {
            const i64 start = p[i], stop = p[i + 1], at = location[i * a.sizes[1] + j];
            if (start == stop ? at != -1 : at < start || at >= stop)
                throw std::invalid_argument(
                    std::string(a.op) + ": " + a.name + "[" + std::to_string(i) + ", " + std::to_string(j) + "] is " + std::to_string(at)
                    + "; expected " + (start == stop ? "-1, without in-edges" : "an in-edge of destination " + std::to_string(i) + ", "
                    + std::to_string(start) + " .. " + std::to_string(stop - 1)));
        }
    refuse(a.op, ": ", a.name, " changed while it was read");
}

// Disables the checks of graph arrays in the C interface during its lifetime, because graph objects have already checked them.
struct GraphCheckSuspension {
    GraphCheckSuspension() { trigraph_skip_graph_checks(1); }
    ~GraphCheckSuspension() { trigraph_skip_graph_checks(0); }
};

// A result tensor, which is empty if the result is not requested; give_up() passes ownership to torch.
struct ResultTensor {
    Handle handle = nullptr;
    void *data = nullptr;
    i64 numbers = 1;

    ResultTensor(const char *op, bool wanted, int32_t dtype, std::initializer_list<i64> shape, bool column)
    {
        i64 sizes[8] = {0}, strides[8], next = 1, rank = 1;

        if (wanted) {
            rank = static_cast<i64>(shape.size()) + column;
            std::copy(shape.begin(), shape.end(), sizes);
            if (column)
                sizes[rank - 1] = 1;
        }
        for (i64 k = rank; k-- > 0; next *= sizes[k] > 0 ? sizes[k] : 1) {
            strides[k] = next;
            numbers *= sizes[k];
        }
        if (torch_empty_strided(rank, sizes, strides, dtype, cpu, 0, &handle) != success)
            throw OutOfMemory(std::string(op) + ": out of memory");
        require_success(torch_get_data_ptr(handle, &data), op);
    }
    ResultTensor(const ResultTensor &) = delete;
    ~ResultTensor()
    {
        if (handle != nullptr)
            torch_delete_tensor_object(handle);
    }
    Value release()
    {
        auto value = reinterpret_cast<Value>(handle);
        handle = nullptr;
        return value;
    }
};

void check_status(const char *op, int status)
{
    if (status == TRIGRAPH_REFUSED) {
        const i64 refused = trigraph_refused_bytes();
        const auto what = refused > 0 ? std::to_string(refused) + " bytes of workspace" : std::string("workspace, or threads");
        throw OutOfMemory(std::string(op) + ": the system refused " + what);
    }
    if (status != 0)
        refuse(op, ": ", trigraph_status_text(status));
}

#include "torch_operators.inc"

__attribute__((constructor)) void register_operators()
{
    void *library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
    Handle fragment, kernels;

#define LOOK_UP(name, ...)                                                                        \
    *reinterpret_cast<void **>(&torch_##name) = dlsym(library == nullptr ? RTLD_DEFAULT : library, "aoti_torch_" #name); \
    if (torch_##name == nullptr)                                                                  \
        return;
    TORCH_FUNCTIONS(LOOK_UP)
    if (torch_library_init_fragment("trigraph_cpu", __FILE__, __LINE__, &fragment) != success
        || torch_library_init_impl("trigraph_cpu", "CPU", __FILE__, __LINE__, &kernels) != success)
        return;
    for (const auto &op : operators)
        for (const std::string &before : {"", "eager_"}) {
            torch_library_def(fragment, (before + op.schema).c_str());
            torch_library_impl(kernels, (before + op.name).c_str(), op.kernel);
        }
}

}  // namespace
