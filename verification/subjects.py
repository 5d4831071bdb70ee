"""Subjects of verification: a common interface for the package's backends and users' functions."""

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from slopecheck.outcome import CallOutcome, record_call_outcome
from trigraph.arrays import name_library
from trigraph.backends import BACKENDS, FUNCTIONS, explain_unavailable
from trigraph.backends.choice import supports_bwd3
from trigraph.graphs import to_device
from trigraph.table import Operator, result_type

# Backends with direct sums; the other backends sum in chunks (tolerances.py).
DIRECT = ("pyref", "fortran-reference")
# Modules that define `small_blocks`, for backends that divide work into blocks by size.
DIVIDING = {"fortran": "trigraph.fortran.levels", "gpu": "trigraph.gpu.sums", "gpu-host": "trigraph.gpu.sums"}

Call = Callable[[Operator, Mapping[str, Any], Sequence[str] | None], dict[str, Any]]
Forms = Mapping[str, tuple[tuple[int, ...], str]]
Into = Callable[[Operator, Mapping[str, Any], Forms, int, list[str]], dict[str, Any]]
Native = Callable[[Operator, Mapping[str, Any]], tuple[Mapping[str, Any], Mapping[str, Any]]]


@dataclass(frozen=True)
class Subject:
    """Common interface of a backend or a user's function."""

    name: str  # recorded as `Check.backend`
    chunked: bool  # whether sums are chunked, which determines the accuracy tolerance
    call: Call  # ``call(op, values, wrt)`` returns None for fields that were not requested; ``wrt=None`` requests all
    implements: str | None = None  # operator that a user's function implements; fortran-reference computes all others
    # ``native(op, values)`` returns arguments and fields as arrays of the backend's library; None if `call` already
    # uses such arrays.
    native: Native | None = None
    # ``into(op, values, forms, offset, strays)`` passes as `out` arrays that start `offset` bytes after a cache-line
    # boundary and have the shapes and dtypes in `forms`, and returns the fields. It appends to `strays` the names of
    # fields that were returned as other arrays or written out of bounds. None if the subject does not support `out`.
    into: Into | None = None
    # Context manager for the smallest possible blocks; None if the subject does not divide work into blocks by size.
    small_blocks: Callable[[], AbstractContextManager[None]] | None = None
    # Whether derivatives are separate functions, which accept `wrt` and results of fwd.
    selective: bool = True
    # Whether the subject provides an operator's bwd3 for the choices in the arguments.
    supports_third: Callable[[Operator, Mapping[str, Any]], bool] = lambda op, values: False


class SubjectCallError(ValueError):
    """Raised if a call of a subject fails."""


def call_and_record_outcome(call: Callable[[], Mapping[str, Any]]) -> CallOutcome:
    """Record the outcome of a call, with tracebacks that omit frames in trigraph.verification."""
    return record_call_outcome(call, "trigraph.verification")


def call_subject(
    subject: Subject, op: Operator, values: Mapping[str, Any], wrt: Sequence[str] | None = None
) -> CallOutcome:
    """Call a subject; exceptions other than Ctrl-C and `NotOffered` are recorded as the outcome's problem."""
    return call_and_record_outcome(lambda: subject.call(op, values, wrt))


def compute_subject_fields(
    subject: Subject, op: Operator, values: Mapping[str, Any], names: Iterable[str]
) -> dict[str, np.ndarray]:
    """Return fields from a call of a subject; raise `SubjectCallError` if the call fails or a field is not an array."""
    outcome = call_subject(subject, op, values)
    if outcome.problem:
        raise SubjectCallError(f"{op.name}: {outcome.problem}")
    arrays: dict[str, Any] = {name: outcome.fields.get(name) for name in names}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise SubjectCallError(f"{op.name}: {name} is not an array")
    return arrays


def convert_result_to_mapping(op: Operator, result: Any) -> dict[str, Any]:
    """Return an operator's result as a mapping from field to array; raise TypeError if its type is wrong."""
    if op.returns_array:
        return {op.fields[0].name: result}
    if not isinstance(result, result_type(op.name)):
        raise TypeError(f"{op.name}: returned a {type(result).__name__}; expected {result_type(op.name).__name__}")
    return dict(result._asdict())  # type: ignore[attr-defined]


@cache  # safe to cache: the result depends only on the installed CuPy
def backend_takes_dtype(name: str, dtype: np.dtype) -> bool:
    """Return whether a backend's arrays can have a dtype; only recent versions of CuPy support bfloat16."""
    try:
        if BACKENDS[name][1] == "cupy":
            _copy_to_host(to_device(np.zeros(1, dtype)))
    except (TypeError, ValueError):
        return False
    return True


def _copy_to_host(value: Any) -> Any:
    if name_library(value) == "cupy":
        import cupy

        return cupy.asnumpy(value)
    return value


def _convert_to_backend_arrays(name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments with arrays of the backend's library, NumPy or CuPy."""
    return {k: to_device(v) for k, v in values.items()} if BACKENDS[name][1] == "cupy" else values


def _call_with_native_arrays(
    name: str, op: Operator, values: Mapping[str, Any], wrt: Sequence[str] | None = None
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    arguments = _convert_to_backend_arrays(name, values)
    keywords = arguments if wrt is None else {**arguments, "wrt": wrt}
    return arguments, convert_result_to_mapping(op, FUNCTIONS[op.name](**keywords, backend=name))


def _compute_fields_on_host(
    name: str, op: Operator, values: Mapping[str, Any], wrt: Sequence[str] | None
) -> dict[str, Any]:
    return {k: _copy_to_host(v) for k, v in _call_with_native_arrays(name, op, values, wrt)[1].items()}


def find_memory_extent(array: Any) -> tuple[int, int]:
    """Return the address of an array's first byte and the address after its last; for device arrays, on the device."""
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    start, strides = interface["data"][0], interface["strides"]
    if strides is None:
        return start, start + array.nbytes
    ends = [(n - 1) * step for n, step in zip(array.shape, strides, strict=True)]
    return start + sum(min(e, 0) for e in ends), start + sum(max(e, 0) for e in ends) + array.itemsize


CACHE_LINE, GUARD_BYTE = 64, 0x5A  # size of a cache line in bytes, and value of the bytes around outputs


def _call_with_out_arrays(
    name: str, op: Operator, values: Mapping[str, Any], forms: Forms, offset: int, strays: list[str]
) -> dict[str, Any]:
    """Call a backend with `out` (see `Subject.into`)."""
    xp: Any = importlib.import_module(BACKENDS[name][1])
    memory, out = {}, {}
    for field, (shape, dtype) in forms.items():
        size = math.prod(shape) * np.dtype(dtype).itemsize
        whole = xp.full(size + 4 * CACHE_LINE, GUARD_BYTE, xp.uint8)
        start = CACHE_LINE - find_memory_extent(whole)[0] % CACHE_LINE + CACHE_LINE + offset
        out[field] = whole[start : start + size].view(dtype).reshape(shape)
        out[field][...] = -77 if np.dtype(dtype).kind == "i" else math.nan
        memory[field] = (whole[:start], whole[start + size :])
    fields = convert_result_to_mapping(
        op, FUNCTIONS[op.name](**_convert_to_backend_arrays(name, values), out=out, backend=name)
    )
    strays += [f for f in forms if fields[f] is not out[f] or any((m != GUARD_BYTE).any() for m in memory[f])]
    return {k: _copy_to_host(v) for k, v in fields.items()}


def make_backend_subject(name: str) -> Subject:
    """Return a backend as a subject; raise ValueError if the backend does not exist or is not available."""
    if name not in BACKENDS:
        raise ValueError(f"verify: backend is {name!r}; expected one of {', '.join(BACKENDS)}, judge")
    if explain_unavailable(name):
        raise ValueError(f"verify: backend {name!r} cannot run here: {explain_unavailable(name)}")
    call, native, into = (
        partial(_compute_fields_on_host, name),
        partial(_call_with_native_arrays, name),
        partial(_call_with_out_arrays, name),
    )
    small_blocks = importlib.import_module(DIVIDING[name]).small_blocks if name in DIVIDING else None
    third = partial(supports_bwd3, name)
    return Subject(name, name not in DIRECT, call, None, native, into, small_blocks, supports_third=third)
