"""What is verified: the panels of the package and users' functions, all called alike."""

from __future__ import annotations

import importlib
import math
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import parent_process
from typing import Any

import numpy as np

from trigraph.graphs import array_kind, to_device
from trigraph.panels import FUNCTIONS, PANELS, unavailable
from trigraph.table import Operator, result_type

# Panels whose sums are direct; the others sum in chunks (tolerances.py).
DIRECT = ("pyref", "fortran-reference")

# A traceback is shown with at most so many of its last frames, and so many of its last characters.
TRACE_FRAMES, TRACE_LENGTH = 12, 4000

Call = Callable[[Operator, Mapping[str, Any], Sequence[str] | None], dict[str, Any]]
Forms = Mapping[str, tuple[tuple[int, ...], str]]
Into = Callable[[Operator, Mapping[str, Any], Forms, int, list[str]], dict[str, Any]]
Native = Callable[[Operator, Mapping[str, Any]], tuple[Mapping[str, Any], Mapping[str, Any]]]


@dataclass(frozen=True)
class Subject:
    """A panel, or a user's function."""

    name: str  # what `Check.panel` says
    chunked: bool  # whether it sums in chunks (tolerance of the accuracy rule)
    call: Call  # ``call(op, values, wrt)``; None for fields not asked for; `wrt` None asks for all
    only: str | None = None  # the one operator a user's function implements; the others are those of fortran-reference
    # ``native(op, values)`` returns the arguments as they were handed over and the fields as they came back, where
    # those are not the arrays that `call` takes and returns (None: they are).
    native: Native | None = None
    # ``into(op, values, forms, offset, strays)`` calls with arrays of the caller's as `out`, `offset` bytes after the
    # start of a cache line, of the shapes and dtypes in `forms`, and returns the fields. It appends to `strays` the
    # name of each field that came back as another array, or whose array was written beside. None: there is no `out`.
    into: Into | None = None
    # Context in which work is cut into blocks as small as can be; None: it is not cut by size.
    small_blocks: Callable[[], AbstractContextManager[None]] | None = None
    # Whether derivatives are functions with arguments of their own: `wrt`, and what fwd gives back.
    selective: bool = True


@dataclass(frozen=True)
class Outcome:
    """What a call left: fields, time in seconds, and what went wrong ("" if nothing)."""

    fields: Mapping[str, Any]
    seconds: float
    problem: str


class CallError(ValueError):
    """A call of a subject went wrong."""


class NotOffered(Exception):
    """A user's function raised NotImplementedError: it does not offer what it is asked for."""


# Auxiliary outputs that a user's function left out, since this was cleared.
LEFT_OUT: set[str] = set()
# Tracebacks of exceptions, by what is noted of them.
_TRACES: dict[str, str] = {}


def _keep_trace(error: BaseException, problem: str) -> None:
    """Keep the traceback of the first such exception, without the frames of the verification."""
    where = error.__traceback__
    while where is not None and where.tb_frame.f_globals.get("__name__", "").startswith("trigraph.verification"):
        where = where.tb_next
    frames = traceback.extract_tb(where)
    if frames:
        text = "".join(traceback.format_list(frames[-TRACE_FRAMES:]))
        _TRACES.setdefault(problem, f"Traceback (most recent call last):\n{text}{problem}"[-TRACE_LENGTH:])


def trace_of(note: str) -> str:
    """Return the traceback of the exception that a note tells; "" if there is none."""
    return next((trace for problem, trace in _TRACES.items() if note.endswith(problem)), "")


def message_of(error: BaseException) -> str:
    """Return the name and the text of an exception."""
    return ": ".join(filter(None, [type(error).__name__, str(error)]))[:2000]


def attempt(subject: Subject, op: Operator, values: Mapping[str, Any], wrt: Sequence[str] | None = None) -> Outcome:
    """Call a subject; whatever it raises becomes the outcome's problem, but for the user's Ctrl-C and `NotOffered`."""
    return observe(lambda: subject.call(op, values, wrt))


def observe(call: Callable[[], Mapping[str, Any]]) -> Outcome:
    """Make a call of a subject, as `attempt`."""
    start = time.perf_counter()
    fields: Mapping[str, Any] = {}
    try:
        fields, problem = call(), ""
    except NotOffered:
        raise
    except BaseException as error:  # whatever a panel raises is the finding, SystemExit too
        # In the main process that is the user's Ctrl-C; processes of a run do not hear it (isolated.py).
        if isinstance(error, KeyboardInterrupt) and parent_process() is None:
            raise
        problem = message_of(error)
        _keep_trace(error, problem)
    return Outcome(fields, time.perf_counter() - start, problem)


def arrays_of(subject: Subject, op: Operator, values: Mapping[str, Any], names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return fields of a call of a subject; `CallError` if it goes wrong, or one of the fields is no array."""
    outcome = attempt(subject, op, values)
    if outcome.problem:
        raise CallError(f"{op.name}: {outcome.problem}")
    arrays: dict[str, Any] = {name: outcome.fields.get(name) for name in names}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise CallError(f"{op.name}: {name} is no array")
    return arrays


def named_fields(op: Operator, result: Any) -> dict[str, Any]:
    """Return what an operator returned as a mapping from field to array; TypeError if it is not its type of result."""
    if op.single:
        return {op.fields[0].name: result}
    if not isinstance(result, result_type(op.name)):
        raise TypeError(f"{op.name}: returned a {type(result).__name__}; expected {result_type(op.name).__name__}")
    return dict(result._asdict())  # type: ignore[attr-defined]


@cache
def takes(name: str, dtype: np.dtype) -> bool:
    """Whether the arrays of a panel can have a dtype: CuPy has bfloat16 from some version on."""
    try:
        if PANELS[name][1] == "cupy":
            _to_host(to_device(np.zeros(1, dtype)))
    except (TypeError, ValueError):
        return False
    return True


def _to_host(value: Any) -> Any:
    if array_kind(value) == "cupy":
        import cupy

        return cupy.asnumpy(value)
    return value


def _handed(name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments as a panel takes them."""
    return {k: to_device(v) for k, v in values.items()} if PANELS[name][1] == "cupy" else values


def _native(
    name: str, op: Operator, values: Mapping[str, Any], wrt: Sequence[str] | None = None
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    given = _handed(name, values)
    keywords = given if wrt is None else {**given, "wrt": wrt}
    return given, named_fields(op, FUNCTIONS[op.name](**keywords, panel=name))


def _call(name: str, op: Operator, values: Mapping[str, Any], wrt: Sequence[str] | None) -> dict[str, Any]:
    return {k: _to_host(v) for k, v in _native(name, op, values, wrt)[1].items()}


def extent(array: Any) -> tuple[int, int]:
    """Return the first address of an array, and the one after its last; of a device array on the device."""
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    start, strides = interface["data"][0], interface["strides"]
    if strides is None:
        return start, start + array.nbytes
    ends = [(n - 1) * step for n, step in zip(array.shape, strides, strict=True)]
    return start + sum(min(e, 0) for e in ends), start + sum(max(e, 0) for e in ends) + array.itemsize


LINE, AROUND = 64, 0x5A  # bytes of a cache line, and what stands before and after an array that is written to


def _call_into(
    name: str, op: Operator, values: Mapping[str, Any], forms: Forms, offset: int, strays: list[str]
) -> dict[str, Any]:
    """Call a panel with `out`, see `Subject.into`."""
    xp: Any = importlib.import_module(PANELS[name][1])
    memory, out = {}, {}
    for field, (shape, dtype) in forms.items():
        size = math.prod(shape) * np.dtype(dtype).itemsize
        whole = xp.full(size + 4 * LINE, AROUND, xp.uint8)
        start = LINE - extent(whole)[0] % LINE + LINE + offset
        out[field] = whole[start : start + size].view(dtype).reshape(shape)
        out[field][...] = -77 if np.dtype(dtype).kind == "i" else math.nan
        memory[field] = (whole[:start], whole[start + size :])
    fields = named_fields(op, FUNCTIONS[op.name](**_handed(name, values), out=out, panel=name))
    strays += [f for f in forms if fields[f] is not out[f] or any((m != AROUND).any() for m in memory[f])]
    return {k: _to_host(v) for k, v in fields.items()}


def _small_blocks(name: str) -> Callable[[], AbstractContextManager[None]] | None:
    if name == "fortran":
        from trigraph.fortran.levels import small_blocks

        return small_blocks
    if name.startswith("gpu"):
        from trigraph.gpu.sums import small_blocks

        return small_blocks
    return None


def panel(name: str) -> Subject:
    """Return a panel of the package as a subject; ValueError if there is none of that name, or it cannot run here."""
    if name not in PANELS:
        raise ValueError(f"verify: panel is {name!r}; expected one of {', '.join(PANELS)}, judge")
    if unavailable(name):
        raise ValueError(f"verify: panel {name!r} cannot run here: {unavailable(name)}")
    call, native, into = partial(_call, name), partial(_native, name), partial(_call_into, name)
    return Subject(name, name not in DIRECT, call, None, native, into, _small_blocks(name))
