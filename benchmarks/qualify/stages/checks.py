"""What only a device can show: half precision, extremes, unwritten memory, streams, threads, captures, sizes."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

import trigraph
from trigraph.benchmarks.qualify.notes import Notes
from trigraph.benchmarks.qualify.place import Device
from trigraph.panels import FUNCTIONS
from trigraph.table import OPERATORS, Operator
from trigraph.verification.cases import build, variants
from trigraph.verification.subjects import named_fields

__all__ = ["AT_ONCE", "parts", "run"]

AT_ONCE = True
EVERY_OPERATOR = tuple(OPERATORS)
SOME = (
    "agg_weighted_n2n_bwd",
    "mha_gat_n2n_fwd",
    "agg_edge_to_edge_fwd",
    "interaction_bilinear_fwd",
    "gno_message_fwd",
)
ROUNDS = 20  # of streams and threads
LARGE = 2**31  # products of sizes are beyond this
Fields = dict[str, Any]


def parts(place: Device) -> list[str]:
    """Return the checks."""
    return list(CHECKS)


def run(part: str, place: Device, notes: Notes) -> None:
    """Make one check."""
    CHECKS[part](place, notes)


def _names(place: Device, names: tuple[str, ...] = EVERY_OPERATOR) -> tuple[str, ...]:
    return names[:2] if place.rehearsal else names


def _arguments(op: Operator, dtype: str = "float32", variant: str = "regular", seed: int = 0) -> dict[str, Any]:
    """Return arguments of an operator as the verification draws them, for the panels of NumPy, arrays writable."""
    kind = next(v for v in variants(op.definition) if v.name == variant)
    values = build(op.definition, kind, dtype, seed).arguments(op)
    return {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in values.items()}


def _called(op: Operator, values: Mapping[str, Any], panel: str, out: Any = None) -> Fields:
    return named_fields(op, FUNCTIONS[op.name](**values, panel=panel, out=out))


def _prepared(values: Mapping[str, Any]) -> None:
    """Let graphs build what they build at the first backward."""
    for value in values.values():
        if hasattr(value, "prepare"):
            value.prepare()


def _differing(mine: Fields, right: Fields) -> str:
    """Return the names of fields that differ in a bit; both are NumPy's."""
    return ", ".join(
        name
        for name, value in right.items()
        if (value is None) != (mine[name] is None) or (value is not None and mine[name].tobytes() != value.tobytes())
    )


def _wide(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in float64."""
    floating = ("float16", "bfloat16", "float32")
    return {
        n: v.astype(np.float64) if isinstance(v, np.ndarray) and v.dtype.name in floating else v
        for n, v in values.items()
    }


def _half(place: Device, notes: Notes) -> None:
    """Check half precision: results are rounded once, sums are float32's."""
    kinds = {"float16": (np.dtype(np.float16), 2.0**-11)}
    if importlib.util.find_spec("ml_dtypes"):
        import ml_dtypes

        kinds["bfloat16"] = (np.dtype(ml_dtypes.bfloat16), 2.0**-8)
    for name in _names(place, tuple(n for n, op in OPERATORS.items() if any(a.half for a in op.arguments))):
        op = OPERATORS[name]
        for kind, (dtype, unit) in kinds.items():
            if not place.takes(dtype):
                notes.add(f"{name} in {kind}", None, f"CuPy has no arrays of {kind}")
                continue
            halves = {a.name for a in op.arguments if a.half}
            given = _arguments(op).items()
            values = {n: v.astype(dtype) if n in halves and v is not None else v for n, v in given}
            mine = place.hosted(_called(op, place.moved(values), place.panel))
            right = _called(op, _wide(values), "pyref")
            worst = {}
            for field in op.fields:
                if mine[field.name] is None or field.index:
                    continue
                error = np.abs(mine[field.name].astype(np.float64) - right[field.name])
                largest = 256 * 2.0**-23 * np.max(np.abs(right[field.name]), initial=1)
                bound = (unit if field.half else 0) * np.abs(right[field.name]) + largest
                worst[field.name] = float(np.max(error / bound, initial=0))
            notes.add(f"{name} in {kind}", all(w <= 1 for w in worst.values()), share_of_bound=worst)


def _extremes(place: Device, notes: Notes) -> None:
    """Check NaN, infinity and the ends of the range against gpu-host, whose results the tests compare with pyref's."""
    for name in _names(place):
        op = OPERATORS[name]
        given = _arguments(op)
        real = [a.name for a in op.arguments if not a.index and given[a.name] is not None and given[a.name].size]
        spoilt: dict[str, dict[str, Any]] = {}
        for first in real:
            for what, value in (("NaN", np.nan), ("infinity", np.inf)):
                array = given[first].copy()
                array.reshape(-1)[array.size // 2] = value
                spoilt[f"{what} in {first}"] = {**given, first: array}
            for what, power in (("tiny", -140), ("large", 20)):
                spoilt[f"{what} {first}"] = {**given, first: np.ldexp(given[first], power)}
        for what, values in spoilt.items():
            if what.split()[-1] in ("dist", "freq"):
                continue  # refused, or without a meaning there
            with np.errstate(all="ignore"):
                right = _called(op, values, "gpu-host")
                mine = place.hosted(_called(op, place.moved(values), place.panel))
                wrong = _unlike(mine, right)
                if wrong:  # where terms cancel, or scores are large, gpu-host is no better than this by itself
                    exact = _called(op, _wide(values), "pyref")
                    wrong = ", ".join(f for f in wrong.split(", ") if not _as_good(mine[f], right[f], exact[f]))
            if wrong:
                notes.add(f"{name}, {what}", False, f"unlike gpu-host: {wrong}")
        notes.add(f"{name} in extremes", True, number=len(spoilt))


def _as_good(mine: np.ndarray, right: np.ndarray, exact: np.ndarray) -> bool:
    """Whether the same numbers are finite, and the largest error is at most 8 times gpu-host's."""
    finite = np.isfinite(right) & np.isfinite(exact)
    if not (np.isfinite(mine) == np.isfinite(right)).all():
        return False
    errors = [np.max(np.abs(a[finite].astype(np.float64) - exact[finite]), initial=0) for a in (mine, right)]
    return bool(errors[0] <= 8 * errors[1])


def _alike(mine: np.ndarray, right: np.ndarray) -> bool:
    """Whether the same numbers are finite, and within roundings of the largest; subnormal ones are not zero."""
    if right.dtype.kind == "i":
        return bool((mine == right).all())
    finite = np.isfinite(right)
    if not (np.isfinite(mine) == finite).all():
        return False
    scale = np.max(np.abs(right[finite]).astype(np.float64), initial=0)
    info = np.finfo(right.dtype)  # 2^16 of the smallest numbers: an input that was flushed to zero misses by 2^20
    bound = max(512 * float(info.eps) * scale, 2**16 * float(info.smallest_subnormal))
    return bool((np.abs(mine[finite].astype(np.float64) - right[finite]) <= bound).all())


def _poisoned(place: Device, notes: Notes) -> None:
    """Check that bits do not depend on what workspace, results and `out` hold before: NaN."""
    for name in _names(place):
        op = OPERATORS[name]
        values = place.moved(_arguments(op))
        right = _called(op, values, place.panel)
        with place.poisoned():
            mine = _called(op, values, place.panel)
        out = {n: place.xp.empty_like(array) for n, array in right.items() if array is not None}
        for array in out.values():
            array.fill(-7 if array.dtype.kind == "i" else np.nan)
        into = _called(op, values, place.panel, next(iter(out.values())) if op.single else out)
        wrong = [_differing(place.hosted(found), place.hosted(right)) for found in (mine, into)]
        strays = [n for n, array in out.items() if into[n] is not array]
        notes.add(
            f"{name}, memory that holds NaN, and out=",
            not any(wrong) and not strays,
            "; ".join(filter(None, [*wrong, *strays])),
        )


def _views(place: Device, notes: Notes) -> None:
    """Check arrays that begin one element after a line of memory, where vector loads are not allowed."""
    for name in _names(place):
        op = OPERATORS[name]
        for dtype in ("float32", "float64"):
            given = _arguments(op, dtype)
            right = place.hosted(_called(op, place.moved(given), place.panel))
            values = place.moved(given)
            for key, array in values.items():
                if isinstance(given[key], np.ndarray):
                    whole = place.xp.empty(array.size + 1, array.dtype)
                    whole[1:] = array.reshape(-1)
                    values[key] = whole[1:].reshape(array.shape)
            wrong = _unlike(place.hosted(_called(op, values, place.panel)), right)
            notes.add(f"{name}, {dtype}, odd offsets", not wrong, wrong)


def _unlike(mine: Fields, right: Fields) -> str:
    """Return the fields that do not have the same bits."""
    return ", ".join(n for n, v in right.items() if v is not None and mine[n].tobytes() != v.tobytes())


def _works(place: Device) -> Iterator[tuple[str, Callable[[], Fields], Fields]]:
    """Yield some calls, each with what it returned alone."""
    for name in _names(place, SOME):
        op = OPERATORS[name]
        values = place.moved(_arguments(op, variant="skewed"))
        _prepared(values)
        call = partial(_called, op, values, place.panel)
        right = place.hosted(call())
        yield name, call, right


def _streams(place: Device, notes: Notes) -> None:
    """Check different calls on two streams at once."""
    works = list(_works(place))
    place.synchronize()
    streams = [place.stream(), place.stream()]
    found: list[tuple[str, Fields, Fields]] = []
    for turn in range(ROUNDS):
        for k, (name, call, right) in enumerate(works):
            with streams[(turn + k) % 2]:
                found.append((name, call(), right))
    place.synchronize()
    wrong = {f"{name}: {_unlike(place.hosted(mine), right)}" for name, mine, right in found}
    _note_all(notes, "two streams", wrong, len(found))


def _note_all(notes: Notes, what: str, wrong: set[str], number: int) -> None:
    found = sorted(text for text in wrong if not text.endswith(": "))
    notes.add(f"calls on {what}", not found, "; ".join(found), number=number)


def _threads(place: Device, notes: Notes) -> None:
    """Check the same calls in two threads, each with a stream of its own; whoever is first compiles the kernels."""
    works, wrong, errors = list(_works(place)), set(), []
    place.synchronize()

    def work(first: int) -> None:
        try:
            with place.stream() as stream:
                for turn in range(ROUNDS):
                    name, call, right = works[(turn + first) % len(works)]
                    mine = call()
                    stream.synchronize()
                    wrong.add(f"{name}: {_unlike(place.hosted(mine), right)}")
        except Exception as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _note_all(notes, "two threads", wrong | set(errors), 2 * ROUNDS)


def _capture(place: Device, notes: Notes) -> None:
    """Check a captured call, replayed with other inputs after other calls have used the memory pool."""
    for name in _names(place):
        op = OPERATORS[name]
        values = place.moved(_arguments(op))
        _prepared(values)
        results, replay = place.captured(partial(_called, op, values, place.panel))
        for key, value in place.moved(_arguments(op, seed=1)).items():
            if hasattr(value, "dtype") and value.shape == values[key].shape:
                values[key][...] = value
        right = place.hosted(_called(op, values, place.panel))
        for array in results.values():
            if array is not None:
                array.fill(-7 if array.dtype.kind == "i" else np.nan)
        replay()
        with place.poisoned():
            again = place.hosted(_called(op, values, place.panel))
        replay()
        wrong = _differing(place.hosted(results), right) or _differing(again, right)
        notes.add(f"{name}, captured and replayed", not wrong, wrong)


def _large(place: Device, notes: Notes) -> None:
    """Check arrays of more than 2^31 numbers, and more than 2^24 edges."""
    xp, limit = place.xp, place.size(LARGE, 2**12)
    nodes = place.size(2**24, 2**5) + 3
    dim = limit // (nodes - 3) + 1
    needed = 4 * nodes * dim * 4
    if place.free_bytes() < needed:
        notes.add(
            "large arrays", None, f"{needed / 2**30:.0f} GiB are needed, {place.free_bytes() / 2**30:.0f} are free"
        )
        return
    for index in (np.int32, np.int64):
        offsets, sources = xp.arange(nodes + 1, dtype=index), xp.arange(nodes, dtype=index)[::-1].copy()
        graph = trigraph.CSC(offsets, sources, nodes)
        x = xp.empty((nodes, dim), np.float32)
        x[...] = xp.arange(nodes, dtype=np.float32)[:, None]
        weight = xp.full(nodes, 2, np.float32)
        label = f"{nodes} nodes and edges of dim {dim}, {np.dtype(index).name}"
        out = trigraph.agg_weighted_n2n_fwd(x, weight, graph, panel=place.panel).output_embedding
        notes.add(f"weighted sum, forward, {label}", bool((out == 2 * x[::-1][:, :1]).all()))
        grads = trigraph.agg_weighted_n2n_bwd(out, x, weight, graph, panel=place.panel, wrt=("embedding",))
        notes.add(f"weighted sum, backward, {label}", bool((grads.embedding == 4 * x[:, :1]).all()))
        del out, grads, x
    edges, width = limit // 1024 + 5, 32
    coords = xp.empty((edges, 3), np.float32)
    coords[...] = xp.linspace(-1, 1, edges, dtype=np.float32)[:, None]
    params = place.moved(np.random.default_rng(0).standard_normal(8 * (4 + width**2) + width**2).astype(np.float32))
    kernel = trigraph.gno_kernel_fwd(coords, params, f_in=width, f_out=width, panel=place.panel)
    tail = place.host(coords[-64:]).astype(np.float64)
    right = FUNCTIONS["gno_kernel_fwd"](tail, place.host(params).astype(np.float64), width, width, panel="pyref")
    notes.add(f"kernel of {edges} edges, 32 x 32", _alike(place.host(kernel[-64:]), right.astype(np.float32)))


CHECKS: dict[str, Callable[[Device, Notes], None]] = {
    "poisoned": _poisoned,
    "streams": _streams,
    "threads": _threads,
    "capture": _capture,
    "views": _views,
    "half": _half,
    "extremes": _extremes,
    "large": _large,
}
