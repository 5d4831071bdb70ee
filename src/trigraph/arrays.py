"""Libraries and devices of NumPy arrays, CuPy arrays and tensors; checks of index arrays and numbers."""

import math
import numbers
import operator
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

# Functions that avoid circular imports: "torch" returns the module that converts tensors, "libtrigraph" the path of the
# C library, and "num_threads" the number of threads of large calls. `trigraph/__init__.py` fills this table.
LIBRARIES: dict[str, Callable[[], Any]] = {}

INDEX_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))

# Maximum number of nodes, segments, or rows of edge arrays; int64 offsets of this many rows take 2 PiB.
MOST = 2**48

LARGEST_INT, LARGEST_C_INT = 2**63 - 1, 2**31 - 1


NO_CUPY = (
    "CuPy is not installed: pip install 'trigraph[cuda12]' 'cupy-cuda12x[ctk]', or 'trigraph[cuda13]' "
    "'cupy-cuda13x[ctk]' for a driver of CUDA 13, as nvidia-smi shows it"
)


def import_cupy() -> Any:
    """Return the module cupy; raise an ImportError that says how to install it if it is missing."""
    try:
        import cupy
    except ModuleNotFoundError as error:
        raise ImportError(NO_CUPY) from error
    return cupy


def name_library(value: Any) -> str | None:
    """Return ``"numpy"`` or ``"cupy"`` for an ndarray of that library, and None for anything else.

    Masked arrays and matrices give None, because a kernel would ignore the mask, and a matrix redefines ``*``.
    """
    if type(value) is np.ndarray:  # test the common case first
        return "numpy"
    if isinstance(value, np.ndarray):
        return None if isinstance(value, (np.ma.MaskedArray, np.matrix)) else "numpy"
    if type(value).__module__.partition(".")[0] == "cupy" and type(value).__name__ == "ndarray":
        return "cupy"
    return None


class ArrayLibrary:
    """Array library (NumPy or CuPy) of one backend, for the argument checks.

    `trigraph.torch` and `trigraph.jax` have their own classes with the same methods, without a backend.
    """

    floats = "native float32 or float64"

    def __init__(self, kind: str, backend: str) -> None:
        self.kind, self.backend = kind, backend
        self.takes = f"backend {backend!r} takes {kind}.ndarray"

    def is_array(self, value: Any) -> bool:
        """Return whether a value is an array from which a graph object can be made."""
        return name_library(value) is not None

    def get_dtype_and_device(self, caller: str, name: str, value: Any, first: str = "") -> tuple[Any, str]:
        """Return the dtype and the device of an array; raise TypeError if it is not an array of this library.

        The dtype is None if it is checked later. `first` names the first array that was checked in this call.
        """
        kind = name_library(value)
        if kind == self.kind:
            return value.dtype, find_device(value)
        if kind is None:
            expected = f"expected a {self.kind}.ndarray of float32 or float64{suggest_array_conversion(name, value)}"
            raise TypeError(f"{caller}: {name} is a {type(value).__name__}; {expected}")
        raise TypeError(f"{caller}: {name} is a {kind}.ndarray; {self.takes}")

    def convert_graph(self, value: Any) -> Any:
        """Convert a graph object to the form that this library takes; return anything else unchanged."""
        return value


def find_device(value: Any) -> str:
    """Return ``"host"`` or the CUDA device of an array or a tensor."""
    if isinstance(value, np.ndarray):
        return "host"
    if name_library(value) == "cupy":
        return f"cuda:{value.device.id}"
    return "host" if value.device.type == "cpu" else str(value.device)


def get_array_module(value: Any) -> Any:
    """Return the module of an array: numpy or cupy."""
    if isinstance(value, np.ndarray):
        return np
    import cupy

    return cupy


def wait_until_written(array: Any) -> None:
    """Wait until the current stream has written a device array, so that other streams may read it."""
    if name_library(array) == "cupy":
        get_array_module(array).cuda.get_current_stream().synchronize()


def copy_read_only(array: Any) -> Any:
    """Return a read-only copy of a NumPy array. A CuPy array, which cannot be read-only, is returned unchanged."""
    if not isinstance(array, np.ndarray):
        return array
    try:
        memory = array.tobytes()
    except MemoryError:
        raise MemoryError(f"the system has no {array.nbytes} bytes for a copy of an array of a graph") from None
    return np.ndarray(array.shape, array.dtype, buffer=memory)


def is_tensor(value: Any) -> bool:
    """Return whether a value is a PyTorch tensor. PyTorch need not be installed."""
    return any(c.__module__.partition(".")[0] == "torch" and c.__name__ == "Tensor" for c in type(value).__mro__)


def view_tensor_memory(value: Any, what: str = "a tensor") -> Any:
    """Return an array that views the memory of a dense tensor or JAX array; return anything else unchanged.

    Raise ValueError, with a message that begins with `what`, if the storage of the tensor was released or the JAX array
    is not on a CPU. Raise TypeError if JAX is tracing the array.
    """
    jax = sys.modules.get("jax")
    # If JAX is not installed, `jax` may be a namespace package made from a folder of that name.
    if jax is not None and hasattr(jax, "Array") and isinstance(value, jax.Array):
        if isinstance(value, jax.core.Tracer):
            raise TypeError(
                f"{what} is traced by JAX; expected an array with values: build the graph outside of jit, grad and "
                "vmap, and pass it as an argument"
            )
        if any(d.platform != "cpu" for d in value.devices()):
            raise ValueError(f"{what} is on {next(iter(value.devices()))}; expected a CPU device")
        return np.asarray(value)
    if not is_tensor(value) or str(value.layout) != "torch.strided" or value.device.type not in ("cpu", "cuda"):
        return value
    if type(value).__name__ == "FakeTensor":  # a FakeTensor represents a tensor during tracing and has no memory
        return value
    return LIBRARIES["torch"]().view_tensor_unless_batched(value, what)


def describe_dtype(dtype: np.dtype) -> str:
    """Return the name of a dtype for messages, with a note if its byte order is not native."""
    return dtype.name if dtype.isnative else f"{dtype.name} with non-native byte order"


def describe_type(value: Any) -> str:
    """Return a description of an object that is not an array, for error messages."""
    if not is_tensor(value):
        return f"a {type(value).__name__}"
    if type(value).__name__ == "FakeTensor":
        return (
            "a FakeTensor, made by tracing (build the graph before tracing, and pass "
            "trigraph.torch.GraphTensors.from_graph(graph) to the program)"
        )
    batched = str(value.layout) == "torch.strided" and value.device.type in ("cpu", "cuda")
    batch_text = "batched by torch.vmap (join the graphs of all entries into one, with nodes of their own)"
    detail = batch_text if batched else f"of layout {value.layout} on {value.device}"
    return f"a torch.Tensor {detail}"


def convert_to_tensor_like(array: Any, template: Any) -> Any:
    """Convert an array to a tensor if `template`, an argument of the caller, is a tensor."""
    return LIBRARIES["torch"]().view_array_as_tensor(array) if is_tensor(template) else array


def suggest_array_conversion(name: str, value: Any) -> str:
    """Return advice for the end of an error message if the value is a tensor, otherwise ""."""
    return f": pass {name}.detach().cpu().numpy(), or use trigraph.torch" if is_tensor(value) else ""


def check_and_copy_index_array(caller: str, name: str, value: Any, like: Any = None, like_name: str = "offsets") -> Any:
    """Return a read-only contiguous array that copies a one-dimensional index array or tensor.

    Raise TypeError or ValueError if the value is not such an array, or if it differs in library, dtype or device from
    `like`, which messages call `like_name`.
    """
    value, like = view_tensor_memory(value, f"{caller}: {name}"), view_tensor_memory(like)
    library_name = name_library(value)
    if library_name is None:
        raise TypeError(
            f"{caller}: {name} is {describe_type(value)}; expected a numpy.ndarray, cupy.ndarray or torch.Tensor of "
            "integers"
        )
    if value.dtype not in INDEX_DTYPES:  # also rejects a byte order that is not native
        raise TypeError(f"{caller}: {name} has dtype {describe_dtype(value.dtype)}; expected native int32 or int64")
    if value.ndim != 1:
        raise ValueError(f"{caller}: {name} has shape {value.shape}; expected one dimension")
    if value.size > np.iinfo(value.dtype).max:
        raise ValueError(f"{caller}: {name} has {value.size} values, more than {value.dtype} can count; expected int64")
    if like is not None:
        if name_library(like) != library_name:
            raise TypeError(
                f"{caller}: {name} is a {library_name}.ndarray; "
                f"expected {name_library(like)}.ndarray, as {like_name} is"
            )
        if like.dtype != value.dtype:
            raise TypeError(
                f"{caller}: {name} has dtype {value.dtype}; expected {like.dtype}, the dtype of {like_name}"
            )
        if find_device(like) != find_device(value):
            raise ValueError(
                f"{caller}: {name} is on {find_device(value)}; expected {find_device(like)}, where {like_name} is"
            )
    return (
        copy_read_only(value) if library_name == "numpy" else get_array_module(value).array(value, copy=True, order="C")
    )


def check_range(caller: str, name: str, values: Any, bound: int, bound_name: str) -> None:
    """Raise ValueError, naming the first wrong value, unless every value is in 0..bound-1."""
    if values.size == 0:
        return
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= bound:
        at = int(get_array_module(values).argmax((values < 0) | (values >= bound)))
        raise ValueError(f"{caller}: {name}[{at}] is {int(values[at])}; expected 0 <= {name} < {bound_name} = {bound}")


def format_value(value: Any) -> str:
    """Return the text of a value for messages, even if it is an integer that is too long for Python to convert."""
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)


def require_count(caller: str, name: str, value: Any, minimum: int = 0, maximum: int = LARGEST_INT) -> int:
    """Return `value` as an int; raise TypeError for a bool or a non-integer, ValueError if it is out of range."""
    try:
        if isinstance(value, bool) or getattr(value, "dtype", None) == np.bool_:
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{caller}: {name} is a {type(value).__name__}; expected an int") from None
    if not minimum <= number <= maximum:
        bound = f"at least {minimum}" if number < minimum else f"at most {maximum}"
        raise ValueError(f"{caller}: {name} is {format_value(number)}; expected {bound}")
    return number


def get_max_addressable_count(dtype: np.dtype) -> int:
    """Return the largest number of nodes, segments or rows that indices of this dtype can address, at most `MOST`."""
    return min(MOST, int(np.iinfo(dtype).max))


def check_memory(caller: str, name: str, number: int, bytes_each: int) -> None:
    """Raise MemoryError if `number` elements of `bytes_each` bytes exceed this machine's memory.

    A system may grant more memory than it has and then kill the process that writes to it.
    """
    needed, available = number * bytes_each, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise MemoryError(
            f"{caller}: {name} is {number}, whose arrays take {needed} bytes; expected at most {available}, the memory "
            "of this machine"
        )


def is_ascending(keys: Any) -> bool:
    """Return whether no key is smaller than the previous one."""
    return bool((keys[1:] >= keys[:-1]).all())


def unwrap_scalar(value: Any) -> Any:
    """Return the element of a zero-dimensional array; return anything else unchanged."""
    return value[()] if name_library(value) == "numpy" and value.ndim == 0 else value


def require_nonnegative_number(caller: str, name: str, value: Any, positive: bool = False) -> float:
    """Return a finite number as a float; raise if it is negative, or if it is zero and `positive` is true."""
    scalar = unwrap_scalar(value)
    if isinstance(scalar, (bool, np.bool_)) or not issubclass(type(scalar), numbers.Real):
        raise TypeError(f"{caller}: {name} is a {type(value).__name__}; expected a number")
    try:
        number = float(scalar)
    except OverflowError:  # an integer beyond the range of floats
        number = math.inf if scalar > 0 else -math.inf
    if not 0 <= number < math.inf or (positive and number == 0):
        raise ValueError(f"{caller}: {name} is {number}; expected a finite number {'above 0' if positive else '>= 0'}")
    return number
